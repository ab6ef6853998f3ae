"""Two tables of legal moves: a transaction as its rows show it, and a transactional producer's own state.

Every pair of state and event that a table does not list is illegal. Source: internals: transactions; Kafka's
`TransactionState` and `TransactionManager`.
"""

import enum
from collections.abc import Mapping
from typing import Final

from msgtx.errors import IllegalState


class State(enum.StrEnum):
    """The state of a transactional id, as view `transactions` derives it."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARED = "Prepared"


NUMBERS: Final[Mapping[State, int]] = {
    State.EMPTY: 0,
    State.ONGOING: 1,
    State.PREPARE_COMMIT: 2,
    State.PREPARE_ABORT: 3,
    State.COMPLETE_COMMIT: 4,
    State.COMPLETE_ABORT: 5,
    State.DEAD: 6,
    State.PREPARED: 8,
}


# Orders of a list of transactions; with a - the other direction.
SORTS: Final = ("transactional_id", "-transactional_id", "producer_id", "-producer_id")


class Event(enum.StrEnum):
    """The events that move a transaction."""

    OPEN = "open"
    SEAL = "seal"
    DECIDE_COMMIT = "decide COMMIT"
    DECIDE_ABORT = "decide ABORT"
    MARK = "mark"
    INIT = "init"
    EXPIRE_ID = "expire id"


# The state after the first event of the next transaction. It waits for no markers of the one before.
_NEXT: Final[Mapping[Event, State]] = {
    Event.OPEN: State.ONGOING,
    Event.SEAL: State.PREPARED,  # of offsets alone, or of nothing
    Event.DECIDE_COMMIT: State.PREPARE_COMMIT,  # a fused call; of offsets alone it is complete at once
    Event.DECIDE_ABORT: State.COMPLETE_ABORT,  # by name, while its first append is on the way: nothing is there to be marked
}
_DECIDED: Final = (State.PREPARE_COMMIT, State.PREPARE_ABORT, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
MOVES: Final[Mapping[tuple[State, Event], State]] = {
    **{(state, event): after for state in (State.EMPTY, *_DECIDED) for event, after in _NEXT.items()},
    (State.EMPTY, Event.INIT): State.EMPTY,
    (State.EMPTY, Event.EXPIRE_ID): State.DEAD,
    (State.ONGOING, Event.SEAL): State.PREPARED,
    (State.ONGOING, Event.DECIDE_COMMIT): State.PREPARE_COMMIT,
    (State.ONGOING, Event.DECIDE_ABORT): State.PREPARE_ABORT,
    (State.ONGOING, Event.INIT): State.EMPTY,  # which aborts it, and marks it unless somebody else is marking
    (State.PREPARED, Event.DECIDE_COMMIT): State.PREPARE_COMMIT,
    (State.PREPARED, Event.DECIDE_ABORT): State.PREPARE_ABORT,
    (State.PREPARED, Event.INIT): State.EMPTY,
    (State.PREPARE_COMMIT, Event.MARK): State.COMPLETE_COMMIT,  # after an INIT: Empty
    (State.PREPARE_ABORT, Event.MARK): State.COMPLETE_ABORT,  # after an INIT: Empty
    (State.PREPARE_COMMIT, Event.INIT): State.PREPARE_COMMIT,
    (State.PREPARE_ABORT, Event.INIT): State.PREPARE_ABORT,
    (State.COMPLETE_COMMIT, Event.INIT): State.EMPTY,
    (State.COMPLETE_COMMIT, Event.EXPIRE_ID): State.DEAD,
    (State.COMPLETE_ABORT, Event.INIT): State.EMPTY,
    (State.COMPLETE_ABORT, Event.EXPIRE_ID): State.DEAD,
    (State.DEAD, Event.INIT): State.EMPTY,  # as another producer id
}


class ClientState(enum.StrEnum):
    """The state of a transactional producer."""

    UNINITIALIZED = "UNINITIALIZED"
    READY = "READY"
    IN_TRANSACTION = "IN_TRANSACTION"
    COMMITTING = "COMMITTING"
    SEALING = "SEALING"
    SEALED = "SEALED"
    PREPARED = "PREPARED"
    ABORTING = "ABORTING"
    ABORTABLE_ERROR = "ABORTABLE_ERROR"
    FATAL_ERROR = "FATAL_ERROR"
    CLOSED = "CLOSED"


class Call(enum.StrEnum):
    """A call of a transactional producer, or an event that it meets."""

    INIT = "init_transactions"
    BEGIN = "begin_transaction"
    SEND = "send"
    SEND_OFFSETS = "send_offsets_to_transaction"
    SEND_ACKNOWLEDGEMENTS = "send_acknowledgements_to_transaction"
    COMMIT = "commit_transaction"
    SEAL = "the end of the session's block"
    PREPARE = "prepare"
    SEALED = "the seal's answer"
    PREPARED = "prepare's answer"
    KEPT = "a prepared transaction that init_transactions has kept"
    ABORT = "abort_transaction"
    ENDED = "the decision's answer"
    FAILED = "an abortable error"
    FATAL = "a fatal error"
    CLOSE = "close"


C = ClientState
CLIENT_MOVES: Final[Mapping[tuple[ClientState, Call], ClientState]] = {
    (C.UNINITIALIZED, Call.INIT): C.READY,
    (C.READY, Call.BEGIN): C.IN_TRANSACTION,
    (C.READY, Call.KEPT): C.PREPARED,
    (C.IN_TRANSACTION, Call.SEND): C.IN_TRANSACTION,
    (C.IN_TRANSACTION, Call.SEND_OFFSETS): C.IN_TRANSACTION,
    (C.IN_TRANSACTION, Call.SEND_ACKNOWLEDGEMENTS): C.IN_TRANSACTION,
    (C.IN_TRANSACTION, Call.COMMIT): C.COMMITTING,
    (C.IN_TRANSACTION, Call.ABORT): C.ABORTING,
    (C.IN_TRANSACTION, Call.FAILED): C.ABORTABLE_ERROR,
    (C.IN_TRANSACTION, Call.SEAL): C.SEALING,
    (C.IN_TRANSACTION, Call.PREPARE): C.SEALING,
    (C.COMMITTING, Call.COMMIT): C.COMMITTING,
    (C.COMMITTING, Call.ENDED): C.READY,
    (C.COMMITTING, Call.FAILED): C.ABORTABLE_ERROR,
    (C.SEALING, Call.PREPARE): C.SEALING,
    (C.SEALING, Call.SEALED): C.SEALED,
    (C.SEALING, Call.PREPARED): C.PREPARED,
    (C.SEALING, Call.ENDED): C.READY,  # nothing was sent
    (C.SEALING, Call.ABORT): C.ABORTING,
    (C.SEALING, Call.FAILED): C.ABORTABLE_ERROR,
    (C.SEALED, Call.ABORT): C.ABORTING,  # the session's commit fails then
    (C.SEALED, Call.ENDED): C.READY,
    (C.PREPARED, Call.COMMIT): C.COMMITTING,
    (C.PREPARED, Call.ABORT): C.ABORTING,
    (C.PREPARED, Call.ENDED): C.READY,
    (C.ABORTING, Call.ABORT): C.ABORTING,
    (C.ABORTING, Call.ENDED): C.READY,
    (C.ABORTING, Call.FAILED): C.ABORTING,
    (C.ABORTABLE_ERROR, Call.ABORT): C.ABORTING,
    (C.ABORTABLE_ERROR, Call.FAILED): C.ABORTABLE_ERROR,
    **{(state, Call.FATAL): C.FATAL_ERROR for state in C if state is not C.CLOSED},
    **{(state, Call.CLOSE): C.CLOSED for state in C},
    (C.CLOSED, Call.ENDED): C.CLOSED,  # another thread was ending the transaction
}

_HINTS: Final[Mapping[ClientState, str]] = {
    C.UNINITIALIZED: "call init_transactions first (entering `with` does it)",
    C.READY: "call begin_transaction first",
    C.IN_TRANSACTION: "a transaction is open: commit or abort it first",
    C.COMMITTING: "the outcome of commit_transaction is not known yet: only commit_transaction may be called again",
    C.SEALING: "whether it is sealed is not known yet: abort, or call prepare again",
    C.SEALED: "the session decides: commit or roll it back first",
    C.PREPARED: "the transaction is prepared: commit or abort it first, here or with client.complete",
    C.ABORTING: "the outcome of abort_transaction is not known yet: only abort_transaction may be called again",
    C.ABORTABLE_ERROR: "the transaction has failed: call abort_transaction",
    C.FATAL_ERROR: "the producer has failed for good: close it",
    C.CLOSED: "the producer is closed",
}


def client_move(state: ClientState, call: Call) -> ClientState:
    """Return the state after `call`. Raise `IllegalState` with the call to make instead; nothing has changed then."""
    try:
        return CLIENT_MOVES[state, call]
    except KeyError:
        raise IllegalState(f"{call} while {state}: {_HINTS[state]}", reason=state.value.lower()) from None
