"""`send` with a dedup_key: stored once, however often it is sent (I1)."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from typing import Any

import pytest

import msgtx
from msgtx import errors
from msgtx.database.throwaway import set_clock
from msgtx.store.append.append_once import KeyedRecord, Placed, append_once
from tests.client.steps import SECONDS, losing_clients, lower_limit, require_in_order
from tests.databases import Connection, wait_until, waiting_backends
from tests.hooks import Hook, away
from tests.refusals import refuses

pytestmark = pytest.mark.slow

Read = Callable[..., list[msgtx.Record]]


class Holding:
    """Holds a key: a call that needs it waits until it is released."""

    def __init__(self, session: Connection) -> None:
        self.session = session

    def send(self, producer: msgtx.Producer, topic: str, key: str = "held", **options: Any) -> Any:
        """Hold a key, send a record that has it, and return when the call waits."""
        self.session.execute("begin")
        append_once(self.session, [KeyedRecord(ids(self.session, topic)[0], key, b"holder", None, 1)])
        sent = producer.send(topic, b"waits", dedup_key=key, **options)
        wait_until(lambda: waiting_backends(self.session), "the call waits")
        return sent

    def release(self) -> None:
        self.session.execute("rollback")


@pytest.fixture
def holding(open_connection: Callable[[], Connection]) -> Holding:
    return Holding(open_connection())


def ids(connection: Connection, topic: str) -> list[int]:
    rows = connection.execute("select partition_id from msgtx.partitions where topic = %s order by 1", [topic]).fetchall()
    return [partition_id for (partition_id,) in rows]


def rows_of(connection: Connection, topic: str) -> list[int]:
    """The number of records in each row of the log."""
    found = connection.execute(
        "select record_count from msgtx.record_batch where partition_id = any(%s) order by appended_at",
        [ids(connection, topic)],
    ).fetchall()
    return [count for (count,) in found]


def calls_of(producer: msgtx.Producer) -> list[list[KeyedRecord]]:
    """The records of each call that the producer makes from now on."""
    calls: list[list[KeyedRecord]] = []
    call = producer._keyed._call

    def noted(records: list[KeyedRecord]) -> list[Placed]:
        calls.append(records)
        return call(records)

    producer._keyed._call = noted  # type: ignore[method-assign]
    return calls


def end_waiting(connection: Connection) -> None:
    """End the session that waits for a lock, as soon as it does."""
    (session,) = wait_until(lambda: waiting_backends(connection), "the call waits")
    connection.execute("select pg_terminate_backend(%s, 5000)", [session])  # milliseconds until it is gone


# ── what a caller sees ──


def test_the_same_key_gets_the_first_ones_place(client: msgtx.Client, wide: str, read: Read) -> None:
    with client.producer() as one, client.producer() as other:
        first = one.send(wide, b"first", partition=2, timestamp=41, dedup_key="a").result(SECONDS)
        again = [
            producer.send(wide, b"again", partition=partition, timestamp=99, dedup_key="a").result(SECONDS)
            for producer in (one, other)
            for partition in (0, 2)
        ]
    assert first == msgtx.RecordMetadata(wide, 2, 0, 41, False)
    assert again == [msgtx.RecordMetadata(wide, 2, 0, 41, True)] * 4
    assert [(record.partition, record.value) for record in read(wide)] == [(2, b"first")]


def test_a_key_counts_for_its_topic_and_for_its_window(
    client: msgtx.Client, topic: str, wide: str, database_url: str
) -> None:
    with client.producer() as producer:
        found = [producer.send(name, b"x", dedup_key="a").result(SECONDS).duplicate for name in (topic, wide, topic)]
        try:
            set_clock(database_url, "61 minutes")
            found.append(producer.send(topic, b"x", dedup_key="a").result(SECONDS).duplicate)
        finally:
            set_clock(database_url)
    assert found == [False, False, True, False]


def test_everything_of_a_record_is_stored(client: msgtx.Client, wide: str, read: Read) -> None:
    with client.producer(value_serializer=str.encode, key_serializer=str.encode) as producer:
        first = producer.send(wide, "v", key="k", timestamp=5, headers=[("h", None)], dedup_key="a").result(SECONDS)
        plain = producer.send(wide, "v", key="k").result(SECONDS)
    assert first.partition == plain.partition
    found = read(wide)[0]
    assert (found.key, found.value, found.timestamp, found.headers) == (b"k", b"v", 5, (("h", None),))


def test_keyless_records_are_spread(client: msgtx.Client, wide: str) -> None:
    with client.producer() as producer:
        futures = [producer.send(wide, b"x", dedup_key=f"{n}") for n in range(60)]
        assert {future.result(SECONDS).partition for future in futures} == {0, 1, 2}


def test_keyed_and_plain_records_keep_their_own_order(client: msgtx.Client, topic: str, read: Read) -> None:
    with client.producer(linger_ms=0) as producer:
        for n in range(300):
            producer.send(topic, b"k%d" % n, dedup_key=f"{n}")
            producer.send(topic, b"p%d" % n)
    for kind in (b"k", b"p"):
        found = [record.value for record in read(topic) if record.value is not None and record.value[:1] == kind]
        assert found == [b"%s%d" % (kind, n) for n in range(300)]


@pytest.mark.parametrize("settings", [{"acks": 0}, {"acks": 1}, {"enable_idempotence": False}], ids=str)
def test_it_is_awaited_whatever_the_settings_of_other_records(
    client: msgtx.Client, topic: str, settings: dict[str, Any]
) -> None:
    with client.producer(**settings) as producer:
        found = [producer.send(topic, b"x", dedup_key="a").result(SECONDS) for _ in range(2)]
    assert [(metadata.offset, metadata.duplicate) for metadata in found] == [(0, False), (0, True)]


@pytest.mark.parametrize("key", ["", "x" * 257, "ü" * 129, "a\0b", "\ud800"], ids=ascii)
def test_a_key_that_cannot_be_is_refused_at_once(client: msgtx.Client, topic: str, key: str) -> None:
    with client.producer() as producer:
        with refuses(errors.InvalidRequest, name="dedup_key"):
            producer.send(topic, b"x", dedup_key=key)
        assert producer.send(topic, b"x", dedup_key="x" * 256).result(SECONDS).offset == 0


def test_a_transactional_producer_refuses_and_says_why(client: msgtx.Client, topic: str, read: Read) -> None:
    with client.producer(transactional_id=topic) as producer, producer.transaction():
        with refuses(errors.IllegalState, reason="transactional_id"):
            producer.send(topic, b"x", dedup_key="a")
        producer.send(topic, b"y")
    assert [record.value for record in read(topic)] == [b"y"]


def test_a_partition_or_a_topic_that_is_not_there_is_refused_at_once(client: msgtx.Client, topic: str) -> None:
    with client.producer() as producer:
        for name, partition in ((topic, 1), (topic, -1), ("nowhere", None)):
            with pytest.raises(errors.UnknownTopicOrPartition):
                producer.send(name, b"x", partition=partition, dedup_key="a")


def test_a_closed_producer_takes_nothing(client: msgtx.Client, topic: str) -> None:
    with client.producer() as producer:
        producer.send(topic, b"x", dedup_key="a")
    with pytest.raises(errors.IllegalState):
        producer.send(topic, b"x", dedup_key="b")


# ── what is refused ──


def test_a_record_over_the_limit_fails_at_once_and_keeps_no_key(client: msgtx.Client, topic: str) -> None:
    with client.producer() as producer:
        client.topics.alter(topic, max_message_bytes=10)
        assert producer.send(topic, b"0123456789", dedup_key="warm").exception(SECONDS) is None
    with client.producer() as producer:
        future = producer.send(topic, b"x" * 11, dedup_key="a")
        assert (future.done(), type(future.exception())) == (True, errors.RecordTooLarge)
        assert producer.send(topic, b"x", dedup_key="a").result(SECONDS).duplicate is False


def test_one_bad_record_harms_no_other_of_its_call(
    client: msgtx.Client, topic: str, connection: Connection, holding: Holding, read: Read
) -> None:
    """The limit was lowered meanwhile: only the database knows."""
    with client.producer() as producer:
        producer.send(topic, b"first", dedup_key="first").result(SECONDS)
        futures = [holding.send(producer, topic)]
        futures += [producer.send(topic, b"x" * (100 if n == 3 else n), dedup_key=f"{n}") for n in range(1, 7)]
        lower_limit(connection, topic, 10)
        holding.release()
        found = [type(future.exception(SECONDS)) for future in futures]
        assert found == [type(None)] * 3 + [errors.RecordTooLarge] + [type(None)] * 3
    assert [record.value for record in read(topic)] == [b"first", b"waits", *(b"x" * n for n in (1, 2, 4, 5, 6))]


@pytest.mark.parametrize("closing", [False, True], ids=["others come", "it is closed"])
def test_what_postgresql_cannot_take_at_once_goes_one_by_one(
    client: msgtx.Client, topic: str, holding: Holding, hook: Hook, monkeypatch: pytest.MonkeyPatch, closing: bool
) -> None:
    """Each by itself, also apart from what came meanwhile, and also if nothing new is taken any more."""
    with client.producer() as producer:
        futures = [holding.send(producer, topic)]
        held = hook.hold("check out")
        monkeypatch.setattr("msgtx.database.wire.ARGUMENT_BYTES", 1_000)
        futures += [producer.send(topic, b"x" * 600, dedup_key=key) for key in "ab"]
        holding.release()
        held.wait()
        if closing:
            producer.close(0.05)
        else:
            futures.append(producer.send(topic, b"x" * 600, dedup_key="c"))
        held.go_on.set()
        assert [future.result(SECONDS).offset for future in futures] == list(range(len(futures)))


def test_a_compacted_topic_refuses_a_record_without_key(
    client: msgtx.Client, unique: Callable[[str], str], hook: Hook
) -> None:
    name = unique("compacted")
    client.topics.create(name, cleanup_policy="compact")
    with client.producer() as producer:
        assert isinstance(producer.send(name, b"x", dedup_key="a").exception(SECONDS), errors.InvalidRecord)
        assert hook.seen["before append_once"] == 1, "a record that went alone is refused for itself"
        assert producer.send(name, b"x", key=b"k", dedup_key="a").result(SECONDS).offset == 0


def test_a_topic_that_was_deleted_fails_in_the_future(client: msgtx.Client, topic: str, wide: str) -> None:
    with client.producer() as producer:
        for name in (topic, wide):
            producer.send(name, b"x", dedup_key="a").result(SECONDS)
        client.topics.delete(topic)
        futures = [producer.send(name, b"x", dedup_key="b") for name in (topic, wide)]
        assert isinstance(futures[0].exception(SECONDS), errors.UnknownTopicOrPartition)
        assert futures[1].result(SECONDS).duplicate is False


def test_another_incarnation_fails_the_producer(client: msgtx.Client, topic: str, hook: Hook) -> None:
    with client.producer() as producer:
        producer.send(topic, b"x", dedup_key="a").result(SECONDS)
        hook.at("before append_once", errors.IncarnationChanged("planted"))
        with pytest.raises(errors.IncarnationChanged):
            producer.send(topic, b"x", dedup_key="b").result(SECONDS)
        with pytest.raises(errors.IncarnationChanged):
            producer.send(topic, b"x")


def test_a_bug_is_told_to_everybody_who_waits(
    client: msgtx.Client, topic: str, hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    with client.producer() as producer:
        producer.send(topic, b"x", dedup_key="a").result(SECONDS)
        hook.at("before append_once", TypeError("planted"))
        assert isinstance(producer.send(topic, b"x", dedup_key="b").exception(SECONDS), errors.FatalError)
    assert "deduplicator failed" in caplog.text


# ── waiting ──


def test_what_comes_while_a_call_is_on_its_way_goes_together(
    client: msgtx.Client, topic: str, connection: Connection, holding: Holding
) -> None:
    with client.producer() as producer:
        futures = [holding.send(producer, topic)]
        futures += [producer.send(topic, b"x", dedup_key=f"{n}") for n in range(50)]
        holding.release()
        assert [future.result(SECONDS).offset for future in futures] == list(range(51))
    assert rows_of(connection, topic) == [1, 50]


@pytest.mark.parametrize(("settings", "most"), [({"batch_records": 7}, 7), ({"batch_bytes": 1_000}, 3)], ids=str)
def test_a_call_is_bounded(
    client: msgtx.Client, topic: str, connection: Connection, settings: dict[str, int], most: int
) -> None:
    with client.producer(**settings) as producer:
        for n in range(40):
            producer.send(topic, b"x" * 236, dedup_key=f"{n}")  # 300 bytes with a record's overhead in memory
    assert sum(rows_of(connection, topic)) == 40
    assert max(rows_of(connection, topic)) <= most


def test_a_call_has_a_bounded_number_of_partitions(
    client: msgtx.Client, wide: str, holding: Holding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them takes an entry of PostgreSQL's lock table, which all sessions share."""
    monkeypatch.setattr("msgtx.producer.keyed.PARTITIONS_AT_ONCE", 2)
    with client.producer() as producer:
        futures = [holding.send(producer, wide, partition=0)]
        calls = calls_of(producer)
        futures += [producer.send(wide, b"x", partition=at, dedup_key=f"{n}") for n, at in enumerate((0, 0, 1, 1, 2, 0))]
        holding.release()
        assert [future.exception(SECONDS) for future in futures] == [None] * 7
    assert [len(records) for records in calls] == [4, 2]


def test_flush_and_result_wait_no_longer_than_told(client: msgtx.Client, topic: str, holding: Holding) -> None:
    told: list[msgtx.RecordMetadata] = []
    with client.producer() as producer:
        future = holding.send(producer, topic, on_delivery=lambda done: told.append(done.result()))
        assert not future.done()
        with pytest.raises(TimeoutError):
            producer.flush(0.05)
        with pytest.raises(TimeoutError):
            future.result(0.01)
        holding.release()
        producer.flush(SECONDS)
        assert future.done()
    assert told == [future.result()]


def test_close_flushes(client: msgtx.Client, topic: str, read: Read) -> None:
    producer = client.producer()
    futures = [producer.send(topic, b"x", dedup_key=f"{n}") for n in range(100)]
    producer.close()
    producer.close()
    assert all(future.done() for future in futures)
    assert len(read(topic)) == 100


def test_close_gives_up_what_was_not_sent_and_waits_for_the_call_that_is_on_its_way(
    client: msgtx.Client, topic: str, holding: Holding, background: Executor
) -> None:
    producer = client.producer()
    sent = holding.send(producer, topic)
    waits = producer.send(topic, b"x", dedup_key="other")
    producer.close(0.05)
    assert isinstance(waits.exception(SECONDS), errors.IllegalState)
    closing = background.submit(producer._keyed.close)
    assert not wait([closing], 0.2).done
    holding.release()
    closing.result(SECONDS)
    assert sent.result(0).offset == 0


def test_a_call_that_fails_behind_a_close_is_not_repeated_and_its_records_are_told(
    client: msgtx.Client, topic: str, connection: Connection, holding: Holding
) -> None:
    producer = client.producer()
    sent = holding.send(producer, topic)
    producer.close(0.05)
    end_waiting(connection)
    assert isinstance(sent.exception(SECONDS), errors.DatabaseUnavailable)


def test_a_full_buffer_blocks_and_loses_nothing(client: msgtx.Client, wide: str, read: Read) -> None:
    with client.producer(buffer_bytes=2_000, batch_bytes=1_000) as producer:
        futures = [producer.send(wide, b"." * 200, dedup_key=f"{n}") for n in range(200)]
        assert all(future.exception(SECONDS) is None for future in futures)
        assert producer._accumulator.buffered == 0
    assert len(read(wide)) == 200


def test_a_buffer_that_stays_full_is_an_error_after_max_block(client: msgtx.Client, topic: str, holding: Holding) -> None:
    with client.producer(buffer_bytes=1_000, batch_bytes=1_000, max_block_ms=50) as producer:
        holding.send(producer, topic)
        with refuses(errors.DeliveryTimeout, name="buffer_bytes"):
            producer.send(topic, b"x" * 900, dedup_key="a")
        with pytest.raises(errors.RecordTooLarge):
            producer.send(topic, b"x" * 1_500, dedup_key="b")
        holding.release()


# ── trouble ──


def test_a_lost_answer_is_repeated_and_stored_once(database_url: str, topic: str, read: Read) -> None:
    """The connection breaks before or after each message of a send to the database."""
    sent: list[bytes] = []
    for client, faults in losing_clients(database_url, topic, least=2):  # before and after the call
        with client.producer(retry_backoff_ms=1) as producer:
            key = f"{len(sent)}"
            producer.send(topic, b"before", dedup_key=f"before {key}").result(SECONDS)
            faults.on = True
            metadata = producer.send(topic, key.encode(), dedup_key=key).result(SECONDS)
            faults.on = False
            again = producer.send(topic, key.encode(), dedup_key=key).result(SECONDS)
        assert (again.offset, again.duplicate) == (metadata.offset, True)
        sent.append(key.encode())
    assert [record.value for record in read(topic) if record.value != b"before"] == sent


def test_sessions_that_are_ended_lose_and_double_nothing(
    client: msgtx.Client, wide: str, read: Read, killer: Callable[[], int]
) -> None:
    with client.producer(batch_records=5, retry_backoff_ms=5) as producer:
        futures = []
        for n in range(400):
            futures.append(producer.send(wide, b"%d" % n, partition=n % 3, dedup_key=f"{n}"))
            if n % 100 == 50:
                killer()
        assert all(future.exception(SECONDS) is None for future in futures)
    require_in_order(read(wide), 400)


def test_pauses_get_longer_until_there_is_an_answer(
    client: msgtx.Client, topic: str, connection: Connection, holding: Holding
) -> None:
    with client.producer() as producer:
        pauses: list[int] = []
        producer._keyed._pause = pauses.append  # type: ignore[method-assign]
        for failures in (2, 1):
            sent = holding.send(producer, topic, f"held {failures}")
            for _ in range(failures):
                end_waiting(connection)
            wait_until(lambda: waiting_backends(connection), "it is repeated")
            holding.release()
            assert sent.exception(SECONDS) is None
    assert pauses == [1, 2, 1]


def test_delivery_timeout_fails_what_waits_and_the_producer_goes_on(
    client: msgtx.Client, topic: str, read: Read, hook: Hook
) -> None:
    with client.producer(delivery_timeout_ms=300, retry_backoff_ms=10) as producer:
        producer.send(topic, b"a", dedup_key="a").result(SECONDS)
        with hook.at("before append_once", away):
            for future in [producer.send(topic, b"b", dedup_key=key) for key in "bc"]:
                error = future.exception(SECONDS)
                assert isinstance(error, errors.DeliveryTimeout)
                assert "same dedup_key" in str(error)
            assert hook.seen["before append_once"] < 15, "it was tried after 20, 40, 80 … ms"
        assert producer.send(topic, b"b", dedup_key="b").result(SECONDS).offset == 1
        hook.at("before append_once", away)
        lost = producer.send(topic, b"d", dedup_key="d")
        producer.close(0.05)
        assert isinstance(lost.exception(SECONDS), errors.MsgtxError)
    assert [record.value for record in read(topic)] == [b"a", b"b"]


# ── several at once ──


def test_threads_that_send_the_same_keys_store_each_once(client: msgtx.Client, wide: str, read: Read) -> None:
    with client.producer() as one, client.producer() as other, ThreadPoolExecutor(8) as threads:

        def handle(worker: int) -> list[tuple[int, int]]:
            producer = (one, other)[worker % 2]
            keys = [f"{n}" for n in range(60)]
            found = [
                producer.send(wide, b"%d" % worker, dedup_key=key).result(SECONDS) for key in keys[worker:] + keys[:worker]
            ]
            found = found[60 - worker :] + found[: 60 - worker]
            return [(metadata.partition, metadata.offset) for metadata in found]

        answers = list(threads.map(handle, range(8)))
    assert all(answer == answers[0] for answer in answers)
    assert len(set(answers[0])) == len(read(wide)) == 60


HANDLER = """
import sys, msgtx
url, topic, worker = sys.argv[1:]
with msgtx.connect(url) as client, client.producer() as producer:
    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(100):
        found = producer.send(topic, worker.encode(), dedup_key=f"request {n}").result(30)
        print(found.partition, found.offset, found.duplicate, flush=True)
"""


def test_a_request_that_two_processes_handle_at_once_is_stored_once(database_url: str, wide: str, read: Read) -> None:
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", HANDLER, database_url, wide, f"{n}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for n in range(2)
    ]  # fmt: skip
    answers = []
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        out, _ = worker.communicate(timeout=SECONDS)
        assert worker.returncode == 0
        answers.append([line.split() for line in out.splitlines()])
    assert [[line[:2] for line in answer] for answer in answers] == [[line[:2] for line in answers[0]]] * 2
    assert [{one[2], other[2]} for one, other in zip(*answers, strict=True)] == [{"True", "False"}] * 100
    assert len(read(wide)) == 100
