"""Consumers beside transactions that wait for their decision, and beside overdue ones (I10, I12; internals: groups)."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

import msgtx
from msgtx import OffsetAndMetadata, TopicPartition, errors
from msgtx.consumer import fetcher, positions
from msgtx.receiving.wakeup import Waiter
from tests.client.steps import SECONDS, asleep, listens, store, values
from tests.databases import Connection, wait_until
from tests.hooks import Hook
from tests.refusals import refuses

pytestmark = pytest.mark.slow

Unique = Callable[[str], str]
Waiting = tuple[msgtx.Consumer, msgtx.PreparedTransaction]


@pytest.fixture
def tp(topic: str) -> TopicPartition:
    return TopicPartition(topic, 0)


def fill(client: msgtx.Client, topic: str, count: int, *, partition: int = 0) -> None:
    store(client, topic, *[b"%d" % i for i in range(count)], partition=partition)


def member(client: msgtx.Client, topic: str, group: str, **settings: object) -> msgtx.Consumer:
    return client.consumer(topic, group=group, enable_auto_commit=False, auto_offset_reset="earliest", **settings)


def prepared(client: msgtx.Client, consumer: msgtx.Consumer, name: str) -> msgtx.PreparedTransaction:
    """Seal the consumer's positions for an outside party, which has no deadline."""
    with client.producer(transactional_id=name) as producer:
        transaction = producer.begin_transaction()
        transaction.send_offsets(consumer)
        return transaction.prepare()


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("how", ["starts", "rewinds", "gains it", "assigns"])
def test_inputs_of_a_transaction_that_waits_are_not_read_again(
    how: str, commit: bool, client: msgtx.Client, topic: str, unique: Unique
) -> None:
    """I10: they are only read again when it aborts; after its commit reading continues after them."""
    fill(client, topic, 5)
    group, tp = unique("group"), TopicPartition(topic, 0)
    first = member(client, topic, group)
    second = member(client, topic, group, heartbeat_interval_ms=50) if how == "gains it" else None
    if first.assignment() == set():
        assert second is not None
        first, second = second, first
    assert len(first.poll(SECONDS)) == 5
    token = prepared(client, first, unique("id"))
    if how == "rewinds":
        first.rewind()
        second = first
    else:
        first.close()
    if how == "starts":
        second = member(client, topic, group)
    elif how == "assigns":
        second = client.consumer(group=group, enable_auto_commit=False, auto_offset_reset="earliest", request_timeout_ms=200)
        second.assign([tp])
    assert second is not None
    began = time.monotonic()
    for _ in range(2):
        assert second.poll(0.3) == []
    assert 0.5 < time.monotonic() - began < 5, "poll ends at its timeout, not before and not later"
    if how == "assigns":
        with refuses(errors.UnstableOffset, topic=topic, partition=0, group=group):
            second.position(tp)
        with pytest.raises(errors.UnstableOffset):
            second.lag()
        assert second.committed([tp], require_stable=False) == {tp: None}
    client.complete(token, commit=commit)
    fill(client, topic, 1)
    again = []
    while len(again) < (1 if commit else 6):
        again += second.poll(SECONDS)
    assert [record.offset for record in again] == ([5] if commit else [0, 1, 2, 3, 4, 5])
    second.close()


def test_other_partitions_are_read_meanwhile(
    client: msgtx.Client, wide: str, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """As long as needed: it heartbeats, commits, and leaves like any member. What it waits for is logged once."""
    caplog.set_level(logging.INFO, "msgtx.consumer")
    group, tp = unique("group"), TopicPartition(wide, 0)
    fill(client, wide, 3, partition=0)
    with member(client, wide, group) as first:
        assert len(first.poll(SECONDS)) == 3
        first.pause([TopicPartition(wide, 1), TopicPartition(wide, 2)])
        with client.producer(transactional_id=unique("id")) as producer:
            transaction = producer.begin_transaction()
            producer.send_offsets_to_transaction({tp: 3}, first.group_metadata())
            token = transaction.prepare()
    fill(client, wide, 2, partition=1)
    with member(client, wide, group) as second:
        got = []
        while len(got) < 2:
            got += second.poll(SECONDS)
        assert {record.partition for record in got} == {1}
        second.commit()
        assert second.poll(0.5) == []
        assert client.admin.groups.offsets(group)[TopicPartition(wide, 1)].offset == 2
        assert tp in second.assignment()
    told = [each for each in caplog.records if "is not read now" in each.getMessage()]
    assert len(told) == 1
    assert str(token.transaction_id) in told[0].getMessage()
    assert "prepared" in told[0].getMessage()
    assert told[0].levelname == "WARNING", "only its outside party can end it"
    assert client.admin.groups.describe(group).members == 0
    client.complete(token, commit=False)


def test_a_poll_that_waits_for_a_decision_asks_for_it(
    client: msgtx.Client, topic: str, unique: Unique, background: ThreadPoolExecutor
) -> None:
    """After `retry_backoff_ms`: nobody is notified of a decision on offsets alone."""
    fill(client, topic, 5)
    with member(client, topic, topic) as first:
        assert len(first.poll(SECONDS)) == 5
        token = prepared(client, first, unique("id"))
    with member(client, topic, topic, fetch_max_wait_ms=60_000) as second:
        listens(client)
        began = time.monotonic()
        polling = asleep(background, second)
        client.complete(token, commit=False)
        assert len(polling.result(SECONDS)) == 5
        assert time.monotonic() - began < SECONDS / 2


@pytest.fixture
def waiting(client: msgtx.Client, topic: str, unique: Unique, request: pytest.FixtureRequest) -> Iterator[Waiting]:
    """A consumer of a group whose offset, behind the first five of six records, is part of a prepared transaction."""
    fill(client, topic, 5)
    group = unique("group")
    with member(client, topic, group) as first:
        assert len(first.poll(SECONDS)) == 5
        token = prepared(client, first, unique("id"))
    fill(client, topic, 1)
    settings = {"enable_auto_commit": False, "fetch_max_wait_ms": 60_000, "retry_backoff_ms": getattr(request, "param", 5)}
    with client.consumer(group=group, **settings) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        yield consumer, token


def calls_of(monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> list[tuple[Any, ...]]:
    """Return the arguments of each call of a function from here on."""
    real, calls = getattr(module, name), []

    def noted(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return real(*arguments, **options)

    monkeypatch.setattr(module, name, noted)
    return calls


def test_who_waits_for_an_offset_reads_on_soon_after_its_decision(client: msgtx.Client, waiting: Waiting) -> None:
    """Nobody is notified of offsets: it looks now and then, however seldom it looks for records."""
    consumer, token = waiting
    assert consumer.poll(0) == []
    with ThreadPoolExecutor(1) as threads:
        polling = asleep(threads, consumer)
        client.complete(token, commit=True)
        assert [record.offset for record in polling.result(SECONDS / 3)] == [5]


@pytest.mark.parametrize("waiting", [40_000], indirect=True)
def test_an_offset_that_waits_is_asked_for_once_per_back_off(waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer, _ = waiting
    asked = calls_of(monkeypatch, fetcher, "stable_offsets")
    for _ in range(3):
        assert consumer.poll(0) == []
    assert len(asked) == 1


@pytest.mark.parametrize("waiting", [40_000], indirect=True)
def test_a_caller_that_waits_for_an_offset_pauses_between_two_looks(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer, _ = waiting
    asked = calls_of(monkeypatch, positions, "stable_offsets")
    with pytest.raises(errors.UnstableOffset):
        consumer.committed(timeout=0.1)
    assert len(asked) == 2, "at once, and when time is over"


@pytest.mark.parametrize("way", ["pauses", "seeks", "seeks by time"])
def test_who_need_not_wait_for_an_offset_does_not_look_for_it(
    client: msgtx.Client, topic: str, waiting: Waiting, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """It reads from where it has sought, and sleeps until it is woken."""
    consumer, _ = waiting
    tp = TopicPartition(topic, 0)
    listens(client)
    assert consumer.poll(0) == []
    match way:
        case "pauses":
            consumer.pause([tp])
        case "seeks":
            consumer.seek(tp, 0)
            assert len(consumer.poll(SECONDS)) == 6
        case _:
            consumer.seek_to_beginning()
            assert len(consumer.poll(SECONDS)) == 6
    waits = calls_of(monkeypatch, Waiter, "wait")
    assert consumer.poll(0.3) == []
    assert len(waits) < 10


def test_an_offset_that_is_decided_between_two_questions_is_asked_for_again(
    client: msgtx.Client, waiting: Waiting, hook: Hook
) -> None:
    """It waits, as the first one says, and the second one knows of nothing that it waits for."""
    consumer, token = waiting
    hook.at("before expire_holders", lambda: client.complete(token, commit=True), times=1)
    assert [record.offset for record in consumer.poll(SECONDS)] == [5]


def test_an_overdue_seal_is_aborted_by_the_consumer_that_waits(
    client: msgtx.Client, topic: str, unique: Unique, app: sqlalchemy.Engine
) -> None:
    """I12: its session never commits, and no sweep runs."""
    fill(client, topic, 3)
    group = unique("group")
    first = member(client, topic, group)
    assert len(first.poll(SECONDS)) == 3
    with Session(app) as session, client.producer(transactional_id=unique("id"), transaction_timeout_ms=500) as dead:
        with dead.transaction(session=session) as transaction:
            transaction.send_offsets(first)
        first.close()
        with member(client, topic, group) as second:
            again: list[msgtx.Record] = []
            wait_until(lambda: bool(again) or again.extend(second.poll(0.2)))
        assert len(again) == 3
        with pytest.raises(errors.TransactionAborted):
            session.commit()


def test_two_workers_beside_a_session_that_commits_late_process_each_input_once(
    client: msgtx.Client, wide: str, topic: str, unique: Unique
) -> None:
    """`process`, with a predecessor that has prepared and is decided while they run."""
    for partition in range(3):
        fill(client, wide, 20, partition=partition)
    group = unique("group")
    with (
        member(client, wide, group, max_poll_records=5) as first,
        client.producer(transactional_id=unique("id")) as producer,
    ):
        records = first.poll(SECONDS)
        transaction = producer.begin_transaction()
        for record in records:
            producer.send(topic, b"%d/%d" % (record.partition, record.offset))
        transaction.send_offsets(first)
        token = transaction.prepare()
    with ThreadPoolExecutor(2) as workers:
        working = [
            workers.submit(
                client.process, wide, to=topic, group=group, transactional_id=unique("worker"), idle_timeout=4.0,
                transform=lambda record: b"%d/%d" % (record.partition, record.offset),
            )
            for _ in range(2)
        ]  # fmt: skip
        time.sleep(1.5)
        client.complete(token, commit=True)
    for worker in working:
        worker.result()
    made = [record.value for record in client.read(client.snapshot([topic]))]
    assert sorted(made) == sorted(b"%d/%d" % (partition, offset) for partition in range(3) for offset in range(20))


# ── overdue transactions hold no reader back ──


@pytest.fixture
def overdue(client: msgtx.Client, wide: str, unique: Unique) -> Iterator[TopicPartition]:
    """Partition 0 holds: before, (overdue), behind."""
    dead = client.producer(transactional_id=unique("dead"), transaction_timeout_ms=100)
    dead.init_transactions()
    with client.producer() as plain:
        plain.send(wide, b"before", partition=0).result()
        dead.begin_transaction()
        dead.send(wide, b"overdue", partition=0).result()
        plain.send(wide, b"behind", partition=0)
    time.sleep(0.2)
    yield TopicPartition(wide, 0)
    dead.close()


def test_a_consumer_with_a_backlog_elsewhere_is_not_held_back(
    client: msgtx.Client, wide: str, overdue: TopicPartition
) -> None:
    with client.producer() as producer:
        for _ in range(100):
            producer.send_batch(wide, [b"x" * 100] * 10, partition=1)
            producer.flush()
    with client.consumer(wide, auto_offset_reset="earliest", fetch_max_bytes=2_000) as consumer:
        got: list[msgtx.Record] = []
        while len(got) < 500 and b"behind" not in values(got):
            got += consumer.poll(SECONDS, max_records=10)
        assert b"behind" in values(got), "it read only the partition with a backlog"


def ids(consumer: msgtx.Consumer, *partitions: TopicPartition) -> set[int]:
    return {consumer._fetcher.assigned[partition].partition_id for partition in partitions}


def test_what_is_behind_it_is_read_at_once_and_nothing_else_is_looked_at(
    client: msgtx.Client, wide: str, overdue: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I12: without waiting for a notification of the abort. That nothing was overdue before puts nothing off."""
    settings = {"fetch_max_wait_ms": 60_000, "retry_backoff_ms": 60_000}
    with client.consumer(wide, auto_offset_reset="earliest", **settings) as consumer:
        listens(client)
        consumer.pause([overdue])
        assert consumer.poll(0) == []
        consumer.resume([overdue])
        fetched, waits = calls_of(monkeypatch, fetcher, "fetch"), calls_of(monkeypatch, Waiter, "wait")
        assert values(consumer.poll(SECONDS)) == [b"before"]
        assert values(consumer.poll(SECONDS / 3)) == [b"behind"]
        assert waits == []
        assert {partition_id for _, asked in fetched for partition_id in asked} == ids(consumer, overdue)


def test_what_cannot_be_aborted_is_tried_once_per_back_off_and_holds_up_no_other_partition(
    client: msgtx.Client, wide: str, overdue: TopicPartition, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another session has its lock; a reader that is fast elsewhere asks neither for it nor for its partition each time."""
    settings = {"fetch_max_wait_ms": 60_000, "retry_backoff_ms": 60_000}
    with (
        connection.transaction(),
        client.consumer(wide, auto_offset_reset="earliest", **settings) as consumer,
        client.producer() as producer,
    ):
        connection.execute(
            "select msgtx.lock_producer(b.producer_id) from msgtx.record_batch b"
            " join msgtx.partitions p using (partition_id) where p.topic = %s and b.transaction_number is not null",
            [wide],
        )
        listens(client)
        tried = calls_of(monkeypatch, fetcher, "expired_any")
        assert values(consumer.poll(0)) == [b"before"]
        assert consumer.poll(0) == []
        fetched = calls_of(monkeypatch, fetcher, "fetch")
        for _ in range(3):
            producer.send(wide, b"elsewhere", partition=1).result(SECONDS)
            assert values(consumer.poll(SECONDS)) == [b"elsewhere"]
        assert {partition_id for _, asked in fetched for partition_id in asked} == ids(consumer, TopicPartition(wide, 1))
        assert len(tried) == 1


def test_ends_are_behind_it(client: msgtx.Client, wide: str, overdue: TopicPartition) -> None:
    with client.consumer(wide, auto_offset_reset="earliest") as consumer:
        assert consumer.end_offsets([overdue])[overdue] == 3


def test_cuts_are_behind_it(client: msgtx.Client, wide: str, overdue: TopicPartition) -> None:
    cut = client.snapshot([wide])
    assert cut.ends[overdue] == 3
    assert b"behind" in values(client.read(cut))


def test_a_reader_that_may_not_write_waits(database_url: str, wide: str, overdue: TopicPartition) -> None:
    """As on a replica: another client ends what is overdue."""
    joint = "&" if "?" in database_url else "?"
    with msgtx.connect(f"{database_url}{joint}options=-c%20default_transaction_read_only%3Don") as reader:
        with reader.consumer(auto_offset_reset="earliest") as consumer:
            consumer.assign([overdue])
            assert values(consumer.poll(SECONDS)) == [b"before"]
            assert consumer.poll(0.3) == []
            assert consumer.end_offsets() == {overdue: 1}
        assert reader.snapshot([wide]).ends[overdue] == 1


# ── after a reset of the position ──


@pytest.mark.parametrize("group", [True, False])
def test_rewinding_without_a_commit_goes_back_to_where_the_reset_led(
    group: bool, client: msgtx.Client, topic: str, unique: Unique
) -> None:
    """A second reset to `latest` would pass what was read since the first."""
    fill(client, topic, 3)
    named = {"group": unique("group"), "enable_auto_commit": False} if group else {}
    with client.consumer(topic, auto_offset_reset="latest", **named) as consumer:
        assert consumer.poll(0) == []
        fill(client, topic, 4)
        for _ in range(2):
            assert [record.offset for record in consumer.poll(SECONDS)] == [3, 4, 5, 6]
            consumer.rewind()
        consumer.seek(TopicPartition(topic, 0), 5)
        assert [record.offset for record in consumer.poll(SECONDS)] == [5, 6]
        consumer.rewind()
        assert consumer.position(TopicPartition(topic, 0)) == 5, "a seek before the first read sets where it begins"
        if group:
            consumer.commit({TopicPartition(topic, 0): 6})
            consumer.rewind()
            assert consumer.position(TopicPartition(topic, 0)) == 6


@pytest.mark.parametrize("by", ["poll", "iteration"])
@pytest.mark.parametrize("to", ["an offset", "the end", "out of range"])
def test_a_seek_past_a_record_is_no_new_beginning(
    client: msgtx.Client, topic: str, tp: TopicPartition, by: str, to: str
) -> None:
    with client.consumer(topic, auto_offset_reset="latest") as consumer:
        assert consumer.poll(0) == []
        fill(client, topic, 5)
        if by == "poll":
            assert len(consumer.poll(SECONDS, max_records=2)) == 2
        else:
            assert next(iter(consumer)).offset == 0
        match to:
            case "an offset":
                consumer.seek(tp, 5)
            case "the end":
                consumer.seek_to_end()
            case _:
                consumer.seek(tp, 1_000)
        assert consumer.poll(0) == []
        assert consumer.position(tp) == 5
        fill(client, topic, 1)
        assert [record.offset for record in consumer.poll(SECONDS)] == [5]
        consumer.rewind()
        assert [record.offset for record in consumer.poll(0)] == [0, 1, 2, 3, 4, 5]


def test_a_seek_by_time_before_the_first_read_sets_where_it_begins(client: msgtx.Client, topic: str) -> None:
    fill(client, topic, 3)
    with client.consumer(topic, auto_offset_reset="latest") as consumer:
        consumer.seek_to_beginning()
        for _ in range(2):
            assert len(consumer.poll(0)) == 3
            consumer.rewind()


@pytest.mark.parametrize("commits", [True, False])
def test_rewinding_behind_what_retention_removed_goes_back_to_where_the_last_reset_led(
    client: msgtx.Client, topic: str, tp: TopicPartition, unique: Unique, commits: bool
) -> None:
    """Another reset to `latest` would pass what was read since."""
    with client.consumer(topic, group=unique("group"), enable_auto_commit=False) as consumer:
        assert consumer.poll(0) == []
        fill(client, topic, 2)
        assert len(consumer.poll(SECONDS)) == 2
        if commits:
            consumer.commit()
        fill(client, topic, 5)
        client.admin.partitions.delete_records({tp: 6})
        assert consumer.poll(0) == []
        fill(client, topic, 3)
        for _ in range(2):
            assert [record.offset for record in consumer.poll(SECONDS)] == [7, 8, 9]
            consumer.rewind()


@pytest.fixture
def out_of_range(client: msgtx.Client, topic: str, tp: TopicPartition, unique: Unique) -> Iterator[msgtx.Consumer]:
    """Of a group that has committed offset 2; retention has removed five records, and three have come behind its reset."""
    fill(client, topic, 10)
    group = unique("group")
    client.admin.groups.reset(group, 2, partitions=[tp])
    client.admin.partitions.delete_records({tp: 5})
    with client.consumer(group=group, enable_auto_commit=False, auto_offset_reset="latest") as consumer:
        consumer.assign([tp])
        assert consumer.poll(0) == []
        fill(client, topic, 3)
        yield consumer


def test_what_a_group_commits_replaces_where_a_reset_led(tp: TopicPartition, out_of_range: msgtx.Consumer) -> None:
    for committed, expected in ((2, [10, 11, 12]), (12, [12]), (2, [])):
        out_of_range.commit({tp: committed})
        out_of_range.rewind()
        assert [record.offset for record in out_of_range.poll(0)] == expected


@pytest.mark.parametrize("offset_left", [True, False])
def test_rewinding_after_an_offset_was_out_of_range_goes_back_to_where_that_led(
    client: msgtx.Client, tp: TopicPartition, out_of_range: msgtx.Consumer, offset_left: bool
) -> None:
    consumer = out_of_range
    if not offset_left:
        client.admin.groups.delete_offsets(consumer.config.group or "", [tp])
    for _ in range(2):
        assert [record.offset for record in consumer.poll(SECONDS)] == [10, 11, 12]
        consumer.rewind()
    consumer.seek(tp, 1_000)
    assert consumer.poll(0.2) == []
    assert consumer.position(tp) == 13, "it does not go back to a position out of range"


def test_assigned_again_it_begins_anew(client: msgtx.Client, topic: str, tp: TopicPartition) -> None:
    with client.consumer(auto_offset_reset="latest") as consumer:
        consumer.assign([tp])
        assert consumer.position(tp) == 0
        fill(client, topic, 3)
        consumer.assign([])
        consumer.assign([tp])
        assert consumer.position(tp) == 3


@pytest.mark.parametrize("to", ["an offset", "a time"])
def test_a_seek_replaces_the_start_that_is_to_be_committed(
    client: msgtx.Client, topic: str, tp: TopicPartition, unique: Unique, to: str
) -> None:
    fill(client, topic, 5)
    with client.consumer(topic, group=unique("group"), enable_auto_commit=False) as consumer:
        consumer.committing.commit_starts()
        assert consumer.position(tp) == 5
        if to == "an offset":
            consumer.seek(tp, 0)
        else:
            consumer.seek_to_beginning()
        assert len(consumer.poll(SECONDS)) == 5
        assert consumer.committed() == {tp: None}


def test_a_start_is_not_committed_over_what_another_member_has_committed(
    client: msgtx.Client, topic: str, unique: Unique, connection: Connection
) -> None:
    """I10: what lies between the two would be handled again by the next one."""
    fill(client, topic, 5)
    group, tp = unique("group"), TopicPartition(topic, 0)
    settings = {"group": group, "enable_auto_commit": False, "auto_offset_reset": "latest"}
    with client.consumer(topic, **settings) as consumer:
        consumer.committing.commit_starts()
        assert consumer.position(tp) == 5
        connection.execute("select msgtx.leave_group(%s, %s)", [group, consumer.group_metadata().member_id])
        fill(client, topic, 5)
        with client.consumer(topic, **settings) as other:
            other.commit({tp: 7})
        assert [record.offset for record in consumer.poll(SECONDS)] == [7, 8, 9]
        assert consumer.committed() == {tp: OffsetAndMetadata(7)}


@pytest.mark.parametrize("crashes", [True, False])
def test_process_from_latest_commits_where_it_begins(
    client: msgtx.Client, wide: str, topic: str, unique: Unique, background: ThreadPoolExecutor, crashes: bool
) -> None:
    """Before anything is read: neither an abort nor the worker's end skips an input that came while it ran."""
    group, fails = unique("group"), [True]
    fill(client, wide, 5)

    def transform(record: msgtx.Record) -> bytes | None:
        if fails and crashes:
            raise ZeroDivisionError
        if fails:
            fails.clear()
            raise errors.TransactionAborted("as by a timeout")
        return record.value

    def work() -> None:
        settings = {"to": topic, "group": group, "transactional_id": group, "transform": transform, "failure": msgtx.Stop()}
        client.process(wide, auto_offset_reset="latest", idle_timeout=2.0, **settings)

    worker = background.submit(work)
    wait_until(lambda: len(client.admin.groups.offsets(group)) == 3)
    fill(client, wide, 7)
    if crashes:
        assert isinstance(worker.exception(), ZeroDivisionError)
        fails.clear()
        work()
    else:
        worker.result()
    assert len(list(client.read(client.snapshot([topic])))) == 7
    assert client.admin.groups.offsets(group)[TopicPartition(wide, 0)].offset == 12


# ── a consumer without an owner ──


def test_a_consumer_that_could_not_be_made_is_no_member(
    client: msgtx.Client, topic: str, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after the join: no caller could close it."""
    group = unique("group")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as planted:
        planted.setattr("msgtx.consumer.membership.divide", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.consumer(topic, group=group)
    assert client.admin.groups.members(group) == []
    assert not any(thread.name == "msgtx-heartbeat" for thread in threading.enumerate())
