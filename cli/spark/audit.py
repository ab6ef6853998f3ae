"""`msgtx spark audit`."""

import click

from msgtx.cli.spark.running import Job, running
from msgtx.cli.terminal.failure import FAILED
from msgtx.cli.terminal.interruption import deferred
from msgtx.cli.terminal.invocation import Invocation, option, pass_invocation
from msgtx.cli.terminal.output import show_many, show_one
from msgtx.rows import row_of

COLUMNS = ("topic", "partition", "offset", "check", "promise", "expected", "found")
COUNTS = (
    "topic", "partitions", "batches", "records", "offsets", "duplicates", "sequences", "torn", "group_offsets", "other",
)  # fmt: skip


@click.command("audit", cls=Job)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@option(
    "--records-of-a-task",
    type=click.IntRange(min=1),
    default=10_000_000,
    help="About this many records per task; fewer for small topics, so that each core gets some tasks.",
)
@pass_invocation
def command(invocation: Invocation, topics: tuple[str, ...], *, records_of_a_task: int) -> int:
    """Read everything in TOPIC (without TOPIC, in all topics) on executors, and compare it with what msgtx promises.

    It counts the violations in each topic: offsets that are not dense,
    duplicates, sequences out of order, torn transactions, and offsets of groups
    outside the log. The exit code is 1 if there are any. `msgtx verify` does the
    same with one connection.
    """
    with running(invocation, "audit") as spark:
        with deferred():
            from msgtx.spark_jobs.audit import run
        report = run(spark, topics or None, url=invocation.url, records_of_a_task=records_of_a_task)
    counts = [row_of(topic) for topic in report.topics]
    violations = [row_of(violation) for violation in report.violations]
    whole = {name: value for name, value in row_of(report).items() if name not in {"topics", "violations", "snapshot"}}
    if invocation.format == "table":
        if violations:
            show_many("table", violations, COLUMNS)
        show_many("table", counts, COUNTS)
        show_one("table", whole)
    else:
        snapshot = str(report.snapshot)
        show_one(invocation.format, {"topics": counts, **whole, "snapshot": snapshot, "violations": violations})
    return FAILED if report.violations_found else 0
