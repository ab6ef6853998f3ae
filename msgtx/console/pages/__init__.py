"""The pages by their addresses. Each is a function of a client and a query."""

from collections.abc import Callable, Mapping
from typing import Final

from msgtx.client import Client
from msgtx.console.page import Page, Query
from msgtx.console.pages import database, groups, overview, producers, records, search, shares, spark, topics, transactions

PAGES: Final[Mapping[str, Callable[[Client, Query], Page]]] = {
    "overview": overview.overview_page,
    "search": search.search_page,
    "topics": topics.topics_page,
    "topic": topics.topic_page,
    "messages": records.messages_page,
    "record": records.record_page,
    "transactions": transactions.transactions_page,
    "transaction": transactions.transaction_page,
    "producer": producers.producer_page,
    "groups": groups.groups_page,
    "group": groups.group_page,
    "shares": shares.shares_page,
    "share": shares.share_page,
    "spark": spark.spark_page,
    "database": database.database_page,
}
