"""Executors read from a real standby, which may lag (operations/backup#replicas)."""

import concurrent.futures
import contextlib
import time

import pytest
from pyspark.sql import SparkSession

import msgtx
from msgtx import errors
from msgtx.database.pool import Engine
from msgtx.spark_jobs.import_files import _file_app, _not_imported
from msgtx.spark_jobs.read import read_committed
from msgtx.spark_jobs.runtime.folder import File
from msgtx.store.spark import BatchName, decide_batch
from tests.databases import connect
from tests.replication import Pair


@pytest.fixture
def url(pair: Pair) -> str:
    return pair.primary.create_database()


def values(spark: SparkSession, url: str, **options: object) -> list[bytes]:
    """Return what a job reads that plans on the primary."""
    frame = read_committed(spark, ["read"], url=url, **options)  # type: ignore[arg-type]
    return sorted(bytes(row.value) for row in frame.select("value").collect())


def write(url: str, *records: bytes) -> None:
    """Commit records on several partitions, beside some that are aborted."""
    with msgtx.connect(url) as client, client.producer(transactional_id="id") as producer:
        client.topics.create("read", partitions=3, if_not_exists=True)
        for number, value in enumerate(records):
            with producer.transaction():
                producer.send("read", value, partition=number % 3)
            with contextlib.suppress(ZeroDivisionError), producer.transaction():
                producer.send("read", b"aborted", partition=number % 3)
                producer.flush()
                raise ZeroDivisionError


def test_executors_read_from_a_standby_what_was_committed_just_before(spark: SparkSession, pair: Pair, url: str) -> None:
    """I5: the job waits until the standby has replayed what it has planned."""
    for number in range(5):
        write(url, b"%d" % number, b"%d again" % number)
        wanted = sorted(value for n in range(number + 1) for value in (b"%d" % n, b"%d again" % n))
        assert values(spark, url, read_url=pair.on_standby(url)) == wanted


def test_a_standby_that_replays_late_is_waited_for_and_no_longer_than_allowed(
    spark: SparkSession, pair: Pair, url: str
) -> None:
    write(url, b"1", b"2")
    pair.catch_up()
    with pair.replay_paused() as resume, concurrent.futures.ThreadPoolExecutor(1) as background:
        write(url, b"3")
        with pytest.raises(
            errors.DatabaseUnavailable, match=r"has not replayed read-0 up to .* within replica_timeout_ms=200"
        ):
            values(spark, url, read_url=pair.on_standby(url), replica_timeout_ms=200)
        reading = background.submit(values, spark, url, read_url=pair.on_standby(url))
        time.sleep(0.5)
        assert not reading.done()
        resume()
        assert reading.result(60.0) == [b"1", b"2", b"3"]


def test_an_import_passes_a_file_by_only_when_the_standby_has_it(pair: Pair, url: str) -> None:
    """I9: somebody may have cancelled the wait of the COMMIT that imported it (decision 0167)."""
    file, new = File("file:///1.json", 10, 1), File("file:///2.json", 10, 1)
    with connect(url) as connection:
        decide_batch(connection, BatchName(_file_app("app", file), "", file.modified_ms), [])
    with Engine(url) as engine, concurrent.futures.ThreadPoolExecutor(1) as background:
        with pair.nothing_confirmed():
            asking = background.submit(_not_imported, engine, "app", [file, new])
            for _ in range(2):
                pair.cancel_waits(asking)
        assert asking.result(60) == [new]
