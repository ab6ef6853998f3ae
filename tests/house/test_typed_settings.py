"""A type checker knows the names, types and values of settings: what it lets pass is right, what it finds is wrong."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.sources import ROOT

pytestmark = pytest.mark.long

PROGRAM = """
from datetime import timedelta

import sqlalchemy
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
    client.process_into(sessionmaker(engine), book, "a", group="g", failure=msgtx.DeadLetter("dead", after=5), batch=True)
    client.process_into(sessionmaker(engine), book, "a", group="g", failure=msgtx.Acknowledgement.ACCEPT)  # wrong
    client.process("a", to="b", group="g", transactional_id="t", transform=book, failure=msgtx.DeadLetter())  # wrong
    client.process_into(sessionmaker(engine), book, "a")  # wrong


async def use_in_a_loop(client: aio.Client) -> None:
    client.producer(linger_ms="5ms")
    client.producer(linger_mss=5)  # wrong
    await client.topics.create("a", 3, if_not_exists=True, retention_ms="7d")
    print(msgtx.__version__)
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
