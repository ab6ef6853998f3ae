"""A standalone Spark cluster on the loopback: a master and workers in processes of their own, from the installed pyspark."""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyspark

from msgtx.spark_jobs.runtime.java import find_java
from tests.databases import wait_until
from tests.spark.programs import PATIENCE_SECONDS

MASTER: Final = "org.apache.spark.deploy.master.Master"
WORKER: Final = "org.apache.spark.deploy.worker.Worker"
EXECUTOR: Final = "CoarseGrainedExecutorBackend"
PLACE: Final = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")


@dataclass
class Cluster:
    """A running cluster; `folder` holds its logs, and what the executors wrote below `work`."""

    folder: Path
    environment: dict[str, str]
    url: str = ""
    processes: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    def start(self, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start one process of the cluster, with a log of its own."""
        program = Path(pyspark.__file__).parent / "bin" / "spark-class"
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [program, *arguments], env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def told(self, name: str, pattern: str) -> str:
        """Wait until a process's log matches a pattern; returns the pattern's group."""

        def look() -> str | None:
            found = re.search(pattern, (self.folder / f"{name}.log").read_text(errors="replace"))
            return found[1] if found else None

        return str(wait_until(look, f"{name} says {pattern}", seconds=PATIENCE_SECONDS))

    def executors(self) -> list[int]:
        """Return the process numbers of the executors' JVMs."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                command = path.read_bytes()
                if EXECUTOR.encode() in command and str(self.folder).encode() in _folder_of(path.parent):
                    found.append(int(path.parent.name))
        return found

    def used_workers(self) -> set[str]:
        """Return which workers ran executors."""
        return {path.parts[len(self.folder.parts)] for path in self.folder.glob("worker-*/app-*/*/stderr")}


def _folder_of(process: Path) -> bytes:
    return os.fsencode((process / "cwd").readlink())


@contextlib.contextmanager
def cluster(folder: Path, *, workers: int = 2) -> Iterator[Cluster]:
    """Run a cluster whose workers have a core each; it ends with the block, executors included."""
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java().home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_NO_DAEMONIZE": "1",
    }
    made = Cluster(folder, environment)
    try:
        made.start("master", MASTER, *PLACE)
        made.url = made.told("master", r"Starting Spark master at (spark://\S+)")
        for number in range(workers):
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"worker-{number}"))
            made.start(f"worker-{number}", WORKER, *PLACE, *size, made.url)
        for number in range(workers):
            made.told(f"worker-{number}", "(Successfully registered with master)")
        yield made
    finally:
        for process in reversed(made.processes):
            process.send_signal(signal.SIGTERM)
        for process in made.processes:
            try:
                process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        wait_until(lambda: not made.executors(), "the executors have ended", seconds=PATIENCE_SECONDS)
