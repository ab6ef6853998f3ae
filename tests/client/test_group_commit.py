"""Group commit: transactions that wait at the same time share an SQL transaction, and nothing else."""

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from msgtx import Client, TopicPartition, errors
from msgtx.database.connection import until
from msgtx.database.pool import Engine
from msgtx.database.together import MOST_TOGETHER
from msgtx.producer.group_commit import MOST_BYTES, GroupCommit
from msgtx.store.append.append import PARTITIONS_AT_ONCE, Appended, Whole
from msgtx.store.groups.groups import NO_OFFSETS
from tests.databases import PATIENCE_SECONDS, Connection, wait_until
from tests.hooks import Hook
from tests.store.sharing import ShareGroup, four_records
from tests.store.steps import Writer, committed_at, new_partition, new_topic, offsets_of, read


@pytest.fixture
def threads() -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    with concurrent.futures.ThreadPoolExecutor(MOST_TOGETHER + 10) as made:
        yield made


@pytest.fixture
def pool(database_url: str) -> Iterator[Engine]:
    with Engine(database_url, pool_size=MOST_TOGETHER + 12) as made:
        yield made


class Noted:
    """A notifier that tells nobody, and notes what it was asked for."""

    def __init__(self, *, claims: bool = False) -> None:
        self.claims = claims
        self.failures = 0
        self.told: list[int] = []

    def claim(self) -> bool:
        return self.claims

    def failed(self) -> None:
        self.failures += 1

    def tell(self, partition_ids: Sequence[int]) -> None:
        self.told += partition_ids


class Held:
    """A group commit whose leader waits for a lock, so that others queue until `release`."""

    def __init__(self, pool: Engine, connection: Connection, threads: concurrent.futures.ThreadPoolExecutor) -> None:
        self.wake = Noted()
        self.group_commit = GroupCommit(pool, self.wake)
        self.group_commit.calls.patience = 30.0
        self.pool, self.connection, self.threads = pool, connection, threads
        self.partition = new_partition(connection)
        self.holder = pool.dedicated()
        self.holder.autocommit = False
        self.hold(self.partition)
        self.first = self.submit(whole(Writer(connection), self.partition, b"first"))
        self.wait_until_blocked()

    def hold(self, partition: int) -> None:
        self.holder.execute("select pg_advisory_xact_lock(1836279555, %s)", [partition])

    def wait_until_blocked(self) -> None:
        wait_until(
            lambda: (
                self.connection.execute(
                    "select from pg_stat_activity where %s = any(pg_blocking_pids(pid))", [self.holder.info.backend_pid]
                ).rowcount
            )
        )

    def submit(self, one: Whole, size: int = 100) -> "concurrent.futures.Future[list[Appended]]":
        return self.threads.submit(self.group_commit.commit, one, size)

    def queue(self, *wholes: Whole) -> "list[concurrent.futures.Future[list[Appended]]]":
        waiting = []
        for at, one in enumerate(wholes, start=1):
            waiting.append(self.submit(one))
            wait_until(lambda at=at: len(self.group_commit.calls.queue) >= at)
        return waiting

    def release(self) -> None:
        self.holder.rollback()

    def free(self) -> bool:
        return self.group_commit.calls.leader is None and not self.group_commit.calls.queue


@pytest.fixture
def held(pool: Engine, connection: Connection, threads: concurrent.futures.ThreadPoolExecutor) -> Iterator[Held]:
    made = Held(pool, connection, threads)
    with contextlib.closing(made.holder):
        yield made
        made.release()
        assert made.first.result(20)[0].error is None
        wait_until(made.free)


def whole(writer: Writer, partition: int, *values: bytes, **columns: Any) -> Whole:
    offsets = columns.pop("offsets", NO_OFFSETS)
    return Whole(writer.name, [writer.row(partition, *values, **columns)], offsets)


def acknowledging(connection: Connection) -> Whole:
    """A transaction without records: it acknowledges one."""
    group = ShareGroup(connection, four_records(connection))
    group.acquire("a")
    return Whole(Writer(connection).name, [], NO_OFFSETS, group.answers("a", {0: "accept"}))


def sql_transactions(connection: Connection, *wholes: Whole) -> list[int]:
    """In which SQL transaction each was decided, numbered from 0."""
    found = [
        connection.execute(
            "select xmin::text from msgtx.transaction_decision"
            " where (producer_id, producer_epoch, transaction_number) = (%s, %s, %s) and outcome = 'COMMIT'",
            one.id,
        ).fetchall()
        for one in wholes
    ]
    numbers = [row[0][0] if row else None for row in found]
    return [-1 if each is None else list(dict.fromkeys(numbers)).index(each) for each in numbers]


def test_what_waits_at_the_same_time_goes_together(held: Held, connection: Connection) -> None:
    one, other = new_partition(connection), new_partition(connection)
    wholes = [
        whole(Writer(connection), one, b"a"),
        whole(Writer(connection), other, b"b", b"c"),
        whole(Writer(connection), one, b"d", offsets=offsets_of(("together", other, 1))),
    ]
    waiting = held.queue(*wholes)
    held.release()
    answers = [each.result(20) for each in waiting]
    assert [[(a.error, a.base_offset, a.duplicate) for a in answer] for answer in answers] == [
        [(None, 0, False)], [(None, 0, False)], [(None, 1, False)],
    ]  # fmt: skip
    assert sql_transactions(connection, *wholes) == [0, 0, 0]
    assert read(connection, one) == [(0, b"a"), (1, b"d")]
    assert read(connection, other) == [(0, b"b"), (1, b"c")]
    assert committed_at(connection, "together", other) == (1, False)
    assert sorted(held.wake.told) == sorted([held.partition, one, other, one])


def test_a_refused_one_does_not_affect_the_others(held: Held, connection: Connection) -> None:
    partition = new_partition(connection)
    fenced, gap, fine = Writer(connection), Writer(connection), Writer(connection)
    wholes = [
        whole(fenced, partition, b"fenced"),
        whole(gap, partition, b"gap", sequence=5),
        whole(fine, partition, b"fine"),
    ]
    Writer(connection, fenced.transactional_id)
    waiting = held.queue(*wholes)
    held.release()
    errors_of = [type(each.result(20)[0].error) for each in waiting]
    assert errors_of == [errors.ProducerFenced, errors.OutOfOrderSequence, type(None)]
    assert read(connection, partition) == [(0, b"fine")]


def test_a_repeated_one_is_answered_as_the_first(held: Held, connection: Connection) -> None:
    partition = new_partition(connection)
    one, other = whole(Writer(connection), partition, b"a"), whole(Writer(connection), partition, b"b")
    first = held.queue(one, other)
    held.release()
    assert [each.result(20)[0].base_offset for each in first] == [0, 1]
    again = held.submit(other).result(20)
    assert (again[0].error, again[0].base_offset, again[0].duplicate) == (None, 1, True)


def test_one_whose_lock_is_held_goes_by_itself_and_delays_nothing(held: Held, connection: Connection) -> None:
    locked, free = new_partition(connection), new_partition(connection)
    wholes = [
        whole(Writer(connection), free, b"a"),
        whole(Writer(connection), locked, b"waits"),
        whole(Writer(connection), free, b"b"),
    ]
    with held.pool.connection() as other, other.transaction():
        other.execute("select pg_advisory_xact_lock(1836279555, %s)", [locked])
        waiting = held.queue(*wholes)
        held.release()
        for each in (waiting[0], waiting[2]):
            assert each.result(20)[0].error is None
        assert not waiting[1].done()
        assert read(connection, locked) == []
    assert waiting[1].result(20)[0].error is None
    assert sql_transactions(connection, *wholes) == [0, 1, 0]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_error_in_one_is_its_own(held: Held, connection: Connection, place: int) -> None:
    """It undoes the shared SQL transaction; then each goes by itself. The first one leads the others."""
    partition = new_partition(connection)
    bad, fine = Writer(connection), Writer(connection)
    connection.execute("create function msgtx.spoil() returns trigger language plpgsql as $$ begin raise 'spoiled'; end $$")
    connection.execute(
        "create trigger spoil before insert on msgtx.transaction_decision for each row"
        f" when (new.producer_id = {bad.id.producer_id}) execute function msgtx.spoil()"
    )
    try:
        wholes = [whole(fine, partition, b"fine"), whole(Writer(connection), partition, b"too")]
        wholes.insert(place, whole(bad, partition, b"bad"))
        waiting = held.queue(*wholes)
        held.release()
        with pytest.raises(Exception, match="spoiled"):
            waiting.pop(place).result(20)
        assert [each.result(20)[0].error for each in waiting] == [None, None]
    finally:
        connection.execute("drop trigger spoil on msgtx.transaction_decision")
        connection.execute("drop function msgtx.spoil()")
    assert {value for _, value in read(connection, partition)} == {b"fine", b"too"}
    assert sql_transactions(connection, wholes[place]) == [-1]


def test_none_waits_for_one_ahead_that_waits_for_a_lock(held: Held, connection: Connection) -> None:
    """The first still waits when the others are done; they need not be many."""
    held.group_commit.calls.patience = 0.01
    for _ in range(3):
        began = time.monotonic()
        answer = held.submit(whole(Writer(connection), new_partition(connection), b"a")).result(20)
        assert answer[0].error is None
        assert time.monotonic() - began < 5
    assert not held.first.done()


def test_one_that_waits_longer_than_it_may_raises_and_leaves_the_queue(held: Held, connection: Connection) -> None:
    late = whole(Writer(connection), new_partition(connection), b"late")

    def commit() -> list[Appended]:
        with until(time.monotonic() + 0.2):
            return held.group_commit.commit(late, 100)

    with pytest.raises(errors.DatabaseUnavailable):
        held.threads.submit(commit).result(20)
    assert held.group_commit.calls.queue == []


def test_one_that_is_interrupted_while_it_leads_lets_the_others_go(held: Held, connection: Connection) -> None:
    class Interrupted(BaseException):
        pass

    Hook(held.pool).at("before append_and_decide", Interrupted(), times=1)
    partition = new_partition(connection)
    waiting = held.queue(*(whole(Writer(connection), partition, b"%d" % each) for each in range(3)))
    held.release()
    with pytest.raises(Interrupted):
        waiting[0].result(20)
    assert [each.result(20)[0].error for each in waiting[1:]] == [None, None]
    assert {value for _, value in read(connection, partition)} == {b"1", b"2"}


def test_no_more_than_a_bounded_number_go_together(held: Held, connection: Connection) -> None:
    partition = new_partition(connection)
    wholes = [whole(Writer(connection), partition, b"a") for _ in range(MOST_TOGETHER + 5)]
    waiting = held.queue(*wholes)
    held.release()
    assert all(each.result(30)[0].error is None for each in waiting)
    numbers = sql_transactions(connection, *wholes)
    assert numbers.count(0) == MOST_TOGETHER
    assert set(numbers[MOST_TOGETHER:]) == {1}


def test_a_large_one_waits_for_nothing(held: Held, connection: Connection) -> None:
    large = whole(Writer(connection), new_partition(connection), b"a" * MOST_BYTES)
    assert held.submit(large, MOST_BYTES + 1).result(20)[0].error is None
    assert not held.first.done()


def test_one_of_many_partitions_waits_for_nothing(held: Held, connection: Connection) -> None:
    """Each partition is a lock: `MOST_TOGETHER` of these would take more than a call may."""
    writer = Writer(connection)
    partitions = new_topic(connection, PARTITIONS_AT_ONCE // MOST_TOGETHER + 1)
    wide = Whole(writer.name, [writer.row(partition, b"a") for partition in partitions], NO_OFFSETS)
    assert [answer.error for answer in held.submit(wide).result(20)] == [None] * len(partitions)
    assert not held.first.done()


def test_one_with_acknowledgements_waits_for_nothing(held: Held, connection: Connection) -> None:
    """What is acknowledged may be locked by another member, for which the others would wait."""
    held.submit(acknowledging(connection)).result(20)
    assert not held.first.done()


# ── who tells the readers ──


def test_one_by_itself_notifies_behind_its_commit_if_it_has_records(
    pool: Engine, connection: Connection, open_connection: Callable[[], Connection]
) -> None:
    group_commit, partition, listening = GroupCommit(pool, Noted(claims=True)), new_partition(connection), open_connection()
    listening.execute("listen msgtx")
    group_commit.commit(acknowledging(connection), 0)
    group_commit.commit(whole(Writer(connection), partition, b"a"), 100)
    heard = [each.payload for each in listening.notifies(timeout=PATIENCE_SECONDS, stop_after=1)]
    assert heard == [f"{partition}"]


@pytest.mark.parametrize("claims", [False, True], ids=["not its turn", "it fails"])
def test_one_that_does_not_notify_has_its_readers_told(
    pool: Engine, connection: Connection, monkeypatch: pytest.MonkeyPatch, claims: bool
) -> None:
    """A notification that has failed is said to the notifier, which lets none be tried for a while."""
    wake, partition = Noted(claims=claims), new_partition(connection)
    monkeypatch.setattr("msgtx.database.calls.NOTIFY_SOON", "select pg_notify('msgtx', %s || 1/0)")
    assert GroupCommit(pool, wake).commit(whole(Writer(connection), partition, b"a"), 100)[0].error is None
    assert (wake.told, wake.failures) == ([partition], int(claims))


# ── from outside ──


def test_producers_in_threads_share_sql_transactions(client: Client, connection: Connection) -> None:
    """From outside: each acknowledged transaction is there once, in order, and there are fewer COMMITs than transactions."""
    producers, each = 8, 40
    client.topics.create("shared-commits", partitions=3)
    ready = threading.Barrier(producers)

    def work(number: int) -> list[int]:
        with client.producer(transactional_id=f"shared-{number}") as producer:
            offsets = []
            ready.wait(20)
            for at in range(each):
                with producer.transaction():
                    future = producer.send("shared-commits", b"%d/%d" % (number, at), partition=number % 3)
                offsets.append(future.result().offset)
            return offsets

    with concurrent.futures.ThreadPoolExecutor(producers) as workers:
        acknowledged = list(workers.map(work, range(producers)))
    seen: dict[bytes, tuple[int, int]] = {}
    with client.consumer(auto_offset_reset="earliest") as reader:
        reader.assign([TopicPartition("shared-commits", partition) for partition in range(3)])
        while len(seen) < producers * each:
            for record in reader.poll(5):
                assert record.value not in seen
                seen[record.value or b""] = (record.partition, record.offset)
    for number, offsets in enumerate(acknowledged):
        assert offsets == sorted(offsets)
        assert [seen[b"%d/%d" % (number, at)] for at in range(each)] == [(number % 3, offset) for offset in offsets]
    (row,) = connection.execute(
        "select count(*), count(distinct d.xmin::text) from msgtx.transaction_decision d"
        " join msgtx.producer p using (producer_id)"
        " where p.transactional_id like 'shared-%'"
    ).fetchall()
    assert row[0] == producers * each
    assert row[1] < row[0], "not one of them was shared"
