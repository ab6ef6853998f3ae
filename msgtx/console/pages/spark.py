"""Spark: what applications and their queries have committed, and what a batch does that runs again."""

from msgtx.client import Client
from msgtx.console.page import Page, Query, Section, arranged
from msgtx.rows import spark_row

_COLUMNS = ("application", "query_id", "last_batch", "decided_at", "undecided_attempts")


def spark_page(client: Client, query: Query) -> Page:
    """List the queries of applications."""
    rows = list(map(spark_row, client.admin.spark.list()))
    table = arranged(rows, query, columns=_COLUMNS, sort="application", filter_on=("application", "query_id"))
    return Page(
        "Spark", "spark.html", {"queries": Section(table.rows, "msgtx spark status")}, {"table": table}, noun="spark"
    )
