"""The place of a share consumer in its group."""

import contextlib
import logging
import os
import platform
import threading
import time
from collections.abc import Sequence

import psycopg

from msgtx import errors
from msgtx.config import ShareConsumerConfig
from msgtx.consumer.membership import BEATS_OF_A_SESSION, leave_at_last, new_member_id
from msgtx.database.connection import until
from msgtx.database.pool import Engine
from msgtx.database.retry import retried
from msgtx.errors import MsgtxError
from msgtx.store.members import heartbeat, leave_group
from msgtx.store.shares import Membership, join_share_group, tidy

log = logging.getLogger("msgtx.consumer")


class ShareMember:
    """Joins, sends heartbeats, leaves."""

    def __init__(self, engine: Engine, config: ShareConsumerConfig, topics: Sequence[str]) -> None:
        self._engine = engine
        self._config = config
        self._topics = topics
        self._id = ""
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._joined: Membership | None = None
        self._unknown: Membership | None = None  # what the group said to a heartbeat

    @property
    def number(self) -> int | None:
        """By which the group knows this member; None: it is none (any more)."""
        joined = self._joined
        return None if joined is None or joined == self._unknown else joined.number

    def join(self) -> int:
        """Be a member. Return its number."""
        number = self.number
        if number is not None:
            return number
        if self._joined is not None:
            self.gone()
        self._id = self._id or new_member_id()

        def attempt() -> Membership:
            with self._engine.connection() as connection:
                return join_share_group(
                    connection,
                    self._config.group,
                    member_id=self._id,
                    client_host=platform.node(),
                    client_process=os.getpid(),
                    session_timeout_ms=self._config.session_timeout_ms,
                    topics=self._topics,
                )

        seconds = self._config.request_timeout_ms / 1000
        self._joined = retried(
            attempt, deadline=time.monotonic() + seconds, pause=self._config.retry_backoff_ms / 1000, silence=seconds
        )
        if self._thread is None:
            self._thread = threading.Thread(target=self._live, name="msgtx-share-heartbeat", daemon=True)
            self._thread.start()
        return self._joined.number

    def gone(self) -> None:
        """Note that the group does not know this member any more: the next `join` is another one's."""
        self._joined, self._id = None, ""

    def close(self) -> None:
        """Leave: what this member holds is available to others at once."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._id:  # also if only the answer to the join is missing
            leave_at_last(self._leave, self._config, f"share group {self._config.group!r}", self._id)
        self.gone()

    def _leave(self) -> None:
        with self._engine.connection() as connection:
            leave_group(connection, self._config.group, self._id)
            if self._joined is not None:
                with contextlib.suppress(MsgtxError):  # it has left: the sweep removes the rest
                    tidy(connection, self._joined)

    def _live(self) -> None:
        beats = 0
        while not self._over.wait(self._config.heartbeat_interval_ms / 1000):
            joined, member_id, beats = self._joined, self._id, beats + 1
            if joined is None or joined == self._unknown:
                continue
            try:
                ends = time.monotonic() + self._config.session_timeout_ms / 1000 / BEATS_OF_A_SESSION
                with until(ends), self._engine.connection() as connection:
                    heartbeat(
                        connection,
                        self._config.group,
                        member_number=joined.number,
                        member_id=member_id,
                        group_instance_id=None,
                        number=beats,
                    )
                    tidy(connection, joined)
            except errors.UnknownMember:
                self._unknown = joined
            except (MsgtxError, psycopg.Error) as error:
                log.debug("share group %r: no heartbeat: %s", self._config.group, error)
