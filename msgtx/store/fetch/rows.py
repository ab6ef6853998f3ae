"""The rows of a log, without their records."""

from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.generated import calls

# A row of the log with the outcome of its transaction, and the ends of the log.
DescribedRow = calls.DescribeRowsRow


def describe_rows(
    connection: RawConnection, partition_id: int, *, from_offset: int | None, before_offset: int | None, most: int
) -> list[DescribedRow]:
    """Return rows in order: the last ones in front of an offset (None: of the log), or the first ones from an offset on.

    One row with nulls if the log has none there; nothing if there is no such partition. Raise `AuthorizationFailed`.
    """
    return call(connection, calls.DESCRIBE_ROWS, partition_id, from_offset, before_offset, most)
