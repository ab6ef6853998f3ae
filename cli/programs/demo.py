"""The main job: consume–transform–produce, exactly once, on PostgreSQL, with a crash in the middle.

Order lines go into a topic, one transaction per invoice; cancellations are first aborted: aborted data is really there.
Two worker processes turn lines into stock movements. One of them is stopped with a transaction open and killed; a
successor with the same transactional id takes its place. At the end SQL over the committed records is held against the
input.
"""

import contextlib
import csv
import gzip
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from msgtx.client import Client, connect
from msgtx.database.calls import query
from msgtx.errors import ConfigError, MsgtxError, TransactionalIdNotFound
from msgtx.producer.producer import Producer
from msgtx.types import Acknowledgement, OutputRecord, Record, TopicPartition, TransactionId

SOURCE: Final = "demo-order-lines"
TARGET: Final = "demo-stock-movements"
GROUP: Final = "demo-stock"
WORKERS: Final = ("demo-worker-1", "demo-worker-2")
PARTITIONS: Final = 6
MAILS: Final = "demo-mails"
MAILERS: Final = "demo-mailers"
FULL: Final = "the mailbox of customer 12345 is full"
INVOICE: Final = 536_365  # the first one, also of the real file
GENERATED_LINES: Final = 100_000
SEED: Final = 20101201
# Of the workers' membership: the killed one's partitions move within three seconds, not 45.
SESSION: Final = {"MSGTX_SESSION_TIMEOUT_MS": "3000", "MSGTX_HEARTBEAT_INTERVAL_MS": "500"}
WAIT_SECONDS: Final = 60.0  # for an open transaction of the first worker, or for progress of the workers
COLUMNS: Final = (
    "InvoiceNo",
    "StockCode",
    "Description",
    "Quantity",
    "InvoiceDate",
    "UnitPrice",
    "CustomerID",
    "Country",
)


class DemoFailed(MsgtxError):
    """The demo could not continue.

    The message says why.
    """


@dataclass(slots=True)
class InputFile:
    """The read records, counted while reading."""

    lines: int = 0
    quantity: int = 0
    value: Decimal = Decimal(0)
    by_country: dict[str, Decimal] = field(default_factory=dict)
    transactions: int = 0
    aborted: int = 0


@dataclass(slots=True)
class Step:
    """A row of the table at the end."""

    what: str
    count: str
    seconds: float | None = None
    rate: str = ""


@dataclass(slots=True)
class Killed:
    """The worker that was killed: its open transaction, as SQL showed it."""

    transaction_id: TransactionId
    partitions: int
    looks: int


@dataclass(slots=True)
class Report:
    """The counts of the run, and its checks."""

    steps: list[Step] = field(default_factory=list)
    checks: list[tuple[str, str, str]] = field(default_factory=list)
    killed: TransactionId | None = None
    invoice: str = ""  # the first one

    @property
    def passed(self) -> bool:
        """Whether every check agrees with the input."""
        return all(expected == found for _, expected, found in self.checks)


# ── the input ──


def generated_lines(count: int = GENERATED_LINES, seed: int = SEED) -> Iterator[list[str]]:
    """Return order lines of the same shape as the real file: seeded, so the same each time."""
    rng = random.Random(seed)  # noqa: S311 - data for a demo
    codes = [f"{rng.randrange(10_000, 99_999)}{rng.choice(['', '', 'A', 'B'])}" for _ in range(2_000)]
    written = 0
    invoice = INVOICE - 1
    while written < count:
        invoice += 1
        cancelled = rng.random() < 0.15
        number = f"{'C' if cancelled else ''}{invoice}"
        minute = invoice - INVOICE
        date = f"2010-12-{1 + minute // 1440 % 28:02} {minute // 60 % 24:02}:{minute % 60:02}:00"
        for _ in range(min(count - written, rng.choice([1, 2, 5, 12, 20, 25, 40]))):
            quantity = rng.randrange(1, 50) * (-1 if cancelled else 1)
            price = f"{rng.randrange(10, 2_000) / 100:.2f}"
            yield [number, rng.choice(codes), "GENERATED ITEM", str(quantity), date, price, "12345.0", "United Kingdom"]
            written += 1


def file_lines(path: Path) -> Iterator[list[str]]:
    """Return the lines of a CSV file (or a gzipped one) with the columns of the online retail data."""
    try:
        with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
            reader = csv.reader(file)
            header = next(reader, None)
            if header is None or tuple(header) != COLUMNS:
                raise ConfigError(f"{path}: the first line must be {','.join(COLUMNS)}")
            yield from reader
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: {error}") from error


def order_line(number: int, columns: list[str]) -> tuple[bytes, bytes]:
    """Return key (the stock code) and value (JSON) of an order line."""
    invoice, code, description, quantity, date, price, customer, country = columns
    text = (
        f'{{"line":{number},"invoice":{json.dumps(invoice)},"stock_code":{json.dumps(code)},'
        f'"description":{json.dumps(description)},"quantity":{int(quantity)},"date":{json.dumps(date)},'
        f'"unit_price":{Decimal(price)},"customer":{json.dumps(customer)},"country":{json.dumps(country)}}}'
    )
    return code.encode(), text.encode()


def stock_movement(record: Record) -> OutputRecord:
    """Transform an order line into a stock movement: the workers' function."""
    assert record.value is not None
    line = json.loads(record.value)
    movement = {
        "line": line["line"],
        "stock_code": line["stock_code"],
        "quantity": line["quantity"],
        "unit_price": line["unit_price"],
    }
    return OutputRecord(json.dumps(movement).encode(), key=record.key, timestamp=record.timestamp)


# ── the steps ──


def run(*, url: str | None, input_path: Path | None, output: Console, progress: Console) -> Report:
    """Run the demo. Returns its counts and checks; tables go to `output`, progress to `progress`."""
    with connect(url, create=True) as client:
        report = Report()
        make_topics(client, SOURCE, TARGET)
        lines = order_lines(input_path, output)
        with bars_on(progress) as bars:
            read = import_order_lines(client, lines, bars, report)
            _work(client, read, bars, report, output)
        _check(client, read, report)
        embedded = client.embedded
    print_report(report, output)
    _hints(output, embedded=embedded)
    return report


def sights(client: Client, report: Report) -> list[tuple[str, str]]:
    """Return what to look at in the console: words, and the address of a page. It sets a dead letter aside first."""
    make_topics(client, MAILS, partitions=1)
    client.admin.shares.configure(MAILERS, {"auto_offset_reset": "earliest"})
    with client.producer() as producer:
        for customer in ("12345", "17850", "13047"):
            producer.send(MAILS, json.dumps({"customer": customer, "text": "Thank you for your order."}).encode())
    with client.share_consumer(MAILS, group=MAILERS, acknowledgement_mode="explicit") as member:
        for record in member.poll(WAIT_SECONDS):
            is_full = record.offset == 0
            member.acknowledge(
                record,
                Acknowledgement.REJECT if is_full else Acknowledgement.ACCEPT,
                reason=FULL if is_full else None,
            )
        member.commit()
        member.poll(0.0)  # writes the dead letter
    return [
        ("the transaction of the killed worker", f"transaction?id={report.killed}"),
        ("the first invoice, and the groups that have processed it", f"search?q={quote(str(report.invoice), safe='')}"),
        ("a dead letter, with its reason and the way back", f"share?name={MAILERS}"),
    ]


def make_topics(client: Client, *names: str, partitions: int = PARTITIONS) -> None:
    """Make topics of the demo anew."""
    for topic in names:
        if topic in client.topics.list():
            client.topics.delete(topic)
        client.topics.create(topic, partitions)


def order_lines(path: Path | None, output: Console) -> Iterator[list[str]]:
    """Return the input's lines, and say where they come from."""
    if path is not None:
        return file_lines(path)
    output.print(f"Input: {GENERATED_LINES:,} generated order lines (seed {SEED}); --input FILE takes real ones.")
    return generated_lines()


def bars_on(console: Console) -> Progress:
    """Return bars of progress."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )


def import_order_lines(client: Client, lines: Iterable[list[str]], bars: Progress, report: Report) -> InputFile:
    """Send order lines to `SOURCE`, a transaction per invoice; cancellations are aborted first. Raise `ConfigError`."""
    read = InputFile()
    bar = bars.add_task("order lines in, a transaction per invoice", total=None)
    started = time.monotonic()
    with client.producer(transactional_id="demo-import") as producer:
        for invoice, run_of_lines in itertools.groupby(lines, key=lambda columns: columns[0]):
            records = []
            for columns in run_of_lines:
                read.lines += 1
                try:
                    records.append(order_line(read.lines, columns))
                    read.quantity += int(columns[3])
                    amount = int(columns[3]) * Decimal(columns[5])
                    read.value += amount
                    read.by_country[columns[7]] = read.by_country.get(columns[7], Decimal(0)) + amount
                except (ValueError, ArithmeticError) as error:
                    raise ConfigError(f"line {read.lines + 1} of the input is no order line: {columns!r}") from error
            if invoice.startswith("C"):
                _abort(producer, records)
                read.aborted += 1
            with producer.transaction():
                for key, value in records:
                    producer.send(SOURCE, value, key=key)
            read.transactions += 1
            report.invoice = report.invoice or invoice
            bars.update(bar, completed=read.lines)
    bars.update(bar, total=read.lines)
    seconds = time.monotonic() - started
    report.steps += [
        Step("order lines committed", f"{read.lines:,}", seconds, f"{read.lines / seconds:,.0f} records/s"),
        Step(
            "in transactions, one per invoice",
            f"{read.transactions:,}",
            seconds,
            f"{read.transactions / seconds:,.0f}/s",
        ),
        Step("transactions aborted on the way (cancellations)", f"{read.aborted:,}"),
    ]
    return read


def _abort(producer: Producer, records: list[tuple[bytes, bytes]]) -> None:
    producer.begin_transaction()
    for key, value in records:
        producer.send(SOURCE, value, key=key)
    producer.flush()
    producer.abort_transaction()


def _worker(client: Client, number: int) -> subprocess.Popen[bytes]:
    command = [
        *(sys.executable, "-m", "msgtx.cli", "process", SOURCE, TARGET, "msgtx.cli.programs.demo:stock_movement"),
        *("--group", GROUP, "--transactional-id", WORKERS[number], "--transaction-ms", "100"),
    ]
    environment = {**os.environ, **SESSION, "MSGTX_DATABASE_URL": client.secret_url}
    # Its own group: Ctrl-C reaches the parent alone, which ends its workers.
    return subprocess.Popen(  # noqa: S603 - our own command line, without a shell
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
    )


def _work(client: Client, read: InputFile, bars: Progress, report: Report, output: Console) -> None:
    bar = bars.add_task("stock movements out, two workers", total=read.lines)
    started = time.monotonic()
    workers = [_worker(client, 0), _worker(client, 1)]
    try:
        killed = _kill_in_a_transaction(client, workers[0])
        bars.console.print(
            f"worker 1 was stopped with transaction {killed.transaction_id} open (partitions: {killed.partitions}); killed"
        )
        report.killed = killed.transaction_id
        workers[0] = _worker(client, 0)
        _await_end_of(client, killed.transaction_id)
        decision = client.admin.transactions.outcome(killed.transaction_id)
        how = "by fencing" if decision.decided_by == "fence" else f"by {decision.decided_by}"
        output.print(
            f"Transaction {killed.transaction_id} of {WORKERS[0]}: open when its process was killed; ended with"
            f" {'ABORT' if decision.outcome == 'ABORTED' else decision.outcome}, {how}, when the successor took over."
        )
        report.checks.append(("end of the killed transaction", "ABORTED fence", f"{decision.outcome} {decision.decided_by}"))
        _await_caught_up(client, workers, bars, bar)
        seconds = time.monotonic() - started
        for worker in workers:
            worker.terminate()
        for number, worker in enumerate(workers):
            if worker.wait(30) not in {0, 130}:
                raise DemoFailed(f"worker {number + 1} ended with exit code {worker.returncode}")
    finally:
        _end(client, workers)
    report.steps += [
        Step("worker killed inside a transaction, successor started", "1"),
        Step("stock movements out", f"{read.lines:,}", seconds, f"{read.lines / seconds:,.0f} records/s"),
    ]
    bars.update(bar, completed=read.lines)


def _end(client: Client, workers: list[subprocess.Popen[bytes]]) -> None:
    """End workers that still run, and leave nothing open of them."""
    left = [worker for worker in workers if worker.poll() is None]
    for worker in left:
        worker.send_signal(signal.SIGCONT)
        worker.terminate()
    for worker in left:
        try:
            worker.wait(5)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
    if left:
        for transactional_id in WORKERS:
            with contextlib.suppress(TransactionalIdNotFound):
                client.admin.transactions.fence(transactional_id)


def _kill_in_a_transaction(client: Client, worker: subprocess.Popen[bytes]) -> Killed:
    """Kill a worker when SQL shows it in an open transaction with records, with no statement running."""
    deadline = time.monotonic() + WAIT_SECONDS
    looks = 0
    while time.monotonic() < deadline:
        if worker.poll() is not None:
            raise DemoFailed(f"worker 1 ended by itself with exit code {worker.returncode}")
        seen = _open_transaction(client)
        if seen is None:
            continue
        os.kill(worker.pid, signal.SIGSTOP)
        looks += 1
        if _open_transaction(client) == seen and sessions_idle(client, worker.pid):
            os.kill(worker.pid, signal.SIGKILL)
            worker.wait()
            return Killed(*seen, looks)
        os.kill(worker.pid, signal.SIGCONT)
    raise DemoFailed(f"no open transaction of {WORKERS[0]} was seen within {WAIT_SECONDS:g} s")


OPEN: Final = """
    select producer_id, producer_epoch, transaction_number, cardinality(partitions)
    from msgtx.transactions
    where transactional_id = %s and state = 'Ongoing' and cardinality(partitions) > 0"""
BUSY: Final = """
    select count(*) from pg_catalog.pg_stat_activity
    where application_name = %s and state <> 'idle'"""


def rows_of(client: Client, statement: str, *arguments: object) -> list[tuple[Any, ...]]:
    """Return the rows of a statement."""
    with client.runtime.engine.connection() as connection:
        return query(connection, statement, *arguments)


def _open_transaction(client: Client) -> tuple[TransactionId, int] | None:
    found = rows_of(client, OPEN, WORKERS[0])
    return (TransactionId(*found[0][:3]), found[0][3]) if found else None


def sessions_idle(client: Client, pid: int) -> bool:
    """Return whether a stopped process has no statement running, so that nothing more can be decided for it."""
    deadline = time.monotonic() + 0.2  # a statement that was under way when the process stopped ends by itself
    while rows_of(client, BUSY, f"msgtx {pid}")[0][0]:
        if time.monotonic() > deadline:
            return False
    return True


def _await_end_of(client: Client, transaction_id: TransactionId) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while client.transaction_outcome(transaction_id) == "OPEN":
        if time.monotonic() > deadline:
            raise DemoFailed(f"transaction {transaction_id} was not ended by the successor")
        time.sleep(0.01)


def _lag(client: Client) -> int:
    with client.consumer(group=GROUP, enable_auto_commit=False, auto_offset_reset="earliest") as consumer:
        consumer.assign(TopicPartition(SOURCE, index) for index in range(PARTITIONS))
        return sum(consumer.lag().values())


def _await_caught_up(client: Client, workers: list[subprocess.Popen[bytes]], bars: Progress, bar: Any) -> None:
    total = bars.tasks[bar].total or 0
    best = None
    progress_at = time.monotonic()
    while lag := _lag(client):
        if best is None or lag < best:
            best, progress_at = lag, time.monotonic()
        bars.update(bar, completed=total - lag)
        for number, worker in enumerate(workers):
            if worker.poll() is not None:
                raise DemoFailed(f"worker {number + 1} ended by itself with exit code {worker.returncode}")
        if time.monotonic() - progress_at > WAIT_SECONDS:
            raise DemoFailed(f"the workers made no progress for {WAIT_SECONDS:g} s, {lag} records behind")
        time.sleep(0.1)


TOTALS: Final = """
    select count(*), coalesce(sum(quantity), 0), coalesce(sum(quantity * unit_price), 0),
           count(distinct line), coalesce(max(line), 0)
    from (select (movement ->> 'line')::int as line, (movement ->> 'quantity')::int as quantity,
                 (movement ->> 'unit_price')::numeric as unit_price
          from (select convert_from(value, 'UTF8')::json as movement from msgtx.committed_records
                where topic = %s offset 0) m) n"""


def _check(client: Client, read: InputFile, report: Report) -> None:
    lines, quantity, value, distinct, last = rows_of(client, TOTALS, TARGET)[0]
    report.checks += [
        ("lines", f"{read.lines:,}", f"{lines:,}"),
        ("sum of Quantity", f"{read.quantity:,}", f"{quantity:,}"),
        ("sum of Quantity × UnitPrice", f"{read.value.normalize():,f}", f"{Decimal(value).normalize():,f}"),
        ("duplicates", "0", f"{lines - distinct:,}"),
        ("lost lines", "0", f"{max(read.lines, last) - distinct:,}"),
        ("lag of the group", "0", f"{_lag(client):,}"),
    ]


def _hints(output: Console, *, embedded: bool) -> None:
    program = Path(sys.argv[0])
    name = os.path.relpath(program) if program.name == "msgtx" and program.is_absolute() else str(program)
    name = name if Path(name).name == "msgtx" else "msgtx"
    output.print("\nLook around:")
    output.print(f"  {name} consume {TARGET} --from-beginning --max-messages 3")
    output.print(f"  {name} groups describe {GROUP}")
    output.print(f"  {name} transactions list")
    if embedded:
        output.print(f"The embedded PostgreSQL goes on running; {name} db stop ends it.")


def print_report(report: Report, output: Console) -> None:
    """Show the counts and checks."""
    steps = Table("done", "count", "seconds", "rate", title="What was done")
    for column in steps.columns[1:]:
        column.justify = "right"
    for step in report.steps:
        steps.add_row(step.what, step.count, "" if step.seconds is None else f"{step.seconds:.1f}", step.rate)
    output.print(steps)
    checks = Table("check", "input", "committed records", "", title="Checked with SQL against the input")
    for name, expected, found in report.checks:
        checks.add_row(name, expected, found, "ok" if expected == found else "FAILED")
    output.print(checks)
    with contextlib.suppress(BrokenPipeError):
        output.print("Exactly once: every line is there, and none twice." if report.passed else "A check FAILED.")
