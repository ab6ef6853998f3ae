"""A producer: its epochs over time, and who fenced whom."""

import shlex

from msgtx.client import Client
from msgtx.console.page import Page, Query, Section
from msgtx.rows import row_with_times
from msgtx.rules.names import producer_named

_MOST = 100


def producer_page(client: Client, query: Query) -> Page:
    """Show the epochs of a producer id, or of a transactional id, the newest first."""
    asked = query.needed("id")
    before = query.whole("before", 0) or None
    found = client.admin.producers.history(producer_named(asked), epochs_before=before, most=_MOST)
    option = "" if before is None else f" --before {before}"
    return Page(
        found.transactional_id or f"Producer {found.producer_id}",
        "producer.html",
        {"history": Section(row_with_times(found), f"msgtx transactions history {shlex.quote(asked)}{option}")},
        {"found": found},
        noun="transactions",
        changes=[("transactions fence", {"transactional_id": found.transactional_id})] if found.transactional_id else (),
    )
