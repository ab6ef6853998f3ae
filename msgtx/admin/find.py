"""`client.find`, `client.find_before`: the place of a record, its outcome, and the progress of each group."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from msgtx.database.connection import RawConnection
from msgtx.database.pool import Engine
from msgtx.database.standby import first_found, once_shown, read_again
from msgtx.settings import StopSignal
from msgtx.store.append.append import epoch_ms, epoch_ms_or_none
from msgtx.store.find import BEHIND_ALL, FoundRow, find_records, groups_of_record, letters_of_record
from msgtx.store.topics.topics import require_topics
from msgtx.types import (
    FoundBefore,
    FoundRecord,
    RecordInGroup,
    RecordLetter,
    RecordOutcome,
    RecordState,
    TopicPartition,
    TransactionId,
)

PAGE_BYTES: Final = 4 * 1024 * 1024  # of keys and values that `find_before` returns, but at least one record


@dataclass(frozen=True, slots=True)
class Search:
    """The records of a partition that are looked for: all that is not None must fit. `words`: see `client.search`.

    `groups`: whether the progress of groups and the dead letters are looked up for each record.
    """

    offset: int | None = None
    key: bytes | None = None
    json: str | None = None
    header: str | None = None
    words: str | None = None
    since_ms: int | None = None
    limit: int = 10
    groups: bool = True


def find(
    engine: Engine,
    topic: str,
    asked: Search,
    *,
    partition: int | None,
    stop: StopSignal | None,
    progress: Callable[[int], None] | None,
) -> list[FoundRecord]:
    """Return the last stored records that fit. Each step is a call of its own; `stop` ends the search after one.

    A search reads the standby of `read_url`, which may not show the newest records. An offset that it lacks is looked up on
    the primary.
    """
    known = once_shown(engine, lambda connection: require_topics(connection, [topic]))[topic]
    ids = known.partition_ids if partition is None else (known.partition_id(partition),)

    def look(source: Engine) -> list[FoundRecord]:
        hits: list[tuple[FoundRow, TopicPartition, int]] = []
        for index, partition_id in enumerate(ids, partition or 0):
            before: int | None = BEHIND_ALL if asked.offset is None else asked.offset + 1
            fitting = 0
            while before is not None and fitting < asked.limit and not (stop is not None and stop.is_set()):
                rows, before = look_back(source, partition_id, before, asked)
                hits += ((row, TopicPartition(topic, index), partition_id) for row in rows)
                fitting += len(rows)
                if progress is not None:
                    progress(len(hits))
        return newest(source, hits, asked.limit)

    return look(engine.reading) if asked.offset is None else [*first_found(engine, look)]


def find_before(
    engine: Engine,
    place: TopicPartition,
    asked: Search,
    *,
    before: int,
    stop: StopSignal | None,
    progress: Callable[[int], None] | None,
) -> FoundBefore:
    """Return the last records in front of an offset that fit, bounded in number and bytes, and where the search ended."""
    topics = once_shown(engine, lambda connection: require_topics(connection, [place.topic]))
    partition_id, engine = topics[place.topic].partition_id(place.partition), engine.reading
    one_more = replace(asked, limit=asked.limit + 1)  # to know whether there is anything further back
    found: list[FoundRow] = []
    next_before: int | None = before
    size = 0
    while next_before is not None and not (stop is not None and stop.is_set()):
        rows, next_before = look_back(engine, partition_id, next_before, one_more)
        for row in rows:
            size += len(row.record_key or b"") + len(row.record_value or b"")
            if found and (size > PAGE_BYTES or len(found) == asked.limit):
                next_before = found[-1].record_offset
                break
            found.append(row)
        if progress is not None:
            progress(len(found))
        if size > PAGE_BYTES or len(found) == asked.limit:
            break
    records = read_again(
        engine, lambda connection: [_found(connection, row, place, partition_id, groups=asked.groups) for row in found]
    )
    return FoundBefore(records, next_before or None)  # in front of offset 0 there is nothing


def look_back(engine: Engine, partition_id: int, before: int, asked: Search) -> tuple[list[FoundRow], int | None]:
    """Return the records in front of `before` that fit, of one step, and where the next begins; None: it was the last."""
    return read_again(
        engine,
        lambda connection: find_records(
            connection,
            partition_id,
            before,
            since_ms=asked.since_ms,
            offset=asked.offset,
            key=asked.key,
            json=asked.json,
            header=asked.header,
            words=asked.words,
            most=asked.limit,
        ),
    )


def newest(engine: Engine, hits: list[tuple[FoundRow, TopicPartition, int]], most: int) -> list[FoundRecord]:
    """Return the last stored ones of some records, with the progress of each group. A hit has its partition, and its id."""
    hits = sorted(hits, key=lambda hit: (hit[0].stored_at, hit[0].record_offset), reverse=True)
    return read_again(engine, lambda connection: [_found(connection, *hit) for hit in hits[:most]])


def _found(
    connection: RawConnection, row: FoundRow, place: TopicPartition, partition_id: int, *, groups: bool = True
) -> FoundRecord:
    names = row.header_keys or ()
    return FoundRecord(
        topic=place.topic,
        partition=place.partition,
        offset=row.record_offset,
        timestamp=row.record_timestamp,
        stored_at=epoch_ms(row.stored_at),
        key=row.record_key,
        value=row.record_value,
        headers=tuple(zip(names, row.header_values or (), strict=True)),
        outcome=RecordOutcome(row.outcome),
        transaction_id=None
        if row.transaction_number is None
        else TransactionId(row.producer_id, row.producer_epoch, row.transaction_number),
        transactional_id=row.transactional_id,
        decided_at=epoch_ms_or_none(row.decided_at),
        deliver_at=epoch_ms_or_none(row.deliver_at),
        groups=[
            RecordInGroup(
                group=each.group_name,
                is_share_group=each.is_share_group,
                state=RecordState(each.state),
                at=epoch_ms_or_none(each.at),
                ahead=each.ahead,
                member_id=each.member_id,
                client_host=each.client_host,
                client_process=each.client_process,
                delivery_count=each.delivery_count,
                reason=each.reason,
                told=each.told,
            )
            for each in (groups_of_record(connection, partition_id, row.record_offset) if groups else ())
        ],
        dead_letters=[
            RecordLetter(each.topic, each.partition, each.record_offset, each.group_name, each.reason)
            for each in (letters_of_record(connection, row, topic=place.topic, partition=place.partition) if groups else ())
        ],
    )
