"""Transactions that nothing ends: the reason, and the remedy for each."""

import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from msgtx import arguments, errors
from msgtx.database.pool import Engine
from msgtx.rules.transaction import State
from msgtx.store.append.append import epoch_ms, epoch_ms_or_none
from msgtx.store.operator.server import Session
from msgtx.store.topics.topics import require_partitions, require_topics
from msgtx.store.transactions.undecided import Undecided, undecided_transactions
from msgtx.types import HangingTransaction, TopicPartition, TransactionId

MOST_HANGING: Final = 10_000  # transactions and partitions in one answer; when they are ended, the next ones are found


def find_hanging(
    engine: Engine, max_transaction_timeout_ms: int | None, *, topic: str | None, partition: int | None
) -> list[HangingTransaction]:
    """Return transactions that are undecided for longer than allowed, per partition, the oldest first."""
    if max_transaction_timeout_ms is not None:
        max_transaction_timeout_ms = arguments.whole("max_transaction_timeout_ms", max_transaction_timeout_ms)
    topic = None if topic is None else arguments.topic(topic)
    if partition is not None:
        partition = arguments.whole("partition", partition, least=-arguments.LARGEST_INT8)
    if partition is not None and topic is None:
        raise errors.InvalidRequest(
            f"partition {partition} of which topic? Give topic, too", name="topic", partition=partition
        )
    with engine.connection() as connection:
        asked: Sequence[int] | None = None
        if topic is not None and partition is not None:
            asked = [*require_partitions(connection, [TopicPartition(topic, partition)]).values()]
        elif topic is not None:
            asked = require_topics(connection, [topic])[topic].partition_ids
        found, _ = undecided_transactions(
            connection,
            asked,
            each_partition=MOST_HANGING,
            most=MOST_HANGING,
            overdue_only=True,
            limit_ms=max_transaction_timeout_ms,
        )
    return [_hanging(one) for one in found]


def why(one: Undecided) -> str:
    """Return why a transaction that is older than allowed has not ended."""
    if one.opened_at is None:
        return "its transaction row is missing, so no sweep finds it"
    if one.current_epoch is None:
        return "its producer is gone"
    if one.seal_kind == "external":
        return "it is prepared for an outside decision, which has not come"
    if one.seal_kind is not None:
        return "it is sealed for a SQL session, which has not committed"
    return "it is open for longer than allowed, and nobody has aborted it"


def how_to_end(transaction_id: TransactionId, *, seal_kind: str | None, transactional_id: str | None) -> str:
    """Return the command to end a transaction that will not end by itself."""
    if seal_kind != "external":
        return f"`msgtx transactions abort {transaction_id}`"
    decide = "decide it where it was prepared, by its token (`msgtx transactions prepared`)"
    return decide if transactional_id is None else f"{decide}, or `msgtx transactions fence {shlex.quote(transactional_id)}`"


def is_of(session: Session, opened_at: datetime | None) -> bool:
    """Return whether a session may have opened a transaction: its number may have been given to a later session."""
    return session.started_at is None or opened_at is None or session.started_at <= opened_at


def _hanging(one: Undecided) -> HangingTransaction:
    return HangingTransaction(
        topic=one.partition.topic,
        partition=one.partition.partition,
        transaction_id=one.transaction_id,
        transactional_id=one.transactional_id,
        state=State.ONGOING if one.seal_kind is None else State.PREPARED,
        coordinator_epoch=one.coordinator_epoch,
        start_offset=one.first_offset,
        last_timestamp=epoch_ms_or_none(one.last_appended_at),
        duration_ms=None if one.opened_at is None else epoch_ms(one.checked_at) - epoch_ms(one.opened_at),
        reason=why(one),
        advice=how_to_end(one.transaction_id, seal_kind=one.seal_kind, transactional_id=one.transactional_id),
    )
