"""The instruments of T3 and T4 find what they should: planted crashes and races."""

from collections.abc import Callable, Iterator

import psycopg
import pytest

from msgtx.database.pool import Engine
from tests import parts
from tests.databases import Connection, connect
from tests.faults import Faults, lose_connection
from tests.weave import Call, Played, Story, Weaver

# ── faults ──


@pytest.fixture
def faulty(database_url: str) -> Iterator[Callable[[Faults], Connection]]:
    made: list[Connection] = []

    def make(faults: Faults) -> Connection:
        engine = Engine(database_url, connect=faults.connect)
        made.append(engine.dedicated())
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_faults_count_both_sides_of_everything_that_is_said(faulty: Callable[[Faults], Connection]) -> None:
    faults = Faults()
    connection = faulty(faults)
    connection.execute("select * from msgtx.describe_topics()")
    with connection.pipeline() as pipeline:
        connection.execute("select 1")
        pipeline.sync()
    said = ["connect", "execute", "describe_topics", "execute", "sync"]  # a new connection checks for a pooler
    assert faults.crossed == [f"{side} {what}" for what in said for side in ("before", "after")]


def test_a_crash_before_a_statement_keeps_it_from_the_database_and_one_after_it_does_not(
    faulty: Callable[[Faults], Connection], database_url: str
) -> None:
    with connect(database_url) as eye:
        eye.execute("create table planted (n int)")
        for number, stored in ((5, 0), (6, 1)):
            faults = Faults({number: lose_connection})
            connection = faulty(faults)
            with pytest.raises(psycopg.OperationalError, match="planted"):
                connection.execute("insert into planted values (1)")
            assert connection.closed
            assert len(faults.fired) == 1
            assert eye.execute("select count(*) from planted").fetchone() == (stored,)
        eye.execute("drop table planted")


# ── interleavings ──


@pytest.fixture
def every_order(pytestconfig: pytest.Config) -> Iterator[None]:
    """What the weaver can do is not judged by a part of it."""
    parts.choose(None)
    yield
    parts.choose(pytestconfig.getoption("part"))


def counter(eye: Connection, *, locks: bool) -> Callable[[], Story]:
    """Two actors add one to a number, reading it first; with or without a lock around both."""

    def add(connection: Connection) -> None:
        if locks:
            connection.execute("select weave.pg_advisory_xact_lock(1, 1)")
        found = connection.execute("select n from counter").fetchone()
        assert found is not None
        connection.execute("select weave.gate()")
        connection.execute("update counter set n = %s", [found[0] + 1])

    def begin() -> Story:
        eye.execute("update counter set n = 0")

        def judge(played: Played) -> None:
            assert played.answers == {"one.add": None, "two.add": None}
            assert eye.execute("select n from counter").fetchone() == (2,), "an update was lost"

        return Story({"one": [Call("add", add, gate=1)], "two": [Call("add", add, gate=1)]}, judge)

    return begin


@pytest.mark.usefixtures("every_order")
def test_the_weaver_finds_a_lost_update_and_none_behind_a_lock(weaver: Weaver, database_url: str) -> None:
    with connect(database_url) as eye:
        eye.execute("create table counter (n int); insert into counter values (0)")
        with pytest.raises(AssertionError, match="an update was lost") as found:
            weaver.explore(counter(eye, locks=False))
        assert "schedule: " in "".join(found.value.__notes__)
        assert weaver.explore(counter(eye, locks=True)) >= 10
        eye.execute("drop table counter")


@pytest.mark.usefixtures("every_order")
def test_the_weaver_plays_every_order_of_independent_steps(weaver: Weaver) -> None:
    """Two calls that stop twice each: three steps and three steps, in 6! / (3! 3!) orders."""
    traces: set[tuple[str, ...]] = set()

    def begin() -> Story:
        call = Call("call", lambda connection: connection.execute("select weave.gate()").fetchone(), gate=1)
        return Story({"one": [call], "two": [call]}, lambda played: traces.add(tuple(played.trace)))

    assert weaver.explore(begin) == len(traces) == 20
