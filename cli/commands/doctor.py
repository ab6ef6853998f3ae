"""`msgtx doctor`."""

import click

from msgtx.cli.terminal.database import connect
from msgtx.cli.terminal.failure import FAILED
from msgtx.cli.terminal.invocation import Command, Invocation, option, pass_invocation
from msgtx.cli.terminal.output import show_many
from msgtx.rows import row_of
from msgtx.types import Level


@click.command("doctor", cls=Command)
@option(
    "--most",
    type=click.IntRange(min=1),
    default=20,
    help="The most findings shown of one kind; further ones are only counted.",
)
@option(
    "--level",
    type=click.Choice([str(level) for level in Level]),
    default=Level.INFORMATION.value,
    help="The lowest level shown.",
)
@pass_invocation
def command(invocation: Invocation, most: int, level: str) -> int:
    """Report problems, such as transactions that hold partitions back, and their remedies.

    The exit code is 1 if there is a problem. -o json adds the numbers behind each finding.
    """
    with connect(invocation) as client:
        found = client.admin.doctor(most=most)
    levels = list(Level)
    told = [finding for finding in found if levels.index(finding.level) <= levels.index(Level(level))]
    if invocation.format == "table" and not told:
        click.echo(f"nothing to tell from {level} on", err=True)
        return 0
    show_many(invocation.format, map(row_of, told), ("level", "subject", "text", "advice"))
    return FAILED if any(finding.level is Level.PROBLEM for finding in found) else 0
