"""Retention: the log start moves, and the rows in front of it are removed."""

from collections.abc import Mapping
from typing import Final

from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int4Array, Int8Array
from msgtx.generated import calls

LOG_END: Final = -1


def delete_records(connection: RawConnection, befores: Mapping[int, int]) -> dict[int, int]:
    """Move log starts up to these offsets (`LOG_END`), by partition id. Returns the log starts; none moves back.

    Raise `OffsetOutOfRange` beyond a log end, `UnknownTopicOrPartition`; then nothing has changed.
    """
    rows = call(connection, calls.DELETE_RECORDS, Int4Array(befores), Int8Array(befores.values()))
    return {partition_id: start for partition_id, start in rows}  # noqa: C416 - typed, which dict(rows) is not
