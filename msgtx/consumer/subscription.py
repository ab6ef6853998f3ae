"""Which partitions a consumer reads: assigned by hand, all of a subscription, or given by its group (internals: groups)."""

import contextlib
import logging
import re
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from msgtx import arguments, errors
from msgtx.config import ConsumerConfig
from msgtx.consumer.calls import ConsumerCalls
from msgtx.consumer.commits import Commits
from msgtx.consumer.fetcher import Fetcher
from msgtx.consumer.membership import Membership, Subscription
from msgtx.consumer.partition import Assigned
from msgtx.database.pool import Engine
from msgtx.errors import IllegalState
from msgtx.receiving.integrity import Integrity
from msgtx.receiving.wakeup import Listener, Waiter
from msgtx.rules.assignment import subscribed
from msgtx.types import TopicPartition

log = logging.getLogger("msgtx.consumer")
LOOK_FOR_PARTITIONS_SECONDS: Final = 5.0  # between two looks for new partitions of topics subscribed to without a group
RebalanceCallback = Callable[[list[TopicPartition]], object]


@dataclass(eq=False)
class SubscriptionState:
    """The partitions that a consumer may read. They change within its polls.

    `membership`: its place in its group, if it has subscribed as a member of one. `taken_away`: revoked partitions
    whose returned records are committed nowhere. `keeps`: a transaction is being filled, no partition is given away
    now.
    """

    engine: Engine
    config: ConsumerConfig
    calls: ConsumerCalls
    fetcher: Fetcher
    commits: Commits
    integrity: Integrity
    waiter: Waiter
    listener: Listener
    all_topics: Callable[[], Iterable[str]]
    commit_positions: Callable[[], None]
    membership: Membership | None = None
    keeps: bool = False
    taken_away: list[TopicPartition] = field(default_factory=list)
    _subscribed: Subscription | None = None  # without a group
    _next_look: float = field(default_factory=lambda: time.monotonic() + LOOK_FOR_PARTITIONS_SECONDS)
    _told: dict[str, RebalanceCallback | None] = field(default_factory=dict)

    # ── the subscription ──

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """See `Consumer.assign`."""
        wanted = arguments.partitions(partitions)
        if self.membership is not None:
            raise IllegalState(
                "this consumer subscribed: its group gives it partitions; assign is for another one", reason="subscribed"
            )
        self.calls.require_topics({topic for topic, _ in wanted})  # one may have been deleted and made again
        self._take(wanted)
        self._subscribed = None
        self.fetcher.forget_starts()

    def _take(
        self,
        wanted: Iterable[TopicPartition],
        ids: Mapping[TopicPartition, int] = MappingProxyType({}),
        new: Container[TopicPartition] = (),
    ) -> None:
        known = self.fetcher.assigned
        assigned = [
            known[tp]
            if tp in known and tp not in new
            else Assigned(tp, ids.get(tp) or self.calls.partition_id(tp), new=tp in new)
            for tp in wanted
        ]
        with self.integrity.steps():
            self.fetcher.assign(assigned)
            self.waiter.watch(each.partition_id for each in assigned)

    def subscribe(
        self,
        topics: Sequence[str] = (),
        *,
        pattern: str | None = None,
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """See `Consumer.subscribe`."""
        topics = arguments.topics(topics)
        for name, callback in (("on_assign", on_assign), ("on_revoke", on_revoke), ("on_lost", on_lost)):
            arguments.function(name, callback)
        if bool(topics) == (pattern is not None):
            raise errors.ConfigError("subscribe takes topics, or pattern=", name="topics")
        if pattern is not None:
            pattern = arguments.text("pattern", pattern)
            try:
                re.compile(pattern)
            except (re.error, RecursionError, OverflowError) as error:
                raise errors.ConfigError(f"pattern {arguments.shown(pattern)}: {error}", name="pattern") from error
        self.calls.require_topics(topics)
        self._told = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost}
        subscription = Subscription(None if pattern is not None else list(topics), pattern)
        if self.config.group is None:
            self._subscribed = subscription
            wanted = self._all_of(subscription)
            self._gain(wanted, wanted)
            return
        if self.membership is None:
            waiter = Waiter(self.listener)
            self.membership = Membership(self.engine, self.config, self.config.group, waiter=waiter, wakes=self.waiter)
        self.membership.subscribe(subscription)
        self.calls.answered(self.follow_group)

    def _all_of(self, subscription: Subscription) -> list[TopicPartition]:
        names = subscription.topics
        if names is None:
            names = sorted(subscribed(None, subscription.pattern, list(self.all_topics())))
        topics = self.calls.require_topics(names)
        return [TopicPartition(name, at) for name in dict.fromkeys(names) for at in range(len(topics[name].partition_ids))]

    def _look_for_partitions(self) -> None:
        """Without a group, new partitions of the subscribed topics are looked for now and then."""
        if self._subscribed is None or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_FOR_PARTITIONS_SECONDS
        gained = [tp for tp in self._all_of(self._subscribed) if tp not in self.fetcher.assigned]
        if gained:
            self._gain([*self.fetcher.assigned, *gained], gained, new=gained)

    def _gain(
        self,
        wanted: list[TopicPartition],
        gained: list[TopicPartition],
        ids: Mapping[TopicPartition, int] = MappingProxyType({}),
        new: Container[TopicPartition] = (),
    ) -> None:
        """Read these, some of which are gained. Those for which the callback raised are not read: it is called again."""
        self._take(wanted, ids, new)
        try:
            self._tell("assign", gained)
        except BaseException:
            self._take([tp for tp in self.fetcher.assigned if tp not in gained])
            raise

    def take_made_again(self) -> bool:
        """Read topics that were deleted and made again, from their beginning. Returns whether there are any."""
        assigned = self.fetcher.assigned
        ids = {name: topic.partition_ids for name, topic in self.calls.topics_now({tp.topic for tp in assigned}).items()}
        again = [
            tp
            for tp, known in assigned.items()
            if tp.partition < len(ids.get(tp.topic, ())) and ids[tp.topic][tp.partition] != known.partition_id
        ]
        if again:
            log.warning("%s: deleted and made again, reading from the beginning", ", ".join(map(str, again)))
            self._take([*assigned], new=again)
        return bool(again)

    def rewind(self) -> None:
        """See `Consumer.rewind`."""
        self._take([*self.fetcher.assigned])  # also where an interrupt came between their turns
        self.go_back(self.fetcher.assigned.values())

    def go_back(self, partitions: Iterable[Assigned]) -> None:
        """Go back to the committed offsets of these partitions."""
        self.commits.settle()  # they count
        with self.integrity.steps():
            for assigned in partitions:
                assigned.go_back()
        self.taken_away.clear()
        if self.membership is not None:
            self.membership.due = True  # the refusal may be due to revoked partitions

    def in_doubt(self) -> None:
        """Have the group refuse, before anything is read, a session's COMMIT that was not answered and may still come."""
        if self.membership is not None:
            self.membership.starts_over = self.membership.due = True

    # ── the group ──

    @contextlib.contextmanager
    def keep_partitions(self) -> Iterator[None]:
        """Give no partition away within the block, though the group asks for it: a transaction is filled from them."""
        self.keeps = True
        try:
            yield
        finally:
            self.keeps = False

    @property
    def is_due(self) -> bool:
        """Whether to look at the group before records are returned."""
        member = self.membership
        return member is not None and ((member.due and not self.keeps) or member.is_silent)

    @property
    def has_become_due(self) -> bool:
        """As `is_due`, at the time of the last `Membership.polled`: a look at the clock for each record costs a tenth."""
        member = self.membership
        return member is not None and ((member.due and not self.keeps) or member.polled_at >= member.heard_until)

    def follow_group(self) -> None:
        """Start reading newly assigned partitions and release revoked ones. While it waits to join there are none."""
        if self.membership is None:
            self._look_for_partitions()
            return
        while self.is_due:
            try:
                self._follow(self.membership)
            except BaseException as error:
                self.membership.due = True  # an unfinished change is to be made again
                if isinstance(error, errors.LockTimeout) and self.membership.waits_to_join:
                    return
                raise

    def _follow(self, membership: Membership) -> None:
        try:
            with self.engine.connection() as connection:
                if self.keeps:
                    membership.prove(connection)
                    return
                found = membership.look(connection)
                places = {each: membership.place(connection, each) for each in found.owned}
        except (errors.UnknownMember, errors.FencedInstance) as error:
            self._give_up(self.fetcher.assigned)
            if isinstance(error, errors.FencedInstance):
                raise
            membership.due = True  # to join again
            return
        owned = {tp: each for each, tp in places.items() if tp is not None}
        # By id: a topic that was deleted and made again has the same name, and other partitions.
        self._give_up([tp for tp, each in self.fetcher.assigned.items() if owned.get(tp) != each.partition_id])
        if leaving := found.owned.keys() - found.target:
            self._give_away([tp for tp in self.fetcher.assigned if owned[tp] in leaving], leaving)
            return
        gained = [tp for tp, each in owned.items() if each in found.target and tp not in self.fetcher.assigned]
        if gained:
            new = [tp for tp in gained if membership.is_new(owned[tp])]
            self._gain([*self.fetcher.assigned, *gained], gained, owned, new)

    def _give_away(self, partitions: list[TopicPartition], ids: Collection[int]) -> None:
        assert self.membership is not None
        self.membership.due = True  # until it is done
        if partitions:
            if self.config.enable_auto_commit:
                self.commit_positions()
            self._tell("revoke", partitions)
            self._drop(partitions)
        self.commits.settle()  # an owner may commit until it releases
        with self.engine.connection() as connection:
            self.membership.release(connection, ids)

    def _give_up(self, partitions: Iterable[TopicPartition]) -> None:
        if lost := list(partitions):
            told = "group %r: %s were taken from this member; records that it has not committed come again"
            log.warning(told, self.config.group, ", ".join(map(str, lost)))
            self._drop(lost)
            self._tell("lost", lost)

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        gone = set(partitions)
        assigned = self.fetcher.assigned
        self.taken_away += [tp for tp in gone if assigned[tp].handed]
        self._take([tp for tp in assigned if tp not in gone])

    def _tell(self, event: str, partitions: list[TopicPartition]) -> None:
        if (callback := self._told.get(event)) is not None:
            callback(partitions)

    def require_assignment(self) -> None:
        """Raise `IllegalState` if there is nothing to read."""
        if not self.fetcher.assigned and self.membership is None:
            raise IllegalState("nothing is assigned: subscribe or assign first", reason="nothing assigned")
