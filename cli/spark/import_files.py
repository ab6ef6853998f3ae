"""`msgtx spark import`."""

import click

from msgtx.cli.options import Invocation, option, pass_invocation
from msgtx.cli.output import row_of, show_one
from msgtx.cli.progress import progress
from msgtx.cli.spark.running import Job, running

FORMATS = ("parquet", "csv", "json")
MIB = 1024 * 1024


def _pairs(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for value in values:
        name, sign, rest = value.partition("=")
        if not (name and sign):
            raise click.BadParameter(f"{value!r} is not NAME=VALUE")
        found[name] = rest
    return found


@click.command("import", cls=Job)
@click.argument("topic")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@option(
    "--format",
    "kind",
    envvar="MSGTX_SPARK_IMPORT_FORMAT",
    type=click.Choice(FORMATS),
    help="What the files are.  [default: by their names]",
)
@option("--key-column", metavar="NAME", help="The column that is the key.")
@option("--value-column", metavar="NAME", help="The column that is the value.  [default: the whole row, as JSON]")
@option("--partition-column", metavar="NAME", help="The column that says which partition.  [default: by the key]")
@option("--timestamp-column", metavar="NAME", help="The column that is the timestamp.  [default: the time of the import]")
@option(
    "--header", "headers", multiple=True, metavar="NAME=COLUMN", callback=_pairs, help="A header from a column (repeatable)."
)
@option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_pairs,
    help="An option of Spark's reader (repeatable): sep=;, multiLine=true.",
)
@option("--app-id", metavar="NAME", help="Names the import: a file is imported once under each.  [default: import:TOPIC]")
@option("--batch-size", type=click.IntRange(min=1), default=256, metavar="MIB", help="How much one transaction takes.")
@option(
    "--transaction-timeout-ms", type=click.IntRange(min=1), default=600_000, help="A batch that takes longer is aborted."
)
@pass_invocation
def command(
    invocation: Invocation,
    *,
    topic: str,
    paths: tuple[str, ...],
    kind: str | None,
    key_column: str | None,
    value_column: str | None,
    partition_column: str | None,
    timestamp_column: str | None,
    headers: dict[str, str],
    options: dict[str, str],
    app_id: str | None,
    batch_size: int,
    transaction_timeout_ms: int,
) -> None:
    """Write the rows of Parquet, CSV or JSON files to a topic: each file once.

    PATH is a file, a folder or a pattern, local or on any file system that
    Spark knows. Files are written in batches, each in one transaction; a run
    that was cut off is run again, and goes on with the files that are missing.
    So does a later run when files were added. A file is never divided: one that
    takes longer than the transaction's timeout must be split.

    CSV files begin with a line of names; each column is text. Of JSON files,
    with one object per line, the value is the line as it is.
    """
    with running(invocation, "import", show_tasks=False) as spark, progress("import", in_bytes=True) as tell:
        from msgtx.spark_jobs.import_files import Columns, import_files

        columns = Columns(key_column, value_column, partition_column, timestamp_column, headers)
        report = import_files(
            spark,
            topic,
            paths,
            url=invocation.url,
            format=kind,
            columns=columns,
            options=options,
            app_id=app_id,
            batch_bytes=batch_size * MIB,
            transaction_timeout_ms=transaction_timeout_ms,
            told=lambda done, total: tell(done, f"of {total / MIB:,.0f} MiB"),
        )
    show_one(invocation.format, row_of(report))
