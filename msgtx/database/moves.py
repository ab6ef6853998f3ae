"""Moves of a database to another server or timeline: a failover, a switchover, a restore (decision 0176)."""

import logging


def tell_of_move(log: logging.Logger, seen: tuple[int, int], found: tuple[int, int], *, was_synchronous: bool) -> None:
    """Log that another primary answers; a warning if no synchronous standby confirmed the acknowledgements of the old one.

    `seen`, `found`: system identifier and timeline of the old and the new primary.
    """
    way = f"timeline {seen[1]} to {found[1]}" if seen[0] == found[0] else f"server {seen[0]} to {found[0]}"
    if was_synchronous:
        log.info("the database has moved from %s; a synchronous standby had confirmed all acknowledgements", way)
        return
    log.warning(
        "the database has moved from %s, and no synchronous standby had confirmed the last acknowledgements: records,"
        " commits and answers may be missing; if any are, run `msgtx db after-failover`",
        way,
    )
