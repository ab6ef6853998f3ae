"""`msgtx process`: consume, transform, produce, exactly once."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from msgtx.cli.database import connect
from msgtx.cli.failure import Failed
from msgtx.cli.functions import load_function, where
from msgtx.cli.interruption import stopping
from msgtx.cli.options import Command, Invocation, option, pass_invocation
from msgtx.cli.output import row_of, show_one
from msgtx.cli.progress import progress
from msgtx.types import OutputRecord, ProcessReport, Record

if TYPE_CHECKING:
    from msgtx.process import OnError


@click.command("process", cls=Command)
@click.argument("source")
@click.argument("target")
@click.argument("transform", metavar="MODULE:FUNCTION")
@option("--group", required=True, help="The consumer group whose offsets are read and committed.")
@option("--transactional-id", required=True, help="Of this worker alone: a second one with it fences the first.")
@option("--partition", multiple=True, type=click.IntRange(min=0), help="Of SOURCE, apart from the group; may be repeated.")
@option("--batch", is_flag=True, help="FUNCTION takes a list of records.")
@option("--on-error", type=click.Choice(["stop", "skip", "dead-letter"]), default="stop", help="When FUNCTION fails.")
@option("--dead-letter", metavar="TOPIC", help="Where --on-error=dead-letter keeps what FUNCTION failed on.")
@option("--transaction-ms", type=click.IntRange(min=1), default=100, help="How long a transaction collects.")
@option("--idle-timeout", type=click.FloatRange(min=0), help="End when nothing came for so many seconds.")
@pass_invocation
def command(
    invocation: Invocation,
    source: str,
    target: str,
    transform: str,
    *,
    group: str,
    transactional_id: str,
    partition: tuple[int, ...],
    batch: bool,
    on_error: "OnError",
    dead_letter: str | None,
    transaction_ms: int,
    idle_timeout: float | None,
) -> int:
    """Transform the records of SOURCE into records of TARGET, exactly once, whatever crashes.

    FUNCTION takes a msgtx.Record and returns None, bytes, a msgtx.OutputRecord or an iterable of these. MODULE is
    looked for in the current folder, too. Outputs and offsets of a transaction are committed together; a worker that is
    started again under the same id goes on where the last commit was. Any number of workers of a group, each with its
    own id, divide the partitions among themselves.

    A record that FUNCTION fails on stops the worker; --on-error skips it, or keeps it in another topic with headers that
    say why. Either is said in a line.

    It ends by --idle-timeout, SIGTERM (exit code 0) or Ctrl-C (130), after the transaction that is open.
    """
    function = load_function(transform)
    with connect(invocation) as client, stopping() as stop, progress(f"{source} to {target}") as told:

        def committed(report: ProcessReport) -> None:
            told(report.records_in, f"{report.records_in:,} records, {report.transactions:,} transactions")

        report = client.process(
            source,
            to=target,
            group=group,
            transactional_id=transactional_id,
            transform=_checked(transform, function) if on_error == "stop" else function,
            batch=batch,
            on_error=on_error,
            dead_letter=dead_letter,
            transaction_ms=transaction_ms,
            partitions=list(partition) or None,
            idle_timeout=idle_timeout,
            stop=stop,
            on_commit=committed,
        )
    show_one(invocation.format, row_of(report))
    return stop.exit_code if stop.is_set() else 0


def _checked(name: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the transform with its failures named: the record, and the line that failed."""
    from msgtx.process import outputs

    def transform(record: Record | list[Record]) -> Any:
        try:
            result = function(record)
            # A generator fails while it is read, not when it is called.
            return result if result.__class__ is OutputRecord else list(outputs(result))
        except Exception as error:
            first = record[0] if isinstance(record, list) else record
            place = f"{first.topic}-{first.partition} offset {first.offset}"
            raise Failed(f"{name} failed on {place}: {where(error)}; its transaction was aborted") from error

    return transform
