"""What a share group knows of one partition, record by record, as it must be (I17). Never imports msgtx.

Written from the promise, not from the code (internals: shares). Every change returns another one. What time, members and
transactions make of a delivery is derived when it is asked for; what is written stays, whatever the clock does then.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

AVAILABLE, ACQUIRED, PENDING, REJECTED = "available", "acquired", "pending", "rejected"
ACCEPT, RELEASE, REJECT, RENEW = "accept", "release", "reject", "renew"
INVALID_STATE, CONFLICT = "InvalidRecordState", "TransactionConflict"
LOCK_MS, LIMIT = 5_000, 3  # settings of the groups here

Transaction = tuple[int, int, int]
Letter = tuple[int, int, int, bool]  # partition, offset, deliveries, whether it was rejected


@dataclass(frozen=True, slots=True)
class Delivery:
    """A record that was delivered, and is neither accepted nor dead: how often, and who has it."""

    count: int
    status: str = AVAILABLE
    member: int = -1
    call: int = -1
    until: int = 0
    transaction: Transaction | None = None  # in which it was answered
    answer: str = ""

    @property
    def is_dying(self) -> bool:
        return self.status == REJECTED or (self.status == AVAILABLE and self.count >= LIMIT)


@dataclass(frozen=True, slots=True)
class Deliveries:
    """From `start` on. `done`: accepted, or a dead letter."""

    start: int = 0
    flight: Mapping[int, Delivery] = field(default_factory=dict)
    done: frozenset[int] = frozenset()

    def now(self, now: int, living: Collection[int], outcome: Callable[[Transaction], str]) -> "Deliveries":
        """Return what holds at this moment."""
        flight, done = {}, set(self.done)
        for offset, one in self.flight.items():
            ended = outcome(one.transaction) if one.transaction is not None else ""
            if (one.status == ACQUIRED and (one.until <= now or one.member not in living)) or ended == "ABORT":
                flight[offset] = Delivery(one.count)
            elif ended == "COMMIT" and one.answer == ACCEPT:
                done.add(offset)
            elif ended == "COMMIT":
                flight[offset] = Delivery(one.count, REJECTED if one.answer == REJECT else AVAILABLE)
            else:
                flight[offset] = one
        return replace(self, flight=flight, done=frozenset(done))

    def refusal(self, offset: int, member: int) -> str | None:
        """Why this answer is not taken; None: it is."""
        one = self.flight.get(offset, Delivery(0))
        if one.status == PENDING:
            return CONFLICT
        return None if one.status == ACQUIRED and one.member == member else INVALID_STATE

    def changed(self, deliveries: Mapping[int, Delivery]) -> "Deliveries":
        return replace(self, flight=dict(sorted({**self.flight, **deliveries}.items())))

    def finished(self, offsets: Iterable[int]) -> "Deliveries":
        gone = frozenset(offsets)
        flight = {offset: one for offset, one in self.flight.items() if offset not in gone}
        return replace(self, flight=flight, done=self.done | gone)

    def dying(self) -> list[int]:
        return [offset for offset, one in self.flight.items() if one.is_dying]

    def acquired(self, offsets: Iterable[int], member: int, call: int, now: int) -> "Deliveries":
        counts = {offset: self.flight[offset].count if offset in self.flight else 0 for offset in offsets}
        until = now + LOCK_MS
        return self.changed({at: Delivery(count + 1, ACQUIRED, member, call, until) for at, count in counts.items()})

    def misfit(self, fresh: Collection[int], found: Mapping[int, int], member: int, call: int) -> str | None:
        """Why these may not be delivered to this member by this call, by offset and count; None: they may."""
        for offset, count in found.items():
            one = self.flight.get(offset)
            if one is None and (offset not in fresh or count != 1):
                return f"{offset} is delivered, {count}"
            if one is not None and one.status == ACQUIRED and (one.member, one.call, one.count) != (member, call, count):
                return f"{offset} is held by {one}"
            if (
                one is not None
                and one.status != ACQUIRED
                and (one.status != AVAILABLE or one.is_dying or count != one.count + 1)
            ):
                return f"{offset} is {one}, delivered {count}"
        taken = sum(offset not in self.flight for offset in found)
        if set(sorted(fresh)[:taken]) != {offset for offset in found if offset not in self.flight}:
            return f"of {sorted(fresh)} some are passed: {sorted(found)}"
        return None
