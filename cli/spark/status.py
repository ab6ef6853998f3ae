"""`msgtx spark status`: it needs no Spark."""

import click

from msgtx.cli.terminal.database import connect
from msgtx.cli.terminal.invocation import Command, Invocation, pass_invocation
from msgtx.cli.terminal.output import show_many
from msgtx.rows import spark_row

COLUMNS = ("application", "query_id", "last_batch", "decided_at", "undecided_attempts", "rerun")


@click.command("status", cls=Command, examples=("msgtx spark status", "msgtx spark status -o json"))
@pass_invocation
def command(invocation: Invocation) -> None:
    """Show the applications and their queries: the last committed batch, and attempts that are undecided.

    `rerun` says what a batch does that runs again. An application that counts its batches itself has no query id. It takes
    the right to observe every topic, and no Spark.
    """
    with connect(invocation) as client:
        found = client.admin.spark.list()
    show_many(invocation.format, map(spark_row, found), COLUMNS)
