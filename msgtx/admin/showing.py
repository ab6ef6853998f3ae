"""`client.admin.transactions.show`: one transaction, and its timeline."""

from collections.abc import Sequence
from typing import Final

from msgtx import errors
from msgtx.database.pool import Engine
from msgtx.store.append.append import epoch_ms, epoch_ms_or_none
from msgtx.store.transactions.showing import (
    AcknowledgementRow,
    OffsetRow,
    PartitionRow,
    Shown,
    show_acknowledgements,
    show_offsets,
    show_partitions,
    show_transaction,
)
from msgtx.store.transactions.transactions import OUTCOMES
from msgtx.types import (
    Outcome,
    ShownAcknowledgement,
    ShownOffset,
    ShownPartition,
    ShownTransaction,
    TopicPartition,
    TransactionEvent,
    TransactionId,
)

SEARCHED_AT_ONCE: Final = 4_000  # pairs of group and partition that are searched for offsets: 0.3 s on a busy machine


def show(
    engine: Engine, transaction_id: TransactionId, *, skip: int, most: int, offsets_after: Sequence[int] | None
) -> ShownTransaction:
    """Return all that is stored of a transaction. Raise `TransactionNotFound`."""
    with engine.connection() as connection:
        found = show_transaction(connection, transaction_id)
        if found is None:
            raise errors.TransactionNotFound(
                f"nothing is stored of transaction {transaction_id} that this role may see: it has stored no record, or its"
                " history has expired (transaction_history_ms); where its topics are hidden from the role,"
                f" `msgtx transactions outcome {transaction_id}` still tells how it ended",
                producer_id=transaction_id.producer_id,
                given=str(transaction_id),
            )
        partitions = [_partition(row) for row in show_partitions(connection, transaction_id, skip=skip, most=most)]
        offsets, offsets_next = show_offsets(connection, transaction_id, offsets_after, most=SEARCHED_AT_ONCE)
        acknowledged = show_acknowledgements(connection, transaction_id)
    return ShownTransaction(
        transaction_id=transaction_id,
        transactional_id=found.transactional_id,
        state=found.state,
        current_epoch=found.current_epoch,
        opened_at=epoch_ms_or_none(found.opened_at),
        timeout_ms=found.timeout_ms,
        deadline=_deadline(found),
        client_host=found.client_host,
        client_process=found.client_process,
        database_backend=found.database_backend,
        seal_kind=found.seal_kind,
        sealed_at=epoch_ms_or_none(found.sealed_at),
        seal_deadline=epoch_ms_or_none(found.seal_deadline),
        outcome=Outcome.OPEN if found.outcome is None else OUTCOMES[found.outcome],
        decided_at=epoch_ms_or_none(found.decided_at),
        decided_by=found.decided_by,
        app_id=found.app_id,
        query_id=found.query_id,
        batch_id=found.batch_id,
        partition_count=found.partitions,
        partitions=partitions,
        offsets=[offset_of(row) for row in offsets],
        offsets_next=None if offsets_next is None else list(offsets_next),
        acknowledgements=[acknowledgement_of(row) for row in acknowledged],
        events=_events(found, partitions),
        checked_at=epoch_ms(found.checked_at),
    )


def _deadline(found: Shown) -> int | None:
    """Return when a transaction is aborted if nothing else ends it. An outside decision may take any time."""
    if found.opened_at is None or found.seal_kind == "external":
        return None
    return epoch_ms(found.opened_at) + int(found.timeout_ms)


def _partition(row: PartitionRow) -> ShownPartition:
    return ShownPartition(
        topic=row.topic,
        partition=row.partition_index,
        first_offset=row.first_offset,
        last_offset=row.last_offset,
        batches=row.batches,
        records=row.records,
        bytes=row.bytes,
        is_estimate=row.is_estimate,
        first_appended_at=epoch_ms_or_none(row.first_appended_at),
        last_appended_at=epoch_ms_or_none(row.last_appended_at),
        marked=row.marked,
        coordinator_epoch=row.coordinator_epoch,
        removed=row.removed,
    )


def offset_of(row: OffsetRow) -> ShownOffset:
    """Return an offset that belongs to a transaction."""
    return ShownOffset(row.group_name, row.topic, row.partition_index, row.committed_offset, epoch_ms(row.committed_at))


def acknowledgement_of(row: AcknowledgementRow) -> ShownAcknowledgement:
    """Return records that a transaction has acknowledged."""
    return ShownAcknowledgement(
        row.group_name, row.topic, row.partition_index, row.first_offset, row.last_offset, row.answer
    )


def _events(found: Shown, partitions: list[ShownPartition]) -> list[TransactionEvent]:
    """Return the timeline, in the order of time; marks, which have no time, come last.

    The opening comes first: its row is written after the first batch.
    """
    client = None if found.client_host is None else f"process {found.client_process} on {found.client_host}"
    by_client = "" if client is None else f" by {client}"
    events = []
    if found.opened_at is not None:
        events.append(_event("opened", epoch_ms(found.opened_at), f"opened{by_client}", who=client))
    for each in partitions:
        if each.first_appended_at is not None and each.last_appended_at is not None:
            first, last = f"first batch in {_place(each)}", f"last batch in {_place(each)}"
            if each.first_appended_at == each.last_appended_at:
                first = f"batch in {_place(each)}"
            events.append(_event("first_batch", each.first_appended_at, first, each, who=client))
            if each.first_appended_at != each.last_appended_at:
                events.append(_event("last_batch", each.last_appended_at, last, each, who=client))
    if found.sealed_at is not None:
        partner = "a SQL session" if found.seal_kind == "session" else "an outside decision"
        events.append(_event("sealed", epoch_ms(found.sealed_at), f"sealed for {partner}", who=client))
    if found.decided_at is not None:
        ended = "committed" if found.outcome == "COMMIT" else "aborted"
        told = f"{ended} by {found.decided_by}" + (f", {client}" if client and found.decided_by == "client" else "")
        events.append(_event("decided", epoch_ms(found.decided_at), told, who=found.decided_by))
    order = ["opened", "first_batch", "last_batch", "sealed", "decided"]  # of the same time
    events.sort(key=lambda event: (event.event != "opened", event.at or 0, order.index(event.event)))
    for each in partitions:
        if each.marked == "marker":
            who = f"coordinator epoch {each.coordinator_epoch}"
            events.append(_event("marked", None, f"marked in {_place(each)} by {who}", each, who=who))
        elif each.marked == "floor":
            events.append(_event("marked", None, f"below the floor of {_place(each)}", each))
    return events


def _event(
    event: str, at: int | None, told: str, place: ShownPartition | None = None, *, who: str | None = None
) -> TransactionEvent:
    topic, partition = (None, None) if place is None else (place.topic, place.partition)
    return TransactionEvent(event, at, topic, partition, who, told)


def _place(each: ShownPartition) -> str:
    if each.topic is None or each.partition is None:
        return "a deleted topic"
    return str(TopicPartition(each.topic, each.partition))
