"""Work in the database by many tasks: each part once, retried after transient errors, other errors raised as they are."""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy
from pyspark.sql import SparkSession

import msgtx
from msgtx import errors
from msgtx.database.connection import RawConnection
from msgtx.spark_jobs.runtime import parts
from msgtx.spark_jobs.runtime.parts import Database, divided, on_executors

ELSEWHERE = "0f8fad5b-d9cb-469f-a165-70867728950e"


@pytest.fixture
def database(client: msgtx.Client) -> Database:
    return Database.of(client, client.snapshot([]))


def squares(connection: RawConnection, numbers: Sequence[int]) -> list[int]:
    """Runs on workers: the database computes, which shows that the connection works."""
    return [connection.execute("select %s::int * %s::int", [n, n]).fetchone()[0] for n in numbers]  # type: ignore[index]


def away(mark: str, times: int, connection: RawConnection, numbers: Sequence[int]) -> list[int]:
    """Runs on workers: the task that has the 3 finds the database unavailable `times` times."""
    for time in range(times if 3 in numbers else 0):
        try:
            Path(f"{mark}-{time}").touch(exist_ok=False)
        except FileExistsError:
            continue
        raise errors.DatabaseUnavailable("away for a test")
    return squares(connection, numbers)


def refused(connection: RawConnection, numbers: Sequence[int]) -> list[int]:
    """Runs on workers."""
    if 3 in numbers:
        raise errors.UnknownTopicOrPartition("gone for a test")
    return [*numbers]


@pytest.mark.parametrize("tasks", [1, 4, 1_000])
def test_every_part_is_looked_at_once(spark: SparkSession, database: Database, tasks: int) -> None:
    found = on_executors(spark, squares, range(20), database=database, tasks=tasks)
    assert len(found) == min(20, max(tasks, parts.TASKS_PER_CORE * spark.sparkContext.defaultParallelism))
    assert sorted(number for answer in found for number in answer) == [n * n for n in range(20)]
    assert on_executors(spark, squares, [], database=database, tasks=tasks) == []


def test_a_task_that_met_a_passing_condition_is_done_again_and_counts_once(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    look = partial(away, str(tmp_path / "away"), 2)
    found = on_executors(spark, look, range(20), database=database, tasks=1)
    assert sorted(number for answer in found for number in answer) == [n * n for n in range(20)]
    assert len(list(tmp_path.iterdir())) == 2
    look = partial(away, str(tmp_path / "gone"), 99)
    with pytest.raises(errors.DatabaseUnavailable, match="away for a test"):
        on_executors(spark, look, range(20), database=replace(database, outage_timeout=0.5), tasks=1)
    assert len(list(tmp_path.glob("gone*"))) > 2


def test_another_error_of_a_task_is_raised_as_itself(spark: SparkSession, database: Database) -> None:
    with pytest.raises(errors.UnknownTopicOrPartition, match=r"^gone for a test$"):
        on_executors(spark, refused, range(20), database=database, tasks=1)


def test_tasks_that_find_another_incarnation_end_the_work(spark: SparkSession, database: Database) -> None:
    other = Database(database.url, ELSEWHERE)
    with pytest.raises(errors.IncarnationChanged, match=ELSEWHERE):
        on_executors(spark, squares, range(20), database=other, tasks=1)


def test_the_password_travels_and_is_not_shown(database: Database) -> None:
    password = sqlalchemy.make_url(database.url).password
    assert password
    assert password not in repr(database)
    assert pickle.loads(pickle.dumps(database)).url == database.url  # noqa: S301 - our own


def test_ranges_are_divided_without_gap_and_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = {1: (0, 10), 2: (5, 5), 3: (7, 8)}
    assert divided(ranges, 4 * parts.PIECES_OF_A_TASK) == [(1, 0, 4), (1, 4, 8), (1, 8, 10), (3, 7, 8)]
    assert divided(ranges, 1_000) == [(1, 0, 10), (3, 7, 8)]
    assert divided({}, 1) == []
    assert len(divided({1: (0, 10)}, 1)) == 10
    monkeypatch.setattr(parts, "MOST_TASKS", 2)
    assert len(divided({1: (0, 1_000_000)}, 1)) == 2
