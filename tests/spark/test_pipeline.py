"""The pipeline job: consume–transform–produce on DataFrames, exactly once, without a checkpoint (I10, P20)."""

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
import sqlalchemy
from pyspark.sql import DataFrame, SparkSession

import msgtx
from msgtx import errors
from msgtx.cli.spark.pipeline import command
from msgtx.cli.terminal import interruption
from msgtx.database.pool import Engine
from msgtx.spark_jobs import pipeline
from msgtx.spark_jobs.pipeline import PipelineReport
from msgtx.store.operator.installation import change_incarnation
from tests.databases import Connection, wait_until
from tests.spark.jobs import Jobs
from tests.spark.transforms import by_topic, upper

_number = itertools.count(1)


class Place:
    """Topics and a group of one test."""

    def __init__(self, client: msgtx.Client) -> None:
        self.client = client
        number = next(_number)
        self.source, self.target, self.group = f"in-{number}", f"out-{number}", f"group-{number}"
        for name in (self.source, self.target):
            client.topics.create(name, partitions=3)

    def send(self, *values: str) -> None:
        with self.client.producer() as producer:
            for value in values:
                producer.send(self.source, value.encode(), key=value.encode())

    def found(self, topic: str | None = None) -> list[str]:
        records = self.client.read(self.client.snapshot([topic or self.target]))
        return sorted((record.value or b"").decode() for record in records)

    def run(
        self, spark: SparkSession, transform: Callable[[DataFrame], DataFrame] = upper, **options: object
    ) -> PipelineReport:
        settings: dict[str, object] = {"to": self.target, "once": True, "url": self.client.secret_url, **options}
        return pipeline.run(spark, self.source, transform, group=self.group, **settings)  # type: ignore[arg-type]


@pytest.fixture
def place(client: msgtx.Client) -> Place:
    return Place(client)


def test_once_transforms_all_that_is_committed_and_goes_on_from_there(spark: SparkSession, place: Place) -> None:
    place.send("a", "b", "c")
    assert place.run(spark).records_out == 3
    assert place.run(spark).batches == 0
    place.send("d")
    report = place.run(spark)
    assert (report.batches, report.offsets_in, report.records_out) == (1, 1, 1)
    assert place.found() == ["A", "B", "C", "D"]


def test_nothing_to_read_is_no_batch(spark: SparkSession, place: Place) -> None:
    report = place.run(spark)
    assert (report.batches, report.offsets_in, report.records_out) == (0, 0, 0)


def test_batches_hold_so_many_offsets(spark: SparkSession, place: Place) -> None:
    place.send(*(f"{n}" for n in range(30)))
    report = place.run(spark, max_offsets=10)
    assert report.batches >= 3
    assert len(place.found()) == report.records_out == 30


def test_executors_read_from_a_replica(spark: SparkSession, place: Place, make_database: Callable[..., str]) -> None:
    """Another database stands for one that is not a replica: it is checked, and refused."""
    place.send("a")
    with Engine(make_database(), pool_size=1) as other:
        with other.connection() as connection:
            change_incarnation(connection)
        with pytest.raises(errors.IncarnationChanged, match="not one database"):
            place.run(spark, read_url=other.url)
    assert place.run(spark, read_url=place.client.secret_url).records_out == 1
    assert place.found() == ["A"]


def test_rows_name_their_topics(spark: SparkSession, place: Place) -> None:
    for name in ("even", "odd"):
        place.client.topics.create(name)
    place.send("1", "2", "3", "4")
    place.run(spark, by_topic, to=None)
    assert (place.found("even"), place.found("odd")) == (["2", "4"], ["1", "3"])


def test_the_users_statements_are_part_of_the_batch(spark: SparkSession, place: Place, connection: Connection) -> None:
    """I6: a batch that fails in them leaves neither outputs nor offsets."""
    connection.execute("create table if not exists seen (at int primary key)")
    place.send("a")

    def remember(own: sqlalchemy.Connection) -> None:
        own.execute(sqlalchemy.text("insert into seen values (1)"))

    assert place.run(spark, statements=remember).records_out == 1
    place.send("b")
    with pytest.raises(sqlalchemy.exc.IntegrityError):
        place.run(spark, statements=remember)
    assert place.found() == ["A"]
    assert place.run(spark).records_out == 1
    assert place.found() == ["A", "B"]


def test_a_transaction_is_never_split_between_reading_and_not(spark: SparkSession, place: Place) -> None:
    """I15: a transaction that is open on one partition holds back its part on the others."""
    place.send("a")
    with place.client.producer(transactional_id=place.group) as producer, producer.transaction():
        for partition in range(3):
            producer.send(place.source, b"t", partition=partition)
        producer.flush()
        place.run(spark)
        assert place.found() == ["A"]
    place.run(spark)
    assert place.found() == ["A", "T", "T", "T"]


def test_two_runs_at_once_commit_each_record_once(spark: SparkSession, place: Place) -> None:
    """P20: one of the two commits a batch, the other one's attempts are aborted."""
    place.send(*(f"{n}" for n in range(60)))
    failures: list[Exception] = []

    def work() -> None:
        try:
            place.run(spark, max_offsets=12)
        except (errors.BatchConflict, errors.AbortableError, errors.InvalidTransactionState) as error:
            failures.append(error)
        except Exception as error:
            if "InvalidTransactionState" not in str(error):  # its attempts were aborted by the other one
                raise

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    place.run(spark)
    assert place.found() == sorted(f"{n}" for n in range(60))


def test_a_driver_that_is_killed_in_a_batch_has_a_successor_that_goes_on(
    spark: SparkSession, place: Place, connection: Connection
) -> None:
    """The command line's driver is killed after an attempt has written, before a decision."""
    place.send(*(f"{n}" for n in range(20)))
    command = [sys.executable, "-m", "msgtx.cli", "--url", place.client.secret_url, "spark", "pipeline", place.source]
    command += [
        "tests.spark.transforms:upper",
        "--to",
        place.target,
        "--group",
        place.group,
        "--max-offsets-per-trigger",
        "7",
    ]
    with connection.transaction():
        # The decision of the first batch waits for this lock, and the driver with it.
        connection.execute("select msgtx.lock_group(%s)", [place.group])
        driver = subprocess.Popen(
            [*command, "--master", "local[2]"], env={**os.environ}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        try:
            wait_until(lambda: driver.poll() is not None or _waits(place), "the driver decides", seconds=120)
            assert driver.poll() is None, driver.stderr and driver.stderr.read()
            os.kill(driver.pid, signal.SIGKILL)
        finally:
            driver.kill()
            driver.communicate()
    place.run(spark)
    assert place.found() == sorted(f"{n}" for n in range(20))


def test_sigterm_ends_the_command_after_its_batch(
    spark: SparkSession, place: Place, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    place.send("a")
    before = signal.signal(signal.SIGTERM, interruption._handle)
    try:
        arguments = (place.source, "tests.spark.transforms:upper_and_stop", "--to", place.target, "--group", place.group)
        done = Jobs(place.client.secret_url, capfdbinary).run(command, *arguments)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (done.code, [row["batches"] for row in done.rows]) == (0, [1])
    assert place.found() == ["A"]


def _waits(place: Place) -> bool:
    with place.client.runtime.engine.connection() as own:
        row = own.execute(
            "select count(*) from pg_locks l where l.locktype = 'advisory' and not l.granted and l.classid = 1836279554"
        ).fetchone()
    return row is not None and row[0] > 0
