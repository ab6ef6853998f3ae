"""The state of a producer: the calls allowed now, and the error that ended it. Only this module changes it."""

from dataclasses import dataclass, field
from typing import Final, NoReturn

from msgtx import forks
from msgtx.errors import DeliveryTimeout, FatalError, MsgtxError, UsageError, fresh
from msgtx.producer.batches import Accumulator, PendingBatch
from msgtx.rules.transaction import Call, ClientState, client_move
from msgtx.session.answers import Answers, AnswerSource
from msgtx.store.groups.groups import OffsetRows
from msgtx.types import ProducerId, TopicPartition, TransactionId

FAILED: Final = frozenset({ClientState.ABORTABLE_ERROR, ClientState.FATAL_ERROR})
DECIDED_ELSEWHERE: Final = frozenset({ClientState.SEALED, ClientState.PREPARED})
# In these a failed batch is news; after it, or while the transaction is being aborted, it changes nothing.
_WRITING: Final = frozenset({ClientState.IN_TRANSACTION, ClientState.COMMITTING, ClientState.SEALING})


@dataclass(slots=True, weakref_slot=True, eq=False)
class OpenTransaction:
    """A transaction from its beginning until it is known how it was decided."""

    id: TransactionId
    timeout_ms: int | None = None
    tails: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)  # sent: partition id, last sequence
    offsets: OffsetRows = field(default_factory=dict)
    answers: list[Answers] = field(default_factory=list)  # for records of share groups
    sources: list[AnswerSource] = field(default_factory=list)  # share consumers whose records it is for, as far as known
    fused: list[PendingBatch] | None = None  # all of it, in one call with the decision; the answer is not known
    decision_handed: bool = False
    in_doubt: bool = False  # its decision was not answered, and may have been done
    is_over: bool = False  # it is decided, or its producer has failed
    sources_told: bool = False  # that it was not committed
    caller_told: bool = False  # that its producer has failed, by a call that was to end it

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in the database, nor on its way, and nothing has to be decided."""
        return not (self.tails or self.offsets or self.answers or self.decision_handed)

    @property
    def was_handed_over(self) -> bool:
        """Whether the database may know its name, which then cannot be used again."""
        return bool(self.tails) or self.decision_handed or any(each.handed for each in self.answers)

    def sequences(self) -> dict[int, int]:
        """Return the last sequence that was sent, by partition id, for a decision to verify."""
        return dict(self.tails.values())


def interrupted() -> FatalError:
    """Return the error of a producer that an interrupt has torn."""
    return FatalError(
        "the producer was interrupted in the middle of a step: close it, and make a new one", reason="interrupted"
    )


class ProducerStatus:
    """The state of a producer, its error and its transaction, under the lock of its accumulator."""

    def __init__(self, accumulator: Accumulator, *, transactional: bool) -> None:
        self.lock = accumulator.lock
        self.transactional = transactional
        self.error: MsgtxError | None = None
        self.producer: ProducerId | None = None
        self.transaction: OpenTransaction | None = None
        # The last committed transaction, when (`time.monotonic`), and the primary that had answered last.
        self.committed: tuple[TransactionId, float, tuple[int, int] | None] | None = None
        self._accumulator = accumulator
        self._origin = forks.here()
        self._enter(ClientState.UNINITIALIZED if transactional else ClientState.READY)

    def _enter(self, value: ClientState) -> None:
        self.value = value
        self.may_send = value is (ClientState.IN_TRANSACTION if self.transactional else ClientState.READY)

    @property
    def has_failed(self) -> bool:
        """Whether there is an error to raise: until the abort, or for good."""
        return self.value in FAILED

    @property
    def closed(self) -> bool:
        """Whether the producer was closed."""
        return self.value is ClientState.CLOSED

    def check(self, call: Call) -> None:
        """Raise `IllegalState` if this cannot be called now."""
        self._origin.require("a producer")
        client_move(self.value, call)

    def move(self, call: Call) -> None:
        """Make the move of a call. Raise `IllegalState` if it cannot be called now; nothing has changed then."""
        with self.lock:
            self._enter(client_move(self.value, call))

    def require_whole(self) -> None:
        """Raise `FatalError` if the producer was interrupted between two steps: records might be missing (I1)."""
        if self._accumulator.torn:
            raise interrupted()

    def raise_fatal(self) -> None:
        """Raise the error that has failed the producer for good, if there is one."""
        if self.value is ClientState.FATAL_ERROR and self.error is not None:
            raise fresh(self.error)

    def raise_failure(self) -> None:
        """Raise the error of the transaction or of the producer, if there is one."""
        if self.has_failed and self.error is not None:
            raise fresh(self.error)

    def refuse(self, call: Call) -> NoReturn:
        """Raise why this may not be called now."""
        self.raise_failure()
        self.check(call)
        raise AssertionError(f"{call} while {self.value} is refused by the table of moves")

    def fail(self, error: MsgtxError) -> None:
        """Fail the transaction; after a fatal error, the producer. The first error counts."""
        with self.lock:
            if self.value in {ClientState.CLOSED, ClientState.FATAL_ERROR}:
                return
            if error.fatal:
                self.error = fresh(error)  # the caller may raise this one
                self.move(Call.FATAL)
                if self.transaction is not None:
                    self.transaction.is_over = True
            elif self.value in _WRITING:
                self.error = fresh(error)
                self.move(Call.FAILED)
            self._accumulator.settled.notify_all()  # a thread that waits for room learns of it

    def lacks(self, transaction: OpenTransaction | None, error: MsgtxError) -> MsgtxError:
        """Fail a transaction that lacks a record, since `send` raised this: a commit would be of a part of it (I1).

        A wrong call changes nothing. Returns the exception to raise.
        """
        with self.lock:
            if transaction is self.transaction and not isinstance(error, UsageError):
                self.fail(DeliveryTimeout(f"a record was not sent: {error}") if error.retriable else error)
        return error

    def batch_failed(self, number: int | None, error: MsgtxError, *, of: OpenTransaction | None = None) -> None:
        """Fail the transaction of a batch, by its number. None and a fatal error: the producer.

        `of`: that transaction itself; of one that handed nothing over, the next one has the number.
        """
        with self.lock:
            transaction = self.transaction
            failed = transaction is not None and number == transaction.id.transaction_number
            failed = failed and (of is None or of is transaction)
            if failed or error.fatal:
                self.fail(error)
        if failed:
            self._accumulator.drop_unsent(error)

    def ended(self) -> None:
        """Forget the transaction, whose decision is known; after a fatal error the state stays."""
        with self.lock:
            if self.value is not ClientState.FATAL_ERROR:
                self.error = None
                self.move(Call.ENDED)
            if self.transaction is not None:
                self.transaction.is_over = True
            self.transaction = None  # last: an end that is interrupted can be repeated
            self._accumulator.settled.notify_all()  # a share consumer that is closed waits for its answers

    def close(self) -> None:
        """Take nothing any more."""
        with self.lock:
            self.move(Call.CLOSE)
            self._accumulator.settled.notify_all()  # a thread that waits for room learns of it

    def disown(self) -> None:
        """Close it in the child of a fork: no thread there sends anything."""
        self._enter(ClientState.CLOSED)
