"""Producer ids and their epochs."""

from collections.abc import Iterable
from typing import Final

from msgtx.arguments import check_name
from msgtx.database.calls import Function, call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int8Array
from msgtx.errors import TransactionalIdNotFound
from msgtx.store.append import milliseconds
from msgtx.types import ProducerId, ProducerState

INIT: Final = Function(
    "init_producer_id",
    {"in_transactional_id": "text", "in_timeout_ms": "int4", "expected_producer_id": "int8", "expected_epoch": "int4"},
)
INIT_AND_KEEP: Final = Function(
    "init_producer_id", {"in_transactional_id": "text", "in_timeout_ms": "int4", "in_keep_prepared": "bool"}
)
LOCK: Final = Function("lock_producers", {"producer_ids": "int8[]"})
FENCE: Final = Function("fence_producer", {"in_transactional_id": "text"})
DESCRIBE: Final = Function("describe_producers", {"in_partition_id": "int4", "after_producer_id": "int8", "most": "int4"})
DESCRIBED_AT_ONCE: Final = 1_000  # producers of a partition that one call describes


def init_producer_id(
    connection: RawConnection,
    transactional_id: str | None,
    *,
    timeout_ms: int,
    expected: ProducerId | None = None,
    keep_prepared: bool = False,
) -> ProducerId:
    """Return a producer id and epoch; an older epoch of the id can do nothing after this (I7; internals: producers).

    `keep_prepared`: what is prepared for an outside decision is not aborted. Raise `InvalidRequest` for what is no name.
    """
    if transactional_id is not None:
        check_name("a transactional id", transactional_id)
    if keep_prepared:
        ((producer_id, epoch),) = call(connection, INIT_AND_KEEP, transactional_id, timeout_ms, True)
        return ProducerId(producer_id, epoch)
    pair = (None, None) if expected is None else expected
    ((producer_id, epoch),) = call(connection, INIT, transactional_id, timeout_ms, *pair)
    return ProducerId(producer_id, epoch)


def fence_producer(connection: RawConnection, transactional_id: str) -> ProducerId:
    """Raise the epoch of a transactional id and abort what it has open. Returns the new pair."""
    ((producer_id, epoch),) = call(connection, FENCE, transactional_id)
    if producer_id is None:
        raise TransactionalIdNotFound(
            f"there is no transactional id {transactional_id!r}", transactional_id=transactional_id
        )
    return ProducerId(producer_id, epoch)


def lock_producers(connection: RawConnection, producer_ids: Iterable[int]) -> None:
    """Take the producers' exclusive locks for the SQL transaction, in their order: first in the order of locks."""
    call(connection, LOCK, Int8Array(producer_ids))


def describe_producers(connection: RawConnection, partition_id: int) -> list[ProducerState]:
    """Return the producers that a partition knows, by id."""
    found: list[ProducerState] = []
    after = -1
    while True:
        rows = call(connection, DESCRIBE, partition_id, after, DESCRIBED_AT_ONCE)
        for producer_id, epoch, sequence, time, coordinator_epoch, start in rows:
            found.append(ProducerState(producer_id, epoch, sequence, milliseconds(time), coordinator_epoch, start))
        if len(rows) < DESCRIBED_AT_ONCE:
            return found
        after = found[-1].producer_id
