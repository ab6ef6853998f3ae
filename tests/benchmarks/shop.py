"""A shop whose every business transaction writes an order, and sends a message in one way; its sessions are processes."""

import functools
import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from multiprocessing.connection import Connection as Pipe
from typing import Any, Final

import psycopg
import sqlalchemy
from sqlalchemy import BigInteger, func, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from msgtx import orm
from msgtx.cli.programs import perf

SIZE: Final = 200  # bytes of a message
WARM_UP: Final = 20  # business transactions before those that count: statements are prepared, topics known
TABLES: Final = """
    create schema shop;
    create table shop.customer_order (
        id bigserial primary key, customer int not null, amount_cents bigint not null,
        placed_at timestamptz not null default now());
    create table shop.outbox (
        id bigserial primary key, topic text not null, key text, payload text not null,
        created_at timestamptz not null default now());
    create function shop.tell() returns trigger language plpgsql as 'begin notify shop_outbox; return null; end';
    create trigger tell after insert on shop.outbox for each statement execute function shop.tell();
    alter table shop.outbox disable trigger tell"""


class Base(DeclarativeBase):
    """The tables of the shop."""

    __table_args__ = {"schema": "shop"}  # noqa: RUF012 - SQLAlchemy's own form


class Order(Base):
    """The business row."""

    __tablename__ = "customer_order"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    customer: Mapped[int]
    amount_cents: Mapped[int]
    placed_at: Mapped[datetime] = mapped_column(server_default=func.now())


class OutboxRow(Base):
    """A message in the usual outbox."""

    __tablename__ = "outbox"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    topic: Mapped[str]
    key: Mapped[str | None]
    payload: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


# What a business transaction does for its message


def nothing(*_: object) -> None:
    """Send none, to measure the cost of the business row alone."""


def publish(session: Session, topic: str, key: str, value: bytes) -> None:
    orm.publish(session, topic, value, key=key.encode())


def function(session: Session, topic: str, key: str, value: bytes) -> None:
    session.execute(PUBLISH, {"topic": topic, "value": value.decode(), "key": key})


def outbox(session: Session, topic: str, key: str, value: bytes) -> None:
    session.add(OutboxRow(topic=topic, key=key, payload=value.decode()))


PUBLISH: Final = text("select msgtx.publish(:topic, value => :value, key => :key)")
SENDS: Final[Mapping[str, Callable[[Session, str, str, bytes], None]]] = {
    each.__name__: each for each in (nothing, publish, function, outbox)
}


def has_function(connection: psycopg.Connection[Any]) -> bool:
    """Whether messages can be sent in plain SQL."""
    return connection.execute("select to_regproc('msgtx.publish')").fetchall() != [(None,)]


# The sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What each session does: for `seconds`, or `count` transactions, at a `rate` if one is given."""

    url: str
    send: str  # of SENDS
    isolation: str
    topic: str
    seconds: float | None = None
    count: int = 0
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """A business transaction: the key of its message, when it began, when its commit had returned."""

    key: str
    began: float
    committed: float


class Sessions:
    """Processes, each with a SQLAlchemy engine and one session at a time."""

    def __init__(self, pipes: list[Pipe]) -> None:
        self._pipes = pipes

    def run(self, task: Task, *, sessions: int) -> tuple[list[Sent], list[Sent]]:
        """Let some of them do a task at the same time. Returns the transactions that count, and those of the warm-up."""
        pipes = self._pipes[:sessions]
        for pipe in pipes:
            pipe.send(task)
        warm = [sent for pipe in pipes for sent in pipe.recv()]
        begins = time.perf_counter() + 0.05
        for pipe in pipes:
            pipe.send(begins)
        return [sent for pipe in pipes for sent in pipe.recv()], warm


@contextmanager
def sessions(count: int) -> Iterator[Sessions]:
    """Start the processes and end them."""
    spawn = multiprocessing.get_context("spawn")  # a fork would copy held locks of threads
    pairs = [spawn.Pipe() for _ in range(count)]
    processes = [spawn.Process(target=work, args=(at, theirs), daemon=True) for at, (_, theirs) in enumerate(pairs)]
    for process in processes:
        process.start()
    for _, theirs in pairs:
        theirs.close()
    try:
        yield Sessions([ours for ours, _ in pairs])
    finally:
        for ours, _ in pairs:
            ours.close()
        for process in processes:
            process.join(2.0)
            process.terminate()


def work(at: int, pipe: Pipe) -> None:
    """Be one of the processes."""
    numbers = itertools.count()
    try:
        while True:
            task: Task = pipe.recv()
            pipe.send([_place(task, at, next(numbers)) for _ in range(WARM_UP)])
            begins: float = pipe.recv()
            time.sleep(max(0.0, begins - time.perf_counter()))
            pipe.send([_place(task, at, next(numbers)) for _ in _turns(task, begins)])
    except EOFError:
        return


def _turns(task: Task, begins: float) -> Iterator[object]:
    if task.rate is not None:
        yield from perf.paced(task.rate, task.count)
    elif task.seconds is None:
        yield from range(task.count)
    else:
        while time.perf_counter() < begins + task.seconds:
            yield None


def _place(task: Task, customer: int, number: int) -> Sent:
    key = f"{customer}-{number}"
    values = perf.payloads(1_000, SIZE)
    value = values[number % len(values)]
    began = time.perf_counter()
    with Session(_engine(task.url, task.isolation)) as session:
        session.add(Order(customer=customer, amount_cents=number))
        SENDS[task.send](session, task.topic, key, value)
        session.commit()
    return Sent(key, began, time.perf_counter())


@functools.cache
def _engine(url: str, isolation: str) -> sqlalchemy.Engine:
    address = sqlalchemy.make_url(url).set(drivername="postgresql+psycopg")
    return sqlalchemy.create_engine(address, isolation_level=isolation)
