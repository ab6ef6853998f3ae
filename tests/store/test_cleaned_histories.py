"""Random histories with cleanings: whatever was removed, a reader gets what a naive replay says (internals: cleaning).

Cleanings of every kind, also passes that end anywhere, between appends, transactions and aborts; read_committed from the
log start is exactly the committed records, on a compacted topic without those that a newer committed one supersedes.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

import msgtx
from msgtx.coordinator.compactor import Compactor
from msgtx.database.pool import Engine
from msgtx.store.fetch.fetch import Position, fetch
from msgtx.store.fetch.records import records_of
from msgtx.store.sweeps import sweeps
from msgtx.store.topics.retention import delete_records
from msgtx.store.topics.topics import alter_topic
from msgtx.store.transactions.transactions import mark
from msgtx.types import TopicPartition
from tests.databases import Connection
from tests.store.steps import COMMITTED, Writer, answers, append_one, batch, ends, new_partition, to_its_end, topic_of

pytestmark = pytest.mark.long

WRITERS = 2
Read = tuple[int, bytes | None, bytes | None]  # offset, key, value


@dataclass(frozen=True)
class Entry:
    """A record of the model; `transaction` None: outside any."""

    key: bytes
    value: bytes | None
    transaction: object


pairs = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.booleans()), min_size=1, max_size=4)
writers = st.integers(0, WRITERS - 1)
steps = st.one_of(
    st.tuples(st.just("send"), writers, pairs),
    st.tuples(st.just("send"), writers, pairs),
    st.tuples(st.just("commit"), writers),
    st.tuples(st.just("abort"), writers),
    st.tuples(st.just("whole"), writers, pairs),
    st.tuples(st.just("plain"), pairs),
    st.tuples(st.just("plain"), pairs),
    st.tuples(st.just("retry"), writers),
    st.tuples(st.just("mark")),
    st.tuples(st.just("poll"), st.integers(1, 4)),
    st.tuples(st.just("delete"), st.integers(0, 40)),
    st.tuples(st.just("retain"), st.one_of(st.none(), st.integers(0, 400))),
    st.tuples(st.just("compact"), st.integers(1, 12), st.integers(1, 3), st.sampled_from([1, 500, 1 << 20])),
    st.tuples(st.just("compact"), st.just(1_000), st.just(100), st.just(1 << 20)),
)


class Cleaned:
    """The system and the model, step by step."""

    def __init__(self, connection: Connection, policy: str) -> None:
        self.connection = connection
        self.is_compacted = policy != "delete"
        self.id = new_partition(connection, cleanup_policy=policy, delete_retention_ms=0)
        self.topic = topic_of(connection, self.id)
        self.writers = [Writer(connection) for _ in range(WRITERS)]
        self.log: list[Entry] = []
        self.outcomes: dict[object, str] = {}
        self.last_rows: dict[int, tuple[Any, int]] = {}
        self.reader = Position(0)
        self.start = 0
        self.numbers = itertools.count()

    def entries(self, some: list[tuple[bytes, bool]], transaction: object) -> dict[str, Any]:
        """Return keys and values of new records, which the model holds from now on."""
        made = [Entry(key, None if is_tombstone else b"%d" % next(self.numbers), transaction) for key, is_tombstone in some]
        self.log.extend(made)
        return {"keys": [entry.key for entry in made], "values": [entry.value for entry in made]}

    # ── steps ──

    def send(self, writer: int, some: list[tuple[bytes, bool]]) -> None:
        who, offset = self.writers[writer], len(self.log)
        made = self.entries(some, who.name)
        row = who.row(self.id, *made["values"], keys=made["keys"])
        answer = append_one(self.connection, row)
        assert (answer.error, answer.base_offset) == (None, offset), "offsets go on, whatever was cleaned (I2)"
        who.counted(row)
        self.last_rows[writer] = (row, offset)

    def commit(self, writer: int) -> None:
        self._end(writer, "COMMIT")

    def abort(self, writer: int) -> None:
        self._end(writer, "ABORT")

    def _end(self, writer: int, outcome: Any) -> None:
        who = self.writers[writer]
        if who.tails:
            answer = who.decide(outcome)
            assert answer.error is None
            if outcome == "ABORT":
                assert answer.last_sequences == who.tails
            self.outcomes[who.name] = outcome
            self.last_rows.pop(writer, None)
            who.next()

    def whole(self, writer: int, some: list[tuple[bytes, bool]]) -> None:
        who, offset = self.writers[writer], len(self.log)
        if not who.tails:
            made = self.entries(some, who.name)
            self.outcomes[who.name] = "COMMIT"
            assert who.commit_whole(who.row(self.id, *made["values"], keys=made["keys"])) == [offset]

    def plain(self, some: list[tuple[bytes, bool]]) -> None:
        offset, made = len(self.log), self.entries(some, None)
        assert append_one(self.connection, batch(self.id, *made["values"], keys=made["keys"])).base_offset == offset

    def retry(self, writer: int) -> None:
        """Of what is open: its row is there, whatever the log start."""
        if writer in self.last_rows:
            row, offset = self.last_rows[writer]
            answer = append_one(self.connection, row)
            assert (answer.error, answer.duplicate, answer.base_offset) == (None, True, offset)

    def mark(self) -> None:
        mark(self.connection, everything=True)

    def poll(self, max_rows: int) -> None:
        """A reader that goes on with its token: never truncated; it may be overtaken."""
        answer = fetch(self.connection, {self.id: self.reader}, isolation=COMMITTED, max_bytes=1 << 20, max_rows=max_rows)[
            self.id
        ]
        assert not answer.truncated
        if self.reader.offset < answer.log_start_offset:
            self.reader = Position(answer.log_start_offset)
            return
        expected = {offset: value for offset, _, value in self.committed()}
        for row in answer.batches:
            for record in records_of(row, TopicPartition("t", 0), self.reader.offset):
                assert expected[record.offset] == record.value
        self.reader = Position(answer.position, answer.token)

    def delete(self, before: int) -> None:
        before = min(before, len(self.log))
        self.start = max(self.start, before)
        assert delete_records(self.connection, {self.id: before}) == {self.id: self.start}

    def retain(self, size: int | None) -> None:
        alter_topic(self.connection, self.topic, None, {"retention_bytes": -1 if size is None else size})
        list(to_its_end(self.connection, sweeps.remove_old_batches))
        start, _, _ = ends(self.connection, self.id)
        if size is None:
            assert start == self.start
        assert self.start <= start <= max(self.start, self.decided()), "never what is undecided"
        self.start = start

    def compact(self, pieces: int, rows_at_once: int, window_bytes: int) -> None:
        """A number of SQL transactions of passes; then the process is killed."""
        compactor = Compactor(min_dirty_ratio=0, rows_at_once=rows_at_once, window_bytes=window_bytes)
        list(itertools.islice(to_its_end(self.connection, compactor), pieces))

    # ── what is there ──

    def decided(self) -> int:
        undecided = (at for at, entry in enumerate(self.log) if entry.transaction and entry.transaction not in self.outcomes)
        return next(undecided, len(self.log))

    def committed(self) -> list[Read]:
        """All committed records in front of the first undecided one and behind the log start."""
        return [
            (at, entry.key, entry.value)
            for at, entry in enumerate(self.log[: max(self.start, self.decided())])
            if at >= self.start and (entry.transaction is None or self.outcomes.get(entry.transaction) == "COMMIT")
        ]

    def seen(self) -> list[Read]:
        return [
            (record.offset, record.key, record.value)
            for position, answer in answers(self.connection, self.id, self.start, max_rows=2)
            for row in answer.batches
            for record in records_of(row, TopicPartition("t", 0), position)
        ]

    def check(self, *, is_done: bool = False) -> None:
        start, stable, end = ends(self.connection, self.id)
        assert (start, stable, end) == (self.start, max(self.start, self.decided()), len(self.log))
        committed, seen = self.committed(), self.seen()
        if not self.is_compacted:
            assert seen == committed
            return
        newest = {key: (offset, value) for offset, key, value in committed}
        left = {offset for offset, _, _ in seen}
        assert [record for record in committed if record[0] in left] == seen, "what is there is committed, and in order"
        for offset, key, value in committed:
            if offset not in left:
                # A tombstone may be gone, with all before it.
                assert newest[key][0] > offset or value is None
                assert newest[key][0] > offset or not any(other == key for _, other, _ in seen)
            elif is_done:
                assert newest[key][0] == offset, "of each key one is left"

    def finish(self) -> None:
        for writer in range(WRITERS):
            self.commit(writer)
        self.mark()
        self.retain(None)
        if self.is_compacted:
            self.compact(1_000, 100, 1 << 20)
        self.check(is_done=True)
        rows = self.connection.execute(
            'select "offset", key, value from msgtx.committed_records where partition_id = %s order by 1', [self.id]
        ).fetchall()
        assert rows == self.seen()
        counted, compacted = self.connection.execute(
            "select counted_bytes = (select coalesce(sum(r.byte_size), 0) from msgtx.record_batch r where r.partition_id ="
            " p.partition_id and r.base_offset < p.counted_offset), compacted_bytes = (select coalesce(sum(r.byte_size), 0)"
            " from msgtx.record_batch r where r.partition_id = p.partition_id and r.base_offset < p.compacted_offset)"
            " from msgtx.partition p where p.partition_id = %s",
            [self.id],
        ).fetchone() or (False, False)
        assert (counted, compacted) == (True, True)
        for writer in range(WRITERS):  # and everybody goes on
            self.send(writer, [(b"a", False)])
            self.commit(writer)
        self.check()


@pytest.fixture(scope="module")
def session(engine: Engine) -> Any:
    connection = engine.dedicated()
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def verifier(database_url: str) -> Any:
    with msgtx.connect(database_url) as client:
        yield client


@hypothesis.settings(max_examples=120, derandomize=True)
@hypothesis.given(st.sampled_from(["delete", "compact", "compact,delete"]), st.lists(steps, min_size=8, max_size=40))
def test_what_was_cleaned_changes_nothing_else(
    session: Connection, verifier: msgtx.Client, policy: str, history: list[tuple[Any, ...]]
) -> None:
    run = Cleaned(session, policy)
    for name, *arguments in history:
        getattr(run, name)(*arguments)
        run.check()
    run.finish()
    assert verifier.admin.verify([run.topic]).violations == []
    alter_topic(session, run.topic, None, {"cleanup_policy": "delete", "retention_bytes": -1})
