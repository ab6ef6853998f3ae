"""How a producer's transactions begin and end: the client's half of Kafka's transaction manager."""

import contextlib
import functools
import os
import socket
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final

from msgtx import arguments, callbacks, errors, units
from msgtx.database.connection import until
from msgtx.database.pool import Engine
from msgtx.errors import IllegalState, MsgtxError, OutcomeUnknown
from msgtx.observer import Ended
from msgtx.producer.batches import Accumulator, PendingBatch
from msgtx.producer.calls import ProducerCalls
from msgtx.producer.group_commit import GroupCommit
from msgtx.producer.routes import Routes
from msgtx.producer.sender import Sender
from msgtx.producer.state import DECIDED_ELSEWHERE, OpenTransaction, ProducerStatus
from msgtx.producer.wake import Wake
from msgtx.rules.transaction import Call, ClientState
from msgtx.session.answers import Answers, AnswerSource, began_here, begins_here, sources_here
from msgtx.session.riding import SealedDecision
from msgtx.store.append.append import PARTITIONS_AT_ONCE, Appended, Whole
from msgtx.store.groups.groups import NO_OFFSETS, OffsetColumns, columns_of, offset_rows
from msgtx.store.shares.answers import NO_ANSWERS
from msgtx.store.transactions.decide import Decided, Ending, decide
from msgtx.store.transactions.seal import Kind, Sealed, Sealing, seal, undecided_prepared
from msgtx.store.transactions.transactions import end_transaction, transaction_outcome
from msgtx.types import GroupMetadata, OffsetAndMetadata, Outcome, TopicPartition, TransactionId
from msgtx.units import Duration

if TYPE_CHECKING:  # with a session, SQLAlchemy is imported
    import sqlalchemy

    from msgtx.session.enlistment import Enlistment

FUSED_BYTES: Final = 1024 * 1024  # a transaction up to this size goes out as one call
# Until acknowledgements go out alone: small transactions are over by then, and of others the locks must not expire.
LINGER_SECONDS: Final = 0.1
RELEASE_SECONDS: Final = 1.0  # for releases of share consumers after an end without a time limit; else their next polls do
LOCK_SECONDS: Final = 0.3  # the part of their locks' time that must be left for the call that sends them


class SessionEnd:
    """A transaction that a user's session ends. It may end in another thread than the producer's. `seat`: the session's."""

    def __init__(self, transactions: "Transactions", transaction_id: TransactionId, seat: int | None) -> None:
        self.transaction_id = transaction_id
        self.seat = seat
        self.is_lost = False
        self.sealed = False
        self.answers: list[Answers] = []  # that were sealed with it
        self._transactions = transactions

    def lost(self) -> None:
        """Abort a sealed transaction at once, so that it holds no reader up: its session was rolled back."""
        self.is_lost = True
        if self.sealed:
            with contextlib.suppress(MsgtxError):
                self._transactions.resolve(self.transaction_id)
            for answers in self.answers:
                answers.lost()


class _Ending:
    """A call that ends a transaction. It is gone with the call, also where an interrupt keeps that from saying so."""

    __slots__ = ("__weakref__", "_call", "_transactions")

    def __init__(self, transactions: "Transactions", call: Call) -> None:
        self._transactions = transactions
        self._call = call

    def __enter__(self) -> None:
        """Raise `IllegalState` if another thread ends the transaction."""
        self._transactions.ending_begins(self._call, self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._transactions.ending_is_over(error)


class Transactions:
    """The transactions of one producer, one after the other. `decided`: called at the end of one that the database knows."""

    def __init__(
        self,
        engine: Engine,
        accumulator: Accumulator,
        state: ProducerStatus,
        calls: ProducerCalls,
        *,
        sender: Sender,
        routes: Routes,
        wake: Wake,
        decided: Callable[[], None],
        group_commit: GroupCommit,
        ended: Callable[[Ended, float], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._engine = engine
        self._origin = engine.origin
        self._accumulator = accumulator
        self._state = state
        self._calls = calls
        self._sender = sender
        self._routes = routes
        self._wake = wake
        self._decided = decided
        self._group_commit = group_commit
        self._tell_ended = ended
        self._tell_failed = failed
        self._next_number = 0
        self._ending: weakref.ref[_Ending] | None = None  # the call that ends a transaction
        # The session in which a sealed transaction ends.
        self._rides: tuple[Enlistment, SessionEnd] | None = None
        self._sources: list[AnswerSource] = []  # the consumer whose answers the last transaction with answers had
        sender.looks = self._look_for_failure
        self.last_id: TransactionId | None = None

    @property
    def is_ending(self) -> bool:
        """Whether a call is under way that ends a transaction."""
        return self._ending is not None and self._ending() is not None

    def require(self, call: Call) -> None:
        """Raise `IllegalState` if the producer has no transactions, or is of a parent process."""
        self._origin.require("a producer")
        if not self._state.transactional:
            raise IllegalState(f"{call} needs a producer with a transactional_id", reason="transactional_id")

    def _current(self) -> OpenTransaction:
        assert self._state.transaction is not None, "the table of moves lets nothing end that has not begun"
        return self._state.transaction

    # ── beginning ──

    def init(self, transactional_id: str | None, timeout: Duration | None, *, keep_prepared: bool) -> None:
        """See `Producer.init_transactions`."""
        timeout, keep_prepared = units.timeout(timeout), arguments.flag("keep_prepared", keep_prepared)
        with self._sole_ending(Call.INIT):
            self._state.check(Call.INIT)
            deadline = self._calls.deadline(timeout)
            self._state.producer = self._calls.answered(
                lambda: self._calls.initialize(transactional_id, keep_prepared=keep_prepared), deadline
            )
            kept = self._calls.answered(self._kept, deadline) if keep_prepared else None
            with self._state.lock:
                self._state.move(Call.INIT)
                if kept is not None:
                    self.last_id = kept
                    self._state.transaction = OpenTransaction(kept, decision_handed=True)
                    self._state.move(Call.KEPT)

    def _kept(self) -> TransactionId | None:
        assert self._state.producer is not None
        with self._engine.connection() as connection:
            return undecided_prepared(connection, self._state.producer.producer_id)

    def begin(self, timeout_ms: Duration | None) -> OpenTransaction:
        """See `Producer.begin_transaction`."""
        if timeout_ms is not None:
            timeout_ms = units.milliseconds("timeout_ms", timeout_ms)
            if not 0 < timeout_ms <= arguments.LARGEST_INT4:
                raise errors.InvalidTransactionTimeout(
                    f"timeout_ms must be above 0 and below 2^31, not {timeout_ms}", name="timeout_ms", limit=2**31
                )
        self.settle()
        state = self._state
        with state.lock:
            state.require_whole()
            state.raise_fatal()
            state.check(Call.BEGIN)
            assert state.producer is not None
            transaction = OpenTransaction(TransactionId(*state.producer, self._next_number), timeout_ms)
            transaction.sources = sources_here() or [*self._sources]
            state.transaction = transaction
            self.last_id = transaction.id
            state.move(Call.BEGIN)
        begins_here(transaction)
        return transaction

    def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata) -> None:
        """See `Producer.send_offsets_to_transaction`."""
        self._require_open(Call.SEND_OFFSETS)
        try:
            # Without the lock: an unknown topic is looked up in the database, and the sender works on.
            rows = {self._routes.partition_id(*tp): at for tp, at in offsets.items()}
        except MsgtxError as error:
            if not isinstance(error, IllegalState):
                self._state.fail(error)
            raise
        with self._state.lock:
            self._require_open(Call.SEND_OFFSETS)
            self._current().offsets |= offset_rows(group, rows)

    def send_answers(self, source: AnswerSource) -> None:
        """See `Producer.send_acknowledgements_to_transaction`."""
        if not callable(getattr(source, "transaction_answers", None)):
            raise errors.WrongType(
                f"share_consumer is a ShareConsumer, not {arguments.shown(source)}", name="share_consumer"
            )
        self._require_open(Call.SEND_ACKNOWLEDGEMENTS)
        self._sender.start()
        transaction = self._current()
        if source not in transaction.sources:
            transaction.sources.append(source)
        self._sources = [source]
        answers = source.transaction_answers()
        if answers is None:
            return
        with self._state.lock:
            if self._state.may_send and self._state.transaction is transaction:
                answers.due = min(time.monotonic() + LINGER_SECONDS, answers.locked_until - LOCK_SECONDS)
                answers.hand_over = functools.partial(self._hand_over, transaction, answers)
                transaction.answers.append(answers)
                answers.is_owned = True
                self._accumulator.work.notify_all()
                return
        answers.lost()
        self._state.refuse(Call.SEND_ACKNOWLEDGEMENTS)

    def _hand_over(self, transaction: OpenTransaction, answers: Answers, seconds: float) -> None:
        """Make answers pending now: the member that holds their records is about to leave its group."""
        with self._state.lock:
            answers.due = 0.0
            self._accumulator.work.notify_all()
            if not self._sender.is_current:
                self._accumulator.settled.wait_for(
                    lambda: answers.stored or answers.refused or transaction.is_over or self._state.has_failed, seconds
                )

    def _require_open(self, call: Call) -> None:
        if not self._state.may_send:
            self._state.refuse(call)

    # ── committing ──

    def commit(self, timeout: Duration | None) -> None:
        """See `Producer.commit_transaction`."""
        timeout = units.timeout(timeout)
        with self._sole_ending(Call.COMMIT):
            with self._state.lock:
                self._state.require_whole()
                self._state.raise_failure()
                self._state.move(Call.COMMIT)
            began = time.monotonic()
            self._commit(self._current(), self._calls.deadline(timeout))
            self._ended("committed", began)

    def _commit(self, transaction: OpenTransaction, deadline: float) -> None:
        with self._state.lock:
            if not transaction.was_handed_over and not self._state.closed:
                with self._accumulator.steps():
                    transaction.fused = self._take_whole(transaction)
        offsets = columns_of(transaction.offsets)
        if transaction.fused is not None:
            self._commit_at_once(transaction, transaction.fused, offsets, deadline)
            return
        self._flush(transaction, deadline)
        if transaction.is_empty:
            return
        transaction.decision_handed = True
        answer = self._decide(transaction, "COMMIT", offsets, deadline)
        if answer.error is not None:
            raise self._calls.refused(answer.error)

    def _take_whole(self, transaction: OpenTransaction) -> list[PendingBatch] | None:
        """Take the transaction out of the lanes if it fits into one call."""
        accumulator = self._accumulator
        if transaction.answers and accumulator.unfinished == 0:
            transaction.decision_handed = True
            return []
        batches = accumulator.take_whole(most_lanes=PARTITIONS_AT_ONCE, most_bytes=FUSED_BYTES)
        for batch in batches or ():
            self._sender.number(accumulator.lanes[batch.topic_partition], batch)
        return batches

    def _commit_at_once(
        self, transaction: OpenTransaction, batches: list[PendingBatch], offsets: OffsetColumns, deadline: float
    ) -> None:
        lanes = self._accumulator.lanes
        columns = [batch.columns(lanes[batch.topic_partition].partition_id, transaction.id[:2]) for batch in batches]
        whole = Whole(transaction.id, columns, offsets, sum((each.columns for each in transaction.answers), NO_ANSWERS))
        size = sum(batch.size for batch in batches)

        def attempt() -> list[Appended]:
            try:
                answers = self._group_commit.commit(whole, size)
            except MsgtxError as error:  # perhaps a record that was to be acknowledged is not this member's
                self._doubt(transaction, error)
                if error.retriable:
                    raise
                return [Appended(error, -1, -1, duplicate=False)]
            if (refused := _refusal(answers)) is not None and refused.retriable:
                raise refused
            return answers

        answers = self._calls.answered(attempt, deadline, OutcomeUnknown)
        if (refused := _refusal(answers)) is not None:
            if isinstance(refused, errors.UnknownTopicOrPartition):
                for name in {batch.topic_partition.topic for batch in batches}:
                    self._routes.refresh(name)  # the next transaction goes to the topic that is there now
            refused = self._calls.refused(refused)
            self._accumulator.finish(batches, error=refused)
            raise refused
        for batch, answer in zip(batches, answers if batches else (), strict=True):
            self._accumulator.stored(lanes[batch.topic_partition], batch, answer)
        self._accumulator.finish(batches)

    def _flush(self, transaction: OpenTransaction, deadline: float) -> None:
        with self._state.lock:
            for answers in transaction.answers:
                answers.due = 0.0
        done = self._accumulator.flush(
            max(0.0, deadline - time.monotonic()),
            unless=lambda: self._state.has_failed,
            also=lambda: self._state.closed or all(answers.stored for answers in transaction.answers),
        )
        self._state.raise_failure()
        if self._state.closed:  # by another thread: records that were not sent were dropped
            with contextlib.suppress(MsgtxError):
                self.resolve(transaction.id)
            raise errors.TransactionAborted(
                f"transaction {transaction.id} was not committed before its producer was closed", reason="closed"
            )
        if not done:
            raise OutcomeUnknown(f"transaction {transaction.id} is not decided yet: its records wait for the database")

    def _decide(self, transaction: OpenTransaction, outcome: Ending, offsets: OffsetColumns, deadline: float) -> Decided:
        tails = transaction.sequences()

        def attempt() -> Decided:
            try:
                with self._engine.connection() as connection:
                    answer = decide(connection, transaction.id, outcome, tails=tails, offsets=offsets, wake=False)
            except MsgtxError as error:
                self._doubt(transaction, error)
                raise
            if answer.error is not None and answer.error.retriable:
                raise answer.error
            self._wake.tell(list(tails))
            return answer

        return self._calls.answered(attempt, deadline, OutcomeUnknown)

    def _doubt(self, transaction: OpenTransaction, error: MsgtxError) -> None:
        """If a decision had no answer and cannot be repeated, its outcome is unknown."""
        if isinstance(error, errors.DatabaseUnavailable):
            transaction.in_doubt = True
        elif isinstance(error, errors.ConfigError | errors.AuthorizationFailed) and transaction.in_doubt:
            raise OutcomeUnknown(
                f"transaction {transaction.id} may be decided; the same call may be repeated: {error}"
            ) from error

    # ── decided by another party ──

    def prepare(self, timeout: Duration | None) -> None:
        """See `Producer.prepare_transaction`."""
        timeout = units.timeout(timeout)
        if self._state.value is not ClientState.PREPARED:
            self._seal("external", Call.PREPARE, self._calls.deadline(timeout))

    def end_in(self, session: "tuple[sqlalchemy.Connection, Enlistment]", end: SessionEnd) -> None:
        """Seal the transaction and leave its decision to a user's session."""
        self._origin.require("a producer")
        connection, enlistment = session
        if end.is_lost:  # the seal raises this
            self._state.fail(
                errors.TransactionAborted(
                    f"the session was rolled back before {end.transaction_id} was sealed", reason="rolled back"
                )
            )
        sealed = self._seal("session", Call.SEAL, self._calls.deadline(), seat=end.seat)
        if sealed is not None:
            end.sealed, end.answers = True, self._current().answers
            self._rides = (enlistment, end)
            enlistment.add(connection, SealedDecision(sealed, end))

    def _seal(self, kind: Kind, call: Call, deadline: float, *, seat: int | None = None) -> Sealed | None:
        """Seal the transaction. Returns None if nothing was sent, and there is nothing to decide."""
        with self._sole_ending(call):
            with self._state.lock:
                self._state.require_whole()
                self._state.raise_failure()
                self._state.move(call)
            began = time.monotonic()
            transaction = self._current()
            self._flush(transaction, deadline)
            if kind == "session" and not (transaction.tails or transaction.offsets or transaction.answers):
                self._ended("committed", began)
                return None
            transaction.decision_handed = True
            answer = self._calls.answered(lambda: self._sealing(transaction, kind, seat), deadline, OutcomeUnknown)
            if answer.error is not None:
                raise self._calls.refused(answer.error)
            self._state.move(Call.SEALED if kind == "session" else Call.PREPARED)
            transaction.is_over = True  # for share consumers: it takes nothing any more
            return answer.sealed

    def _sealing(self, transaction: OpenTransaction, kind: Kind, seat: int | None) -> Sealing:
        with self._engine.connection() as connection:
            answer = seal(
                connection,
                transaction.id,
                kind,
                tails=transaction.sequences(),
                offsets=columns_of(transaction.offsets),
                timeout_ms=transaction.timeout_ms,
                client_host=socket.gethostname(),
                client_process=os.getpid(),
                seat=seat,
            )
        if answer.error is not None and answer.error.retriable:
            raise answer.error
        return answer

    def settle(self) -> None:
        """Learn how a sealed or prepared transaction was decided, so that the next one may begin."""
        state = self._state
        if state.value not in DECIDED_ELSEWHERE:
            return
        name = self._current().id
        if state.value is ClientState.SEALED:
            assert self._rides is not None
            enlistment, end = self._rides
            if enlistment.is_open and not enlistment.written and not end.is_lost:
                state.check(Call.BEGIN)  # the session is still to end
        with self._sole_ending(Call.BEGIN):
            ask = self._outcome if state.value is ClientState.PREPARED else self.resolve
            began = time.monotonic()
            deadline = self._calls.deadline()
            outcome = self._calls.answered(lambda: ask(name), deadline)
            if outcome is Outcome.OPEN:
                state.check(Call.BEGIN)
            if outcome is Outcome.ABORTED and self._rides is not None and self._rides[1].is_lost:
                # A crash of the server may have lost records and their sequences. Not after a COMMIT that was acknowledged:
                # there the sequences show what a failover has lost.
                self._abort(self._current(), deadline)
            self._rides = None
            self._ended("committed" if outcome is Outcome.COMMITTED else "aborted", began, elsewhere=True)

    def _outcome(self, transaction_id: TransactionId) -> Outcome:
        with self._engine.connection() as connection:
            return transaction_outcome(connection, transaction_id).outcome

    def resolve(self, transaction_id: TransactionId, timeout: float | None = None) -> Outcome:
        """Return how a transaction ended; one that is not committed is aborted now."""
        with until(self._calls.deadline(timeout)):
            # A client that is closed has no pool, and gets none again.
            checked_out = contextlib.closing(self._engine.dedicated()) if self._state.closed else self._engine.connection()
            with checked_out as connection:
                return end_transaction(connection, transaction_id, "resolve")

    # ── aborting ──

    def abort(self, timeout: Duration | None) -> None:
        """See `Producer.abort_transaction`."""
        timeout = units.timeout(timeout)
        with self._sole_ending(Call.ABORT):
            with self._state.lock:
                self._state.raise_fatal()
                self._state.move(Call.ABORT)
            self._undo_sources(self._current(), release=False)  # also if the database is away, and it stays undecided
            self._drop_unsent()
            began = time.monotonic()
            deadline = self._calls.deadline(timeout)
            try:
                with self._sender.paused(deadline):
                    self._drop_unsent()
                    self._abort(self._current(), deadline)
            except TimeoutError as error:
                raise OutcomeUnknown(f"transaction {self.last_id} is not aborted yet: {error}") from error
            self._ended("aborted", began, deadline=deadline)
            self._state.raise_fatal()

    def close(self, timeout: float | None) -> None:
        """Abort an open or undecided transaction, so that it holds no reader up, unless another thread is ending it."""
        state = self._state.value
        if self.is_ending:
            return
        if state in {ClientState.IN_TRANSACTION, ClientState.ABORTABLE_ERROR, ClientState.ABORTING}:
            self.abort(timeout)
        elif state is ClientState.COMMITTING:
            with self._sole_ending(Call.COMMIT):
                began, transaction = time.monotonic(), self._current()
                self._drop_unsent()
                is_committed = self.resolve(transaction.id, timeout) is Outcome.COMMITTED
                aborted = (
                    None
                    if is_committed
                    else errors.TransactionAborted(f"transaction {transaction.id} was aborted", reason="client")
                )
                self._accumulator.finish(transaction.fused or (), error=aborted)
                self._ended("committed" if is_committed else "aborted", began)

    def give_up(self) -> None:
        """Settle the records of a commit without an answer: the producer is closed, and nobody will repeat the commit."""
        transaction = self._state.transaction
        if transaction is not None and not self.is_ending:
            unknown = OutcomeUnknown(f"the outcome of transaction {transaction.id} is not known")
            self._accumulator.finish(transaction.fused or (), error=unknown)
            transaction.is_over = True
            if not transaction.sources_told:
                self._tell_sources(transaction)

    def _drop_unsent(self) -> None:
        self._accumulator.drop_unsent(
            errors.TransactionAborted(
                f"transaction {self.last_id} was aborted by its producer before this was sent", reason="client"
            )
        )

    def _abort(self, transaction: OpenTransaction, deadline: float) -> None:
        if not transaction.was_handed_over:
            return
        answer = self._decide(transaction, "ABORT", NO_OFFSETS, deadline)
        if answer.error is not None:
            raise self._calls.refused(answer.error)
        with self._state.lock:
            for topic_partition, (partition_id, _) in transaction.tails.items():
                last = answer.last_sequences.get(partition_id)
                self._accumulator.lanes[topic_partition].next_sequence = 0 if last is None else last + 1

    def _ended(self, outcome: Ended, began: float, *, elsewhere: bool = False, deadline: float | None = None) -> None:
        with self._state.lock:
            transaction = self._current()
            # A number is used up only when something of its transaction was handed to the connection.
            if transaction.was_handed_over:
                if transaction.id[:2] == self._state.producer:  # one that was kept from before is of an older epoch
                    self._next_number = transaction.id.transaction_number + 1
                if outcome == "committed":
                    self._state.committed = (transaction.id, time.monotonic(), self._engine.server)
                self._decided()
        if outcome == "aborted" and not elsewhere:
            # Before it is forgotten: an end that is interrupted can be repeated.
            self._tell_sources(transaction, deadline)
        self._state.ended()
        self._tell_ended(outcome, time.monotonic() - began)
        for answers in transaction.answers:  # answers of a transaction decided elsewhere were pending: they ended there
            answers.committed()

    def not_committed(self, transaction: OpenTransaction | None) -> None:
        """Handle the exit of a block or call whose producer has failed for good."""
        if transaction is not None and self._state.value is ClientState.FATAL_ERROR:
            self._tell_sources(transaction)
            transaction.caller_told = True

    def _look_for_failure(self) -> None:
        transaction = self._state.transaction
        if self._state.value is ClientState.FATAL_ERROR and transaction is not None and not transaction.sources_told:
            self._tell_sources(transaction)

    def _tell_sources(self, transaction: OpenTransaction, deadline: float | None = None) -> None:
        """Tell share consumers that a transaction was not committed. Records that they return later do not belong to it."""
        self._undo_sources(transaction, release=False)
        transaction.sources_told = True
        limit = until(time.monotonic() + RELEASE_SECONDS if deadline is None else deadline)
        with limit, contextlib.ExitStack() as each:  # all are told, even if one is interrupted
            each.callback(self._undo_sources, transaction, release=True)
            for answers in transaction.answers:
                each.callback(answers.lost)

    def _undo_sources(self, transaction: OpenTransaction, *, release: bool) -> None:
        def undo() -> None:
            here = sources_here() if began_here(transaction) else ()
            for source in {id(source): source for source in (*transaction.sources, *here)}.values():
                source.undo(release=release)

        try:
            undo()
        except BaseException:  # an interrupt: a consumer that was not told would accept its records
            undo()
            raise

    def _sole_ending(self, call: Call) -> _Ending:
        return _Ending(self, call)

    def ending_begins(self, call: Call, ending: _Ending) -> None:
        """Note a call that ends a transaction. Raise `IllegalState` if another one is under way."""
        callbacks.require_none(call, self._state.lock)
        with self._state.lock:
            if self.is_ending:
                raise IllegalState(f"{call} while another thread ends the transaction: wait for it", reason="thread")
            self._ending = weakref.ref(ending)

    def ending_is_over(self, error: BaseException | None) -> None:
        """Note that it is over. `error`: what it raises."""
        try:
            if isinstance(error, MsgtxError):
                self._tell_failed(error)
                transaction = self._state.transaction
                # The threads that knew have continued without it.
                if transaction is not None and not transaction.caller_told:
                    self.not_committed(transaction)
        finally:
            self._ending = None
            if self._state.closed:
                self.give_up()


def _refusal(answers: Sequence[Appended]) -> MsgtxError | None:
    return next((answer.error for answer in answers if answer.error is not None), None)
