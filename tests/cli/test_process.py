"""`msgtx process`."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from msgtx import Client
from tests.cli.program import Ended, Program
from tests.databases import Connection, wait_until

pytestmark = pytest.mark.slow

Msgtx = Callable[..., Ended]
JOBS = """
import os
import sqlalchemy
from sqlalchemy import orm
from msgtx import OutputRecord

def upper(record):
    return OutputRecord(record.value.upper(), key=record.key)

def twice(record):
    yield record.value
    yield record.value

def none(record):
    return None

def number(record):
    return b"%d" % record.value["id"]

def fails(record):
    if record.value == b"bad":
        raise KeyError("stock code")
    return record.value

def text(record):
    return "text"

def whole(records):
    return b"+".join(record.value for record in records)

def all_or_none(records):
    return [fails(record) for record in records]

def book(session, record):
    session.execute(sqlalchemy.text("insert into booked values (:value)"), {"value": record.value.decode()})
    if record.value == b"bad":
        raise KeyError("stock code")

def Sessions():
    return orm.Session(sqlalchemy.create_engine(os.environ["MSGTX_DATABASE_URL"].replace("://", "+psycopg://")))

class Shop:
    @staticmethod
    def sell(record):
        return record.value
"""


@pytest.fixture(autouse=True)
def _jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def process(msgtx: Msgtx, topic: str, wide: str) -> Callable[..., Ended]:
    """`process` from a topic to a wide one, to the end of the input."""

    def call(function: str, *options: str) -> Ended:
        ids = ("--group", topic, "--transactional-id", topic)
        return msgtx("process", topic, wide, function, *ids, "--idle-timeout", "0.1", *options)

    return call


def test_outputs_and_offsets_are_committed_together(msgtx: Msgtx, process: Msgtx, topic: str, wide: str) -> None:
    assert msgtx("produce", topic, stdin=b"a\nb\nc\n").code == 0
    assert json.loads(process("jobs:upper", "-o", "json").out)["records_out"] == 3
    assert process("jobs:upper", "-o", "jsonl").rows[0]["records_in"] == 0
    assert sorted(msgtx("consume", wide, "--from-beginning", "--no-follow").out.split()) == [b"A", b"B", b"C"]
    assert msgtx("consume", topic, "--group", topic, "--no-follow").out == b""


@pytest.mark.parametrize(("function", "count"), [("jobs:twice", 4), ("jobs:none", 0), ("jobs:Shop.sell", 2)])
def test_a_transform_gives_none_one_or_many(
    msgtx: Msgtx, process: Msgtx, topic: str, wide: str, function: str, count: int
) -> None:
    assert msgtx("produce", topic, stdin=b"a\nb\n").code == 0
    assert process(function, "-o", "jsonl").rows[0]["records_out"] == count


def test_only_the_partitions_that_are_named_are_read(msgtx: Msgtx, topic: str, wide: str) -> None:
    for partition in ("0", "1", "2"):
        assert msgtx("produce", wide, "--partition", partition, stdin=partition.encode()).code == 0
    ids = ("--group", wide, "--transactional-id", wide, "--partition", "0", "--partition", "2")
    assert msgtx("process", wide, topic, "jobs:upper", *ids, "--idle-timeout", "0.1").code == 0
    assert sorted(msgtx("consume", topic, "--from-beginning", "--no-follow").out.split()) == [b"0", b"2"]


@pytest.mark.parametrize(
    ("function", "code", "complaint"),
    [
        ("jobs:fails", 1, "jobs:fails failed on {topic}-0 offset 1: KeyError: 'stock code' (jobs.py:22)"),
        ("jobs:text", 1, "TypeError: a transform returns None, bytes, an OutputRecord or an iterable of them, not str"),
        ("jobs:missing", 2, "module 'jobs' has no function 'missing'"),
        ("jobs", 2, "is not MODULE:FUNCTION"),
        ("nowhere:f", 2, "there is no module 'nowhere'"),
        ("broken:f", 1, "module broken cannot be imported: ZeroDivisionError: division by zero (broken.py:1)"),
    ],
)
def test_a_transform_that_fails_is_named_and_commits_nothing(
    msgtx: Msgtx, process: Msgtx, topic: str, wide: str, function: str, code: int, complaint: str
) -> None:
    assert msgtx("produce", topic, stdin=b"good\nbad\n").code == 0
    process(function, "--on-error", "stop").refuses(complaint.format(topic=topic), code=code)
    assert msgtx("consume", wide, "--from-beginning", "--no-follow", "--isolation", "read_committed").out == b""
    assert msgtx("transactions", "list", "--state", "Ongoing", "-o", "jsonl").rows == []


@pytest.mark.parametrize(("function", "batch"), [("jobs:fails", ()), ("jobs:all_or_none", ("--batch",))])
def test_a_record_that_fails_is_left_out_and_said_so_in_one_line(
    program: Program, msgtx: Msgtx, topic: str, wide: str, function: str, batch: tuple[str, ...]
) -> None:
    assert msgtx("produce", topic, stdin=b"good\nbad\nbetter\n").code == 0
    ids = ("--group", topic, "--transactional-id", topic, "--idle-timeout", "0.1")
    done = program.run("process", topic, wide, function, *ids, "--on-error", "skip", "--retries", "0", "-o", "jsonl", *batch)
    assert (done.code, done.err) == (0, f"msgtx: {topic}-0 offset 1: KeyError: 'stock code'; skipped\n")
    (report,) = done.rows
    assert (report["records_in"], report["records_out"], report["failed"]) == (3, 2, 1)
    assert sorted(msgtx("consume", wide, "--from-beginning", "--no-follow").out.split()) == [b"better", b"good"]


def test_a_record_that_fails_is_kept_in_another_topic(
    program: Program, msgtx: Msgtx, client: Client, topic: str, wide: str
) -> None:
    grave = f"{topic}-grave"
    client.topics.create(grave)
    assert msgtx("produce", topic, stdin=b"good\nbad\n").code == 0
    ids = ("--group", topic, "--transactional-id", topic, "--idle-timeout", "0.1")
    options = ("--on-error", "dead-letter", "--dead-letter", grave, "--retries", "0")
    done = program.run("process", topic, wide, "jobs:fails", *ids, *options)
    assert (done.code, done.err) == (
        0,
        f"msgtx: {topic}-0 offset 1: KeyError: 'stock code'; became a dead letter at {grave}-0@0\n",
    )
    (kept,) = msgtx("consume", grave, "--from-beginning", "--no-follow", "-o", "jsonl").rows
    assert kept["value"] == "bad"
    assert "KeyError" in json.dumps(kept["headers"])


def test_deserializers_are_functions_of_modules(msgtx: Msgtx, process: Msgtx, topic: str, wide: str) -> None:
    assert msgtx("produce", topic, stdin=b'{"id": 1}\n').code == 0
    functions = ("--value-deserializer", "json:loads", "--key-deserializer", "jobs:none")
    assert process("jobs:number", *functions, "-o", "jsonl").rows[0]["records_out"] == 1
    assert msgtx("consume", wide, "--from-beginning", "--no-follow").out == b"1\n"


def test_a_batch_is_one_call(msgtx: Msgtx, process: Msgtx, topic: str, wide: str) -> None:
    assert msgtx("produce", topic, stdin=b"a\nb\nc\n").code == 0
    assert process("jobs:whole", "--batch", "-o", "jsonl").rows[0]["records_out"] == 1
    assert msgtx("consume", wide, "--from-beginning", "--no-follow").out == b"a+b+c\n"


def test_a_batch_that_fails_is_named_by_its_records(msgtx: Msgtx, process: Msgtx, topic: str) -> None:
    assert msgtx("produce", topic, stdin=b"good\nbad\n").code == 0
    done = process("jobs:all_or_none", "--batch", "--on-error", "stop")
    done.refuses(f"jobs:all_or_none failed on {topic}-0 offsets 0 to 1: KeyError: 'stock code'", code=1)


@pytest.mark.parametrize("options", [("--on-error", "dead-letter"), ("--on-error", "skip", "--dead-letter", "grave")])
def test_options_that_do_not_fit_together_are_refused(process: Msgtx, client: Client, options: tuple[str, ...]) -> None:
    if "--dead-letter" in options and "grave" not in client.topics.list():
        client.topics.create("grave")
    process("jobs:upper", *options).refuses("need each other")


@pytest.fixture
def booked(connection: Connection) -> Callable[[], list[str]]:
    connection.execute("create table if not exists booked (value text)")
    connection.execute("truncate booked")
    return lambda: [value for (value,) in connection.execute("select value from booked order by 1").fetchall()]


def test_records_become_rows_and_what_fails_is_retried_left_out_or_kept(
    program: Program, msgtx: Msgtx, client: Client, topic: str, booked: Callable[[], list[str]]
) -> None:
    grave = f"{topic}-grave"
    client.topics.create(grave)
    assert msgtx("produce", topic, stdin=b"good\nbad\nbetter\n").code == 0
    into = ("process", topic, "jobs:book", "--into", "jobs:Sessions", "--group", topic, "--idle-timeout", "0.1")
    stopped = program.run(*into, "--on-error", "stop")
    assert stopped.code == 1
    failed = f"jobs:book failed on {topic}-0 offset 1: KeyError: 'stock code' (jobs.py:"
    assert failed in stopped.err
    assert stopped.err.endswith("; its transaction was rolled back, with the offsets\n")
    given_up = program.run(*into, "--retries", "0")
    assert (given_up.code, failed in given_up.err, booked()) == (1, True, ["good"])
    done = program.run(*into, "--on-error", "dead-letter", "--dead-letter", grave, "--retries", "0", "-o", "jsonl")
    assert (done.code, done.err) == (
        0,
        f"msgtx: {topic}-0 offset 1: KeyError: 'stock code'; became a dead letter in {grave}"
        f" (msgtx find {topic} --offset 0:1)\n",
    )
    assert (done.rows[0]["records_in"], done.rows[0]["failed"]) == (2, 1)
    assert booked() == ["better", "good"]


def test_workers_of_a_share_group_divide_records_from_topic_to_topic(
    program: Program, msgtx: Msgtx, client: Client, topic: str, wide: str
) -> None:
    assert msgtx("produce", topic, stdin=b"good\nbad\nbetter\n").code == 0
    ids = (
        "--share-members",
        "2",
        "--auto-offset-reset",
        "earliest",
        "--group",
        topic,
        "--transactional-id",
        topic,
        "--idle-timeout",
        "0.5",
    )
    done = program.run("process", topic, wide, "jobs:fails", *ids, "--on-error", "dead-letter", "-o", "jsonl")
    letters = f"{topic}-dead-letters (msgtx find {topic} --offset 0:1)"
    told = f"msgtx: {topic}-0 offset 1: KeyError: 'stock code'; becomes a dead letter in {letters}\n"
    assert (done.code, done.err) == (0, told)
    (report,) = done.rows
    assert (report["records_in"], report["records_out"], report["failed"]) == (3, 2, 1)
    assert sorted(msgtx("consume", wide, "--from-beginning", "--no-follow").out.split()) == [b"better", b"good"]
    assert client.admin.shares.describe(topic).dead_letters == 1


def test_sigterm_ends_a_worker_behind_its_transaction(
    program: Program, client: Client, topic: str, booked: Callable[[], list[str]]
) -> None:
    with client.producer() as producer:
        for number in range(5):
            producer.send(topic, b"%d" % number)
    with program.start("process", topic, "jobs:book", "--into", "jobs:Sessions", "--group", topic) as process:
        wait_until(lambda: len(booked()) == 5, "it works")
        process.send_signal(signal.SIGTERM)
        assert program.ended(process).code == 0
    assert client.admin.groups.members(topic) == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("out", "jobs:book", "--into", "jobs:Sessions"), "--into writes rows: there is no TARGET"),
        (("jobs:book", "--into", "jobs:Sessions", "--transactional-id", "a"), "takes no --transactional-id"),
        (("jobs:book", "--into", "jobs:Nothing"), "has no function 'Nothing'"),
        (("jobs:book", "--into", "./jobs.py:Sessions"), "'./jobs.py:Sessions' is not MODULE:FUNCTION"),
        (("jobs:book",), "give SOURCE, TARGET and MODULE:FUNCTION"),
        (("out", "jobs:book"), "--transactional-id"),
        (
            ("out", "jobs:book", "--transactional-id", "a", "--retries", "1", "--on-error", "stop"),
            "--retries needs --on-error",
        ),
        (("jobs:book", "--into", "jobs:Sessions", "--on-error", "dead-letter"), "--dead-letter TOPIC need each other"),
        (("out", "jobs:upper", "--share-members", "1"), "--transactional-id"),
        (
            ("out", "jobs:upper", "--share-members", "1", "--transactional-id", "a", "--partition", "0"),
            "partitions is left out",
        ),
        (
            ("out", "jobs:upper", "--share-members", "1", "--transactional-id", "a", "--on-error", "skip"),
            "--share-members excludes",
        ),
    ],
)
def test_arguments_that_do_not_fit_the_kind_of_worker_are_refused(
    msgtx: Msgtx, topic: str, arguments: tuple[str, ...], complaint: str
) -> None:
    msgtx("process", topic, *arguments, "--group", topic).refuses(complaint)


def test_a_worker_that_is_asked_to_end_leaves_its_group_and_others_go_on_at_once(
    program: Program, client: Client, wide: str, topic: str
) -> None:
    """Its session would otherwise last 45 seconds."""

    def worker(name: str) -> tuple[str, ...]:
        return ("process", wide, topic, "jobs:upper", "--group", wide, "--transactional-id", f"{wide}-{name}")

    def owned() -> list[int]:
        return sorted(len(member.owned) for member in client.admin.groups.members(wide))

    with program.start(*worker("first")) as first, program.start(*worker("second")) as second:
        wait_until(lambda: owned() == [1, 2], "both have partitions")
        with client.producer() as producer, client.consumer(topic, auto_offset_reset="earliest") as reader:

            def written(count: int) -> set[bytes | None]:
                deadline = time.monotonic() + 20.0
                for partition in range(3):
                    producer.send(wide, b"%d %d" % (count, partition), partition=partition)
                found: set[bytes | None] = set()
                while len(found) < 3 and time.monotonic() < deadline:
                    found |= {record.value for record in reader.poll(0.1)}
                return found

            assert written(1) == {b"1 0", b"1 1", b"1 2"}
            first.send_signal(signal.SIGTERM)
            done = program.ended(first)
            assert (done.code, done.err) == (0, "")
            began = time.monotonic()
            assert written(2) == {b"2 0", b"2 1", b"2 2"}
            assert time.monotonic() - began < 10.0
            assert owned() == [3]
        second.send_signal(signal.SIGTERM)
        assert program.ended(second).code == 0
    assert client.admin.groups.members(wide) == []


def test_members_of_a_share_group_write_rows(
    program: Program, client: Client, topic: str, booked: Callable[[], list[str]]
) -> None:
    """A record that fails holds up no other, and is a dead letter of the group."""
    client.admin.shares.configure(topic, {"auto_offset_reset": "earliest"})
    with client.producer() as producer:
        producer.send_batch(topic, [b"a", b"bad", b"c"]).result()
    given = ("--into", "jobs:Sessions", "--group", topic, "--idle-timeout", "500ms", "-o", "json")
    done = program.run("process", topic, "jobs:book", *given, "--share-members", "2", "--on-error", "dead-letter")
    assert {name: json.loads(done.out)[name] for name in ("records_in", "failed")} == {"records_in": 3, "failed": 1}
    assert booked() == ["a", "c"]
    assert client.admin.shares.describe(topic).dead_letters == 1
