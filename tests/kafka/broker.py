"""A real Kafka for the tests: one broker on loopback. `python -m tests.kafka.broker` fetches its programs into `.venv`.

The jars come from Maven's repository by Ivy, which is a part of Spark.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import confluent_kafka
import pyspark
from confluent_kafka.admin import AdminClient

from msgtx.spark_jobs.runtime.java import find_java

MAVEN_NAME: Final = ("org.apache.kafka", "kafka_2.13", "4.3.1")
JARS: Final = Path(sys.prefix) / f"kafka-{MAVEN_NAME[-1]}"
FETCH_SECONDS: Final = 600.0  # 45 jars of 50 MB together
START_SECONDS: Final = 120.0
CLUSTER: Final = "bXNndHgtdGVzdHMtMDAwMQ"  # an id is 16 bytes in base64
PROPERTIES: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
auto.create.topics.enable=true
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
log.retention.ms=-1
"""


def fetch() -> None:
    """Fetch the jars, all or none."""
    if JARS.is_dir():
        return
    with tempfile.TemporaryDirectory(prefix="kafka-", dir=JARS.parent) as folder:
        java = find_java().home / "bin" / "java"
        found = Path(folder, "jars")
        command = [
            java, "-Djava.net.useSystemProxies=true", "-cp", f"{Path(pyspark.__file__).parent}/jars/*",
            "org.apache.ivy.Main", "-warn", "-cache", f"{folder}/ivy", "-dependency", *MAVEN_NAME,
            "-confs", "runtime,master", "-types", "jar", "bundle", "-retrieve", f"{found}/[artifact]-[revision].[ext]",
        ]  # fmt: skip
        subprocess.run(command, check=True, timeout=FETCH_SECONDS, stdout=subprocess.DEVNULL)
        assert list(found.glob(f"{MAVEN_NAME[1]}-*.jar")), "Ivy has fetched no broker"
        found.rename(JARS)


class Broker:
    """A broker with its data in a folder of its own. It can be killed, and started again at the same address."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="msgtx-kafka-"))
        self.port, controller = _free_ports()
        self._properties = self.folder / "server.properties"
        text = PROPERTIES.format(port=self.port, controller=controller, folder=self.folder)
        self._properties.write_text(text, encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None
        formatting = ["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", self._properties]
        subprocess.run(self._java(*formatting), check=True, timeout=START_SECONDS, capture_output=True)

    @property
    def servers(self) -> str:
        """The address for clients of Kafka."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The address for a mirror. A client that was cut off tries again soon."""
        return f"kafka://{self.servers}?reconnect.backoff.max.ms=500"

    def start(self) -> None:
        """Start the broker, and wait until it answers."""
        with (self.folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", self._properties), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_SECONDS
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        while True:
            with contextlib.suppress(confluent_kafka.KafkaException):
                if admin.list_topics(timeout=1).brokers:
                    return
            said = (self.folder / "broker.log").read_text(errors="replace")[-2_000:]
            assert self._process.poll() is None, f"the broker has ended: {said}"
            assert time.monotonic() < deadline, f"the broker does not answer: {said}"

    def kill(self) -> None:
        """Kill the broker, as a crash does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """End the broker, and remove its data."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder)

    def _java(self, *arguments: str | Path) -> list[str | Path]:
        java = find_java().home / "bin" / "java"
        return [java, "-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{JARS}/*", *arguments]


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


if __name__ == "__main__":
    os.umask(0o022)
    fetch()
