"""`msgtx spark report`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from msgtx.cli.commands.offsets import cuts_of
from msgtx.cli.spark.running import Job, running
from msgtx.cli.terminal.database import connect
from msgtx.cli.terminal.interruption import deferred
from msgtx.cli.terminal.invocation import Invocation, option, pass_invocation
from msgtx.cli.terminal.output import show_many, show_one
from msgtx.errors import ConfigError
from msgtx.rows import row_of

if TYPE_CHECKING:
    from msgtx.spark_jobs.report import GroupLag, RatesReport, TopicRates

TOPIC_COLUMNS = ("topic", "partitions", "records", "bytes", "records_per_second", "bytes_per_second")
GROUP_COLUMNS = ("group", "state", "partitions", "lag")
file_path = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command("report", cls=Job)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@option("--png", type=file_path, default="msgtx-report.png", help="The file for the chart.")
@option(
    "--html",
    type=file_path,
    default="msgtx-report.html",
    help="The file for the page, with the chart and tables in one file.",
)
@option("--from", "start", metavar="NAME|TEXT", help="The snapshot to begin at.  [default: the log starts]")
@option("--to", "end", metavar="NAME|TEXT", help="The snapshot to end at.  [default: a cut taken now]")
@option(
    "--bucket",
    type=click.FloatRange(min=0.001),
    metavar="SECONDS",
    help="The length of an interval in the chart.  [default: as suits the span of time]",
)
@option("--groups/--no-groups", default=True, help="Whether to look at groups; that needs admin on every topic.")
@pass_invocation
def command(
    invocation: Invocation,
    topics: tuple[str, ...],
    *,
    png: Path,
    html: Path,
    start: str | None,
    end: str | None,
    bucket: float | None,
    groups: bool,
) -> None:
    """Draw rates and sizes of TOPIC (without TOPIC, of all topics) over time, and what groups still have to read.

    The chart goes by the timestamps of the records, between two consistent cuts.
    Executors query ranges of the log in parallel, and the database does the
    summing, so no value of a record leaves it.
    """
    for file in (png, html):
        if not file.parent.is_dir():
            raise ConfigError(f"there is no folder {file.parent} for {file.name}")
    with connect(invocation) as client:
        first, last = cuts_of(client, topics, start, end)
    with running(invocation, "report") as spark:
        with deferred():
            from msgtx.spark_jobs.report import run
            from msgtx.spark_jobs.runtime.chart import draw
            from msgtx.spark_jobs.runtime.page import page
        report = run(
            spark,
            topics or None,
            url=invocation.url,
            start=first,
            end=last,
            bucket_ms=None if bucket is None else max(1, round(bucket * 1_000)),
            groups=groups,
        )
    picture = draw(report)
    png.write_bytes(picture)
    html.write_text(page(report, picture), encoding="utf-8")
    click.echo(f"wrote {png} and {html}", err=True)
    _show(invocation, report)


def _show(invocation: Invocation, report: "RatesReport") -> None:
    topics, groups = [_row(each) for each in report.topics], [_row(each) for each in report.groups]
    if invocation.format == "table":
        show_many("table", topics, TOPIC_COLUMNS)
        if groups:
            show_many("table", groups, GROUP_COLUMNS)
        return
    cuts = {"from": None if report.start is None else str(report.start), "to": str(report.end)}
    whole = {"bucket_ms": report.bucket_ms, "made_at": report.made_at, "seconds": report.seconds}
    show_one(invocation.format, {"topics": topics, "groups": groups, **whole, **cuts})


def _row(one: "TopicRates | GroupLag") -> dict[str, Any]:
    return row_of(one) | {"buckets": [row_of(bucket) for bucket in one.buckets]}
