"""A run of a job: its child processes, its database, and the kinds of checks."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from msgtx import aio, errors
from msgtx.client import Client
from msgtx.testing import FaultNotReached, Faults
from msgtx.testing.lives import named
from tests.databases import wait_until
from tests.refusals import refuses
from tests.testing import shop


def state(process: int) -> str:
    """Return the state of a process, as Linux has it: T is stopped; a process that is gone counts as a zombie, Z."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


@pytest.fixture
def job(msgtx_client: Client, tmp_path: Path) -> Callable[[], None]:
    """A job that starts another process, writes its number to the file `other`, and inserts a row."""

    def work() -> None:
        with subprocess.Popen(["sleep", "600"]) as other:
            (tmp_path / "other").write_text(str(other.pid))
            insert()
            other.kill()

    return work


def insert() -> None:
    with psycopg.connect(shop.conninfo(os.environ["MSGTX_DATABASE_URL"])) as connection:
        connection.execute("insert into setting values ('one') on conflict do nothing")


def test_a_job_stands_still_with_what_it_has_started(job: Callable[[], None], msgtx_faults: Faults, tmp_path: Path) -> None:
    with msgtx_faults.zombie(job, before="insert into setting"):
        other = int((tmp_path / "other").read_text())
        wait_until(lambda: state(other) == "T")
    wait_until(lambda: state(other) == "Z")


def test_a_job_is_killed_with_what_it_has_started(job: Callable[[], None], msgtx_faults: Faults, tmp_path: Path) -> None:
    msgtx_faults.killed(job, before="insert into setting")
    wait_until(lambda: state(int((tmp_path / "other").read_text())) == "Z")


def test_a_job_finds_no_standby_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSGTX_READ_URL", "postgresql:///standby")
    with named("postgresql:///copy"):
        assert os.environ["MSGTX_DATABASE_URL"] == "postgresql:///copy"
        assert "MSGTX_READ_URL" not in os.environ
    assert os.environ["MSGTX_READ_URL"] == "postgresql:///standby"


async def rows(client: aio.Client) -> int:
    engine = client.async_engine()
    try:
        async with engine.connect() as connection:
            return len((await connection.exec_driver_sql("select from setting")).all())
    finally:
        await engine.dispose()


def rows_later(client: aio.Client) -> object:
    return rows(client)


def test_a_check_is_a_coroutine_function(msgtx_faults: Faults) -> None:
    async def right(client: aio.Client) -> None:
        assert await rows(client) == 1

    async def wrong(client: aio.Client) -> None:
        assert await rows(client) == 2

    assert msgtx_faults.every_boundary(insert, right, kinds=["lost answer"]) == 2
    with pytest.raises(AssertionError, match="without any fault, the check failed with AssertionError"):
        msgtx_faults.every_boundary(insert, wrong, kinds=["lost answer"])
    with pytest.raises(AssertionError, match="returned an awaitable: write it with `async def`"):
        msgtx_faults.every_boundary(insert, rows_later, kinds=["lost answer"])


def test_only_one_run_is_made(msgtx_faults: Faults, tmp_path: Path) -> None:
    def noted() -> None:
        with (tmp_path / "lives").open("a") as lives:
            lives.write(".")
        insert()

    assert msgtx_faults.every_boundary(noted, lambda: None, only=("killed", "insert into setting #1")) == 1
    assert (tmp_path / "lives").read_text() == "..."  # without a fault, killed, and again


def test_only_one_run_that_there_is_not_is_refused(msgtx_faults: Faults) -> None:
    with refuses(FaultNotReached, call="COMMIT #2", calls=("insert into setting #1", "COMMIT #1")):
        msgtx_faults.every_boundary(insert, lambda: None, only=("killed", "COMMIT #2"))
    with refuses(errors.ConfigError, name="kinds"):
        msgtx_faults.every_boundary(insert, lambda: None, only=("drowned", "COMMIT #1"))  # type: ignore[arg-type]
