"""`msgtx spark audit`."""

import click

from msgtx.cli.failure import FAILED
from msgtx.cli.options import Command, Invocation, option, pass_invocation
from msgtx.cli.output import row_of, show_many, show_one
from msgtx.cli.progress import progress
from msgtx.cli.spark.running import importing, master_option, session_for

COLUMNS = ("topic", "partition", "offset", "check", "promise", "expected", "found")
COUNTS = (
    "topic", "partitions", "batches", "records", "offsets", "duplicates", "sequences", "torn", "group_offsets", "other",
)  # fmt: skip


@click.command("audit", cls=Command)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@master_option
@option(
    "--records-of-a-task",
    type=click.IntRange(min=1),
    default=1_000_000,
    help="How much of a partition one task looks at.",
)
@pass_invocation
def command(invocation: Invocation, topics: tuple[str, ...], *, master: str | None, records_of_a_task: int) -> int:
    """Read everything of TOPIC (without: of all topics) on executors, and compare it with what msgtx promises.

    Per topic the violations are counted: offsets that are not dense,
    duplicates, sequences out of order, torn transactions, offsets of groups
    outside the log. Exit code 1 when there are any. `msgtx verify` does the
    same with one connection.
    """
    with session_for(invocation, "audit", master) as spark:
        with importing():
            from msgtx.spark_jobs.audit import run
        with progress("audit") as told:
            report = run(spark, topics or None, url=invocation.url, records_of_a_task=records_of_a_task, progress=told)
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
