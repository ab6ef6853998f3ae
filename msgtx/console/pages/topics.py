"""Topics, and one topic with its partitions."""

import contextlib

from msgtx.client import Client
from msgtx.console.page import Page, Query, Section, arranged, part
from msgtx.errors import UnknownTopicOrPartition
from msgtx.rows import row_of, topic_row

END_COLUMNS = ("partition", "log_start_offset", "last_stable_offset", "log_end_offset", "records", "held")


def topics_page(client: Client, query: Query) -> Page:
    """List the topics. Only those of the page are described."""
    names = [{"name": name} for name in client.topics.list()]
    table = arranged(names, query, columns=("name",), sort="name", filter_on=("name",))
    rows = []
    for each in table.rows:
        with contextlib.suppress(UnknownTopicOrPartition):  # deleted in between
            rows.append(row_of(client.topics.describe(each["name"])))
    return Page("Topics", "topics.html", {"topics": Section(rows, "msgtx topics list")}, {"table": table}, noun="topics")


def topic_page(client: Client, query: Query) -> Page:
    """Show a topic: its partitions with their ends, and its settings."""
    name = query.needed("name")
    described = client.topics.describe(name)
    found = part(
        f"msgtx topics describe {name}",
        lambda: topic_row(described, client.admin.partitions.describe_all(name)),
    )
    ends = [
        {
            **each,
            "records": each["log_end_offset"] - each["log_start_offset"],
            "held": each["log_end_offset"] - each["last_stable_offset"],
        }
        for each in (found.rows or {"ends": []})["ends"]
    ]
    table = arranged(ends, query, columns=END_COLUMNS, sort="partition")
    return Page(
        name,
        "topic.html",
        {"topic": found},
        {
            "name": name,
            "settings": described.settings,
            "partitions": described.partitions,
            "table": table,
            "records": sum(each["records"] for each in ends),
            "held": sum(each["held"] for each in ends),
        },
        noun="topics",
    )
