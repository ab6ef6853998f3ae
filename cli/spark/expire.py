"""`msgtx spark expire`."""

import contextlib
import json
import os
from dataclasses import asdict
from datetime import UTC, datetime

import click
from click.core import ParameterSource

from msgtx.cli.spark.running import Job, require_extra, running
from msgtx.cli.terminal.interruption import deferred, stopping
from msgtx.cli.terminal.invocation import Invocation, option, pass_invocation
from msgtx.cli.terminal.output import show_one, write
from msgtx.rows import row_of
from msgtx.types import SweepReport


@click.command("expire", cls=Job)
@option("--only", multiple=True, metavar="NAME", help="Do only this sweep (repeatable); `msgtx sweep --help` lists them.")
@option("--dry-run", is_flag=True, help="Show what would be done; roll it back.")
@option(
    "--every",
    type=click.FloatRange(min=0.01),
    metavar="SECONDS",
    help="Repeat the round at this interval, until SIGTERM or Ctrl-C.",
)
@pass_invocation
def command(invocation: Invocation, *, only: tuple[str, ...], dry_run: bool, every: float | None) -> int:
    """Do one round of sweeps as a Spark application, or one every so many seconds.

    Meant for clusters that schedule Spark jobs. It does what `msgtx sweep` does,
    and uses no executors. A Spark session is started only with --master or by
    spark-submit. With --every, each round prints a line, and a round that the
    database could not do is skipped until the next one.
    """
    require_extra()
    with deferred():
        from msgtx.spark_jobs.expire import run
    with running(invocation, "expire") if _is_an_application() else contextlib.nullcontext() as spark:
        if every is None:
            report = run(spark, url=invocation.url, only=only, dry_run=dry_run)
            show_one(invocation.format, row_of(report.swept))
            return 0
        with stopping() as stop:
            run(
                spark,
                url=invocation.url,
                only=only,
                dry_run=dry_run,
                every=every,
                stop=stop,
                on_round=lambda swept: _tell(invocation, swept),
            )
            return stop.exit_code


def _is_an_application() -> bool:
    """Return whether a cluster waits for a session: spark-submit runs this process, or a master was named."""
    source = click.get_current_context().get_parameter_source("master")
    return "PYSPARK_GATEWAY_PORT" in os.environ or source in {ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT}


def _tell(invocation: Invocation, swept: SweepReport) -> None:
    """Write a line with the counts of a round."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    if invocation.format == "table":
        done = ", ".join(f"{name} {count}" for name, count in asdict(swept).items() if count)
        write(f"{at} {done or 'nothing to do'}\n")
    else:
        write(json.dumps({"time": at, **asdict(swept)}) + "\n")
