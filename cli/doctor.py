"""`msgtx doctor`."""

import click

from msgtx.cli.database import connect
from msgtx.cli.failure import FAILED
from msgtx.cli.options import Command, Invocation, option, pass_invocation
from msgtx.cli.output import row_of, show_many
from msgtx.types import Level


@click.command("doctor", cls=Command)
@option("--most", type=click.IntRange(min=1), default=20, help="Findings of one kind; further ones are counted.")
@option(
    "--level", type=click.Choice([str(level) for level in Level]), default=Level.INFORMATION.value, help="Tell from this on."
)
@pass_invocation
def command(invocation: Invocation, most: int, level: str) -> int:
    """Tell what holds partitions back, what hurts, and what to do.

    Exit code 1 when there is a problem. -o json adds the numbers behind each finding.
    """
    with connect(invocation) as client:
        found = client.admin.doctor(most=most)
    levels = list(Level)
    told = [finding for finding in found if levels.index(finding.level) <= levels.index(Level(level))]
    show_many(invocation.format, map(row_of, told), ("level", "subject", "text", "advice"))
    return FAILED if any(finding.level is Level.PROBLEM for finding in found) else 0
