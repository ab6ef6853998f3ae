"""What each call locks, and in which mode (ARCHITECTURE.md, "Order of locks"): few results show that a lock is missing.

Each call runs in a SQL transaction of its own, and what it has locked is looked at before the end.
"""

from collections.abc import Callable
from typing import Any, Final

import pytest

from msgtx.store import sweeps
from msgtx.store.append import append, append_and_decide
from msgtx.store.coordinators import lease_shards, release_shards
from msgtx.store.groups import commit_offsets, delete_group, delete_offsets, reset_offsets
from msgtx.store.installation import change_incarnation, fence_everybody
from msgtx.store.producers import fence_producer, init_producer_id, lock_producers
from msgtx.store.seal import commit_in_session, complete_prepared, decide_sealed, seal
from msgtx.store.spark import Attempt, BatchName, abort_batch, begin_attempt, decide_batch
from msgtx.store.transactions import end_transaction, expire_transactions, mark, mark_partitions
from msgtx.types import GroupMetadata, OffsetAndMetadata
from tests.databases import Connection
from tests.store.roster import Roster
from tests.store.steps import Writer, batch, delete_topic_of, expire_transaction, new_topic, offsets_of

HELD: Final = """
    select l.classid::bigint - 1836279552, case when l.objid::bigint < 1::bigint << 31 then l.objid::bigint
        else l.objid::bigint - (1::bigint << 32) end, l.mode
    from pg_locks l where l.locktype = 'advisory' and l.pid = pg_backend_pid() and l.granted"""
PRODUCER, GROUP, PARTITION, MARKING, LEASES, SPARK = 1, 2, 3, 4, 5, 6
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

    def held(self) -> dict[str, str]:
        """What this session has locked, by its name here; of two modes the stronger one."""
        rows = sorted(self.connection.execute(HELD).fetchall(), key=lambda row: str(row[2]), reverse=True)
        return {self.keys[kind, key]: MODES[mode] for kind, key, mode in rows if (kind, key) in self.keys}

    def sealed(self, kind: Any) -> Any:
        self.first.send(self.one, b"x")
        answer = seal(self.connection, self.first.name, kind, tails=self.first.tails, offsets=self.offsets)
        assert answer.error is None
        return answer.sealed

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
