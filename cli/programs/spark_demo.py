"""The main job on Spark: order lines to stock movements and revenue, exactly once, with an executor and the driver killed.

Order lines go into a topic, one transaction per invoice. `msgtx spark pipeline`, a process with executors of its own, turns
them into stock movements and revenue per country, in one transaction per batch over two topics. One of its executors is
killed, then the driver itself, each in the middle of a batch. This process continues in its place. At the end the committed
records are compared with the input, exported and drawn.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from rich.console import Console
from rich.progress import Progress

from msgtx.cli.programs.demo import (
    SOURCE,
    TOTALS,
    DemoFailed,
    InputFile,
    Report,
    Step,
    bars_on,
    import_order_lines,
    make_topics,
    order_lines,
    print_report,
    rows_of,
)
from msgtx.client import Client, connect
from msgtx.database.calls import query
from msgtx.errors import ConfigError
from msgtx.spark_jobs import pipeline
from msgtx.spark_jobs import report as rates_of
from msgtx.spark_jobs.export import export
from msgtx.spark_jobs.runtime.chart import draw
from msgtx.spark_jobs.runtime.page import page
from msgtx.spark_jobs.session import opened
from msgtx.types import TopicPartition, TransactionId

MOVEMENTS: Final = "demo-spark-movements"
REVENUE: Final = "demo-spark-revenue"
GROUP: Final = "demo-spark"
# Two executors, each a process with a core: a cluster on this machine.
MASTER: Final = "local-cluster[2,1,1024]"
# Each of its Java processes runs for a minute: to optimise code and to collect garbage in parallel took 40 % of their time.
SHORT_RUN: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS: Final = {
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": SHORT_RUN,
    "spark.executor.extraJavaOptions": SHORT_RUN,
}
BATCHES: Final = 6  # into which the input is divided, about: enough to kill in some, and to go on after
WAIT_SECONDS: Final = 240.0  # for the driver's start, or its next batch
LOOK_SECONDS: Final = 0.1  # a look takes 8 ms of a processor
ENDING_SECONDS: Final = 60.0
LINE: Final = "line bigint, invoice string, stock_code string, quantity bigint, unit_price decimal(18,3), country string"


def movements_and_revenue(rows: DataFrame) -> DataFrame:
    """Transform order lines into stock movements, and into the revenue of each country in this batch."""
    lines = rows.select(F.from_json(F.col("value").cast("string"), LINE).alias("line"), "timestamp").select(
        "line.*", "timestamp"
    )
    movements = lines.select(
        F.col("stock_code").alias("key"),
        F.to_json(F.struct("line", "stock_code", "quantity", "unit_price")).alias("value"),
        F.lit(MOVEMENTS).alias("topic"),
    )
    value = F.sum(F.col("quantity") * F.col("unit_price")).alias("value")
    revenue = lines.groupBy("country").agg(F.count("*").alias("lines"), value)
    return movements.unionByName(
        revenue.select(
            F.col("country").alias("key"),
            F.to_json(F.struct("country", "lines", "value")).alias("value"),
            F.lit(REVENUE).alias("topic"),
        )
    )


def run(*, url: str | None, input_path: Path | None, folder: Path, output: Console, progress: Console, debug: bool) -> bool:
    """Run the demo. Returns whether every check passed; files go to `folder`, tables to `output`, progress to `progress`."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there and not empty: name another --folder for what the demo writes")
    folder.mkdir(parents=True, exist_ok=True)
    report = Report()
    with connect(url, create=True) as client:
        make_topics(client, SOURCE, MOVEMENTS, REVENUE)
        lines = order_lines(input_path, output)
        with bars_on(progress) as bars:
            read = import_order_lines(client, lines, bars, report)
            if read.transactions < BATCHES:
                raise ConfigError(
                    f"the input has {read.transactions} invoices; --spark needs {BATCHES}: a batch holds whole ones"
                )
            drive = _Drive(client, read, bars, report, output)
            drive.kill()
            with opened("msgtx demo", master=MASTER, debug=debug, **SETTINGS) as spark:
                drive.succeed(spark)
                _check(client, read, report)
                bar = bars.add_task("Parquet and a chart", total=2)
                _export(spark, client, read, report, folder / "parquet")
                bars.advance(bar)
                _draw(spark, client, folder)
                bars.advance(bar)
    print_report(report, output)
    for what, where in (("Parquet", "parquet"), ("Chart", "report.png"), ("Page", "report.html")):
        output.print(f"{what}: {folder / where}")
    return report.passed


# ── the pipeline, and its faults ──


class _Drive:
    """Runs the driver as a process; kills an executor of it, then the driver; continues in its place."""

    def __init__(self, client: Client, read: InputFile, bars: Progress, report: Report, output: Console) -> None:
        self._client = client
        self._read = read
        self._bars = bars
        self._report = report
        self._output = output
        self._bar = bars.add_task("movements and revenue out, two executors", total=read.lines)
        # More than lines: aborted records, and the markers.
        self._offsets = sum(client.admin.partitions.describe(each).log_end_offset for each in _partitions(client))
        self._most = self._offsets // BATCHES
        self._killed: dict[str, TransactionId] = {}
        self._began = time.monotonic()

    def kill(self) -> None:
        """Start a driver, and kill an executor of it and itself, in two batches."""
        driver = self._start()
        try:
            self._killed["executor"] = self._kill_executor(driver)
            self._await(driver, self._passed, "the end of the batch whose executor was killed")
            self._killed["driver"] = self._kill_driver(driver)
        finally:
            _end(driver)

    def succeed(self, spark: SparkSession) -> None:
        """Run the pipeline to its end. The rate is that of its batches behind the first, which waits for the executors."""
        batches: list[pipeline.PipelineReport] = []

        def tell(done: pipeline.PipelineReport) -> None:
            batches.append(done)
            self._passed()

        pipeline.run(
            spark, SOURCE, movements_and_revenue, group=GROUP, url=self._client.secret_url, once=True,
            max_offsets=self._most, on_batch=tell,
        )  # fmt: skip
        for name, each in self._killed.items():
            found = self._client.admin.transactions.outcome(each)
            self._report.checks.append((f"end of the {name}'s transaction", "ABORTED", str(found.outcome)))
        took = time.monotonic() - self._began
        self._report.steps.append(Step("order lines through the pipeline, with both kills", f"{self._read.lines:,}", took))
        first, last = batches[0], batches[-1]
        if written := last.records_out - first.records_out:
            seconds = last.seconds - first.seconds
            step = Step("records out of the last batches", f"{written:,}", seconds, f"{written / seconds:,.0f} records/s")
            self._report.steps.append(step)

    def _start(self) -> subprocess.Popen[bytes]:
        command = [
            *(sys.executable, "-m", "msgtx.cli", "spark", "pipeline", SOURCE, f"{__name__}:movements_and_revenue"),
            *("--group", GROUP, "--max-offsets-per-trigger", str(self._most), "--interval-ms", "0", "--master", MASTER),
            *(part for name, value in SETTINGS.items() for part in ("--conf", f"{name}={value}")),
        ]
        environment = {**os.environ, "MSGTX_DATABASE_URL": self._client.secret_url}
        # Its own group: Ctrl-C reaches the parent alone, which ends it.
        return subprocess.Popen(  # noqa: S603 - our own command line, without a shell
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def _kill_executor(self, driver: subprocess.Popen[bytes]) -> TransactionId:
        """Kill the executor of a writing task. The driver writes a task's rows once more if it had no answer."""
        while True:
            with self._writing(driver) as process:
                backends = (each for each in _ancestors(process) if "CoarseGrainedExecutorBackend" in _command(each))
                executor = next(backends, None)
                if executor is not None:
                    os.kill(executor, signal.SIGKILL)
            if executor is not None:
                return self._left_open(process, f"Executor {executor}")

    def _kill_driver(self, driver: subprocess.Popen[bytes]) -> TransactionId:
        """Kill the driver while one of its tasks writes: nothing of the batch is decided."""
        with self._writing(driver) as process:
            driver.kill()
            driver.wait()
        return self._left_open(process, f"Driver {driver.pid}")

    @contextlib.contextmanager
    def _writing(self, driver: subprocess.Popen[bytes]) -> Iterator[int]:
        """Give the process of a task that appends. The task waits for a lock, and answers nothing, until the block ends."""
        with self._client.runtime.engine.rolled_back() as connection:
            ((holder,),) = query(connection, HOLD, PARTITION_LOCKS, MOVEMENTS)
            yield self._await(
                driver, lambda: [row[0] for row in rows_of(self._client, HELD_UP, holder)], "a task that writes"
            )[0]

    def _left_open(self, process: int, killed: str) -> TransactionId:
        """Return the transaction that a process has left: PostgreSQL stores what it had received, without an answer."""
        deadline = time.monotonic() + ENDING_SECONDS
        while time.monotonic() < deadline:
            for row in rows_of(self._client, OPEN, process):
                name = TransactionId(*row)
                self._output.print(f"{killed} killed with transaction {name} open.")
                return name
            time.sleep(LOOK_SECONDS)
        raise DemoFailed(f"{killed} was killed, and its transaction was not seen")

    def _passed(self) -> int:
        """Return how many offsets the group has passed, and show it."""
        passed = sum(each.offset for each in self._client.admin.groups.offsets(GROUP).values())
        self._bars.update(self._bar, completed=self._read.lines * passed // self._offsets)
        return passed

    def _await(self, driver: subprocess.Popen[bytes], condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + WAIT_SECONDS
        while not (found := condition()):
            if driver.poll() is not None:
                raise DemoFailed(f"the pipeline ended by itself with exit code {driver.returncode}; it was to reach {what}")
            if time.monotonic() > deadline:
                raise DemoFailed(f"the pipeline did not reach {what} within {WAIT_SECONDS:g} s")
            time.sleep(LOOK_SECONDS)
        return found


PARTITION_LOCKS: Final = 1_836_279_555  # as in `msgtx.lock_partition`: an append waits for its partitions
HOLD: Final = """
    select pg_catalog.pg_backend_pid() from (
        select count(pg_catalog.pg_advisory_xact_lock(%s::int, partition_id))
        from (select partition_id from msgtx.partitions where topic = %s order by partition_id) p) locked"""
HELD_UP: Final = """
    select pg_catalog.substr(application_name, 7)::int from pg_catalog.pg_stat_activity
    where application_name ~ '^msgtx \\d+$' and %s = any (pg_catalog.pg_blocking_pids(pid))"""
OPEN: Final = """
    select producer_id, producer_epoch, transaction_number from msgtx.transactions
    where state = 'Ongoing' and transactional_id is null and client_process = %s order by producer_id desc"""
EARNED: Final = """
    select revenue ->> 'country', sum((revenue ->> 'value')::numeric)
    from (select convert_from(value, 'UTF8')::json as revenue from msgtx.committed_records
          where topic = %s offset 0) r
    group by 1"""


def _partitions(client: Client) -> list[TopicPartition]:
    return [TopicPartition(SOURCE, index) for index in range(client.topics.describe(SOURCE).partitions)]


def _ancestors(process: int) -> Iterator[int]:
    """Yield the processes above one, the nearest first; ended ones have none."""
    while process > 1:
        try:
            status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
        except OSError:
            return
        process = int(re.search(r"^PPid:\s+(\d+)", status, re.MULTILINE)[1])  # type: ignore[index]  # Linux says it
        yield process


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _end(driver: subprocess.Popen[bytes]) -> None:
    if driver.poll() is None:
        driver.send_signal(signal.SIGCONT)
        driver.terminate()
        try:
            driver.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            driver.kill()
            driver.wait()


# ── results ──


def _check(client: Client, read: InputFile, report: Report) -> None:
    lines, quantity, value, distinct, last = rows_of(client, TOTALS, MOVEMENTS)[0]
    earned = {country: Decimal(amount) for country, amount in rows_of(client, EARNED, REVENUE)}
    wrong = [country for country, amount in read.by_country.items() if earned.get(country) != amount]
    report.checks += [
        ("lines", f"{read.lines:,}", f"{lines:,}"),
        ("sum of Quantity", f"{read.quantity:,}", f"{quantity:,}"),
        ("sum of Quantity × UnitPrice", _amount(read.value), _amount(Decimal(value))),
        ("the same, from revenue per country", _amount(read.value), _amount(sum(earned.values(), Decimal(0)))),
        ("countries with another revenue", "0", str(len(wrong) + len(earned.keys() - read.by_country.keys()))),
        ("duplicates", "0", f"{lines - distinct:,}"),
        ("lost lines", "0", f"{max(read.lines, last) - distinct:,}"),
    ]


def _amount(value: Decimal) -> str:
    return f"{value.normalize():,f}"


def _export(spark: SparkSession, client: Client, read: InputFile, report: Report, folder: Path) -> None:
    began = time.monotonic()
    written = export(spark, [MOVEMENTS, REVENUE], str(folder), url=client.secret_url)
    seconds = time.monotonic() - began
    rate = f"{written.records / seconds:,.0f} records/s"
    report.steps.append(Step("records exported as Parquet", f"{written.records:,}", seconds, rate))
    movements = spark.read.parquet(str(folder)).where(F.col("topic") == MOVEMENTS)
    quantity = F.sum(F.get_json_object(F.col("value").cast("string"), "$.quantity").cast("bigint"))
    found = movements.agg(F.count("*"), quantity).first()
    assert found is not None
    report.checks += [
        ("lines in Parquet", f"{read.lines:,}", f"{found[0]:,}"),
        ("sum of Quantity in Parquet", f"{read.quantity:,}", f"{found[1] or 0:,}"),
    ]


def _draw(spark: SparkSession, client: Client, folder: Path) -> None:
    rates = rates_of.run(spark, [SOURCE, MOVEMENTS, REVENUE], url=client.secret_url)
    picture = draw(rates)
    (folder / "report.png").write_bytes(picture)
    (folder / "report.html").write_text(page(rates, picture), encoding="utf-8")
