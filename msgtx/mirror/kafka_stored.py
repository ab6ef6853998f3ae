"""A mirror to Kafka, as the topic of the mirrors has it: JSON."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from msgtx.errors import ConfigError
from msgtx.mirror.ends import Lag, Progress, SourcePlace
from msgtx.types import TopicPartition

MIRRORS_TOPIC: Final = "__msgtx_mirrors"
FORMAT: Final = 1
PLAIN_FIELDS: Final = ("run", "source_address", "host", "process", "started_at", "moved_at", "seen_at", "records", "error")


@dataclass(frozen=True, slots=True)
class TargetEnd:
    """Where a partition of the target ended once. A topic that was made again has another `topic_id`."""

    topic_id: str
    offset: int


@dataclass(frozen=True, slots=True)
class StoredMirror:
    """A mirror as the topic has it: its progress, the run that wrote it, and where that run is. Times in milliseconds.

    `run`: another one has another text. `records`: that were copied since the mirror began. `ends`: of the target,
    behind the records that were written last. `error`: why the run has ended.
    """

    progress: Progress
    run: str
    source_address: str
    host: str
    process: int
    started_at: int
    moved_at: int
    seen_at: int
    records: int
    lag: Lag
    ends: Mapping[TopicPartition, TargetEnd] = field(default_factory=dict)
    error: str | None = None


def encode(mirror: StoredMirror) -> bytes:
    """Return a mirror as the topic has it."""
    progress = mirror.progress
    stored = {
        "format": FORMAT,
        "source": progress.source,
        "revision": progress.revision,
        "places": [[*at, place.offset, place.topic_id, place.identity] for at, place in sorted(progress.places.items())],
        "ends": _by_topic(mirror.ends),
        "lag": [mirror.lag.records, mirror.lag.age_ms],
        **{name: getattr(mirror, name) for name in PLAIN_FIELDS},
    }
    return json.dumps(stored, separators=(",", ":")).encode()


def decode(value: bytes) -> StoredMirror:
    """Return the mirror that the topic has. Raise `ConfigError` for one that a newer msgtx wrote."""
    try:
        stored: dict[str, Any] = json.loads(value)
        if stored["format"] != FORMAT:
            raise ConfigError(
                f"{MIRRORS_TOPIC} has a mirror in format {stored['format']}, and this msgtx reads {FORMAT}: upgrade it"
            )
        places = {
            TopicPartition(topic, partition): SourcePlace(offset, topic_id, identity)
            for topic, partition, offset, topic_id, identity in stored["places"]
        }
        progress = Progress(stored["source"], places, stored["revision"])
        ends = {
            TopicPartition(topic, partition): TargetEnd(topic_id, offset)
            for topic, topic_id, offsets in stored["ends"]
            for partition, offset in offsets
        }
        plain = {name: stored[name] for name in PLAIN_FIELDS}
        return StoredMirror(progress, lag=Lag(*stored["lag"]), ends=ends, **plain)
    except (LookupError, TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{MIRRORS_TOPIC} has a record that is no mirror of msgtx: somebody else has written it"
        ) from error


def _by_topic(ends: Mapping[TopicPartition, TargetEnd]) -> list[tuple[str, str, list[tuple[int, int]]]]:
    """Return the ends of partitions with the name and the id of each topic once."""
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for at, end in sorted(ends.items()):
        found.setdefault((at.topic, end.topic_id), []).append((at.partition, end.offset))
    return [(*topic, offsets) for topic, offsets in found.items()]
