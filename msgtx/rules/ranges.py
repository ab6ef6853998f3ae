"""Ranges of offsets: divided among tasks, and bounded for one batch. Source: Kafka's source of Spark.

`split` is its `KafkaOffsetRangeCalculator`, `limit` the `rateLimit` of its `KafkaMicroBatchStream`; proportions are of whole
numbers here, so that offsets above 2^53 are exact. `packed` has no model there: consumers are kept for each partition.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from msgtx.types import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """The offsets [start, end) of a partition, which has an id and a name."""

    partition_id: int
    topic: str
    partition: int
    start: int
    end: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition's name."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """How many offsets it holds: at least as many as records."""
        return max(self.end - self.start, 0)


def ordered(ranges: Iterable[PartitionRange]) -> list[PartitionRange]:
    """Return ranges by topic, partition and offset."""
    return sorted(ranges, key=lambda each: (each.topic, each.partition, each.start))


def split(
    ranges: Iterable[PartitionRange], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[PartitionRange]:
    """Return the ranges for tasks: none empty, none above `max_records` offsets, at least about `min_partitions`.

    Large ranges are divided in proportion to their size; small ones stay whole, and the others are divided as if those
    were not there. Rounding may give a few more or fewer than `min_partitions`, as with Kafka's source.
    """
    found = [each for each in ordered(ranges) if each.size > 0]
    if max_records is not None:
        found = [part for each in found for part in _divided(each, -(-each.size // max_records))]
    if min_partitions is None or len(found) >= min_partitions:
        return found
    total = sum(each.size for each in found)
    whole = [each for each in found if _parts(each.size, total, min_partitions) == 1]
    rest = total - sum(each.size for each in whole)
    left = max(min_partitions - len(whole), 1)
    kept = set(whole)
    return [part for each in found for part in _divided(each, 1 if each in kept else _parts(each.size, rest, left))]


def packed(ranges: Sequence[PartitionRange], *, at_least: int, most: int) -> list[tuple[PartitionRange, ...]]:
    """Return ranges by tasks, in order: small ones share one, of at most `most` offsets, while `at_least` are left."""
    share = -(-len(ranges) // max(at_least, 1))
    found: list[list[PartitionRange]] = []
    held = 0
    for each in ranges:
        if not found or len(found[-1]) >= share or held + each.size > most:
            found.append([])
            held = 0
        found[-1].append(each)
        held += each.size
    return [tuple(each) for each in found]


def _parts(size: int, total: int, wanted: int) -> int:
    return max((2 * size * wanted + total) // (2 * total), 1)  # rounded half up


def _divided(whole: PartitionRange, parts: int) -> list[PartitionRange]:
    found: list[PartitionRange] = []
    start = whole.start
    for left in range(parts, 0, -1):
        end = start + (whole.end - start) // left
        if end > start:
            found.append(replace(whole, start=start, end=end))
        start = end
    return found


def limit(ranges: Sequence[PartitionRange], most: int) -> list[PartitionRange]:
    """Return the fronts of ranges, together about `most` offsets, each in proportion to its range.

    A range that is not empty keeps one offset at least, so no partition waits forever. By these offsets the sum may exceed
    `most`. An end that was moved is below the last stable offset still, and may divide a transaction.
    """
    total = sum(each.size for each in ranges)
    if total <= most:
        return list(ranges)
    return [
        replace(each, end=each.start + min(max(each.size * most // total, 1), each.size)) if each.size else each
        for each in ranges
    ]
