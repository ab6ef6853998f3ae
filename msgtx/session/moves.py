"""The log of a process says when the database of its own sessions has moved, which no client of msgtx watches."""

import logging
import uuid
import weakref
from typing import Any, Final

from msgtx.database.connection import RawConnection
from msgtx.database.moves import tell_of_move
from msgtx.store.operator.installation import ServerIdentity, identify_server

log = logging.getLogger("msgtx.session")


def look_for_move(driver: RawConnection, incarnation: uuid.UUID) -> None:
    """Ask the server of a new connection once who it is. Warn once of a move since earlier connections of this process."""
    if driver in _asked:
        return
    found = identify_server(driver)
    _asked.add(driver)  # not before: a call that is cancelled has told nothing
    if found is None:
        return
    key = (found.system_identifier, incarnation)
    seen = _seen.setdefault(key, found)
    if seen.timeline > found.timeline:
        log.warning(
            "a session is on timeline %d, and this process has been on timeline %d: its server is a primary of before a"
            " failover, and what it commits is lost; stop it, or make it a standby (pg_rewind)",
            found.timeline,
            seen.timeline,
        )
        return
    _seen[key] = found
    if seen.timeline < found.timeline:
        old, new = (found.system_identifier, seen.timeline), (found.system_identifier, found.timeline)
        tell_of_move(log, old, new, was_synchronous=seen.is_synchronous)


def is_behind(server: tuple[int, int] | None, incarnation: uuid.UUID | None) -> bool:
    """Return whether a session of this process has reached a later primary than this one (system identifier, timeline)."""
    if server is None or incarnation is None:
        return False
    seen = _seen.get((server[0], incarnation))
    return seen is not None and seen.timeline > server[1]


# By system identifier and incarnation: a copy of a database, which has the same identifier, is another place.
_seen: Final[dict[tuple[int, uuid.UUID], ServerIdentity]] = {}
_asked: "Final[weakref.WeakSet[Any]]" = weakref.WeakSet()
