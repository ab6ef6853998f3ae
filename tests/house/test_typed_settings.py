"""A type checker knows settings, and the types of keys and values: what it lets pass is right, what it finds is wrong."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.sources import ROOT

pytestmark = pytest.mark.long

PROGRAM = """
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import assert_type

import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

import msgtx
from msgtx import aio


def book(session: Session, record: msgtx.Record) -> None: ...


def use(client: msgtx.Client, engine: sqlalchemy.Engine) -> None:
    client.producer(linger_ms="5ms", acks=1, transactional_id="t", batch_bytes="1MiB", retry_backoff_ms=timedelta(seconds=1))
    client.producer(linger_mss=5)  # wrong
    client.producer(transactional_id=7)  # wrong
    client.producer(acks="some")  # wrong
    client.consumer("orders", group="g", isolation="read_uncommitted", auto_offset_reset="none", session_timeout_ms="10s")
    client.consumer("orders", auto_offset_reset="erliest")  # wrong
    client.consumer(["orders"])  # wrong
    client.share_consumer("orders", group="g", acknowledgement_mode="explicit", session_timeout_ms="10s")
    client.share_consumer("orders", group="g", acknowledgement_mode="manual")  # wrong
    client.share_consumer("orders", group="g", isolation="read_committed")  # wrong
    client.admin.shares.configure("g", {"auto_offset_reset": "earliest", "record_lock_duration_ms": "5min"})
    client.admin.shares.configure("g", {"locks": 5})  # wrong
    client.topics.create("a", 3, if_not_exists=True, retention_ms="7d", retention_bytes=-1, cleanup_policy="compact")
    client.topics.create("a", partition=3)  # wrong
    client.topics.alter("a", retention_ms=None)  # wrong
    client.process("a", to="b", group="g", transactional_id="t", transform=lambda record: record.value, linger_ms=1)
    client.process("a", to="b", group="g", transactional_id="t", transform=lambda record: record.value, lingerms=1)  # wrong
    client.process_into(sessionmaker(engine), book, "a", group="g", group_instance_id="w1", idle_timeout="1min")
    client.process_into(sessionmaker(engine), book, "a", group="g", failure="ignore")  # wrong
    client.process_into(sessionmaker(engine), book, "a", group="g", failure=msgtx.DeadLetter("dead", after=5))
    client.process_into(sessionmaker(engine), book, "a", group="g", batch=True)  # wrong
    client.process_into(sessionmaker(engine), book, "a", group="g", failure=msgtx.Acknowledgement.ACCEPT)  # wrong
    client.process("a", to="b", group="g", transactional_id="t", transform=book, failure=msgtx.DeadLetter())  # wrong
    client.process_into(sessionmaker(engine), book, "a")  # wrong


async def use_in_a_loop(client: aio.Client) -> None:
    client.producer(linger_ms="5ms")
    client.producer(linger_mss=5)  # wrong
    await client.topics.create("a", 3, if_not_exists=True, retention_ms="7d")
    print(msgtx.__version__)


@dataclass
class Order:
    customer: str

    @classmethod
    def read(cls, value: bytes) -> "Order":
        return cls(value.decode())


def order(session: Session, record: msgtx.Record[bytes, Order]) -> None: ...


def orders(session: Session, records: list[msgtx.Record[bytes, Order]]) -> None: ...


def shared(session: Session, record: msgtx.ShareRecord[bytes, Order]) -> None: ...


def billed(record: msgtx.Record[str, Order]) -> Iterable[bytes]:
    return [] if record.key is None else [record.key.encode()]


async def later(session: AsyncSession, record: msgtx.Record[bytes, Order]) -> None: ...


def values(client: msgtx.Client, session: Session) -> None:
    consumer = client.consumer("orders")
    assert_type(consumer, msgtx.Consumer[bytes, bytes])
    for plain in consumer:
        assert_type(plain, msgtx.Record)
        assert_type(plain.value, bytes | None)
        plain.value.decode()  # wrong
    typed = client.consumer("orders", key_deserializer=bytes.decode, value_deserializer=Order.read)
    assert_type(typed, msgtx.Consumer[str, Order])
    for record in typed.poll("1s"):
        assert_type(record.key, str | None)
        assert_type(record.value, Order | None)
        record.value.customer  # wrong
        if record.value is not None:
            record.value.customer
    with typed.batch(session) as records:
        assert_type(records, list[msgtx.Record[str, Order]])
    for document in client.consumer("orders", value_deserializer=json.loads):
        document.value["cents"]  # wrong
        assert_type(document.key, bytes | None)
    client.consumer("orders", value_deserializer=Order)  # wrong
    for given in client.share_consumer("orders", group="g", value_deserializer=Order.read):
        assert_type(given, msgtx.ShareRecord[bytes, Order])
    members = client.share_consumer("orders", group="g", value_deserializer=Order.read)
    members.acknowledge(members.poll()[0])


def workers(client: msgtx.Client, engine: sqlalchemy.Engine) -> None:
    sessions = sessionmaker(engine)
    client.process_into(sessions, order, "orders", group="g", value_deserializer=Order.read)
    client.process_into(sessions, order, "orders", group="g", value_deserializer=bytes.decode)  # wrong
    client.process_into(sessions, order, "orders", group="g")  # wrong
    client.process_into(sessions, orders, "orders", group="g", batch=True)  # wrong
    client.process_into(sessions, book, "orders", group="g")
    client.process_into(sessions, order, "orders", group="g", batch=True, value_deserializer=Order.read)  # wrong
    client.process_into(sessions, orders, "orders", group="g", batch=True, value_deserializer=Order.read)
    client.process_into(sessions, orders, "orders", group="g", value_deserializer=Order.read)  # wrong
    client.process_into(sessions, shared, "orders", group="g", share_members=2, value_deserializer=Order.read)
    client.process_into(engine.connect, order, "orders", group="g", value_deserializer=Order.read)  # wrong
    client.process_into(sessions, lambda session, record: session.add(record), "orders", group="g")
    read = Order.read
    texts = bytes.decode
    client.process(
        "a", to="b", group="g", transactional_id="t", transform=billed, key_deserializer=texts, value_deserializer=read
    )
    client.process("a", to="b", group="g", transactional_id="t", transform=billed, value_deserializer=read)  # wrong
    client.process("a", to="b", group="g", transactional_id="t", transform=billed)  # wrong
    client.process("a", to="b", group="g", transactional_id="t", transform=billed, value_deserializer=str.encode)  # wrong
    client.process("a", to="b", group="g", transactional_id="t", transform=billed, batch=True)  # wrong


async def values_in_a_loop(client: aio.Client, sessions: async_sessionmaker[AsyncSession]) -> None:
    consumer = client.consumer("orders", value_deserializer=Order.read)
    assert_type(await consumer.poll(), list[msgtx.Record[bytes, Order]])
    async for record in client.share_consumer("orders", group="g"):
        assert_type(record, msgtx.ShareRecord)
    await client.process_into(sessions, later, "orders", group="g", value_deserializer=Order.read)
    await client.process_into(sessions, later, "orders", group="g", value_deserializer=bytes.decode)  # wrong
    await client.process_into(sessions, later, "orders", group="g")  # wrong
"""


def test_mypy_knows_what_there_is(tmp_path: Path) -> None:
    """With the settings and the cache of `make lint`: without them, mypy reads SQLAlchemy and the library first."""
    (tmp_path / "program.py").write_text(PROGRAM)
    ours = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    command = [sys.executable, "-m", "mypy", "--no-error-summary", *ours, "program.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    found = {int(line) for line in re.findall(r"^program\.py:(\d+): error", done.stdout, re.MULTILINE)}
    wrong = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")}
    assert found == wrong, done.stdout + done.stderr
