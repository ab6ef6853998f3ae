"""Scenarios from the literature on exactly-once messaging, over the whole client. Each name says what happens."""

import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from msgtx import Client, OffsetAndMetadata, Outcome, TopicPartition, errors
from msgtx.database.pool import Engine
from msgtx.database.wire import BatchColumns
from msgtx.store.append.append import append
from msgtx.store.transactions.producers import init_producer_id
from msgtx.store.transactions.transactions import mark
from tests.databases import connect, wait_for_lock, wait_until
from tests.faults import Connection, Faults, lose_connection
from tests.system.scenarios import FAST, READING, read_all

PATIENCE_SECONDS = 30.0
PARTITION_LOCKS = 1_836_279_555


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    """A topic of two partitions, named after the test."""
    name: str = request.node.name[5:100]
    client.topics.create(name, partitions=2)
    return name


@pytest.fixture
def faulty(database_url: str) -> Iterator[Callable[[Faults], Client]]:
    """Clients whose boundaries are counted from then on."""
    made: list[Client] = []

    def make(faults: Faults) -> Client:
        faults.on = False
        made.append(Client(Engine(database_url, connect=faults.connect)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def values(client: Client, topic: str, isolation: str = "read_committed") -> list[str]:
    return [value for rows in read_all(client, topic, isolation).values() for _, value in rows]


def lose_after(faults: Faults, function: str, times: int = 1) -> None:
    """Lose the connection after the next calls of a function: the call is done, but its answer is lost."""
    left = [times]
    plain = faults.cross

    def cross(connection: Connection | None, name: str) -> None:
        if left[0] and name == f"after {function}":
            left[0] -= 1
            faults.fired.append(name)
            lose_connection(connection)
        plain(connection, name)

    faults.cross = cross  # type: ignore[method-assign]


@pytest.mark.parametrize("boundary", ["sync", "append", "append_and_decide", "decide"])
def test_a_lost_acknowledgement_is_retried_and_stored_once(
    boundary: str, client: Client, faulty: Callable[[Faults], Client]
) -> None:
    topic = f"acknowledgement-{boundary}"
    client.topics.create(topic, partitions=2)
    faults = Faults()
    lose_after(faults, boundary, times=2)
    transactional = {"transactional_id": topic} if boundary in {"append_and_decide", "decide"} else {}
    with faulty(faults).producer(**FAST, **transactional) as producer:
        if transactional:
            producer.begin_transaction()
        futures = [producer.send(topic, b"value", partition=index) for index in range(2)]
        if boundary == "decide":
            producer.flush()
        if transactional:
            producer.commit_transaction()
        offsets = [future.result(PATIENCE_SECONDS).offset for future in futures]
    assert faults.fired or boundary in {"sync", "append"}  # which of the two occurs depends on how the sender calls
    assert offsets == [0, 0]
    assert read_all(client, topic, "read_uncommitted") == {0: [(0, "value")], 1: [(0, "value")]}


def test_the_first_batch_is_refused_the_second_arrives_and_the_first_is_retried_in_order(
    client: Client, topic: str, database_url: str
) -> None:
    """internals: append: a batch cannot be overtaken by a later one; the second is refused until the first is stored."""
    partition = _ids(client, topic)[0]
    with connect(database_url) as connection:
        who = init_producer_id(connection, None, timeout_ms=1_000)
        first = BatchColumns(partition, *who, None, 0, 1, None, [b"first"])
        second = BatchColumns(partition, *who, None, 1, 1, None, [b"second"])
        ((refused),) = append(connection, [second])
        assert isinstance(refused.error, errors.OutOfOrderSequence)
        assert append(connection, [first])[0].base_offset == 0
        assert append(connection, [second])[0].base_offset == 1
        assert append(connection, [first])[0].duplicate
    assert values(client, topic) == ["first", "second"]


def test_a_refused_batch_leaves_the_others_of_its_call_where_they_belong(
    client: Client, topic: str, database_url: str
) -> None:
    """Found by the next test: the offsets of the stored batches were given to the refused one before them."""
    first, second = _ids(client, topic)
    with connect(database_url) as connection:
        who = init_producer_id(connection, None, timeout_ms=1_000)
        append(connection, [BatchColumns(second, *who, None, 0, 1, None, [b"before"])])
        refused, stored = append(
            connection,
            [
                BatchColumns(first, *who, None, 5, 1, None, [b"refused"]),
                BatchColumns(second, *who, None, 1, 1, None, [b"stored"]),
            ],
        )
    assert isinstance(refused.error, errors.OutOfOrderSequence)
    assert (stored.error, stored.base_offset) == (None, 1)
    assert read_all(client, topic, "read_uncommitted") == {1: [(0, "before"), (1, "stored")]}


def test_a_producer_goes_on_after_out_of_order_sequence_without_loss_or_doubling(
    client: Client, topic: str, database_url: str
) -> None:
    """internals: append#retries-and-recovery: it raises its epoch and renumbers what was refused, and only that."""
    with client.producer(linger_ms=0, **FAST) as producer:
        sent = [f"before-{number}" for number in range(3)]
        for value in sent:
            producer.send(topic, value.encode(), partition=0).result(PATIENCE_SECONDS)
        with connect(database_url) as connection:  # which no client should do: the producer's tail is gone
            connection.execute(
                "delete from msgtx.record_batch where partition_id = %s and base_offset = 2", [_ids(client, topic)[0]]
            )
        futures = []
        for number in range(20):
            sent.append(f"after-{number}")
            futures.append(producer.send(topic, sent[-1].encode(), partition=number % 2))
        for future in futures:
            future.result(PATIENCE_SECONDS)
    del sent[2]
    assert sorted(values(client, topic)) == sorted(sent)
    rows = read_all(client, topic)
    for partition in rows:
        numbers = [int(value.split("-")[1]) for _, value in rows[partition] if value.startswith("after")]
        assert numbers == sorted(numbers)
    with connect(database_url) as connection:
        epochs = connection.execute(
            "select max(producer_epoch) from msgtx.record_batch where partition_id = any(%s)", [_ids(client, topic)]
        ).fetchone()
    assert epochs == (1,)


def test_a_request_that_was_delayed_until_after_the_epoch_was_raised_is_refused(
    client: Client, topic: str, database_url: str
) -> None:
    """P26: the old request waits for a lock while its producer renumbers; it must not be stored beside the new one."""
    partition = _ids(client, topic)[0]
    with connect(database_url) as holder, connect(database_url) as delayed, connect(database_url) as eye:
        who = init_producer_id(eye, None, timeout_ms=1_000)
        append(eye, [BatchColumns(partition, *who, None, 0, 1, None, [b"first"])])
        holder.execute("select pg_advisory_lock(%s, %s)", [PARTITION_LOCKS, partition])
        with concurrent.futures.ThreadPoolExecutor(2) as threads, connect(database_url) as bumper:
            batch = BatchColumns(partition, *who, None, 1, 1, None, [b"second"])
            old = threads.submit(append, delayed, [batch])
            wait_for_lock(eye, delayed.info.backend_pid)
            bump = threads.submit(init_producer_id, bumper, None, timeout_ms=1_000, expected=who)
            wait_for_lock(eye, bumper.info.backend_pid)  # raising the epoch waits for the request on its way
            holder.execute("select pg_advisory_unlock(%s, %s)", [PARTITION_LOCKS, partition])
            assert old.result(PATIENCE_SECONDS)[0].base_offset == 1
            bumped = bump.result(PATIENCE_SECONDS)
        assert bumped.epoch == who.epoch + 1
        (late,) = append(eye, [BatchColumns(partition, *who, None, 2, 1, None, [b"late"])])
        assert isinstance(late.error, errors.InvalidProducerEpoch)
    assert values(client, topic) == ["first", "second"]


@pytest.mark.parametrize(("commits", "least", "most"), [("before", 0, 1), ("after", 1, 2)])
def test_a_consumer_that_is_killed_between_processing_and_commit(
    commits: str, least: int, most: int, client: Client
) -> None:
    """At most once if it commits first, at least once if it commits afterwards: counted for each record."""
    topic = f"killed-consumer-{commits}"
    client.topics.create(topic, partitions=1)
    with client.producer() as producer:
        for number in range(5):
            producer.send(topic, str(number).encode())
    done: list[str] = []

    def work(crash_at: int | None) -> None:
        consumer = client.consumer(group=topic, **READING)
        consumer.assign([TopicPartition(topic, 0)])
        while records := consumer.poll(0, 1):
            assert records[0].value is not None
            number = records[0].value.decode()
            if commits == "before":
                consumer.commit()
                if int(number) == crash_at:
                    return  # killed: it was committed, but not done
            done.append(number)
            if commits == "after":
                if int(number) == crash_at:
                    return  # killed: it was done, but not committed
                consumer.commit()

    work(crash_at=2)
    work(crash_at=None)
    counted = {str(number): done.count(str(number)) for number in range(5)}
    assert counted == {"0": 1, "1": 1, "2": {"before": 0, "after": 2}[commits], "3": 1, "4": 1}
    assert least <= min(counted.values()) <= max(counted.values()) <= most


def test_markers_that_are_written_twice_are_there_once(client: Client, topic: str, database_url: str) -> None:
    with client.producer(transactional_id=topic, **FAST) as producer:
        for number, end in enumerate((producer.abort_transaction, producer.commit_transaction)):
            producer.begin_transaction()
            for index in range(2):
                producer.send(topic, str(number).encode(), partition=index)
            producer.flush()
            end()
    with connect(database_url) as connection:
        for _ in range(3):
            mark(connection, everything=True)
        count = connection.execute(
            "select count(*), count(distinct (partition_id, transaction_number)) from msgtx.transaction_marker"
            " where partition_id = any(%s)",
            [_ids(client, topic)],
        ).fetchone()
    assert count == (4, 4)
    assert values(client, topic) == ["1", "1"]


def test_of_two_interleaved_transactions_the_later_one_commits_first_and_waits_for_the_earlier(
    client: Client, topic: str
) -> None:
    """internals: visibility: offset order, not commit order; records after an undecided one wait."""
    with (
        client.producer(transactional_id=f"{topic}-1", **FAST) as early,
        client.producer(transactional_id=f"{topic}-2", **FAST) as later,
    ):
        early.begin_transaction()
        later.begin_transaction()
        for number in range(2):
            early.send(topic, f"early-{number}".encode(), partition=0).result(PATIENCE_SECONDS)
            later.send(topic, f"later-{number}".encode(), partition=0).result(PATIENCE_SECONDS)
        later.commit_transaction()
        assert values(client, topic) == []
        early.commit_transaction()
    assert values(client, topic) == ["early-0", "later-0", "early-1", "later-1"]


def test_a_transaction_that_began_earlier_and_writes_later_holds_back_nothing_before_it(client: Client, topic: str) -> None:
    with (
        client.producer(transactional_id=f"{topic}-1", **FAST) as early,
        client.producer(transactional_id=f"{topic}-2", **FAST) as later,
    ):
        early.begin_transaction()
        early.send(topic, b"elsewhere", partition=1).result(PATIENCE_SECONDS)
        later.begin_transaction()
        later.send(topic, b"later", partition=0).result(PATIENCE_SECONDS)
        later.commit_transaction()
        early.send(topic, b"early", partition=0).result(PATIENCE_SECONDS)
        assert values(client, topic) == ["later"]
        early.commit_transaction()
    assert values(client, topic) == ["later", "early", "elsewhere"]


@pytest.mark.parametrize("commits", [True, False])
def test_offsets_of_two_groups_are_in_one_transaction_or_in_none(commits: bool, client: Client) -> None:
    topic = f"two-groups-{commits}"
    client.topics.create(topic, partitions=2)
    partition = TopicPartition(topic, 0)
    with client.producer(transactional_id=topic, **FAST) as producer:
        producer.begin_transaction()
        producer.send(topic, b"output", partition=1)
        for group, at in ((f"{topic}-a", 3), (f"{topic}-b", 7)):
            producer.send_offsets_to_transaction({partition: at}, group)
        (producer.commit_transaction if commits else producer.abort_transaction)()
    for group, at in ((f"{topic}-a", 3), (f"{topic}-b", 7)):
        with client.consumer(group=group, **READING) as member:
            assert member.committed([partition])[partition] == (OffsetAndMetadata(at) if commits else None)
    assert values(client, topic) == (["output"] if commits else [])


def test_a_producer_that_fails_before_its_first_call_takes_over_when_the_database_answers_again(
    client: Client, topic: str, faulty: Callable[[Faults], Client]
) -> None:
    faults = Faults()
    lose_after(faults, "init_producer_id", times=3)
    with faulty(faults).producer(transactional_id=topic, **FAST) as producer, producer.transaction():
        producer.send(topic, b"value", partition=0)
    assert len(faults.fired) == 3
    assert values(client, topic) == ["value"]


def test_a_commit_whose_outcome_is_unknown_can_be_asked_for_later(
    client: Client, topic: str, faulty: Callable[[Faults], Client]
) -> None:
    faults = Faults()
    lose_after(faults, "decide", times=10**6)
    with faulty(faults).producer(transactional_id=topic, **FAST) as producer:
        name = producer.begin_transaction().id
        producer.send(topic, b"value", partition=0)
        producer.flush()
        with pytest.raises(errors.OutcomeUnknown):
            producer.commit_transaction(timeout=0.05)
        with pytest.raises(errors.IllegalState):
            producer.abort_transaction()
        assert client.transaction_outcome(name) is Outcome.COMMITTED
        lose_after(faults, "nothing")
        faults.cross = lambda connection, name: None  # type: ignore[method-assign]
        producer.commit_transaction()
    assert values(client, topic) == ["value"]


@pytest.mark.parametrize("side", ["before", "after"])
def test_an_abort_goes_on_from_what_is_really_stored(side: str, client: Client, faulty: Callable[[Faults], Client]) -> None:
    """A batch was sent and never answered, stored or not, before its transaction is aborted (internals: transactions)."""
    topic = f"unanswered-{side}"
    client.topics.create(topic, partitions=2)
    faults = Faults()
    losing = threading.Event()

    def cross(connection: Connection | None, name: str) -> None:
        if losing.is_set() and name == f"{side} sync":
            faults.fired.append(name)
            lose_connection(connection)

    faults.cross = cross  # type: ignore[method-assign]
    with faulty(faults).producer(transactional_id=topic, linger_ms=0, **FAST) as producer:
        losing.set()
        producer.begin_transaction()
        lost = producer.send(topic, b"lost", partition=0)
        wait_until(lambda: len(faults.fired) >= 2, "the batch is repeated in vain")
        producer.abort_transaction()
        with pytest.raises(errors.TransactionAborted):
            lost.result(PATIENCE_SECONDS)
        losing.clear()
        for number in range(2):
            with producer.transaction():
                producer.send(topic, f"next-{number}".encode(), partition=0).result(PATIENCE_SECONDS)
    assert values(client, topic) == ["next-0", "next-1"]


@pytest.mark.parametrize("how", ["seek", "group", "read_uncommitted first"])
def test_a_reader_that_starts_inside_an_open_transaction_gets_nothing_of_it(how: str, client: Client) -> None:
    """P22, P45: the transaction begins before the reader's position, and must not be overlooked there."""
    topic = f"inside-{how.replace(' ', '-')}"
    client.topics.create(topic, partitions=2)
    partition = TopicPartition(topic, 0)
    with client.producer(transactional_id=topic, linger_ms=0, **FAST) as producer:
        producer.begin_transaction()
        for number in range(4):
            producer.send(topic, str(number).encode(), partition=0).result(PATIENCE_SECONDS)
        if how == "group":
            with client.consumer(group=topic, **READING) as member:
                member.commit({partition: 2})
        reader = client.consumer(group=topic if how == "group" else None, **READING)
        reader.assign([partition])
        if how == "seek":
            reader.seek(partition, 2)
        if how == "read_uncommitted first":
            with client.consumer(isolation="read_uncommitted", **READING) as other:
                other.assign([partition])
                assert len(other.poll(PATIENCE_SECONDS)) > 0
        assert reader.poll(0) == []
        assert reader.poll(0) == []
        producer.commit_transaction()
        start = 0 if how == "read_uncommitted first" else 2
        found: list[bytes | None] = []
        while records := reader.poll(0):
            found += [record.value for record in records]
        assert found == [str(number).encode() for number in range(start, 4)]


ZOMBIE = """
import sys
import msgtx
from msgtx import errors
url, topic = sys.argv[1:]
with msgtx.connect(url) as client, client.producer(transactional_id=topic, retry_backoff_ms=1) as producer:
    producer.begin_transaction()
    producer.send(topic, b"zombie", partition=0).result(30)
    print("open", flush=True)
    sys.stdin.readline()
    try:
        producer.send(topic, b"late", partition=0).result(30)
    except errors.ProducerFenced as error:
        print("send", type(error).__name__, flush=True)
    try:
        producer.commit_transaction()
    except errors.ProducerFenced as error:
        print("commit", type(error).__name__, flush=True)
"""


def test_a_zombie_process_that_was_stopped_is_fenced_by_its_successor(client: Client, topic: str, database_url: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ZOMBIE, database_url, topic], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as zombie:
        assert zombie.stdin is not None
        assert zombie.stdout is not None
        try:
            assert zombie.stdout.readline() == "open\n"
            os.kill(zombie.pid, signal.SIGSTOP)
            with client.producer(transactional_id=topic, **FAST) as successor, successor.transaction():
                successor.send(topic, b"successor", partition=0)
        finally:
            os.kill(zombie.pid, signal.SIGCONT)
        zombie.stdin.write("\n")
        zombie.stdin.flush()
        told = zombie.stdout.read().split()
    assert told[0::2] == ["send", "commit"]
    assert {*told[1::2]} <= {"ProducerFenced", "InvalidProducerEpoch"}
    assert zombie.returncode == 0
    assert values(client, topic) == ["successor"]


def _ids(client: Client, topic: str) -> list[int]:
    with client.runtime.engine.connection() as connection:
        rows: list[Any] = connection.execute(
            "select p.partition_id from msgtx.partition p join msgtx.topic t using (topic_id) where t.name = %s order by 1",
            [topic],
        ).fetchall()
    return [partition for (partition,) in rows]
