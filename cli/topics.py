"""`msgtx topics`."""

from typing import Any

import click

from msgtx.cli.database import connect
from msgtx.cli.options import Group, Invocation, confirmed, destructive, option, pass_invocation
from msgtx.cli.output import row_of, show_many, show_one, show_table
from msgtx.types import TopicPartition

ENDS = ("partition", "log_start_offset", "last_stable_offset", "log_end_offset")


@click.group("topics", cls=Group)
def command() -> None:
    """Create, show and delete topics."""


@command.command("create")
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@option("--partitions", type=click.IntRange(min=1), default=1)
@option("--retention-ms", type=int, help="-1: for ever.")
@option("--retention-bytes", type=int, help="Of each partition; -1: no limit.")
@option("--cleanup-policy", type=click.Choice(["delete", "compact", "compact,delete"]))
@option("--delete-retention-ms", type=int, help="How long tombstones stay after compaction.")
@option("--max-message-bytes", type=int, help="Of one record: key, value and headers.")
@option("--timestamp-type", type=click.Choice(["CreateTime", "LogAppendTime"]))
@option("--if-not-exists", is_flag=True, help="A topic that is there is left as it is.")
@pass_invocation
def create(
    invocation: Invocation, /, names: tuple[str, ...], partitions: int, *, if_not_exists: bool, **settings: Any
) -> None:
    """Create topics."""
    given = {name: value for name, value in settings.items() if value is not None}
    with connect(invocation) as client:
        from msgtx.errors import TopicExists

        rows = []
        for name in names:
            try:
                rows.append(client.topics.create(name, partitions, **given))
            except TopicExists:
                if not if_not_exists:
                    raise
                rows.append(client.topics.describe(name))
    show_many(invocation.format, map(row_of, rows), ("name", "partitions"))


@command.command("list")
@pass_invocation
def list_topics(invocation: Invocation) -> None:
    """List the topics."""
    with connect(invocation) as client:
        rows = [row_of(client.topics.describe(name)) for name in client.topics.list()]
    show_many(invocation.format, rows, ("name", "partitions"))


@command.command("describe")
@click.argument("name", metavar="TOPIC")
@pass_invocation
def describe(invocation: Invocation, name: str) -> None:
    """Show a topic: its settings, and the ends of its partitions."""
    with connect(invocation) as client:
        topic = client.topics.describe(name)
        ends = [
            {"partition": index, **row_of(client.admin.partitions.describe(TopicPartition(name, index)))}
            for index in range(topic.partitions)
        ]
    if invocation.format == "table":
        show_one("table", {"name": topic.name, "partitions": topic.partitions, **topic.settings})
        show_table(ENDS, [[row[column] for column in ENDS] for row in ends])
    else:
        show_one(invocation.format, {**row_of(topic), "ends": ends})


@command.command("delete")
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@destructive
@pass_invocation
def delete(invocation: Invocation, names: tuple[str, ...], *, dry_run: bool, yes: bool) -> None:
    """Delete topics, with everything in them."""
    with connect(invocation) as client:
        known = [client.topics.describe(name) for name in dict.fromkeys(names)]
        for topic in known:
            what = f"delete topic {topic.name} ({topic.partitions} partitions, with its records)"
            if confirmed(what, dry_run=dry_run, yes=yes):
                client.topics.delete(topic.name)
