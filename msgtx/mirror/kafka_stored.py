"""A mirror to Kafka, as the topic of the mirrors has it: JSON."""

import json
from dataclasses import dataclass
from typing import Any, Final

from msgtx.errors import ConfigError
from msgtx.mirror.ends import Lag, Progress, SourcePlace
from msgtx.types import TopicPartition

MIRRORS_TOPIC: Final = "__msgtx_mirrors"
FORMAT: Final = 1
PLAIN_FIELDS: Final = ("run", "source_address", "host", "process", "started_at", "moved_at", "seen_at", "records")


@dataclass(frozen=True, slots=True)
class StoredMirror:
    """A mirror as the topic has it: its progress, the run that wrote it, and where that run is. Times in milliseconds.

    `run`: another one has another text. `records`: that were copied since the mirror began.
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


def encode(mirror: StoredMirror) -> bytes:
    """Return a mirror as the topic has it."""
    progress = mirror.progress
    stored = {
        "format": FORMAT,
        "source": progress.source,
        "revision": progress.revision,
        "places": [[*at, place.offset, place.topic_id, place.identity] for at, place in sorted(progress.places.items())],
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
        return StoredMirror(progress, lag=Lag(*stored["lag"]), **{name: stored[name] for name in PLAIN_FIELDS})
    except (LookupError, TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{MIRRORS_TOPIC} has a record that is no mirror of msgtx: somebody else has written it"
        ) from error
