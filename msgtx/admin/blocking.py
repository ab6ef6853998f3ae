"""`client.admin.transactions.blocking`: undecided transactions, and all that waits for their end."""

from collections.abc import Mapping
from itertools import groupby
from typing import Final

from msgtx.admin.hanging import how_to_end, is_of
from msgtx.admin.showing import acknowledgement_of, offset_of
from msgtx.database.connection import RawConnection
from msgtx.database.pool import Engine
from msgtx.rules.transaction import State
from msgtx.store.append.append import epoch_ms, epoch_ms_or_none
from msgtx.store.operator.server import Session, describe_sessions
from msgtx.store.transactions.showing import show_acknowledgements, show_offsets
from msgtx.store.transactions.undecided import Blocking, blocking_partitions, waiting_groups
from msgtx.types import (
    BlockedPartition,
    BlockingTransaction,
    DatabaseSession,
    ShownAcknowledgement,
    ShownOffset,
    TransactionId,
    WaitingGroup,
)

MOST_BLOCKED: Final = 10_000  # of one answer; when their transactions are ended, the next ones are found


def blocking(engine: Engine, *, most: int, only: TransactionId | None = None) -> list[BlockingTransaction]:
    """Return the undecided transactions for whose end something waits, the oldest first; or `only` this one."""
    found: list[BlockingTransaction] = []
    with engine.connection() as connection:
        by_name: dict[TransactionId, list[Blocking]] = {}
        for row in blocking_partitions(connection, only, most=MOST_BLOCKED):
            by_name.setdefault(row.transaction_id, []).append(row)
        chosen = list(by_name.values())[:most]
        groups, searched = _groups(connection, [row for rows in chosen for row in _places(rows)])
        pids = {pid for rows in chosen if (pid := _pid(rows[0])) is not None}
        sessions = describe_sessions(connection, sorted(pids))
        for rows in chosen:
            offsets: list[ShownOffset] = []
            acknowledgements: list[ShownAcknowledgement] = []
            if len(_places(rows)) < len(rows):
                name = rows[0].transaction_id
                offsets = [offset_of(row) for row in show_offsets(connection, name, None, most=1)[0]]
                acknowledgements = [acknowledgement_of(row) for row in show_acknowledgements(connection, name)]
            partitions = [_partition(row, groups, searched) for row in _places(rows)]
            if partitions or offsets or acknowledgements:
                session = sessions.get(_pid(rows[0]) or 0)
                found.append(_blocking(rows[0], partitions, offsets, acknowledgements, session))
    return found


def _places(rows: list[Blocking]) -> list[Blocking]:
    """Return the rows of partitions: another row says that the transaction has offsets or acknowledgements."""
    return [row for row in rows if row.partition_id is not None]


def _pid(one: Blocking) -> int | None:
    """Return the session that will decide a transaction, or else the one that has opened it."""
    return one.deciding_session or one.database_backend


def _groups(connection: RawConnection, rows: list[Blocking]) -> tuple[dict[int, list[WaitingGroup]], set[int]]:
    """Return the waiting groups by partition id, and the partitions for which they were looked up."""
    asked = {row.partition_id: row.first_offset for row in rows}
    found, searched = waiting_groups(connection, asked)
    by_partition = {
        partition_id: [WaitingGroup(each.group_name, each.is_share_group, epoch_ms_or_none(each.since)) for each in rows]
        for partition_id, rows in groupby(found, lambda each: each.partition_id)
    }
    return by_partition, {*list(asked)[:searched]}


def _partition(row: Blocking, groups: Mapping[int, list[WaitingGroup]], searched: set[int]) -> BlockedPartition:
    return BlockedPartition(
        topic=row.topic,
        partition=row.partition_index,
        last_stable_offset=row.first_offset,
        log_end_offset=_end(row),
        records_waiting=_end(row) - int(row.first_offset),
        waits_since=epoch_ms_or_none(row.waits_since),
        groups=groups.get(row.partition_id, []),
        groups_searched=row.partition_id in searched,
    )


def _blocking(
    one: Blocking,
    partitions: list[BlockedPartition],
    offsets: list[ShownOffset],
    acknowledgements: list[ShownAcknowledgement],
    session: Session | None,
) -> BlockingTransaction:
    return BlockingTransaction(
        transaction_id=one.transaction_id,
        transactional_id=one.transactional_id,
        state=State.ONGOING if one.seal_kind is None else State.PREPARED,
        opened_at=epoch_ms_or_none(one.opened_at),
        age_ms=None if one.opened_at is None else epoch_ms(one.checked_at) - epoch_ms(one.opened_at),
        timeout_ms=one.timeout_ms,
        client_host=one.client_host,
        client_process=one.client_process,
        records_waiting=sum(each.records_waiting for each in partitions),
        partitions=partitions,
        offsets=offsets,
        acknowledgements=acknowledgements,
        session=None if session is None or not is_of(session, one.opened_at) else _session(session),
        advice=how_to_end(one.transaction_id, seal_kind=one.seal_kind, transactional_id=one.transactional_id),
    )


def _end(row: Blocking) -> int:
    return int(row.first_offset if row.log_end_offset is None else row.log_end_offset)


def _session(session: Session) -> DatabaseSession:
    return DatabaseSession(
        pid=session.pid,
        role=session.role,
        application_name=session.application_name,
        client_address=session.client_address,
        visible=session.visible,
        state=session.state,
        state_since=epoch_ms_or_none(session.state_since),
        wait_event=session.wait_event,
        query_started_at=epoch_ms_or_none(session.query_start),
        query=session.query,
    )
