"""Snapshots under a name: kept, found, forgotten."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from msgtx.database.calls import Function, call
from msgtx.database.connection import RawConnection
from msgtx.database.translation import answered

SAVE: Final = Function("save_snapshot", {"in_name": "text", "in_snapshot": "text", "in_replace": "bool"})
SAVED: Final = Function("saved_snapshots", {"in_name": "text"})
DELETE: Final = Function("delete_snapshot", {"in_name": "text"})


@dataclass(frozen=True, slots=True)
class SavedText:
    """A snapshot as it is stored."""

    name: str
    snapshot: str
    taken_at: datetime


def save_snapshot(connection: RawConnection, name: str, snapshot: str, *, replace: bool) -> datetime:
    """Keep a snapshot under a name. Returns when it was saved.

    Raise `SnapshotExists`, `IncarnationChanged`, `InvalidRequest`.
    """
    ((refusal, detail, taken_at),) = call(connection, SAVE, name, snapshot, replace)
    if refusal is not None:
        raise answered(refusal, detail, name=name)
    assert isinstance(taken_at, datetime)
    return taken_at


def saved_snapshots(connection: RawConnection, name: str | None = None) -> list[SavedText]:
    """Return the snapshot of a name (None: all), in order of the names; an unknown one is absent."""
    return [SavedText(*row) for row in call(connection, SAVED, name)]


def delete_snapshot(connection: RawConnection, name: str) -> bool:
    """Forget a name. Returns whether there was one."""
    ((there_was,),) = call(connection, DELETE, name)
    return bool(there_was)
