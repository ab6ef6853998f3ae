"""`expire`: the sweeps as a job, once or repeatedly, until it is stopped."""

import json
import signal
import threading
from collections.abc import Callable

import click
import pytest
import sqlalchemy
from pyspark.sql import SparkSession

import msgtx
from msgtx import Outcome, errors
from msgtx.cli.spark.expire import command
from msgtx.spark_jobs.expire import ExpireReport, run
from msgtx.types import SweepReport, TransactionId
from tests.cli.program import Program
from tests.databases import Server
from tests.refusals import refuses
from tests.spark.jobs import Jobs
from tests.store.steps import unique

TIMEOUT_MS = 1_000
Clock = Callable[..., None]


@pytest.fixture
def jobs(database_url: str, capfdbinary: pytest.CaptureFixture[bytes]) -> Jobs:
    return Jobs(database_url, capfdbinary)


@pytest.fixture
def overdue(client: msgtx.Client, clock: Clock) -> TransactionId:
    """A transaction past its timeout: its client is gone."""
    topic = unique("overdue")
    client.topics.create(topic)
    producer = client.producer(transactional_id=topic, transaction_timeout_ms=TIMEOUT_MS)
    producer.init_transactions()
    name = producer.begin_transaction().id
    producer.send(topic, b"open").result(10)
    clock("1 minute")
    return name


def test_a_round_aborts_what_is_overdue(
    spark: SparkSession, client: msgtx.Client, database_url: str, overdue: TransactionId
) -> None:
    """I12."""
    report = run(spark, url=database_url)
    assert (report.rounds, report.failed, report.swept.transactions_aborted) == (1, 0, 1)
    assert client.transaction_outcome(overdue) is Outcome.ABORTED
    assert run(spark, url=database_url).swept.transactions_aborted == 0


def test_a_dry_run_tells_and_takes_back_and_only_names_sweeps(
    spark: SparkSession, client: msgtx.Client, database_url: str, overdue: TransactionId
) -> None:
    assert run(spark, url=database_url, dry_run=True).swept.transactions_aborted == 1
    assert run(spark, url=database_url, only=["floors"]).swept.transactions_aborted == 0
    assert client.transaction_outcome(overdue) is Outcome.OPEN
    assert run(spark, url=database_url, only=["overdue"]).swept.transactions_aborted == 1
    with refuses(errors.ConfigError, name="steps"):
        run(spark, url=database_url, only=["nonsense"])


def test_without_a_session_it_is_the_same(client: msgtx.Client, database_url: str, overdue: TransactionId) -> None:
    assert run(url=database_url).swept.transactions_aborted == 1


def test_rounds_follow_one_another_until_it_is_stopped_and_are_summed(
    spark: SparkSession, client: msgtx.Client, database_url: str, overdue: TransactionId
) -> None:
    stop, told = threading.Event(), []

    def look(swept: SweepReport) -> None:
        told.append(swept.transactions_aborted)
        if len(told) == 3:
            stop.set()

    report = run(spark, url=database_url, every=0.01, stop=stop, on_round=look)
    assert told == [1, 0, 0]
    assert (report.rounds, report.failed, report.swept.transactions_aborted) == (3, 0, 1)
    assert run(spark, url=database_url, every=0.01, stop=stop) == ExpireReport(0, 0, SweepReport())


def test_a_round_that_meets_no_database_is_left_to_the_next_one(
    spark: SparkSession, server: Server, make_database: Callable[..., str]
) -> None:
    url = make_database()
    name = sqlalchemy.make_url(url).database
    stop, told = threading.Event(), []

    def allow(connections: bool) -> None:
        with server.administrator() as administrator:
            administrator.execute(f"alter database {name} with allow_connections {connections}")
            administrator.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name])

    def look(swept: SweepReport) -> None:
        told.append("done")
        if len(told) == 1:
            allow(False)
        else:
            stop.set()

    def failed(error: errors.RetriableError) -> None:
        told.append(type(error).__name__)
        allow(True)

    report = run(spark, url=url, every=0.01, stop=stop, on_round=look, on_failure=failed)
    assert told == ["done", "DatabaseUnavailable", "done"]
    assert (report.rounds, report.failed) == (2, 1)


def test_one_round_fails_when_there_is_no_database(spark: SparkSession, database_url: str) -> None:
    nowhere = sqlalchemy.make_url(database_url).set(port=1).render_as_string(hide_password=False)
    with pytest.raises(errors.DatabaseUnavailable):
        run(spark, url=nowhere)


def test_rounds_have_a_time_between_them(spark: SparkSession, database_url: str) -> None:
    for every in (0.0, -1.0, float("nan")):
        with pytest.raises(errors.InvalidRequest, match="at least every"):
            run(spark, url=database_url, every=every)


def test_the_command_does_a_round(jobs: Jobs, client: msgtx.Client, overdue: TransactionId) -> None:
    assert jobs.run(command, "--dry-run").rows[0]["transactions_aborted"] == 1
    assert jobs.run(command, "--only", "overdue").rows[0]["transactions_aborted"] == 1
    assert client.transaction_outcome(overdue) is Outcome.ABORTED
    assert "transactions_aborted" in jobs.run(command, format="table").out
    for wrong in (("--every", "0"), ("--nonsense",)):
        with pytest.raises(click.UsageError):
            jobs.run(command, *wrong)
    with pytest.raises(errors.ConfigError):
        jobs.run(command, "--only", "nonsense")


def test_the_command_uses_a_session_when_it_is_given_a_master(
    spark: SparkSession, jobs: Jobs, overdue: TransactionId
) -> None:
    assert jobs.run(command, "--master", "local[1]").rows[0]["transactions_aborted"] == 1
    assert spark.sparkContext.parallelize([1]).count() == 1, "a session that existed before stays"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_rounds(database_url: str, number: signal.Signals, code: int) -> None:
    program = Program(database_url)
    with program.start("-o", "jsonl", "spark", "expire", "--every", "0.05") as process:
        assert process.stdout is not None
        for _ in range(2):
            assert json.loads(process.stdout.readline())["transactions_aborted"] == 0
        process.send_signal(number)
        done = program.ended(process)
    assert (done.code, done.err) == (code, "")
    assert all("time" in row for row in done.rows)
