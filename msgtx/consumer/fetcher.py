"""The fetcher: the partitions of a consumer, with the fetched records and the next position of each. Kafka's fetcher."""

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from msgtx import errors
from msgtx.config import ConsumerConfig
from msgtx.consumer.awaited import Awaited
from msgtx.consumer.partition import Assigned
from msgtx.database.connection import Connection, seconds_left
from msgtx.database.pool import Engine
from msgtx.database.standby import LACK_SECONDS, MOST_PAUSE_SECONDS, PAUSE_SECONDS
from msgtx.receiving.integrity import Integrity
from msgtx.rules.partition import FetchState
from msgtx.store.fetch.fetch import (
    EARLIEST,
    LATEST,
    FetchedPartition,
    ListedOffset,
    Position,
    fetch,
)
from msgtx.store.fetch.holders import Holder, expired_any, stable_ends, stable_offsets
from msgtx.store.fetch.records import uncollected
from msgtx.store.find import BEHIND_ALL
from msgtx.types import Isolation, Record, TopicPartition

log = logging.getLogger("msgtx.consumer")
EXPIRE_SECONDS: Final = 1.0  # between two looks at the primary, for transactions that a standby shows as open
FETCH_BYTES: Final = 8 * 1024 * 1024  # of all partitions in one fetch, if fetch_max_bytes allows: enough to hide its cost


class Start(NamedTuple):
    """Where a reset or a seek has put the reader of a partition, and the committed offset that was out of range (or none).

    As long as the group has no committed offset, a rewind goes back there: a second reset to `latest` would skip
    records read since the first.
    """

    offset: int
    instead_of: int | None


CommitStarts = Callable[[Connection, Mapping[int, int]], bool]


class Fetcher:
    """Fetches for one consumer. `assigned`: its partitions, in the order in which they take turns."""

    def __init__(self, engine: Engine, config: ConsumerConfig, integrity: Integrity) -> None:
        self._engine = engine
        self._integrity = integrity
        self._config = config
        self.assigned: dict[TopicPartition, Assigned] = {}
        self._turn: deque[TopicPartition] = deque()
        self._fetch_turn: dict[TopicPartition, None] = {}  # what a fetch has brought records of comes last in the next one
        self._starts: dict[int, Start] = {}
        self._not_committed: dict[int, int] = {}  # of the starts, while `commit_starts` is there to do it
        self.commit_starts: CommitStarts | None = None
        self._next_look = 0.0  # for offsets that were not stable
        self._next_expiry = 0.0
        self._primary: tuple[int, int] | None = None  # whose `_primary_ends` these are
        self._primary_ends: dict[int, int] = {}  # of logs, as the primary has last shown them
        self._lacked: dict[int, tuple[int, float]] = {}  # the offset that the primary does not show yet, and since when
        self.awaited = Awaited() if engine.standby is not None else None

    def assign(self, partitions: Iterable[Assigned]) -> None:
        """Read these partitions and no others."""
        assigned = {partition.topic_partition: partition for partition in partitions}
        before = {partition.partition_id for partition in self.assigned.values()}
        kept = {tp: None for tp in self._fetch_turn if tp in assigned}
        self.assigned, self._turn, self._fetch_turn = assigned, deque(assigned), kept | dict.fromkeys(assigned)
        if self.awaited is not None:
            now = {partition.partition_id for partition in assigned.values()}
            self.awaited.keep(now)
            self.awaited.woken(now - before)  # a wake-up in front of the assignment was another reader's

    def forget_starts(self) -> None:
        """Begin partitions that are not assigned now by `auto_offset_reset` when they are assigned again."""
        kept = {assigned.partition_id for assigned in self.assigned.values()}
        self._starts = {partition_id: start for partition_id, start in self._starts.items() if partition_id in kept}

    def seek(self, assigned: Assigned, offset: int) -> None:
        """Continue at an offset."""
        assigned.seek(offset)
        self._sought(assigned, offset)

    def resume(self, assigned: Assigned) -> None:
        """Return records of a partition again."""
        assigned.resume()
        if self.awaited is not None:
            self.awaited.woken([assigned.partition_id])  # a wake-up in between was not noted

    def woken(self, named: Collection[int] | None) -> None:
        """Note that the primary may have more of these partitions (None: of any) than a standby shows."""
        if self.awaited is not None:
            mine = {assigned.partition_id for assigned in self.assigned.values() if not assigned.paused}
            self.awaited.woken(mine if named is None else mine.intersection(named))
            self.awaited.keep(mine)

    @property
    def ready(self) -> bool:
        """Whether there are fetched records that can be returned."""
        return any(assigned.buffered and not assigned.paused for assigned in self.assigned.values())

    def behind(self) -> dict[TopicPartition, int]:
        """Return how far the standby is behind the primary, as far as that is known. For other threads, too."""
        if self.awaited is None:
            return {}
        assigned = list(self.assigned.values())
        return {each.topic_partition: self.awaited.behind(each.partition_id, each.end or 0) for each in assigned}

    @property
    def waiting(self) -> TopicPartition | None:
        """A partition whose committed offset is not stable; None: there is none."""
        return next((a.topic_partition for a in self.assigned.values() if a.waits_for is not None and not a.paused), None)

    def in_turn(self) -> list[Assigned]:
        """Return the partitions, another one first each time."""
        self._turn.rotate(-1)
        return [self.assigned[partition] for partition in self._turn]

    def take(self, most: int) -> list[Record]:
        """Return up to `most` fetched records, partition by partition."""
        taken: list[Record] = []
        with uncollected():
            for _ in range(len(self._turn)):
                assigned = self.assigned[self._turn[0]]
                if not assigned.paused and assigned.buffered:
                    while len(taken) < most and (records := assigned.take(most - len(taken))):
                        taken += records
                if len(taken) >= most:
                    break
                self._turn.rotate(-1)
        return taken

    def fetch(self, only: Iterable[int] | None = None) -> bool:
        """Fetch partitions that are not paused and have nothing buffered. Returns whether any position moved.

        `only`: partitions with these ids, and those that were not read to their ends.
        """
        chosen: set[int] | None = None
        if only is not None:
            if self.awaited is not None:
                only = {*only, *self.awaited.partition_ids}
            chosen = {each.partition_id for each in self.assigned.values() if each.next is None or not each.at_end}
            chosen.update(only)
            if not chosen:
                return False
        if self.awaited is None:
            with self._engine.connection() as connection:
                return self._begin_reading(connection) and self._fetch(connection, chosen)
        if self._not_committed or any(assigned.next is None for assigned in self.assigned.values()):
            with self._engine.connection() as connection:
                if not self._begin_reading(connection):
                    return False
        try:
            with self._engine.reading.connection() as connection:
                progress = self._fetch(connection, chosen)
        except errors.AuthorizationFailed:  # the standby may not show a right yet
            self._require_rights(self.awaited)
            return False
        return progress or self._ask_for_ends(self.awaited)

    def _begin_reading(self, connection: Connection) -> bool:
        """Find positions, and have those of a reset committed. Returns whether records may be read."""
        self.find_positions(connection)
        return self._commit_starts(connection)

    def _fetch(self, connection: Connection, chosen: set[int] | None) -> bool:
        wanted = {
            assigned.partition_id: assigned
            for assigned in (self.assigned[tp] for tp in self._fetch_turn)
            if assigned.next is not None
            and not assigned.paused
            and not assigned.buffered
            and (chosen is None or assigned.partition_id in chosen)
        }
        if not wanted:
            return False
        total = min(self._config.fetch_max_bytes, FETCH_BYTES)
        positions = {partition_id: at for partition_id, each in wanted.items() if (at := each.next) is not None}
        answers = fetch(connection, positions, isolation=self._config.isolation, max_bytes=total, total_bytes=total)
        if self.awaited is not None:
            self._judge(self.awaited, wanted, positions, answers)
        progress = False
        found: dict[TopicPartition, None] = {}
        with self._integrity.steps():
            for partition_id, assigned in wanted.items():
                answer = answers.get(partition_id)
                if answer is None:
                    raise errors.UnknownTopicOrPartition(
                        f"{assigned.topic_partition} does not exist (any more)", at=assigned.topic_partition
                    )
                progress = self._fetched(assigned, answer) or progress
                if answer.batches:
                    found[assigned.topic_partition] = None
            if found:
                self._fetch_turn = {tp: None for tp in self._fetch_turn if tp not in found} | found
        return self._expired(connection, answers) or progress

    def _judge(
        self,
        awaited: Awaited,
        wanted: dict[int, Assigned],
        positions: Mapping[int, Position],
        answers: dict[int, FetchedPartition],
    ) -> None:
        """Have the primary judge positions that the standby does not show. Those that it has are left for a later fetch."""
        doubtful: list[int] = []
        for partition_id, position in positions.items():
            answer = answers.get(partition_id)
            if answer is not None and _holds(answer, position):
                awaited.shown(partition_id, self._end(answer))
                continue
            doubtful.append(partition_id)
            answers.pop(partition_id, None)
        known = {partition_id for partition_id in doubtful if awaited.is_asked(partition_id)}
        ends = self._ends([partition_id for partition_id in doubtful if partition_id not in known])
        for partition_id in doubtful:
            answer = ends.get(partition_id)
            if partition_id in known:
                del wanted[partition_id]
            elif answer is not None and (
                _holds(answer, positions[partition_id]) or self._may_come(wanted[partition_id], answer)
            ):
                awaited.asked(partition_id, self._end(answer))
                del wanted[partition_id]
            elif answer is not None:
                answers[partition_id] = answer

    def _ends(self, partition_ids: Collection[int], at: Position | None = None) -> dict[int, FetchedPartition]:
        """Ask the primary for the ends of partitions, and whether it holds the positions there.

        `at`: ask for this position, which needs the right to consume; the ends alone need any right.
        """
        if not partition_ids:
            return {}
        positions = {
            each.partition_id: at or each.next or Position(0)
            for each in self.assigned.values()
            if each.partition_id in partition_ids
        }
        with self._engine.connection() as connection:
            return fetch(
                connection, positions, isolation=self._config.isolation, max_bytes=0, max_rows=0 if at is None else 1
            )

    def _ask_for_ends(self, awaited: Awaited) -> bool:
        """Ask the primary for the ends of partitions that the standby may not show yet. Returns whether a position moved.

        The primary may no longer hold a position that the standby shows.
        """
        asked, progress = awaited.to_ask(), False
        ends = self._ends(asked)
        with self._integrity.steps():
            for assigned in self.assigned.values():
                if assigned.partition_id not in asked:
                    continue
                answer, at = ends.get(assigned.partition_id), assigned.next
                awaited.asked(assigned.partition_id, 0 if answer is None else self._end(answer))
                holds = answer is None or at is None or _holds(answer, at)
                if holds:
                    self._lacked.pop(assigned.partition_id, None)
                if answer is not None and not holds and not assigned.buffered and not self._may_come(assigned, answer):
                    progress = self._fetched(assigned, answer) or progress
                else:
                    awaited.shown(assigned.partition_id, assigned.end or 0)
        awaited.tell()
        return progress

    def _require_rights(self, awaited: Awaited) -> None:
        """Have the primary judge what the standby has refused. Raise `AuthorizationFailed` if it refuses that, too."""
        asked = [each.partition_id for each in self.assigned.values() if not awaited.is_asked(each.partition_id)]
        for partition_id, answer in self._ends(asked, Position(BEHIND_ALL)).items():
            awaited.asked(partition_id, self._end(answer))
        awaited.tell()

    def await_primary(self) -> None:
        """Wait until the primary shows what was read on the standby, for `LACK_SECONDS` at most: then it judges."""
        if self.awaited is None:
            return
        deadline, pause = time.monotonic() + min(LACK_SECONDS, seconds_left()), PAUSE_SECONDS
        wanted = {a.partition_id: a.next.offset for a in self.assigned.values() if a.next is not None and a.next.token}
        while True:
            if self._primary != self._engine.server:
                self._primary, self._primary_ends = self._engine.server, {}
            wanted = {each: offset for each, offset in wanted.items() if self._primary_ends.get(each, -1) < offset}
            if not wanted or time.monotonic() + pause > deadline:
                return
            found = {each: answer.log_end_offset for each, answer in self._ends(wanted).items()}
            self._primary_ends |= found
            if any(found.get(each, offset) < offset for each, offset in wanted.items()):
                time.sleep(pause)
                pause = min(2 * pause, MOST_PAUSE_SECONDS)
            else:
                return

    def _may_come(self, assigned: Assigned, answer: FetchedPartition) -> bool:
        """Return whether the primary may only not show yet what this reader has read on the standby."""
        at = assigned.next
        if at is None or at.token is None or answer.log_end_offset >= at.offset:
            return False
        now = time.monotonic()
        offset, since = self._lacked.pop(assigned.partition_id, (at.offset, now))
        if not answer.log_end_offset < offset <= at.offset:  # that one has come
            offset, since = at.offset, now
        if now >= since + LACK_SECONDS:
            return False
        self._lacked[assigned.partition_id] = offset, since
        return True

    def _expired(self, connection: Connection, answers: Mapping[int, FetchedPartition]) -> bool:
        """Abort overdue transactions that hold one of these partitions back, also if others have more to read (I12).

        A standby cannot tell of each one that it is overdue: the primary is asked.
        """
        overdue = [
            partition_id
            for partition_id, answer in answers.items()
            if answer.blocked_overdue or (self.awaited is not None and answer.blocked_by is not None)
        ]
        now = time.monotonic()
        if not overdue or now < self._next_expiry:
            return False
        if self.awaited is None:
            aborted = expired_any(connection, overdue)
        else:
            with self._engine.connection() as primary:
                aborted = expired_any(primary, overdue)
        for assigned in self.assigned.values():
            if aborted and assigned.partition_id in overdue:
                assigned.expect_more()
        if self.awaited is not None:
            self._next_expiry = now + EXPIRE_SECONDS
            self.awaited.woken(overdue if aborted else ())
        elif not aborted:
            # Its lock is taken, or it is not ours to write: a fast reader need not ask with each fetch.
            self._next_expiry = time.monotonic() + self._config.retry_backoff_ms / 1000
        return aborted

    def _end(self, answer: FetchedPartition) -> int:
        """Return the end of a partition that this consumer may read."""
        return answer.last_stable_offset if self._config.isolation is Isolation.READ_COMMITTED else answer.log_end_offset

    def _fetched(self, assigned: Assigned, answer: FetchedPartition) -> bool:
        assert assigned.next is not None
        before = assigned.next
        if answer.truncated:
            if before.token is None:
                return self._out_of_range(assigned, answer)
            raise errors.LogTruncated(
                f"{assigned.topic_partition}: what was read before offset {before.offset} is no longer in the log, which"
                f" ends at {answer.log_end_offset}: a crash of the server took it back; seek to where you want to go on",
                at=assigned.topic_partition,
                offset=before.offset,
                limit=answer.log_end_offset,
            )
        if before.offset < answer.log_start_offset:
            return self._out_of_range(assigned, answer)
        assigned.fetched(answer.batches, Position(answer.position, answer.token), end=self._end(answer))
        return answer.position > before.offset

    def _out_of_range(self, assigned: Assigned, answer: FetchedPartition) -> bool:
        assert assigned.next is not None
        at = assigned.next.offset
        start = self._starts.get(assigned.partition_id)
        if start is not None and start.instead_of == at and answer.log_start_offset <= start.offset <= answer.log_end_offset:
            assigned.found(Position(start.offset))
            return True
        if self._config.auto_offset_reset == "none":
            raise errors.OffsetOutOfRange(
                f"{assigned.topic_partition}: offset {at} is not in the log, which goes from"
                f" {answer.log_start_offset} to {answer.log_end_offset}",
                at=assigned.topic_partition,
                offset=at,
            )
        log.warning(
            "%s: offset %s is out of range, going to %s", assigned.topic_partition, at, self._config.auto_offset_reset
        )
        assigned.lose_position(at)
        return True

    def find_positions(self, connection: Connection) -> None:
        """Find where partitions begin that have no position: a seek by time, the group's offset, or `auto_offset_reset`.

        One whose offset in the group is part of a sealed, undecided transaction gets none yet: it was read, and its outputs
        may still be committed (I10).
        """
        unknown = [assigned for assigned in self.assigned.values() if assigned.next is None]
        if self._config.group is not None:
            unknown = self._find_committed(connection, self._config.group, unknown)
        times: dict[int, int] = {}
        for assigned in unknown:
            start = self._starts.get(assigned.partition_id)
            if start is not None and assigned.place is FetchState.FINDING:
                assigned.found(Position(start.offset))
            else:
                times[assigned.partition_id] = self._reset_time(assigned)
        if not times:
            return
        ends = stable_ends(connection, times, self._config.isolation)
        for assigned in unknown:
            if assigned.next is None:
                end = ends.get(assigned.partition_id)
                if end is None:
                    raise errors.UnknownTopicOrPartition(
                        f"{assigned.topic_partition} does not exist (any more)", at=assigned.topic_partition
                    )
                self._begin(assigned, end)

    def _find_committed(self, connection: Connection, group: str, unknown: list[Assigned]) -> list[Assigned]:
        """Go to the group's offsets where there is a stable one. Returns the partitions that have none at all."""
        asked = [assigned for assigned in unknown if assigned.place in (FetchState.FINDING, FetchState.WAITING)]
        if time.monotonic() < self._next_look:
            asked = [assigned for assigned in asked if assigned.place is FetchState.FINDING]
        if not asked:
            return [assigned for assigned in unknown if assigned.place is not FetchState.WAITING]
        found, holders = stable_offsets(connection, group, [assigned.partition_id for assigned in asked])
        for assigned in asked:
            at = found.get(assigned.partition_id)
            if at is not None and at.pending:
                self._await_stable(assigned, holders.get(assigned.partition_id))
                continue
            assigned.stop_waiting()
            if at is not None and at.at is not None:
                start = self._starts.get(assigned.partition_id)
                if start is None or start.instead_of != at.at.offset:  # the group has moved on
                    self._starts.pop(assigned.partition_id, None)
                    self._not_committed.pop(assigned.partition_id, None)
                assigned.found(Position(at.at.offset))
        return [assigned for assigned in unknown if assigned.place not in (FetchState.READING, FetchState.WAITING)]

    def _await_stable(self, assigned: Assigned, holder: Holder | None) -> None:
        self._next_look = time.monotonic() + self._config.retry_backoff_ms / 1000
        if holder is not None and assigned.waits_for != holder.transaction_id:
            level = logging.WARNING if holder.kind == "external" else logging.INFO
            log.log(
                level,
                "group %r: %s is not read now: its offset is part of %s",
                self._config.group,
                assigned.topic_partition,
                holder,
            )
        assigned.wait_for(None if holder is None else holder.transaction_id)

    def _begin(self, assigned: Assigned, end: ListedOffset) -> None:
        """Go where a reset leads, and remember it as the beginning, unless the log still holds an earlier one."""
        offset = readable_end(end, self._config.isolation)
        failed = assigned.out_of_range
        if assigned.place is FetchState.LOOKING_UP:  # by hand
            self._sought(assigned, offset)
        else:
            former = self._starts.get(assigned.partition_id)
            if former is None or not end.log_start_offset <= former.offset <= end.log_end_offset:
                instead_of = former.instead_of if former is not None and former.offset == failed else failed
                self._starts[assigned.partition_id] = Start(offset, instead_of)
            if self.commit_starts is not None:
                self._not_committed[assigned.partition_id] = offset
        assigned.found(Position(offset))

    def _sought(self, assigned: Assigned, offset: int) -> None:
        """Remember where reading begins by hand; a seek past records that were read already is no beginning."""
        if not assigned.handed:
            self._starts[assigned.partition_id] = Start(offset, None)
        self._not_committed.pop(assigned.partition_id, None)

    def _commit_starts(self, connection: Connection) -> bool:
        """Have it committed where reading begins, before anything is read from there. Returns whether it may go on."""
        owned = {assigned.partition_id: assigned for assigned in self.assigned.values()}
        starts = {each: offset for each, offset in self._not_committed.items() if each in owned}
        if starts and self.commit_starts is not None and not self.commit_starts(connection, starts):
            for partition_id in starts:
                owned[partition_id].find_again()
            return False
        self._not_committed.clear()
        return True

    def _reset_time(self, assigned: Assigned) -> int:
        if assigned.time is not None:
            return assigned.time
        if assigned.new and assigned.place is not FetchState.OUT_OF_RANGE:
            return EARLIEST
        if self._config.auto_offset_reset == "none":
            raise errors.NoOffset(
                f"{assigned.topic_partition}: group {self._config.group!r} has no committed offset, and auto_offset_reset is"
                " none: seek, or set it to earliest or latest",
                at=assigned.topic_partition,
                group=self._config.group,
            )
        return EARLIEST if self._config.auto_offset_reset == "earliest" else LATEST


def _holds(answer: FetchedPartition, position: Position) -> bool:
    """Return whether the log that was asked holds this position."""
    return not answer.truncated and position.offset >= answer.log_start_offset


def readable_end(listed: ListedOffset, isolation: Isolation) -> int:
    """Return the found offset, or else the end that `isolation` may read."""
    if listed.offset is not None:
        return listed.offset
    return listed.last_stable_offset if isolation is Isolation.READ_COMMITTED else listed.log_end_offset
