"""Threads go on after an error of PostgreSQL's that has no name in msgtx (internals: groups, shares)."""

import importlib
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

import msgtx
from msgtx.process import shares
from tests.client.steps import store
from tests.databases import wait_until

Broken = Callable[[str, str], list[None]]
QUICK: Any = {"heartbeat_interval_ms": 50, "session_timeout_ms": 6_000}


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Broken:
    """Have a function's first call fail; returns its calls so far."""

    def once(module: str, name: str) -> list[None]:
        calls: list[None] = []
        owner = importlib.import_module(module)
        *path, name = name.split(".")
        for each in path:
            owner = getattr(owner, each)
        works = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            calls.append(None)
            if len(calls) == 1:
                raise psycopg.errors.InternalError_("could not read a block")
            return works(*arguments, **named)

        monkeypatch.setattr(owner, name, call)
        return calls

    return once


def test_a_member_of_a_group_lives_on(client: msgtx.Client, topic: str, broken: Broken) -> None:
    beats = broken("msgtx.consumer.membership", "heartbeat")
    with client.consumer(topic, group=topic, **QUICK):
        wait_until(lambda: len(beats) > 2, "it says again that it lives")


def test_a_member_of_a_share_group_lives_on(client: msgtx.Client, topic: str, broken: Broken) -> None:
    beats = broken("msgtx.shares.member", "heartbeat")
    with client.share_consumer(topic, group=topic, **QUICK) as consumer:
        consumer.poll(0)
        wait_until(lambda: len(beats) > 2, "it says again that it lives")


def test_a_share_worker_goes_on_to_renew_its_locks(
    client: msgtx.Client, topic: str, broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else others would be given the record while it is handled."""
    monkeypatch.setattr(shares, "LOOK_AT_WORK_SECONDS", 0.02)
    client.admin.shares.configure(topic, {"auto_offset_reset": "earliest", "record_lock_duration_ms": 1_000})
    renewals = broken("msgtx.shares.answering", "Answering.renew")
    target = f"{topic}-to"
    client.topics.create(target)
    store(client, topic, b"a")

    def handle(_: msgtx.Record) -> None:
        wait_until(lambda: len(renewals) > 2, "the lock is renewed again")

    report = client.process(
        topic, to=target, transform=handle, group=topic, transactional_id=topic, share_members=1, idle_timeout=0.2
    )
    assert (report.transactions, report.aborted) == (1, 0)


def test_consumers_are_woken_after_all(client: msgtx.Client, topic: str, broken: Broken) -> None:
    tries = broken("msgtx.database.pool", "Engine.dedicated")
    with client.consumer(topic):
        wait_until(lambda: len(tries) > 1, "the listener connects again")
