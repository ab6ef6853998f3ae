"""The loop of a mirror between two ends that do as they are told: what it retries, and how long it waits."""

import threading
from dataclasses import dataclass, field

import pytest

from msgtx import errors
from msgtx.mirror import loop
from msgtx.mirror.asked import Asked
from msgtx.mirror.ends import Lag, Portion, PortionLimits, Progress, SourcePlace
from msgtx.mirror.loop import MirrorLoop
from msgtx.types import Record, TopicPartition
from tests.refusals import refuses

MOST_CALLS = 1_000


@dataclass
class Ends:
    """A source with one portion that it returns again and again, and a target. `stop`: set after many calls."""

    portion: Portion
    failure: errors.MsgtxError | None = None  # of each write
    stop: threading.Event = field(default_factory=threading.Event)
    limits: PortionLimits | None = None  # of the last portion
    calls: int = 0
    notes: int = 0
    given_up: Exception | None = None

    def next(self, progress: Progress, limits: PortionLimits) -> Portion:
        self.limits = limits
        self.calls += 1
        if self.calls > MOST_CALLS:
            self.stop.set()
        return self.portion

    def wait(self, timeout: float) -> None:
        pass

    def close(self) -> None:
        pass

    def take_over(self) -> Progress:
        return Progress()

    def write(self, progress: Progress, portion: Portion) -> Progress:
        if self.failure is not None:
            raise self.failure
        for _ in portion.records:
            pass
        return progress

    def give_up(self, error: Exception) -> None:
        self.given_up = error

    def note(self, lag: Lag) -> None:
        self.notes += 1
        self.stop.set()


def of(records: int, *, lag: int = 0) -> Portion:
    """Return a portion of so many records; without any, an empty one."""
    places = {TopicPartition("t", 0): SourcePlace(records, "7")} if records else {}
    return Portion("source", [Record("t", 0, 0, 0, None, b"", ())] * records, places, {}, Lag(lag, 0))


def run(ends: Ends, *, rate_limit: int | None = None, outage_timeout: float | None = None) -> None:
    asked = Asked("x", frozenset({"t"}), max_bytes=1_000, rate_limit=rate_limit, outage_timeout=outage_timeout)
    MirrorLoop(asked, ends, ends, ends.stop).run()


def test_a_write_that_fails_each_time_ends_the_mirror_after_the_outage_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "pause", lambda *_: None)
    with refuses(errors.DatabaseUnavailable) as refused:
        run(Ends(of(1), errors.DatabaseUnavailable("away")), outage_timeout=0.0)
    assert refused.value.__notes__ == ["an end was away for 0 s: outage_timeout is 0 s"]


def test_a_write_that_fails_each_time_for_another_reason_ends_the_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "pause", lambda *_: None)
    ends = Ends(of(1), errors.LockTimeout("waited"))
    with refuses(errors.LockTimeout):
        run(ends)
    assert ends.given_up is ends.failure


def test_while_open_transactions_overlap_the_mirror_looks_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(loop, "pause", lambda seconds, _: pauses.append(seconds))
    run(Ends(of(0, lag=5)))
    assert pauses[0] < pauses[1] < pauses[2]
    assert max(pauses) == loop.LONGEST_HELD_SECONDS
    pauses.clear()
    run(Ends(of(0)))
    assert set(pauses) == {0.0}


def test_a_mirror_that_is_slowed_down_takes_little_at_once_and_notes_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "pause", lambda *_: None)
    ends = Ends(of(1_000))  # one transaction is larger than asked for
    run(ends, rate_limit=1)
    assert ends.limits == PortionLimits(5, 1_000)
    assert ends.notes == 1
