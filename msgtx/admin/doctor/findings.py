"""The shared parts of all checks of `doctor`: their connection, their thresholds, and their words."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from msgtx.database.connection import RawConnection
from msgtx.store.operator.server import Server
from msgtx.types import Finding, Level


@dataclass(frozen=True, slots=True)
class Limits:
    """From when on `doctor` reports something, or calls it a problem."""

    stalled_seconds: float = 300.0  # an offset that does not move: a worker is past all its tries of a record, or works long
    grace_seconds: float = 5.0  # an overdue transaction, a missing marker: who is to see to it comes once a second
    late_seconds: float = 3_600.0  # of records past their retention: the sweeps look for them every few seconds
    late_bytes: int = 1024**3  # beyond retention_bytes: what is stored quickly between two sweeps may be some 100 MiB
    lock_seconds: float = 5.0  # a session that holds msgtx's locks: the library's own hold them for milliseconds
    idle_seconds: float = 60.0  # a session that is idle in a SQL transaction
    snapshot_seconds: float = 600.0  # a snapshot of a session that works, or a transaction prepared for an outside party
    snapshot_age: int = 10_000_000  # transactions: half of the age at which autovacuum freezes is a tenth of this away
    retained_wal_bytes: int = 10 * 1024**3  # of an active slot; the disk fills unnoticed
    connections_warning: float = 0.80  # of those that ordinary roles may have
    connections_problem: float = 0.95
    locks_warning: float = 0.5  # of the lock table: a moment's peak takes the rest
    notifications_warning: float = 0.05  # of the queue of notifications: it is emptied all the time, or held back
    notifications_problem: float = 0.5
    frozen_warning: float = 1.0  # of autovacuum_freeze_max_age: autovacuum should have begun
    frozen_problem: float = 2.0
    dead_fraction: float = 0.2  # of a table's rows, as autovacuum's own default
    dead_rows: int = 10_000  # fewer dead rows are no matter


@dataclass(frozen=True, slots=True)
class Look:
    """The tools of a check. `most`: findings of one kind; further ones are only counted."""

    connection: RawConnection
    server: Server
    limits: Limits
    most: int


def data_of(value: Any, **more: object) -> dict[str, object]:
    """Return what a store function told as data of a finding: times in ISO 8601, ids and partitions as their text."""
    names = getattr(value, "_fields", None) or [field.name for field in dataclasses.fields(value)]
    found = {name: _plain(getattr(value, name)) for name in names if name != "found"}
    if "partition_index" in found:
        del found["topic"], found["partition_index"]
        found = {"partition": str(value.partition), **found}
    if "transaction_number" in found:
        del found["producer_id"], found["producer_epoch"], found["transaction_number"]
        found["transaction_id"] = str(value.transaction_id)
    return {**found, **more}


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, tuple) else value


def more_of(total: int, found: Sequence[object], subject: str, words: str, advice: str = "") -> Iterator[Finding]:
    """Tell how many there are behind the listed ones."""
    if total > len(found):
        more = total - len(found)
        yield Finding(Level.INFORMATION, subject, f"{more} more {words}", advice, {"more": more})


def span(seconds: float) -> str:
    """Return a length of time in words, as exact as one wants to read it."""
    for unit, length in (("days", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"


def since(time: datetime | None, now: datetime) -> float | None:
    """Return the seconds since a time, None if it is not known."""
    return None if time is None else (now - time).total_seconds()


def member_of(one: Any) -> str:
    """Return a member in words, with its process."""
    host = "" if one.client_host is None else f" (process {one.client_process} on {one.client_host})"
    return f"member {one.member_id}{host}"


def words_of_bytes(count: int) -> str:
    """Return a number of bytes in words."""
    for unit, length in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= length:
            return f"{count / length:.1f} {unit}"
    return f"{count} bytes"
