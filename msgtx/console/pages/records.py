"""Messages of a partition, and one record with what became of it."""

import json
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from msgtx import errors
from msgtx.admin.find import PAGE_BYTES
from msgtx.client import Client
from msgtx.console.page import Deadline, Page, Query, Section
from msgtx.rows import found_row, line_of_record, partition_rows_row
from msgtx.types import Isolation, LogRow, PartitionRows, Record, RowState, TopicPartition

_MOST: Final = 50  # records on a page
SHOWING_SECONDS: Final = 2.0  # after which a page shows what it has; behind it the next page goes on
_POLL_SECONDS: Final = 0.2
VIEWS: Final = ("auto", "text", "json", "hex")
STRIP_ROWS: Final = 1_000  # of the log's end, drawn as one strip; as many as the command prints
_MOST_PIECES: Final = 400  # of a strip: neighbours with one state and one transaction are one piece


def messages_page(client: Client, query: Query) -> Page:
    """Show records of a partition from an offset or a time, those that fit a search, or the newest as they come."""
    place = TopicPartition(query.needed("topic"), query.whole("partition", 0, most=2**31 - 1))
    isolation = Isolation(query.choice("isolation", [*Isolation]))
    rows = query.whole("rows", _MOST, least=1, most=_MOST)
    log = client.admin.partitions.rows(place, STRIP_ROWS)
    end = log.last_stable_offset if isolation is Isolation.READ_COMMITTED else log.log_end_offset
    strip = Section(
        partition_rows_row(log), f"msgtx topics rows {place.topic} --partition {place.partition} --most {STRIP_ROWS}"
    )
    asked = _asked(query)
    follows = query.choice("follow", ("off", "on")) == "on" and not any(map(query.text, ("at", "time", "before")))
    records, view = (
        _search(client, place, query, asked, before=query.whole("before", log.log_end_offset), rows=rows)
        if asked
        else _read_page(client, place, query, log, end=end, isolation=isolation, rows=rows)
    )
    return Page(
        str(place),
        "messages.html",
        {"records": records, "rows_of_log": strip},
        {
            "strip": _strip(log),
            "place": place,
            "partitions": client.topics.describe(place.topic).partitions,
            "ends": log,
            "end": end,
            "isolation": str(isolation),
            "view": query.choice("view", VIEWS),
            "views": VIEWS,
            "fields": {name: query.text(name) for name in ("key", "path", "value", "time")},
            "rows": rows,
            "limits": (SHOWING_SECONDS, PAGE_BYTES),
            "follows": follows,
            **view,
            "shown": view["shown"][::-1] if follows and not asked else view["shown"],
        },
        noun="topics",
        is_live=follows,
    )


def _asked(query: Query) -> dict[str, str]:
    """Return what a search looks for; nothing: no search is asked for. Raise `InvalidRequest` for half a search."""
    key, path, value = query.text("key"), query.text("path"), query.text("value")
    if "=" in path or bool(value) > bool(path):
        raise errors.InvalidRequest(
            f"path names a place in a JSON value, like customer.id, and value what stands there: not {path!r}", name="path"
        )
    return ({"key": key} if key else {}) | ({"json": f"{path}={value}"} if path else {})


def _search(
    client: Client, place: TopicPartition, query: Query, asked: Mapping[str, str], *, before: int, rows: int
) -> tuple[Section, dict[str, Any]]:
    """Return the last records in front of an offset that fit. It ends after some time; the next page goes on."""
    found = client.find_before(
        place.topic,
        place.partition,
        before=before,
        key=asked.get("key"),
        json=asked.get("json"),
        limit=rows,
        groups=False,
        stop=Deadline(SHOWING_SECONDS),
    )
    words = " ".join(f"--{name} {shlex.quote(text)}" for name, text in asked.items())
    command = f"msgtx find {place.topic} {words} --partition {place.partition} --before {before} --limit {rows} --no-groups"
    of = {
        each.offset: {
            "transaction_id": each.transaction_id,
            "state": each.outcome,
            "transactional_id": each.transactional_id,
        }
        for each in found.records
    }
    view = {"shown": found.records, "of": of, "at": None, "older": None, "newer": None, "next_before": found.next_before}
    return Section([found_row(each) for each in found.records], command), {**view, "searched": True}


def _read_page(
    client: Client, place: TopicPartition, query: Query, log: PartitionRows, *, end: int, isolation: Isolation, rows: int
) -> tuple[Section, dict[str, Any]]:
    """Return the records from an offset or a time on, or the newest."""
    at = query.whole("at", max(log.log_start_offset, end - rows))
    if moment := query.text("time"):
        at = _offset_at(client, place, moment, isolation)
    at = min(max(at, log.log_start_offset), end)
    records = _read(client, place, at, end, most=rows, isolation=isolation)
    newer = records[-1].offset + 1 if records else end
    command = (
        f"msgtx consume {place.topic} --partition {place.partition} --offset {at} --isolation {isolation}"
        f" --max-messages {rows} --no-follow -o json"
    )
    return Section([json.loads(line_of_record(each)) for each in records], command), {
        "shown": records,
        "of": _rows_of(client.admin.partitions.rows(place, rows, from_offset=at) if records else log, records),
        "at": at,
        "older": max(log.log_start_offset, at - rows) if at > log.log_start_offset else None,
        "newer": newer if newer < end else None,
        "next_before": None,
        "searched": False,
    }


def record_page(client: Client, query: Query) -> Page:
    """Show one record: its transaction's outcome, the progress of each group, its dead letters."""
    topic, partition, offset = query.needed("topic"), query.whole("partition", 0), query.whole("offset", 0)
    found = client.find(topic, partition=partition, offset=offset, since=None, limit=1)
    command = f"msgtx find {topic} --offset {partition}:{offset}"
    ends = client.admin.partitions.rows(TopicPartition(topic, partition), 1)
    return Page(
        f"{topic}/{partition}/{offset}",
        "record.html",
        {"record": Section([found_row(each) for each in found], command)},
        {
            "found": found[0] if found else None,
            "place": TopicPartition(topic, partition),
            "offset": offset,
            "ends": ends,
            "view": query.choice("view", VIEWS),
            "views": VIEWS,
        },
        noun="topics",
    )


def _rows_of(log: PartitionRows, records: Sequence[Record]) -> dict[int, LogRow]:
    """Return the row of the log that holds each record, by its offset, as far as it is among these."""
    found: dict[int, LogRow] = {}
    rows = iter(log.rows)
    row = next(rows, None)
    for offset in sorted(each.offset for each in records):
        while row is not None and row.last_offset < offset:
            row = next(rows, None)
        if row is not None and row.base_offset <= offset:
            found[offset] = row
    return found


def _strip(log: PartitionRows) -> dict[str, Any] | None:
    """Return the end of a log in pieces of a hundred; neighbours with one state and one transaction are one piece."""
    if not log.rows:
        return None
    first = log.rows[0].base_offset
    width = max(1, log.log_end_offset - first)
    pieces: list[dict[str, Any]] = []
    for row in log.rows:
        state = "committed" if row.state is RowState.PLAIN else str(row.state)
        same = pieces and (pieces[-1]["state"], pieces[-1]["transaction"]) == (state, row.transaction_id)
        if not same:
            pieces.append({"state": state, "transaction": row.transaction_id, "first": row.base_offset})
        pieces[-1]["last"] = row.last_offset
    for piece in pieces:
        piece["at"] = round(100 * (piece["first"] - first) / width, 3)
        piece["width"] = round(100 * (piece["last"] + 1 - piece["first"]) / width, 3)
    return {
        "first": first,
        "end": log.log_end_offset,
        "stable": log.last_stable_offset,
        "stable_at": round(100 * max(0, log.last_stable_offset - first) / width, 3),
        "rows": len(log.rows),
        "pieces": pieces[-_MOST_PIECES:],
    }


def _offset_at(client: Client, place: TopicPartition, moment: str, isolation: Isolation) -> int:
    """Return the first offset at or after a time, the end if there is none."""
    try:
        when = datetime.fromisoformat(moment)
    except ValueError:
        raise errors.InvalidRequest(f"time is ISO 8601, like 2026-01-31T12:00, not {moment!r}", name="time") from None
    when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    listed = client.admin.partitions.offsets([place.topic], max(0, round(when.timestamp() * 1_000)), isolation)[place]
    return listed.log_end_offset if listed.offset is None else listed.offset


def _read(client: Client, place: TopicPartition, at: int, end: int, *, most: int, isolation: Isolation) -> list[Record]:
    """Return up to `most` records from an offset on."""
    found: list[Record] = []
    deadline = Deadline(SHOWING_SECONDS)
    if at >= end:
        return found
    with client.consumer(
        enable_auto_commit=False, isolation=isolation, max_poll_records=most, fetch_max_bytes=PAGE_BYTES
    ) as consumer:
        consumer.assign([place])
        consumer.seek(place, at)
        while len(found) < most and consumer.position(place) < end and not deadline.is_set():
            found += consumer.poll(_POLL_SECONDS, most - len(found))
    return [each for each in found if each.offset < end]
