"""The kit as its users have it: a run of pytest of its own, in a folder that knows nothing of these tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.databases import Server
from tests.testing.runs import run_pytest

pytestmark = pytest.mark.slow

ORDERS: Final = '''
import json

import pytest
from msgtx.testing import NothingLeft, assert_exactly_once, committed, published, run_worker
from sqlalchemy import text


@pytest.fixture(scope="session")
def msgtx_prepare():
    def prepare(client):
        client.topics.create("orders", partitions=2)
        engine = client.engine()
        with engine.begin() as connection:
            connection.execute(text("create table revenue (id text, cents integer)"))
        engine.dispose()
    return prepare


def add(session, record):
    session.execute(text("insert into revenue values (:id, :cents)"), json.loads(record.value))


def order(client, count):
    with client.producer() as producer:
        for number in range(count):
            producer.send("orders", json.dumps({"id": str(number), "cents": number}).encode(), key=b"%d" % number)


def check(client):
    engine = client.engine()
    with engine.connect() as connection:
        rows = connection.execute(text("select id from revenue")).all()
    engine.dispose()
    assert_exactly_once(
        committed(client, "orders"), rows, by=(lambda record: json.loads(record.value)["id"], lambda row: row.id)
    )


def right(client):
    run_worker(client, add, "orders", group="revenue")


def wrong(client):
    """Commits the rows, then the offsets."""
    engine = client.engine()
    with client.consumer("orders", group="revenue", enable_auto_commit=False, auto_offset_reset="earliest") as consumer:
        while not NothingLeft(client, "revenue", "orders").is_set():
            for record in consumer.poll(0.2):
                with engine.begin() as connection:
                    add(connection, record)
                consumer.commit()
    engine.dispose()
'''


@pytest.fixture
def run(server: Server, tmp_path: Path) -> Callable[..., str]:
    """Run tests below the code above; returns what pytest printed."""

    def run(tests: str, *options: str) -> str:
        (tmp_path / "test_orders.py").write_text(ORDERS + tests)
        return run_pytest(tmp_path, f"--msgtx-url={server.superuser_url}", *options)

    return run


def test_a_worker_runs_until_nothing_is_left(run: Callable[..., str]):
    told = run("""
def test_revenue(msgtx_client):
    with published(msgtx_client, "orders") as found:
        order(msgtx_client, 10)
    assert len(found) == 10
    assert run_worker(msgtx_client, add, "orders", group="revenue").records_in == 10
    check(msgtx_client)


def test_each_test_has_a_database_of_its_own(msgtx_client):
    assert committed(msgtx_client, "orders") == []
""")
    assert "2 passed" in told, told


@pytest.mark.parametrize("kind", ["lost call", "lost answer", "killed", "zombie"])
def test_every_boundary_finds_the_bug_of_a_worker(run: Callable[..., str], kind: str):
    told = run(f"""
def test_right(msgtx_client, msgtx_faults):
    order(msgtx_client, 3)
    assert msgtx_faults.every_boundary(right, check, kinds=[{kind!r}]) > 8


def test_wrong(msgtx_client, msgtx_faults):
    order(msgtx_client, 3)
    with pytest.raises(AssertionError, match="of 3 inputs, .*(missing|more than once)"):
        msgtx_faults.every_boundary(wrong, check, kinds=[{kind!r}])
""")
    assert "2 passed" in told, told


def test_an_answer_is_lost(run: Callable[..., str]):
    told = run("""
def test_send(msgtx_client, msgtx_faults):
    with msgtx_client.producer() as producer:
        lost = msgtx_faults.lost_answer("append")
        producer.send("orders", b"1", partition=0).result(10)
    assert lost.fired.is_set()
    assert len(committed(msgtx_client, "orders")) == 1
""")
    assert "1 passed" in told, told


def test_a_loss_that_does_not_come_fails_its_test(run: Callable[..., str]):
    told = run("""
def test_typo(msgtx_client, msgtx_faults):
    msgtx_faults.lost_answer("apend")
    order(msgtx_client, 1)


def test_its_own_error(msgtx_faults):
    msgtx_faults.lost_answer("apend")
    raise ValueError("of its own")
""")
    assert "2 failed" in told, told
    assert "error" not in told.splitlines()[-1], told
    assert "FaultNotReached: no call 'apend' was lost; the calls that came: `init_producer_id`, `append`" in told
    assert told.count("E   msgtx.testing.boundaries.FaultNotReached: no call") == 1, told


@pytest.mark.slow
def test_boundaries_that_no_run_reached_are_shown(run: Callable[..., str]):
    tests = """
import os
import psycopg


@pytest.mark.parametrize("runs", [1, 5])
def test_it(msgtx_faults, tmp_path, runs):
    def work():
        with (tmp_path / "runs").open("a") as noted:
            noted.write(".")
        with psycopg.connect(os.environ["MSGTX_DATABASE_URL"].partition("?")[0], autocommit=True) as connection:
            connection.execute("insert into revenue values ('1')")
            if (tmp_path / "runs").stat().st_size <= runs:
                connection.execute("update revenue set id = '2'")

    msgtx_faults.every_boundary(work, lambda: None, kinds=["lost call", "lost answer"])
"""
    told = run(tests, "-n", "1")
    assert "1 failed, 1 passed" in told, told
    assert "FaultNotReached: no broken run came to `update revenue set id #1`" in told
    assert told.count("boundaries that no run came to") == 1
    summary = told.partition("boundaries that no run came to")[2].splitlines()
    assert [each for each in summary if each.startswith(("test_", "    "))] == [
        "test_orders.py::test_it[1]: 2",
        "    lost call: update revenue set id #1",
        "    lost answer: update revenue set id #1",
        "test_orders.py::test_it[5]: 1",
        "    lost answer: update revenue set id #1",
    ]
