"""Consistent cuts: no committed transaction is on both sides, and none is greater (I14, I15)."""

import hypothesis
import pytest
from hypothesis import strategies as st

from msgtx.rules.boundary import lowered
from msgtx.store.fetch.cuts import consistent_cut, spans_of_transactions
from msgtx.store.transactions.decide import Ending
from msgtx.store.transactions.transactions import mark
from tests.databases import Connection
from tests.store.steps import Writer, forget, new_partition, new_topic, plain, plain_batches, read


def cut(connection: Connection, partitions: list[int]) -> dict[int, int]:
    return {partition: at.end for partition, at in consistent_cut(connection, partitions).items()}


def test_what_is_decided_everywhere_is_in_the_cut(connection: Connection, writer: Writer) -> None:
    one, two = new_topic(connection, 2)
    writer.send(one, b"a")
    writer.send_and_commit(two, b"b", b"c")
    plain(connection, two, b"d")
    assert cut(connection, [one, two]) == {one: 1, two: 3}


def test_an_unknown_partition_is_absent_and_an_empty_one_ends_at_its_start(connection: Connection) -> None:
    empty = new_partition(connection)
    assert cut(connection, [empty, 2**31 - 1]) == {empty: 0}
    assert cut(connection, [2**31 - 1]) == {}
    assert cut(connection, []) == {}


def test_a_transaction_behind_an_open_one_is_left_out_everywhere(connection: Connection) -> None:
    """I15: one of its partitions is held back, so it is in none."""
    one, two, three = new_topic(connection, 3)
    open_one, split, chained = Writer(connection), Writer(connection), Writer(connection)
    chained.send(three, b"chained")
    chained.send(two, b"chained")
    split.send(two, b"split")
    open_one.send(one, b"open")
    name = split.send_and_commit(one, b"split")
    chained_name = chained.send_and_commit(two, b"chained, too")
    found = consistent_cut(connection, [one, two, three])
    assert {partition: at.end for partition, at in found.items()} == {one: 0, two: 0, three: 0}
    assert found[two].held_by in (name, chained_name)
    assert found[one].held_by is None
    assert cut(connection, [two, three]) == {two: 3, three: 1}, "of these alone nothing is held back"
    open_one.abort()
    assert cut(connection, [one, two, three]) == {one: 2, two: 3, three: 1}


def test_where_a_transaction_is_in_other_partitions_lowers_nothing(connection: Connection) -> None:
    """I15: of those that are asked for, it is in the one alone, and behind an open one there."""
    one, aside = new_topic(connection, 2)
    split, open_one = Writer(connection), Writer(connection)
    split.send(aside, b"split")
    plain(connection, one, b"before")
    open_one.send(one, b"open")
    split.send_and_commit(one, b"split")
    found = consistent_cut(connection, [one])
    assert {partition: (at.end, at.held_by) for partition, at in found.items()} == {one: (1, None)}


def test_records_below_a_log_start_do_not_count(connection: Connection) -> None:
    one, two = new_topic(connection, 2)
    open_one, split = Writer(connection), Writer(connection)
    split.send(two, b"gone")
    open_one.send(one, b"open")
    split.send_and_commit(one, b"split")
    plain(connection, two, b"later")
    assert cut(connection, [one, two]) == {one: 0, two: 0}
    connection.execute("update msgtx.partition set log_start_offset = 1 where partition_id = %s", [two])
    assert cut(connection, [one, two]) == {one: 0, two: 2}


def test_an_end_at_the_log_start_is_held_by_nobody(connection: Connection, partition: int) -> None:
    """What was removed of a transaction lowers nothing: the end is the last stable offset."""
    split, open_one = Writer(connection), Writer(connection)
    split.send(partition, b"removed")
    open_one.send(partition, b"open")
    split.send_and_commit(partition, b"behind the open one")
    connection.execute("update msgtx.partition set log_start_offset = 1 where partition_id = %s", [partition])
    found = consistent_cut(connection, [partition])[partition]
    assert (found.end, found.held_by) == (1, None)


steps = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.just("commit"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("abort"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("plain"), st.just(0), st.integers(0, 2)),
    st.tuples(st.just("cut"), st.just(0), st.just(0)),
)


@hypothesis.settings(
    max_examples=60, derandomize=True, deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)  # fmt: skip
@hypothesis.given(st.lists(steps, min_size=6, max_size=40))
def test_cuts_split_nothing_only_move_forward_and_read_the_same(
    connection: Connection, history: list[tuple[str, int, int]]
) -> None:
    """I14, I15, against the naive replay: the greatest ends are found by trying all lowerings until nothing changes."""
    partitions = new_topic(connection, 3)
    writers = [Writer(connection) for _ in range(4)]
    log: dict[int, list[tuple[int, int] | None]] = {partition: [] for partition in partitions}  # who wrote each offset
    outcome: dict[tuple[int, int], str] = {}
    earlier: dict[int, int] = dict.fromkeys(partitions, 0)
    seen: dict[int, list[tuple[int, bytes | None]]] = {partition: [] for partition in partitions}
    for kind, who, where in [*history, ("cut", 0, 0)]:
        writer, partition = writers[who], partitions[where]
        name = (who, writer.number)
        if kind == "send":
            writer.send(partition, b"%d" % len(log[partition]))
            log[partition].append(name)
            outcome.setdefault(name, "OPEN")
        elif kind == "plain":
            plain(connection, partition, b"%d" % len(log[partition]))
            log[partition].append(None)
        elif kind in ("commit", "abort") and outcome.get(name) == "OPEN":
            getattr(writer, kind)()
            outcome[name] = kind.upper()
        elif kind == "cut":
            ends = cut(connection, partitions)
            assert ends == expected(log, outcome)
            assert all(ends[each] >= earlier[each] for each in partitions), "it only moves forward"
            for each in partitions:
                now = [row for row in read(connection, each) if row[0] < ends[each]]
                assert [row for row in now if row[0] < earlier[each]] == seen[each], "what was in a cut reads the same"
                seen[each] = now
            earlier = ends


def expected(log: dict[int, list[tuple[int, int] | None]], outcome: dict[tuple[int, int], str]) -> dict[int, int]:
    ends = {
        partition: next((at for at, who in enumerate(rows) if who and outcome[who] == "OPEN"), len(rows))
        for partition, rows in log.items()
    }
    while True:
        before = dict(ends)
        for name, ended in outcome.items():
            places = [(p, at) for p, rows in log.items() for at, who in enumerate(rows) if who == name]
            if ended == "COMMIT" and any(at >= ends[p] for p, at in places):
                for p, at in places:
                    ends[p] = min(ends[p], at)
        if ends == before:
            return ends


@pytest.mark.parametrize("purged", [False, True])
def test_a_transaction_whose_history_is_gone_is_found_by_its_rows(connection: Connection, purged: bool) -> None:
    one, two = new_topic(connection, 2)
    open_one, split = Writer(connection), Writer(connection)
    split.send(two, b"split")
    open_one.send(one, b"open")
    name = split.send_and_commit(one, b"split")
    if purged:
        forget(connection, name)
    assert cut(connection, [one, two]) == {one: 0, two: 0}


@pytest.mark.parametrize("outcome", ["COMMIT", "ABORT"])
@pytest.mark.parametrize("purged", [False, True])
def test_what_is_in_several_partitions_has_its_own_place_in_each(
    connection: Connection, purged: bool, outcome: Ending
) -> None:
    """I15: also when nothing but rows and an ABORT's markers is left of it, beside others of its producer."""
    one, two = new_topic(connection, 2)
    open_one, split = Writer(connection), Writer(connection)
    plain(connection, one, b"before")
    for ended in ("COMMIT", "ABORT"):
        split.send(one, b"before")
        split.send(two, b"before")
        split.decide(ended)
        split.next()
    open_one.send(two, b"open")
    name = split.name
    split.send(one, b"split")
    split.send(two, b"split")
    split.decide(outcome)
    split.next()
    for _ in range(2):
        split.send_and_commit(one, b"after")
    mark(connection, everything=True)
    if purged:
        forget(connection, name)
    assert cut(connection, [one, two]) == {one: 3 if outcome == "COMMIT" else 6, two: 2}
    open_one.commit()
    assert cut(connection, [one, two]) == {one: 6, two: 4}
    found = spans_of_transactions(connection, {one: 3, two: 2}, {one: 4, two: 3})
    assert [span for span in found if len(span) == 2] == ([{one: (3, 3), two: (3, 3)}] if outcome == "COMMIT" else [])


@pytest.mark.parametrize("ended", ["COMMIT", "ABORT"])
def test_what_is_left_of_a_transaction_is_not_that_of_its_namesakes(connection: Connection, ended: Ending) -> None:
    """I15: its history is gone; one of another producer, and one of its own earlier epoch, have theirs in front of it."""
    one, two = new_topic(connection, 2)
    split, stranger, open_one = Writer(connection), Writer(connection), Writer(connection)
    stranger.init()
    for namesake in (stranger, split):
        namesake.send(one, b"before")
        namesake.send(two, b"before")
        namesake.decide(ended)
    split.init()
    split.send(one, b"split")
    open_one.send(two, b"open")
    name = split.send_and_commit(two, b"split")
    assert name == (split.id.producer_id, stranger.id.epoch, stranger.number)
    mark(connection, everything=True)
    forget(connection, name)
    assert cut(connection, [one, two]) == {one: 2, two: 2}
    spans = spans_of_transactions(connection, {one: 2, two: 3}, {one: 3, two: 4})
    assert spans == [{one: (2, 2), two: (3, 3)}]


@hypothesis.settings(
    max_examples=60, derandomize=True, deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)  # fmt: skip
@hypothesis.given(st.lists(steps, min_size=6, max_size=40), st.tuples(*[st.integers(0, 6)] * 6))
def test_a_batch_that_is_not_to_take_everything_ends_between_transactions(
    connection: Connection, history: list[tuple[str, int, int]], bounds: tuple[int, ...]
) -> None:
    """I15: ends within a cut are lowered until they divide no committed transaction of what is behind the starts."""
    partitions = new_topic(connection, 3)
    writers = [Writer(connection) for _ in range(4)]
    places: dict[tuple[int, int], list[tuple[int, int]]] = {}
    committed = set()
    lengths = dict.fromkeys(partitions, 0)
    for kind, who, where in history:
        writer, partition = writers[who], partitions[where]
        name = (who, writer.number)
        if kind == "send":
            writer.send(partition, b"one", b"two")
            places.setdefault(name, []).extend((partition, lengths[partition] + at) for at in range(2))
            lengths[partition] += 2
        elif kind == "plain":
            plain(connection, partition, b"plain")
            lengths[partition] += 1
        elif kind in ("commit", "abort") and name in places:
            getattr(writer, kind)()
            if kind == "commit":
                committed.add(name)
    upto = cut(connection, partitions)
    zero = dict.fromkeys(partitions, 0)
    starts = {each: min(bounds[at], upto[each]) for at, each in enumerate(partitions)}
    starts = lowered(zero, starts, spans_of_transactions(connection, zero, starts))
    ends = {each: min(starts[each] + bounds[3 + at], upto[each]) for at, each in enumerate(partitions)}
    found = lowered(starts, ends, spans_of_transactions(connection, starts, ends))
    wanted = dict(ends)
    counted = [[(p, at) for p, at in places[name] if at >= starts[p]] for name in committed]
    while True:
        before = dict(wanted)
        for offsets in counted:
            if any(at >= wanted[p] for p, at in offsets):
                for p, at in offsets:
                    wanted[p] = min(wanted[p], at)
        if wanted == before:
            break
    assert found == wanted


def test_an_end_is_lowered_by_what_lies_in_another_partition(connection: Connection) -> None:
    """I15: in each partition the transaction is one row, on its side of the end."""
    one, two = new_topic(connection, 2)
    plain(connection, one, b"before")
    both = Writer(connection)
    both.send(one, b"a", b"b")
    both.send_and_commit(two, b"c")
    starts, ends = {one: 0, two: 0}, {one: 3, two: 0}
    assert lowered(starts, ends, spans_of_transactions(connection, starts, ends)) == {one: 1, two: 0}
    assert lowered(starts, {one: 3, two: 1}, spans_of_transactions(connection, starts, {one: 3, two: 1})) == {one: 3, two: 1}


def test_only_transactions_with_a_row_in_the_ranges_are_told(connection: Connection, writer: Writer) -> None:
    """Not those that have one at such an offset of another partition."""
    beside, partition = new_topic(connection, 2)
    for _ in range(3):
        writer.send(partition, b"a")
        writer.send(partition, b"b")
        writer.send_and_commit(beside, b"c")
    assert spans_of_transactions(connection, {partition: 2}, {partition: 3}) == [{partition: (2, 3)}]
    assert spans_of_transactions(connection, {partition: 2}, {partition: 2}) == []
    found = spans_of_transactions(connection, {partition: 0}, {partition: 6})
    assert sorted(span[partition] for span in found) == [(0, 1), (2, 3), (4, 5)]


def test_what_a_range_cannot_divide_is_not_told(connection: Connection, writer: Writer) -> None:
    """It lies in one row inside the range, or the range is empty. A row that begins in front of it is not inside."""
    beside, partition = new_topic(connection, 2)
    plain_batches(connection, beside, *[b"x"] * 5)
    for _ in range(2):
        writer.send_and_commit(partition, b"a", b"b", b"c")
    writer.commit_whole(writer.row(partition, b"a", b"b", b"c"))
    assert spans_of_transactions(connection, {partition: 3}, {partition: 9}) == []
    assert spans_of_transactions(connection, {partition: 5}, {partition: 5}) == []
    assert spans_of_transactions(connection, {partition: 5}, {partition: 9}) == [{partition: (3, 5)}]
    assert spans_of_transactions(connection, {partition: 0}, {partition: 4}) == [{partition: (3, 5)}]


@pytest.mark.parametrize("purged", [False, True])
def test_only_what_is_committed_is_told_and_where_it_is_of_the_partitions_asked_for(
    connection: Connection, purged: bool
) -> None:
    aside, one, two, other = new_topic(connection, 4)
    committed, aborted, open_one = (Writer(connection) for _ in range(3))
    for writer in (committed, aborted, open_one):
        for partition in (aside, one, two, one):
            writer.send(partition, b"x")
    name = committed.commit()
    aborted.abort()
    if purged:
        forget(connection, name)
    asked = (one, two, other)
    found = spans_of_transactions(connection, dict.fromkeys(asked, 0), dict.fromkeys(asked, 9))
    assert found == [{one: (0, 1), two: (0, 0)}]
