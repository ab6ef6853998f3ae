"""Members of consumer groups, and the partitions that each owns or is to own (internals: groups#membership).

A member's partitions change hands in steps. An assignment plans the owner of each partition. A free partition goes to
its planned owner at once; any other one stays with its owner until that one releases it, leaves, or dies.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from msgtx.arguments import check_name
from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.translation import answered
from msgtx.database.wire import Int4Array, Int8Array, TextArray
from msgtx.errors import GroupNotFound, UnknownMember
from msgtx.generated import calls
from msgtx.types import Strategy


@dataclass(frozen=True, slots=True)
class Joined:
    """A member's number, by which the database knows it, and the group's generation."""

    group_id: int
    member_number: int
    generation: int


@dataclass(frozen=True, slots=True)
class Beat:
    """The answer to a heartbeat. `stale`: the assignment was made of other members or topics than there are now."""

    generation: int
    stale: bool


@dataclass(frozen=True, slots=True)
class Assignment:
    """The partitions of a member, by id with the generation in which it got each, and those planned for it.

    It releases owned partitions that are not planned. A planned partition that it does not own still belongs to another
    member.
    """

    generation: int
    stale: bool
    owned: dict[int, int]
    target: frozenset[int]


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group; `pattern`: how it has found `topics`; `owned` and `target` as in `Assignment`."""

    number: int
    member_id: str
    group_instance_id: str | None
    client_host: str | None
    client_process: int | None
    session_timeout_ms: int
    joined_at: datetime
    heartbeat_at: datetime
    session_over: bool
    topics: tuple[str, ...]
    pattern: str | None
    owned: dict[int, int]
    target: frozenset[int]


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group in one snapshot, members in the order of their numbers.

    `topics_version` is today's: an assignment is made of it. `stale` as in `Beat`. `strategy`: None before the first member.
    """

    group_id: int
    generation: int
    stale: bool
    strategy: Strategy | None
    topics_version: int
    members: list[Member]


def join_group(
    connection: RawConnection,
    group: str,
    *,
    member_id: str,
    group_instance_id: str | None,
    client_host: str | None,
    client_process: int | None,
    session_timeout_ms: int,
    strategy: str,
    topics: Collection[str] | None,
    pattern: str | None,
    topics_version: int | None = None,
) -> Joined:
    """Join, or change the subscription: `topics`; with a `pattern` those that match it, as of `topics_version`.

    The same again changes nothing.

    The join is heartbeat 0 of a new `member_number`. With the same number as before, the count of heartbeats continues.
    Raise `ConfigError` for a strategy that is not the group's, `InvalidSessionTimeout` and `GroupMaxSizeReached` by the
    limits of the installation, `InvalidRequest` for impossible values.
    """
    for what, name in (("a group", group), ("a member", member_id), ("an instance", group_instance_id)):
        if name is not None:
            check_name(what, name)
    names = None if topics is None else TextArray(sorted(set(topics)))
    who = (member_id, group_instance_id, client_host, client_process)
    subscription = (names, pattern, topics_version)
    ((error, detail, *joined),) = call(
        connection, calls.JOIN_GROUP, group, *who, session_timeout_ms, strategy, *subscription
    )
    if error is not None:
        raise answered(error, detail, group=group, member_id=member_id)
    return Joined(*joined)


def describe_members(connection: RawConnection, group_name: str) -> GroupState | None:
    """Return a group as it stands; None if there is none."""
    rows = call(connection, calls.DESCRIBE_MEMBERS, group_name)
    if not rows:
        return None
    group = rows[0]
    stale = group.stale or group.group_topics_version != group.topics_version
    strategy = cast(Strategy | None, group.strategy)
    members = [_member(row[6:]) for row in rows if row.member_number is not None]
    return GroupState(group.group_id, group.generation, stale, strategy, group.topics_version, members)


def assign_partitions(
    connection: RawConnection, group: str, *, generation: int, topics_version: int, targets: Mapping[int, int]
) -> bool:
    """Say which member, by number, is to own each partition, by id; other partitions get no owner.

    Return False, and change nothing, if the group is not at `generation` any more: look again. `topics_version`: of the
    state that this was made of.
    """
    partitions, numbers = Int4Array(targets), Int8Array(targets.values())
    ((done,),) = call(connection, calls.ASSIGN_PARTITIONS, group, generation, topics_version, partitions, numbers)
    return bool(done)


def release_partitions(connection: RawConnection, group: str, member_number: int, partition_ids: Collection[int]) -> int:
    """End a member's ownership of these partitions. Return the group's generation.

    One that is to be the member's own (again) is given back to it, since the new generation. Raise `GroupNotFound`.
    """
    ((generation,),) = call(connection, calls.RELEASE_PARTITIONS, group, member_number, Int4Array(partition_ids))
    if generation is None:
        raise GroupNotFound(f"there is no consumer group {group}", group=group)
    return int(generation)


def leave_group(connection: RawConnection, group: str, member_id: str, *, number: int | None = None) -> bool:
    """Remove a member; its partitions go at once to the members that are to own them. Return whether it was there.

    `number`: of a member of a share group, as its proof.
    """
    ((left,),) = call(connection, calls.LEAVE_GROUP, group, member_id, number)
    return bool(left)


def heartbeat(
    connection: RawConnection,
    group: str,
    *,
    member_number: int,
    member_id: str,
    group_instance_id: str | None,
    number: int,
) -> Beat:
    """Note a member's heartbeat, and remove others whose session is over. `number` counts on from the join's 0.

    Raise `FencedInstance` if another member has taken the instance id, `UnknownMember` if it is not a member any more.
    """
    ((error, detail, generation, stale),) = call(
        connection, calls.HEARTBEAT_GROUP, group, member_number, member_id, group_instance_id, number
    )
    if error is not None:
        raise answered(error, detail, group=group, member_id=member_id)
    return Beat(generation, stale)


def member_assignment(connection: RawConnection, group: str, member_number: int) -> Assignment:
    """Return the partitions that a member owns and is to own. Raise `UnknownMember` if it is not a member any more."""
    rows = call(connection, calls.MEMBER_ASSIGNMENT, group, member_number)
    if not rows:
        raise UnknownMember(f"group {group} has no member of number {member_number} (any more)", group=group)
    ((generation, stale, owned, since, target),) = rows
    return Assignment(generation, stale, _owned(owned, since), frozenset(target))


def _member(row: tuple[Any, ...]) -> Member:
    *who, topics, pattern, owned, since, target = row
    return Member(*(*who, tuple(topics), pattern, _owned(owned, since), frozenset(target)))


def _owned(partition_ids: list[int], since: list[int]) -> dict[int, int]:
    return dict(zip(partition_ids, since, strict=True))
