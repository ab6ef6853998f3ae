"""A consumer group as it must be: who is a member, who owns what, whose offsets are taken (I11). Never imports msgtx.

Written from a page, not from the code (internals: groups). Every change returns another group; each but a heartbeat is a
generation of its own.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

FENCED_INSTANCE, UNKNOWN_MEMBER = "FencedInstance", "UnknownMember"
OLD_GENERATION, NOT_ASSIGNED = "IllegalGeneration", "NotAssigned"
RANKS = (FENCED_INSTANCE, UNKNOWN_MEMBER, OLD_GENERATION, NOT_ASSIGNED)  # of several refusals the first is the answer


@dataclass(frozen=True, slots=True)
class Commit:
    """An offset, and who says so: a member at a generation; without one a plain group name."""

    offset: int
    member: str | None = None
    generation: int = -1
    instance: str | None = None


@dataclass(frozen=True, slots=True)
class Person:
    """A member. The heartbeat with the highest number counts, and it is over when that is too far away, also ahead."""

    member: str
    instance: str | None
    timeout: int
    topics: frozenset[str]
    beat: int
    at: int

    def over(self, now: int) -> bool:
        return abs(now - self.at) > self.timeout


@dataclass(frozen=True, slots=True)
class Place:
    """A partition that somebody owns, since which generation, and who shall own it. A free one has none."""

    owner: int
    since: int
    heir: int | None


@dataclass(frozen=True, slots=True)
class Group:
    """`stale`: the assignment was made of other members; `topics`: of how many topics it was made."""

    generation: int = 0
    stale: bool = False
    topics: int = 0
    members: Mapping[int, Person] = field(default_factory=dict)
    places: Mapping[int, Place] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for partition, place in self.places.items():
            assert place.owner in self.members, f"{partition} has an owner that is no member"
            assert place.heir is None or place.heir in self.members, f"{partition} is for one that is no member"
            assert place.since <= self.generation, f"{partition} is owned since a generation to come"

    # ── membership ──

    def number_of(self, member: str) -> int | None:
        return next((number for number, person in self.members.items() if person.member == member), None)

    def holder(self, instance: str | None) -> int | None:
        held = (number for number, person in self.members.items() if person.instance == instance)
        return None if instance is None else next(held, None)

    def overdue(self, now: int, *, but: Collection[int | None] = ()) -> list[int]:
        return [number for number, person in self.members.items() if number not in but and person.over(now)]

    def join(self, number: int, who: Person) -> "Group":
        """A member comes, under a new number, or comes again. Others whose session is over are out.

        A static one replaces the one before, and has what that had since now.
        """
        known, held = self.number_of(who.member), self.holder(who.instance)
        group = self.without(self.overdue(who.at, but=(known, held)))
        if known is not None:
            before = group.members[known]
            again = replace(before, timeout=who.timeout, topics=who.topics)
            changed = int(before.topics != who.topics)
            return replace(
                group,
                generation=group.generation + changed,
                stale=group.stale or bool(changed),
                members={**group.members, known: again},
            )
        same = held is not None and group.members[held].topics == who.topics
        raised = group.generation + 1
        places = {
            partition: Place(
                number if place.owner == held else place.owner,
                raised if place.owner == held else place.since,
                number if held is not None and place.heir == held else place.heir,
            )
            for partition, place in group.places.items()
        }
        members = {key: person for key, person in group.members.items() if key != held}
        return replace(
            group, generation=raised, stale=group.stale or not same, members={**members, number: who}, places=places
        )

    def without(self, gone: Collection[int]) -> "Group":
        """Remove members: what they own goes to its planned owner, or to none."""
        if not gone:
            return self
        raised = self.generation + 1
        places = {}
        for partition, place in self.places.items():
            heir = None if place.heir in gone else place.heir
            if place.owner not in gone:
                places[partition] = replace(place, heir=heir)
            elif heir is not None:
                places[partition] = Place(heir, raised, heir)
        members = {number: person for number, person in self.members.items() if number not in gone}
        return replace(self, generation=raised, stale=True, members=members, places=places)

    def beat(self, number: int, beat: int, now: int) -> "Group":
        """A member lives. What is said late changes nothing."""
        person = self.members[number]
        if beat <= person.beat:
            return self
        return replace(self, members={**self.members, number: replace(person, beat=beat, at=now)})

    # ── who owns what ──

    def assign(self, topics: int, heirs: Mapping[int, int]) -> "Group":
        """Say who shall own what. What is free is its own at once; the rest stays where it is until it is released."""
        raised = self.generation + 1
        heirs = {partition: number for partition, number in heirs.items() if number in self.members}
        places = {partition: replace(place, heir=heirs.get(partition)) for partition, place in self.places.items()}
        for partition, number in heirs.items():
            places.setdefault(partition, Place(number, raised, number))
        return replace(self, generation=raised, stale=False, topics=topics, places=places)

    def release(self, number: int, partitions: Collection[int]) -> "Group":
        """A member gives up what it owns of these."""
        released = [p for p in partitions if p in self.places and self.places[p].owner == number]
        if not released:
            return self
        raised, places = self.generation + 1, dict(self.places)
        for partition in released:
            heir = places.pop(partition).heir
            if heir is not None:
                places[partition] = Place(heir, raised, heir)
        return replace(self, generation=raised, places=places)

    # ── whose offsets are taken ──

    def refusal(self, partition: int, commit: Commit) -> str | None:
        """Why this offset is not taken; None: it is."""
        if commit.member is None:
            return UNKNOWN_MEMBER if self.members else None
        number, held, place = self.number_of(commit.member), self.holder(commit.instance), self.places.get(partition)
        if held is not None and held != number:
            return FENCED_INSTANCE
        if number is None:
            return UNKNOWN_MEMBER
        mine = place is not None and place.owner == number
        if commit.generation > self.generation or (mine and place is not None and place.since > commit.generation):
            return OLD_GENERATION
        return None if mine else NOT_ASSIGNED


def first_refusal(groups: Mapping[str, Group], offsets: Mapping[tuple[str, int], Commit]) -> str | None:
    """Why offsets are not taken: all of them are, or none."""
    found = {groups.get(group, Group()).refusal(partition, commit) for (group, partition), commit in offsets.items()}
    return next((name for name in RANKS if name in found), None)
