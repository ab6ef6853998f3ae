"""Data on stdout: a table for people, JSON or JSON lines for programs, with the same names."""

import json
import select
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgtx.cli.terminal.failure import CommandFailed
from msgtx.rows import json_of, printable

Row = Mapping[str, Any]
WIDEST: Final = 100_000  # columns: a table that nothing is wrapped in


def show_many(format_name: str, rows: Iterable[Row], columns: Sequence[str]) -> None:
    """Show rows: a table with these columns, a JSON array, or a JSON object per line."""
    rows = list(rows)
    if format_name == "json":
        write(json.dumps([json_of(row) for row in rows], ensure_ascii=False, indent=2) + "\n")
    elif format_name == "jsonl":
        write("".join(json.dumps(json_of(row), ensure_ascii=False) + "\n" for row in rows))
    else:
        show_table(columns, [[row[column] for column in columns] for row in rows])


def show_one(format_name: str, row: Row) -> None:
    """Show one thing: a line per field, or a JSON object."""
    if format_name == "table":
        show_table(("", ""), list(row.items()))
    else:
        write(json.dumps(json_of(row), ensure_ascii=False, indent=2 if format_name == "json" else None) + "\n")


def show_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None) -> None:
    """Print a table: with rules on a terminal, plain columns elsewhere. Numbers stand right."""
    if not sys.stdout.isatty():
        _show_plain(columns, rows, title)
        return
    from rich import box
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False)
    table = Table(
        box=box.SIMPLE_HEAD,
        show_header=any(columns),
        pad_edge=False,
        title=title,
        title_justify="left",
    )
    for column, numbers in zip(columns, _numbers(columns, rows), strict=True):
        table.add_column(Text(column), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    if any(columns) and Measurement.get(console, console.options.update(width=WIDEST), table).minimum > console.width:
        # Narrower than the longest words of its columns, a table would break them letter by letter.
        _show_blocks(columns, rows)
        return
    with console.capture() as captured:  # if rich wrote itself, it would end the program when a reader leaves
        console.print(table)
    write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))


def _show_plain(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None) -> None:
    """Print a table for a program: nothing is wrapped. Without rich, whose import takes as long as a question."""
    lines = [[*columns]] if any(columns) else []
    lines += [[_cell(value) for value in row] for row in rows]
    widths = [max(map(_width, cells)) for cells in zip(*lines, strict=True)]
    to_the_right = _numbers(columns, rows)
    written = [] if title is None else [title]
    for line in lines:
        spaces = [" " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)]
        cells = [
            space + cell if right else cell + space for cell, space, right in zip(line, spaces, to_the_right, strict=True)
        ]
        written.append("  ".join(cells).rstrip())
    write("".join(f"{line}\n" for line in written))


def _numbers(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[bool]:
    """Return for each column whether it holds numbers, which stand right."""
    return [bool(rows) and all(isinstance(row[index], int | float | None) for row in rows) for index in range(len(columns))]


def _width(text: str) -> int:
    """Return the columns that a text takes: an East Asian letter takes two, an accent of its own none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(each) else 1 + (unicodedata.east_asian_width(each) in "WF") for each in text)


def _show_blocks(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a line for each cell, and an empty one between rows: for a terminal that is narrower than the table."""
    width = max(map(len, columns))
    blocks = [
        "".join(f"{name:<{width}}  {_cell(value)}\n" for name, value in zip(columns, row, strict=True)) for row in rows
    ]
    write("\n".join(blocks))


def require_stdout() -> None:
    """Raise `Failed` if the caller closed stdout (`>&-`): for a command that counts printed records as done."""
    if sys.__stdout__ is None:
        raise CommandFailed("stdout is closed: nothing can be printed, so no record was taken")


def reader_has_left() -> bool:
    """Return whether nobody reads stdout any more: the other end of its pipe is closed."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return bool(poll.poll(0))


def write(text: str) -> None:
    """Write to stdout as UTF-8, with any locale."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode(errors="backslashreplace"))
    sys.stdout.buffer.flush()


def _cell(value: Any) -> str:
    """Return a value for a table."""
    if value is None:
        return "-"
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return ", ".join(map(_cell, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_cell(content)}" for name, content in value.items())
    return printable(f"{value:.3f}" if isinstance(value, float) else str(value))
