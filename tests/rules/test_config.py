"""Settings: names, order of sources, contradictions (internals: producers#delivery-levels)."""

import dataclasses
import inspect
import numbers
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from msgtx import aio, units
from msgtx.client import Client
from msgtx.config import ConsumerConfig, ProducerConfig, ShareConsumerConfig, resolve
from msgtx.declared.settings import CLIENT, CONSUMER, PRODUCER, SHARE_CONSUMER, Kind, Setting
from msgtx.errors import ConfigError, InvalidRequest, InvalidTransactionTimeout
from tests.refusals import refuses


def test_a_consumer_without_a_group_commits_nothing() -> None:
    assert not resolve(ConsumerConfig, {}).enable_auto_commit
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
    with refuses(ConfigError, name="transactional_id"):
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


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fetch.min.bytes", "linger_ms"),
        ("fetch_min_bytes", "linger_ms"),
        ("bootstrap.servers", r"msgtx\.connect"),
        ("client.id", "application_name"),
        ("ssl.key.password", "sslkey in the database's URL"),
    ],
)
def test_a_setting_of_kafka_that_is_none_here_says_what_to_use(name: str, said: str) -> None:
    """As docs/porting.md says it: one table has both."""
    with pytest.raises(ConfigError, match=said) as refused:
        resolve(ConsumerConfig, {}, {name: 1})
    assert refused.value.name == name


def test_kafkas_dotted_names_come_in_by_config_and_a_keyword_wins() -> None:
    config = {"linger.ms": "9", "batch.size": 1, "acks": "-1", "enable.idempotence": "true"}
    found = resolve(ProducerConfig, {"linger_ms": 3}, config)
    assert (found.linger_ms, found.batch_bytes, found.acks) == (3, 1, "all")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("linger_ms", -1),
        ("linger_ms", "soon"),
        ("linger_ms", True),
        ("linger_ms", None),
        ("linger_ms", 10**13),
        ("linger_ms", "9999999999w"),
        ("transaction_timeout_ms", "25d"),
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
    with refuses(ConfigError, name=name):
        resolve(ProducerConfig, {name: value})


@pytest.mark.parametrize("kind", [ConsumerConfig, ShareConsumerConfig])
@pytest.mark.parametrize("name", ["session_timeout_ms", "max_poll_records"])
def test_what_the_database_keeps_in_32_bits_is_no_more(kind: type[ConsumerConfig | ShareConsumerConfig], name: str) -> None:
    given = {"group": "mine", "heartbeat_interval_ms": 1}
    assert getattr(resolve(kind, {**given, name: 2**31 - 1}), name) == 2**31 - 1
    with refuses(ConfigError, name=name, limit=2147483647):
        resolve(kind, {**given, name: 2**31})


@pytest.mark.parametrize("value", [0, -1])
def test_a_transaction_timeout_must_be_above_zero(value: int) -> None:
    with pytest.raises(InvalidTransactionTimeout):
        resolve(ProducerConfig, {"transaction_timeout_ms": value})


DECLARED: dict[str, Setting] = {one.name: one for one in (*CLIENT, *PRODUCER, *CONSUMER, *SHARE_CONSUMER)}
# Values that a process may have in its environment; each is right for some object.
OUTSIDE = {
    "retries": ("0", "5"),
    "max_in_flight": ("1", "50"),
    "session_timeout_ms": ("3500ms", "4s", "60s"),
    "heartbeat_interval_ms": ("1s", "44s"),
}
OF_A_KIND = {Kind.FLAG: ("true", "false"), Kind.TEXT: ("worker-1",)}


def outside(one: Setting) -> tuple[str, ...]:
    """Return some values of a setting."""
    return OUTSIDE.get(one.name) or one.choices or OF_A_KIND.get(one.kind, ("7", "1000"))


OBJECTS: tuple[tuple[type[ProducerConfig | ConsumerConfig | ShareConsumerConfig], dict[str, object]], ...] = (
    (ProducerConfig, {}),
    (ProducerConfig, {"transactional_id": "mine"}),
    (ProducerConfig, {"enable_idempotence": True}),
    (ConsumerConfig, {}),
    (ConsumerConfig, {"group": None}),
    (ConsumerConfig, {"group": "mine"}),
    (ConsumerConfig, {"group": "mine", "group_instance_id": "mine", "enable_auto_commit": False}),
    (ConsumerConfig, {"session_timeout_ms": "5s"}),
    (ShareConsumerConfig, {"group": "mine"}),
    (ShareConsumerConfig, {"group": "mine", "session_timeout_ms": "6s"}),
)


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_a_setting_from_outside_that_does_not_fit_an_object_is_not_used_for_it(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "msgtx.toml"
    monkeypatch.setenv("MSGTX_CONFIG", str(file))
    for value in outside(DECLARED[name]):
        for kind, given in OBJECTS:
            file.write_text("")
            plain = resolve(kind, given)
            monkeypatch.setenv(f"MSGTX_{name.upper()}", value)
            by_environment = resolve(kind, given)
            monkeypatch.delenv(f"MSGTX_{name.upper()}")
            file.write_text(f'{name} = "{value}"\n')
            assert resolve(kind, given) == by_environment, (name, value, kind, given)
            changed = {
                field.name
                for field in dataclasses.fields(kind)
                if getattr(plain, field.name) != getattr(by_environment, field.name)
            }
            # A group may need an offset, idempotence cannot have every setting; else nothing but the setting itself changes.
            assert changed - {"enable_idempotence", "enable_auto_commit"} <= {name}
            assert not changed & given.keys(), (name, value, kind, given)


@pytest.mark.parametrize(
    ("outside", "kind", "given", "expected"),
    [
        ({"group_instance_id": "w"}, ConsumerConfig, {}, {"group_instance_id": None, "enable_auto_commit": False}),
        ({"group_instance_id": "w"}, ConsumerConfig, {"group": "g"}, {"group_instance_id": "w"}),
        ({"group_instance_id": "w", "group": "g"}, ConsumerConfig, {}, {"group_instance_id": "w"}),
        ({"enable_auto_commit": "true"}, ConsumerConfig, {}, {"enable_auto_commit": False}),
        ({"transactional_id": "t"}, ProducerConfig, {}, {"transactional_id": None, "enable_idempotence": True}),
        ({"acks": "1"}, ProducerConfig, {}, {"acks": "1", "enable_idempotence": False}),
        (
            {"acks": "1", "retries": "0"},
            ProducerConfig,
            {"transactional_id": "t"},
            {"acks": "all", "retries": 2_147_483_647},
        ),
        ({"enable_idempotence": "false"}, ProducerConfig, {"transactional_id": "t"}, {"enable_idempotence": True}),
        ({"heartbeat_interval_ms": "9s"}, ConsumerConfig, {"session_timeout_ms": "6s"}, {"heartbeat_interval_ms": 3_000}),
        ({"session_timeout_ms": "4s"}, ConsumerConfig, {}, {"session_timeout_ms": 4_000}),
        ({"session_timeout_ms": "4s"}, ShareConsumerConfig, {"group": "g"}, {"session_timeout_ms": 45_000}),
    ],
)
def test_what_becomes_of_settings_from_outside(
    outside: dict[str, str],
    kind: type[ConsumerConfig],
    given: dict[str, object],
    expected: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in outside.items():
        monkeypatch.setenv(f"MSGTX_{name.upper()}", value)
    found = resolve(kind, given)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("outside", "kind", "given"),
    [
        ({"session_timeout_ms": "3500ms", "heartbeat_interval_ms": "4s"}, ConsumerConfig, {}),  # which of the two is wrong?
        ({"group_instance_id": "w"}, ConsumerConfig, {"group_instance_id": "mine"}),
        ({"enable_auto_commit": "false"}, ConsumerConfig, {"enable_auto_commit": True}),
        ({"linger_ms": "7"}, ProducerConfig, {"transactional_id": "t", "acks": "1"}),
        ({"linger_ms": "soon"}, ProducerConfig, {}),
        ({}, ShareConsumerConfig, {}),
    ],
)
def test_what_contradicts_itself_is_refused_whatever_comes_from_outside(
    outside: dict[str, str], kind: type[ConsumerConfig], given: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in outside.items():
        monkeypatch.setenv(f"MSGTX_{name.upper()}", value)
    with pytest.raises(ConfigError):
        resolve(kind, given)


def test_what_is_not_used_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("MSGTX_ACKS", "1")
    resolve(ProducerConfig, {"transactional_id": "t"})
    (told,) = caplog.messages
    assert "has acks=1, which does not fit here and is not used: transactional_id needs acks=all" in told


@pytest.mark.parametrize("name", ["linger_ms", "retries", "max_block_ms"])
def test_zero_is_fine_where_it_has_a_meaning(name: str) -> None:
    assert getattr(resolve(ProducerConfig, {name: 0}), name) == 0


def test_keywords_over_environment_over_file_over_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "msgtx.toml"
    file.write_text("linger_ms = 1\nbatch_bytes = 1\nretries = 1\nmax_poll_records = 1\n")
    monkeypatch.setenv("MSGTX_CONFIG", str(file))
    monkeypatch.setenv("MSGTX_BATCH_BYTES", "2")
    monkeypatch.setenv("MSGTX_RETRIES", "2")
    found = resolve(ProducerConfig, {"retries": 3})
    assert (found.linger_ms, found.batch_bytes, found.retries, found.batch_records) == (1, 2, 3, 10_000)
    for wrong, complaint in (
        ("not toml", r"msgtx\.toml"),
        ("lingerms = 3", r"msgtx\.toml: unknown setting 'lingerms'; the nearest known one is 'linger_ms'"),
        ("[producer]\nlinger_ms = 3", r"msgtx\.toml: 'producer' is a table; settings stand alone"),
        ("linger.ms = 3", r"msgtx\.toml: 'linger' is a table; settings stand alone"),
    ):
        file.write_text(wrong)
        with pytest.raises(ConfigError, match=complaint):
            resolve(ProducerConfig, {})
    file.write_bytes(b"\xff")
    for named in (file, tmp_path, tmp_path / "mistyped.toml"):
        monkeypatch.setenv("MSGTX_CONFIG", str(named))
        with pytest.raises(ConfigError, match=named.name):
            resolve(ProducerConfig, {})


def test_durations_and_sizes_have_units_in_every_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "msgtx.toml"
    file.write_text('linger_ms = "1s"\nbatch_bytes = "1MiB"\n')
    monkeypatch.setenv("MSGTX_CONFIG", str(file))
    monkeypatch.setenv("MSGTX_BUFFER_BYTES", "64 MiB")
    keywords = {"delivery_timeout_ms": timedelta(minutes=2), "max_block_ms": "1h30m"}
    found = resolve(ProducerConfig, keywords, {"transaction.timeout.ms": "1.5min"})
    assert (found.linger_ms, found.batch_bytes, found.buffer_bytes) == (1_000, 1024**2, 64 * 1024**2)
    assert (found.delivery_timeout_ms, found.max_block_ms, found.transaction_timeout_ms) == (120_000, 5_400_000, 90_000)


def test_a_share_consumer_has_a_group_and_is_heard_of_in_time() -> None:
    with refuses(ConfigError, name="group"):
        resolve(ShareConsumerConfig, {})
    with refuses(ConfigError, name="heartbeat_interval_ms", limit=5000):
        resolve(ShareConsumerConfig, {"group": "g", "session_timeout_ms": "5s"})


def test_a_worker_in_an_event_loop_takes_what_another_takes() -> None:
    def named(call: object) -> dict[str, object]:
        parameters = inspect.signature(call).parameters.values()  # type: ignore[arg-type]
        return {one.name: one.annotation for one in parameters if one.kind in {one.KEYWORD_ONLY, one.VAR_KEYWORD}}

    assert named(aio.Client.process_into) == {
        name: kind for name, kind in named(Client.process_into).items() if name != "_work"
    }


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, 5),
        (0.5, None),
        ("5", 5),
        ("-1", -1),
        (-1, -1),
        ("500ms", 500),
        ("10s", 10_000),
        ("0.5 s", 500),
        ("2min", 120_000),
        ("2m", 120_000),
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        ("7d", 604_800_000),
        ("1w", 604_800_000),
        (timedelta(days=7), 604_800_000),
        (timedelta(milliseconds=1), 1),
        (timedelta(microseconds=1), None),
        ("0.0001s", None),
        ("7 days", None),
        ("7D", None),
        ("", None),
        ("s", None),
        ("10s x", None),
        ("999999999999d", None),
        (None, None),
        (True, None),
        (float("nan"), None),
        (float("inf"), None),
    ],
)
def test_durations(value: object, expected: int | None) -> None:
    if expected is not None:
        assert units.milliseconds("linger_ms", value) == expected
        assert units.seconds("timeout", timedelta(seconds=1)) == 1.0
        return
    with refuses(ConfigError, name="linger_ms"):
        units.milliseconds("linger_ms", value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (50, 50),
        ("50", 50),
        (-1, -1),
        ("512B", 512),
        ("400KiB", 409_600),
        ("50 MiB", 52_428_800),
        ("1.5GiB", 1_610_612_736),
        ("2TiB", 2 * 1024**4),
        ("10kB", 10_000),
        ("10MB", 10_000_000),
        ("50M", None),
        ("50mib", None),
        ("0.3B", None),
        (None, None),
        (timedelta(1), None),
    ],
)
def test_sizes(value: object, expected: int | None) -> None:
    if expected is not None:
        assert units.size("batch_bytes", value) == expected
        return
    with refuses(ConfigError, name="batch_bytes"):
        units.size("batch_bytes", value)


def test_a_number_alone_is_in_the_settings_own_unit() -> None:
    assert units.milliseconds("limit", 15, unit="min") == 900_000
    assert (units.seconds("timeout", 1.5), units.seconds("timeout", "1500ms")) == (1.5, 1.5)


def test_idempotence_that_the_environment_asks_for_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSGTX_ENABLE_IDEMPOTENCE", "true")
    with pytest.raises(ConfigError, match="acks=1"):
        resolve(ProducerConfig, {"acks": 1})


@pytest.mark.parametrize(
    ("kind", "settings", "complaint"),
    [
        (ProducerConfig, {"linger_ms": "3s", "delivery_timeout_ms": "1s"}, "linger_ms=3000 must be below delivery_timeout"),
        (ProducerConfig, {"linger_ms": "2min"}, "linger_ms=120000 must be below delivery_timeout_ms=120000: a record"),
        (ProducerConfig, {"request_timeout_ms": "2s", "delivery_timeout_ms": "1s"}, "request_timeout_ms=2000 must be at"),
        (ProducerConfig, {"retry_backoff_ms": "1s", "delivery_timeout_ms": "1s"}, "retry_backoff_ms=1000 must be below"),
        (ProducerConfig, {"batch_bytes": "2MiB", "buffer_bytes": "1MiB"}, "batch_bytes=2097152 must be at most"),
        (ConsumerConfig, {"heartbeat_interval_ms": "45s"}, "heartbeat_interval_ms=45000 must be below session"),
        (ConsumerConfig, {"heartbeat_interval_ms": "2s", "max_poll_interval_ms": "1s"}, "must be at most max_poll"),
        (ConsumerConfig, {"retry_backoff_ms": "1min", "group": "g"}, "retry_backoff_ms=60000 must be below session_timeout"),
        (ConsumerConfig, {"retry_backoff_ms": "2s", "request_timeout_ms": "1s"}, "retry_backoff_ms=2000 must be below"),
        (ShareConsumerConfig, {"group": "g", "retry_backoff_ms": "1min"}, "retry_backoff_ms=60000 must be below session"),
    ],
)
def test_a_pair_that_cannot_work_is_refused(kind: type, settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        resolve(kind, settings)


@pytest.mark.parametrize(
    "settings", [{"delivery_timeout_ms": "3s"}, {"retry_backoff_ms": 9, "delivery_timeout_ms": 10}, {"buffer_bytes": 99}]
)
def test_a_default_that_has_no_effect_is_no_contradiction(settings: dict[str, object]) -> None:
    resolve(ProducerConfig, settings)


@pytest.mark.parametrize("name", ["linger_ms", "buffer_bytes", "retries", "max_in_flight", "batch_records"])
@pytest.mark.parametrize(
    "value",
    [
        1.5,
        float("nan"),
        float("inf"),
        "nan",
        "9" * 5_000,
        Decimal("1.5"),
        Fraction(1, 2),
        b"5",
        [5],
        {},
        object(),
        2**63,
        True,
    ],
)
def test_a_number_that_is_none_is_refused(name: str, value: object) -> None:
    with refuses(ConfigError, name=name):
        resolve(ProducerConfig, {name: value})


@numbers.Integral.register
class OfAnother:
    """A whole number of another library, as numpy's are."""

    def __index__(self) -> int:
        return 5


@pytest.mark.parametrize("name", ["linger_ms", "buffer_bytes", "retries"])
@pytest.mark.parametrize("value", [5, "5", OfAnother()])
def test_whole_numbers_of_others_are_taken(name: str, value: object) -> None:
    found = getattr(resolve(ProducerConfig, {name: value}), name)
    assert (found, type(found)) == (5, int)


def test_names_are_checked_where_they_are_given() -> None:
    for name in ("a\0b", "a\ud800", "x" * 1_001):
        with refuses(InvalidRequest, name="transactional_id"):
            resolve(ProducerConfig, {"transactional_id": name})
        with refuses(InvalidRequest, name="group"):
            resolve(ConsumerConfig, {"group": name})


@pytest.mark.parametrize("config", [5, "linger.ms=5", ["linger.ms"], {5: 5}])
def test_a_config_that_is_none_is_refused(config: object) -> None:
    with pytest.raises(ConfigError):
        resolve(ProducerConfig, {}, config)  # type: ignore[arg-type]
