"""Consumer groups, and one group with its members and partitions."""

import shlex

from msgtx.client import Client
from msgtx.console.page import Page, Query, Section, arranged, part
from msgtx.errors import GroupNotFound
from msgtx.rows import group_row, member_rows, row_of
from msgtx.rules.group import GroupStatus

_COLUMNS = ("group", "state", "strategy", "members")
_MEMBER_COLUMNS = ("joined_at",)
_MOST_MOVES = 20  # members with a handover that are shown
_PARTITION_COLUMNS = ("topic", "partition", "current_offset", "log_end_offset", "lag", "lag_ms", "client_host")


def groups_page(client: Client, query: Query) -> Page:
    """List the groups."""
    table = arranged(
        [row_of(each) for each in client.admin.groups.list()], query, columns=_COLUMNS, sort="group", filter_on=("group",)
    )
    return Page(
        "Groups", "groups.html", {"groups": Section(table.rows, "msgtx groups list")}, {"table": table}, noun="groups"
    )


def group_page(client: Client, query: Query) -> Page:
    """Show how far a group is on each partition, and its members."""
    name = query.needed("name")
    found = client.admin.groups.describe(name)
    if found.state == GroupStatus.DEAD and not found.partitions:
        raise GroupNotFound(f"there is no consumer group {name!r}", group=name)
    row = group_row(found)
    table = arranged(row["partitions"], query, columns=_PARTITION_COLUMNS, sort="topic", filter_on=("topic",))
    members = part(f"msgtx groups members {shlex.quote(name)}", lambda: member_rows(name, client.admin.groups.members(name)))
    shown = arranged(members.rows, query, columns=_MEMBER_COLUMNS, sort="joined_at", prefix="member_")
    return Page(
        name,
        "group.html",
        {"group": Section(row, f"msgtx groups describe {shlex.quote(name)}"), "members": members},
        {
            "name": name,
            "table": table,
            "shown": shown,
            "moves": [each for each in members.rows if each["owned"] != each["target"]][:_MOST_MOVES],
        },
        noun="groups",
        changes=[(f"groups {verb}", {"group": name}) for verb in ("reset-offsets", "delete-offsets", "delete")],
    )
