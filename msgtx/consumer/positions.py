"""The positions of a consumer: looked up, moved, and compared with the log."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgtx import arguments, errors, units
from msgtx.config import ConsumerConfig
from msgtx.consumer.calls import ConsumerCalls
from msgtx.consumer.commits import Commits
from msgtx.consumer.fetcher import Fetcher, readable_end
from msgtx.consumer.partition import Assigned
from msgtx.errors import IllegalState
from msgtx.store.fetch.fetch import EARLIEST, LATEST, ListedOffset
from msgtx.store.fetch.holders import stable_ends, stable_offsets
from msgtx.store.fetch.records import count_records
from msgtx.types import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from msgtx.units import Duration


@dataclass(frozen=True, slots=True)
class Positions:
    """The positions of the partitions that a consumer reads."""

    config: ConsumerConfig
    calls: ConsumerCalls
    fetcher: Fetcher
    commits: Commits

    def known(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions that are found already."""
        return {tp: OffsetAndMetadata(at) for tp, a in self.fetcher.assigned.items() if (at := a.position) is not None}

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """See `Consumer.seek`."""
        partition = arguments.partition(partition)
        offset = arguments.whole(f"{partition}: an offset", offset)
        self.fetcher.seek(self._assigned_partition(partition), offset)

    def seek_to_time(self, timestamp: int, partitions: Iterable[TopicPartition] | None) -> None:
        """Go to the first record at or after a time, or to an end of the log (`EARLIEST`, `LATEST`)."""
        for assigned in [self._assigned_partition(partition) for partition in self._all_or(partitions)]:
            assigned.seek_to_time(timestamp)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """See `Consumer.pause`."""
        for assigned in [self._assigned_partition(partition) for partition in arguments.partitions(partitions)]:
            assigned.pause()

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """See `Consumer.resume`."""
        for assigned in [self._assigned_partition(partition) for partition in arguments.partitions(partitions)]:
            self.fetcher.resume(assigned)

    # ── where it stands ──

    def position(self, partition: TopicPartition) -> int:
        """See `Consumer.position`."""
        assigned = self._assigned_partition(arguments.partition(partition))
        self._find_positions([assigned])
        position = assigned.position
        assert position is not None
        return position

    def _find_positions(self, wanted: Iterable[Assigned]) -> None:
        """Find the positions of these, and wait for unstable ones. Raise `UnstableOffset` when time is over."""
        deadline = time.monotonic() + self.config.request_timeout_ms / 1000
        lacking = [assigned for assigned in wanted if assigned.position is None]
        while lacking:
            self.calls.asked(self.fetcher.find_positions)
            lacking = [assigned for assigned in lacking if assigned.position is None]
            if lacking:
                self._await_stable(lacking[0].topic_partition, deadline)

    def _await_stable(self, partition: TopicPartition, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise errors.UnstableOffset(
                f"group {self.config.group!r}: the offset of {partition} is part of an undecided transaction; if that is"
                " prepared (`msgtx transactions prepared`), its outside party has to decide it",
                group=self.config.group,
                at=partition,
            )
        time.sleep(min(left, self.config.retry_backoff_ms / 1000))

    def committed(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        require_stable: bool | None = None,
        timeout: Duration | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """See `Consumer.committed`."""
        group, asked = self.calls.group(), self._all_or(partitions)
        seconds = units.timeout(timeout)
        if require_stable is not None:
            require_stable = arguments.flag("require_stable", require_stable)
        wanted = {self.calls.partition_id(tp): tp for tp in asked}
        deadline = time.monotonic() + (self.config.request_timeout_ms / 1000 if seconds is None else seconds)
        self.commits.settle()
        while True:
            found, _ = self.calls.asked(lambda connection: stable_offsets(connection, group, list(wanted)))
            pending = [tp for partition_id, tp in wanted.items() if partition_id in found and found[partition_id].pending]
            if not pending or require_stable is False:
                return {tp: found[pid].at if pid in found else None for pid, tp in wanted.items()}
            self._await_stable(pending[0], deadline)

    def beginning_offsets(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """See `Consumer.beginning_offsets`."""
        return {tp: listed.log_start_offset for tp, listed in self._listed(self._all_or(partitions), EARLIEST).items()}

    def end_offsets(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """See `Consumer.end_offsets`."""
        listed = self._listed(self._all_or(partitions), LATEST)
        return {tp: readable_end(at, self.config.isolation) for tp, at in listed.items()}

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """See `Consumer.offsets_for_times`."""
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        wanted = {arguments.partition(each): as_time(time) for each, time in arguments.mapping("times", times).items()}
        for partition, timestamp in wanted.items():
            at = self._listed([partition], timestamp)[partition]
            known = at.offset is not None and at.timestamp is not None
            found[partition] = OffsetAndTimestamp(at.offset, at.timestamp) if known else None  # type: ignore[arg-type]
        return found

    def lag(self) -> dict[TopicPartition, int]:
        """See `Consumer.lag`."""
        self._find_positions(self.fetcher.assigned.values())
        positions = {a.partition_id: a.position or 0 for a in self.fetcher.assigned.values()}
        counted = self.calls.asked(lambda connection: count_records(connection, positions, self.config.isolation))
        return {tp: counted.get(a.partition_id, 0) for tp, a in self.fetcher.assigned.items()}

    def offset_lag(self) -> dict[TopicPartition, int]:
        """See `Consumer.offset_lag`."""
        ends = self.end_offsets()
        return {tp: end - self.position(tp) for tp, end in ends.items()}

    def _listed(self, partitions: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, ListedOffset]:
        named = list(partitions)
        for attempt in ("as it is known", "as it is now"):
            wanted = {self.calls.partition_id(tp): tp for tp in named}
            times = dict.fromkeys(wanted, timestamp)
            found = self.calls.asked(lambda connection: stable_ends(connection, times, self.config.isolation))  # noqa: B023 - at once
            missing = [tp for partition_id, tp in wanted.items() if partition_id not in found]
            if not missing:
                return {tp: found[partition_id] for partition_id, tp in wanted.items()}
            if attempt == "as it is known":
                self.calls.require_topics({tp.topic for tp in missing})
        raise errors.UnknownTopicOrPartition(f"{missing[0]} does not exist (any more)", at=missing[0])

    # ── the partitions ──

    def _assigned_partition(self, partition: TopicPartition) -> Assigned:
        try:
            return self.fetcher.assigned[partition]
        except KeyError:
            raise IllegalState(
                f"{partition} is not assigned to this consumer", at=partition, reason="not assigned"
            ) from None

    def _all_or(self, partitions: Iterable[TopicPartition] | None) -> list[TopicPartition]:
        return list(self.fetcher.assigned) if partitions is None else arguments.partitions(partitions)


def as_time(value: object) -> int:
    """Return a time in milliseconds. Raise `InvalidRequest` for another value."""
    return arguments.whole("a time in milliseconds since 1970 UTC", value)
