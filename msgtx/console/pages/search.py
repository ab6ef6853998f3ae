"""The box in the head: a place, a name, a key, or words in a value."""

import shlex
from typing import Any, Final

from msgtx.client import Client
from msgtx.console.page import Deadline, Page, Query, Section
from msgtx.rows import search_row
from msgtx.types import SearchHit, SearchKind

_SECONDS: Final = 4.0  # after which a page shows what was found
_MOST: Final = 20
SINCE: Final = ("1h", "1d", "7d", "30d")


def search_page(client: Client, query: Query) -> Page:
    """Show what a text may mean, and where that leads."""
    asked = query.text("q").strip()
    since = query.choice("since", SINCE, default="1d")
    view: dict[str, Any] = {"asked": asked, "since": since, "sinces": SINCE}
    if not asked:
        return Page("Search", "search.html", {}, {**view, "places": [], "similar": [], "is_complete": True}, is_live=False)
    found = client.search(asked, since=since, limit=_MOST, stop=Deadline(_SECONDS))
    return Page(
        "Search",
        "search.html",
        {"hits": Section(search_row(found), f"msgtx search {shlex.quote(asked)} --since {since} --limit {_MOST}")},
        {
            **view,
            "places": [_place(each) for each in found.hits],
            "similar": [_place(each) for each in found.similar],
            "is_complete": found.is_complete,
        },
        is_live=False,
    )


def _place(hit: SearchHit) -> dict[str, Any]:
    """Return a hit with the page that it leads to."""
    page: tuple[str, dict[str, object]] | None = None
    match hit.kind:
        case SearchKind.RECORD if hit.record is not None:
            place = hit.record
            page = ("record", {"topic": place.topic, "partition": place.partition, "offset": place.offset})
        case SearchKind.PARTITION:
            topic, _, partition = hit.name.rpartition("-")
            page = ("messages", {"topic": topic, "partition": partition})
        case SearchKind.TRANSACTION | SearchKind.TRANSACTIONAL_ID:
            page = ("transaction", {"id": hit.name})
        case SearchKind.PRODUCER:
            page = ("producer", {"id": hit.name})
        case SearchKind.TOPIC:
            page = ("topic", {"name": hit.name})
        case SearchKind.GROUP:
            page = ("group", {"name": hit.name})
        case SearchKind.SHARE_GROUP:
            page = ("share", {"name": hit.name})
        case SearchKind.SNAPSHOT:
            page = ("cut", {"name": hit.name})
    return {"kind": str(hit.kind).replace("_", " "), "name": hit.name, "text": hit.text, "page": page, "record": hit.record}
