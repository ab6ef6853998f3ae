"""The pace of cleaning: small calls, spread over time, with no lock between them (internals: coordinator#pace)."""

import math
import threading

import psycopg
import pytest

import msgtx
from msgtx import errors
from msgtx.coordinator import sweep as sweeping
from msgtx.coordinator.pace import CATCH_UP_SECONDS, PACE_LIMIT_SECONDS, Pace
from msgtx.coordinator.sweep import Sweeper, sweep
from msgtx.database.pool import Engine
from msgtx.store.sweeps.sweeps import REMOVED_ROW_BYTES, late_logs
from tests.databases import Clock, Connection
from tests.refusals import refuses
from tests.store.conftest import Settings
from tests.store.steps import Writer, count, fill, new_partition, new_topic
from tests.store.test_compaction import put

pytestmark = pytest.mark.usefixtures("bare")
MIB = 1024 * 1024
TINY = 1e-6  # floating-point numbers
ROW = 2 * MIB - REMOVED_ROW_BYTES  # of a row that counts as 2 MiB, and goes in a call of its own


class Time:
    """A clock of the tests, in seconds: it moves when a sweep pauses. `pauses`: their lengths."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.now += seconds
        return True


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def slow(settings: Settings) -> None:
    settings(sweep_max_bytes_per_second=2 * MIB)


@pytest.mark.parametrize("sizes", [[1], [1, 5, 2], [10] * 5, [3, 0, 3]], ids=str)
@pytest.mark.parametrize("late", [0.0, CATCH_UP_SECONDS / 2, 5.0])
def test_calls_take_as_long_as_their_bytes(time: Time, sizes: list[int], late: float) -> None:
    """`late`: how much longer a pause lasts than was asked. A little is caught up, so that the rate is kept."""
    pace, begin = Pace(time), time()
    for size in sizes:
        time.pause(pace.due_in())
        time.now += late
        pace.spend(size * MIB, rate=MIB)
    took = time() + pace.due_in() - begin
    assert took >= sum(sizes) - CATCH_UP_SECONDS - TINY
    assert took <= sum(sizes) + late * len(sizes) + TINY
    if late < CATCH_UP_SECONDS:
        assert took <= sum(sizes) + late + TINY, "pauses that last too long are made up for"


def test_a_rate_that_was_too_low_is_left_after_a_minute(time: Time) -> None:
    pace = Pace(time)
    pace.spend(MIB, rate=1)
    assert pace.due_in() == pytest.approx(PACE_LIMIT_SECONDS - CATCH_UP_SECONDS)


def test_at_first_nothing_waits(time: Time) -> None:
    assert Pace(time).due_in() == 0
    assert Sweeper(pace=Pace(time)).due_in() == math.inf


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("kind", ["retention", "deleted"])
def test_rows_of_a_log_go_one_by_one_at_the_rate_that_is_set(connection: Connection, time: Time, kind: str) -> None:
    partition = new_partition(connection, retention_bytes=0)
    fill(connection, partition, 5, byte_size=ROW)
    if kind == "deleted":
        connection.execute("insert into msgtx.deleted_partition (partition_id) values (%s)", [partition])
    report = Sweeper([kind], pace=Pace(time)).rounds(connection, time.pause)
    assert report.batches_removed + report.log_rows_removed >= 5
    assert report.sweeps_unfinished == 0
    assert time.pauses[:4] == pytest.approx([1 - CATCH_UP_SECONDS, 1, 1, 1])


def test_a_new_rate_counts_from_the_next_round(connection: Connection, time: Time, settings: Settings) -> None:
    sweeper = Sweeper(["retention"], pace=Pace(time))
    for rate, seconds in ((2 * MIB, 1.0), (8 * MIB, 0.25)):
        settings(sweep_max_bytes_per_second=rate)
        fill(connection, new_partition(connection, retention_bytes=0), 4, byte_size=ROW)
        time.now += 100
        time.pauses.clear()
        sweeper.rounds(connection, time.pause)
        assert time.pauses[1:3] == pytest.approx([seconds] * 2)


@pytest.mark.usefixtures("slow")
def test_many_small_rows_count_as_what_their_removal_writes(connection: Connection, time: Time) -> None:
    """The records are 3 kB, the rows 600 kB."""
    fill(connection, new_partition(connection, retention_bytes=0), 3_000, byte_size=1)
    Sweeper(["retention"], pace=Pace(time)).rounds(connection, time.pause)
    assert sum(time.pauses) == pytest.approx(3_000 * (1 + REMOVED_ROW_BYTES) / (2 * MIB) - CATCH_UP_SECONDS)


@pytest.mark.usefixtures("slow")
def test_nothing_is_locked_during_a_pause(connection: Connection, session: Connection, time: Time) -> None:
    partition = new_partition(connection, retention_bytes=0)
    fill(connection, partition, 3, byte_size=ROW)
    left: list[int] = []

    def pause(seconds: float) -> bool:
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        held = session.execute(
            "select count(*) from pg_locks where pid = %s and locktype <> 'virtualxid'", [connection.info.backend_pid]
        ).fetchone()
        assert held == (0,)
        left.append(count(session, "record_batch"))
        return time.pause(seconds)

    Sweeper(pace=Pace(time)).rounds(connection, pause)
    assert left[:2] == [2, 1], "each call is committed"


@pytest.mark.usefixtures("slow")
def test_between_two_rounds_the_steps_continue_in_turn(connection: Connection, time: Time) -> None:
    """As in a daemon: a round leaves a step when a pause is due, and `piece` continues it. The next report has all."""
    partition = new_partition(connection, retention_bytes=0)
    fill(connection, partition, 3, byte_size=ROW)
    sweeper = Sweeper(["retention", "compaction"], pace=Pace(time))
    assert sweeper.round(connection, step_seconds=9.0).batches_removed == 1
    assert (list(sweeper.behind), sweeper.due_in()) == (["retention", "compaction"], pytest.approx(1 - CATCH_UP_SECONDS))
    for behind in (["compaction", "retention"], ["retention"], ["retention"], []):
        time.now += sweeper.due_in()
        sweeper.piece(connection)
        assert list(sweeper.behind) == behind
    assert sweeper.due_in() == math.inf
    assert sweeper.round(connection, step_seconds=9.0).batches_removed == 2


@pytest.mark.usefixtures("slow")
def test_a_piece_that_fails_is_for_the_next_round(connection: Connection, time: Time) -> None:
    fill(connection, new_partition(connection, retention_bytes=0), 3, byte_size=ROW)
    sweeper = Sweeper(["deleted"], pace=Pace(time))
    connection.execute("insert into msgtx.deleted_partition (partition_id) select partition_id from msgtx.partition")
    sweeper.round(connection, step_seconds=9.0)
    time.now += 9
    connection.execute("alter function msgtx.remove_deleted_logs rename to elsewhere")
    try:
        sweeper.piece(connection)
        assert (list(sweeper.failures), sweeper.behind) == (["deleted"], {})
    finally:
        connection.execute("alter function msgtx.elsewhere rename to remove_deleted_logs")
    sweeper.round(connection, step_seconds=9.0)
    assert (sweeper.failures, list(sweeper.behind)) == ({}, ["deleted"])


def test_compaction_is_paced_by_what_it_writes(connection: Connection, time: Time, settings: Settings) -> None:
    """A row of which a record stays is written anew: its bytes count before and after. A row that stays does not count."""
    settings(sweep_max_bytes_per_second=10)
    partition = new_partition(connection, cleanup_policy="compact")
    for records in ("a1 b1", "c1", "a2"):
        put(connection, partition, records)
    size = size_of_first(connection, partition)
    swept = Sweeper(["compaction"], pace=Pace(time)).rounds(connection, time.pause)
    assert swept.records_compacted == 1
    size += size_of_first(connection, partition)
    assert sum(time.pauses) == pytest.approx((REMOVED_ROW_BYTES + size) / 10 - CATCH_UP_SECONDS)


def size_of_first(connection: Connection, partition: int) -> int:
    (size,) = connection.execute(
        "select byte_size from msgtx.record_batch where partition_id = %s order by base_offset limit 1", [partition]
    ).fetchone() or (0,)
    return int(size)


# ── by hand ──


def test_a_sweep_by_hand_ends_in_time_and_the_next_one_continues(
    connection: Connection, engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings(sweep_max_bytes_per_second=1)
    fill(connection, new_partition(connection, retention_bytes=0), 3, byte_size=ROW)
    monkeypatch.setattr(sweeping, "PACED_SECONDS", 0.0)
    reports = [sweep(engine, only=["retention"]) for _ in range(4)]
    assert [(each.batches_removed, each.sweeps_unfinished) for each in reports] == [(1, 1), (1, 1), (1, 1), (0, 0)]


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("how", [{"full_speed": True}, {"dry_run": True}], ids=str)
def test_at_full_speed_and_in_a_dry_run_nothing_pauses(
    connection: Connection, engine: Engine, monkeypatch: pytest.MonkeyPatch, how: dict[str, bool]
) -> None:
    """A dry run holds its locks to the end."""
    fill(connection, new_partition(connection, retention_bytes=0), 300, byte_size=ROW)
    monkeypatch.setattr(sweeping, "PACED_SECONDS", 0.0)
    assert sweep(engine, only=["retention"], **how).batches_removed == 300


@pytest.mark.usefixtures("slow")
def test_a_client_that_is_closed_ends_the_pause_of_its_sweep(
    connection: Connection, database_url: str, settings: Settings
) -> None:
    """The pause would last a minute."""
    settings(sweep_max_bytes_per_second=1)
    fill(connection, new_partition(connection, retention_bytes=0), 3, byte_size=ROW)
    client = msgtx.connect(database_url)

    def close(event: str) -> None:
        if event == "after sweep_pace":
            client.close()

    client.runtime.engine.hook = close
    with refuses(errors.IllegalState, reason="closed"):
        client.sweep(only=["retention"])
    assert count(connection, "record_batch") == 2


@pytest.mark.usefixtures("slow")
def test_a_stop_ends_the_pause_of_a_sweep(connection: Connection, database_url: str, settings: Settings) -> None:
    """The pause would last a minute."""
    settings(sweep_max_bytes_per_second=1)
    fill(connection, new_partition(connection, retention_bytes=0), 3, byte_size=ROW)
    stop = threading.Event()
    with msgtx.connect(database_url) as client:
        client.runtime.engine.hook = lambda event: stop.set() if event == "after sweep_pace" else None
        report = client.sweep(only=["retention"], stop=stop)
    assert (report.batches_removed, report.sweeps_unfinished) == (1, 1)


def two_backlogs(connection: Connection, *, deleted: int) -> None:
    """Make a deleted log of so many rows, and a log of two that are past its retention."""
    partition = 1_000_000  # of no topic any more
    fill(connection, partition, deleted, byte_size=ROW)
    fill(connection, new_partition(connection, retention_bytes=0), 2, byte_size=ROW)
    connection.execute("insert into msgtx.deleted_partition (partition_id) values (%s)", [partition])


@pytest.mark.usefixtures("slow")
def test_a_long_backlog_of_one_sweep_holds_no_other_up(connection: Connection, time: Time) -> None:
    """The log past its retention is done while the deleted one is not."""
    two_backlogs(connection, deleted=5)

    def pause(seconds: float) -> bool:
        time.pause(seconds)
        return len(time.pauses) < 5

    sweeper = Sweeper(["deleted", "retention"], pace=Pace(time))
    report = sweeper.rounds(connection, pause)
    assert report.batches_removed == 2
    assert 0 < report.log_rows_removed < 5
    assert report.sweeps_unfinished > 0
    Sweeper(["deleted"]).round(connection)


@pytest.mark.usefixtures("slow")
def test_in_rounds_alone_no_sweep_is_held_up(connection: Connection, time: Time) -> None:
    """As in a daemon whose rounds are so long that nothing is done between them."""
    two_backlogs(connection, deleted=9)
    sweeper, removed = Sweeper(["deleted", "retention"], pace=Pace(time)), [0, 0]
    for _ in range(6):
        report = sweeper.round(connection, step_seconds=9.0)
        removed = [removed[0] + report.log_rows_removed, removed[1] + report.batches_removed]
        time.now += 1
    assert removed == [4, 2]
    Sweeper(["deleted"]).round(connection)


# ── whether it keeps up ──


HOUR_MS = 3_600_000
COUNTED = 1_024  # rows: fewer are not counted yet
LATE = [
    # retention_ms, retention_bytes, age, bytes of a row; whether it is late
    (HOUR_MS, -1, "1 hour 59 min", 1, False),
    (HOUR_MS, -1, "2 hours 1 min", 1, True),
    (-1, -1, "10 years", 1, False),
    (-1, MIB, "1 min", 2 * MIB // COUNTED - 1, False),
    (-1, MIB, "1 min", 2 * MIB // COUNTED, True),
    (2**63 - 1, MIB, "10 years", 1, False),
    (0, -1, "61 min", 1, True),
]


@pytest.mark.parametrize(("retention_ms", "retention_bytes", "age", "size", "is_late"), LATE)
def test_a_log_that_is_past_its_retention_for_long_is_found(
    connection: Connection, clock: Clock, retention_ms: int, retention_bytes: int, age: str, size: int, is_late: bool
) -> None:
    partition = new_partition(connection, retention_ms=retention_ms, retention_bytes=retention_bytes)
    fill(connection, partition, COUNTED, byte_size=size)
    connection.execute("update msgtx.record_batch set max_timestamp = extract(epoch from msgtx.clock()) * 1000")
    connection.execute("select msgtx.count_bytes(%s)", [partition])
    clock(age)
    found, total = late_logs(connection, late_ms=HOUR_MS, late_bytes=MIB, most=9)
    assert (len(found), total) == (int(is_late), int(is_late))


def test_what_may_not_go_yet_is_not_late(connection: Connection, clock: Clock) -> None:
    """An open transaction holds it; or the topic is compacted."""
    partition = new_partition(connection, retention_ms=1)
    writer = Writer(connection)
    writer.send(partition, b"open")
    fill(connection, new_partition(connection, retention_ms=1, cleanup_policy="compact"), 1)
    clock("1 day")
    assert late_logs(connection, late_ms=HOUR_MS, late_bytes=1, most=9) == ([], 0)
    writer.commit()
    (one,), _ = late_logs(connection, late_ms=HOUR_MS, late_bytes=1, most=9)
    assert one.partition_index == 0


def test_of_many_late_logs_the_oldest_come_first(connection: Connection, clock: Clock) -> None:
    partitions = new_topic(connection, 5, retention_ms=1)
    for partition in partitions:
        fill(connection, partition, 1)
    connection.execute(
        "update msgtx.record_batch set max_timestamp = extract(epoch from now()) * 1000 - 60000 * partition_id"
    )
    clock("1 day")
    found, total = late_logs(connection, late_ms=HOUR_MS, late_bytes=1, most=2)
    assert ([each.partition_index for each in found], total) == ([4, 3], 5)
