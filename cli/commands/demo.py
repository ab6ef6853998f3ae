"""`msgtx demo`."""

import sys
import tempfile
from pathlib import Path
from typing import Final

import click

from msgtx.cli.spark.running import require_extra
from msgtx.cli.terminal.failure import FAILED
from msgtx.cli.terminal.interruption import deferred
from msgtx.cli.terminal.invocation import Command, Invocation, option, pass_invocation

COLUMNS: Final = 120  # if stdout is no terminal: rich would fold lines at 80


@click.command("demo", cls=Command)
@option(
    "--input",
    type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
    metavar="FILE",
    help="A CSV file of order lines, also as .gz.  [default: generated ones]",
)
@option("--spark", is_flag=True, help="Run on Spark, with two executors; one of them is killed, then the driver.")
@option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Where --spark writes Parquet and a chart.  [default: a new folder in the temporary folder]",
)
@pass_invocation
def command(invocation: Invocation, *, input: Path | None, spark: bool, folder: Path | None) -> int:
    """Run the main job from start to finish: order lines in, stock movements out, and a crash in the middle."""
    if folder is not None and not spark:
        raise click.UsageError("--folder goes with --spark")
    if invocation.format != "table":
        raise click.UsageError("the demo prints tables only: leave --output out")
    with deferred():
        from rich.console import Console

        from msgtx.cli.programs import demo
    output = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else COLUMNS)
    progress = Console(stderr=True)
    if spark:
        require_extra()
        with deferred():
            from msgtx.cli.programs import spark_demo as on_spark
        target = folder or Path(tempfile.mkdtemp(prefix="msgtx-demo-"))
        passed = on_spark.run(
            url=invocation.url, input_path=input, folder=target, output=output, progress=progress, debug=invocation.debug
        )
    else:
        try:
            passed = demo.run(url=invocation.url, input_path=input, output=output, progress=progress)
        except KeyboardInterrupt:
            click.echo("msgtx: interrupted; the topics demo-… stay, the next demo makes them anew", err=True)
            raise
    return 0 if passed else FAILED
