"""Workers on every kind of connection are killed between rows and offsets, and at COMMIT: both are there, or neither (I10).

`python -m tests.system.kills_of_drivers --kills 500 [NAME …]` prints what was seen. A worker is a process of its own. It
reports that a handler has written a row. Then it gets SIGKILL: while its handler stands still, or after a random moment, or
a random moment after its first COMMIT. A deferred trigger makes COMMITs slow, so that many of the kills come during one.
"""

import argparse
import asyncio
import enum
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Any, Final

import psycopg
import sqlalchemy

import msgtx
from msgtx import aio
from tests.databases import PATIENCE_SECONDS, as_djangos, connect, wait_until
from tests.sessions.conftest import application_url

COMMIT_SECONDS: Final = 0.01  # how long a COMMIT lasts
MOMENT_SECONDS: Final = 0.03  # the longest from a handler's word to the kill
ALWAYS_LEFT: Final = 200  # more records than a worker handles before its kill
INSERT: Final = "insert into killed_rows (worker, number) values ({}, {})"


class Moment(enum.Enum):
    """When a worker is killed."""

    IN_A_HANDLER = enum.auto()  # nothing of it is committed
    AT_RANDOM = enum.auto()
    AFTER_A_COMMIT = enum.auto()


MOMENTS: Final = tuple(Moment)


@dataclass(frozen=True)
class Task:
    """The work of a process. `wrote`: says that a row was written."""

    url: str
    topic: str
    wrote: Callable[[], object]
    idle_timeout: float | None

    @property
    def options(self) -> dict[str, Any]:
        """Of the worker: it comes back as the same member, and its transactions hold five records."""
        return {
            "group": self.topic,
            "group_instance_id": "the only one",
            "max_poll_records": 5 if self.idle_timeout is None else 500,
            "idle_timeout": self.idle_timeout,
        }

    def row(self, record: msgtx.Record) -> tuple[str, int]:
        return self.topic, int(record.value or b"")


def on_psycopg(task: Task) -> None:
    def handler(connection: psycopg.Connection, record: msgtx.Record) -> None:
        connection.execute(INSERT.format("%s", "%s"), task.row(record))
        task.wrote()

    with msgtx.connect(task.url) as client:
        client.process_into(lambda: psycopg.connect(task.url), handler, task.topic, **task.options)


def on_psycopg_async(task: Task) -> None:
    async def handler(connection: psycopg.AsyncConnection, record: msgtx.Record) -> None:
        await connection.execute(INSERT.format("%s", "%s"), task.row(record))
        task.wrote()

    _run_async(task, lambda: psycopg.AsyncConnection.connect(task.url), handler)


def on_asyncpg(task: Task) -> None:
    import asyncpg

    async def handler(connection: Any, record: msgtx.Record) -> None:
        await connection.execute(INSERT.format("$1", "$2"), *task.row(record))
        task.wrote()

    _run_async(task, lambda: asyncpg.connect(task.url), handler)


def _run_async(task: Task, factory: Callable[[], Any], handler: Callable[[Any, Any], Any]) -> None:
    async def main() -> None:
        async with await aio.connect(task.url) as client:
            await client.process_into(factory, handler, task.topic, **task.options)

    asyncio.run(main())


def on_django(task: Task) -> None:
    import django
    from django.conf import settings
    from django.core.management import call_command
    from django.db import connections

    databases = {
        "default": {"ENGINE": "django.db.backends.dummy"},
        "killed": {"CONN_MAX_AGE": None, **as_djangos(task.url)},
    }
    if settings.configured:  # in the parent of this process, by other tests
        connections.settings = connections.configure_settings(databases)
    else:
        settings.configure(INSTALLED_APPS=["msgtx.django"], DATABASES=databases, USE_TZ=True)
        django.setup()
    from msgtx.django import WorkerCommand

    class Command(WorkerCommand):
        topics = (task.topic,)
        group = task.topic
        using = "killed"

        def handle_record(self, record: msgtx.Record) -> None:
            with connections["killed"].cursor() as cursor:
                cursor.execute(INSERT.format("%s", "%s"), task.row(record))
            task.wrote()

    Command.settings = {name: value for name, value in task.options.items() if name != "group"}
    call_command(Command())


def on_flask_sqlalchemy(task: Task) -> None:
    from flask import Flask
    from flask_sqlalchemy import SQLAlchemy

    app = Flask("shop")
    app.config["SQLALCHEMY_DATABASE_URI"] = application_url(task.url)
    db = SQLAlchemy(app)

    def handler(_: Any, record: msgtx.Record) -> None:
        worker, number = task.row(record)
        db.session.execute(sqlalchemy.text(INSERT.format(":worker", ":number")), {"worker": worker, "number": number})
        task.wrote()

    with app.app_context(), msgtx.connect(task.url) as client:
        client.process_into(lambda: db.session, handler, task.topic, **task.options)


def on_sqlmodel(task: Task) -> None:
    from sqlmodel import Session

    engine = sqlalchemy.create_engine(application_url(task.url))

    def handler(session: Any, record: msgtx.Record) -> None:
        worker, number = task.row(record)
        session.exec(sqlalchemy.text(INSERT.format(":worker", ":number")), params={"worker": worker, "number": number})
        task.wrote()

    with msgtx.connect(task.url) as client:
        client.process_into(lambda: Session(engine), handler, task.topic, **task.options)


WORKERS: Final[dict[str, Callable[[Task], None]]] = {
    "psycopg": on_psycopg,
    "psycopg-async": on_psycopg_async,
    "asyncpg": on_asyncpg,
    "django": on_django,
    "flask-sqlalchemy": on_flask_sqlalchemy,
    "sqlmodel": on_sqlmodel,
}


@dataclass(frozen=True)
class Seen:
    """What was seen. `done`: workers that had committed something; `torn`: how often rows and offsets did not agree."""

    kills: int
    done: int
    torn: int
    rows: int
    twice: int
    missing: int


def run(name: str, url: str, *, kills: int, seed: int = 0) -> Seen:
    """Kill workers of one kind so often, then let one work to the end."""
    chance = random.Random(seed)
    topic = f"killed-{name}"
    with connect(url) as connection, msgtx.connect(url) as client:
        _prepare(connection)
        client.topics.create(topic)
        torn = done = before = count = 0
        for turn in range(kills):
            if count < before + ALWAYS_LEFT:
                with client.producer() as producer:
                    producer.send_batch(topic, [b"%d" % number for number in range(count, count + ALWAYS_LEFT)])
                count += ALWAYS_LEFT
            _kill(name, url, topic, connection, MOMENTS[turn % len(MOMENTS)], after=chance.uniform(0, MOMENT_SECONDS))
            rows, offset = _look(connection, topic)
            torn += rows != offset
            done += rows > before
            before = rows
        connection.execute("drop trigger slow on killed_rows")
        _start(name, url, topic, None, PATIENCE_SECONDS / 10).join()
        rows, _ = _look(connection, topic)
        ((different,),) = connection.execute(
            "select count(distinct number) from killed_rows where worker = %s", [topic]
        ).fetchall()
    return Seen(kills, done, torn, rows, twice=rows - different, missing=count - different)


def _prepare(connection: Any) -> None:
    connection.execute("create table if not exists killed_rows (worker text, number int)")
    connection.execute(
        "create or replace function slow() returns trigger language plpgsql as"
        f" 'begin perform pg_sleep(random() * {COMMIT_SECONDS}); return null; end'"
    )
    connection.execute(
        "create constraint trigger slow after insert on killed_rows deferrable initially deferred"
        " for each row when (new.number % 5 = 0) execute function slow()"
    )


def _look(connection: Any, topic: str) -> tuple[int, int]:
    """Return the number of rows and the group's offset, in one statement."""
    ((rows, offset),) = connection.execute(
        "select (select count(*) from killed_rows where worker = %s),"
        " (select coalesce(max(o.committed_offset), 0) from msgtx.group_offsets o where o.group_name = %s)",
        [topic, topic],
    ).fetchall()
    return rows, offset


def _is_quiet(connection: Any) -> bool:
    """Whether no session is in the middle of something: one that commits goes on without its client."""
    ((quiet,),) = connection.execute(
        "select not exists (select from pg_stat_activity where datname = current_database()"
        " and pid <> pg_backend_pid() and state <> 'idle')"
    ).fetchall()
    return bool(quiet)


def _kill(name: str, url: str, topic: str, connection: Any, moment: Moment, *, after: float) -> None:
    before = _look(connection, topic)
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = _start(name, url, topic, theirs, None, stands_still=moment is Moment.IN_A_HANDLER)
    theirs.close()
    assert ours.poll(PATIENCE_SECONDS), f"{name}: the worker handles nothing"
    ours.recv_bytes()  # it raises if the worker has ended
    if moment is Moment.AFTER_A_COMMIT:
        wait_until(lambda: _look(connection, topic) != before, f"{name}: a COMMIT")
    time.sleep(after)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    ours.close()
    wait_until(lambda: _is_quiet(connection), f"{name}: the sessions of a killed worker end")


def _start(
    name: str, url: str, topic: str, pipe: Pipe | None, idle_timeout: float | None, *, stands_still: bool = False
) -> Any:
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_work, args=(name, url, topic, pipe, idle_timeout, stands_still))
    process.start()
    return process


def _work(name: str, url: str, topic: str, pipe: Pipe | None, idle_timeout: float | None, stands_still: bool) -> None:
    said: list[bool] = []

    def wrote() -> None:
        if pipe is not None and not said:
            said.append(True)
            pipe.send_bytes(b"x")
            while stands_still:
                signal.pause()

    WORKERS[name](Task(url, topic, wrote, idle_timeout))


def main() -> int:
    """Run the kinds that are named, or all, on a server of their own."""
    from msgtx.database import embedded
    from tests.databases import scratch, use_server

    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=list(WORKERS))
    parser.add_argument("--kills", type=int, default=500)
    given = parser.parse_args()
    os.environ["MSGTX_HOME"] = str(scratch("msgtx-kills-"))
    embedded.start()
    server = use_server(embedded.superuser_url())
    bad = 0
    for name in given.names:
        began = time.monotonic()
        seen = run(name, server.create_database(schema=True), kills=given.kills)
        bad += seen.torn + seen.twice + seen.missing
        print(f"{name}: {seen} in {time.monotonic() - began:.0f} s", flush=True)  # noqa: T201 - a program
    embedded.stop()
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
