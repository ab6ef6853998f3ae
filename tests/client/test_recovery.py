"""What a producer does about answers that it does not get, and about refusals while more is on its way (I1, I2, I3)."""

import contextlib
import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

import msgtx
from msgtx import errors
from msgtx.database.throwaway import set_clock
from msgtx.observer import Observer
from msgtx.producer import sender
from msgtx.store.topics.topics import describe_topics
from msgtx.store.transactions.decide import decide
from tests.client.steps import (
    SECONDS,
    begun,
    lose_rows,
    lower_limit,
    producer_held,
    require_in_order,
    values,
    without_function,
)
from tests.databases import Connection, partitions_held, wait_until, waiting_backends
from tests.hooks import Hook, away
from tests.interrupts import interrupts
from tests.refusals import refuses
from tests.store.steps import append_one, batch

pytestmark = pytest.mark.slow

Read = Callable[..., list[msgtx.Record]]


class Answers:
    """The answers to a producer's calls: those with some numbers, from 1, are lost when the server has given them.

    `sizes`: of the calls, in batches.
    """

    def __init__(self) -> None:
        self.lost: Collection[int] = ()
        self.error: Exception = errors.DatabaseUnavailable("the answer is lost")
        self.sizes: list[int] = []
        self._read = sender.read_appended

    def read(self, rows: list[tuple[object, ...]]) -> object:
        self.sizes.append(len(rows))
        if len(self.sizes) in self.lost:
            raise self.error
        return self._read(rows)  # type: ignore[arg-type]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    made = Answers()
    monkeypatch.setattr(sender, "read_appended", made.read)
    return made


def rows(connection: Connection, topic: str, column: str) -> list[tuple[object]]:
    """Return a column of a topic's rows."""
    sql = f"select {column} from msgtx.record_batch b join msgtx.partitions p using (partition_id) where p.topic = %s"
    return connection.execute(sql, [topic]).fetchall()


def fail_and_go_on(producer: msgtx.Producer, topic: str, kind: type[errors.MsgtxError]) -> None:
    """See a transaction refuse to commit; abort it, and commit the next one."""
    with pytest.raises(kind):
        producer.commit_transaction(SECONDS)
    producer.abort_transaction(SECONDS)
    with producer.transaction():
        producer.send(topic, b"next")


@pytest.mark.parametrize("lost", [{1}, {2}, {1, 2, 3}, {2, 4, 5, 8, 13}])
def test_what_is_stored_but_not_answered_is_repeated_in_order_and_stored_once(
    client: msgtx.Client, wide: str, read: Read, connection: Connection, answers: Answers, lost: set[int]
) -> None:
    answers.lost = lost
    with client.producer(batch_records=2, linger_ms=0, retry_backoff_ms=1) as producer:
        with partitions_held(connection, wide):
            futures = [producer.send(wide, b"%d" % i, partition=i % 3) for i in range(90)]
        assert [future.result(SECONDS).offset for future in futures] == [i // 3 for i in range(90)]
        assert producer.send(wide, b"later", partition=0).result(SECONDS).offset == 30
    records = read(wide)
    assert len(records) == 91
    require_in_order(records, 90, partitions=(1, 2))


@pytest.mark.parametrize("lost", [set(), {2}, {2, 3}, {3, 4, 7, 8, 9}, set(range(2, 20, 2))])
def test_refusals_among_lost_answers_leave_the_rest_in_order(
    client: msgtx.Client, wide: str, read: Read, connection: Connection, answers: Answers, lost: set[int]
) -> None:
    answers.lost = lost
    with client.producer(batch_records=2, linger_ms=0, retry_backoff_ms=1) as producer:
        producer.send(wide, b"", partition=0).result(SECONDS)
        lower_limit(connection, wide)
        values = [b"%d" % i + (b"." * 50 if i % 7 == 0 else b"") for i in range(120)]
        with partitions_held(connection, wide):
            futures = [producer.send(wide, value, partition=i % 2) for i, value in enumerate(values)]
        refused = [isinstance(future.exception(SECONDS), errors.RecordTooLarge) for future in futures]
    assert refused == [i % 7 == 0 for i in range(120)]
    records = read(wide)
    for partition in (0, 1):
        expected = [value for i, value in enumerate(values) if i % 2 == partition and i % 7]
        assert [r.value for r in records if r.partition == partition and r.value] == expected
    places = {(future.result().partition, future.result().offset): values[i] for i, future in enumerate(futures) if i % 7}
    assert all(places[r.partition, r.offset] == r.value for r in records if r.value)


def test_what_follows_a_refused_batch_has_its_numbers(
    client: msgtx.Client, wide: str, connection: Connection, read: Read
) -> None:
    """I2: where the server has answered everything, no sequence is left out, and no new epoch needed."""
    with client.producer(batch_records=2, linger_ms=0) as producer:
        producer.send(wide, b"").result(SECONDS)
        lower_limit(connection, wide)
        for count in (4, 8, 1, 2):
            with partitions_held(connection, wide):
                for size in [1, 50, 50, 1, *[1] * count, 50]:
                    producer.send(wide, b"." * size, partition=count % 2)
            producer.flush(SECONDS)
    assert len(read(wide)) == 1 + 4 * 2 + 4 + 8 + 1 + 2
    assert {epoch for (epoch,) in rows(connection, wide, "producer_epoch")} == {0}


def test_a_producer_that_was_idle_until_its_id_expired_goes_on(
    client: msgtx.Client, wide: str, read: Read, connection: Connection, database_url: str
) -> None:
    """At epoch 0 an id needs no row; at a higher one it had a row, which a sweep has removed (I13)."""
    log = {msgtx.TopicPartition(wide, partition): -1 for partition in range(3)}
    epochs: list[object] = []
    with client.producer(batch_records=2, linger_ms=0) as producer:
        producer.send(wide, b"", partition=0).result(SECONDS)
        try:
            for days in (2, 4, 6, 8):
                set_clock(database_url, f"{days} days")
                client.admin.partitions.delete_records(log)
                client.sweep(only=["retention", "ids"])
                with partitions_held(connection, wide):
                    futures = [producer.send(wide, b"%d" % i, partition=i % 2) for i in range(20)]
                assert [future.exception(SECONDS) for future in futures] == [None] * 20
                assert values(sorted(read(wide), key=lambda r: (r.partition, r.offset))) == [
                    b"%d" % i for i in (*range(0, 20, 2), *range(1, 20, 2))
                ]
                epochs.append(rows(connection, wide, "max(producer_epoch)"))
        finally:
            set_clock(database_url)
    assert epochs == [[(epoch,)] for epoch in (1, 0, 1, 0)]


@pytest.mark.parametrize(("settings", "tries"), [({"retries": 2}, 3), ({"acks": "0", "enable_idempotence": False}, 1)])
def test_a_call_is_repeated_as_often_as_the_settings_say(
    client: msgtx.Client, topic: str, read: Read, answers: Answers, settings: dict[str, object], tries: int
) -> None:
    """What was not answered may be stored all the same; what is sent later is no part of it."""
    answers.lost = range(1, 100)
    with client.producer(retry_backoff_ms=1, **settings) as producer:  # type: ignore[arg-type]
        sent = producer.send(topic, b"a")
        producer.flush(SECONDS)
        assert len(answers.sizes) == tries
        if tries > 1:
            with pytest.raises(errors.DeliveryTimeout):
                sent.result(0)
        answers.lost = ()
        producer.send(topic, b"b")
        producer.flush(SECONDS)
    assert [(record.offset, record.value) for record in read(topic)] == [(0, b"a"), (1, b"b")]


def test_each_failure_in_a_row_is_followed_by_a_longer_pause(
    client: msgtx.Client, topic: str, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = []
    sleep = sender.Sender._sleep

    def paused(of: sender.Sender, seconds: float) -> None:
        began = time.monotonic()
        sleep(of, seconds)
        pauses.append(time.monotonic() - began)

    monkeypatch.setattr(sender.Sender, "_sleep", paused)
    answers.lost = {1, 2, 3, 5}
    with client.producer(retry_backoff_ms=10) as producer:
        producer.send(topic, b"a").result(SECONDS)
        producer.send(topic, b"b").result(SECONDS)
    assert [round(pause * 50) >= least for pause, least in zip(pauses, [1, 2, 4, 1], strict=True)] == [True] * 4
    assert pauses[3] < pauses[2]


def test_where_the_lock_table_is_full_a_call_takes_fewer_partitions_until_one_succeeds(
    client: msgtx.Client, unique: Callable[[str], str], read: Read, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "PARTITIONS_AT_ONCE", 4)
    topic = client.topics.create(unique("topic"), partitions=4).name
    answers.lost, answers.error = {1, 2}, errors.LockTableFull("out of shared memory")
    with client.producer(linger_ms=60_000, retry_backoff_ms=1) as producer:
        for number in range(4):
            for partition in range(4):
                producer.send(topic, b"%d" % number, partition=partition)
            producer.flush(SECONDS)
    assert answers.sizes == [4, 2, *[1] * 4, *[2] * 2, 4, 4]
    assert [(r.offset, r.value) for r in sorted(read(topic), key=lambda r: (r.partition, r.offset))] == [
        (number, b"%d" % number) for number in range(4)
    ] * 4


def test_a_call_is_bounded_in_bytes_and_commits_by_itself(
    client: msgtx.Client, unique: Callable[[str], str], connection: Connection, answers: Answers
) -> None:
    topic = client.topics.create(unique("topic"), partitions=4).name
    half = bytes(sender.CALL_BYTES // 2)
    with client.producer(linger_ms=0, batch_bytes=len(half)) as producer:
        with partitions_held(connection, topic):
            producer.send(topic, b"first")
            wait_until(lambda: waiting_backends(connection), "the append waits")
            for partition in range(4):
                producer.send(topic, half, partition=partition)
        producer.flush(SECONDS)
    assert answers.sizes == [1, 2, 2]
    assert sorted(Counter(rows(connection, topic, "b.xmin::text")).values()) == answers.sizes


@pytest.fixture
def flushes(connection: Connection) -> Iterator[Callable[[], list[str]]]:
    """What `synchronous_commit` was at the COMMITs of appended batches, in turn."""
    connection.execute("create table noted (number int generated always as identity, setting text)")
    connection.execute(
        "create function note() returns trigger language plpgsql as $$ begin"
        " insert into noted (setting) values (current_setting('synchronous_commit')); return null; end $$"
    )
    connection.execute(
        "create constraint trigger note after insert on msgtx.record_batch deferrable initially deferred"
        " for each row execute function note()"
    )
    yield lambda: [setting for (setting,) in connection.execute("select setting from noted order by number")]
    connection.execute("drop function note cascade")
    connection.execute("drop table noted")


@pytest.mark.parametrize(
    ("settings", "flushed"),
    [({}, "on"), ({"acks": "1", "enable_idempotence": False}, "off"), ({"acks": "0", "enable_idempotence": False}, "off")],
)
def test_only_what_must_last_by_itself_is_flushed(
    client: msgtx.Client, topic: str, flushes: Callable[[], list[str]], settings: dict[str, object], flushed: str
) -> None:
    """I9: an acknowledged record; not one with fewer `acks`, and not one in a transaction, which its decision flushes."""
    with client.producer(**settings) as producer:  # type: ignore[arg-type]
        producer.send(topic, b"a")
        producer.flush(SECONDS)
    with client.producer(transactional_id=topic) as producer, producer.transaction():
        producer.send(topic, b"b")
        producer.flush(SECONDS)
    assert flushes() == [flushed, "off"]


def test_an_abort_waits_for_what_is_on_its_way_as_long_as_it_may(
    client: msgtx.Client, topic: str, read: Read, connection: Connection
) -> None:
    """Aborted beside it, what is still on its way could open the transaction again, for its timeout."""
    with client.producer(transactional_id=topic, linger_ms=0, max_in_flight=1) as producer:
        producer.begin_transaction()
        with partitions_held(connection, topic):
            producer.send(topic, b"aborted")
            wait_until(lambda: waiting_backends(connection), "the append waits")
            unsent = producer.send(topic, b"not sent")
            with pytest.raises(errors.OutcomeUnknown):
                producer.abort_transaction(0.1)
            assert isinstance(unsent.exception(0), errors.TransactionAborted)
        producer.abort_transaction(SECONDS)
        with producer.transaction():
            producer.send(topic, b"committed")
    assert [record.value for record in read(topic)] == [b"committed"]


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_record_that_fails_behind_the_end_of_its_transaction_leaves_the_next_one_alone(
    client: msgtx.Client, topic: str, read: Read, background: ThreadPoolExecutor, end: str
) -> None:
    """It is sent by one thread, and another one ends the transaction meanwhile. After an abort of nothing the number is used
    again.
    """
    client.topics.alter(topic, max_message_bytes=10)
    with client.producer(transactional_id=topic) as producer:

        def end_and_begin() -> None:
            producer.commit_transaction() if end == "commit" else producer.abort_transaction()
            producer.begin_transaction()

        class Meanwhile(Observer):
            def batch_settled(self, *_: object, error: BaseException | None, **__: object) -> None:
                if error is not None:
                    background.submit(end_and_begin).result(SECONDS)

        client.observe(Meanwhile())
        producer.begin_transaction()
        if end == "commit":
            producer.send(topic, b"a")
        assert isinstance(producer.send(topic, b"x" * 11).exception(0), errors.RecordTooLarge)
        producer.send(topic, b"b")
        producer.commit_transaction()
    assert [record.value for record in read(topic)] == ([b"a", b"b"] if end == "commit" else [b"b"])


def test_columns_that_fail_behind_the_end_of_their_transaction_leave_the_next_one_alone(
    client: msgtx.Client, topic: str, read: Read, connection: Connection, background: ThreadPoolExecutor
) -> None:
    """They find no more room behind a part that is on its way, and another thread ends the transaction meanwhile."""
    settings: Any = {"buffer_bytes": 2_000, "batch_bytes": 1_000, "max_block_ms": 50}
    with client.producer(transactional_id=topic, **settings) as producer, ExitStack() as held:

        def end_and_begin() -> None:
            held.close()
            producer.abort_transaction(SECONDS)
            producer.begin_transaction()

        class Meanwhile(Observer):
            def batch_settled(self, *_: object, error: BaseException | None, **__: object) -> None:
                if isinstance(error, errors.DeliveryTimeout):
                    background.submit(end_and_begin).result(SECONDS)

        client.observe(Meanwhile())
        producer.begin_transaction()
        held.enter_context(partitions_held(connection, topic))
        columns = producer.send_batch(topic, [b"x" * 400] * 20)
        assert isinstance(columns.exception(SECONDS), errors.DeliveryTimeout)
        producer.send(topic, b"next")
        producer.commit_transaction(SECONDS)
    assert [record.value for record in read(topic)] == [b"next"]


def test_an_abort_does_not_repeat_what_was_not_answered(
    client: msgtx.Client, topic: str, read: Read, connection: Connection, background: ThreadPoolExecutor
) -> None:
    with client.producer(transactional_id=topic, linger_ms=0) as producer:
        producer.begin_transaction()
        with partitions_held(connection, topic):
            lost = producer.send(topic, b"aborted")
            waiting = wait_until(lambda: waiting_backends(connection), "the append waits")
            aborting = background.submit(producer.abort_transaction, SECONDS)
            wait_until(lambda: producer._sender._paused, "the abort waits for the append")
            for pid in waiting:
                connection.execute("select pg_terminate_backend(%s)", [pid])
            aborting.result(SECONDS)
            assert isinstance(lost.exception(0), errors.TransactionAborted)
        with producer.transaction():
            producer.send(topic, b"committed")
    assert [record.value for record in read(topic)] == [b"committed"]


@pytest.mark.parametrize("end", ["whole", "commit", "prepare"])
def test_an_end_that_comes_before_an_older_transaction_has_ended_is_repeated(
    client: msgtx.Client, topic: str, connection: Connection, background: ThreadPoolExecutor, hook: Hook, end: str
) -> None:
    """The answer is a passing refusal."""
    with client.producer(transactional_id=topic, retry_backoff_ms=5) as producer:
        assert producer._state.producer is not None
        older = msgtx.TransactionId(*producer._state.producer, 0)
        (partition,) = describe_topics(connection, [topic])[topic].partition_ids
        append_one(connection, batch(partition, b"older", producer=older[:2], number=0, sequence=0))
        producer._transactions._next_number = 1
        asked = threading.Semaphore(0)
        transaction = producer.begin_transaction()
        if end == "whole":
            client.topics.create(f"{topic}-2")
            producer.send(f"{topic}-2", b"a")
        else:
            transaction.send_offsets({msgtx.TopicPartition(topic, 0): 1}, topic)
        hook.at("check out", asked.release)
        ending = background.submit(producer.prepare_transaction if end == "prepare" else producer.commit_transaction)
        for _ in range(2):
            assert asked.acquire(timeout=5)
        assert decide(connection, older, "ABORT", tails={}).outcome == "ABORT"
        ending.result(SECONDS)
        if end == "prepare":
            producer.commit_transaction()
        assert client.transaction_outcome(transaction.id) is msgtx.Outcome.COMMITTED


def test_a_close_beside_an_abort_ends_with_it(
    client: msgtx.Client, topic: str, connection: Connection, background: ThreadPoolExecutor
) -> None:
    producer, transaction = begun(client, topic, linger_ms=0)
    producer.send(topic, b"aborted")
    producer.flush(SECONDS)
    with producer_held(connection, transaction):
        aborting = background.submit(producer.abort_transaction, SECONDS)
        wait_until(lambda: waiting_backends(connection), "the abort waits")
        closing = background.submit(producer.close)
        wait_until(lambda: producer._sender._closing, "the close waits for the sender")
        wait_until(lambda: producer._accumulator.sender_sleeps, "the sender waits for the end of the abort")
    aborting.result(SECONDS)
    closing.result(SECONDS)


@pytest.mark.parametrize("refused", ["large", "made again"])
def test_a_refusal_is_looked_into_over_the_connection_that_has_brought_it(
    client: msgtx.Client, database_url: str, topic: str, connection: Connection, refused: str
) -> None:
    """A pool of one connection has no other one, and the database may let in nobody else."""
    with msgtx.connect(database_url, pool_size=1) as single, single.producer() as producer:
        assert producer.send(topic, b"first").result(SECONDS).offset == 0
        if refused == "large":
            lower_limit(connection, topic)
            with pytest.raises(errors.RecordTooLarge):
                producer.send(topic, bytes(50)).result(5)
        else:
            client.topics.delete(topic)
            client.topics.create(topic)
            assert producer.send(topic, b"again").result(5).offset == 0


@pytest.mark.parametrize("size", [1, 50])
def test_a_look_into_a_refusal_that_fails_leaves_no_record_behind(
    client: msgtx.Client, topic: str, connection: Connection, read: Read, size: int
) -> None:
    with client.producer(linger_ms=60_000) as producer:
        producer.send(topic, b"first")
        producer.flush(SECONDS)
        lower_limit(connection, topic)
        futures = producer.send(topic, bytes(50)), producer.send(topic, bytes(size))
        with without_function(connection, "describe_topics"):
            producer.flush(SECONDS)
        assert [type(future.exception(0)) for future in futures] == [errors.ConfigError] * 2
        producer.send(topic, b"later")
        producer.flush(SECONDS)
    assert [record.value for record in read(topic)] == [b"first", b"later"]


@pytest.mark.parametrize("settings", [{}, {"acks": "1", "enable_idempotence": False}])
def test_behind_a_batch_that_was_late_a_producer_goes_on(
    client: msgtx.Client, wide: str, read: Read, connection: Connection, settings: dict[str, object]
) -> None:
    """Of a batch that was not answered nobody knows; one whose turn did not come was not stored."""
    with client.producer(delivery_timeout_ms=1_000, linger_ms=0, **settings) as producer:  # type: ignore[arg-type]
        producer.send(wide, b"first", partition=0).result(SECONDS)
        with partitions_held(connection, wide):
            late = [producer.send(wide, b"late", partition=0)]
            wait_until(lambda: waiting_backends(connection), "the append waits")
            late.append(producer.send(wide, b"late", partition=1))
            assert [type(future.exception(SECONDS)) for future in late] == [errors.DeliveryTimeout] * 2
        for partition in range(3):
            producer.send(wide, b"later", partition=partition).result(SECONDS)
    values = [record.value for record in read(wide) if record.value != b"late" or record.partition]
    assert sorted(values) == [b"first", *[b"later"] * 3]


def test_what_was_never_sent_costs_no_epoch(client: msgtx.Client, topic: str, connection: Connection) -> None:
    with client.producer(delivery_timeout_ms=1_000, linger_ms=0) as producer:
        producer.send(topic, b"first").result(SECONDS)
        with producer._sender.paused(time.monotonic() + SECONDS):
            late = producer.send(topic, b"late")
            wait_until(lambda: time.monotonic() > late._batch.created_at + 1, "it is late")
        assert isinstance(late.exception(SECONDS), errors.DeliveryTimeout)
        producer.send(topic, b"later").result(SECONDS)
    assert rows(connection, topic, "producer_epoch") == [(0,), (0,)]


def test_a_transaction_of_which_a_part_was_late_is_not_committed(
    client: msgtx.Client, wide: str, read: Read, connection: Connection
) -> None:
    """I1: what is left of it would be half a transaction."""
    with client.producer(transactional_id=wide, delivery_timeout_ms=1_000, linger_ms=0) as producer:
        producer.begin_transaction()
        producer.send(wide, b"half", partition=0).result(SECONDS)
        with partitions_held(connection, wide):
            assert isinstance(producer.send(wide, b"late", partition=1).exception(SECONDS), errors.DeliveryTimeout)
        wait_until(lambda: not producer._sender._bump_needed, "no epoch is to be raised")
        fail_and_go_on(producer, wide, errors.DeliveryTimeout)
    assert [record.value for record in read(wide)] == [b"next"]
    assert {epoch for (epoch,) in rows(connection, wide, "producer_epoch")} == {0}


def test_a_transaction_of_which_a_record_is_too_large_by_now_is_not_committed(
    client: msgtx.Client, topic: str, connection: Connection, read: Read
) -> None:
    """I1: nor is the rest of its batch sent."""
    with client.producer(transactional_id=topic, linger_ms=60_000) as producer:
        with producer.transaction():
            producer.send(topic, b"")
        lower_limit(connection, topic)
        producer.begin_transaction()
        futures = [producer.send(topic, bytes(size)) for size in (50, 1)]
        producer.flush(SECONDS)
        assert [type(future.exception(0)) for future in futures] == [errors.RecordTooLarge] * 2
        fail_and_go_on(producer, topic, errors.RecordTooLarge)
    assert [record.value for record in read(topic)] == [b"", b"next"]


def test_an_epoch_that_is_not_to_be_had_is_asked_for_once(
    client: msgtx.Client, topic: str, answers: Answers, hook: Hook
) -> None:
    with client.producer(linger_ms=0, delivery_timeout_ms=200, retry_backoff_ms=10) as producer:
        producer.send(topic, b"a").result(SECONDS)
        answers.lost = range(2, 100)
        hook.seen.clear()
        hook.at("before init_producer_id", errors.ProducerFenced("planted"))
        assert isinstance(producer.send(topic, b"b").exception(SECONDS), errors.DeliveryTimeout)
        wait_until(lambda: producer._state.has_failed, "the lost one may be stored: what follows needs a new epoch")
        time.sleep(0.1)
        assert hook.seen["before init_producer_id"] == 1
        with pytest.raises(errors.ProducerFenced):
            producer.send(topic, b"c")


def test_a_bug_is_told_to_everybody_who_waits(
    client: msgtx.Client, wide: str, answers: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    answers.lost, answers.error = {1}, TypeError("planted")
    with client.producer(linger_ms=60_000, max_in_flight=1) as producer:
        futures = [producer.send(wide, b"a", partition=partition) for partition in (0, 0, 1)]
        producer.flush(SECONDS)
        for future in futures:
            with refuses(errors.FatalError, reason="failed"):
                future.result(0)
    assert "the sender failed" in caplog.text


def test_what_is_on_its_way_at_close_is_not_repeated(
    client: msgtx.Client, topic: str, connection: Connection, background: ThreadPoolExecutor
) -> None:
    producer = client.producer(linger_ms=0)
    with partitions_held(connection, topic):
        sent = producer.send(topic, b"a")
        (waiting,) = wait_until(lambda: waiting_backends(connection), "the append waits")
        closing = background.submit(producer.close, 0.05)
        wait_until(lambda: producer._sender._closing, "nothing is waited for any more")
        connection.execute("select pg_terminate_backend(%s)", [waiting])
        assert isinstance(sent.exception(SECONDS), errors.DatabaseUnavailable)
        closing.result(SECONDS)


def test_what_was_sent_before_the_close_and_not_answered_may_be_stored(
    client: msgtx.Client, topic: str, read: Read, answers: Answers
) -> None:
    """I16: an error that says that nothing was changed would be wrong."""
    answers.lost = range(1, 100)
    producer = client.producer(linger_ms=0, retry_backoff_ms=100)
    sent = producer.send(topic, b"a")
    wait_until(lambda: answers.sizes, "the answer is lost")
    with producer._sender.paused(time.monotonic() + SECONDS):
        unsent = producer.send(topic, b"b")
        producer.close(0)
    assert isinstance(sent.exception(0), errors.DeliveryTimeout)
    assert isinstance(unsent.exception(0), errors.IllegalState)
    assert [record.value for record in read(topic)] == [b"a"]


def test_a_batch_that_lingers_longer_than_the_sender_stays_awake_is_sent(client: msgtx.Client, topic: str) -> None:
    with client.producer(linger_ms=round(sender.AWAKE_SECONDS * 1500)) as producer:
        assert producer.send(topic, b"a").result(SECONDS).offset == 0


@pytest.mark.parametrize("most", [1, 3])
def test_no_more_calls_are_on_their_way_than_the_settings_say(
    client: msgtx.Client, topic: str, connection: Connection, answers: Answers, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    on_their_way = []
    with client.producer(max_in_flight=most, batch_records=1, linger_ms=0) as producer:
        hand_over = producer._sender._hand_over

        def counted(*arguments: Any) -> None:
            on_their_way.append(len(producer._sender._in_flight))
            hand_over(*arguments)

        monkeypatch.setattr(producer._sender, "_hand_over", counted)
        with partitions_held(connection, topic):
            for _ in range(8):
                producer.send(topic, b"a")
        producer.flush(SECONDS)
    assert len(on_their_way) == len(answers.sizes) == 8
    assert max(on_their_way) == most


def test_a_record_without_a_key_leaves_no_gap_in_a_compacted_topic(
    client: msgtx.Client, unique: Callable[[str], str], connection: Connection
) -> None:
    """I2: it used up no sequence, and no new epoch is needed for what follows."""
    topic = client.topics.create(unique("compacted"), cleanup_policy="compact").name
    with client.producer(linger_ms=0) as producer:
        producer.send(topic, b"1", key=b"k").result(SECONDS)
        assert isinstance(producer.send(topic, b"refused").exception(SECONDS), errors.InvalidRecord)
        producer.send(topic, b"2", key=b"k").result(SECONDS)
    assert sorted(rows(connection, topic, "(producer_epoch, base_sequence)::text")) == [("(0,0)",), ("(0,1)",)]


def test_a_topic_that_is_gone_for_good_fails_its_own_records(
    client: msgtx.Client, topic: str, unique: Callable[[str], str]
) -> None:
    gone = client.topics.create(unique("gone")).name
    with client.producer(linger_ms=0) as producer:
        producer.send(gone, b"a").result(SECONDS)
        client.topics.delete(gone)
        assert isinstance(producer.send(gone, b"b").exception(SECONDS), errors.UnknownTopicOrPartition)
        assert producer.send(topic, b"c").result(SECONDS).offset == 0


def test_without_retries_a_record_does_not_go_to_a_topic_that_was_made_again(client: msgtx.Client, topic: str) -> None:
    with client.producer(linger_ms=0, retries=0) as producer:
        producer.send(topic, b"a").result(SECONDS)
        client.topics.delete(topic)
        client.topics.create(topic)
        assert isinstance(producer.send(topic, b"b").exception(SECONDS), errors.UnknownTopicOrPartition)
        assert producer.send(topic, b"c").result(SECONDS).offset == 0


@pytest.mark.parametrize("why", ["buffer", "full", "columns", "away"])
def test_a_send_that_raises_fails_its_transaction(
    client: msgtx.Client, topic: str, wide: str, connection: Connection, read: Read, hook: Hook, why: str
) -> None:
    """I1: who catches the error and goes on would commit half of it. What was a wrong call has changed nothing."""
    settings: Any = {"buffer_bytes": 4_000, "batch_bytes": 1_000, "max_block_ms": 50, "linger_ms": 0}
    with client.producer(transactional_id=topic, **settings) as producer:
        producer.begin_transaction()
        producer.send(topic, b"half")
        with pytest.raises(errors.UnknownTopicOrPartition):
            producer.send(topic, b"wrong", partition=7)
        if why == "full":
            with partitions_held(connection, topic):
                producer.send_batch(topic, [bytes(700)] * 4)
                with pytest.raises(errors.DeliveryTimeout):
                    producer.send(topic, bytes(1_500))
        elif why == "away":
            with hook.at("before describe_topics", away), pytest.raises(errors.DatabaseUnavailable):
                producer.send(wide, b"more")
        else:
            with pytest.raises(errors.RecordTooLarge):
                producer.send_batch(topic, [bytes(5_000)]) if why == "columns" else producer.send(topic, bytes(5_000))
        with pytest.raises(errors.MsgtxError):
            producer.send(topic, b"rest")
        kind = errors.DeliveryTimeout if why in {"full", "away"} else errors.RecordTooLarge
        fail_and_go_on(producer, topic, kind)
    assert [record.value for record in read(topic)] == [b"next"]


def test_a_send_that_raises_behind_the_end_of_its_transaction_leaves_the_next_one_alone(
    client: msgtx.Client, topic: str, wide: str, read: Read, hook: Hook
) -> None:
    """Another thread ends it while the topic is looked up."""
    with client.producer(transactional_id=topic, max_block_ms=50) as producer:
        producer.begin_transaction()

        def ended_meanwhile() -> None:
            if hook.seen["before describe_topics"] == 1:
                producer.abort_transaction()
                producer.begin_transaction()
            away()

        hook.seen.clear()
        with hook.at("before describe_topics", ended_meanwhile), pytest.raises(errors.DatabaseUnavailable):
            producer.send(wide, b"lost")
        producer.send(topic, b"next")
        producer.commit_transaction()
    assert [record.value for record in read(topic)] == [b"next"]


def test_without_a_transaction_a_send_that_raises_leaves_the_next_one_alone(
    client: msgtx.Client, topic: str, read: Read
) -> None:
    with client.producer(buffer_bytes=4_000, batch_bytes=1_000) as producer:
        with pytest.raises(errors.RecordTooLarge):
            producer.send(topic, bytes(5_000))
        producer.send(topic, b"next")
    assert [record.value for record in read(topic)] == [b"next"]


STEPS = {"send", "open_batch", "close_batch", "take_ready", "_take_whole", "number", "finish", "_ended", "ended", "_enter"}
STEPS_IN = [f"producer/{name}.py" for name in ("batcher", "batches", "sender", "state", "transaction")]


def test_an_interrupt_leaves_no_part_of_a_transaction_behind(client: msgtx.Client, wide: str, read: Read) -> None:
    """I1: what returns is there as a whole; a producer of which that is not certain does nothing more."""
    whole: dict[bytes, bool] = {}

    def done(name: bytes, end: Callable[[], object]) -> None:
        try:
            end()
        except errors.MsgtxError:
            return
        whole[name] = True

    for number, interrupt in enumerate(interrupts(*STEPS_IN, within=STEPS, least=40)):
        name, following = b"%d" % number, b"%d then" % number
        with contextlib.closing(client.producer(transactional_id=f"{wide}-{number}", linger_ms=60_000)) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            with interrupt:
                producer.send(wide, name, partition=0)
                producer.send(wide, name, partition=1)
                producer.commit_transaction(1)
            if interrupt.place is None:
                whole[name] = True
            elif producer._state.may_send:
                done(b"", producer.abort_transaction)
            else:
                done(name, functools.partial(producer.commit_transaction, 1))

            def go_on(producer: msgtx.Producer = producer, following: bytes = following) -> None:
                with producer.transaction():
                    producer.send(wide, following, partition=0)
                    producer.send(wide, following, partition=1)

            done(following, go_on)
    found = Counter(record.value for record in read(wide))
    assert set(found.values()) == {2}
    assert found.keys() >= whole.keys() - {b""}


@pytest.mark.parametrize("call", ["send", "send_batch", "flush", "begin", "commit", "prepare"])
def test_a_producer_that_was_interrupted_between_steps_refuses_each_call(
    client: msgtx.Client, topic: str, call: str
) -> None:
    calls: dict[str, Callable[[msgtx.Producer], object]] = {
        "send": lambda producer: producer.send(topic, b"a"),
        "send_batch": lambda producer: producer.send_batch(topic, [b"a"]),
        "flush": lambda producer: producer.flush(1),
        "begin": lambda producer: producer.begin_transaction(),
        "commit": lambda producer: producer.commit_transaction(1),
        "prepare": lambda producer: producer.prepare_transaction(1),
    }
    with contextlib.closing(client.producer(transactional_id=topic)) as producer:
        producer.init_transactions()
        if call != "begin":
            producer.begin_transaction()
        with contextlib.suppress(KeyboardInterrupt), producer._accumulator.steps():
            raise KeyboardInterrupt
        for _ in range(2):
            with refuses(errors.FatalError, reason="interrupted"):
                calls[call](producer)


def test_an_interrupted_end_is_not_taken_for_one_that_is_under_way(client: msgtx.Client, topic: str, read: Read) -> None:
    expected: list[bytes] = []
    for interrupt in interrupts("producer/transaction.py", within={"_sole_ending"}, least=5):
        expected += [b"first", b"second"]
        with contextlib.closing(client.producer(transactional_id=f"{topic}-{len(expected)}")) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(topic, b"first")
            with interrupt:
                producer.commit_transaction()
            with contextlib.suppress(errors.IllegalState):  # it was committed
                producer.commit_transaction()
            with producer.transaction():
                producer.send(topic, b"second")
    assert [record.value for record in read(topic)] == expected


def test_an_interrupt_while_a_send_waits_for_room_loses_nothing_else(
    client: msgtx.Client, topic: str, read: Read, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sent before is sent all the same, with the close for one."""
    with client.producer(buffer_bytes=4_000, batch_bytes=1_000) as producer:
        wait = producer._accumulator.settled.wait_for

        def interrupts(*_: object) -> None:
            raise KeyboardInterrupt

        with partitions_held(connection, topic), monkeypatch.context() as patched:
            producer.send_batch(topic, [bytes(700)] * 4)
            patched.setattr(producer._accumulator.settled, "wait_for", interrupts)
            with pytest.raises(KeyboardInterrupt):
                producer.send(topic, bytes(1_500))
        assert producer._accumulator.settled.wait_for == wait
        producer.send(topic, b"next")
    assert [len(record.value or b"") for record in read(topic)] == [700] * 4 + [4]


def test_a_gap_within_a_transaction_fails_it_and_the_next_one_goes_on(
    client: msgtx.Client, topic: str, connection: Connection, read: Read
) -> None:
    """I1: the lost part is not made good under another epoch. Rows lost like this mean a server without its last seconds."""
    with client.producer(transactional_id=topic, linger_ms=0) as producer:
        producer.begin_transaction()
        producer.send(topic, b"lost").result(SECONDS)
        lose_rows(connection, topic)
        assert isinstance(producer.send(topic, b"behind it").exception(SECONDS), errors.OutOfOrderSequence)
        fail_and_go_on(producer, topic, errors.OutOfOrderSequence)
    assert [record.value for record in read(topic)] == [b"next"]


@pytest.mark.parametrize("refused", ["no key", "no topic"])
def test_a_transaction_in_steps_of_which_a_part_was_refused_is_not_committed(
    client: msgtx.Client, topic: str, unique: Callable[[str], str], read: Read, refused: str
) -> None:
    """I1: what is left of it would be half a transaction."""
    other = unique("other")
    client.topics.create(other, **({"cleanup_policy": "compact"} if refused == "no key" else {}))
    with client.producer(transactional_id=topic, linger_ms=0) as producer:
        producer.begin_transaction()
        producer.send(topic, b"half").result(SECONDS)
        if refused == "no topic":
            producer.send(other, b"gone").result(SECONDS)
            client.topics.delete(other)
        kind = errors.InvalidRecord if refused == "no key" else errors.UnknownTopicOrPartition
        assert isinstance(producer.send(other, b"refused").exception(SECONDS), kind)
        fail_and_go_on(producer, topic, kind)
    assert [record.value for record in read(topic)] == [b"next"]


def test_a_topic_made_again_within_a_transaction_fails_it(client: msgtx.Client, topic: str, read: Read) -> None:
    """I1: what was sent before is gone; sent to the new topic, the rest would be half a transaction."""
    with client.producer(transactional_id=topic, linger_ms=0) as producer:
        producer.begin_transaction()
        producer.send(topic, b"gone").result(SECONDS)
        client.topics.delete(topic)
        client.topics.create(topic)
        assert isinstance(producer.send(topic, b"rest").exception(SECONDS), errors.UnknownTopicOrPartition)
        fail_and_go_on(producer, topic, errors.UnknownTopicOrPartition)
    assert [record.value for record in read(topic)] == [b"next"]


@pytest.mark.parametrize("transactional", [False, True])
def test_a_record_without_a_key_harms_no_other_of_its_batch(
    client: msgtx.Client, topic: str, unique: Callable[[str], str], read: Read, transactional: bool
) -> None:
    """In a transaction it fails that: half of it would be left."""
    client.topics.alter(topic, cleanup_policy="compact", max_message_bytes=100)
    settings = {"transactional_id": unique("id")} if transactional else {}
    with client.producer(linger_ms=60_000, **settings) as producer:
        if transactional:
            producer.begin_transaction()
        futures = [
            producer.send(topic, value, key=key) for value, key in ((b"a", b"1"), (b"b", None), (b"c", b""), (b"d", b"2"))
        ]
        if transactional:
            with pytest.raises(errors.InvalidRecord):
                producer.commit_transaction()
            producer.abort_transaction()
        else:
            producer.flush(SECONDS)
            found = [type(future.exception(0)) for future in futures]
            assert found == [type(None), errors.InvalidRecord, type(None), type(None)]
    assert [record.value for record in read(topic)] == ([] if transactional else [b"a", b"c", b"d"])


def test_a_batch_loses_records_that_are_too_large_more_than_once(
    client: msgtx.Client, topic: str, connection: Connection, read: Read, hook: Hook
) -> None:
    """The limit is lowered again before what is left of it goes."""
    with client.producer(linger_ms=60_000) as producer:
        producer.send(topic, b"")
        producer.flush(SECONDS)
        futures = [producer.send(topic, bytes(size)) for size in (100, 50, 1)]
        lower_limit(connection, topic, 80)
        hook.at("after describe_topics", lambda: lower_limit(connection, topic, 30))
        producer.flush(SECONDS)
        assert [type(future.exception(0)) for future in futures] == [errors.RecordTooLarge] * 2 + [type(None)]
    assert [len(record.value or b"") for record in read(topic)] == [0, 1]


@pytest.mark.parametrize("times", [1, 2])
def test_a_limit_that_is_raised_while_it_is_looked_at_drops_nothing_more(
    client: msgtx.Client, topic: str, connection: Connection, read: Read, hook: Hook, times: int
) -> None:
    """The batch was refused, and no record tells why: it is not sent once more, as it would be again and again."""
    with client.producer(linger_ms=60_000) as producer:
        producer.send(topic, b"")
        producer.flush(SECONDS)
        futures = [producer.send(topic, bytes(size)) for size in (100, 50)]
        lower_limit(connection, topic, 80 if times == 2 else 30)
        hook.seen.clear()

        def raised() -> None:
            if hook.seen["before describe_topics"] == times:
                lower_limit(connection, topic, 80 if times == 2 else 1_000)

        hook.at("before describe_topics", raised)
        hook.at("after describe_topics", lambda: lower_limit(connection, topic, 30))
        producer.flush(SECONDS)
        assert [type(future.exception(0)) for future in futures] == [errors.RecordTooLarge] * 2
        assert hook.seen["before describe_topics"] == times
    assert [len(record.value or b"") for record in read(topic)] == [0]


def test_the_sender_sleeps_for_the_rest_of_a_linger_only(
    client: msgtx.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client.producer(linger_ms=60_000) as producer:
        waits: list[float | None] = []
        wait = producer._accumulator.work.wait

        def noted(seconds: float | None = None) -> bool:
            waits.append(seconds)
            return wait(seconds)

        monkeypatch.setattr(producer._accumulator.work, "wait", noted)
        producer.send(topic, b"a")
        wait_until(lambda: waits, "the sender waits")
        with producer._accumulator.work:
            producer._accumulator.work.notify_all()
        wait_until(lambda: len(waits) > 1, "it waits for the rest")
        assert 30 < (waits[-1] or 0) < 60
        producer.flush(SECONDS)


def test_a_call_that_hangs_ends_with_its_oldest_batch(client: msgtx.Client, topic: str, connection: Connection) -> None:
    with client.producer(linger_ms=0, delivery_timeout_ms=400) as producer:
        producer.send(topic, b"first").result(SECONDS)
        with partitions_held(connection, topic):
            hangs = producer.send(topic, b"hangs")
            wait_until(lambda: waiting_backends(connection), "the append waits")
            assert isinstance(hangs.exception(2.5), errors.DeliveryTimeout)


def test_a_closed_producer_starts_nothing(client: msgtx.Client, topic: str) -> None:
    producer = client.producer()
    producer.close()
    with pytest.raises(errors.IllegalState):
        producer.send(topic, b"a")
    assert not producer._sender.started
