"""Snapshots under a name: kept, found, forgotten."""

from datetime import datetime

from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.translation import answered
from msgtx.generated import calls

# A snapshot as it is stored.
SavedText = calls.SavedSnapshotsRow


def save_snapshot(connection: RawConnection, name: str, snapshot: str, *, replace: bool) -> datetime:
    """Keep a snapshot under a name. Returns when it was saved.

    Raise `SnapshotExists`, `IncarnationChanged`, `InvalidRequest`.
    """
    ((refusal, detail, taken_at),) = call(connection, calls.SAVE_SNAPSHOT, name, snapshot, replace)
    if refusal is not None:
        raise answered(refusal, detail, name=name)
    assert isinstance(taken_at, datetime)
    return taken_at


def saved_snapshots(connection: RawConnection, name: str | None = None) -> list[SavedText]:
    """Return the snapshot of a name (None: all), in order of the names; an unknown one is absent."""
    return call(connection, calls.SAVED_SNAPSHOTS, name)


def delete_snapshot(connection: RawConnection, name: str) -> bool:
    """Forget a name. Returns whether there was one."""
    ((there_was,),) = call(connection, calls.DELETE_SNAPSHOT, name)
    return bool(there_was)
