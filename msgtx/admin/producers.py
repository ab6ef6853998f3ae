"""Producers as a partition knows them, and as their transactions tell of them: `client.admin.producers`."""

from typing import Final

from msgtx import arguments, errors
from msgtx.admin.transactions import TransactionsAdmin
from msgtx.database.pool import Engine
from msgtx.store.append.append import epoch_ms, epoch_ms_or_none
from msgtx.store.topics.topics import require_partitions
from msgtx.store.transactions.producers import EpochRow, describe_producers, producer_epochs, producer_sequences
from msgtx.types import ProducerEpoch, ProducerHistory, ProducerSequence, ProducerState, TopicPartition

MOST_EPOCHS: Final = 1_000  # of one answer; each takes some look-ups, and counts its transactions
MOST_SEQUENCES: Final = 1_000  # partitions of one answer


class ProducersAdmin:
    """`client.admin.producers`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def describe(self, partition: TopicPartition) -> list[ProducerState]:
        """Return the producers with state on a partition, by id. Raise `UnknownTopicOrPartition`."""
        partition = arguments.partition(partition)
        with self._engine.connection() as connection:
            return describe_producers(connection, require_partitions(connection, [partition])[partition])

    def history(self, producer: int | str, *, epochs_before: int | None = None, most: int = 100) -> ProducerHistory:
        """Return the epochs of a producer id or a transactional id, the newest first, and who fenced whom.

        At most `most` epochs, below `epochs_before` if that is given. Raise `TransactionalIdNotFound`, and
        `TransactionNotFound` for a producer id without transactions, or with none that the role may see.
        """
        most = arguments.whole("most", most, least=1, most=MOST_EPOCHS)
        if epochs_before is not None:
            epochs_before = arguments.whole("epochs_before", epochs_before, most=arguments.LARGEST_INT4)
        if isinstance(producer, str):
            producer_id = TransactionsAdmin(self._engine).describe(producer).producer_id
        else:
            producer_id = arguments.whole("a producer id", producer)
        with self._engine.connection() as connection:
            rows = producer_epochs(connection, producer_id, epochs_before, most=most + 1)
            sequences = producer_sequences(connection, producer_id, most=MOST_SEQUENCES)
        if not rows:
            raise errors.TransactionNotFound(
                f"nothing is stored of producer {producer_id} that this role may see: it has begun no transaction, or has"
                " expired",
                producer_id=producer_id,
            )
        head, shown = rows[0], rows[:most]
        return ProducerHistory(
            producer_id=producer_id,
            transactional_id=head.transactional_id,
            current_epoch=head.current_epoch,
            timeout_ms=head.timeout_ms,
            initialized_at=epoch_ms(head.initialized_at),
            epochs=[_epoch(row, None if place == 0 else shown[place - 1]) for place, row in enumerate(shown)],
            epochs_before=shown[-1].epoch if len(rows) > most else None,
            sequences=[
                ProducerSequence(
                    each.topic,
                    each.partition_index,
                    each.producer_epoch,
                    each.last_sequence,
                    each.last_offset,
                    epoch_ms_or_none(each.appended_at),
                )
                for each in sequences
            ],
        )


def _epoch(row: EpochRow, newer: EpochRow | None) -> ProducerEpoch:
    is_current = row.epoch == row.current_epoch
    return ProducerEpoch(
        epoch=row.epoch,
        is_current=is_current,
        first_number=row.first_number,
        first_at=epoch_ms_or_none(row.first_at),
        last_number=row.last_number,
        last_at=epoch_ms_or_none(row.last_at),
        client_host=row.client_host,
        client_process=row.client_process,
        committed=row.committed,
        aborted=row.aborted,
        counted_from=row.counted_from,
        is_open=row.last_number is not None and row.last_outcome is None,
        fenced_by=_fencer(newer) if row.last_decided_by == "fence" else None,
        raised_from=row.epoch_before if is_current else None,
    )


def _fencer(newer: EpochRow | None) -> str:
    """Return the newer epoch, which has fenced this one, with its client."""
    if newer is None:
        return "a newer epoch"
    if newer.client_host is None:
        return f"epoch {newer.epoch}"
    return f"epoch {newer.epoch}, process {newer.client_process} on {newer.client_host}"
