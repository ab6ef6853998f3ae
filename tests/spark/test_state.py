"""A stream with a state of its own, from topic to topic: each output once, whenever the query is stopped (I1, I10)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import msgtx
from tests.spark.streams import Pipe

KEYS = 5
WIDTH = 1_000_000  # of a key in the number that is written: behind it is the count
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Counting(StatefulProcessor):
    """Numbers the records of each key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "count long")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803 - Spark's name
    ) -> Iterator[pd.DataFrame]:
        first = self._count.get()[0] if self._count.exists() else 0
        last = first + sum(len(each) for each in rows)
        self._count.update((last,))
        yield pd.DataFrame({"value": [str(key[0] * WIDTH + number) for number in range(first, last)]})

    def close(self) -> None:
        """Hold nothing."""


def numbered(frame: DataFrame) -> DataFrame:
    keyed = frame.selectExpr(f"int(string(value)) % {KEYS} as key", "value")
    return keyed.groupBy("key").transformWithStateInPandas(
        Counting(), outputStructType="value string", outputMode="Append", timeMode="None"
    )


def test_a_state_counts_each_record_once(
    spark: SparkSession, client: msgtx.Client, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query is stopped between batches, and within one."""
    pipe = Pipe(spark, client, database_url, tmp_path)
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKS)
    try:
        pipe.send(50)
        pipe.run(transform=numbered)
        stopped = pipe.start(transform=numbered, trigger={"processingTime": "0 seconds"})
        pipe.send(50)
        pipe.await_written(100)
        pipe.send(5000)
        pipe.await_written(101)
        stopped.stop()
        pipe.send(50)
        pipe.run(transform=numbered)
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    each = pipe.sent // KEYS
    assert pipe.written() == [key * WIDTH + number for key in range(KEYS) for number in range(each)]
    assert pipe.position() == pipe.sent
