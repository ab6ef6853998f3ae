"""`client.admin.database`: the database below msgtx, as an operator looks at it."""

from msgtx.database.connection import RawConnection
from msgtx.database.pool import Engine
from msgtx.store.append.append import epoch_ms_or_none
from msgtx.store.operator.server import (
    database_bytes,
    describe_rights,
    describe_server,
    describe_standbys,
    record_wal_bytes,
    snapshot_holders,
    table_statistics,
)
from msgtx.types import DatabaseDescription, RoleRight, SnapshotHolder, Standby, TableDescription


def database(engine: Engine) -> DatabaseDescription:
    """Return tables, holders of snapshots, standbys, connections, and the rights of roles."""
    with engine.connection() as connection:
        server = describe_server(connection)
        return DatabaseDescription(
            server_version=server.settings["server_version"],
            in_recovery=server.in_recovery,
            sees_all=server.sees_all,
            connections=server.sessions,
            connection_limit=server.connection_limit,
            bytes=database_bytes(connection),
            tables=_tables(connection),
            snapshot_holders=_holders(connection),
            standbys=_standbys(connection),
            rights=[RoleRight(*row) for row in describe_rights(connection)],
        )


def _tables(connection: RawConnection) -> list[TableDescription]:
    return [
        TableDescription(
            name=one.name,
            bytes=one.bytes,
            live_rows=one.live_rows,
            dead_rows=one.dead_rows,
            rows_since_vacuum=one.rows_since_vacuum,
            last_vacuum=epoch_ms_or_none(max(filter(None, (one.last_vacuum, one.last_autovacuum)), default=None)),
        )
        for one in table_statistics(connection)
    ]


def _holders(connection: RawConnection) -> list[SnapshotHolder]:
    return [
        SnapshotHolder(
            kind=one.kind,
            name=one.name,
            pid=one.pid,
            role=one.role,
            client_address=one.client_address,
            state=one.state,
            since=epoch_ms_or_none(one.since),
            age=one.age,
            retained_bytes=one.retained,
        )
        for one in snapshot_holders(connection)
    ]


def _standbys(connection: RawConnection) -> list[Standby]:
    found = describe_standbys(connection)
    of_a_record = record_wal_bytes(connection) if found else None
    return [
        Standby(
            name=one.name,
            role=one.role,
            client_address=one.client_address,
            state=one.state,
            sync_state=one.sync_state,
            behind_bytes=one.behind_bytes,
            behind_ms=0 if one.behind_bytes == 0 else one.behind_ms,
            behind_records=None
            if one.behind_bytes is None or of_a_record is None
            else round(one.behind_bytes / of_a_record),
        )
        for one in found
    ]
