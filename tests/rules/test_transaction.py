"""The two tables of legal moves: what is absent is illegal (internals: transactions#states)."""

from collections.abc import Mapping
from typing import Any

import pytest

from msgtx.errors import IllegalState
from msgtx.rules.transaction import CLIENT_MOVES, MOVES, NUMBERS, Call, ClientState, Event, State, client_move

C = ClientState
# Written from a page, not from the code (internals: transactions): for each state, which calls
# are legal, and where they lead.
CLIENT: dict[ClientState, dict[Call, ClientState]] = {
    C.UNINITIALIZED: {Call.INIT: C.READY},
    C.READY: {Call.BEGIN: C.IN_TRANSACTION, Call.KEPT: C.PREPARED},
    C.IN_TRANSACTION: {
        Call.SEND: C.IN_TRANSACTION,
        Call.SEND_OFFSETS: C.IN_TRANSACTION,
        Call.SEND_ACKNOWLEDGEMENTS: C.IN_TRANSACTION,
        Call.COMMIT: C.COMMITTING,
        Call.SEAL: C.SEALING,
        Call.PREPARE: C.SEALING,
        Call.ABORT: C.ABORTING,
        Call.FAILED: C.ABORTABLE_ERROR,
    },
    C.SEALING: {
        Call.PREPARE: C.SEALING,
        Call.SEALED: C.SEALED,
        Call.PREPARED: C.PREPARED,
        Call.ENDED: C.READY,
        Call.ABORT: C.ABORTING,
        Call.FAILED: C.ABORTABLE_ERROR,
    },
    C.SEALED: {Call.ABORT: C.ABORTING, Call.ENDED: C.READY},
    C.PREPARED: {Call.COMMIT: C.COMMITTING, Call.ABORT: C.ABORTING, Call.ENDED: C.READY},
    C.COMMITTING: {Call.COMMIT: C.COMMITTING, Call.ENDED: C.READY, Call.FAILED: C.ABORTABLE_ERROR},
    C.ABORTING: {Call.ABORT: C.ABORTING, Call.ENDED: C.READY, Call.FAILED: C.ABORTING},
    C.ABORTABLE_ERROR: {Call.ABORT: C.ABORTING, Call.FAILED: C.ABORTABLE_ERROR},
    C.FATAL_ERROR: {},
    C.CLOSED: {Call.ENDED: C.CLOSED},
}
# From the table of states (internals: transactions#states): which states may follow each.
# `tests/store/test_moves.py` asks the database.
BEGUN = {State.ONGOING, State.PREPARED, State.PREPARE_COMMIT, State.COMPLETE_ABORT}  # by the next transaction
FOLLOWED_BY = {
    State.EMPTY: BEGUN | {State.EMPTY, State.DEAD},
    State.ONGOING: {State.PREPARE_COMMIT, State.PREPARE_ABORT, State.PREPARED, State.EMPTY},
    State.PREPARE_COMMIT: BEGUN | {State.PREPARE_COMMIT, State.COMPLETE_COMMIT},
    State.PREPARE_ABORT: BEGUN | {State.PREPARE_ABORT, State.COMPLETE_ABORT},
    State.COMPLETE_COMMIT: BEGUN | {State.EMPTY, State.DEAD},
    State.COMPLETE_ABORT: BEGUN | {State.EMPTY, State.DEAD},
    State.DEAD: {State.EMPTY},
    State.PREPARED: {State.PREPARE_COMMIT, State.PREPARE_ABORT, State.EMPTY},
}


def reachable(moves: Mapping[tuple[Any, Any], Any], start: Any) -> set[Any]:
    found = {start}
    while more := {after for (before, _), after in moves.items() if before in found} - found:
        found |= more
    return found


@pytest.mark.parametrize("state", State)
def test_a_state_is_followed_by_what_the_page_says(state: State) -> None:
    assert {target for (before, _), target in MOVES.items() if before is state} == FOLLOWED_BY[state]


def test_every_state_is_reachable_and_has_kafkas_number() -> None:
    assert reachable(MOVES, State.EMPTY) == set(State)
    assert {NUMBERS[state]: state.value for state in State} == {
        0: "Empty",
        1: "Ongoing",
        2: "PrepareCommit",
        3: "PrepareAbort",
        4: "CompleteCommit",
        5: "CompleteAbort",
        6: "Dead",
        8: "Prepared",
    }


def test_every_event_moves_something() -> None:
    assert {event for _, event in MOVES} == set(Event)


def test_what_is_decided_stays_decided() -> None:
    """I4: its markers follow the decision; all else belongs to the next transaction, as if it were the first one."""
    for decided, complete in ((State.PREPARE_COMMIT, State.COMPLETE_COMMIT), (State.PREPARE_ABORT, State.COMPLETE_ABORT)):
        moves = {event: after for (before, event), after in MOVES.items() if before is decided}
        assert moves.pop(Event.MARK) is complete
        assert moves.pop(Event.INIT) is decided
        assert moves == {
            event: MOVES[State.EMPTY, event] for event in Event if event not in {Event.MARK, Event.INIT, Event.EXPIRE_ID}
        }


@pytest.mark.parametrize("state", ClientState)
@pytest.mark.parametrize("call", Call)
def test_every_call_in_every_state(state: ClientState, call: Call) -> None:
    expected = CLIENT[state].get(call)
    if call is Call.CLOSE:
        expected = C.CLOSED
    if call is Call.FATAL and state is not C.CLOSED:
        expected = C.FATAL_ERROR
    if expected is None:
        with pytest.raises(IllegalState, match=f"{call} while {state}: ."):
            client_move(state, call)
    else:
        assert client_move(state, call) is expected


def test_every_client_state_is_reachable_and_can_be_left() -> None:
    assert reachable(CLIENT_MOVES, C.UNINITIALIZED) == set(ClientState)
    for state in ClientState:
        assert C.CLOSED in reachable(CLIENT_MOVES, state)
