"""How much lies in ranges of the log, by time (internals: visibility)."""

import random
from collections import Counter

import pytest

from msgtx import errors
from msgtx.store.fetch import ranges
from msgtx.store.fetch.ranges import count_transactions, measure_ranges
from tests.databases import Connection
from tests.refusals import refuses
from tests.store.steps import Writer, ends, new_topic, plain, plain_batches, spent

SIZE = 100


@pytest.mark.parametrize("bucket_ms", [None, 10, 1_000])
@pytest.mark.parametrize("seed", range(4))
def test_each_committed_record_is_counted_once_in_its_bucket(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, seed: int, bucket_ms: int | None
) -> None:
    """Whether its row has one time or each record its own, lies in the range as a whole or in part (I5)."""
    monkeypatch.setattr(ranges, "RANGE_ROWS", 2)
    dice = random.Random(seed)
    partitions = new_topic(connection, 2)
    writer = Writer(connection)
    times: dict[int, list[int | None]] = {partition: [] for partition in partitions}  # of each offset; None: aborted
    for _ in range(12):
        partition, count = dice.choice(partitions), dice.randint(1, 4)
        own = [dice.randrange(40) for _ in range(count)]
        columns = {"timestamps": own} if dice.random() < 0.5 else {"timestamp": own[0]}
        stored: list[int | None] = [*own] if "timestamps" in columns else [own[0]] * count
        sent = [b"x" * SIZE] * count
        if dice.random() < 0.5:
            plain(connection, partition, *sent, **columns)
        else:
            writer.send(partition, *sent, **columns)
            if dice.random() < 0.3:
                writer.abort()
                stored = [None] * count
            else:
                writer.commit()
        times[partition] += stored
    asked = {}
    for partition, known in times.items():
        start = dice.randint(0, len(known))
        asked[partition] = (start, dice.randint(start, len(known)))
    wanted = Counter(
        (partition, 0 if bucket_ms is None else at - at % bucket_ms)
        for partition, (start, end) in asked.items()
        for at in times[partition][start:end]
        if at is not None
    )
    records: Counter[tuple[int, int]] = Counter()
    for found in measure_ranges(connection, asked, bucket_ms):
        records[found.partition_id, found.bucket] += found.records
        assert SIZE * found.records <= found.bytes <= 2 * SIZE * found.records
    assert records == wanted


@pytest.mark.parametrize("bucket_ms", [None, 10])
def test_a_row_that_compaction_has_emptied_makes_no_bucket(connection: Connection, bucket_ms: int | None) -> None:
    (partition,) = new_topic(connection, 1)
    plain(connection, partition, b"a")
    connection.execute(
        "update msgtx.record_batch set record_count = 0, \"values\" = '{}', offset_deltas = '{}', byte_size = 0"
        " where partition_id = %s",
        [partition],
    )
    assert list(measure_ranges(connection, {partition: (0, 1)}, bucket_ms)) == []


def test_rows_behind_a_range_are_not_looked_at(connection: Connection) -> None:
    rows = []
    for length in (10, 100):
        (partition,) = new_topic(connection, 1)
        plain_batches(connection, partition, *[b"x"] * length)
        asked = {partition: (2, 4)}
        rows.append(
            spent(connection, "record_batch", "idx_tup_fetch", lambda at=asked: list(measure_ranges(connection, at, None)))
        )
    assert rows[0] == rows[1]


@pytest.mark.parametrize("bucket_ms", [0, -1])
def test_a_bucket_without_a_width_is_refused(connection: Connection, bucket_ms: int) -> None:
    """I16."""
    (partition,) = new_topic(connection, 1)
    with refuses(errors.InvalidRequest, name="bucket_ms"):
        list(measure_ranges(connection, {partition: (0, 1)}, bucket_ms))


def test_transactions_count_where_they_begin_however_many_rows_they_have(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read in pages of two rows, one that lies in two pages counts once; aborted and open ones do not count."""
    first, second = new_topic(connection, 2)
    monkeypatch.setattr(ranges, "RANGE_ROWS", 2)
    wide, short, aborted, opened = (Writer(connection) for _ in range(4))
    for partition in (first, first, first, second):
        wide.send(partition, b"x")
    plain(connection, first, b"x")
    wide.commit()
    short.send_and_commit(first, b"x", b"y")
    wide.send_and_commit(first, b"x")
    cut = ends(connection, first)[2]
    aborted.send_and_abort(first, b"x")
    opened.send(first, b"x")
    log_end = ends(connection, first)[2]
    for start, end, expected in ((0, log_end, 3), (0, cut, 3), (cut, log_end, 0), (4, cut, 2), (0, 0, 0)):
        assert count_transactions(connection, {first: (start, end), second: (0, 1)}) == {first: expected, second: 1}
    assert count_transactions(connection, {}) == {}
