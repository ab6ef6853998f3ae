"""Topics, and one topic with its partitions."""

import contextlib
from typing import Final

from msgtx.client import Client
from msgtx.console.drawing import marks
from msgtx.console.page import Page, Query, Section, arranged, part
from msgtx.errors import UnknownTopicOrPartition
from msgtx.rows import progress_row, row_of, topic_row

_PAIRS: Final = 2_000  # of a group and a partition on the page of a topic: some 20 ms
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
    shown = [each["partition"] for each in table.rows]
    progress = part(
        f"msgtx topics progress {name}" + "".join(f" --partition {each}" for each in shown),
        lambda: [progress_row(each) for each in client.admin.partitions.progress(name, shown, pairs=_PAIRS)],
    )
    return Page(
        name,
        "topic.html",
        {"topic": found, "progress": progress},
        {
            "name": name,
            "settings": described.settings,
            "partitions": described.partitions,
            "table": table,
            "places": {each["partition"]: each for each in progress.rows},
            "marks": {
                each["partition"]: marks(each["log_start_offset"], each["log_end_offset"], each["groups"])
                for each in progress.rows
            },
            "records": sum(each["records"] for each in ends),
            "held": sum(each["held"] for each in ends),
        },
        noun="topics",
        changes=[(f"topics {verb}", {"topic": name}) for verb in ("delete-records", "delete")],
    )
