"""The instrument finds what it is for: each kind of wrong answer, given by a database that lies."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.model.machine import Machine
from tests.model.oracle import COMMIT, OPEN, Loss, NoSuchWorldError, Oracle, Request
from tests.model.place import Place

Row = list[Any]  # of a partition: last stable offset, log end, who holds it back, committed, everything
COMMITTED, EVERYTHING = 3, 4


class LyingPlace(Place):
    """A place whose database lies, once a test says how."""

    lie: Callable[[Row], object] | None = None
    outcomes: Callable[[str], str] = staticmethod(lambda outcome: outcome)

    def read(self, partition_ids: list[int]) -> list[tuple[object, ...]]:
        rows = super().read(partition_ids)
        if self.lie is not None:
            first = list(rows[0])
            self.lie(first)
            rows[0] = tuple(first)
        return rows

    def outcome(self, name: tuple[int, int, int]) -> str:
        return self.outcomes(super().outcome(name))


@pytest.fixture(scope="module")
def place(database_url: str) -> Iterator[LyingPlace]:
    made = LyingPlace(database_url)
    yield made
    made.close()


@pytest.fixture
def history(place: LyingPlace) -> Iterator[Machine]:
    """In partition 0, one behind the other: a plain record, a committed one, an aborted one, an open one, a plain one."""

    class Here(Machine):
        find_place = staticmethod(lambda: place)

    made = Here()
    made.begin(by_hand=[False, False])
    made.send_plainly(where=[0], sizes=[1], crash=0)
    made.send_batches(which=0, partition=0, sizes=[1], crash=0)
    made.send_offsets(which=0, group=0, partition=0, at=1)
    made.finish(which=0, outcome=COMMIT, crash=0)
    made.send_batches(which=0, partition=0, sizes=[1], crash=0)
    made.finish(which=0, outcome="ABORT", crash=0)
    made.send_batches(which=1, partition=0, sizes=[1], crash=0)
    made.send_plainly(where=[0], sizes=[1], crash=0)
    made.everything_agrees()
    yield made
    place.lie = None
    place.outcomes = lambda outcome: outcome
    made.teardown()


LIES: dict[str, Callable[[Row], object]] = {
    "lost write": lambda row: row[COMMITTED].pop(),
    "duplicate": lambda row: row[COMMITTED].append((3, row[COMMITTED][-1][1])),
    "aborted read": lambda row: row[COMMITTED].append(row[EVERYTHING][2]),
    "read of what is open": lambda row: row[COMMITTED].append(row[EVERYTHING][3]),
    "read behind what is open": lambda row: row[COMMITTED].append(row[EVERYTHING][4]),
    "another order": lambda row: row[COMMITTED].reverse(),
    "another value": lambda row: row[COMMITTED].append((row[COMMITTED].pop()[0], b"?")),
    "gap": lambda row: row[EVERYTHING].pop(2),
    "an end that moves back": lambda row: row.__setitem__(1, row[1] - 1),
    "a stable offset too high": lambda row: row.__setitem__(0, row[0] + 1),
    "a stable offset too low": lambda row: row.__setitem__(0, row[0] - 1),
    "a transaction that nobody sees": lambda row: row.__setitem__(2, None),
}


@pytest.mark.parametrize("kind", LIES)
def test_what_a_reader_must_not_get_is_found(history: Machine, place: LyingPlace, kind: str) -> None:
    place.lie = LIES[kind]
    with pytest.raises(AssertionError, match="found"):
        history.everything_agrees()


def _look_at_all(history: Machine) -> None:
    for _ in (*history.groups, *history.oracle.transactions):  # another one each time
        history.everything_agrees()


def test_a_second_outcome_is_found(history: Machine, place: LyingPlace) -> None:
    place.outcomes = lambda outcome: {"ABORT": COMMIT, COMMIT: "ABORT"}.get(outcome, outcome)
    with pytest.raises(AssertionError, match="found"):
        _look_at_all(history)


def test_offsets_without_their_outputs_are_found(history: Machine) -> None:
    committed = history.oracle.offsets
    history.oracles = [oracle := history.oracle.fork()]
    oracle.offsets = {}
    with pytest.raises(AssertionError, match="found"):
        _look_at_all(history)
    oracle.offsets = committed
    history.oracles = [oracle]


def test_a_wrong_answer_is_found(history: Machine) -> None:
    """A zombie is let in, an acknowledgement names another offset, a commit says what is not so."""
    name = next(name for name, transaction in history.oracle.transactions.items() if transaction.outcome == OPEN)
    old = Request(name[0], name[1] - 1, name[2], 0, 0, (b"late",))
    for model, wrong in (
        (lambda o, _: o.append(old)[0], (None, 5, False)),
        (lambda o, _: o.append(Request(*name, 0, 1, (b"next",)))[0], (None, 4, False)),
        (lambda o, _: o.decide(name, COMMIT, {0: 7}, {})[0], None),
    ):
        oracles = [oracle.fork() for oracle in history.oracles]
        with pytest.raises(AssertionError, match="answered"):
            history.ask(lambda wrong=wrong: wrong, model)
        history.oracles = oracles


def test_a_reader_that_skips_is_found(history: Machine) -> None:
    reader = history.readers[0]
    reader.consumer.seek(history.partitions[0], 1)
    with pytest.raises(AssertionError):
        history.drain(reader)
    reader.at = history.positions(reader)


def test_what_was_flushed_is_never_lost(history: Machine) -> None:
    """I9: a crash takes back the newest changes one by one, and stops at what a decision has flushed."""
    del history
    oracle = Oracle([[]], epochs={1: 0}, timeouts={1: 10}, remembers=True)
    oracle.append(Request(1, 0, 0, 0, 0, (b"kept",)))
    oracle.decide((1, 0, 0), COMMIT, {0: 0}, {})
    oracle.append(Request(1, 0, 1, 0, 1, (b"open",)))
    oracle.append(Request(1, 0, 1, 0, 2, (b"open, too",)))
    found = []
    for back in range(3):
        world = oracle.fork()
        world.lose(back)
        found.append([entry.value for entry in world.logs[0]])
    assert found == [[b"kept", b"open", b"open, too"], [b"kept", b"open"], [b"kept"]]
    with pytest.raises(NoSuchWorldError):
        oracle.fork().lose(3)
    torn = oracle.fork(Loss(call=1, after=False, back=1))
    assert torn.decide((1, 0, 1), COMMIT, {0: 2}, {})[0] == "TransactionAborted", "a hole is no commit"
