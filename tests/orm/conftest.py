"""Fixtures of the tests of the mapped classes."""

from collections.abc import Callable, Iterator

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

import msgtx
from tests.store.steps import unique


@pytest.fixture
def topic(client: msgtx.Client) -> str:
    """A topic of two partitions."""
    name = unique("orders")
    client.topics.create(name, partitions=2)
    return name


@pytest.fixture
def open_session(database_url: str) -> Iterator[Callable[..., Session]]:
    """Open sessions of a user's program, as the owner or at another address; closed at the end."""
    opened: list[tuple[Session, sqlalchemy.Engine]] = []

    def make(url: str = database_url) -> Session:
        engine = sqlalchemy.create_engine(sqlalchemy.make_url(url).set(drivername="postgresql+psycopg"))
        opened.append((Session(engine), engine))
        return opened[-1][0]

    yield make
    for session, engine in opened:
        session.close()
        engine.dispose()


@pytest.fixture
def session(open_session: Callable[..., Session]) -> Session:
    """A session of a user's program."""
    return open_session()
