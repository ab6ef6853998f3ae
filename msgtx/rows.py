"""Rows: the values of the library as JSON has them, for every door that shows them.

`-o json` of the command line and the console take them from here. Fields keep their names; a row of several values names
each.
"""

import base64
import dataclasses
import json
import math
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from msgtx.rules.record import EPOCH, MILLISECOND
from msgtx.types import (
    ActivityPiece,
    CommittedRange,
    DatabaseDescription,
    FoundRecord,
    GroupDescription,
    MemberDescription,
    MirrorDescription,
    PartitionDescription,
    PartitionProgress,
    PartitionRows,
    PreparedListing,
    Record,
    SavedSnapshot,
    SearchAnswer,
    ShareGroupDescription,
    ShareRecord,
    SparkQuery,
    TopicDescription,
    TopicPartition,
    TransactionId,
)

# The times that ISO 8601 has four digits of a year for; others are written as the number they are.
FIRST_MS: Final = (datetime.min.replace(tzinfo=UTC) - EPOCH) // MILLISECOND
LAST_MS: Final = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MILLISECOND
TIMES: Final = ("_at", "_since", "_deadline")  # the last parts of the names of fields that are times
JSON_LEVELS: Final = 100  # of a JSON value that is shown as JSON
SHARE_COLUMNS: Final = ("group", "members", "lag", "lag_ms", "dead_letters")  # of a list of share groups
SHARE_PARTITION_COLUMNS: Final = (
    "topic",
    "partition",
    "start_offset",
    "next_offset",
    "available",
    "acquired",
    "pending",
    "rejected",
    "parked",
    "lag",
    "lag_ms",
)

MIRROR_COLUMNS: Final = (  # of a list of mirrors
    "name",
    "source_address",
    "records",
    "lag_records",
    "lag_ms",
    "moved_ms",
    "seen_ms",
    "host",
    "process",
    "error",
)
PLACE_COLUMNS: Final = ("topic", "partition", "offset")


def row_of(value: Any) -> dict[str, Any]:
    """Return a result class of the library as a row: its fields by name."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def json_of(value: Any) -> Any:
    """Return a value as JSON has them: a transaction id as its text, a partition as its two fields."""
    if isinstance(value, TransactionId | uuid.UUID):
        return str(value)
    if hasattr(value, "_asdict"):
        return {name: json_of(content) for name, content in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(name): json_of(content) for name, content in value.items()}
    if isinstance(value, list | tuple):
        return [json_of(content) for content in value]
    return value


def row_with_times(value: Any) -> dict[str, Any]:
    """Return a result class of the library as a row, with those inside it, and with times as `time_text` writes them."""
    row = row_of(value)
    for name, content in row.items():
        if isinstance(content, list):
            row[name] = [row_with_times(each) if dataclasses.is_dataclass(each) else each for each in content]
        elif dataclasses.is_dataclass(content):
            row[name] = row_with_times(content)
        elif isinstance(content, int) and f"_{name}".endswith(TIMES):
            row[name] = time_text(content)
    return row


def topic_row(topic: TopicDescription, ends: Mapping[TopicPartition, PartitionDescription]) -> dict[str, Any]:
    """Return a topic: its settings, and the ends of its partitions."""
    return {
        **row_of(topic),
        "ends": [{"partition": partition.partition, **row_of(found)} for partition, found in ends.items()],
    }


def group_row(found: GroupDescription) -> dict[str, Any]:
    """Return a group with its partitions."""
    return {**row_of(found), "partitions": [{"group": found.group, **row_of(each)} for each in found.partitions]}


def member_rows(group: str, members: Iterable[MemberDescription]) -> list[dict[str, Any]]:
    """Return the members of a group."""
    return [{"group": group, **row_of(member)} for member in members]


def listed_share_row(found: ShareGroupDescription) -> dict[str, Any]:
    """Return a share group as one of a list, without its settings and its partitions."""
    return {name: getattr(found, name) for name in SHARE_COLUMNS}


def share_row(found: ShareGroupDescription) -> dict[str, Any]:
    """Return a share group with its settings and its partitions."""
    return {**row_of(found), "partitions": [{"group": found.group, **row_of(each)} for each in found.partitions]}


def mirror_row(found: MirrorDescription) -> dict[str, Any]:
    """Return a mirror with its places."""
    return {**row_of(found), "places": [row_of(place) for place in found.places]}


def prepared_row(one: PreparedListing) -> dict[str, Any]:
    """Return a prepared transaction, with its token as a text."""
    return {**row_of(one), "token": str(one.token), "prepared_at": time_text(one.prepared_at)}


def search_row(answer: SearchAnswer) -> dict[str, Any]:
    """Return what a search has found; of a record its row, too."""
    return {
        "hits": [{**row_of(hit), "record": None if hit.record is None else found_row(hit.record)} for hit in answer.hits],
        "similar": [row_of(hit) for hit in answer.similar],
        "is_complete": answer.is_complete,
    }


def activity_row(piece: ActivityPiece) -> dict[str, Any]:
    """Return what was stored and decided in a piece of time."""
    return _timed(row_of(piece), "start", "end")


def database_row(found: DatabaseDescription) -> dict[str, Any]:
    """Return the database below: its tables, holders of snapshots, standbys and roles."""
    return {
        **row_of(found),
        "tables": [_timed(row_of(each), "last_vacuum") for each in found.tables],
        "snapshot_holders": [_timed(row_of(each), "since") for each in found.snapshot_holders],
        "standbys": [row_of(each) for each in found.standbys],
        "rights": [row_of(each) for each in found.rights],
    }


def spark_row(query: SparkQuery) -> dict[str, Any]:
    """Return a query of an application of Spark."""
    return _timed(row_of(query), "decided_at", "undecided_since")


def saved_row(saved: SavedSnapshot) -> dict[str, Any]:
    """Return a saved snapshot as one of a list."""
    ends = saved.snapshot.ends
    return {
        "name": saved.name,
        "taken_at": datetime.fromtimestamp(saved.taken_at / 1000, UTC).isoformat(timespec="seconds"),
        "topics": sorted({topic for topic, _ in ends}),
        "partitions": len(ends),
        "readable": saved.is_readable,
        "saved_by": saved.saved_by,
        "snapshot": str(saved.snapshot),
    }


def cut_row(saved: SavedSnapshot) -> dict[str, Any]:
    """Return a saved snapshot with its positions."""
    ends = sorted(saved.snapshot.ends.items())
    return {**saved_row(saved), "ends": [{"topic": topic, "partition": at, "end": end} for (topic, at), end in ends]}


def range_rows(found: Mapping[TopicPartition, CommittedRange]) -> list[dict[str, Any]]:
    """Return the difference of two cuts, a row for each partition."""
    return [{"topic": place.topic, "partition": place.partition, **row_of(one)} for place, one in found.items()]


def progress_row(found: PartitionProgress) -> dict[str, Any]:
    """Return a partition with how far each group is."""
    return {**row_of(found), "groups": [row_of(each) for each in found.groups]}


def partition_rows_row(found: PartitionRows) -> dict[str, Any]:
    """Return rows of a log, and its ends."""
    return {**row_of(found), "rows": [_timed(row_of(row), "appended_at", "decided_at") for row in found.rows]}


def found_row(found: FoundRecord) -> dict[str, Any]:
    """Return a record with its outcome, the progress of each group, and its dead letters."""
    text = json_text(found.value)
    value = content_row("value", found.value) if text is None else {"value": json.loads(text)}
    row = {name: content for name, content in row_of(found).items() if name not in {"key", "value", "headers"}}
    row |= {**content_row("key", found.key), **value}
    row["headers"] = [{"key": name, **content_row("value", content)} for name, content in found.headers]
    row["groups"] = [_timed(row_of(each), "at") for each in found.groups]
    row["dead_letters"] = [row_of(each) for each in found.dead_letters]
    return _timed(row, "timestamp", "stored_at", "decided_at", "deliver_at")


def _timed(row: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return a row with these times as texts."""
    return row | {name: time_text(row[name]) for name in names if row[name] is not None}


# ── records, and what they hold ──


def line_of_record(record: Record) -> str:
    """Return a record as a JSON object, on one line."""
    place = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": time_text(record.timestamp),
        **content_row("key", record.key),
    }
    value = json_text(record.value)
    rest = {
        **({} if value is not None else content_row("value", record.value)),
        "headers": [{"key": name, **content_row("value", content)} for name, content in record.headers],
        **({"delivery_count": record.delivery_count} if isinstance(record, ShareRecord) else {}),
    }
    head, tail = (json.dumps(part, ensure_ascii=False) for part in (place, rest))
    return head[:-1] + ("" if value is None else f', "value": {value}') + f", {tail[1:]}"


def json_text(value: bytes | None) -> str | None:
    """Return a value that is a JSON object or array, in its own letters; None for others, of several lines, or very deep."""
    if value is None or value[:1] not in {b"{", b"["} or value[-1:] not in {b"}", b"]"} or len(value.splitlines()) > 1:
        return None
    try:
        text = value.decode()
        found = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    # A deeper one could not be written inside other JSON.
    return text if text.count("{") + text.count("[") <= JSON_LEVELS or _levels(found) <= JSON_LEVELS else None


def _levels(value: Any) -> int:
    level, count = [value], 0
    while level:
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for values in inner for each in values if isinstance(each, dict | list)]
        count += 1
    return count


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _finite(text: str) -> float:
    """Read a number. Refuse one that a reader of JSON would take for Infinity, which it could not write again."""
    if math.isinf(number := float(text)):
        _refuse(text)
    return number


def time_text(timestamp_ms: int) -> str | int:
    """Return a time as ISO 8601 in UTC, to the millisecond."""
    if not FIRST_MS <= timestamp_ms <= LAST_MS:
        return timestamp_ms
    return (EPOCH + timestamp_ms * MILLISECOND).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def content_row(name: str, content: bytes | None) -> dict[str, str | None]:
    """Return bytes as JSON has them: as a text, else in base64."""
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}


def printable(text: str) -> str:
    """Return a text with control characters, and marks that cannot be seen, as their escapes."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
