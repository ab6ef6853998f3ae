"""The main job on Spark, as the command line runs it: executors as processes, one of them killed, then the driver."""

import contextlib
import csv
import json
import os
import re
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pyarrow.dataset
from matplotlib import image

import msgtx
from msgtx.cli.programs.demo import COLUMNS
from msgtx.types import TransactionId
from tests.databases import wait_until
from tests.spark.programs import PATIENCE_SECONDS, is_alive

SECONDS = 600.0
MOVEMENTS, REVENUE = "demo-spark-movements", "demo-spark-revenue"
COUNTRIES = ("United Kingdom", "France", "EIRE", "Côte d'Ivoire")
# As in the real file: fees, corrections without a customer, bad debts below zero, free items, thousandths.
ODD = [line.split(";") for line in (
    "536414;22139;;56;2010-12-01 11:52:00;0.0;;United Kingdom",
    '536589;21777;damaged, "as is"\nand returned;-10;2010-12-01 16:50:00;0.00;;United Kingdom',
    "A563186;B;Adjust bad debt;1;2011-08-12 14:51:00;-11062.06;;United Kingdom",
    "550193;PADS;PADS TO MATCH ALL CUSHIONS;1;2011-04-15 09:27:00;0.001;13952.0;Unspecified",
    "C537630;AMAZONFEE;AMAZON FEE;-1;2010-12-07 15:04:00;13541.33;;United Kingdom",
    "581483;23843;PAPER CRAFT , LITTLE BIRDIE;80995;2011-12-09 09:15:00;2.08;16446.0;United Kingdom",
    "C581484;23843;PAPER CRAFT , LITTLE BIRDIE;-80995;2011-12-09 09:27:00;2.08;16446.0;United Kingdom",
    "567656;M;Manuel – façade ☕;+3;2011-09-21 14:40:00; 1e1;14096.0;EIRE",
)]  # fmt: skip


def order_lines() -> list[list[str]]:
    """500 invoices with one to 15 lines, each seventh a cancellation, with some odd lines."""
    found = []
    for number in range(500):
        sign = "C" if number % 7 == 3 else ""
        for line in range(number * 11 % 15 + 1):
            code, quantity = f"{20_000 + (number * 7 + line) % 400}", (line % 24 + 1) * (-1 if sign else 1)
            price, country = f"{(number + line) % 900 / 100:.2f}", COUNTRIES[number % len(COUNTRIES)]
            values = (code, "MADE ITEM", str(quantity), "2011-03-01 10:00:00", price, "12345.0", country)
            found.append([f"{sign}{600_000 + number}", *values])
        found += ODD[number // 60 : number // 60 + 1] if number % 60 == 0 else []
    return found


def write_input(path: Path, lines: list[list[str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, *lines])
    return path


def run_demo(url: str, order_lines: Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run the command to its end; all processes that it started have to end, too."""
    command = [sys.executable, "-m", "msgtx.cli", "--url", url, "demo", "--spark"]
    command += ["--input", str(order_lines), "--folder", str(folder)]
    mark = {"OF_TEST": str(order_lines)}  # which all processes that it starts inherit
    try:
        done = subprocess.run(
            command, env={**os.environ, **mark}, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
            timeout=SECONDS,
        )  # fmt: skip
        wait_until(lambda: not processes_with(mark), "what the demo started has ended", seconds=PATIENCE_SECONDS)
    finally:
        for process in processes_with(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    return done


def processes_with(mark: dict[str, str]) -> list[int]:
    """Return the processes that have these variables in their environment."""
    wanted = [f"{name}={value}".encode() for name, value in mark.items()]
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if set(wanted) <= set(path.read_bytes().split(b"\0")):
                found.append(int(path.parent.name))
    return found


def totals(lines: list[list[str]]) -> tuple[int, int, Decimal]:
    """Return the number of lines, the sum of their quantities, and the sum of their values."""
    values = [(int(line[3]), Decimal(line[5])) for line in lines]
    return len(lines), sum(quantity for quantity, _ in values), sum((q * price for q, price in values), Decimal(0))


def checks(out: str) -> dict[str, list[str]]:
    """Return the rows of the last table: what was checked, the input, what is committed, and whether that is right."""
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines() if line.startswith("│")]
    return {row[0]: row[1:] for row in rows[[len(row) for row in rows].index(4) :] if row[-1] in {"ok", "FAILED"}}


def test_the_demo_on_spark_is_exactly_once(database_url: str, client: msgtx.Client, tmp_path: Path) -> None:
    """I10, P20: an executor and the driver are killed in a batch; what they wrote is aborted, all else is stored once."""
    lines = order_lines()
    count, quantity, value = totals(lines)
    folder = tmp_path / "out"
    done = run_demo(database_url, write_input(tmp_path / "lines.csv", lines), folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Exactly once: every line is there, and none twice." in done.stdout

    worth = f"{value.normalize():,f}"
    expected = {
        "end of the executor's transaction": "ABORTED",
        "end of the driver's transaction": "ABORTED",
        "lines": f"{count:,}",
        "sum of Quantity": f"{quantity:,}",
        "sum of Quantity × UnitPrice": worth,
        "the same, from revenue per country": worth,
        "countries with another revenue": "0",
        "duplicates": "0",
        "lost lines": "0",
        "lines in Parquet": f"{count:,}",
        "sum of Quantity in Parquet": f"{quantity:,}",
    }
    assert checks(done.stdout) == {name: [each, each, "ok"] for name, each in expected.items()}

    killed = re.findall(
        r"^(Executor|Driver) (\d+) killed with transaction (\d+)\.(\d+)\.(\d+) open", done.stdout, re.MULTILINE
    )
    assert [who for who, *_ in killed] == ["Executor", "Driver"]
    for _, process, *name in killed:
        assert not is_alive(int(process))
        assert client.admin.transactions.outcome(TransactionId(*map(int, name))).outcome == "ABORTED"
    assert "Ongoing" not in {each.state for each in client.admin.transactions.list()}

    check_parquet(folder / "parquet", lines)
    assert (folder / "report.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert image.imread(folder / "report.png").std() > 0.01  # a picture of one colour has none
    assert "<img" in (folder / "report.html").read_text(encoding="utf-8")


def check_parquet(folder: Path, lines: list[list[str]]) -> None:
    """Compare what a reader other than Spark finds there with the input."""
    table = pyarrow.dataset.dataset(folder, format="parquet", partitioning="hive").to_table(columns=["topic", "value"])
    found: dict[str, list[dict[str, object]]] = {MOVEMENTS: [], REVENUE: []}
    for topic, value in zip(table["topic"].to_pylist(), table["value"].to_pylist(), strict=True):
        found[topic].append(json.loads(value, parse_float=Decimal))
    moved = sorted((each["line"], each["stock_code"], each["quantity"], each["unit_price"]) for each in found[MOVEMENTS])
    assert moved == [(number, line[1], int(line[3]), Decimal(line[5])) for number, line in enumerate(lines, 1)]
    for country in {line[7] for line in lines}:
        of_country = [each for each in found[REVENUE] if each["country"] == country]
        count, _, value = totals([line for line in lines if line[7] == country])
        assert (sum(each["lines"] for each in of_country), sum(each["value"] for each in of_country)) == (count, value)


def test_a_folder_that_holds_something_is_refused(database_url: str, tmp_path: Path) -> None:
    path = write_input(tmp_path / "lines.csv", ODD)
    refused = run_demo(database_url, path, tmp_path)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "is there and not empty: name another --folder" in refused.stderr


def test_an_input_with_too_few_invoices_for_the_kills_is_refused(database_url: str, tmp_path: Path) -> None:
    refused = run_demo(database_url, write_input(tmp_path / "lines.csv", ODD[:5]), tmp_path / "out")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "the input has 5 invoices; --spark needs 6" in refused.stderr
