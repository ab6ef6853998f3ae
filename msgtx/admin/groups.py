"""Consumer groups as an administrator sees them."""

import builtins
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import get_args

from msgtx import arguments, errors
from msgtx.database.calls import clock
from msgtx.database.connection import RawConnection
from msgtx.database.pool import Engine
from msgtx.database.standby import read_again
from msgtx.rules.group import GroupStatus, state_of
from msgtx.rules.names import did_you_mean
from msgtx.rules.reset import Target, Word, new_offset, time_of
from msgtx.store.append.append import epoch_ms
from msgtx.store.fetch.fetch import LATEST, list_offsets
from msgtx.store.fetch.holders import stable_ends
from msgtx.store.fetch.records import count_records, first_records
from msgtx.store.groups.groups import (
    ListedGroup,
    committed_offsets,
    delete_group,
    delete_offsets,
    list_groups,
    reset_offsets,
)
from msgtx.store.groups.members import Member, describe_members
from msgtx.store.monitoring import measure_lags
from msgtx.store.topics.topics import describe_topics, partitions_of, require_topics
from msgtx.types import (
    GroupDescription,
    GroupLag,
    GroupListing,
    GroupPartition,
    Isolation,
    MemberDescription,
    OffsetAndMetadata,
    OffsetReset,
    PartitionDescription,
    ShiftBy,
    TopicPartition,
)


class GroupsAdmin:
    """`client.admin.groups`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def list(self, states: Collection[str] | None = None) -> list[GroupListing]:
        """List the groups that the role may use or observe, with their state, by name.

        Those of which nothing is left only if `states` asks for Dead.
        """
        states = known_states(states, GroupStatus)
        with self._engine.connection() as connection:
            found = list_groups(connection, None)
        wanted = set(states) if states else set(GroupStatus) - {GroupStatus.DEAD}
        return [
            GroupListing(group.group_name, state, group.strategy, group.members)
            for group in found
            if (state := _state(group)) in wanted
        ]

    def lags(self, most: int = 10_000) -> "builtins.list[GroupLag]":
        """Return how far groups are behind, by name. It takes the right to observe every topic.

        `most`: pairs of a group and a partition that are looked at, rounded up to 250; some 100 ms for 1,000.
        """
        most = arguments.whole("most", most, least=1, most=arguments.LARGEST_INT4)
        records: dict[str, int] = defaultdict(int)
        ages: dict[str, int | None] = defaultdict(lambda: None)
        for one in read_again(self._engine.reading, lambda connection: [*measure_lags(connection, most=most)]):
            if one is not None:
                records[one.group_name] += one.records
                known = [age for age in (ages[one.group_name], one.age_ms) if age is not None]
                ages[one.group_name] = max(known, default=None)
        return [GroupLag(group, lag, ages[group]) for group, lag in sorted(records.items())]

    def describe(self, group: str) -> GroupDescription:
        """Describe a group, with its lag on each partition that the role may consume or observe.

        A group that does not exist is Dead, as Kafka has it. Raise `AuthorizationFailed` for a group that the role may
        neither use nor observe.
        """
        group = arguments.check_name("a group", group)
        with self._engine.connection() as connection:
            listed = next(iter(list_groups(connection, [group])), ListedGroup(group, 0, None, 0, 0, True, False))
            known = describe_members(connection, group)
            partitions = _partitions(connection, group, known.members if known else [])
        ages = [one.lag_ms for one in partitions if one.lag_ms is not None]
        return GroupDescription(
            group=group,
            state=_state(listed),
            strategy=listed.strategy,
            generation=listed.generation,
            members=listed.members,
            lag=sum(one.lag or 0 for one in partitions),
            lag_ms=max(ages, default=None),
            partitions=partitions,
        )

    def members(self, group: str) -> "builtins.list[MemberDescription]":
        """Return the members of a group in the order of their joins, including those with an expired session.

        Raise `AuthorizationFailed` for a group that the role may neither use nor observe.
        """
        group = arguments.check_name("a group", group)
        with self._engine.connection() as connection:
            known = describe_members(connection, group)
            names = _names(connection)
        return [_member(member, names) for member in known.members] if known else []

    def offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return a group's committed offsets; those of a sealed transaction wait for its decision, and are left out."""
        group = arguments.check_name("a group", group)
        with self._engine.connection() as connection:
            found = committed_offsets(connection, group, None)
            names = _names(connection)
        committed = {
            names[partition_id]: offset.at
            for partition_id, offset in found.items()
            if offset.at is not None and partition_id in names
        }
        return dict(sorted(committed.items()))

    def delete(self, group: str) -> None:
        """Delete a group with its offsets. Raise `GroupNotFound`, `GroupNotEmpty` while it has members."""
        group = arguments.check_name("a group", group)
        with self._engine.connection() as connection:
            if not list_groups(connection, [group]):  # none, or a share group
                raise errors.GroupNotFound(f"there is no consumer group {group!r}", group=group)
            delete_group(connection, group)

    def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> "builtins.list[TopicPartition]":
        """Delete a group's offsets, also those that wait for a decision. Returns the partitions that had one.

        All or nothing. Raise `GroupNotFound`, `UnknownTopicOrPartition`, and `GroupSubscribedToTopic` for a partition that a
        living member owns.
        """
        group, partitions = arguments.check_name("a group", group), arguments.partitions(partitions)
        with self._engine.connection() as connection:
            ids = _ids(connection, partitions)
            removed = delete_offsets(connection, group, [*ids.values()])
        return [partition for partition, partition_id in ids.items() if partition_id in removed]

    def reset(
        self,
        group: str,
        target: Target,
        *,
        topics: Iterable[str] | None = None,
        partitions: Iterable[TopicPartition] | None = None,
        dry_run: bool = False,
    ) -> "builtins.list[OffsetReset]":
        """Reset a group's offsets. Return the changes; with `dry_run`, change nothing.

        `target`: `"earliest"`, `"latest"` (the last stable offset), `"current"`; a number (an offset); `ShiftBy(n)`; an
        aware datetime, or a timedelta back from now (the first record at or after that time); a mapping of offsets. An
        offset outside the log is moved to its nearest end, and the result says so. `topics` and `partitions`: only these;
        neither: where the group has an offset. A group that does not exist is made. Raise `GroupNotEmpty` while it has
        members, `UnknownTopicOrPartition`, `InvalidRequest`, and `GroupNotFound` if no partition is named, either.
        """
        group, dry_run = arguments.check_name("a group", group), arguments.flag("dry_run", dry_run)
        target, topics, partitions = reset_arguments(target, topics, partitions)
        with self._engine.connection() as connection:
            ids = _scope(connection, group, topics, partitions)
            committed = committed_offsets(connection, group, [*ids.values()])
            current = {partition_id: found.at.offset for partition_id, found in committed.items() if found.at is not None}
            planned = plan_reset(connection, target, ids, current)
            if not dry_run:
                offsets = {ids[TopicPartition(one.topic, one.partition)]: one.new_offset for one in planned}
                reset_offsets(connection, group, offsets)
        return planned


def _state(group: ListedGroup) -> GroupStatus:
    return state_of(members=group.members, overdue=group.overdue, settled=group.settled, has_offsets=group.has_offsets)


def _names(connection: RawConnection) -> dict[int, TopicPartition]:
    return partitions_of(describe_topics(connection, None).values())


def _member(member: Member, names: Mapping[int, TopicPartition]) -> MemberDescription:
    return MemberDescription(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_host=member.client_host,
        client_process=member.client_process,
        session_timeout_ms=member.session_timeout_ms,
        joined_at=epoch_ms(member.joined_at),
        heartbeat_at=epoch_ms(member.heartbeat_at),
        session_over=member.session_over,
        topics=member.topics,
        pattern=member.pattern,
        owned=sorted(names[partition_id] for partition_id in member.owned if partition_id in names),
        target=sorted(names[partition_id] for partition_id in member.target if partition_id in names),
    )


def _partitions(connection: RawConnection, group: str, members: Iterable[Member]) -> list[GroupPartition]:
    """Return how far a group is where it has an offset or an owner."""
    committed = committed_offsets(connection, group, None)
    owners = {partition_id: member for member in members for partition_id in member.owned}
    names = {
        partition_id: name
        for partition_id, name in sorted(_names(connection).items(), key=lambda item: item[1])
        if partition_id in committed or partition_id in owners
    }
    positions = {
        partition_id: offset.at.offset
        for partition_id, offset in committed.items()
        if offset.at is not None and partition_id in names
    }
    # In this order: the counted records are still there to have an age, and lie below the ends.
    counted = count_records(connection, positions, Isolation.READ_COMMITTED)
    first = first_records(connection, positions)
    ends = list_offsets(connection, dict.fromkeys(names, LATEST), Isolation.READ_COMMITTED)
    rows = []
    for partition_id, name in names.items():
        if partition_id not in ends:  # deleted meanwhile
            continue
        offset, owner = committed.get(partition_id), owners.get(partition_id)
        at = None if offset is None else offset.at
        lag = counted.get(partition_id)
        waiting = first.get(partition_id) if lag else None
        rows.append(
            GroupPartition(
                topic=name.topic,
                partition=name.partition,
                current_offset=None if at is None else at.offset,
                metadata="" if at is None else at.metadata,
                pending=offset is not None and offset.pending,
                log_end_offset=ends[partition_id].log_end_offset,
                lag=lag,
                lag_ms=None if waiting is None else waiting.age_ms,
                member_id=None if owner is None else owner.member_id,
                group_instance_id=None if owner is None else owner.group_instance_id,
                client_host=None if owner is None else owner.client_host,
                client_process=None if owner is None else owner.client_process,
            )
        )
    return rows


def _ids(connection: RawConnection, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return partition ids, in order of the names. Raise `UnknownTopicOrPartition`."""
    wanted = sorted({TopicPartition(*partition) for partition in partitions})
    known = require_topics(connection, sorted({partition.topic for partition in wanted}))
    return {partition: known[partition.topic].partition_id(partition.partition) for partition in wanted}


def known_states(states: Collection[str] | None, known: Iterable[str]) -> "list[str]":
    """Return the states that are asked for, as texts. Raise `WrongType`, `InvalidRequest`."""
    asked = [] if states is None else [arguments.text("a state", each) for each in arguments.listed("states", states)]
    if unknown := set(asked) - set(known):
        raise errors.InvalidRequest(
            f"unknown state {arguments.shown(min(unknown))}; the states are {', '.join(known)}", name="states"
        )
    return asked


def reset_arguments(
    target: Target, topics: Iterable[str] | None, partitions: Iterable[TopicPartition] | None
) -> "tuple[Target, list[str] | None, list[TopicPartition] | None]":
    """Return the request of a reset. Raise `WrongType`, and `InvalidRequest` for a word that is no target."""
    names = [arguments.topic(topics)] if isinstance(topics, str) else None if topics is None else arguments.topics(topics)
    places = None if partitions is None else arguments.partitions(partitions)
    match target:
        case str():
            if target not in get_args(Word):
                raise errors.InvalidRequest(
                    f"{target!r} is no target; known words are {', '.join(get_args(Word))}", name="target"
                )
        case Mapping():
            if names is not None or places is not None:
                raise errors.InvalidRequest(
                    "a mapping of offsets names its partitions itself: give no topics or partitions", name="target"
                )
            target = {arguments.partition(each): _offset(offset) for each, offset in target.items()}
            places = list(target)
        case ShiftBy(offsets):
            target = ShiftBy(_offset(offsets))
        case datetime() | timedelta():
            pass
        case _:
            target = _offset(target, name="target")
    return target, names, places


def _offset(value: object, *, name: str = "an offset") -> int:
    return arguments.whole(name, value, least=-arguments.LARGEST_INT8)


def _scope(
    connection: RawConnection, group: str, topics: Iterable[str] | None, partitions: Iterable[TopicPartition] | None
) -> dict[TopicPartition, int]:
    """Return the partitions to reset: the named ones and all of the named topics, else those with an offset."""
    if topics is None and partitions is None:
        if not list_groups(connection, [group]):
            known = [listed.group_name for listed in list_groups(connection, None)]
            advice = f"{did_you_mean(group, known, otherwise='')} to make it, name topics or partitions".strip()
            raise errors.GroupNotFound(f"there is no consumer group {group!r}; {advice}", group=group)
        names = _names(connection)
        found = committed_offsets(connection, group, None)
        partitions = [names[partition_id] for partition_id in found if partition_id in names]
    return named_ids(connection, topics, partitions)


def named_ids(
    connection: RawConnection, topics: Iterable[str] | None, partitions: Iterable[TopicPartition] | None
) -> dict[TopicPartition, int]:
    """Return the ids of the named partitions and of those of the named topics. Raise `UnknownTopicOrPartition`."""
    wanted = [*(partitions or ())]
    if asked := [*(topics or ())]:
        wanted += partitions_of(require_topics(connection, asked).values()).values()
    return _ids(connection, wanted)


def plan_reset(
    connection: RawConnection, target: Target, ids: Mapping[TopicPartition, int], current: Mapping[int, int]
) -> list[OffsetReset]:
    """Decide the new offsets, from `current` ones by partition id. Only overdue transactions are aborted (I12)."""
    time = time_of(target, clock(connection).astimezone(UTC))
    times = dict.fromkeys(ids.values(), LATEST if time is None else time)
    listed = stable_ends(connection, times, Isolation.READ_COMMITTED)
    planned = []
    for partition, partition_id in ids.items():
        if partition_id not in listed:
            raise errors.UnknownTopicOrPartition(f"there is no partition {partition} (any more)", at=partition)
        ends = listed[partition_id]
        new, note = new_offset(
            partition,
            target,
            committed=current.get(partition_id),
            ends=PartitionDescription(ends.log_start_offset, ends.last_stable_offset, ends.log_end_offset),
            at_time=None if time is None else ends.offset,
        )
        planned.append(OffsetReset(partition.topic, partition.partition, current.get(partition_id), new, note))
    return planned
