"""One partition: its ends, its bytes, and how far each group and share group is on it."""

from typing import Final

from msgtx.client import Client
from msgtx.console.drawing import marks
from msgtx.console.page import Page, Query, Section, arranged
from msgtx.errors import UnknownTopicOrPartition
from msgtx.rows import progress_row

COLUMNS: Final = ("group", "offset", "lag", "lag_ms")


def partition_page(client: Client, query: Query) -> Page:
    """Show how far each group is on a partition, on one bar, and in a table."""
    topic, partition = query.needed("topic"), query.whole("partition", 0, most=2**31 - 1)
    listed = client.admin.partitions.progress(topic, [partition])
    if not listed:  # deleted since the call began
        raise UnknownTopicOrPartition(f"there is no partition {topic}-{partition}", topic=topic, partition=partition)
    found = listed[0]
    row = progress_row(found)
    table = arranged(row["groups"], query, columns=COLUMNS, sort="-lag", filter_on=("group",))
    return Page(
        f"{topic}-{partition}",
        "partition.html",
        {"progress": Section([row], f"msgtx topics progress {topic} --partition {partition}")},
        {
            "topic": topic,
            "found": found,
            "marks": marks(found.log_start_offset, found.log_end_offset, row["groups"]),
            "table": table,
        },
        noun="topics",
    )
