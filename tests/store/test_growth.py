"""Steps of sweeps look at a bounded number of rows, however many partitions, ids, groups and seals there are."""

import pytest

from msgtx.coordinator import sweep
from msgtx.database.pool import Engine
from msgtx.store import sweeps
from msgtx.store.transactions import describe_transaction, expire_transactions
from msgtx.types import TopicPartition
from tests.databases import Connection, connect

MANY = 8_000
# A step looks at 250 things, with up to thirty index probes and rows for each. A look at all of something would add 8,000.
MOST_LOOKS = 7_500
LOOKS = 5_200
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
        select 1, 'member-' || i, 60000, array['wide'], now() from generate_series(1, {n}) i""",
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
pytestmark = pytest.mark.usefixtures("filled")


@pytest.fixture(scope="module")
def filled(engine: Engine, database_url: str) -> None:
    """A database with 8,000 of everything."""
    with connect(database_url) as connection:
        for statement in FILL:
            connection.execute(statement.format(n=MANY))
        connection.execute("analyze")


def looks_of(connection: Connection, statement: str, *arguments: object) -> int:
    """Return how many rows and index probes a statement costs; what it does is taken back."""
    with connection.transaction(force_rollback=True):
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
            swept = sweeps.expire_transactions(connection, after, None)
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
