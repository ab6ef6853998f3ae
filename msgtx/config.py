"""Settings: names, defaults and contradictions, checked before anything is sent.

Keyword arguments in snake_case; Kafka's dotted names come in through `config={…}`; a keyword wins. Over the defaults stand
the file `msgtx.toml`, then the environment (`MSGTX_…`), then the caller's arguments. Durations and sizes may have
units. A setting from outside the program is for all objects of a process: one that does not fit an object is not used
for it.
Source: docs/reference/settings.md.
"""

import difflib
import itertools
import logging
import os
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

from msgtx import units
from msgtx.arguments import check_name, flag, one_of, shown, text, whole
from msgtx.declared import kafka
from msgtx.declared.settings import CLIENT, CONSUMER, LARGEST, PRODUCER, SHARE_CONSUMER, Kind, Setting, Settings
from msgtx.errors import ConfigError, InvalidTransactionTimeout
from msgtx.settings import AcknowledgementMode, Assignment, AutoOffsetReset, OnFailover, Partitioner
from msgtx.types import Isolation

log = logging.getLogger("msgtx.config")
MAX_IDEMPOTENT_IN_FLIGHT: Final = 5  # Kafka's bound; with more requests a lost one cannot be distinguished from reordering


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Settings of a client; docs/reference/settings.md says what each does."""

    # make generate: settings.held client
    on_failover: OnFailover = "trust"
    # end


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """Settings of a producer; docs/reference/settings.md says what each does."""

    # make generate: settings.held producer
    acks: Literal["0", "1", "all"] = "all"
    enable_idempotence: bool = True
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    delivery_timeout_ms: int = 120_000
    request_timeout_ms: int = 30_000
    max_block_ms: int = 60_000
    linger_ms: int = 5
    batch_bytes: int = 409_600
    batch_records: int = 10_000
    buffer_bytes: int = 33_554_432
    max_in_flight: int = 5
    partitioner: Partitioner = "crc32"
    retries: int = 2_147_483_647
    retry_backoff_ms: int = 100
    # end


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """Settings of a consumer; docs/reference/settings.md says what each does."""

    # make generate: settings.held consumer
    group: str | None = None
    group_instance_id: str | None = None
    isolation: Isolation = Isolation.READ_COMMITTED
    auto_offset_reset: AutoOffsetReset = "latest"
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    max_poll_records: int = 500
    max_poll_interval_ms: int = 300_000
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    assignment: Assignment = "cooperative-sticky"
    fetch_max_bytes: int = 52_428_800
    fetch_max_wait_ms: int = 500
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100
    # end


@dataclass(frozen=True, slots=True)
class ShareConsumerConfig:
    """Settings of a share consumer, not of its group; docs/reference/settings.md says what each does."""

    # make generate: settings.held share_consumer
    group: str = ""
    acknowledgement_mode: AcknowledgementMode = "implicit"
    max_poll_records: int = 500
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    fetch_max_wait_ms: int = 500
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100
    # end


Quantity = TypeVar("Quantity", int, float)
Config = TypeVar("Config", ClientConfig, ProducerConfig, ConsumerConfig, ShareConsumerConfig)
_DECLARED: Final = {
    ClientConfig: CLIENT,
    ProducerConfig: PRODUCER,
    ConsumerConfig: CONSUMER,
    ShareConsumerConfig: SHARE_CONSUMER,
}
_OBJECTS: Final = {
    ClientConfig: "a client",
    ProducerConfig: "a producer",
    ConsumerConfig: "a consumer",
    ShareConsumerConfig: "a share consumer",
}
KAFKA_NAMES: Final = {kafka: one.name for table in _DECLARED.values() for one in table for kafka in one.kafka}
# Rows of the log of this size are the fastest to write and to read.
ROW_BYTES: Final = ProducerConfig().batch_bytes
ROW_RECORDS: Final = ProducerConfig().batch_records
# Settings of Kafka that would do nothing here, and their replacements.
_REFUSED: Final = {
    "processing_guarantee": "processing.guarantee is a setting of Kafka Streams; use client.process, which is exactly once",
}


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two settings, of which `lower` must be below `upper`, or at most as much. `why`: the consequence otherwise.

    `if_given`: it works nevertheless, so only a caller that gives both is warned that one has no effect. `of_group`:
    only members of a group need it.
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


_ALL: Final = tuple(dict.fromkeys(one.name for table in _DECLARED.values() for one in table))


def _choice(one: Setting, value: object) -> object:
    text = str(value).lower() if isinstance(value, str | int) else ""
    text = one.synonyms.get(text, text)
    if text not in one.choices:
        raise ConfigError(f"{one.name} is one of {', '.join(one.choices)}, not {shown(value)}", name=one.name)
    return one.choices[one.choices.index(text)]


def _flag(one: Setting, value: object) -> object:
    if isinstance(value, bool):
        return value
    text = str(value).lower() if isinstance(value, str | int) else ""
    if text in {"true", "1", "yes", "on"}:
        return True
    if text in {"false", "0", "no", "off"}:
        return False
    raise ConfigError(f"{one.name} is true or false, not {shown(value)}", name=one.name)


def _number(one: Setting, value: object) -> object:
    try:
        number = whole(one.name, int(value) if isinstance(value, str) else value, least=-LARGEST)
    except ValueError:
        raise ConfigError(f"{one.name} is a whole number, not {shown(value)}", name=one.name) from None
    return _in_bounds(one, number, value)


def _duration(one: Setting, value: object) -> object:
    return _in_bounds(one, units.milliseconds(one.name, value), value)


def _size(one: Setting, value: object) -> object:
    return _in_bounds(one, units.size(one.name, value), value)


def _in_bounds(one: Setting, number: Quantity, value: object) -> Quantity:
    if number > one.most:
        raise ConfigError(f"{one.name} is at most {one.most}, not {shown(value)}", name=one.name, limit=one.most)
    if number < one.least:
        refusal = InvalidTransactionTimeout if one.name == "transaction_timeout_ms" else ConfigError
        bound = "above 0" if one.least == 1 else "0 or more"
        raise refusal(f"{one.name} must be {bound}, not {shown(value)}", name=one.name, limit=one.least)
    return number


def _text(one: Setting, value: object) -> object:
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{one.name} is a text that is not empty, not {shown(value)}", name=one.name)
    return check_name(one.name, value)


_READ: Final[Mapping[Kind, Callable[[Setting, object], object]]] = {
    Kind.CHOICE: _choice,
    Kind.FLAG: _flag,
    Kind.NUMBER: _number,
    Kind.DURATION: _duration,
    Kind.SIZE: _size,
    Kind.TEXT: _text,
}


def read_keywords(table: Settings, keywords: Mapping[str, object]) -> dict[str, Any]:
    """Return the settings that a call takes as keywords. Raise `ConfigError`, `InvalidRequest`, `WrongType`."""
    known = {one.name: one for one in table}
    return {name: _keyword(known[_canonical(name, known)], value) for name, value in keywords.items()}


def _keyword(one: Setting, value: object) -> object:
    """Return a keyword's value. It is no text of a file: "no" is not False."""
    if value is None and one.default is None:
        return None
    match one.kind:
        case Kind.FLAG:
            return flag(one.name, value)
        case Kind.CHOICE:
            return one_of(one.name, value, one.choices)
        case Kind.NUMBER:
            return whole(one.name, value, least=one.least, most=one.most)
        case Kind.TEXT:
            return text(one.name, value)
        case Kind.DURATION if not one.name.endswith("_ms"):
            return _in_bounds(one, units.seconds(one.name, value), value)
        case _:
            return _READ[one.kind](one, value)


def _canonical(name: object, known: Mapping[str, object]) -> str:
    if not isinstance(name, str):
        raise ConfigError(f"the name of a setting is a text, not {shown(name)}")
    short = KAFKA_NAMES.get(name, name)
    if short in known:
        return short
    if (instead := _REFUSED.get(name.replace(".", "_")) or kafka.told_of(name)) is not None:
        raise ConfigError(instead, name=name)
    dotted = name.replace("_", ".")
    if (own := KAFKA_NAMES.get(dotted)) in known:
        raise ConfigError(f"{name} is {own} here, or {dotted} in config={{…}}", name=name)
    if owners := [_OBJECTS[kind] for kind, table in _DECLARED.items() if any(each.name in {own, short} for each in table)]:
        raise ConfigError(f"{name} is a setting of {' and of '.join(owners)}: leave it out here", name=name)
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

    Raise `ConfigError` for an unknown name, a value out of range, or settings that contradict each other. A setting
    from the environment or `msgtx.toml` that contradicts the caller is left out, with a warning.
    """
    checks = {one.name: partial(_READ[one.kind], one) for one in _DECLARED[kind]}
    given: dict[str, object] = {}
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(f'config is a mapping, {{"linger.ms": 5}}, not {shown(config)}', name="config")
    for source in (config or {}, keywords):
        given.update((_canonical(name, checks), value) for name, value in source.items())
    given = {name: checks[name](value) for name, value in given.items()}
    read = {name: value for name, value in _from_outside(checks).items() if name not in given}
    outside = {name: checks[name](value) for name, value in read.items()}
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
    """Return the fewest settings from outside to leave out, so that the others fit; none if the choice is ambiguous.

    A setting that asks for idempotence is never left out: the producer would promise less than the caller wants.
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
    if isinstance(result, ClientConfig):
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
