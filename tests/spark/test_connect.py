"""Spark Connect: what runs on a server counts once, or is refused (I1, I4, I10; P20)."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import msgtx
from msgtx import errors
from msgtx.cli.spark.audit import command as audit
from msgtx.cli.spark.export import command as export
from msgtx.cli.spark.pipeline import command as pipeline
from msgtx.spark_jobs import read_committed, session, write_transactional
from msgtx.spark_jobs.runtime.failure import translated
from tests.databases import Server, wait_until
from tests.docs.snippets import snippets
from tests.refusals import refuses
from tests.spark.connect_server import ConnectServer
from tests.spark.jobs import Jobs
from tests.spark.streams import Pipe

pytestmark = pytest.mark.slow  # begun among the first

WAIT_SECONDS = 120.0
STARTS = 5  # of a query


@pytest.fixture(scope="module")
def spark_server(tmp_path_factory: pytest.TempPathFactory, quick_starts: None) -> Iterator[ConnectServer]:
    made = ConnectServer(tmp_path_factory.mktemp("connect"))
    made.start()
    yield made
    made.end()


@pytest.fixture
def remote(spark_server: ConnectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    """A session on the server. Meanwhile this process is a client of Spark Connect, later again none.

    The session of other modules' tests is hidden: a process has either kind.
    """
    for name in ("_active_spark_context", "_gateway", "_jvm"):
        monkeypatch.setattr(SparkContext, name, None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    monkeypatch.setattr(session, "_output", None)
    yield session.session(master=spark_server.url)
    session.end()


@pytest.fixture
def pipe(remote: SparkSession, client: msgtx.Client, database_url: str, tmp_path: Path) -> Pipe:
    return Pipe(remote, client, database_url, tmp_path)


# Batches


def test_records_are_read_in_both_ways(pipe: Pipe) -> None:
    pipe.send(10)
    by_format = pipe.spark.read.format("msgtx").options(url=pipe.url, subscribe=pipe.source).load()
    by_call = read_committed(pipe.spark, pipe.source, url=pipe.url)
    assert sorted(by_format.collect()) == sorted(by_call.collect())
    assert sorted(int(row.value) for row in by_call.collect()) == list(range(10))


def test_a_batch_is_written_once(pipe: Pipe) -> None:
    rows = pipe.spark.range(10).selectExpr("string(id) as value")
    reports = [write_transactional(rows, pipe.target, app_id=pipe.name, batch_id=1, url=pipe.url) for _ in range(2)]
    assert [(report.records, report.skipped) for report in reports] == [(10, False), (0, True)]
    options = {"url": pipe.url, "topic": pipe.target, "txnAppId": f"{pipe.name}-format", "txnVersion": "1"}
    for _ in range(2):
        rows.selectExpr("string(value + 10) as value").write.format("msgtx").options(**options).mode("append").save()
    assert pipe.written() == list(range(20))


def test_the_refusal_of_a_task_keeps_its_type(pipe: Pipe) -> None:
    rows = pipe.spark.range(1).selectExpr("string(id) as value", "7 as partition")
    with refuses(errors.InvalidRequest):
        write_transactional(rows, pipe.target, app_id=pipe.name, batch_id=1, url=pipe.url)
    assert pipe.written() == []


# Streams


def test_a_stream_with_a_group_outlives_its_checkpoint(pipe: Pipe) -> None:
    pipe.send(10)
    pipe.run()
    pipe.send(10)
    shutil.rmtree(pipe.checkpoint)
    pipe.run()
    pipe.assert_all_is_there_once()


Write = Callable[[DataFrame, int], None]


def copy_to(pipe: Pipe, *apps: str, group: str | None = None, query_id: str | None = None) -> Write:
    """Return a function of foreachBatch that writes a batch once for each application."""
    url, topic = pipe.url, pipe.target

    def write(rows: DataFrame, number: int) -> None:
        rows.count()  # a job that is not named
        for app in apps:
            write_transactional(
                rows.select("value"), topic, app_id=app, batch_id=number, query_id=query_id, url=url, group=group
            )

    return write


def begin(
    pipe: Pipe, write: Write, *, checkpoint: Path, lines: Path | None = None, name: str = "", **reading: str
) -> StreamingQuery:
    """Start a query over all there is; `lines`: reads the files of a folder instead of the source."""
    if lines is not None:
        frame = pipe.spark.readStream.format("text").load(str(lines))
    else:
        options = {"url": pipe.url, "subscribe": pipe.source, "startingOffsets": "earliest", **reading}
        frame = pipe.spark.readStream.format("msgtx").options(**options).load()
    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    for _ in range(STARTS):
        try:
            return (writer.queryName(name) if name else writer).start()
        except PySparkException as error:
            # Spark gives the function's process ten seconds; on a busy machine it starts later.
            if "failed to connect back" not in str(error):
                raise
    raise AssertionError("the process of the function does not start")


def each_batch(
    pipe: Pipe, write: Write, *, checkpoint: Path | None = None, lines: Path | None = None, **reading: str
) -> None:
    """Run a query to its end. Raise what ended it."""
    with translated():
        begin(pipe, write, checkpoint=checkpoint or pipe.checkpoint, lines=lines, **reading).awaitTermination()


def test_foreach_batch_is_named_by_its_query(pipe: Pipe) -> None:
    """P20: after a lost checkpoint no batch is skipped for its number; a second write is not taken for a repeated one."""
    for _ in range(2):
        pipe.send(10)
        each_batch(pipe, copy_to(pipe, pipe.name))
    pipe.assert_all_is_there_once()
    with refuses(errors.CheckpointLost):
        each_batch(pipe, copy_to(pipe, pipe.name), checkpoint=pipe.folder / "another")
    twice = f"{pipe.name}-twice"
    with refuses(errors.BatchConflict):
        each_batch(pipe, copy_to(pipe, twice, twice), checkpoint=pipe.folder / "twice")


def test_foreach_batch_commits_the_offsets_of_its_group(pipe: Pipe) -> None:
    pipe.send(10)
    each_batch(pipe, copy_to(pipe, pipe.name, group=pipe.name), group=pipe.name)
    assert pipe.position() == pipe.sent
    shutil.rmtree(pipe.checkpoint)
    pipe.send(10)
    each_batch(pipe, copy_to(pipe, pipe.name, group=pipe.name), group=pipe.name)
    pipe.assert_all_is_there_once()


def test_a_group_follows_what_foreach_batch_puts_elsewhere(pipe: Pipe) -> None:
    """Nothing names the jobs of the function; a new group has its offsets all the same."""
    for _ in range(2):
        pipe.send(10)
        each_batch(pipe, copy_to(pipe), group=pipe.name)
        assert pipe.position() == pipe.sent


def test_a_checkpoint_that_fell_behind_by_a_batch_is_noticed(pipe: Pipe) -> None:
    """P20: the batch is committed and has other contents now; skipped by its number, the new ones would be lost."""
    behind = pipe.folder / "behind"
    for number in range(2):
        pipe.send(10)
        each_batch(pipe, copy_to(pipe, pipe.name))
        if number == 0:
            shutil.copytree(pipe.checkpoint, behind)
    pipe.send(10)
    with refuses(errors.BatchConflict):
        each_batch(pipe, copy_to(pipe, pipe.name), checkpoint=behind)


def test_a_lost_checkpoint_is_noticed_with_another_source(pipe: Pipe) -> None:
    """P20: nothing but the query's name tells that batch 0 is another one."""
    lines = pipe.folder / "lines"
    lines.mkdir()
    for number in range(2):
        (lines / f"{number}.txt").write_text(f"{number}\n")
        if number == 0:
            each_batch(pipe, copy_to(pipe, pipe.name), lines=lines)
    with refuses(errors.CheckpointLost):
        each_batch(pipe, copy_to(pipe, pipe.name), checkpoint=pipe.folder / "another", lines=lines)
    assert pipe.written() == [0]


def test_a_write_that_nothing_names_is_refused(pipe: Pipe) -> None:
    """P20: a writer of `format("msgtx")` in foreachBatch has a number, and no query."""
    options = {"url": pipe.url, "topic": pipe.target, "txnAppId": pipe.name}

    def write(rows: DataFrame, number: int) -> None:
        rows.select("value").write.format("msgtx").options(**options, txnVersion=str(number)).mode("append").save()

    pipe.send(1)
    with refuses(errors.InvalidRequest):
        each_batch(pipe, write)
    assert pipe.written() == []


def test_of_several_queries_each_has_a_name(pipe: Pipe) -> None:
    pipe.send(10)
    refused = pipe.folder / "refused"

    def waiting(write: Write) -> Write:
        """Keep the query active until another one was refused."""
        place = str(refused)

        def waited(rows: DataFrame, number: int) -> None:
            deadline = time.monotonic() + WAIT_SECONDS
            while not Path(place).exists() and time.monotonic() < deadline:
                time.sleep(0.1)
            write(rows, number)

        return waited

    named = [f"{pipe.name}-{end}" for end in "ab"]
    queries = [
        begin(pipe, waiting(copy_to(pipe, name, query_id=name)), checkpoint=pipe.folder / name, name=name) for name in named
    ]
    with refuses(errors.InvalidRequest):
        each_batch(pipe, copy_to(pipe, f"{pipe.name}-c"), checkpoint=pipe.folder / "c")
    refused.touch()
    for query in queries:
        query.awaitTermination()
    assert pipe.written() == sorted([*range(10), *range(10)])
    pipe.send(1)
    with refuses(errors.CheckpointLost):
        each_batch(pipe, copy_to(pipe, named[0]), checkpoint=pipe.folder / named[1])


def test_a_killed_server_leaves_each_record_once(pipe: Pipe, spark_server: ConnectServer, tmp_path: Path) -> None:
    """P20: killed while the batch is written, and between its decision and Spark's own note of it; anywhere in a stream."""
    url, topic, app, folder = pipe.url, pipe.target, pipe.name, str(pipe.folder)

    def hold(place: str) -> None:
        Path(folder, place).touch()
        while not Path(folder, "over").exists():
            time.sleep(0.1)

    def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        hold("writing")

    def write(rows: DataFrame, number: int) -> None:
        chosen = rows.select("value")
        if not Path(folder, "writing").exists():
            chosen = chosen.mapInArrow(held, chosen.schema)
        write_transactional(chosen, topic, app_id=app, batch_id=number, query_id=app, url=url)
        if not Path(folder, "decided").exists():
            hold("decided")

    stream = Pipe(pipe.spark, pipe.client, pipe.url, tmp_path / "stream")
    pipe.send(10)
    for place in ("writing", "decided"):
        begin(pipe, write, checkpoint=pipe.checkpoint, name=app)
        stream.start(trigger={"processingTime": "0 seconds"})
        stream.send(10)
        wait_until(Path(folder, place).exists, place, seconds=WAIT_SECONDS)
        spark_server.kill()
        pipe.spark.release_session_on_close = False  # type: ignore[attr-defined] # it would ask the server, for minutes
        session.end()
        spark_server.start()
        pipe.spark = stream.spark = session.session(master=spark_server.url)
    pipe.send(10)
    Path(folder, "over").touch()
    each_batch(pipe, write)
    pipe.assert_all_is_there_once()
    stream.run()
    stream.assert_all_is_there_once()


# Jobs


@pytest.fixture
def jobs(database_url: str, capfdbinary: pytest.CaptureFixture[bytes]) -> Jobs:
    return Jobs(database_url, capfdbinary)


def test_the_pipeline_runs_on_a_server(pipe: Pipe, spark_server: ConnectServer, jobs: Jobs) -> None:
    pipe.send(10)
    jobs.run(
        pipeline, pipe.source, "tests.spark.transforms:upper", "--to", pipe.target, "--group", pipe.name, "--once",
        "--master", spark_server.url,
    )  # fmt: skip
    pipe.assert_all_is_there_once()
    assert pipe.position() == pipe.sent


@pytest.mark.parametrize(("command", "arguments"), [(export, ("--to", "folder")), (audit, ())])
def test_a_job_that_needs_a_jvm_says_so(
    pipe: Pipe, spark_server: ConnectServer, jobs: Jobs, command: click.Command, arguments: tuple[str, ...]
) -> None:
    with refuses(errors.ConfigError):
        jobs.run(command, pipe.source, *arguments, "--master", spark_server.url)


def test_the_code_of_the_page_runs(spark_server: ConnectServer, pipe: Pipe, server: Server) -> None:
    """On the embedded database: the processes of the server find it as the program does."""
    (code,) = [each for each in snippets("python", page="docs/how-to/spark.md") if each.title == "Spark Connect"]
    text = code.text.replace("sc://spark:15002", spark_server.url).replace("checkpoints/copy", str(pipe.checkpoint))
    with msgtx.connect() as client:
        for name in ("orders", "invoices"):
            client.topics.create(name, partitions=1)
        with client.producer() as producer:
            producer.send("orders", b"1").result()
        exec(compile(text, code.page, "exec"), {})  # noqa: S102 - our own page
        found = [record.value for record in client.read(client.snapshot(["invoices"]))]
        for name in ("orders", "invoices"):
            client.topics.delete(name)
    assert found == [b"1"]
