"""`msgtx perf`: rates and delays, each from several runs on topics of its own."""

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from msgtx.cli.terminal.confirmation import confirmed
from msgtx.cli.terminal.interruption import deferred
from msgtx.cli.terminal.invocation import Group, Invocation, option, pass_invocation
from msgtx.cli.terminal.output import show_one, show_table
from msgtx.cli.terminal.progress import progress
from msgtx.cli.terminal.quantities import milliseconds
from msgtx.cli.terminal.setting_options import isolation, setting_option
from msgtx.declared.settings import PRODUCER
from msgtx.rows import row_of
from msgtx.types import Isolation
from msgtx.units import counted

if TYPE_CHECKING:
    from msgtx.cli.programs.perf import Measured

POSITIVE = click.IntRange(min=1)
yes_option = option("--yes", "-y", is_flag=True, allow_from_autoenv=False, help="Do not ask for confirmation.")
repeats = option("--repeats", type=POSITIVE, default=3, help="The number of runs; the result is their median.")
size = option("--size", type=POSITIVE, default=100, help="The size of a value, in bytes.")
partitions = option("--partitions", type=POSITIVE, default=6)


@click.group("perf", cls=Group)
def command() -> None:
    """Measure how fast this database is from this machine."""


@command.command("produce")
@option("--records", type=POSITIVE, help="The number of records in a run, instead of --seconds.")
@option("--seconds", type=click.FloatRange(min=0, min_open=True), default=5.0, help="The length of a run.")
@size
@partitions
@setting_option(PRODUCER, "acks", given=True)
@option("--transaction-ms", type=milliseconds(1), help="Send in transactions of this length.")
@option("--transaction-records", type=POSITIVE, help="Send in transactions of this many records.")
@option("--batched", is_flag=True, help="Use send_batch instead of send.")
@option("--producers", type=POSITIVE, default=1, help="The number of producers at once, each in a thread.")
@repeats
@yes_option
@pass_invocation
def produce(invocation: Invocation, /, *, yes: bool, **settings: Any) -> None:
    """Measure how fast records are sent and acknowledged. Asks first: it writes as fast as the database takes records.

    Each run has a topic of its own, which is deleted at its end.
    """
    perf = _perf()
    each = (
        f"{settings['records']:,} records"
        if settings["records"]
        else f"as many records as fit into {settings['seconds']:g} s"
    )
    runs = counted(settings["repeats"], "run")
    confirmed(f"write {each} of {settings['size']:,} bytes, in {runs}", dry_run=False, yes=yes)
    _measure(invocation, "producing", perf.produce, perf.ProduceSettings(**settings))


@command.command("consume")
@option("--records", type=POSITIVE, help="[default: 256 MB of them, at most a million]")
@size
@partitions
@isolation
@option(
    "--transaction-records", type=click.IntRange(min=0), default=10_000, help="Records per transaction; 0: no transactions."
)
@option("--iterate", is_flag=True, help="Use `for record in consumer` instead of poll.")
@option("--poll-records", type=POSITIVE, default=10_000, help="The most records of one poll.")
@repeats
@pass_invocation
def consume(invocation: Invocation, /, *, isolation: str | None, transaction_records: int, **settings: Any) -> None:
    """Measure how fast records are read."""
    perf = _perf()
    asked = perf.ConsumeSettings(
        isolation=Isolation(isolation or Isolation.READ_COMMITTED),
        transaction_records=transaction_records or None,
        **settings,
    )
    _measure(invocation, "consuming", perf.consume, asked)


@command.command("e2e")
@option("--rate", type=click.FloatRange(min=0, min_open=True), default=200.0, help="Records sent per second.")
@option("--seconds", type=click.FloatRange(min=0, min_open=True), default=5.0, help="The length of a run.")
@size
@option("--transactional/--no-transactional", default=True, help="Whether to send each record in a transaction of its own.")
@repeats
@pass_invocation
def e2e(invocation: Invocation, /, **settings: Any) -> None:
    """Measure the time from send until a consumer in another process has the record."""
    perf = _perf()
    _measure(invocation, "end to end", perf.end_to_end, perf.EndToEndSettings(**settings))


def _perf() -> Any:
    with deferred():
        from msgtx.cli.programs import perf
    return perf


def _measure(invocation: Invocation, title: str, measure: Callable[..., "Measured[Any, Any]"], asked: Any) -> None:
    with progress(title, total=asked.repeats) as told:
        measured = measure(invocation.url, asked, lambda index, _: told(index + 1, f"run {index + 1}"))
    _show(invocation, measured)


def _show(invocation: Invocation, measured: "Measured[Any, Any]") -> None:
    """Show a column for each run and the medians, or all of it as one JSON object."""
    if invocation.format != "table":
        row = {"settings": row_of(measured.settings), "runs": [row_of(run) for run in measured.runs]}
        show_one(invocation.format, {**row, "median": row_of(measured.median)})
        return
    columns = ["", *(f"run {index + 1}" for index in range(len(measured.runs))), "median"]
    results = [*measured.runs, measured.median]
    show_table(columns, [[one.name, *(getattr(run, one.name) for run in results)] for one in fields(measured.median)])
