"""The main job on Spark, as the command line runs it: executors as processes, one of them killed, then the driver."""

import csv
import os
import subprocess
import sys
from pathlib import Path

from msgtx import demo

LINES = 24_000
SECONDS = 900.0


def test_the_demo_on_spark_is_exactly_once(database_url: str, tmp_path: Path) -> None:
    order_lines = tmp_path / "lines.csv"
    with order_lines.open("w", newline="") as file:
        csv.writer(file).writerows([demo.COLUMNS, *demo.generated_lines(LINES)])
    folder = tmp_path / "out"
    command = [sys.executable, "-m", "msgtx.cli", "--url", database_url, "demo", "--spark"]
    command += ["--input", str(order_lines), "--folder", str(folder)]
    done = subprocess.run(
        command, env={**os.environ, "COLUMNS": "120"}, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Exactly once: every line is there, and none twice." in done.stdout
    assert "killed with transaction" in done.stdout
    assert (folder / "report.png").stat().st_size > 10_000
    assert "<img" in (folder / "report.html").read_text(encoding="utf-8")
    assert list((folder / "parquet").rglob("*.parquet"))
    again = subprocess.run(command, env={**os.environ}, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "not empty" in again.stderr
