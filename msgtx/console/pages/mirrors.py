"""Mirrors that copy to this database, and one mirror with its progress."""

import shlex

from msgtx.client import Client
from msgtx.console.page import Page, Query, Section, arranged
from msgtx.rows import MIRROR_COLUMNS, PLACE_COLUMNS, mirror_row


def mirrors_page(client: Client, query: Query) -> Page:
    """List the mirrors."""
    rows = map(mirror_row, client.admin.mirrors.list())
    table = arranged(rows, query, columns=MIRROR_COLUMNS, sort="name", filter_on=("name", "source_address"))
    return Page(
        "Mirrors", "mirrors.html", {"mirrors": Section(table.rows, "msgtx mirror list")}, {"table": table}, noun="mirrors"
    )


def mirror_page(client: Client, query: Query) -> Page:
    """Show how far a mirror has copied each partition of its source."""
    name = query.needed("name")
    row = mirror_row(client.admin.mirrors.describe(name))
    table = arranged(row["places"], query, columns=PLACE_COLUMNS, sort="topic", filter_on=("topic",))
    return Page(
        name,
        "mirror.html",
        {"mirror": Section(row, f"msgtx mirror describe {shlex.quote(name)}")},
        {"name": name, "table": table},
        noun="mirrors",
        changes=[("mirror reset", {"name": name})],
    )
