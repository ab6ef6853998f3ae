"""The table of moves and the database: events in all states of real transactions (internals: transactions#states)."""

import contextlib
from collections.abc import Callable
from typing import Any, Final, Literal

import pytest

from msgtx.errors import ConcurrentTransactions, InvalidProducerIdMapping, MsgtxError
from msgtx.rules.transaction import MOVES, Event, State
from msgtx.store.sweeps import sweeps
from msgtx.store.transactions.seal import Kind, Sealed, complete_prepared, decide_sealed, seal
from msgtx.store.transactions.transactions import mark
from tests.databases import Clock, Connection
from tests.store.steps import Writer, append_one, new_partition, offsets_of, to_its_end

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("bare")]


class Stage:
    """A producer and what befalls it. An event concerns the transaction that is open, else the one that would be next."""

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self.connection = connection
        self.clock = clock
        self.partition = new_partition(connection)
        self.writer = Writer(connection)

    def row(self) -> tuple[Any, ...] | None:
        """The producer's row of view `transactions`."""
        return self.connection.execute(
            "select state, producer_id, current_epoch, producer_epoch, transaction_number from msgtx.transactions"
            " where transactional_id = %s",
            [self.writer.transactional_id],
        ).fetchone()

    @property
    def state(self) -> State:
        """The state that the view shows; without a row of the producer it is dead."""
        row = self.row()
        return State.DEAD if row is None else State(row[0])

    def begin(self) -> None:
        """The first append of a transaction: of the next one, while one is open."""
        if self.state in {State.ONGOING, State.PREPARED}:
            self.writer.next()
        row = self.writer.row(self.partition, b"value")
        _raise(append_one(self.connection, row, flushed=False).error)
        self.writer.counted(row)

    def seal(self, kind: Kind = "external") -> Sealed:
        """The end of its writing part."""
        answer = seal(self.connection, self.writer.name, kind, tails=self.writer.tails)
        _raise(answer.error)
        assert answer.sealed is not None
        return answer.sealed

    def decide(self, outcome: Literal["COMMIT", "ABORT"]) -> None:
        """Its end: of what is prepared by an outside party; of what has no records by the fused call, or by name."""
        if self.state is State.PREPARED:
            complete_prepared(self.connection, self.writer.name, outcome)
        elif outcome == "COMMIT" and not self.writer.tails:
            row = self.writer.row(self.partition, b"value")
            _raise(self.writer.whole(row)[0].error)
            self.writer.counted(row)
        else:
            _raise(self.writer.decide(outcome).error)
        self.writer.next()

    def expire(self) -> None:
        """A sweep that comes when an idle id has expired."""
        self.clock("8 days")
        list(to_its_end(self.connection, sweeps.remove_idle_producers))


def _raise(error: MsgtxError | None) -> None:
    if error is not None:
        raise error


EVENTS: Final[dict[Event, Callable[[Stage], object]]] = {
    Event.OPEN: Stage.begin,
    Event.SEAL: Stage.seal,
    Event.DECIDE_COMMIT: lambda stage: stage.decide("COMMIT"),
    Event.DECIDE_ABORT: lambda stage: stage.decide("ABORT"),
    Event.MARK: lambda stage: mark(stage.connection),
    Event.INIT: lambda stage: stage.writer.init(),
    Event.EXPIRE_ID: Stage.expire,
}
WAYS: Final[dict[State, tuple[Event, ...]]] = {
    State.EMPTY: (),
    State.ONGOING: (Event.OPEN,),
    State.PREPARED: (Event.OPEN, Event.SEAL),
    State.PREPARE_COMMIT: (Event.OPEN, Event.DECIDE_COMMIT),
    State.PREPARE_ABORT: (Event.OPEN, Event.DECIDE_ABORT),
    State.COMPLETE_COMMIT: (Event.OPEN, Event.DECIDE_COMMIT, Event.MARK),
    State.COMPLETE_ABORT: (Event.OPEN, Event.DECIDE_ABORT, Event.MARK),
    State.DEAD: (Event.EXPIRE_ID,),
}


@pytest.fixture
def stage(connection: Connection, clock: Clock) -> Stage:
    """A producer that has done nothing yet."""
    return Stage(connection, clock)


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", State)
def test_an_event_moves_a_transaction_as_the_table_says_or_not_at_all(stage: Stage, state: State, event: Event) -> None:
    for each in WAYS[state]:
        EVENTS[each](stage)
    assert stage.state is state
    if (state, event) in MOVES:
        EVENTS[event](stage)
        assert stage.state is MOVES[state, event]
        return
    before = stage.row()
    with contextlib.suppress(MsgtxError):
        EVENTS[event](stage)
    assert stage.row() == before


@pytest.mark.parametrize("event", [Event.OPEN, Event.SEAL, Event.DECIDE_COMMIT, Event.DECIDE_ABORT])
@pytest.mark.parametrize("state", [State.ONGOING, State.PREPARED, State.DEAD])
def test_what_is_open_or_unknown_refuses_what_the_table_does_not_have(stage: Stage, state: State, event: Event) -> None:
    if (state, event) in MOVES or (state, event) == (State.PREPARED, Event.SEAL):  # the same again is a success
        return
    for each in WAYS[state]:
        EVENTS[each](stage)
    with pytest.raises(ConcurrentTransactions if state is not State.DEAD else InvalidProducerIdMapping):
        EVENTS[event](stage)


@pytest.mark.parametrize("outcome", ["COMMIT", "ABORT"])
def test_what_is_sealed_for_a_session_moves_as_what_is_prepared(stage: Stage, outcome: Literal["COMMIT", "ABORT"]) -> None:
    stage.begin()
    sealed = stage.seal("session")
    assert stage.state is State.PREPARED
    if outcome == "COMMIT":
        decide_sealed(stage.connection, sealed)
    else:
        stage.writer.decide(outcome)
    assert stage.state is MOVES[State.PREPARED, Event.DECIDE_COMMIT if outcome == "COMMIT" else Event.DECIDE_ABORT]


@pytest.mark.parametrize("state", [State.PREPARE_COMMIT, State.PREPARE_ABORT])
def test_the_markers_of_a_fenced_epoch_leave_an_id_empty(stage: Stage, state: State) -> None:
    for each in (*WAYS[state], Event.INIT):
        EVENTS[each](stage)
    assert stage.state is state
    mark(stage.connection)
    assert stage.state is State.EMPTY


def test_a_commit_of_offsets_alone_has_no_markers_to_wait_for(stage: Stage) -> None:
    stage.writer.commit(offsets_of(("group", stage.partition, 0)))
    assert stage.state is State.COMPLETE_COMMIT
