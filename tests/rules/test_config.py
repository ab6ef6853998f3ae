"""Settings: names, order of sources, contradictions (internals: producers#delivery-levels)."""

from pathlib import Path

import pytest

from msgtx.config import KAFKA_NAMES, ConsumerConfig, ProducerConfig, resolve
from msgtx.errors import ConfigError, InvalidTransactionTimeout
from msgtx.types import Isolation


def test_the_defaults_are_the_published_ones() -> None:
    assert resolve(ProducerConfig, {}) == ProducerConfig(
        acks="all",
        enable_idempotence=True,
        transactional_id=None,
        transaction_timeout_ms=60_000,
        max_in_flight=5,
        retries=2_147_483_647,
        retry_backoff_ms=100,
        delivery_timeout_ms=120_000,
        request_timeout_ms=30_000,
        max_block_ms=60_000,
        linger_ms=5,
        batch_bytes=409_600,
        batch_records=10_000,
        buffer_bytes=33_554_432,
        partitioner="crc32",
    )
    consumer = resolve(ConsumerConfig, {})
    assert (consumer.isolation, consumer.auto_offset_reset, consumer.max_poll_records) == (
        Isolation.READ_COMMITTED, "latest", 500,
    )  # fmt: skip
    assert not consumer.enable_auto_commit, "without a group"
    assert resolve(ConsumerConfig, {"group": "g"}).enable_auto_commit


@pytest.mark.parametrize(
    "contradiction",
    [{"acks": 1}, {"acks": 0}, {"retries": 0}, {"max_in_flight": 6}],
    ids=lambda settings: next(iter(settings)),
)
def test_a_contradiction_with_idempotence(contradiction: dict[str, object]) -> None:
    """Implicit: idempotence is off. Explicit, or with a transactional id: refused, and both settings are named."""
    (name,) = contradiction
    assert not resolve(ProducerConfig, contradiction).enable_idempotence
    resolve(ProducerConfig, {**contradiction, "enable_idempotence": False})
    for demanding in ({"enable_idempotence": True}, {"transactional_id": "t"}):
        with pytest.raises(ConfigError, match=f"{next(iter(demanding))}.*{name}="):
            resolve(ProducerConfig, {**contradiction, **demanding})


def test_a_transactional_id_needs_idempotence() -> None:
    with pytest.raises(ConfigError, match=r"transactional_id.*enable_idempotence"):
        resolve(ProducerConfig, {"transactional_id": "t", "enable_idempotence": False})


def test_auto_commit_needs_a_group() -> None:
    with pytest.raises(ConfigError, match=r"enable_auto_commit.*group"):
        resolve(ConsumerConfig, {"enable_auto_commit": True})


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("linger", "linger_ms"), ("ack", "acks"), ("transaction_id", "transactional_id"), ("linger.msec", "linger.ms")],
)
def test_an_unknown_name_names_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"'{nearest}'"):
        resolve(ProducerConfig, {name: 1})


def test_a_setting_of_the_other_kind_is_unknown() -> None:
    with pytest.raises(ConfigError):
        resolve(ProducerConfig, {"group": "g"})
    with pytest.raises(ConfigError):
        resolve(ConsumerConfig, {"acks": "all"})


@pytest.mark.parametrize("name", ["processing.guarantee", "processing_guarantee"])
def test_streams_own_setting_points_to_process(name: str) -> None:
    with pytest.raises(ConfigError, match=r"client\.process"):
        resolve(ProducerConfig, {}, {name: "exactly_once_v2"})


@pytest.mark.parametrize("name", ["fetch.min.bytes", "fetch_min_bytes"])
def test_what_would_do_nothing_is_refused_and_says_what_to_use(name: str) -> None:
    with pytest.raises(ConfigError, match=r"fetch_min_bytes is not supported.*linger_ms"):
        resolve(ConsumerConfig, {}, {name: 1})


def test_kafkas_dotted_names_come_in_by_config_and_a_keyword_wins() -> None:
    config = {"linger.ms": "9", "batch.size": 1, "acks": "-1", "enable.idempotence": "true"}
    found = resolve(ProducerConfig, {"linger_ms": 3}, config)
    assert (found.linger_ms, found.batch_bytes, found.acks) == (3, 1, "all")
    known = set(ProducerConfig.__slots__) | set(ConsumerConfig.__slots__)
    later = {"group_instance_id", "session_timeout_ms", "heartbeat_interval_ms", "max_poll_interval_ms", "assignment"}
    assert set(KAFKA_NAMES.values()) <= known | later


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("linger_ms", -1),
        ("linger_ms", "soon"),
        ("linger_ms", True),
        ("linger_ms", None),
        ("batch_bytes", 0),
        ("buffer_bytes", 0),
        ("max_in_flight", 0),
        ("acks", 2),
        ("acks", "some"),
        ("enable_idempotence", "maybe"),
        ("partitioner", "random"),
        ("transactional_id", ""),
        ("transactional_id", 5),
    ],
)
def test_a_value_that_cannot_be_is_refused_and_its_setting_named(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        resolve(ProducerConfig, {name: value})


@pytest.mark.parametrize("value", [0, -1])
def test_a_transaction_timeout_must_be_above_zero(value: int) -> None:
    with pytest.raises(InvalidTransactionTimeout):
        resolve(ProducerConfig, {"transaction_timeout_ms": value})


@pytest.mark.parametrize("name", ["linger_ms", "retries", "max_block_ms"])
def test_zero_is_fine_where_it_has_a_meaning(name: str) -> None:
    assert getattr(resolve(ProducerConfig, {name: 0}), name) == 0


def test_keywords_over_environment_over_file_over_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "msgtx.toml"
    file.write_text('linger_ms = 1\nbatch_bytes = 1\nretries = 1\nurl = "for others"\n')
    monkeypatch.setenv("MSGTX_CONFIG", str(file))
    monkeypatch.setenv("MSGTX_BATCH_BYTES", "2")
    monkeypatch.setenv("MSGTX_RETRIES", "2")
    found = resolve(ProducerConfig, {"retries": 3})
    assert (found.linger_ms, found.batch_bytes, found.retries, found.batch_records) == (1, 2, 3, 10_000)
    file.write_text("not toml")
    with pytest.raises(ConfigError, match=r"msgtx\.toml"):
        resolve(ProducerConfig, {})


def test_a_contradiction_from_the_environment_counts_as_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSGTX_ENABLE_IDEMPOTENCE", "true")
    with pytest.raises(ConfigError, match="acks=1"):
        resolve(ProducerConfig, {"acks": 1})
