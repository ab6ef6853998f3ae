"""Transactions: what each undecided one holds back, the newest one of each producer, and all that is stored of one."""

import shlex
from collections.abc import Iterator
from typing import Any, Final

from msgtx.client import Client
from msgtx.console.page import LARGEST_TABLE, ROWS, Following, Page, Query, Section, part
from msgtx.rows import prepared_row, row_of, row_with_times
from msgtx.rules.transaction import SORTS, State
from msgtx.types import Outcome, PreparedTransaction, ShownTransaction

MOST_BLOCKING: Final = 20  # cards
MOST_LANES: Final = 50  # partitions that are drawn; a table has the others
_MOST_PARTITIONS: Final = 200


def transactions_page(client: Client, query: Query) -> Page:
    """Show what holds partitions back, the prepared ones, and producers with the state of their newest transaction."""
    state = query.choice("state", ["all", *State])
    prefix, sort = query.text("filter"), query.choice("sort", SORTS)
    after, most = query.whole("after", -1), query.whole("rows", ROWS, least=1, most=LARGEST_TABLE)
    found = client.admin.transactions.page(
        None if state == "all" else [state], prefix=prefix, sort=sort, after=None if after < 0 else after, most=most
    )
    table = Following(
        [row_of(each) for each in found.transactions],
        found.after,
        is_first=after < 0,
        sort=sort.removeprefix("-"),
        descending=sort.startswith("-"),
        filter=prefix,
    )
    blocking = part(
        f"msgtx transactions blocking --most {MOST_BLOCKING}",
        lambda: [row_with_times(each) for each in client.admin.transactions.blocking(MOST_BLOCKING)],
    )
    prepared = part("msgtx transactions prepared", lambda: list(map(prepared_row, client.admin.transactions.prepared())))
    options = {
        "state": "" if state == "all" else state,
        "prefix": prefix,
        "sort": "" if sort == SORTS[0] else sort,
        "after": "" if after < 0 else str(after),
        "most": str(most),
    }
    words = "".join(f" --{name} {shlex.quote(text)}" for name, text in options.items() if text)
    return Page(
        "Transactions",
        "transactions.html",
        {
            "transactions": Section(table.rows, f"msgtx transactions list{words}"),
            "blocking": blocking,
            "prepared": prepared,
        },
        {"table": table, "state": state, "states": ["all", *State]},
        noun="transactions",
    )


def transaction_page(client: Client, query: Query) -> Page:
    """Show all that is stored of a transaction, or of the newest one of a transactional id."""
    asked = query.needed("id")
    skip = query.whole("skip", 0)
    found = client.admin.transactions.show(asked, skip=skip, most=_MOST_PARTITIONS)
    blocking = part(
        f"msgtx transactions blocking {found.transaction_id}",
        lambda: [
            row_with_times(each)
            for each in (
                client.admin.transactions.blocking(transaction=found.transaction_id) if found.outcome is Outcome.OPEN else []
            )
        ],
    )
    option = f" --skip {skip}" if skip else ""
    return Page(
        str(found.transaction_id),
        "transaction.html",
        {
            "transaction": Section(
                row_with_times(found),
                f"msgtx transactions show {shlex.quote(asked)}{option} --most {_MOST_PARTITIONS}",
            ),
            "blocking": blocking,
        },
        {
            "found": found,
            "blocked": blocking.rows[0] if blocking.rows else None,
            "picture": _picture(found),
            "skip": skip,
            "next": skip + len(found.partitions) if skip + len(found.partitions) < found.partition_count else None,
        },
        noun="transactions",
        changes=list(_changes(client, found)),
    )


def _changes(client: Client, found: ShownTransaction) -> Iterator[tuple[str, dict[str, str]]]:
    if found.outcome is Outcome.OPEN and found.seal_kind == "external":
        token = PreparedTransaction(found.transaction_id, str(client.runtime.engine.incarnation))
        yield "transactions complete", {"token": str(token)}
    elif found.outcome is Outcome.OPEN:
        yield "transactions abort", {"transaction_id": str(found.transaction_id)}
    if found.transactional_id is not None:
        yield "transactions fence", {"transactional_id": found.transactional_id}


def _picture(found: ShownTransaction) -> dict[str, Any] | None:
    """Return the timeline in parts of a hundred: lanes of partitions, and the points of the transaction itself."""
    lanes = [each for each in found.partitions if each.first_appended_at is not None][:MOST_LANES]
    points = {
        "opened": found.opened_at,
        "sealed": found.sealed_at,
        "decided": found.decided_at,
        "now": found.checked_at if found.outcome is Outcome.OPEN else None,
    }
    times = [at for at in points.values() if at is not None]
    times += [at for each in lanes for at in (each.first_appended_at, each.last_appended_at) if at is not None]
    if not times:
        return None
    first, last = min(times), max(times)
    width = max(1, last - first)

    def place(at: int) -> float:
        return round(100 * (at - first) / width, 2)

    return {
        "first": first,
        "last": last,
        "lasting": last - first,
        "points": [(name, place(at), at) for name, at in points.items() if at is not None],
        "lanes": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "at": place(each.first_appended_at or first),
                "width": max(0.6, place(each.last_appended_at or last) - place(each.first_appended_at or first)),
                "records": each.records,
            }
            for each in lanes
        ],
    }
