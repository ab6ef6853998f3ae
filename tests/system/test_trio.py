"""A primary with synchronous standbys is lost, or stopped, under one client of each kind (I1, I5, I6, I9, I10, I17)."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

import msgtx
from tests.databases import connect
from tests.failovers.clients import Clients
from tests.failovers.servers import Servers, servers
from tests.histories.anomalies import Name
from tests.pooler import pooler

pytestmark = pytest.mark.long

KILLS: Final = 2
SESSIONS: Final = 15  # of the server, for all clients behind a pooler


@pytest.fixture
def trio() -> Iterator[Servers]:
    with servers(3) as found:
        yield found


def test_every_kind_of_client_goes_on_when_the_primary_is_killed_and_nothing_is_lost_doubled_or_torn(
    trio: Servers, make_database: Callable[..., str], tmp_path: Path
) -> None:
    """What one of two standbys has confirmed is on the one that has most. The old primary comes back as a standby."""
    clients = Clients(trio.on_all(trio.server.create_database()), make_database(), tmp_path)
    try:
        clients.start()
        for _ in range(KILLS):
            old = trio.kill()
            trio.promote()
            clients.await_answers(time.monotonic_ns())
            trio.rejoin(old)
            clients.await_answers(time.monotonic_ns())
        clients.finish()
        assert not clients.judge()
    finally:
        clients.close()


def test_every_kind_of_client_goes_on_through_a_switchover_and_back(
    make_database: Callable[..., str], tmp_path: Path
) -> None:
    """The clients' objects survive, and only a user's own session is told. Each primary comes back as a standby."""
    with servers(2) as pair:
        clients = Clients(pair.on_all(pair.server.create_database()), make_database(), tmp_path)
        try:
            clients.start()
            for _ in range(2):
                old = pair.stop()
                pair.promote()
                pair.rejoin(old)  # until then, no COMMIT is confirmed
                clients.await_answers(time.monotonic_ns())
            clients.finish()
            assert not clients.judge()
        finally:
            clients.close()


def test_every_kind_of_client_goes_on_behind_a_pooler_that_is_led_to_the_new_primary(
    make_database: Callable[..., str], tmp_path: Path
) -> None:
    """The primary is killed, and the next one is stopped in order; the clients' address stays the pooler's."""
    with contextlib.ExitStack() as ending:
        pair = ending.enter_context(servers(2))
        url = pair.server.create_database()
        running = ending.enter_context(pooler(url, size=SESSIONS))
        clients = Clients(running.url(url), make_database(), tmp_path)
        try:
            clients.start()
            for lose in (pair.kill, pair.stop):
                old = lose()
                pair.promote()
                running.lead_to(pair.on_primary(url))
                pair.rejoin(old)
                clients.await_answers(time.monotonic_ns())
            clients.finish()
            assert not clients.judge()
        finally:
            clients.close()


def test_what_is_missing_or_there_twice_is_found(make_database: Callable[..., str], tmp_path: Path) -> None:
    """Without a failover: the judge of the test above can see."""
    url, other = make_database(), make_database()
    clients = Clients(url, other, tmp_path)
    try:
        clients.start()
        clients.finish()
    finally:
        clients.close()
    assert not clients.judge()
    with connect(url) as connection:
        connection.execute("delete from row_handled where ctid = (select min(ctid) from row_handled)")
        connection.execute("insert into row_psycopg select * from row_psycopg limit 1")
        assert [each.name for each in clients.judge()] == [Name.ROW_SPLIT] * 2
        ((value, *_), *_) = connection.execute("select value from row_sqlalchemy").fetchall()
    with msgtx.connect(url) as client, client.producer() as producer:
        for topic, again in (("feed", b"idempotent/0"), ("copied", b"idempotent/0>copied"), ("published", value.encode())):
            producer.send(topic, again, partition=0).result(30.0)
    found = {each.name for each in clients.judge()}
    assert found >= {Name.ROW_SPLIT, Name.IMAGE, Name.DUPLICATE}, found
    with connect(url) as connection:
        connection.execute("delete from msgtx.record_batch where partition_id in (select partition_id from msgtx.partitions"
                           " where topic = 'spread') and base_offset = 0")  # fmt: skip
    found = {each.name for each in clients.judge()}
    assert found & {Name.TORN_TRANSACTION, Name.LOST_WRITE}, found
