"""`client.process`: records on which the transform fails, and batches of them."""

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

import pytest

import msgtx
from msgtx import OutputRecord, ProcessReport, Record, errors

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
        report = client.process(
            topic, to=target, group=target, transactional_id=target, transform=transform, **{"idle_timeout": 0.1, **options}
        )
        return report, target

    return call


def half(record: Record) -> bytes:
    return b"%d" % (int(record.value or b"") // 2)


def halves(records: list[Record]) -> Iterable[bytes]:
    return (half(record) for record in records)


def values(records: Iterable[Record]) -> list[bytes | None]:
    return [record.value for record in records]


@pytest.mark.parametrize(("batch", "transform"), [(False, half), (True, halves)])
def test_a_record_that_fails_stops_the_worker_and_commits_nothing(
    run: Any, client: msgtx.Client, read: Read, unique: Unique, batch: bool, transform: Any
) -> None:
    target = unique("stopped")
    with pytest.raises(ValueError, match="poison"):
        run(transform, target, batch=batch)
    assert read(target) == []
    assert client.admin.groups.offsets(target) == {}
    assert client.admin.transactions.list(states=["Ongoing"]) == []


@pytest.mark.parametrize(("batch", "transform"), [(False, half), (True, halves)])
def test_a_record_that_fails_is_skipped_and_said_so_in_a_line(
    run: Any, client: msgtx.Client, topic: str, read: Read, caplog: pytest.LogCaptureFixture, batch: bool, transform: Any
) -> None:
    with caplog.at_level(logging.WARNING, "msgtx.process"):
        report, target = run(transform, batch=batch, on_error="skip")
    assert values(read(target)) == [b"0", b"1", b"2", b"2"]
    assert (report.records_in, report.records_out, report.failed, report.aborted) == (5, 4, 1, 0)
    (line,) = [message for message in caplog.messages if "poison" in message]
    assert line.startswith(f"{topic}-0 offset 2: ValueError: invalid literal for int()")
    assert line.endswith("; skipped")
    assert "\n" not in line
    assert [at.offset for at in client.admin.groups.offsets(target).values()] == [5]


@pytest.mark.parametrize(("batch", "transform"), [(False, half), (True, halves)])
def test_a_record_that_fails_is_kept_in_another_topic_with_headers_that_say_why(
    run: Any, client: msgtx.Client, topic: str, unique: Unique, read: Read, batch: bool, transform: Any
) -> None:
    grave = unique("grave")
    client.topics.create(grave)
    report, target = run(transform, batch=batch, on_error="dead-letter", dead_letter=grave)
    assert values(read(target)) == [b"0", b"1", b"2", b"2"]
    assert (report.records_in, report.records_out, report.failed) == (5, 5, 1)
    (kept,) = read(grave)
    assert (kept.value, kept.key, kept.timestamp) == (b"poison", b"key 2", 1_002)
    headers = dict(kept.headers)
    assert (headers.pop("msgtx.error") or b"").startswith(b"ValueError: invalid literal")
    assert headers == {"origin": b"shop", "msgtx.topic": topic.encode(), "msgtx.partition": b"0", "msgtx.offset": b"2"}


def test_an_error_of_many_lines_and_odd_letters_is_one_line(
    run: Any, client: msgtx.Client, unique: Unique, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    def transform(record: Record) -> bytes:
        if record.value == b"poison":
            raise OSError("first\nsecond \udc80")
        return half(record)

    grave = unique("grave")
    client.topics.create(grave)
    with caplog.at_level(logging.WARNING, "msgtx.process"):
        run(transform, on_error="dead-letter", dead_letter=grave)
    assert [message.count("\n") for message in caplog.messages] == [0]
    assert dict(read(grave)[0].headers)["msgtx.error"] == rb"OSError: first second \udc80"


def test_dead_letters_are_of_the_same_transaction(
    client: msgtx.Client, run: Any, topic: str, unique: Unique, read: Read
) -> None:
    """An aborted transaction leaves no dead letter, and a retry leaves none twice."""
    grave = unique("grave")
    attempts: list[list[bytes | None]] = []

    def transform(record: Record) -> bytes:
        if record.value == b"5" and len(attempts) < 2:
            attempts.append(values(read(grave)))
            raise errors.TransactionAborted("on purpose")
        return half(record)

    client.topics.create(grave)
    report, target = run(transform, on_error="dead-letter", dead_letter=grave)
    assert attempts == [[], []]
    assert values(read(grave)) == [b"poison"]
    assert values(read(target)) == [b"0", b"1", b"2", b"2"]
    assert (report.aborted, report.failed, report.records_in, report.records_out) == (2, 1, 5, 5)


def test_a_batch_is_one_call_and_its_records_are_tried_alone_only_when_it_fails(run: Any, read: Read) -> None:
    calls: list[list[bytes | None]] = []

    def transform(records: list[Record]) -> Iterable[OutputRecord]:
        calls.append(values(records))
        return [OutputRecord(half(record), key=record.key) for record in records]

    report, target = run(transform, batch=True, on_error="skip")
    assert [call for call in calls if len(call) > 1] == [VALUES]
    assert [call for call in calls if len(call) == 1] == [[value] for value in VALUES]
    assert [record.key for record in read(target)] == [b"key 0", b"key 1", b"key 3", b"key 4"]
    assert report.failed == 1


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

    report, target = run(pieces, on_error="skip")
    assert values(read(target)) == [b"before", b"0", b"before", b"1", b"before", b"2", b"before", b"2"]
    assert report.failed == 1


def test_an_error_of_the_library_is_nobodys_record(run: Any) -> None:
    for batch in (False, True):

        def transform(given: Any) -> bytes:
            raise errors.DatabaseUnavailable("of another client, for one")

        with pytest.raises(errors.DatabaseUnavailable):
            run(transform, batch=batch, on_error="skip")


@pytest.mark.parametrize(
    ("on_error", "dead", "complaint"),
    [
        ("ignore", False, "on_error is stop, skip or dead-letter, not 'ignore'"),
        ("dead-letter", False, "need each other"),
        ("stop", True, "need each other"),
        ("skip", True, "need each other"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(
    client: msgtx.Client, topic: str, on_error: Any, dead: bool, complaint: str
) -> None:
    options = {"on_error": on_error, "dead_letter": topic if dead else None}
    with pytest.raises(errors.ConfigError, match=complaint):
        client.process(topic, to=topic, group=topic, transactional_id=topic, transform=half, idle_timeout=0, **options)


def test_a_topic_for_dead_letters_that_is_not_there_is_refused_before_anything_is_read(
    client: msgtx.Client, topic: str
) -> None:
    with pytest.raises(errors.UnknownTopicOrPartition, match="nowhere"):
        client.process(
            topic,
            to=topic,
            group=topic,
            transactional_id=topic,
            transform=half,
            on_error="dead-letter",
            dead_letter="nowhere",
        )


def test_a_topic_that_is_deleted_under_a_worker_ends_it(run: Any, client: msgtx.Client, topic: str) -> None:
    def transform(record: Record) -> bytes:
        if topic in client.topics.list():
            client.topics.delete(topic)
        return record.value or b""

    with pytest.raises(errors.UnknownTopicOrPartition, match="does not exist"):
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
