"""A report as a page that stands alone: the picture and the tables in one HTML file, nothing is loaded from elsewhere."""

import base64
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from msgtx.spark_jobs.report import RatesReport, TopicRates
from msgtx.spark_jobs.runtime.chart import told_bytes, told_count, told_time, told_width

STYLE: Final = """
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; color: #1f2933; background: #f5f7f9;
       margin: 0; padding: 2rem 1rem; }
main { max-width: 74rem; margin: 0 auto; background: #fff; border-radius: 12px; padding: 2rem 2.25rem;
       box-shadow: 0 1px 4px rgb(15 30 50 / 12%); }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; }
p.told { color: #6b7785; margin: .25rem 0 1.5rem; } img { width: 100%; height: auto; display: block; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .45rem .75rem; text-align: right; border-bottom: 1px solid #e4e8ec; white-space: nowrap; }
th { color: #6b7785; font-weight: 600; font-size: .85rem; } tbody tr:hover { background: #f5f7f9; }
th:first-child, td:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere; }
div.wide { overflow-x: auto; } code { font-size: .8rem; overflow-wrap: anywhere; color: #6b7785; }
@media print { body { background: #fff; padding: 0; } main { box-shadow: none; } }
"""
TOPICS: Final = (
    "topic", "partitions", "records", "size", "records/s", "peak records/s", "bytes/s", "first, UTC", "last, UTC",
)  # fmt: skip
GROUPS: Final = ("group", "state", "partitions", "unread records", "oldest of them, UTC")
NEVER: Final = "–"


def page(report: RatesReport, picture: bytes) -> str:
    """Return the HTML of a report and its chart, a PNG."""
    records, size = sum(each.records for each in report.topics), sum(each.bytes for each in report.topics)
    head = f"{told_count(records)} records, {told_bytes(size)}"
    told = (
        f"Committed records below a consistent cut of {told_time(report.made_at)} UTC, in buckets of"
        f" {told_width(report.bucket_ms)}, by the time that records carry. Sizes are as stored. The first and the"
        " last bucket may be partly filled."
    )
    encoded = base64.b64encode(picture).decode()
    tables = [f"<h2>Topics</h2>{_table(TOPICS, map(_topic, report.topics), 'no topics')}"]
    if report.groups:
        rows = (
            (each.group, each.state, f"{each.partitions:,}", f"{each.lag:,}", _time(each.oldest_at))
            for each in report.groups
        )
        tables.append(f"<h2>Groups</h2>{_table(GROUPS, rows, 'no groups')}")
    cuts = [("to", report.end)] if report.start is None else [("from", report.start), ("to", report.end)]
    tables.append("<h2>Cuts</h2>" + "".join(f"<p>{word} <code>{escape(str(cut))}</code></p>" for word, cut in cuts))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>msgtx: {escape(head)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{escape(head)}</h1>\n<p class="told">{escape(told)}</p>\n'
        f'<img alt="Rates, sizes and lag over time" src="data:image/png;base64,{encoded}">\n'
        + "\n".join(tables)
        + "\n</main>\n</body>\n</html>\n"
    )


def _topic(each: TopicRates) -> Sequence[str]:
    return (
        each.topic,
        f"{each.partitions:,}",
        f"{each.records:,}",
        told_bytes(each.bytes),
        told_count(each.records_per_second),
        told_count(each.peak_records_per_second),
        told_bytes(each.bytes_per_second),
        _time(each.first_at),
        _time(each.last_at),
    )


def _time(at: int | None) -> str:
    return NEVER if at is None else told_time(at)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], nothing: str) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in rows)
    body = body or f'<tr><td colspan="{len(columns)}">{nothing}</td></tr>'
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table></div>'
