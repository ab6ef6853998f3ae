"""The parts of both kinds of group members: their own id, the rhythm of heartbeats, and how to leave."""

import logging
import os
import platform
import time
import uuid
from collections.abc import Callable
from typing import Final

from msgtx.database.retry import retried
from msgtx.errors import MsgtxError

log = logging.getLogger("msgtx.consumer")
BEATS_OF_A_SESSION: Final = 3  # attempts at a heartbeat without an answer, before the session is over
MOST_LEAVES: Final = 3  # enough for a connection that broke; a close does not wait for a database that is away


def new_member_id() -> str:
    """Return an id that no other member has."""
    return f"{platform.node()}-{os.getpid()}-{uuid.uuid4()}"


def leave_at_last(leave: Callable[[], None], deadline: float, *, group: str, member_id: str) -> None:
    """Leave a group at the end, before `deadline`. If that fails, it is logged: the session ends by itself."""
    try:
        retried(leave, deadline=deadline, pause=0, attempts=MOST_LEAVES)
    except MsgtxError as error:
        log.warning("%s: %s could not leave, its session has to end: %s", group, member_id, error)


def seconds_until(deadline: float) -> float:
    """Return the seconds left until a time of `time.monotonic`."""
    return max(0.0, deadline - time.monotonic())
