"""`msgtx demo`."""

import sys
from pathlib import Path
from typing import Final

import click

from msgtx.cli.failure import FAILED
from msgtx.cli.interruption import deferred
from msgtx.cli.options import Command, Invocation, option, pass_invocation

COLUMNS: Final = 120  # of what is no terminal: rich would fold lines at 80


@click.command("demo", cls=Command)
@option(
    "--input",
    type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
    metavar="FILE",
    help="Order lines as CSV, .gz too.  [default: generated ones]",
)
@pass_invocation
def command(invocation: Invocation, input: Path | None) -> int:
    """Run the main job from nothing to a result: order lines in, stock movements out, and a crash in the middle."""
    with deferred():
        from rich.console import Console

        from msgtx import demo
    output = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else COLUMNS)
    passed = demo.run(url=invocation.url, input_path=input, output=output, progress=Console(stderr=True))
    return 0 if passed else FAILED
