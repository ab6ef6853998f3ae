"""Settings: names, defaults and contradictions, checked before anything is sent.

Keyword arguments in snake_case; Kafka's dotted names come in through `config={…}`; a keyword wins. Over the defaults stand
the file `msgtx.toml`, then the environment (`MSGTX_…`), then what the caller gives. Durations and sizes may have units.
A setting from outside the program is for all objects of a process: one that does not fit an object is not used for it.
Source: docs/reference/settings.md.
"""

import difflib
import itertools
import logging
import os
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast, get_args

from msgtx import units
from msgtx.arguments import LARGEST_INT4, check_name, shown, whole
from msgtx.errors import ConfigError, InvalidTransactionTimeout
from msgtx.settings import AcknowledgementMode, OffsetReset, Partitioner
from msgtx.types import Isolation, Strategy

log = logging.getLogger("msgtx.config")
Acks = Literal["0", "1", "all"]
LARGEST: Final = 2**40  # of any setting, a TiB or 34 years: a thread cannot wait for more than 292 years
_OF_32_BITS: Final = frozenset(("transaction_timeout_ms", "session_timeout_ms", "max_poll_records"))  # in the database
MAX_IDEMPOTENT_IN_FLIGHT: Final = 5  # Kafka's bound; with more requests a lost one cannot be distinguished from reordering

KAFKA_NAMES: Final = {
    "enable.idempotence": "enable_idempotence",
    "transactional.id": "transactional_id",
    "transaction.timeout.ms": "transaction_timeout_ms",
    "max.in.flight.requests.per.connection": "max_in_flight",
    "max.in.flight": "max_in_flight",
    "retry.backoff.ms": "retry_backoff_ms",
    "delivery.timeout.ms": "delivery_timeout_ms",
    "message.timeout.ms": "delivery_timeout_ms",
    "request.timeout.ms": "request_timeout_ms",
    "max.block.ms": "max_block_ms",
    "linger.ms": "linger_ms",
    "batch.size": "batch_bytes",
    "buffer.memory": "buffer_bytes",
    "isolation.level": "isolation",
    "group.id": "group",
    "group.instance.id": "group_instance_id",
    "auto.offset.reset": "auto_offset_reset",
    "enable.auto.commit": "enable_auto_commit",
    "auto.commit.interval.ms": "auto_commit_interval_ms",
    "session.timeout.ms": "session_timeout_ms",
    "heartbeat.interval.ms": "heartbeat_interval_ms",
    "max.poll.interval.ms": "max_poll_interval_ms",
    "max.poll.records": "max_poll_records",
    "fetch.max.bytes": "fetch_max_bytes",
    "fetch.max.wait.ms": "fetch_max_wait_ms",
    "partition.assignment.strategy": "assignment",
    "share.acknowledgement.mode": "acknowledgement_mode",
}


# Rows of the log of this size are the fastest to write and to read.
ROW_BYTES: Final = 400 * 1024
ROW_RECORDS: Final = 10_000


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """Settings of a producer; docs/reference/settings.md says what each does."""

    acks: Acks = "all"
    enable_idempotence: bool = True
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    max_in_flight: int = 5
    retries: int = 2_147_483_647
    retry_backoff_ms: int = 100
    delivery_timeout_ms: int = 120_000
    request_timeout_ms: int = 30_000
    max_block_ms: int = 60_000
    linger_ms: int = 5
    batch_bytes: int = ROW_BYTES
    batch_records: int = ROW_RECORDS
    buffer_bytes: int = 32 * 1024 * 1024
    partitioner: Partitioner = "crc32"


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """Settings of a consumer; docs/reference/settings.md says what each does."""

    isolation: Isolation = Isolation.READ_COMMITTED
    group: str | None = None
    group_instance_id: str | None = None
    assignment: Strategy = "cooperative-sticky"
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    auto_offset_reset: OffsetReset = "latest"
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    max_poll_records: int = 500
    fetch_max_bytes: int = 50 * 1024 * 1024
    fetch_max_wait_ms: int = 500
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100


@dataclass(frozen=True, slots=True)
class ShareConsumerConfig:
    """Settings of a share consumer, not of its group; docs/reference/settings.md says what each does."""

    group: str = ""
    acknowledgement_mode: AcknowledgementMode = "implicit"
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_poll_records: int = 500
    fetch_max_wait_ms: int = 500
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100


Config = TypeVar("Config", ProducerConfig, ConsumerConfig, ShareConsumerConfig)
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "acks": ("0", "1", "all"),
    "assignment": get_args(Strategy),
    "acknowledgement_mode": get_args(AcknowledgementMode),
    "auto_offset_reset": ("earliest", "latest", "none"),
    "partitioner": ("crc32", "murmur2"),
    "isolation": tuple(Isolation),
}
_MAY_BE_ZERO: Final = {"retries", "linger_ms", "fetch_max_wait_ms", "max_block_ms"}
# Settings of Kafka that would do nothing here, and what to use.
_REFUSED: Final = {
    "processing_guarantee": "processing.guarantee is a setting of Kafka Streams; use client.process, which is exactly once",
    "fetch_min_bytes": "fetch_min_bytes is not supported: a fetch returns as soon as there is a record; for larger ones"
    " set linger_ms and batch_bytes of the producers, or poll less often",
}


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two settings, of which `lower` must be below `upper`, or at most as much. `why`: what would happen else.

    `if_given`: it works nevertheless, so only who has given both is told that one of them has no effect. `of_group`: only
    members of a group need it.
    """

    lower: str
    upper: str
    why: str
    may_be_equal: bool = False
    if_given: bool = False
    of_group: bool = False

    def check(self, config: object, given: Collection[str]) -> None:
        """Raise `ConfigError` if the settings contradict each other."""
        lower, upper = getattr(config, self.lower, None), getattr(config, self.upper, None)
        if lower is None or upper is None or lower < upper or (self.may_be_equal and lower == upper):
            return
        if self.of_group and not getattr(config, "group", None):
            return
        if not self.if_given or {self.lower, self.upper} <= {*given}:
            relation = "at most" if self.may_be_equal else "below"
            raise ConfigError(
                f"{self.lower}={lower} must be {relation} {self.upper}={upper}{self.why}", name=self.lower, limit=upper
            )


_PAIRS: Final = (
    _Pair("linger_ms", "delivery_timeout_ms", ": a record that does not fill its batch would be late when it is sent"),
    _Pair("request_timeout_ms", "delivery_timeout_ms", ", which ends a request before", may_be_equal=True, if_given=True),
    _Pair("retry_backoff_ms", "delivery_timeout_ms", ": nothing would be sent a second time", if_given=True),
    _Pair("batch_bytes", "buffer_bytes", ": no batch could fill up", may_be_equal=True, if_given=True),
    _Pair("heartbeat_interval_ms", "session_timeout_ms", ", at a third of it or less"),
    _Pair("heartbeat_interval_ms", "max_poll_interval_ms", ", which heartbeats watch", may_be_equal=True, if_given=True),
    _Pair("retry_backoff_ms", "session_timeout_ms", ": a heartbeat that failed once would come too late", of_group=True),
    _Pair("retry_backoff_ms", "request_timeout_ms", ": nothing would be asked a second time", if_given=True),
)


_KINDS: Final = (ProducerConfig, ConsumerConfig, ShareConsumerConfig)
_ALL: Final = tuple(dict.fromkeys(field.name for kind in _KINDS for field in fields(kind)))


def _known_names(kind: type[Config]) -> dict[str, Callable[[str, object], object]]:
    checks: dict[str, Callable[[str, object], object]] = {}
    for field in fields(kind):
        if field.name in _CHOICES:
            checks[field.name] = _choice
        elif field.type is bool:
            checks[field.name] = _boolean
        elif (read := units.reader_of(field.name)) is not None:
            checks[field.name] = partial(_measured, read)
        elif field.type is int:
            checks[field.name] = _integer
        else:
            checks[field.name] = _name
    return checks


def _choice(name: str, value: object) -> object:
    text = str(value).lower() if isinstance(value, str | int) else ""
    text = {"-1": "all"}.get(text, text) if name == "acks" else text
    if text not in _CHOICES[name]:
        raise ConfigError(f"{name} is one of {', '.join(_CHOICES[name])}, not {shown(value)}", name=name)
    return Isolation(text) if name == "isolation" else text


def _boolean(name: str, value: object) -> object:
    if isinstance(value, bool):
        return value
    text = str(value).lower() if isinstance(value, str | int) else ""
    if text in {"true", "1", "yes", "on"}:
        return True
    if text in {"false", "0", "no", "off"}:
        return False
    raise ConfigError(f"{name} is true or false, not {shown(value)}", name=name)


def _integer(name: str, value: object) -> object:
    try:
        number = whole(name, int(value) if isinstance(value, str) else value, least=-LARGEST)
    except ValueError:
        raise ConfigError(f"{name} is a whole number, not {shown(value)}", name=name) from None
    return _in_bounds(name, number, value)


def _measured(read: Callable[[str, object], int], name: str, value: object) -> object:
    return _in_bounds(name, read(name, value), value)


def _in_bounds(name: str, number: int, value: object) -> int:
    most = LARGEST_INT4 if name in _OF_32_BITS else LARGEST
    if number > most:
        raise ConfigError(f"{name} is at most {most}, not {shown(value)}", name=name, limit=most)
    if number < 0 or (number == 0 and name not in _MAY_BE_ZERO):
        if name == "transaction_timeout_ms":
            raise InvalidTransactionTimeout(
                f"transaction_timeout_ms must be above 0, not {shown(value)}", name=name, limit=0
            )
        raise ConfigError(
            f"{name} must be {'0 or more' if name in _MAY_BE_ZERO else 'above 0'}, not {shown(value)}", name=name, limit=0
        )
    return number


def _name(name: str, value: object) -> object:
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name} is a text that is not empty, not {shown(value)}", name=name)
    return check_name(name, value)


def _canonical(name: object, known: Mapping[str, object]) -> str:
    if not isinstance(name, str):
        raise ConfigError(f"the name of a setting is a text, not {shown(name)}")
    short = KAFKA_NAMES.get(name, name)
    if short in known:
        return short
    if (instead := _REFUSED.get(name.replace(".", "_"))) is not None:
        raise ConfigError(instead, name=name)
    names = [*known, *(kafka for kafka, ours in KAFKA_NAMES.items() if ours in known)]
    raise ConfigError(f"unknown setting {name!r}; the nearest known one is {_nearest(name, names)!r}", name=name)


def _nearest(name: str, names: Iterable[str]) -> str:
    return difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]


def _from_outside(known: Mapping[str, object]) -> dict[str, object]:
    settings: dict[str, object] = {}
    named = os.environ.get("MSGTX_CONFIG")
    path = Path(named or "msgtx.toml")
    if named or path.is_file():
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            raise ConfigError(f"{path}: {error}") from error
        for name, value in content.items():
            if isinstance(value, dict):
                raise ConfigError(f"{path}: {name!r} is a table; settings stand alone, as in linger_ms = 5", name=name)
            if name not in _ALL:
                raise ConfigError(
                    f"{path}: unknown setting {name!r}; the nearest known one is {_nearest(name, _ALL)!r}", name=name
                )
        settings.update((name, value) for name, value in content.items() if name in known)
    for name in known:
        if (value := os.environ.get(f"MSGTX_{name.upper()}")) is not None:
            settings[name] = value
    return settings


def resolve(kind: type[Config], keywords: Mapping[str, object], config: Mapping[str, object] | None = None) -> Config:
    """Return the settings of a producer or consumer.

    Raise `ConfigError` for an unknown name, a value out of range, or settings that contradict each other. What contradicts
    the caller and comes from the environment or `msgtx.toml` is left out, with a warning.
    """
    checks = _known_names(kind)
    given: dict[str, object] = {}
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(f'config is a mapping, {{"linger.ms": 5}}, not {shown(config)}', name="config")
    for source in (config or {}, keywords):
        given.update((_canonical(name, checks), value) for name, value in source.items())
    given = {name: checks[name](name, value) for name, value in given.items()}
    read = {name: value for name, value in _from_outside(checks).items() if name not in given}
    outside = {name: checks[name](name, value) for name, value in read.items()}
    for name in _useless(kind, {**outside, **given}):
        outside.pop(name, None)
    try:
        return _made(kind, {**outside, **given})
    except ConfigError as error:
        misfits = _misfits(kind, outside, given)
        if not misfits:
            raise
        named = ", ".join(f"{name}={outside[name]}" for name in misfits)
        log.warning("the environment or msgtx.toml has %s, which does not fit here and is not used: %s", named, error)
        return _made(kind, {**{name: value for name, value in outside.items() if name not in misfits}, **given})


def _useless(kind: type[Config], values: Mapping[str, object]) -> Collection[str]:
    """Return the settings that an object with these values takes from its caller only."""
    if kind is ProducerConfig:
        return {"transactional_id"}  # it names one producer: the second with it would fence the first
    if kind is ConsumerConfig and values.get("group") is None:
        return {"group_instance_id", "enable_auto_commit"}
    return ()


def _misfits(kind: type[Config], outside: Mapping[str, object], given: Mapping[str, object]) -> Collection[str]:
    """Return the settings from outside without which the others fit together: the fewest; none if that is ambiguous.

    What asks for idempotence is no misfit: without it the producer would promise less than it was asked for.
    """
    if not _fits(kind, given):
        return ()
    for count in range(1, len(outside) + 1):
        found = [
            names
            for names in itertools.combinations(outside, count)
            if _fits(kind, {**{name: value for name, value in outside.items() if name not in names}, **given})
        ]
        if found:
            asked = "enable_idempotence" in found[0] and outside["enable_idempotence"] is True
            return found[0] if len(found) == 1 and not asked else ()
    return ()


def _fits(kind: type[Config], values: Mapping[str, object]) -> bool:
    try:
        _made(kind, values)
    except ConfigError:
        return False
    return True


def _made(kind: type[Config], values: Mapping[str, object]) -> Config:
    """Return settings that fit together. Raise `ConfigError`."""
    result = kind(**cast(Any, values))
    for pair in _PAIRS:
        pair.check(result, set(values))
    if isinstance(result, ProducerConfig):
        return _without_contradiction(result, set(values))
    if isinstance(result, ShareConsumerConfig):
        if not result.group:
            raise ConfigError("a share consumer has a group: give it one (group=…)", name="group")
        return result
    return _of_a_group(result, set(values))


def _without_contradiction(config: ProducerConfig, given: set[str]) -> ProducerConfig:
    # Idempotence demands acks=all, retries > 0 and at most 5 in flight; a transactional id demands idempotence
    # (internals: producers#delivery-levels).
    conflicts = [
        f"{name}={getattr(config, name)}"
        for name, fine in (
            ("acks", config.acks == "all"),
            ("retries", config.retries > 0),
            ("max_in_flight", config.max_in_flight <= MAX_IDEMPOTENT_IN_FLIGHT),
        )
        if not fine
    ]
    if config.transactional_id is not None and not config.enable_idempotence:
        raise ConfigError(
            "transactional_id needs enable_idempotence=true, and enable_idempotence=false is set", name="transactional_id"
        )
    if not conflicts or not config.enable_idempotence:
        return config
    if config.transactional_id is not None:
        raise ConfigError(
            f"transactional_id needs acks=all, retries > 0 and max_in_flight <= 5; {conflicts[0]} is set",
            name="transactional_id",
        )
    if "enable_idempotence" in given:
        raise ConfigError(
            f"enable_idempotence=true needs acks=all, retries > 0 and max_in_flight <= 5; {conflicts[0]} is set",
            name="enable_idempotence",
        )
    return replace(config, enable_idempotence=False)


def _of_a_group(config: ConsumerConfig, given: set[str]) -> ConsumerConfig:
    if config.group is None:
        for name, needs in (
            (f"group_instance_id={config.group_instance_id}", config.group_instance_id is not None),
            ("enable_auto_commit=true", config.enable_auto_commit and "enable_auto_commit" in given),
        ):
            if needs:
                raise ConfigError(f"{name} needs a group, and none is set", name=name)
        return replace(config, enable_auto_commit=False)
    return config
