"""Saved snapshots, one of them, and the difference of two."""

import shlex
from collections.abc import Iterable
from typing import Final

from msgtx.client import Client
from msgtx.console.page import Page, Query, Section, arranged
from msgtx.rows import cut_row, range_rows, saved_row
from msgtx.types import CommittedRange, Snapshot, TopicPartition, ids_of

_COLUMNS: Final = ("name", "taken_at", "partitions", "saved_by")
_END_COLUMNS: Final = ("topic", "partition", "end")
_DIFFERENCE_COLUMNS: Final = ("topic", "partition", "offsets")
MOST_COMPARED: Final = 25  # partitions of a difference on one page: each is measured
MOST_OFFSETS: Final = 50_000  # of all that one page measures: a second, if each batch has one record


def cuts_page(client: Client, query: Query) -> Page:
    """List the saved snapshots."""
    rows = list(map(saved_row, client.snapshots.list()))
    table = arranged(rows, query, columns=_COLUMNS, sort="-taken_at", filter_on=("name", "topics"))
    return Page("Cuts", "cuts.html", {"cuts": Section(table.rows, "msgtx offsets snapshots")}, {"table": table}, noun="cuts")


def cut_page(client: Client, query: Query) -> Page:
    """Show the positions of a saved snapshot."""
    name = query.needed("name")
    row = cut_row(client.snapshots.describe(name))
    table = arranged(row["ends"], query, columns=_END_COLUMNS, sort="topic", filter_on=("topic",))
    return Page(
        name,
        "cut.html",
        {"cut": Section(row, f"msgtx offsets snapshots {shlex.quote(name)}")},
        {"name": name, "table": table, "others": [each.name for each in client.snapshots.list() if each.name != name]},
        noun="cuts",
        is_live=False,
        changes=[("offsets delete-snapshot", {"name": name})],
    )


def difference_page(client: Client, query: Query) -> Page:
    """Show what is committed from a saved cut to another one, or to now. Only the partitions of the page are read."""
    start, end = query.needed("start"), query.text("end")
    first = client.snapshots.get(start)
    client.snapshots.ranges(start=first, end=first.only(()))  # refuses one of another incarnation
    known = set(client.topics.list())
    last = client.snapshots.get(end) if end else client.snapshots.take({topic for topic, _ in first.ends} & known).snapshot
    begins = {place: _begin(first, last, place) for place in last.ends}
    rows = [
        {"topic": place.topic, "partition": place.partition, "offsets": at - begins[place]}
        for place, at in sorted(last.ends.items())
        if place.topic in known
    ]
    changed = [row for row in rows if row["offsets"]]
    table = arranged(changed, query, columns=_DIFFERENCE_COLUMNS, sort="-offsets", filter_on=("topic",), most=MOST_COMPARED)
    measured = _measured(client, first, last, [TopicPartition(row["topic"], row["partition"]) for row in table.rows])
    to = f" --to {shlex.quote(end)}" if end else ""
    return Page(
        f"{start} to {end or 'now'}",
        "difference.html",
        {"ranges": Section(range_rows(measured), f"msgtx offsets ranges --from {shlex.quote(start)}{to}")},
        {
            "start": start,
            "end": end,
            "table": table,
            "measured": measured,
            "places": {(place.topic, place.partition): one for place, one in measured.items()},
            "same": len(rows) - len(changed),
            "offsets": sum(row["offsets"] for row in rows),
            "begins": {(place.topic, place.partition): at for place, at in begins.items()},
        },
        noun="cuts",
        is_live=False,
    )


def _begin(first: Snapshot, last: Snapshot, place: TopicPartition) -> int:
    """Return where the difference begins on a partition: at 0 if its topic was made, or made again, behind the first cut."""
    known = ids_of(last.ends).get(place)
    same = place in first.ends if known is None else first.is_of(place, known)
    return first.ends[place] if same else 0


def _measured(
    client: Client, first: Snapshot, last: Snapshot, places: Iterable[TopicPartition]
) -> dict[TopicPartition, CommittedRange]:
    """Return the difference on these partitions, as far as all of it can be read for a page."""
    ends: dict[TopicPartition, int] = {}
    left = MOST_OFFSETS
    for place in places:
        offsets = max(last.ends[place] - _begin(first, last, place), 0)
        if offsets <= left:
            ends[place] = last.ends[place]
            left -= offsets
    return client.snapshots.ranges(start=first, end=last.only(ends)) if ends else {}
