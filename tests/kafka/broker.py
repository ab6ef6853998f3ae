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
import uuid
from pathlib import Path
from typing import Final

import confluent_kafka
import pyspark
from confluent_kafka.admin import AdminClient, OffsetSpec

from msgtx.spark_jobs.runtime.java import find_java

MAVEN_NAME: Final = ("org.apache.kafka", "kafka_2.13", "4.3.1")
JARS: Final = Path(sys.prefix) / f"kafka-{MAVEN_NAME[-1]}"
FETCH_SECONDS: Final = 600.0  # 45 jars of 50 MB together
FETCHES: Final = 3  # one of so many downloads fails at times; the next attempt has the others in Ivy's cache
STARTS: Final = 3  # another program may take a port before the broker does
START_SECONDS: Final = 120.0
ASK_SECONDS: Final = 5.0  # for one question to a broker
LOOK_SECONDS: Final = 0.1
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
        for left in reversed(range(FETCHES)):
            try:
                subprocess.run(command, check=True, timeout=FETCH_SECONDS, stdout=subprocess.DEVNULL)
                break
            except subprocess.SubprocessError:
                if not left:
                    raise
        assert list(found.glob(f"{MAVEN_NAME[1]}-*.jar")), "Ivy has fetched no broker"
        try:
            found.rename(JARS)
        except OSError:
            if not JARS.is_dir():  # as another process may have fetched them meanwhile
                raise


class Broker:
    """A broker with its data in a folder of its own. It can be killed, and started again at the same address."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="msgtx-kafka-"))
        self._properties = self.folder / "server.properties"
        self._log = self.folder / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._answered = False
        self._cluster = uuid.uuid4().hex[:21] + "A"  # an id is 16 bytes in base64
        self._choose_ports()
        formatting = ["kafka.tools.StorageTool", "format", "-t", self._cluster, "-c", self._properties]
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
        """Start the broker, and wait until it answers. It has the address of its first start."""
        for _ in range(STARTS):
            if self._start():
                self._answered = True
                return
            if not self._answered:
                self._choose_ports()
        raise AssertionError(f"the broker has ended: {self._said()}")

    def _start(self) -> bool:
        """Start the broker. Return whether it answers, or has ended."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", self._properties), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_SECONDS
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0, "reconnect.backoff.max.ms": 500})
        while self._process.poll() is None:
            with contextlib.suppress(confluent_kafka.KafkaException):
                if self._leads(admin):
                    return True
            assert time.monotonic() < deadline, f"the broker does not answer: {self._said()}"
            time.sleep(LOOK_SECONDS)
        return False

    def _leads(self, admin: AdminClient) -> bool:
        """Return whether this broker answers, and no other at its port. Raise the error of a partition without a leader."""
        found = admin.list_topics(timeout=ASK_SECONDS)
        places = {
            confluent_kafka.TopicPartition(name, number): OffsetSpec.latest()
            for name, topic in found.topics.items()
            for number in topic.partitions
        }
        for asked in admin.list_offsets(places, request_timeout=ASK_SECONDS).values() if places else ():
            asked.result(30)
        return bool(found.brokers) and found.cluster_id == self._cluster

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-2_000:]

    def _choose_ports(self) -> None:
        self.port, controller = free_ports(2)
        text = PROPERTIES.format(port=self.port, controller=controller, folder=self.folder)
        self._properties.write_text(text, encoding="utf-8")

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


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody has now."""
    with contextlib.ExitStack() as block:
        sockets = [block.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


if __name__ == "__main__":
    os.umask(0o022)
    fetch()
