"""The answers of a share consumer in a user's SQL transaction, whose commit is refused until they are all there."""

import contextlib
from collections.abc import Iterator
from typing import Final

import sqlalchemy

from msgtx import errors
from msgtx.session.answers import Answers
from msgtx.session.enlistment import Enlistment, Riding, UserSession, is_begun

OPEN: Final = "a block of share_consumer.batch(session) is open: leave it before the commit"


class ShareRide:
    """What keeps a session from its commit, as long as there is a `refusal`."""

    def __init__(self, refusal: str) -> None:
        self.riding = Riding({}, self, refusal)
        self.is_lost = False

    def lost(self) -> None:
        """Note that the session was rolled back."""
        self.is_lost = True


def begin(enlistment: tuple[sqlalchemy.Connection, Enlistment], refusal: str = OPEN) -> ShareRide:
    """Have a session refuse its commit."""
    connection, things = enlistment
    ride = ShareRide(refusal)
    things.add(connection, ride.riding)
    return ride


def is_whole(ride: ShareRide, session: UserSession) -> bool:
    """Let the session commit, unless it was rolled back. Raise `IllegalState` if it was, and is used again."""
    if not ride.is_lost:
        ride.riding.refusal = None
        return True
    if is_begun(session):
        raise errors.IllegalState(
            "the session was rolled back while its records were handled, and used again: what it then commits would come"
            " without their answers; raise an exception instead, or use a savepoint (session.begin_nested())",
            reason="rolled back",
        )
    return False


@contextlib.contextmanager
def refusing(
    enlistment: tuple[sqlalchemy.Connection, Enlistment], answers: Answers | None, refusal: str
) -> Iterator[ShareRide]:
    """Have answers ride in a session, which refuses its commit within the block."""
    ride = begin(enlistment, refusal)
    if answers is not None:
        connection, things = enlistment
        things.add(connection, answers)
    yield ride
    ride.riding.refusal = None
