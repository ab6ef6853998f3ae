"""Single faults: what a worker does then, and what the next one finds."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import msgtx
from msgtx import errors
from msgtx.client import Client, connect
from msgtx.testing import Clock, Faults, Postgres, run_worker
from msgtx.testing.server import embedded_server
from tests.refusals import refuses
from tests.testing import shop


def test_a_worker_is_killed_between_rows_and_offsets(msgtx_client: Client, msgtx_faults: Faults, msgtx_clock: Clock):
    shop.order(msgtx_client, 2)
    msgtx_faults.killed(shop.worker, between="rows and offsets")
    assert shop.execute(msgtx_client, "select from revenue") == []
    msgtx_clock.move("10m")
    shop.worker(msgtx_client)
    shop.check(msgtx_client)


@pytest.mark.slow
def test_a_wrong_worker_is_killed_between_rows_and_offsets(msgtx_client: Client, msgtx_faults: Faults, msgtx_clock: Clock):
    shop.order(msgtx_client, 2)
    msgtx_faults.killed(shop.rows_first, between="rows and offsets")
    msgtx_clock.move("10m")
    shop.rows_first(msgtx_client)
    with pytest.raises(AssertionError, match="of 2 inputs, 1 more than once"):
        shop.check(msgtx_client)


@pytest.mark.slow
@pytest.mark.parametrize("at", [{"before": "COMMIT"}, {"after": "insert into revenue"}, {"after": "commit"}])
def test_a_worker_is_killed_at_a_call(msgtx_client: Client, msgtx_faults: Faults, msgtx_clock: Clock, at: dict[str, Any]):
    shop.order(msgtx_client, 2)
    msgtx_faults.killed(shop.worker, **at)
    msgtx_clock.move("10m")
    shop.worker(msgtx_client)
    shop.check(msgtx_client)


def test_a_job_that_ends_before_its_fault_is_told(msgtx_client: Client, msgtx_faults: Faults):
    def insert(client: Client) -> None:
        shop.execute(client, "insert into setting values ('one')")

    with pytest.raises(AssertionError, match=r"ended before a call 'decide'; it made .*`insert into setting`"):
        msgtx_faults.killed(insert, before="decide")
    with refuses(errors.ConfigError, name="between"):
        msgtx_faults.killed(insert)


@pytest.mark.slow
def test_a_zombie_is_refused(msgtx_client: Client, msgtx_faults: Faults, msgtx_clock: Clock):
    shop.order(msgtx_client, 2)
    with msgtx_faults.zombie(shop.worker, before="commit_in_session"):
        msgtx_clock.move("10m")
        shop.worker(msgtx_client)
    shop.check(msgtx_client)


@pytest.mark.slow
def test_a_worker_goes_on_after_an_outage(msgtx_client: Client, msgtx_faults: Faults):
    shop.order(msgtx_client, 5)
    msgtx_faults.outage("0.3s")
    shop.worker(msgtx_client)
    shop.check(msgtx_client)


# ── a server of its own ──


@pytest.fixture(scope="module")
def own_server() -> Iterator[Postgres]:
    with embedded_server() as made:
        with made.making_template() as url, connect(url, create=True) as client:
            shop.open_shop(client)
        yield made


@pytest.fixture
def own_faults(own_server: Postgres) -> Iterator[Faults]:
    faults = Faults(own_server, own_server.copy())
    yield faults
    faults.close()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["crash_server", "failover"])
def test_a_worker_goes_on_after_the_loss_of_its_server(own_faults: Faults, fault: str):
    with connect(own_faults.url) as client:
        shop.order(client, 3)
        faulty: list[Callable[[], object]] = [getattr(own_faults, fault)]

        def book(session: Any, record: msgtx.Record) -> None:
            shop.book(session, record)
            if faulty:
                faulty.pop()()

        run_worker(client, book, "orders", group="revenue", timeout="60s")
        shop.check(client)


@pytest.mark.slow
def test_what_a_standby_has_not_got_is_lost(own_faults: Faults):
    with connect(own_faults.url) as client:
        shop.execute(client, "insert into setting values ('kept')")
        own_faults.failover(losing=lambda: shop.execute(client, "insert into setting values ('lost')"))
        assert shop.execute(client, "select name from setting") == [("kept",)]


def test_a_given_server_is_neither_crashed_nor_replaced(msgtx_faults: Faults):
    with refuses(errors.ConfigError, name="url"):
        msgtx_faults.crash_server()
    with refuses(errors.ConfigError, name="url"):
        msgtx_faults.failover()
