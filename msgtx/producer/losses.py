"""What a producer knows of acknowledged records and commits that a failover has lost (decisions 0168, 0176)."""

import time
from typing import Final

from msgtx import errors
from msgtx.database.connection import Connection
from msgtx.database.pool import Engine
from msgtx.errors import MsgtxError
from msgtx.producer.batches import Accumulator, Lane, PendingBatch
from msgtx.producer.state import ProducerStatus
from msgtx.store.transactions.producers import kept_sequences
from msgtx.store.transactions.transactions import transaction_outcome
from msgtx.types import Outcome, ProducerId

# An acknowledgement that is as old proves no loss: far below producer_id_expiration_ms, behind which sequences are removed.
LATELY_SECONDS: Final = 3_600.0


class LossDetector:
    """Looks in a new primary for the last acknowledgements of the old one."""

    def __init__(self, engine: Engine, accumulator: Accumulator, state: ProducerStatus) -> None:
        self._engine = engine
        self._accumulator = accumulator
        self._state = state
        self.due = False  # another primary answers than the one that has acknowledged

    def server_moved(self) -> None:
        """Have the sender look before it sends anything else."""
        with self._accumulator.lock:
            self.due = True
            self._accumulator.work.notify_all()

    def look(self, connection: Connection) -> None:
        """Look in the primary that answers now for the last acknowledgements of another one.

        Raise `RecordsLost`, `TransactionsLost`; `DatabaseUnavailable` if the connection is one of the old primary.
        """
        if not self.due:
            return
        self.due = False
        try:
            lost = self._found_lost(connection)
        except MsgtxError:
            self.due = True
            raise
        if lost is not None:
            raise lost

    def _found_lost(self, connection: Connection) -> MsgtxError | None:
        producer, server = self._state.producer, self._engine.server
        if producer is None:
            return None
        if not self._engine.is_current(connection):  # another thread has found the new primary since the check-out
            raise errors.DatabaseUnavailable("the connection leads to the old primary")
        return self._lost_records(connection, producer, server) or self._lost_commit(connection, server)

    def _lost_records(
        self, connection: Connection, producer: ProducerId, server: tuple[int, int] | None
    ) -> MsgtxError | None:
        with self._accumulator.lock:
            lanes = [lane for lane in self._accumulator.lanes.values() if _is_of_another(lane, server)]
        if self._state.transactional or not lanes:
            return None
        try:
            found = kept_sequences(connection, producer, [lane.partition_id for lane in lanes])
        except errors.AuthorizationFailed:  # its right was revoked: there is no proof
            return None
        gaps = [lane for lane, last in zip(lanes, found, strict=True) if last is not None and last + 1 < lane.acknowledged]
        return records_lost(gaps[0], "the log ends before them") if gaps else None

    def _lost_commit(self, connection: Connection, server: tuple[int, int] | None) -> MsgtxError | None:
        committed = self._state.committed
        if committed is None:
            return None
        transaction_id, at, by = committed
        if by in {None, server} or time.monotonic() - at >= LATELY_SECONDS:
            return None
        outcome = transaction_outcome(connection, transaction_id).outcome
        if outcome is Outcome.COMMITTED:
            return None
        return errors.TransactionsLost(
            f"transaction {transaction_id} was committed, and the database says {outcome}: a failover has lost it"
        )


def is_lost(lane: Lane, batch: PendingBatch, error: MsgtxError, server: tuple[int, int] | None) -> bool:
    """Return whether a refused batch follows the last acknowledged one, which another server has acknowledged lately.

    After a long idle time the same is no loss: then the producer's sequences, or its id, were removed (I13).
    """
    out_of_place = isinstance(error, errors.OutOfOrderSequence | errors.InvalidProducerIdMapping)
    follows = batch.transaction_number is None and batch.base_sequence == lane.acknowledged
    return out_of_place and follows and _is_of_another(lane, server)


def records_lost(lane: Lane, proof: str) -> errors.RecordsLost:
    """Return the error for acknowledged records of a partition that are lost."""
    return errors.RecordsLost(
        f"{lane.topic_partition}: a failover has lost acknowledged records of this producer, up to sequence"
        f" {lane.acknowledged - 1}; {proof}"
    )


def _is_of_another(lane: Lane, server: tuple[int, int] | None) -> bool:
    """Return whether another server has acknowledged the last batch of a lane, and lately."""
    has_moved = lane.server is not None and server is not None and lane.server != server
    return has_moved and lane.acknowledged > 0 and time.monotonic() - lane.acknowledged_at < LATELY_SECONDS
