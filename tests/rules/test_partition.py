"""The moves of a partition that a consumer reads: each is made on a real one, and what no table lists is refused."""

import ast
from collections.abc import Callable
from typing import Final

import pytest

from msgtx.consumer.partition import Assigned
from msgtx.rules.partition import PLACES, RETURNED, FetchState, Returned, ReturnedEvent
from msgtx.store.fetch.fetch import Position
from msgtx.types import TopicPartition, TransactionId
from tests.house.sources import ROOT

HOLDER: Final = TransactionId(1, 0, 7)
# What moves a partition to each place by itself, and what the caller does.
MOVES: Final[dict[FetchState, Callable[[Assigned], None]]] = {
    FetchState.READING: lambda assigned: assigned.found(Position(5)),
    FetchState.WAITING: lambda assigned: assigned.wait_for(HOLDER),
    FetchState.OUT_OF_RANGE: lambda assigned: assigned.lose_position(5),
    FetchState.FINDING: lambda assigned: assigned.find_again(),
}
SEEKS: Final[dict[FetchState, Callable[[Assigned], None]]] = {
    FetchState.READING: lambda assigned: assigned.seek(9),
    FetchState.LOOKING_UP: lambda assigned: assigned.seek_to_time(1_000),
    FetchState.FINDING: lambda assigned: assigned.go_back(),
}
# Written from a page, not from the code (internals: groups): what becomes of returned records.
BECOMES: Final = {
    ReturnedEvent.HAND_OUT: {Returned.SETTLED: Returned.HANDED},  # else it stays
    ReturnedEvent.COMMIT: dict.fromkeys(Returned, Returned.SETTLED),
    ReturnedEvent.TAKE_BACK: dict.fromkeys(Returned, Returned.GOES_BACK),
    ReturnedEvent.LOSE_BATCH: dict.fromkeys(Returned, Returned.GOES_BACK),
    ReturnedEvent.LOSE: dict.fromkeys(Returned, Returned.ASKS),
    ReturnedEvent.SEEK: {Returned.GOES_BACK: Returned.HANDED, Returned.ASKS: Returned.HANDED},
    ReturnedEvent.REWIND: dict.fromkeys(Returned, Returned.SETTLED),
}
MAKE: Final[dict[ReturnedEvent, Callable[[Assigned], object]]] = {
    ReturnedEvent.COMMIT: Assigned.committed,
    ReturnedEvent.TAKE_BACK: Assigned.take_back,
    ReturnedEvent.LOSE_BATCH: lambda assigned: assigned.lost(ReturnedEvent.LOSE_BATCH),
    ReturnedEvent.LOSE: lambda assigned: assigned.lost(ReturnedEvent.LOSE),
    ReturnedEvent.SEEK: lambda assigned: assigned.seek(9),
    ReturnedEvent.REWIND: Assigned.go_back,
}


def at(place: FetchState) -> Assigned:
    """Return a partition that was led to a place."""
    assigned = Assigned(TopicPartition("orders", 0), 3)
    if place is FetchState.LOOKING_UP:
        assigned.seek_to_time(1_000)
    elif place is FetchState.OUT_OF_RANGE:
        assigned.found(Position(5))
        assigned.lose_position(5)
    elif place is not FetchState.FINDING:
        MOVES[place](assigned)
    assert assigned.place is place
    return assigned


@pytest.mark.parametrize("after", MOVES)
@pytest.mark.parametrize("before", FetchState)
def test_a_consumer_makes_the_moves_of_the_table_and_no_others(before: FetchState, after: FetchState) -> None:
    assigned = at(before)
    if after not in PLACES[before]:
        with pytest.raises(AssertionError):
            MOVES[after](assigned)
        assert assigned.place is before
        return
    MOVES[after](assigned)
    assert assigned.place is after


@pytest.mark.parametrize("after", SEEKS)
@pytest.mark.parametrize("before", FetchState)
def test_a_caller_leads_it_from_each_place(before: FetchState, after: FetchState) -> None:
    assigned = at(before)
    SEEKS[after](assigned)
    assert (assigned.place, assigned.moves) == (after, at(before).moves + 1)


@pytest.mark.parametrize("place", FetchState)
def test_what_belongs_to_another_place_is_none(place: FetchState) -> None:
    assigned = at(place)
    found = (assigned.next, assigned.time, assigned.waits_for, assigned.out_of_range)
    expected = {FetchState.READING: 0, FetchState.LOOKING_UP: 1, FetchState.WAITING: 2, FetchState.OUT_OF_RANGE: 3}
    assert [index for index, each in enumerate(found) if each is not None] == [
        expected[p] for p in (place,) if p in expected
    ]


@pytest.mark.parametrize("event", ReturnedEvent)
@pytest.mark.parametrize("before", Returned)
def test_what_becomes_of_returned_records(before: Returned, event: ReturnedEvent) -> None:
    """A commit holds them, or a seek or a rewind gives them up; nothing else makes an undone one settled (I10)."""
    after = BECOMES[event].get(before, before)
    assert RETURNED[before, event] is after
    if event in MAKE:
        assigned = at(FetchState.READING)
        assigned.returned = before
        MAKE[event](assigned)
        assert assigned.returned is after


def test_what_was_returned_behind_a_lost_commit_is_overtaken() -> None:
    """It must not be committed by itself: that would pass what was lost (I10)."""
    assigned = at(FetchState.READING)
    assigned.lost(ReturnedEvent.LOSE)
    assert not assigned.overtaken
    assigned.committed()
    assigned.returned = Returned.HANDED
    assigned.lost(ReturnedEvent.LOSE)
    assert assigned.overtaken
    assigned.seek(9)
    assert not assigned.overtaken


def test_only_its_module_writes_its_fields() -> None:
    fields = set(Assigned.__slots__)
    for path in (ROOT / "msgtx/consumer").glob("*.py"):
        if path.name == "partition.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in (each for one in targets if one is not None for each in ast.walk(one)):
                written = isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store) and target.attr in fields
                assert not written or ast.unparse(target).startswith("self."), f"{path.name}:{target.lineno}"  # type: ignore[attr-defined]
