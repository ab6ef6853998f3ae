"""What tests of streams share: a topic in, a topic out, and queries from one to the other."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import msgtx
from tests.databases import wait_until
from tests.store.steps import unique

PARTITIONS = 2


@dataclass
class Pipe:
    """Topics and a group of their own, and where queries keep their checkpoint."""

    spark: SparkSession
    client: msgtx.Client
    url: str
    folder: Path
    name: str = field(default_factory=lambda: unique("pipe"))
    partitions: int = PARTITIONS
    sent: int = 0

    def __post_init__(self) -> None:
        for topic in (self.source, self.target):
            self.client.topics.create(topic, partitions=self.partitions, retention_ms=-1)

    @property
    def source(self) -> str:
        return f"{self.name}-in"

    @property
    def target(self) -> str:
        return f"{self.name}-out"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def send(self, count: int, *, size: int = 0) -> None:
        """Send the next numbers, each of at least `size` bytes, in one transaction."""
        with self.client.producer(transactional_id=self.name) as producer, producer.transaction():
            for at in range(self.sent, self.sent + count):
                producer.send(self.source, b"%d" % at + b" " * size, partition=at % self.partitions)
        self.sent += count

    def start(
        self,
        *,
        checkpoint: Path | None = None,
        group: bool = True,
        app: str | None = None,
        transform: Callable[[DataFrame], DataFrame] | None = None,
        trigger: dict[str, Any] | None = None,
        sink: str = "msgtx",
        **reading: Any,
    ) -> StreamingQuery:
        """Start a query that copies all there is (or as `trigger` says) from the source to the target."""
        grouped = {"group": self.name} if group else {}
        starting = {"startingOffsets": "earliest", **reading}
        frame = self.spark.readStream.format("msgtx").options(url=self.url, subscribe=self.source, **grouped, **starting)
        chosen = frame.load().select("key", "value")
        # A sink gets rows before its task has ended.
        self.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 10)
        named = {} if app is None else {"txnAppId": app}
        writer = (chosen if transform is None else transform(chosen)).writeStream.format(sink)
        return (
            writer.options(url=self.url, topic=self.target, **grouped, **named)
            .option("checkpointLocation", str(checkpoint or self.checkpoint))
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )

    def run(self, **options: Any) -> StreamingQuery:
        """Run a query over all there is. Raises the error that ended it."""
        query = self.start(**options)
        query.awaitTermination()
        return query

    def written(self) -> list[int]:
        """Return the numbers that readers of the target see, in order."""
        return sorted(int(record.value or b"") for record in self.client.read(self.client.snapshot([self.target])))

    def assert_all_is_there_once(self) -> None:
        """Compare the target with what was sent, and the group's offsets with the source's ends."""
        assert self.written() == list(range(self.sent))

    def position(self) -> int:
        """Return the sum of the group's committed offsets."""
        consumer = self.client.consumer(group=self.name, enable_auto_commit=False)
        places = [msgtx.TopicPartition(self.source, each) for each in range(self.partitions)]
        with consumer:
            return sum(at.offset for at in consumer.committed(places).values() if at is not None)

    def await_written(self, count: int) -> None:
        """Wait until `count` numbers are visible."""
        wait_until(lambda: len(self.written()) >= count, f"{count} records written", seconds=90)


def through(function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> Callable[[DataFrame], DataFrame]:
    """Return a transform that applies a function to the source's rows."""
    return lambda frame: frame.mapInArrow(function, frame.schema)
