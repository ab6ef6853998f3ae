"""`msgtx demo`."""

import socket
import sys
import tempfile
from pathlib import Path
from typing import Final

import click

from msgtx.cli.commands.console import address_of, listen, require_console, serve
from msgtx.cli.spark.running import require_extra
from msgtx.cli.terminal.database import connect
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
@option("--console", is_flag=True, help="Then show its records in a browser, until Ctrl-C.")
@option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8123,
    envvar="MSGTX_CONSOLE_PORT",
    help="Of --console; 0: any free one.",
)
@option("--allow-changes", is_flag=True, help="With --console: everybody on this machine may press its buttons.")
@pass_invocation
def command(
    invocation: Invocation,
    *,
    input: Path | None,
    spark: bool,
    folder: Path | None,
    console: bool,
    port: int,
    allow_changes: bool,
) -> int:
    """Run the main job from start to finish: order lines in, stock movements out, and a crash in the middle."""
    if folder is not None and not spark:
        raise click.UsageError("--folder goes with --spark")
    if invocation.format != "table":
        raise click.UsageError("the demo prints tables only: leave --output out")
    if allow_changes and not console:
        raise click.UsageError("--allow-changes goes with --console")
    if not console:
        return FAILED if _run(invocation, input=input, spark=spark, folder=folder, shows=False) is None else 0
    require_console()
    with listen("127.0.0.1", port) as listening:  # a taken port is told before the demo runs
        sights = _run(invocation, input=input, spark=spark, folder=folder, shows=True)
        if sights is None:
            return FAILED
        _show(invocation, listening, sights, allow_changes=allow_changes)
        return 0


def _run(
    invocation: Invocation, *, input: Path | None, spark: bool, folder: Path | None, shows: bool
) -> list[tuple[str, str]] | None:
    """Run the demo. Returns what to look at, if it `shows` something; None: it has failed."""
    with deferred():
        from rich.console import Console

        from msgtx.cli.programs import demo
    output = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else COLUMNS)
    progress = Console(stderr=True)
    sights: list[tuple[str, str]] = []
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
            report = demo.run(url=invocation.url, input_path=input, output=output, progress=progress)
        except KeyboardInterrupt:
            click.echo("msgtx: interrupted; the topics demo-… stay, the next demo makes them anew", err=True)
            raise
        passed = report.passed
        if passed and shows:
            with connect(invocation) as client:
                sights = demo.sights(client, report)
    return sights if passed else None


def _show(invocation: Invocation, listening: socket.socket, sights: list[tuple[str, str]], *, allow_changes: bool) -> None:
    """Serve the console on this machine until it is ended."""
    with connect(invocation) as client:
        address = address_of(listening)
        click.echo(f"\nLook at it in a browser: {address} (Ctrl-C ends this)")
        for number, (what, page) in enumerate(sights, 1):
            click.echo(f"  {number}. {what}:\n     {address}{page}")
        serve(client, listening, sign_in=False, allow_changes=allow_changes)
