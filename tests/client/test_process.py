"""`client.process`: records on which the transform fails, and batches of them."""

import gc
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import psycopg
import pytest

import msgtx
from msgtx import OutputRecord, ProcessReport, Record, errors
from msgtx.process import Worker, failures, loop, shares
from tests.client.steps import process, store, values
from tests.refusals import refuses

pytestmark = pytest.mark.slow

Unique = Callable[[str], str]
Read = Callable[..., list[Record]]
VALUES: Final = [b"1", b"2", b"poison", b"4", b"5"]


@pytest.fixture
def run(client: msgtx.Client, topic: str, unique: Unique) -> Callable[..., tuple[ProcessReport, str]]:
    """Process a topic with a poisoned record in the middle, to its end. Returns the report and the output's name."""
    with client.producer() as producer:
        for at, value in enumerate(VALUES):
            producer.send(topic, value, key=b"key %d" % at, headers=[("origin", b"shop")], timestamp=1_000 + at)

    def call(transform: Callable[[Any], Any], target: str | None = None, **options: Any) -> tuple[ProcessReport, str]:
        target = target or unique("out")
        client.topics.create(target)
        return work(client, topic, target, transform, **options), target

    return call


@pytest.fixture
def grave(client: msgtx.Client, unique: Unique) -> str:
    """A topic for dead letters."""
    name = unique("grave")
    client.topics.create(name)
    return name


def work(client: msgtx.Client, topic: str, target: str, transform: Callable[[Any], Any], **options: Any) -> ProcessReport:
    """Process a topic to its end, in a group that has the output's name."""
    names = {"to": target, "group": target, "transactional_id": target}
    return client.process(topic, transform=transform, **names, **{"idle_timeout": 0.1, "failure": msgtx.Stop(), **options})


def half(record: Record) -> bytes:
    return b"%d" % (int(record.value or b"") // 2)


def halves(records: list[Record]) -> Iterable[bytes]:
    return (half(record) for record in records)


@pytest.mark.parametrize(("batch", "transform"), [(False, half), (True, halves)])
def test_a_record_that_fails_stops_the_worker_and_commits_nothing(
    run: Any, client: msgtx.Client, topic: str, read: Read, unique: Unique, batch: bool, transform: Any
) -> None:
    target = unique("stopped")
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the notes say which
        run(transform, target, batch=batch)
    place = f"{topic}-0 offsets 0 to 4" if batch else f"{topic}-0 offset 2"
    assert caught.value.__notes__ == [f"failed on {place}; its transaction was rolled back, with the offsets"]
    assert read(target) == []
    assert [at.offset for at in client.admin.groups.offsets(target).values()] == [0]
    assert client.admin.transactions.list(states=["Ongoing"]) == []


@pytest.mark.parametrize("batch", [False, True])
def test_a_value_that_cannot_be_deserialized_is_a_failure_of_its_record(
    run: Any, read: Read, grave: str, batch: bool
) -> None:
    def transform(given: Any) -> list[bytes]:
        return [b"%d" % (10 * record.value) for record in (given if batch else [given])]

    def read_number(value: bytes) -> int:
        return int(value.decode())  # once: a number has no decode

    report, target = run(transform, batch=batch, value_deserializer=read_number, failure=msgtx.DeadLetter(grave, 0))
    assert values(read(target)) == [b"10", b"20", b"40", b"50"]
    assert (report.failed, report.aborted) == (1, 0), "it is left out beside the others"
    (kept,) = read(grave)
    assert (kept.value, kept.key) == (b"poison", b"key 2")


def test_several_topics_are_processed_by_one_worker(
    client: msgtx.Client, topic: str, wide: str, output: str, read: Read
) -> None:
    store(client, topic, b"1")
    store(client, wide, b"2")
    names: Any = {"to": output, "group": output, "transactional_id": output, "transform": lambda record: record.value}
    assert client.process(topic, wide, idle_timeout=0.2, **names).records_in == 2
    assert sorted(values(read(output))) == [b"1", b"2"]
    with refuses(errors.ConfigError, name="partitions"):
        client.process(topic, wide, partitions=[0], **names)
    with refuses(errors.ConfigError, name="topics"):
        client.process(**names)


@pytest.mark.parametrize(("batch", "transform"), [(False, half), (True, halves)])
def test_a_record_that_fails_is_skipped_and_said_so_in_a_line(
    run: Any, client: msgtx.Client, topic: str, read: Read, caplog: pytest.LogCaptureFixture, batch: bool, transform: Any
) -> None:
    with caplog.at_level(logging.WARNING, "msgtx.process"):
        report, target = run(transform, batch=batch, failure=msgtx.Skip(0))
    assert values(read(target)) == [b"0", b"1", b"2", b"2"]
    assert (report.records_in, report.records_out, report.failed, report.aborted) == (5, 4, 1, 0)
    (line,) = [message for message in caplog.messages if "poison" in message]
    assert line.startswith(f"{topic}-0 offset 2: ValueError: invalid literal for int()")
    assert line.endswith("; skipped")
    assert "\n" not in line
    assert [at.offset for at in client.admin.groups.offsets(target).values()] == [5]


@pytest.mark.parametrize(("batch", "transform"), [(False, half), (True, halves)])
def test_a_record_that_fails_is_kept_in_another_topic_with_headers_that_say_why(
    run: Any, topic: str, grave: str, read: Read, batch: bool, transform: Any
) -> None:
    report, target = run(transform, batch=batch, failure=msgtx.DeadLetter(grave, 0))
    assert values(read(target)) == [b"0", b"1", b"2", b"2"]
    assert (report.records_in, report.records_out, report.failed) == (5, 5, 1)
    (kept,) = read(grave)
    assert (kept.value, kept.key) == (b"poison", b"key 2")
    assert abs(kept.timestamp - time.time() * 1000) < 60_000, "retention counts from now"
    headers = dict(kept.headers)
    assert (headers.pop("msgtx.dead-letter.reason") or b"").startswith(b"ValueError: invalid literal")
    for name in ("member", "time"):
        assert headers.pop(f"msgtx.dead-letter.{name}")
    assert headers == {
        "origin": b"shop",
        "msgtx.dead-letter.group": target.encode(),
        "msgtx.dead-letter.deliveries": b"1",
        "msgtx.dead-letter.topic": topic.encode(),
        "msgtx.dead-letter.partition": b"0",
        "msgtx.dead-letter.offset": b"2",
        "msgtx.dead-letter.timestamp": b"1002",
    }


def test_an_error_of_many_lines_and_odd_letters_is_one_line(
    run: Any, grave: str, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    def transform(record: Record) -> bytes:
        if record.value == b"poison":
            raise OSError("first\nsecond \udc80")
        return half(record)

    with caplog.at_level(logging.WARNING, "msgtx.process"):
        run(transform, failure=msgtx.DeadLetter(grave, 0))
    assert [message.count("\n") for message in caplog.messages] == [0]
    assert dict(read(grave)[0].headers)["msgtx.dead-letter.reason"] == rb"OSError: first second \udc80"


def test_dead_letters_are_of_the_same_transaction(run: Any, grave: str, read: Read) -> None:
    """An aborted transaction leaves no dead letter, and a retry leaves none twice."""
    attempts: list[list[bytes | None]] = []

    def transform(record: Record) -> bytes:
        if record.value == b"5" and len(attempts) < 2:
            attempts.append(values(read(grave)))
            raise errors.TransactionAborted("on purpose")
        return half(record)

    report, target = run(transform, failure=msgtx.DeadLetter(grave, 0))
    assert attempts == [[], []]
    assert values(read(grave)) == [b"poison"]
    assert values(read(target)) == [b"0", b"1", b"2", b"2"]
    assert (report.aborted, report.failed, report.records_in, report.records_out) == (2, 1, 5, 5)


def test_a_batch_is_one_call_and_its_records_are_tried_alone_only_when_it_fails(run: Any, read: Read) -> None:
    calls: list[list[bytes | None]] = []

    def transform(records: list[Record]) -> Iterable[OutputRecord]:
        calls.append(values(records))
        return [OutputRecord(half(record), key=record.key) for record in records]

    report, target = run(transform, batch=True, failure=msgtx.Skip(0))
    assert [call for call in calls if len(call) > 1] == [VALUES]
    assert [call for call in calls if len(call) == 1] == [[value] for value in VALUES]
    assert [record.key for record in read(target)] == [b"key 0", b"key 1", b"key 3", b"key 4"]
    assert report.failed == 1


def test_a_transform_may_empty_the_list_that_it_is_given(run: Any, grave: str, read: Read) -> None:
    def transform(records: list[Record]) -> list[bytes]:
        found = []
        while records:
            found.append(half(records.pop(0)))
        return found

    report, target = run(transform, batch=True, failure=msgtx.DeadLetter(grave, 0))
    assert (values(read(target)), values(read(grave))) == ([b"0", b"1", b"2", b"2"], [b"poison"])
    assert (report.records_in, report.records_out, report.failed) == (5, 5, 1)


def test_a_batch_may_give_one_record_many_or_none(run: Any, read: Read) -> None:
    found: dict[str, list[bytes | None]] = {}
    for name, transform in {
        "one": lambda records: b"%d" % len(records),
        "many": lambda records: [record.value for record in records for _ in range(2)],
        "none": lambda records: None,
    }.items():
        _, target = run(transform, batch=True)
        found[name] = values(read(target))
    assert found == {"one": [b"5"], "many": [value for value in VALUES for _ in range(2)], "none": []}


def test_what_a_transform_returns_is_looked_at_within_its_own_failure(run: Any, read: Read) -> None:
    """A generator fails while it is read; what it had yielded is dropped with its record."""

    def pieces(record: Record) -> Iterable[bytes]:
        yield b"before"
        yield half(record)

    report, target = run(pieces, failure=msgtx.Skip(0))
    assert values(read(target)) == [b"before", b"0", b"before", b"1", b"before", b"2", b"before", b"2"]
    assert report.failed == 1


@pytest.mark.parametrize("batch", [False, True])
def test_a_record_that_fails_is_tried_alone_until_it_succeeds(
    run: Any, client: msgtx.Client, topic: str, read: Read, unique: Unique, caplog: pytest.LogCaptureFixture, batch: bool
) -> None:
    """What comes before it is committed meanwhile; what comes behind it is done together again."""
    target = unique("retried")
    behind = [b"6", b"7", b"8", b"9", b"10"]
    store(client, topic, *behind)
    found: list[list[bytes | None]] = []

    def transform(given: Any) -> list[bytes | None]:
        records = given if batch else [given]
        if b"poison" in values(records) and len(found) < 5:
            found.append(values(read(target)))
            raise ConnectionError("mail server")
        return values(records)

    with caplog.at_level(logging.WARNING, "msgtx.process"):
        report, _ = run(transform, target, batch=batch, failure=msgtx.Retry(), transaction_ms=50_000)
    assert values(read(target)) == [*VALUES, *behind]
    assert found == [[], [b"1"], [b"1", b"2"], [b"1", b"2"], [b"1", b"2"]]
    assert (report.transactions, report.aborted, report.failed) == (4, 5, 0)
    assert caplog.messages == [f"{topic}-0 offset 2: ConnectionError: mail server; tried again in 0.1 s"], "one of a kind"


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("error", [psycopg.errors.DeadlockDetected(), ExceptionGroup("two", [psycopg.OperationalError()])])
def test_what_a_driver_could_not_do_for_now_is_nobodys_record(
    run: Any, read: Read, caplog: pytest.LogCaptureFixture, batch: bool, error: Exception
) -> None:
    """The transform asks a database by itself."""
    failures = [error]

    def transform(given: Any) -> Any:
        records = given if batch else [given]
        if failures and any(record.value == b"4" for record in records):
            raise ValueError("no price for this order") from failures.pop()
        return [record.value or b"" for record in records]

    with caplog.at_level(logging.WARNING, "msgtx.process"):
        report, target = run(transform, batch=batch, failure=msgtx.Skip(0))
    assert (values(read(target)), report.failed, report.aborted) == (VALUES, 0, 1)
    assert caplog.messages == []


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("failure", [msgtx.Skip(), msgtx.Stop()])
def test_an_outage_that_the_transform_meets_is_waited_for(run: Any, read: Read, batch: bool, failure: Any) -> None:
    calls: list[object] = []

    def transform(given: Any) -> list[bytes | None]:
        calls.append(given)
        if len(calls) < 4:
            raise errors.DatabaseUnavailable("of another client, for one")
        return values(given if batch else [given])

    report, target = run(transform, batch=batch, failure=failure)
    assert (values(read(target)), report.failed, report.aborted) == (VALUES, 0, 3)


@pytest.mark.parametrize("batch", [False, True])
def test_a_wrong_call_of_the_library_is_its_records_fault(
    run: Any, client: msgtx.Client, read: Read, grave: str, batch: bool
) -> None:
    """As in `process_into`: what a record names is not there, say."""

    def transform(given: Any) -> Iterable[bytes]:
        for record in given if batch else [given]:
            if record.value == b"poison":
                client.topics.describe("of which a record knows")
        return halves(given if batch else [given])

    report, target = run(transform, batch=batch, failure=msgtx.DeadLetter(grave, 0))
    assert (report.failed, values(read(grave)), len(read(target))) == (1, [b"poison"], 4)
    with pytest.raises(errors.UnknownTopicOrPartition) as caught:
        run(transform, batch=batch, failure=msgtx.Stop())
    assert "failed on" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("result", "complaint"), [("", "not str; encode it"), ("text", "not str; encode it"), ([b"1", 2], "not int")]
)
def test_what_is_no_output_is_an_error_of_the_transform(run: Any, result: Any, complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        run(lambda record: result)


def test_an_output_that_cannot_be_sent_is_not_tried_again(run: Any, topic: str) -> None:
    calls: list[Record] = []
    stop = threading.Event()

    def transform(record: Record) -> OutputRecord:
        calls.append(record)
        if len(calls) > 20:
            stop.set()
        return OutputRecord("text")  # type: ignore[arg-type]

    with pytest.raises(TypeError):
        run(transform, failure=msgtx.Stop(), stop=stop)
    assert len(calls) == len(VALUES)


def test_an_output_that_its_topic_refuses_is_not_tried_again(
    run: Any, client: msgtx.Client, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "RETRIES_IN_A_ROW", 1)
    calls: list[Record] = []
    target = unique("narrow")

    def transform(record: Record) -> bytes:
        if not calls:
            client.topics.alter(target, max_message_bytes=100)
        calls.append(record)
        return b"x" * 1_000

    with pytest.raises(errors.RecordTooLarge):
        run(transform, target)
    assert len(calls) == len(VALUES)


@pytest.mark.parametrize("failure", ["skip", msgtx.Skip, msgtx.Acknowledgement.REJECT])
def test_what_is_no_answer_to_a_failure_is_refused(client: msgtx.Client, topic: str, output: str, failure: Any) -> None:
    with refuses(errors.WrongType, name="failure"):
        work(client, topic, output, half, failure=failure)


@pytest.mark.parametrize("made", [msgtx.Retry, msgtx.Skip, lambda after: msgtx.DeadLetter("letters", after)])
def test_retries_are_a_number(made: Any) -> None:
    with refuses(errors.InvalidRequest, name="after"):
        made(-1)
    with refuses(errors.WrongType, name="after"):
        made("3")


def test_retries_of_a_worker_are_a_part_of_its_failure(client: msgtx.Client, topic: str, output: str) -> None:
    """They would be the producer's, and a record be tried for ever."""
    with refuses(errors.ConfigError, name="retries"):
        client.process(topic, to=output, group=topic, transactional_id=topic, transform=lambda record: None, retries=2)  # type: ignore[call-overload]


def test_a_target_that_is_the_source_is_refused(client: msgtx.Client, topic: str) -> None:
    """I16. The worker would read its own outputs for ever."""
    with refuses(errors.ConfigError, name="to", topic=topic):
        work(client, topic, topic, half)


@pytest.mark.parametrize("failure", [msgtx.Skip(1), msgtx.DeadLetter("letters", 1), msgtx.Retry(1)], ids=repr)
def test_a_record_is_tried_again_before_it_is_given_up(run: Any, client: msgtx.Client, read: Read, failure: Any) -> None:
    client.topics.create("letters", if_not_exists=True)
    tries: list[bytes | None] = []

    def transform(record: Record) -> bytes:
        tries.append(record.value)
        return half(record)

    if isinstance(failure, msgtx.Retry):
        with pytest.raises(ValueError):  # noqa: PT011 - of `half`
            run(transform, failure=failure)
    else:
        report, target = run(transform, failure=failure)
        assert (values(read(target)), report.failed) == ([b"0", b"1", b"2", b"2"], 1)
    assert tries.count(b"poison") == 5, "three times with others, alone, and once more"


def test_a_topic_for_dead_letters_that_is_not_there_is_refused_before_anything_is_read(
    client: msgtx.Client, topic: str, output: str
) -> None:
    with refuses(errors.UnknownTopicOrPartition, topic="nowhere"):
        work(client, topic, output, half, failure=msgtx.DeadLetter("nowhere"))


def test_a_topic_that_is_deleted_under_a_worker_ends_it(run: Any, client: msgtx.Client, topic: str) -> None:
    def transform(record: Record) -> bytes:
        if topic in client.topics.list():
            client.topics.delete(topic)
        return record.value or b""

    with pytest.raises(errors.UnknownTopicOrPartition):
        run(transform, idle_timeout=30.0)


def test_a_worker_that_is_stopped_ends_its_transaction_and_leaves_its_group(
    client: msgtx.Client, run: Any, read: Read
) -> None:
    stop = threading.Event()

    def transform(record: Record) -> bytes:
        stop.set()
        return record.value or b""

    report, target = run(transform, stop=stop, idle_timeout=None)
    assert values(read(target)) == VALUES[: report.records_in]
    assert client.admin.groups.members(target) == []
    assert client.admin.transactions.list(states=["Ongoing"]) == []


def test_a_worker_polls_more_each_time_while_its_transaction_has_time(client: msgtx.Client, topic: str, output: str) -> None:
    store(client, topic, *([b"1"] * 1_000))
    sizes: list[int] = []
    report = work(client, topic, output, lambda records: sizes.append(len(records)), batch=True, transaction_ms=50_000)
    assert (sizes[:3], sum(sizes), report.transactions) == ([100, 200, 400], 1_000, 1)


@pytest.mark.parametrize("ending", ["time", "stop"])
def test_a_transaction_ends_with_its_time_and_with_its_worker(
    client: msgtx.Client, topic: str, output: str, ending: str
) -> None:
    store(client, topic, *([b"1"] * 150))
    sizes: list[int] = []
    stop = threading.Event()

    def transform(records: list[Record]) -> None:
        sizes.append(len(records))
        if ending == "stop":
            stop.set()
        else:
            time.sleep(0.002)

    milliseconds = 50_000 if ending == "stop" else 1
    report = work(client, topic, output, transform, batch=True, transaction_ms=milliseconds, stop=stop)
    assert report.transactions == len(sizes)
    assert (report.records_in, len(sizes) > 1) == ((100, False) if ending == "stop" else (150, True))


@pytest.mark.parametrize("share_members", [None, 1])
def test_a_worker_ends_when_nothing_has_come_for_its_idle_timeout(
    client: msgtx.Client, topic: str, output: str, monkeypatch: pytest.MonkeyPatch, share_members: int | None
) -> None:
    """It begins anew when the work on an input has ended."""
    for module in (loop, shares):
        monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    if share_members:
        client.admin.shares.configure(output, {"auto_offset_reset": "earliest"})
    idle = 0.2
    options: dict[str, Any] = {"share_members": share_members, "transaction_ms": 1, "idle_timeout": idle}
    began = time.monotonic()
    work(client, topic, output, lambda record: None, **options)
    assert time.monotonic() - began >= idle
    handled: list[float] = []

    with client.producer(linger_ms=0) as producer:

        def slow(record: Record) -> None:
            time.sleep(idle)
            if not handled:
                producer.send(topic, b"2").result(30)
            handled.append(time.monotonic())

        first = threading.Timer(idle / 4, lambda: producer.send(topic, b"1"))  # behind some polls that bring nothing
        first.start()
        work(client, topic, output, slow, **options)
        first.join()
    assert len(handled) == 2
    assert time.monotonic() - handled[1] >= idle


@pytest.mark.parametrize("share_members", [None, 1])
def test_what_may_pass_is_tried_again_after_pauses_that_grow(
    client: msgtx.Client, topic: str, output: str, share_members: int | None
) -> None:
    if share_members:
        client.admin.shares.configure(output, {"auto_offset_reset": "earliest"})
    store(client, topic, b"1")
    tries: list[float] = []

    def transform(record: Record) -> None:
        tries.append(time.monotonic())
        if len(tries) < 4:
            raise errors.TransactionAborted("by a test")

    report = work(client, topic, output, transform, share_members=share_members)
    assert (report.transactions, report.aborted) == (1, 3)
    pauses = [after - before for before, after in itertools.pairwise(tries)]
    assert all(pause >= least for pause, least in zip(pauses, (0.05, 0.1, 0.15), strict=True))


def test_the_loop_takes_a_consumer_and_a_producer_of_ones_own(
    client: msgtx.Client, topic: str, output: str, read: Read
) -> None:
    failures = [errors.TransactionAborted("by a test")]

    def transform(record: Record) -> bytes | None:
        if failures:
            raise failures.pop()
        return record.value

    with (
        client.consumer(topic, group=topic, auto_offset_reset="earliest", enable_auto_commit=False) as consumer,
        client.producer(transactional_id=topic) as producer,
    ):
        with client.producer() as sender:
            sender.send_batch(topic, VALUES).result(30)
        worker = Worker(topic, transaction_ms=10, idle_timeout=0.1)
        report = process(consumer, producer, worker, to=output, transform=transform)
    assert (report.records_in, report.aborted) == (5, 1)
    assert values(read(output)) == VALUES


def test_records_and_outputs_go_before_the_garbage_collector_looks(client: msgtx.Client, topic: str, output: str) -> None:
    """With thousands of them at once it took a third of the time."""
    store(client, topic, *([b"value"] * 30_000))
    began = sum(generation["collections"] for generation in gc.get_stats())
    report = work(client, topic, output, lambda record: OutputRecord(record.value), idle_timeout=0.2)
    assert report.records_out == 30_000
    assert sum(generation["collections"] for generation in gc.get_stats()) - began < 20


def test_a_worker_that_never_got_past_its_first_record_has_lag(client: msgtx.Client, topic: str, output: str) -> None:
    """Its group has an offset before anything is handled, so that whoever watches lag hears of it."""
    store(client, topic, b"poison")

    def transform(record: Record) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work(client, topic, output, transform)
    assert client.admin.groups.describe(output).lag == 1


@pytest.mark.parametrize("share_members", [None, 1])
@pytest.mark.parametrize("in_a_row", [False, True])
def test_only_failures_without_a_commit_in_between_end_a_worker(
    client: msgtx.Client, topic: str, output: str, read: Read, monkeypatch: pytest.MonkeyPatch, in_a_row: bool,
    share_members: int | None,
) -> None:  # fmt: skip
    monkeypatch.setattr(failures, "RETRIES_IN_A_ROW", 2)
    if share_members:
        client.admin.shares.configure(output, {"auto_offset_reset": "earliest"})
    left = [b"1", b"2", b"3", b"4"]
    failed: list[bytes | None] = []

    def transform(record: Record) -> bytes | None:
        if failed.count(record.value) < (3 if in_a_row else 1):
            failed.append(record.value)
            raise errors.NotAssigned("the partition was taken away")
        return record.value

    with client.producer(linger_ms=0) as producer:

        def send_next(_: object = None) -> None:
            if left:
                producer.send(topic, left.pop(0)).result(30)

        options: dict[str, Any] = {"share_members": share_members, "idle_timeout": 0.3, "on_commit": send_next}
        send_next()
        if in_a_row:
            with pytest.raises(errors.NotAssigned) as caught:
                work(client, topic, output, transform, **options)
            assert failed == [b"1"] * 3
            assert [note.partition(",")[0] for note in caught.value.__notes__] == [
                f"at {topic}-0 offset 0; the transaction was rolled back"
            ]
        else:
            report = work(client, topic, output, transform, **options)
            assert (report.aborted, values(read(output))) == (4, [b"1", b"2", b"3", b"4"])


# ── outputs that are refused ──


def refused_outputs(missing: str) -> dict[str, Callable[[Record], Any]]:
    """What a transform may make of a poisoned record that its target refuses."""
    return {
        "too large": lambda record: bytes(2_000_000),
        "a topic that is not there": lambda record: OutputRecord(b"x", topic=missing),
        "a partition that is not there": lambda record: OutputRecord(b"x", partition=7),
        "a negative partition": lambda record: OutputRecord(b"x", partition=-1),
        "a partition that is text": lambda record: OutputRecord(b"x", partition="0"),  # type: ignore[arg-type]
        "a value that is text": lambda record: OutputRecord("x"),  # type: ignore[arg-type]
        "a key that is a number": lambda record: OutputRecord(b"x", key=7),  # type: ignore[arg-type]
        "a time before 1970": lambda record: OutputRecord(b"x", timestamp=-1),
        "a header that is no pair": lambda record: OutputRecord(b"x", headers=["a"]),  # type: ignore[list-item]
        "a header's name with NUL": lambda record: OutputRecord(b"x", headers=[("a\0", b"")]),
        "one behind others": lambda record: [b"first", b"second", OutputRecord(bytes(2_000_000))],
    }


REFUSALS: Final = list(refused_outputs(""))


WAYS: Final = [*itertools.product(REFUSALS, ["skip", "letter"]), *itertools.product(REFUSALS[:2], ["letter of a batch"])]


@pytest.mark.parametrize(("output", "way"), WAYS)
def test_a_record_whose_output_is_refused_is_set_aside_and_the_others_are_done(
    run: Any, grave: str, unique: Unique, read: Read, way: str, output: str
) -> None:
    odd = refused_outputs(unique("missing"))[output]
    skips, batch = way == "skip", "batch" in way

    def one(record: Record) -> Any:
        return odd(record) if record.value == b"poison" else half(record)

    report, target = run(
        (lambda records: [one(record) for record in records]) if batch else one,
        batch=batch,
        failure=msgtx.Skip(0) if skips else msgtx.DeadLetter(grave, 0),
    )
    assert values(read(target)) == [b"0", b"1", b"2", b"2"]
    assert (report.records_in, report.failed) == (5, 1)
    found = read(grave)
    assert [letter.value for letter in found] == ([] if skips else [b"poison"])
    for letter in found:
        assert dict(letter.headers)["msgtx.dead-letter.offset"] == b"2"
        name = (dict(letter.headers)["msgtx.dead-letter.reason"] or b"").partition(b":")[0].decode()
        assert name in {"RecordTooLarge", "UnknownTopicOrPartition", "WrongType", "InvalidRequest"}


def test_a_record_without_a_key_for_a_compacted_topic_is_set_aside(
    run: Any, client: msgtx.Client, output: str, grave: str, read: Read
) -> None:
    client.topics.alter(output, cleanup_policy="compact")
    report, _ = run(
        lambda record: OutputRecord(b"x", None if record.value == b"poison" else record.key, topic=output),
        failure=msgtx.DeadLetter(grave, 0),
    )
    assert (len(read(output)), values(read(grave)), report.failed) == (4, [b"poison"], 1)


def test_with_retry_a_record_waits_for_the_topic_of_its_output(
    run: Any, client: msgtx.Client, unique: Unique, read: Read
) -> None:
    late = unique("late")
    attempts: list[Record] = []

    def transform(record: Record) -> Any:
        if record.value != b"poison":
            return half(record)
        attempts.append(record)
        if len(attempts) == 3:
            client.topics.create(late)
        return OutputRecord(record.value, topic=late)

    report, target = run(transform, failure=msgtx.Retry(), idle_timeout=0.5)
    assert (values(read(late)), values(read(target)), report.records_in) == ([b"poison"], [b"0", b"1", b"2", b"2"], 5)


@pytest.mark.parametrize("retries", [False, True])
def test_a_missing_target_is_no_records_fault(
    client: msgtx.Client, topic: str, output: str, grave: str, retries: bool
) -> None:
    """Else every record became a dead letter."""
    store(client, topic, b"1")

    def transform(record: Record) -> bytes | None:
        client.topics.delete(output)
        return record.value

    failure = msgtx.Retry() if retries else msgtx.DeadLetter(grave, 0)
    with pytest.raises(errors.UnknownTopicOrPartition):
        work(client, topic, output, transform, idle_timeout=1, failure=failure)
    assert client.snapshot([grave]).ends == {msgtx.TopicPartition(grave, 0): 0}


@pytest.mark.parametrize("skips", [False, True])
def test_a_record_that_is_as_large_as_can_be_is_set_aside(
    client: msgtx.Client, topic: str, output: str, grave: str, read: Read, skips: bool
) -> None:
    """What a letter says beside its record is not counted."""
    limit = int(client.topics.describe(topic).settings["max_message_bytes"] or 0)
    store(client, topic, bytes(limit))

    def transform(record: Record) -> None:
        raise ValueError("\0" * 5_000)

    report = work(client, topic, output, transform, failure=msgtx.Skip(0) if skips else msgtx.DeadLetter(grave, 0))
    assert report.failed == 1
    assert [len(letter.value or b"") for letter in read(grave)] == ([] if skips else [limit])
