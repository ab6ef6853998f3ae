"""Producer ids and their epochs."""

from collections.abc import Iterable, Sequence
from typing import Final

from msgtx.arguments import check_name
from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int8Array
from msgtx.errors import TransactionalIdNotFound
from msgtx.generated import calls
from msgtx.store.append.append import epoch_ms
from msgtx.types import ProducerId, ProducerState

INIT: Final = calls.INIT_PRODUCER_ID.first(4)
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

    `keep_prepared`: a transaction prepared for an outside decision is not aborted. Raise `InvalidRequest` for a text
    that is no name.
    """
    if transactional_id is not None:
        check_name("a transactional id", transactional_id)
    if keep_prepared:
        ((producer_id, epoch),) = call(connection, calls.INIT_PRODUCER_ID, transactional_id, timeout_ms, None, None, True)
        return ProducerId(producer_id, epoch)
    pair = (None, None) if expected is None else expected
    ((producer_id, epoch),) = call(connection, INIT, transactional_id, timeout_ms, *pair)
    return ProducerId(producer_id, epoch)


def kept_sequences(connection: RawConnection, producer: ProducerId, partition_ids: Sequence[int]) -> list[int | None]:
    """Return the last stored sequence of a producer on each partition; −1: none is stored; None: it is not known."""
    ((found,),) = call(connection, calls.KEPT_SEQUENCES, *producer, [*partition_ids])
    return [*found]


def fence_producer(connection: RawConnection, transactional_id: str) -> ProducerId:
    """Raise the epoch of a transactional id and abort its open transaction. Returns the new pair."""
    ((producer_id, epoch),) = call(connection, calls.FENCE_PRODUCER, transactional_id)
    if producer_id is None:
        raise TransactionalIdNotFound(
            f"there is no transactional id {transactional_id!r}", transactional_id=transactional_id
        )
    return ProducerId(producer_id, epoch)


def lock_producers(connection: RawConnection, producer_ids: Iterable[int]) -> None:
    """Take the producers' exclusive locks for the SQL transaction, in their order: first in the order of locks."""
    call(connection, calls.LOCK_PRODUCERS, Int8Array(producer_ids))


# An epoch of a producer, with what belongs to the producer as a whole.
EpochRow = calls.ProducerEpochsRow

# The last sequence of a producer on a partition.
SequenceRow = calls.ProducerSequencesRow


def producer_epochs(connection: RawConnection, producer_id: int, before: int | None, *, most: int) -> list[EpochRow]:
    """Return the epochs of a producer below `before` (None: all), the newest first; none if it is not known."""
    return call(connection, calls.PRODUCER_EPOCHS, producer_id, before, most)


def producer_sequences(connection: RawConnection, producer_id: int, *, most: int) -> list[SequenceRow]:
    """Return the last sequence of a producer on the partitions of its newest transaction."""
    return call(connection, calls.PRODUCER_SEQUENCES, producer_id, most)


def describe_producers(connection: RawConnection, partition_id: int) -> list[ProducerState]:
    """Return the producers that a partition knows, by id."""
    found: list[ProducerState] = []
    after = -1
    while True:
        rows = call(connection, calls.DESCRIBE_PRODUCERS, partition_id, after, DESCRIBED_AT_ONCE)
        for producer_id, epoch, sequence, time, coordinator_epoch, start in rows:
            found.append(ProducerState(producer_id, epoch, sequence, epoch_ms(time), coordinator_epoch, start))
        if len(rows) < DESCRIBED_AT_ONCE:
            return found
        after = found[-1].producer_id
