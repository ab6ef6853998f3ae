"""Consumer groups' offsets: committed alone, or with a transaction's decision."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgtx.database.engine import Function, RawConnection, call
from msgtx.database.wire import Int4Array, Int8Array, TextArray
from msgtx.errors import BY_NAME
from msgtx.types import GroupMetadata, OffsetAndMetadata

OFFSET_ARGUMENTS: Final = {
    "group_names": "text[]",
    "offset_partitions": "int4[]",
    "offsets": "int8[]",
    "metadata": "text[]",
    "member_ids": "text[]",
    "generations": "int4[]",
}
COMMIT_OFFSETS: Final = Function(
    "commit_offsets",
    {("partition_ids" if name == "offset_partitions" else name): kind for name, kind in OFFSET_ARGUMENTS.items()},
)
COMMITTED_OFFSETS: Final = Function("committed_offsets", {"group_name": "text", "partition_ids": "int4[]"})

GroupOffsets = Mapping[GroupMetadata, Mapping[int, OffsetAndMetadata]]


@dataclass(frozen=True, slots=True)
class OffsetColumns:
    """Offsets of groups as columns, one element per group and partition."""

    groups: tuple[str, ...] = ()
    partition_ids: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    metadata: tuple[str, ...] = ()
    member_ids: tuple[str | None, ...] = ()
    generations: tuple[int | None, ...] = ()

    def arguments(self) -> tuple[object, ...]:
        """Return the six array parameters of the database's functions."""
        return (
            TextArray(self.groups),
            Int4Array(self.partition_ids),
            Int8Array(self.offsets),
            TextArray(self.metadata),
            TextArray(self.member_ids),
            Int4Array(self.generations),
        )


NO_OFFSETS: Final = OffsetColumns()


def offset_columns(offsets: GroupOffsets) -> OffsetColumns:
    """Return offsets per group and partition id as columns."""
    rows = [
        (group.group, partition, at.offset, at.metadata, group.member_id, group.generation if group.member_id else None)
        for group, positions in offsets.items()
        for partition, at in positions.items()
    ]
    return OffsetColumns(*zip(*rows, strict=True)) if rows else NO_OFFSETS


def commit_offsets(connection: RawConnection, offsets: GroupOffsets) -> None:
    """Commit offsets outside any transaction, flushed. Raise the group's refusal; nothing is stored then (I11)."""
    columns = offset_columns(offsets)
    if not columns.groups:
        return
    ((name, detail),) = call(connection, COMMIT_OFFSETS, *columns.arguments())
    if name is not None:
        raise BY_NAME[name](detail)


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
    rows: list[tuple[Any, ...]] = call(connection, COMMITTED_OFFSETS, group, asked)
    return {
        partition: CommittedOffset(None if offset is None else OffsetAndMetadata(offset, metadata), pending)
        for partition, offset, metadata, pending in rows
    }
