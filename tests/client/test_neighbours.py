"""What others do on the same server: a notifying COMMIT of theirs may hang, and PostgreSQL lets one at a time through."""

import contextlib
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

import msgtx
from msgtx.coordinator.notifier import CLAIM_SECONDS
from tests.databases import PATIENCE_SECONDS, connect, wait_until
from tests.faults import CrashServer, crash_server

COMMITS = 20
TOO_LONG_SECONDS = 4.0


@pytest.fixture
def url() -> Iterator[str]:
    """A database whose sessions wait for no standby, on a server that lacks one."""
    with crash_server() as server:
        made = server.server.create_database()
        with server.server.administrator() as administrator:
            administrator.execute(f"alter database {made.rsplit('/', 1)[1]} set synchronous_commit = local")
            administrator.execute("alter system set synchronous_standby_names = 'away'")
            administrator.execute("select pg_reload_conf()")
        try:
            yield made
        finally:
            stand_by_for_nobody(server)


def stand_by_for_nobody(server: CrashServer) -> None:
    with server.server.administrator() as administrator:
        administrator.execute("set synchronous_commit = local")
        administrator.execute("alter system reset synchronous_standby_names")
        administrator.execute("select pg_reload_conf()")


@pytest.mark.long
def test_a_notifying_commit_that_hangs_holds_no_producer_up(url: str) -> None:
    with connect(url) as eye, connect(url) as neighbour, msgtx.connect(url) as client:
        eye.execute("create table business (number int)")
        client.topics.create("orders")

        def hang() -> None:
            with contextlib.suppress(psycopg.Error, msgtx.errors.MsgtxError), neighbour.transaction():
                neighbour.execute("set local synchronous_commit = on")
                neighbour.execute("insert into business values (1)")
                neighbour.execute("select pg_notify('theirs', '')")

        hanging, end = threading.Thread(target=hang), threading.Timer(TOO_LONG_SECONDS, neighbour.cancel_safe)
        with client.producer(transactional_id="id") as producer:
            with producer.transaction():
                producer.send("orders", b"before")
            hanging.start()
            end.start()
            wait_until(lambda: eye.execute("select from pg_stat_activity where wait_event = 'SyncRep'").rowcount)
            began = time.monotonic()
            for _ in range(COMMITS):
                time.sleep(2 * CLAIM_SECONDS)
                with producer.transaction():
                    producer.send("orders", b"beside")
            seconds = time.monotonic() - began
        neighbour.cancel_safe()
        end.cancel()
        hanging.join(PATIENCE_SECONDS)
        assert seconds < TOO_LONG_SECONDS / 2
