"""A COMMIT that fails, as when the disk is full: in a pipeline its error comes when no answer to a call is expected."""

from collections.abc import Iterator

import pytest

import msgtx
from tests.databases import Connection

pytestmark = pytest.mark.slow

RECORDS = 400


@pytest.fixture
def failing(connection: Connection) -> Iterator[None]:
    """Every seventh COMMIT of an append fails."""
    for statement in (
        "create sequence commits",
        "create function fail() returns trigger language plpgsql security definer set search_path = public as $$ begin"
        " if nextval('commits') % 7 = 3 then"
        " raise exception using errcode = '53100', message = 'No space left on device'; end if; return null; end $$",
        "create constraint trigger fail after insert on msgtx.record_batch deferrable initially deferred"
        " for each row execute function fail()",
    ):
        connection.execute(statement)
    yield
    for kind in ("trigger fail on msgtx.record_batch", "function fail", "sequence commits"):
        connection.execute(f"drop {kind}".encode())


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("in_flight", [1, 2, 5])
def test_a_producer_loses_nothing_to_commits_that_fail(client: msgtx.Client, topic: str, in_flight: int) -> None:
    """I2, I5: each record is stored once, in order, and the connection is not used again half read."""
    with client.producer(linger_ms=0, batch_bytes=1, retry_backoff_ms=1, max_in_flight=in_flight) as producer:
        futures = [producer.send(topic, b"%d" % number, partition=0) for number in range(RECORDS)]
        assert [future.result(30).offset for future in futures] == list(range(RECORDS))
