"""The assignment of partitions to the members of a consumer group: Kafka's `range`, `roundrobin` and `cooperative-sticky`.

The answer depends on its arguments alone, and not on their order. The protocol decides when a new owner may have a
partition (internals: groups#assignment-and-handover); here only the goal is named. Source: Kafka's `RangeAssignor`,
`RoundRobinAssignor`, `CooperativeStickyAssignor`.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from itertools import cycle
from typing import Final, assert_never, get_args

from msgtx.errors import InvalidRequest
from msgtx.types import Strategy

STRATEGIES: Final[tuple[Strategy, ...]] = get_args(Strategy)


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member and the topics it subscribes to. `key` is its place in the order: its instance id, else its member id."""

    number: int
    key: str
    topics: frozenset[str]


def subscribed(topics: Collection[str] | None, pattern: str | None, all_topics: Collection[str]) -> frozenset[str]:
    """Return which of all topics a subscription names: a list of names, or a pattern for the whole name."""
    if topics is not None:
        return frozenset(topics).intersection(all_topics)
    assert pattern is not None
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise InvalidRequest(f"pattern {pattern!r}: {error}", name="pattern") from error
    return frozenset(filter(expression.fullmatch, all_topics))


def assign(
    strategy: Strategy,
    subscribers: Collection[Subscriber],
    partitions: Mapping[str, Sequence[int]],
    owners: Mapping[int, int],
) -> dict[int, int]:
    """Return the member number of each partition id that a member subscribes to.

    `partitions`: ids by topic, in order of their index. `owners`: the current owner of each partition, whom
    `cooperative-sticky` keeps as far as the balance allows; others do not look at it.
    """
    members = sorted(subscribers, key=lambda member: (member.key, member.number))
    wanted = frozenset[str]().union(*(member.topics for member in members))
    topics = {topic: partitions[topic] for topic in sorted(wanted.intersection(partitions))}
    match strategy:
        case "range":
            return _by_range(members, topics)
        case "roundrobin":
            return _in_turn(members, topics)
        case "cooperative-sticky":
            return _sticky(members, topics, owners)
        case _:
            assert_never(strategy)


def _by_range(members: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> dict[int, int]:
    """Give each topic's subscribers runs of its partitions; the first ones get the rest."""
    found: dict[int, int] = {}
    for topic, ids in topics.items():
        takers = [member for member in members if topic in member.topics]
        each, longer = divmod(len(ids), len(takers))
        start = 0
        for place, member in enumerate(takers):
            end = start + each + (place < longer)
            found |= dict.fromkeys(ids[start:end], member.number)
            start = end
    return found


def _in_turn(members: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> dict[int, int]:
    """Deal all partitions out, passing over members that do not subscribe to the topic."""
    turns = cycle(members)
    return {
        partition_id: next(member for member in turns if topic in member.topics).number
        for topic, ids in topics.items()
        for partition_id in ids
    }


def _sticky(members: Sequence[Subscriber], topics: Mapping[str, Sequence[int]], owners: Mapping[int, int]) -> dict[int, int]:
    """Keep owned partitions, deal out free ones, move while a move improves the balance, undo needless moves."""
    layout = _Layout(members, topics, owners)
    layout.deal_out()
    # Each move makes the sum of squares of the loads smaller, or leaves it and brings a partition home: this ends.
    while layout.level() or layout.bring_home():
        pass
    return {partition_id: members[place].number for partition_id, place in layout.at.items()}


@dataclass(frozen=True, slots=True)
class _Kind:
    """The partitions of all topics with the same subscribers: each of these members may have each partition.

    By place of a member: `own`, its kept partitions; `guests`, its new ones. Keys of a dict are a set
    that keeps its order.
    """

    takers: tuple[int, ...]
    own: dict[int, dict[int, None]]
    guests: dict[int, dict[int, None]]


class _Layout:
    """An assignment in the making. Members are named by their place in the order."""

    def __init__(
        self, members: Sequence[Subscriber], topics: Mapping[str, Sequence[int]], owners: Mapping[int, int]
    ) -> None:
        places = {member.number: place for place, member in enumerate(members)}
        self.load = [0] * len(members)
        self.at: dict[int, int] = {}
        self._home: dict[int, int] = {}
        self._kind_of: dict[int, _Kind] = {}
        self._free: list[int] = []
        self._kinds: dict[tuple[int, ...], _Kind] = {}
        for topic, ids in topics.items():
            takers = tuple(place for place, member in enumerate(members) if topic in member.topics)
            kind = self._kinds.get(takers)
            if kind is None:
                kind = self._kinds[takers] = _Kind(takers, {taker: {} for taker in takers}, {taker: {} for taker in takers})
            for partition_id in ids:
                self._kind_of[partition_id] = kind
                place = places.get(owners.get(partition_id, -1), -1)
                if place in kind.own:
                    self._home[partition_id] = place
                    self._put(partition_id, place)
                else:
                    self._free.append(partition_id)

    def deal_out(self) -> None:
        """Give each free partition to its least loaded subscriber; those with the fewest subscribers come first."""
        free: dict[tuple[int, ...], list[int]] = {}
        for partition_id in self._free:
            free.setdefault(self._kind_of[partition_id].takers, []).append(partition_id)
        for takers in sorted(free, key=lambda takers: (len(takers), takers)):
            waiting = [(self.load[taker], taker) for taker in takers]
            heapify(waiting)
            for partition_id in free[takers]:
                _, taker = waiting[0]
                self._put(partition_id, taker)
                heapreplace(waiting, (self.load[taker], taker))

    def level(self) -> bool:
        """Move partitions from the most to the least loaded of their subscribers, until they differ by one at most."""
        moved = False
        for kind in self._kinds.values():
            moved |= self._level(kind)
        return moved

    def _level(self, kind: _Kind) -> bool:
        givers = [(-self.load[taker], taker) for taker in kind.takers if kind.own[taker] or kind.guests[taker]]
        takers = [(self.load[taker], taker) for taker in kind.takers]
        heapify(givers)
        heapify(takers)
        moved = False
        while givers:
            most, giver = givers[0]
            least, taker = takers[0]
            # An entry is old once its member's load has changed: a newer one is there as well.
            if -most != self.load[giver] or not (kind.own[giver] or kind.guests[giver]):
                heappop(givers)
            elif least != self.load[taker]:
                heappop(takers)
            elif -most - least < 2:
                break
            else:
                self._move(next(reversed(kind.guests[giver] or kind.own[giver])), taker)
                moved = True
                for place in (giver, taker):
                    heappush(givers, (-self.load[place], place))
                    heappush(takers, (self.load[place], place))
        return moved

    def bring_home(self) -> bool:
        """Give partitions back to their owners where that leaves the balance as it is, alone or in exchange."""
        moved = False
        for partition_id, home in self._home.items():
            place = self.at[partition_id]
            if place == home:
                continue
            if self.load[place] > self.load[home]:
                self._move(partition_id, home)
                moved = True
            elif (other := self._exchangeable(home, place)) is not None:
                self._move(other, place)
                self._move(partition_id, home)
                moved = True
        return moved

    def _exchangeable(self, place: int, taker: int) -> int | None:
        """Return one of the guests at a place, of a kind that the taker may have."""
        for kind in self._kinds.values():
            if kind.guests.get(place) and taker in kind.own:
                return next(reversed(kind.guests[place]))
        return None

    def _put(self, partition_id: int, place: int) -> None:
        self._set_of(partition_id, place)[partition_id] = None
        self.at[partition_id] = place
        self.load[place] += 1

    def _move(self, partition_id: int, place: int) -> None:
        before = self.at[partition_id]
        del self._set_of(partition_id, before)[partition_id]
        self.load[before] -= 1
        self._put(partition_id, place)

    def _set_of(self, partition_id: int, place: int) -> dict[int, None]:
        kind = self._kind_of[partition_id]
        return (kind.own if self._home.get(partition_id) == place else kind.guests)[place]
