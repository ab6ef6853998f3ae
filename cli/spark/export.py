"""`msgtx spark export`."""

import click

from msgtx.cli.spark.running import Job, running
from msgtx.cli.terminal.invocation import Invocation, option, pass_invocation
from msgtx.cli.terminal.output import show_one


@click.command("export", cls=Job)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@option(
    "--to",
    "target",
    envvar="MSGTX_SPARK_EXPORT_TO",
    required=True,
    metavar="FOLDER",
    help="The target folder: a path, or an address such as s3a://bucket/name.",
)
@option("--by-date", is_flag=True, help="Also partition the files by the date of the timestamp (UTC).")
@pass_invocation
def command(invocation: Invocation, *, topics: tuple[str, ...], target: str, by_date: bool) -> None:
    """Write what was committed since the last export as Parquet: each record once.

    A run adds one folder batch=N, completely or not at all. It ends at a consistent cut, so it holds all of a transaction or
    nothing of it. Read the whole target folder as one table. A killed run leaves nothing that readers see; run it again. If
    two exports run at once, one of them fails and writes nothing. On object stores, where renaming takes many steps, readers
    may see part of the batch that is being written, and you must not run two exports at once.
    """
    with running(invocation, "export") as spark:
        from msgtx.spark_jobs.export import export

        report = export(
            spark,
            topics,
            target,
            url=invocation.url,
            read_url=invocation.read_url,
            by_date=by_date,
            on_failover=invocation.on_failover,
        )
    row = {"batch": report.batch, "records": report.records, "files": report.files, "bytes": report.bytes}
    show_one(invocation.format, {**row, "snapshot": str(report.snapshot)})
