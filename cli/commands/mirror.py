"""`msgtx mirror`: copies of topics from one database into another, each record once."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import click

from msgtx.changes import preview, reset_of_mirror
from msgtx.cli.terminal import completion
from msgtx.cli.terminal.confirmation import carry_out_each, confirmed, destructive
from msgtx.cli.terminal.database import connect
from msgtx.cli.terminal.interruption import stopping
from msgtx.cli.terminal.invocation import Group, Invocation, option, pass_invocation
from msgtx.cli.terminal.output import show_many, show_one
from msgtx.cli.terminal.progress import progress
from msgtx.cli.terminal.setting_options import setting_options
from msgtx.declared.settings import MIRROR
from msgtx.rows import MIRROR_COLUMNS, PLACE_COLUMNS, mirror_row, row_of
from msgtx.types import MirrorReport
from msgtx.units import counted

DRAIN_S: Final = 30.0  # to the end of a portion


@click.group("mirror", cls=Group)
def command() -> None:
    """Copy topics into another database, each record once, and keep the copy up to date."""


@command.command(
    "run",
    examples=(
        "msgtx mirror run orders invoices --name reports --target postgresql://msgtx@reports.example.com/reports",
        "msgtx mirror run --pattern 'shop[.].*' --name shop --source postgresql://msgtx@db.example.com/shop",
        "msgtx mirror run orders --name kafka --target kafka://broker.example.com:9092",
        "msgtx mirror run orders --name move --target postgresql://msgtx@new.example.com/shop --until-caught-up",
    ),
)
@click.argument("topics", nargs=-1, shell_complete=completion.topics)
@option("--name", required=True, help="The mirror's name: the target keeps its progress under it.")
@option("--target", metavar="ADDRESS", help="Copy from the database to this one, or to kafka://HOST:PORT.")
@option("--source", metavar="ADDRESS", help="Copy from this one, or from kafka://HOST:PORT, to the database.")
@setting_options(MIRROR, given={"on_removed", "max_records", "max_bytes"})
@pass_invocation
def run(
    invocation: Invocation,
    /,
    topics: tuple[str, ...],
    *,
    name: str,
    target: str | None,
    source: str | None,
    **settings: Any,
) -> int:
    """Copy TOPICS between the database (--url) and another one, which --target or --source names, until it is stopped.

    The other end may be a Kafka cluster: kafka://host:9092, with the extra msgtx[kafka].

    The target makes topics and partitions that it lacks. A transaction of the source arrives as a whole, in one transaction
    of the target that also holds the mirror's progress. So each record arrives once, whatever crashes: start the command
    again, with the same --name. A second mirror of that name fences the first one (exit code 4). In an outage of either end
    it waits.

    An address with a password belongs into the environment: MSGTX_MIRROR_RUN_TARGET, MSGTX_MIRROR_RUN_SOURCE.

    The command ends by --until-caught-up, SIGTERM (exit code 0) or Ctrl-C (130), after the open transaction.
    """
    with connect(invocation) as client, stopping(DRAIN_S) as stop, progress(f"mirror {name}") as told:
        report = client.mirror(
            *topics,
            name=name,
            source=source,
            target=target,
            stop=stop,
            on_progress=_shown(told),
            **settings,
        )
        show_one(invocation.format, row_of(report))
        return stop.exit_code


def _shown(told: Callable[[int, str], None]) -> Callable[[MirrorReport], None]:
    def show(report: MirrorReport) -> None:
        rate = f"{report.records * 1000 // max(report.running_ms, 1):,} a second"
        told(report.records, f"{counted(report.records, 'record')}, {rate}, {report.lag_records:,} behind")

    return show


@contextlib.contextmanager
def _mirrors(invocation: Invocation, target: str | None) -> Iterator[Any]:
    """Yield the administrator's view of the mirrors to the database, or to a Kafka cluster."""
    if target is None:
        with connect(invocation) as client:
            yield client.admin.mirrors
        return
    from msgtx.mirror.kafka import KafkaMirrors

    yield KafkaMirrors(target)


TARGET: Final = option("--target", metavar="ADDRESS", help="A Kafka cluster to which mirrors copy, instead of the database.")


@command.command("list")
@TARGET
@pass_invocation
def list_(invocation: Invocation, *, target: str | None) -> None:
    """List the mirrors that copy to this database, or to a Kafka cluster.

    `moved_ms`, `seen_ms`: how long ago the progress moved, and the mirror's process was heard of; it says something every
    five seconds. It takes the right to observe every topic.
    """
    with _mirrors(invocation, target) as mirrors:
        found = mirrors.list()
    show_many(invocation.format, map(mirror_row, found), MIRROR_COLUMNS)


@command.command("describe")
@click.argument("name", shell_complete=completion.mirrors)
@TARGET
@pass_invocation
def describe(invocation: Invocation, name: str, *, target: str | None) -> None:
    """Show the next offset that a mirror copies of each partition of its source."""
    with _mirrors(invocation, target) as mirrors:
        found = mirrors.describe(name)
    row = mirror_row(found)
    if invocation.format == "table":
        show_many("table", [{"name": name, **place} for place in row["places"]], ("name", *PLACE_COLUMNS))
    else:
        show_one(invocation.format, row)


@command.command("reset")
@click.argument("name", shell_complete=completion.mirrors)
@TARGET
@destructive
@pass_invocation
def reset(invocation: Invocation, name: str, *, target: str | None, dry_run: bool, yes: bool) -> None:
    """Forget a mirror and its progress: its next run copies everything again.

    Records that were copied stay, so delete the topics of the target first, unless they may be there twice. A running
    mirror of this name ends (exit code 4).
    """
    if target is None:
        with connect(invocation) as client:
            carry_out_each(client, [preview(client, "mirror reset", name=name)], dry_run=dry_run, yes=yes)
        return
    with _mirrors(invocation, target) as mirrors:
        if confirmed(reset_of_mirror(mirrors.describe(name)), dry_run=dry_run, yes=yes):
            mirrors.reset(name)
