"""Producer ids and their epochs."""

from typing import Final

from msgtx.database.engine import Function, RawConnection, call
from msgtx.errors import TransactionalIdNotFound
from msgtx.types import ProducerId

INIT: Final = Function(
    "init_producer_id",
    {"in_transactional_id": "text", "in_timeout_ms": "int4", "expected_producer_id": "int8", "expected_epoch": "int4"},
)
LOCK: Final = Function("lock_producer", {"producer_id": "int8"})
FENCE: Final = Function("fence_producer", {"in_transactional_id": "text"})


def init_producer_id(
    connection: RawConnection, transactional_id: str | None, *, timeout_ms: int, expected: ProducerId | None = None
) -> ProducerId:
    """Return a producer id and epoch; an older epoch of the id can do nothing after this (I7). Semantics 2."""
    pair = (None, None) if expected is None else expected
    ((producer_id, epoch),) = call(connection, INIT, transactional_id, timeout_ms, *pair)
    return ProducerId(producer_id, epoch)


def fence_producer(connection: RawConnection, transactional_id: str) -> ProducerId:
    """Raise the epoch of a transactional id and abort what it has open. Returns the new pair."""
    ((producer_id, epoch),) = call(connection, FENCE, transactional_id)
    if producer_id is None:
        raise TransactionalIdNotFound(f"there is no transactional id {transactional_id!r}")
    return ProducerId(producer_id, epoch)


def lock_producer(connection: RawConnection, producer_id: int) -> None:
    """Take a producer's exclusive lock for the SQL transaction: first in the order of locks."""
    call(connection, LOCK, producer_id)
