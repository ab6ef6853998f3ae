"""`msgtx topics`."""

from typing import Any

import click

from msgtx.changes import preview
from msgtx.cli.terminal import completion
from msgtx.cli.terminal.confirmation import carry_out, carry_out_each, confirmed, destructive
from msgtx.cli.terminal.database import connect
from msgtx.cli.terminal.invocation import Group, Invocation, option, pass_invocation
from msgtx.cli.terminal.output import show_many, show_one, show_table
from msgtx.cli.terminal.setting_options import setting_options
from msgtx.declared.settings import TOPIC
from msgtx.rows import partition_rows_row, progress_row, row_of, topic_row
from msgtx.types import TopicDescription, TopicPartition
from msgtx.units import counted

ENDS = ("partition", "log_start_offset", "last_stable_offset", "log_end_offset")
ROWS = (
    *("base_offset", "last_offset", "records", "compacted", "bytes", "appended_at", "state"),
    *("transaction_id", "transactional_id"),
)
PROGRESS = ("partition", "group", "is_share_group", "offset", "next_offset", "lag", "lag_ms")


@click.group("topics", cls=Group)
def command() -> None:
    """Create, show, alter and delete topics."""


@command.command(
    "create",
    examples=(
        "msgtx topics create orders --partitions 6",
        "msgtx topics create orders --partitions 6 --retention-ms 7d --if-not-exists",
        "msgtx topics create prices --cleanup-policy compact",
    ),
)
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@option("--partitions", type=click.IntRange(min=1), default=1)
@setting_options(TOPIC)
@option("--if-not-exists", is_flag=True, help="Leave a topic that exists as it is.")
@pass_invocation
def create(
    invocation: Invocation, /, names: tuple[str, ...], partitions: int, *, if_not_exists: bool, **settings: Any
) -> None:
    """Create topics."""
    given = {name: value for name, value in settings.items() if value is not None}
    with connect(invocation) as client:
        rows = [client.topics.create(name, partitions, if_not_exists=if_not_exists, **given) for name in names]
    show_many(invocation.format, map(row_of, rows), ("name", "partitions"))


@command.command("list")
@pass_invocation
def list_topics(invocation: Invocation) -> None:
    """List the topics."""
    with connect(invocation) as client:
        rows = [row_of(each) for each in client.topics.describe_all()]
    show_many(invocation.format, rows, ("name", "partitions"))


@command.command("describe")
@click.argument("name", metavar="TOPIC", shell_complete=completion.topics)
@pass_invocation
def describe(invocation: Invocation, name: str) -> None:
    """Show a topic: its settings, and the ends of its partitions."""
    with connect(invocation) as client:
        topic = client.topics.describe(name)
        row = topic_row(topic, client.admin.partitions.describe_all(name))
    if invocation.format == "table":
        show_one("table", _flat(topic))
        show_table(ENDS, [[each[column] for column in ENDS] for each in row["ends"]])
    else:
        show_one(invocation.format, row)


@command.command(
    "rows",
    examples=("msgtx topics rows orders --partition 0", "msgtx topics rows orders --partition 0 --from 4711 --most 20"),
)
@click.argument("name", metavar="TOPIC", shell_complete=completion.topics)
@option("--partition", type=click.IntRange(min=0), default=0)
@option("--most", type=click.IntRange(min=1), default=1_000, help="The most rows.")
@option("--from", "start", type=click.IntRange(min=0), metavar="OFFSET", help="Begin with the row that holds this offset.")
@option("--before", type=click.IntRange(min=0), metavar="OFFSET", help="Only rows in front of this offset.")
@pass_invocation
def rows(invocation: Invocation, name: str, *, partition: int, most: int, start: int | None, before: int | None) -> None:
    """Show the last rows of a partition's log, without their records: each is a batch.

    The state is committed, open, prepared or aborted, or plain for a row outside transactions. `compacted`: how many of the
    row's offsets compaction has emptied.
    """
    with connect(invocation) as client:
        found = client.admin.partitions.rows(TopicPartition(name, partition), most, from_offset=start, before_offset=before)
    row = partition_rows_row(found)
    if invocation.format == "table":
        show_table(ENDS, [[row[column] for column in ENDS]])
        show_table(ROWS, [[each[column] for column in ROWS] for each in row["rows"]])
    else:
        show_one(invocation.format, row)


@command.command(
    "progress",
    examples=("msgtx topics progress orders", "msgtx topics progress orders --partition 7 --partition 8"),
)
@click.argument("name", metavar="TOPIC", shell_complete=completion.topics)
@option("--partition", type=click.IntRange(min=0), multiple=True, help="Only these partitions.")
@option("--most", type=click.IntRange(min=1), default=50, help="The most partitions, the first ones.")
@pass_invocation
def progress(invocation: Invocation, name: str, *, partition: tuple[int, ...], most: int) -> None:
    """Show how full the partitions of TOPIC are, and how far each group and share group is on them.

    `bytes` is an estimate. The lag counts from the first unread record to the stable end; aborted records in between count.
    """
    with connect(invocation) as client:
        found = client.admin.partitions.progress(name, partition or None, most=most)
    rows = [progress_row(each) for each in found]
    if invocation.format == "table":
        show_table((*ENDS, "bytes"), [[each[column] for column in (*ENDS, "bytes")] for each in rows])
        lines = [{"partition": each["partition"], **group} for each in rows for group in each["groups"]]
        show_table(PROGRESS, [[line[column] for column in PROGRESS] for line in lines])
        if left := sum(not each.groups_searched for each in found):
            click.echo(f"groups were not looked for on {counted(left, 'partition')}: name some with --partition", err=True)
    else:
        show_many(invocation.format, rows, ())


@command.command(
    "alter",
    examples=(
        "msgtx topics alter orders --retention-ms 30d --retention-bytes 10GiB",
        "msgtx topics alter orders --partitions 12",
    ),
)
@click.argument("name", metavar="TOPIC", shell_complete=completion.topics)
@option("--partitions", type=click.IntRange(min=1), help="The new number of partitions; never fewer than there are.")
@setting_options(TOPIC, default="")
@pass_invocation
def alter(invocation: Invocation, /, name: str, partitions: int | None, **settings: Any) -> None:
    """Change settings of a topic, or add partitions. Settings that you do not name stay as they are.

    If you add partitions, keys move: the partition of a record is the hash of
    its key modulo the number of partitions, so later records of a key may go to
    a different partition than its earlier ones, and their order is lost.
    Compaction, too, works within each partition. Consumers with a subscription
    start to use new partitions within seconds, producers within half a minute.
    """
    given = {setting: value for setting, value in settings.items() if value is not None}
    if partitions is None and not given:
        raise click.UsageError("say what to change")
    with connect(invocation) as client:
        topic = client.topics.alter(name, partitions, **given)
    show_one(invocation.format, _flat(topic) if invocation.format == "table" else row_of(topic))


def _flat(topic: TopicDescription) -> dict[str, Any]:
    """Return what a topic is, and its settings, as one row."""
    row = row_of(topic)
    settings: dict[str, Any] = row.pop("settings")
    return row | settings


@command.command("delete")
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...", shell_complete=completion.topics)
@destructive
@pass_invocation
def delete(invocation: Invocation, names: tuple[str, ...], *, dry_run: bool, yes: bool) -> None:
    """Delete topics, with everything in them."""
    with connect(invocation) as client:
        asked = [preview(client, "topics delete", topic=name) for name in dict.fromkeys(names)]
        carry_out_each(client, asked, dry_run=dry_run, yes=yes)


@command.command("delete-records")
@click.argument("name", metavar="TOPIC", shell_complete=completion.topics)
@option("--partition", type=click.IntRange(min=0), required=True)
@option(
    "--before",
    type=click.IntRange(min=-1),
    required=True,
    metavar="OFFSET",
    help="The first offset that stays; -1: the log end.",
)
@destructive
@pass_invocation
def delete_records(invocation: Invocation, name: str, *, partition: int, before: int, dry_run: bool, yes: bool) -> None:
    """Delete a partition's records below an offset.

    The log start moves there at once, even past transactions that are still
    open. The sweep `retention` frees the space.
    """
    with connect(invocation) as client:
        asked = preview(client, "topics delete-records", topic=name, partition=partition, before=before)
        if confirmed(asked.says, dry_run=dry_run, yes=yes) and (row := carry_out(client, asked, yes=yes)) is not None:
            show_one(invocation.format, row)
