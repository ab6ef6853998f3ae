"""Streams into files and other databases: each record once, and the group follows (I10). The page has the recipes."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

import msgtx
from msgtx.database.pool import Engine
from tests.databases import wait_until
from tests.docs.snippets import snippets
from tests.spark.streams import Pipe
from tests.store.steps import unique

PARQUET, JDBC = (each.text for each in snippets("python", page="docs/how-to/spark-streams.md") if each.title == "Spark")


@dataclass
class Recipe:
    """A recipe of the page on a pipe of its own."""

    text: str
    pipe: Pipe
    table: str = field(default_factory=lambda: unique("shipped").replace("-", "_"))

    def code(self) -> str:
        """Return the recipe with this test's addresses, folders and names."""
        pipe = self.pipe
        changes = {
            'subscribe="orders"': f'url="{pipe.url}", subscribe="{pipe.source}", startingOffsets="earliest"',
            'group="lake"': f'group="{pipe.name}"',
            'group="shipping"': f'group="{pipe.name}"',
            "checkpoints/lake": str(pipe.checkpoint),
            "checkpoints/shipping": str(pipe.checkpoint),
            "lake/orders": str(pipe.folder / "lake"),
            "postgresql://localhost/shop": pipe.url,
            "into shipped": f"into public.{self.table}",
            "foreachBatch(write)": "foreachBatch(around(write))",
        }
        text = self.text
        for old, new in changes.items():
            text = text.replace(old, new)
        return text

    def run(self, around: Callable[[Any], Any] = lambda write: write) -> None:
        """Run it over all there is. `around` wraps the page's function that writes a batch."""
        exec(compile(self.code(), "spark-streams.md", "exec"), {"around": around})  # noqa: S102 - our own page

    def written(self, connection: Any) -> list[int]:
        if self.text == JDBC:
            return [int(value) for (value,) in connection.execute(f"select value from public.{self.table}").fetchall()]
        return [int(row.value) for row in self.pipe.spark.read.parquet(str(self.pipe.folder / "lake")).collect()]

    def lag(self) -> int | None:
        """Return the group's lag as `msgtx groups describe` shows it; None: it has no offset yet."""
        found = self.pipe.client.admin.groups.describe(self.pipe.name)
        return found.lag if found.partitions else None


@pytest.fixture(params=[PARQUET, JDBC], ids=["parquet", "jdbc"])
def recipe(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    client: msgtx.Client,
    database_url: str,
    engine: Engine,
    tmp_path: Path,
) -> Iterator[Recipe]:
    made = Recipe(request.param, Pipe(spark, client, database_url, tmp_path))
    with engine.connection() as connection:
        connection.execute(
            f'create table public.{made.table} (topic text, partition int, "offset" bigint, value bytea,'
            ' primary key (topic, partition, "offset"))'
        )
    yield made
    with engine.connection() as connection:
        connection.execute(f"drop table public.{made.table}")


def dies_after(write: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """Return a `write` whose batch Spark never notes as complete."""

    def call(rows: DataFrame, batch: int) -> None:
        write(rows, batch)
        raise InterruptedError("between the write and the checkpoint")

    return call


def test_a_recipe_writes_each_record_once_and_its_group_follows(recipe: Recipe, engine: Engine) -> None:
    def assert_all_is_there_once() -> None:
        with engine.connection() as connection:
            assert sorted(recipe.written(connection)) == list(range(recipe.pipe.sent))

    recipe.pipe.send(20)
    with pytest.raises(StreamingQueryException, match="between the write and the checkpoint"):
        recipe.run(dies_after)
    assert_all_is_there_once()
    assert recipe.lag() is None, "the batch is not complete"
    recipe.run()
    assert_all_is_there_once()
    assert recipe.lag() == 0
    recipe.pipe.send(20)
    assert recipe.lag() == 20
    shutil.rmtree(recipe.pipe.checkpoint)  # a new one begins at the group's offsets, with batch 0
    recipe.run()
    assert_all_is_there_once()
    assert recipe.lag() == 0


KILLED = """
import os, signal
def around(write):
    def call(rows, batch):
        write(rows, batch)
        os.killpg(0, signal.SIGKILL)
    return call
"""


@pytest.mark.parametrize("recipe", [PARQUET], ids=["parquet"], indirect=True)
def test_a_driver_that_is_killed_behind_its_write_repeats_the_batch(recipe: Recipe, engine: Engine) -> None:
    recipe.pipe.send(20)
    code = recipe.code().replace("session()", 'session(master="local[2]")')
    child = subprocess.run(
        [sys.executable, "-c", KILLED + code], start_new_session=True, check=False, capture_output=True, timeout=300
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert recipe.lag() is None
    recipe.pipe.send(20)
    recipe.run()
    with engine.connection() as connection:
        assert sorted(recipe.written(connection)) == list(range(recipe.pipe.sent))
    assert recipe.lag() == 0
    assert len(list((recipe.pipe.folder / "lake").glob("query=*"))) == 1, "it is the same query"


def test_a_file_sink_of_spark_is_followed_also_where_a_run_is_one_batch(
    spark: SparkSession, client: msgtx.Client, database_url: str, tmp_path: Path
) -> None:
    """A run with `once` ends before Spark asks for the next batch: the next run finds that the last one is complete."""
    pipe = Pipe(spark, client, database_url, tmp_path)

    def run() -> None:
        frame = spark.readStream.format("msgtx").options(url=database_url, subscribe=pipe.source, group=pipe.name).load()
        writer = frame.writeStream.format("parquet").options(
            path=str(tmp_path / "files"), checkpointLocation=str(pipe.checkpoint)
        )
        writer.trigger(once=True).start().awaitTermination()

    for followed in (0, 10, 20):
        pipe.send(10)
        run()
        assert pipe.position() == followed
    found = spark.read.parquet(str(tmp_path / "files")).collect()
    assert sorted(int(row.value) for row in found) == list(range(pipe.sent))


def test_a_join_of_two_topics_keeps_its_state_over_a_restart(
    spark: SparkSession, client: msgtx.Client, database_url: str, tmp_path: Path
) -> None:
    """Two sources of one group; the halves of a pair come in different runs. A listener gets the lag."""
    left, right = (Pipe(spark, client, database_url, tmp_path) for _ in range(2))
    lags: list[int] = []

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: object) -> None:  # noqa: N802 - Spark's name
            pass

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
            lags.extend(json.loads(source.latestOffset)["lag"] for source in event.progress.sources)

        def onQueryTerminated(self, event: object) -> None:  # noqa: N802 - Spark's name
            pass

    def side(pipe: Pipe, name: str) -> DataFrame:
        options = {"url": database_url, "subscribe": pipe.source, "group": left.name}
        frame = spark.readStream.format("msgtx").options(**options).load()
        return frame.selectExpr("cast(value as string) as value", f"timestamp as {name}").withWatermark(name, "1 hour")

    def run() -> None:
        joined = side(left, "one").join(side(right, "two"), "value")
        options = {"url": database_url, "topic": left.target, "group": left.name, "checkpointLocation": str(left.checkpoint)}
        joined.select("value").writeStream.format("msgtx").options(**options).trigger(
            availableNow=True
        ).start().awaitTermination()

    spark.streams.addListener(listener := Listener())
    left.send(10)
    run()
    assert left.written() == []
    right.send(10)
    run()
    left.assert_all_is_there_once()
    wait_until(lambda: lags and not any(lags), "the listener was called", seconds=30)
    spark.streams.removeListener(listener)
