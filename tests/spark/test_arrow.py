"""Committed ranges as Arrow record batches, compared with the view `msgtx.committed_records`."""

import random
from typing import Final

import pyarrow as pa

from msgtx.client import Client
from msgtx.rules.ranges import PartitionRange
from msgtx.spark_jobs.reading import arrow
from tests.databases import Connection

SEED: Final = 20_261_128
SIZES: Final = (1, 2, arrow.LONG - 1, arrow.LONG, arrow.LONG + 1, 3 * arrow.LONG)
WANTED: Final = pa.schema([(name, arrow.COLUMNS[name]) for name in ("offset", "timestamp", "key", "value")])
IN_SQL: Final = """
    select "offset", to_timestamp("timestamp" / 1000.0), key, value
      from msgtx.committed_records where topic = 'mixed' order by "offset"
"""


def test_any_range_of_short_and_long_batches_is_what_the_log_holds(client: Client, connection: Connection) -> None:
    """Batches on both sides of LONG, one time for a batch or one for each record, with keys or without; gaps in between."""
    draw = random.Random(SEED)
    client.topics.create("mixed")
    with client.producer(transactional_id="mixed", linger_ms=10_000) as producer:
        for at, size in enumerate(draw.choices(SIZES, k=30)):
            producer.begin_transaction()
            times = [1_000_000 + at * 10_000 + each for each in range(size)] if draw.random() < 0.5 else None
            keys = [b"k%d" % each for each in range(size)] if draw.random() < 0.5 else None
            producer.send_batch("mixed", [b"%d" % each for each in range(size)], keys, partition=0, timestamps=times)
            producer.flush()
            _ = producer.abort_transaction() if draw.random() < 0.2 else producer.commit_transaction()
    client.sweep()
    expected = connection.execute(IN_SQL).fetchall()
    (partition,) = connection.execute("select partition_id from msgtx.partition").fetchone() or (0,)
    end = expected[-1][0] + 1
    for first, last in [(0, end), *(sorted(draw.sample(range(end), 2)) for _ in range(10))]:
        wanted = PartitionRange(partition, "mixed", 0, first, last)
        found = pa.Table.from_batches(
            arrow.read_range(client.runtime.engine, wanted, WANTED, fail_on_data_loss=True), WANTED
        )
        rows = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
        assert rows == [row for row in expected if first <= row[0] < last], (first, last)
