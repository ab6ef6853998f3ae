"""append: the order of its checks, each refusal, each branch (internals: append#the-order-of-the-checks)."""

import contextlib
import json
from collections.abc import Callable

import pytest

from msgtx import errors
from msgtx.cli.terminal.failure import failure_of
from msgtx.database.calls import call, query
from msgtx.database.wire import BatchColumns
from msgtx.generated import calls
from msgtx.rules.record import TIMES_BEFORE
from msgtx.store.append.append import Appended, append, append_arguments
from msgtx.store.groups.groups import NO_OFFSETS
from msgtx.store.operator.server import describe_lock_table
from msgtx.store.transactions.producers import fence_producer, init_producer_id
from msgtx.store.transactions.transactions import end_transaction, mark
from msgtx.types import ProducerId
from tests.databases import Clock, Connection, Sessions
from tests.refusals import refuses
from tests.store.steps import (
    UNCOMMITTED,
    Writer,
    append_one,
    append_unless_locked,
    batch,
    count,
    delete_topic_of,
    ends,
    forget,
    new_partition,
    new_topic,
    note_sequence,
    offsets_of,
    plain,
    read,
    seal,
    unique,
    values,
)


def idempotent(connection: Connection) -> ProducerId:
    return init_producer_id(connection, None, timeout_ms=60_000)


@pytest.fixture
def producer(connection: Connection) -> ProducerId:
    return idempotent(connection)


def error_class(answer: Appended) -> type[Exception] | None:
    return None if answer.error is None else type(answer.error)


def refusal(connection: Connection, row: BatchColumns) -> type[Exception] | None:
    return error_class(append_one(connection, row))


# ── what is stored ──


def test_offsets_are_dense_in_append_order(connection: Connection, partition: int) -> None:
    """I2."""
    assert [plain(connection, partition, *[b"x"] * size) for size in (1, 3, 2)] == [0, 1, 4]
    assert ends(connection, partition) == (0, 6, 6)


def test_a_row_keeps_every_column(connection: Connection, partition: int) -> None:
    row = batch(
        partition,
        b"\xff\x00",
        None,
        b"",
        keys=[b"", None, b"k"],
        timestamps=[5, 9, 7],
        headers=[[("a", b"1"), ("b", None)], [], [("c", b"")]],
    )
    append_one(connection, row)
    stored = connection.execute(
        'select base_offset, last_offset, record_count, max_timestamp, keys, "values", timestamps, header_counts,'
        " header_keys, header_values, producer_id from msgtx.record_batch where partition_id = %s",
        [partition],
    ).fetchone()
    assert stored == (
        *(0, 2, 3, 9),
        *([b"", None, b"k"], [b"\xff\x00", None, b""], [5, 9, 7]),
        *([2, 0, 1], ["a", "b", "c"], [b"1", None, b""], None),
    )


def test_one_call_stores_batches_of_several_partitions_and_answers_in_their_order(connection: Connection) -> None:
    first, second = new_topic(connection, 2)
    plain(connection, second, b"before")
    answers = append(connection, [batch(first, b"a", b"b"), batch(second, b"d")])
    assert [answer.base_offset for answer in answers] == [0, 1]


@pytest.mark.parametrize("order", [(1, 0), (0, 0), (0, 1, 1)])
def test_batches_out_of_order_of_partition_are_refused_as_a_whole(connection: Connection, order: tuple[int]) -> None:
    first, second = partitions = new_topic(connection, 2)
    with refuses(errors.InvalidRequest, name="batches", reason="order"):
        append(connection, [batch(partitions[i], b"a") for i in order])
    assert count(connection, "record_batch", "partition_id in (%s, %s)", first, second) == 0


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"partition_id": None}, "ascending"),
        ({"values": None}, "one length"),
        ({"values": []}, "one length"),
        ({"keys": ["k"]}, "one length"),
        ({"timestamps": [1]}, "one length"),
        ({"header_counts": [1], "header_keys": ["h"], "header_values": ["v"]}, "one length"),
        ({"header_counts": [1, 1], "header_keys": ["h", "h"], "header_values": ["v"]}, "headers"),
        ({"header_counts": [1, 1], "header_keys": ["h"], "header_values": ["v"]}, "headers"),
        ({"header_counts": [0, 0], "header_keys": ["h"], "header_values": ["v"]}, "headers"),
        ({"header_counts": [2, -1], "header_keys": ["h"], "header_values": ["v"]}, "headers"),
        ({"header_counts": [1, None], "header_keys": ["h"], "header_values": ["v"]}, "headers"),
        ({"header_counts": [1, 0], "header_keys": ["h"]}, "headers"),
        ({"header_counts": [1, 0], "header_values": ["v"]}, "headers"),
        ({"header_counts": [1, 0], "header_keys": [None], "header_values": ["v"]}, "headers"),
        ({"header_keys": ["h"], "header_values": ["v"]}, "headers"),
        ({"header_values": ["v"]}, "headers"),
        ({"max_timestamp": None}, "one length"),
        ({"timestamps": [1_000, None]}, "timestamp"),
        ({"timestamps": [1_000, 1_001]}, "timestamp"),
        ({"timestamps": [1_000, -5]}, "before the year 9999, not -5"),
        ({"max_timestamp": -1}, "before the year 9999, not -1"),
        ({"max_timestamp": TIMES_BEFORE}, f"before the year 9999, not {TIMES_BEFORE}"),
        ({"values": [["a"], ["b"]]}, "one length"),
        ({"values": "[2:3]={a,b}"}, "one length"),
        ({"keys": "[0:1]={a,b}"}, "one length"),
        ({"timestamps": [[1], [2]]}, "one length"),
        ({"header_counts": "[0:1]={0,0}"}, "one length"),
        ({"header_counts": [1, 1], "header_keys": [["h"], ["h"]], "header_values": [["v"], ["v"]]}, "headers"),
        ({"header_counts": [1, 1], "header_keys": ["h", "h"], "header_values": "[0:1]={v,v}"}, "headers"),
        ({"transaction_number": 0}, "producer id"),
        ({"producer_epoch": 0}, "producer id"),
        ({"base_sequence": 0}, "producer id"),
        ({"producer_epoch": 0, "base_sequence": 0}, "producer id"),
        ({"producer_id": 1, "base_sequence": 0}, "producer id"),
        ({}, None),
        ({"timestamps": [1_000, 0], "keys": ["k", None]}, None),
        ({"header_counts": [0, 1], "header_keys": ["h"], "header_values": [None]}, None),
        ({"header_counts": [0, 0]}, None),
        ({"header_counts": [0, 0], "header_keys": [], "header_values": []}, None),
    ],
)
def test_columns_that_are_no_batch_are_refused(
    connection: Connection, partition: int, columns: dict[str, object], words: str | None
) -> None:
    """I16: also from a client in another language."""
    row = json.dumps({"partition_id": partition, "max_timestamp": 1_000, "values": ["a", "b"], **columns})
    with pytest.raises(errors.InvalidRequest, match=words) if words else contextlib.nullcontext():
        query(connection, "select * from msgtx.append(array[jsonb_populate_record(null::msgtx.batch, %s::jsonb)])", row)
    assert values(connection, partition) == ([] if words else [b"a", b"b"])


def test_a_call_without_a_batch_is_refused(connection: Connection) -> None:
    with refuses(errors.InvalidRequest, name="batches", reason="empty"):
        append(connection, [])


def test_a_row_is_never_dated_before_the_row_in_front_of_it(connection: Connection, partition: int, clock: Clock) -> None:
    clock("1 hour")
    plain(connection, partition, b"a")
    clock("-1 hour")
    plain(connection, partition, b"b")
    clock(None)
    plain(connection, partition, b"c")
    ordered = connection.execute(
        "select bool_and(appended_at >= before) from (select appended_at, lag(appended_at) over (order by base_offset)"
        " as before from msgtx.record_batch where partition_id = %s) r where before is not null",
        [partition],
    ).fetchone()
    assert ordered == (True,)


def test_log_append_time_replaces_the_records_timestamps(connection: Connection) -> None:
    partition = new_partition(connection, timestamp_type="LogAppendTime")
    answer = append_one(connection, batch(partition, b"a", b"b", timestamps=[1, 2]))
    stored = connection.execute(
        "select max_timestamp, timestamps from msgtx.record_batch where partition_id = %s", [partition]
    ).fetchone()
    assert stored == (answer.timestamp, None)
    assert answer.timestamp > 1_600_000_000_000


# ── sequences ──


def test_a_batch_behind_a_refused_one_is_stored_as_its_own_topic_says(connection: Connection) -> None:
    first, stamped, writer = (
        new_partition(connection),
        new_partition(connection, timestamp_type="LogAppendTime"),
        Writer(connection),
    )
    plain(connection, stamped, b"before")
    refused, stored = append(connection, [writer.row(first, b"a", sequence=7), writer.row(stamped, b"b", timestamps=[5])])
    assert isinstance(refused.error, errors.OutOfOrderSequence)
    assert (stored.error, stored.base_offset) == (None, 1)
    row = connection.execute(
        "select extract(epoch from appended_at) * 1000 - max_timestamp < 1000, timestamps from msgtx.record_batch"
        " where partition_id = %s and base_offset = 1",
        [stamped],
    ).fetchone()
    assert row == (True, None)
    begun = connection.execute(
        "select partition_id, first_offset from msgtx.transaction_partition where producer_id = %s", [writer.id.producer_id]
    ).fetchall()
    assert begun == [(stamped, 1)]


def test_the_first_sequence_of_a_producer_and_epoch_must_be_zero(connection: Connection) -> None:
    partition, producer = new_partition(connection), idempotent(connection)
    assert refusal(connection, batch(partition, b"a", producer=producer, sequence=5)) is errors.OutOfOrderSequence
    assert ends(connection, partition) == (0, 0, 0)


def test_sequences_follow_each_other_per_partition(connection: Connection) -> None:
    first, second = new_topic(connection, 2)
    producer = idempotent(connection)
    for sequence in (0, 2, 4):
        for partition in (first, second):
            answer = append_one(connection, batch(partition, b"a", b"b", producer=producer, sequence=sequence))
            assert (answer.error, answer.base_offset) == (None, sequence)


def test_any_stored_batch_that_is_repeated_is_answered_with_its_original_offset_and_time(
    connection: Connection, partition: int, producer: ProducerId
) -> None:
    """I1, P8: not only the last five."""
    rows = [batch(partition, b"a", b"b", producer=producer, sequence=2 * i) for i in range(10)]
    first = [append_one(connection, row) for row in rows]
    again = [append_one(connection, row) for row in rows]
    assert not any(answer.duplicate for answer in first)
    assert all(answer.duplicate for answer in again)
    assert [(a.base_offset, a.timestamp) for a in again] == [(a.base_offset, a.timestamp) for a in first]
    assert ends(connection, partition) == (0, 20, 20)


@pytest.mark.parametrize(
    ("sequence", "size"),
    [
        pytest.param(6, 1, id="gap"),
        pytest.param(3, 2, id="overlaps the end"),
        pytest.param(0, 5, id="longer than a stored batch"),
        pytest.param(1, 1, id="inside a stored batch"),
        pytest.param(0, 1, id="shorter than a stored batch"),
        pytest.param(-1, 1, id="negative"),
        pytest.param(-2, 2, id="negative, as long as a stored batch"),
        pytest.param(None, 1, id="missing"),
    ],
)
def test_a_sequence_that_is_neither_next_nor_stored_is_refused_and_changes_nothing(
    connection: Connection, partition: int, producer: ProducerId, sequence: int | None, size: int
) -> None:
    """P8: a negative sequence is not acknowledged."""
    for base in (0, 2):
        append_one(connection, batch(partition, b"a", b"b", producer=producer, sequence=base))
    answer = append_one(connection, batch(partition, *[b"x"] * size, producer=producer, sequence=sequence))
    assert isinstance(answer.error, errors.OutOfOrderSequence)
    assert "the next one is 4" in str(answer.error)
    assert not answer.duplicate
    assert ends(connection, partition) == (0, 4, 4)
    assert append_one(connection, batch(partition, b"next", producer=producer, sequence=4)).base_offset == 4


def test_a_refused_batch_uses_up_no_sequence(connection: Connection) -> None:
    partition, producer = new_partition(connection, max_message_bytes=10), idempotent(connection)
    assert refusal(connection, batch(partition, b"x" * 11, producer=producer, sequence=0)) is errors.RecordTooLarge
    assert append_one(connection, batch(partition, b"ok", producer=producer, sequence=0)).base_offset == 0


def test_a_newer_epoch_starts_at_zero_and_an_older_one_is_refused(connection: Connection) -> None:
    partition, producer = new_partition(connection), idempotent(connection)
    append_one(connection, batch(partition, b"a", producer=producer, sequence=0))
    newer = init_producer_id(connection, None, timeout_ms=60_000, expected=producer)
    assert newer == (producer.producer_id, 1)
    assert refusal(connection, batch(partition, b"b", producer=newer, sequence=1)) is errors.OutOfOrderSequence
    assert append_one(connection, batch(partition, b"b", producer=newer, sequence=0)).base_offset == 1
    assert refusal(connection, batch(partition, b"late", producer=producer, sequence=1)) is errors.InvalidProducerEpoch
    assert refusal(connection, batch(partition, b"a", producer=producer, sequence=0)) is errors.InvalidProducerEpoch
    assert values(connection, partition) == [b"a", b"b"]


def test_a_repeated_batch_is_found_among_those_of_its_own_epoch(connection: Connection) -> None:
    """I1: numbers start again, and batches of an older epoch were cut in other places."""
    partition, producer = new_partition(connection), idempotent(connection)
    for sequence, values_of in ((0, [b"a"]), (1, [b"b", b"c"])):
        assert append_one(connection, batch(partition, *values_of, producer=producer, sequence=sequence)).error is None
    newer = init_producer_id(connection, None, timeout_ms=60_000, expected=producer)
    row = batch(partition, b"d", b"e", producer=newer, sequence=0)
    assert append_one(connection, row).base_offset == 3
    assert append_one(connection, batch(partition, b"f", producer=newer, sequence=2)).base_offset == 5
    again = append_one(connection, row)
    assert (again.error, again.duplicate, again.base_offset) == (None, True, 3)


def test_a_repeated_batch_is_found_in_its_own_partition_and_among_those_of_its_own_producer(connection: Connection) -> None:
    """I1: other logs and other producers have batches of the same sequences, cut in other places."""
    one, other = new_topic(connection, 2)
    producer, stranger = idempotent(connection), idempotent(connection)
    row = batch(one, b"a", b"b", b"c", producer=producer, sequence=0)
    first = append_one(connection, row)
    for partition, who in ((other, producer), (one, stranger)):
        for sequence in range(3):
            assert append_one(connection, batch(partition, b"x", producer=who, sequence=sequence)).error is None
    again = append_one(connection, row)
    assert (again.error, again.duplicate, again.base_offset, again.timestamp) == (None, True, 0, first.timestamp)


def test_sequences_that_retention_has_noted_are_those_of_their_own_partition_and_producer(connection: Connection) -> None:
    """I1: of several batches, each is judged by the general rules."""
    one, other = new_topic(connection, 2)
    producer, stranger = idempotent(connection), idempotent(connection)
    for who, partition, last in ((producer, other, 4), (stranger, one, 6)):
        note_sequence(connection, partition, who.producer_id, last, offset=2)
    rows = [batch(one, b"a", producer=producer, sequence=0), batch(other, b"b", producer=producer, sequence=5)]
    assert [answer.error for answer in append(connection, rows)] == [None, None]


def test_an_older_epoch_is_refused_also_on_a_partition_that_the_newer_has_not_touched(connection: Connection) -> None:
    """I7."""
    partition, producer = new_partition(connection), idempotent(connection)
    init_producer_id(connection, None, timeout_ms=60_000, expected=producer)
    assert refusal(connection, batch(partition, b"a", producer=producer, sequence=0)) is errors.InvalidProducerEpoch


def test_a_plain_producer_needs_no_row_and_has_epoch_zero(connection: Connection) -> None:
    partition, producer = new_partition(connection), idempotent(connection)
    assert count(connection, "producer", "producer_id = %s", producer.producer_id) == 0
    assert append_one(connection, batch(partition, b"a", producer=producer, sequence=0)).error is None
    above = append_one(connection, batch(partition, b"b", producer=(producer.producer_id, 1), sequence=0))
    assert isinstance(above.error, errors.InvalidProducerIdMapping)


def test_an_epoch_above_the_producers_is_refused(connection: Connection, partition: int, writer: Writer) -> None:
    answer = append_one(connection, writer.row(partition, b"a", producer=(writer.id.producer_id, 7)))
    assert isinstance(answer.error, errors.InvalidProducerIdMapping)


def test_a_transaction_of_a_producer_without_a_row_is_refused(connection: Connection) -> None:
    """A missing producer row is not epoch 0 of a transactional producer."""
    partition, producer = new_partition(connection), idempotent(connection)
    answer = append_one(connection, batch(partition, b"a", producer=producer, number=0, sequence=0))
    assert isinstance(answer.error, errors.InvalidProducerIdMapping)
    assert count(connection, "transaction", "producer_id = %s", producer.producer_id) == 0


def test_what_is_not_stored_is_no_duplicate_in_a_transaction_and_in_a_newer_epoch(connection: Connection) -> None:
    """I1: only outside a transaction is a lost row taken for one that retention has removed, and only of the same epoch."""
    partition, other = new_topic(connection, 2)
    writer = Writer(connection)
    for _ in range(4):
        writer.send(partition, b"a")
    writer.commit()
    connection.execute("delete from msgtx.record_batch where partition_id = %s and base_offset < 2", [partition])
    answer = append_one(connection, writer.row(partition, b"b", sequence=1))
    assert isinstance(answer.error, errors.OutOfOrderSequence)
    writer.init()
    rows = [writer.row(each, b"c", number=None) for each in (partition, other)]
    answers = append(connection, rows)
    assert [(answer.error, answer.duplicate, answer.base_offset) for answer in answers] == [
        (None, False, 4),
        (None, False, 0),
    ]


def test_a_transaction_of_a_newer_epoch_with_the_same_number_holds_readers_back(connection: Connection) -> None:
    """I5."""
    partition, writer = new_partition(connection), Writer(connection)
    writer.send_and_commit(partition, b"a")
    writer.init()
    writer.send(partition, b"b")
    assert ends(connection, partition) == (0, 1, 2)


def test_what_retention_has_removed_is_a_duplicate_without_offset(connection: Connection) -> None:
    """Never OutOfOrderSequence, whose recovery would store it again."""
    partition, producer = new_partition(connection), idempotent(connection)
    for sequence in range(4):
        append_one(connection, batch(partition, b"a", producer=producer, sequence=sequence))
    connection.execute("delete from msgtx.record_batch where partition_id = %s and base_offset < 2", [partition])
    old = append_one(connection, batch(partition, b"a", producer=producer, sequence=1))
    assert (old.error, old.duplicate, old.base_offset) == (None, True, -1)
    kept = append_one(connection, batch(partition, b"a", producer=producer, sequence=2))
    assert (kept.error, kept.duplicate, kept.base_offset) == (None, True, 2)
    assert append_one(connection, batch(partition, b"a", producer=producer, sequence=4)).base_offset == 4


def test_the_last_sequence_outlives_the_rows_in_producer_state(connection: Connection) -> None:
    """P4: offsets go on, too, from the log start of an emptied partition."""
    partition, producer = new_partition(connection), idempotent(connection)
    for sequence in range(3):
        append_one(connection, batch(partition, b"a", producer=producer, sequence=sequence))
    with connection.transaction():
        note_sequence(connection, partition, producer.producer_id, 2, offset=2)
        connection.execute("delete from msgtx.record_batch where partition_id = %s", [partition])
        connection.execute("update msgtx.partition set log_start_offset = 3 where partition_id = %s", [partition])
    old = append_one(connection, batch(partition, b"a", producer=producer, sequence=2))
    assert (old.error, old.duplicate, old.base_offset) == (None, True, -1)
    assert refusal(connection, batch(partition, b"a", producer=producer, sequence=4)) is errors.OutOfOrderSequence
    assert append_one(connection, batch(partition, b"a", producer=producer, sequence=3)).base_offset == 3
    newer = init_producer_id(connection, None, timeout_ms=60_000, expected=producer)
    assert append_one(connection, batch(partition, b"a", producer=newer, sequence=0)).base_offset == 4


def test_sequences_and_offsets_above_32_bits_are_ordinary(connection: Connection) -> None:
    partition, producer = new_partition(connection), idempotent(connection)
    huge = 2**40
    connection.execute(
        "insert into msgtx.record_batch (partition_id, base_offset, last_offset, producer_id, producer_epoch,"
        ' base_sequence, last_sequence, appended_at, max_timestamp, record_count, byte_size, "values")'
        " values (%s, %s, %s, %s, 0, %s, %s, now(), 0, 1, 1, array['x'::bytea])",
        [partition, huge, huge, producer.producer_id, huge, huge],
    )
    answer = append_one(connection, batch(partition, b"a", producer=producer, sequence=huge + 1))
    assert (answer.error, answer.base_offset) == (None, huge + 1)


# ── records ──


def test_an_unknown_partition_is_refused_and_the_others_go_on(connection: Connection, partition: int) -> None:
    answers = append(connection, [batch(partition, b"a"), batch(partition + 1_000_000, b"b")])
    assert [error_class(answer) for answer in answers] == [None, errors.UnknownTopicOrPartition]
    assert values(connection, partition) == [b"a"]


def test_a_deleted_topic_is_refused(connection: Connection, partition: int) -> None:
    delete_topic_of(connection, partition)
    assert refusal(connection, batch(partition, b"a")) is errors.UnknownTopicOrPartition


def test_one_bad_partition_does_not_undo_the_others(connection: Connection, writer: Writer) -> None:
    first, small, compact, last = (
        new_partition(connection),
        new_partition(connection, max_message_bytes=5),
        new_partition(connection, cleanup_policy="compact"),
        new_partition(connection),
    )
    rows = [
        writer.row(first, b"a"),
        writer.row(small, b"too large"),
        writer.row(compact, b"no key"),
        writer.row(last, b"b"),
    ]
    answers = append(connection, rows)
    assert [error_class(answer) for answer in answers] == [None, errors.RecordTooLarge, errors.InvalidRecord, None]
    writer.tails = {first: 0, last: 0}
    writer.commit()
    assert [values(connection, partition) for partition in (first, small, compact, last)] == [[b"a"], [], [], [b"b"]]


@pytest.mark.parametrize(
    ("columns", "fits"),
    [
        pytest.param({"values": [b"x" * 100]}, True, id="exactly the limit"),
        pytest.param({"values": [b"x" * 101]}, False, id="one byte more"),
        pytest.param({"values": [b"x" * 60, b"y" * 60, b"z" * 100]}, True, id="the batch may be larger, no record is"),
        pytest.param({"values": [b"x", b"y" * 101]}, False, id="one record of several"),
        pytest.param({"values": [b"x" * 50], "keys": [b"k" * 50]}, True, id="key and value"),
        pytest.param({"values": [b"x" * 50], "keys": [b"k" * 51]}, False, id="key and value, one byte more"),
        pytest.param({"values": [b"x" * 50], "headers": [[("ab", b"h" * 48)]]}, True, id="headers count"),
        pytest.param({"values": [b"x" * 50], "headers": [[("ab", b"h" * 49)]]}, False, id="headers, one byte more"),
        pytest.param(
            {"values": [b"x" * 60, b"y" * 40], "headers": [[("a", b"h" * 30)], [("b", b"h" * 59)]]},
            True,
            id="headers belong to their record",
        ),
        pytest.param(
            {"values": [b"x" * 30, b"y" * 40], "headers": [[("a", b"h" * 30)], [("b", b"h" * 60)]]},
            False,
            id="headers of the second record",
        ),
        pytest.param({"values": [b"x" * 50], "headers": [[("é" * 25, b"h")]]}, False, id="header names count in bytes"),
    ],
)
def test_the_limit_is_about_the_single_record(connection: Connection, columns: dict[str, list[bytes]], fits: bool) -> None:
    """max_message_bytes: key, value, headers; not the batch."""
    partition = new_partition(connection, max_message_bytes=100)
    contents = columns.pop("values")
    answer = append_one(connection, batch(partition, *contents, **columns))
    columns["values"] = contents
    assert error_class(answer) is (None if fits else errors.RecordTooLarge)
    assert ends(connection, partition)[2] == (len(contents) if fits else 0)


def test_a_compressible_record_over_the_limit_is_refused(connection: Connection) -> None:
    partition = new_partition(connection, max_message_bytes=1_000_000)
    assert refusal(connection, batch(partition, bytes(1_000_001))) is errors.RecordTooLarge
    assert append_one(connection, batch(partition, bytes(1_000_000))).error is None


def test_a_compacted_topic_needs_keys_and_takes_tombstones(connection: Connection) -> None:
    partition = new_partition(connection, cleanup_policy="compact,delete")
    for keys in (None, [b"k", None], [None, b"k"]):
        for producer, sequence in ((None, None), (idempotent(connection), 0)):
            row = batch(partition, b"a", b"b", keys=keys, producer=producer, sequence=sequence)
            assert refusal(connection, row) is errors.InvalidRecord
    assert append_one(connection, batch(partition, None, b"b", keys=[b"k", b""])).error is None
    assert values(connection, partition) == [None, b"b"]


def test_a_compacted_topic_takes_what_has_keys_also_beside_other_batches(connection: Connection) -> None:
    partitions = new_topic(connection, 2, cleanup_policy="compact")
    answers = append(connection, [batch(partition, b"x", keys=[b"k"]) for partition in partitions])
    assert [(answer.error, answer.base_offset) for answer in answers] == [(None, 0)] * 2
    keyed, keyless = batch(partitions[0], b"x", keys=[b"k"]), batch(partitions[1], b"x", b"y", keys=[b"k", None])
    answers = append(connection, [keyed, keyless])
    assert [type(answer.error) for answer in answers] == [type(None), errors.InvalidRecord]


def test_tombstones_are_always_accepted(connection: Connection, partition: int) -> None:
    plain(connection, partition, None, None)
    assert values(connection, partition) == [None, None]


# ── transactions ──


def test_the_first_append_opens_the_transaction_with_its_own_timeout(connection: Connection) -> None:
    partition, writer = new_partition(connection), Writer(connection, timeout_ms=5_000)
    append(connection, [writer.row(partition, b"a")], flushed=False, timeout_ms=1_234)
    opened = connection.execute(
        "select timeout_ms, clock_timestamp() - opened_at < interval '1 minute', database_backend"
        " from msgtx.transaction where producer_id = %s",
        [writer.id.producer_id],
    ).fetchall()
    assert opened == [(1_234, True, connection.info.backend_pid)]


def test_without_a_timeout_of_its_own_it_takes_its_producers(connection: Connection, partition: int) -> None:
    writers = [Writer(connection, timeout_ms=timeout_ms) for timeout_ms in (5_000, 7_000)]
    for writer in writers:
        writer.send(partition, b"a")
    for writer in writers:
        own = ("producer_id = %s and timeout_ms = %s", writer.id.producer_id, writer.timeout_ms)
        assert count(connection, "transaction", *own) == 1


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_out_of_range_opens_nothing(connection: Connection, timeout_ms: int) -> None:
    partition, writer = new_partition(connection), Writer(connection)
    with pytest.raises(errors.InvalidTransactionTimeout):
        append(connection, [writer.row(partition, b"a")], timeout_ms=timeout_ms)
    assert ends(connection, partition) == (0, 0, 0)
    writer.send(partition, b"a")


def test_a_call_whose_batches_are_all_refused_leaves_no_transaction(connection: Connection) -> None:
    partition, writer = new_partition(connection, max_message_bytes=1), Writer(connection)
    append_one(connection, writer.row(partition, b"too large"))
    assert count(connection, "transaction", "producer_id = %s", writer.id.producer_id) == 0
    assert count(connection, "transaction_partition", "producer_id = %s", writer.id.producer_id) == 0


def test_a_call_of_several_producers_opens_the_transactions_of_those_whose_batches_it_stores(connection: Connection) -> None:
    first, second = new_topic(connection, 2)
    refused, stored = Writer(connection), Writer(connection)
    answers = append(connection, [refused.row(first, b"a", sequence=1), stored.row(second, b"a")])
    assert [type(answer.error) for answer in answers] == [errors.OutOfOrderSequence, type(None)]
    assert count(connection, "transaction", "producer_id = %s", refused.id.producer_id) == 0
    assert count(connection, "transaction", "producer_id = %s", stored.id.producer_id) == 1


def test_a_call_opens_a_transaction_beside_a_batch_of_another_producer_that_has_none(connection: Connection) -> None:
    first, second = new_topic(connection, 2)
    inside, outside = Writer(connection), Writer(connection)
    answers = append(connection, [inside.row(first, b"a"), outside.row(second, b"b", number=None)])
    assert [answer.error for answer in answers] == [None, None]
    assert count(connection, "transaction", "producer_id = %s", inside.id.producer_id) == 1
    assert count(connection, "transaction", "producer_id = %s", outside.id.producer_id) == 0


def test_a_call_opens_a_transaction_also_beside_one_that_is_open_already(connection: Connection) -> None:
    """I12: without its row nobody would find it overdue."""
    partitions = new_topic(connection, 3)
    writers = [Writer(connection) for _ in partitions]
    writers[2].send(partitions[2], b"open")
    rows = [writer.row(partition, b"a") for partition, writer in zip(partitions, writers, strict=True)]
    assert [answer.error for answer in append(connection, rows)] == [None] * 3
    for writer in writers:
        assert count(connection, "transaction", "producer_id = %s", writer.id.producer_id) == 1


def test_a_transaction_is_noted_once_on_each_partition_where_it_begins(connection: Connection, writer: Writer) -> None:
    first, second = new_topic(connection, 2)
    plain(connection, second, b"before")
    append(connection, [writer.row(first, b"a"), writer.row(second, b"b")])
    append(connection, [writer.row(first, b"c", sequence=1), writer.row(second, b"d", sequence=1)])
    spans = connection.execute(
        "select partition_id, first_offset from msgtx.transaction_partition where producer_id = %s order by 1",
        [writer.id.producer_id],
    ).fetchall()
    assert spans == [(first, 0), (second, 1)]
    assert count(connection, "transaction", "producer_id = %s", writer.id.producer_id) == 1


def test_a_retry_inside_a_transaction_is_a_duplicate_also_after_its_commit(connection: Connection) -> None:
    partition, writer = new_partition(connection), Writer(connection)
    row = writer.row(partition, b"a")
    writer.send(partition, b"a")
    assert append_one(connection, row).duplicate
    writer.commit()
    again = append_one(connection, row)
    assert (again.error, again.duplicate, again.base_offset) == (None, True, 0)


def test_equal_sequences_of_another_transaction_are_no_duplicate(connection: Connection) -> None:
    """P10: a delayed request never acts on another transaction."""
    partition, writer = new_partition(connection), Writer(connection)
    writer.send_and_commit(partition, b"a")
    assert refusal(connection, writer.row(partition, b"a", sequence=0)) is errors.OutOfOrderSequence
    assert values(connection, partition) == [b"a"]


# Each way to end a transaction: the call, the error of a later batch, and a word of its sentence.
OVER: dict[str, tuple[Callable[[Writer], object], type[Exception], str]] = {
    "committed": (Writer.commit, errors.InvalidTransactionState, "COMMIT"),
    "aborted": (Writer.abort, errors.InvalidTransactionState, "ABORT"),
    "by hand": (lambda w: end_transaction(w.connection, w.name, "admin"), errors.TransactionAborted, "admin"),
    "fenced": (lambda w: fence_producer(w.connection, w.transactional_id), errors.ProducerFenced, "newer producer"),
    "sealed": (lambda w: seal(w.connection, w.name, "session"), errors.InvalidTransactionState, "sealed"),
}


@pytest.mark.parametrize("how", OVER)
def test_a_late_append_is_refused(connection: Connection, partition: int, writer: Writer, how: str) -> None:
    """I8, P9."""
    end, kind, word = OVER[how]
    writer.send(partition, b"a")
    late = writer.row(partition, b"late")
    end(writer)
    answer = append_one(connection, late)
    assert type(answer.error) is kind
    assert word in str(answer.error)
    assert values(connection, partition, isolation=UNCOMMITTED) == [b"a"]


def test_an_append_that_comes_after_its_own_abort_is_refused(connection: Connection, partition: int, writer: Writer) -> None:
    """P25: an abort that overtakes the first append leaves a decision for it to meet."""
    first = writer.row(partition, b"first")
    writer.tails = {partition: 0}
    writer.abort()
    assert refusal(connection, first) is errors.InvalidTransactionState
    assert ends(connection, partition) == (0, 0, 0)
    assert count(connection, "transaction", "producer_id = %s", writer.id.producer_id) == 0


def test_a_new_transaction_waits_for_the_decision_of_the_earlier_one(connection: Connection) -> None:
    """ConcurrentTransactions is retriable: the decision is on the way."""
    partition, writer = new_partition(connection), Writer(connection)
    writer.send(partition, b"a")
    answer = append_one(connection, writer.row(partition, b"b", number=1))
    assert isinstance(answer.error, errors.ConcurrentTransactions)
    assert answer.error.retriable
    assert writer.decide("COMMIT").error is None
    assert append_one(connection, writer.row(partition, b"b", number=1)).error is None


@pytest.mark.parametrize("number", [1, 5])
def test_a_number_above_the_newest_plus_one_says_that_transactions_are_lost(connection: Connection, number: int) -> None:
    """P46, I16. A producer counts the transactions that it has ended: a failover has lost some of them."""
    partition, writer = new_partition(connection), Writer(connection)
    answer = append_one(connection, writer.row(partition, b"a", number=number))
    assert isinstance(answer.error, errors.TransactionsLost)
    assert answer.error.fatal
    assert all(f in str(answer.error) for f in (f"{writer.id.producer_id}.0.{number}", "failover", "new producer"))
    writer.send(partition, b"a")


def test_a_number_below_the_newest_that_has_no_rows_is_over(connection: Connection, partition: int, writer: Writer) -> None:
    for _ in range(3):
        writer.send_and_commit(partition, b"a")
    forget(connection, writer.name._replace(transaction_number=1))
    assert refusal(connection, writer.row(partition, b"late", number=1)) is errors.InvalidTransactionState


def test_outside_a_transaction_while_one_is_open_is_refused(connection: Connection, writer: Writer) -> None:
    partition, other = new_topic(connection, 2)
    writer.send(partition, b"a")
    assert refusal(connection, batch(other, b"x", producer=writer.id, sequence=0)) is errors.InvalidTransactionState
    writer.commit()
    assert append_one(connection, batch(other, b"x", producer=writer.id, sequence=0)).error is None


# ── the order of the checks ──


def test_the_checks_come_in_their_documented_order(connection: Connection, writer: Writer) -> None:
    """Each later fault is there as well, and the earlier one is named (internals: append#the-order-of-the-checks)."""
    partition = new_partition(connection, max_message_bytes=5, cleanup_policy="compact")
    stored = writer.row(partition, b"a", keys=[b"k"])
    append_one(connection, stored)
    writer.counted(stored)
    stale = Writer(connection)
    stale_id = stale.id
    stale.init()
    everything_wrong: dict[str, BatchColumns] = {
        "UnknownTopicOrPartition": batch(2**31 - 1, b"too large", producer=stale_id, number=9, sequence=7),
        "InvalidProducerEpoch": batch(partition, b"too large", producer=stale_id, number=9, sequence=7),
        "ConcurrentTransactions": writer.row(partition, b"too large", number=1, sequence=7),
        "TransactionsLost": writer.row(partition, b"too large", number=9, sequence=7),
        "OutOfOrderSequence": writer.row(partition, b"too large", sequence=7),
        "RecordTooLarge": writer.row(partition, b"too large", keys=[b"k"]),
        "InvalidRecord": writer.row(partition, b"abc"),
    }
    for name, row in everything_wrong.items():
        (answer,) = append(connection, [row])
        assert type(answer.error).__name__ == name
    end_transaction(connection, writer.name, "admin")
    assert append_one(connection, stored).duplicate, "a stored batch is recognised before the state of its transaction"
    mark(connection)
    assert read(connection, partition, isolation=UNCOMMITTED) == [(0, b"a")]


# ── many partitions in one call ──


def test_a_call_that_wants_more_locks_than_there_are_is_refused_at_once(connection: Connection) -> None:
    """I16: a full lock table is everybody's."""
    with refuses(errors.InvalidRequest, name="max_locks_per_transaction"):
        append(connection, [batch(10**9 + n, b"x") for n in range(describe_lock_table(connection).places // 2 + 1)])


@pytest.mark.parametrize("kind", ["partitions", "groups"])
def test_so_is_a_call_that_tries_more_locks_than_there_are(connection: Connection, kind: str) -> None:
    """I16: it waits for none, but what it got it would hold."""
    numbers = range(1, describe_lock_table(connection).places // 2 + 2)
    writer, partition = Writer(connection), new_partition(connection)
    rows = [writer.row(10**9 + n, b"x") for n in numbers] if kind == "partitions" else [writer.row(partition, b"x")]
    offsets = offsets_of(*((f"group {n}", partition, 1) for n in numbers)) if kind == "groups" else NO_OFFSETS
    with refuses(errors.InvalidRequest, name="max_locks_per_transaction"):
        append_unless_locked(connection, writer.name, rows, offsets)


def test_of_several_transactions_those_that_lack_a_lock_do_nothing(
    connection: Connection, open_connection: Sessions
) -> None:
    """A group's lock is shared: what another session shares is not lacking."""
    writers, partitions = [Writer(connection) for _ in range(5)], new_topic(connection, 5)
    groups, holder = [unique("group") for _ in range(5)], open_connection()
    with holder.transaction():
        holder.execute(
            "select msgtx.lock_producer(%s), msgtx.lock_group(%s), msgtx.lock_partition(%s), msgtx.lock_group_shared(%s)",
            [writers[1].id.producer_id, groups[2], partitions[3], groups[4]],
        )
        for writer, partition, group in zip(writers, partitions, groups, strict=True):
            append_unless_locked(connection, writer.name, [writer.row(partition, b"a")], offsets_of((group, partition, 1)))
    assert [values(connection, partition) for partition in partitions] == [[b"a"], [], [], [], [b"a"]]


def test_a_lock_table_that_is_full_is_an_error_that_says_what_to_do(connection: Connection) -> None:
    with pytest.raises(errors.LockTableFull) as raised:
        query(connection, "select pg_advisory_xact_lock(7, i) from generate_series(1, 200000) i")
    assert (raised.value.retriable, failure_of(raised.value).exit_code) == (True, 1)
    assert "raise max_locks_per_transaction" in failure_of(raised.value).message


def test_a_refused_batch_has_no_place_and_the_next_one_has_no_error(connection: Connection) -> None:
    """Each answer is its own, as the function's callers in SQL read it."""
    refused, stored = sorted(new_partition(connection) for _ in range(2))
    producer = init_producer_id(connection, None, timeout_ms=60_000)
    rows = [batch(refused, b"x", producer=producer, sequence=7), batch(stored, b"x", producer=producer, sequence=0)]
    first, second = call(connection, calls.APPEND, *append_arguments(connection, rows))
    assert (first[0], first[2], first[3]) == ("OutOfOrderSequence", None, None)
    assert second[:3] == (None, None, 0)
    assert second[3] is not None
