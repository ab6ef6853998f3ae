"""Topics of many partitions: what one call of an attempt locks is bounded (decision 0068)."""

import pyarrow as pa
import pytest

import msgtx
from msgtx.database.connection import RawConnection
from msgtx.spark_jobs.batch import make_target
from msgtx.spark_jobs.writing import attempt
from msgtx.store.append import PARTITIONS_AT_ONCE
from msgtx.store.spark import BatchName


def test_an_attempt_writes_to_many_partitions_in_several_calls(
    client: msgtx.Client, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 2 * PARTITIONS_AT_ONCE + 1
    name = f"{output}-wide"
    client.topics.create(name, partitions=size)
    calls: list[int] = []
    append = attempt._append

    def counted(connection: RawConnection, rows: list[object]) -> object:
        calls.append(len(rows))
        return append(connection, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(attempt, "_append", counted)
    rows = pa.RecordBatch.from_pydict({"value": [b"x"] * size, "partition": pa.array(range(size), pa.int32())})
    made = attempt.write_attempt([rows], make_target(client.engine, name), BatchName(name, "query", 0))
    assert made is not None
    assert len(made.tails) == made.records == size
    assert calls == [PARTITIONS_AT_ONCE, PARTITIONS_AT_ONCE, 1]
