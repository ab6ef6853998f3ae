"""Counting records that a reader would be given."""

from collections.abc import Mapping
from typing import Final

from msgtx.database.engine import Function, RawConnection, call
from msgtx.database.wire import Int4Array, Int8Array
from msgtx.types import Isolation

COUNT: Final = Function("count_records", {"partition_ids": "int4[]", "positions": "int8[]", "isolation": "text"})


def count_records(connection: RawConnection, positions: Mapping[int, int], isolation: Isolation) -> dict[int, int]:
    """Return, by partition id, how many records lie at or after a position, as `isolation` sees them."""
    rows = call(connection, COUNT, Int4Array(positions), Int8Array(positions.values()), isolation.value)
    return {partition_id: count for partition_id, count in rows}  # noqa: C416 - typed, which dict(rows) is not
