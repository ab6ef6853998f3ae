"""`msgtx process`: consume, transform, produce, or write rows; exactly once."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import click

from msgtx.cli.terminal import completion
from msgtx.cli.terminal.database import connect
from msgtx.cli.terminal.failure import CommandFailed
from msgtx.cli.terminal.functions import load_function, where
from msgtx.cli.terminal.interruption import PATIENCE_S, stopping
from msgtx.cli.terminal.invocation import Command, Invocation, option, pass_invocation
from msgtx.cli.terminal.output import show_one
from msgtx.cli.terminal.progress import progress
from msgtx.cli.terminal.setting_options import setting_option
from msgtx.declared.settings import FAILURE, WORKER
from msgtx.rows import row_of
from msgtx.settings import DeadLetter, Failure, Retry, Skip, Stop
from msgtx.types import Acknowledgement, ProcessReport
from msgtx.units import counted

if TYPE_CHECKING:
    from msgtx.client import Client

DRAIN_S: Final = 30.0  # for a handler that is slow, to the end of its transaction


@click.command(
    "process",
    cls=Command,
    examples=(
        "msgtx process orders invoices shop:invoice --group billing --transactional-id billing-1",
        "msgtx process orders shop:book --into shop:Session --group book --on-error dead-letter --dead-letter orders-dead",
        "msgtx process orders shop:mail --into shop:Session --group mail --share-members 8",
        "msgtx process orders invoices shop:invoice --group billing --share-members 8 --transactional-id billing-1",
    ),
)
@click.argument("source", shell_complete=completion.topics)
@click.argument("target", shell_complete=completion.topics)
@click.argument("function", metavar="MODULE:FUNCTION", required=False)
@option("--into", metavar="MODULE:FACTORY", help="Write rows: FACTORY makes SQLAlchemy sessions, and there is no TARGET.")
@option("--group", required=True, help="The consumer group whose offsets are read and committed.")
@setting_option(WORKER, "share_members")
@setting_option(WORKER, "auto_offset_reset")
@option("--transactional-id", help="An id for this worker alone: a second worker with it fences the first. Not with --into.")
@option(
    "--partition",
    multiple=True,
    type=click.IntRange(min=0),
    help="Read this partition of SOURCE, without joining the group; may be repeated.",
)
@setting_option(WORKER, "batch")
@setting_option(FAILURE, "on_error")
@setting_option(FAILURE, "dead_letter")
@setting_option(FAILURE, "retries")
@option("--key-deserializer", metavar="MODULE:FUNCTION", help="Makes what FUNCTION gets as a record's key of its bytes.")
@option("--value-deserializer", metavar="MODULE:FUNCTION", help="The same for its value; json:loads reads JSON.")
@setting_option(WORKER, "transaction_ms", given=True)
@option("--metrics-port", type=click.IntRange(0, 65535), help="Answer Prometheus at this port: /metrics and /healthz.")
@option("--metrics-host", default="127.0.0.1", help="The address to answer at.")
@setting_option(WORKER, "idle_timeout")
@setting_option(WORKER, "outage_timeout")
@setting_option(WORKER, "max_failures_in_a_row", given=True)
@pass_invocation
def command(
    invocation: Invocation,
    source: str,
    target: str,
    function: str | None,
    *,
    into: str | None,
    group: str,
    share_members: int | None,
    auto_offset_reset: str | None,
    transactional_id: str | None,
    partition: tuple[int, ...],
    batch: bool,
    on_error: str | None,
    dead_letter: str | None,
    retries: int | None,
    key_deserializer: str | None,
    value_deserializer: str | None,
    transaction_ms: int,
    metrics_port: int | None,
    metrics_host: str,
    idle_timeout: float | None,
    outage_timeout: float | None,
    max_failures_in_a_row: int,
) -> int:
    """Transform the records of SOURCE into records of TARGET, or into rows, exactly once, whatever crashes.

    FUNCTION takes a msgtx.Record and returns None, bytes, a msgtx.OutputRecord or an iterable of these. MODULE is also
    looked for in the current folder. The outputs and offsets of a transaction are committed together; a worker that is
    started again under the same id continues from the last commit. Any number of workers of a group, each with its own
    id, divide the partitions among themselves.

    With --into, FUNCTION takes a session of SQLAlchemy and a msgtx.Record, and writes rows. Rows and offsets go into one
    commit.

    A record on which FUNCTION or a deserializer fails is tried again with pauses until it succeeds. --on-error chooses
    another way: stop, skip the record, or keep it in another topic with the reason in its headers. The worker prints a line
    for each such record.

    With --share-members, any number of members work on each partition; several members of one process append a number to
    the transactional id. A record on which FUNCTION fails is released (--on-error retry) or becomes a dead letter at once
    (dead-letter). Settings of the group (`shares configure`) say how often and after which pause it is delivered again, and
    where dead letters go.

    In an outage of the database it waits, for ever or up to --outage-timeout. A failure of the installation, such as a
    missing table, makes the record's partition wait, and so do --max-failures-in-a-row records that fail in a row.

    The command ends by --idle-timeout, SIGTERM (exit code 0) or Ctrl-C (130), after it has finished the open transaction.
    """
    name = _function(function, target, into=into, given=(transactional_id, partition))
    called = load_function(name)
    factory = None if into is None else load_function(into)
    failure = _failure(on_error or "retry", dead_letter, retries, shared=share_members is not None)
    with (
        connect(invocation) as client,
        _measured(client, metrics_host, metrics_port),
        stopping(PATIENCE_S if into is None else DRAIN_S) as stop,
        progress(f"{source} to {target if into is None else into}") as told,
    ):

        def committed(report: ProcessReport) -> None:
            told(report.records_in, f"{counted(report.records_in, 'record')}, {counted(report.transactions, 'transaction')}")

        settings: dict[str, Any] = {
            "share_members": share_members,
            "failure": failure,
            "batch": batch,
            "key_deserializer": key_deserializer and load_function(key_deserializer),
            "value_deserializer": value_deserializer and load_function(value_deserializer),
            "transaction_ms": transaction_ms,
            "idle_timeout": idle_timeout,
            "outage_timeout": outage_timeout,
            "max_failures_in_a_row": max_failures_in_a_row,
            "stop": stop,
            "on_commit": committed,
        }
        if auto_offset_reset is not None:
            settings["auto_offset_reset"] = auto_offset_reset

        def work() -> ProcessReport:
            if factory is not None:
                return client.process_into(factory, called, source, group=group, **settings)
            assert transactional_id is not None
            return client.process(
                source,
                to=target,
                group=group,
                transactional_id=transactional_id,
                transform=called,
                partitions=list(partition) or None,
                **settings,
            )

        report = _named(name, work)
    show_one(invocation.format, row_of(report))
    return stop.exit_code if stop.is_set() else 0


def _failure(on_error: str, dead_letter: str | None, retries: int | None, *, shared: bool) -> Failure:
    """Return what the words mean. Raise `UsageError` if they do not fit together."""
    if shared and (dead_letter is not None or retries is not None or on_error == "skip"):
        raise click.UsageError(
            "--share-members excludes --dead-letter, --retries and --on-error skip: see `msgtx shares configure`"
        )
    if not shared and (on_error == "dead-letter") != (dead_letter is not None):
        raise click.UsageError("--on-error dead-letter and --dead-letter TOPIC need each other")
    if retries is not None and on_error == "stop":
        raise click.UsageError("--retries needs --on-error retry, skip or dead-letter")
    match on_error:
        case "stop":
            return Stop()
        case "retry":
            return Acknowledgement.RELEASE if shared else Retry(retries)
        case "skip":
            return Skip(retries)
    return Acknowledgement.REJECT if dead_letter is None else DeadLetter(dead_letter, retries)


def _measured(client: "Client", host: str, port: int | None) -> AbstractContextManager[object]:
    if port is None:
        return nullcontext()
    from msgtx import metrics

    return metrics.serving(client, host=host, port=port)


def _function(function: str | None, target: str, *, into: str | None, given: tuple[Any, ...]) -> str:
    """Return the function's name: the third argument, or the second one with --into. Raise `UsageError`."""
    transactional_id, partition = given
    if into is not None:
        if function is not None:
            raise click.UsageError("--into writes rows: there is no TARGET; give SOURCE and MODULE:FUNCTION")
        if transactional_id is not None or partition:
            raise click.UsageError(
                "--into takes no --transactional-id and no --partition: the session commits, for the group"
            )
        return target
    if function is None:
        raise click.UsageError("give SOURCE, TARGET and MODULE:FUNCTION; or --into MODULE:FACTORY, to write rows")
    if transactional_id is None:
        raise click.UsageError("Missing option '--transactional-id'")
    return function


def _named(name: str, work: Callable[[], ProcessReport]) -> ProcessReport:
    """Do it, and say where the function failed: the record, and the line."""
    try:
        return work()
    except Exception as error:
        for note in getattr(error, "__notes__", ()):
            place, _, consequence = note.partition("; ")
            if place.startswith("failed on "):
                raise CommandFailed(f"{name} {place}: {where(error)}; {consequence}") from error
        raise
