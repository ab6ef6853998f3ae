"""Offsets of a consumer that a failover has lost: looked for before records are returned from the new primary."""

import time
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from msgtx import errors
from msgtx.config import ConsumerConfig
from msgtx.consumer.partition import Assigned
from msgtx.database.connection import RawConnection
from msgtx.database.pool import Engine
from msgtx.receiving.calls import Calls
from msgtx.session.moves import is_behind
from msgtx.session.riding import Riding
from msgtx.store.groups.groups import CommittedOffset, committed_offsets
from msgtx.types import OffsetAndMetadata

# An offset that is older proves no loss: by then the group's offset may have expired, or have been changed by hand.
RECENT_SECONDS: Final = 3_600.0


class _Last(NamedTuple):
    offset: int
    server: tuple[int, int] | None  # the primary that has acknowledged it
    at: float
    riding: Riding | None  # in whose session it was committed


class CommitLosses:
    """The last commits of one consumer (decision 0180); none of one that commits automatically: it does so again."""

    def __init__(self, engine: Engine, config: ConsumerConfig, calls: Calls) -> None:
        self._engine = engine
        self._config = config
        self._calls = calls
        self._last: dict[int, _Last] = {}  # by partition id
        self._looked: tuple[int, int] | None = None  # the primary in which nothing has to be looked for

    def acknowledged(self, connection: RawConnection, offsets: Mapping[int, OffsetAndMetadata]) -> None:
        """Note that offsets are committed."""
        self._note(offsets, getattr(connection, "server", None), None)

    def riding(self, riding: Riding, offsets: Mapping[int, OffsetAndMetadata]) -> None:
        """Note that a session is to commit offsets."""
        self._note(offsets, self._engine.server, riding)

    def _note(self, offsets: Mapping[int, OffsetAndMetadata], server: tuple[int, int] | None, riding: Riding | None) -> None:
        if not self._config.enable_auto_commit:
            now = time.monotonic()
            self._last |= {each: _Last(at.offset, server, now, riding) for each, at in offsets.items()}
            self._looked = self._looked or server

    def ask(self) -> None:
        """Ask which primary answers if a session of this process has reached a later one than the client."""
        if is_behind(self._engine.server, self._engine.incarnation):
            self._engine.dedicated().close()

    @property
    def are_due(self) -> bool:
        """Whether another primary answers than the one in which the last commits were stored or looked for."""
        server = self._engine.server
        return server != self._looked and server is not None and self._looked is not None

    def look(self, assigned: Collection[Assigned]) -> None:
        """Look in a new primary for the last commits on these partitions. Raise `CommitsLost`, once."""
        if not self.are_due:
            return
        server = self._engine.server
        since = time.monotonic() - RECENT_SECONDS
        last = {each: at.offset for each, at in list(self._last.items()) if _counts(at, server, since)}
        wanted = [each for each in assigned if each.partition_id in last]
        found = self._found([each.partition_id for each in wanted])
        self._last.clear()
        self._looked = server
        for each in wanted:
            offset, kept = last[each.partition_id], found.get(each.partition_id)
            if kept is not None and (kept.pending or (kept.at is not None and kept.at.offset >= offset)):
                continue
            there = "none" if kept is None or kept.at is None else kept.at.offset
            raise errors.CommitsLost(
                f"group {self._config.group!r}: a failover has lost the commit of {each.topic_partition} at offset {offset};"
                f" the group is at {there}. Call commit() again if what was made of the records is still there, or rewind()"
                " if it was lost, too, as in the same database",
                group=self._config.group,
                at=each.topic_partition,
                offset=offset,
            )

    def _found(self, partition_ids: list[int]) -> dict[int, CommittedOffset]:
        group = self._config.group
        if not partition_ids or group is None:
            return {}
        return self._calls.asked(lambda connection: committed_offsets(connection, group, partition_ids))


def _counts(last: _Last, server: tuple[int, int] | None, since: float) -> bool:
    """Return whether a commit of another primary was done, and lately."""
    return last.server not in {None, server} and last.at >= since and (last.riding is None or last.riding.committed)
