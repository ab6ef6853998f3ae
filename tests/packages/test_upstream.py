"""The examples and unit tests of confluent-kafka-python, unchanged, on msgtx; from a checkout that `CONFLUENT` names.

Of its unit tests those run that need no broker and are about what a program sees. Left out are the modules about inner
parts of its asyncio classes, about share consumers, about Avro, Protobuf and registries of schemas, about OAuth, about
logs of librdkafka, about callbacks of a broker that is away, and about interrupted calls (`test_Wakeable`).
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

import msgtx
from msgtx.database.opening import VARIABLE
from tests.packages import sources
from tests.packages.test_packages import left_out, outcomes

SECONDS: Final = 120.0
MODULES: Final = ("test_Consumer", "test_Messages", "test_enums", "test_error", "test_message", "test_topic_partition")
PASSED: Final = 57
pytestmark = pytest.mark.skipif(sources.confluent() is None, reason="CONFLUENT names no checkout of confluent-kafka-python")


def test_its_unit_tests_pass(make_database: Callable[..., str], tmp_path: Path) -> None:
    folder = sources.confluent()
    assert folder is not None
    found = outcomes(folder, tuple(f"tests/{name}.py" for name in MODULES), make_database(), tmp_path / "report.xml")
    assert {name for name, passed in found.items() if not passed} == left_out("confluent-kafka-python")
    assert sum(found.values()) >= PASSED


def example(name: str, *arguments: str, url: str, given: str = "") -> "subprocess.CompletedProcess[str]":
    """Run an example to its end."""
    folder = sources.confluent()
    assert folder is not None
    command = [sys.executable, "-m", "msgtx.compat", str(folder / "examples" / name), *arguments]
    variables = {**os.environ, VARIABLE: url}
    done = subprocess.run(command, env=variables, input=given, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_a_producer_and_exactly_once_processing(client: msgtx.Client) -> None:
    url = client.secret_url
    done = example("producer.py", "nowhere:9092", "input", url=url, given="a\nb\nc\n")
    assert "Message delivered to input [0] @ 2" in done.stderr
    arguments = ("-b", "nowhere", "-g", "eos", "-t", "input", "-p", "0", "-o", "output")
    done = example("eos_transactions.py", *arguments, url=url)
    assert "Committing final transaction with 3 messages" in done.stdout
    done = example("eos_transactions.py", *arguments, url=url)
    assert "Committing final transaction with 0 messages" in done.stdout
    done = example("get_watermark_offsets.py", "nowhere", "eos", "input", url=url)
    assert "input [0]" in done.stdout


def test_context_managers(client: msgtx.Client) -> None:
    done = example("context_manager_example.py", "nowhere:9092", url=client.secret_url)
    assert "All examples completed successfully!" in done.stdout
    assert done.stdout.count("Consumed message: key=key-") == 5


def test_the_admin_client(client: msgtx.Client) -> None:
    def call(*arguments: str) -> str:
        return example("adminapi.py", "nowhere:9092", *arguments, url=client.secret_url).stdout

    assert "Topic made created" in call("create_topics", "made")
    assert "Additional partitions created for topic made" in call("create_partitions", "made", "5")
    assert '"made" with 5 partition(s)' in call("list", "topics")
    assert "retention.bytes" in call("describe_configs", "topic", "made")
    assert "Topic made deleted" in call("delete_topics", "made")
