"""`client.admin.transactions.blocking`: undecided transactions, and all that waits for their end."""

from collections.abc import Mapping
from itertools import groupby
from typing import Final

from msgtx.admin.hanging import how_to_end, is_of
from msgtx.database.connection import RawConnection
from msgtx.database.pool import Engine
from msgtx.rules.transaction import State
from msgtx.store.append.append import epoch_ms, epoch_ms_or_none
from msgtx.store.operator.server import Session, describe_sessions
from msgtx.store.transactions.undecided import Blocking, blocking_partitions, waiting_groups
from msgtx.types import BlockedPartition, BlockingTransaction, DatabaseSession, TransactionId, WaitingGroup

MOST_BLOCKED: Final = 10_000  # of one answer; when their transactions are ended, the next ones are found


def blocking(engine: Engine, *, most: int) -> list[BlockingTransaction]:
    """Return the undecided transactions that hold partitions back, the oldest first."""
    with engine.connection() as connection:
        rows = blocking_partitions(connection, most=MOST_BLOCKED)
        by_name: dict[TransactionId, list[Blocking]] = {}
        for row in rows:
            by_name.setdefault(row.transaction_id, []).append(row)
        chosen = [by_name[name] for name in list(by_name)[:most]]
        groups, searched = _groups(connection, [row for rows in chosen for row in rows])
        pids = {pid for rows in chosen if (pid := _pid(rows[0])) is not None}
        sessions = describe_sessions(connection, sorted(pids))
    return [_blocking(rows, groups, searched, sessions.get(_pid(rows[0]) or 0)) for rows in chosen]


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


def _blocking(
    rows: list[Blocking], groups: Mapping[int, list[WaitingGroup]], searched: set[int], session: Session | None
) -> BlockingTransaction:
    one = rows[0]
    partitions = [
        BlockedPartition(
            topic=row.topic,
            partition=row.partition_index,
            last_stable_offset=row.first_offset,
            log_end_offset=_end(row),
            records_waiting=_end(row) - row.first_offset,
            waits_since=epoch_ms_or_none(row.waits_since),
            groups=groups.get(row.partition_id, []),
            groups_searched=row.partition_id in searched,
        )
        for row in rows
    ]
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
        session=None if session is None or not is_of(session, one.opened_at) else _session(session),
        advice=how_to_end(one.transaction_id, seal_kind=one.seal_kind, transactional_id=one.transactional_id),
    )


def _end(row: Blocking) -> int:
    return row.first_offset if row.log_end_offset is None else int(row.log_end_offset)


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
