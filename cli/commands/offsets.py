"""`msgtx offsets`: offsets at a time, consistent cuts and their names, and the records between two of them."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from msgtx.changes import preview
from msgtx.cli.terminal import completion
from msgtx.cli.terminal.confirmation import carry_out_each, destructive
from msgtx.cli.terminal.database import connect
from msgtx.cli.terminal.invocation import GroupWithDefault, Invocation, option, pass_invocation
from msgtx.cli.terminal.output import show_many, show_one, show_table, write
from msgtx.cli.terminal.quantities import earliest_latest_or_number
from msgtx.cli.terminal.setting_options import isolation
from msgtx.rows import cut_row, range_rows, saved_row
from msgtx.types import Isolation, Snapshot, TopicPartition, TransactionId

if TYPE_CHECKING:
    from msgtx.client import Client

RANGE_COLUMNS: Final = ("topic", "partition", "start", "end", "records", "transactions", "bytes", "removed")
SAVED_COLUMNS: Final = ("name", "taken_at", "topics", "partitions", "readable", "saved_by")
END_COLUMNS: Final = ("topic", "partition", "end")
TOLD: Final = 10  # holders that are named, further ones are counted
A_TEXT: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(\s.*)?", re.DOTALL)

topics_argument = click.argument("topics", nargs=-1, metavar="[TOPIC]...", shell_complete=completion.topics)


@click.group("offsets", cls=GroupWithDefault, default="list")
def command() -> None:
    """Look at offsets; take consistent cuts, save them, and measure what lies between them.

    Without a verb, it does what `list` does: `msgtx offsets orders --time earliest`.
    """


@command.command("list")
@topics_argument
@option(
    "--time",
    type=earliest_latest_or_number,
    default="latest",
    metavar="earliest|latest|MS",
    help="MS: the first record at or after this time, in milliseconds since 1970 UTC.",
)
@isolation
@pass_invocation
def list_(invocation: Invocation, topics: tuple[str, ...], time: str | int, isolation: str | None) -> None:
    """Show the offsets of each partition at a time (without TOPIC, of all topics).

    `latest` is the end of what --isolation lets you read: the last stable offset, or the log end.
    """
    with connect(invocation) as client:
        from msgtx.store.fetch.fetch import EARLIEST, LATEST

        at = {"earliest": EARLIEST, "latest": LATEST}.get(time, time) if isinstance(time, str) else time
        assert isinstance(at, int)
        level = Isolation(isolation or Isolation.READ_COMMITTED)
        found = client.admin.partitions.offsets(list(topics) or None, at, level)
    rows = [
        {"topic": tp.topic, "partition": tp.partition, "offset": listed.offset, "timestamp": listed.timestamp}
        for tp, listed in found.items()
    ]
    show_many(invocation.format, rows, ("topic", "partition", "offset", "timestamp"))


@command.command("snapshot")
@topics_argument
@option("--save", metavar="NAME", help="Save the cut under this name.")
@option("--replace", is_flag=True, allow_from_autoenv=False, help="Save it even if there is already a cut under this name.")
@pass_invocation
def snapshot(invocation: Invocation, topics: tuple[str, ...], *, save: str | None, replace: bool) -> None:
    """Take a consistent cut of these topics (without TOPIC, of all) and print it as a line of text.

    Over all partitions, the cut has all of a transaction or nothing of it. Read
    again later, it is the same, until retention or compaction removes
    something. If a transaction holds the cut back, stderr says which one.
    """
    if replace and save is None:
        raise click.UsageError("--replace of what? Give --save NAME, too")
    with connect(invocation) as client:
        taken = client.snapshots.take(topics or None)
        if save is not None:
            client.snapshots.save(save, taken.snapshot, replace=replace)
    _tell_holders(taken.held_by)
    if invocation.format == "table":
        write(f"{taken.snapshot}\n")
    else:
        show_one(invocation.format, {"name": save, "snapshot": str(taken.snapshot)})


@command.command("snapshots")
@click.argument("name", metavar="[NAME]", required=False)
@pass_invocation
def snapshots(invocation: Invocation, name: str | None) -> None:
    """List the saved snapshots, or show the positions of the one called NAME.

    A snapshot that was taken before a failover cannot be read.
    """
    with connect(invocation) as client:
        if name is None:
            show_many(invocation.format, map(saved_row, client.snapshots.list()), SAVED_COLUMNS)
            return
        row = cut_row(client.snapshots.describe(name))
    if invocation.format == "table":
        show_one("table", {column: row[column] for column in SAVED_COLUMNS})
        show_table(END_COLUMNS, [[each[column] for column in END_COLUMNS] for each in row["ends"]])
    else:
        show_one(invocation.format, row)


@command.command("delete-snapshot")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@destructive
@pass_invocation
def delete_snapshot(invocation: Invocation, names: tuple[str, ...], *, dry_run: bool, yes: bool) -> None:
    """Delete saved snapshots. The records stay as they are."""
    with connect(invocation) as client:
        asked = [preview(client, "offsets delete-snapshot", name=name) for name in dict.fromkeys(names)]
        carry_out_each(client, asked, dry_run=dry_run, yes=yes)


@command.command("ranges")
@topics_argument
@option("--from", "start", metavar="NAME|TEXT", help="The snapshot to begin at.  [default: the log starts]")
@option("--to", "end", metavar="NAME|TEXT", help="The snapshot to end at.  [default: a cut taken now]")
@pass_invocation
def ranges(invocation: Invocation, topics: tuple[str, ...], *, start: str | None, end: str | None) -> None:
    """Show the difference of two cuts, per partition: what is committed from `start` to below `end`.

    `records` counts the records for a reader now, `transactions` those that begin there, `bytes` estimates the stored size,
    and `removed` counts the offsets that retention has removed from the front since then. Without TOPIC, it shows the topics
    of the snapshots, or all topics.
    """
    with connect(invocation) as client:
        first, last = cuts_of(client, topics, start, end)
        found = client.snapshots.ranges(topics or None, start=first, end=last)
    show_many(invocation.format, range_rows(found), RANGE_COLUMNS)


def cuts_of(client: "Client", topics: Sequence[str], start: str | None, end: str | None) -> tuple[Snapshot | None, Snapshot]:
    """Read `--from` and `--to`; without an end a cut is taken now, and the transactions that hold it back are named."""
    first, last = (None if text is None else _snapshot(client, text) for text in (start, end))
    if last is None:
        taken = client.snapshots.take(topics or (None if first is None else {partition.topic for partition in first.ends}))
        _tell_holders(taken.held_by)
        last = taken.snapshot
    return first, last


def _snapshot(client: "Client", text: str) -> Snapshot:
    """Read a snapshot from its text, which begins with an incarnation, or find the one of a name."""
    return Snapshot.parse(text) if A_TEXT.fullmatch(text.strip()) else client.snapshots.get(text)


def _tell_holders(held_by: Mapping[TopicPartition, TransactionId]) -> None:
    """Name on stderr the transactions that keep a cut from the log's end, and where."""
    places: dict[TransactionId, list[str]] = {}
    for partition, holder in sorted(held_by.items()):
        places.setdefault(holder, []).append(str(partition))
    for holder, held in list(places.items())[:TOLD]:
        where = ", ".join(held[:TOLD]) + (f" and {len(held) - TOLD} more" if len(held) > TOLD else "")
        click.echo(f"held back by transaction {holder}: {where} (see `msgtx transactions outcome {holder}`)", err=True)
    if len(places) > TOLD:
        click.echo(f"and by {len(places) - TOLD} more transactions (see `msgtx doctor`)", err=True)
