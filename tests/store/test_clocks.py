"""A clock that was set: what began at a wrong time is over within twice its own length, and is not given up too early.

Each case begins something under a clock that is wrong by hours, days or years, and sets the clock right. From then on its
own length counts (internals: coordinator#a-clock-that-is-set).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import pytest

from msgtx.coordinator.compactor import Compactor
from msgtx.coordinator.sweep import sweep
from msgtx.database.pool import Engine
from msgtx.store.groups.groups import commit_offsets
from msgtx.store.spark import BatchName, record_range
from msgtx.store.sweeps.coordinators import lease_shards, list_shards
from msgtx.types import GroupMetadata, OffsetAndMetadata
from tests.databases import Clock, Connection, Sessions
from tests.store.batches import attempt
from tests.store.conftest import Settings
from tests.store.roster import Roster
from tests.store.sharing import ShareGroup, four_records
from tests.store.steps import Writer, count, ends, new_partition, plain, seal, values
from tests.store.test_append_once import once
from tests.store.test_idle_ids import known, plain_id
from tests.store.test_idle_ids import use as use_plain

Over = Callable[[], bool]
JUMPS: Final = ("1 hour", "1 day", "10 years")
SLACK_SECONDS: Final = 2
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("bare")]


@dataclass
class World:
    """What a case begins with, and what has to be kept until it ends."""

    connection: Connection
    engine: Engine
    open_connection: Sessions
    kept: list[Callable[[], bool]] = field(default_factory=list)  # what holds before the time is over
    sessions: list[Writer] = field(default_factory=list)
    groups: list[ShareGroup] = field(default_factory=list)  # whose members live

    def sweep(self) -> None:
        """Have members that live send heartbeats, and sweep."""
        for group in self.groups:
            for number in group.numbers.values():
                self.connection.execute(
                    "insert into msgtx.group_heartbeat (member_number, heartbeat_number, heartbeat_at)"
                    " select %s, 1 + max(h.heartbeat_number), msgtx.clock() from msgtx.group_heartbeat h"
                    " where h.member_number = %s",
                    [number, number],
                )
        sweep(self.engine)

    def group(self, partition: int, **settings: object) -> ShareGroup:
        self.groups.append(ShareGroup(self.connection, partition, **settings))
        self.groups[-1].join("b")
        return self.groups[-1]


def lease(world: World) -> Over:
    """The shards of a coordinator that is gone."""
    lease_shards(world.connection, None, host="dead", process=1)

    def over() -> bool:
        living = lease_shards(world.connection, None, host="living", process=2)
        for _ in range(2):
            living = lease_shards(world.connection, living.coordinator_id, host="living", process=2)
        done = len(living.epochs) == len(list_shards(world.connection))
        world.connection.execute("delete from msgtx.coordinator where coordinator_id = %s", [living.coordinator_id])
        return done

    return over


def shown_lease(world: World) -> Over:
    """What is shown of it."""
    lease_shards(world.connection, None, host="dead", process=1)
    return lambda: all(shard.host is None for shard in list_shards(world.connection))


def session(world: World) -> Over:
    """A member of a group that is gone."""
    roster = Roster(world.connection)
    roster.join("gone", session_timeout_ms=60_000)
    return lambda: (world.sweep(), "gone" not in roster.members)[1]


def share_lock(world: World) -> Over:
    """Records that a member has, and does not answer for, though it lives."""
    group = world.group(four_records(world.connection), record_lock_duration_ms=60_000)
    assert len(group.acquire("a")) == 4
    return lambda: (world.sweep(), sorted(group.acquire("b")) == [0, 1, 2, 3])[1]


def share_lock_of_one(world: World) -> Over:
    """The same, beside new records, in another row of the log."""
    group = world.group(four_records(world.connection), record_lock_duration_ms=60_000)
    group.acquire("a")
    plain(world.connection, group.partition, b"new")
    return lambda: (world.sweep(), 0 in group.acquire("b"))[1]


def release_delay(world: World) -> Over:
    """A record that was released for later."""
    group = world.group(four_records(world.connection))
    group.acquire("a")
    group.answer("a", {0: "release"}, delay=60_000)
    return lambda: (world.sweep(), 0 in group.acquire("b"))[1]


def release_backoff_by_key(world: World) -> Over:
    """One of a group that keeps the order of keys."""
    group = world.group(four_records(world.connection), ordering="key", release_backoff_ms=60_000)
    group.acquire("a", 1)
    group.answer("a", {0: "release"})
    return lambda: (world.sweep(), 0 in group.acquire("b"))[1]


def transaction(world: World) -> Over:
    """A transaction whose program stands still; its session lives."""
    partition, writer = new_partition(world.connection), Writer(world.open_connection(), timeout_ms=60_000)
    world.sessions.append(writer)
    writer.send(partition, b"a")
    return lambda: (world.sweep(), _stable(world, partition))[1]


def _stable(world: World, partition: int) -> bool:
    _, stable, end = ends(world.connection, partition)
    return stable == end


def transaction_of_a_session_that_is_gone(world: World) -> Over:
    partition, theirs = new_partition(world.connection), world.open_connection()
    Writer(theirs, timeout_ms=60_000).send(partition, b"a")
    theirs.close()
    return lambda: (world.sweep(), _stable(world, partition))[1]


def sealed(world: World) -> Over:
    """A transaction that a session is to decide, and never does."""
    partition, writer = new_partition(world.connection), Writer(world.open_connection(), timeout_ms=60_000)
    world.sessions.append(writer)
    writer.send(partition, b"a")
    seal(writer.connection, writer.name, "session")
    return lambda: (world.sweep(), _stable(world, partition))[1]


def attempt_of_spark(world: World) -> Over:
    """An attempt whose task is gone, and its note of what it has read."""
    name = BatchName("app", "query", 1)
    attempt(world.connection, name, new_partition(world.connection), b"a")
    return lambda: (world.sweep(), count(world.connection, "transaction_decision", "outcome = 'ABORT'") == 1)[1]


def history_of_spark(world: World) -> Over:
    """What is noted of a query that never committed a batch."""
    record_range(world.connection, "query", 1, group="", ranges={new_partition(world.connection): (0, 1)})
    return lambda: (world.sweep(), count(world.connection, "spark_range") == 0)[1]


def dedup_key(world: World) -> Over:
    """A key of deduplication; within its window it is known."""
    partition = new_partition(world.connection)
    once(world.connection, partition, "key")
    world.kept.append(lambda: once(world.connection, partition, "key").duplicate)
    return lambda: (world.sweep(), count(world.connection, "dedup_key") == 0)[1]


def retention(world: World) -> Over:
    """A row of the log."""
    partition = new_partition(world.connection, retention_ms=60_000, timestamp_type="LogAppendTime")
    plain(world.connection, partition, b"ahead")
    world.kept.append(lambda: values(world.connection, partition) == [b"ahead"])
    return lambda: (world.sweep(), ends(world.connection, partition)[0] == 1)[1]


def retention_of_later_rows(world: World) -> Over:
    """A row that is appended when the clock is right: it has the time of the row in front of it, and its own age."""
    partition = new_partition(world.connection, retention_ms=60_000, timestamp_type="LogAppendTime")
    plain(world.connection, partition, b"ahead")
    begun = []

    def over() -> bool:
        world.sweep()
        start, _, end = ends(world.connection, partition)
        if not begun:
            begun.append(plain(world.connection, partition, b"behind"))
            assert (start, end) in {(0, 1), (1, 1)}
            return False
        assert start >= 1
        return start == 2

    world.kept.append(lambda: not over())
    return over


def tombstone(world: World) -> Over:
    partition = new_partition(world.connection, cleanup_policy="compact", delete_retention_ms=60_000)
    plain(world.connection, partition, None, b"1", keys=[b"a", b"b"])
    compactor = Compactor(min_dirty_ratio=0)

    def compact() -> None:
        after = None
        while (after := compactor(world.connection, after, None).after) is not None:
            pass

    compact()
    world.kept.append(lambda: (compact(), values(world.connection, partition) == [None, b"1"])[1])
    return lambda: (compact(), values(world.connection, partition) == [b"1"])[1]


def idle_id(world: World) -> Over:
    """A transactional id that was only initialized."""
    writer = Writer(world.connection)
    world.kept.append(lambda: known(world.connection, writer.id.producer_id))
    return lambda: (world.sweep(), not known(world.connection, writer.id.producer_id))[1]


def used_id(world: World) -> Over:
    """One whose newest transaction is from the future, and its history."""
    writer = Writer(world.connection)
    for _ in range(2):
        writer.send_and_commit(new_partition(world.connection), b"a")
    world.kept.append(lambda: known(world.connection, writer.id.producer_id))
    return lambda: (world.sweep(), not known(world.connection, writer.id.producer_id))[1]


def plain_id_of_the_future(world: World) -> Over:
    """A producer without a transactional id, and what retention has kept of it."""
    partition, producer = new_partition(world.connection, retention_ms=60_000), plain_id(world.connection)
    use_plain(world.connection, producer, partition)
    world.kept.append(lambda: known(world.connection, producer.producer_id))
    return lambda: (
        world.sweep(),
        not known(world.connection, producer.producer_id) and count(world.connection, "producer_state") == 0,
    )[1]


def history(world: World) -> Over:
    """Decisions: the older ones of an id are forgotten, the newest one stays with its id."""
    writer = Writer(world.connection)
    for _ in range(3):
        writer.send_and_commit(new_partition(world.connection), b"a")
    world.kept.append(lambda: count(world.connection, "transaction_decision") == 3)
    return lambda: (world.sweep(), count(world.connection, "transaction_decision") <= 1)[1]


def offsets(world: World) -> Over:
    """What a group without members has committed."""
    commit_offsets(world.connection, {GroupMetadata("group"): {new_partition(world.connection): OffsetAndMetadata(1)}})
    world.kept.append(lambda: count(world.connection, "group_offset") == 1)
    return lambda: (world.sweep(), count(world.connection, "group_offset") == 0)[1]


def wake_up(world: World) -> Over:
    world.connection.execute("insert into msgtx.wake_up (words, woken_at) values ('1', msgtx.clock())")
    return lambda: (world.sweep(), count(world.connection, "wake_up") == 0)[1]


# What begins, how long it lasts, in seconds, and after how many such lengths it is over.
CASES: Final[dict[Callable[[World], Over], tuple[int, int]]] = {
    lease: (10, 2),
    shown_lease: (10, 2),
    session: (60, 2),
    share_lock: (60, 2),
    share_lock_of_one: (60, 2),
    release_delay: (60, 2),
    release_backoff_by_key: (60, 2),
    transaction: (60, 2),
    transaction_of_a_session_that_is_gone: (60, 2),
    sealed: (60, 2),
    attempt_of_spark: (600, 2),
    history_of_spark: (600, 2),
    dedup_key: (600, 2),
    retention: (60, 2),
    retention_of_later_rows: (60, 3),
    tombstone: (60, 2),
    idle_id: (600, 2),
    used_id: (600, 3),
    plain_id_of_the_future: (600, 4),
    history: (600, 2),
    offsets: (600, 2),
    wake_up: (60, 2),
}
LENGTHS: Final = {
    "lease_ms": 10_000,
    "dedup_window_ms": 600_000,
    "transaction_history_ms": 600_000,
    "transactional_id_expiration_ms": 600_000,
    "producer_id_expiration_ms": 600_000,
    "offsets_retention_ms": 600_000,
}


@pytest.fixture
def world(connection: Connection, engine: Engine, open_connection: Sessions, settings: Settings) -> World:
    settings(**LENGTHS)
    return World(connection, engine, open_connection)


def ends_in_time(case: Callable[[World], Over], over: Over, clock: Clock, *, first: int) -> None:
    """Let the length of a case pass so often that it must be over. `first`: after how many lengths the first look comes."""
    seconds, lengths = CASES[case]
    for step in range(first, lengths + 1):
        clock(f"{step * (seconds + SLACK_SECONDS)} seconds")
        if over():
            return
    raise AssertionError(f"{case.__name__} stands still for more than {lengths} times its {seconds} s")


@pytest.mark.parametrize("jump", JUMPS, ids=lambda jump: jump.replace(" ", "_"))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_began_in_the_future_is_over_within_its_own_length(
    world: World, clock: Clock, case: Callable[[World], Over], jump: str
) -> None:
    clock(jump)
    over = case(world)
    clock(None)
    world.sweep()
    assert all(kept() for kept in world.kept), "it was given up before its time"
    ends_in_time(case, over, clock, first=1)


@pytest.mark.parametrize("jump", JUMPS, ids=lambda jump: jump.replace(" ", "_"))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_began_in_the_past_is_over_at_once_or_within_its_own_length(
    world: World, clock: Clock, case: Callable[[World], Over], jump: str
) -> None:
    """The clock was behind, and is set right: by it a long time has passed."""
    clock(f"-{jump}")
    over = case(world)
    clock(None)
    ends_in_time(case, over, clock, first=0)
