"""Incidents of docs/operations/runbook.md, provoked: what doctor says, what clients see, and that the remedy works."""

import contextlib
import logging
import os
import signal
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy.orm import Session

import msgtx
from msgtx import Finding, Level, errors
from msgtx.database.embedded import binaries
from msgtx.database.faults import fault_of
from tests.client.steps import SECONDS, values
from tests.databases import connect, wait_until
from tests.faults import CrashServer, crash_server

pytestmark = pytest.mark.long

XIDS_OF_SEGMENT = 32 * 8192 * 4  # of pg_xact
LEFT = 2_000_000  # transaction ids before the end; PostgreSQL stops at 3,000,000
PAGES = 64  # of the queue of notifications, the least


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[CrashServer]:
    """A server of a version whose queue of notifications may be small."""
    newest = max(binaries._wheel(), key=lambda found: found.major)
    monkeypatch.setenv("MSGTX_POSTGRES", str(newest.folder))
    with crash_server() as made:
        yield made


@pytest.fixture
def url(own: CrashServer) -> str:
    made = own.server.create_database()
    with msgtx.connect(made) as client:
        client.topics.create("t")
    return made


def finding(client: msgtx.Client, subject: str) -> Finding | None:
    return next((found for found in client.admin.doctor() if found.subject == subject), None)


def test_nothing_fails_when_the_queue_of_notifications_is_full(
    own: CrashServer, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A listener that connects meanwhile is refused by kind: its consumer polls, and no line is an error."""
    with own.server.administrator() as connection:
        connection.execute(f"alter system set max_notify_queue_pages = {PAGES}")
    own.crash()
    with (
        msgtx.connect(url) as client,
        contextlib.closing(connect(url)) as holder,
        connect(url) as other,
        client.producer() as producer,
        caplog.at_level(logging.DEBUG, "msgtx"),
        client.consumer("t", auto_offset_reset="earliest", fetch_max_wait_ms=60_000) as consumer,
    ):
        wait_until(lambda: consumer.poll(0.01) or consumer._waiter.notified, "notifications arrive")
        holder.execute("listen theirs")
        holder.execute("begin")
        holder.execute("select 1")
        with contextlib.suppress(psycopg.errors.ProgramLimitExceeded):
            for _ in range(2 * PAGES):
                other.execute("select pg_notify('theirs', repeat('x', 7000))")
        assert other.execute("select pg_notification_queue_usage()").fetchone() == (1.0,)
        full = finding(client, "notifications")
        assert full is not None
        assert (full.level, full.data["pids"]) == (Level.PROBLEM, [holder.info.backend_pid])
        producer.send("t", b"sent").result(SECONDS)
        assert values(consumer.poll(SECONDS)) == [b"sent"]
        engine = client.engine()
        with Session(engine) as session:
            msgtx.publish(session, "t", b"published")
            session.commit()
        engine.dispose()
        assert values(consumer.poll(SECONDS)) == [b"published"]
        with msgtx.connect(url) as late, late.consumer("t", auto_offset_reset="earliest") as reader:
            found: list[bytes | None] = []
            wait_until(lambda: found.extend(values(reader.poll(0.1))) or len(found) == 2, "it reads both")
            wait_until(lambda: refused(caplog), "its listener is refused")
            assert not reader._waiter.notified
        assert not errors_of(caplog)
        other.execute("select pg_terminate_backend(%s, 30000)", [holder.info.backend_pid])
        wait_until(lambda: finding(client, "notifications") is None, "the queue is empty")
        other.execute("notify theirs")


def refused(caplog: pytest.LogCaptureFixture) -> bool:
    """Whether a listener was refused, and tries again."""
    return any(record.getMessage().startswith("listening for wake-ups: ") for record in caplog.records)


def errors_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info]


def test_clients_wait_while_there_are_no_transaction_ids(
    own: CrashServer, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I1: a slot that nobody reads keeps VACUUM from freezing. What was sent meanwhile is stored after the remedy, once."""
    with own.server.administrator() as connection:
        connection.execute("alter system set wal_level = logical")
    own.crash()
    database = url.rpartition("/")[2]
    with own.server.administrator(database) as connection:
        connection.execute("select pg_create_logical_replication_slot('theirs', 'pgoutput')")
    with (
        msgtx.connect(url) as client,
        client.producer(retry_backoff_ms=5) as producer,
        client.producer(retry_backoff_ms=5, delivery_timeout_ms=200) as hasty,
    ):
        for each in (producer, hasty):
            each.send("t", b"before").result(SECONDS)
        use_up_transaction_ids(own)
        near = finding(client, "transaction ids")
        assert near is not None
        assert near.level is Level.PROBLEM
        assert finding(client, "slot theirs") is not None
        sent = producer.send("t", b"sent")
        with pytest.raises(errors.DeliveryTimeout, match="wraparound"):
            hasty.send("t", b"never").result(SECONDS)
        with (
            caplog.at_level(logging.DEBUG, "msgtx"),
            client.consumer("t", auto_offset_reset="earliest", enable_auto_commit=False) as reader,
        ):
            assert values(reader.poll(SECONDS)) == [b"before"] * 2
            wait_until(lambda: refused(caplog), "its listener is refused")
        assert not errors_of(caplog)
        assert not sent.done()
        with psycopg.connect(url) as session, pytest.raises(psycopg.errors.ProgramLimitExceeded) as theirs:
            session.execute("create table theirs ()")
        assert fault_of(theirs.value) is errors.Fault.OUTAGE  # a worker waits, too
        with own.server.administrator(database) as connection:
            connection.execute("select pg_drop_replication_slot('theirs')")
            databases = connection.execute("select datname from pg_database where datallowconn").fetchall()
        for (name,) in databases:
            with own.server.administrator(name) as connection:
                connection.execute("vacuum (freeze)")
        sent.result(SECONDS)
        assert values(client.read(client.snapshot(["t"]))) == [b"before", b"before", b"sent"]
        assert finding(client, "transaction ids") is None


def use_up_transaction_ids(own: CrashServer) -> None:
    """Stop the server in order, leave it only a few transaction ids, and start it again."""
    with own.server.administrator() as connection:
        oldest = connection.execute("select min(datfrozenxid::text::bigint) from pg_database").fetchone()
        assert oldest is not None
    assert own._process is not None
    assert own._wal_writer is not None
    own._process.send_signal(signal.SIGINT)
    os.kill(own._wal_writer, signal.SIGCONT)
    own._wal_writer = None
    own._process.wait(SECONDS)
    segment = (oldest[0] + 2**31 - LEFT) // XIDS_OF_SEGMENT
    program = own._program[0]
    assert not isinstance(program, str)
    options = ("-u", str(oldest[0]), "-x", str(segment * XIDS_OF_SEGMENT), "-D", own.home / "data")
    ended = own._user.run(program.parent / "pg_resetwal", *options, cwd=own.home)
    assert ended.returncode == 0, ended.stderr
    states = own.home / "data" / "pg_xact" / f"{segment:04X}"
    states.write_bytes(bytes(32 * 8192))
    own._user.own(states)
    own.start()
