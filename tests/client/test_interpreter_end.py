"""The end of the interpreter: what was sent and not closed is stored, or its loss is told; nothing keeps a process."""

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

import msgtx
from msgtx import Outcome
from tests.databases import Connection, partitions_held, wait_until

pytestmark = pytest.mark.slow

Read = Callable[..., list[msgtx.Record]]
SECONDS = 30.0
BEGINNING = """
import logging, os, sys
import msgtx
from msgtx.producer import producer as room
logging.basicConfig(format="%(levelname)s %(message)s")
url, topic = sys.argv[1:]
"""
PROGRAMS = {
    "no close": """
producer = msgtx.connect(url).producer(linger_ms=60_000)
for number in range(5):
    producer.send(topic, b"%d" % number)
producer.send(topic, b"keyed", dedup_key="keyed")
""",
    "dropped": """
def send():
    producer = msgtx.connect(url).producer(linger_ms=60_000)
    for number in range(6):
        producer.send(topic, b"%d" % number)
send()
import gc; gc.collect()
""",
    "closed by its end": """
class Sender:
    def __init__(self):
        self.producer = msgtx.connect(url).producer(linger_ms=60_000)
        for number in range(6):
            self.producer.send(topic, b"%d" % number)
    def __del__(self):
        self.producer.close()
sender = Sender()
""",
    "sent by a handler that was registered before there was a producer": """
import atexit
client = msgtx.connect(url)
atexit.register(lambda: [producer.send(topic, b"%d" % number) for number in range(6)])
producer = client.producer(linger_ms=60_000)
""",
    "exits": """
producer = msgtx.connect(url).producer(linger_ms=60_000)
for number in range(6):
    producer.send(topic, b"%d" % number)
sys.exit(3)
""",
}


def run(program: str, url: str, topic: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", BEGINNING + program, url, topic], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_was_not_closed_is_stored(database_url: str, topic: str, read: Read, program: str) -> None:
    running = run(PROGRAMS[program], database_url, topic)
    _, said = running.communicate(timeout=SECONDS * 2)
    assert (running.returncode, said) == (3 if program == "exits" else 0, "")
    assert len(read(topic)) == 6


@pytest.mark.parametrize("program", ["no close", "closed by its end", "dropped"])
def test_what_cannot_be_stored_in_time_is_told(database_url: str, topic: str, connection: Connection, program: str) -> None:
    """Also a close in `__del__` waits no longer."""
    with partitions_held(connection, topic):
        running = run("room.EXIT_SECONDS = 0.5\n" + PROGRAMS[program], database_url, topic)
        _, said = running.communicate(timeout=SECONDS * 2)
    assert running.returncode == 0
    assert "WARNING" in said
    assert "6 records" in said
    assert "may be lost" in said


def test_an_open_transaction_is_aborted_and_told(
    database_url: str, topic: str, client: msgtx.Client, connection: Connection
) -> None:
    """It would hold readers up until its timeout."""
    program = """
producer = msgtx.connect(url).producer(transactional_id=topic)
producer.init_transactions()
print(producer.begin_transaction().id)
producer.send(topic, b"a").result(30)
"""
    running = run(program, database_url, topic)
    named, said = running.communicate(timeout=SECONDS * 2)
    assert running.returncode == 0
    assert f"transaction {named.strip()} is aborted" in said
    assert client.transaction_outcome(named.strip()) is Outcome.ABORTED


ASYNC = """
import asyncio
from msgtx import aio
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
import sqlalchemy

engine = create_async_engine(sqlalchemy.make_url(url).set(drivername="postgresql+psycopg"))
loop = asyncio.new_event_loop()

async def handler(session, record):
    loop.stop()
    await asyncio.sleep(3600)

async def main():
    client = await aio.connect(url)
    sessions = lambda: AsyncSession(engine)
    await client.process_into(sessions, handler, topic, group=topic, share_members=MEMBERS)

task = loop.create_task(main())
loop.run_forever()
END
"""


@pytest.mark.parametrize("end", ["", "loop.close()"])
@pytest.mark.parametrize("share", [False, True])
def test_a_worker_whose_event_loop_was_stopped_keeps_no_process(
    database_url: str, topic: str, client: msgtx.Client, end: str, share: bool
) -> None:
    client.admin.shares.configure(topic, {"auto_offset_reset": "earliest"}) if share else None
    with client.producer() as producer:
        producer.send(topic, b"a").result(SECONDS)
    program = ASYNC.replace("END", end).replace("MEMBERS", "2" if share else "None")
    began = time.monotonic()
    running = run(program, database_url, topic)
    running.communicate(timeout=SECONDS * 2)
    assert time.monotonic() - began < SECONDS


def test_a_worker_whose_event_loop_was_closed_leaves_its_group(database_url: str, topic: str, client: msgtx.Client) -> None:
    """In a process that goes on."""
    with client.producer() as producer:
        producer.send(topic, b"a").result(SECONDS)
    program: Any = ASYNC.replace("END", "loop.close()\ndel task\nimport time; time.sleep(3600)").replace("MEMBERS", "None")
    running = run(program, database_url, topic)
    try:
        wait_until(lambda: topic in [group.group for group in client.admin.groups.list()], "it has joined")
        wait_until(lambda: client.admin.groups.members(topic) == [], "it has left")
    finally:
        running.kill()
        running.communicate()
