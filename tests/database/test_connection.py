"""The loop that sends and receives: all of a call is sent while its answer is awaited."""

import contextlib
import math
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from msgtx.database.calls import end_call
from msgtx.database.connection import Connection, seconds_left, until
from msgtx.database.wire import Cursor
from tests.links import slow_link, unix_link


@pytest.fixture(params=[unix_link, slow_link], ids=["unix", "slow"])
def connection(request: pytest.FixtureRequest, database_url: str) -> Iterator[Connection]:
    with request.param(database_url) as link, contextlib.closing(Connection.connect(link.url, autocommit=True)) as made:
        yield made


def answers(connection: Connection, statement: str, argument: str) -> list[object]:
    """Have four calls on their way at once."""
    cursors = [Cursor(connection) for _ in range(4)]
    with until(silence=5.0), connection.pipeline() as pipeline:
        for cursor in cursors:
            cursor.execute(statement, [argument])
            end_call(pipeline)
        pipeline.sync()
        return [cursor.fetchall()[0][0] for cursor in cursors]


def test_a_pipeline_sends_the_rest_of_its_calls_while_it_waits(connection: Connection) -> None:
    """psycopg's own flushes once; then the server waits for the rest of the call, and the client for its answer."""
    assert answers(connection, "select pg_catalog.length(%s::text)", "x" * 3_000_000) == [3_000_000] * 4


def test_both_sides_may_have_much_to_say_at_once(connection: Connection) -> None:
    """A side that does not read while it writes makes the other side stop reading, too."""
    large = "x" * 1_000_000
    assert answers(connection, "select %s::text", large) == [large] * 4


@pytest.mark.parametrize("waits", [True, False])
def test_a_pipeline_says_nothing_behind_its_last_sync(database_url: str, tmp_path: Path, waits: bool) -> None:
    """A pooler gives a server's session to a client that sends, until its next Sync; a Sync that is never sent keeps it."""
    with (
        contextlib.closing(Connection.connect(database_url, autocommit=True)) as connection,
        (tmp_path / "trace").open("w+") as trace,
    ):
        connection.pgconn.trace(trace.fileno())
        with connection.pipeline() as pipeline:
            Cursor(connection).execute("select pg_sleep(0.1)")
            end_call(pipeline)
            if waits:
                pipeline.sync()
        connection.pgconn.untrace()
        trace.seek(0)
        said = [line.split("\t")[3].strip() for line in trace if line.split("\t")[1] == "F"]
    assert said[-1] == "Sync", said
    assert "Flush" not in said
    assert connection.info.transaction_status != psycopg.pq.TransactionStatus.ACTIVE


def test_a_pipeline_in_which_calls_fail_leaves_a_connection_that_can_be_used(connection: Connection) -> None:
    def fail() -> None:
        with until(silence=5.0), connection.pipeline() as pipeline:
            for divisor in (1, 0, 1, 0, 1):
                Cursor(connection).execute("select 1 / %s", [divisor])
                end_call(pipeline)
            time.sleep(0.3)  # the answers are there when the block ends

    with pytest.raises(psycopg.errors.DivisionByZero):
        fail()
    assert connection.pgconn.pipeline_status == psycopg.pq.PipelineStatus.OFF
    assert connection.execute("select 1").fetchone() == (1,)


@pytest.mark.parametrize(
    ("divisor", "raised"),
    [(0, psycopg.errors.DivisionByZero), (1, InterruptedError)],
    ids=["answered with an error", "answered"],
)
def test_a_call_that_is_answered_before_its_sync_is_ended_at_the_end(
    connection: Connection, divisor: int, raised: type[Exception]
) -> None:
    """Until the Sync, the server skips each call behind an error, and keeps the SQL transaction of an answered call open."""

    def leave() -> None:
        with until(silence=5.0), connection.pipeline():
            answered = Cursor(connection).execute("select pg_current_xact_id(), 1 / %s", [divisor])
            answered.fetchall()
            raise InterruptedError

    with pytest.raises(raised):
        leave()
    assert connection.pgconn.pipeline_status == psycopg.pq.PipelineStatus.OFF
    assert answers(connection, "select %s::text || pg_current_xact_id_if_assigned()::text", "") == [None] * 4


def test_an_interrupt_that_keeps_a_limit_from_its_end_leaves_none() -> None:
    """A signal's handler may raise before the first step of `__exit__`. Later calls of the thread would be refused."""

    def interrupted() -> None:
        limit = until(time.monotonic())
        limit.__enter__()
        assert seconds_left() == 0

    interrupted()
    assert seconds_left() == math.inf
