"""`client.admin.verify`: sound logs are found sound, and each rule is broken by hand and named."""

import concurrent.futures
import string
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import msgtx
from msgtx import GroupMetadata, OffsetAndMetadata, TopicPartition, Violation, errors
from msgtx.admin.verify import LISTED, RULES
from msgtx.store.groups.groups import commit_offsets
from msgtx.store.transactions.producers import init_producer_id
from msgtx.store.transactions.transactions import end_transaction, mark
from msgtx.store.verify import verify_batches
from msgtx.types import TransactionId
from tests.databases import Connection, connect
from tests.store.roster import Roster
from tests.store.steps import Writer, append_one, batch, ends, plain, unique

pytestmark = pytest.mark.slow

SECONDS = 30.0


@dataclass
class Place:
    """A topic of two partitions, and what verify finds in it."""

    client: msgtx.Client
    connection: Connection
    topic: str
    partitions: list[int]

    @property
    def partition(self) -> int:
        return self.partitions[0]

    def report(self) -> msgtx.VerifyReport:
        return self.client.admin.verify([self.topic])

    def broken(self) -> set[str]:
        return {violation.check for violation in self.report().violations}

    def only(self, check: str) -> Violation:
        """The one violation of a rule; other rules may be violated in consequence."""
        (found,) = [one for one in self.report().violations if one.check == check]
        return found

    def change(self, statement: str, *arguments: object) -> None:
        """Run a statement as the owner of the tables."""
        assert self.connection.execute(f"{statement}", arguments).rowcount > 0, statement

    def batch(self, changes: str, offset: int = 0) -> None:
        self.change(
            f"update msgtx.record_batch set {changes} where partition_id = %s and base_offset = %s", self.partition, offset
        )


@pytest.fixture
def place(client: msgtx.Client, connection: Connection) -> Place:
    name = unique("verified")
    client.topics.create(name, partitions=2)
    rows = connection.execute(
        "select partition_id from msgtx.partition p join msgtx.topic t using (topic_id) where t.name = %s order by 1", [name]
    ).fetchall()
    return Place(client, connection, name, [partition_id for (partition_id,) in rows])


@pytest.fixture
def writer(connection: Connection) -> Writer:
    return Writer(connection)


def offset(group: str, partition: int, at: int) -> dict[GroupMetadata, dict[int, OffsetAndMetadata]]:
    return {GroupMetadata(group): {partition: OffsetAndMetadata(at)}}


# ── sound logs ──


def test_everything_that_the_library_writes_is_sound(client: msgtx.Client, connection: Connection, place: Place) -> None:
    other = unique("verified")
    client.topics.create(other)
    with client.producer() as producer:
        for i in range(200):
            producer.send(place.topic, b"%d" % i, key=b"%d" % i, headers=[("source", b"x"), ("empty", None)])
        producer.send_batch(place.topic, [None, b"x" * 10_000], keys=[b"a", b"b"])
    with client.producer(transactional_id=unique("id")) as long:
        for i in range(6):
            transaction = long.begin_transaction()
            long.send(place.topic, b"long", partition=i % 2)
            long.flush(SECONDS)
            long.send(place.topic, b"more", partition=0)
            transaction.send_offsets({TopicPartition(place.topic, 0): i}, "verify")
            (long.abort_transaction if i % 3 == 0 else long.commit_transaction)()
        client.process(
            place.topic,
            to=other,
            group="verify",
            transactional_id=unique("id"),
            transform=lambda record: record.value,
            idle_timeout=0.05,
        )
        before = client.admin.verify([place.topic, other])
        client.sweep()
        long.begin_transaction()
        long.send(place.topic, b"open", partition=1)
        long.flush(SECONDS)
        report = client.admin.verify([place.topic, other])
        assert (report.violations_found, report.violations) == (0, [])
        assert (before.violations_found, before.violations) == (0, [])
        assert (report.partitions, report.records) == (3, sum(ends(connection, p)[2] for p in ids(connection, place, other)))
        assert report.transactions >= 7
        assert report.group_offsets > 0
        assert report.offsets_behind == 0
        long.abort_transaction()


def ids(connection: Connection, place: Place, other: str) -> list[int]:
    rows = connection.execute(
        "select partition_id from msgtx.partition p join msgtx.topic t using (topic_id) where t.name = any(%s)",
        [[place.topic, other]],
    ).fetchall()
    return [partition_id for (partition_id,) in rows]


def test_plain_and_idempotent_rows_of_many_producers_are_sound(connection: Connection, place: Place) -> None:
    producers = [init_producer_id(connection, None, timeout_ms=60_000) for _ in range(3)]
    for sequence in range(4):
        for producer in producers:
            append_one(connection, batch(place.partition, b"a", b"b", producer=producer, sequence=2 * sequence))
        plain(connection, place.partition, b"x", b"", None, timestamps=[5, 9, 7])
    raised = init_producer_id(connection, None, timeout_ms=60_000, expected=producers[0])
    append_one(connection, batch(place.partition, b"a", producer=raised, sequence=0))
    assert place.report().violations == []


def test_a_fence_and_a_timeout_leave_the_log_sound(connection: Connection, place: Place, writer: Writer) -> None:
    writer.send(place.partition, b"fenced")
    writer.init()
    writer.send(place.partition, b"aborted")
    end_transaction(connection, writer.name, "admin")
    writer.next()
    writer.send(place.partition, b"open")
    for _ in range(2):
        assert place.report().violations == []
        mark(connection, everything=True)
    writer.commit()


def test_purged_history_is_no_violation(connection: Connection, place: Place, writer: Writer) -> None:
    names = []
    for end in (writer.abort, writer.commit, writer.commit):
        writer.send(place.partition, b"x")
        names.append(end())
    mark(connection, everything=True)
    for table in ("transaction", "transaction_partition", "transaction_decision"):
        for name in names[:2]:
            place.change(
                f"delete from msgtx.{table} where (producer_id, producer_epoch, transaction_number) = (%s, %s, %s)", *name
            )
    place.change("delete from msgtx.transaction_marker where producer_id = %s and outcome = 'COMMIT'", writer.id.producer_id)
    assert place.report().violations == []


def test_what_retention_removed_from_the_front_is_no_violation(connection: Connection, place: Place, writer: Writer) -> None:
    idle = init_producer_id(connection, None, timeout_ms=60_000)
    append_one(connection, batch(place.partition, b"a", b"b", producer=idle, sequence=0))
    writer.send(place.partition, b"aborted")
    writer.abort()
    writer.send(place.partition, b"begun")
    writer.send(place.partition, b"goes on")
    writer.commit()
    append_one(connection, batch(place.partition, b"c", producer=idle, sequence=2))
    commit_offsets(connection, offset(unique("group"), place.partition, 1))
    mark(connection, everything=True)
    place.change("delete from msgtx.record_batch where partition_id = %s and base_offset < 4", place.partition)
    place.change("update msgtx.partition set log_start_offset = 4 where partition_id = %s", place.partition)
    report = place.report()
    assert (report.violations, report.offsets_behind) == ([], 1)
    place.change("delete from msgtx.record_batch where partition_id = %s", place.partition)
    place.change("update msgtx.partition set log_start_offset = 6 where partition_id = %s", place.partition)
    assert place.report().violations == []
    place.change(
        "insert into msgtx.producer_state"
        " (partition_id, producer_id, producer_epoch, last_sequence, last_offset, appended_at)"
        " values (%s, %s, 0, 2, 5, msgtx.clock())",
        place.partition,
        idle.producer_id,
    )
    append_one(connection, batch(place.partition, b"d", producer=idle, sequence=3))
    assert place.report().violations == []
    place.batch("base_sequence = 2, last_sequence = 2", offset=6)
    assert place.broken() == {"sequence"}


def test_compacted_rows_are_no_violation(connection: Connection, place: Place) -> None:
    plain(connection, place.partition, b"a", b"b", b"c", keys=[b"k"] * 3)
    plain(connection, place.partition, b"d", keys=[b"k"])
    place.batch("values = values[3:3], keys = keys[3:3], offset_deltas = '{2}', record_count = 1, byte_size = 64")
    assert place.report().violations == []
    place.batch("values = '{}', keys = '{}', offset_deltas = '{}', record_count = 0, byte_size = 32")
    assert place.report().violations == []


def test_a_log_is_verified_beside_its_writers(client: msgtx.Client, place: Place) -> None:
    """Each piece reads one snapshot."""

    def write(number: int) -> None:
        with client.producer(transactional_id=unique("beside"), linger_ms=0) as producer:
            for i in range(40):
                producer.begin_transaction()
                producer.send(place.topic, b"%d" % i, partition=number % 2)
                if i % 3:
                    producer.flush(SECONDS)
                (producer.abort_transaction if i % 5 == 0 else producer.commit_transaction)()

    with concurrent.futures.ThreadPoolExecutor(3) as executor:
        writers = [executor.submit(write, number) for number in range(3)]
        rounds = 0
        while not all(done.done() for done in writers):
            assert place.report().violations == []
            rounds += 1
        for done in writers:
            done.result()
    assert rounds > 0
    assert place.report().violations == []


# ── rules of a row and of its neighbours ──


@pytest.mark.parametrize(
    ("changes", "check", "promise"),
    [
        ("last_offset = 4", "last_offset", "I2"),
        ("record_count = 2", "array_lengths", "I1"),
        ("keys = '{a,b}'", "array_lengths", "I1"),
        ("timestamps = '{1}'", "array_lengths", "I1"),
        ("header_counts = '{1,1,0}'", "array_lengths", "I1"),
        ("header_counts = '{0,0}'", "array_lengths", "I1"),
        ("header_counts = '{1,0,0}', header_keys = '{a}'", "array_lengths", "I1"),
        ("header_keys = '{a}', header_values = '{a}'", "array_lengths", "I1"),
        ("offset_deltas = '{0,1}'", "array_lengths", "I1"),
        ("offset_deltas = '{0,2,1}'", "offset_deltas", "I2"),
        ("offset_deltas = '{0,1,1}'", "offset_deltas", "I2"),
        ("offset_deltas = '{0,1,3}'", "offset_deltas", "I2"),
        ("offset_deltas = '{-1,1,2}'", "offset_deltas", "I2"),
        ("byte_size = byte_size + 13", "byte_size", "internals: cleaning#retention"),
        ("byte_size = byte_size - 13", "byte_size", "internals: cleaning#retention"),
        ("timestamps = '{1,2000,3}'", "timestamps", "internals: visibility"),
        ("producer_id = 1", "producer_columns", "I1"),
        ("base_sequence = 1", "producer_columns", "I1"),
        ("transaction_number = 1", "producer_columns", "I1"),
        ("producer_id = 999999, producer_epoch = 0, base_sequence = 0, last_sequence = 1", "sequence_span", "I1"),
        ("producer_id = 999999, producer_epoch = 0, base_sequence = -1, last_sequence = 1", "sequence_span", "I1"),
        ("producer_id = 999999, producer_epoch = 0, base_sequence = 1, last_sequence = 3", "sequence", "I3"),
    ],
)
def test_a_row_that_contradicts_itself_is_named(
    connection: Connection, place: Place, changes: str, check: str, promise: str
) -> None:
    plain(connection, place.partition, b"a", b"b", b"c")
    place.batch(changes)
    found = place.only(check)
    assert (found.topic, found.partition, found.offset, found.promise) == (place.topic, 0, 0, promise)


def test_a_hole_an_overlap_and_a_missing_front_are_named(connection: Connection, place: Place) -> None:
    for value in (b"a", b"b", b"c", b"d"):
        plain(connection, place.partition, value)
    place.change("delete from msgtx.record_batch where partition_id = %s and base_offset = 1", place.partition)
    found = place.only("offsets_dense")
    assert (found.offset, found.promise) == (2, "I2")
    assert (found.expected, found.found) == ("base offset 1, after the row in front", "2")
    place.change("delete from msgtx.record_batch where partition_id = %s and base_offset = 0", place.partition)
    assert (place.only("log_start").offset, place.broken()) == (2, {"log_start"})
    place.batch("last_offset = 3, record_count = 2", offset=2)
    assert place.broken() == {"log_start", "array_lengths", "offsets_dense"}


def test_time_that_goes_back_is_named(connection: Connection, place: Place) -> None:
    plain(connection, place.partition, b"a")
    plain(connection, place.partition, b"b")
    place.batch("appended_at = appended_at - interval '1 second'", offset=1)
    assert (place.only("append_time").offset, place.broken()) == (1, {"append_time"})


def test_ends_and_floors_beyond_the_log_are_named(connection: Connection, place: Place) -> None:
    plain(connection, place.partition, b"a")
    place.change("insert into msgtx.partition_floor (partition_id, stable_floor) values (%s, 2)", place.partition)
    found = place.only("floor_above_end")
    assert (found.offset, found.found) == (None, "2")
    place.change("update msgtx.partition set log_start_offset = 3 where partition_id = %s", place.partition)
    assert place.only("log_start_beyond_end").promise == "I2"


# ── a producer's rows ──


def test_sequences_that_have_a_gap_or_come_twice_or_in_another_order_are_named(connection: Connection, place: Place) -> None:
    producer = init_producer_id(connection, None, timeout_ms=60_000)
    for sequence in range(4):
        append_one(connection, batch(place.partition, b"x", producer=producer, sequence=sequence))
    place.batch("base_sequence = 7, last_sequence = 7", offset=3)
    found = place.only("sequence")
    assert (found.offset, found.promise, found.found) == (3, "I3", "7 of epoch 0")
    assert found.expected.startswith(f"the sequence of producer {producer.producer_id} after 2 of epoch 0")
    place.batch("base_sequence = 2, last_sequence = 2", offset=3)
    found = place.only("stored_twice")
    assert (found.offset, found.promise, place.broken()) == (3, "I1", {"stored_twice"})
    place.batch("base_sequence = 3, last_sequence = 3", offset=2)
    place.batch("base_sequence = 2, last_sequence = 2", offset=3)
    found = place.only("sequence_order")
    assert (found.offset, found.promise, place.broken()) == (2, "I3", {"sequence_order"})


def test_epochs_that_go_back_or_were_never_given_are_named(connection: Connection, place: Place) -> None:
    producer = init_producer_id(connection, None, timeout_ms=60_000)
    raised = init_producer_id(connection, None, timeout_ms=60_000, expected=producer)
    append_one(connection, batch(place.partition, b"x", producer=raised, sequence=0))
    append_one(connection, batch(place.partition, b"y", producer=raised, sequence=1))
    place.batch("producer_epoch = 0, base_sequence = 0, last_sequence = 0", offset=1)
    found = place.only("epoch_order")
    assert (found.offset, found.promise, place.broken()) == (0, "I7", {"epoch_order"})
    place.batch("producer_epoch = 2, base_sequence = 0, last_sequence = 0", offset=1)
    found = place.only("epoch_ahead")
    assert (found.offset, found.promise, found.found) == (1, "I7", "epoch 2")


def test_a_new_epoch_that_does_not_begin_at_0_is_named(connection: Connection, place: Place) -> None:
    producer = init_producer_id(connection, None, timeout_ms=60_000)
    append_one(connection, batch(place.partition, b"x", producer=producer, sequence=0))
    raised = init_producer_id(connection, None, timeout_ms=60_000, expected=producer)
    append_one(connection, batch(place.partition, b"y", producer=raised, sequence=0))
    place.batch("base_sequence = 1, last_sequence = 1", offset=1)
    assert (place.only("sequence").offset, place.broken()) == (1, {"sequence"})


# ── transactions ──


def of(name: TransactionId) -> str:
    return f"producer_id = {name[0]} and producer_epoch = {name[1]} and transaction_number = {name[2]}"


def test_a_batch_behind_its_transactions_decision_is_named(connection: Connection, place: Place, writer: Writer) -> None:
    """I8, P9."""
    writer.send(place.partition, b"a")
    writer.send(place.partition, b"b")
    name = writer.commit()
    place.change(f"update msgtx.transaction_decision set last_offsets = '{{0}}' where {of(name)}")
    found = place.only("after_decision")
    assert (found.offset, found.promise) == (1, "I8")
    assert str(name) in found.expected
    place.change(
        f"update msgtx.transaction_decision set partitions = '{{}}', first_offsets = '{{}}', last_offsets = '{{}}'"
        f" where {of(name)}"
    )
    assert place.broken() == {"after_decision", "decision_start"}


def test_spans_that_are_not_those_of_the_batches_are_named(connection: Connection, place: Place, writer: Writer) -> None:
    plain(connection, place.partition, b"x", b"y")
    writer.send(place.partition, b"a")
    writer.send(place.partition, b"b")
    name = writer.commit()
    plain(connection, place.partition, b"z")
    for changes, checks in (
        ("first_offsets = '{1}'", {"decision_start", "span_start"}),
        ("first_offsets = '{3}'", {"decision_start", "before_decision"}),
        ("first_offsets = '{2}', last_offsets = '{4}'", {"span_end"}),
        ("last_offsets = '{1}'", {"decision_arrays", "span_end", "after_decision"}),
        ("last_offsets = '{3, 3}'", {"decision_arrays"}),
        ("last_offsets = '{3}', outcome = 'PERHAPS'", {"decision_outcome"}),
    ):
        place.change(f"update msgtx.transaction_decision set {changes} where {of(name)}")
        assert place.broken() == checks, changes


def test_a_partition_that_a_decision_names_twice_is_named(connection: Connection, place: Place, writer: Writer) -> None:
    writer.send(place.partition, b"a")
    name = writer.commit()
    place.change(
        f"update msgtx.transaction_decision set partitions = partitions || partitions, first_offsets = '{{0,0}}',"
        f" last_offsets = '{{0,0}}' where {of(name)}"
    )
    assert place.broken() == {"decision_arrays"}


def test_an_aborted_transaction_below_the_floor_without_marker_is_named(
    connection: Connection, place: Place, writer: Writer
) -> None:
    """I5, P3."""
    writer.send(place.partition, b"aborted")
    name = writer.abort()
    mark(connection, everything=True)
    place.change(f"delete from msgtx.transaction_marker where {of(name)}")
    found = place.only("marker_missing")
    assert (found.offset, found.promise, place.broken()) == (0, "I5", {"marker_missing"})


def test_markers_that_are_not_their_decisions_are_named(connection: Connection, place: Place, writer: Writer) -> None:
    writer.send(place.partition, b"a")
    name = writer.commit()
    mark(connection)
    place.change(f"update msgtx.transaction_marker set outcome = 'ABORT' where {of(name)}")
    found = place.only("marker_outcome")
    assert (found.offset, found.promise, found.found) == (0, "I4", "ABORT")
    place.change(f"update msgtx.transaction_marker set outcome = 'COMMIT', last_offset = 1 where {of(name)}")
    assert place.broken() == {"marker_span"}


def test_a_marker_of_an_open_transaction_is_named(connection: Connection, place: Place, writer: Writer) -> None:
    writer.send(place.partition, b"a")
    place.change(
        "insert into msgtx.transaction_marker values (%s, %s, %s, %s, 'COMMIT', 0, 0, 0)", place.partition, *writer.name
    )
    found = place.only("marker_without_decision")
    assert (found.promise, place.broken()) == ("I4", {"marker_without_decision"})
    writer.commit()
    assert place.broken() == set()


def test_an_open_transaction_that_nobody_can_end_is_named(connection: Connection, place: Place, writer: Writer) -> None:
    """I8: without its row no timeout ends it; without its beginning no search finds it, and readers may pass its data."""
    writer.send(place.partition, b"a")
    writer.send(place.partition, b"b")
    row = connection.execute(f"delete from msgtx.transaction_partition where {of(writer.name)} returning *").fetchone()
    found = place.only("open_partition")
    assert (found.offset, found.promise, found.found) == (0, "I8", "nothing")
    connection.execute("insert into msgtx.transaction_partition values (%s, %s, %s, %s, %s)", row)
    place.change(f"update msgtx.transaction_partition set first_offset = 1 where {of(writer.name)}")
    assert place.broken() == {"open_partition"}
    place.change(f"update msgtx.transaction_partition set first_offset = 5 where {of(writer.name)}")
    assert place.broken() == {"open_partition", "open_without_batch"}
    place.change(f"update msgtx.transaction_partition set first_offset = 0 where {of(writer.name)}")
    assert place.broken() == set()
    place.change(f"delete from msgtx.transaction where {of(writer.name)}")
    found = place.only("transaction_row")
    assert (found.offset, found.promise, place.broken()) == (0, "I8", {"transaction_row"})
    end_transaction(connection, writer.name, "admin")


def test_a_floor_above_an_open_transaction_is_named(connection: Connection, place: Place, writer: Writer) -> None:
    """I5, P44."""
    writer.send(place.partition, b"a")
    place.change("insert into msgtx.partition_floor (partition_id, stable_floor) values (%s, 1)", place.partition)
    found = place.only("floor_passed_open")
    assert (found.offset, found.promise, found.found) == (0, "I5", "1")
    assert place.broken() == {"floor_passed_open"}
    writer.abort()


def test_a_transaction_on_both_sides_of_a_cut_is_named(connection: Connection, place: Place, writer: Writer) -> None:
    """I15: its decision names an offset of the second partition that is beyond every cut."""
    for partition in place.partitions:
        writer.send(partition, b"a")
    name = writer.commit()
    for partition in place.partitions:
        plain(connection, partition, b"b")
    assert place.broken() == set()
    place.change(f"update msgtx.transaction_decision set last_offsets = '{{0, 7}}' where {of(name)}")
    found = [one for one in place.report().violations if one.check == "torn"]
    assert [(one.partition, one.offset, one.promise) for one in found] == [(0, 0, "I15"), (1, 0, "I15")]
    assert (found[1].expected, found[1].found) == (f"all of transaction {name} below the cut (here 2), or nothing", "0 to 7")
    assert place.broken() == {"torn", "span_end"}
    assert {one.check for one in place.client.admin.verify().violations} >= {"torn"}


# ── offsets of groups ──


def test_offsets_beyond_the_log_or_of_transactions_that_did_not_commit_are_named(
    connection: Connection, place: Place, writer: Writer
) -> None:
    plain(connection, place.partition, b"a", b"b")
    group = unique("group")
    commit_offsets(connection, offset(group, place.partition, 3))
    assert place.broken() == set()  # without a member any offset may be committed
    place.change("update msgtx.group_offset set member_id = 'm' where partition_id = %s", place.partition)
    found = place.only("offset_beyond_end")
    assert (found.offset, found.promise) == (3, "I9")
    assert group in found.expected
    place.change("update msgtx.group_offset set committed_offset = 2 where partition_id = %s", place.partition)
    assert place.broken() == set()
    for end, check in ((None, "offset_of_undecided"), (writer.abort, "offset_of_aborted")):
        if end is None:
            writer.send(place.partition, b"c")
            place.change(
                "update msgtx.group_offset set producer_id = %s, producer_epoch = %s, transaction_number = %s"
                " where partition_id = %s",
                *writer.name,
                place.partition,
            )
        else:
            end()
        found = place.only(check)
        assert (found.offset, found.promise, place.broken()) == (2, "I10", {check})


# ── members of groups ──


@pytest.mark.parametrize(
    ("check", "change"),
    [("owner_no_member", "owner = -7"), ("target_no_member", "target = -7"), ("owner_from_later", "owner_since = 77")],
)
def test_an_owner_that_cannot_be_is_named(connection: Connection, place: Place, check: str, change: str) -> None:
    group = Roster(connection)
    group.join("a")
    group.join("b")
    assert group.assign(dict.fromkeys(place.partitions, "a"))
    assert group.assign(dict.fromkeys(place.partitions, "b"))
    assert place.broken() == set()
    place.change(f"update msgtx.group_assignment set {change} where partition_id = %s", place.partitions[1])
    found = place.only(check)
    assert (found.partition, found.offset, found.promise, place.broken()) == (1, None, "I11", {check})
    assert group.name in found.expected
    assert change.split(" = ")[1] in found.found


def test_pending_offsets_of_a_seal_are_no_violation(connection: Connection, place: Place, writer: Writer) -> None:
    writer.send(place.partition, b"a")
    commit_offsets(connection, offset(unique("group"), place.partition, 1))
    place.change(
        "update msgtx.group_offset set producer_id = %s, producer_epoch = %s, transaction_number = %s"
        " where partition_id = %s",
        *writer.name,
        place.partition,
    )
    place.change(
        "insert into msgtx.transaction_seal (producer_id, producer_epoch, transaction_number, kind, sealed_at, partitions,"
        " first_offsets, last_offsets) values (%s, %s, %s, 'session', msgtx.clock(), '{}', '{}', '{}')",
        *writer.name,
    )
    assert place.broken() == set()
    end_transaction(connection, writer.name, "admin")
    assert place.broken() == set()


# ── the installation ──


def test_a_sequence_behind_the_tables_is_named(make_database: Callable[..., str]) -> None:
    """It would give out a number that is stored: nothing of the log shows it yet."""
    url = make_database()
    with msgtx.connect(url) as client, connect(url) as owner:
        client.topics.create("t")
        owner.execute("select setval('msgtx.topic_topic_id_seq', 1, false)")
        (found,) = client.admin.verify().violations
        assert (found.check, found.topic, found.partition, found.offset, found.promise) == (
            "sequence_behind",
            None,
            None,
            None,
            "I1",
        )
        assert ("topic_topic_id_seq" in found.expected, found.found) == (True, "1 is next")
        owner.execute("select msgtx.note_place()")
        assert client.admin.verify().violations == []


# ── the report ──


def planted() -> Iterator[str]:
    """The names of rules that occur in this file's tests."""
    text = Path(__file__).read_text(encoding="utf-8")
    return (name for name in RULES if f'"{name}"' in text)


def test_every_rule_is_broken_by_a_test_and_worded() -> None:
    assert set(planted()) == set(RULES)
    facts: dict[str, object] = {}
    for rule in RULES.values():
        for text in (rule.expected, rule.found):
            facts |= dict.fromkeys(fields(text), "x")
            text.format_map(facts)
        assert rule.promise.startswith(("I", "internals: "))


def fields(text: str) -> Iterable[str]:
    return [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]


def test_only_the_first_violations_are_listed_and_all_are_counted(connection: Connection, place: Place) -> None:
    connection.execute(
        "insert into msgtx.record_batch (partition_id, base_offset, last_offset, appended_at, max_timestamp, record_count,"
        " byte_size, \"values\") select %s, 2 * n, 2 * n, clock_timestamp(), 0, 1, 24, '{a}' from generate_series(0, %s) n",
        [place.partition, LISTED + 500],
    )
    report = place.report()
    assert len(report.violations) == LISTED
    assert report.violations_found == LISTED + 500
    assert {violation.check for violation in report.violations} == {"offsets_dense"}


def test_small_pieces_find_the_same(connection: Connection, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    writers = [Writer(connection) for _ in range(3)]
    for i in range(20):
        for writer in writers:
            writer.send(place.partition, b"x" * 100)
            writer.send(place.partitions[1], b"y")
            (writer.abort if i % 4 == 0 else writer.commit)()
    mark(connection, everything=True)
    whole = place.report()
    assert (whole.violations, whole.batches, whole.transactions) == ([], 120, 60)
    for rows, size in ((1, 1 << 20), (7, 1 << 20), (1_000, 1), (1_000, 500)):
        monkeypatch.setattr("msgtx.store.verify.VERIFIED_ROWS", rows)
        monkeypatch.setattr("msgtx.store.verify.MAX_BYTES", size)
        assert place.report() == whole
    place.batch("base_sequence = 77, last_sequence = 77", offset=30)
    assert "sequence" in place.broken()


def test_a_log_in_ranges_has_each_row_once(connection: Connection, place: Place) -> None:
    for _ in range(10):
        plain(connection, place.partition, b"a", b"b", b"c")
    whole = verify_batches(connection, place.partition, None)
    assert (whole.rows, whole.records) == (10, 30)
    for length in (1, 2, 3, 4, 7, 30):
        found = [verify_batches(connection, place.partition, [at - 1], until=at + length) for at in range(0, 30, length)]
        assert (sum(piece.rows for piece in found), sum(piece.records for piece in found)) == (10, 30), length
    assert verify_batches(connection, place.partition, None, until=0).rows == 0


def test_progress_is_told_and_an_unknown_topic_refused(client: msgtx.Client, connection: Connection, place: Place) -> None:
    plain(connection, place.partition, b"a", b"b")
    told: list[tuple[int, str]] = []
    report = client.admin.verify([place.topic, place.topic], progress=lambda records, words: told.append((records, words)))
    assert (report.records, report.partitions) == (2, 2)
    assert told[0] == (2, f"{place.topic}-0")
    assert client.admin.verify().partitions >= 2
    with pytest.raises(errors.UnknownTopicOrPartition):
        client.admin.verify(["nowhere"])
