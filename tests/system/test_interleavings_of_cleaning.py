"""T4, interleavings of cleaning: retention and compaction beside producers, readers and each other, in every order.

Cleaners take no advisory lock: they are paused between their statements, which see different snapshots. So are appends,
between reading the log and the insert.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from msgtx.coordinator.compactor import Compactor
from msgtx.database.wire import BatchColumns
from msgtx.store.append.append import Appended, append, append_and_decide
from msgtx.store.fetch.fetch import FetchedPartition, Position, fetch
from msgtx.store.fetch.records import records_of
from msgtx.store.sweeps import sweeps
from msgtx.store.topics.retention import LOG_END, delete_records
from msgtx.store.topics.topics import create_topic, delete_topic, describe_topics
from msgtx.store.transactions.decide import Decided, decide
from msgtx.store.transactions.transactions import mark
from msgtx.types import Isolation, TopicPartition, TransactionId
from tests.databases import Connection
from tests.store.steps import Writer, unique
from tests.weave import Call, Played, Story, Weaver, weaving

pytestmark = pytest.mark.long

BETWEEN: Final = re.compile(
    r"^(?= +(?:if stores then|with stored as \(|with gone as \(|with made as materialized \(|ignored := msgtx.keep_producers"
    r"|select p.log_start_offset, t.max_message_bytes|select r.last_offset, r.appended_at, r.producer_id|at := 0;"
    r"|select count\(\*\), coalesce\(sum\(w|update msgtx.partition p\n    set compacted_offset))",
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def weaver(database_url: str) -> Iterator[Weaver]:
    with weaving(database_url, statements=BETWEEN) as made:
        yield made


class Log:
    """A partition and a transactional producer, which has committed `a1`, `b1` and aborted `a2`."""

    def __init__(self, eye: Connection, **settings: object) -> None:
        self.eye = eye
        for (name,) in eye.execute("select name from msgtx.topic").fetchall():
            delete_topic(eye, name)  # a sweep acts on the whole database
        self.topic = unique("cleaned")
        create_topic(eye, self.topic, 1, settings)
        (self.partition,) = describe_topics(eye, [self.topic])[self.topic].partition_ids
        self.writer = Writer(eye)
        append(
            eye,
            [
                self.row("a1", sequence=0),
            ],
            flushed=False,
        )
        self.decide("COMMIT", number=0, last=0)(eye)
        append(eye, [self.row("b1", number=1, sequence=1)], flushed=False)
        self.decide("COMMIT", number=1, last=1)(eye)
        append(eye, [self.row("a2", number=2, sequence=2)], flushed=False)
        self.decide("ABORT", number=2, last=2)(eye)
        mark(eye, everything=True)

    def row(self, *pairs: str, number: int = 0, sequence: int) -> BatchColumns:
        keys, values = [pair[:1].encode() for pair in pairs], [pair.encode() for pair in pairs]
        return BatchColumns(self.partition, *self.writer.id, number, sequence, 1_000, keys, values)

    def append(self, *pairs: str, number: int = 3, sequence: int = 3) -> Callable[[Connection], list[Appended]]:
        row = self.row(*pairs, number=number, sequence=sequence)
        return lambda connection: append(connection, [row], flushed=False, wake=False)

    def whole(self, *pairs: str, number: int = 3, sequence: int = 3) -> Callable[[Connection], list[Appended]]:
        row, name = self.row(*pairs, number=number, sequence=sequence), TransactionId(*self.writer.id, number)
        return lambda connection: append_and_decide(connection, name, [row], wake=False)

    def decide(self, outcome: Any, *, number: int = 3, last: int = 3) -> Callable[[Connection], Decided]:
        name = TransactionId(*self.writer.id, number)
        return lambda connection: decide(connection, name, outcome, tails={self.partition: last}, wake=False)

    def fetched(self, connection: Connection, position: Position) -> FetchedPartition:
        answers = fetch(connection, {self.partition: position}, isolation=Isolation.READ_COMMITTED, max_bytes=10**6)
        return answers[self.partition]

    def read(self) -> list[str]:
        """What a reader gets from the log start on."""
        start = self.fetched(self.eye, Position(0)).log_start_offset
        return [text for _, text in texts(self.fetched(self.eye, Position(start)), start)]

    def ends(self) -> tuple[int, int, int]:
        found = self.fetched(self.eye, Position(0))
        return found.log_start_offset, found.last_stable_offset, found.log_end_offset


def texts(answer: FetchedPartition, start: int) -> list[tuple[int, str]]:
    return [
        (record.offset, (record.value or b"").decode())
        for batch in answer.batches
        for record in records_of(batch, TopicPartition("t", 0), start)
    ]


def retain(connection: Connection) -> int:
    return sweeps.remove_old_batches(connection, None, None).done["batches_removed"]


def test_an_append_beside_retention_gets_the_next_offset(weaver: Weaver, eye: Connection) -> None:
    """I1, I2, P24: whether it sees the rows or what retention has noted of them."""

    def begin() -> Story:
        log = Log(eye, retention_bytes=0)

        def look(played: Played) -> None:
            start, stable, end = log.ends()
            assert start in {0, 3, 4}
            assert stable <= end
            appended = "owner.append" in played.answers
            assert end == (4 if appended else 3)
            if appended and "owner.commit" not in played.answers:
                assert stable == 3

        def judge(played: Played) -> None:
            (appended,) = played.answers["owner.append"]
            assert (appended.error, appended.base_offset, appended.duplicate) == (None, 3, False)
            assert played.answers["owner.commit"].outcome == "COMMIT"
            assert log.read() in (["c1"], [])
            (behind,) = log.append("d1", number=4, sequence=4)(eye)
            assert (behind.error, behind.base_offset) == (None, 4)
            log.decide("COMMIT", number=4, last=4)(eye)
            retain(eye)
            assert log.ends() == (5, 5, 5)

        return Story(
            {
                "sweep": [Call("retention", retain, gate=1)],
                "owner": [
                    Call("append", log.append("c1"), gate=3),
                    Call("commit", log.decide("COMMIT"), gate=9),
                ],
            },
            judge,
            look,
        )

    weaver.explore(begin, at_least=200)


def test_a_whole_transaction_beside_retention_is_stored_once(weaver: Weaver, eye: Connection) -> None:
    def begin() -> Story:
        log = Log(eye, retention_bytes=0)

        def judge(played: Played) -> None:
            for name in ("whole", "retry"):
                (answer,) = played.answers[f"owner.{name}"]
                assert (answer.error, answer.base_offset) == (None, 3)
            assert played.answers["owner.retry"][0].duplicate
            assert log.ends()[2] == 4
            assert log.read() in (["c1"], [])
            retain(eye)
            (behind,) = log.whole("d1", number=4, sequence=4)(eye)
            assert (behind.error, behind.base_offset) == (None, 4)

        return Story(
            {
                "sweep": [Call("retention", retain, gate=1)],
                "owner": [Call("whole", log.whole("c1"), gate=3), Call("retry", log.whole("c1"), gate=9)],
            },
            judge,
        )

    weaver.explore(begin, at_least=450)


def test_a_reader_beside_retention_sees_the_log_as_it_was_or_as_it_is(weaver: Weaver, eye: Connection) -> None:
    """I5: no hole, no false truncation."""

    def begin() -> Story:
        log = Log(eye, retention_bytes=0)
        log.append("c1")(eye)
        token = log.fetched(eye, Position(0)).token
        assert token is not None

        def judge(played: Played) -> None:
            for name in ("first", "second"):
                whole, behind = played.answers[f"reader.{name}"]
                assert (whole.truncated, behind.truncated) == (False, False)
                was_there = [(0, "a1"), (1, "b1")] if whole.log_start_offset == 0 else []
                assert texts(whole, 0) == was_there
                assert (behind.position, behind.last_stable_offset, behind.blocked_by is not None) == (3, 3, True)
            assert played.answers["sweep.retention"] == 3
            log.decide("COMMIT")(eye)
            assert texts(log.fetched(eye, Position(3, token)), 3) == [(3, "c1")]

        def look_twice(connection: Connection) -> tuple[FetchedPartition, FetchedPartition]:
            return log.fetched(connection, Position(0)), log.fetched(connection, Position(3, token))

        return Story(
            {
                "sweep": [Call("retention", retain, gate=1)],
                "reader": [Call("first", look_twice), Call("second", look_twice)],
            },
            judge,
        )

    weaver.explore(begin, at_least=100)


def test_records_that_are_deleted_beside_retention_are_gone(weaver: Weaver, eye: Connection) -> None:
    """I2: the log start never moves back."""

    def begin() -> Story:
        log = Log(eye, retention_bytes=-1, retention_ms=-1)
        delete_records(eye, {log.partition: 1})
        starts: list[int] = []

        def look(_: Played) -> None:
            starts.append(log.ends()[0])
            assert starts == sorted(starts)

        def judge(played: Played) -> None:
            assert played.answers["admin.delete"] == {log.partition: 3}
            retain(eye)
            assert log.ends() == (3, 3, 3)
            assert log.whole("c1")(eye)[0].base_offset == 3

        return Story(
            {
                "sweep": [Call("retention", retain, gate=1)],
                "admin": [Call("delete", lambda connection: delete_records(connection, {log.partition: LOG_END}), gate=1)],
            },
            judge,
            look,
        )

    weaver.explore(begin, at_least=8)


def test_a_topic_is_deleted_beside_retention(weaver: Weaver, eye: Connection) -> None:
    def begin() -> Story:
        log = Log(eye, retention_bytes=0)

        def judge(played: Played) -> None:
            assert played.answers["sweep.retention"] in {0, 3}
            left = eye.execute(
                "select (select count(*) from msgtx.record_batch where partition_id = %(id)s),"
                " (select count(*) from msgtx.partition where partition_id = %(id)s)",
                {"id": log.partition},
            ).fetchone()
            assert left == (0, 0)

        return Story(
            {
                "sweep": [Call("retention", retain, gate=1)],
                "admin": [Call("delete", lambda connection: delete_topic(connection, log.topic), gate=1)],
            },
            judge,
        )

    weaver.explore(begin, at_least=20)


def compaction(pieces: int, *, begun: Connection | None = None) -> list[Call]:
    """A pass, one call for each of its SQL transactions. `begun`: it has noted the keys before."""
    compactor, after = Compactor(min_dirty_ratio=0), [None]

    def piece(connection: Connection) -> int:
        swept = compactor(connection, after[0], None)
        after[0] = swept.after  # type: ignore[call-overload]
        return swept.done.get("records_compacted", 0)

    calls = [Call(f"piece {n}", piece, gate=9 if n < 3 else 1) for n in range(pieces)]
    if begun is not None:
        for call in calls[:3]:  # found, noted, nothing left to note
            call.run(begun)
        return calls[3:]
    return calls


def compacted(eye: Connection) -> None:
    compactor, after = Compactor(min_dirty_ratio=0), None
    while (after := compactor(eye, after, None).after) is not None:
        pass


@pytest.mark.parametrize("outcome", ["COMMIT", "ABORT"])
def test_what_is_decided_during_a_pass_supersedes_only_when_it_is_committed(
    outcome: Any, weaver: Weaver, eye: Connection
) -> None:
    """P3, I5: at every moment a reader finds the newest committed record of each key."""

    def begin() -> Story:
        log = Log(eye, cleanup_policy="compact")
        log.append("a3", "b3")(eye)
        newest = {"COMMIT": ["a3", "b3"], "ABORT": ["a1", "b1"]}[outcome]

        def look(played: Played) -> None:
            found = {text[0]: text for text in log.read()}
            assert sorted(found.values()) == (newest if "owner.decide" in played.answers else ["a1", "b1"])

        def judge(played: Played) -> None:
            look(played)
            compacted(eye)
            assert log.read() == newest
            (behind,) = log.whole("c1", number=4, sequence=5)(eye)
            assert (behind.error, behind.base_offset) == (None, 5)
            assert log.read() == [*newest, "c1"]

        return Story({"sweep": compaction(5), "owner": [Call("decide", log.decide(outcome, last=4), gate=9)]}, judge, look)

    weaver.explore(begin, at_least=80)


def test_retention_and_compaction_at_one_log_do_each_other_no_harm(weaver: Weaver, eye: Connection) -> None:
    def begin() -> Story:
        log = Log(eye, cleanup_policy="compact,delete", retention_ms=-1)
        log.whole("b2")(eye)
        delete_records(eye, {log.partition: 1})

        def judge(played: Played) -> None:
            assert log.read() in (["b1", "b2"], ["b2"])
            retain(eye)
            compacted(eye)
            assert log.read() == ["b2"]
            assert log.ends() == (1, 4, 4)
            rows = eye.execute(
                "select base_offset, record_count from msgtx.record_batch where partition_id = %s order by 1",
                [log.partition],
            ).fetchall()
            assert rows == [(1, 0), (2, 0), (3, 1)]
            counted = eye.execute(
                "select p.compacted_bytes = sum(r.byte_size) from msgtx.partition p join msgtx.record_batch r"
                " using (partition_id) where p.partition_id = %s group by p.compacted_bytes",
                [log.partition],
            ).fetchone()
            assert counted == (True,)

        return Story({"sweep": [Call("retention", retain, gate=1)], "other": compaction(6, begun=eye)}, judge)

    weaver.explore(begin, at_least=250)
