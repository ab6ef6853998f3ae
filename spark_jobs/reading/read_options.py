"""The options of a reader: those of Spark's Kafka source, and ours, checked before anything is read.

Names are compared without case and underscores: `startingOffsets`, as Spark's options are written, is also
`starting_offsets`, as Python's arguments are. Source: the guide of Spark's Kafka integration.
"""

import difflib
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar, cast

from msgtx import units
from msgtx.declared.spark import IGNORED, REFUSED, SINK, SOURCE, Options, defaults
from msgtx.errors import ConfigError
from msgtx.settings import OnFailover
from msgtx.spark_jobs.runtime.outage import outage_timeout_of
from msgtx.spark_jobs.runtime.primary import on_failover_of
from msgtx.types import Snapshot, TopicPartition

log: Final = logging.getLogger("msgtx.spark")

LATEST: Final = -1  # in JSON offsets, as with Kafka's source
EARLIEST: Final = -2
# They tune Kafka's consumers; here is none.
OF_KAFKA: Final = ("groupIdPrefix", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs")
SUBSCRIPTIONS: Final = ("subscribe", "subscribePattern", "assign")  # one of them says which partitions are read
OF_SINKS: Final = tuple(one.name for one in SINK)  # a table or view has one set of options for SELECT and INSERT
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first offsets at or after a time, in milliseconds: one for all partitions, or one for each."""

    times: int | Mapping[TopicPartition, int]

    def of(self, partition: TopicPartition) -> int:
        """Return the time for a partition."""
        return self.times if isinstance(self.times, int) else self.times[partition]


Bound = Literal["earliest", "latest"] | Mapping[TopicPartition, int] | AtTime


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The request of a reader. One of `topics`, `pattern`, `assigned` is given; for a batch with a snapshot none need be.

    Each field is an option of `declared.spark.SOURCE`. `starting` counts where `group` has no committed offset; `start` and
    `snapshot` are cuts that bound the range.
    Addresses carry passwords: they are no part of the text of this object.
    """

    url: str | None = field(repr=False)
    read_url: str | None = field(repr=False)
    replica_timeout_ms: int
    topics: tuple[str, ...] | None
    pattern: str | None
    assigned: tuple[TopicPartition, ...] | None
    starting: Bound
    ending: Bound
    without_match: Literal["error", "latest"]
    group: str | None
    start: Snapshot | None
    snapshot: Snapshot | None
    fail_on_data_loss: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    include_headers: bool
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    cut_delay_ms: int
    on_failover: OnFailover
    outage_timeout: float | None  # seconds


def parse(options: Mapping[str, object], *, streaming: bool = False) -> ReadOptions:
    """Return the request of options; None: not given. Raise `ConfigError`, `InvalidRequest`.

    `kafka.*` and other settings of Kafka's consumers are left out with a warning.
    """
    given = named(options, SOURCE, of_kafka=OF_KAFKA, of_others=OF_SINKS)
    subscriptions = [name for name in SUBSCRIPTIONS if name in given]
    if len(subscriptions) > 1:
        raise ConfigError(f"{' and '.join(subscriptions)} are given: one of them says which partitions are read")
    if not subscriptions and (streaming or "snapshot" not in given):
        raise ConfigError(
            "nothing says which partitions are read: give subscribe, subscribePattern or assign; a table of Spark SQL keeps"
            " its options only if CREATE TABLE lists no columns and has no AS SELECT"
        )
    _refuse_contradictions(given, streaming=streaming)
    of_group = {"startingOffsets": "earliest"} if "group" in given else {}
    given = defaults(SOURCE, streaming=streaming) | of_group | given
    found = ReadOptions(
        url=_text(given, "url"),
        read_url=_text(given, "read_url"),
        replica_timeout_ms=milliseconds_of(given, "replica_timeout_ms", least=1),
        topics=_topics(given["subscribe"]) if "subscribe" in given else None,
        pattern=_pattern(given),
        assigned=_assigned(given["assign"]) if "assign" in given else None,
        starting=_bound(given, "starting"),
        ending=_bound(given, "ending"),
        without_match=_without_match(given),
        group=_text(given, "group"),
        start=_snapshot(given, "start"),
        snapshot=_snapshot(given, "snapshot"),
        fail_on_data_loss=_boolean(given, "failOnDataLoss"),
        min_partitions=_number(given, "minPartitions"),
        max_records_per_partition=_number(given, "maxRecordsPerPartition"),
        include_headers=_boolean(given, "includeHeaders"),
        max_offsets_per_trigger=_number(given, "maxOffsetsPerTrigger"),
        min_offsets_per_trigger=_number(given, "minOffsetsPerTrigger"),
        max_trigger_delay_ms=milliseconds_of(given, "maxTriggerDelay"),
        cut_delay_ms=milliseconds_of(given, "cut_delay_ms"),
        on_failover=on_failover_of(given.get("on_failover")),
        outage_timeout=outage_timeout_of(given.get("outage_timeout")),
    )
    _refuse_wrong_ends(found, streaming=streaming)
    return found


def plain(name: str) -> str:
    """Return an option's name as names are compared: without case and underscores."""
    return name.replace("_", "").lower()


def named(
    options: Mapping[str, Value], known_ones: Options, *, of_kafka: Iterable[str] = (), of_others: Iterable[str] = ()
) -> dict[str, Value]:
    """Return the options that are not None, under their own names. Raise `ConfigError` for an unknown one.

    `kafka.*` and `of_kafka` are left out with a warning, `of_others` without.
    """
    known = {plain(one.name): one.name for one in known_ones}
    kafkas, others = ({plain(name) for name in each} for each in (of_kafka, of_others))
    ignored = sorted(name for name in options if name.lower().startswith("kafka.") or plain(name) in kafkas)
    if ignored:
        log.warning("ignored, for there is no Kafka here: %s", ", ".join(ignored))
    given: dict[str, Value] = {}
    for name, value in options.items():
        if name in ignored or value is None:
            continue
        if plain(name) not in known:
            if plain(name) in others:
                continue
            near = difflib.get_close_matches(plain(name), known, n=1, cutoff=0.0)
            raise ConfigError(f"unknown option {name!r}; the nearest known one is {known[near[0]]!r}")
        given[known[plain(name)]] = value
    return given


def _refuse_contradictions(given: Mapping[str, object], *, streaming: bool) -> None:
    starts = [name for name in given if name.startswith("starting") and not name.endswith("Strategy")]
    ends = [name for name in given if name.startswith("ending") or name == "snapshot"]
    if "start" in given and (starts or "group" in given):
        raise ConfigError(f"start and {(*starts, 'group')[0]} are given: one of them says where to begin")
    if "snapshot" in given and len(ends) > 1:
        raise ConfigError(f"snapshot and {min(set(ends) - {'snapshot'})} are given: one of them says where to end")
    fates = {one.name: one.stream if streaming else one.batch for one in SOURCE}
    refused = [name for name in given if fates[name] == REFUSED]
    if refused:
        raise ConfigError(
            f"{refused[0]} is for batches: a stream has no end"
            if streaming
            else f"{refused[0]} is for streams: a batch ends at the cut that is there"
        )
    ignored = sorted(name for name in given if fates[name] == IGNORED)
    if ignored:
        log.warning("ignored in a %s: %s", "stream" if streaming else "batch", ", ".join(ignored))


def _refuse_wrong_ends(options: ReadOptions, *, streaming: bool) -> None:
    if not streaming and options.starting == "latest":
        raise ConfigError("startingOffsets is latest: a batch would begin where it ends")
    if not streaming and isinstance(options.starting, Mapping):
        for partition, offset in options.starting.items():
            if offset == LATEST:
                raise ConfigError(f"startingOffsets of {partition} is -1 (latest): a batch would begin where it ends")
    if options.ending == "earliest":
        raise ConfigError("endingOffsets is earliest: the batch would end where it begins")
    if isinstance(options.ending, Mapping):
        for partition, offset in options.ending.items():
            if offset == EARLIEST:
                raise ConfigError(f"endingOffsets of {partition} is -2 (earliest): the batch would end where it begins")


# Values: texts, as Spark gives them, or Python's


def _text(given: Mapping[str, object], name: str) -> str | None:
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        # A value may hold a password: it is not shown.
        raise ConfigError(f"{name} is a text that is not empty, not {type(value).__name__ if value else 'empty'}", name=name)
    return value


def _number(given: Mapping[str, object], name: str) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not re.fullmatch(r"\s*0*[1-9][0-9]{0,17}\s*", str(value)):
        raise ConfigError(f"{name} is a whole number above 0, not {value!r}", name=name)
    return int(str(value))


def _boolean(given: Mapping[str, object], name: str) -> bool:
    text = str(given[name]).strip().lower()
    if text not in {"true", "false"}:
        raise ConfigError(f"{name} is true or false, not {given[name]!r}", name=name)
    return text == "true"


def milliseconds_of(given: Mapping[str, object], name: str, *, least: int = 0) -> int:
    """Return a duration. Raise `ConfigError`."""
    found = units.milliseconds(name, given[name])
    if found < least:
        raise ConfigError(f"{name} must be {least} ms or more, not {given[name]!r}", name=name, limit=least)
    return found


def _topics(value: object) -> tuple[str, ...]:
    if not isinstance(value, str | Iterable):
        raise ConfigError(f"subscribe is a list of topics, separated by commas, not {value!r}")
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else list(value)
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"subscribe names topics: {name!r} is none")
    found = tuple(dict.fromkeys(name for name in names if name))
    if not found:
        raise ConfigError("subscribe names no topic")
    return found


def _pattern(given: Mapping[str, object]) -> str | None:
    pattern = _text(given, "subscribePattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"subscribePattern {pattern!r}: {error}") from error
    return pattern


def _assigned(value: object) -> tuple[TopicPartition, ...]:
    form = 'assign reads {"topic": [0, 1]}'
    parsed = _json(value, form)
    if isinstance(parsed, Mapping):
        pairs = [(topic, index) for topic, indexes in parsed.items() for index in _list(indexes, form)]
    else:
        pairs = [cast("tuple[object, object]", pair) for pair in _list(parsed, form)]
    found = tuple(sorted({_partition(pair, form) for pair in pairs}))
    if not found:
        raise ConfigError("assign names no partition")
    return found


def _bound(given: Mapping[str, object], word: str) -> Bound:
    """Return where to begin or to end. As with Kafka's source, one time counts first, then times, then offsets."""
    if (time := given.get(f"{word}Timestamp")) is not None:
        return AtTime(_milliseconds(f"{word}Timestamp", time))
    by_time = f"{word}OffsetsByTimestamp"
    if (value := given.get(by_time)) is not None:
        found = dict(_per_partition(by_time, value))
        return AtTime({partition: _milliseconds(by_time, time) for partition, time in found.items()})
    name = f"{word}Offsets"
    value = given[name]
    if isinstance(value, str) and value.strip().lower() in {"earliest", "latest"}:
        return cast("Literal['earliest', 'latest']", value.strip().lower())
    offsets: dict[TopicPartition, int] = {}
    for partition, offset in _per_partition(name, value):
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < EARLIEST:
            raise ConfigError(f"{name} of {partition} is an offset, -1 (latest) or -2 (earliest), not {offset!r}")
        offsets[partition] = offset
    return offsets


def _milliseconds(name: str, value: object) -> int:
    if isinstance(value, bool) or not re.fullmatch(r"\s*[0-9]{1,18}\s*", str(value)):
        raise ConfigError(f"{name} is a time in milliseconds since 1970, not {value!r}", name=name)
    return int(str(value))


def _per_partition(name: str, value: object) -> Iterator[tuple[TopicPartition, object]]:
    form = f'{name} reads {{"topic": {{"0": 23, "1": 42}}}}'
    parsed = _json(value, form)
    if not isinstance(parsed, Mapping):
        raise ConfigError(f"{form}, not {value!r}")
    for key, inner in parsed.items():
        if isinstance(inner, Mapping):
            for index, found in inner.items():
                yield _partition((key, index), form), found
        else:
            yield _partition(key, form), inner


def _json(value: object, form: str) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ConfigError(f"{form}, not {value!r}") from error


def _list(value: object, form: str) -> Iterable[object]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigError(f"{form}, not {value!r}")
    return value


def _partition(pair: object, form: str) -> TopicPartition:
    topic, index = pair if isinstance(pair, tuple) and len(pair) == 2 else (None, None)
    if not isinstance(topic, str) or isinstance(index, bool) or not re.fullmatch(r"[0-9]{1,9}", str(index)):
        raise ConfigError(f"{form}, not {pair!r}")
    return TopicPartition(topic, int(str(index)))


def _snapshot(given: Mapping[str, object], name: str) -> Snapshot | None:
    value = given.get(name)
    return value if value is None or isinstance(value, Snapshot) else Snapshot.parse(str(value))


def _without_match(given: Mapping[str, object]) -> Literal["error", "latest"]:
    value = str(given["startingOffsetsByTimestampStrategy"]).strip().lower()
    if value not in {"error", "latest"}:
        raise ConfigError(f"startingOffsetsByTimestampStrategy is error or latest, not {value!r}")
    return cast("Literal['error', 'latest']", value)
