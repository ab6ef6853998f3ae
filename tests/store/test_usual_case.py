"""Some functions have a usual case, found out by single rows; else they ask the general rules. Both do the same.

For the fused call two worlds in one database go through the same random history: one with the function that users call, one
with a copy that takes nothing for usual. All answers, with their texts, and all rows are compared. For a fetch both are
asked the same questions.
"""

import contextlib
import itertools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest

import msgtx
from msgtx.database.calls import batch_array, call
from msgtx.database.pool import Engine
from msgtx.database.schema.functions import PLANS, files
from msgtx.database.wire import BatchColumns, Int4Array, Int8Array, TextArray
from msgtx.errors import MsgtxError
from msgtx.generated import calls
from msgtx.store.append.append import Appended, append, append_arguments, read_appended
from msgtx.store.fetch.fetch import Position, fetch
from msgtx.store.sweeps import sweeps
from msgtx.store.topics.retention import LOG_END, delete_records
from msgtx.store.transactions.producers import init_producer_id
from msgtx.store.transactions.transactions import mark
from msgtx.types import Isolation, ProducerId
from tests.databases import Connection
from tests.store.steps import (
    NO_OFFSETS,
    Writer,
    batch,
    look,
    new_partition,
    new_topic,
    offsets_of,
    plain,
    plain_batches,
    spent,
    to_its_end,
    unique,
)

pytestmark = pytest.mark.slow

SQL: Final = Path(msgtx.__file__).parent / "sql"
TOPICS: Final[tuple[dict[str, object], ...]] = (
    {},
    {"timestamp_type": "LogAppendTime"},
    {"cleanup_policy": "compact"},
    {"max_message_bytes": 120},
)
WRITERS, STEPS, SEEDS = 3, 60, 40
UNKNOWN = 12_345  # an id that nobody was given


def without_usual_case(engine: Engine, room: str, name: str, *changes: tuple[str, str]) -> Iterator[str]:
    """Create the function once more, under another name, so that it takes nothing for usual."""
    text = (SQL / room / f"{name}.sql").read_text()
    for old, new in ((f"create function msgtx.{name}(", f"create function msgtx.{name}_generally("), *changes):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    with contextlib.closing(engine.dedicated()) as connection:
        connection.execute(text.encode())
        (plan,) = (file.plan for file in files() if file.name == name)
        connection.execute(f"alter function msgtx.{name}_generally {' '.join(PLANS[word] for word in plan)}".encode())
        yield f"{name}_generally"
        connection.execute(f"drop function msgtx.{name}_generally".encode())


@pytest.fixture(scope="module")
def general(engine: Engine) -> Iterator[str]:
    usual = "usual := offsets_error is null and"
    yield from without_usual_case(engine, "append", "append_and_decide", (usual, usual.replace(":=", ":= false and")))


@pytest.fixture(scope="module")
def general_append(engine: Engine) -> Iterator[str]:
    usual = "if cardinality(batches) = 1 and batches[1].transaction_number is null then"
    yield from without_usual_case(engine, "append", "append", (usual, "if false then"))


@pytest.fixture(scope="module")
def general_fetch(engine: Engine) -> Iterator[str]:
    usual = ("usual boolean :=", "usual := tokens[at]")  # before the first partition, and of each one
    changes = [(each, each.replace(":=", ":= false and")) for each in usual]
    yield from without_usual_case(engine, "fetch", "fetch_batches", *changes)


def clean(connection: Connection, partition: int) -> None:
    """Remove what is in a log; of its producers their last sequences are kept."""
    delete_records(connection, {partition: LOG_END})
    list(to_its_end(connection, sweeps.remove_old_batches))


@dataclass
class World:
    """Topics and writers, and how to call what is compared."""

    connection: Connection
    function: str
    appends: str = "append"
    partitions: list[int] = field(init=False)
    writers: list[Writer] = field(init=False)
    last: dict[int, tuple[Any, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.partitions = [new_partition(self.connection, **settings) for settings in TOPICS]
        self.writers = [Writer(self.connection) for _ in range(WRITERS)]
        self.group = unique("group")
        # Without a transactional id: it has no row.
        self.plain_one = init_producer_id(self.connection, None, timeout_ms=60_000)
        self.plain_sequences: dict[int, int] = {}
        self.alone_last: dict[int, BatchColumns] = {}

    def alone(self, writer: int, partition: int, count: int, changed: dict[str, Any]) -> object:
        """Append one batch outside a transaction. The last writer is a plain one."""
        place, size = self.partitions[partition], changed.pop("bytes", 1)
        id_, sequences = self.plain_one, self.plain_sequences
        if writer < WRITERS:
            id_, sequences = self.writers[writer].id, self.writers[writer].sequences
        given = {"producer": id_, "sequence": sequences.get(place, 0), **changed}
        row = self.alone_last[writer] = batch(place, *[b"%d" % i * size for i in range(count)], **given)
        answers = self.alone_again(writer)
        if isinstance(answers, list) and answers[0].error is None and not answers[0].duplicate and "producer" not in changed:
            sequences[place] = (row.base_sequence or 0) + count
        return answers

    def alone_again(self, writer: int) -> object:
        """Repeat that, as after a lost answer."""
        if writer not in self.alone_last:
            return None
        function = replace(calls.APPEND, name=self.appends)
        try:
            return read_appended(
                call(self.connection, function, *append_arguments(self.connection, [self.alone_last[writer]]))
            )
        except MsgtxError as error:
            return type(error).__name__, str(error)

    def whole(self, writer: int, rows: Sequence[tuple[int, int, dict[str, Any]]], offset: int | None, late: int) -> object:
        """Commit in one call: (partition, records, what differs) per row. `late`: how far the number is from the next."""
        who = self.writers[writer]
        name = who.name._replace(transaction_number=who.number + late)
        columns = [
            who.row(self.partitions[p], *[b"%d" % i * size for i in range(count)], number=name.transaction_number, **changed)
            for p, count, changed in rows
            for size in (changed.pop("bytes", 1),)
        ]
        offsets = NO_OFFSETS if offset is None else offsets_of((self.group, self.partitions[0], offset))
        self.last[writer] = (name, columns, offsets)
        answers = self.again(writer)
        if isinstance(answers, list) and all(answer.error is None and not answer.duplicate for answer in answers):
            for row in columns:
                who.counted(row)
            who.next()
        return answers

    def again(self, writer: int) -> object:
        """Repeat the last call of a writer, as after a lost answer."""
        if writer not in self.last:
            return None
        name, columns, offsets = self.last[writer]
        try:
            rows = call(
                self.connection,
                replace(calls.APPEND_AND_DECIDE, name=self.function),
                *name,
                batch_array(self.connection, columns),
                True,
                False,
                *offsets.arguments(),
            )
        except MsgtxError as error:
            return type(error).__name__, str(error)
        return read_appended(rows)

    def send(self, writer: int, partition: int, count: int) -> object:
        """Append in a transaction that goes on."""
        who = self.writers[writer]
        row = who.row(self.partitions[partition], *[b"s"] * count, keys=[b"k"] * count)
        (answer,) = append(self.connection, [row], flushed=False)
        if answer.error is None:
            who.counted(row)
        return [answer]

    def end(self, writer: int, outcome: Any) -> object:
        """Decide in a call of its own."""
        who = self.writers[writer]
        answer = who.decide(outcome)
        if answer.error is None:
            if outcome == "ABORT":
                who.sequences |= {p: last + 1 for p, last in answer.last_sequences.items() if last is not None}
            who.next()
        return str(answer.error), answer.outcome

    def fence(self, writer: int, *, takes_over: bool) -> None:
        """Another client initializes the id; the writer may go on as that one."""
        before = self.writers[writer]
        id_, number, sequences, tails = before.id, before.number, before.sequences, before.tails
        before.init()
        if not takes_over:
            before.id, before.number, before.sequences, before.tails = id_, number, sequences, tails

    def plain(self, partition: int) -> None:
        plain(self.connection, self.partitions[partition], b"p", keys=[b"k"])

    def clean(self, partition: int) -> None:
        clean(self.connection, self.partitions[partition])

    def named(self, what: object) -> object:
        """Without what differs between worlds: ids, names, times."""
        if isinstance(what, list):
            return [
                (str(type(a.error).__name__), self.named(str(a.error)), a.base_offset, a.duplicate)
                for a in what
                if isinstance(a, Appended)
            ]
        text = repr(what)
        for number, partition in enumerate(self.partitions):
            text = re.sub(rf"\bpartition {partition}\b", f"partition <{number}>", text)
        for number, writer in enumerate(self.writers):
            text = re.sub(rf"\b(producer |transaction ){writer.id.producer_id}\b", rf"\1<{number}>", text)
        text = re.sub(rf"\bproducer {self.plain_one.producer_id}\b", "producer <plain>", text)
        return re.sub(r"(group|topic)-\d+", r"<\1>", text)

    def rows(self) -> object:
        """All that was written, with times replaced by whether they ascend."""
        ids = {writer.id.producer_id: number for number, writer in enumerate(self.writers)} | {None: None}
        ids |= {self.plain_one.producer_id: WRITERS, UNKNOWN: UNKNOWN}
        log = self.connection.execute(
            "select partition_id, base_offset, last_offset, producer_id, producer_epoch, transaction_number, base_sequence,"
            ' last_sequence, record_count, byte_size, keys, "values", timestamps, header_counts, header_keys, header_values,'
            " case when max_timestamp < 100000 then max_timestamp end,"
            " appended_at >= lag(appended_at) over (partition by partition_id order by base_offset)"
            " from msgtx.record_batch where partition_id = any(%s) order by 1, 2",
            [self.partitions],
        ).fetchall()
        decided = self.connection.execute(
            "select producer_id, producer_epoch, transaction_number, outcome, decided_by, coordinator_epoch, partitions,"
            " first_offsets, last_offsets from msgtx.transaction_decision where producer_id = any(%s) order by 1, 2, 3",
            [[writer.id.producer_id for writer in self.writers]],
        ).fetchall()
        offsets = self.connection.execute(
            "select o.partition_id, o.committed_offset, o.producer_id, o.producer_epoch, o.transaction_number"
            " from msgtx.group_offset o join msgtx.consumer_group g using (group_id) where g.name = %s"
            " order by o.commit_sequence",
            [self.group],
        ).fetchall()
        place = self.partitions.index
        return (
            [(place(row[0]), *row[1:3], ids[row[3]], *row[4:]) for row in log],
            [(ids[row[0]], *row[1:6], [place(each) for each in row[6]], *row[7:]) for row in decided],
            [(place(row[0]), row[1], ids[row[2]], *row[3:]) for row in offsets],
        )


def drawn(dice: random.Random) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Draw a step: mostly what is usual, often what is nearly so."""
    writer, partition = dice.randrange(WRITERS), dice.randrange(len(TOPICS))
    kind = dice.choice(["whole"] * 8 + ["again", "again", "send", "end", "fence", "plain", "clean"])
    if kind == "whole":
        rows = []
        for each in sorted(dice.sample(range(len(TOPICS)), dice.choice([1, 1, 1, 2, 3]))):
            count = dice.choice([1, 1, 2, 3])
            changed: dict[str, Any] = {"keys": [b"k"] * count} if dice.random() < 0.9 else {}
            if dice.random() < 0.2:
                changed["keys"] = [b"k"] * (count - 1) + [None]
            if dice.random() < 0.1:
                changed["sequence"] = dice.choice([0, 1, 2, 5, None])
            if dice.random() < 0.05:
                changed["producer"] = (dice.choice([None, UNKNOWN]), 0)
            if dice.random() < 0.1:
                changed["bytes"] = dice.choice([40, 100, 200])
            if dice.random() < 0.2:
                changed["timestamps"] = list(range(50, 50 + count))
            if dice.random() < 0.1:
                changed["headers"] = [[("h", b"v")]] * count
            rows.append((each, count, changed))
        if dice.random() < 0.03:
            rows.reverse()
        offset = dice.choice([None, None, 0, 7, -1])
        return kind, (writer, rows, offset, dice.choice([0] * 20 + [1, -1, 5])), {}
    if kind == "again":
        return kind, (writer,), {}
    if kind == "send":
        return kind, (writer, dice.choice([0, 1]), dice.choice([1, 2])), {}
    if kind == "end":
        return kind, (writer, dice.choice(["COMMIT", "ABORT"])), {}
    if kind == "fence":
        return kind, (writer,), {"takes_over": dice.random() < 0.7}
    return kind, (partition,), {}


def drawn_alone(dice: random.Random) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Draw a step: mostly an append outside a transaction."""
    if dice.random() < 0.3:
        return drawn(dice)
    writer, count = dice.randrange(WRITERS + 1), dice.choice([1, 1, 2, 3])
    if dice.random() < 0.2:
        return "alone_again", (writer,), {}
    changed: dict[str, Any] = {"keys": [b"k"] * count} if dice.random() < 0.9 else {}
    if dice.random() < 0.1:
        changed["keys"] = [b"k"] * (count - 1) + [None]
    if dice.random() < 0.2:
        changed["sequence"] = dice.choice([0, 1, 2, 5, None])
    if dice.random() < 0.1:
        changed["producer"] = dice.choice([None, (UNKNOWN, 0), (UNKNOWN, 1)])
    if dice.random() < 0.1:
        changed["bytes"] = dice.choice([40, 100, 200])
    if dice.random() < 0.2:
        changed["timestamps"] = list(range(50, 50 + count))
    return "alone", (writer, dice.randrange(len(TOPICS)), count, changed), {}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_usual_case_of_an_append_answers_and_writes_as_the_general_one(
    connection: Connection, general_append: str, seed: int
) -> None:
    same_histories(
        [World(connection, "append_and_decide"), World(connection, "append_and_decide", general_append)],
        random.Random(seed),
        drawn_alone,
    )


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_usual_case_answers_and_writes_as_the_general_one(connection: Connection, general: str, seed: int) -> None:
    same_histories([World(connection, "append_and_decide"), World(connection, general)], random.Random(seed), drawn)


def same_histories(worlds: Sequence[World], dice: random.Random, draw: Callable[[random.Random], Any]) -> None:
    """Have both worlds do the same, and compare what they answer and write."""
    for number in itertools.count():
        kind, arguments, options = draw(dice)
        copies = [_copied(arguments) for _ in worlds]
        answers = [world.named(getattr(world, kind)(*copy, **options)) for world, copy in zip(worlds, copies, strict=True)]
        assert answers[0] == answers[1], f"step {number}: {kind} {arguments} {options}"
        if number % 10 == 0:
            assert worlds[0].rows() == worlds[1].rows(), f"step {number}: {kind} {arguments} {options}"
        if number == STEPS:
            break
    assert worlds[0].rows() == worlds[1].rows()


def _copied(arguments: Any) -> Any:
    if isinstance(arguments, dict):
        return {name: _copied(each) for name, each in arguments.items()}
    if isinstance(arguments, list | tuple):
        return type(arguments)(_copied(each) for each in arguments)
    return arguments


def test_an_id_that_retention_has_kept_goes_on_in_the_usual_way(connection: Connection) -> None:
    """Its sequences are in `producer_state` alone."""
    world = World(connection, "append_and_decide")
    for _ in range(2):
        answers = world.whole(0, [(0, 2, {})], None, 0)
        assert isinstance(answers, list)
        assert [answer.error for answer in answers] == [None]
        world.clean(0)
    row: BatchColumns = batch(world.partitions[0], b"x", producer=world.writers[0].id, number=2, sequence=0)
    world.last[0] = (world.writers[0].name, [row], NO_OFFSETS)
    (answer,) = world.again(0)  # type: ignore[misc]
    assert answer.error is not None
    assert "sent sequence 0 to 0, the next one is 4" in str(answer.error)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_usual_case_of_a_fetch_answers_as_the_general_one(connection: Connection, general_fetch: str, seed: int) -> None:
    """Readers with tokens of every age, also of what was cleaned meanwhile, ask after each step of a random history."""
    dice = random.Random(seed)
    world = World(connection, "append_and_decide")
    known: dict[int, list[Position]] = {partition: [Position(0)] for partition in world.partitions}
    usual = 0
    for number in range(STEPS):
        kind, arguments, options = drawn(dice)
        getattr(world, kind)(*arguments, **options)
        if dice.random() < 0.2:
            mark(connection, everything=dice.random() < 0.5)
        for _ in range(4):
            chosen = dice.sample(world.partitions, dice.randint(1, len(world.partitions)))
            # The newest positions are the ones that readers have.
            asked = {partition: dice.choice(known[partition][-3:] + known[partition][-1:] * 3) for partition in chosen}
            if dice.random() < 0.1:
                asked = {p: Position(max(0, at.offset + dice.choice([-1, 1])), at.token) for p, at in asked.items()}
            isolation = dice.choice([Isolation.READ_COMMITTED] * 3 + [Isolation.READ_UNCOMMITTED])
            limits = (
                dice.choice([1 << 20, 1 << 20, 100, 0]),
                dice.choice([1000, 1000, 2, 0]),
                dice.choice([None, 1 << 20, 150]),
            )
            question = (
                Int4Array(asked),
                Int8Array(at.offset for at in asked.values()),
                TextArray(at.token for at in asked.values()),
                isolation.value,
                *limits,
            )
            rows = [
                [
                    row[:12] if row[10] is None else row  # without a row of the log there is no more to say
                    for row in call(connection, replace(calls.FETCH_BATCHES, name=name), *question)
                ]
                for name in ("fetch_batches", general_fetch)
            ]
            assert rows[0] == rows[1], f"step {number}: {question}"
            found = fetch(connection, asked, isolation=isolation, max_bytes=limits[0], max_rows=limits[1])
            for partition, answer in found.items():
                if isolation is Isolation.READ_COMMITTED and not answer.truncated:
                    known[partition].append(Position(answer.position, answer.token))
                usual += (answer.token or "").startswith("stable")
    assert usual > STEPS, "few questions had the tokens of a usual reader"


def test_a_whole_transaction_is_judged_by_its_own_producers_sequences(connection: Connection, partition: int) -> None:
    """I1: another producer's batch with the same epoch, and the sequence before, is in the log."""
    other, last, own = Writer(connection), Writer(connection), Writer(connection)
    for _ in range(2):
        row = other.row(partition, b"1", b"2", b"3")
        other.whole(row)
        other.counted(row)
        other.number += 1
    last.whole(last.row(partition, b"last"))
    (refused,) = own.whole(own.row(partition, b"x", sequence=6))
    assert isinstance(refused.error, msgtx.errors.OutOfOrderSequence)
    (stored,) = own.whole(own.row(partition, b"x"))
    assert (stored.error, stored.base_offset) == (None, 7)


@pytest.mark.parametrize("batches", [1, 2])
def test_a_sequence_that_retention_has_noted_is_that_of_its_own_partition_and_producer(
    connection: Connection, batches: int
) -> None:
    """I1: what another producer, or this one elsewhere, has come to makes no gap into the next batch.

    A call of one batch is judged by the usual case, one of two by the general rules.
    """
    one, other, aside = new_topic(connection, 3)
    first, second = (init_producer_id(connection, None, timeout_ms=60_000) for _ in range(2))
    counts = {(one, first): 2, (one, second): 3, (other, first): 4, (other, second): 5}

    def send(partition: int, producer: ProducerId, sequence: int) -> Appended:
        rows = [batch(partition, b"x", producer=producer, sequence=sequence), batch(aside, b"x")]
        return append(connection, rows[:batches])[0]

    for (partition, producer), sent in counts.items():
        for sequence in range(sent):
            assert send(partition, producer, sequence).error is None
        clean(connection, partition)
    for (partition, producer), sent in counts.items():
        for sequence in {*counts.values()} - {sent}:
            gap = send(partition, producer, sequence)
            assert gap.error is not None or gap.duplicate
        assert send(partition, producer, sent).base_offset >= 0


def forbid_general_rules(connection: Connection, function: str) -> None:
    """Let the function that judges what is not usual raise an exception."""
    (text,) = connection.execute(
        "select pg_get_functiondef(p.oid) from pg_proc p where p.oid::regproc::text = %s", [f"msgtx.{function}"]
    ).fetchone() or ("",)
    head = text.partition("\nAS ")[0].replace("LANGUAGE sql", "LANGUAGE plpgsql")
    connection.execute(f"{head} as $$ begin raise exception 'the general rules were asked'; end $$".encode())


def test_what_is_usual_does_not_ask_the_general_rules(connection: Connection) -> None:
    """Else every transaction would pay for both, and every answer would still be right."""
    plain_one, stamped, compacted = (new_partition(connection, **settings) for settings in TOPICS[:3])
    group = unique("group")
    with connection.transaction(force_rollback=True):
        forbid_general_rules(connection, "refuse_whole")
        first, second = Writer(connection), Writer(connection)
        for writer in (first, second, first, first):  # alone, behind another one, behind itself
            rows = [
                writer.row(plain_one, b"x"),
                writer.row(stamped, b"x", b"y"),
                writer.row(compacted, b"x", keys=[b"k"]),
            ]
            answers = writer.whole(*rows, offsets=offsets_of((group, plain_one, 1)))
            assert [answer.error for answer in answers] == [None] * 3
            for row in rows:
                writer.counted(row)
            writer.number += 1
        with pytest.raises(Exception, match="the general rules were asked"):
            first.whole(first.row(plain_one, b"x", sequence=99))


def test_an_append_that_is_usual_does_not_ask_the_general_rules(connection: Connection) -> None:
    """It is one batch outside a transaction, also of a producer that has had transactions, or is the second of its name."""
    plain_one, stamped, compacted = (new_partition(connection, **settings) for settings in TOPICS[:3])
    writer, second, without_row = (
        Writer(connection),
        Writer(connection),
        init_producer_id(connection, None, timeout_ms=60_000),
    )
    writer.send_and_commit(plain_one, b"x")
    second.init()
    second.send_and_abort(plain_one, b"x")
    with connection.transaction(force_rollback=True):
        forbid_general_rules(connection, "look_at_batches")
        sequences = {(writer.id, plain_one): 1, (second.id, plain_one): 1}
        for producer in (None, without_row, writer.id, second.id, second.id):
            for partition, count, keys in ((plain_one, 1, None), (stamped, 2, None), (compacted, 1, [b"k"])):
                at = None if producer is None else sequences.get((producer, partition), 0)
                (answer,) = append(
                    connection, [batch(partition, *[b"x"] * count, producer=producer, sequence=at, keys=keys)]
                )
                assert answer.error is None
                sequences[producer, partition] = (at or 0) + count
        with pytest.raises(Exception, match="the general rules were asked"):
            append(connection, [batch(plain_one, b"x", producer=writer.id, sequence=99)])


def test_a_fetch_that_is_usual_does_not_ask_the_general_rules(connection: Connection, writer: Writer) -> None:
    """These alone look at floors. A longer log lies before the position, and rows of others are nearer to it."""
    partition, beside = new_topic(connection, 2)
    for count in (1, 1, 1, 1, 3):
        plain(connection, partition, *[b"x"] * count)
    plain_batches(connection, beside, *[b"x"] * 7)
    read_to = look(connection, partition)

    def asks(token: str | None) -> bool:
        def work() -> object:
            return look(connection, partition, read_to.position, token=token)

        return spent(connection, "partition_floor", "idx_scan", work) > 0

    assert not asks(read_to.token)
    plain(connection, partition, b"x")
    assert not asks(read_to.token)
    writer.commit_whole(writer.row(partition, b"x"))
    assert not asks(read_to.token)
    assert asks(None)
