"""`msgtx verify`."""

import click

from msgtx.cli.terminal import completion
from msgtx.cli.terminal.database import connect
from msgtx.cli.terminal.failure import FAILED
from msgtx.cli.terminal.interruption import deferred
from msgtx.cli.terminal.invocation import Command, Invocation, pass_invocation
from msgtx.cli.terminal.output import show_many, show_one
from msgtx.cli.terminal.progress import progress
from msgtx.rows import row_of

COLUMNS = ("topic", "partition", "offset", "check", "promise", "expected", "found")


@click.command("verify", cls=Command)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", shell_complete=completion.topics)
@pass_invocation
def command(invocation: Invocation, topics: tuple[str, ...]) -> int:
    """Read everything in TOPIC (without TOPIC, in all topics), and compare it with what msgtx promises.

    It may run beside producers and consumers. The exit code is 1 if a promise is
    broken. The numbers I1 to I17 are those of ARCHITECTURE.md.
    """
    with deferred():
        from msgtx.store.fetch.fetch import LATEST
        from msgtx.types import Isolation
    with connect(invocation) as client:
        asked = list(topics) or None
        ends = client.admin.partitions.offsets(asked, LATEST, Isolation.READ_UNCOMMITTED).values()
        total = sum(listed.log_end_offset - listed.log_start_offset for listed in ends)
        with progress("verify", total=total) as told:
            report = client.admin.verify(asked, progress=told)
    violations = [row_of(violation) for violation in report.violations]
    counts = {name: value for name, value in row_of(report).items() if name != "violations"}
    if invocation.format == "table":
        if violations:
            show_many("table", violations, COLUMNS)
        show_one("table", counts)
    else:
        show_one(invocation.format, counts | {"violations": violations})
    return FAILED if report.violations_found else 0
