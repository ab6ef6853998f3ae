"""Which commits notify, and that the others' readers hear soon, too."""

import threading

from msgtx.wakeup import Notifier
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


def test_closing_leaves_no_reader_untold() -> None:
    notifier = Notifier(threading.Condition())
    notifier.later([2])
    assert notifier.take(closing=True) == "2"
