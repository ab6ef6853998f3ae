"""The answers of a share consumer in a user's SQL transaction, whose commit is refused until they are all there."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from msgtx import errors
from msgtx.database.pool import Engine
from msgtx.receiving.sole_use import SoleUse
from msgtx.session.drivers import DriverEnlistment
from msgtx.session.enlistment import UserSession, enlist, is_begun
from msgtx.session.riding import Riding
from msgtx.shares.answering import Answering
from msgtx.types import ShareRecord

SHARE_BATCH_OPEN: Final = "a block of share_consumer.batch(session) is open: leave it before the commit"


class ShareRide:
    """What keeps a session from its commit, as long as there is a `refusal`."""

    def __init__(self, refusal: str) -> None:
        self.riding = Riding({}, self, refusal)
        self.is_lost = False

    def lost(self) -> None:
        """Note that the session was rolled back."""
        self.is_lost = True


@dataclass(frozen=True, slots=True)
class ShareRides:
    """Those of one consumer. A batch has three parts, so that an event loop can have each done where it may wait."""

    engine: Engine
    answering: Answering
    sole_use: SoleUse
    of_drivers: list[DriverEnlistment] = field(default_factory=list)  # which tell nobody how they end

    def ask(self) -> None:
        """Look which of them have ended. It may ask the database, and is not for an event loop."""
        if self.of_drivers:
            self.of_drivers[:] = [each for each in self.of_drivers if each.is_open]

    def commit(self, session: UserSession) -> None:
        """Have the session's commit bring the answers given so far; see `ShareConsumer.commit`."""
        with self.sole_use.call():
            self.answering.ready()
            connection, enlistment = enlist(session, self.engine)
            taken = self.answering.take(release=self.answering.holdings.implicit)
            if taken is not None:
                enlistment.add(connection, taken)
                if isinstance(enlistment, DriverEnlistment) and enlistment not in self.of_drivers:
                    self.of_drivers.append(enlistment)

    def begin(self, session: UserSession) -> ShareRide:
        """Have a session refuse its commit until `end` is called."""
        self.answering.ready()
        connection, enlistment = enlist(session, self.engine)
        ride = ShareRide(SHARE_BATCH_OPEN)
        enlistment.add(connection, ride.riding)
        return ride

    def end(self, session: UserSession, ride: ShareRide) -> None:
        """Have the session's commit bring the answers; after a rollback, have the records returned again.

        Raise `IllegalState` if the session was rolled back and is used again.
        """
        if not ride.is_lost:
            ride.riding.allow()
        if not ride.is_lost:
            self.commit(session)
        elif is_begun(session):
            raise errors.IllegalState(
                "the session was rolled back while its records were handled, and used again: what it then commits would"
                " come without their answers; raise an exception instead, or use a savepoint (session.begin_nested())",
                reason="rolled back",
            )
        else:
            self.answering.not_committed(release=True)

    def fail(self, ride: ShareRide | None) -> None:
        """Have the session refuse its commit for good, and the records returned again."""
        if ride is not None:
            ride.riding.refusal = "what its records lead to has failed: roll the session back"
        self.answering.not_committed(release=True)

    @contextlib.contextmanager
    def accepting(self, session: UserSession, records: Iterable[ShareRecord], refusal: str) -> Iterator[ShareRide]:
        """Have the session's commit accept these records (explicit mode); `refusal`: of a commit within the block.

        Whatever rolls the session back, they are held as before. Raise what `acknowledge` and `commit` raise.
        """
        self.answering.ready()
        connection, enlistment = enlist(session, self.engine)
        answers = self.answering.accepting(records)
        ride = ShareRide(refusal)
        enlistment.add(connection, ride.riding)
        if answers is not None:
            enlistment.add(connection, answers)
        yield ride
        ride.riding.allow()
