"""Steps of sweeps look at a bounded number of rows, however many partitions, ids, groups and seals there are."""

import pytest
import sqlalchemy

from msgtx.coordinator import sweep
from msgtx.database.pool import Engine
from msgtx.store.sweeps import sweeps
from msgtx.store.transactions.transactions import describe_transaction
from msgtx.types import TopicPartition
from tests.databases import Connection, Server, connect
from tests.store.steps import expire_transactions

MANY = 8_000
# A step looks at 250 things, with up to thirty index probes and rows for each. A look at all of something would add 8,000.
MOST_LOOKS = 7_500
LOOKS = """
    select sum(coalesce(idx_scan, 0) + coalesce(idx_tup_fetch, 0) + seq_tup_read)::bigint
    from pg_stat_xact_user_tables where schemaname = 'msgtx'"""
# What a long life leaves. {n}: how many of each.
FILL = (
    "insert into msgtx.topic (name) values ('wide')",
    """insert into msgtx.partition (topic_id, partition_index)
        select t.topic_id, i from msgtx.topic t cross join generate_series(0, {n} - 1) i order by i""",
    # Producers that are idle, with one transaction each, on partitions that are not settled.
    """insert into msgtx.producer (producer_id, epoch, transactional_id, timeout_ms, initialized_at, shard)
        select i, 0, 'id-' || i, 60000, now() - interval '30 days', i % 50 from generate_series(1, {n}) i""",
    """insert into msgtx.transaction (producer_id, producer_epoch, transaction_number, opened_at, timeout_ms,
        database_backend)
        select i, 0, 0, now() - interval '30 days', 60000, 1 from generate_series(1, {n}) i""",
    """insert into msgtx.transaction_partition (producer_id, producer_epoch, transaction_number, partition_id,
        first_offset)
        select p.partition_index + 1, 0, 0, p.partition_id, 0 from msgtx.partition p""",
    """insert into msgtx.transaction_decision (producer_id, producer_epoch, transaction_number, outcome, decided_at,
        decided_by, partitions, first_offsets, last_offsets)
        select p.partition_index + 1, 0, 0, 'COMMIT', now() - interval '29 days' - p.partition_index * interval '1 ms',
        'client', array[p.partition_id], '{{0}}',
               '{{0}}'
        from msgtx.partition p""",
    """insert into msgtx.record_batch (partition_id, base_offset, last_offset, producer_id, producer_epoch,
        transaction_number, base_sequence, last_sequence, appended_at, max_timestamp, record_count, byte_size, "values")
        select p.partition_id, 0, 0, p.partition_index + 1, 0, 0, 0, 0, now(), 4000000000000, 1, 1, array['x'::bytea]
        from msgtx.partition p""",
    # Prepared transactions that wait, and what they wrote nothing of.
    """insert into msgtx.transaction (producer_id, producer_epoch, transaction_number, opened_at, timeout_ms,
        database_backend)
        select 1000000 + i, 0, 0, now() - interval '1 day', 60000, 1 from generate_series(1, {n}) i""",
    """insert into msgtx.transaction_seal (producer_id, producer_epoch, transaction_number, kind, sealed_at,
        partitions, first_offsets, last_offsets)
        select 1000000 + i, 0, 0, 'external', now(), '{{}}', '{{}}', '{{}}' from generate_series(1, {n}) i""",
    "insert into msgtx.consumer_group (name) select 'group-' || i from generate_series(1, {n}) i",
    """insert into msgtx.group_offset (group_id, partition_id, commit_sequence, committed_offset, committed_at)
        select g.group_id, 1, g.group_id, 0, now() from msgtx.consumer_group g""",
    """insert into msgtx.group_member (group_id, member_id, session_timeout_ms, topics, joined_at)
        select 1, 'member-' || i, 1800000, array['wide'], now() from generate_series(1, {n}) i""",
    """insert into msgtx.group_heartbeat (member_number, heartbeat_number, heartbeat_at)
        select m.member_number, 1, now() from msgtx.group_member m""",
    """insert into msgtx.share_state (group_id, partition_id, version, next_offset, spans)
        select i, 1, 1, 0, '{{}}' from generate_series(1, {n}) i""",
    """insert into msgtx.share_pending (producer_id, producer_epoch, transaction_number, group_id, partition_id)
        select 1000000 + i, 0, 0, i, 1 from generate_series(1, {n}) i""",
    "insert into msgtx.share_call (member_number, call_number) select i, 1 from generate_series(1, {n}) i",
    "insert into msgtx.partition_floor (partition_id, stable_floor) select 2000000 + i, 0 from generate_series(1, {n}) i",
    "insert into msgtx.deleted_partition (partition_id) select 3000000 + i from generate_series(1, {n}) i",
    """insert into msgtx.dedup_key (topic_id, dedup_key, partition_id, record_offset, record_timestamp, appended_at)
        select 1, 'key-' || i, 1, 0, 0, now() from generate_series(1, {n}) i""",
    """insert into msgtx.producer_state (partition_id, producer_id, producer_epoch, last_sequence, last_offset, appended_at)
        select 1, 4000000 + i, 0, 0, 0, now() from generate_series(1, {n}) i""",
)
STEPS = {
    "overdue": ("expire_overdue", (None, [2, -1, 0], [3, -1])),
    "markers": ("mark_partitions", (None,)),
    "seals": ("remove_decided_seals", (None,)),
    "deleted": ("remove_deleted_logs", (None,)),
    "retention": ("remove_old_batches", (None,)),
    "ids": ("remove_idle_producers", (None, [2**62])),
    "history": ("purge_transactions", (None,)),
    "offsets": ("remove_superseded_offsets", (None,)),
    "floors": ("remove_superseded_floors", (None,)),
    "members": ("remove_members", (None,)),
    "heartbeats": ("remove_heartbeats", (None,)),
    "spark": ("remove_spark_history", (None,)),
    "acknowledgements": ("settle_shares", (None,)),
    "shares": ("remove_superseded_shares", (None, [2, -1])),
    "dedup": ("remove_dedup_keys", (None,)),
}
LONGEST_MS = 5_000  # of what takes a tenth of a second; quadratic, it takes three times as long
# A VACUUM that finds a table empty, for a moment, says so until the next one: whatever is planned meanwhile expects one row.
OF_EMPTY_TABLES = (
    """update pg_class set reltuples = 0
       where relnamespace = 'msgtx'::regnamespace and relkind in ('r', 'i')""",
    """delete from pg_statistic s using pg_class c
       where c.oid = s.starelid and c.relnamespace = 'msgtx'::regnamespace""",
)
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("filled", "statistics")]


@pytest.fixture(scope="module")
def filled(engine: Engine, database_url: str) -> None:
    """A database with 8,000 of everything."""
    with connect(database_url) as connection:
        for (table,) in connection.execute("select tablename from pg_tables where schemaname = 'msgtx'").fetchall():
            connection.execute(f"alter table msgtx.{table} set (autovacuum_enabled = false)")
        for statement in FILL:
            connection.execute(statement.format(n=MANY))


@pytest.fixture(scope="module", params=["of today", "of empty tables"])
def statistics(filled: None, request: pytest.FixtureRequest, server: Server, database_url: str) -> None:
    """What the planner believes about it."""
    with server.administrator(sqlalchemy.make_url(database_url).database) as connection:
        connection.execute("analyze")
        for statement in OF_EMPTY_TABLES if request.param == "of empty tables" else ():
            connection.execute(statement)


def looks_of(connection: Connection, statement: str, *arguments: object) -> int:
    """Return how many rows and index probes a statement costs; what it does is taken back."""
    with connection.transaction(force_rollback=True):
        return looks_within(connection, statement, *arguments)


def looks_within(connection: Connection, statement: str, *arguments: object) -> int:
    """Return how many rows and index probes a statement costs in the SQL transaction that is open."""
    (before,) = connection.execute(LOOKS).fetchone() or (0,)
    connection.execute(statement, arguments)
    (after,) = connection.execute(LOOKS).fetchone() or (0,)
    return int(after - before)


def test_every_sweep_stands_here() -> None:
    """But two: compaction reads a window of a log, and wake-ups are a scan of the last minute's commits."""
    assert set(sweep.STEPS) - set(STEPS) == {"compaction", "wakeups"}


@pytest.mark.parametrize(
    ("function", "position"), [(name, position) for name, positions in STEPS.values() for position in positions]
)
def test_a_step_looks_at_few_rows(connection: Connection, function: str, position: list[int] | None) -> None:
    assert looks_of(connection, f"select * from msgtx.{function}(%s::bigint[], 250)", position) <= MOST_LOOKS


# What a sweep removes of one thing, at once: {n} rows of it that are superseded. The newest is the last.
DEEP = {
    "share states": (
        "remove_superseded_shares",
        [1, 0, 0],
        "insert into msgtx.share_state (group_id, partition_id, version, next_offset, spans)"
        " select 1, 1, 1 + i, 0, '{{}}' from generate_series(1, {n}) i",
    ),
    "parked": (
        "remove_superseded_shares",
        [1, 0, 0],
        "insert into msgtx.share_parked (group_id, partition_id, first_offset, last_offset, delivery_count)"
        " select 1, 1, i, i, 1 from generate_series(1, {n}) i",
    ),
    "calls": (
        "remove_superseded_shares",
        [2, 0],
        "insert into msgtx.share_call (member_number, call_number) select 1, 1 + i from generate_series(1, {n}) i",
    ),
    "offsets": (
        "remove_superseded_offsets",
        None,
        "insert into msgtx.group_offset (group_id, partition_id, commit_sequence, committed_offset, committed_at)"
        " select 1, 1, 1000000 + i, 0, now() from generate_series(1, {n}) i",
    ),
    "floors": (
        "remove_superseded_floors",
        None,
        "insert into msgtx.partition_floor (partition_id, stable_floor) select 1, i from generate_series(1, {n}) i",
    ),
    "keys": (
        "remove_dedup_keys",
        None,
        "insert into msgtx.dedup_key (topic_id, dedup_key, partition_id, record_offset, record_timestamp, appended_at)"
        " select 1, 'old-' || i, 1, 0, 0, now() - interval '30 days' from generate_series(1, {n}) i",
    ),
    "wake-ups": (
        "remove_wake_ups",
        None,
        "insert into msgtx.wake_up (woken_at, words) select now() - interval '1 day', 'x' from generate_series(1, {n})",
    ),
    "attempts of Spark": (
        "remove_spark_history",
        None,
        "insert into msgtx.spark_attempt (app_id, query_id, batch_id, producer_id, begun_at)"
        " select 'app', '', i, i, now() - interval '90 days' from generate_series(1, {n}) i",
    ),
    "batches of Spark": (
        "remove_spark_history",
        None,
        "insert into msgtx.spark_batch (app_id, query_id, batch_id, decided_at)"
        " select 'app', '', i, now() from generate_series(0, {n}) i",
    ),
    "heartbeats": (
        "remove_heartbeats",
        None,
        "insert into msgtx.group_heartbeat (member_number, heartbeat_number, heartbeat_at)"
        " select (select min(member_number) from msgtx.group_member), 1 + i, now() from generate_series(1, {n}) i",
    ),
}


@pytest.mark.parametrize("what", DEEP)
def test_what_is_removed_at_once_costs_so_much_for_each_row(connection: Connection, what: str) -> None:
    """Not for each row and each other one: a join with itself is planned for the one row that statistics may promise."""
    function, position, fill = DEEP[what]
    with connection.transaction(force_rollback=True):
        connection.execute(fill.format(n=MANY))
        connection.execute(f"set local statement_timeout = {LONGEST_MS}")
        statement = f"select removed from msgtx.{function}(%s::bigint[], 1)"
        (before,) = connection.execute(LOOKS).fetchone() or (0,)
        (removed,) = connection.execute(statement, [position]).fetchone() or (0,)
        (after,) = connection.execute(LOOKS).fetchone() or (0,)
    assert removed >= MANY - 1
    assert after - before <= 10 * MANY


@pytest.mark.parametrize("run", ["one", "another"])
def test_a_batch_that_is_planned_again_costs_so_much_for_each_partition(connection: Connection, run: str) -> None:
    """Also by another run of its query, which notes anew what it reads."""
    ids = list(range(1, MANY + 1))
    with connection.transaction(force_rollback=True):
        for each, end in (("one", 1), (run, 2 if run == "another" else 1)):
            connection.execute(f"set local statement_timeout = {LONGEST_MS}")
            found = connection.execute(
                "select error from msgtx.record_range('query', 0, '', %s, %s::bigint[], %s::bigint[], %s, 'source')",
                [ids, [0] * MANY, [end] * MANY, each],
            ).fetchone()
            assert found == (None,)
        noted = "select count(*) from msgtx.spark_range where query_id = 'query' and run_id = %s and end_offset = %s"
        assert connection.execute(noted, [run, 2 if run == "another" else 1]).fetchone() == (MANY,)


DECIDE_BATCH = "select * from msgtx.decide_batch('app', %s, %s, '{}', '{}', '{}', '{}')"


@pytest.mark.parametrize("query", ["", "query"], ids=["of a program", "of a stream"])
def test_a_batch_does_not_look_at_the_attempts_of_the_past(connection: Connection, query: str) -> None:
    """Decided ones, of its own query or of another. An undecided one that it may not end lies before them."""
    begin = "select msgtx.begin_attempt('app', %s, %s, 60000)"
    with connection.transaction(force_rollback=True):
        connection.execute("select setval('msgtx.producer_id_sequence', 6000000)")
        connection.execute(begin, ["" if query else "query", 3 * MANY])
        connection.execute(
            "insert into msgtx.spark_attempt (app_id, query_id, batch_id, producer_id, begun_at)"
            " select 'app', case when %s <> '' and i %% 2 = 0 then 'old' else %s end, i, 6000001 + i, now()"
            " from generate_series(1, %s) i",
            [query, query, MANY],
        )
        connection.execute(
            "insert into msgtx.producer (producer_id, epoch, timeout_ms, initialized_at, shard)"
            " select 6000001 + i, 0, 60000, now(), 0 from generate_series(1, %s) i",
            [MANY],
        )
        connection.execute(
            "insert into msgtx.transaction_decision (producer_id, producer_epoch, transaction_number, outcome, decided_at,"
            " decided_by, partitions, first_offsets, last_offsets)"
            " select 6000001 + i, 0, 0, 'ABORT', now(), 'client', '{}', '{}', '{}' from generate_series(1, %s) i",
            [MANY],
        )
        connection.execute("select setval('msgtx.producer_id_sequence', 7000000)")
        looks = []
        for number in range(MANY, MANY + 3):
            connection.execute(begin, [query, number])
            looks.append(looks_within(connection, DECIDE_BATCH, query, number))
        looks.append(looks_within(connection, "select msgtx.abort_batch('app', %s, %s)", query, MANY + 3))
    assert looks[0] > MANY
    assert max(looks[1:]) <= 100, looks


# Calls about {n} things, of which there are 8,000: each thing costs some index probes, and the others nothing.
CALLS = {
    "keys": """select * from msgtx.append_once(
        array_fill(1, array[{n}]), array(select 'new-' || i from generate_series(1, {n}) i),
        array_fill(0::bigint, array[{n}]), array_fill(null::bytea, array[{n}]), array_fill('x'::bytea, array[{n}]))""",
    "committed offsets": "select * from msgtx.committed_offsets('group-1', array(select generate_series(1, {n}))::int[])",
    "last sequences": "select msgtx.last_sequences(1, 0, null, array(select generate_series(1, {n}))::int[])",
    "rows of the log": """select f.partition_id from msgtx.fetch_batches(
        array(select generate_series(1, {n}))::int[], array_fill(0::bigint, array[{n}]),
        array_fill(null::text, array[{n}]), 'read_committed') f""",
    "log starts": """select * from msgtx.delete_records(
        array(select generate_series(1, {n}))::int[], array_fill(1::bigint, array[{n}]))""",
    "a log": "select * from msgtx.remove_front({n}, 100, 1000000)",
    "parked": "select * from msgtx.unpark_records(1, 1, 0, now(), {n}, '{{}}', '-infinity', '{{}}')",
}


@pytest.mark.parametrize("what", CALLS)
def test_a_call_looks_at_what_it_is_about(connection: Connection, what: str) -> None:
    with connection.transaction(force_rollback=True):
        connection.execute("set local enable_sort = off")  # as what calls unpark_records does
        connection.execute(
            "insert into msgtx.share_parked (group_id, partition_id, first_offset, last_offset, delivery_count, due_at)"
            f" select 1, 1, i, i, 0, now() from generate_series(1, {MANY}) i"
        )
        assert looks_of(connection, CALLS[what].format(n=100)) <= 2_500


def test_an_id_costs_a_list_of_transactions_no_look_at_every_partition(connection: Connection) -> None:
    assert looks_of(connection, "select transactional_id, state from msgtx.transactions") <= 20 * MANY
    # An id is shown to those alone who may use it: the producers are read to find it, and nothing else of theirs.
    assert looks_of(connection, "select * from msgtx.transactions where transactional_id = 'id-7'") <= MANY + 50


def test_a_transactional_id_is_described_at_the_cost_of_one(connection: Connection) -> None:
    with connection.transaction(force_rollback=True):
        (before,) = connection.execute(LOOKS).fetchone() or (0,)
        described = describe_transaction(connection, "id-7")
        (after,) = connection.execute(LOOKS).fetchone() or (0,)
    assert described is not None
    assert (described.producer_id, described.partitions) == (7, [TopicPartition("wide", 6)])
    assert after - before <= 50


def test_a_share_group_that_has_read_all_is_described_without_counting(connection: Connection) -> None:
    """Where a partition ends is asked for all at once: a count for each took 0.3 ms."""
    with connection.transaction(force_rollback=True):
        connection.execute("select msgtx.configure_share_group('share', '{}')")
        connection.execute(
            """insert into msgtx.share_state (group_id, partition_id, version, next_offset, spans)
               select g.group_id, p.partition_id, 1, 1, '{}' from msgtx.consumer_group g cross join msgtx.partition p
               where g.name = 'share'"""
        )
        assert looks_of(connection, "select * from msgtx.describe_share_groups('{share}')") <= 30 * MANY


def test_a_pass_over_idle_ids_costs_so_much_for_each_and_not_for_each_partition(connection: Connection) -> None:
    """Each is marked first: nothing waits for it, and it goes."""
    after: sweeps.Position | None = None
    with connection.transaction(force_rollback=True):
        connection.execute("insert into msgtx.partition_floor select p.partition_id, 1 from msgtx.partition p")
        (before,) = connection.execute(LOOKS).fetchone() or (0,)
        removed = 0
        while removed < MANY:
            swept = sweeps.remove_idle_producers(connection, after, None)
            removed, after = removed + swept.done["producer_ids_removed"], swept.after
            assert after is not None or removed == MANY
        (looks,) = connection.execute(LOOKS).fetchone() or (0,)
        assert looks - before <= 60 * MANY


def test_what_is_overdue_behind_a_prepared_transaction_is_found_without_reading_the_history(connection: Connection) -> None:
    """I12; P37: behind it the floor stands still, and the history above it grows."""
    (partition,) = connection.execute(
        "select partition_id from msgtx.partition order by partition_id desc limit 1"
    ).fetchone() or (0,)
    with connection.transaction(force_rollback=True):
        connection.execute(
            "insert into msgtx.producer (producer_id, epoch, timeout_ms, initialized_at, shard)"
            " values (5000000, 0, 60000, now(), 0), (5000001, 0, 60000, now(), 1)"
        )
        for statement in (
            "insert into msgtx.transaction (producer_id, producer_epoch, transaction_number, opened_at, timeout_ms,"
            " database_backend) select 5000000, 0, i, now() - interval '1 day', 60000, 1 from generate_series(1, 20000) i",
            "insert into msgtx.transaction_partition (producer_id, producer_epoch, transaction_number, partition_id,"
            f" first_offset) select 5000000, 0, i, {partition}, i from generate_series(1, 20000) i",
            "insert into msgtx.transaction_decision (producer_id, producer_epoch, transaction_number, outcome, decided_at,"
            " decided_by, partitions, first_offsets, last_offsets) select 5000000, 0, i, 'COMMIT', now(), 'client',"
            f" array[{partition}], array[i], array[i] from generate_series(1, 20000) i",
            "insert into msgtx.transaction (producer_id, producer_epoch, transaction_number, opened_at, timeout_ms,"
            " database_backend) values (5000001, 0, 0, now() - interval '1 day', 60000, 1)",
            "insert into msgtx.transaction_partition (producer_id, producer_epoch, transaction_number, partition_id,"
            f" first_offset) values (5000001, 0, 0, {partition}, 15000)",
            "insert into msgtx.record_batch (partition_id, base_offset, last_offset, producer_id, producer_epoch,"
            " transaction_number, base_sequence, last_sequence, appended_at, max_timestamp, record_count, byte_size,"
            f" \"values\") values ({partition}, 15000, 20000, 5000001, 0, 0, 0, 0, now(), 0, 1, 1, array['x'::bytea])",
        ):
            connection.execute(statement)
        after: sweeps.Position | None = None
        found = 0
        while True:
            (before,) = connection.execute(LOOKS).fetchone() or (0,)
            swept = sweeps.expire_step(connection, after, None)
            (looks,) = connection.execute(LOOKS).fetchone() or (0,)
            assert looks - before <= MOST_LOOKS
            found, after = found + swept.done["transactions_aborted"], swept.after
            if after is None:
                break
        assert found == 1
        assert connection.execute(
            "select decided_by from msgtx.transaction_decision where producer_id = 5000001"
        ).fetchall() == [("timeout",)]
        assert expire_transactions(connection) == 0
