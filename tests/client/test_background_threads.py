"""Threads go on after an error of PostgreSQL's that has no name in msgtx (internals: groups, shares)."""

from typing import Any, Final

import psycopg
import pytest

import msgtx
from msgtx.process import shares
from tests.client.steps import listens, store
from tests.databases import wait_until
from tests.hooks import Hook

QUICK: Any = {"heartbeat_interval_ms": 50, "session_timeout_ms": 6_000}
BROKEN: Final = psycopg.errors.InternalError_("could not read a block")


@pytest.mark.parametrize("kind", ["consumer", "share consumer"])
def test_a_member_of_a_group_lives_on(client: msgtx.Client, topic: str, hook: Hook, kind: str) -> None:
    hook.at("before heartbeat_group", BROKEN, times=1)
    made: Any = client.consumer if kind == "consumer" else client.share_consumer
    with made(topic, group=topic, **QUICK) as consumer:
        consumer.poll(0)
        wait_until(lambda: hook.seen["before heartbeat_group"] > 2, "it says again that it lives")


def test_a_share_worker_goes_on_to_renew_its_locks(
    client: msgtx.Client, topic: str, output: str, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else others would be given the record while it is handled."""
    monkeypatch.setattr(shares, "LOOK_AT_WORK_SECONDS", 0.02)
    client.admin.shares.configure(topic, {"auto_offset_reset": "earliest", "record_lock_duration_ms": 1_000})
    hook.at("before acknowledge_records", BROKEN, times=1)
    store(client, topic, b"a")

    def handle(_: msgtx.Record) -> None:
        wait_until(lambda: hook.seen["before acknowledge_records"] > 2, "the lock is renewed again")

    report = client.process(
        topic, to=output, transform=handle, group=topic, transactional_id=topic, share_members=1, idle_timeout=0.2
    )
    assert (report.transactions, report.aborted) == (1, 0)


def test_consumers_are_woken_after_all(client: msgtx.Client, topic: str, hook: Hook) -> None:
    hook.at("connect", BROKEN, times=1, thread="msgtx-listener")
    with client.consumer(topic):
        listens(client)
