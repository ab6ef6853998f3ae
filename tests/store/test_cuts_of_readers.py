"""Consistent cuts of a reader that goes on, and what a cut costs: what was read does not count, nothing is divided (I15)."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import hypothesis
import pytest
from hypothesis import strategies as st

from msgtx.store.fetch.cuts import consistent_cut
from msgtx.store.transactions.transactions import mark
from tests.databases import Connection
from tests.store.steps import Writer, ends, forget, new_topic, plain, spent

Ends = dict[int, int]


def cut(connection: Connection, partitions: Sequence[int], positions: Mapping[int, int] | None = None) -> Ends:
    return {partition: at.end for partition, at in consistent_cut(connection, partitions, positions or {}).items()}


def chain(connection: Connection, partitions: Sequence[int], length: int) -> None:
    """Commit transactions over two partitions, of which each begins before the one in front of it ends on the first one."""
    one, other = partitions[:2]
    writers = itertools.cycle([Writer(connection), Writer(connection)])
    ending = next(writers)
    ending.send(one, b"begins")
    for _ in range(length):
        begun = next(writers)
        begun.send(one, b"begins")
        ending.send(other, b"goes on")
        ending.send_and_commit(one, b"ends")
        ending = begun


def test_a_round_looks_only_at_what_the_one_before_lowered(connection: Connection) -> None:
    """Else a cut of 1,000 partitions costs a thousand times as much where the transactions of two of them overlap."""
    scans = []
    for length, width in itertools.product((2, 20), (2, 40)):
        partitions = new_topic(connection, width)
        chain(connection, partitions, length)
        assert set(cut(connection, partitions).values()) == {0}
        scans.append(spent(connection, "record_batch", "idx_scan", lambda asked=partitions: cut(connection, asked)))
    short, short_and_wide, long, long_and_wide = scans
    assert long_and_wide - short_and_wide == long - short > 0


def test_a_cut_looks_at_each_row_once(connection: Connection) -> None:
    """Where nothing is undecided it looks at none above the ends; and not again at what an earlier round has seen."""
    quiet = new_topic(connection, 5)
    for partition in quiet:
        plain(connection, partition, b"x")
    looks = [
        spent(connection, "record_batch", "idx_scan", work)
        for work in (lambda: cut(connection, quiet), lambda: [ends(connection, partition) for partition in quiet])
    ]
    assert looks[0] == looks[1]
    rows = []
    for length in (10, 100):
        partitions = new_topic(connection, 2)
        chain(connection, partitions, length)
        rows.append(spent(connection, "record_batch", "idx_tup_fetch", lambda asked=partitions: cut(connection, asked)))
    assert rows[1] < 15 * rows[0]


def test_a_reader_pays_for_what_it_has_not_read(connection: Connection) -> None:
    rows = []
    for length in (10, 100):
        partitions = new_topic(connection, 2)
        chain(connection, partitions, length)
        behind = {partitions[0]: 2 * length - 10, partitions[1]: length - 5}
        assert cut(connection, partitions) == dict.fromkeys(partitions, 0)
        assert cut(connection, partitions, behind) == behind
        rows.append(
            [
                spent(
                    connection, "record_batch", "idx_tup_fetch", lambda asked=partitions, at=at: cut(connection, asked, at)
                )
                for at in ({}, behind)
            ]
        )
    (short, short_behind), (long, long_behind) = rows
    assert long > 5 * short
    assert long_behind == short_behind


def test_what_is_left_of_a_transaction_is_not_divided(connection: Connection) -> None:
    """A stream that did not wait for the rest, or a user's offsets, may stand inside a transaction."""
    one, two, three = new_topic(connection, 3)
    torn, split, open_one = Writer(connection), Writer(connection), Writer(connection)
    torn.send(one, b"read")
    split.send(three, b"read")
    torn.send(two, b"not read")
    torn.send(one, b"not read")
    split.send(one, b"not read")
    open_one.send(one, b"open")
    torn.send_and_commit(one, b"behind the open one")
    split.commit()
    partitions = [one, two, three]
    assert cut(connection, partitions) == {one: 0, two: 0, three: 0}
    assert cut(connection, partitions, {one: 1}) == {one: 1, two: 0, three: 0}
    found = consistent_cut(connection, partitions, {one: 1, three: 1})
    assert {partition: at.end for partition, at in found.items()} == {one: 1, two: 0, three: 1}
    assert [at.log_start_offset for at in found.values()] == [0, 0, 0]
    open_one.commit()
    assert cut(connection, partitions, {one: 1, three: 1}) == {one: 5, two: 1, three: 1}


def test_what_is_left_of_a_batch_is_not_divided(connection: Connection) -> None:
    """Nor when the position, as an end, divides the batch: what it holds behind the end is looked at."""
    one, two, three = new_topic(connection, 3)
    torn, around, open_one = Writer(connection), Writer(connection), Writer(connection)
    around.send(one, b"read")
    torn.send(one, b"read", b"not read")
    around.send(one, b"not read")
    torn.send(two, b"not read")
    open_one.send(three, b"open")
    around.send(three, b"behind the open one")
    torn.commit()
    around.commit()
    assert cut(connection, [one, two, three], {one: 2}) == {one: 2, two: 0, three: 0}
    open_one.abort()
    assert cut(connection, [one, two, three], {one: 2}) == {one: 4, two: 1, three: 2}


def test_a_position_behind_the_end_of_a_log_is_no_end(connection: Connection) -> None:
    """After a crash took records back: what is there in other partitions is judged as if nothing were read here."""
    one, two = new_topic(connection, 2)
    writer, open_one = Writer(connection), Writer(connection)
    open_one.send(one, b"open")
    writer.send(one, b"both")
    writer.send_and_commit(two, b"both")
    assert cut(connection, [one, two], {one: 100, two: 100}) == {one: 0, two: 1}
    assert cut(connection, [one, two], {one: 100}) == {one: 0, two: 0}


def test_partitions_that_are_named_twice_or_not_there_have_positions_too(connection: Connection) -> None:
    one, two = new_topic(connection, 2)
    chain(connection, [one, two], 3)
    row = connection.execute(
        "select array_agg((partition_id, end_offset)::text) from msgtx.consistent_cut(%s, %s)",
        [[two, one, None, 2**31 - 1, two], [1, 2, 3, 4, None]],
    ).fetchone()
    assert row == ([f"({one},2)", f"({two},1)"],)


@dataclass
class Log:
    """What was written, and what of it is consistent: by the definition, trying all ends."""

    records: dict[int, list[int]]  # who wrote each offset, by partition
    starts: Ends
    outcome: dict[int, str] = field(default_factory=dict)

    def stable(self, partition: int) -> int:
        rows = self.records[partition]
        first = next((at for at, who in enumerate(rows) if self.outcome.get(who) == "OPEN"), len(rows))
        return max(first, self.starts[partition])

    def greatest(self, positions: Mapping[int, int]) -> Ends:
        """Return the greatest ends that divide nothing of what counts: a transaction from its first to its last record."""
        tops = {each: self.stable(each) for each in self.records}
        lows = {each: max(self.starts[each], min(positions.get(each, 0), top)) for each, top in tops.items()}
        spans = []
        for name in (name for name, ended in self.outcome.items() if ended == "COMMIT"):
            found = {each: [at for at, who in enumerate(rows) if who == name] for each, rows in self.records.items()}
            spans.append(
                {each: (max(at[0], lows[each]), at[-1]) for each, at in found.items() if at and at[-1] >= lows[each]}
            )
        consistent = [
            ends
            for chosen in itertools.product(*(range(lows[each], tops[each] + 1) for each in self.records))
            for ends in [dict(zip(self.records, chosen, strict=True))]
            if not any(
                any(first < ends[each] for each, (first, _) in span.items())
                and any(last >= ends[each] for each, (_, last) in span.items())
                for span in spans
            )
        ]
        return {each: max(ends[each] for ends in consistent) for each in self.records}


WRITERS = 4
LONGEST = 9  # log: all ends are tried
steps = st.one_of(
    st.tuples(st.sampled_from(["send", "send", "send", "plain"]), st.integers(0, WRITERS - 1), st.integers(0, 2)),
    st.tuples(st.sampled_from(["COMMIT", "COMMIT", "ABORT"]), st.integers(0, WRITERS - 1), st.just(0)),
    st.tuples(st.sampled_from(["cut", "cut", "trim", "forget"]), st.integers(0, 7), st.integers(0, 2)),
)


@pytest.mark.long
@hypothesis.settings(
    max_examples=80, derandomize=True, deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)  # fmt: skip
@hypothesis.given(
    st.lists(steps, min_size=8, max_size=40),
    st.lists(st.dictionaries(st.integers(0, 2), st.integers(0, LONGEST + 1)), min_size=1, max_size=6),
)
def test_a_cut_is_the_greatest_of_all_that_divide_nothing(
    connection: Connection, history: list[tuple[str, int, int]], wanted: list[dict[int, int]]
) -> None:
    """I15, for every reader: one that stands nowhere, at an earlier cut, or at any offsets."""
    partitions = new_topic(connection, 3)
    writers = [Writer(connection) for _ in range(WRITERS)]
    names = list(range(WRITERS))  # of the current transactions
    log = Log({each: [] for each in partitions}, dict.fromkeys(partitions, 0))
    earlier: list[Ends] = []
    for kind, which, where in [*history, ("cut", 0, 0), ("over", 0, 0), ("cut", 0, 0)]:
        partition = partitions[where]
        size = 1 + (len(log.records[partition]) + where) % 2
        if kind in ("send", "plain") and len(log.records[partition]) + size > LONGEST:
            continue
        match kind:
            case "send":
                writers[which].send(partition, *[b"x"] * size)
                log.records[partition] += [names[which]] * size
                log.outcome[names[which]] = "OPEN"
            case "plain":
                plain(connection, partition, *[b"x"] * size)
                log.records[partition] += [-1] * size
            case "COMMIT" | "ABORT" if log.outcome.get(names[which]) == "OPEN":
                writers[which].commit() if kind == "COMMIT" else writers[which].abort()
                log.outcome[names[which]] = kind
                names[which] += WRITERS
            case "trim":
                start = max(log.starts[partition], min(which, len(log.records[partition])))
                connection.execute(
                    "update msgtx.partition set log_start_offset = %s where partition_id = %s", [start, partition]
                )
                log.starts[partition] = start
            case "forget" | "over":
                mark(connection, everything=True)
                for name, ended in log.outcome.items():
                    writer = writers[name % WRITERS]
                    if ended != "OPEN" and (kind == "over" or name + WRITERS < names[name % WRITERS]):
                        forget(connection, writer.name._replace(transaction_number=name // WRITERS))
            case "cut":
                found = cut(connection, partitions)
                assert found == log.greatest({})
                for positions in earlier:
                    assert cut(connection, partitions, positions) == found, "what was a cut changes nothing"
                    assert all(found[each] >= end for each, end in positions.items()), "it only moves forward"
                earlier.append(found)
                for chosen in wanted:
                    positions = {partitions[at]: offset for at, offset in chosen.items()}
                    assert cut(connection, partitions, positions) == log.greatest(positions)
