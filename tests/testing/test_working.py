"""`run_worker`: every kind of worker runs until nothing is left for its group."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import msgtx
from msgtx import aio
from msgtx.client import Client
from msgtx.testing import Clock, NothingLeft, dead_letters, run_worker, run_worker_async
from tests.testing import shop


@pytest.mark.parametrize("settings", [{}, {"share_members": 1}, {"share_members": 2}], ids=["group", "share", "two members"])
@pytest.mark.parametrize("way", ["sqlalchemy", "psycopg", "batch", "process"])
def test_a_worker_runs_until_nothing_is_left(msgtx_client: Client, msgtx_database: str, way: str, settings: dict[str, Any]):
    shop.order(msgtx_client, 20)

    def batch(session: Any, records: list[msgtx.Record]) -> None:
        for record in records:
            shop.book(session, record)

    @contextlib.contextmanager
    def opened() -> Iterator["psycopg.Connection[Any]"]:
        with psycopg.connect(shop.conninfo(msgtx_database)) as connection:
            yield connection

    arguments: dict[str, Any] = {
        "sqlalchemy": {"handler": shop.book},
        "psycopg": {"handler": shop.book_raw, "sessions": opened},
        "batch": {"handler": batch, "batch": True},
        "process": {"handler": lambda record: record.value, "to": "receipts"},
    }[way]
    handler = arguments.pop("handler")
    report = run_worker(msgtx_client, handler, "orders", group="revenue", **arguments, **settings)
    assert report.records_in == 20
    (shop.check_receipts if way == "process" else shop.check)(msgtx_client)


def test_a_worker_of_asyncio_runs_until_nothing_is_left(msgtx_client: Client, msgtx_database: str):
    shop.order(msgtx_client, 20)

    async def run() -> msgtx.ProcessReport:
        async with await aio.connect(msgtx_database) as client:
            return await run_worker_async(client, shop.book_async, "orders", group="revenue")

    assert asyncio.run(run()).records_in == 20
    shop.check(msgtx_client)


def test_a_worker_runs_again_for_what_came_since(msgtx_client: Client):
    for expected in (3, 6):
        shop.order(msgtx_client, 3)
        shop.worker(msgtx_client)
        assert len(shop.execute(msgtx_client, "select from revenue")) == expected


def test_records_on_which_the_handler_fails_are_dead_letters_at_its_end(msgtx_client: Client):
    shop.order(msgtx_client, 3)
    msgtx_client.topics.create("letters", partitions=1)

    def refuse(session: Any, record: msgtx.Record) -> None:
        if shop.identity(record) == "1":
            raise ValueError("one")
        shop.book(session, record)

    report = run_worker(msgtx_client, refuse, "orders", group="revenue", failure=msgtx.DeadLetter("letters", after=0))
    assert (report.records_in, report.failed) == (3, 1)
    assert [shop.identity(each) for each in dead_letters(msgtx_client, "revenue")] == ["1"]


def test_what_the_handler_raises_is_raised(msgtx_client: Client):
    shop.order(msgtx_client, 1)

    def refuse(session: Any, record: msgtx.Record) -> None:
        raise ValueError("one")

    with pytest.raises(ValueError, match="one"):
        run_worker(msgtx_client, refuse, "orders", group="revenue", failure=msgtx.Stop())


def test_a_record_that_is_not_due_is_not_left(msgtx_client: Client, msgtx_clock: Clock):
    with msgtx_client.producer() as producer:
        producer.send("orders", b'{"id": "0", "cents": 0}', delay_ms="1h").result(30)
    assert run_worker(msgtx_client, shop.book, "orders", group="revenue", share_members=1).records_in == 0
    msgtx_clock.move("2h")
    assert run_worker(msgtx_client, shop.book, "orders", group="revenue", share_members=1).records_in == 1


def test_a_share_group_that_begins_with_the_newest_record_is_left_as_it_is(msgtx_client: Client):
    shop.order(msgtx_client, 3)
    msgtx_client.admin.shares.configure("revenue", {"auto_offset_reset": "latest"})
    assert run_worker(msgtx_client, shop.book, "orders", group="revenue", share_members=1).records_in == 0
    shop.order(msgtx_client, 3)
    assert run_worker(msgtx_client, shop.book, "orders", group="revenue", share_members=1).records_in == 3


@pytest.mark.parametrize("way", ["rows", "records", "asyncio"])
def test_records_that_stay_are_told_of_with_the_error_of_the_worker(
    msgtx_client: Client, msgtx_database: str, impatient: shop.Impatient, way: str
):
    def refuse(*_: Any) -> None:
        impatient.call()
        raise ValueError("of the handler")

    async def refuse_async(*_: Any) -> None:
        refuse()

    async def run() -> None:
        async with await aio.connect(msgtx_database) as client:
            await run_worker_async(client, refuse_async, "orders", group="revenue")

    ways: dict[str, Callable[[], object]] = {
        "rows": lambda: run_worker(msgtx_client, refuse, "orders", group="revenue"),
        "records": lambda: run_worker(msgtx_client, refuse, "orders", group="revenue", to="receipts"),
        "asyncio": lambda: asyncio.run(run()),
    }
    shop.order(msgtx_client, 1)
    with pytest.raises(AssertionError, match=r"1 records left after 30s; the worker's last error: ValueError: of the") as it:
        ways[way]()
    assert isinstance(it.value.__cause__, ValueError)
    assert msgtx_client.runtime.observers.each == ()


def test_records_that_stay_are_told_of(msgtx_client: Client):
    shop.order(msgtx_client, 3)
    with msgtx_client.consumer("orders", group="revenue", enable_auto_commit=False) as consumer:
        consumer.poll(0)  # a member that has the partitions
        with pytest.raises(AssertionError, match="group 'revenue' has 3 records left after"):
            run_worker(msgtx_client, shop.book, "orders", group="revenue", timeout="0.1s")
        assert not NothingLeft(msgtx_client, "revenue", "orders").is_set()
