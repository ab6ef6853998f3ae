"""A server of Spark Connect on the loopback, in a process of its own, from the installed pyspark."""

import contextlib
import os
import re
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyspark

from msgtx.spark_jobs.runtime.java import find_java
from tests.databases import wait_until
from tests.spark.programs import PATIENCE_SECONDS

SERVER: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
STARTED: Final = re.compile(r"Spark Connect server started at: \S+:(\d+)")


@dataclass
class ConnectServer:
    """A server that can be killed and started again. `url`: of the running one."""

    folder: Path
    process: "subprocess.Popen[bytes] | None" = None
    url: str = ""
    killed: list[int] = field(default_factory=list)  # groups of processes

    def start(self) -> None:
        """Start it, and wait until it answers."""
        program = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        port = ("--conf", "spark.connect.grpc.binding.address=127.0.0.1", "--conf", "spark.connect.grpc.binding.port=0")
        place = ("--master", "local[2,4]", "--conf", "spark.ui.enabled=false")
        log = self.folder / "server.log"
        with log.open("wb") as told:
            self.process = subprocess.Popen(
                [program, "--class", SERVER, *place, *port, "spark-internal"],
                env={**os.environ, "JAVA_HOME": str(find_java().home), "SPARK_LOCAL_IP": "127.0.0.1"},
                stdin=subprocess.DEVNULL, stdout=told, stderr=told, cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        found = wait_until(
            lambda: STARTED.search(log.read_text(errors="replace")), "the server has started", seconds=PATIENCE_SECONDS
        )
        assert isinstance(found, re.Match)
        self.url = f"sc://127.0.0.1:{found[1]}"

    def kill(self) -> None:
        """Kill it as a crash would. Its processes of Python live on for a while, and are left alone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)
        self.killed.append(self.process.pid)

    def end(self) -> None:
        """End it, with the processes that killed ones have left."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(PATIENCE_SECONDS)
        for group in (*self.killed, self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
