"""`msgtx offsets`."""

import click

from msgtx.cli.database import connect
from msgtx.cli.options import Command, Invocation, earliest_latest_or_number, isolation, option, pass_invocation
from msgtx.cli.output import show_many
from msgtx.types import Isolation


@click.command("offsets", cls=Command)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@option(
    "--time",
    type=earliest_latest_or_number,
    default="latest",
    metavar="earliest|latest|MS",
    help="MS: the first record at or after so many milliseconds since 1970 UTC.",
)
@isolation
@pass_invocation
def command(invocation: Invocation, topics: tuple[str, ...], time: str | int, isolation: str | None) -> None:
    """Show the offsets of each partition at a time (without TOPIC: of all topics).

    `latest` is the end that the isolation may read: the last stable offset, or the log end.
    """
    with connect(invocation) as client:
        from msgtx.store.fetch import EARLIEST, LATEST

        at = {"earliest": EARLIEST, "latest": LATEST}.get(time, time) if isinstance(time, str) else time
        assert isinstance(at, int)
        level = Isolation(isolation or Isolation.READ_COMMITTED)
        found = client.admin.partitions.offsets(list(topics) or None, at, level)
    rows = [
        {"topic": tp.topic, "partition": tp.partition, "offset": listed.offset, "timestamp": listed.timestamp}
        for tp, listed in found.items()
    ]
    show_many(invocation.format, rows, ("topic", "partition", "offset", "timestamp"))
