"""Group commit: small transactions of one client that wait at the same time share an SQL transaction and its flush.

As PostgreSQL's sessions share a flush, only earlier: also the round trip, the setting up of plans and the COMMIT are shared.
While a call is in flight others queue; then they go together. Without others a transaction goes out at once, by itself.
"""

import contextlib
import threading
from collections.abc import Sequence
from typing import Final

from msgtx.database.connection import seconds_left
from msgtx.database.pool import Engine
from msgtx.errors import DatabaseUnavailable
from msgtx.producer.wake import Wake
from msgtx.store.append import (
    PARTITIONS_AT_ONCE,
    Appended,
    Whole,
    append_and_decide,
    append_and_decide_together,
    append_decide_and_notify,
)

MOST_TOGETHER: Final = 64
MOST_BYTES: Final = 64 * 1024  # of a transaction that shares: what is larger would hold the others up


class Member:
    """A transaction in the queue, and the thread that waits for it."""

    __slots__ = ("answers", "group", "turn", "whole")

    def __init__(self, whole: Whole) -> None:
        self.whole = whole
        self.turn = threading.Event()  # to lead `group`, or because it is over
        self.group: list[Member] | None = None
        self.answers: list[Appended] | None = None  # of the group's call; None: it goes by itself


class GroupCommit:
    """Commits whole transactions, for any thread. One thread leads: for those that came while the leader before it was busy.

    `patience`: how long one waits for its turn, in seconds, before it leads by itself: the call ahead may wait for a lock.
    """

    patience = 0.01  # a flush is over before

    def __init__(self, engine: Engine, wake: Wake) -> None:
        self._engine = engine
        self._wake = wake
        self._lock = threading.Lock()
        self._leader: object | None = None
        self._queue: list[Member] = []

    def commit(self, whole: Whole, size: int) -> list[Appended]:
        """Store and commit a transaction of `size` bytes, and tell consumers.

        Answers and errors are those of a call by itself.
        """
        if whole.answers.groups or size > MOST_BYTES or len(whole.batches) > PARTITIONS_AT_ONCE // MOST_TOGETHER:
            return self._by_itself(whole)
        member = Member(whole)
        with self._lock:
            if self._leader is None:
                self._leader = member
                member.group = [member]
            else:
                self._queue.append(member)
        try:
            if member.group is None:
                self._await_turn(member)
            if member.group is not None:
                self._lead(member.group)
        finally:
            self._hand_over(member)
        return self._by_itself(whole) if member.answers is None else member.answers

    def _by_itself(self, whole: Whole) -> list[Appended]:
        with self._engine.connection() as connection:
            if whole.batches and not self._engine.pooled and self._wake.claim():
                answers, notified = append_decide_and_notify(connection, whole)
                if notified:
                    return answers
                self._wake.failed()
            else:
                answers = append_and_decide(
                    connection, whole.id, whole.batches, offsets=whole.offsets, answers=whole.answers, wake=False
                )
        self._tell(whole)
        return answers

    def _tell(self, whole: Whole) -> None:
        self._wake.tell([batch.partition_id for batch in whole.batches])

    def _await_turn(self, member: Member) -> None:
        if member.turn.wait(min(self.patience, seconds_left())):
            return
        with self._lock:
            queued = member in self._queue
            if queued and seconds_left() > 0:  # what is ahead waits for something, which need not hold this up
                self._begin(member)
                return
        if queued or not member.turn.wait(min(threading.TIMEOUT_MAX, seconds_left())):
            raise DatabaseUnavailable("the server did not answer (the call's time is over)")

    def _begin(self, leader: Member) -> None:
        """Make a member of the queue lead, for the first ones there. The lock is held."""
        self._queue.remove(leader)
        leader.group = [leader, *self._queue[: MOST_TOGETHER - 1]]
        del self._queue[: MOST_TOGETHER - 1]
        self._leader = leader

    def _lead(self, group: Sequence[Member]) -> None:
        if len(group) == 1:
            group[0].answers = self._by_itself(group[0].whole)
            return
        # What fails here undoes all, whichever it was, and whatever the error. Each goes by itself then, and gets its own.
        with contextlib.suppress(Exception), self._engine.connection() as connection:
            answers = append_and_decide_together(connection, [member.whole for member in group])
            for member, answer in zip(group, answers, strict=True):
                member.answers = answer
                if answer is not None:
                    self._tell(member.whole)

    def _hand_over(self, member: Member) -> None:
        """Let those go on for whom this one has led, and the next ones begin; or leave the queue."""
        with self._lock:
            if member in self._queue:
                self._queue.remove(member)
            if self._leader is member:
                self._leader = None
                if self._queue:
                    following = self._queue[0]
                    self._begin(following)
                    following.turn.set()
        for other in member.group or ():
            if other is not member:
                other.turn.set()
