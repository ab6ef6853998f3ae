"""The records that a share consumer has acquired and not handed out."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from msgtx import errors
from msgtx.receiving.deserializers import Deserializers, failed
from msgtx.shares.holdings import Holdings
from msgtx.store.shares.answers import OffsetRange
from msgtx.types import Acknowledgement, ShareRecord


@dataclass(slots=True)
class WaitingRow:
    """Records of one row of the log that were acquired and not handed out. `until`: of `time.monotonic`."""

    records: list[ShareRecord]
    offsets: Sequence[int]
    range: OffsetRange
    until: float
    lock_seconds: float
    deserialized: int = 0  # of the records, from the first one on

    def take(self, count: int) -> tuple[list[ShareRecord], Sequence[int], OffsetRange]:
        """Take the first ones, with the offsets that go with them: those in front, and of the last one those behind it."""
        self.deserialized -= min(count, self.deserialized)
        if count == len(self.records):
            taken = (self.records, self.offsets, self.range)
            self.records = []
            return taken
        upto = OffsetRange(self.range.partition_id, self.range.first, self.offsets[count - 1])
        taken = (self.records[:count], self.offsets[:count], upto)
        self.records, self.offsets = self.records[count:], self.offsets[count:]
        self.range = OffsetRange(self.range.partition_id, upto.last + 1, self.range.last)
        return taken


class Waiting:
    """Hands them out, which `holdings` notes. `handed_out`: what the last call has; `lock_seconds`: its shortest lock."""

    def __init__(self, holdings: Holdings, deserializers: Deserializers) -> None:
        self._holdings = holdings
        self._deserializers = deserializers
        self.rows: deque[WaitingRow] = deque()
        self.handed_out: list[OffsetRange] = []
        self.lock_seconds = 0.0  # the group's setting may change

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.rows)

    def drop_late(self, now: float) -> None:
        """Drop those in front whose locks have expired: others have them."""
        while self.rows and self.rows[0].until <= now:
            self.rows.popleft()

    def hand_out(self, most: int) -> list[ShareRecord]:
        """Hand out up to `most`. Raise `DeserializationError` of the first one; what is behind it waits on."""
        self.handed_out = []
        left, error = self._deserialize(most)
        if error is not None and left == 0:
            raise self._released(error) from error
        records: list[ShareRecord] = []
        while self.rows and left > 0:
            row = self.rows[0]
            taken, offsets, held = row.take(min(len(row.records), left))
            self._holdings.hold(taken, offsets, held, locked_until=row.until)
            self.lock_seconds = min(self.lock_seconds, row.lock_seconds) if records else row.lock_seconds
            self.handed_out.append(held)
            records += taken
            left -= len(taken)
            if not row.records:
                self.rows.popleft()
        return records

    def _released(self, error: Exception) -> errors.DeserializationError:
        """Release the first record with the next commit: nobody can answer for it. Return what to raise."""
        row = self.rows[0]
        (record,), offsets, held = row.take(1)
        if not row.records:
            self.rows.popleft()
        (key,) = self._holdings.hold([record], offsets, held, locked_until=row.until)
        self._holdings.answer(key, (Acknowledgement.RELEASE, f"the deserializer raised {error!r}", None))
        advice = "; it is released with the next commit, and a dead letter after delivery_count_limit deliveries"
        return failed(record, error, advice)

    def _deserialize(self, most: int) -> tuple[int, Exception | None]:
        """Deserialize what waits. Return how many records, up to `most`, can be handed out, and why not the next one."""
        if not self._deserializers.needed:
            return most, None
        count = 0
        for row in self.rows:
            for record in row.records[row.deserialized : most - count]:
                try:
                    self._deserializers.apply(record)
                except Exception as error:  # noqa: BLE001 - of the user's function, whatever it is; `hand_out` raises it
                    return count + row.deserialized, error
                row.deserialized += 1
            count += min(len(row.records), most - count)
        return count, None
