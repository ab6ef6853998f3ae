"""Queries stopped, broken, moved and set up again at random: at each step the target has what the group has passed, once."""

import itertools
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import msgtx
from tests import parts
from tests.databases import wait_until
from tests.spark.streams import PARTITIONS, Pipe, through

SEED = 20_261_122  # the same everywhere; SPARK_SEED overrides it; a run repeats as far as Spark's threads allow
STEPS = 12  # a part of the tests does half of them
# What a query may end with here: its own failure, the sink's errors about a checkpoint that does not fit the group, and
# Spark's about a checkpoint whose first entry was being written when its query was stopped.
KNOWN = (
    "it fails on purpose",
    "CheckpointLost",
    "the checkpoint fell behind",
    "another run has committed what this one read",
    "the group was reset",
    "should be empty on batch 0",
)


def failing(rows: int) -> Callable[[DataFrame], DataFrame]:
    """Return a transform whose first attempt of a task fails after some of its rows."""

    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        left = rows
        for each in batches:
            left -= each.num_rows
            if context.partitionId() == 0 and left < 0:
                raise RuntimeError("it fails on purpose")
            yield each

    return through(fail)


class Life:
    """One application with one group: what happens to its queries, and what must always hold."""

    def __init__(self, pipe: Pipe, dice: random.Random) -> None:
        self.pipe = pipe
        self.dice = dice
        self.places = (pipe.folder / f"checkpoint-{number}" for number in itertools.count())
        self.place = next(self.places)
        self.steps: list[Callable[[], object]] = [
            self.run, self.stop_soon, self.stop_soon, self.break_a_task, self.lose_the_checkpoint, self.fall_back,
            self.change_the_plan,
        ]  # fmt: skip

    def send(self) -> None:
        """Send some more in one transaction, and some in an aborted one."""
        self.pipe.send(self.dice.randrange(1, 40), size=self.dice.choice((0, 20_000)))
        with self.pipe.client.producer(transactional_id=f"{self.pipe.name}-other") as producer:
            producer.begin_transaction()
            producer.send(self.pipe.source, b"-1", partition=self.dice.randrange(PARTITIONS)).result(30)
            producer.abort_transaction()

    def run(self, **options: Any) -> None:
        """Run over all there is."""
        try:
            self.pipe.run(checkpoint=self.place, app=self.pipe.name, **options)
        except StreamingQueryException as error:
            self.excused(error)

    def stop_soon(self) -> None:
        """Stop a query at any point."""
        trigger = {"processingTime": "100 milliseconds"}
        query = self.pipe.start(checkpoint=self.place, app=self.pipe.name, trigger=trigger, maxOffsetsPerTrigger="7")
        time.sleep(self.dice.uniform(0.0, 4.0))
        try:
            query.stop()
        except StreamingQueryException as error:
            self.excused(error)
        if (failure := query.exception()) is not None:
            self.excused(failure)

    def break_a_task(self) -> None:
        """Fail in a task that has passed on some of its rows."""
        self.run(transform=failing(self.dice.randrange(20)))

    def change_the_plan(self) -> None:
        """Divide reading and writing into other tasks than before."""
        count = self.dice.randrange(1, 4)
        self.run(minPartitions=str(self.dice.randrange(1, 5)), transform=lambda frame: frame.repartition(count))

    def lose_the_checkpoint(self) -> None:
        """Continue with a new one: the group's offsets say where."""
        self.place = next(self.places)

    def fall_back(self) -> None:
        """Run on, and then again from an earlier copy of the checkpoint."""
        behind = next(self.places)
        if self.place.exists():
            shutil.copytree(self.place, behind)
        self.run()
        self.place = behind

    def excused(self, error: Exception) -> None:
        """Continue after an error that a step may cause, recognized by its message."""
        if not any(words in str(error) for words in KNOWN):
            raise error
        print("  ended with:", next(words for words in KNOWN if words in str(error)))  # noqa: T201
        if KNOWN[0] not in str(error):
            self.lose_the_checkpoint()

    def holds(self) -> None:
        """Readers are not held back, and the target holds exactly what the group has passed, once."""

        positions = self.positions()
        source = self.pipe.client.read(self.pipe.client.snapshot([self.pipe.source]))
        expected = sorted(int(each.value or b"") for each in source if each.offset < positions[each.partition])
        wait_until(lambda: len(self.pipe.written()) >= len(expected), "readers see what was committed", seconds=30)
        assert self.pipe.written() == expected

    def positions(self) -> list[int]:
        """Return the group's committed offsets, by partition."""
        with self.pipe.client.consumer(group=self.pipe.name, enable_auto_commit=False) as consumer:
            places = [msgtx.TopicPartition(self.pipe.source, each) for each in range(PARTITIONS)]
            found = consumer.committed(places)
            return [0 if (at := found[place]) is None else at.offset for place in places]


def test_whatever_becomes_of_its_queries_a_group_is_written_once(
    spark: SparkSession, client: msgtx.Client, database_url: str, tmp_path: Path
) -> None:
    """I6, I10, I15, P20"""
    seed = int(os.environ.get("SPARK_SEED", SEED))
    print(f"SPARK_SEED={seed}")  # noqa: T201 - shown when the test fails
    pipe = Pipe(spark, client, database_url, tmp_path)
    life = Life(pipe, random.Random(seed))
    for _ in range(STEPS if parts.is_whole() else STEPS // 2):
        step = life.dice.choice(life.steps)
        print(step.__name__)  # noqa: T201 - shown when the test fails
        if life.dice.random() < 0.8:
            life.send()
        step()
        life.holds()
    for _ in range(2):  # the first one may end with an error that the last step has caused
        life.run()
    pipe.assert_all_is_there_once()
