"""`msgtx sweep`."""

import click

from msgtx.cli.database import connect
from msgtx.cli.options import Command, Invocation, pass_invocation
from msgtx.cli.output import row_of, show_one


@click.command("sweep", cls=Command)
@pass_invocation
def command(invocation: Invocation) -> None:
    """Do one round of everything: abort overdue transactions, write missing markers and floors."""
    with connect(invocation) as client:
        report = client.sweep()
    show_one(invocation.format, row_of(report))
