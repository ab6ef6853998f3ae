"""Compaction: which records of a log's row stay (internals: cleaning#compaction)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeyedBatch:
    """The part of a row that compaction reads: its keys and the places of their records, not the values.

    `tombstones`: indexes of the records without a value. `tombstones_expired`: they have been there for
    `delete_retention_ms` since a pass saw them.
    """

    base_offset: int
    record_count: int
    is_committed: bool
    keys: Sequence[bytes | None] | None
    offset_deltas: Sequence[int] | None
    tombstones: Sequence[int] = ()
    tombstones_expired: bool = False

    @property
    def offsets(self) -> Sequence[int]:
        """The offsets of the records."""
        if self.offset_deltas is None:
            return range(self.base_offset, self.base_offset + self.record_count)
        return [self.base_offset + delta for delta in self.offset_deltas]


def newest_of(batch: KeyedBatch) -> dict[bytes, int]:
    """Return the last offset of each key of a row; none of an aborted one, which supersedes nothing (P3)."""
    if not batch.is_committed or batch.keys is None:
        return {}
    return {key: offset for key, offset in zip(batch.keys, batch.offsets, strict=True) if key is not None}


def survivors(newest: Mapping[bytes, int], batch: KeyedBatch) -> list[int]:
    """Return the indexes of the records that stay, ascending.

    `newest`: the last committed offset of keys, of a part of the log; a key that is not there has no newer record in that
    part. Aborted records go. A record without key has no newer one, and stays. An expired tombstone goes: the caller has
    removed all older records of its key, in all rows in front of it.
    """
    if not batch.is_committed:
        return []
    if batch.keys is None:
        return list(range(batch.record_count))
    stay = [
        index
        for index, (key, offset) in enumerate(zip(batch.keys, batch.offsets, strict=True))
        if key is None or newest.get(key, -1) <= offset
    ]
    if not batch.tombstones_expired:
        return stay
    gone = {index for index in batch.tombstones if batch.keys[index] is not None}
    return [index for index in stay if index not in gone]
