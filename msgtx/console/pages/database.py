"""The database below: tables, what keeps VACUUM back, standbys, rights."""

from msgtx.client import Client
from msgtx.console.page import Page, Query, Section, arranged
from msgtx.rows import database_row

_COLUMNS = ("name", "bytes", "live_rows", "dead_rows", "rows_since_vacuum")


def database_page(client: Client, query: Query) -> Page:
    """Show the tables by size, old snapshots, standbys with their lag, and the rights of roles."""
    row = database_row(client.admin.database())
    table = arranged(row["tables"], query, columns=_COLUMNS, sort="-bytes", filter_on=("name",))
    return Page(
        "Database",
        "database.html",
        {"described": Section(row, "msgtx db status")},
        {"table": table, "bytes": sum(each["bytes"] for each in row["tables"])},
        noun="database",
    )
