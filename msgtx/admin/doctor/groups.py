"""Consumer groups in which no member does the group's work, and partitions at which a member stands still."""

from collections.abc import Iterator

from msgtx.admin.doctor.findings import Look, data_of, member_of, more_of, since, span
from msgtx.store.groups.groups import Neglected, Stalled, neglected_groups, stalled_partitions
from msgtx.types import Finding, Level
from msgtx.units import counted

SWEEP = "`msgtx sweep`, regularly, or any member of the group that lives: its heartbeat removes them"
DIVIDE = "see whether its members poll, and what they log; a new member divides, too"
STALLED = "see what that member logs: it waits for a record that fails, or for a table, a right or a service; {}"


def neglected(look: Look) -> Iterator[Finding]:
    """Find groups whose rebalance is overdue, and dead members that still own partitions."""
    found, total = neglected_groups(look.connection, most=look.most)
    for one in found:
        if one.dead:
            yield _dead(one)
        if one.stale_since is not None:
            yield _stale(one)
    yield from more_of(total, found, "groups", "groups are neglected")


def stalled(look: Look) -> Iterator[Finding]:
    """Find partitions in which a group's offset has not moved for long, although a living member reads them."""
    silence_ms = round(look.limits.stalled_seconds * 1_000)
    found, total = stalled_partitions(look.connection, silence_ms=silence_ms, most=look.most)
    yield from map(_stalled, found)
    yield from more_of(total, found, "groups", "partitions stand still")


def _stalled(one: Stalled) -> Finding:
    age = since(one.since, one.checked_at) or 0.0
    text = (
        f"{one.partition} stands still at offset {one.committed_offset} for {span(age)}, {counted(one.records, 'record')}"
        f" from the end; {member_of(one)} reads it"
    )
    find = f"`msgtx find {one.topic} --offset {one.partition_index}:{one.committed_offset}`"
    return Finding(Level.WARNING, f"group {one.group_name}", text, STALLED.format(find), _data(one, age))


def _dead(one: Neglected) -> Finding:
    age = abs(since(one.heard_of_at, one.checked_at) or 0.0)
    partitions, members = counted(one.partitions or 0, "partition"), counted(one.dead, "member")
    text = f"nobody reads {partitions} of {members} last heard of {span(age)} ago"
    return Finding(Level.PROBLEM, f"group {one.group_name}", text, SWEEP, _data(one, age))


def _stale(one: Neglected) -> Finding:
    age = since(one.stale_since, one.checked_at) or 0.0
    text = (
        f"its partitions are divided among other members or topics than there are now, for {span(age)};"
        f" {one.members} members live, and none of them has divided them anew"
    )
    return Finding(Level.WARNING, f"group {one.group_name}", text, DIVIDE, _data(one, age))


def _data(one: Neglected | Stalled, age: float) -> dict[str, object]:
    told = data_of(one, age_seconds=age)
    return {"name": told.pop("group_name"), **told}
