"""Membership of a consumer in its group: joining, heartbeats, and changes of its partitions.

The thread sends heartbeats, and learns of changes; partitions change hands in the consumer's poll. No lock is held
across the network: a member that computes an assignment writes it by compare-and-set, and a late one looks again. A
member that the group has not heard of for its session timeout hands nothing out before it has asked: see `is_silent`.
"""

import contextlib
import itertools
import logging
import math
import os
import platform
import time
from collections.abc import Collection
from typing import Final, NamedTuple

from msgtx.background import BackgroundThread
from msgtx.config import ConsumerConfig
from msgtx.database.connection import LOOK_SECONDS, Connection, until
from msgtx.database.pool import Engine
from msgtx.database.translation import LOCK_NOT_AVAILABLE, sqlstate_of
from msgtx.errors import DatabaseUnavailable, FencedInstance, IllegalState, LockTimeout, MsgtxError, UnknownMember, fresh
from msgtx.receiving.leaving import BEATS_OF_A_SESSION, leave_at_last, new_member_id, seconds_until
from msgtx.receiving.wakeup import Waiter
from msgtx.rules.assignment import Subscriber, assign, subscribed
from msgtx.store.groups.members import (
    Assignment,
    Beat,
    assign_partitions,
    describe_members,
    heartbeat,
    join_group,
    leave_group,
    member_assignment,
    release_partitions,
)
from msgtx.store.topics.topics import describe_topics, partitions_of, topics_version
from msgtx.types import TopicPartition

log = logging.getLogger("msgtx.consumer")
MOST_ROUNDS: Final = 100  # of a division that others' changes overtake; the member that overtakes divides, too


class Subscription(NamedTuple):
    """Names, or a pattern that whole names match."""

    topics: list[str] | None
    pattern: str | None


class _Member(NamedTuple):
    """This member, as the group knows it."""

    number: int
    member_id: str


def divide(connection: Connection, group: str) -> None:
    """Divide the group's partitions among its members, if that has to be done. The first member that comes does it."""
    for _ in range(MOST_ROUNDS):
        state = describe_members(connection, group)
        if state is None or not state.stale or not state.members or state.strategy is None:
            return
        topics = describe_topics(connection, sorted({name for member in state.members for name in member.topics}))
        subscribers = [
            Subscriber(
                member.number,
                member.group_instance_id or member.member_id,
                subscribed(member.topics, None, topics),
            )
            for member in state.members
        ]
        owners = {partition: member.number for member in state.members for partition in member.owned}
        partitions = {name: topic.partition_ids for name, topic in topics.items()}
        targets = assign(state.strategy, subscribers, partitions, owners)
        if assign_partitions(
            connection, group, generation=state.generation, topics_version=state.topics_version, targets=targets
        ):
            return


class Membership:
    """One consumer's place in its group. `waiter` is woken by the group's changes; `wakes` is the consumer's own."""

    def __init__(self, engine: Engine, config: ConsumerConfig, group: str, *, waiter: Waiter, wakes: Waiter) -> None:
        self._engine = engine
        self._config = config
        self.group = group
        self._waiter = waiter
        self._wakes = wakes
        self._subscription = Subscription(None, None)
        self._subscribed = False  # the group knows this subscription
        self._matched_of: int | None = None  # the version of the topics at the last match of the pattern
        self._member: _Member | None = None
        self._next_id = new_member_id()  # kept until the answer to a join has come: asked again, it is the same member
        self.generation = -1
        self.due = False  # the group is to be looked at
        self.waits_to_join = False  # behind a SQL transaction that has the group, as of `msgtx.take`
        self.starts_over = False  # commits that may still come for this member are to be refused
        self._shall_divide = False
        self.polled_at = time.monotonic()
        self._closing = False
        self._close_by = math.inf
        self._heart = BackgroundThread(
            "msgtx-heartbeat", self._live, what=f"the heartbeat of group {group!r}", pause=config.retry_backoff_ms / 1000
        )
        self._numbers = itertools.count(1)  # of heartbeats
        self._next_beat = 0.0
        self._left: _Member | None = None  # by the thread, as the consumer was not polled
        self.heard_until = math.inf  # until then the group does not give this member up; infinity: it is none
        self._places: dict[int, TopicPartition] = {}
        self._newest: int | None = None  # of the partitions that were there when this member joined first
        self._fenced: FencedInstance | None = None

    def member_id(self) -> str:
        """Return the id under which the group knows this member. Raise `UnknownMember` or `FencedInstance` while it is none.

        A commit then is of no member either: an empty group would take it, over newer commits of others (I11).
        """
        if self._fenced is not None:
            raise fresh(self._fenced)
        if self._member is None:
            raise UnknownMember(
                f"group {self.group!r}: this consumer is no member now; the next poll joins again", group=self.group
            )
        return self._member.member_id

    def subscribe(self, subscription: Subscription) -> None:
        """Change this member's subscription; the group learns of it with the next `look`."""
        self._subscription = subscription
        self._subscribed = False
        self.due = True

    @property
    def is_silent(self) -> bool:
        """Whether the group may have given this member up, as far as it knows: no heartbeat was answered for a session.

        Others may have its partitions then. No record is returned before a `look` or `prove`.
        """
        return self._member is not None and time.monotonic() >= self.heard_until

    def refused(self) -> None:
        """Have the next poll ask why a commit was refused, and join again if it has to. For any thread."""
        self._changed()

    def polled(self) -> None:
        """Note that the consumer is being used: within `max_poll_interval_ms` it has to come again."""
        self.polled_at = time.monotonic()

    def topics_changed(self) -> None:
        """Have the partitions divided anew with the next look, if the topics are not those of the assignment any more."""
        self.due = self._shall_divide = True

    def look(self, connection: Connection) -> Assignment:
        """Join if this is no member, divide the partitions if that falls to it, and return its own.

        Raise `UnknownMember` if the group gave it up, `FencedInstance` if another took its `group_instance_id`; after either
        it is no member any more. A refusal of a join is raised as it is. The caller sets `due` again after an error.
        """
        if self._fenced is not None:
            raise fresh(self._fenced)
        if self._closing:
            raise IllegalState("the consumer is closed", reason="closed")
        self.due = False
        if self.starts_over:
            if self._member is not None:
                self._start_over(connection, self._member)
            self.starts_over = False  # a COMMIT in doubt is of a member that is gone
        self.prove(connection)
        if self._member is None or not self._subscribed:
            self._join(connection)
        assert self._member is not None
        self._heart.start()  # also if it has died
        if self._shall_divide:
            self._shall_divide = False
            try:
                if self._subscription.pattern is not None and topics_version(connection) != self._matched_of:
                    self._join(connection)
                    self._shall_divide = False
                divide(connection, self.group)
            except MsgtxError:
                self._shall_divide = True
                raise
        try:
            found = member_assignment(connection, self.group, self._member.number)
        except UnknownMember:
            self._beat(connection, self._member, 0)  # asks why: `FencedInstance` ends it, else it may join again
            raise
        self.generation = found.generation
        return found

    def prove(self, connection: Connection) -> None:
        """Send a heartbeat in the caller's thread if the group has not heard of this member for a session.

        Raise `UnknownMember` if the group gave it up, `FencedInstance` if another took its `group_instance_id`.
        """
        if self._member is not None and self.is_silent:
            log.warning("group %r: no heartbeat was answered for session_timeout_ms; asking the group", self.group)
            self._beat(connection, self._member, next(self._numbers))
            if self.is_silent:
                raise DatabaseUnavailable(
                    f"group {self.group!r}: a heartbeat took longer than session_timeout_ms", group=self.group
                )

    def release(self, connection: Connection, partition_ids: Collection[int]) -> None:
        """Give these partitions to whom they shall belong."""
        if self._member is not None:
            self.generation = release_partitions(connection, self.group, self._member.number, partition_ids)

    def place(self, connection: Connection, partition_id: int) -> TopicPartition | None:
        """Return topic and index of a partition; None if its topic was deleted."""
        if partition_id not in self._places:
            self._places = partitions_of(describe_topics(connection, None).values())
            if self._newest is None:
                self._newest = max(self._places, default=0)
        return self._places.get(partition_id)

    def is_new(self, partition_id: int) -> bool:
        """Whether a partition was made after this member joined."""
        return self._newest is not None and partition_id > self._newest

    def close(self, deadline: float) -> None:
        """Leave the group, so that others take over at once. A static member stays until its session is over.

        Later commits still name this member, so that the group refuses them; it would take those of no member.
        `deadline`: of `time.monotonic`, for a heartbeat that is under way and for leaving.
        """
        self._close_by = deadline
        self._closing = True
        self._waiter.wake()
        self._heart.stop()
        self._heart.join(seconds_until(deadline) + LOOK_SECONDS)
        self._waiter.watch(())
        if self._config.group_instance_id is None:
            member_id = self._own_id()
            leave_at_last(lambda: self._leave(member_id), deadline, group=f"group {self.group!r}", member_id=member_id)

    def _own_id(self) -> str:
        """Return the id under which the group knows this member, or will: also if only the answer to the join is missing."""
        return self._next_id if self._member is None else self._member.member_id

    def _join(self, connection: Connection) -> None:
        member_id = self._own_id()
        names, pattern = self._subscription
        version = None
        if pattern is not None:
            # A pattern is its own member's business: others read its matches. The version comes first: topics that are
            # created during the look have a later one, with which this is due again.
            version = topics_version(connection)
            names = sorted(subscribed(None, pattern, describe_topics(connection, None)))
        asked = time.monotonic()
        try:
            joined = join_group(
                connection,
                self.group,
                member_id=member_id,
                group_instance_id=self._config.group_instance_id,
                client_host=platform.node(),
                client_process=os.getpid(),
                session_timeout_ms=self._config.session_timeout_ms,
                strategy=self._config.assignment,
                topics=names,
                pattern=pattern,
                topics_version=version,
            )
        except LockTimeout as error:
            waited, self.waits_to_join = self.waits_to_join, sqlstate_of(error) == LOCK_NOT_AVAILABLE
            if self.waits_to_join and not waited:
                log.info("group %r: waits for a SQL transaction that takes from it (msgtx.take), until it ends", self.group)
            raise
        self.waits_to_join = False
        self._matched_of = version
        if self._member is None or self._member.number != joined.member_number:
            self.heard_until = asked + self._config.session_timeout_ms / 1000  # the join is its first heartbeat
            self._next_beat = asked + self._config.heartbeat_interval_ms / 1000
        self._member = _Member(joined.member_number, member_id)
        self._subscribed = self._shall_divide = True
        self._waiter.watch_group(joined.group_id)

    def _start_over(self, connection: Connection, member: _Member) -> None:
        """Be no member any more. The group's lock waits for a COMMIT that has begun to write; any other one is refused."""
        if self._config.group_instance_id is None:  # else the next join replaces this member
            leave_group(connection, self.group, member.member_id)
        self._forget()
        self.starts_over = False
        raise UnknownMember(
            f"group {self.group!r}: member {member.member_id} has left, as a COMMIT of its offsets is in doubt",
            group=self.group,
            member_id=member.member_id,
        )

    def _forget(self) -> None:
        """Be no member any more."""
        self._member, self._next_id, self.heard_until = None, new_member_id(), math.inf

    def _beat(self, connection: Connection, member: _Member, number: int) -> None:
        """Say in the caller's thread that this member lives; forget it if the group does not know it."""
        try:
            self._said(connection, member, number)
        except (FencedInstance, UnknownMember) as error:
            self._forget()
            if isinstance(error, FencedInstance):
                self._fenced = error  # joining again would fence the other one in turn
            raise

    def _said(self, connection: Connection, member: _Member, number: int) -> Beat:
        asked = time.monotonic()
        beat = heartbeat(
            connection,
            self.group,
            member_number=member.number,
            member_id=member.member_id,
            group_instance_id=self._config.group_instance_id,
            number=number,
        )
        if number > 0 and self._member == member:
            self.heard_until = asked + self._config.session_timeout_ms / 1000
        return beat

    # ── the thread ──

    def _live(self) -> None:
        while not self._closing:
            if self._waiter.sleep(self._next_beat - time.monotonic()):
                self._changed()
                continue
            begun, member = time.monotonic(), self._member
            if member is not None and member != self._left and not self._closing:
                with self._limited(begun):
                    self._live_on(member)
            # Not reached after a failure: the next one is due at once.
            self._next_beat = begun + self._config.heartbeat_interval_ms / 1000

    def _limited(self, begun: float) -> contextlib.AbstractContextManager[None]:
        limit = begun + self._config.session_timeout_ms / 1000 / BEATS_OF_A_SESSION
        return until(lambda: min(limit, self._close_by))

    def _live_on(self, member: _Member) -> None:
        """Say that this member lives; have it leave if the consumer is not polled any more."""
        if time.monotonic() - self.polled_at <= self._config.max_poll_interval_ms / 1000:
            self._beat_in_thread(member)
            return
        self._leave(member.member_id)
        self._left = member
        self._changed()
        log.warning(
            "group %r: no poll for max_poll_interval_ms=%s; left, the next poll joins again",
            self.group,
            self._config.max_poll_interval_ms,
        )

    def _beat_in_thread(self, member: _Member) -> None:
        with self._engine.connection() as connection:
            try:
                beat = self._said(connection, member, next(self._numbers))
            except (UnknownMember, FencedInstance):
                self._changed()  # the next look says so where it can be raised
                return
        if beat.stale:
            self._shall_divide = True
        if beat.stale or beat.generation != self.generation:
            self._changed()

    def _leave(self, member_id: str) -> None:
        with self._engine.connection() as connection:
            leave_group(connection, self.group, member_id)
            divide(connection, self.group)

    def _changed(self) -> None:
        self.due = True
        self._wakes.wake()
