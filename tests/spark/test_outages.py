"""Spark outlives a database that is away: a stream for as long as it lasts, a batch up to a limit (I1, I10; P20)."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession

import msgtx
from msgtx import errors
from msgtx.spark_jobs import audit, export, import_files, pipeline, report
from msgtx.spark_jobs.read import read_committed
from msgtx.spark_jobs.sink import write_transactional
from tests.databases import wait_until
from tests.faults import crash_server
from tests.links import Link
from tests.spark.streams import Pipe

pytestmark = pytest.mark.slow

AWAY_SECONDS: Final = 1.5
PROMPT_SECONDS: Final = 20.0  # for what ends at once, on a busy machine
AWAY, BACK = "the database is away", "the database is back"


@pytest.fixture
def link(database_url: str, caplog: pytest.LogCaptureFixture) -> Iterator[Link]:
    caplog.set_level(logging.INFO, "msgtx")
    with contextlib.closing(Link(database_url, delay=0.0)) as made:  # over TCP: Java's driver knows no Unix sockets
        yield made


@pytest.fixture
def pipe(spark: SparkSession, client: msgtx.Client, link: Link, tmp_path: Path) -> Pipe:
    """Queries reach the database over the link, the test does not."""
    return Pipe(spark, client, link.url, tmp_path)


def said(caplog: pytest.LogCaptureFixture, start: str) -> list[str]:
    return [line for each in caplog.records if (line := each.getMessage()).startswith(start)]


def await_said(caplog: pytest.LogCaptureFixture, start: str, count: int = 1) -> None:
    wait_until(lambda: len(said(caplog, start)) >= count, f"{start}, {count} times")


# ── streams ──


def test_a_stream_outlives_restarts_of_postgresql(spark: SparkSession, tmp_path: Path) -> None:
    """Whatever Spark asks in that moment, and however long it takes: each record is written once."""
    with crash_server() as server:
        url = server.server.create_database()
        with msgtx.connect(url) as client:
            pipe = Pipe(spark, client, url, tmp_path)
            query = pipe.start(trigger={"processingTime": "0 seconds"})
            for number in range(4):
                pipe.send(20)
                if number % 2:
                    pipe.await_written(pipe.sent)
                server.kill()
                time.sleep(AWAY_SECONDS)
                server.start()
            pipe.send(20)
            pipe.await_written(pipe.sent)
            assert query.exception() is None
            query.stop()
            pipe.assert_all_is_there_once()
            assert pipe.position() == pipe.sent


def test_an_outage_of_a_stream_is_told_in_the_users_log(pipe: Pipe, link: Link, caplog: pytest.LogCaptureFixture) -> None:
    """By the words of workers, though it is a Python worker of Spark's that waits. A second outage is told, too."""
    query = pipe.start(trigger={"processingTime": "0 seconds"})
    for number in (1, 2):
        pipe.send(10)
        pipe.await_written(pipe.sent)
        link.leave()
        await_said(caplog, AWAY, number)
        link.come_back()
        await_said(caplog, BACK, number)
    pipe.send(10)
    pipe.await_written(pipe.sent)
    query.stop()
    pipe.assert_all_is_there_once()
    assert {each.name for each in caplog.records if each.getMessage().startswith(AWAY)} == {"msgtx.database"}


def test_a_query_that_waits_for_the_database_can_be_stopped(
    pipe: Pipe, link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    pipe.send(10)
    query = pipe.start(trigger={"processingTime": "0 seconds"})
    pipe.await_written(10)
    link.leave()
    await_said(caplog, AWAY)
    began = time.monotonic()
    query.stop()
    assert time.monotonic() - began < PROMPT_SECONDS
    assert not query.isActive
    link.come_back()
    pipe.send(10)
    pipe.run()
    pipe.assert_all_is_there_once()


# ── batches and jobs ──


def read_format(pipe: Pipe) -> int:
    options = {"url": pipe.url, "subscribe": pipe.source}
    return pipe.spark.read.format("msgtx").options(**options).load().count()


def read_jdbc(pipe: Pipe) -> int:
    frame = read_committed(pipe.spark, pipe.source, url=pipe.url)
    wait_until(lambda: reached(pipe), "the executors can read, too")
    return frame.count()


def write_format(pipe: Pipe) -> int:
    rows = pipe.spark.range(10).selectExpr("string(id) as value")
    rows.write.format("msgtx").options(url=pipe.url, topic=pipe.target).mode("append").save()
    return len(pipe.written())


def write_in_one(pipe: Pipe) -> int:
    rows = pipe.spark.range(10).selectExpr("string(id) as value")
    return write_transactional(rows, pipe.target, app_id=pipe.name, batch_id=0, url=pipe.url).records


def run_pipeline(pipe: Pipe) -> int:
    return pipeline.run(pipe.spark, pipe.source, same, group=pipe.name, to=pipe.target, url=pipe.url, once=True).records_out


def run_export(pipe: Pipe) -> int:
    return export.export(pipe.spark, pipe.source, str(pipe.folder / "files"), url=pipe.url).records


def run_import(pipe: Pipe) -> int:
    (pipe.folder / "rows.json").write_text("".join(f'{{"n": {n}}}\n' for n in range(10)))
    return import_files.import_files(pipe.spark, pipe.target, str(pipe.folder / "rows.json"), url=pipe.url).records


def run_audit(pipe: Pipe) -> int:
    return audit.run(pipe.spark, [pipe.source], url=pipe.url).records


def run_report(pipe: Pipe) -> int:
    return sum(each.records for each in report.run(pipe.spark, [pipe.source], url=pipe.url, groups=False).topics)


def same(frame: DataFrame) -> DataFrame:
    return frame.select("value")


def reached(pipe: Pipe) -> bool:
    try:
        with msgtx.connect(pipe.url):
            return True
    except errors.DatabaseUnavailable:
        return False


@pytest.mark.parametrize(
    ("job", "module"),
    [
        (read_format, None),
        (read_jdbc, None),
        (write_format, None),
        (write_in_one, None),
        (run_pipeline, None),
        (run_export, export),
        (run_import, import_files),
        (run_audit, audit),
        (run_report, report),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_job_waits_for_a_database_that_is_away(
    pipe: Pipe, link: Link, monkeypatch: pytest.MonkeyPatch, job: Callable[[Pipe], int], module: Any
) -> None:
    """`module`: of a job that makes a client. That asks at once, as everywhere, so the database leaves just after it."""
    pipe.send(10)
    back = threading.Timer(AWAY_SECONDS, link.come_back)

    def leave() -> None:
        link.leave()
        back.start()

    if module is None:
        leave()
    else:
        name = "connect_client" if hasattr(module, "connect_client") else "connect"
        connect = getattr(module, name)

        def connected(url: str, **options: Any) -> msgtx.Client:
            client: msgtx.Client = connect(url, **options)
            leave()
            return client

        monkeypatch.setattr(module, name, connected)
    assert job(pipe) == 10
    assert back.finished.is_set(), "the database has been away"


def test_an_outage_longer_than_outage_timeout_is_raised(pipe: Pipe, link: Link) -> None:
    rows = pipe.spark.range(1).selectExpr("string(id) as value")
    link.leave()
    limit: Any = {"outage_timeout": "500ms"}
    for ask in (
        lambda: read_committed(pipe.spark, pipe.source, url=pipe.url, **limit),
        lambda: write_transactional(rows, pipe.target, app_id=pipe.name, batch_id=0, url=pipe.url, **limit),
        lambda: pipeline.run(pipe.spark, pipe.source, same, group=pipe.name, to=pipe.target, url=pipe.url, **limit),
    ):
        with pytest.raises(errors.DatabaseUnavailable) as caught:
            ask()
        assert "outage_timeout is 0.5 s" in caught.value.__notes__[0]


def test_a_pipeline_outlives_an_outage_and_stop_ends_its_wait(
    pipe: Pipe, link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    stop = threading.Event()
    counts: list[int] = []

    def work() -> None:
        done = pipeline.run(pipe.spark, pipe.source, same, group=pipe.name, to=pipe.target, url=pipe.url, stop=stop)
        counts.append(done.records_out)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for number in (1, 2):
            pipe.send(10)
            pipe.await_written(pipe.sent)
            link.leave()
            pipe.send(10)
            await_said(caplog, AWAY, number)
            link.come_back()
        pipe.await_written(pipe.sent)
        link.leave()
        await_said(caplog, AWAY, 3)
    finally:
        stop.set()
        worker.join(PROMPT_SECONDS)
        ended = not worker.is_alive()
        link.come_back()
    assert ended, "it does not wait for the database"
    assert counts == [pipe.sent]
    pipe.assert_all_is_there_once()
