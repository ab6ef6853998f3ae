"""`client.admin.doctor()`: findings, each with the client host and session behind it, and advice."""

import functools
from collections.abc import Callable, Iterable
from typing import Final

import psycopg

from msgtx import arguments, errors
from msgtx.admin.doctor import coordinators, groups, mirrors, server, sessions, shares, standby, transactions
from msgtx.admin.doctor.findings import Limits, Look
from msgtx.database.pool import Engine
from msgtx.store.operator.server import describe_server
from msgtx.types import Finding, Level

ORDER: Final = tuple(Level)

Check = Callable[[Look], Iterable[Finding]]
CHECKS: Final[dict[str, Check]] = {
    "held partitions": transactions.held_partitions,
    "prepared transactions": transactions.prepared_transactions,
    "phase two": transactions.unfinished_phase_two,
    "coordinators": coordinators.leases,
    "retention": coordinators.late,
    "groups": groups.neglected,
    "stalled partitions": groups.stalled,
    "share groups": shares.waiting,
    "mirrors": mirrors.ailing,
    "locks": sessions.locks,
    "snapshots": sessions.snapshots,
    "rights": sessions.hidden,
    "incarnation": server.place,
    "timeline": server.timeline,
    "sequences": server.sequences,
    "settings": server.settings,
    "connections": server.connections,
    "lock table": server.lock_table,
    "notifications": server.notifications,
    "transaction ids": server.frozen_age,
    "tables": server.tables,
}


def examine(engine: Engine, *, most: int, limits: Limits | None = None) -> list[Finding]:
    """Run all checks. Returns findings, the worst first. Data that the role may not see is a finding, too."""
    most = arguments.whole("most", most, least=1, most=arguments.LARGEST_INT4)
    if limits is not None:
        arguments.an_instance("limits", limits, Limits, "Limits")
    found = _checked("schema", lambda: server.schema(engine))
    with engine.connection() as connection:
        try:
            described = describe_server(connection)
        except errors.ConfigError:
            if found:
                return found  # without the functions nothing else can be asked
            raise
        look = Look(connection, described, limits or Limits(), most)
        for name, check in CHECKS.items():
            found.extend(_checked(name, functools.partial(check, look)))
        if engine.standby is not None:
            found.extend(_checked("read_url", functools.partial(standby.reads, engine.standby, look)))
    return sorted(found, key=lambda finding: ORDER.index(finding.level))


def _checked(name: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Run one check. One that fails is reported and does not stop the others; without a database none can be made."""
    try:
        return list(check())
    except errors.AuthorizationFailed as error:
        advice = "run doctor as the schema's owner, or have this role granted what is missing"
        return [Finding(Level.INFORMATION, name, f"cannot be checked: {error}", advice)]
    except errors.ConfigError as error:
        return [Finding(Level.PROBLEM, name, f"cannot be checked: {error}", "`msgtx db upgrade`")]
    except errors.DatabaseUnavailable:
        raise
    except (errors.MsgtxError, psycopg.Error) as error:
        return [Finding(Level.PROBLEM, name, f"cannot be checked: {error}", "the other checks were made")]
