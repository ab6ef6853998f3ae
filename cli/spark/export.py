"""`msgtx spark export`."""

import click

from msgtx.cli.options import Invocation, option, pass_invocation
from msgtx.cli.output import show_one
from msgtx.cli.spark.running import Job, running


@click.command("export", cls=Job)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@option(
    "--to",
    "target",
    envvar="MSGTX_SPARK_EXPORT_TO",
    required=True,
    metavar="FOLDER",
    help="Where to: a path, or an address such as s3a://bucket/name.",
)
@option("--by-date", is_flag=True, help="Divide by the date of the timestamp as well (UTC).")
@option("--read-url", metavar="URL", help="Read the records there: a replica of the database.")
@pass_invocation
def command(invocation: Invocation, *, topics: tuple[str, ...], target: str, by_date: bool, read_url: str | None) -> None:
    """Write what was committed since the last export as Parquet: each record once.

    A run adds one folder batch=N, whole or not at all, that ends at a
    consistent cut: it holds all of a transaction or nothing. Read the whole
    folder as one table. A run that was killed leaves nothing that readers see;
    run it again. Two at once: one of them fails, and wrote nothing. On object
    stores, where renaming takes many steps, readers may see a part of the
    batch that is being written, and exports must not run at once.
    """
    with running(invocation, "export") as spark:
        from msgtx.spark_jobs.export import export

        report = export(spark, topics, target, url=invocation.url, read_url=read_url, by_date=by_date)
    row = {"batch": report.batch, "records": report.records, "files": report.files, "bytes": report.bytes}
    show_one(invocation.format, {**row, "snapshot": str(report.snapshot)})
