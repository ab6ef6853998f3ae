"""Calls of one client that wait at the same time go together: they share a round trip, an SQL transaction and its flush.

As PostgreSQL's sessions share a flush, only earlier: the setting up of plans and the COMMIT are shared, too. While a call is
in flight others queue; then they go together. Without others a call goes out at once, by itself.

With `gather_seconds`, a call waits for the members of the last group. Otherwise a pool of workers that all come back within
a moment would fall apart in two halves, and these would take turns. A call that was alone the last time waits for nobody.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from msgtx.database.connection import seconds_left
from msgtx.errors import DatabaseUnavailable

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
MOST_TOGETHER: Final = 64  # calls in one
TIME_IS_OVER: Final = "the server did not answer (the call's time is over)"


class Latch:
    """A one-waiter event, ten times cheaper than `threading.Event`; a shared call needs two."""

    __slots__ = ("_closed",)

    def __init__(self) -> None:
        self._closed = threading.Lock()
        self._closed.acquire()

    def set(self) -> None:
        """Wake the thread, now and whenever it waits again."""
        try:  # noqa: SIM105 - `suppress` takes longer than all the rest
            self._closed.release()
        except RuntimeError:  # it was set before
            pass

    def wait(self, seconds: float) -> bool:
        """Wait, at most so long. Returns whether it was set."""
        if self._closed.acquire(timeout=min(threading.TIMEOUT_MAX, seconds)):
            self.set()
            return True
        return False


class WaitingCall(Generic[Asked, Answer]):
    """A call in the queue, and the thread that waits for it."""

    __slots__ = ("answer", "asked", "debts", "full", "group", "has_failed", "is_over", "turn")

    turn: Latch  # to lead `group`, or because it is over
    full: Latch  # as many are in the queue as there were before

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.group: list[WaitingCall[Asked, Answer]] | None = None
        self.answer: Answer | None = None  # of the group's call; None: it goes by itself
        self.has_failed = False  # the group's call has, which may have been done
        self.is_over = False  # the group's call is, and `answer` holds
        self.debts: list[WaitingCall[Asked, Answer]] = []  # calls of the group before, to be woken when this one is sent

    def pay(self) -> None:
        """Wake the calls of the group before."""
        debts, self.debts = self.debts, []
        for each in debts:
            each.turn.set()


class SharedCalls(Generic[Asked, Answer]):
    """Makes calls, for any thread. One thread leads the calls that came while the leader before it was busy.

    `alone` makes one call, `again` one that has failed together with others; `together` makes several, and returns the
    answer of each (None: that one goes by itself); it is given `most` at most, and a function to call when all are on their
    way. Only that wakes the threads of the group before: they would take Python's lock, and the server would idle meanwhile.
    `patience`: how long one waits for its turn, in seconds, before it leads by itself: the call ahead may wait for a lock.
    `gather_seconds`: how long a leader waits for as many as there were before.
    """

    patience = 0.01  # a flush is over before

    def __init__(
        self,
        alone: Callable[[Asked], Answer],
        together: Callable[[Sequence[Asked], Callable[[], object]], Sequence[Answer | None]],
        *,
        most: int,
        gather_seconds: float = 0.0,
        again: Callable[[Asked], Answer] | None = None,
    ) -> None:
        self._alone = alone
        self._again = again or alone
        self._together = together
        self._most = most
        self._gather_seconds = gather_seconds
        self._crowd = 0  # calls of the last group, and those that waited when it was over
        self._gathering: WaitingCall[Asked, Answer] | None = None
        self._lock = threading.Lock()
        self.leader: object | None = None
        self.queue: list[WaitingCall[Asked, Answer]] = []

    def call(self, asked: Asked) -> Answer:
        """Make a call. Its answer and its error are those of a call by itself."""
        waiting: WaitingCall[Asked, Answer] = WaitingCall(asked)
        try:
            self._enter(waiting)
            if waiting.group is None:
                self._await_turn(waiting)
            if waiting.group is not None:
                self._lead(waiting.group, waiting.pay)
        finally:
            self.hand_over(waiting)
        if waiting.answer is not None:
            return waiting.answer
        return self._again(asked) if waiting.has_failed else self._alone(asked)

    def _enter(self, waiting: WaitingCall[Asked, Answer]) -> None:
        with self._lock:
            if self.leader is None and self._crowd <= 1:
                self.leader = waiting
                waiting.group = [waiting]
                return
            waiting.turn, waiting.full = Latch(), Latch()  # not for one that goes out at once
            self.queue.append(waiting)
            if self.leader is None:
                self._gather(waiting)
            elif self._gathering is not None and len(self.queue) >= self._crowd:
                self._gathering.full.set()

    def _await_turn(self, waiting: WaitingCall[Asked, Answer]) -> None:
        while not waiting.turn.wait(min(self.patience, seconds_left())):
            with self._lock:
                if waiting not in self.queue:  # a leader has it
                    break
                if seconds_left() <= 0:
                    raise DatabaseUnavailable(TIME_IS_OVER, reason="time over")
                if self._gathering is None:  # the group ahead waits for a lock, which need not delay this one
                    self._begin(waiting)
                    return
        if self._gathering is waiting:
            waiting.full.wait(self._gather_seconds)
            with self._lock:
                self._gathering = None
                self._begin(waiting)
        else:
            while not (waiting.is_over or waiting.turn.wait(min(self.patience, seconds_left()))):
                if seconds_left() <= 0:
                    raise DatabaseUnavailable(TIME_IS_OVER, reason="time over")

    def _gather(self, leader: WaitingCall[Asked, Answer]) -> None:
        """Have a call of the queue wait for as many as there were, for a moment, before it leads. The lock is held."""
        self.leader = self._gathering = leader
        leader.turn.set()

    def _begin(self, leader: WaitingCall[Asked, Answer]) -> None:
        """Make a call of the queue lead, for the first ones there. The lock is held."""
        self.queue.remove(leader)
        leader.group = [leader, *self.queue[: self._most - 1]]
        del self.queue[: self._most - 1]
        self.leader = leader

    def _lead(self, group: Sequence[WaitingCall[Asked, Answer]], sent: Callable[[], object]) -> None:
        if len(group) == 1:
            sent()
            group[0].answer = self._alone(group[0].asked)
            return
        # Any error here undoes the whole group. Each goes by itself then, and gets its own.
        try:
            for waiting, answer in zip(group, self._together([each.asked for each in group], sent), strict=True):
                waiting.answer, waiting.is_over = answer, True
        except BaseException as error:
            for waiting in group:
                waiting.has_failed = waiting.is_over = True
            if not isinstance(error, Exception):  # it is this thread's that was interrupted; the others meet theirs again
                raise

    def hand_over(self, waiting: WaitingCall[Asked, Answer]) -> None:
        """Let the next group begin, which wakes the members of this one; or leave the queue."""
        waiting.debts += [other for other in waiting.group or () if other is not waiting]
        with self._lock:
            if waiting in self.queue:
                self.queue.remove(waiting)
            if self._gathering is waiting:  # it was interrupted
                self._gathering = None
            if self.leader is waiting:
                self.leader = None
                self._crowd = len(self.queue) + len(waiting.group or ()) if self._gather_seconds else 0
                if self.queue:
                    following = self.queue[0]
                    if len(self.queue) < self._crowd:
                        self._gather(following)
                    else:
                        following.debts, waiting.debts = waiting.debts, []
                        self._begin(following)
                        following.turn.set()
        waiting.pay()
