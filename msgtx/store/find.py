"""The search for records, the last stored ones first, in steps of bounded cost; the progress of each group."""

from collections.abc import Sequence
from typing import Final

from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.generated import calls

BEHIND_ALL: Final = (1 << 63) - 1  # behind the last record of each log

# A record that fits: its place, its contents, and the outcome of its transaction.
FoundRow = calls.FindRecordsRow


# What a group has done with a record.
GroupRow = calls.GroupsOfRecordRow


# A dead letter that names a record.
LetterRow = calls.LettersOfRecordRow


# A partition that was written to.
RecentPartition = calls.RecentPartitionsRow


# Something with a name: its kind, and a few words about it.
FoundName = calls.FindNamesRow


def find_records(
    connection: RawConnection,
    partition_id: int,
    before: int,
    *,
    since_ms: int | None,
    offset: int | None,
    key: bytes | None,
    json: str | None,
    header: str | None,
    words: str | None,
    most: int,
) -> tuple[list[FoundRow], int | None]:
    """Return the records in front of `before` that fit, of one step, and where the next step begins; None: it was the last.

    Raise `InvalidRequest`, `AuthorizationFailed`.
    """
    rows = call(connection, calls.FIND_RECORDS, partition_id, before, since_ms, offset, key, json, header, most, words)
    return [row for row in rows if row.record_offset is not None], rows[0].next_before


def groups_of_record(connection: RawConnection, partition_id: int, offset: int) -> Sequence[GroupRow]:
    """Return the progress of each group with a record, by the groups' names."""
    return call(connection, calls.GROUPS_OF_RECORD, partition_id, offset)


def letters_of_record(connection: RawConnection, row: FoundRow, *, topic: str, partition: int) -> Sequence[LetterRow]:
    """Return the dead letters that name a record."""
    return call(connection, calls.LETTERS_OF_RECORD, topic, partition, row.record_offset, row.stored_at)


def recent_partitions(connection: RawConnection, since_ms: int | None, most: int) -> Sequence[RecentPartition]:
    """Return the partitions that were written to within this time (None: ever) and may be consumed, the last one first.

    Raise `AuthorizationFailed` for a role that may consume nothing.
    """
    return call(connection, calls.RECENT_PARTITIONS, since_ms, most)


def find_names(connection: RawConnection, text: str, most: int) -> Sequence[FoundName]:
    """Return the named things whose name is this text, then those whose name begins with it; of each kind at most `most`."""
    return call(connection, calls.FIND_NAMES, text, most)
