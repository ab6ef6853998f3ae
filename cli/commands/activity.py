"""`msgtx activity`: records and transactions over time."""

import click

from msgtx.cli.terminal import completion
from msgtx.cli.terminal.database import connect
from msgtx.cli.terminal.invocation import Command, Invocation, option, pass_invocation
from msgtx.cli.terminal.output import show_many
from msgtx.rows import activity_row


@click.command(
    "activity",
    cls=Command,
    examples=("msgtx activity", "msgtx activity --minutes 1440 --pieces 24", "msgtx activity --topic orders -o json"),
)
@option("--minutes", type=click.IntRange(min=1), default=60, help="How far to look back.")
@option(
    "--pieces",
    type=click.IntRange(min=1),
    help="Divide the time into so many pieces.  [default: one a minute, fewer for a long time]",
)
@option("--topic", metavar="TOPIC", shell_complete=completion.topics, help="Only this topic.")
@pass_invocation
def command(invocation: Invocation, *, minutes: int, pieces: int | None, topic: str | None) -> None:
    """Show how many records were stored and transactions decided, minute by minute.

    Of all topics that the role may consume or observe. The last piece is under way. Transactions count by the time of their
    decision, and only those with records. What retention or the end of the history has removed is unknown: `removed` says
    how many partitions are not in `records`. A very busy piece is estimated.
    """
    with connect(invocation) as client:
        found = client.admin.activity(minutes, pieces=pieces, topic=topic)
    columns = ("start", "records", "committed", "aborted", "removed", "estimated")
    show_many(invocation.format, map(activity_row, found), columns)
