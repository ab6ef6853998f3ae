"""`every_boundary`: the bugs that workers have are found, right ones pass, and jobs of all kinds are run."""

import contextlib
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

import msgtx
from msgtx import aio
from msgtx.client import Client
from msgtx.testing import Faults, NothingLeft, Postgres, run_worker
from msgtx.testing.boundaries import BREAKS, Break
from tests.databases import wait_until
from tests.testing import shop

Job = Callable[[Client], object]


# ── workers that strangers write ──


def _polled(client: Client, **settings: Any) -> Iterator[tuple[Any, msgtx.Record]]:
    """Yield each order with its consumer, until nothing is left."""
    with client.consumer("orders", group="revenue", enable_auto_commit=False, **settings) as consumer:
        while not NothingLeft(client, "revenue", "orders").is_set():
            for record in consumer.poll(0.2):
                yield consumer, record


def offsets_first(client: Client) -> None:
    """Commit the offset, then the row."""
    for consumer, record in _polled(client, auto_offset_reset="earliest"):
        consumer.commit({msgtx.TopicPartition(record.topic, record.partition): record.offset + 1})
        with shop.engine_of(client).begin() as connection:
            shop.book(connection, record)


def on_another_connection(client: Client) -> None:
    """Write the row on a connection of its own, beside the session of the worker."""

    def book(session: Any, record: msgtx.Record) -> None:
        with shop.engine_of(client).begin() as connection:
            shop.book(connection, record)

    run_worker(client, book, "orders", group="revenue")


def swallowing(client: Client) -> None:
    """Go on after any error."""
    with client.consumer("orders", group="revenue", auto_commit_interval_ms=50, auto_offset_reset="earliest") as consumer:
        while not NothingLeft(client, "revenue", "orders").is_set():
            for record in consumer.poll(0.2):
                with contextlib.suppress(Exception), shop.engine_of(client).begin() as connection:
                    shop.book(connection, record)


def acknowledged_first(client: Client) -> None:
    """Accept a record of a share group, then write its row."""
    if not client.admin.shares.list():
        client.admin.shares.configure("revenue", {"auto_offset_reset": "earliest"})
    with client.share_consumer("orders", group="revenue") as consumer:
        while not NothingLeft(client, "revenue", "orders", share=True).is_set():
            for record in consumer.poll(0.2):
                consumer.commit()
                with shop.engine_of(client).begin() as connection:
                    shop.book(connection, record)


@pytest.mark.slow
@pytest.mark.parametrize("job", [shop.rows_first, offsets_first, on_another_connection, acknowledged_first, swallowing])
def test_the_bug_of_a_worker_is_found(msgtx_client: Client, msgtx_faults: Faults, job: Job):
    shop.order(msgtx_client, 2)
    with pytest.raises(AssertionError, match=r"of 2 inputs, \d (missing|more than once)") as raised:
        msgtx_faults.every_boundary(job, shop.check)
    assert "again: every_boundary" in str(raised.value)


@pytest.mark.slow
def test_a_side_effect_in_the_transaction_is_found(msgtx_client: Client, msgtx_faults: Faults, tmp_path: Path):
    """A file stands for a call of another service: it is not rolled back."""

    def sent() -> Path:
        return tmp_path / os.environ["MSGTX_DATABASE_URL"].partition("?")[0].rpartition("/")[2]

    def work(client: Client) -> None:
        def send(session: Any, record: msgtx.Record) -> None:
            with sent().open("a") as mails:
                mails.write(shop.identity(record) + "\n")
            shop.book(session, record)

        run_worker(client, send, "orders", group="revenue")

    def check(client: Client) -> None:
        shop.check(client)
        mails = sent().read_text().split()
        assert len(mails) == len({*mails}), f"mails were sent twice: {mails}"

    shop.order(msgtx_client, 2)
    with pytest.raises(AssertionError, match="mails were sent twice"):
        msgtx_faults.every_boundary(work, check, kinds=["killed"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", BREAKS)
@pytest.mark.parametrize("share", [False, True], ids=["group", "share"])
def test_a_right_worker_passes(msgtx_client: Client, msgtx_faults: Faults, kind: Break, share: bool):
    def work(client: Client) -> None:
        run_worker(client, shop.book, "orders", group="revenue", **({"share_members": 1} if share else {}))

    shop.order(msgtx_client, 2)
    assert msgtx_faults.every_boundary(work, shop.check, kinds=[kind]) > 4


# ── jobs of all kinds ──


def _simple(client: Client) -> None:
    """Make two calls that write, the second one the same whatever became of the first."""
    with shop.engine_of(client).begin() as connection:
        connection.exec_driver_sql("insert into setting values ('one') on conflict do nothing")


def _one_row(client: Client) -> None:
    assert len(shop.execute(client, "select from setting")) == 1


def _by_itself() -> None:
    with psycopg.connect(shop.conninfo(os.environ["MSGTX_DATABASE_URL"])) as connection:
        connection.execute("insert into setting values ('one') on conflict do nothing")


@pytest.mark.slow
def test_the_locks_of_a_zombie_stop_nobody(msgtx_faults: Faults) -> None:
    """Before its COMMIT it holds the key of its row: the next one waited for it, and the run never ended."""
    assert msgtx_faults.every_boundary(_by_itself, _one_row, kinds=["zombie"]) == 2


async def _awaited(client: aio.Client) -> None:
    async with client.async_engine().begin() as connection:
        await connection.exec_driver_sql("insert into setting values ('one') on conflict do nothing")


@pytest.mark.parametrize("job", [_simple, _by_itself, _awaited])
def test_a_job_is_a_function(msgtx_faults: Faults, job: Callable[..., object]):
    assert msgtx_faults.every_boundary(job, _one_row, kinds=["lost answer"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", BREAKS)
def test_a_job_is_a_program(msgtx_faults: Faults, tmp_path: Path, kind: Break):
    program = tmp_path / "worker.py"
    program.write_text(
        "import msgtx\n"
        "with msgtx.connect() as client, client.engine().begin() as connection:\n"
        "    connection.exec_driver_sql(\"insert into setting values ('one') on conflict do nothing\")\n"
    )
    assert msgtx_faults.every_boundary([sys.executable, str(program)], _one_row, kinds=[kind]) == 2


def test_a_job_that_writes_nothing_is_refused(msgtx_faults: Faults):
    with pytest.raises(AssertionError, match="has written nothing to the database"):
        msgtx_faults.every_boundary(lambda client: None, lambda client: None)


def test_a_job_or_a_check_that_fails_without_a_fault_is_told(msgtx_faults: Faults):
    def fail(client: Client) -> None:
        os.write(1, b"before it")
        raise ValueError("of its own")

    with pytest.raises(AssertionError, match=r"(?s)without any fault, the job ended with status 1.*before it.*of its own"):
        msgtx_faults.every_boundary(fail, _one_row)
    with pytest.raises(AssertionError, match="without any fault, the check failed with ValueError: of its own"):
        msgtx_faults.every_boundary(_simple, fail)


def test_what_a_job_has_said_comes_first(msgtx_client: Client, msgtx_faults: Faults, impatient: shop.Impatient):
    """A worker that tries again logs why, where pytest's handlers of the parent are deaf."""

    def commit(session: Any, record: msgtx.Record) -> None:
        impatient.call()
        session.commit()

    def work(client: Client) -> None:
        run_worker(client, commit, "orders", group="revenue")

    shop.order(msgtx_client, 1)
    with pytest.raises(AssertionError) as raised:
        msgtx_faults.every_boundary(work, shop.check)
    first, warned, *_ = str(raised.value).splitlines()
    assert first.startswith(
        "without any fault, the job ended with status 1: AssertionError: group 'revenue' has 1 records left"
    )
    assert "the worker's last error: IllegalState: the handler commits its session" in first
    assert re.match(r"  it warned: msgtx.process: orders-\d offset 0: IllegalState: the handler commits its session", warned)


def test_the_last_line_of_a_program_comes_first(msgtx_faults: Faults):
    with pytest.raises(AssertionError, match=r"the job ended with status 1: it printed at last: ValueError: of its own\n"):
        msgtx_faults.every_boundary([sys.executable, "-c", "print('before it'); raise ValueError('of its own')"], _one_row)
    with pytest.raises(AssertionError, match="the job ended with status 1: it printed at last: nothing"):
        msgtx_faults.every_boundary(["false"], _one_row)


def test_an_end_without_a_word_is_told(msgtx_faults: Faults):
    with pytest.raises(AssertionError, match="the job ended with status 3"):
        msgtx_faults.every_boundary(lambda client: os._exit(3), _one_row)


@pytest.mark.slow
def test_a_job_that_hangs_is_killed_with_its_stack(msgtx_faults: Faults, monkeypatch: pytest.MonkeyPatch):
    def hang() -> None:
        threading.Event().wait()

    monkeypatch.setattr("msgtx.testing.lives.LIFE_SECONDS", 3.0)
    with pytest.raises(AssertionError, match=r"(?s)did not end within 3 s; its stack:.* in hang"):
        msgtx_faults.every_boundary(hang, _one_row)


def test_one_boundary_is_run_again_by_its_name(msgtx_faults: Faults):
    assert msgtx_faults.every_boundary(_simple, _one_row, only=("killed", "COMMIT #1")) == 1


def test_all_runs_together_have_a_bound(msgtx_faults: Faults):
    with pytest.raises(AssertionError, match=r"0 runs in 0 s"):
        msgtx_faults.every_boundary(_simple, _one_row, timeout=0)


# Other runs may be on the same server.
OF_THE_RUN: Final = """
    select 'database', datname from pg_database where starts_with(datname, %(prefix)s)
    union all select 'role', rolname from pg_roles where starts_with(rolname, %(prefix)s)
    union all select 'session', pid::text from pg_stat_activity
    where starts_with(datname, %(prefix)s) or starts_with(application_name, %(prefix)s)
"""


def test_nothing_stays_behind(
    msgtx_server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, msgtx_database: str
) -> None:
    """No database, role or session on the server, no file, no thread, no process: also of a run that is interrupted."""

    def there() -> dict[str, set[object]]:
        with psycopg.connect(shop.conninfo(msgtx_server.url)) as connection:
            rows = connection.execute(OF_THE_RUN, {"prefix": msgtx_server.prefix}).fetchall()
        return {
            "server": {*rows},
            "files": {*tmp_path.iterdir()},
            "threads": {each.name for each in threading.enumerate()},
            "processes": {each for path in Path("/proc/self/task").glob("*/children") for each in path.read_text().split()},
        }

    def interrupt(client: Client) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = there()
    faults = Faults(msgtx_server, msgtx_database)
    with pytest.raises(KeyboardInterrupt):
        faults.every_boundary(_simple, interrupt)
    faults.close()
    # What has gone meanwhile was not left behind.
    wait_until(lambda: all(now <= before[kind] for kind, now in there().items()), "something stays")
