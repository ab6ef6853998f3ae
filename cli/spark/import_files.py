"""`msgtx spark import`."""

import click

from msgtx.cli.spark.running import Job, running
from msgtx.cli.terminal.invocation import Invocation, option, pass_invocation
from msgtx.cli.terminal.output import show_one
from msgtx.cli.terminal.progress import progress
from msgtx.cli.terminal.quantities import milliseconds
from msgtx.declared.spark import TRANSACTION_TIMEOUT
from msgtx.rows import row_of

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
    help="The format of the files.  [default: by their names]",
)
@option("--key-column", metavar="NAME", help="The column that is the key.")
@option("--value-column", metavar="NAME", help="The column that is the value.  [default: the whole row, as JSON]")
@option("--partition-column", metavar="NAME", help="The column that is the partition.  [default: chosen by the key]")
@option("--timestamp-column", metavar="NAME", help="The column that is the timestamp.  [default: the time of the import]")
@option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=COLUMN",
    callback=_pairs,
    help="Make a header from a column (repeatable).",
)
@option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_pairs,
    help="An option of Spark's reader (repeatable), of CSV files: sep=;, quote, escape, header=false, nullValue.",
)
@option("--encoding", metavar="NAME", help="The encoding of CSV files: ISO-8859-1, windows-1252.  [default: UTF-8]")
@option(
    "--app-id",
    metavar="NAME",
    help="A name for the import: under each name, a file is imported once.  [default: import:TOPIC]",
)
@option(
    "--batch-size", type=click.IntRange(min=1), default=256, metavar="MIB", help="The size of the files in one transaction."
)
@option(
    "--transaction-timeout-ms", type=milliseconds(1), default=TRANSACTION_TIMEOUT, help="Abort a batch that takes longer."
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
    encoding: str | None,
    app_id: str | None,
    batch_size: int,
    transaction_timeout_ms: int,
) -> None:
    """Write the rows of Parquet, CSV or JSON files to a topic: each file once.

    PATH is a file, a folder or a pattern, local or on any file system that
    Spark knows. Files are written in batches, each in one transaction. If a run
    is cut off, run it again: it continues with the files that are missing, as
    does a later run when files have been added. What a killed run was writing
    holds the topic's readers back for up to 45 s. A file is never divided
    between transactions, so split a file that takes longer than the
    transaction's timeout.

    CSV files begin with a line of column names, and each column is text; an
    empty field is no key and no value. JSON files have one object per line, and
    the value is the line as it is. A file that cannot be read as it was meant
    is refused.
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
            encoding=encoding,
            options=options,
            app_id=app_id,
            batch_bytes=batch_size * MIB,
            transaction_timeout_ms=transaction_timeout_ms,
            on_failover=invocation.on_failover,
            told=lambda done, total: tell(done, f"of {total / MIB:,.0f} MiB"),
        )
    show_one(invocation.format, row_of(report))
