"""Consumer groups and their offsets: committed alone, with a transaction's decision, or by an administrator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgtx.arguments import check_name
from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.translation import answered
from msgtx.database.wire import Int4Array, Int8Array, TextArray
from msgtx.generated import calls
from msgtx.types import GroupMetadata, OffsetAndMetadata

GroupOffsets = Mapping[GroupMetadata, Mapping[int, OffsetAndMetadata]]
OffsetRows = dict[tuple[str, int], tuple[str, int, int, str, str | None, int | None, str | None, str | None]]


@dataclass(frozen=True, slots=True)
class OffsetColumns:
    """Offsets of groups as columns, one element per group and partition."""

    groups: tuple[str, ...] = ()
    partition_ids: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    metadata: tuple[str, ...] = ()
    member_ids: tuple[str | None, ...] = ()
    generations: tuple[int | None, ...] = ()
    read_identities: tuple[str | None, ...] = ()
    instance_ids: tuple[str | None, ...] = ()

    def arguments(self) -> tuple[object, ...]:
        """Return the array parameters of the database's functions."""
        return (
            TextArray(self.groups),
            Int4Array(self.partition_ids),
            Int8Array(self.offsets),
            TextArray(self.metadata),
            TextArray(self.member_ids),
            Int4Array(self.generations),
            TextArray(self.read_identities),
            TextArray(self.instance_ids),
        )


NO_OFFSETS: Final = OffsetColumns()


def offset_rows(group: GroupMetadata, positions: Mapping[int, OffsetAndMetadata]) -> OffsetRows:
    """Return offsets of a group by group and partition id, so that a later one can replace an earlier one.

    Raise `InvalidRequest` for a text that is no name.
    """
    check_name("a group", group.group)
    generation = group.generation if group.member_id else None
    return {
        (group.group, partition): (
            group.group,
            partition,
            at.offset,
            at.metadata,
            group.member_id,
            generation,
            group.read_identities.get(partition),
            group.group_instance_id if group.member_id else None,
        )
        for partition, at in positions.items()
    }


def columns_of(rows: OffsetRows) -> OffsetColumns:
    """Return rows as columns."""
    return OffsetColumns(*zip(*rows.values(), strict=True)) if rows else NO_OFFSETS


def offset_columns(offsets: GroupOffsets) -> OffsetColumns:
    """Return offsets per group and partition id as columns."""
    rows: OffsetRows = {}
    for group, positions in offsets.items():
        rows |= offset_rows(group, positions)
    return columns_of(rows)


def commit_offsets(connection: RawConnection, offsets: GroupOffsets) -> None:
    """Commit offsets outside any transaction, flushed. Raise the group's refusal; nothing is stored then (I11)."""
    columns = offset_columns(offsets)
    if not columns.groups:
        return
    ((name, detail),) = call(connection, calls.COMMIT_OFFSETS, *columns.arguments())
    if name is not None:
        raise answered(name, detail)


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's decided offset on a partition (None: none), and whether a newer one waits for its decision."""

    at: OffsetAndMetadata | None
    pending: bool


def committed_offsets(
    connection: RawConnection, group: str, partition_ids: Sequence[int] | None
) -> dict[int, CommittedOffset]:
    """Return the group's offsets by partition id; partitions without one are absent."""
    asked = None if partition_ids is None else Int4Array(partition_ids)
    rows = call(connection, calls.COMMITTED_OFFSETS, group, asked)
    return {
        partition: CommittedOffset(None if offset is None else OffsetAndMetadata(offset, metadata), pending)
        for partition, offset, metadata, pending in rows
    }


# A group as its rows show it; see `list_groups.sql`.
ListedGroup = calls.ListGroupsRow


def list_groups(connection: RawConnection, names: Sequence[str] | None) -> list[ListedGroup]:
    """Return groups by name (None: all), in order of their names; unknown ones are absent."""
    return call(connection, calls.LIST_GROUPS, None if names is None else TextArray(names))


# A group whose members have not rebalanced in time. `members`: its live members.
Neglected = calls.NeglectedGroupsRow


def neglected_groups(connection: RawConnection, *, most: int) -> tuple[list[Neglected], int]:
    """Return such groups, the oldest first, at most `most`; and how many there are."""
    rows = call(connection, calls.NEGLECTED_GROUPS, most)
    return rows, rows[0].found if rows else 0


# A partition whose group stands still, its owner, and since when; `committed_offset`: of the record that it waits for.
Stalled = calls.StalledPartitionsRow


def stalled_partitions(connection: RawConnection, *, silence_ms: int, most: int) -> tuple[list[Stalled], int]:
    """Return partitions at which living members have not moved for so long, as `neglected_groups` does groups."""
    rows = call(connection, calls.STALLED_PARTITIONS, silence_ms, most)
    return rows, rows[0].found if rows else 0


def delete_group(connection: RawConnection, group: str) -> None:
    """Delete a group with its offsets. Raise `GroupNotFound`, `GroupNotEmpty`."""
    ((name, detail),) = call(connection, calls.DELETE_GROUP, group)
    if name is not None:
        raise answered(name, detail, group=group)


def delete_offsets(connection: RawConnection, group: str, partition_ids: Sequence[int]) -> list[int]:
    """Delete a group's offsets, pending ones too. Returns the partitions that had one. All or nothing.

    Raise `GroupNotFound`, `GroupSubscribedToTopic`.
    """
    ((name, detail, removed),) = call(connection, calls.DELETE_OFFSETS, group, Int4Array(partition_ids))
    if name is not None:
        raise answered(name, detail, group=group)
    return list(removed)


def reset_offsets(connection: RawConnection, group: str, offsets: Mapping[int, int]) -> None:
    """Commit offsets by partition id for a group without members. Raise `GroupNotEmpty`, and the errors of a commit."""
    if not offsets:
        return
    ((name, detail),) = call(connection, calls.RESET_OFFSETS, group, Int4Array(offsets), Int8Array(offsets.values()))
    if name is not None:
        raise answered(name, detail, group=group)
