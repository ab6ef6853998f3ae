"""Holders of msgtx's locks; sessions, snapshots and slots that pin the horizon of VACUUM."""

from collections.abc import Iterator

from msgtx.admin.doctor.findings import Limits, Look, data_of, since, span, words_of_bytes
from msgtx.store.operator.server import LockHolder, SnapshotHolder, lock_holders, snapshot_holders
from msgtx.types import Finding, Level

IDLE = "idle in transaction"
LOST = ("unreserved", "lost")  # of a slot's WAL status: it is going to fail, or has
HORIZON = "VACUUM can neither clean nor freeze behind it (msgtx's producers do not slow down)"


def locks(look: Look) -> Iterator[Finding]:
    """Find sessions that hold msgtx's locks for longer than its own calls do (P32)."""
    found = [one for one in lock_holders(look.connection) if _holds_long(one, look.limits)]
    for one in found[: look.most]:
        yield _lock(one)


def _holds_long(one: LockHolder, limits: Limits) -> bool:
    age = since(one.transaction_since, one.checked_at)
    if age is None:
        return one.pid is None or one.waiting > 0
    return age > limits.lock_seconds and (one.waiting > 0 or (one.state or "").startswith(IDLE))


def _lock(one: LockHolder) -> Finding:
    age = since(one.transaction_since, one.checked_at)
    if one.pid is None:
        who, advice = "a prepared transaction of PostgreSQL", "commit or roll it back: see pg_prepared_xacts"
    else:
        who = f"session {one.pid} ({one.application_name or one.role})"
        who += f" is {one.state} and" if one.state else ""
        advice = f"commit or roll back there, or `select pg_terminate_backend({one.pid})`"
    for_long = "" if age is None else f" for {span(age)}"
    text = f"{who} holds {one.locks} locks of msgtx{for_long}, {one.partitions} of them on partitions; {one.waiting} wait"
    level = Level.PROBLEM if one.waiting else Level.WARNING
    subject = "prepared transaction" if one.pid is None else f"session {one.pid}"
    return Finding(level, subject, text, advice, data_of(one, age_seconds=age))


def snapshots(look: Look) -> Iterator[Finding]:
    """Find the holders of an old horizon: sessions, standbys, replication slots, prepared transactions."""
    told = 0
    for one in snapshot_holders(look.connection):
        if told < look.most and (finding := _snapshot(one, look.limits)) is not None:
            told += 1
            yield finding


def _snapshot(one: SnapshotHolder, limits: Limits) -> Finding | None:
    match one.kind:
        case "session":
            return _session(one, limits)
        case "standby":
            return _standby(one, limits)
        case "slot":
            return _slot(one, limits)
        case _:
            return _prepared(one, limits)


def _session(one: SnapshotHolder, limits: Limits) -> Finding | None:
    seconds = since(one.since, one.checked_at) or 0.0
    idle = (one.state or "").startswith(IDLE)
    if seconds < (limits.idle_seconds if idle else limits.snapshot_seconds) and (one.age or 0) < limits.snapshot_age:
        return None
    text = (
        f"{one.role} ({one.name}) is {one.state} in a SQL transaction of {span(seconds)}, {one.age} transactions old:"
        f" {HORIZON}"
    )
    advice = f"end it there, or `select pg_terminate_backend({one.pid})`"
    return Finding(Level.WARNING, f"session {one.pid}", text, advice, data_of(one, age_seconds=seconds))


def _standby(one: SnapshotHolder, limits: Limits) -> Finding | None:
    if (one.age or 0) < limits.snapshot_age:
        return None
    text = f"a query on standby {one.name} is {one.age} transactions old: {HORIZON}"
    return Finding(Level.WARNING, f"standby {one.name}", text, "end the query on the standby", data_of(one))


def _slot(one: SnapshotHolder, limits: Limits) -> Finding | None:
    retained = one.retained or 0
    lost = one.wal_status in LOST
    level = Level.PROBLEM if lost or retained > limits.retained_wal_bytes else Level.WARNING
    if level is Level.WARNING and one.active and (one.age or 0) < limits.snapshot_age:
        return None
    using = f"used by process {one.pid}" if one.active else "used by nobody"
    pinned = "" if one.age is None else f", and pins a horizon of {one.age} transactions"
    text = f"{one.state} slot {one.name} is {using}; it keeps {words_of_bytes(retained)} of WAL ({one.wal_status}){pinned}"
    advice = (
        f"drop it: `select pg_drop_replication_slot('{one.name}')`; or let its reader go on"
        if not one.active
        else "see why its reader does not keep up"
    )
    return Finding(level, f"slot {one.name}", text, advice, data_of(one))


def _prepared(one: SnapshotHolder, limits: Limits) -> Finding:
    seconds = since(one.since, one.checked_at) or 0.0
    level = Level.WARNING if seconds > limits.idle_seconds else Level.INFORMATION
    text = f"PostgreSQL's prepared transaction {one.name!r} of {one.role} waits for {span(seconds)}: {HORIZON}"
    advice = f"`commit prepared '{one.name}'` or `rollback prepared '{one.name}'`"
    return Finding(level, f"prepared transaction {one.name}", text, advice, data_of(one, age_seconds=seconds))


def hidden(look: Look) -> Iterator[Finding]:
    """Report the data that this role cannot see."""
    if look.server.sees_all:
        return
    role = look.server.role
    text = (
        f"role {role} sees the state of its own sessions only ({look.server.hidden} of this database are hidden):"
        " old snapshots of others are not found"
    )
    advice = f"`grant pg_read_all_stats to {role}`"
    yield Finding(Level.INFORMATION, "rights", text, advice, {"role": role, "hidden": look.server.hidden})
