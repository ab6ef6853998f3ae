"""`client.admin.groups`: which member reads what, how far it is, and moving offsets (internals: groups)."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import msgtx
from msgtx import GroupListing, OffsetAndMetadata, OffsetReset, ShiftBy, TopicPartition, errors
from msgtx.store.groups.groups import commit_offsets
from msgtx.store.groups.members import assign_partitions, describe_members, join_group, release_partitions
from msgtx.store.topics.topics import describe_topics, topics_version
from msgtx.types import GroupMetadata
from tests.databases import Connection, wait_until
from tests.refusals import refuses
from tests.store.steps import seal, unique

SECONDS = 30.0
DAY = datetime(2026, 1, 1, tzinfo=UTC)
DAY_MS = 1_767_225_600_000


@dataclass
class Groups:
    """A topic of three partitions with records, and a group's name; members by hand."""

    client: msgtx.Client
    connection: Connection
    topic: str = field(default_factory=lambda: unique("topic"))
    group: str = field(default_factory=lambda: unique("group"))

    def __post_init__(self) -> None:
        self.client.topics.create(self.topic, partitions=3)
        self.ids = describe_topics(self.connection, [self.topic])[self.topic].partition_ids
        self.numbers: dict[str, int] = {}
        self.admin = self.client.admin.groups

    def tp(self, index: int) -> TopicPartition:
        return TopicPartition(self.topic, index)

    def produce(self, index: int, count: int, *, start_ms: int = DAY_MS, step_ms: int = 1_000) -> None:
        with self.client.producer() as producer:
            for i in range(count):
                producer.send(self.topic, b"%d" % i, partition=index, timestamp=start_ms + i * step_ms)

    def commit(self, offsets: dict[int, int], metadata: str = "") -> None:
        at = {self.ids[index]: OffsetAndMetadata(offset, metadata) for index, offset in offsets.items()}
        commit_offsets(self.connection, {GroupMetadata(self.group): at})

    def join(self, *members: str, **settings: Any) -> None:
        for member in members:
            given = {"topics": [self.topic], "pattern": None, "group_instance_id": None, **settings}
            joined = join_group(
                self.connection,
                self.group,
                member_id=member,
                client_host=f"host-of-{member}",
                client_process=7,
                session_timeout_ms=10_000,
                strategy="range",
                **given,
            )
            self.numbers[member] = joined.member_number

    def assign(self, **members: tuple[int, ...]) -> None:
        state = describe_members(self.connection, self.group)
        assert state is not None
        targets = {self.ids[index]: self.numbers[member] for member, indexes in members.items() for index in indexes}
        assert assign_partitions(
            self.connection, self.group, generation=state.generation, topics_version=state.topics_version, targets=targets
        )

    def offsets(self) -> dict[int, int]:
        return {tp.partition: at.offset for tp, at in self.admin.offsets(self.group).items()}

    def state(self) -> str:
        return self.admin.describe(self.group).state


@pytest.fixture
def groups(client: msgtx.Client, connection: Connection) -> Groups:
    return Groups(client, connection)


# ── list, states ──


def test_a_group_goes_through_kafkas_states(groups: Groups, clock: Callable[..., None]) -> None:
    assert groups.state() == "Dead"
    groups.join("one", "two")
    assert groups.state() == "PreparingRebalance"
    groups.assign(one=(0, 1, 2))
    assert groups.state() == "Stable"
    groups.assign(one=(0, 1), two=(2,))
    assert groups.state() == "PreparingRebalance", "a partition waits for its owner to release it"
    release_partitions(groups.connection, groups.group, groups.numbers["one"], [groups.ids[2]])
    assert groups.state() == "Stable"
    clock("1 minute")
    assert groups.state() == "Empty", "their sessions are over"
    groups.join("three")
    clock("2 minutes")
    groups.admin.reset(groups.group, "latest", partitions=[groups.tp(0)])
    assert groups.state() == "Empty"
    groups.admin.delete_offsets(groups.group, [groups.tp(0)])
    assert groups.state() == "Dead"
    groups.admin.delete(groups.group)
    assert groups.state() == "Dead"


def test_groups_are_listed_by_state(groups: Groups) -> None:
    def listed(*states: str) -> list[GroupListing]:
        return [one for one in groups.admin.list(states) if one.group == groups.group]

    groups.commit({0: 1})
    assert listed() == listed("Empty", "Stable") == [GroupListing(groups.group, "Empty", None, 0)]
    assert listed("Stable") == []
    groups.join("one")
    groups.assign(one=(0,))
    assert listed("Stable") == [GroupListing(groups.group, "Stable", "range", 1)]
    assert groups.admin.list() == sorted(groups.admin.list(), key=lambda one: one.group)
    with refuses(errors.InvalidRequest, name="states"):
        groups.admin.list(["Resting"])


def test_a_group_of_which_nothing_is_left_is_listed_only_as_dead(groups: Groups) -> None:
    groups.commit({0: 1})
    groups.admin.delete_offsets(groups.group, [groups.tp(0)])
    assert groups.group not in {one.group for one in groups.admin.list()}
    assert GroupListing(groups.group, "Dead", None, 0) in groups.admin.list(["Dead"])


# ── describe ──


def test_the_lag_counts_what_would_be_delivered_and_tells_its_age(groups: Groups, clock: Callable[..., None]) -> None:
    clock(DAY + timedelta(minutes=1))
    groups.produce(0, 10)
    groups.produce(1, 3)
    with groups.client.producer(transactional_id=groups.group) as producer:
        producer.begin_transaction()
        for _ in range(5):
            producer.send(groups.topic, b"aborted", partition=1, timestamp=DAY_MS)
        producer.flush(SECONDS)
        producer.abort_transaction()
    groups.commit({0: 4, 1: 3}, "note")
    found = groups.admin.describe(groups.group)
    assert (found.state, found.members, found.generation, found.strategy) == ("Empty", 0, 0, None)
    first, second = found.partitions
    assert (first.topic, first.partition, first.current_offset, first.metadata) == (groups.topic, 0, 4, "note")
    assert (first.log_end_offset, first.lag, first.lag_ms, first.member_id) == (10, 6, 56_000, None)
    assert (second.log_end_offset, second.lag, second.lag_ms) == (8, 0, None), "aborted records are no lag"
    assert (found.lag, found.lag_ms) == (6, 56_000)
    groups.produce(1, 1, start_ms=DAY_MS + 1_000)
    found = groups.admin.describe(groups.group)
    assert (found.lag, found.lag_ms) == (7, 59_000), "the oldest one counts"
    groups.commit({0: 10, 1: 9})
    found = groups.admin.describe(groups.group)
    assert (found.lag, found.lag_ms, [one.lag for one in found.partitions]) == (0, None, [0, 0])


def test_a_partition_without_offset_is_shown_with_its_owner_and_without_lag(groups: Groups) -> None:
    groups.produce(0, 4)
    groups.join("one", group_instance_id="static")
    groups.assign(one=(0,))
    found = groups.admin.describe(groups.group)
    (row,) = found.partitions
    assert (row.current_offset, row.lag, row.lag_ms, row.log_end_offset) == (None, None, None, 4)
    assert (row.member_id, row.group_instance_id, row.client_host, row.client_process) == ("one", "static", "host-of-one", 7)
    assert (found.lag, found.lag_ms, found.strategy, found.members) == (0, None, "range", 1)


def test_an_offset_that_waits_for_a_decision_is_told_and_does_not_count(groups: Groups) -> None:
    groups.produce(0, 4)
    groups.commit({0: 1})
    with groups.client.producer(transactional_id=groups.group) as producer:
        name = producer.begin_transaction().id
        producer.send(groups.topic, b"x", partition=2)
        producer.flush(SECONDS)
        seal(groups.connection, name, "session", offset=(groups.group, groups.ids[0], 3))
        (row,) = groups.admin.describe(groups.group).partitions
        assert (row.current_offset, row.pending, row.lag) == (1, True, 3)
        assert groups.offsets() == {0: 1}
        groups.client.admin.transactions.abort(name)
    (row,) = groups.admin.describe(groups.group).partitions
    assert (row.current_offset, row.pending) == (1, False)


def test_a_group_that_is_not_there_has_nothing(groups: Groups) -> None:
    found = groups.admin.describe("nowhere")
    assert (found.state, found.members, found.lag, found.lag_ms, found.partitions) == ("Dead", 0, 0, None, [])
    assert groups.admin.members("nowhere") == []
    assert groups.admin.offsets("nowhere") == {}


def test_a_deleted_topic_is_no_longer_the_groups(groups: Groups) -> None:
    groups.join("one")
    groups.assign(one=(0, 1, 2))
    groups.client.topics.delete(groups.topic)
    assert groups.admin.describe(groups.group).partitions == []
    (member,) = groups.admin.members(groups.group)
    assert (member.owned, member.target) == ([], [])


def test_members_tell_what_they_own_and_what_they_shall_own(groups: Groups, clock: Callable[..., None]) -> None:
    clock(DAY)
    groups.join("one", "two")
    matching = [name for name in groups.client.topics.list() if name.startswith("topic-")]
    groups.join("three", topics=matching, pattern="topic-.*", topics_version=topics_version(groups.connection))
    groups.assign(one=(0, 1, 2))
    groups.assign(one=(0,), two=(1, 2))
    one, two, three = groups.admin.members(groups.group)
    assert isinstance(one, msgtx.MemberDescription)
    assert (one.member_id, one.client_host, one.client_process, one.session_timeout_ms) == ("one", "host-of-one", 7, 10_000)
    assert (one.topics, one.pattern, three.pattern) == ((groups.topic,), None, "topic-.*")
    assert set(three.topics) == set(matching)
    assert (one.owned, one.target) == ([groups.tp(0), groups.tp(1), groups.tp(2)], [groups.tp(0)])
    assert (two.owned, two.target) == ([], [groups.tp(1), groups.tp(2)])
    assert abs(one.joined_at - DAY_MS) < 30_000
    assert one.heartbeat_at >= one.joined_at
    assert not one.session_over
    clock(DAY + timedelta(minutes=1))
    assert all(member.session_over for member in groups.admin.members(groups.group))


def test_offsets_are_those_of_the_group_by_partition(groups: Groups) -> None:
    groups.commit({2: 5, 0: 7}, "note")
    assert list(groups.admin.offsets(groups.group).items()) == [
        (groups.tp(0), OffsetAndMetadata(7, "note")),
        (groups.tp(2), OffsetAndMetadata(5, "note")),
    ]


# ── delete ──


def test_what_is_deleted_must_be_there_and_unused(groups: Groups) -> None:
    with pytest.raises(errors.GroupNotFound):
        groups.admin.delete(groups.group)
    with pytest.raises(errors.GroupNotFound):
        groups.admin.delete_offsets(groups.group, [groups.tp(0)])
    groups.commit({0: 1, 1: 1})
    with pytest.raises(errors.UnknownTopicOrPartition, match=r"there is no partition topic-.*-3"):
        groups.admin.delete_offsets(groups.group, [groups.tp(0), groups.tp(3)])
    assert groups.admin.delete_offsets(groups.group, [groups.tp(2), groups.tp(0)]) == [groups.tp(0)]
    groups.join("one")
    groups.assign(one=(1,))
    with pytest.raises(errors.GroupSubscribedToTopic):
        groups.admin.delete_offsets(groups.group, [groups.tp(1)])
    with pytest.raises(errors.GroupNotEmpty):
        groups.admin.delete(groups.group)
    assert groups.offsets() == {1: 1}


# ── reset ──


def test_a_reset_is_previewed_and_then_done(groups: Groups) -> None:
    groups.produce(0, 10)
    groups.produce(1, 4)
    groups.commit({0: 4, 1: 2})
    planned = [OffsetReset(groups.topic, 0, 4, 0), OffsetReset(groups.topic, 1, 2, 0)]
    assert groups.admin.reset(groups.group, "earliest", dry_run=True) == planned
    assert groups.offsets() == {0: 4, 1: 2}
    assert groups.admin.reset(groups.group, "earliest") == planned
    assert groups.offsets() == {0: 0, 1: 0}


@pytest.mark.parametrize(
    ("target", "expected", "notes"),
    [
        ("earliest", {0: 2, 1: 0, 2: 0}, set()),
        ("latest", {0: 10, 1: 4, 2: 0}, set()),
        ("current", {0: 4, 1: 2, 2: 0}, {"no offset is committed: latest"}),
        (3, {0: 3, 1: 3, 2: 0}, {"3 is above the log end"}),
        (timedelta(seconds=57), {0: 3, 1: 3, 2: 0}, {"no record is that young: latest"}),
        (DAY + timedelta(seconds=8), {0: 8, 1: 4, 2: 0}, {"no record is that young: latest"}),
        (datetime(2025, 1, 1, tzinfo=UTC), {0: 2, 1: 0, 2: 0}, {"no record is that young: latest"}),
    ],
)
def test_each_target_of_kafkas_has_its_offsets(
    groups: Groups, monkeypatch: pytest.MonkeyPatch, target: Any, expected: dict[int, int], notes: set[str]
) -> None:
    monkeypatch.setattr("msgtx.admin.groups.clock", lambda connection: DAY + timedelta(minutes=1))
    groups.produce(0, 10)
    groups.produce(1, 4)
    groups.connection.execute("update msgtx.partition set log_start_offset = 2 where partition_id = %s", [groups.ids[0]])
    groups.commit({0: 4, 1: 2})
    found = groups.admin.reset(groups.group, target, topics=[groups.topic])
    assert groups.offsets() == {one.partition: one.new_offset for one in found} == expected
    assert {one.note for one in found} - {""} == notes


def test_offsets_are_shifted_within_the_log(groups: Groups) -> None:
    groups.produce(0, 10)
    groups.produce(1, 4)
    groups.commit({0: 4, 1: 2})
    assert [one.new_offset for one in groups.admin.reset(groups.group, ShiftBy(3))] == [7, 4]
    assert [one.new_offset for one in groups.admin.reset(groups.group, ShiftBy(-5))] == [2, 0]
    assert groups.offsets() == {0: 2, 1: 0}
    with refuses(errors.InvalidRequest, topic=groups.topic, partition=2):
        groups.admin.reset(groups.group, ShiftBy(1), topics=[groups.topic])
    assert groups.offsets() == {0: 2, 1: 0}


def test_a_mapping_names_its_partitions_itself(groups: Groups) -> None:
    groups.produce(0, 10)
    groups.commit({0: 4, 1: 0})
    found = groups.admin.reset(groups.group, {groups.tp(0): 7})
    assert found == [OffsetReset(groups.topic, 0, 4, 7)]
    assert groups.offsets() == {0: 7, 1: 0}
    with refuses(errors.InvalidRequest, name="target"):
        groups.admin.reset(groups.group, {groups.tp(0): 7}, topics=[groups.topic])


def test_latest_is_before_what_is_undecided(groups: Groups) -> None:
    groups.produce(0, 2)
    with groups.client.producer(transactional_id=groups.group) as producer:
        producer.begin_transaction()
        producer.send(groups.topic, b"undecided", partition=0)
        producer.flush(SECONDS)
        groups.admin.reset(groups.group, "latest", partitions=[groups.tp(0)])
        assert groups.offsets() == {0: 2}
        producer.commit_transaction()
    assert groups.admin.describe(groups.group).lag == 1


@pytest.mark.parametrize(("target", "offset"), [("latest", 6), (timedelta(hours=1), 1)])
def test_a_reset_aborts_what_is_overdue_and_would_hold_it_back(groups: Groups, target: Any, offset: int) -> None:
    """I12. Else the group would be delivered what the reset was to skip."""
    with groups.client.producer(transactional_id=groups.group) as producer:
        producer.begin_transaction(timeout_ms=300)
        producer.send(groups.topic, b"open", partition=0)
        producer.flush(SECONDS)
        now = round(time.time() * 1000)
        groups.produce(0, 5, start_ms=now)
        time.sleep(0.4)
        groups.admin.reset(groups.group, target, partitions=[groups.tp(0)])
        assert groups.offsets() == {0: offset}
        producer.abort_transaction()


def test_a_group_that_is_not_there_is_made_where_partitions_are_named(groups: Groups) -> None:
    with refuses(errors.GroupNotFound, group=groups.group):
        groups.admin.reset(groups.group, "earliest")
    groups.admin.reset(groups.group, "earliest", topics=groups.topic)
    assert groups.offsets() == {0: 0, 1: 0, 2: 0}
    groups.admin.delete_offsets(groups.group, [groups.tp(index) for index in range(3)])
    assert groups.admin.reset(groups.group, "earliest") == []


def test_a_group_with_members_is_previewed_and_not_reset(groups: Groups, clock: Callable[..., None]) -> None:
    groups.produce(0, 3)
    groups.commit({0: 1})
    groups.join("one")
    assert groups.admin.reset(groups.group, "latest", dry_run=True) == [OffsetReset(groups.topic, 0, 1, 3)]
    with pytest.raises(errors.GroupNotEmpty, match="one on host-of-one"):
        groups.admin.reset(groups.group, "latest")
    assert groups.offsets() == {0: 1}
    clock("1 minute")
    groups.admin.reset(groups.group, "latest")
    assert groups.offsets() == {0: 3}


@pytest.mark.parametrize(
    ("target", "scope", "error"),
    [
        ("newest", {}, errors.InvalidRequest),
        ("latest", {"topics": ["nowhere"]}, errors.UnknownTopicOrPartition),
        ("latest", {"partitions": [TopicPartition("nowhere", 0)]}, errors.UnknownTopicOrPartition),
        ({TopicPartition("nowhere", 0): 1}, {}, errors.UnknownTopicOrPartition),
        (datetime(2026, 1, 1), {}, errors.InvalidRequest),  # noqa: DTZ001 - that is refused
        (timedelta(seconds=-1), {}, errors.InvalidRequest),
    ],
)
def test_a_wrong_reset_is_refused(groups: Groups, target: Any, scope: dict[str, Any], error: type[Exception]) -> None:
    groups.commit({0: 0})
    with pytest.raises(error):
        groups.admin.reset(groups.group, target, **scope)
    assert groups.offsets() == {0: 0}


def test_a_consumer_is_seen_while_it_reads_and_gone_when_it_is_closed(groups: Groups) -> None:
    groups.produce(0, 5)
    with groups.client.consumer(groups.topic, group=groups.group, auto_offset_reset="earliest") as consumer:
        read = wait_until(lambda: consumer.poll(0.1, max_records=2), "the consumer reads")
        consumer.commit()
        found = groups.admin.describe(groups.group)
        assert (found.state, found.members, found.lag) == ("Stable", 1, 5 - len(read))
        assert {row.client_process for row in found.partitions} == {os.getpid()}
        with pytest.raises(errors.GroupNotEmpty):
            groups.admin.delete(groups.group)
    assert groups.state() == "Empty"
    groups.admin.reset(groups.group, "earliest")
    with groups.client.consumer(groups.topic, group=groups.group) as consumer:
        assert wait_until(lambda: consumer.poll(0.1), "the consumer reads again")[0].offset == 0
    groups.admin.delete(groups.group)
