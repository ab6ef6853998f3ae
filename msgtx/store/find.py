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
    most: int,
) -> tuple[list[FoundRow], int | None]:
    """Return the records in front of `before` that fit, of one step, and where the next step begins; None: it was the last.

    Raise `InvalidRequest`, `AuthorizationFailed`.
    """
    rows = call(connection, calls.FIND_RECORDS, partition_id, before, since_ms, offset, key, json, header, most)
    return [row for row in rows if row.record_offset is not None], rows[0].next_before


def groups_of_record(connection: RawConnection, partition_id: int, offset: int) -> Sequence[GroupRow]:
    """Return the progress of each group with a record, by the groups' names."""
    return call(connection, calls.GROUPS_OF_RECORD, partition_id, offset)


def letters_of_record(connection: RawConnection, row: FoundRow, *, topic: str, partition: int) -> Sequence[LetterRow]:
    """Return the dead letters that name a record."""
    return call(connection, calls.LETTERS_OF_RECORD, topic, partition, row.record_offset, row.stored_at)
