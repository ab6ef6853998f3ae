"""The clock of a test's database."""

from datetime import timedelta

from msgtx import units
from msgtx.database.throwaway import set_clock
from msgtx.units import Duration


class Clock:
    """The database's clock, by which everything lasts: delays, retention, sessions, locks, transactions, deduplication."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ahead = timedelta()

    def move(self, by: Duration) -> None:
        """Move the clock on: '1h', a `timedelta`, a number of seconds. What is due by then is due now."""
        self._ahead += timedelta(seconds=units.seconds("by", by))
        set_clock(self._url, self._ahead)

    def reset(self) -> None:
        """Show the real time again."""
        self._ahead = timedelta()
        set_clock(self._url, None)
