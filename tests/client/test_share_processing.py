"""`client.process(…, share_members=1)`: the output is visible if and only if the input is accepted (I17, I10)."""

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest

import msgtx
from msgtx import Acknowledgement, ProcessReport, Record, aio, errors
from msgtx.process import shares
from msgtx.producer import transaction
from msgtx.producer.group_commit import GroupCommit
from msgtx.shares.answering import Answering
from msgtx.store.shares.answers import OffsetRange
from tests.client.sharing import fill
from tests.client.test_process import REFUSALS, refused_outputs
from tests.databases import PATIENCE_SECONDS, wait_until
from tests.refusals import refuses

pytestmark = pytest.mark.slow

Unique = Callable[[str], str]
Read = Callable[..., list[Record]]
Run = Callable[..., ProcessReport]


class Worker:
    """A worker of a share group that has the topic's name and gives up after two deliveries. A call works to the end."""

    def __init__(self, client: msgtx.Client, topic: str, output: str) -> None:
        self.client = client
        self.topic = topic
        self.output = output
        self.configure(auto_offset_reset="earliest", delivery_count_limit=2)

    def __call__(self, transform: Callable[[Any], Any], **options: Any) -> ProcessReport:
        name = self.topic
        given = {"group": name, "transactional_id": name, "share_members": 1, "failure": msgtx.Stop(), "idle_timeout": 0.3}
        return self.client.process(name, to=self.output, transform=transform, **{**given, **options})

    def configure(self, **settings: object) -> None:
        self.client.admin.shares.configure(self.topic, settings)

    def fill(self, count: int, start: int = 0) -> None:
        fill(self.client, self.topic, count, start)

    def send(self, *values: bytes) -> None:
        with self.client.producer() as producer:
            producer.send_batch(self.topic, values, partition=0).result(30)

    @property
    def group(self) -> msgtx.ShareGroupDescription:
        return self.client.admin.shares.describe(self.topic)

    @property
    def letters(self) -> list[Record]:
        return list(self.client.read(self.client.snapshot([f"{self.topic}-dead-letters"])))

    @property
    def made(self) -> list[int]:
        """The values of the output."""
        return sorted(int(record.value or b"") for record in self.client.read(self.client.snapshot([self.output])))


@pytest.fixture
def worker(client: msgtx.Client, topic: str, output: str) -> Worker:
    return Worker(client, topic, output)


def double(record: Record) -> bytes:
    return b"%d" % (2 * int(record.value or b""))


def doubles(records: list[Record]) -> list[bytes]:
    return [double(record) for record in records]


EACH = [(False, double), (True, doubles)]


def test_a_lock_that_was_made_shorter_meanwhile_is_renewed_in_time(worker: Worker) -> None:
    """Else a record that takes longer than that would be repeated, and be a dead letter at last."""
    worker.fill(1)

    def slow(record: Record) -> bytes:
        if record.offset == 0:
            worker.configure(record_lock_duration_ms=1_000)
            worker.fill(1)
        else:
            time.sleep(2.5)
        return double(record)

    report = worker(slow)
    assert (report.records_in, report.aborted) == (2, 0)
    assert worker.made == [0, 0]


def test_what_a_driver_could_not_do_for_now_is_nobodys_record(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    worker.fill(3)
    failures: list[Exception] = [psycopg.errors.DeadlockDetected()]

    def transform(record: Record) -> bytes:
        if failures and record.value == b"1":
            raise ValueError("no price for this order") from failures.pop()
        return double(record)

    with caplog.at_level(logging.WARNING, "msgtx.process"):
        report = worker(transform, failure=Acknowledgement.REJECT)
    assert (worker.made, report.failed, report.aborted) == ([0, 2, 4], 0, 1)
    assert caplog.messages == []


@pytest.mark.parametrize(("batch", "transform"), EACH)
def test_outputs_and_answers_are_one_transaction(worker: Worker, batch: bool, transform: Any) -> None:
    worker.fill(20)
    report = worker(transform, batch=batch)
    assert worker.made == [2 * number for number in range(20)]
    assert (report.records_in, report.records_out, report.aborted, report.failed) == (20, 20, 0, 0)
    assert worker(transform, batch=batch).records_in == 0
    assert worker.group.lag == 0


@pytest.mark.parametrize("failure", [Acknowledgement.RELEASE, Acknowledgement.REJECT])
@pytest.mark.parametrize(("batch", "transform"), EACH)
def test_a_record_that_fails_holds_up_no_other(
    worker: Worker, batch: bool, transform: Any, failure: Acknowledgement
) -> None:
    worker.send(b"1", b"poison", b"3", b"4")
    report = worker(transform, batch=batch, failure=failure)
    assert worker.made == [2, 6, 8]
    assert (report.records_in - report.failed, report.records_out) == (3, 3)
    assert report.failed == 1, "released from its last delivery, it is a dead letter, too"
    assert report.aborted >= 1
    (letter,) = worker.letters
    headers = dict(letter.headers)
    assert headers["msgtx.dead-letter.deliveries"] == (b"1" if failure is Acknowledgement.REJECT else b"2")
    assert b"ValueError: invalid literal" in (headers["msgtx.dead-letter.reason"] or b"")


@pytest.mark.parametrize("failure", [Acknowledgement.RELEASE, Acknowledgement.REJECT])
@pytest.mark.parametrize("output_of", REFUSALS)
def test_a_record_whose_output_is_refused_holds_up_no_other(
    worker: Worker, topic: str, output_of: str, failure: Acknowledgement
) -> None:
    worker.send(b"1", b"poison", b"3", b"4")
    odd = refused_outputs(f"{topic}-missing")[output_of]
    report = worker(lambda record: odd(record) if record.value == b"poison" else double(record), failure=failure)
    assert worker.made == [2, 6, 8]
    assert report.records_out == 3
    (letter,) = worker.letters
    assert letter.value == b"poison"


def test_a_record_that_fails_stops_the_worker_and_stays(worker: Worker, topic: str) -> None:
    worker.send(b"poison", b"2")
    with pytest.raises(ValueError, match="poison") as caught:
        worker(double)
    assert [note.partition(";")[0] for note in caught.value.__notes__] == [f"failed on {topic}-0 offset 0"]
    assert worker.made == []
    found = worker.group
    assert (found.lag, found.members) == (2, 0)


def test_a_record_that_fails_is_answered_for_before_the_others_go_on(worker: Worker) -> None:
    letters: list[int] = []

    def transform(record: Record) -> bytes:
        if record.value == b"3":
            letters.append(worker.group.dead_letters)
        return double(record)

    worker.send(b"1", b"poison", b"3")
    worker(transform, failure=Acknowledgement.REJECT, transaction_ms=59_000)
    assert letters == [1]


def test_a_worker_that_is_stopped_leaves_the_rest_of_its_poll_for_others(worker: Worker) -> None:
    stop = threading.Event()

    def transform(record: Record) -> bytes:
        if record.value == b"poison":
            stop.set()
        return double(record)

    worker.send(b"1", b"poison", b"3")
    worker(transform, failure=Acknowledgement.RELEASE, stop=stop, transaction_ms=59_000)
    assert worker.made == [2]


def test_a_record_that_another_member_has_by_now_is_not_answered_for(
    worker: Worker, client: msgtx.Client, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shares, "RENEWED_SECONDS", 0.0)
    worker.configure(record_lock_duration_ms="300ms")
    stop = threading.Event()

    def transform(record: Record) -> bytes:
        stop.set()
        with client.share_consumer(topic, group=topic) as other:
            assert [found.offset for found in other.poll(PATIENCE_SECONDS)] == [record.offset]
            other.commit()
        raise ConnectionError("mail server")

    worker.fill(1)
    with caplog.at_level(logging.WARNING, "msgtx.process"):
        report = worker(transform, failure=Acknowledgement.REJECT, stop=stop)
    assert (report.records_in, report.failed, caplog.messages) == (0, 0, [])
    assert worker.group.dead_letters == 0


def test_an_outage_that_the_transform_meets_is_waited_for(worker: Worker) -> None:
    calls: list[Record] = []

    def transform(record: Record) -> bytes:
        calls.append(record)
        if len(calls) > 2:
            return double(record)
        raise errors.DatabaseUnavailable("of another client, for one")

    worker.fill(1)
    report = worker(transform, failure=Acknowledgement.RELEASE)
    assert (len(calls), report.records_in, report.failed, report.aborted) == (3, 1, 0, 2)


def test_ctrl_c_ends_all_workers_of_a_call(worker: Worker) -> None:
    """It comes to the main thread, which waits for them."""
    threads: set[int] = set()
    barrier = threading.Barrier(2, timeout=PATIENCE_SECONDS)

    def transform(record: Record) -> None:
        if threading.get_ident() not in threads:
            threads.add(threading.get_ident())
            if barrier.wait() == 0:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    for start in range(0, 40, 20):
        worker.fill(20, start)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            worker(transform, share_members=2, idle_timeout=None, transaction_ms=1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert worker.group.members == 0


def test_locks_are_renewed_once_in_a_third_of_their_time(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """With each look at the work there would be many."""
    renew, times = Answering.renew, []
    stop = threading.Event()

    def noted(self: Answering, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        times.append(time.monotonic())
        return renew(self, ranges)

    def transform(record: Record) -> bytes:
        wait_until(lambda: len(times) > 2, "it is renewed")
        stop.set()
        return double(record)

    monkeypatch.setattr(shares, "LOOK_AT_WORK_SECONDS", 0.005)
    monkeypatch.setattr(Answering, "renew", noted)
    worker.configure(record_lock_duration_ms="600ms")
    worker.fill(1)
    began = time.monotonic()
    worker(transform, stop=stop)
    assert times[2] - began >= 3 * 0.2


def test_the_thread_that_renews_locks_ends_before_its_worker(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would use what the worker has closed."""
    renew = Answering.renew
    begun, stop = threading.Event(), threading.Event()
    running: list[None] = []

    def slow(self: Answering, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        running.append(None)
        begun.set()
        time.sleep(0.3)  # longer than a worker takes to its end
        found = renew(self, ranges)
        running.pop()
        return found

    def transform(record: Record) -> bytes:
        assert begun.wait(PATIENCE_SECONDS)
        stop.set()
        return double(record)

    monkeypatch.setattr(Answering, "renew", slow)
    worker.configure(record_lock_duration_ms="300ms")
    worker.fill(1)
    worker(transform, stop=stop)
    assert running == []


def test_workers_of_one_call_divide_a_partition_each_with_its_own_id(
    worker: Worker, client: msgtx.Client, topic: str
) -> None:
    threads: set[int] = set()
    barrier = threading.Barrier(3, timeout=30)

    def transform(record: Record) -> bytes:
        if threading.get_ident() not in threads:
            threads.add(threading.get_ident())
            barrier.wait()  # all three have a record now
        return double(record)

    for start in range(0, 60, 20):
        worker.fill(20, start)
    report = worker(transform, share_members=3, idle_timeout=1.0, transaction_ms=1)
    assert (report.records_in, report.records_out) == (60, 60)
    assert worker.made == [2 * number for number in range(60)]
    for number in (1, 2, 3):
        assert client.admin.transactions.describe(f"{topic}-{number}").state == "CompleteCommit"
    with pytest.raises(errors.TransactionalIdNotFound):
        client.admin.transactions.describe(topic)


def test_an_aborted_transaction_is_tried_again_in_place(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is no delivery: nothing of it was handed over."""
    commit, aborted = GroupCommit.commit, []
    deliveries: set[int] = set()

    def transform(record: msgtx.ShareRecord) -> bytes:
        deliveries.add(record.delivery_count)
        return double(record)

    def refusing(self: GroupCommit, *arguments: Any) -> Any:
        if not aborted:
            aborted.append(arguments)
            raise errors.TransactionAborted("by a test")
        return commit(self, *arguments)

    monkeypatch.setattr(GroupCommit, "commit", refusing)
    worker.fill(10)
    report = worker(transform)
    assert (report.records_in, report.aborted, deliveries) == (10, 1, {1})
    assert worker.made == [2 * number for number in range(10)]


def test_what_was_pending_in_an_aborted_transaction_is_delivered_again(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide, aborted = transaction.decide, []
    deliveries: list[int] = []

    def transform(record: msgtx.ShareRecord) -> bytes:
        deliveries.append(record.delivery_count)
        return double(record)

    def late(connection: Any, name: Any, *arguments: Any, **named: Any) -> Any:
        if not aborted:
            aborted.append(name)
            transaction.end_transaction(connection, name, "resolve")
        return decide(connection, name, *arguments, **named)

    monkeypatch.setattr(transaction, "FUSED_BYTES", 0)
    monkeypatch.setattr(transaction, "decide", late)
    worker.fill(3)
    report = worker(transform)
    assert (report.records_in, report.aborted, sorted(deliveries)) == (3, 1, [1, 1, 1, 2])
    assert worker.made == [0, 2, 4]


def test_what_a_killed_worker_has_pending_goes_to_its_successor(
    worker: Worker, client: msgtx.Client, topic: str, output: str
) -> None:
    worker.fill(4)
    killed = client.producer(transactional_id=topic)
    killed.init_transactions()
    with client.share_consumer(topic, group=topic, acknowledgement_mode="explicit") as member:
        for record in member.poll(5):
            member.acknowledge(record)
        killed.begin_transaction().send_acknowledgements(member)
        killed.send(output, b"lost")
        killed.flush()
        report = worker(double)
    assert report.records_in == 4
    assert worker.made == [0, 2, 4, 6]
    with pytest.raises(errors.ProducerFenced):
        killed.commit_transaction()
    killed.close()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"failure": msgtx.Skip()}, "failure"),
        ({"failure": msgtx.DeadLetter("graves")}, "failure"),
        ({"failure": Acknowledgement.ACCEPT}, "failure"),
        ({"partitions": [0]}, "partitions"),
        ({"share_members": 101}, "share_members"),
        ({"share_members": None, "failure": Acknowledgement.REJECT}, "failure"),
        ({"consumer_config": {"isolation": "read_committed"}}, "isolation"),
    ],
)
def test_what_the_group_decides_is_no_setting_of_a_worker(worker: Worker, options: dict[str, Any], name: str) -> None:
    """I16."""
    with refuses(errors.UsageError, name=name):
        worker(double, **options)


def test_a_worker_of_an_event_loop_runs_in_a_thread(worker: Worker, database_url: str, topic: str, output: str) -> None:
    worker.fill(5)
    ends = threading.Event()

    async def main() -> ProcessReport:
        async with await aio.connect(database_url) as made:
            return await made.run(
                made.sync.process,
                topic,
                to=output,
                group=topic,
                transactional_id=topic,
                transform=double,
                share_members=2,
                stop=ends,
                on_commit=lambda report: ends.set() if report.records_in == 5 else None,
            )

    assert asyncio.run(main()).records_in == 5
    assert worker.made == [0, 2, 4, 6, 8]
