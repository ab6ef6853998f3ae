"""Answers of a share group's members that a failover has lost: looked for before a member asks anything else."""

import threading
import time
from typing import Final, NamedTuple

from msgtx import errors
from msgtx.database.connection import Connection
from msgtx.store.shares.answers import Refused, last_share_call
from msgtx.store.shares.shares import Acknowledging, Acquiring
from msgtx.types import Acknowledgement

MOST_MEMBERS: Final = 1_000  # of one client and group: by then those that have left are forgotten


class _Last(NamedTuple):
    call_number: int
    server: tuple[int, int]  # system identifier and timeline of the primary that has acknowledged it
    member_number: int  # whose call it was: a member that joins again has another number
    may_be_removed: bool = False  # a sweep may have removed its row with the member


class AnswerLosses:
    """The last acknowledged answers of the members of one group in one client (decision 0180). For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[int, _Last] = {}  # by member number, the one that answered last at the end

    def acknowledged(self, connection: Connection, asked: Acquiring | Acknowledging, refused: list[Refused]) -> None:
        """Note that the answers of a call are stored. Another lock than the one before is nothing that could be lost."""
        server = connection.server
        if server is None or refused or all(each == Acknowledgement.RENEW.value for each in asked.answers.answers):
            return
        with self._lock:
            self._last.pop(asked.member_number, None)
            if len(self._last) >= MOST_MEMBERS:
                del self._last[next(iter(self._last))]
            self._last[asked.member_number] = _Last(asked.call_number, server, asked.member_number)

    def unknown(self, connection: Connection, member_number: int, *, session_until: float) -> None:
        """Note that the group does not know a member. `session_until`: before that its session cannot have ended.

        A new primary that does not know it before that has lost its join. Else a sweep may have removed the member.
        """
        with self._lock:
            last = self._last.get(member_number)
            is_lost = time.monotonic() < session_until and self._has_moved(connection, last)
            if last is not None and not is_lost:
                self._last[member_number] = last._replace(may_be_removed=True)

    def joins_again(self, old: int, new: int) -> None:
        """Have the member with the new number look for the answers of the old one."""
        with self._lock:
            if (last := self._last.pop(old, None)) is not None:
                self._last[new] = last

    def left(self, member_number: int) -> None:
        """Forget a member that has left: its rows are removed."""
        with self._lock:
            self._last.pop(member_number, None)

    def may_be_lost(self, connection: Connection, asked: Acquiring | Acknowledging) -> bool:
        """Return whether another primary has acknowledged this member's last answers."""
        return self._has_moved(connection, self._last.get(asked.member_number))

    @staticmethod
    def _has_moved(connection: Connection, last: _Last | None) -> bool:
        server = connection.server
        return last is not None and server is not None and last.server != server

    def look(self, connection: Connection, asked: Acquiring | Acknowledging) -> None:
        """Look in a new primary for a member's last answers. Raise `CommitsLost`, once."""
        last = self._last.get(asked.member_number)
        if last is None or not self._has_moved(connection, last):
            return
        found = last_share_call(connection, asked.group, last.member_number)
        with self._lock:
            self._last.pop(asked.member_number, None)
        if found < last.call_number and (found or not last.may_be_removed):
            raise errors.CommitsLost(
                f"share group {asked.group!r}: a failover has lost answers of this member (up to its call"
                f" {last.call_number}, the database has {found}): their records are delivered again, and may be counted as"
                " delivered for the first time. The next poll goes on",
                group=asked.group,
            )
