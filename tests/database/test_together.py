"""Calls that wait at the same time go together; answers, errors and waits are those of a call by itself."""

import concurrent.futures
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from msgtx import errors
from msgtx.database.connection import until
from msgtx.database.together import Latch, SharedCalls
from tests.databases import wait_until

LONG = 30.0


class Calls:
    """Shared calls that answer with what was asked, doubled; the first waits until it is let go."""

    def __init__(self, *, gather_seconds: float = 0.0, most: int = 10) -> None:
        self.made: list[list[int]] = []
        self.let_go = threading.Event()
        self.error: BaseException | None = None
        self.apart: set[int] = set()
        self.steps: dict[int, tuple[threading.Event, threading.Event]] = {}  # of a group: before it is sent, and afterwards
        self.shared = SharedCalls(self.alone, self.together, most=most, gather_seconds=gather_seconds)
        self.shared.patience = LONG
        self.threads = concurrent.futures.ThreadPoolExecutor(16)

    def alone(self, asked: int) -> int:
        self.made.append([asked])
        if asked == 0:
            assert self.let_go.wait(LONG)
        return 2 * asked

    def together(self, several: Sequence[int], sent: Callable[[], object]) -> list[int | None]:
        self.made.append(sorted(several))
        before, afterwards = self.steps.get(min(several), (self.let_go, self.let_go))
        assert before.wait(LONG)
        if self.error is not None:
            raise self.error
        sent()
        assert afterwards.wait(LONG)
        return [None if each in self.apart else 2 * each for each in several]

    def ask(self, asked: int) -> "concurrent.futures.Future[int]":
        return self.threads.submit(self.shared.call, asked)

    def queue(self, *several: int) -> "list[concurrent.futures.Future[int]]":
        """Have a call in flight, and these behind it."""
        found = [self.ask(0)]
        wait_until(lambda: self.made)
        for at, each in enumerate(several, 1):
            found.append(self.ask(each))
            wait_until(lambda at=at: len(self.shared.queue) >= at)
        return found

    def run(self, *several: int) -> list[int]:
        """Let the call in flight go, with these behind it; return the answers."""
        found = self.queue(*several)
        self.let_go.set()
        return [each.result(LONG) for each in found]


@pytest.fixture
def make() -> Iterator[Callable[..., Calls]]:
    made: list[Calls] = []

    def one(**settings: float) -> Calls:
        made.append(Calls(**settings))  # type: ignore[arg-type]  # most is an int
        return made[-1]

    yield one
    for each in made:
        each.let_go.set()
        each.threads.shutdown()
        assert each.shared.leader is None
        assert not each.shared.queue


@pytest.mark.parametrize("gather_seconds", [0.0, 0.2])
def test_a_call_without_others_goes_by_itself_at_once(make: Callable[..., Calls], gather_seconds: float) -> None:
    calls = make(gather_seconds=gather_seconds)
    began = time.monotonic()
    assert [calls.shared.call(each) for each in (1, 2, 3)] == [2, 4, 6]
    assert time.monotonic() - began < 0.2
    assert calls.made == [[1], [2], [3]]


def test_those_that_wait_go_together(make: Callable[..., Calls]) -> None:
    calls = make()
    assert calls.run(1, 2, 3) == [0, 2, 4, 6]
    assert calls.made == [[0], [1, 2, 3]]


def two_groups(calls: Calls) -> "list[concurrent.futures.Future[int]]":
    """Have a group of two in flight, and another one behind it."""
    calls.steps = {1: (threading.Event(), threading.Event()), 3: (threading.Event(), threading.Event())}
    found = calls.queue(1, 2)
    calls.steps[1][0].set()
    calls.let_go.set()
    wait_until(lambda: [1, 2] in calls.made)
    for at, each in enumerate((3, 4), 1):
        found.append(calls.ask(each))
        wait_until(lambda at=at: len(calls.shared.queue) >= at)
    return found


@pytest.mark.parametrize("how", ["sent", "failed", "late"])
def test_the_next_group_is_sent_before_the_threads_of_this_one_wake(make: Callable[..., Calls], how: str) -> None:
    """Nor do these wait for ever where it cannot be sent."""
    calls = make()
    calls.shared.patience = 2.0 if how == "late" else LONG
    _, _, second, *following = two_groups(calls)
    calls.steps[1][1].set()
    wait_until(lambda: [3, 4] in calls.made)
    if how == "late":
        assert second.result(LONG) == 4
    else:
        assert concurrent.futures.wait([second], 0.1).not_done
    if how == "failed":
        calls.error = ValueError("not sent")
    calls.steps[3][0].set()
    assert second.result(LONG) == 4
    if how == "sent":
        assert not following[0].done()
    calls.steps[3][1].set()
    assert [each.result(LONG) for each in following] == [6, 8]


def test_no_more_go_together_than_may(make: Callable[..., Calls]) -> None:
    calls = make(most=2)
    assert calls.run(1, 2, 3) == [0, 2, 4, 6]
    assert calls.made == [[0], [1, 2], [3]]


def test_one_that_could_not_go_along_goes_by_itself(make: Callable[..., Calls]) -> None:
    calls = make()
    calls.apart = {2}
    assert calls.run(1, 2) == [0, 2, 4]
    assert calls.made == [[0], [1, 2], [2]]


def test_what_fails_together_is_done_one_by_one(make: Callable[..., Calls]) -> None:
    calls = make()
    calls.error = ValueError("of one of them")
    assert calls.run(1, 2) == [0, 2, 4]
    assert calls.made[1] == [1, 2]
    assert sorted(calls.made[2:]) == [[1], [2]]


def test_one_that_is_interrupted_while_it_leads_has_the_others_ask_again(make: Callable[..., Calls]) -> None:
    """The call that they had in common may have been done: asked anew, it would not be recognised."""
    calls, again = make(), []
    calls.shared._again = lambda asked: again.append(asked) or 2 * asked
    calls.error = KeyboardInterrupt()
    first, *several = calls.queue(1, 2, 3)
    calls.let_go.set()
    assert first.result(LONG) == 0
    assert isinstance(several[0].exception(LONG), KeyboardInterrupt)
    assert [each.result(LONG) for each in several[1:]] == [4, 6]
    assert (sorted(again), calls.made) == ([2, 3], [[0], [1, 2, 3]])


def test_those_that_went_together_are_waited_for(make: Callable[..., Calls]) -> None:
    """Else the first one to come back would go alone, and the others behind it."""
    calls = make(gather_seconds=LONG)
    asked = calls.queue(1, 2, 3)
    calls.let_go.set()
    assert asked[0].result(LONG) == 0
    again = calls.ask(4)  # for the one that was in flight: four were there
    assert sorted(each.result(LONG) for each in [*asked[1:], again]) == [2, 4, 6, 8]
    assert calls.made == [[0], [1, 2, 3, 4]]
    once_more = [calls.ask(each) for each in (5, 6, 7, 8)]  # nobody waits now: the first one gathers the others
    assert [each.result(LONG) for each in once_more] == [10, 12, 14, 16]
    assert calls.made[-1] == [5, 6, 7, 8]


def test_nobody_is_waited_for_longer_than_a_moment_nor_twice(make: Callable[..., Calls]) -> None:
    calls = make(gather_seconds=0.2)
    assert calls.run(1, 2) == [0, 2, 4]
    wait_until(lambda: calls.shared.leader is None)
    began = time.monotonic()
    assert calls.shared.call(5) == 10  # of those two, one has left
    assert 0.15 < time.monotonic() - began < LONG / 2
    began = time.monotonic()
    assert calls.shared.call(6) == 12
    assert time.monotonic() - began < 0.15
    assert calls.made[2:] == [[5], [6]]


def test_one_that_is_interrupted_while_it_gathers_leaves_the_others(
    make: Callable[..., Calls], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = make(gather_seconds=LONG)
    calls.shared.patience = 0.05
    assert len(calls.queue(1, 2)) == 3
    wait, interrupted = Latch.wait, []

    def interrupting(latch: Latch, seconds: float) -> bool:
        gathering = calls.shared._gathering
        if gathering is not None and latch is gathering.full and not interrupted:
            interrupted.append(latch)
            raise KeyboardInterrupt
        return wait(latch, seconds)

    monkeypatch.setattr(Latch, "wait", interrupting)
    calls.let_go.set()
    wait_until(lambda: len(calls.made) >= 2)
    assert interrupted
    assert len(calls.made[1]) == 1


def test_one_that_waits_longer_than_it_may_raises_and_leaves_the_queue(make: Callable[..., Calls]) -> None:
    calls = make()
    calls.queue()

    def late() -> int:
        with until(time.monotonic() + 0.1):
            return calls.shared.call(1)

    with pytest.raises(errors.DatabaseUnavailable):
        calls.threads.submit(late).result(LONG)
    assert calls.shared.queue == []


def test_one_does_not_wait_long_for_the_call_ahead(make: Callable[..., Calls]) -> None:
    calls = make()
    calls.shared.patience = 0.01
    calls.queue()
    assert calls.ask(1).result(LONG) == 2
    assert calls.made == [[0], [1]]


def test_one_that_is_interrupted_as_it_comes_leaves_the_others(
    make: Callable[..., Calls], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = make(gather_seconds=0.01)
    assert calls.run(1, 2) == [0, 2, 4]
    wait_until(lambda: calls.shared.leader is None)
    gather = calls.shared._gather

    def interrupted(leader: object) -> None:
        gather(leader)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(calls.shared, "_gather", interrupted)
    with pytest.raises(KeyboardInterrupt):
        calls.shared.call(3)
    monkeypatch.undo()
    calls.shared.patience = 0.01
    assert calls.ask(4).result(LONG) == 8
