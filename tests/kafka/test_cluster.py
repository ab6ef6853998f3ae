"""Mirrors through a cluster of three brokers, with TLS and a password: brokers that die, and logs that lose records."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import NewTopic

import msgtx
from msgtx import errors
from msgtx.mirror.kafka import KafkaMirrors
from tests.databases import wait_until
from tests.kafka.broker import fetch
from tests.kafka.cluster import NODES, SecureCluster
from tests.kafka.conftest import Kafka
from tests.kafka.workloads import (
    COPY_SECONDS,
    IN_EACH,
    PARTITIONS,
    Contents,
    beside,
    contents,
    fill,
    mirror,
    require_copied,
)
from tests.refusals import refuses

Unique = Callable[[str], str]
MOST_TRANSACTIONS: Final = 100_000


@pytest.fixture(scope="module")
def running() -> Iterator[SecureCluster]:
    """A cluster that runs."""
    fetch()
    made = SecureCluster()
    try:
        made.start(*NODES)
        yield made
    finally:
        made.close()


@pytest.fixture
def cluster(running: SecureCluster) -> SecureCluster:
    """A cluster all of whose brokers run."""
    if dead := set(NODES) - running.alive:
        running.start(*dead)
    return running


@pytest.fixture
def kafka(cluster: SecureCluster) -> Kafka:
    """What the tests do with the cluster."""
    return Kafka(cluster.servers)


def leader(kafka: Kafka, topic: str) -> int:
    """Return the broker that leads the first partition; -1: the broker that was asked knows of none."""
    found = kafka.metadata().topics.get(topic)
    return int(found.partitions[0].leader) if found and found.partitions else -1


def in_sync(kafka: Kafka, topic: str) -> list[int]:
    """Return the brokers in sync on the first partition; none: the broker that was asked does not know."""
    found = kafka.metadata().topics.get(topic)
    return found.partitions[0].isrs if found and found.partitions else []


def test_to_kafka_and_back_all_is_the_same_though_leaders_die(
    client: msgtx.Client,
    database_url: str,
    make_database: Callable[..., str],
    cluster: SecureCluster,
    kafka: Kafka,
    unique: Unique,
) -> None:
    """No password is in the arguments of the processes, their output, or the progress."""
    topic, name = unique("there"), unique("mirror")
    client.topics.create(topic, partitions=PARTITIONS, retention_ms=-1)
    back_url, said = make_database(), b""

    def copied() -> int:
        return sum(one.records for one in KafkaMirrors(cluster.url).list() if one.name == name)

    with msgtx.connect(back_url) as back:

        def copied_back() -> int:
            return sum(one.records for one in back.admin.mirrors.list())

        with (
            beside(lambda over: fill(client, topic, MOST_TRANSACTIONS, over, pause_seconds=0.02)),
            mirror((database_url, topic, name, "target", cluster.url)) as there,
        ):
            wait_until(copied, "copied to Kafka", seconds=COPY_SECONDS)
            with mirror((back_url, topic, name, "source", cluster.url)) as and_back:
                wait_until(copied_back, "copied from Kafka", seconds=COPY_SECONDS)
                cluster.kill(wait_until(lambda: max(leader(kafka, topic), 0), "a leader", seconds=COPY_SECONDS))
                before = copied_back()
                wait_until(lambda: copied_back() > before + 20 * IN_EACH, "copied on", seconds=COPY_SECONDS)
                for process in (there, and_back):
                    assert process.poll() is None, "the mirror has ended by itself"
                    said += Path(f"/proc/{process.pid}/cmdline").read_bytes()
        client.mirror(topic, name=name, target=cluster.url, until_caught_up=True)
        expected = contents(client, topic)
        require_copied(lambda: kafka.contents(topic), expected)

        def copy_back() -> Contents:
            back.mirror(topic, name=name, source=cluster.url, until_caught_up=True)
            return contents(back, topic)

        require_copied(copy_back, expected)
        described = repr((KafkaMirrors(cluster.url).describe(name), back.admin.mirrors.describe(name)))
    assert cluster.password not in said.decode() + described


COMMANDS: Final = {
    "list": ("mirror", "list"),
    "run": ("mirror", "run", "none", "--name", "none", "--until-caught-up", "--outage-timeout", "10"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("sasl.password", "wrong-secret", "Authentication failed"),
        ("ssl.ca.location", "/no/such/file.pem", "ssl.ca.location"),
        ("security.protocol", "SASL_PLAINTEXT", "kafka://"),
    ],
)
def test_an_address_that_does_not_fit_is_told_in_one_line_without_a_secret(
    cluster: SecureCluster, database_url: str, tmp_path: Path, command: str, option: str, value: str, said: str
) -> None:
    options = tmp_path / "wrong.properties"
    lines = [line for line in cluster.options.read_text().splitlines() if not line.startswith(option)]
    options.write_text("\n".join([*lines, f"{option}={value}"]))
    address = f"{cluster.url.partition('?')[0]}?config={options}&socket.timeout.ms=3000"
    whole = [sys.executable, "-m", "msgtx.cli", "--url", database_url, *COMMANDS[command], "--target", address]
    done = subprocess.run(whole, capture_output=True, text=True, check=False, timeout=COPY_SECONDS)
    assert done.returncode not in {0, 70}
    assert said in done.stderr
    *outage, last = done.stderr.splitlines()
    assert "kafka://127.0.0.1" in last
    assert ["an end is away" in line for line in outage] in ([], [True]), done.stderr  # the log's line, if it takes long
    assert cluster.password not in done.stderr
    assert "wrong-secret" not in done.stderr


def unclean(kafka: Kafka, topic: str) -> None:
    """Make a topic of one partition that prefers an answer to its records: on two brokers, one of which is enough."""
    config = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    kafka.admin.create_topics([NewTopic(topic, 1, replica_assignment=[[1, 2]], config=config)])[topic].result(30)
    wait_until(lambda: leader(kafka, topic) == 1, "a leader", seconds=COPY_SECONDS)


def fall_behind(cluster: SecureCluster, kafka: Kafka, topic: str) -> None:
    """Kill the follower, so that it lacks what is stored from now on."""
    cluster.kill(2)
    wait_until(lambda: in_sync(kafka, topic) == [1], "the leader is alone", seconds=COPY_SECONDS)


def fail_over(cluster: SecureCluster, kafka: Kafka, topic: str) -> None:
    """Kill the leader, and have the follower lead."""
    cluster.kill(1)
    cluster.start(2)
    wait_until(lambda: leader(kafka, topic) == 2, "an unclean election", seconds=COPY_SECONDS)
    cluster.start(1)


def test_a_source_that_lost_records_in_an_unclean_election_is_told_of(
    make_database: Callable[..., str], cluster: SecureCluster, kafka: Kafka, unique: Unique
) -> None:
    topic, producer = unique("lost"), kafka.producer()
    unclean(kafka, topic)

    def store(count: int) -> None:
        for number in range(count):
            producer.produce(topic, b"%d" % number, partition=0)
        assert producer.flush(60) == 0

    with msgtx.connect(make_database()) as client:

        def copy() -> int:
            return client.mirror(topic, name="lost", source=cluster.url, until_caught_up=True).records

        store(10)
        fall_behind(cluster, kafka, topic)
        store(5)
        assert copy() == 15
        fail_over(cluster, kafka, topic)
        with refuses(errors.LogTruncated, topic=topic, partition=0, offset=15):
            copy()
        producer = kafka.producer()
        store(20)  # it grows past
        with refuses(errors.LogTruncated, topic=topic, partition=0, offset=15):
            copy()
        client.admin.mirrors.reset("lost")
        client.topics.delete(topic)
        assert copy() == 30


def test_a_target_that_lost_records_in_an_unclean_election_is_told_of(
    client: msgtx.Client, cluster: SecureCluster, kafka: Kafka, unique: Unique
) -> None:
    topic, name = unique("lost"), unique("mirror")
    client.topics.create(topic, partitions=1)
    unclean(kafka, topic)

    def copy(count: int) -> int:
        with client.producer() as producer:
            for number in range(count):
                producer.send(topic, b"%d" % number)
        return client.mirror(topic, name=name, target=cluster.url, until_caught_up=True).records

    assert copy(10) == 10
    fall_behind(cluster, kafka, topic)
    assert copy(5) == 5
    fail_over(cluster, kafka, topic)
    for _ in range(2):  # also by the next run
        with refuses(errors.LogTruncated, topic=topic, partition=0):
            copy(0)
    assert "lost records" in str(KafkaMirrors(cluster.url).describe(name).error)
    KafkaMirrors(cluster.url).reset(name)
    assert copy(0) == 15
