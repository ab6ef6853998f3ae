"""Batches of Spark: attempts, and the one decision over all of them (I4, I6, I8, I10; P20)."""

import concurrent.futures
import re

import pytest

from msgtx import errors
from msgtx.store.groups.groups import commit_offsets
from msgtx.store.operator.server import describe_lock_table
from msgtx.store.spark import (
    AT_ONCE,
    Attempt,
    BatchName,
    BatchRange,
    DecidedBatch,
    NotedBegin,
    abort_batch,
    begin_attempt,
    decide_batch,
    follow_batch,
    is_batch_committed,
    noted_begins,
    record_range,
    renew_attempts,
)
from msgtx.store.transactions.producers import lock_producers
from msgtx.store.transactions.seal import complete_prepared
from msgtx.types import GroupMetadata, OffsetAndMetadata, Outcome
from tests.databases import Background, Clock, Connection, Sessions, backend, wait_for_lock
from tests.refusals import refuses
from tests.store.batches import TIMEOUT_MS, attempt, begin_many, name, noted, outcome, undecided, write
from tests.store.roster import Roster
from tests.store.steps import (
    Writer,
    committed_at,
    count,
    delete_topic_of,
    expire_transactions,
    new_partition,
    new_topic,
    plain,
    plain_batches,
    seal,
    unique,
    values,
)


def test_the_accepted_attempts_commit_and_all_others_abort(connection: Connection) -> None:
    """P20: rows of failed attempts never count."""
    first, second = new_topic(connection, 2)
    of = name()
    accepted = [attempt(connection, of, first, b"a", b"b"), attempt(connection, of, second, b"c")]
    late = attempt(connection, of, first, b"twice")
    decided = decide_batch(connection, of, accepted)
    assert (decided.error, decided.skipped, decided.aborted) == (None, False, 1)
    assert (values(connection, first), values(connection, second)) == ([b"a", b"b"], [b"c"])
    assert outcome(connection, late) is Outcome.ABORTED


def test_a_batch_that_is_committed_is_skipped_and_what_its_replay_wrote_is_aborted(connection: Connection) -> None:
    partition = new_partition(connection)
    of = name()
    left = begin_attempt(connection, of, timeout_ms=TIMEOUT_MS)
    again = attempt(connection, of, partition, b"again")
    assert decide_batch(connection, of, [attempt(connection, of, partition, b"once")]).error is None
    decided = decide_batch(connection, of, [again])
    assert (decided.skipped, decided.error) == (True, None)
    assert values(connection, partition) == [b"once"]
    assert left is not None
    assert begin_attempt(connection, of, timeout_ms=TIMEOUT_MS) is None


def test_an_earlier_batch_is_skipped_too(connection: Connection) -> None:
    of = name(7)
    decide_batch(connection, of, [])
    assert is_batch_committed(connection, of._replace(batch_id=6))
    earlier = decide_batch(connection, of._replace(batch_id=6), [])
    assert (earlier.skipped, earlier.error) == (True, None)
    assert begin_attempt(connection, of._replace(batch_id=6), timeout_ms=TIMEOUT_MS) is None
    assert not is_batch_committed(connection, of._replace(batch_id=8))


def test_an_attempt_that_goes_on_after_the_decision_is_refused(connection: Connection, partition: int) -> None:
    """I8."""
    of = name()
    late = begin_attempt(connection, of, timeout_ms=TIMEOUT_MS)
    assert late is not None
    decide_batch(connection, of, [])
    with pytest.raises(errors.InvalidTransactionState):
        write(connection, late, partition, b"late")


def test_an_abort_of_a_committed_batch_undoes_nothing(connection: Connection, partition: int) -> None:
    """P20: Spark calls abort when its own commit log failed after ours."""
    of = name()
    decide_batch(connection, of, [attempt(connection, of, partition, b"a")])
    assert abort_batch(connection, of) == 0
    assert values(connection, partition) == [b"a"]


def test_an_abort_ends_every_attempt_at_once_so_that_readers_go_on(connection: Connection, partition: int) -> None:
    of = name()
    attempt(connection, of, partition, b"a")
    attempt(connection, of._replace(batch_id=0), partition, b"b")
    plain(connection, partition, b"behind")
    assert values(connection, partition) == []
    assert abort_batch(connection, of) == 2
    assert values(connection, partition) == [b"behind"]


def test_a_commit_that_cannot_be_leaves_everything_undecided(connection: Connection) -> None:
    first, second = new_topic(connection, 2)
    of = name()
    good, aborted = attempt(connection, of, first, b"a"), attempt(connection, of, second, b"b")
    lost = Attempt(good.producer_id, {first: 5}, 6)  # its tail is not there: a crash took it back
    assert isinstance(decide_batch(connection, of, [aborted, lost]).error, errors.TransactionAborted)
    assert (outcome(connection, good), outcome(connection, aborted)) == (Outcome.OPEN, Outcome.OPEN)
    assert not is_batch_committed(connection, of)


def test_a_batch_that_outlived_its_timeout_is_refused_and_says_why(
    connection: Connection, partition: int, clock: Clock
) -> None:
    of = name()
    slow = attempt(connection, of, partition, b"a")
    clock("2 minutes")
    expire_transactions(connection)
    decided = decide_batch(connection, of, [slow])
    assert isinstance(decided.error, errors.TransactionAborted)
    assert "timeout" in str(decided.error)


def test_a_timeout_above_the_installations_is_refused(connection: Connection) -> None:
    with refuses(errors.InvalidTransactionTimeout, limit=900_000):
        begin_attempt(connection, name(), timeout_ms=2_000_000_000)
    with refuses(errors.InvalidTransactionTimeout, limit=900_000):
        renew_attempts(connection, name(), session_ms=1, timeout_ms=2_000_000_000)


# ── offsets ──


@pytest.mark.parametrize("recorded", [False, True])
def test_offsets_and_outputs_are_committed_together(connection: Connection, group: str, recorded: bool) -> None:
    """I10: the offsets are those of the batch, or (`recorded`) those that a stream's source has recorded."""
    source, target = new_topic(connection, 2)
    plain(connection, source, b"1")
    of = name(query=unique("query") if recorded else "")
    for _ in range(2 if recorded else 0):  # two tasks of the same batch
        record_range(connection, of.query_id, 0, group=group, ranges={source: (0, 1)})
    ranges = None if recorded else {source: BatchRange(0, 1)}
    assert decide_batch(connection, of, [attempt(connection, of, target, b"a")], group=group, ranges=ranges).error is None
    assert committed_at(connection, group, source) == (1, False)


def test_a_batch_that_does_not_begin_where_the_group_is_is_refused(connection: Connection) -> None:
    """I10: two runs of one application read the same; one commits."""
    source, target = new_topic(connection, 2)
    plain_batches(connection, source, b"1", b"2")
    group, of = unique("group"), name()
    ranges = {source: BatchRange(0, 2)}
    other = of._replace(app_id=of.app_id + "-other")
    slow = attempt(connection, other, target, b"twice")
    assert decide_batch(connection, of, [attempt(connection, of, target, b"a")], group=group, ranges=ranges).error is None
    assert isinstance(decide_batch(connection, other, [slow], group=group, ranges=ranges).error, errors.BatchConflict)
    assert outcome(connection, slow) is Outcome.OPEN
    abort_batch(connection, other)
    assert values(connection, target) == [b"a"]


def test_a_batch_begins_wherever_the_group_is_if_its_start_is_not_known(connection: Connection) -> None:
    source = new_partition(connection)
    of, group = name(), unique("group")
    for number, at in enumerate((BatchRange(0, 1), BatchRange(None, 3))):
        assert decide_batch(connection, of._replace(batch_id=number), [], group=group, ranges={source: at}).error is None
    assert committed_at(connection, group, source) == (3, False)


def test_what_was_read_for_no_group_is_committed_for_none(connection: Connection) -> None:
    source, target = new_topic(connection, 2)
    of = name()
    written = attempt(connection, of, target, b"a")
    assert decide_batch(connection, of, [written], ranges={source: BatchRange(0, 1)}).error is None
    assert values(connection, target) == [b"a"]


def test_offsets_that_are_refused_leave_everything_undecided(connection: Connection) -> None:
    """I11: a group that has members has its offsets from them alone; of a partition that is gone there are none (I10)."""
    group, gone = Roster(connection), new_partition(connection)
    group.join("a")
    delete_topic_of(connection, gone)
    target = new_partition(connection)
    of = name()
    written = attempt(connection, of, target, b"a")
    for in_group, source, refused in (
        (group.name, group.partitions[0], errors.UnknownMember),
        (unique("group"), gone, errors.UnknownTopicOrPartition),
    ):
        decided = decide_batch(connection, of, [written], group=in_group, ranges={source: BatchRange(0, 1)})
        assert isinstance(decided.error, refused)
        assert committed_at(connection, in_group, source) == (None, False)
    assert outcome(connection, written) is Outcome.OPEN
    assert not is_batch_committed(connection, of)
    abort_batch(connection, of)


def test_a_streaming_sink_commits_nothing_for_a_partition_that_was_deleted_since(connection: Connection) -> None:
    """Its source says whether that is a loss: when it plans the next batch."""
    source, gone, target = (new_partition(connection) for _ in range(3))
    of, group = name(query=unique("query")), unique("group")
    record_range(connection, of.query_id, 0, group=group, ranges={source: (0, 2), gone: (0, 3)})
    written = attempt(connection, of, target, b"a")
    delete_topic_of(connection, gone)
    assert decide_batch(connection, of, [written], group=group, whole_query=True).error is None
    assert committed_at(connection, group, source) == (2, False)
    assert committed_at(connection, group, gone) == (None, False)


def test_a_batch_that_was_planned_otherwise_before_is_refused(connection: Connection) -> None:
    """A checkpoint that fell behind plans its batches anew; skipping one by its number would lose records."""
    source = new_partition(connection)
    query, group = unique("query"), unique("group")
    record_range(connection, query, 0, group=group, ranges={source: (0, 1)})
    with refuses(errors.BatchConflict, group=group):
        record_range(connection, query, 0, group=group, ranges={source: (0, 2)})


@pytest.mark.parametrize("group", [None, "group"])
def test_a_batch_before_the_newest_committed_one_is_noted_only_as_it_was(connection: Connection, group: str | None) -> None:
    """The checkpoint fell behind; what to do depends on whether a group knows where it was."""
    source, other, target = new_topic(connection, 3)
    query = unique("query")
    record_range(connection, query, 0, group=group, ranges={source: (0, 1)})
    of = name(1, query=query)
    assert decide_batch(connection, of, [attempt(connection, of, target, b"a")]).error is None
    record_range(connection, query, 0, group=group, ranges={source: (0, 1)})
    record_range(connection, query, 1, group=group, ranges={other: (0, 1)})
    record_range(connection, unique("query"), 0, group=group, ranges={other: (0, 1)})
    last_words = "start with a new one" + (", from the offsets of group group" if group else "") + "$"
    for ranges in ({other: (0, 1)}, {source: (0, 1), other: (0, 1)}):
        with pytest.raises(errors.BatchConflict, match=f"is to read batch 0, and has committed batch 1: .*{last_words}"):
            record_range(connection, query, 0, group=group, ranges=ranges)
    assert [row[:3] for row in noted(connection, query)] == [(0, group or "", source), (1, group or "", other)]


def place(connection: Connection, partition_id: int) -> str:
    """Return a partition as errors name it, such as orders-0."""
    ((found,),) = connection.execute(
        "select topic || '-' || partition from msgtx.partitions where partition_id = %s", [partition_id]
    )
    return str(found)


@pytest.mark.parametrize("group", [None, "group"])
def test_the_first_range_that_differs_is_named(connection: Connection, group: str | None) -> None:
    first, second, third, target = new_topic(connection, 4)
    query = unique("query")
    ranges = {first: (0, 1), second: (0, 1), third: (0, 1)}
    record_range(connection, query, 0, group=group, ranges=ranges)
    of = name(0, query=query)
    assert decide_batch(connection, of, [attempt(connection, of, target, b"a")]).error is None
    last_words = "start with a new one" + (", from the offsets of group group" if group else "") + "$"
    wrong = {**ranges, third: (0, 2), second: (1, 1)}
    with pytest.raises(
        errors.BatchConflict, match=f"offsets 0 to 1 of {place(connection, second)}, and shall read 1 to 1 .*{last_words}"
    ):
        record_range(connection, query, 0, group=group, ranges=wrong)
    with pytest.raises(errors.BatchConflict, match=f"of {place(connection, third)}, and shall read 0 to 2"):
        record_range(connection, query, 0, group=group, ranges={**ranges, third: (0, 2)})


def test_without_a_group_a_batch_is_planned_anew_until_it_is_committed(connection: Connection) -> None:
    """Nothing depends on where it ended; two sources that read a partition in one run are not compared."""
    source, other, target = new_topic(connection, 3)
    query = unique("query")

    def note(end: int, run: str, name: str, *partitions: int, batch: int = 0) -> None:
        record_range(
            connection, query, batch, group=None, ranges=dict.fromkeys(partitions, (0, end)), run_id=run, source_id=name
        )

    note(1, "first", "a", source, other)
    note(9, "first", "a", source, batch=1)
    note(2, "second", "b", source, other)
    assert noted(connection, query)[:2] == [(0, "", source, 0, 2, "second", "b"), (0, "", other, 0, 2, "second", "b")]
    note(3, "second", "c", source)
    note(4, "third", "c", source)
    assert noted(connection, query)[0][3:5] == (-1, -1)
    assert noted(connection, query)[1] == (0, "", other, 0, 2, "second", "b")
    assert noted(connection, query)[2] == (1, "", source, 0, 9, "first", "a")
    of = name(0, query=query)
    assert decide_batch(connection, of, [attempt(connection, of, target, b"a")]).error is None
    with pytest.raises(errors.BatchConflict, match=f"of {place(connection, other)}, and shall read 0 to 5"):
        note(5, "third", "b", source, other)
    assert noted(connection, query)[1] == (0, "", other, 0, 2, "second", "b")


def test_two_sources_of_a_run_do_not_read_one_partition_for_one_group(connection: Connection) -> None:
    """A group has one position there. Another run's source is the same one, started again."""
    first, second, third = new_topic(connection, 3)
    query = unique("query")
    ranges = {first: (0, 1), second: (0, 1)}
    for run, group in (("run", "group"), ("run", "other"), ("", "third")):
        record_range(connection, query, 0, group=group, ranges=ranges, run_id=run, source_id="a")
    record_range(connection, query, 0, group="group", ranges={third: (0, 1)}, run_id="run", source_id="b")
    record_range(connection, query, 0, group="group", ranges=ranges, run_id="later", source_id="b")
    record_range(connection, query, 0, group="third", ranges=ranges, run_id="", source_id="b")
    with refuses(errors.ConfigError, group="group"):
        record_range(connection, query, 0, group="group", ranges=ranges, run_id="run", source_id="b")


@pytest.mark.parametrize("name", ["run_id", "source_id"])
def test_what_a_source_calls_itself_is_bounded(connection: Connection, name: str) -> None:
    """Any role that may consume may note a range, and nothing of unbounded size with it (I16)."""
    topic = new_partition(connection)
    with pytest.raises(errors.ConfigError, match="is_short"):
        record_range(connection, unique("query"), 0, group=None, ranges={topic: (0, 1)}, **{name: "x" * 1_001})


@pytest.mark.parametrize(("begins", "says"), [(0, "another run has committed"), (2, "failover .* begin a new checkpoint")])
def test_a_batch_that_does_not_begin_at_the_groups_offset_says_why(connection: Connection, begins: int, says: str) -> None:
    """I16: behind the group another run was faster; before it, the group has lost what the checkpoint knows."""
    source, target = new_topic(connection, 2)
    plain_batches(connection, source, b"1", b"2", b"3")
    group, of = unique("group"), name()
    first = attempt(connection, of, target, b"a")
    assert decide_batch(connection, of, [first], group=group, ranges={source: BatchRange(0, 1)}).error is None
    next_one = of._replace(batch_id=of.batch_id + 1)
    second = attempt(connection, next_one, target, b"b")
    decided = decide_batch(connection, next_one, [second], group=group, ranges={source: BatchRange(begins, 3)})
    assert isinstance(decided.error, errors.BatchConflict)
    assert re.search(says, str(decided.error))


def test_a_lost_checkpoint_goes_on_from_the_groups_offsets(connection: Connection) -> None:
    source, target = new_topic(connection, 2)
    plain_batches(connection, source, b"1", b"2")
    group, of = unique("group"), name(query=unique("query"))
    record_range(connection, of.query_id, 0, group=group, ranges={source: (0, 1)})
    decide_batch(connection, of, [attempt(connection, of, target, b"a")], group=group)
    new = of._replace(query_id=unique("query"))
    record_range(connection, new.query_id, 0, group=group, ranges={source: (1, 2)})
    assert decide_batch(connection, new, [attempt(connection, new, target, b"b")], group=group).error is None
    stale = of._replace(query_id=unique("query"))
    record_range(connection, stale.query_id, 0, group=group, ranges={source: (0, 2)})
    decided = decide_batch(connection, stale, [attempt(connection, stale, target, b"twice")], group=group)
    assert isinstance(decided.error, errors.BatchConflict)
    abort_batch(connection, stale)
    assert values(connection, target) == [b"a", b"b"]


def test_a_lost_checkpoint_without_group_is_an_error_and_no_duplicate(connection: Connection) -> None:
    target = new_partition(connection)
    of = name(query=unique("query"))
    decide_batch(connection, of, [attempt(connection, of, target, b"a")])
    new = of._replace(query_id=unique("query"))
    decided = decide_batch(connection, new, [attempt(connection, new, target, b"a")])
    assert isinstance(decided.error, errors.CheckpointLost)
    assert f"none of query {new.query_id}: its checkpoint was lost" in str(decided.error)
    abort_batch(connection, new)
    assert values(connection, target) == [b"a"]


def test_a_lost_checkpoint_with_a_new_group_is_an_error_and_no_duplicate(connection: Connection) -> None:
    """A group that has no offset yet compares nothing."""
    source, target = new_topic(connection, 2)
    plain(connection, source, b"1")
    of = name(query=unique("query"))
    for query in (of.query_id, unique("query")):
        record_range(connection, query, 0, group=(group := unique("group")), ranges={source: (0, 1)})
        each = of._replace(query_id=query)
        decided = decide_batch(connection, each, [attempt(connection, each, target, b"a")], group=group)
    assert isinstance(decided.error, errors.CheckpointLost)
    abort_batch(connection, each)
    assert values(connection, target) == [b"a"]


def test_an_offset_that_waits_is_no_place_to_go_on_from_after_a_lost_checkpoint(connection: Connection) -> None:
    """Its transaction may abort yet: nothing could be compared then."""
    source, target = new_topic(connection, 2)
    of, group, waiting = name(query=unique("query")), unique("group"), Writer(connection)
    assert decide_batch(connection, of, []).error is None
    seal(connection, waiting.name, "external", offset=(group, source, 0))
    new = of._replace(query_id=unique("query"))
    record_range(connection, new.query_id, 0, group=group, ranges={source: (0, 1)})
    decided = decide_batch(connection, new, [attempt(connection, new, target, b"a")], group=group)
    assert isinstance(decided.error, errors.CheckpointLost)
    abort_batch(connection, new)
    complete_prepared(connection, waiting.name, "ABORT")


def test_a_batch_that_writes_nothing_moves_its_group_on_after_a_lost_checkpoint_too(connection: Connection) -> None:
    """Of what no record came out nothing can be doubled."""
    source = new_partition(connection)
    of, group = name(query=unique("query")), unique("group")
    assert decide_batch(connection, of, []).error is None
    new = of._replace(query_id=unique("query"))
    record_range(connection, new.query_id, 0, group=group, ranges={source: (0, 1)})
    assert decide_batch(connection, new, [], group=group) == DecidedBatch(skipped=False, aborted=0, error=None)
    assert committed_at(connection, group, source) == (1, False)
    assert is_batch_committed(connection, new)


def test_a_batch_of_nothing_does_not_hide_a_lost_checkpoint(connection: Connection) -> None:
    target = new_partition(connection)
    of = name(query=unique("query"))
    assert decide_batch(connection, of, [attempt(connection, of, target, b"a")]).error is None
    new = of._replace(query_id=unique("query"))
    assert decide_batch(connection, new, []) == DecidedBatch(skipped=False, aborted=0, error=None)
    assert not is_batch_committed(connection, new)
    later = new._replace(batch_id=1)
    decided = decide_batch(connection, later, [attempt(connection, later, target, b"a")])
    assert isinstance(decided.error, errors.CheckpointLost)
    abort_batch(connection, later)


def test_a_query_goes_on_where_its_program_counted_the_batches(connection: Connection) -> None:
    """Batches that a program counted itself: the next number is the same query's, any other one is not."""
    target = new_partition(connection)
    of = name()
    for number in range(3):
        each = of._replace(batch_id=number)
        decide_batch(connection, each, [attempt(connection, each, target, b"%d" % number)])
    query = of._replace(query_id=unique("query"))
    for number in (0, 2):
        again = query._replace(batch_id=number)
        lost = decide_batch(connection, again, [attempt(connection, again, target, b"again")])
        assert isinstance(lost.error, errors.CheckpointLost), number
        abort_batch(connection, again)
    for number in (3, 4):
        each = query._replace(batch_id=number)
        assert decide_batch(connection, each, [attempt(connection, each, target, b"%d" % number)]).error is None
    assert values(connection, target) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_stream_whose_batch_lies_before_the_newest_is_refused(connection: Connection) -> None:
    """Spark repeats only the last batch: an older one is of an old checkpoint, and may be another by now."""
    of = name(query=unique("query"))
    for number in range(3):
        assert decide_batch(connection, of._replace(batch_id=number), []).error is None
    assert decide_batch(connection, of._replace(batch_id=2), []).skipped
    old = decide_batch(connection, of._replace(batch_id=1), [])
    assert isinstance(old.error, errors.BatchConflict)
    assert "fell behind" in str(old.error)


def test_a_second_write_of_one_batch_in_the_same_run_is_refused(connection: Connection, partition: int) -> None:
    """Two sinks in one foreachBatch; a retry after a lost answer, and the next run's repetition, are skipped."""
    of = name(query=unique("query"))
    first = attempt(connection, of, partition, b"a")
    assert decide_batch(connection, of, [first], run_id="run 1").error is None
    retried = decide_batch(connection, of, [first], run_id="run 1")
    assert (retried.skipped, retried.error) == (True, None)
    second = decide_batch(connection, of, [], run_id="run 1")
    assert isinstance(second.error, errors.BatchConflict)
    assert "needs an application of its own" in str(second.error)
    repeated = decide_batch(connection, of, [], run_id="run 2")
    assert (repeated.skipped, repeated.error) == (True, None)


def test_of_two_writes_of_one_batch_at_once_the_second_is_refused(connection: Connection, partition: int) -> None:
    """The first has aborted what the second wrote, which is no repetition of it: skipped, its records would be lost."""
    of = name(query=unique("query"))
    first, second = (attempt(connection, of, partition, value) for value in (b"a", b"b"))
    assert decide_batch(connection, of, [first], run_id="run").error is None
    assert outcome(connection, second) is Outcome.ABORTED
    decided = decide_batch(connection, of, [second], run_id="run")
    assert isinstance(decided.error, errors.BatchConflict)
    assert "needs an application of its own" in str(decided.error)


@pytest.mark.parametrize(("source_group", "sink_group"), [("a", None), ("a", "b"), (None, "b")])
def test_groups_of_source_and_sink_that_differ_are_refused(
    connection: Connection, source_group: str | None, sink_group: str | None
) -> None:
    """I10: nothing would commit what was read."""
    source, target = new_topic(connection, 2)
    plain(connection, source, b"1")
    of = name(query=unique("query"))
    record_range(connection, of.query_id, 0, group=source_group, ranges={source: (0, 1)})
    written = attempt(connection, of, target, b"a")
    decided = decide_batch(connection, of, [written], group=sink_group, whole_query=True)
    assert isinstance(decided.error, errors.ConfigError)
    assert "the same option group" in str(decided.error)
    assert outcome(connection, written) is Outcome.OPEN
    abort_batch(connection, of)


def test_a_group_may_rest_in_a_batch_of_its_query(connection: Connection) -> None:
    """A batch in which only another source, or only time, had something."""
    source, target = new_topic(connection, 2)
    plain(connection, source, b"1")
    of, group = name(query=unique("query")), unique("group")
    record_range(connection, of.query_id, 0, group=group, ranges={source: (0, 1)})
    for number in range(2):
        each = of._replace(batch_id=number)
        written = attempt(connection, each, target, b"%d" % number)
        assert decide_batch(connection, each, [written], group=group, whole_query=True).error is None
    assert values(connection, target) == [b"0", b"1"]


def test_a_batch_of_nothing_needs_no_source_of_its_group(connection: Connection) -> None:
    """The first one may come before there is anything to read."""
    assert decide_batch(connection, name(query=unique("query")), [], group=unique("group"), whole_query=True).error is None


def test_a_batch_of_a_sink_that_wrote_or_read_something_is_known_again(connection: Connection) -> None:
    """P20: and one of nothing may be another one next time."""
    source, target = new_topic(connection, 2)
    wrote, read, neither = (name(query=unique("query")) for _ in range(3))
    group = unique("group")
    record_range(connection, read.query_id, 0, group=group, ranges={source: (0, 1)})
    written = attempt(connection, wrote, target, b"a")
    assert decide_batch(connection, wrote, [written], whole_query=True).error is None
    assert decide_batch(connection, read, [], group=group, whole_query=True).error is None
    assert decide_batch(connection, neither, [], whole_query=True).error is None
    assert [is_batch_committed(connection, each) for each in (wrote, read, neither)] == [True, True, False]


# ── what a source notes ──


def test_two_sources_of_one_run_cannot_have_one_group(connection: Connection) -> None:
    """A group has one position on a partition. A restart is another run, whose source is another one."""
    source = new_partition(connection)
    query, group = unique("query"), unique("group")

    def note(run: str, of: str, end: int) -> None:
        record_range(connection, query, 0, group=group, ranges={source: (0, end)}, run_id=run, source_id=of)

    note("run 1", "one", 1)
    note("run 1", "one", 1)
    with refuses(errors.ConfigError, group=group):
        note("run 1", "two", 1)
    with refuses(errors.ConfigError, group=group):
        note("run 1", "two", 2)
    note("run 2", "three", 1)


def test_a_source_reads_a_batch_again_as_it_was_in_one_run(connection: Connection) -> None:
    """I14: its tasks are planned once; only the next run may plan anew."""
    source, query = new_partition(connection), unique("query")
    record_range(connection, query, 0, group=None, ranges={source: (0, 1)}, run_id="run", source_id="one")
    with pytest.raises(errors.BatchConflict, match=r"read offsets 0 to 1 .* shall read 0 to 2"):
        record_range(connection, query, 0, group=None, ranges={source: (0, 2)}, run_id="run", source_id="one")
    assert noted(connection, query) == [(0, "", source, 0, 1, "run", "one")]


def test_where_nothing_can_be_written_a_source_without_a_group_goes_on(connection: Connection) -> None:
    """A standby: nothing checks what is noted without a group, and what a group has read must be."""
    source, query = new_partition(connection), unique("query")
    connection.execute("set default_transaction_read_only = on")
    record_range(connection, query, 0, group=None, ranges={source: (0, 1)})
    with refuses(errors.MsgtxError, reason="read-only"):
        record_range(connection, query, 0, group=unique("group"), ranges={source: (0, 1)})
    assert noted(connection, query) == []


def test_without_a_group_what_is_committed_is_known_again_too(connection: Connection) -> None:
    """P20: a checkpoint that lost its newest file plans the batch anew, which may only be while it is not committed."""
    source = new_partition(connection)
    of = name(query=unique("query"))

    def note(batch: int, run: str, end: int, *, of_source: str = "one") -> None:
        ranges = {source: (0, end)}
        record_range(connection, of.query_id, batch, group=None, ranges=ranges, run_id=run, source_id=of_source)

    note(0, "run 1", 1)
    note(0, "run 2", 2)
    decide_batch(connection, of, [])
    note(0, "run 3", 2)
    with pytest.raises(errors.BatchConflict, match="the checkpoint fell behind"):
        note(0, "run 4", 3)
    note(1, "run 4", 4)
    note(1, "run 4", 5, of_source="two")  # allowed, and then not compared
    decide_batch(connection, of._replace(batch_id=1), [])
    note(1, "run 5", 5)
    note(1, "run 5", 4, of_source="two")


def test_a_batch_that_is_not_known_any_more_is_not_taken_for_new(connection: Connection) -> None:
    """What is noted of old batches is swept: a checkpoint that is so old is refused all the same."""
    source = new_partition(connection)
    of, group = name(query=unique("query")), unique("group")
    for number in range(4):
        record_range(connection, of.query_id, number, group=group, ranges={source: (number, number + 1)})
        decide_batch(connection, of._replace(batch_id=number), [])
    connection.execute("select msgtx.remove_spark_history()")
    record_range(connection, of.query_id, 3, group=group, ranges={source: (3, 4)})
    with refuses(errors.BatchConflict, group=group):
        record_range(connection, of.query_id, 1, group=group, ranges={source: (1, 4)})


# ── abandoned batches ──


def test_attempts_live_as_long_as_somebody_renews_them(connection: Connection, partition: int, clock: Clock) -> None:
    """I12: a session is short; the timeout bounds what renewals may give in all."""
    of = name()
    written = attempt(connection, of, partition, b"a")
    for number in range(1, 4):
        clock(f"{40 * number} s")
        assert renew_attempts(connection, of, session_ms=45_000, timeout_ms=170_000) == 1
        expire_transactions(connection)
        assert outcome(connection, written) is Outcome.OPEN
    clock("160 s")
    assert renew_attempts(connection, of, session_ms=45_000, timeout_ms=170_000) == 1
    clock("200 s")
    assert renew_attempts(connection, of, session_ms=45_000, timeout_ms=170_000) == 0
    expire_transactions(connection)
    assert outcome(connection, written) is Outcome.ABORTED
    assert renew_attempts(connection, of._replace(batch_id=1), session_ms=1, timeout_ms=1) == 0


def test_the_next_query_of_an_application_ends_what_another_one_left(connection: Connection, partition: int) -> None:
    """The old one's checkpoint is lost, its driver was killed: no other client knows of its attempts."""
    old = name(7, query=unique("query"))
    left = attempt(connection, old, partition, b"left")
    new = old._replace(query_id=unique("query"), batch_id=0)
    assert decide_batch(connection, new, [attempt(connection, new, partition, b"new")]).error is None
    assert outcome(connection, left) is Outcome.ABORTED
    assert values(connection, partition) == [b"new"]


def test_an_abort_that_does_not_know_the_query_ends_the_batch_of_each(connection: Connection, partition: int) -> None:
    of = name(3, query=unique("query"))
    attempt(connection, of, partition, b"left")
    later = attempt(connection, of._replace(batch_id=4), partition, b"later")
    assert abort_batch(connection, of._replace(query_id=""), of_any_query=True) == 1
    assert outcome(connection, later) is Outcome.OPEN
    abort_batch(connection, of._replace(batch_id=4))


def test_a_batch_of_a_program_leaves_the_attempts_of_queries_alone(connection: Connection) -> None:
    of = name(7)
    query = of._replace(query_id=unique("query"), batch_id=3)
    of_a_query = attempt(connection, query, new_partition(connection), b"a")
    begin_many(connection, of, 1)
    assert abort_batch(connection, of) == 1
    assert outcome(connection, of_a_query) is Outcome.OPEN
    assert abort_batch(connection, query) == 1, "it is known to the batches of queries as before"


def test_a_batch_that_is_committed_is_not_kept_alive(connection: Connection, partition: int) -> None:
    """I12: what its decision has left open holds readers for a session, also where tasks still work on it."""
    of = name()
    accepted, left = attempt(connection, of, partition, b"a"), begin_many(connection, of, AT_ONCE + 1)
    assert decide_batch(connection, of, [accepted]).aborted == AT_ONCE
    (late,) = undecided(connection, left)
    write(connection, late, partition, b"late")
    assert renew_attempts(connection, of, session_ms=100_000, timeout_ms=100_000) == 0


def test_attempts_whose_ids_are_gone_are_in_nobodys_way(connection: Connection, clock: Clock) -> None:
    """They began and wrote nothing, for as long as ids are kept: no decision can be about them, and none is needed."""
    of = name()
    gone, fenced, left = begin_many(connection, of, 3)
    connection.execute("delete from msgtx.producer where producer_id = %s", [gone])
    connection.execute("update msgtx.producer set epoch = 1 where producer_id = %s", [fenced])
    assert abort_batch(connection, of) == 1
    assert undecided(connection, [gone, fenced, left]) == [gone, fenced]
    clock("1 year")
    connection.execute("select msgtx.remove_spark_history()")
    assert count(connection, "spark_attempt", "app_id = %s", of.app_id) == 0


def test_an_attempt_of_a_role_is_known_beside_the_owners(connection: Connection) -> None:
    """The tag of its role makes its producer id larger than those of all attempts of the owner, also of later ones."""
    of = name()
    (role,) = connection.execute("select msgtx.next_producer_id() + (7::bigint << 40)").fetchone() or (0,)
    connection.execute(
        "insert into msgtx.producer (producer_id, epoch, timeout_ms, initialized_at, shard) values (%s, 0, 60000, now(), 0)",
        [role],
    )
    connection.execute("insert into msgtx.spark_attempt values (%s, %s, %s, %s, now())", [*of, role])
    assert abort_batch(connection, of) == 1
    begin_many(connection, of, 1)
    assert abort_batch(connection, of) == 1


# ── many attempts ──


def locks_of(observer: Connection, of: Connection) -> int:
    ((held,),) = observer.execute(
        "select count(*) from pg_locks where locktype = 'advisory' and pid = %s and granted", [backend(of)]
    )
    return int(held)


def test_an_abort_locks_few_attempts_at_a_time(connection: Connection) -> None:
    """A full lock table is everybody's."""
    of = name()
    begun = begin_many(connection, of, 2 * AT_ONCE + 1)
    assert abort_batch(connection, of) == len(begun)
    assert undecided(connection, begun) == []
    steps = connection.execute(
        "select count(*) from msgtx.transaction_decision where producer_id = any(%s) group by xmin order by 1", [begun]
    )
    assert steps.fetchall() == [(1,), (AT_ONCE,), (AT_ONCE,)]


def test_a_decision_locks_what_it_accepts_and_few_others(connection: Connection, partition: int) -> None:
    """What it leaves is nobody's part: aborted by name afterwards (I5, I8)."""
    of = name()
    others = begin_many(connection, of, AT_ONCE + 2)
    accepted = [attempt(connection, of, partition, b"a"), attempt(connection, of, partition, b"b")]
    with connection.transaction():
        decided = decide_batch(connection, of, accepted)
        assert (decided.error, decided.aborted, locks_of(connection, connection)) == (
            None,
            AT_ONCE,
            1 + len(accepted) + AT_ONCE,
        )
    write(connection, undecided(connection, others)[0], partition, b"late")
    plain(connection, partition, b"behind")
    assert values(connection, partition) == [b"a", b"b"]
    assert abort_batch(connection, of) == 2
    assert values(connection, partition) == [b"a", b"b", b"behind"]
    with pytest.raises(errors.InvalidTransactionState):
        write(connection, others[-1], partition, b"later")


def test_a_repetition_that_is_skipped_ends_what_the_decision_left(connection: Connection) -> None:
    of = name()
    begun = begin_many(connection, of, AT_ONCE + 2)
    assert decide_batch(connection, of, []).aborted == AT_ONCE
    assert len(undecided(connection, begun)) == 2
    assert decide_batch(connection, of, []) == DecidedBatch(skipped=True, aborted=2, error=None)
    assert undecided(connection, begun) == []


def test_a_batch_of_more_tasks_than_locks_is_refused(connection: Connection) -> None:
    """I16: all that it accepts is decided in one SQL transaction."""
    of = name()
    accepted = [Attempt(n, {}, 0) for n in range(describe_lock_table(connection).places // 2 + 1)]
    with refuses(errors.InvalidRequest, name="max_locks_per_transaction"):
        decide_batch(connection, of, accepted)
    assert not is_batch_committed(connection, of)


# ── a group that follows ──


def test_a_group_follows_a_batch_that_its_sink_has_not_committed(connection: Connection) -> None:
    source, gone, unread = (new_partition(connection) for _ in range(3))
    group, query = unique("group"), unique("query")
    record_range(connection, query, 0, group=group, ranges={source: (0, 2), gone: (0, 1)}, source_id="a")
    delete_topic_of(connection, gone)
    for _ in range(2):  # again after a lost answer
        follow_batch(connection, group, {source: (0, 2), gone: (0, 1), unread: (0, 1)}, source_id="a")
        assert committed_at(connection, group, source) == (2, False)
    follow_batch(connection, group, {gone: (0, 1)}, source_id="a")
    follow_batch(connection, group, {source: (2, 3)}, source_id="a")
    assert committed_at(connection, group, source) == (3, False), "no task has read that"
    assert committed_at(connection, group, unread) == (None, False), "nor that, and a lost checkpoint can look like this"


def test_a_group_that_another_query_has_moved_does_not_follow(connection: Connection) -> None:
    """I10: further than this one has read, or as far; a sink of its own is known by its decision."""
    first, second, third = (new_partition(connection) for _ in range(3))
    group, query, other = unique("group"), unique("query"), unique("query")
    for each, source in ((query, "a"), (other, "b")):
        record_range(connection, each, 0, group=group, ranges={first: (0, 2), second: (0, 1)}, source_id=source)
    follow_batch(connection, group, {first: (0, 2)}, source_id="a")
    for ranges in ({first: (0, 2)}, {first: (0, 1)}, {first: (0, 2), second: (0, 1)}):
        with refuses(errors.BatchConflict, group=group):
            follow_batch(connection, group, ranges, source_id="b")
    assert committed_at(connection, group, second) == (None, False)
    record_range(connection, query, 1, group=group, ranges={third: (0, 1)}, source_id="a")
    decide_batch(connection, name(1, query=query), [], group=group, ranges={third: BatchRange(0, 1)})
    follow_batch(connection, group, {third: (0, 1)}, source_id="a")


def test_where_a_batch_began_is_told_by_where_it_ended(connection: Connection) -> None:
    fits, nowhere, elsewhere, ahead, unknown = new_topic(connection, 5)
    group = unique("group")
    record_range(connection, unique("query"), 7, group=group, ranges={fits: (1, 4), nowhere: (0, 4), elsewhere: (1, 4)})
    record_range(connection, unique("query"), 8, group=group, ranges={ahead: (4, 9)})
    positions = {fits: OffsetAndMetadata(1), elsewhere: OffsetAndMetadata(2), ahead: OffsetAndMetadata(9)}
    commit_offsets(connection, {GroupMetadata(group): positions})
    asked = dict.fromkeys([fits, nowhere, elsewhere, ahead, unknown], 4)
    assert noted_begins(connection, group, asked) == {
        fits: NotedBegin(1, 1, repeats=False),
        nowhere: NotedBegin(None, 0, repeats=False),
        elsewhere: NotedBegin(2, None, repeats=False),
        ahead: NotedBegin(9, None, repeats=True),
        unknown: NotedBegin(None, None, repeats=False),
    }


# ── at once ──


def test_of_two_drivers_that_decide_the_same_batch_one_commits(open_connection: Sessions, background: Background) -> None:
    first, second = open_connection(), open_connection()
    partition = new_partition(first)
    of = name()
    attempts = [attempt(first, of, partition, b"a"), attempt(second, of, partition, b"a")]
    with first.transaction():
        assert decide_batch(first, of, attempts[:1]).error is None
        other = background.submit(decide_batch, second, of, attempts[1:])
        assert not concurrent.futures.wait([other], timeout=0.2).done
    assert other.result(10).skipped
    assert values(first, partition) == [b"a"]


def test_a_decision_locks_all_its_attempts_in_their_order_before_it_decides_one(
    open_connection: Sessions, background: Background
) -> None:
    """Else it could wait for one that waits for it: while the last one is locked, it has the lock of every other."""
    holder, driver, observer = open_connection(), open_connection(), open_connection()
    of = name()
    first, *others, last = begin_many(holder, of, AT_ONCE + 2)
    with holder.transaction():
        lock_producers(holder, [last])
        decided = background.submit(decide_batch, driver, of, [Attempt(last, {}, 0), Attempt(first, {}, 0)])
        wait_for_lock(observer, backend(driver))
        assert locks_of(observer, driver) == 1 + len([first, *others])
    assert decided.result(30) == DecidedBatch(skipped=False, aborted=len(others), error=None)


def test_of_two_applications_of_one_group_one_commits(open_connection: Sessions, background: Background) -> None:
    """I10: both read the same records, and each has a lock of its own: the group's lets one decide behind the other."""
    one, two = open_connection(), open_connection()
    source = new_partition(one)
    group, ranges = unique("group"), {source: BatchRange(0, 1)}
    with one.transaction():
        assert decide_batch(one, name(), [], group=group, ranges=ranges).error is None
        other = background.submit(decide_batch, two, name(), [], group=group, ranges=ranges)
        wait_for_lock(one, backend(two))
    assert isinstance(other.result(10).error, errors.BatchConflict)


@pytest.mark.parametrize(("again", "error"), [("a", type(None)), ("b", errors.BatchConflict)])
def test_a_batch_that_is_followed_twice_at_once_counts_once(
    open_connection: Sessions, background: Background, again: str, error: type
) -> None:
    """By its own query, which has lost a connection and asks again; or by another one (I10)."""
    one, two = open_connection(), open_connection()
    source = new_partition(one)
    group = unique("group")
    for each in ("a", "b"):
        record_range(one, unique("query"), 0, group=group, ranges={source: (0, 1)}, source_id=each)
    with one.transaction():
        follow_batch(one, group, {source: (0, 1)}, source_id="a")
        other = background.submit(follow_batch, two, group, {source: (0, 1)}, source_id=again)
        wait_for_lock(one, backend(two))
    assert isinstance(other.exception(10), error)


def test_an_attempt_that_begins_beside_the_decision_waits_and_is_refused(
    open_connection: Sessions, background: Background
) -> None:
    """No attempt is left undecided: it is part of the decision, or it sees the fence row."""
    driver, task = open_connection(), open_connection()
    of = name()
    with driver.transaction():
        decide_batch(driver, of, [])
        begun = background.submit(begin_attempt, task, of, timeout_ms=TIMEOUT_MS)
        assert not concurrent.futures.wait([begun], timeout=0.2).done
    assert begun.result(10) is None


# ── what is left ──


def test_the_sweep_keeps_what_still_counts(connection: Connection, partition: int) -> None:
    of = name(query=unique("query"))
    source = new_partition(connection)
    for number in range(3):
        each = of._replace(batch_id=number)
        record_range(connection, of.query_id, number, group="g", ranges={source: (number, number + 1)})
        decide_batch(connection, each, [attempt(connection, each, partition, b"%d" % number)])
    open_one = attempt(connection, of._replace(batch_id=3), partition, b"open")
    connection.execute("select msgtx.remove_spark_history()")

    def left(table: str, column: str) -> list[int]:
        rows = connection.execute(f"select {column} from msgtx.{table} where query_id = %s order by 1", [of.query_id])
        return [value for (value,) in rows]

    assert left("spark_batch", "batch_id") == [2]
    assert left("spark_range", "batch_id") == [2]
    assert left("spark_attempt", "producer_id") == [open_one.producer_id]
    assert begin_attempt(connection, of._replace(batch_id=1), timeout_ms=TIMEOUT_MS) is None


def test_an_attempt_that_is_open_is_known_however_old_it_is(connection: Connection, clock: Clock) -> None:
    """Its batch's next run ends it, whoever has swept before."""
    of = name(query=unique("query"))
    left = attempt(connection, of, new_partition(connection), b"left")
    other = name()
    decide_batch(connection, other, [attempt(connection, other, new_partition(connection), b"decided")])
    clock("1 year")
    connection.execute("select msgtx.remove_spark_history()")
    assert abort_batch(connection, of) == 1
    assert outcome(connection, left) is Outcome.ABORTED
    connection.execute("select msgtx.remove_spark_history()")
    assert count(connection, "spark_attempt", "query_id = %s", of.query_id) == 0


def swept(connection: Connection) -> tuple[int, bool]:
    """Sweep once. Returns how many rows went, and whether there may be more."""
    row = connection.execute("select removed, next_after is not null from msgtx.remove_spark_history()").fetchone()
    assert row is not None
    return row


def test_a_fence_is_superseded_in_its_own_application_alone(connection: Connection) -> None:
    """P20: also by a program that counts its batches itself, as another one does."""
    of, ahead = name(0), name(5)
    for each in (of, ahead):
        assert decide_batch(connection, each, []).error is None
    swept(connection)
    assert is_batch_committed(connection, of)


def test_of_a_query_without_a_batch_the_last_two_ranges_stay_for_the_time_of_the_history(
    connection: Connection, clock: Clock
) -> None:
    """They expose one that fell behind; the range of the newest committed batch does so forever."""
    source = new_partition(connection)
    ahead, behind, committed = (unique("query") for _ in range(3))
    for query, numbers in ((ahead, [9]), (behind, range(4)), (committed, [0])):
        for number in numbers:
            record_range(connection, query, number, group=None, ranges={source: (number, number + 1)})
    assert decide_batch(connection, name(0, query=committed), []).error is None

    def left() -> list[list[int]]:
        return [[row[0] for row in noted(connection, query)] for query in (ahead, behind, committed)]

    swept(connection)
    assert left() == [[9], [2, 3], [0]]
    clock("1 year")
    swept(connection)
    assert left() == [[], [], [0]]


def test_what_is_left_of_many_batches_goes_in_steps(connection: Connection) -> None:
    """At most 10,000 rows of each table in a call, which counts them all."""
    swept(connection)
    app, query = unique("app"), unique("query")
    connection.execute(
        "insert into msgtx.spark_attempt (app_id, query_id, batch_id, producer_id, begun_at)"
        " select %s, '', 0, -n, msgtx.clock() - interval '1 year' from generate_series(1, 5) n",
        [app],
    )
    connection.execute(
        "insert into msgtx.spark_range (query_id, batch_id, group_name, partition_id, start_offset, end_offset, recorded_at)"
        " select %s, n, '', 1, n, n, msgtx.clock() from generate_series(1, 4) n",
        [query],
    )
    connection.execute(
        "insert into msgtx.spark_batch (app_id, query_id, batch_id, decided_at)"
        " select %s, '', n, msgtx.clock() from generate_series(0, 10003) n",
        [app],
    )
    assert [swept(connection) for _ in range(2)] == [(5 + 2 + 10_000, True), (3, False)]


def test_a_name_of_a_query_that_is_too_long_is_refused(connection: Connection) -> None:
    """I16: a row of any size would be stored, by whoever may name an application."""
    with pytest.raises(errors.ConfigError, match="spark_attempt_names_are_short"):
        begin_attempt(connection, BatchName("app", "q" * 1001, 1), timeout_ms=60_000)
