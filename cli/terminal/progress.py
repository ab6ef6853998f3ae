"""Progress on stderr, when that is a terminal."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Protocol


class Told(Protocol):
    """Called by a verb with its progress: how far it is, in total, and a few words."""

    def __call__(self, completed: int, text: str) -> None:
        """Show it."""
        ...


@contextlib.contextmanager
def progress(what: str, *, total: int | None = None, in_bytes: bool = False) -> Iterator[Told]:
    """Show a bar (without total: a sign of life) as long as the block runs; elsewhere than on a terminal nothing."""
    if not sys.stderr.isatty():
        yield lambda completed, text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    amount = [DownloadColumn()] if in_bytes else []
    remaining = [TimeRemainingColumn()] if total is not None else []
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *amount,
        TextColumn("{task.fields[text]}", markup=False),
        TimeElapsedColumn(),
        *remaining,
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(what, total=total, text="")
        yield lambda completed, text: bar.update(task, completed=completed, text=text)
