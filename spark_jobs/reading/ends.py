"""How far a micro-batch reads: to a consistent cut, below a limit if there is one, and never stuck.

A cut of whole transactions may stand still: where transactions of several producers overlap without a pause, every end
divides one of them, and a transaction larger than a limit has no end below the limit. So whole transactions are
preferred for a while (`cut_delay_ms`); after that the stream reads as far as is committed, as Kafka's source does at
once.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from msgtx import units
from msgtx.declared.spark import CUT_DELAY
from msgtx.rules.boundary import Span, lowered
from msgtx.rules.ranges import PartitionRange, limit

CUT_DELAY_MS: Final = units.milliseconds("cut_delay_ms", CUT_DELAY)
# A transaction is kept whole if it fits into this many times `maxOffsetsPerTrigger`. A limit is set to avoid long
# batches; a batch of eight times the time is bearable once, and the documents advise a limit of twice the largest
# transaction.
LIMIT_FACTORS: Final = (1, 2, 4, 8)

Spans = Callable[[Mapping[int, int], Mapping[int, int]], Sequence[Span]]


@dataclass(slots=True)
class Ends:
    """Choose the ends of a stream's micro-batches, one after the other. `spans`: asks for transactions between offsets."""

    spans: Spans
    delay_ms: int = CUT_DELAY_MS
    clock: Callable[[], float] = time.monotonic
    _waiting: dict[int, float] = field(default_factory=dict)  # since when there is something that no batch has taken

    def choose(self, ranges: Sequence[PartitionRange], stable: Mapping[int, int], most: int | None) -> list[PartitionRange]:
        """Return the ranges of the next batch, empty ones as well.

        `ranges`: from where the last one ended to a consistent cut; `stable`: the last stable offsets, by partition id.
        """
        now = self.clock()
        waiting = [self._waiting[each.partition_id] for each in ranges if each.partition_id in self._waiting]
        if any((now - since) * 1_000 >= self.delay_ms for since in waiting):
            whole = [replace(each, end=max(each.end, stable.get(each.partition_id, 0))) for each in ranges]
            chosen = whole if most is None else limit(whole, most)
        else:
            chosen = list(ranges) if most is None else self._limited(ranges, most)
        for each in chosen:
            if each.size == 0 and stable.get(each.partition_id, 0) > each.start:
                self._waiting.setdefault(each.partition_id, now)
            else:
                self._waiting.pop(each.partition_id, None)
        return chosen

    def _limited(self, ranges: Sequence[PartitionRange], most: int) -> list[PartitionRange]:
        """Return the fronts of ranges with about so many offsets, ended between transactions."""
        starts = {each.partition_id: each.start for each in ranges}
        total = sum(each.size for each in ranges)
        for factor in LIMIT_FACTORS:
            if total <= most * factor:
                return list(ranges)  # they end at a consistent cut
            front = limit(ranges, most * factor)
            ends = {each.partition_id: each.end for each in front}
            found = lowered(starts, ends, self.spans(starts, ends))
            if found != starts:
                return [replace(each, end=found[each.partition_id]) for each in front]
        return limit(ranges, most)
