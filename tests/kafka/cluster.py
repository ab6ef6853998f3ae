"""Three brokers of one Kafka cluster on loopback, each a controller, too. Their clients have TLS and a password (SCRAM)."""

import contextlib
import functools
import secrets
import shutil
import signal
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import Final
from urllib.parse import quote

import confluent_kafka
from confluent_kafka.admin import AdminClient

from tests.databases import wait_until
from tests.kafka.broker import ASK_SECONDS, JARS, START_SECONDS, find_java, free_ports

NODES: Final = (1, 2, 3)
USER: Final = "mirror"
PROPERTIES: Final = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=INSIDE://127.0.0.1:{inside},CLIENT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=INSIDE://127.0.0.1:{inside},CLIENT://127.0.0.1:{client}
controller.listener.names=CONTROLLER
inter.broker.listener.name=INSIDE
listener.security.protocol.map=INSIDE:PLAINTEXT,CLIENT:SASL_SSL,CONTROLLER:PLAINTEXT
listener.name.client.sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.client.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.client.ssl.keystore.type=PEM
listener.name.client.ssl.keystore.location={folder}/server.pem
log.dirs={folder}/{node}
default.replication.factor=3
min.insync.replicas=2
offsets.topic.num.partitions=1
offsets.topic.replication.factor=3
transaction.state.log.num.partitions=2
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
controlled.shutdown.enable=false
"""


class SecureCluster:
    """The cluster with its data in a folder of its own. Each broker can be killed, and started again."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="msgtx-kafka-"))
        self.password = secrets.token_hex(8) + "+&%"  # what an address has to escape
        self._java = [find_java().home / "bin" / "java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        ports = free_ports(3 * len(NODES))
        self._inside, self._client, controllers = ports[:3], ports[3:6], ports[6:]
        self._certify()
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in zip(NODES, controllers, strict=True))
        identity, formatting = uuid.uuid4().hex[:21] + "A", []
        for node, inside, client, controller in zip(NODES, self._inside, self._client, controllers, strict=True):
            text = PROPERTIES.format(
                node=node, voters=voters, inside=inside, client=client, controller=controller, folder=self.folder
            )
            self._properties(node).write_text(text, encoding="utf-8")
            command = [
                *self._java, "-cp", f"{JARS}/*", "kafka.tools.StorageTool", "format", "-t", identity,
                "-c", self._properties(node), "--add-scram", f"SCRAM-SHA-512=[name={USER},password={self.password}]",
            ]  # fmt: skip
            formatting.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        for each in formatting:
            assert each.wait(START_SECONDS) == 0
        self.options = self.folder / "mirror.properties"
        self.options.write_text(
            "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
            f"sasl.username={USER}\nsasl.password={self.password}\nssl.ca.location={self.folder}/ca.pem\n"
        )
        self.options.chmod(0o600)

    def _certify(self) -> None:
        """Make an authority that nobody else knows, and the brokers' certificate."""

        def make(name: str, *arguments: str) -> None:
            command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
            files = ["-keyout", f"{name}.key", "-out", f"{name}.pem"]
            subprocess.run([*command, *files, *arguments], cwd=self.folder, check=True, capture_output=True)

        make("ca")
        make("server", "-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "subjectAltName=IP:127.0.0.1")
        chain = [(self.folder / name).read_text() for name in ("server.key", "server.pem", "ca.pem")]
        (self.folder / "server.pem").write_text("".join(chain))

    def _properties(self, node: int) -> Path:
        return self.folder / f"{node}.properties"

    @property
    def alive(self) -> set[int]:
        """The brokers that run."""
        return {*self._processes}

    @property
    def servers(self) -> str:
        """The address for the tests' own work, without TLS and password."""
        return ",".join(f"127.0.0.1:{port}" for port in self._inside)

    @property
    def url(self) -> str:
        """The address for a mirror: its secrets are in a file."""
        brokers = ",".join(f"127.0.0.1:{port}" for port in self._client)
        return f"kafka://{brokers}?config={quote(str(self.options))}&reconnect.backoff.max.ms=500"

    def start(self, *nodes: int) -> None:
        """Start brokers, and wait until each of them answers, and is one of the cluster."""
        for node in nodes:
            with (self.folder / f"{node}.log").open("ab") as log:
                command = [*self._java, "-cp", f"{JARS}/*", "kafka.Kafka", self._properties(node)]
                self._processes[node] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        for node in nodes:
            wait_until(functools.partial(self._is_member, node), f"broker {node} answers", seconds=START_SECONDS)

    def _is_member(self, node: int) -> bool:
        """Return whether this broker knows itself. The others still know one that was killed a moment ago."""
        said = (self.folder / f"{node}.log").read_text(errors="replace")[-2_000:]
        assert self._processes[node].poll() is None, f"broker {node} has ended: {said}"
        server = f"127.0.0.1:{self._inside[node - 1]}"
        admin = AdminClient({"bootstrap.servers": server, "log_level": 0, "reconnect.backoff.max.ms": 500})
        with contextlib.suppress(confluent_kafka.KafkaException):
            return node in admin.list_topics(timeout=ASK_SECONDS).brokers
        return False

    def kill(self, *nodes: int) -> None:
        """Kill brokers, as a crash does."""
        for node in nodes:
            self._processes[node].send_signal(signal.SIGKILL)
        for node in nodes:
            self._processes.pop(node).wait()

    def close(self) -> None:
        """End the brokers, and remove their data."""
        self.kill(*self._processes)
        shutil.rmtree(self.folder)
