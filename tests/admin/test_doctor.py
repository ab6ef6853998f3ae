"""`client.admin.doctor`: each finding, produced for real."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
import sqlalchemy

import msgtx
from msgtx import Finding, Level, TopicPartition
from msgtx.admin import doctor
from msgtx.admin.doctor.findings import Limits, span, words_of_bytes
from msgtx.admin.failover import after_failover
from msgtx.database.throwaway import set_clock
from msgtx.store.operator.server import describe_lock_table
from msgtx.store.sweeps.coordinators import lease_shards
from msgtx.store.topics.topics import describe_topics
from msgtx.store.transactions.transactions import mark
from msgtx.types import TransactionId
from tests.cli.program import Program
from tests.databases import Connection, Server, backend, connect, wait_for_lock, wait_until
from tests.store.roster import Roster
from tests.store.steps import Writer, new_partition, new_topic, plain

pytestmark = pytest.mark.slow

SECONDS = 30.0
AT_ONCE = Limits(grace_seconds=0.0, lock_seconds=0.0, idle_seconds=0.0, snapshot_seconds=0.0)


def found(client: msgtx.Client, subject: str, limits: Limits | None = None, most: int = 20) -> list[Finding]:
    return [one for one in client.admin.doctor(limits=limits, most=most) if one.subject.startswith(subject)]


def one(level: Level, client: msgtx.Client, subject: str, limits: Limits | None = None) -> Finding:
    """The only finding about a subject, which is of this level."""
    (finding,) = found(client, subject, limits)
    assert finding.level is level
    return finding


def held(client: msgtx.Client, partition: TopicPartition, limits: Limits | None = None) -> Finding:
    (finding,) = found(client, str(partition), limits)
    return finding


@pytest.fixture
def place(connection: Connection) -> Iterator[tuple[int, TopicPartition]]:
    """A partition: its id and its name."""
    partition = new_partition(connection)
    rows = connection.execute(
        "select t.name from msgtx.topic t join msgtx.partition p using (topic_id) where p.partition_id = %s", [partition]
    ).fetchone()
    assert rows is not None
    yield partition, TopicPartition(rows[0], 0)
    writer = connection.execute(
        "select producer_id, producer_epoch, transaction_number from msgtx.transaction_partition tp"
        " where partition_id = %s and not exists (select from msgtx.transaction_decision d where d.producer_id ="
        " tp.producer_id and d.producer_epoch = tp.producer_epoch and d.transaction_number = tp.transaction_number)",
        [partition],
    ).fetchall()
    for name in writer:
        connection.execute("delete from msgtx.transaction_seal where producer_id = %s", [name[0]])
        connection.execute("select msgtx.end_transaction(%s, %s, %s, 'admin')", name)


def seal(connection: Connection, name: TransactionId, kind: str, deadline: str | None = None) -> None:
    connection.execute(
        "insert into msgtx.transaction_seal (producer_id, producer_epoch, transaction_number, kind, sealed_at, deadline,"
        " partitions, first_offsets, last_offsets) values (%s, %s, %s, %s, clock_timestamp(),"
        " clock_timestamp() + %s::interval, '{}', '{}', '{}')",
        [*name, kind, deadline],
    )


# ── partitions that are held back ──


def test_nothing_holds_a_partition_back_that_is_read_to_its_end(
    client: msgtx.Client, connection: Connection, place: tuple[int, TopicPartition]
) -> None:
    partition, name = place
    plain(connection, partition, b"x")
    assert found(client, str(name)) == []


def test_the_transaction_of_another_process_is_told_down_to_its_session(
    client: msgtx.Client, database_url: str, connection: Connection
) -> None:
    client.topics.create("theirs")
    partition = TopicPartition("theirs", 0)
    program = Program(database_url)
    options = ("--transactional-id", "their id", "--transaction-size", "1000")
    with program.start("produce", "theirs", *options) as process:
        process.stdin.write(b"a\nb\n")
        process.stdin.flush()
        finding = wait_until(lambda: next(iter(found(client, str(partition))), None), "their transaction is open")
        assert finding.level is Level.INFORMATION
        assert finding.data["client_process"] == process.pid
        assert finding.data["client_host"] == socket.gethostname()
        assert finding.data["transactional_id"] == "their id"
        assert finding.data["session"]["application_name"] == f"msgtx {process.pid}"
        assert 1 <= finding.data["records_waiting"] <= 2
        for words in ("readers stop at offset 0", "'their id' is Ongoing", f"process {process.pid} on", "idle for"):
            assert words in finding.text
        assert "it is aborted in" in finding.text
        name = finding.data["transaction_id"]
        assert finding.advice == f"wait, or `msgtx transactions abort {name}`"
        session = finding.data["database_backend"]
        process.kill()
        process.wait()
        wait_until(
            lambda: not connection.execute("select from pg_stat_activity where pid = %s", [session]).fetchone(),
            "its session has ended",
        )
        assert f"database session {session}, which has ended" in held(client, partition).text
    client.admin.transactions.abort(TransactionId.parse(name))
    assert found(client, str(partition)) == []


def test_an_overdue_transaction_is_a_problem_until_a_sweep_comes(
    client: msgtx.Client, connection: Connection, place: tuple[int, TopicPartition], database_url: str
) -> None:
    partition, name = place
    writer = Writer(connection, timeout_ms=30_000)
    writer.send(partition, b"x")
    try:
        set_clock(database_url, "1 minute")
        finding = one(Level.PROBLEM, client, str(name))
        assert "it is overdue by 30 s and nobody has aborted it" in finding.text
        assert finding.advice == f"`msgtx sweep`, regularly; or `msgtx transactions abort {writer.name}`"
        assert held(client, name, Limits(grace_seconds=45.0)).level is Level.INFORMATION
        client.sweep()
        assert found(client, str(name)) == []
    finally:
        set_clock(database_url)


@pytest.mark.parametrize(("table", "words"), [("transaction", "row is missing"), ("producer", "its producer is gone")])
def test_a_transaction_that_lost_a_row_is_a_problem_at_once(
    client: msgtx.Client, connection: Connection, place: tuple[int, TopicPartition], table: str, words: str
) -> None:
    partition, name = place
    writer = Writer(connection)
    writer.send(partition, b"x")
    connection.execute(f"delete from msgtx.{table} where producer_id = %s", [writer.id.producer_id])
    finding = one(Level.PROBLEM, client, str(name))
    assert words in finding.text
    assert finding.advice == f"`msgtx transactions abort {writer.name}`"


def test_what_is_prepared_for_outside_is_told_and_becomes_a_warning(
    client: msgtx.Client, connection: Connection, place: tuple[int, TopicPartition]
) -> None:
    partition, name = place
    writer = Writer(connection)
    writer.send(partition, b"x")
    seal(connection, writer.name, "external")
    decide = "decide it where it was prepared, by its token (`msgtx transactions prepared`)"
    fence = f"{decide}, or `msgtx transactions fence {writer.transactional_id}`"
    for limits, level in ((None, Level.INFORMATION), (AT_ONCE, Level.WARNING)):
        finding = held(client, name, limits)
        assert (finding.level, finding.advice) == (level, fence)
        assert "is Prepared" in finding.text
        (prepared,) = found(client, f"transaction {writer.name}", limits)
        assert (prepared.level, prepared.advice) == (level, fence)
        assert "prepared for an outside decision" in prepared.text


def test_a_seal_of_offsets_only_is_told_and_is_a_problem_past_its_deadline(
    client: msgtx.Client, connection: Connection
) -> None:
    """P42."""
    writer = Writer(connection)
    seal(connection, writer.name, "session", "-1 minute")
    finding = one(Level.PROBLEM, client, f"transaction {writer.name}")
    assert "with consumer offsets only, and past its deadline" in finding.text
    connection.execute("delete from msgtx.transaction_seal where producer_id = %s", [writer.id.producer_id])


def test_of_many_partitions_the_oldest_are_told_and_the_others_counted(client: msgtx.Client, connection: Connection) -> None:
    partitions = new_topic(connection, 30)
    first, second = Writer(connection), Writer(connection)
    for partition in partitions[20:]:
        first.send(partition, b"x")
    for partition in partitions[:20]:
        second.send(partition, b"x")
    findings = client.admin.doctor(most=3)
    told = [one for one in findings if "records_waiting" in one.data]
    assert [one.data["transaction_id"] for one in told] == [str(first.name)] * 3
    (rest,) = [one for one in findings if one.subject == "partitions"]
    assert rest.data == {"more": 27}
    for writer in (first, second):
        writer.abort()


# ── phase two ──


def test_missing_markers_are_a_warning(
    client: msgtx.Client, connection: Connection, place: tuple[int, TopicPartition]
) -> None:
    mark(connection, everything=True)
    assert found(client, "phase two", AT_ONCE) == []
    writer = Writer(connection)
    writer.send(place[0], b"x")
    name = writer.abort()
    assert found(client, "phase two") == []
    (finding,) = found(client, "phase two", AT_ONCE)
    assert (finding.level, finding.data["count"]) == (Level.WARNING, 1)
    assert f"({name}, ABORT)" in finding.text
    mark(connection, everything=True)
    assert found(client, "phase two", AT_ONCE) == []


# ── groups ──


def test_members_that_are_dead_and_own_partitions_are_told_until_somebody_sweeps(
    client: msgtx.Client, connection: Connection
) -> None:
    group = Roster(connection)
    group.join("a", session_timeout_ms=6_000)
    group.join("b", session_timeout_ms=6_000)
    assert group.assign(dict.fromkeys(group.partitions, "a"))
    for seconds, told in ((11, 0), (13, 1)):  # a member is late once its session is over twice
        connection.execute(
            "update msgtx.group_heartbeat set heartbeat_at = clock_timestamp() - make_interval(secs => %s)"
            " where member_number = any(%s)",
            [seconds, [*group.numbers.values()]],
        )
        assert len(found(client, f"group {group.name}")) == told
    dead = one(Level.PROBLEM, client, f"group {group.name}")
    assert dead.text.startswith("nobody reads 4 partitions of 1 member last heard of")
    assert "msgtx sweep" in dead.advice
    client.sweep()
    assert found(client, f"group {group.name}") == []


@pytest.mark.parametrize("cause", ["members", "topics"])
def test_an_assignment_that_nobody_makes_anew_is_told(cause: str, client: msgtx.Client, connection: Connection) -> None:
    group = Roster(connection)
    group.join("a", session_timeout_ms=6_000)
    assert group.assign(dict.fromkeys(group.partitions, "a"))
    if cause == "members":
        group.join("b", session_timeout_ms=6_000)
    else:
        client.topics.create(f"{group.name}.new")
    for seconds, told in ((5, 0), (7, 1)):
        for table, column in (("consumer_group", "changed_at"), ("installation", "topics_changed_at")):
            connection.execute(
                f"update msgtx.{table} set {column} = clock_timestamp() - make_interval(secs => %s)", [seconds]
            )
        assert len(found(client, f"group {group.name}")) == told
    stale = one(Level.WARNING, client, f"group {group.name}")
    assert f"{1 + (cause == 'members')} members live" in stale.text
    assert group.assign(dict.fromkeys(group.partitions, "a"))
    assert found(client, f"group {group.name}") == []


def test_a_partition_whose_worker_waits_is_told_until_it_goes_on(client: msgtx.Client) -> None:
    client.topics.create("stands")
    client.topics.create("stood")
    with client.producer() as producer:
        for value in (b"0", b"1"):
            producer.send("stands", value)
    stop, repaired = threading.Event(), threading.Event()

    def handler(record: msgtx.Record) -> None:
        if record.offset == 1 and not repaired.is_set():
            raise ImportError(name="forgotten")

    def told() -> list[Finding]:
        return found(client, "group stands", Limits(stalled_seconds=0.0))

    with ThreadPoolExecutor(1) as pool:
        worker = pool.submit(
            client.process,
            "stands",
            to="stood",
            group="stands",
            transactional_id="stands",
            transform=handler,
            stop=stop,
        )
        (finding,) = wait_until(lambda: [one for one in told() if one.data["committed_offset"] == 1], "it stands still")
        assert finding.level is Level.WARNING
        assert (finding.data["client_process"], finding.data["records"]) == (os.getpid(), 1)
        assert "stands-0 stands still at offset 1" in finding.text
        assert finding.advice.endswith("`msgtx find stands --offset 0:1`")
        assert found(client, "group stands") == [], "it may have begun just now"
        repaired.set()
        wait_until(lambda: told() == [], "it goes on")
        stop.set()
        worker.result(SECONDS)


# ── coordinators ──


def test_shards_that_nobody_leads_are_told(client: msgtx.Client, connection: Connection, clock: Callable[..., None]) -> None:
    (finding,) = found(client, "coordinator")
    assert (finding.level, len(finding.data["shards"])) == (Level.INFORMATION, 50)
    assert "has ever run" in finding.text
    first = lease_shards(connection, None, host="here", process=1).coordinator_id
    (finding,) = found(client, "coordinator")
    assert (finding.level, finding.subject) == (Level.INFORMATION, f"coordinator {first}")
    assert finding.text == "process 1 on here leads 50 shards (0-49)"
    second = lease_shards(connection, None, host="there", process=2).coordinator_id
    lease_shards(connection, first, host="here", process=1)  # it gives up what exceeds its share
    leading, unled = found(client, "coordinator")[::-1]
    assert (unled.level, len(unled.data["shards"]), len(leading.data["shards"])) == (Level.WARNING, 25, 25)
    lease_shards(connection, second, host="there", process=2)
    assert [one.level for one in found(client, "coordinator")] == [Level.INFORMATION] * 2
    clock("1 minute")
    (finding,) = found(client, "coordinator")
    assert (finding.level, finding.advice) == (Level.WARNING, "`msgtx coordinator run`, or `msgtx sweep` from cron")
    assert "and some did" in finding.text


def test_a_log_that_is_long_past_its_retention_is_told(client: msgtx.Client, clock: Callable[..., None]) -> None:
    client.topics.create("late", retention_ms=60_000)
    with client.producer() as producer:
        producer.send("late", b"a")
    assert not found(client, "retention of late-0")
    clock("3 hours")
    finding = one(Level.WARNING, client, "retention of late-0")
    assert finding.text == "its oldest records are 3 h old, and retention_ms is 60 s"
    assert finding.advice.endswith("too low (16.8 MB): `msgtx db settings sweep_max_bytes_per_second 33554432`")
    client.sweep(only=["retention"])
    assert not found(client, "retention of late-0")


# ── sessions ──


def test_a_session_that_sits_on_locks_of_msgtx_is_a_problem_when_others_wait(
    client: msgtx.Client,
    connection: Connection,
    open_connection: Callable[[], Connection],
    background: ThreadPoolExecutor,
    place: tuple[int, TopicPartition],
) -> None:
    """P32."""
    partition, _ = place
    sitting, waiting = open_connection(), open_connection()
    sitting.autocommit = False
    sitting.execute("select msgtx.lock_partition(%s)", [partition])
    subject = f"session {backend(sitting)}"
    assert found(client, subject) == []  # it may be about to commit

    def lock(limits: Limits = AT_ONCE) -> Finding | None:
        return next((one for one in found(client, subject, limits) if "locks of msgtx" in one.text), None)

    finding = lock()
    assert finding is not None
    assert finding.level is Level.WARNING
    assert "is idle in transaction and holds 1 locks of msgtx" in finding.text
    assert f"pg_terminate_backend({backend(sitting)})" in finding.advice
    append = background.submit(plain, waiting, partition, b"waits")
    wait_for_lock(connection, backend(waiting))
    finding = lock()
    assert finding is not None
    assert (finding.level, finding.data["waiting"], finding.data["partitions"]) == (Level.PROBLEM, 1, 1)
    sitting.rollback()
    append.result(SECONDS)
    assert lock() is None


def test_a_session_that_waits_in_the_same_queue_holds_nobody_up(
    connection: Connection,
    open_connection: Callable[[], Connection],
    background: ThreadPoolExecutor,
    place: tuple[int, TopicPartition],
) -> None:
    """Whoever ended it would help nobody."""
    partition, _ = place
    sitting, second, third = (open_connection() for _ in range(3))
    for session, locked in ((sitting, partition), (second, -1), (third, -2)):
        session.autocommit = False
        session.execute("select msgtx.lock_partition(%s)", [locked])
    queue = []
    for session in (second, third):
        queue.append(background.submit(session.execute, "select msgtx.lock_partition(%s)", [partition]))
        wait_for_lock(connection, backend(session))
    rows = connection.execute("select pid, waiting from msgtx.lock_holders() where pid is not null").fetchall()
    assert {pid: waiting for pid, waiting in rows if pid in map(backend, (sitting, second, third))} == {
        backend(sitting): 2, backend(second): 0, backend(third): 0,
    }  # fmt: skip
    sitting.rollback()
    for session, waits in zip((second, third), queue, strict=True):
        waits.result(SECONDS)
        session.rollback()


def test_an_old_snapshot_of_an_idle_session_is_a_warning(
    client: msgtx.Client, open_connection: Callable[[], Connection]
) -> None:
    """P21."""
    session = open_connection()
    subject = f"session {backend(session)}"
    session.execute("begin isolation level repeatable read")
    session.execute("select count(*) from msgtx.topic")
    assert found(client, subject) == []
    finding = one(Level.WARNING, client, subject, AT_ONCE)
    assert "is idle in transaction in a SQL transaction of" in finding.text
    assert finding.data["state"] == "idle in transaction"
    assert (finding.data["kind"], finding.data["pid"]) == ("session", backend(session))
    one(Level.WARNING, client, subject, Limits(snapshot_age=0))
    session.execute("rollback")
    assert found(client, subject, AT_ONCE) == []


def test_connections_that_run_short_are_told(client: msgtx.Client) -> None:
    assert found(client, "connections") == []
    finding = one(Level.WARNING, client, "connections", Limits(connections_warning=0.0))
    finding = one(Level.PROBLEM, client, "connections", Limits(connections_warning=0.0, connections_problem=0.0))
    assert finding.data["sessions"] >= 1


# ── the database ──


def test_a_database_that_is_not_frozen_in_time_is_told(client: msgtx.Client) -> None:
    assert found(client, "transaction ids") == []
    one(Level.WARNING, client, "transaction ids", Limits(frozen_warning=0.0))
    one(Level.PROBLEM, client, "transaction ids", Limits(frozen_warning=0.0, frozen_problem=0.0))


def test_tables_are_told_with_their_sizes_and_dead_rows(
    client: msgtx.Client, connection: Connection, place: tuple[int, TopicPartition]
) -> None:
    (finding,) = found(client, "table")
    assert (finding.level, finding.subject) == (Level.INFORMATION, "tables")
    sizes = {table["name"]: table["bytes"] for table in cast(list[dict[str, Any]], finding.data["tables"])}
    assert sizes["record_batch"] > 0
    assert f"in {len(sizes)} tables, the largest: {max(sizes, key=lambda name: sizes[name])} " in finding.text
    with connection.transaction(force_rollback=True):
        connection.execute(
            "insert into msgtx.partition_floor (partition_id, stable_floor) select -1, g from generate_series(1, 100) g"
        )
    connection.execute("select pg_stat_force_next_flush()")
    limits = Limits(dead_rows=50)
    (finding,) = wait_until(lambda: found(client, "table partition_floor", limits), "the statistics tell of dead rows")
    assert finding.level is Level.WARNING
    assert finding.advice.endswith("`vacuum msgtx.partition_floor`")


def test_a_schema_of_another_build_is_a_problem(client: msgtx.Client, make_database: Callable[..., str]) -> None:
    assert found(client, "schema") == []
    with msgtx.connect(make_database()) as other, contextlib.closing(other.runtime.engine.dedicated()) as connection:
        connection.execute("update msgtx.installation set functions_hash = 'another'")
        (finding,) = found(other, "schema")
        assert (finding.level, finding.advice) == (Level.PROBLEM, "run `msgtx db upgrade`")
        assert found(other, "tables")
        connection.execute("drop function msgtx.lock_holders")
        assert [one.subject for one in found(other, "locks")] == ["locks"]
        connection.execute("drop function msgtx.describe_server")
        (finding,) = other.admin.doctor()
        assert "functions or views are missing (describe_server, lock_holders)" in finding.text


def test_settings_that_hurt_are_told(client: msgtx.Client, make_database: Callable[..., str], server: Server) -> None:
    url = make_database()
    name = url.rsplit("/", 1)[1]
    with server.administrator() as administrator:
        administrator.execute(f"alter database {name} set default_transaction_isolation = 'serializable'")
        administrator.execute(f"alter database {name} set synchronous_commit = off")
        administrator.execute(f"alter database {name} set zero_damaged_pages = on")
    with msgtx.connect(url) as other:
        levels = {one.subject: one.level for one in found(other, "setting ")}
    # The tests' own server runs without fsync.
    assert levels == {
        "setting fsync": Level.PROBLEM,
        "setting zero_damaged_pages": Level.PROBLEM,
        "setting synchronous_commit": Level.INFORMATION,
        "setting default_transaction_isolation": Level.PROBLEM,
    }


def test_the_worst_comes_first(client: msgtx.Client) -> None:
    levels = [list(Level).index(one.level) for one in client.admin.doctor(limits=AT_ONCE)]
    assert levels == sorted(levels)
    with pytest.raises(msgtx.errors.InvalidRequest):
        client.admin.doctor(most=0)


# ── a role with few rights ──


def test_a_role_without_rights_is_told_what_it_cannot_see(
    client: msgtx.Client, connection: Connection, server: Server, database_url: str, place: tuple[int, TopicPartition]
) -> None:
    partition, name = place
    writer = Writer(connection)
    writer.send(partition, b"x")
    role, database = f"{server.role}_guest", database_url.rsplit("/", 1)[1]
    with server.administrator(database) as administrator:
        administrator.execute(f"create role {role} login password 'guest'")
        try:
            administrator.execute(f"grant usage on schema msgtx to {role}")
            administrator.execute(f"grant execute on all functions in schema msgtx to {role}")
            with msgtx.connect(database_url.replace(server.role, role).replace(server.password, "guest")) as guest:
                finding = held(guest, name)
                assert "(its state is hidden from this role)" in finding.text
                (rights,) = found(guest, "rights")
                assert rights.advice == f"`grant pg_read_all_stats to {role}`"
                assert rights.data["hidden"] >= 1
                (schema,) = found(guest, "schema")
                assert (schema.level, schema.text[:18]) == (Level.INFORMATION, "cannot be checked:")
                assert found(guest, "tables")
                administrator.execute(f"revoke execute on function msgtx.lock_holders from {role}")
                (refused,) = found(guest, "locks")
                assert "cannot be checked: permission denied" in refused.text
        finally:
            administrator.execute(f"drop owned by {role}")
            administrator.execute(f"drop role {role}")
    assert "rights" in {one.subject for one in client.admin.doctor()}
    with server.administrator() as administrator:
        administrator.execute(f"grant pg_read_all_stats to {server.role}")
        try:
            assert found(client, "rights") == []
        finally:
            administrator.execute(f"revoke pg_read_all_stats from {server.role}")


# ── words ──


def test_times_and_sizes_are_worded_for_people() -> None:
    assert [span(seconds) for seconds in (-1, 0.4, 59, 119, 121, 7_300, 200_000)] == [
        "0 s", "0 s", "59 s", "119 s", "2 min", "2 h", "2 days",
    ]  # fmt: skip
    assert [words_of_bytes(count) for count in (0, 999, 1_500, 2_500_000, 3 * 10**9)] == [
        "0 bytes", "999 bytes", "1.5 kB", "2.5 MB", "3.0 GB",
    ]  # fmt: skip


def test_ten_thousand_partitions_are_examined_in_a_moment(client: msgtx.Client, connection: Connection) -> None:
    """One transaction holds all of them back; the answer stays short."""
    name = "many"
    client.topics.create(name, partitions=10_000)
    ids = describe_topics(connection, [name])[name].partition_ids
    writer = Writer(connection)
    writer.send(ids[0], b"x")
    connection.execute(
        "insert into msgtx.transaction_partition"
        " (producer_id, producer_epoch, transaction_number, partition_id, first_offset)"
        " select %s, %s, %s, p, 0 from unnest(%s::int[]) p on conflict do nothing",
        [*writer.name, list(ids)],
    )
    started = os.times().elapsed
    findings = client.admin.doctor()
    assert os.times().elapsed - started < SECONDS
    (rest,) = [one for one in findings if one.subject == "partitions"]
    assert rest.data == {"more": 9_980}
    assert len(findings) < 100
    writer.abort()


# ── checks that fail ──


def test_a_member_with_a_session_of_many_days_stops_no_check(client: msgtx.Client, connection: Connection) -> None:
    client.topics.create("patient")
    with client.consumer("patient", group="patient") as consumer:
        consumer.poll(0.1)
        connection.execute(
            "update msgtx.group_member set session_timeout_ms = %s where group_id ="
            " (select group_id from msgtx.consumer_group where name = 'patient')",
            [2**31 - 1],
        )
        assert found(client, "groups") == []


def test_a_check_that_fails_is_told_and_stops_no_other(client: msgtx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> list[Finding]:
        raise msgtx.errors.InvalidRequest("integer out of range")

    monkeypatch.setitem(doctor.CHECKS, "groups", fail)
    (finding,) = found(client, "groups")
    assert (finding.level, finding.text) == (Level.PROBLEM, "cannot be checked: integer out of range")
    assert found(client, "tables")


# ── the table of locks ──


def test_a_lock_table_that_fills_up_is_a_problem(client: msgtx.Client, connection: Connection) -> None:
    client.topics.create("lockable", partitions=300)
    assert [one for one in found(client, "lock table") if one.level is Level.PROBLEM] == []
    with connection.transaction():
        places = describe_lock_table(connection).places
        connection.execute("select pg_advisory_xact_lock(7, i) from generate_series(1, %s) i", [places // 2])
        (finding,) = found(client, "lock table")
        assert (finding.level, finding.data["places"]) == (Level.PROBLEM, places)
        assert "max_locks_per_transaction" in finding.advice


def test_more_sessions_than_the_lock_table_has_places_for_are_told(
    client: msgtx.Client, open_connection: Callable[[], Connection]
) -> None:
    client.topics.create("wide", partitions=300)
    places = describe_lock_table(client_connection := open_connection()).places
    sessions = [client_connection, *(open_connection() for _ in range(places // 256))]
    (finding,) = found(client, "lock table")
    assert (finding.level, int(str(finding.data["wanted"])) > places) == (Level.INFORMATION, True)
    for session in sessions:
        session.close()


def test_a_listener_that_holds_the_queue_of_notifications_back_is_told(
    client: msgtx.Client, connection: Connection, open_connection: Callable[[], Connection]
) -> None:
    """It is emptied up to where every listening session has read; a session reads between its transactions."""
    assert found(client, "notifications") == []
    sleeper = open_connection()
    sleeper.execute("listen anything")
    sleeper.execute("begin")
    sleeper.execute("select 1")
    for _ in range(3):
        connection.execute("select pg_notify('anything', repeat('x', 7900) || i) from generate_series(1, 100) i")
    limits = Limits(notifications_warning=1e-6, notifications_problem=1e-5)
    finding = one(Level.PROBLEM, client, "notifications", limits)
    assert str(backend(sleeper)) in finding.text
    sleeper.execute("rollback")
    wait_until(lambda: found(client, "notifications", limits) == [], "the queue is read")


def test_a_server_that_does_not_show_its_timeline_is_named(make_database: Callable[..., str]) -> None:
    """As some managed services; its clients take each host."""
    url = make_database()
    with msgtx.connect(url) as client:
        assert found(client, "timeline") == []
        with connect(url) as owner:
            owner.execute(
                "create or replace function msgtx.timeline_of_server() returns int language plpgsql as"
                " $$ begin raise feature_not_supported; end $$"
            )
        (finding,) = found(client, "timeline")
        assert finding.level == Level.INFORMATION
        client.runtime.engine.dedicated().close()


# ── copies ──


def test_a_copy_of_a_database_is_a_problem_until_somebody_says_what_it_is(server: Server) -> None:
    """It has its original's incarnation: what one of them issued is taken for the other's, and their logs diverge."""
    original = server.create_database()
    with msgtx.connect(original) as client:
        client.topics.create("copied")
        assert found(client, "incarnation") == []
        incarnation = client.runtime.engine.incarnation
    (name, copies) = sqlalchemy.make_url(original).database, ["a_copy", "a_moved_one"]
    with server.administrator() as administrator:
        for copy in copies:
            administrator.execute(f"create database {copy} owner {server.role} template {name}")
    with msgtx.connect(server.url("a_copy")) as client:
        assert client.runtime.engine.incarnation == incarnation
        (finding,) = found(client, "incarnation")
        assert (finding.level, "after-failover" in finding.advice) == (Level.PROBLEM, True)
        after_failover(client.runtime.engine)
    with msgtx.connect(server.url("a_copy")) as client:
        assert (found(client, "incarnation"), client.runtime.engine.incarnation != incarnation) == ([], True)
    with msgtx.connect(server.url("a_moved_one")) as client, connect(server.url("a_moved_one")) as owner:
        owner.execute("select msgtx.note_place()")
        assert (found(client, "incarnation"), client.runtime.engine.incarnation) == ([], incarnation)
        owner.execute("update msgtx.installation set timeline = timeline + 1")
        (finding,) = found(client, "incarnation")
        assert (finding.level, "promoted" in finding.text) == (Level.WARNING, True)
    for copy in copies:
        server.drop_database(server.url(copy))
