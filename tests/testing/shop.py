"""A service under test: it takes orders from a topic, and books them as rows. In its right form, and with bugs."""

import json
import time
from typing import Any, Final

import psycopg
import sqlalchemy
from sqlalchemy import text

import msgtx
from msgtx.client import Client
from msgtx.database import address
from msgtx.testing import NothingLeft, assert_exactly_once, committed, run_worker

TABLE: Final = "create table revenue (id text, cents integer)"
SETUP: Final = "create table setting (name text primary key)"
ADD: Final = text("insert into revenue values (:id, :cents)")
ADD_RAW: Final = "insert into revenue values (%(id)s, %(cents)s)"


def open_shop(client: Client) -> None:
    """Make its topics and its table."""
    client.topics.create("orders", partitions=2)
    client.topics.create("receipts", partitions=2)
    execute(client, TABLE)
    execute(client, SETUP)


def execute(client: Client, statement: str) -> list[Any]:
    """Run a statement in a connection of its own."""
    engine = client.engine()
    try:
        with engine.begin() as connection:
            result = connection.execute(text(statement))
            return [*result] if result.returns_rows else []
    finally:
        engine.dispose()


def order(client: Client, count: int) -> None:
    """Send orders."""
    with client.producer() as producer:
        for number in range(count):
            producer.send("orders", json.dumps({"id": str(number), "cents": number}).encode(), key=b"%d" % number)


def identity(record: msgtx.Record) -> str:
    """Return what an order is known by."""
    return str(json.loads(record.value)["id"])


def check(client: Client) -> None:
    """Require one row for each order."""
    rows = execute(client, "select id from revenue")
    assert_exactly_once(committed(client, "orders"), rows, by=(identity, lambda row: row.id))


def check_receipts(client: Client) -> None:
    """Require one receipt for each order."""
    assert_exactly_once(committed(client, "orders"), committed(client, "receipts"), by=identity)


def book(session: Any, record: msgtx.Record) -> None:
    """Book an order, in a session of SQLAlchemy."""
    session.execute(ADD, json.loads(record.value))


def book_raw(connection: "psycopg.Connection[Any]", record: msgtx.Record) -> None:
    """Book an order, in a connection of psycopg."""
    connection.execute(ADD_RAW, json.loads(record.value))


async def book_async(session: Any, record: msgtx.Record) -> None:
    """Book an order, in an AsyncSession."""
    await session.execute(ADD, json.loads(record.value))


def worker(client: Client) -> None:
    """Book all orders."""
    run_worker(client, book, "orders", group="revenue")


def rows_first(client: Client) -> None:
    """Commit the row, then the offset: a bug."""
    with client.consumer("orders", group="revenue", enable_auto_commit=False, auto_offset_reset="earliest") as consumer:
        while not NothingLeft(client, "revenue", "orders").is_set():
            for record in consumer.poll(0.2):
                with engine_of(client).begin() as connection:
                    book(connection, record)
                consumer.commit({msgtx.TopicPartition(record.topic, record.partition): record.offset + 1})


class Impatient:
    """A clock of `run_worker`, by which its time is over when its handler is called again."""

    def __init__(self) -> None:
        self.calls = 0

    def call(self) -> None:
        """Take note of a call of the handler."""
        self.calls += 1

    def monotonic(self) -> float:
        """Return the time, as `time.monotonic` does."""
        return time.monotonic() + (3_600 if self.calls > 1 else 0)


def conninfo(url: str) -> str:
    """Return an address as psycopg reads it."""
    return address.conninfo(address.parse(url))


def engine_of(client: Client) -> sqlalchemy.Engine:
    """Return an engine whose connections end with the block that uses them."""
    return client.engine(poolclass=sqlalchemy.NullPool)
