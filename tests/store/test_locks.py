"""What each call locks, and in which mode (ARCHITECTURE.md, "Order of locks"): few results show that a lock is missing.

Each call runs in a SQL transaction of its own, and what it has locked is looked at before the end.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from msgtx.database.calls import query
from msgtx.store.append.append import append, append_and_decide
from msgtx.store.groups.groups import commit_offsets, delete_group, delete_offsets, reset_offsets
from msgtx.store.groups.members import leave_group
from msgtx.store.operator.installation import change_incarnation, fence_everybody
from msgtx.store.shares.answers import acknowledge_records
from msgtx.store.shares.shares import (
    Acquiring,
    acquire_records_together,
    configure_share_group,
    ensure_dead_letters,
    redrive_dead_letters,
    reset_share_offsets,
)
from msgtx.store.spark import Attempt, BatchName, abort_batch, begin_attempt, decide_batch
from msgtx.store.sweeps import sweeps
from msgtx.store.sweeps.coordinators import lease_shards, release_shards
from msgtx.store.transactions.producers import fence_producer, init_producer_id, lock_producers
from msgtx.store.transactions.seal import commit_in_session, complete_prepared, decide_sealed, seal
from msgtx.store.transactions.transactions import end_transaction, mark, mark_partitions
from msgtx.types import GroupMetadata, OffsetAndMetadata
from tests.databases import Connection, Sessions, backend, wait_for_lock
from tests.store.roster import Roster
from tests.store.sharing import ShareGroup
from tests.store.steps import (
    Writer,
    batch,
    delete_topic_of,
    expire_transaction,
    expire_transactions,
    new_topic,
    offsets_of,
    plain,
)

HELD: Final = """
    select l.classid::bigint - 1836279552, case when l.objid::bigint < 1::bigint << 31 then l.objid::bigint
        else l.objid::bigint - (1::bigint << 32) end, l.mode
    from pg_locks l where l.locktype = 'advisory' and l.pid = %s and l.granted"""
PRODUCER, GROUP, PARTITION, MARKING, LEASES, SPARK, SHARE, TAKEN = 1, 2, 3, 4, 5, 6, 9, 10
MODES: Final = {"ShareLock": "share", "ExclusiveLock": "exclusive"}


class World:
    """Two partitions, two producers, a member of a group, an attempt of Spark; and what is done with them."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.one, self.other = new_topic(connection, 2)
        self.first, self.second = Writer(connection), Writer(connection)
        self.group = Roster(connection)
        self.group.join("a")
        self.empty = Roster(connection)
        self.offsets = offsets_of((self.empty.name, self.one, 0))
        commit_offsets(connection, {GroupMetadata(self.empty.name): {self.one: OffsetAndMetadata(0)}})
        self.batch = BatchName("app-of-locks", "", 0)
        attempt = begin_attempt(connection, self.batch, timeout_ms=60_000)
        assert attempt is not None
        self.attempt = attempt
        self.keys = {
            (PRODUCER, self.first.id.producer_id): "first",
            (PRODUCER, self.second.id.producer_id): "second",
            (PRODUCER, attempt): "attempt",
            (PARTITION, self.one): "one",
            (PARTITION, self.other): "other",
            (MARKING, 0): "marking",
            (LEASES, 0): "leases",
        }
        names = {(GROUP, self.group.name): "group", (GROUP, self.empty.name): "empty", (SPARK, "app-of-locks"): "app"}
        for (kind, name), called in names.items():
            ((key,),) = connection.execute("select hashtext(%s)", [name]).fetchall()
            self.keys[kind, key] = called

    def held(self, session: Connection | None = None) -> dict[str, str]:
        """What this session, or another one, has locked, by its name here; of two modes the stronger one."""
        found = self.connection.execute(HELD, [backend(session or self.connection)]).fetchall()
        rows = sorted(found, key=lambda row: str(row[2]), reverse=True)
        return {self.keys[kind, key]: MODES[mode] for kind, key, mode in rows if (kind, key) in self.keys}

    def sealed(self, kind: Any) -> Any:
        self.first.send(self.one, b"x")
        answer = seal(self.connection, self.first.name, kind, tails=self.first.tails, offsets=self.offsets)
        assert answer.error is None
        return answer.sealed

    def sharing(self) -> ShareGroup:
        """A share group whose member has a record of the first partition, and that has a topic of dead letters."""
        plain(self.connection, self.one, b"0", b"1")
        group = ShareGroup(self.connection, self.one)
        for member in ("b", "c"):
            group.join(member)
        group.acquire("a", 1)
        ensure_dead_letters(self.connection, group.name)
        keys = self.connection.execute(
            "select msgtx.share_partition_key(%s, %s), l.letters, hashtext(%s), msgtx.share_partition_key(%s, l.letters)"
            " from msgtx.dead_letter_partition(%s, %s) l(letters)",
            [group.group_id, self.one, group.name, group.group_id, group.name, self.one],
        ).fetchall()
        names = "share", "letters", "sharing", "share of letters"
        for kind, key, called in zip((SHARE, PARTITION, GROUP, SHARE), keys[0], names, strict=True):
            self.keys[kind, key] = called
        return group

    def answered(self, group: ShareGroup, answer: str, *partitions: int, over: Connection | None = None) -> None:
        """A whole transaction with records, an offset and an answer."""
        rows = [self.first.row(partition, b"x") for partition in partitions]
        answers = group.answers("a", {0: answer})
        append_and_decide(over or self.connection, self.first.name, rows, offsets=self.offsets, answers=answers)

    def leases(self) -> Any:
        return lease_shards(self.connection, None, host="here", process=1)


def apart(prepare: Callable[[World], Any], act: Callable[[World, Any], Any]) -> Callable[[World], Callable[[], Any]]:
    """Prepare in SQL transactions of their own; then act."""

    def both(world: World) -> Callable[[], Any]:
        prepared = prepare(world)
        return lambda: act(world, prepared)

    return both


def at_once(act: Callable[[World], Any]) -> Callable[[World], Callable[[], Any]]:
    return lambda world: lambda: act(world)


def in_session(world: World) -> None:
    commit_in_session(world.connection, [batch(world.other, b"y")], world.offsets)
    world.connection.execute("set constraints all immediate")


def expired(world: World) -> None:
    world.first.send(world.one, b"x", timeout_ms=1)
    world.connection.execute("select pg_sleep(0.005)")


def purged(world: World) -> None:
    sweeps.purge_transactions(world.connection, None, None)


def acquired_together(group: ShareGroup) -> None:
    asked = [Acquiring(group.name, group.numbers[member], group.call(), [group.partition], 1, 1) for member in ("b", "c")]
    assert None not in acquire_records_together(group.connection, asked)


def answered_before(world: World) -> ShareGroup:
    group = world.sharing()
    world.answered(group, "reject", world.other)
    return group


def redrive(world: World, group: ShareGroup, over: Connection | None = None) -> int:
    return redrive_dead_letters(over or world.connection, group.name, 0, upto=None, most=1, skip_missing=False).sent


def rejected(world: World) -> ShareGroup:
    group = world.sharing()
    group.answer("a", {0: "reject"})
    return group


def emptied(world: World) -> ShareGroup:
    group = world.sharing()
    for member in group.numbers:
        leave_group(world.connection, group.name, member)
    return group


def from_a_group(world: World) -> str:
    """The topic of the partitions, of which one has a record that the empty group can take."""
    plain(world.connection, world.one, b"x")
    ((key, topic),) = query(
        world.connection,
        "select msgtx.share_partition_key(g.group_id, p.partition_id), t.name"
        " from msgtx.consumer_group g, msgtx.partition p join msgtx.topic t on t.topic_id = p.topic_id"
        " where g.name = %s and p.partition_id = %s",
        world.empty.name,
        world.one,
    )
    world.keys[TAKEN, key] = "taken"
    return str(topic)


def take(world: World, topic: str) -> None:
    """Take records, publish one, and take again in the same SQL transaction."""
    query(world.connection, "select from msgtx.take(%s, %s)", topic, world.empty.name)
    query(world.connection, "select msgtx.publish(%s, value => 'y', partition => 1)", topic)
    query(world.connection, "select from msgtx.take(%s, %s)", topic, world.empty.name)
    world.connection.execute("set constraints all immediate")


CALLS: Final[dict[str, tuple[Callable[[World], Callable[[], Any]], dict[str, str]]]] = {
    "append without a producer": (at_once(lambda w: append(w.connection, [batch(w.one, b"x")])), {"one": "exclusive"}),
    "append of one batch": (at_once(lambda w: w.first.send(w.one, b"x")), {"first": "share", "one": "exclusive"}),
    "append of two producers": (
        at_once(lambda w: append(w.connection, [w.second.row(w.one, b"x"), w.first.row(w.other, b"y")])),
        {"first": "share", "second": "share", "one": "exclusive", "other": "exclusive"},
    ),
    "append_and_decide": (
        at_once(
            lambda w: append_and_decide(
                w.connection, w.first.name, [w.first.row(w.one, b"x"), w.first.row(w.other, b"y")], offsets=w.offsets
            )
        ),
        {"first": "exclusive", "one": "exclusive", "other": "exclusive", "empty": "share"},
    ),
    "decide": (
        apart(lambda w: w.first.send(w.one, b"x"), lambda w, _: w.first.decide("COMMIT", offsets=w.offsets)),
        {"first": "exclusive", "empty": "share"},
    ),
    "end_transaction": (
        apart(lambda w: w.first.send(w.one, b"x"), lambda w, _: end_transaction(w.connection, w.first.name, "admin")),
        {"first": "exclusive"},
    ),
    "expire_transaction": (
        apart(expired, lambda w, _: expire_transaction(w.connection, w.first.name)),
        {"first": "exclusive"},
    ),
    "expire_overdue": (apart(expired, lambda w, _: expire_transactions(w.connection)), {"first": "exclusive"}),
    "init": (
        at_once(lambda w: init_producer_id(w.connection, w.first.transactional_id, timeout_ms=60_000)),
        {"first": "exclusive"},
    ),
    "fence": (at_once(lambda w: fence_producer(w.connection, w.first.transactional_id)), {"first": "exclusive"}),
    "fence_everybody": (
        at_once(lambda w: fence_everybody(w.connection, plain=False)),
        {"first": "exclusive", "second": "exclusive", "attempt": "exclusive"},
    ),
    "lock_producers": (
        at_once(lambda w: lock_producers(w.connection, [w.first.id.producer_id, w.second.id.producer_id])),
        {"first": "exclusive", "second": "exclusive"},
    ),
    "seal": (
        apart(
            lambda w: w.first.send(w.one, b"x"),
            lambda w, _: seal(w.connection, w.first.name, "external", tails=w.first.tails, offsets=w.offsets),
        ),
        {"first": "exclusive", "empty": "share"},
    ),
    "decide_sealed": (
        apart(lambda w: w.sealed("session"), lambda w, sealed: decide_sealed(w.connection, sealed)),
        {"first": "share"},
    ),
    "complete_prepared": (
        apart(lambda w: w.sealed("external"), lambda w, _: complete_prepared(w.connection, w.first.name, "COMMIT")),
        {"first": "exclusive"},
    ),
    "commit_in_session": (at_once(in_session), {"empty": "share", "other": "exclusive"}),
    "commit_offsets": (
        at_once(lambda w: commit_offsets(w.connection, {GroupMetadata(w.empty.name): {w.one: OffsetAndMetadata(1)}})),
        {"empty": "share"},
    ),
    "take": (apart(from_a_group, take), {"empty": "share", "taken": "exclusive", "other": "exclusive"}),
    "join": (at_once(lambda w: w.group.join("b")), {"group": "exclusive"}),
    "assign": (at_once(lambda w: w.group.assign({w.group.partitions[0]: "a"})), {"group": "exclusive"}),
    "release": (at_once(lambda w: w.group.release("a")), {"group": "exclusive"}),
    "leave": (at_once(lambda w: w.group.leave("a")), {"group": "exclusive"}),
    "reset_offsets": (at_once(lambda w: reset_offsets(w.connection, w.empty.name, {w.one: 0})), {"empty": "exclusive"}),
    "delete_offsets": (at_once(lambda w: delete_offsets(w.connection, w.empty.name, [w.one])), {"empty": "exclusive"}),
    "delete_group": (at_once(lambda w: delete_group(w.connection, w.empty.name)), {"empty": "exclusive"}),
    "delete_topic": (at_once(lambda w: delete_topic_of(w.connection, w.one)), {"one": "exclusive", "other": "exclusive"}),
    "mark": (at_once(lambda w: mark(w.connection)), {"marking": "exclusive"}),
    "mark_partitions": (at_once(lambda w: mark_partitions(w.connection, None)), {"marking": "exclusive"}),
    "purge_transactions": (at_once(purged), {"marking": "exclusive"}),
    "mark with leases": (
        apart(World.leases, lambda w, leases: mark(w.connection, leases=leases)),
        {"marking": "exclusive", "leases": "share"},
    ),
    "lease_shards": (at_once(World.leases), {"leases": "exclusive"}),
    "release_shards": (
        apart(World.leases, lambda w, leases: release_shards(w.connection, leases.coordinator_id)),
        {"leases": "exclusive"},
    ),
    "acquire_records": (apart(World.sharing, lambda w, group: group.acquire("b")), {"share": "exclusive"}),
    "acquire_records of two": (apart(World.sharing, lambda w, group: acquired_together(group)), {"share": "exclusive"}),
    "acknowledge_records": (
        apart(World.sharing, lambda w, group: group.answer("a", {0: "accept"})),
        {"share": "exclusive"},
    ),
    "acknowledge_records, rejecting": (
        apart(World.sharing, lambda w, group: group.answer("a", {0: "reject"})),
        {"letters": "exclusive", "share": "exclusive"},
    ),
    "acknowledge_in_transaction": (
        apart(World.sharing, lambda w, group: group.answer_in(w.first.name, "a", {0: "reject"})),
        {"first": "share", "share": "exclusive"},
    ),
    "append_acknowledge_decide": (
        apart(World.sharing, lambda w, group: w.answered(group, "accept", w.other)),
        {"first": "exclusive", "empty": "share", "other": "exclusive", "share": "exclusive"},
    ),
    "append_acknowledge_decide, without records": (
        apart(World.sharing, lambda w, group: w.answered(group, "accept")),
        {"first": "exclusive", "empty": "share", "share": "exclusive"},
    ),
    "append_acknowledge_decide, rejecting": (
        apart(World.sharing, lambda w, group: w.answered(group, "reject", w.other)),
        {"first": "exclusive", "empty": "share", "other": "exclusive", "letters": "exclusive", "share": "exclusive"},
    ),
    "append_acknowledge_decide, again": (
        apart(answered_before, lambda w, group: w.answered(group, "reject", w.other)),
        {"first": "exclusive", "empty": "share", "other": "exclusive"},
    ),
    "join_share_group": (apart(World.sharing, lambda w, group: group.join("new")), {"sharing": "exclusive"}),
    "configure_share_group": (
        apart(World.sharing, lambda w, group: configure_share_group(w.connection, group.name, {"max_record_locks": 9})),
        {"sharing": "exclusive"},
    ),
    "redrive_dead_letters": (apart(rejected, redrive), {"one": "exclusive", "share of letters": "exclusive"}),
    "reset_share_offsets": (
        apart(emptied, lambda w, group: reset_share_offsets(w.connection, group.name, {w.one: 0})),
        {"sharing": "exclusive", "share": "exclusive"},
    ),
    "change_incarnation": (at_once(lambda w: change_incarnation(w.connection)), {"leases": "exclusive"}),
    "begin_attempt": (at_once(lambda w: begin_attempt(w.connection, w.batch, timeout_ms=60_000)), {"app": "share"}),
    "decide_batch": (
        at_once(lambda w: decide_batch(w.connection, w.batch, [Attempt(w.attempt, {}, 0)])),
        {"app": "exclusive", "attempt": "exclusive"},
    ),
    "abort_batch": (
        at_once(lambda w: abort_batch(w.connection, w.batch)),
        {"app": "exclusive", "attempt": "exclusive"},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_locks_these(bare: None, connection: Connection, name: str) -> None:
    call, expected = CALLS[name]
    world = World(connection)
    act = call(world)
    with connection.transaction(force_rollback=True):
        act()
        assert world.held() == expected


def test_a_whole_transaction_that_rejects_locks_in_order(
    bare: None, connection: Connection, open_connection: Sessions
) -> None:
    """The group before partitions, and these ascending, though the dead letter is written behind the records."""
    world = World(connection)
    group = world.sharing()
    (later,) = new_topic(connection)
    world.keys[PARTITION, later] = "later"
    ((letters,),) = connection.execute("select msgtx.dead_letter_partition(%s, %s)", [group.name, world.one]).fetchall()
    other, caller = open_connection(), open_connection()
    with ThreadPoolExecutor(1) as threads:
        with other.transaction():
            other.execute("select msgtx.lock_partition(%s)", [letters])
            waits = threads.submit(world.answered, group, "reject", world.other, later, over=caller)
            wait_for_lock(connection, backend(caller))
            assert world.held(caller) == {"first": "exclusive", "empty": "share", "other": "exclusive"}
        waits.result(20)
    assert [offset for _, offset, *_ in group.letters] == [0]


def test_who_accepts_does_not_lock_where_dead_letters_would_go(bare: None, connection: Connection) -> None:
    world = World(connection)
    other = world.sharing()
    unlocked = {(PARTITION, "letters"): "other letters", (SHARE, "share"): "other share"}
    world.keys = {key: unlocked.get((key[0], called), called) for key, called in world.keys.items()}
    group = world.sharing()
    answers = group.answers("a", {0: "reject"}) + other.answers("a", {0: "accept"})
    with connection.transaction():
        assert acknowledge_records(connection, answers, call_number=99) == []
        assert world.held() == {"letters": "exclusive", "share": "exclusive", "other share": "exclusive"}


def test_a_redrive_locks_partitions_before_the_share_partition(
    bare: None, connection: Connection, open_connection: Sessions
) -> None:
    world = World(connection)
    group = rejected(world)
    other, caller = open_connection(), open_connection()
    with ThreadPoolExecutor(1) as threads:
        with other.transaction():
            other.execute("select msgtx.lock_partition(%s)", [world.one])
            waits = threads.submit(redrive, world, group, caller)
            wait_for_lock(connection, backend(caller))
            assert world.held(caller) == {}
        assert waits.result(20) == 1
