"""The main job: what `make demo` runs, on a small input."""

import csv
import io
from pathlib import Path

import pytest
from rich.console import Console

from msgtx.cli.programs import demo
from msgtx.errors import ConfigError
from tests.databases import INSERT_ONLY, Connection

pytestmark = pytest.mark.long

LINES = 40_000  # enough for both workers, also if one starts some seconds after the other


def write_input(path: Path, lines: list[list[str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(demo.COLUMNS)
        writer.writerows(lines)
    return path


def test_the_demo_is_exactly_once_and_only_inserts(database_url: str, connection: Connection, tmp_path: Path) -> None:
    """A worker is killed inside a transaction; all lines arrive once; no insert-only table is updated (I1, I4, I7, I10)."""
    path = write_input(tmp_path / "orders.csv", list(demo.generated_lines(LINES)))
    output, progress = io.StringIO(), io.StringIO()
    report = demo.run(
        url=database_url,
        input_path=path,
        output=Console(file=output, width=160),
        progress=Console(file=progress, width=160),
    )
    assert report.passed, output.getvalue() + progress.getvalue()
    assert "ended with ABORT, by fencing" in output.getvalue()
    changed = connection.execute(
        "select relname, n_tup_upd, n_tup_del from pg_stat_user_tables"
        " where schemaname = 'msgtx' and relname = any(%s) and n_tup_upd + n_tup_del > 0",
        [list(INSERT_ONLY)],
    ).fetchall()
    assert changed == []
    undecided = connection.execute("select count(*) from msgtx.transactions where state = 'Ongoing'").fetchone()
    assert undecided == (0,)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([["1", "A", "x", "many", "2010-12-01 08:26:00", "1.0", "", "UK"]], "line 2 of the input is no order line"),
        ([["1", "A"]], "line 2 of the input is no order line"),
    ],
)
def test_a_line_that_is_no_order_line_is_named(
    database_url: str, tmp_path: Path, lines: list[list[str]], message: str
) -> None:
    path = write_input(tmp_path / "orders.csv", lines)
    with pytest.raises(ConfigError, match=message):
        demo.run(url=database_url, input_path=path, output=Console(file=io.StringIO()), progress=Console(file=io.StringIO()))


def test_a_file_with_other_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="the first line must be InvoiceNo"):
        list(demo.file_lines(path))


def test_generated_lines_are_the_same_each_time() -> None:
    assert list(demo.generated_lines(500)) == list(demo.generated_lines(500))
    assert any(line[0].startswith("C") for line in demo.generated_lines(500))
