"""Batches of Spark by hand: their names, attempts of their tasks, what is noted and what became of them."""

from typing import Any, Final

from msgtx.store.append.append import append
from msgtx.store.spark import Attempt, BatchName, begin_attempt
from msgtx.store.transactions.transactions import transaction_outcome
from msgtx.types import Outcome, TransactionId
from tests.databases import Connection
from tests.store.steps import batch, unique

TIMEOUT_MS: Final = 60_000


def name(number: int = 0, *, query: str = "", app: str | None = None) -> BatchName:
    return BatchName(app or unique("app"), query, number)


def attempt(connection: Connection, of: BatchName, partition: int, *written: bytes) -> Attempt:
    """One attempt that writes these values."""
    producer = begin_attempt(connection, of, timeout_ms=TIMEOUT_MS)
    assert producer is not None
    write(connection, producer, partition, *written)
    return Attempt(producer, {partition: len(written) - 1}, len(written))


def write(connection: Connection, producer: int, partition: int, *written: bytes) -> None:
    row = batch(partition, *written, producer=(producer, 0), number=0, sequence=0)
    (answer,) = append(connection, [row], flushed=False)
    if answer.error is not None:
        raise answer.error


def outcome(connection: Connection, of: Attempt) -> Outcome:
    return transaction_outcome(connection, TransactionId(of.producer_id, 0, 0)).outcome


def begin_many(connection: Connection, of: BatchName, number: int) -> list[int]:
    """Begin attempts that write nothing. Returns their producer ids."""
    begun = connection.execute(
        "select msgtx.begin_attempt(%s, %s, %s, %s) from generate_series(1, %s)", [*of, TIMEOUT_MS, number]
    )
    return [producer for (producer,) in begun]


def undecided(connection: Connection, producers: list[int]) -> list[int]:
    return [
        each for each in producers if transaction_outcome(connection, TransactionId(each, 0, 0)).outcome is Outcome.UNKNOWN
    ]


def noted(connection: Connection, query: str) -> list[tuple[Any, ...]]:
    """What is noted for a query: batch, group, partition, start, end, run, source."""
    return connection.execute(
        "select batch_id, group_name, partition_id, start_offset, end_offset, run_id, source_id from msgtx.spark_range"
        " where query_id = %s order by 1, 2, 3",
        [query],
    ).fetchall()
