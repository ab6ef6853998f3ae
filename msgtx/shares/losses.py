"""Answers of a share group's members that a failover has lost: looked for before a member asks anything else."""

from typing import Final, NamedTuple

from msgtx import errors
from msgtx.database.connection import RawConnection
from msgtx.store.shares.answers import Refused, last_share_call
from msgtx.store.shares.shares import Acknowledging, Acquiring
from msgtx.types import Acknowledgement

MOST_MEMBERS: Final = 1_000  # of one client and group: by then those that have left are forgotten


class _Last(NamedTuple):
    call_number: int
    server: tuple[int, int]  # system identifier and timeline of the primary that has acknowledged it


class AnswerLosses:
    """The last acknowledged answers of the members of one group in one client (decision 0180). For any thread."""

    def __init__(self) -> None:
        self._last: dict[int, _Last] = {}  # by member number

    def acknowledged(self, connection: RawConnection, asked: Acquiring | Acknowledging, refused: list[Refused]) -> None:
        """Note that the answers of a call are stored. Another lock than the one before is nothing that could be lost."""
        server = getattr(connection, "server", None)
        if server is None or refused or all(each == Acknowledgement.RENEW.value for each in asked.answers.answers):
            return
        if len(self._last) >= MOST_MEMBERS and asked.member_number not in self._last:
            self._last.pop(next(iter(self._last)), None)
        self._last[asked.member_number] = _Last(asked.call_number, server)

    def may_be_lost(self, connection: RawConnection, asked: Acquiring | Acknowledging) -> bool:
        """Return whether another primary has acknowledged this member's last answers."""
        last, server = self._last.get(asked.member_number), getattr(connection, "server", None)
        return last is not None and server is not None and last.server != server

    def look(self, connection: RawConnection, asked: Acquiring | Acknowledging) -> None:
        """Look in a new primary for a member's last answers. Raise `CommitsLost`, once."""
        if not self.may_be_lost(connection, asked):
            return
        last = self._last[asked.member_number]
        found = last_share_call(connection, asked.group, asked.member_number)
        self._last.pop(asked.member_number, None)
        if found < last.call_number:
            raise errors.CommitsLost(
                f"share group {asked.group!r}: a failover has lost answers of this member (up to its call"
                f" {last.call_number}, the database has {found}): their records are delivered again, and may be counted as"
                " delivered for the first time. The next poll goes on",
                group=asked.group,
            )
