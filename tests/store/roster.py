"""A consumer group with its topic, members by their ids: each step of membership by hand."""

from collections.abc import Mapping
from typing import Any

from msgtx.store.groups.groups import commit_offsets, committed_offsets
from msgtx.store.groups.members import (
    Assignment,
    Beat,
    GroupState,
    Joined,
    assign_partitions,
    describe_members,
    heartbeat,
    join_group,
    leave_group,
    member_assignment,
    release_partitions,
)
from msgtx.types import GroupMetadata, OffsetAndMetadata
from tests.databases import Connection
from tests.store.steps import new_topic, unique

STRATEGY = "cooperative-sticky"


def join(connection: Connection, group: str, member_id: str, instance: str | None = None, **options: Any) -> Joined:
    """Make a client a member of a group."""
    given = {
        "client_host": "here",
        "client_process": 1,
        "session_timeout_ms": 45_000,
        "strategy": STRATEGY,
        "topics": ["topic"],
        "pattern": None,
        "topics_version": 1 if "pattern" in options else None,
        **options,
    }
    return join_group(connection, group, member_id=member_id, group_instance_id=instance, **given)


class Roster:
    """A group that knows the numbers of its members and the instance ids that they joined with."""

    def __init__(self, connection: Connection, partitions: int = 4) -> None:
        self.connection = connection
        self.name = unique("group")
        self.partitions = new_topic(connection, partitions)
        self.numbers: dict[str, int] = {}
        self.instances: dict[str, str | None] = {}
        self._beats: dict[int, int] = {}

    def join(self, member_id: str, instance: str | None = None, **options: Any) -> Joined:
        """Join, or join again."""
        joined = join(self.connection, self.name, member_id, instance, **options)
        self.numbers[member_id] = joined.member_number
        self.instances[member_id] = instance
        return joined

    @property
    def state(self) -> GroupState:
        """The group as it stands."""
        found = describe_members(self.connection, self.name)
        assert found is not None
        return found

    @property
    def generation(self) -> int:
        """The group's generation."""
        return self.state.generation

    def assign(self, targets: Mapping[int, str], *, generation: int | None = None) -> bool:
        """Say who shall own each partition, by member id."""
        state = self.state
        return assign_partitions(
            self.connection,
            self.name,
            generation=state.generation if generation is None else generation,
            topics_version=state.topics_version,
            targets={partition: self.numbers[member_id] for partition, member_id in targets.items()},
        )

    def assignment(self, member_id: str) -> Assignment:
        """What a member owns and shall own."""
        return member_assignment(self.connection, self.name, self.numbers[member_id])

    def release(self, member_id: str, *partitions: int) -> int:
        """End a member's ownership of partitions."""
        return release_partitions(self.connection, self.name, self.numbers[member_id], partitions)

    def leave(self, member_id: str) -> bool:
        """Leave the group."""
        return leave_group(self.connection, self.name, member_id)

    def beat(self, member_id: str, number: int | None = None) -> Beat:
        """Say that a member lives; numbers are counted."""
        member = self.numbers[member_id]
        count = self._beats.get(member, 0) + 1 if number is None else number
        self._beats[member] = max(count, self._beats.get(member, 0))
        return heartbeat(
            self.connection,
            self.name,
            member_number=member,
            member_id=member_id,
            group_instance_id=self.instances[member_id],
            number=count,
        )

    @property
    def members(self) -> list[str]:
        """The ids of the members, in the order in which they came."""
        return [member.member_id for member in self.state.members]

    @property
    def owners(self) -> dict[int, str]:
        """The owner of each partition that has one."""
        return {partition: member.member_id for member in self.state.members for partition in sorted(member.owned)}

    @property
    def targets(self) -> dict[int, str]:
        """Who shall own each partition."""
        return {partition: member.member_id for member in self.state.members for partition in sorted(member.target)}

    def metadata(self, member_id: str | None, generation: int | None = None) -> GroupMetadata:
        """What a member commits with, at today's generation unless the test says otherwise; None: no member."""
        if member_id is None:
            return GroupMetadata(self.name)
        at = self.generation if generation is None else generation
        return GroupMetadata(self.name, member_id, at, self.instances.get(member_id))

    def commit(self, member_id: str | None, partition: int, offset: int, *, generation: int | None = None) -> None:
        """Commit an offset in the name of a member."""
        commit_offsets(self.connection, {self.metadata(member_id, generation): {partition: OffsetAndMetadata(offset)}})

    def committed(self, partition: int) -> int | None:
        """Return the group's offset on a partition."""
        found = committed_offsets(self.connection, self.name, [partition]).get(partition)
        return found.at.offset if found and found.at else None

    def rows(self) -> list[tuple[Any, ...]]:
        """All that the database holds of the group, but for heartbeats."""
        found: list[tuple[Any, ...]] = []
        for table in ("consumer_group", "group_member", "group_assignment"):
            found += self.connection.execute(
                f"select t.* from msgtx.{table} t where t.group_id = ("
                " select g.group_id from msgtx.consumer_group g where g.name = %s) order by 1, 2",
                [self.name],
            ).fetchall()
        return found
