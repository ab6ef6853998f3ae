"""The pages by their addresses. Each is a function of a client and a query."""

from collections.abc import Callable, Mapping
from typing import Final

from msgtx.client import Client
from msgtx.console.page import Page, Query
from msgtx.console.pages import (
    cuts,
    database,
    groups,
    mirrors,
    overview,
    partitions,
    producers,
    records,
    search,
    shares,
    spark,
    topics,
    transactions,
)

PAGES: Final[Mapping[str, Callable[[Client, Query], Page]]] = {
    "overview": overview.overview_page,
    "search": search.search_page,
    "topics": topics.topics_page,
    "topic": topics.topic_page,
    "partition": partitions.partition_page,
    "messages": records.messages_page,
    "record": records.record_page,
    "transactions": transactions.transactions_page,
    "transaction": transactions.transaction_page,
    "producer": producers.producer_page,
    "groups": groups.groups_page,
    "group": groups.group_page,
    "shares": shares.shares_page,
    "share": shares.share_page,
    "mirrors": mirrors.mirrors_page,
    "mirror": mirrors.mirror_page,
    "cuts": cuts.cuts_page,
    "cut": cuts.cut_page,
    "difference": cuts.difference_page,
    "spark": spark.spark_page,
    "database": database.database_page,
}
