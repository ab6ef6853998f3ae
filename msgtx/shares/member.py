"""The place of a share consumer in its group."""

import contextlib
import itertools
import logging
import math
import os
import platform
import threading
import time
from collections.abc import Sequence

from msgtx import errors
from msgtx.background import BackgroundThread
from msgtx.config import ShareConsumerConfig
from msgtx.database.connection import LOOK_SECONDS, Connection, until
from msgtx.errors import MsgtxError
from msgtx.receiving.calls import Calls
from msgtx.receiving.leaving import BEATS_OF_A_SESSION, leave_at_last, new_member_id, seconds_until
from msgtx.shares.losses import AnswerLosses
from msgtx.store.groups.members import heartbeat, leave_group
from msgtx.store.shares.shares import ShareMembership, join_share_group, new_member_number, tidy

log = logging.getLogger("msgtx.consumer")


class ShareMember:
    """Joins, sends heartbeats, leaves."""

    def __init__(self, config: ShareConsumerConfig, calls: Calls, topics: Sequence[str], losses: AnswerLosses) -> None:
        self._calls = calls
        self._losses = losses
        self._config = config
        self._topics = topics
        self._id = ""
        self._number = 0  # of this id
        self._over = threading.Event()
        self._close_by = math.inf
        self._heart = BackgroundThread(
            "msgtx-share-heartbeat",
            self._live,
            what=f"the heartbeat of share group {config.group!r}",
            pause=config.retry_backoff_ms / 1000,
        )
        self._numbers = itertools.count(1)  # of heartbeats
        self._next_beat = 0.0
        self._heard_until = math.inf  # until then the group does not give this member up
        self._joined: ShareMembership | None = None
        self._unknown: ShareMembership | None = None  # the group's answer to a heartbeat

    @property
    def number(self) -> int | None:
        """By which the group knows this member; None: it is none (any more)."""
        joined = self._joined
        return None if joined is None or joined == self._unknown else joined.number

    def join(self) -> int:
        """Be a member. Return its number."""
        number = self.number
        if number is not None:
            self._heart.start()  # also if it has died
            return number
        if self._joined is not None:
            self.gone()
        if not self._id:
            old, self._id, self._number = self._number, new_member_id(), new_member_number()
            self._losses.joins_again(old, self._number)

        def join(connection: Connection) -> ShareMembership:
            return join_share_group(
                connection,
                self._config.group,
                member_id=self._id,
                client_host=platform.node(),
                client_process=os.getpid(),
                session_timeout_ms=self._config.session_timeout_ms,
                topics=self._topics,
                number=self._number,
            )

        asked = time.monotonic()
        self._joined = self._calls.asked(join)
        self._heard_until = asked + self._config.session_timeout_ms / 1000  # the join is its first heartbeat
        self._next_beat = asked + self._config.heartbeat_interval_ms / 1000
        self._heart.start()
        return self._joined.number

    @property
    def is_silent(self) -> bool:
        """Whether the group may have given this member up, as far as it knows: no heartbeat was answered for a session.

        Others may have its records then. No record is returned before `prove`.
        """
        return self.number is not None and time.monotonic() >= self._heard_until

    def prove(self) -> None:
        """Send a heartbeat in the caller's thread if the group has not heard of this member for a session.

        If the group gave it up, this is no member any more.
        """
        joined = self._joined
        if joined is None or not self.is_silent:
            return
        log.warning("share group %r: no heartbeat was answered for session_timeout_ms; asking it", self._config.group)

        def prove(connection: Connection) -> None:
            self._beat(connection, joined, self._id)
            if self.is_silent:
                raise errors.DatabaseUnavailable(
                    f"share group {self._config.group!r}: a heartbeat took longer than session_timeout_ms",
                    group=self._config.group,
                )

        self._calls.asked(prove)

    def gone(self) -> None:
        """Note that the group does not know this member any more: the next `join` is another one's."""
        if self._joined != self._unknown:  # else a failover may have lost it
            self._losses.left(self._number)
        self._joined, self._id = None, ""

    def close(self, deadline: float) -> None:
        """Leave for good: this member's records are available to others at once. `deadline`: as for `leave`."""
        self._close_by = deadline
        self._over.set()
        self._heart.stop()
        self._heart.join(seconds_until(deadline) + LOOK_SECONDS)
        self.leave(deadline)

    def leave(self, deadline: float) -> None:
        """Leave, and be another member after the next `join`. `deadline`: of `time.monotonic`."""
        if self._id:  # also if only the answer to the join is missing
            leave_at_last(self._leave, deadline, group=f"share group {self._config.group!r}", member_id=self._id)
        self.gone()

    def _leave(self) -> None:
        with self._calls.engine.connection() as connection:
            leave_group(connection, self._config.group, self._id, number=self._number)
            if self._joined is not None:
                with contextlib.suppress(MsgtxError):  # it has left: the sweep removes the rest
                    tidy(connection, self._joined)

    def _beat(self, connection: Connection, joined: ShareMembership, member_id: str) -> None:
        """Say that this member lives. If the group does not know it, it is none any more."""
        asked = time.monotonic()
        try:
            heartbeat(
                connection,
                self._config.group,
                member_number=joined.number,
                member_id=member_id,
                group_instance_id=None,
                number=next(self._numbers),
            )
        except errors.UnknownMember:
            self._losses.unknown(connection, joined.number, session_until=self._heard_until)
            self._unknown = joined
        else:
            if joined == self._joined:
                self._heard_until = asked + self._config.session_timeout_ms / 1000

    def _live(self) -> None:
        while not self._over.wait(seconds_until(self._next_beat)):
            begun, joined, member_id = time.monotonic(), self._joined, self._id
            if joined is not None and joined != self._unknown:
                with self._limited(begun), self._calls.engine.connection() as connection:
                    self._beat(connection, joined, member_id)
                    if joined != self._unknown:
                        tidy(connection, joined)
            # Not reached after a failure: the next one is due at once.
            self._next_beat = begun + self._config.heartbeat_interval_ms / 1000

    def _limited(self, begun: float) -> contextlib.AbstractContextManager[None]:
        limit = begun + self._config.session_timeout_ms / 1000 / BEATS_OF_A_SESSION
        return until(lambda: min(limit, self._close_by))
