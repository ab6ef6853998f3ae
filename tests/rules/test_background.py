"""A background thread goes on after whatever its loop raises, and says what it was."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from msgtx import background, errors
from msgtx.background import BackgroundThread

SECONDS = 10.0
EXCEPTIONS = [
    errors.DatabaseUnavailable("away"),
    OSError("no file descriptor is left"),
    RuntimeError("can't start new thread"),
    MemoryError(),
    SystemExit(1),
    KeyboardInterrupt(),
    AssertionError("a bug"),
]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "FIRST_PAUSE_SECONDS", 0.001)


@pytest.fixture
def made() -> Iterator[Callable[..., BackgroundThread]]:
    """Make threads that end with the test."""
    threads: list[BackgroundThread] = []

    def make(loop: Callable[[], object], **named: object) -> BackgroundThread:
        threads.append(BackgroundThread("msgtx-tested", loop, what="the tested thread", **named))  # type: ignore[arg-type]
        return threads[-1]

    yield make
    for each in threads:
        each.stop()
        assert each.join(SECONDS)


@pytest.mark.parametrize("error", EXCEPTIONS, ids=lambda error: type(error).__name__)
def test_whatever_ends_the_loop_is_told_and_the_loop_is_run_again(
    made: Callable[..., BackgroundThread], error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[errors.MsgtxError] = []
    runs: list[BaseException] = [error, error]
    again = threading.Event()

    def loop() -> None:
        if runs:
            raise runs.pop()
        again.set()

    with caplog.at_level(logging.DEBUG, "msgtx.background"):
        thread = made(loop, failed=told.append, pause=0.001)
        thread.start()
        assert again.wait(SECONDS)
        assert thread.join(SECONDS)
    assert len(told) == 2
    if isinstance(error, errors.MsgtxError):
        assert told == [error, error]
    else:
        assert [type(each) for each in told] == [errors.FatalError] * 2
        assert [each.__cause__ for each in told] == [error, error]
        assert told[0] is not told[1]
    assert sum("the tested thread" in record.getMessage() for record in caplog.records) == 2


def test_a_bug_is_logged_with_its_traceback_and_a_passing_error_is_not(
    made: Callable[..., BackgroundThread], caplog: pytest.LogCaptureFixture
) -> None:
    raised: list[BaseException] = [errors.DatabaseUnavailable("away"), AssertionError("a bug")]

    def loop() -> None:
        if raised:
            raise raised.pop(0)

    with caplog.at_level(logging.DEBUG, "msgtx.background"):
        thread = made(loop, pause=0.001)
        thread.start()
        assert thread.join(SECONDS)
    assert [(record.levelname, record.exc_info is not None) for record in caplog.records] == [
        ("DEBUG", False),
        ("ERROR", True),
    ]


def test_what_fails_while_a_failure_is_told_ends_nothing(
    made: Callable[..., BackgroundThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "LONGEST_PAUSE_SECONDS", 0.001)
    raised: list[BaseException] = [AssertionError("a bug")]
    again = threading.Event()

    def loop() -> None:
        if raised:
            raise raised.pop()
        again.set()

    def failed(_: errors.MsgtxError) -> None:
        raise MemoryError

    made(loop, failed=failed).start()
    assert again.wait(SECONDS)


def test_a_stopped_thread_is_not_run_again(made: Callable[..., BackgroundThread]) -> None:
    runs: list[None] = []

    def loop() -> None:
        runs.append(None)
        raise errors.DatabaseUnavailable("away")

    thread = made(loop, pause=3_600.0)
    thread.start()
    while not runs:
        time.sleep(0.001)
    thread.stop()  # ends the pause, too
    assert thread.join(SECONDS)
    thread.start()
    assert (len(runs), thread.lives) == (1, False)


def test_a_loop_that_has_returned_is_not_run_again(made: Callable[..., BackgroundThread]) -> None:
    runs: list[None] = []
    thread = made(lambda: runs.append(None))
    thread.start()
    assert thread.join(SECONDS)
    thread.start()
    assert (len(runs), thread.lives) == (1, False)


def test_a_thread_that_the_system_refuses_is_a_typed_error_and_the_next_start_starts_it(
    made: Callable[..., BackgroundThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()
    thread = made(begun.set)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(errors.ThreadNotStarted, match="the tested thread needs a thread") as raised:
            thread.start()
    assert (type(raised.value.__cause__), raised.value.retriable) == (RuntimeError, True)
    assert (thread.lives, thread.started) == (False, False)
    thread.start()
    assert begun.wait(SECONDS)


def test_a_thread_that_died_between_two_runs_is_started_again(
    made: Callable[..., BackgroundThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an interrupt of the supervisor's own lines would have it."""
    over = threading.Event()
    begun: list[None] = []

    def loop() -> None:
        begun.append(None)
        over.wait(SECONDS)

    thread = made(loop)
    with monkeypatch.context() as patch:
        patch.setattr(BackgroundThread, "_run", lambda _: None)
        thread.start()
        assert thread.join(SECONDS)
    thread.start()
    thread.start()  # it lives
    while not begun:
        time.sleep(0.001)
    assert (len(begun), thread.lives) == (1, True)
    over.set()


def test_a_thread_does_not_wait_for_itself(made: Callable[..., BackgroundThread]) -> None:
    waited: list[bool] = []
    thread = made(lambda: waited.append(thread.join()))
    thread.start()
    assert thread.join(SECONDS)
    assert waited == [False]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of 3.12: the thread is what it is about
def test_the_child_of_a_fork_starts_none_and_waits_for_none(made: Callable[..., BackgroundThread]) -> None:
    over = threading.Event()
    thread = made(lambda: over.wait(SECONDS))
    thread.start()
    child = os.fork()
    if child == 0:
        refused = False
        try:
            thread.start()
        except errors.IllegalState:
            refused = True
        os._exit(0 if refused and not thread.lives and thread.join() else 1)
    assert os.waitpid(child, 0)[1] == 0
    over.set()
