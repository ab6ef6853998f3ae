"""The operator's verbs: producers of a partition, hanging transactions, doctor, metrics, verify."""

import signal
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from msgtx import Client
from tests.cli.program import Ended, Program
from tests.databases import Connection, Server, wait_until, waiting_backends

Msgtx = Callable[..., Ended]
SECONDS = 30.0


def test_the_producers_of_a_topic_are_shown(msgtx: Msgtx, client: Client, wide: str) -> None:
    with client.producer(transactional_id=wide) as producer:
        producer.begin_transaction()
        producer.send(wide, b"a", partition=0)
        producer.send(wide, b"b", partition=2)
        producer.flush(SECONDS)
        rows = msgtx("transactions", "describe-producers", wide, "-o", "jsonl").rows
        assert [(row["partition"], row["transaction_start_offset"]) for row in rows] == [(0, 0), (2, 0)]
        assert set(rows[0]) == {
            "partition", "producer_id", "epoch", "coordinator_epoch", "last_sequence", "last_timestamp",
            "transaction_start_offset",
        }  # fmt: skip
        one = msgtx("transactions", "describe-producers", wide, "--partition", "2", "-o", "jsonl").rows
        assert one == rows[1:]
        table = msgtx("transactions", "describe-producers", wide).out
        assert table.startswith(b"partition")
        assert len(table.splitlines()) == 3
        producer.abort_transaction()
    assert msgtx("transactions", "describe-producers", wide, "--partition", "3").code == 2
    assert msgtx("transactions", "describe-producers", "nowhere").code == 2


def test_hanging_transactions_are_shown_with_what_ends_them(msgtx: Msgtx, client: Client, topic: str) -> None:
    find = ("transactions", "find-hanging", "--topic", topic)
    with client.producer(transactional_id=topic) as producer:
        name = str(producer.begin_transaction().id)
        producer.send(topic, b"a")
        producer.flush(SECONDS)
        assert msgtx(*find, "-o", "jsonl").rows == []
        (row,) = msgtx(*find, "--max-transaction-timeout", "0", "-o", "jsonl").rows
        assert (row["topic"], row["partition"], row["transaction_id"], row["start_offset"]) == (topic, 0, name, 0)
        assert row["advice"] == f"`msgtx transactions abort {name}`"
        assert msgtx(*find, "--partition", "0", "--max-transaction-timeout", "0.5", "-o", "jsonl").rows == []
        assert f"abort {name}".encode() in msgtx(*find, "--max-transaction-timeout", "0").out
        assert msgtx("transactions", "abort", name, "--yes").code == 0
        assert msgtx(*find, "--max-transaction-timeout", "0", "-o", "jsonl").rows == []
    assert msgtx("transactions", "find-hanging", "--partition", "0").code == 2


# ── doctor ──


@pytest.fixture
def flushing(server: Server) -> Iterator[None]:
    """Let the tests' server flush for a while: otherwise doctor reports that as a problem."""
    with server.administrator() as administrator:

        def reload(statement: str, value: str) -> None:
            administrator.execute(statement)
            administrator.execute("select pg_reload_conf()")
            wait_until(lambda: administrator.execute("show fsync").fetchone() == (value,), "the server reads its settings")

        reload("alter system set fsync = on", "on")
        yield
        reload("alter system set fsync = off", "off")


@pytest.mark.usefixtures("flushing")
def test_doctor_ends_with_0_while_nothing_is_wrong_and_tells_what_is_open(msgtx: Msgtx, client: Client, topic: str) -> None:
    with client.producer(transactional_id=topic) as producer:
        name = str(producer.begin_transaction().id)
        producer.send(topic, b"a")
        producer.flush(SECONDS)
        done = msgtx("doctor", "-o", "jsonl")
        assert (done.code, done.err) == (0, "")
        (row,) = [row for row in done.rows if row["subject"] == f"{topic}-0"]
        assert set(row) == {"level", "subject", "text", "advice", "data"}
        assert row["level"] == "information"
        assert (row["data"]["transaction_id"], row["data"]["records_waiting"]) == (name, 1)
        table = msgtx("doctor", "--most", "1").out.decode()
        assert table.startswith("level")
        assert f"transaction {name} of '{topic}' is Ongoing for" in table
        assert f"`msgtx transactions abort {name}`" in table
        assert msgtx("doctor", "--level", "problem", "-o", "jsonl").rows == []


def test_doctor_ends_with_1_when_there_is_a_problem(
    msgtx: Msgtx, client: Client, topic: str, clock: Callable[..., None]
) -> None:
    with client.producer(transactional_id=topic, transaction_timeout_ms=10_000) as producer:
        producer.begin_transaction()
        producer.send(topic, b"a")
        producer.flush(SECONDS)
        clock("1 minute")
        done = msgtx("doctor", "--level", "problem", "-o", "jsonl")
        assert done.code == 1
        assert f"{topic}-0" in {row["subject"] for row in done.rows}
        assert {row["level"] for row in done.rows} == {"problem"}
        producer.abort_transaction()
    assert msgtx("doctor", "--most", "0").code == 2


# ── metrics ──


def test_metrics_are_printed_once_or_served_until_a_signal(msgtx: Msgtx, program: Program) -> None:
    done = msgtx("metrics")
    assert (done.code, done.err) == (0, "")
    assert "msgtx_database_up 1.0" in done.out.decode()
    with program.start("metrics", "--port", "0") as process:
        assert process.stderr is not None
        line = process.stderr.readline().decode()
        with urllib.request.urlopen(line.removeprefix("metrics at ").strip(), timeout=SECONDS) as page:  # noqa: S310 - our own
            assert "msgtx_database_up 1.0" in page.read().decode()
        process.terminate()
        assert program.ended(process).code == 0


# ── verify ──


def test_verify_ends_with_0_for_a_sound_topic_and_tells_what_it_read(msgtx: Msgtx, client: Client, wide: str) -> None:
    with client.producer(transactional_id=wide) as producer, producer.transaction():
        for i in range(30):
            producer.send(wide, b"%d" % i)
    done = msgtx("verify", wide, "-o", "jsonl")
    assert (done.code, done.err) == (0, "")
    (row,) = done.rows
    assert (row["partitions"], row["records"], row["transactions"], row["violations_found"]) == (3, 30, 1, 0)
    assert row["violations"] == []
    assert row["seconds"] > 0
    table = msgtx("verify", wide).out.decode()
    assert "records" in table
    assert msgtx("verify", "nowhere").code == 2
    assert msgtx("verify").code == 0


def test_verify_ends_with_1_and_names_what_is_wrong(
    msgtx: Msgtx, client: Client, topic: str, connection: Connection
) -> None:
    with client.producer() as producer:
        producer.send(topic, b"x").result(SECONDS)
    connection.execute(
        "update msgtx.record_batch set last_offset = 5 where partition_id ="
        " (select partition_id from msgtx.partition join msgtx.topic using (topic_id) where name = %s)",
        [topic],
    )
    done = msgtx("verify", topic, "-o", "jsonl")
    assert done.code == 1
    (row,) = done.rows
    named = {violation["check"]: violation for violation in row["violations"]}
    assert {"topic", "partition", "offset", "check", "promise", "expected", "found"} == set(named["last_offset"])
    assert (named["last_offset"]["topic"], named["last_offset"]["offset"], named["last_offset"]["promise"]) == (
        topic,
        0,
        "I2",
    )
    done = msgtx("verify", topic)
    assert done.code == 1
    assert b"as many offsets as records, 1" in done.out
    assert msgtx("topics", "delete", topic, "--yes").code == 0


def test_verify_is_interrupted_without_a_traceback(
    program: Program, topic: str, connection: Connection, open_connection: Callable[[], Connection]
) -> None:
    """It waits for a lock that the test holds, as it would for a long statement."""
    holder = open_connection()
    holder.autocommit = False
    holder.execute("lock table msgtx.record_batch")
    with program.start("verify", topic) as process:
        wait_until(lambda: waiting_backends(connection), "verify waits")
        process.send_signal(signal.SIGINT)
        done = program.ended(process)
    assert (done.code, done.out, done.err) == (130, b"", "")
    wait_until(lambda: not waiting_backends(connection), "its query is cancelled")
