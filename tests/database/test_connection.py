"""The loop that sends and receives: all of a question goes out while its answer is waited for."""

import contextlib
from collections.abc import Iterator

import pytest

from msgtx.database.connection import Connection, until
from msgtx.database.engine import end_call
from msgtx.database.wire import Cursor
from tests.links import slow_link, unix_link


@pytest.fixture(params=[unix_link, slow_link], ids=["unix", "slow"])
def connection(request: pytest.FixtureRequest, database_url: str) -> Iterator[Connection]:
    with request.param(database_url) as link, contextlib.closing(Connection.connect(link.url, autocommit=True)) as made:
        yield made


def test_a_pipeline_sends_the_rest_of_its_calls_while_it_waits(connection: Connection) -> None:
    """psycopg's own flushes once; then the server waits for the rest of the call, and the client for its answer."""
    large = "x" * 3_000_000
    cursors = []
    with until(silence=5.0), connection.pipeline() as pipeline:
        for _ in range(4):
            cursors.append(Cursor(connection))
            cursors[-1].execute("select pg_catalog.length(%s::text)", [large])
            end_call(pipeline)
        pipeline.sync()
        assert [cursor.fetchall() for cursor in cursors] == [[(3_000_000,)]] * 4


def test_both_sides_may_have_much_to_say_at_once(connection: Connection) -> None:
    """Who does not read while it writes has the other side stop reading, too."""
    large = "x" * 1_000_000
    cursors = []
    with until(silence=5.0), connection.pipeline() as pipeline:
        for _ in range(4):
            cursors.append(Cursor(connection))
            cursors[-1].execute("select %s::text", [large])
            end_call(pipeline)
        pipeline.sync()
        assert [len(cursor.fetchall()[0][0]) for cursor in cursors] == [1_000_000] * 4
