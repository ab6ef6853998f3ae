"""The instruments of T3 and T4 find what they should: planted anomalies, crashes and races."""

from collections.abc import Callable, Iterator, Sequence

import psycopg
import pytest

from msgtx.database.pool import Engine
from tests.databases import Connection, connect
from tests.faults import Faults, lose_connection
from tests.oracle import Oracle
from tests.weave import Call, Played, Story, Weaver

Event = Sequence[object]
SENT: list[Event] = [("sent", "a", 0, "p"), ("sent", "b", 0, "p"), ("acknowledged", "a", 0), ("acknowledged", "b", 1)]
TRANSACTION: list[Event] = [
    ("sent", "x", 0, "p", "t"), ("sent", "y", 1, "p", "t"), ("offsets", "t", "g", 0, 5), ("deciding", "t"),
]  # fmt: skip
OPEN: list[Event] = [("sent", "x", 0, "p", "t")]
Rows = dict[int, list[tuple[int, str]]]


def judged(events: Sequence[Event], seen: Rows, *, log: Rows | None = None, **settled: object) -> list[str]:
    oracle = Oracle(events)
    everything = seen if log is None else log
    ends = settled.pop("ends", {partition: (len(rows), len(rows)) for partition, rows in everything.items()})
    oracle.settled(seen, everything=everything, ends=ends, offsets=settled.pop("offsets", {}))  # type: ignore[arg-type]
    return [anomaly.split(":")[0] for anomaly in oracle.anomalies]


WELL: list[tuple[Sequence[Event], Rows, dict[tuple[str, int], int]]] = [
    (SENT, {0: [(0, "a"), (1, "b")]}, {}),
    ([("sent", "a", 0, "p")], {}, {}),  # never answered: it may be stored or not
    ([("sent", "a", 0, "p")], {0: [(0, "a")]}, {}),
    (TRANSACTION, {}, {}),  # the commit was never answered: all of it or nothing
    (TRANSACTION, {0: [(0, "x")], 1: [(0, "y")]}, {("g", 0): 5}),
    ([*TRANSACTION, ("aborted", "t")], {}, {}),
    ([*OPEN, ("fenced", "p")], {}, {}),
]


@pytest.mark.parametrize(("events", "seen", "offsets"), WELL)
def test_the_oracle_finds_nothing_where_all_is_well(
    events: Sequence[Event], seen: Rows, offsets: dict[tuple[str, int], int]
) -> None:
    assert judged(events, seen, offsets=offsets) == []


PLANTED: dict[str, tuple[Sequence[Event], Rows, dict[str, object]]] = {
    "lost write": (SENT, {0: [(0, "a")]}, {}),
    "duplicate": (SENT, {0: [(0, "a"), (1, "b"), (2, "a")]}, {}),
    "phantom": (SENT, {0: [(0, "a"), (1, "b"), (2, "z")]}, {}),
    "refused read": ([("sent", "a", 0, "p"), ("refused", "a")], {0: [(0, "a")]}, {}),
    "inconsistent offsets": ([("sent", "a", 0, "p"), ("acknowledged", "a", 7)], {0: [(0, "a")]}, {}),
    "non-monotonic send": ([("sent", "a", 0, "p"), ("sent", "b", 0, "p")], {0: [(0, "b"), (1, "a")]}, {}),
    "non-monotonic poll": ([("sent", "a", 0, "p"), ("sent", "b", 0, "q")], {0: [(1, "a"), (0, "b")]}, {}),
    "aborted read": ([*TRANSACTION, ("aborted", "t")], {0: [(0, "x")]}, {}),
    "torn transaction": (TRANSACTION, {0: [(0, "x")]}, {"offsets": {("g", 0): 5}}),
    "two outcomes": ([*TRANSACTION, ("aborted", "t"), ("committed", "t")], {0: [(0, "x")], 1: [(0, "y")]}, {}),
    "offset–output split": (TRANSACTION, {0: [(0, "x")], 1: [(0, "y")]}, {}),
    "stuck": (SENT, {0: [(0, "a"), (1, "b")]}, {"ends": {0: (1, 2)}}),
    "gap": ([("sent", "a", 0, "p")], {0: [(1, "a")]}, {"ends": {0: (2, 2)}}),
}  # fmt: skip


@pytest.mark.parametrize("anomaly", PLANTED)
def test_the_oracle_finds_a_planted_anomaly(anomaly: str) -> None:
    events, seen, settled = PLANTED[anomaly]
    assert anomaly in judged(events, seen, **settled)


def test_the_oracle_finds_offsets_without_their_outputs() -> None:
    assert "offset–output split" in judged([*TRANSACTION, ("aborted", "t")], {}, offsets={("g", 0): 5})


def test_the_oracle_finds_a_read_of_what_is_still_open_and_a_range_that_changes() -> None:
    oracle = Oracle(OPEN)
    oracle.read({0: [(0, "x")]})
    oracle.read({0: []})
    assert [anomaly.split(":")[0] for anomaly in oracle.anomalies] == ["aborted read", "changed range"]


def test_the_oracle_finds_an_input_that_was_processed_twice_or_never() -> None:
    for rows in ([(0, "0/1/0"), (1, "0/2/0")], [(0, "0/1/0"), (1, "0/1/1"), (2, "0/2/0")], []):
        oracle = Oracle()
        oracle.image({0: rows}, inputs=1, outputs=1)
        assert oracle.anomalies, rows


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
def weaver(database_url: str) -> Iterator[Weaver]:
    made = Weaver(database_url)
    yield made
    made.close()


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


def test_the_weaver_finds_a_lost_update_and_none_behind_a_lock(weaver: Weaver, database_url: str) -> None:
    with connect(database_url) as eye:
        eye.execute("create table counter (n int); insert into counter values (0)")
        with pytest.raises(AssertionError, match="an update was lost") as found:
            weaver.explore(counter(eye, locks=False))
        assert "schedule: " in "".join(found.value.__notes__)
        assert weaver.explore(counter(eye, locks=True)) >= 10
        eye.execute("drop table counter")


def test_the_weaver_plays_every_order_of_independent_steps(weaver: Weaver) -> None:
    """Two calls that stop twice each: three steps and three steps, in 6! / (3! 3!) orders."""
    traces: set[tuple[str, ...]] = set()

    def begin() -> Story:
        call = Call("call", lambda connection: connection.execute("select weave.gate()").fetchone(), gate=1)
        return Story({"one": [call], "two": [call]}, lambda played: traces.add(tuple(played.trace)))

    assert weaver.explore(begin) == len(traces) == 20
