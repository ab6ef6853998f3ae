"""Addresses of Kafka clusters: what they may say, and that no secret is shown."""

from pathlib import Path

import pytest

from msgtx.errors import ConfigError
from msgtx.mirror.kafka_address import KafkaAddress, is_kafka, parse_kafka
from tests.refusals import refuses

SECRET = "hunter2"  # noqa: S105  # of nobody


@pytest.mark.parametrize(
    ("url", "servers", "options"),
    [
        ("kafka://host", "host", {}),
        ("kafka://host:9092,other.example:9093", "host:9092,other.example:9093", {}),
        ("KAFKA://[::1]:9092/", "[::1]:9092", {}),
        ("kafka://host?security.protocol=SASL_SSL&sasl.username=a%26b", "host", {
            "security.protocol": "SASL_SSL", "sasl.username": "a&b"}),
        ("kafka://host?sasl.password=a+b%3Dc=", "host", {"sasl.password": "a+b=c="}),
    ],
)  # fmt: skip
def test_an_address_names_brokers_and_options(url: str, servers: str, options: dict[str, str]) -> None:
    assert is_kafka(url)
    assert parse_kafka(url) == KafkaAddress(servers, options)


def test_a_file_has_further_options_and_the_address_outranks_it(tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text(f"# of the cluster\n\nbootstrap.servers = host:9092\nsasl.password={SECRET}\nclient.id=file\n")
    assert parse_kafka(f"kafka://?config={file}") == KafkaAddress(
        "host:9092", {"sasl.password": SECRET, "client.id": "file"}
    )
    assert parse_kafka(f"kafka://other?config={file}&client.id=mine") == KafkaAddress(
        "other", {"sasl.password": SECRET, "client.id": "mine"}
    )


@pytest.mark.parametrize(
    "url",
    [
        "kafka://",
        "kafka:host",
        f"postgresql://user:{SECRET}@host/db",
        "kafka://host:port",
        "kafka://host,",
        "kafka://host/topic",
        f"kafka://user:{SECRET}@host",
        f"kafka://user:{SECRET}@[host",
        f"kafka://host?{SECRET}",
        f"kafka://host?={SECRET}",
        f"kafka://host?sasl.password={SECRET}&sasl.password=other",
        "kafka://host?isolation.level=read_uncommitted",
        "kafka://host?transactional.id=mine",
        "kafka://host?config=/no/such/file",
    ],
)
def test_a_wrong_address_is_refused_without_its_secret(url: str) -> None:
    with refuses(ConfigError) as caught:
        parse_kafka(url)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_line_of_a_file_is_named_by_its_number(tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text(f"client.id=a\n{SECRET}\n")
    with refuses(ConfigError) as caught:
        parse_kafka(f"kafka://host?config={file}")
    assert "line 2" in str(caught.value)
    assert SECRET not in str(caught.value)
    file.write_bytes(b"\xff")
    with refuses(ConfigError):
        parse_kafka(f"kafka://host?config={file}")


def test_an_address_is_shown_without_its_options() -> None:
    address = parse_kafka(f"kafka://host:9092?sasl.password={SECRET}")
    assert str(address) == "kafka://host:9092"
    assert SECRET not in repr(address)
