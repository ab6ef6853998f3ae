"""Positions that users' sessions commit, and a consumer's way back after a rollback (internals: groups)."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgtx.consumer.fetcher import Fetcher
from msgtx.consumer.partition import Assigned
from msgtx.errors import IllegalState
from msgtx.rules.partition import Returned, ReturnedEvent
from msgtx.session.riding import Enlisted, Riding
from msgtx.store.groups.groups import OffsetRows
from msgtx.types import TopicPartition


class Ride:
    """Positions in one user's SQL transaction. It may end in another thread than the consumer's."""

    def __init__(
        self,
        rides: "Rides",
        enlistment: Enlisted,
        rows: OffsetRows,
        partitions: Iterable[Assigned],
        *,
        lost: ReturnedEvent,
    ) -> None:
        self.riding = Riding(rows, self)
        self.enlistment = weakref.ref(enlistment)
        self.places = [(assigned, assigned.moves) for assigned in partitions if assigned.handed]
        self.is_lost = False
        self._rides = rides
        self._lost = lost

    @property
    def undecided(self) -> bool:
        """Whether its session has neither committed nor rolled back, as far as anybody was told."""
        return not (self.is_lost or self.riding.committed)

    def lost(self) -> None:
        """Note a rollback of the session: its records were not processed, unless the consumer has rewound."""
        if self.is_lost:
            return
        for assigned, moves in self.places:
            if assigned.moves == moves:
                assigned.lost(self._lost)
        self._rides.some_lost = True
        if self.riding.written:
            self._rides.in_doubt()
        self.is_lost = True


class Rides:
    """Those of one consumer. `in_doubt` is called when a COMMIT was not answered, and may still be done; in any thread."""

    def __init__(self, fetcher: Fetcher, *, in_doubt: Callable[[], None]) -> None:
        self.fetcher = fetcher
        self.in_doubt = in_doubt
        self.some_lost = False
        self._open: list[Ride] = []

    def add(
        self,
        session: tuple[Any, Enlisted],
        rows: OffsetRows,
        *,
        lost: ReturnedEvent,
        refusal: str | None,
    ) -> Ride:
        """Have offsets ride in a session. Raise `IllegalState` while older ones of these partitions ride in another one."""
        connection, enlistment = session
        ids = {partition_id for _, partition_id in rows}
        partitions = [assigned for assigned in self.fetcher.assigned.values() if assigned.partition_id in ids]
        self._forget_ended()
        if any(ride.enlistment() is not enlistment for ride in self._waiting(partitions)):
            raise IllegalState(
                "what was handed out before waits for the commit of another session: commit that one first, or roll it back",
                reason="another session",
            )
        ride = Ride(self, enlistment, rows, partitions, lost=lost)
        ride.riding.refusal = refusal  # before the session has it: an interrupt may follow
        self._open.append(ride)
        enlistment.add(connection, ride.riding)
        return ride

    def ask(self) -> None:
        """Look which sessions have ended. It may ask the database, and is not for an event loop."""
        self._forget_ended()

    def require_not_overtaken(self) -> None:
        """Raise `IllegalState` if the consumer has returned more records since the rollback."""
        if overtaken := [assigned.topic_partition for assigned in self.fetcher.assigned.values() if assigned.overtaken]:
            raise IllegalState(
                f"the session that was to commit {_named(overtaken)} was rolled back, and more was handed out behind that:"
                " rewind() to read all of it again, or seek()",
                reason="rolled back",
            )

    def handed(self) -> list[Assigned]:
        """Return the partitions with returned records that no commit holds yet."""
        return [assigned for assigned in self.fetcher.assigned.values() if assigned.handed]

    def take_back(self, partitions: Iterable[Assigned]) -> None:
        """Have the next poll go back: the returned records of these could not ride."""
        for assigned in partitions:
            assigned.take_back()
        self.some_lost = True

    def look_back(self, group: str | None) -> list[Assigned]:
        """Return the partitions that must go back before anything is read: their batch was rolled back.

        Raise `IllegalState` where that is the caller's to do.
        """
        self._forget_ended()
        if not self.some_lost:
            return []
        undone = [assigned for assigned in self.fetcher.assigned.values() if assigned.undone]
        self.some_lost = bool(undone)
        if self._waiting(undone):
            raise IllegalState(
                f"group {group!r}: a part of what the session was to commit was rolled back, the rest is not committed yet:"
                " commit the session, or roll it back, then read on",
                group=group,
                reason="partly rolled back",
            )
        if asked := [assigned.topic_partition for assigned in undone if assigned.returned is Returned.ASKS]:
            raise IllegalState(
                f"group {group!r}: the session that was to commit {_named(asked)} was rolled back, and reading on would skip"
                " what was handed out: rewind() to read it again, or seek()",
                group=group,
                reason="rolled back",
            )
        return undone

    def _waiting(self, partitions: Iterable[Assigned]) -> list[Ride]:
        wanted = {id(assigned) for assigned in partitions}
        return [ride for ride in self._open if any(id(assigned) in wanted for assigned, _ in ride.places)]

    def _forget_ended(self) -> None:
        for ride in self._open:
            enlistment = ride.enlistment()
            ended = enlistment is None or not enlistment.is_open  # before it is asked whether it has committed
            if ended and ride.undecided:
                ride.lost()  # its session was left without an end, or nobody was told of it
        self._open = [ride for ride in self._open if ride.undecided]


def _named(partitions: Sequence[TopicPartition]) -> str:
    return ", ".join(map(str, partitions[:3])) + (f" and {len(partitions) - 3} more" if len(partitions) > 3 else "")
