"""Compaction as a sweep: one bounded piece of a pass per call, and the keys that a pass remembers in between.

A pass has two halves. First the keys that no pass has seen yet are noted with their newest offsets: as many as fit into the
window. Then each row of the log, from its front to the end of the window, is rewritten without the records that a noted
one supersedes. A pass may end anywhere: it has removed only superseded records, and the next one begins where the last
*finished* one ended.
"""

import logging
from datetime import datetime
from typing import Final

import psycopg

from msgtx.database.calls import savepoint
from msgtx.database.connection import RawConnection
from msgtx.errors import MsgtxError
from msgtx.rules.compaction import newest_of, survivors
from msgtx.store.sweeps.compaction import (
    DirtyLog,
    Rewrite,
    compact_batches,
    find_dirty_log,
    finish_compaction,
    read_keys,
)
from msgtx.store.sweeps.coordinators import SHARDS, Leases
from msgtx.store.sweeps.sweeps import ENDS_THE_ROUND, REMOVED_ROW_BYTES, Swept
from msgtx.store.transactions.transactions import Position

_log = logging.getLogger("msgtx.coordinator")
MIN_DIRTY_RATIO: Final = 0.5  # of a log's bytes that no pass has compacted: with less a pass is not worth it, as in Kafka
WINDOW_BYTES: Final = 64 * 1024 * 1024  # of memory for the keys of one pass
KEY_BYTES: Final = 150  # that a key takes there beside its own: the object, its offset, its place in the dictionary
ROWS_AT_ONCE: Final = 500  # of one piece
NOTED_BYTES: Final = 16 * 1024 * 1024  # of rows whose keys are read in one piece
REWRITTEN_BYTES: Final = 4 * 1024 * 1024  # of rows that are looked at, and perhaps rewritten, in one SQL transaction


class Compactor:
    """The step `compaction` of one sweeper."""

    def __init__(
        self,
        *,
        min_dirty_ratio: float = MIN_DIRTY_RATIO,
        window_bytes: int = WINDOW_BYTES,
        rows_at_once: int = ROWS_AT_ONCE,
        rewritten_bytes: int = REWRITTEN_BYTES,
    ) -> None:
        self._min_dirty_ratio = min_dirty_ratio
        self._window_bytes = window_bytes
        self._rows_at_once = rows_at_once
        self._rewritten_bytes = rewritten_bytes
        self._forget()

    def _forget(self) -> None:
        """End the pass."""
        self._log: DirtyLog | None = None
        self._newest: dict[bytes, int] = {}
        self._used = 0  # of the window
        self._noted_upto: int | None = None  # None: the first half is done
        self._until = 0
        self._at = 0
        self._tombstones_since: datetime | None = None

    def __call__(self, connection: RawConnection, after: Position | None, leases: Leases | None) -> Swept:
        """Do the next piece, or look for the next partition that is worth a pass."""
        log = self._log
        if log is None or (leases is not None and log.partition_id % SHARDS not in leases.epochs):
            self._forget()
            return self._begin(connection, after, leases)
        on = False
        try:
            with savepoint(connection):
                swept = (
                    self._note(connection, log) if self._noted_upto is not None else self._rewrite(connection, log, leases)
                )
            on = swept.is_busy
            return swept
        except ENDS_THE_ROUND:
            raise
        except (MsgtxError, psycopg.Error) as error:
            _log.warning("partition %d could not be compacted: %s", log.partition_id, error)
            return Swept({}, (log.partition_id,))  # the others can be
        finally:
            if not on:  # after a failure, too: another connection may see another log
                self._forget()

    def _begin(self, connection: RawConnection, after: Position | None, leases: Leases | None) -> Swept:
        found, came_to = find_dirty_log(
            connection, None if after is None else after[0], min_dirty_ratio=self._min_dirty_ratio, leases=leases
        )
        if found is not None:
            self._log = found
            self._noted_upto = found.compacted_offset
            self._until = found.until
        return Swept({}) if came_to is None else Swept({}, (came_to,), is_busy=True)

    def _note(self, connection: RawConnection, log: DirtyLog) -> Swept:
        """Note the keys of the next rows that no pass has compacted."""
        assert self._noted_upto is not None
        batches = read_keys(
            connection,
            log.partition_id,
            self._noted_upto,
            log.until,
            with_tombstones=False,
            most_rows=self._rows_at_once,
            most_bytes=NOTED_BYTES,
        )
        for batch in batches:
            if self._used >= self._window_bytes:
                self._until, self._noted_upto = batch.keyed.base_offset, None
                break
            newest = newest_of(batch.keyed)
            self._used += sum(len(key) + KEY_BYTES for key in newest if key not in self._newest)
            self._newest.update(newest)
            self._noted_upto = batch.last_offset + 1
        if not batches:
            self._noted_upto = None
        return self._on(log)

    def _rewrite(self, connection: RawConnection, log: DirtyLog, leases: Leases | None) -> Swept:
        """Remove superseded records from the next rows; after the last row, note that the pass is done."""
        batches = read_keys(
            connection,
            log.partition_id,
            self._at,
            self._until,
            with_tombstones=True,
            most_rows=self._rows_at_once,
            most_bytes=self._rewritten_bytes,
        )
        if not batches:
            done = finish_compaction(
                connection, log, until=self._until, tombstones_since=self._tombstones_since, leases=leases
            )
            again = done and self._until < log.until  # the window was full: look at this partition once more
            return Swept({}, (log.partition_id - again,))
        rewrites: list[Rewrite] = []
        seen: list[int] = []
        for batch in batches:
            stay = survivors(self._newest, batch.keyed)
            waits = bool(batch.keyed.tombstones) and not {*batch.keyed.tombstones}.isdisjoint(stay)
            if len(stay) < batch.keyed.record_count:
                rewrites.append(Rewrite(batch, stay, waits))
            elif waits and batch.compacted_at is None:
                seen.append(batch.keyed.base_offset)
            if waits and batch.compacted_at is not None:
                self._waits_since(batch.compacted_at)
        size = 0
        if rewrites or seen:
            done_at, size = compact_batches(connection, log.partition_id, rewrites, seen=seen, leases=leases)
            if done_at is None:
                return Swept({}, (log.partition_id,))  # another cleaner is at it
            if seen or any(rewrite.waits and rewrite.batch.compacted_at is None for rewrite in rewrites):
                self._waits_since(done_at)
        self._at = batches[-1].last_offset + 1
        removed = sum(rewrite.batch.keyed.record_count - len(rewrite.stay) for rewrite in rewrites)
        return self._on(log, removed, size + len(rewrites) * REMOVED_ROW_BYTES)

    def _waits_since(self, time: datetime) -> None:
        self._tombstones_since = time if self._tombstones_since is None else min(self._tombstones_since, time)

    @staticmethod
    def _on(log: DirtyLog, removed: int = 0, size: int = 0) -> Swept:
        return Swept({"records_compacted": removed}, (log.partition_id,), is_busy=True, bytes=size)
