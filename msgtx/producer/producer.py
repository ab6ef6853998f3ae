"""The producer: batches, sequences and transactions as users see them."""

import contextlib
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Self

import sqlalchemy

from msgtx import errors
from msgtx.config import ProducerConfig
from msgtx.database.connection import until
from msgtx.database.pool import Engine
from msgtx.errors import DatabaseUnavailable, IllegalState, MsgtxError, OutcomeUnknown
from msgtx.producer.batcher import Serializer, Topics
from msgtx.producer.batches import BatchFuture, PendingBatch, RecordFuture
from msgtx.producer.idempotent import FAILED, IdempotentProducer
from msgtx.producer.sender import Wake
from msgtx.rules.transaction import Call, ClientState, client_move
from msgtx.session.enlistment import Decision, Enlistment, UserSession, Writing, enlist
from msgtx.session.offsets import Offsets, OffsetSource, as_offset, positions_of
from msgtx.store.append import PARTITIONS_AT_ONCE, Appended, append_and_decide
from msgtx.store.decide import Decided, decide
from msgtx.store.groups import NO_OFFSETS, OffsetColumns, OffsetRows, columns_of, offset_rows
from msgtx.store.seal import Kind, Sealed, Sealing, seal, undecided_prepared
from msgtx.store.transactions import end_transaction, transaction_outcome
from msgtx.types import (
    GroupMetadata,
    Outcome,
    PreparedTransaction,
    RecordMetadata,
    TopicPartition,
    TransactionId,
)

log = logging.getLogger("msgtx.producer")
FUSED_BYTES: Final = 1024 * 1024  # a transaction up to this size goes out as one call


class Transaction:
    """The open transaction of a producer, as `begin_transaction` and `with producer.transaction()` hand it out."""

    __slots__ = ("_producer", "id")

    def __init__(self, producer: "Producer", transaction_id: TransactionId) -> None:
        self._producer = producer
        self.id = transaction_id

    def send_offsets(self, offsets: OffsetSource | Offsets, group_metadata: GroupMetadata | str | None = None) -> None:
        """Commit consumer offsets with this transaction; see `Producer.send_offsets_to_transaction`."""
        self._producer.send_offsets_to_transaction(offsets, group_metadata)

    def prepare(self, timeout: float | None = None) -> PreparedTransaction:
        """Prepare for an outside decision: see `Producer.prepare_transaction`."""
        return self._producer.prepare_transaction(timeout)


class _SessionEnd:
    """A transaction that a user's session ends; whoever hears of it may be in another thread than the producer."""

    def __init__(self, producer: "Producer", transaction_id: TransactionId) -> None:
        self.transaction_id = transaction_id
        self.is_lost = False
        self.sealed = False
        self._producer = producer

    def lost(self) -> None:
        """Hear that the session was rolled back: abort at once what is sealed, so that it holds no reader up."""
        self.is_lost = True
        if self.sealed:
            with contextlib.suppress(MsgtxError):
                self._producer.resolve(self.transaction_id)


class Producer(IdempotentProducer):
    """Sends records: idempotent by default, transactional with a `transactional_id`.

    May be shared by threads (a transaction belongs to one at a time); does not survive `fork`. Made by `client.producer()`.
    """

    def __init__(
        self,
        engine: Engine,
        config: ProducerConfig,
        *,
        topics: Topics,
        wake: Wake,
        decided: Callable[[], None],
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
    ) -> None:
        super().__init__(
            engine, config, topics=topics, wake=wake, key_serializer=key_serializer, value_serializer=value_serializer
        )
        self._decided = decided
        self._open: Transaction | None = None
        self._next_number = 0
        self._last_id: TransactionId | None = None
        self._offsets: OffsetRows = {}
        self._fused: list[PendingBatch] | None = None  # batches of a fused call whose answer is not known
        self._handed_decision = False
        # In which session a sealed transaction ends.
        self._rides: tuple[weakref.ref[sqlalchemy.Connection], Enlistment, _SessionEnd] | None = None
        self._ending = threading.Lock()

    # ── transactions ──

    def init_transactions(self, timeout: float | None = None, *, keep_prepared: bool = False) -> None:
        """Take over the transactional id: older producers are fenced, what they left open is aborted (I7).

        `keep_prepared`: what is prepared for an outside decision stays so, `prepared_transaction` names it, and it is
        completed before another transaction begins (KIP-939).
        """
        self._require_transactional(Call.INIT)
        with self._sole_ending(Call.INIT):
            target = client_move(self._state, Call.INIT)
            deadline = self._deadline(timeout)
            self._sender.producer = self._retried(
                lambda: self._initialize(self.config.transactional_id, keep_prepared=keep_prepared),
                deadline,
                DatabaseUnavailable,
            )
            self._next_number = 0
            self._enter(target)
            kept = self._retried(self._kept, deadline, DatabaseUnavailable) if keep_prepared else None
            if kept is not None:
                self._last_id = kept
                self._sender.handed.clear()
                self._handed_decision = True
                self._enter(ClientState.PREPARED)

    def _kept(self) -> TransactionId | None:
        assert self._sender.producer is not None
        with self._engine.connection() as connection:
            return undecided_prepared(connection, self._sender.producer.producer_id)

    def begin_transaction(self, timeout_ms: int | None = None) -> Transaction:
        """Begin a transaction, locally: it opens in the database with its first batch. Returns it."""
        self._require_transactional(Call.BEGIN)
        if timeout_ms is not None and timeout_ms <= 0:
            raise errors.InvalidTransactionTimeout(f"timeout_ms must be above 0, not {timeout_ms}")
        self.settle()
        with self._lock:
            if self._state is ClientState.FATAL_ERROR and self._error is not None:
                raise self._error
            self._enter(client_move(self._state, Call.BEGIN))
            assert self._sender.producer is not None
            self._number = self._next_number
            self._last_id = TransactionId(*self._sender.producer, self._number)
            self._sender.transaction_timeout_ms = timeout_ms
            self._sender.handed.clear()
            self._offsets.clear()
            self._fused = None
            self._handed_decision = False
            self._open = Transaction(self, self._last_id)
            return self._open

    def send_offsets_to_transaction(
        self,
        offsets: OffsetSource | Offsets,
        group_metadata: GroupMetadata | str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Commit consumer offsets with this transaction (I10). The offset is the next one to read; later replaces earlier.

        `offsets`: a consumer (its positions), or a map with a group. Source: semantics 7.
        """
        del timeout  # nothing is awaited: the offsets travel with the decision, which checks them
        self._require_transactional(Call.SEND_OFFSETS)
        positions, group = positions_of(offsets, group_metadata)
        with self._lock:
            if not self._may_send:
                self._refuse(Call.SEND_OFFSETS)
            try:
                kept = {self._partition_id(tp): as_offset(tp, at) for tp, at in positions.items()}
            except MsgtxError as error:
                if not isinstance(error, IllegalState):
                    self._fail(error)
                raise
            self._offsets |= offset_rows(group, kept)

    def _partition_id(self, topic_partition: TopicPartition) -> int:
        topic = self._topics(topic_partition[0], False)
        if topic is None or not 0 <= topic_partition[1] < len(topic.partition_ids):
            raise errors.UnknownTopicOrPartition(f"there is no partition {topic_partition[0]}-{topic_partition[1]}")
        return topic.partition_ids[topic_partition[1]]

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Commit: when this returns, all of it is durable and readable; when it raises an abortable error, none of it is.

        Raise the error of a send that failed, `TransactionAborted`, `ProducerFenced`; `OutcomeUnknown` when time is over
        (call it again, or ask `client.transaction_outcome`). Idempotent. Source: semantics 4.
        """
        self._require_transactional(Call.COMMIT)
        with self._sole_ending(Call.COMMIT):
            with self._lock:
                if self._error is not None and self._state in FAILED:
                    raise self._error
                self._enter(client_move(self._state, Call.COMMIT))
            self._commit(self._deadline(timeout))
            self._ended()

    def _commit(self, deadline: float) -> None:
        assert self._last_id is not None
        with self._lock:
            if self._fused is None and not self._handed_decision:
                self._fused = self._take_whole()
        offsets = columns_of(self._offsets)
        if self._fused:
            self._commit_at_once(self._fused, offsets, deadline)
            return
        self._flush_transaction(deadline)
        if not self._sender.handed and not self._offsets and not self._handed_decision:
            return
        self._handed_decision = True
        answer = self._decide("COMMIT", offsets, deadline)
        if answer.error is not None:
            raise self._refused(answer.error)

    def _take_whole(self) -> list[PendingBatch] | None:
        """Take the transaction out of the lanes if nothing of it was sent and it fits into one call."""
        accumulator = self._accumulator
        if self._sender.handed:
            return None
        lanes = [lane for lane in accumulator.lanes.values() if lane.open or lane.ready]
        total = sum(batch.size for lane in lanes for batch in (*lane.ready, *([lane.open] if lane.open else [])))
        if (
            not 0 < len(lanes) <= PARTITIONS_AT_ONCE
            or total > FUSED_BYTES
            or any(len(lane.ready) + (lane.open is not None) > 1 for lane in lanes)
        ):
            return None
        accumulator.close_all()
        batches = accumulator.take_ready()
        batches.sort(key=lambda batch: accumulator.lanes[batch.topic_partition].partition_id)
        for batch in batches:
            self._sender.number(accumulator.lanes[batch.topic_partition], batch)
        return batches

    def _commit_at_once(self, batches: list[PendingBatch], offsets: OffsetColumns, deadline: float) -> None:
        assert self._last_id is not None
        transaction_id = self._last_id
        lanes = self._accumulator.lanes
        columns = [batch.columns(lanes[batch.topic_partition].partition_id, transaction_id[:2]) for batch in batches]

        def attempt() -> list[Appended]:
            with self._engine.connection() as connection:
                answers = append_and_decide(connection, transaction_id, columns, offsets=offsets, wake=False)
            if (refused := _refusal(answers)) is not None and refused.retriable:
                raise refused
            self._wake.tell([column.partition_id for column in columns])
            return answers

        answers = self._retried(attempt, deadline, OutcomeUnknown)
        if (refused := _refusal(answers)) is not None:
            if isinstance(refused, errors.UnknownTopicOrPartition):
                for name in {batch.topic_partition.topic for batch in batches}:
                    self._refresh(name)  # the next transaction goes to what is there now
            refused = self._refused(refused)
            for batch in batches:
                self._accumulator.finish(batch, error=refused)
            self._fused = None
            raise refused
        for batch, answer in zip(batches, answers, strict=True):
            self._accumulator.stored(lanes[batch.topic_partition], batch, answer)

    def _flush_transaction(self, deadline: float) -> None:
        accumulator = self._accumulator
        with accumulator.settled:
            accumulator.close_all()
            accumulator.work.notify_all()
            done = accumulator.settled.wait_for(
                lambda: accumulator.unfinished == 0 or self._state in FAILED, max(0.0, deadline - time.monotonic())
            )
            if self._state in FAILED and self._error is not None:
                raise self._error
            if not done:
                raise OutcomeUnknown(f"transaction {self._last_id} is not decided yet: its records wait for the database")

    def _decide(self, outcome: Any, offsets: OffsetColumns, deadline: float) -> Decided:
        assert self._last_id is not None
        transaction_id = self._last_id
        tails = dict(self._sender.handed.values())

        def attempt() -> Decided:
            with self._engine.connection() as connection:
                answer = decide(connection, transaction_id, outcome, tails=tails, offsets=offsets, wake=False)
            if answer.error is not None and answer.error.retriable:
                raise answer.error
            self._wake.tell(list(tails))
            return answer

        return self._retried(attempt, deadline, OutcomeUnknown)

    # ── transactions that somebody else decides ──

    def prepare_transaction(self, timeout: float | None = None) -> PreparedTransaction:
        """Prepare: all of it is durable, and waits for an outside decision, for ever. Returns the token that decides it.

        `client.complete(token, commit=…)` in any process, or `commit_transaction` and `abort_transaction` of this producer.
        Until then nobody reads past it. May be called again when it raised `OutcomeUnknown`. Raise what a commit raises.
        Source: architecture 5; KIP-939.
        """
        self._require_transactional(Call.PREPARE)
        if self._state is not ClientState.PREPARED:
            self._seal("external", Call.PREPARE, self._deadline(timeout))
        assert self.prepared_transaction is not None
        return self.prepared_transaction

    @property
    def prepared_transaction(self) -> PreparedTransaction | None:
        """The token of the transaction that is prepared and not known to be decided."""
        if self._state is not ClientState.PREPARED or self._last_id is None:
            return None
        return PreparedTransaction(self._last_id, str(self._engine.incarnation))

    def _seal(self, kind: Kind, call: Call, deadline: float) -> Sealed | None:
        """Seal the transaction. Returns None if nothing was sent, and there is nothing to decide."""
        with self._sole_ending(call):
            with self._lock:
                if self._error is not None and self._state in FAILED:
                    raise self._error
                self._enter(client_move(self._state, call))
            self._flush_transaction(deadline)
            if kind == "session" and not self._sender.handed and not self._offsets:
                self._ended()
                return None
            self._handed_decision = True
            answer = self._retried(lambda: self._sealing(kind), deadline, OutcomeUnknown)
            if answer.error is not None:
                raise self._refused(answer.error)
            with self._lock:
                self._enter(client_move(self._state, Call.SEALED if kind == "session" else Call.PREPARED))
                self._open = None
            return answer.sealed

    def _sealing(self, kind: Kind) -> Sealing:
        assert self._last_id is not None
        with self._engine.connection() as connection:
            answer = seal(
                connection,
                self._last_id,
                kind,
                tails=dict(self._sender.handed.values()),
                offsets=columns_of(self._offsets),
                timeout_ms=self._sender.transaction_timeout_ms,
                client_host=socket.gethostname(),
                client_process=os.getpid(),
            )
        if answer.error is not None and answer.error.retriable:
            raise answer.error
        return answer

    def settle(self) -> None:
        """Learn how a sealed or prepared transaction was decided, so that the next one may begin."""
        if self._state not in {ClientState.SEALED, ClientState.PREPARED}:
            return
        assert self._last_id is not None
        name = self._last_id
        if self._state is ClientState.SEALED:
            assert self._rides is not None
            connection, enlistment, end = self._rides
            if connection() is not None and not enlistment.over and not end.is_lost:
                client_move(self._state, Call.BEGIN)  # the session is still to end
        with self._sole_ending(Call.BEGIN):
            ask = self._outcome if self._state is ClientState.PREPARED else self.resolve
            outcome = self._retried(lambda: ask(name), self._deadline(None), DatabaseUnavailable)
            if outcome is Outcome.OPEN:
                client_move(self._state, Call.BEGIN)
            self._rides = None
            self._ended()

    def _outcome(self, transaction_id: TransactionId) -> Outcome:
        with self._engine.connection() as connection:
            return transaction_outcome(connection, transaction_id).outcome

    def resolve(self, transaction_id: TransactionId) -> Outcome:
        """Return how a transaction ended; one that a session did not commit is aborted now."""
        # A client that is closed has no pool, and gets none again.
        with until(self._deadline(None)):
            lent = contextlib.closing(self._engine.dedicated()) if self.closed else self._engine.connection()
            with lent as connection:
                return end_transaction(connection, transaction_id, "resolve")

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort: what was not sent is dropped, what was sent is never seen. Then the next transaction may begin."""
        self._require_transactional(Call.ABORT)
        with self._sole_ending(Call.ABORT):
            with self._lock:
                if self._state is ClientState.FATAL_ERROR and self._error is not None:
                    raise self._error
                self._enter(client_move(self._state, Call.ABORT))
                self._accumulator.drop_unsent(self._dropped_error())
            deadline = self._deadline(timeout)
            try:
                with self._sender.paused(deadline):
                    self._accumulator.drop_unsent(self._dropped_error())
                    self._abort(deadline)
            except TimeoutError as error:
                raise OutcomeUnknown(f"transaction {self._last_id} is not aborted yet: {error}") from error
            self._ended()
            if self._state is ClientState.FATAL_ERROR and self._error is not None:
                raise self._error

    def _dropped_error(self) -> errors.TransactionAborted:
        return errors.TransactionAborted(f"transaction {self._last_id} was aborted by its producer before this was sent")

    def _abort(self, deadline: float) -> None:
        handed = dict(self._sender.handed)
        if not handed and not self._handed_decision:
            return
        self._handed_decision = True
        answer = self._decide("ABORT", NO_OFFSETS, deadline)
        if answer.error is not None:
            raise self._refused(answer.error)
        with self._lock:
            for topic_partition, (partition_id, _) in handed.items():
                last = answer.last_sequences.get(partition_id)
                self._sender.next_sequences[topic_partition] = 0 if last is None else last + 1
                self._accumulator.lanes[topic_partition].broken = False

    def _ended(self) -> None:
        with self._lock:
            # A number is used up only when something of its transaction was handed to the connection.
            if self._sender.handed or self._handed_decision:
                # One that was kept from before is of an older epoch.
                self._next_number += self._last_id is not None and self._last_id[:2] == self._sender.producer
                self._decided()
            self._number = None
            self._open = None
            self._fused = None
            self._offsets.clear()
            # A batch in flight may have told meanwhile that the producer is fenced: that stays, and each later call says so.
            if self._state is not ClientState.FATAL_ERROR:
                self._error = None
                self._enter(client_move(self._state, Call.ENDED))

    @contextlib.contextmanager
    def transaction(self, timeout_ms: int | None = None, session: UserSession | None = None) -> Iterator[Transaction]:
        """Run a transaction: commit at the end of the block, abort if it raises; the original exception goes on.

        `session`: SQLAlchemy's `Session`, `scoped_session` or `Connection` on the same database. The end of the block seals
        the transaction, and the session's next commit decides it with the session's rows (I6); its rollback aborts it, and
        after `timeout_ms` it is aborted. Until the session has ended no other transaction begins. Raise `ConfigError` for
        a session elsewhere, in autocommit or two phases.
        """
        rides = None if session is None else enlist(session, self._engine)
        transaction = self.begin_transaction(timeout_ms)
        end = _SessionEnd(self, transaction.id)
        writing = Writing(end)
        if rides is not None:
            rides[1].add(rides[0], writing)
        try:
            yield transaction
        except BaseException as error:
            writing.open = False
            if self._open is transaction and self._state is not ClientState.FATAL_ERROR:
                try:
                    self.abort_transaction()
                except MsgtxError as failed:
                    error.add_note(f"the abort of transaction {transaction.id} failed, too: {failed}")
            raise
        writing.open = False
        if self._open is not transaction:
            return
        try:
            if rides is None:
                self.commit_transaction()
            else:
                self._end_in(rides, end)
        except MsgtxError as error:
            if self._state is ClientState.ABORTABLE_ERROR:
                try:
                    self.abort_transaction()
                except MsgtxError as failed:
                    error.add_note(f"the abort of transaction {transaction.id} failed, too: {failed}")
            raise

    def _end_in(self, rides: tuple[sqlalchemy.Connection, Enlistment], end: _SessionEnd) -> None:
        """Seal the transaction and leave its decision to the session."""
        connection, enlistment = rides
        if end.is_lost or enlistment.over:
            with self._lock:
                self._fail(errors.TransactionAborted(f"the session was rolled back before {end.transaction_id} was sealed"))
                assert self._error is not None
                raise self._error
        sealed = self._seal("session", Call.SEAL, self._deadline(None))
        if sealed is not None:
            end.sealed = True
            self._rides = (weakref.ref(connection), enlistment, end)
            enlistment.add(connection, Decision(sealed, end))

    @property
    def transaction_id(self) -> TransactionId | None:
        """The name of the current transaction, or of the last one."""
        return self._last_id

    # ── plumbing ──

    def _require_transactional(self, call: Call) -> None:
        if not self._transactional:
            raise IllegalState(f"{call} needs a producer with a transactional_id")

    @contextlib.contextmanager
    def _sole_ending(self, call: Call) -> Iterator[None]:
        if not self._ending.acquire(blocking=False):
            raise IllegalState(f"{call} while another thread ends the transaction: wait for it")
        try:
            yield
        finally:
            self._ending.release()

    def close(self, timeout: float | None = None) -> None:
        """Flush, abort an open transaction, and end. Never raises on a fenced producer; may be called twice."""
        if self._state in {ClientState.IN_TRANSACTION, ClientState.ABORTABLE_ERROR} and os.getpid() == self._pid:
            try:
                self.abort_transaction(timeout)
            except (MsgtxError, TimeoutError) as error:
                log.warning("closing: transaction %s could not be aborted: %s", self._last_id, error)
        super().close(timeout)

    def __enter__(self) -> Self:
        """Initialize transactions, if there is a transactional id."""
        if self._transactional:
            self.init_transactions()
        return self


def _refusal(answers: Sequence[Appended]) -> MsgtxError | None:
    return next((answer.error for answer in answers if answer.error is not None), None)


__all__ = ["BatchFuture", "Producer", "RecordFuture", "RecordMetadata", "Transaction"]
