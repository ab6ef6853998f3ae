"""The fetcher: the partitions of a consumer, what was fetched of each, and where each goes on. Kafka's fetcher."""

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from msgtx import errors
from msgtx.config import ConsumerConfig
from msgtx.database.engine import Engine, RawConnection
from msgtx.store.fetch import (
    EARLIEST,
    LATEST,
    FetchedBatch,
    FetchedPartition,
    ListedOffset,
    Position,
    fetch,
    list_offsets,
)
from msgtx.store.groups import committed_offsets
from msgtx.store.records import records_of
from msgtx.store.transactions import expire_transaction
from msgtx.types import Isolation, Record, TopicPartition

log = logging.getLogger("msgtx.consumer")
FETCH_BYTES: Final = 8 * 1024 * 1024  # of all partitions in one fetch, if fetch_max_bytes allows: enough to hide its cost


@dataclass(slots=True)
class Assigned:
    """One partition of this consumer: what is fetched next, and what was fetched and not yet handed out."""

    topic_partition: TopicPartition
    partition_id: int
    next: Position | None = None  # None: to be found from the group or by auto_offset_reset
    reset: int | None = None  # a time to look up instead: EARLIEST, LATEST, or milliseconds
    batches: deque[FetchedBatch] = field(default_factory=deque)
    handing_out: FetchedBatch | None = None
    records: list[Record] = field(default_factory=list)  # of `handing_out`
    at: int = 0  # of `records`, the next one to hand out
    skip_to: int = 0  # the offset where reading began, for a batch that begins before it
    paused: bool = False
    new: bool = False  # made since the consumer began: read from its beginning, whatever auto_offset_reset says
    handed: bool = False  # something was handed out that no commit holds yet, and no transaction's offsets

    @property
    def buffered(self) -> bool:
        """Whether something was fetched and not handed out."""
        return self.at < len(self.records) or bool(self.batches)

    @property
    def position(self) -> int | None:
        """The offset of the next record to be handed out; None: it has to be found first."""
        if self.at < len(self.records):
            return self.records[self.at].offset
        if self.batches:
            return max(self.batches[0].base_offset, self.skip_to)
        return None if self.next is None else self.next.offset

    @property
    def read_identity(self) -> str | None:
        """The identity of the row before the position, as it was fetched: by it a crash that took it back is noticed."""
        position = self.position
        if position is None or not self.buffered:
            return None if self.next is None else self.next.identity
        batch = self.handing_out if self.at < len(self.records) else self.batches[0]
        assert batch is not None
        return batch.identity_before(position)

    def forget(self) -> None:
        """Drop what was fetched and not handed out."""
        self.batches.clear()
        self.records = []
        self.at = 0

    def take(self, most: int) -> list[Record]:
        """Hand out records that were fetched."""
        while self.at >= len(self.records):
            if not self.batches:
                return []
            self._next_batch()
        taken = self.records[self.at : self.at + most] if self.at or most < len(self.records) else self.records
        self.at += len(taken)
        self.handed = self.handed or bool(taken)
        if self.at >= len(self.records):
            self.records = []
            self.at = 0
        return taken

    def one_by_one(self, most: int) -> Iterator[Record]:
        """Hand out up to `most` records, moving the position with each; a seek in between ends it."""
        while most > 0 and self.buffered:
            if self.at >= len(self.records):
                self._next_batch()
            records = self.records
            while most > 0 and self.records is records and self.at < len(records):
                self.at += 1
                self.handed = True
                most -= 1
                yield records[self.at - 1]

    def _next_batch(self) -> None:
        self.handing_out = self.batches.popleft()
        self.records, self.at = records_of(self.handing_out, self.topic_partition, self.skip_to), 0


class Fetcher:
    """Fetches for one consumer. `assigned`: its partitions, in the order in which they take turns."""

    def __init__(self, engine: Engine, config: ConsumerConfig) -> None:
        self._engine = engine
        self._config = config
        self.assigned: dict[TopicPartition, Assigned] = {}
        self._turn: deque[TopicPartition] = deque()

    def assign(self, partitions: Iterable[Assigned]) -> None:
        """Read these partitions and no others."""
        self.assigned = {partition.topic_partition: partition for partition in partitions}
        self._turn = deque(self.assigned)

    @property
    def ready(self) -> bool:
        """Whether something that was fetched can be handed out."""
        return any(assigned.buffered and not assigned.paused for assigned in self.assigned.values())

    def in_turn(self) -> list[Assigned]:
        """Return the partitions, another one first each time."""
        self._turn.rotate(-1)
        return [self.assigned[partition] for partition in self._turn]

    def take(self, most: int) -> list[Record]:
        """Hand out up to `most` records that were fetched, partition by partition."""
        taken: list[Record] = []
        for _ in range(len(self._turn)):
            assigned = self.assigned[self._turn[0]]
            if not assigned.paused:
                while len(taken) < most and (records := assigned.take(most - len(taken))):
                    taken = taken + records if taken else records
            if len(taken) >= most:
                break
            self._turn.rotate(-1)
        return taken

    def fetch(self) -> bool:
        """Fetch what is not paused and has nothing buffered. Returns whether any position moved."""
        with self._engine.connection() as connection:
            self.find_positions(connection)
            wanted = {a.partition_id: a for a in self.assigned.values() if not a.paused and not a.buffered}
            if not wanted:
                return False
            positions = {partition_id: a.next for partition_id, a in wanted.items() if a.next is not None}
            total = min(self._config.fetch_max_bytes, FETCH_BYTES)
            answers = fetch(
                connection,
                positions,
                isolation=self._config.isolation,
                max_bytes=max(1, total // len(positions)),
            )
            progress = False
            for partition_id, assigned in wanted.items():
                answer = answers.get(partition_id)
                if answer is None:
                    raise errors.UnknownTopicOrPartition(f"{assigned.topic_partition} does not exist (any more)")
                progress = self._fetched(assigned, answer) or progress
            if not progress:
                for answer in answers.values():
                    if answer.blocked_by is not None and answer.blocked_overdue:
                        progress = expire_transaction(connection, answer.blocked_by) or progress
            return progress

    def _fetched(self, assigned: Assigned, answer: FetchedPartition) -> bool:
        assert assigned.next is not None
        before = assigned.next
        if answer.truncated:
            if before.token is None:
                return self._out_of_range(assigned, answer)
            raise errors.LogTruncated(
                f"{assigned.topic_partition}: what was read before offset {before.offset} is no longer in the log, which"
                f" ends at {answer.log_end_offset}: a crash of the server took it back; seek to where you want to go on"
            )
        if before.offset < answer.log_start_offset:
            return self._out_of_range(assigned, answer)
        assigned.batches.extend(answer.batches)
        assigned.skip_to = before.offset
        assigned.next = Position(answer.position, answer.token)
        return answer.position > before.offset

    def _out_of_range(self, assigned: Assigned, answer: FetchedPartition) -> bool:
        assert assigned.next is not None
        if self._config.auto_offset_reset == "none":
            raise errors.OffsetOutOfRange(
                f"{assigned.topic_partition}: offset {assigned.next.offset} is not in the log, which goes from"
                f" {answer.log_start_offset} to {answer.log_end_offset}"
            )
        log.warning(
            "%s: offset %s is out of range, going to %s",
            assigned.topic_partition,
            assigned.next.offset,
            self._config.auto_offset_reset,
        )
        assigned.next = None
        assigned.reset = EARLIEST if self._config.auto_offset_reset == "earliest" else LATEST
        return True

    def find_positions(self, connection: RawConnection) -> None:
        """Find where partitions begin that have no position: a seek by time, the group's offset, or `auto_offset_reset`."""
        unknown = [a for a in self.assigned.values() if a.next is None]
        if not unknown:
            return
        if self._config.group is not None:
            asked = [a.partition_id for a in unknown if a.reset is None]
            found = committed_offsets(connection, self._config.group, asked) if asked else {}
            for assigned in unknown:
                at = found.get(assigned.partition_id)
                if assigned.reset is None and at is not None and at.at is not None:
                    assigned.next = Position(at.at.offset)
        times: dict[int, int] = {}
        for assigned in unknown:
            if assigned.next is None:
                times[assigned.partition_id] = self._reset_time(assigned)
        if not times:
            return
        ends = list_offsets(connection, times, self._config.isolation)
        for assigned in unknown:
            if assigned.next is None:
                end = ends.get(assigned.partition_id)
                if end is None:
                    raise errors.UnknownTopicOrPartition(f"{assigned.topic_partition} does not exist (any more)")
                assigned.next, assigned.reset = Position(readable(end, self._config.isolation)), None

    def _reset_time(self, assigned: Assigned) -> int:
        if assigned.reset is not None:
            return assigned.reset
        if assigned.new:
            return EARLIEST
        if self._config.auto_offset_reset == "none":
            raise errors.NoOffset(
                f"{assigned.topic_partition}: group {self._config.group!r} has no committed offset, and auto_offset_reset is"
                " none: seek, or set it to earliest or latest"
            )
        return EARLIEST if self._config.auto_offset_reset == "earliest" else LATEST


def readable(listed: ListedOffset, isolation: Isolation) -> int:
    """Return the offset that was found, or else the end that `isolation` may read."""
    if listed.offset is not None:
        return listed.offset
    return listed.last_stable_offset if isolation is Isolation.READ_COMMITTED else listed.log_end_offset
