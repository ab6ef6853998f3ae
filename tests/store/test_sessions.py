"""Two sessions at once: locks, stale snapshots, settings (pitfalls P1, P7, P23, P24, P31, P32, P39)."""

import contextlib
from collections.abc import Callable

import pytest

from msgtx import errors
from msgtx.database.calls import query
from msgtx.store.append.append import append, append_and_decide
from msgtx.store.groups.groups import commit_offsets, committed_offsets, delete_group, delete_offsets, reset_offsets
from msgtx.store.transactions.decide import decide
from msgtx.store.transactions.producers import fence_producer, init_producer_id
from msgtx.store.transactions.transactions import mark, transaction_outcome
from msgtx.types import GroupMetadata, OffsetAndMetadata, Outcome
from tests.databases import Background, Connection, Sessions, backend, wait_for_lock
from tests.refusals import refuses
from tests.store.conftest import Blocked
from tests.store.roster import Roster
from tests.store.steps import (
    UNCOMMITTED,
    Writer,
    append_one,
    batch,
    count,
    ends,
    look,
    new_partition,
    new_topic,
    offsets_of,
    plain,
    read,
    unique,
    values,
)

# ── the tail of the log ──


@pytest.mark.parametrize("isolation", [None, UNCOMMITTED])
def test_no_reader_passes_the_offsets_of_a_session_that_stalls_before_its_commit(
    connection: Connection, partition: int, session: Connection, blocked: Blocked, isolation: object
) -> None:
    """P1: numbers are given behind the lock, so a later append waits and nothing overtakes."""
    plain(connection, partition, b"a")
    options = {} if isolation is None else {"isolation": isolation}
    with session.transaction():
        plain(session, partition, b"b")
        waiting = blocked(plain, partition, b"c")
        assert read(connection, partition, **options) == [(0, b"a")]
        assert look(connection, partition, **options).position == 1
    assert waiting.result(30) == 2
    assert read(connection, partition, **options) == [(0, b"a"), (1, b"b"), (2, b"c")]


@pytest.mark.parametrize("committed", [True, False])
def test_two_simultaneous_retries_of_a_batch_store_it_once(
    connection: Connection, partition: int, blocked: Blocked, committed: bool
) -> None:
    """P6, P7, I1: sequence, offset and rows move together, also where the first attempt is rolled back."""
    producer = init_producer_id(connection, None, timeout_ms=60_000)
    row = batch(partition, b"a", producer=producer, sequence=0)
    with connection.transaction(force_rollback=not committed):
        assert not append_one(connection, row).duplicate
        waiting = blocked(append_one, row)
    again = waiting.result(30)
    assert (again.error, again.duplicate, again.base_offset) == (None, committed, 0)
    assert values(connection, partition) == [b"a"]


def test_two_simultaneous_fused_calls_of_one_transaction_store_it_once(
    connection: Connection, writer: Writer, blocked: Blocked
) -> None:
    """An original and its retry do not deadlock."""
    first_partition, second_partition = new_topic(connection, 2)
    rows = [writer.row(first_partition, b"a"), writer.row(second_partition, b"b")]
    with connection.transaction():
        append_and_decide(connection, writer.name, rows)
        waiting = blocked(append_and_decide, writer.name, rows)
    assert [(a.base_offset, a.duplicate) for a in waiting.result(30)] == [(0, True), (0, True)]
    assert ends(connection, first_partition) == (0, 1, 1)


# ── append against decide, init, fence ──


def test_a_decision_waits_for_the_append_that_is_on_its_way_and_then_sees_it(
    connection: Connection, partition: int, writer: Writer, blocked: Blocked
) -> None:
    row = writer.row(partition, b"a")
    with connection.transaction():
        append(connection, [row])
        waiting = blocked(decide, writer.name, "COMMIT", tails={partition: 0})
    assert waiting.result(30).error is None
    assert values(connection, partition) == [b"a"]


def test_an_append_that_waits_behind_the_abort_is_refused(
    connection: Connection, partition: int, writer: Writer, blocked: Blocked
) -> None:
    """P25."""
    with connection.transaction():
        decide(connection, writer.name, "ABORT", tails={partition: 0})
        waiting = blocked(append_one, writer.row(partition, b"late"))
    assert isinstance(waiting.result(30).error, errors.InvalidTransactionState)
    assert ends(connection, partition) == (0, 0, 0)


def test_an_append_that_waits_behind_a_bump_of_its_epoch_is_refused(
    connection: Connection, partition: int, blocked: Blocked
) -> None:
    """P26: a producer that has raised its epoch and renumbered cannot be met by its old request."""
    old = init_producer_id(connection, None, timeout_ms=60_000)
    with connection.transaction():
        new = init_producer_id(connection, None, timeout_ms=60_000, expected=old)
        waiting = blocked(append_one, batch(partition, b"a", producer=old, sequence=0))
    assert isinstance(waiting.result(30).error, errors.InvalidProducerEpoch)
    assert append_one(connection, batch(partition, b"a", producer=new, sequence=0)).error is None
    assert values(connection, partition) == [b"a"]


def test_a_bump_waits_for_the_old_append_and_the_new_numbers_follow_it(
    connection: Connection, partition: int, blocked: Blocked
) -> None:
    """P26."""
    old = init_producer_id(connection, None, timeout_ms=60_000)
    with connection.transaction():
        append_one(connection, batch(partition, b"a", producer=old, sequence=0))
        waiting = blocked(init_producer_id, None, timeout_ms=60_000, expected=old)
    new = waiting.result(30)
    assert append_one(connection, batch(partition, b"b", producer=new, sequence=0)).base_offset == 1


@pytest.mark.parametrize("committed", [True, False])
def test_init_waits_for_a_decision_that_is_just_being_committed(
    connection: Connection, blocked: Blocked, committed: bool
) -> None:
    """I7: what is decided stays, what is not is aborted."""
    partition, zombie = new_partition(connection), Writer(connection)
    zombie.send(partition, b"a")
    with connection.transaction(force_rollback=not committed):
        decide(connection, zombie.name, "COMMIT", tails=zombie.tails)
        waiting = blocked(init_producer_id, zombie.transactional_id, timeout_ms=60_000)
    assert waiting.result(30).epoch == 1
    expected = Outcome.COMMITTED if committed else Outcome.ABORTED
    assert transaction_outcome(connection, zombie.name).outcome is expected
    assert values(connection, partition) == ([b"a"] if committed else [])


def test_a_commit_that_waits_behind_a_fence_is_fenced(connection: Connection, blocked: Blocked) -> None:
    """Fence during commit: the first decision counts."""
    partition, zombie = new_partition(connection), Writer(connection)
    zombie.send(partition, b"a")
    with connection.transaction():
        fence_producer(connection, zombie.transactional_id)
        waiting = blocked(decide, zombie.name, "COMMIT", tails=zombie.tails)
    assert type(waiting.result(30).error) is errors.ProducerFenced
    assert values(connection, partition) == []


def test_appends_of_one_producer_to_two_partitions_run_beside_each_other(
    connection: Connection, writer: Writer, session: Connection
) -> None:
    first_partition, second_partition = new_topic(connection, 2)
    writer.send(first_partition, b"a")
    with session.transaction():
        append(session, [writer.row(first_partition, b"b")])
        assert append_one(connection, writer.row(second_partition, b"c")).error is None


def test_appends_to_crosswise_partitions_do_not_deadlock(
    connection: Connection, open_connection: Sessions, background: Background
) -> None:
    partitions = new_topic(connection, 4)

    def work(session: Connection) -> None:
        writer = Writer(session, unique("crosswise"))
        for _ in range(10):
            append(session, [writer.row(p, b"a", sequence=0) for p in partitions])
            writer.tails = dict.fromkeys(partitions, 0)
            assert writer.decide("COMMIT").error is None
            writer.init()
            writer.commit_whole(*[writer.row(p, b"b") for p in partitions])
            mark(session)
            writer.init()

    list(background.map(work, [open_connection() for _ in range(6)]))
    assert [ends(connection, partition) for partition in partitions] == [(0, 120, 120)] * 4


def test_eight_inits_of_one_new_id_at_once_get_one_id_and_eight_epochs(
    connection: Connection, open_connection: Sessions, background: Background
) -> None:
    name = unique("id")
    sessions = [open_connection() for _ in range(8)]
    pairs = list(background.map(lambda session: init_producer_id(session, name, timeout_ms=60_000), sessions))
    assert len({pair.producer_id for pair in pairs}) == 1
    assert sorted(pair.epoch for pair in pairs) == list(range(8))
    assert count(connection, "producer", "transactional_id = %s", name) == 1


# The function's own limit is 10 s.
IMPATIENT = "alter function msgtx.append(msgtx.batch[], boolean, boolean, int, text, int) set lock_timeout = '50ms'"


def test_a_session_that_holds_a_partition_too_long_is_a_lock_timeout(
    connection: Connection, partition: int, session: Connection
) -> None:
    """P32: nothing waits forever; the limit belongs to the function and is shortened here."""
    with connection.transaction(force_rollback=True), session.transaction():
        connection.execute(IMPATIENT)
        session.execute("select msgtx.lock_partition(%s)", [partition])
        with pytest.raises(errors.LockTimeout):
            append_one(connection, batch(partition, b"a"))


@pytest.mark.parametrize("held", [0, 1])
def test_an_append_of_several_producers_waits_for_each_of_them(
    connection: Connection, session: Connection, held: int
) -> None:
    """I7: who fences one of them stands before its append or behind it."""
    partitions = sorted(new_partition(connection) for _ in range(2))
    writers = [init_producer_id(connection, None, timeout_ms=60_000) for _ in range(2)]
    rows = [batch(at, b"x", producer=writer, sequence=0) for at, writer in zip(partitions, writers, strict=True)]
    with connection.transaction(force_rollback=True), session.transaction():
        connection.execute(IMPATIENT)
        session.execute("select msgtx.lock_producer(%s)", [writers[held].producer_id])
        with pytest.raises(errors.LockTimeout):
            append(connection, rows)


def test_every_function_that_waits_for_a_lock_has_a_limit(connection: Connection) -> None:
    """A `set` clause of the function: set_config would reach the user's later statements, as limit_session is to do."""
    without = connection.execute(
        "select proname from pg_proc where pronamespace = 'msgtx'::regnamespace and prosecdef and provolatile = 'v'"
        " and (prosrc ~ '(?<!try_)lock_(producer|partition|group)' or prosrc ~ 'check_offsets')"
        " and not coalesce(array_to_string(proconfig, ' ') like '%lock_timeout%', false) and prosrc !~ 'limit_session'"
    ).fetchall()
    assert without == []


# ── groups ──


def test_an_offset_commit_waits_for_a_rebalance(
    connection: Connection, partition: int, group: str, session: Connection, blocked: Blocked
) -> None:
    """P31: the check and the commit stand behind the group's lock."""
    offsets = {GroupMetadata(group): {partition: OffsetAndMetadata(1)}}
    with session.transaction():
        session.execute("select pg_advisory_xact_lock(1836279554, hashtext(%s))", [group])
        waiting = blocked(commit_offsets, offsets)
        assert committed_offsets(connection, group, None) == {}
    waiting.result(30)
    assert committed_offsets(connection, group, None)[partition].at == OffsetAndMetadata(1)


CHANGES_OF_A_GROUP: dict[str, Callable[[Roster], object]] = {
    "join": lambda group: group.join("b"),
    "assign": lambda group: group.assign({}, generation=1),
    "release": lambda group: group.release("a", group.partitions[0]),
    "leave": lambda group: group.leave("a"),
    "delete": lambda group: delete_group(group.connection, group.name),
    "delete offsets": lambda group: delete_offsets(group.connection, group.name, group.partitions),
    "reset": lambda group: reset_offsets(group.connection, group.name, {group.partitions[0]: 1}),
}


@pytest.mark.parametrize("change", CHANGES_OF_A_GROUP)
def test_a_change_of_a_group_waits_for_a_commit_that_was_checked_before(
    connection: Connection, open_connection: Sessions, background: Background, change: str
) -> None:
    """P31, P39: the commit holds the lock in share mode."""
    group, session = Roster(connection, 1), open_connection()
    group.join("a")
    group.connection = open_connection()
    with session.transaction():
        session.execute("select msgtx.lock_group_shared(%s)", [group.name])
        changing = background.submit(CHANGES_OF_A_GROUP[change], group)
        wait_for_lock(connection, backend(group.connection))
        group.connection = connection
    with contextlib.suppress(errors.MsgtxError):
        changing.result(30)


def test_the_newest_commit_wins_also_when_an_older_one_stalls(connection: Connection, session: Connection) -> None:
    """P17: the number is drawn behind the shared lock; what is committed later in the database counts by its number."""
    partition, group = new_partition(connection), unique("group")
    with session.transaction():
        commit_offsets(session, {GroupMetadata(group): {partition: OffsetAndMetadata(1)}})
        # A second member's commit does not wait (share mode), once the group exists.
        other = unique("group")
        commit_offsets(connection, {GroupMetadata(other): {partition: OffsetAndMetadata(5)}})
    commit_offsets(connection, {GroupMetadata(group): {partition: OffsetAndMetadata(2)}})
    assert committed_offsets(connection, group, None)[partition].at == OffsetAndMetadata(2)


# ── above READ COMMITTED ──


# All that reads the log, a group or an id behind a lock, and what calls these.
AT_READ_COMMITTED = (
    "abort_batch", "acknowledge_all", "acknowledge_in_transaction", "acknowledge_records", "acquire_records",
    "alter_topic", "append",
    "append_acknowledge_decide", "append_and_decide", "append_once", "assign_partitions", "begin_attempt",
    "change_incarnation", "commit_offsets", "compact_batches", "complete_prepared", "configure_share_group", "create_topic",
    "decide", "decide_batch", "delete_group", "delete_offsets", "delete_records", "delete_topic", "end_transaction",
    "ensure_dead_letters", "expire_overdue", "expire_transaction", "fence_everybody", "fence_plain_producers",
    "fence_producer", "find_dirty_log", "finish_compaction", "heartbeat_group", "init_producer_id", "join_group",
    "join_share_group", "lease_shards", "leave_group", "listen", "mark", "mark_partitions", "publish",
    "purge_transactions", "receive",
    "record_range", "redrive_dead_letters", "release_partitions", "release_shards", "remove_decided_seals",
    "remove_dedup_keys", "remove_deleted_logs", "remove_heartbeats", "remove_idle_producers", "remove_members",
    "remove_old_batches", "remove_spark_history", "remove_superseded_floors", "remove_superseded_offsets",
    "remove_superseded_shares", "renew_attempts", "reset_offsets", "reset_share_offsets", "save_snapshot", "seal",
    "settle_shares", "take", "wait_for_records",
)  # fmt: skip


@pytest.mark.parametrize("name", AT_READ_COMMITTED)
def test_a_kept_snapshot_is_refused_before_all_else(connection: Connection, session: Connection, name: str) -> None:
    """P23, P24, P39: whatever it is asked. Such a snapshot does not see the tail behind the lock that was waited for."""
    types = connection.execute(
        "select format_type(a.type, null) from pg_proc p cross join lateral unnest(p.proargtypes) with ordinality"
        " a(type, place)"
        " where p.pronamespace = 'msgtx'::regnamespace and p.proname = %s order by a.place",
        [name],
    ).fetchall()
    nothing = ", ".join(f"'{{}}'::{kind}" if kind.endswith("[]") else f"null::{kind}" for (kind,) in types)
    for level in ("repeatable read", "serializable"):
        session.execute("begin isolation level " + level)
        with refuses(errors.ConfigError, name="transaction_isolation"):
            query(session, f"select * from msgtx.{name}({nothing})")
        session.execute("rollback")


def test_reading_is_allowed_at_every_level(connection: Connection, partition: int, session: Connection) -> None:
    plain(connection, partition, b"a")
    session.execute("begin isolation level repeatable read read only")
    assert values(session, partition) == [b"a"]
    plain(connection, partition, b"b")
    assert values(session, partition) == [b"a"]
    session.execute("commit")


# ── settings of a user's transaction ──


def settings(session: Connection) -> list[tuple[str, str]]:
    return session.execute("select name, setting from pg_settings where name not like 'plpgsql.%' order by name").fetchall()


@pytest.mark.parametrize("level", ["off", "local", "on"])
def test_an_append_leaves_no_setting_changed_in_a_users_transaction(
    partition: int, writer: Writer, session: Connection, level: str
) -> None:
    with session.transaction():
        session.execute(f"set local synchronous_commit = {level}")
        before = settings(session)
        assert append_one(session, writer.row(partition, b"a"), flushed=True).error is None
        assert settings(session) == before


@pytest.mark.parametrize(
    ("level", "expected"), [("off", "on"), ("local", "local"), ("on", "on"), ("remote_write", "remote_write")]
)
def test_a_decision_raises_off_to_on_and_leaves_all_other_settings_alone(
    connection: Connection, partition: int, open_connection: Sessions, level: str, expected: str
) -> None:
    """I9, P28: an ABORT is flushed, too."""
    for outcome in ("COMMIT", "ABORT"):
        writer = Writer(connection)
        writer.send(partition, b"a")
        session = open_connection()
        with session.transaction():
            session.execute(f"set local synchronous_commit = {level}")
            before = dict(settings(session))
            decide(session, writer.name, outcome, tails=writer.tails)
            assert dict(settings(session)) == {**before, "synchronous_commit": expected}


def test_an_unflushed_append_of_the_library_relaxes_its_own_statement_only(connection: Connection, partition: int) -> None:
    """acks=0 and 1, and what lies in a transaction: on the library's own autocommitted connections."""
    append(connection, [batch(partition, b"a")], flushed=False)
    assert connection.execute("show synchronous_commit").fetchone() == ("on",)


def test_no_lock_outlives_the_call(connection: Connection, partition: int, writer: Writer) -> None:
    writer.send(partition, b"a")
    writer.commit(offsets_of((unique("group"), partition, 1)))
    mark(connection)
    held = connection.execute(
        "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
    ).fetchone()
    assert held == (0,)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_who_has_another_level_by_default_is_told_where_to_set_it(open_connection: Sessions, level: str) -> None:
    """Who has begun the transaction so knows where."""
    for default, told in (("read committed", False), (level, True)):
        session = open_connection()
        session.execute(f"set default_transaction_isolation = '{default}'")
        session.execute(f"begin isolation level {level}")
        with pytest.raises(Exception, match=f"this transaction is {level.upper()}") as caught:
            session.execute("select msgtx.refuse_stale_snapshot()")
        assert ("set default_transaction_isolation" in str(caught.value)) is told
        session.execute("rollback")
