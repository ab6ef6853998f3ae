"""Mirrors between msgtx and Kafka, and their commands."""

import subprocess
import sys
from collections.abc import Callable

import msgtx
from tests.kafka.broker import Broker
from tests.kafka.conftest import Kafka
from tests.kafka.workloads import IN_EACH, PARTITIONS, contents, fill

Unique = Callable[[str], str]


def test_from_msgtx_to_kafka_and_back_all_is_the_same(
    client: msgtx.Client, make_database: Callable[..., str], broker: Broker, kafka: Kafka, unique: Unique
) -> None:
    topic, name = unique("there"), unique("mirror")
    client.topics.create(topic, partitions=PARTITIONS, retention_ms=-1)
    fill(client, topic, 20)
    assert client.mirror(topic, name=name, target=broker.url, until_caught_up=True).records == 16 * IN_EACH
    assert client.mirror(topic, name=name, target=broker.url, until_caught_up=True).records == 0
    assert kafka.contents(topic) == contents(client, topic)
    with msgtx.connect(make_database()) as back:
        report = back.mirror(topic, name=name, source=broker.url, until_caught_up=True, max_records=50)
        assert report.records == 16 * IN_EACH
        assert contents(back, topic) == contents(client, topic)
        assert not list(back.admin.verify().violations)
        (found,) = back.admin.mirrors.list()
        assert found.source_address == broker.url.partition("?")[0]


def test_the_command_line_runs_lists_and_resets_a_mirror_to_kafka(
    client: msgtx.Client, database_url: str, broker: Broker, unique: Unique
) -> None:
    topic, name = unique("commanded"), unique("mirror")
    client.topics.create(topic, partitions=PARTITIONS, retention_ms=-1)
    fill(client, topic, 5)

    def call(*arguments: str) -> str:
        command = [sys.executable, "-m", "msgtx.cli", "--url", database_url, "-o", "json", "mirror", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert f'"records": {4 * IN_EACH}' in call("run", topic, "--name", name, "--target", broker.url, "--until-caught-up")
    assert f'"{name}"' in call("list", "--target", broker.url)
    assert f'"{topic}"' in call("describe", name, "--target", broker.url)
    call("reset", name, "--target", broker.url, "--yes")
    assert f'"{name}"' not in call("list", "--target", broker.url)
