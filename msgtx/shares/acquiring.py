"""The acquisition of a share consumer, until its records are there.

An acquisition is in one of three states. *None*: `sent` is None. *Sent*: its answer did not come; then the same call is made
again, and returns the same records. *Answered*: its records wait, and there is none again.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Final

from msgtx import errors
from msgtx.config import ShareConsumerConfig
from msgtx.receiving.calls import Calls
from msgtx.receiving.integrity import Integrity
from msgtx.receiving.poll import Stopping
from msgtx.receiving.sole_use import SoleUse
from msgtx.receiving.wakeup import Waiter
from msgtx.shares.answering import Answering, Commit
from msgtx.shares.holdings import Holdings
from msgtx.shares.member import ShareMember
from msgtx.shares.polls import MOST_RECORDS, GroupPolls
from msgtx.shares.waiting import Waiting, WaitingRow
from msgtx.store.append.append import PARTITIONS_AT_ONCE
from msgtx.store.fetch.records import uncollected
from msgtx.store.shares.answers import NO_ANSWERS
from msgtx.store.shares.shares import Acquired, Acquiring, Acquisition
from msgtx.store.topics.topics import Topics
from msgtx.types import ShareRecord, TopicPartition

ACQUIRED_BYTES: Final = 8 * 1024 * 1024  # of one poll, but for one record
STAYS: Final = 16  # polls on one partition, before others have their turn
PASSED_SECONDS: Final = 0.005  # until it asks again, where others had the locks: they have them for a call
TOPICS_SECONDS: Final = 5.0  # until it looks for new partitions


@dataclass(eq=False)
class Acquisitions:
    """Asks for records, and puts them among those that wait."""

    config: ShareConsumerConfig
    calls: Calls
    topics: Sequence[str]
    answering: Answering
    holdings: Holdings
    integrity: Integrity
    look_up: Topics
    member: ShareMember
    polls: GroupPolls
    sole_use: SoleUse
    stopping: Stopping
    waiter: Waiter
    waiting: Waiting
    sent: Acquiring | None = None
    places: dict[int, TopicPartition] = field(default_factory=dict)
    looked: float = -TOPICS_SECONDS
    longest_lock: float = 0.0  # so far, in seconds
    _order: list[int] = field(default_factory=list)
    _stayed: int = 0  # polls on one partition

    @property
    def has_waiting(self) -> bool:
        """Whether records wait that this member still holds."""
        if self.member.number is None:
            self.waiting.rows.clear()  # its session is over: others have them
        self.waiting.drop_late(time.monotonic())
        return bool(self.waiting)

    @property
    def takes_a_commit(self) -> bool:
        """Whether the next acquisition may have a commit with it."""
        return not self.has_waiting and self.member.number is not None and self.sent is None

    def forget(self) -> None:
        """Forget the waiting records: the session has expired, so other members may acquire them."""
        self.waiting.rows.clear()
        self.sent = None

    def await_records(self, deadline: float, most: int) -> bool:
        """Acquire up to `most` records unless some wait. Return False when time is over, or after `stop`."""
        while not self.sole_use.closed:
            self.polls.heard(self.waiter.clear())
            self.member.prove()
            has_passed = not self.has_waiting and self._acquire(most)
            left = deadline - time.monotonic()
            if self.waiting:
                return True
            if left <= 0 or self.stopping.asked:
                return False
            self.waiter.wait(min(left, PASSED_SECONDS if has_passed else self.config.fetch_max_wait_ms / 1000))
        return False

    def _acquire(self, most: int) -> bool:
        """Acquire records. Returns whether there may be some already that it did not get, since others had the locks."""
        order = self._partitions()
        number = self.member.join()
        commit = None
        if self.sent is None or self.sent.member_number != number:  # what another member had is others'
            self.sent, commit = self._next(number, order, most)
        else:  # the whole call again: another one would not find what it had
            self.sent = self.sent._replace(answers=NO_ANSWERS)
        asked = time.monotonic()
        try:
            found, refused, has_passed = self.calls.answered(self._send)
        except errors.UnknownMember:
            if commit is not None:
                self.answering.answered(commit.answers, None)
            self.answering.forget()
            self.forget()
            return False
        with self.integrity.steps():
            self.sent = None
            for each in found:
                lock = each.lock_ms / 1000
                self.longest_lock = max(self.longest_lock, lock)
                offsets = each.offsets or range(each.range.first, each.range.last + 1)
                if records := self._records_of(each, offsets):
                    self.waiting.rows.append(WaitingRow(records, offsets, each.range, asked + lock, lock))
            if commit is not None:
                self.answering.answered(commit.answers, refused)
        return has_passed

    def _next(self, number: int, order: Sequence[int], most: int) -> tuple[Acquiring, Commit | None]:
        """Return the member's next acquisition, and the commit sent with it."""
        shares = most <= MOST_RECORDS
        self.answering.of_single_records = most == 1
        first = self.polls.place(list(self.places)) if shares else order[0]
        commit = self.answering.sent if self.holdings.implicit else None
        answers = NO_ANSWERS if commit is None else self.holdings.columns_of(number, commit.answers)
        if len(answers.partition_ids) == 1 and answers.partition_ids[0] != first:
            if shares:
                self.answering.settle()
                commit, answers = None, NO_ANSWERS
            elif self._stayed < STAYS:
                first = answers.partition_ids[0]  # one state of that partition has both then
        self._stayed = self._stayed + 1 if answers.partition_ids == (first,) else 0
        order = [first, *(each for each in order if each != first)]
        call = next(self.holdings.call_numbers) if commit is None else commit.call
        return Acquiring(self.config.group, number, call, order, most, ACQUIRED_BYTES, answers), commit

    def _send(self) -> Acquisition:
        assert self.sent is not None
        asked, self.sent = self.sent, self.sent._replace(is_again=True)
        return self.polls.acquire(asked)

    def _records_of(self, acquired: Acquired, offsets: Sequence[int]) -> list[ShareRecord]:
        topic, partition = self.places[acquired.range.partition_id]
        columns = (
            repeat(topic),
            repeat(partition),
            offsets,
            acquired.timestamps or repeat(acquired.max_timestamp),
            acquired.keys or repeat(None),
            acquired.values or (),
            acquired.headers() or repeat(()),
            repeat(acquired.delivery_count),
        )
        with uncollected():
            return list(map(ShareRecord, *columns))

    def _partitions(self) -> list[int]:
        now = time.monotonic()
        if now >= self.looked + TOPICS_SECONDS:
            places: dict[int, TopicPartition] = {}
            for name in self.topics:
                topic = self.calls.answered(partial(self.look_up, name, bool(self.places)))
                if topic is None and self.looked < 0:
                    raise errors.UnknownTopicOrPartition(f"there is no topic {name!r}; create it first", topic=name)
                if topic is None:
                    continue  # deleted since; the others are read, and this one when it is made again
                places |= {each: TopicPartition(name, index) for index, each in enumerate(topic.partition_ids)}
            if not places:
                raise errors.UnknownTopicOrPartition(
                    f"there is no topic {self.topics[0]!r} any more; create it first", topic=self.topics[0]
                )
            if places.keys() != self.places.keys():
                self._order = sorted(places)
                self.waiter.watch(places)
            self.places, self.looked = places, now
        turn = PARTITIONS_AT_ONCE if len(self._order) > PARTITIONS_AT_ONCE else 1
        self._order = [*self._order[turn:], *self._order[:turn]]
        return self._order
