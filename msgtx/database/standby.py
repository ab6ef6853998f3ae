"""A standby that answers what only reads: its connections, and the answers that it does not have yet.

It shows the database as it was some milliseconds ago, or long ago while its replay is paused. So it may refuse a name or an
offset that exists by now. The primary judges such a refusal.
"""

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from msgtx import errors
from msgtx.database.calls import query
from msgtx.database.connection import ANSWER_SECONDS, Connection, OnStandby, seconds_left
from msgtx.database.outages import Outages
from msgtx.database.pool import POOL_SIZE, Engine

Answer = TypeVar("Answer")
Found = TypeVar("Found")

log = logging.getLogger("msgtx.database")
BEHIND: Final = "standby behind"  # reasons of errors
TAKES_WRITES: Final = "another primary"
OLD_TIMELINE: Final = "old timeline"
# The same on a physical standby.
WHERE: Final = (
    "select s.system_identifier, d.oid::pg_catalog.int8 from pg_catalog.pg_control_system() s, pg_catalog.pg_database d"
    " where d.datname = pg_catalog.current_database()"
)
# Of a standby: the timeline of its control file, which may be minutes late; that of the WAL that it receives, null without
# pg_read_all_stats; how far it has replayed.
TIMELINES: Final = (
    "select greatest(c.timeline_id, r.min_recovery_end_timeline),"
    " (select w.received_tli from pg_catalog.pg_stat_wal_receiver w), pg_catalog.pg_last_wal_replay_lsn()::pg_catalog.text"
    " from pg_catalog.pg_control_checkpoint() c, pg_catalog.pg_control_recovery() r"
)
# Of the primary: where its timeline begins, null after a restart.
BEGINS: Final = (
    "select pg_catalog.pg_last_wal_replay_lsn()::pg_catalog.text,"
    " coalesce(%s::pg_catalog.pg_lsn > pg_catalog.pg_last_wal_replay_lsn(), false)"
)
PAUSE_SECONDS: Final = 0.01  # between two looks at a standby that is behind, then twice as long each time
MOST_PAUSE_SECONDS: Final = 0.5
# For so long the primary may lack a record of the standby: a COMMIT is flushed and replayed before the primary shows it, and
# the primary may wait for a synchronous standby in between.
LACK_SECONDS: Final = 10.0
WARN_SECONDS: Final = 5.0  # before the log says that a caller waits for the standby
# The refusals of what a standby may only not show yet.
_MAY_COME: Final = (errors.UnknownTopicOrPartition, errors.GroupNotFound, errors.LogTruncated, errors.AuthorizationFailed)


@dataclass(frozen=True, slots=True)
class Followed:
    """A standby whose timeline seems to be lower than the primary's."""

    timeline: int  # of the primary
    control: int  # of the standby's control file
    received: int | None  # of the WAL that it receives; None: it receives none, or does not show that to the role
    replayed: str | None
    begins: str | None  # the primary's timeline; None: the primary was started again since
    is_past: bool  # whether it has replayed more, of whichever timeline

    @property
    def is_old(self) -> bool:
        """Whether it shows what the primary never had."""
        return self.is_past and self.received is not None


class StandbyEngine(Engine):
    """Connections to a standby of a client's database. `primary`: the engine for all other calls.

    Calls are not sent to the primary instead while the standby is away. An address with both hosts and
    `target_session_attrs=prefer-standby` does that.
    """

    def __init__(self, url: str, primary: Engine, *, pool_size: int = POOL_SIZE) -> None:
        super().__init__(url, pool_size=pool_size, connect=OnStandby.connect)
        self.outages = Outages("read_url")
        self._primary = primary
        self._place: list[tuple[object, ...]] | None = None  # of the primary

    @property
    def incarnation(self) -> uuid.UUID | None:
        """That of the primary."""
        return self._primary.incarnation

    @property
    def failed_over(self) -> errors.FailedOver | None:
        """That of the primary."""
        return self._primary.failed_over

    def is_current(self, connection: Connection) -> bool:
        """Return whether a connection leads to a standby that was not promoted since, or to the client's primary."""
        if isinstance(connection, OnStandby) and connection.began_in_recovery:
            return not connection.is_promoted and connection.beside == self._primary.server
        return self._primary.is_current(connection)

    def ask_who_answers(self, connection: Connection) -> None:
        """Refuse another installation, and a primary that is not the client's own."""
        if isinstance(connection, OnStandby):
            connection.began_in_recovery = connection.info.parameter_status("in_hot_standby") == "on"
        try:
            super().ask_who_answers(connection)
        except errors.AuthorizationFailed as error:
            self._primary.dedicated().close()  # asks the same
            raise errors.DatabaseUnavailable(
                f"the standby of read_url has not replayed the rights of this role: {error}", reason=BEHIND
            ) from error
        except errors.ConfigError as error:
            if error.reason != "no schema":
                raise
            raise errors.DatabaseUnavailable(
                f"read_url leads to a database without msgtx, or the standby has not replayed `msgtx db init`: {error}",
                reason=BEHIND,
            ) from error
        self._require_same_place(connection)
        if isinstance(connection, OnStandby):
            if connection.began_in_recovery and self._primary.server is None:
                self._primary.dedicated().close()  # asks
            connection.beside = self._primary.server  # it may move while the standby is judged
        if (found := self.followed(connection)) is not None and found.is_old:
            raise errors.DatabaseUnavailable(
                f"read_url leads to a standby of an old primary: it receives WAL of timeline {found.received} and has"
                f" replayed to {found.replayed}; timeline {found.timeline} of the primary begins at {found.begins}: make it"
                " a standby of the primary (pg_rewind)",
                reason=OLD_TIMELINE,
            )

    def followed(self, connection: Connection) -> Followed | None:
        """Return the timelines of a standby that are lower than the primary's; None: none is, or nobody says so."""
        if not (isinstance(connection, OnStandby) and connection.began_in_recovery):
            return None
        if (server := connection.beside) is None:
            return None
        try:
            ((control, received, replayed),) = query(connection, TIMELINES)
            if (control if received is None else received) >= server[1]:
                return None
            with self._primary.connection() as primary:
                ((begins, is_past),) = query(primary, BEGINS, replayed)
        except errors.AuthorizationFailed:  # some services do not show it
            return None
        return Followed(server[1], control, received, replayed, begins, is_past)

    def _require_same_place(self, connection: Connection) -> None:
        """Refuse a copy, which has the incarnation of the original. Some services do not show where a database is."""
        try:
            found = query(connection, WHERE)
            if found != self._place:
                with self._primary.connection() as primary:
                    self._place = query(primary, WHERE)
        except errors.AuthorizationFailed:
            return
        if found != self._place:
            raise errors.ConfigError(
                "read_url leads to a copy of the database, or to a logical replica: name a physical standby",
                name="read_url",
                reason="another database",
            )

    def of_another(self, found: uuid.UUID | None, expected: uuid.UUID | None) -> errors.IncarnationChanged:
        """Return the error for a connection that has led to another incarnation."""
        return errors.IncarnationChanged(
            f"read_url leads to incarnation {found}, the primary has {expected}: name a standby of this database, or wait"
            " until it has replayed `msgtx db after-failover`"
        )

    def _require_newest(self, connection: Connection, place: tuple[int, int], *, is_synchronous: bool) -> None:
        """Refuse a server that takes writes, except the primary: its log is another one by now."""
        if self._primary.server not in {None, place}:
            self._primary.dedicated().close()  # asks: a failover may be younger than our last connection
        if self._primary.server not in {None, place}:
            raise errors.DatabaseUnavailable(
                "read_url leads to a server that was promoted and is not the primary: make it a standby again (pg_rewind)",
                reason=TAKES_WRITES,
            )
        if isinstance(connection, OnStandby):
            connection.server = place


def read_again(engine: Engine, attempt: Callable[[Connection], Answer]) -> Answer:
    """Return the answer of `engine` to what only reads.

    Replay may end a connection whose statement it cannot cancel. Then it is asked once more, on another connection.
    """
    may_repeat = isinstance(engine, StandbyEngine)
    while True:
        try:
            with engine.connection() as connection:
                return attempt(connection)
        except errors.DatabaseUnavailable as error:
            if not may_repeat or error.reason is not None:
                raise
            may_repeat = False


def first_found(engine: Engine, look: Callable[[Engine], Sequence[Found]]) -> Sequence[Found]:
    """Look on the standby, and if nothing is found there, on the primary, which may have newer rows."""
    try:
        found = look(engine.reading)
    except errors.AuthorizationFailed:  # a right may be newer, too
        if engine.standby is None:
            raise
        found = ()
    return found if found or engine.standby is None else look(engine)


def past_lack(engine: Engine, attempt: Callable[[], Answer]) -> Answer:
    """Ask the primary about records that were read on the standby.

    The primary may not show them yet, and refuse: then it is asked again, for `LACK_SECONDS` at most.
    """
    deadline, pause = time.monotonic() + min(LACK_SECONDS, seconds_left()), PAUSE_SECONDS
    while True:
        try:
            return attempt()
        except errors.LogTruncated:
            if engine.standby is None or time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
        pause = min(2 * pause, MOST_PAUSE_SECONDS)


def once_shown(engine: Engine, attempt: Callable[[Connection], Answer]) -> Answer:
    """Return the answer of the standby, or of the primary if no standby is named.

    A standby may refuse what it only does not show yet. If the primary does not refuse it, the standby is asked again. Raise
    `DatabaseUnavailable` if the standby is behind for too long.
    """
    began = time.monotonic()
    deadline = began + min(ANSWER_SECONDS, seconds_left())
    pause, asked, told = PAUSE_SECONDS, False, False
    while True:
        try:
            return read_again(engine.reading, attempt)
        except (*_MAY_COME, errors.DatabaseUnavailable) as error:
            if engine.standby is None or (isinstance(error, errors.DatabaseUnavailable) and error.reason != BEHIND):
                raise
            refusal = error
        if not asked:
            with engine.connection() as connection:
                attempt(connection)
            asked = True
        now = time.monotonic()
        if now + pause > deadline:
            raise errors.DatabaseUnavailable(
                f"the standby of read_url does not show yet what the primary has: {refusal}", reason=BEHIND
            ) from refusal
        if not told and now >= began + WARN_SECONDS:
            told = True
            log.warning("waiting for the standby of read_url, which is behind the primary: %s", refusal)
        time.sleep(pause)
        pause = min(2 * pause, MOST_PAUSE_SECONDS)
