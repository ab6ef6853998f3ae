"""`msgtx spark pipeline`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from msgtx.cli.spark.running import Job, running
from msgtx.cli.terminal.failure import CommandFailed
from msgtx.cli.terminal.functions import load_function, where
from msgtx.cli.terminal.interruption import stopping
from msgtx.cli.terminal.invocation import Invocation, option, pass_invocation
from msgtx.cli.terminal.output import show_one
from msgtx.cli.terminal.progress import progress
from msgtx.cli.terminal.quantities import milliseconds
from msgtx.cli.terminal.setting_options import setting_option
from msgtx.declared.settings import WORKER
from msgtx.declared.spark import TRANSACTION_TIMEOUT
from msgtx.rows import row_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from msgtx.spark_jobs.pipeline import PipelineReport

PATIENCE_S: Final = 30.0  # for a batch to end after the first signal; an interrupted batch is aborted, and done again


@click.command("pipeline", cls=Job)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE... MODULE:FUNCTION")
@option("--to", metavar="TOPIC", help="The topic for the outputs.  [default: the one in each row's column topic]")
@option("--group", required=True, help="The group whose offsets say where the pipeline is; it has no other members.")
@option("--once", is_flag=True, help="Process everything that is committed now, then end.")
@option(
    "--interval-ms", type=milliseconds(), default=500, help="The time from the start of one batch to the start of the next."
)
@option(
    "--max-offsets-per-trigger",
    type=click.IntRange(min=1),
    default=1_000_000,
    help="The most offsets in one batch, unless a transaction is larger.",
)
@option("--min-partitions", type=click.IntRange(min=1), help="Read a batch with at least this many tasks.")
@option(
    "--starting-offsets", type=click.Choice(["earliest", "latest"]), default="earliest", help="Where a new group begins."
)
@option("--include-headers", is_flag=True, help="Give FUNCTION a column headers, too.")
@option(
    "--transaction-timeout-ms", type=milliseconds(1), default=TRANSACTION_TIMEOUT, help="Abort a batch that takes longer."
)
@setting_option(WORKER, "outage_timeout")
@pass_invocation
def command(
    invocation: Invocation,
    *,
    sources: tuple[str, ...],
    to: str | None,
    group: str,
    once: bool,
    interval_ms: int,
    max_offsets_per_trigger: int,
    min_partitions: int | None,
    starting_offsets: str,
    include_headers: bool,
    transaction_timeout_ms: int,
    outage_timeout: float | None,
) -> int:
    """Transform the records of topics on Spark, exactly once, whatever crashes.

    FUNCTION takes a DataFrame (key, value, topic, partition, offset, timestamp)
    and returns one with a column value and, optionally, key, topic, partition
    and headers. MODULE is also looked for in the current folder. The outputs of
    a batch and the offsets where it ended are committed together; there is no
    checkpoint. A pipeline that is started again continues from the last commit.

    The command ends by --once, SIGTERM (exit code 0) or Ctrl-C (130), after the
    current batch; on a second signal, or if the batch takes longer than 30 s, it
    ends at once. In an outage of the database it waits, for ever or up to
    --outage-timeout.
    """
    *topics, name = sources
    if not topics:
        raise click.UsageError("a pipeline reads at least one topic: SOURCE... MODULE:FUNCTION")
    function = load_function(name)
    with running(invocation, "pipeline", show_tasks=False) as spark, stopping(PATIENCE_S) as stop:
        from msgtx.spark_jobs import pipeline

        with progress(f"{', '.join(topics)} to {to or 'topics'}") as told:

            def committed(report: "PipelineReport") -> None:
                told(report.offsets_in, f"{report.offsets_in:,} in, {report.records_out:,} out, {report.batches:,} batches")

            report = pipeline.run(
                spark,
                topics,
                _checked(name, function),
                group=group,
                to=to,
                url=invocation.url,
                once=once,
                interval_ms=interval_ms,
                max_offsets=max_offsets_per_trigger,
                transaction_timeout_ms=transaction_timeout_ms,
                stop=stop,
                on_batch=committed,
                min_partitions=min_partitions,
                starting_offsets=starting_offsets,
                include_headers=include_headers,
                read_url=invocation.read_url,
                on_failover=invocation.on_failover,
                outage_timeout=outage_timeout,
            )
    show_one(invocation.format, row_of(report))
    return stop.exit_code if stop.is_set() else 0


def _checked(name: str, function: Callable[[Any], Any]) -> "Callable[[DataFrame], DataFrame]":
    """Return the transform with its own failures named, and its result checked."""
    from pyspark.sql import DataFrame

    from msgtx.spark_jobs.runtime.failure import translate

    def transform(rows: DataFrame) -> DataFrame:
        try:
            made = function(rows)
        except Exception as error:
            told = translate(error).with_traceback(error.__traceback__)  # of Spark's own errors only the sentence
            raise CommandFailed(f"{name} failed: {where(told)}") from error
        if not isinstance(made, DataFrame):
            raise CommandFailed(f"{name} returned {type(made).__name__}; a transform takes a DataFrame and returns one")
        return made

    return transform
