"""Offsets of a consumer that a failover has lost: looked for before it commits in the new primary, or reads on there."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from msgtx import errors
from msgtx.config import ConsumerConfig
from msgtx.consumer.fetcher import Fetcher
from msgtx.database.connection import Connection
from msgtx.database.pool import Engine
from msgtx.session.moves import is_behind
from msgtx.store.groups.groups import committed_offsets
from msgtx.types import OffsetAndMetadata

if TYPE_CHECKING:
    from msgtx.consumer.rides import Ride

# An offset that is older proves no loss: by then the group's offset may have expired, or have been changed by hand.
RECENT_SECONDS: Final = 3_600.0


class _Last(NamedTuple):
    offset: int
    server: tuple[int, int] | None  # the primary that has acknowledged it
    at: float
    ride: "Ride | None"  # in whose session it was committed
    before: "_Last | None" = None  # the last commit as long as that session has not committed


class CommitLosses:
    """The last commits of one consumer (decision 0180); none of one that commits automatically: it does so again."""

    def __init__(self, engine: Engine, config: ConsumerConfig, fetcher: Fetcher) -> None:
        self._engine = engine
        self._config = config
        self._fetcher = fetcher
        self._last: dict[int, _Last] = {}  # by partition id
        self._looked: tuple[int, int] | None = None  # the primary in which nothing has to be looked for

    def acknowledged(self, connection: Connection, offsets: Mapping[int, OffsetAndMetadata]) -> None:
        """Note that offsets are committed."""
        self._note(offsets, connection.server, None)

    def riding(self, ride: "Ride", offsets: Mapping[int, OffsetAndMetadata]) -> None:
        """Note that a session is to commit offsets."""
        self._note(offsets, self._engine.server, ride)

    def _note(self, offsets: Mapping[int, OffsetAndMetadata], server: tuple[int, int] | None, ride: "Ride | None") -> None:
        if not self._config.enable_auto_commit:
            now = time.monotonic()
            for each, at in offsets.items():
                before = None if ride is None else _beneath(self._last.get(each))
                self._last[each] = _Last(at.offset, server, now, ride, before)
            self._looked = self._looked or server

    def ask(self) -> None:
        """Ask which primary answers if a session of this process has reached a later one than the client."""
        if is_behind(self._engine.server, self._engine.incarnation):
            self._engine.dedicated().close()

    @property
    def are_due(self) -> bool:
        """Whether another primary answers than the one in which the last commits were stored or looked for."""
        return self._looked is not None and self._engine.server not in {None, self._looked}

    def look(self, connection: Connection) -> errors.CommitsLost | None:
        """Return the error if this primary lacks the last commit on an assigned partition; again, until `told`."""
        server, since, group = connection.server, time.monotonic() - RECENT_SECONDS, self._config.group
        done = {each: _done(last) for each, last in list(self._last.items())}
        last = {each: at for each, at in done.items() if at and at.at >= since and at.server not in {None, server}}
        wanted = [each for each in list(self._fetcher.assigned.values()) if each.partition_id in last]
        if server is None or group is None or not wanted:
            return None
        found = committed_offsets(connection, group, [each.partition_id for each in wanted])
        for each in wanted:
            offset, kept = last[each.partition_id].offset, found.get(each.partition_id)
            if kept is not None and (kept.pending or (kept.at is not None and kept.at.offset >= offset)):
                continue
            there = "none" if kept is None or kept.at is None else kept.at.offset
            return errors.CommitsLost(
                f"group {group!r}: a failover has lost the commit of {each.topic_partition} at offset {offset};"
                f" the group is at {there}. Call commit() again if what was made of the records is still there, or rewind()"
                " if it was lost, too, as in the same database",
                group=group,
                at=each.topic_partition,
                offset=offset,
            )
        return None

    def told(self) -> None:
        """Forget the commits so far: the caller has been told which of them this primary lacks."""
        self._last.clear()
        self._looked = self._engine.server


def _done(last: _Last | None) -> _Last | None:
    """Return the newest commit that was done."""
    while last is not None and last.ride is not None and not last.ride.riding.committed:
        last = last.before
    return last


def _beneath(last: _Last | None) -> _Last | None:
    """Return what a commit in a session keeps of the commits before it: the newest one done, and those undecided since."""
    while last is not None and last.ride is not None and last.ride.is_lost:
        last = last.before
    return last._replace(before=None) if last is not None and _done(last) is last else last
