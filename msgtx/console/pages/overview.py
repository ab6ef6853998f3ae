"""Overview: what is wrong, and what to do about it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgtx.client import Client
from msgtx.console.page import Page, Query, part
from msgtx.rows import activity_row, database_row, listed_share_row, prepared_row, row_of
from msgtx.rules.transaction import State
from msgtx.types import Level

_MOST_GROUPS: Final = 8
MOST_OPEN: Final = 8
MOST_UNDECIDED: Final = 1_000  # undecided transactions


def overview_page(client: Client, query: Query) -> Page:
    """Show the findings of `doctor`, the groups that are furthest behind, and what is open."""
    findings = part("msgtx doctor", lambda: [row_of(each) for each in client.admin.doctor()])
    lags = part("msgtx groups lag", lambda: [row_of(each) for each in client.admin.groups.lags()])
    activity = part("msgtx activity", lambda: [activity_row(each) for each in client.admin.activity()])
    open_ = part(
        f"msgtx transactions list --state Ongoing --state Prepared --most {MOST_UNDECIDED}",
        lambda: [
            row_of(each) for each in client.admin.transactions.list([State.ONGOING, State.PREPARED], most=MOST_UNDECIDED)
        ],
    )
    prepared = part("msgtx transactions prepared", lambda: list(map(prepared_row, client.admin.transactions.prepared())))
    disk = part("msgtx db status", lambda: database_row(client.admin.database()))
    shares = part("msgtx shares list", lambda: list(map(listed_share_row, client.admin.shares.list())))
    everything = query.choice("findings", ["some", "all"]) == "all"
    counts = {level: sum(each["level"] == level for each in findings.rows) for level in Level}
    return Page(
        "Overview",
        "overview.html",
        {
            "findings": findings,
            "activity": activity,
            "lags": lags,
            "open": open_,
            "prepared": prepared,
            "shares": shares,
            "disk": disk,
        },
        {
            "counts": counts,
            "charts": _charts(activity.rows),
            "everything": everything,
            "shown": [each for each in findings.rows if everything or each["level"] != Level.INFORMATION],
            "disk_of_tables": sum(each["bytes"] for each in disk.rows["tables"]) if disk.rows else 0,
            "most_counted": MOST_UNDECIDED,
            "lag": sum(each["lag"] for each in lags.rows),
            "behind": sorted(lags.rows, key=lambda each: -each["lag"])[:_MOST_GROUPS],
            "first_open": open_.rows[:MOST_OPEN],
            "dead_letters": sum(each["dead_letters"] or 0 for each in shares.rows),
            "with_letters": [each for each in shares.rows if each["dead_letters"]],
        },
        noun="overview",
    )


def _charts(pieces: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the two charts of the last hour: a bar for each piece, in parts of a hundred of a round number above all."""
    if not pieces:
        return []
    known = [each for each in pieces if each["records"] is not None or each["committed"] is not None]
    records = {"title": "Records a minute", "kinds": ("records",), "known": bool(known)}
    transactions = {"title": "Transactions a minute", "kinds": ("committed", "aborted"), "known": bool(known)}
    for chart in (records, transactions):
        kinds: Any = chart["kinds"]
        sums = [sum(each[kind] or 0 for kind in kinds) for each in pieces]
        chart["top"] = top = _round_up(max(sums))
        chart["total"] = sum(sums)
        chart["begin"], chart["end"] = pieces[0]["start"], pieces[-1]["end"]
        chart["bars"] = bars = []
        for number, each in enumerate(pieces):
            below = 0.0
            for kind in kinds:
                height = 100 * (each[kind] or 0) / top
                if height:
                    x, width = 100 * number / len(pieces), 80 / len(pieces)
                    told = f"{each['start']}: {each[kind]} {kind}{', about' if each['estimated'] else ''}"
                    bars.append(
                        {
                            "kind": kind,
                            "x": round(x, 3),
                            "y": round(100 - below - height, 2),
                            "width": round(width, 3),
                            "height": round(height, 2),
                            "told": told,
                        }
                    )
                below += height
    return [records, transactions]


def _round_up(value: float) -> int:
    """Return the next of the numbers 10, 20, 50, 100, 200 and so on."""
    top = 10
    while top < value:
        top = top * 2 if str(top)[0] in "15" else top * 5 // 2
    return top
