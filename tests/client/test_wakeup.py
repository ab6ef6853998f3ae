"""Which commits notify, and that the others' readers hear soon, too."""

import threading
import time

from msgtx.database.engine import Engine
from msgtx.wakeup import POLL_MOST_SECONDS, POLL_SECONDS, Listener, Notifier, Waiter
from tests.databases import wait_until


def test_commits_that_come_fast_are_notified_together() -> None:
    notifier = Notifier(threading.Condition())
    assert notifier.now([1])
    assert not notifier.now([2])
    notifier.later([3, 2])
    assert wait_until(lambda: notifier.take(closing=False), "the notification is due") == "2,3"
    assert notifier.take(closing=False) is None


def test_a_commit_that_notifies_does_so_for_those_before_it() -> None:
    notifier = Notifier(threading.Condition())
    notifier.later([2])
    assert notifier.now([1, 2])
    assert notifier.take(closing=True) is None


def test_thousands_of_partitions_are_told_in_several_notifications() -> None:
    """PostgreSQL refuses a notification of 8000 bytes."""
    notifier = Notifier(threading.Condition())
    notifier.later(list(range(1_000_000, 1_002_000)))
    told: list[str] = []
    while (payload := notifier.take(closing=True)) is not None:
        assert len(payload) < 8_000
        told += payload.split(",")
    assert told == [str(number) for number in range(1_000_000, 1_002_000)]


def test_closing_leaves_no_reader_untold() -> None:
    notifier = Notifier(threading.Condition())
    notifier.later([2])
    assert notifier.take(closing=True) == "2"


def test_without_notifications_a_consumer_looks_often_after_data_and_seldom_in_silence(engine: Engine) -> None:
    listener = Listener(engine)
    waiter = Waiter(listener)
    looks = []
    for _ in range(6):
        waiter.clear()
        begun = time.monotonic()
        waiter.wait(10.0)
        looks.append(time.monotonic() - begun)
    assert min(looks[-2:]) >= POLL_MOST_SECONDS
    waiter.clear()  # data came,
    waiter.clear()  # and was looked at
    begun = time.monotonic()
    waiter.wait(10.0)
    assert POLL_SECONDS <= time.monotonic() - begun < POLL_MOST_SECONDS
    listener.close()
