"""The producer: batches, sequences and transactions as users see them."""

import contextlib
import functools
import logging
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from msgtx import callbacks, forks, units
from msgtx.closing import Closing
from msgtx.config import ProducerConfig
from msgtx.database.pool import Engine
from msgtx.errors import (
    DeliveryTimeout,
    IllegalState,
    InvalidRequest,
    MsgtxError,
    OffsetMetadataTooLarge,
    WrongType,
)
from msgtx.observer import Ended, Observers
from msgtx.producer.batcher import Batcher, Serializer
from msgtx.producer.batches import Accumulator, BatchFuture, RecordFuture
from msgtx.producer.calls import ProducerCalls
from msgtx.producer.group_commit import GroupCommit
from msgtx.producer.keyed import Deduplicator
from msgtx.producer.routes import Routes
from msgtx.producer.sender import Sender, finish_all
from msgtx.producer.state import DECIDED_ELSEWHERE, OpenTransaction, ProducerStatus
from msgtx.producer.transaction import SessionEnd, Transactions
from msgtx.producer.wake import Wake
from msgtx.rules.record import GivenHeaders
from msgtx.rules.transaction import Call, ClientState
from msgtx.session.answers import AnswerSource, begins_here
from msgtx.session.offsets import Offsets, OffsetSource, positions_of
from msgtx.session.riding import Writing
from msgtx.store.topics.topics import Topic, Topics
from msgtx.types import GroupMetadata, OutputRecord, PreparedTransaction, RecordMetadata, TransactionId
from msgtx.units import Duration

if TYPE_CHECKING:  # with a session, SQLAlchemy is imported
    import sqlalchemy

    from msgtx.session.enlistment import Enlistment, UserSession

log = logging.getLogger("msgtx.producer")
EXIT_SECONDS: Final = 10.0  # that the end of the interpreter waits for records: a service manager may wait no longer


class Transaction:
    """The open transaction of a producer, as `begin_transaction` and `with producer.transaction()` hand it out."""

    __slots__ = ("_producer", "id")

    def __init__(self, producer: "Producer", transaction_id: TransactionId) -> None:
        self._producer = producer
        self.id = transaction_id

    def send_offsets(self, offsets: OffsetSource | Offsets, group_metadata: GroupMetadata | str | None = None) -> None:
        """Commit consumer offsets with this transaction; see `Producer.send_offsets_to_transaction`."""
        self._producer.send_offsets_to_transaction(offsets, group_metadata)

    def send_acknowledgements(self, share_consumer: AnswerSource) -> None:
        """Acknowledge records of a share group with this transaction.

        See `Producer.send_acknowledgements_to_transaction`.
        """
        self._producer.send_acknowledgements_to_transaction(share_consumer)

    def prepare(self, timeout: Duration | None = None) -> PreparedTransaction:
        """Prepare for an outside decision: see `Producer.prepare_transaction`."""
        return self._producer.prepare_transaction(timeout)


class _Rides(NamedTuple):
    """A transaction whose block ends in a user's session."""

    session: "tuple[sqlalchemy.Connection, Enlistment]"
    end: SessionEnd
    writing: Writing


class _Block(contextlib.AbstractContextManager[Transaction]):
    """See `Producer.transaction`. A generator would take a microsecond more."""

    __slots__ = ("_given", "_is_open", "_opened", "_producer", "_rides")

    def __init__(self, producer: "Producer", timeout_ms: Duration | None, session: "UserSession | None") -> None:
        self._producer = producer
        self._given = timeout_ms, session
        self._is_open = False

    def __enter__(self) -> Transaction:
        transaction, self._rides = self._producer._open_block(*self._given)
        self._opened = self._producer._state.transaction
        self._is_open = True
        return transaction

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = False
        self._producer._close_block(self._opened, self._rides, error)

    def __del__(self) -> None:
        if self._is_open:  # an interrupt came before the first step of its end
            self.__exit__(None, GeneratorExit(), None)


class Producer(Closing):
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
        group_commit: GroupCommit,
        observers: Observers,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
    ) -> None:
        self.config = config
        self._engine = engine
        self._origin = engine.origin
        self._accumulator = Accumulator(
            linger_ms=config.linger_ms,
            batch_bytes=config.batch_bytes,
            buffer_bytes=config.buffer_bytes,
            observers=observers,
        )
        self._state = ProducerStatus(self._accumulator, transactional=config.transactional_id is not None)
        calls = ProducerCalls(engine, config, self._state)
        self._routes = Routes(topics, self._accumulator, self._state, calls)
        self._sender = Sender(
            engine, self._accumulator, config, self._state, calls, wake=wake, refresh_topic=self._routes.refresh
        )
        self._keyed = Deduplicator(
            engine, self._accumulator, config, self._state, wake=wake, refresh_topic=self._routes.refresh
        )
        self._batcher = Batcher(
            config,
            self._accumulator,
            self._state,
            routes=self._routes,
            keyed=self._keyed,
            start=self._sender.start,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
        )
        self._transactions = Transactions(
            engine,
            self._accumulator,
            self._state,
            calls,
            sender=self._sender,
            routes=self._routes,
            wake=wake,
            decided=decided,
            group_commit=group_commit,
            ended=functools.partial(_tell_ended, weakref.ref(self), self._accumulator),
            failed=functools.partial(_tell_failed, weakref.ref(self), self._accumulator),
        )
        # The same as the method below, without a call in between, which a record would notice.
        self.send = self._batcher.send  # type: ignore[method-assign]
        forks.follow(self, Producer._forked)
        _open.add(self)

    def __repr__(self) -> str:
        name = self.config.transactional_id
        return f"<msgtx.Producer{'' if name is None else f' {name!r}'}, {self._state.value}>"

    def _forked(self) -> None:
        """Handle a fork, in the child: nothing is sent, and a topic that is looked up again shows why."""
        forks.release(self._accumulator.lock)
        self._state.disown()
        self._routes.known.clear()

    # ── sending ──

    def send(
        self,
        topic: str,
        value: Any = ...,
        *,
        json: Any = ...,
        key: Any = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: GivenHeaders | None = None,
        on_delivery: Callable[[RecordFuture], object] | None = None,
        dedup_key: str | None = None,
        deliver_at: int | datetime | None = None,
        delay_ms: Duration | None = None,
    ) -> RecordFuture:
        """Send a record. Returns a future at once; blocks while `buffer_bytes` are waiting, at most `max_block_ms`.

        `value=None` is a tombstone. `json` takes the place of the value and its serializer. A key chooses the partition;
        without one records stick to a partition drawn for each batch. With a `dedup_key` (1 to 256 bytes of UTF-8) the
        record is stored once per topic within `dedup_window_ms` after the first one, from any producer: a later one gets
        the place of the first and `duplicate`, also if its content differs. It is awaited and flushed with any `acks`, and
        needs a producer without transactions.
        `timestamp`: milliseconds since 1970 UTC or an aware datetime, before the year 9999; by default now.
        `deliver_at` or `delay_ms`: share groups deliver it then, and later records earlier; consumer groups do not
        wait. Retention counts from the timestamp all the same.

        Raise `IllegalState`, `WrongType`, `InvalidRequest`, `UnknownTopicOrPartition`, and the stored error of a failed
        transaction or producer. Raise `RecordTooLarge` if `buffer_bytes` cannot hold it, `DeliveryTimeout` if they stay
        full, `DatabaseUnavailable` if a topic cannot be looked up within `max_block_ms`: each fails the transaction
        that the record was for. Everything else is in the future. Source: internals: append.
        """
        return self._batcher.send(
            topic,
            value,
            json=json,
            key=key,
            partition=partition,
            timestamp=timestamp,
            headers=headers,
            on_delivery=on_delivery,
            dedup_key=dedup_key,
            deliver_at=deliver_at,
            delay_ms=delay_ms,
        )

    def send_at_once(self, topic: str, value: Any, **rest: Any) -> RecordFuture | None:
        """Send a record if that needs no waiting, as an event loop must. Returns None, and has not sent, where it might.

        That is: for the first record of a topic, and while `buffer_bytes` have no room for the topic's largest.
        """
        return self._batcher.send_at_once(topic, value, **rest)

    def begins_here(self) -> None:
        """Note that the open transaction began in this task: its thread had only a copy of the task's context."""
        if self._state.transaction is not None:
            begins_here(self._state.transaction)

    def settle(self) -> None:
        """Learn how a transaction ended that was decided elsewhere."""
        self._transactions.settle()

    def send_batch(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        *,
        partition: int | None = None,
        timestamps: Sequence[int] | None = None,
    ) -> BatchFuture:
        """Send columns: no cost per record beyond its place in a batch. Returns one future for all of them.

        Without keys the records are spread by batch. Serializers do not apply. Raise as `send` does, and `InvalidRequest`
        for columns of unequal length, `RecordTooLarge` for a record above the topic's limit; nothing is sent then. If
        only the first records could be sent, the future has the error: some may be stored.
        """
        return self._batcher.send_batch(topic, values, keys, partition=partition, timestamps=timestamps)

    def _send_outputs(self, topic: str, outputs: Sequence[OutputRecord]) -> None:
        """Send what a worker's transform gave, in its order; `topic`: of those that name none. Raise as `send` does.

        Where `send` is another one, it gets each of them: traces give each record headers.
        """
        if self.send == self._batcher.send and self._batcher.add(topic, outputs):
            return
        send = self.send
        for output in outputs:
            send(
                output.topic or topic,
                output.value,
                key=output.key,
                partition=output.partition,
                timestamp=output.timestamp,
                headers=output.headers or None,
            )

    def flush(self, timeout: Duration | None = None) -> None:
        """Send everything now; wait for the answers, and for the callbacks. Failed sends do not raise; raise `TimeoutError`.

        In a delivery callback of its own: `IllegalState`, as for the end of a transaction.
        """
        seconds = units.timeout(timeout)
        self._origin.require("a producer")
        self._require_outside("flush")
        self._state.require_whole()
        if not self._accumulator.flush(seconds):
            raise TimeoutError(f"{self._accumulator.unfinished} batches are not acknowledged after {seconds} s")
        self._state.require_whole()

    def _require_outside(self, call: str) -> None:
        """Raise `IllegalState` in a delivery callback of this producer, and in an observer of it."""
        callbacks.require_none(call, self._accumulator.lock)

    def _topic_changed(self, topic: Topic) -> None:
        """Note the changes of a topic that the client has looked at."""
        self._routes.changed(topic)

    # ── transactions ──

    def init_transactions(self, timeout: Duration | None = None, *, keep_prepared: bool = False) -> None:
        """Take over the transactional id: older producers are fenced, and their open transaction is aborted (I7).

        `keep_prepared`: a transaction prepared for an outside decision stays; `prepared_transaction` names it, and it
        must be completed before another one begins (KIP-939).
        """
        self._transactions.require(Call.INIT)
        self._transactions.init(self.config.transactional_id, timeout, keep_prepared=keep_prepared)

    def begin_transaction(self, timeout_ms: Duration | None = None) -> Transaction:
        """Begin a transaction, locally: it opens in the database with its first batch. Returns it."""
        self._transactions.require(Call.BEGIN)
        return Transaction(self, self._transactions.begin(timeout_ms).id)

    def send_offsets_to_transaction(
        self,
        offsets: OffsetSource | Offsets,
        group_metadata: GroupMetadata | str | None = None,
        timeout: Duration | None = None,
    ) -> None:
        """Commit consumer offsets with this transaction (I10). The offset is the next one to read; later replaces earlier.

        `offsets`: a consumer (its positions), or a map with a group. Source: internals: groups#committing-offsets.
        """
        units.timeout(timeout)  # nothing is awaited: the offsets travel with the decision, which checks them
        self._transactions.require(Call.SEND_OFFSETS)
        try:
            found = positions_of(offsets, group_metadata)
        except (InvalidRequest, OffsetMetadataTooLarge) as error:
            # A caller who catches it and commits would commit the outputs without their offsets (I10). A wrong call
            # changes nothing.
            if group_metadata is not None and not isinstance(error, WrongType):
                self._state.fail(error)
            raise
        self._transactions.send_offsets(*found)

    def send_acknowledgements_to_transaction(self, share_consumer: AnswerSource) -> None:
        """Acknowledge records of a share group with this transaction: those that the share consumer's `commit` would (I17).

        They are pending until it ends: nothing else may answer for these records, and their locks need not last. After an
        abort they are delivered again. Raise the errors of a send; `InvalidRecordState` and `TransactionConflict`, if a
        record is not the consumer's (any more), fail the transaction. Source: internals: share-answers#transactions.
        """
        self._transactions.require(Call.SEND_ACKNOWLEDGEMENTS)
        self._transactions.send_answers(share_consumer)

    def commit_transaction(self, timeout: Duration | None = None) -> None:
        """Commit: when this returns, all of it is durable and readable; when it raises an abortable error, none of it is.

        Raise the error of a send that failed, `TransactionAborted`, `ProducerFenced`; `OutcomeUnknown` when time is over
        (call it again, or ask `client.transaction_outcome`). Idempotent. Source: internals: transactions#begin-commit-abort.
        """
        self._transactions.require(Call.COMMIT)
        self._transactions.commit(timeout)

    def abort_transaction(self, timeout: Duration | None = None) -> None:
        """Abort: unsent records are dropped, sent ones are never seen. Then the next transaction may begin."""
        self._transactions.require(Call.ABORT)
        self._transactions.abort(timeout)

    def _finish_transaction(self) -> bool:
        """End a transaction whose commit or abort has failed: repeat the call, and abort what cannot be committed.

        Return whether it is committed. Raise as `commit_transaction` and `abort_transaction`.
        """
        if self._state.value is ClientState.COMMITTING:
            try:
                self.commit_transaction()
                return True
            except MsgtxError:
                if not self._state.has_failed:
                    raise
        if self._state.transaction is not None:
            self.abort_transaction()
        return False

    def prepare_transaction(self, timeout: Duration | None = None) -> PreparedTransaction:
        """Prepare: all of it is durable, and waits for an outside decision, however long. Returns the token that decides it.

        `client.complete(token, commit=…)` in any process, or `commit_transaction` and `abort_transaction` of this producer.
        Until then no reader gets past it. May be called again when it raised `OutcomeUnknown`. Raise the errors of a
        commit.
        Source: internals: sessions#two-phase-commit-with-another-system; KIP-939.
        """
        self._transactions.require(Call.PREPARE)
        self._transactions.prepare(timeout)
        assert self.prepared_transaction is not None
        return self.prepared_transaction

    @property
    def prepared_transaction(self) -> PreparedTransaction | None:
        """The token of the transaction that is prepared and not known to be decided."""
        transaction = self._state.transaction
        if self._state.value is not ClientState.PREPARED or transaction is None:
            return None
        return PreparedTransaction(transaction.id, str(self._engine.incarnation))

    @property
    def transaction_id(self) -> TransactionId | None:
        """The name of the current transaction, or of the last one."""
        return self._transactions.last_id

    def transaction(
        self, timeout_ms: Duration | None = None, session: "UserSession | None" = None
    ) -> contextlib.AbstractContextManager[Transaction]:
        """Run a transaction: commit at the end of the block, abort if it raises; the original exception is raised.

        `session`: SQLAlchemy's `Session`, `scoped_session` or `Connection` on the same database. The end of the block seals
        the transaction, and the session's next commit decides it with the session's rows (I6); its rollback aborts it, and
        after `timeout_ms` it is aborted. Until the session has ended no other transaction begins. Raise `ConfigError` for
        a session elsewhere, in autocommit or two phases.
        """
        return _Block(self, timeout_ms, session)

    def _open_block(self, timeout_ms: Duration | None, session: "UserSession | None") -> "tuple[Transaction, _Rides | None]":
        if session is None:
            return self.begin_transaction(timeout_ms), None
        from msgtx.session.enlistment import enlist_in, seat_of

        connection, enlistment = enlist_in(session, self._engine)
        seat = seat_of(connection)  # while we are in the session's own thread
        transaction = self.begin_transaction(timeout_ms)
        end = SessionEnd(self._transactions, transaction.id, seat)
        writing = Writing(end)
        enlistment.add(connection, writing)
        return transaction, _Rides((connection, enlistment), end, writing)

    def _close_block(self, opened: OpenTransaction | None, rides: "_Rides | None", error: BaseException | None) -> None:
        state = self._state
        if rides is not None:
            rides.writing.open = False
        if error is not None:
            if state.transaction is opened and state.value not in {ClientState.FATAL_ERROR, *DECIDED_ELSEWHERE}:
                self._abort_after(error)
            self._transactions.not_committed(opened)
            return
        if state.transaction is not opened or state.value in DECIDED_ELSEWHERE:
            return  # the block has ended it
        try:
            if rides is None:
                self.commit_transaction()
            else:
                self._transactions.end_in(rides.session, rides.end)
        except MsgtxError as failed:
            if state.value is ClientState.ABORTABLE_ERROR:
                self._abort_after(failed)
            raise

    def _abort_after(self, error: BaseException) -> None:
        """Abort because of an error. If that fails, too, the error says so."""
        try:
            self.abort_transaction()
        except MsgtxError as failed:
            error.add_note(f"the abort of transaction {self.transaction_id} failed, too: {failed}")

    # ── its end ──

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._state.closed

    def close(self, timeout: Duration | None = None) -> None:
        """Flush, abort a transaction that is not decided, and end. Never raises on a fenced producer; may be called twice.

        Without `timeout`, it waits at most `delivery_timeout_ms` for unanswered records, and `max_block_ms` for an abort. A
        commit in another thread is whole, or raises `TransactionAborted`. Raise `IllegalState` in a callback of its own.
        """
        seconds = units.timeout(timeout)
        if self.closed:
            return
        self._require_outside("close")
        deadline = None if seconds is None else time.monotonic() + seconds
        self._flush_or_abort(seconds)
        self._state.close()
        # Outside the lock: delivery callbacks are the user's code.
        lost = DeliveryTimeout("the producer was closed before this was answered: it may be stored", reason="closed")
        self._accumulator.drop_unsent(lost, lambda batch: batch.uncertain)
        self._accumulator.drop_unsent(IllegalState("the producer was closed before this was sent", reason="closed"))
        self._transactions.give_up()
        for part in (self._keyed, self._sender):
            part.close(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def _flush_or_abort(self, timeout: float | None) -> None:
        try:
            if self._state.transactional:
                self._transactions.close(timeout)
            elif self._sender.started:
                self.flush(self.config.delivery_timeout_ms / 1000 if timeout is None else timeout)
        except TimeoutError as late:
            log.warning("closing: %d records may be lost: %s", self._sender.unanswered(), late)
        except MsgtxError as error:
            transaction = f"transaction {self.transaction_id} could not be ended: " if self._state.transactional else ""
            log.warning("closing: %s%s", transaction, error)

    def __enter__(self) -> Self:
        """Initialize transactions, if there is a transactional id. Closed if that fails: the block does not begin."""
        if self._state.transactional:
            try:
                self.init_transactions()
            except BaseException:
                self.close()
                raise
        return self


def _tell_ended(producer: "weakref.ref[Producer]", of: Accumulator, outcome: Ended, seconds: float) -> None:
    of.observers.tell(lambda observer: observer.transaction_ended(producer(), outcome, seconds), of.lock)


def _tell_failed(producer: "weakref.ref[Producer]", of: Accumulator, error: Exception) -> None:
    of.observers.tell(lambda observer: observer.transaction_failed(producer(), error), of.lock)


_open: "Final[weakref.WeakSet[Producer]]" = weakref.WeakSet()


def close_all() -> None:
    """Close what was not closed when the interpreter ends: its threads end with it. Later, `close` would wait for them."""
    deadline = time.monotonic() + EXIT_SECONDS
    for producer in list(_open):
        if not producer.closed:
            if producer._state.value is ClientState.IN_TRANSACTION:
                log.warning("the interpreter ends: transaction %s is aborted", producer.transaction_id)
            producer.close(max(0.0, deadline - time.monotonic()))
    finish_all(deadline)


__all__ = ["BatchFuture", "Producer", "RecordFuture", "RecordMetadata", "Transaction"]
