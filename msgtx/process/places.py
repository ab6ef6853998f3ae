"""Records that fail, in words and as dead letters."""

import logging
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime

from msgtx.errors import ConfigError
from msgtx.rules.record import as_reason
from msgtx.types import OutputRecord, Record

log = logging.getLogger("msgtx.process")


def place_of(records: Sequence[Record]) -> str:
    """Return where records stand: `orders-0 offset 7`, or `orders-0 offsets 7 to 9, orders-1 offset 4`."""
    spans: dict[str, list[int]] = {}
    for record in records:
        spans.setdefault(f"{record.topic}-{record.partition}", []).append(record.offset)
    return ", ".join(
        f"{name} offset {found[0]}" if len(found) == 1 else f"{name} offsets {found[0]} to {found[-1]}"
        for name, found in spans.items()
    )


def reason_of(error: Exception) -> str:
    """Return an error as one line. An error whose text fails has its name only."""
    name = type(error).__name__
    try:
        text = f"{name}: {error}"
    except Exception:  # noqa: BLE001 - of the user's class: the record is set aside all the same
        text = name
    return as_reason(" ".join(text.splitlines()))


def dead_letter_of(record: Record, error: Exception, topic: str, *, group: str, deliveries: int) -> OutputRecord:
    """Return a failed record as one for `topic`, with the headers that dead letters of share groups have, too.

    One of them is the record's time. The letter gets the time of its sending, from which retention counts. Raise
    `ConfigError` if the record came from `topic`: it would come back for ever.
    """
    if record.topic == topic:
        raise ConfigError(
            f"{place_of([record])}: dead_letter {topic!r} is a topic that this worker reads: name another one, or a pattern"
            " that does not match it",
            name="dead_letter",
            topic=topic,
            reason="read",
        )
    why = {
        "group": group,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "deliveries": deliveries,
        "reason": reason_of(error),
        "member": f"{platform.node()}-{os.getpid()}",
        "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "timestamp": record.timestamp,
    }
    headers = [*record.headers, *((f"msgtx.dead-letter.{name}", str(value).encode()) for name, value in why.items())]
    return OutputRecord(record.value, record.key, headers, topic=topic)


def letter_in(record: Record, topic: str) -> str:
    """Return where a record's dead letter is, if only its topic is known: PostgreSQL places it at the COMMIT."""
    return f"in {topic} (msgtx find {record.topic} --offset {record.partition}:{record.offset})"


def tell_set_aside(record: Record, error: Exception, where: str | None) -> None:
    """Log that a record was left out, or became a dead letter. `where`: `letter_in`, or "at orders-dead-0@12"."""
    became = "skipped" if where is None else f"became a dead letter {where}"
    log.warning("%s: %s; %s", place_of([record]), reason_of(error), became)
