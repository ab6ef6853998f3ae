"""Fixtures of the tests of the public interface."""

from collections.abc import Callable, Iterator

import pytest
import sqlalchemy

import msgtx
from tests.client.sharing import Shares
from tests.databases import Server


@pytest.fixture
def topic(client: msgtx.Client, unique: Callable[[str], str]) -> str:
    """A topic of one partition."""
    name = unique("topic")
    client.topics.create(name)
    return name


@pytest.fixture
def wide(client: msgtx.Client, unique: Callable[[str], str]) -> str:
    """A topic of three partitions."""
    name = unique("wide")
    client.topics.create(name, partitions=3)
    return name


@pytest.fixture
def app(client: msgtx.Client) -> Iterator[sqlalchemy.Engine]:
    """The engine of an application on the module's database."""
    made = sqlalchemy.create_engine(client.secret_url.replace("postgresql://", "postgresql+psycopg://"))
    yield made
    made.dispose()


@pytest.fixture
def limited(client: msgtx.Client, unique: Callable[[str], str]) -> str:
    """A topic whose records have at most ten bytes."""
    name = unique("limited")
    client.topics.create(name, max_message_bytes=10)
    return name


@pytest.fixture
def read(client: msgtx.Client) -> Callable[..., list[msgtx.Record]]:
    """All records that a reader of a topic sees now."""

    def everything(topic: str, isolation: str = "read_committed") -> list[msgtx.Record]:
        with client.consumer(topic, auto_offset_reset="earliest", isolation=isolation) as consumer:
            records: list[msgtx.Record] = []
            while any(consumer.offset_lag().values()):
                records.extend(consumer.poll(1))
            return records

    return everything


@pytest.fixture
def share(client: msgtx.Client, topic: str, unique: Callable[[str], str]) -> Iterator[Shares]:
    """A share group on the topic; a call makes a member."""
    made = Shares(client, topic, unique("share"))
    yield made
    made.open.close()


@pytest.fixture
def long_locks(share: Shares) -> None:
    """The locks of the share group outlast a test."""
    share.configure(record_lock_duration_ms=60_000)


@pytest.fixture
def killer(server: Server, database_url: str) -> Callable[[], int]:
    """End all sessions of the module's database, as an administrator may at any moment. Returns their number."""

    def kill() -> int:
        with server.administrator() as connection:
            return len(
                connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s",
                    [database_url.rsplit("/", 1)[1]],
                ).fetchall()
            )

    return kill
