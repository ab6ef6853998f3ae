"""Share groups, and one share group with its partitions and settings."""

import shlex

from msgtx.client import Client
from msgtx.console.page import Page, Query, Section, arranged
from msgtx.rows import SHARE_COLUMNS, SHARE_PARTITION_COLUMNS, listed_share_row, share_row


def shares_page(client: Client, query: Query) -> Page:
    """List the share groups."""
    rows = map(listed_share_row, client.admin.shares.list())
    table = arranged(rows, query, columns=SHARE_COLUMNS, sort="group", filter_on=("group",))
    return Page(
        "Share groups", "shares.html", {"shares": Section(table.rows, "msgtx shares list")}, {"table": table}, noun="shares"
    )


def share_page(client: Client, query: Query) -> Page:
    """Show a share group: what is in flight on each partition, and its settings."""
    name = query.needed("name")
    row = share_row(client.admin.shares.describe(name))
    table = arranged(row["partitions"], query, columns=SHARE_PARTITION_COLUMNS, sort="topic", filter_on=("topic",))
    return Page(
        name,
        "share.html",
        {"share": Section(row, f"msgtx shares describe {shlex.quote(name)}")},
        {"name": name, "table": table},
        noun="shares",
        changes=[(f"shares {verb}", {"group": name}) for verb in ("redrive", "reset-offsets", "delete")],
    )
