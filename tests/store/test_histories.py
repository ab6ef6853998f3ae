"""Random histories: whatever happened, a reader gets what a naive replay says (I2, I5, I14; P2, P3, P4, P22)."""

from dataclasses import dataclass, field
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from msgtx.database.pool import Engine
from msgtx.store.fetch.fetch import Position, fetch
from msgtx.store.transactions.transactions import mark
from tests.databases import Connection
from tests.store.steps import COMMITTED, UNCOMMITTED, Writer, append_one, ends, look, new_topic, plain, read

pytestmark = pytest.mark.long

WRITERS, PARTITIONS = 3, 2


@dataclass
class Model:
    """What the log holds, as lists: (value, transaction or None) per offset, and how each transaction ended."""

    logs: list[list[tuple[bytes, object]]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    outcomes: dict[object, str] = field(default_factory=dict)

    def last_stable(self, partition: int) -> int:
        for offset, (_, transaction) in enumerate(self.logs[partition]):
            if transaction is not None and transaction not in self.outcomes:
                return offset
        return len(self.logs[partition])

    def visible(self, partition: int, start: int = 0) -> list[tuple[int, bytes]]:
        return [
            (offset, value)
            for offset, (value, transaction) in enumerate(self.logs[partition][: self.last_stable(partition)])
            if offset >= start and (transaction is None or self.outcomes[transaction] == "COMMIT")
        ]


@dataclass
class Reader:
    """A consumer that goes on from where it stands, with its tokens; and everything it was given."""

    positions: dict[int, Position]
    given: dict[int, list[tuple[int, bytes | None]]]

    def poll(self, connection: Connection, max_rows: int) -> None:
        for partition_id, answer in fetch(
            connection, self.positions, isolation=COMMITTED, max_bytes=1 << 20, max_rows=max_rows
        ).items():
            assert not answer.truncated
            for row in answer.batches:
                self.given[partition_id].extend(
                    (row.base_offset + i, value)
                    for i, value in enumerate(row.values)
                    if row.base_offset + i >= self.positions[partition_id].offset
                )
            self.positions[partition_id] = Position(answer.position, answer.token)


sizes = st.integers(1, 3)
writers = st.integers(0, WRITERS - 1)
partitions = st.integers(0, PARTITIONS - 1)
steps = st.one_of(
    st.tuples(st.just("send"), writers, partitions, sizes),
    st.tuples(st.just("send"), writers, partitions, sizes),
    st.tuples(st.just("commit"), writers),
    st.tuples(st.just("abort"), writers),
    st.tuples(st.just("whole"), writers, partitions, sizes),
    st.tuples(st.just("plain"), partitions, sizes),
    st.tuples(st.just("retry"), writers),
    st.tuples(st.just("fence"), writers),
    st.tuples(st.just("mark"), st.booleans()),
    st.tuples(st.just("poll"), st.integers(1, 4)),
    st.tuples(st.just("seek"), partitions, st.integers(0, 30)),
)


class History:
    """The system and the model, step by step."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.ids = new_topic(connection, PARTITIONS)
        self.writers = [Writer(connection) for _ in range(WRITERS)]
        self.model = Model()
        self.last_rows: dict[int, tuple[Any, int]] = {}
        self.reader = Reader({i: Position(0) for i in self.ids}, {i: [] for i in self.ids})
        self.before = [(0, 0, 0)] * PARTITIONS
        self.written = 0

    def contents(self, size: int) -> list[bytes]:
        self.written += size
        return [b"%d" % i for i in range(self.written - size, self.written)]

    def send(self, writer: int, partition: int, size: int) -> None:
        contents, who = self.contents(size), self.writers[writer]
        row = who.row(self.ids[partition], *contents)
        answer = append_one(self.connection, row)
        assert (answer.error, answer.base_offset) == (None, len(self.model.logs[partition]))
        who.counted(row)
        self.last_rows[writer] = (row, answer.base_offset)
        self.model.logs[partition].extend((value, who.name) for value in contents)

    def commit(self, writer: int) -> None:
        self._end(writer, "COMMIT")

    def abort(self, writer: int) -> None:
        self._end(writer, "ABORT")

    def _end(self, writer: int, outcome: Any) -> None:
        who = self.writers[writer]
        if who.tails:
            assert who.decide(outcome).error is None
            self.model.outcomes[who.name] = outcome
            who.next()

    def whole(self, writer: int, partition: int, size: int) -> None:
        who = self.writers[writer]
        if who.tails:
            return
        contents, name = self.contents(size), who.name
        row = who.row(self.ids[partition], *contents)
        assert who.commit_whole(row) == [len(self.model.logs[partition])]
        self.model.logs[partition].extend((value, name) for value in contents)
        self.model.outcomes[name] = "COMMIT"

    def plain(self, partition: int, size: int) -> None:
        contents = self.contents(size)
        assert plain(self.connection, self.ids[partition], *contents) == len(self.model.logs[partition])
        self.model.logs[partition].extend((value, None) for value in contents)

    def retry(self, writer: int) -> None:
        if writer in self.last_rows:
            row, offset = self.last_rows[writer]
            answer = append_one(self.connection, row)
            assert (answer.error, answer.duplicate, answer.base_offset) == (None, True, offset)

    def fence(self, writer: int) -> None:
        who = self.writers[writer]
        if who.tails:
            self.model.outcomes[who.name] = "ABORT"
        who.init()
        self.last_rows.pop(writer, None)

    def mark(self, everything: bool) -> None:
        mark(self.connection, everything=everything)

    def poll(self, max_rows: int) -> None:
        self.reader.poll(self.connection, max_rows)

    def seek(self, partition: int, offset: int) -> None:
        """Another reader, that begins anywhere: also inside open data."""
        offset = min(offset, len(self.model.logs[partition]))
        found = read(self.connection, self.ids[partition], offset, max_rows=2)
        assert found == self.model.visible(partition, offset)

    def check(self) -> None:
        for partition, partition_id in enumerate(self.ids):
            log = self.model.logs[partition]
            now = ends(self.connection, partition_id)
            assert now == (0, self.model.last_stable(partition), len(log))
            assert all(old <= new for old, new in zip(self.before[partition], now, strict=True)), "I2"
            self.before[partition] = now
            given = self.reader.given[partition_id]
            assert given == self.model.visible(partition)[: len(given)], "I5"
            answer = look(self.connection, partition_id)
            blocked = None if now[1] == now[2] else log[now[1]][1]
            assert answer.blocked_by == blocked

    def finish(self) -> None:
        for _ in range(100):
            self.poll(1_000)
        for partition, partition_id in enumerate(self.ids):
            assert self.reader.given[partition_id] == self.model.visible(partition)
            assert read(self.connection, partition_id) == self.model.visible(partition)
            everything = [(offset, value) for offset, (value, _) in enumerate(self.model.logs[partition])]
            assert read(self.connection, partition_id, isolation=UNCOMMITTED) == everything
            self._compare_views(partition, partition_id)

    def _compare_views(self, partition: int, partition_id: int) -> None:
        def rows(view: str) -> list[tuple[int, bytes]]:
            return self.connection.execute(
                f'select "offset", value from msgtx.{view} where partition_id = %s order by 1', [partition_id]
            ).fetchall()

        log = self.model.logs[partition]
        assert rows("records") == [(offset, value) for offset, (value, _) in enumerate(log)]
        assert rows("committed_records") == self.model.visible(partition)
        assert rows("committed_records_now") == [
            (offset, value)
            for offset, (value, transaction) in enumerate(log)
            if transaction is None or self.model.outcomes.get(transaction) == "COMMIT"
        ]


@pytest.fixture(scope="module")
def session(engine: Engine) -> Any:
    connection = engine.dedicated()
    yield connection
    connection.close()


@hypothesis.settings(max_examples=60)
@hypothesis.given(st.lists(steps, min_size=5, max_size=40))
def test_a_reader_gets_what_a_naive_replay_says(session: Connection, history: list[tuple[Any, ...]]) -> None:
    run = History(session)
    for name, *arguments in history:
        getattr(run, name)(*arguments)
        run.check()
    run.finish()


@hypothesis.settings(max_examples=40)
@hypothesis.given(st.lists(sizes, min_size=1, max_size=8), st.lists(st.integers(0, 7), max_size=25))
def test_any_mix_of_duplicates_and_reorderings_leaves_the_accepted_prefix(
    session: Connection, batch_sizes: list[int], arrivals: list[int]
) -> None:
    """I1, I3: requests come doubled and out of order; stored is a prefix of what was sent, once and in order."""
    (partition,) = new_topic(session)
    writer = Writer(session)
    sent, sequence = [], 0
    for number, size in enumerate(batch_sizes):
        sent.append(writer.row(partition, *[b"%d-%d" % (number, i) for i in range(size)], sequence=sequence))
        sequence += size
    accepted = 0
    for arrival in arrivals:
        if arrival >= len(sent):
            continue
        answer = append_one(session, sent[arrival])
        if arrival < accepted:
            assert (answer.error, answer.duplicate) == (None, True)
            assert answer.base_offset == sent[arrival].base_sequence
        elif arrival == accepted:
            assert (answer.error, answer.duplicate) == (None, False)
            accepted += 1
        else:
            assert answer.error is not None
    stored = [value for row in sent[:accepted] for value in row.values]
    assert [value for _, value in read(session, partition, isolation=UNCOMMITTED)] == stored
