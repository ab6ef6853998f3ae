"""Batches of Spark do not see each other: applications, queries, batches, runs, groups and partitions beside one another.

What belongs to a neighbour stays as it is, also where its rows come first in the order of the keys.
"""

from collections.abc import Mapping

from msgtx import errors
from msgtx.store.spark import abort_batch, decide_batch, last_batch, record_range, renew_attempts
from msgtx.types import Outcome
from tests.databases import Clock, Connection, Sessions
from tests.refusals import refuses
from tests.store.batches import attempt, name, noted, outcome
from tests.store.conftest import Blocked
from tests.store.steps import committed_at, expire_transactions, new_partition, new_topic, plain, unique, values


def two_queries() -> tuple[str, str]:
    """Names of queries in the order of their keys."""
    query = unique("query")
    return f"a-{query}", f"b-{query}"


def note(
    connection: Connection,
    query: str,
    batch: int,
    ranges: Mapping[int, tuple[int, int]],
    *,
    group: str | None = None,
    by: tuple[str, str] = ("run", "one"),
) -> None:
    """Note what a source reads; `by`: its run and what it calls itself."""
    run, source = by
    record_range(connection, query, batch, group=group, ranges=ranges, run_id=run, source_id=source)


# ── attempts ──


def test_the_attempts_of_one_batch_are_renewed_and_no_others(connection: Connection, partition: int, clock: Clock) -> None:
    """I12: what no task works on is overdue when its session is."""
    earlier, later = two_queries()
    of = name(5, query=later)
    neighbours = [
        of._replace(app_id=f"a-{of.app_id}"),
        of._replace(query_id=earlier),
        of._replace(batch_id=4),
        of._replace(batch_id=6),
    ]
    left = [attempt(connection, each, partition, b"left") for each in neighbours]
    written = attempt(connection, of, partition, b"a")
    clock("40 s")
    assert renew_attempts(connection, of, session_ms=60_000, timeout_ms=600_000) == 1
    clock("70 s")
    expire_transactions(connection)
    assert {outcome(connection, each) for each in left} == {Outcome.ABORTED}
    assert outcome(connection, written) is Outcome.OPEN
    abort_batch(connection, of)


def test_a_streams_batch_ends_neither_a_later_one_nor_a_programs(connection: Connection, partition: int) -> None:
    of = name(3, query=unique("query"))
    others = [of._replace(batch_id=4), of._replace(query_id="", batch_id=1)]
    left = [attempt(connection, each, partition, b"left") for each in others]
    attempt(connection, of, partition, b"a")
    assert abort_batch(connection, of) == 1
    assert {outcome(connection, each) for each in left} == {Outcome.OPEN}
    assert [abort_batch(connection, each) for each in others] == [1, 1]


# ── fence rows ──


def test_the_newest_batch_is_that_of_one_query(connection: Connection) -> None:
    of = name(1, query=unique("query"))
    for each in (of, of._replace(query_id="", batch_id=7), of._replace(app_id=unique("app"), batch_id=8)):
        assert decide_batch(connection, each, []).error is None
    assert last_batch(connection, of.app_id, of.query_id) == 1
    assert last_batch(connection, of.app_id) == 7
    assert last_batch(connection, of.app_id, unique("query")) is None


def test_a_batch_that_another_run_has_written_is_skipped_whatever_else_this_run_wrote(connection: Connection) -> None:
    """Also where a driver that was believed dead goes on: its run has written the batch before."""
    of = name(1, query=unique("query"))
    steps = {
        of._replace(batch_id=0): "run 1",
        of: "run 2",
        of._replace(app_id=unique("app")): "run 1",
        of._replace(query_id=""): "run 1",
    }
    for each, run in steps.items():
        assert decide_batch(connection, each, [], run_id=run).error is None
    repeated = decide_batch(connection, of, [], run_id="run 1")
    assert (repeated.skipped, repeated.error) == (True, None)


def test_what_a_query_wrote_for_another_application_is_no_sign_of_its_checkpoint(connection: Connection) -> None:
    """A new query that writes for two applications: in the one that an older query has written, records would be doubled."""
    target = new_partition(connection)
    of = name(query=unique("query"))
    assert decide_batch(connection, of, [attempt(connection, of, target, b"a")]).error is None
    new = of._replace(query_id=unique("query"))
    other = new._replace(app_id=unique("app"))
    assert decide_batch(connection, other, [attempt(connection, other, target, b"other")]).error is None
    assert isinstance(decide_batch(connection, new, [attempt(connection, new, target, b"a")]).error, errors.CheckpointLost)
    abort_batch(connection, new)
    assert values(connection, target) == [b"a", b"other"]


def test_a_program_counts_its_batches_beside_a_query(connection: Connection) -> None:
    """It has no checkpoint that could be lost."""
    target = new_partition(connection)
    of = name(4, query=unique("query"))
    assert decide_batch(connection, of, [attempt(connection, of, target, b"a")]).error is None
    own = of._replace(query_id="", batch_id=0)
    assert decide_batch(connection, own, [attempt(connection, own, target, b"b")]).error is None
    assert values(connection, target) == [b"a", b"b"]


# ── groups and partitions ──


def test_a_sink_commits_what_was_noted_for_its_own_group(connection: Connection) -> None:
    """I10: two sources of one query have two groups; the sink has one of them."""
    source, other, target = new_topic(connection, 3)
    of = name(query=unique("query"))
    mine, theirs = unique("group"), unique("group")
    note(connection, of.query_id, 0, {source: (0, 1)}, group=mine)
    note(connection, of.query_id, 0, {source: (0, 2), other: (0, 3)}, group=theirs)
    assert decide_batch(connection, of, [attempt(connection, of, target, b"a")], group=mine).error is None
    assert [committed_at(connection, mine, each)[0] for each in (source, other)] == [1, None]
    assert [committed_at(connection, theirs, each)[0] for each in (source, other)] == [None, None]


def test_a_group_that_only_another_query_has_read_for_is_refused(connection: Connection) -> None:
    """I10: nothing of what this query reads would be committed."""
    source, target = new_topic(connection, 2)
    of, group = name(query=unique("query")), unique("group")
    note(connection, unique("query"), 0, {source: (0, 1)}, group=group)
    written = attempt(connection, of, target, b"a")
    decided = decide_batch(connection, of, [written], group=group)
    assert isinstance(decided.error, errors.ConfigError)
    assert "no source of the query has read for it" in str(decided.error)
    assert outcome(connection, written) is Outcome.OPEN
    abort_batch(connection, of)


def test_a_query_goes_on_with_another_group_at_source_and_sink(connection: Connection) -> None:
    """What is still noted of the batch before was for the group of that time."""
    source, target = new_topic(connection, 2)
    of = name(query=unique("query"))
    for number in range(2):
        each, group = of._replace(batch_id=number), unique("group")
        note(connection, of.query_id, number, {source: (number, number + 1)}, group=group)
        written = attempt(connection, each, target, b"%d" % number)
        assert decide_batch(connection, each, [written], group=group, whole_query=True).error is None
        assert committed_at(connection, group, source) == (number + 1, False)
    assert values(connection, target) == [b"0", b"1"]


def test_each_partition_is_compared_with_its_own_offset(connection: Connection) -> None:
    first, second, target = new_topic(connection, 3)
    plain(connection, first, b"1")
    of, group = name(query=unique("query")), unique("group")
    for number, ranges in enumerate(({first: (0, 5), second: (0, 2)}, {first: (5, 6), second: (2, 9)})):
        each = of._replace(batch_id=number)
        note(connection, of.query_id, number, ranges, group=group)
        assert decide_batch(connection, each, [attempt(connection, each, target, b"a")], group=group).error is None
    assert [committed_at(connection, group, each)[0] for each in (first, second)] == [6, 9]


# ── what a source notes ──


def test_what_is_planned_anew_is_a_batch_of_one_query(connection: Connection) -> None:
    source = new_partition(connection)
    earlier, later = two_queries()
    for query in (earlier, later):
        note(connection, query, 0, {source: (0, 1)}, by=("run 1", "one"))
    note(connection, later, 0, {source: (0, 2)}, by=("run 2", "one"))
    assert noted(connection, earlier) == [(0, "", source, 0, 1, "run 1", "one")]
    assert noted(connection, later) == [(0, "", source, 0, 2, "run 2", "one")]


def test_two_sources_that_note_one_partition_at_once_are_one_behind_the_other(session: Connection, blocked: Blocked) -> None:
    """The second waits for the row and finds what the first has noted, whose other rows it passes by: none is refused."""
    first, second = new_topic(session, 2)
    earlier, later = two_queries()
    note(session, earlier, 0, {second: (0, 1)}, by=("run", "one"))
    note(session, later, 0, {first: (0, 1)}, by=("run", "one"))
    note(session, later, 0, {second: (0, 1)}, by=("run before", "one"))
    with session.transaction():
        session.execute(
            "select from msgtx.spark_range where query_id = %s and partition_id = %s for update", [later, second]
        )
        other = blocked(note, later, 0, {second: (0, 3)}, by=("run", "two"))
        note(session, later, 0, {second: (0, 2)}, by=("run", "one"))
    other.result(10)
    assert noted(session, later) == [(0, "", first, 0, 1, "run", "one"), (0, "", second, -1, -1, "run", "two")]


def test_tasks_that_note_the_same_for_one_source_do_not_wait_for_each_other(open_connection: Sessions) -> None:
    one, two = open_connection(), open_connection()
    source, query = new_partition(one), unique("query")
    note(one, query, 0, {source: (0, 1)})
    with one.transaction():
        note(one, query, 0, {source: (0, 1)})
        note(two, query, 0, {source: (0, 1)})
    assert noted(one, query) == [(0, "", source, 0, 1, "run", "one")]


def test_two_sources_of_one_group_are_found_beside_what_others_have_noted(connection: Connection) -> None:
    """I11: a group has one position on a partition."""
    source = new_partition(connection)
    earlier, later = two_queries()
    note(connection, earlier, 1, {source: (0, 1)}, group="b", by=("another run", "two"))
    note(connection, later, 0, {source: (0, 1)}, group="b", by=("run before", "one"))
    note(connection, later, 1, {source: (0, 1)}, group="a", by=("run", "two"))
    note(connection, later, 1, {source: (0, 1)}, group="b", by=("run", "one"))
    with refuses(errors.ConfigError, group="b"):
        note(connection, later, 1, {source: (0, 1)}, group="b", by=("run", "two"))


def test_groups_of_one_query_read_one_partition_differently(connection: Connection) -> None:
    source, query = new_partition(connection), unique("query")
    for _ in range(2):
        note(connection, query, 0, {source: (0, 1)}, group="a", by=("run", "one"))
        note(connection, query, 0, {source: (0, 2)}, group="b", by=("run", "two"))
        note(connection, query, 0, {source: (0, 3)}, by=("run", "three"))
    assert [row[1:5] for row in noted(connection, query)] == [("", source, 0, 3), ("a", source, 0, 1), ("b", source, 0, 2)]
