"""The standby of `read_url`: whether it is one, whether it is ours, and whether it can be reached."""

from collections.abc import Iterator
from typing import Final

from msgtx.admin.doctor.findings import Look, data_of
from msgtx.database.calls import query
from msgtx.database.pool import IS_STANDBY, Engine
from msgtx.database.standby import BEHIND, OLD_TIMELINE, TAKES_WRITES, StandbyEngine
from msgtx.errors import DatabaseUnavailable, IncarnationChanged, MsgtxError
from msgtx.types import Finding, Level

NAME: Final = "read_url"


def reads(standby: Engine, look: Look) -> Iterator[Finding]:
    """Find an address to read from that leads to the primary, to another installation, or nowhere."""
    try:
        connection = standby.dedicated()  # asks who answers
    except IncarnationChanged as error:
        yield Finding(Level.PROBLEM, NAME, str(error), "set read_url to a standby of this database")
        return
    except DatabaseUnavailable as error:
        advice = "readers wait: " + {
            TAKES_WRITES: "make a standby of it (pg_rewind), or name another one",
            OLD_TIMELINE: "have it follow the primary, or name another one",
            BEHIND: "name a standby of this database, or wait until it has replayed",
        }.get(error.reason or "", "start the standby, or name another one; target_session_attrs=prefer-standby names both")
        yield Finding(Level.PROBLEM, NAME, str(error), advice)
        return
    except MsgtxError as error:
        yield Finding(Level.PROBLEM, NAME, f"cannot be read from: {error}", "set read_url to a standby of this database")
        return
    with connection:
        if not look.server.in_recovery and query(connection, IS_STANDBY) == [(False,)]:
            text = "read_url leads to the primary: it is relieved of nothing"
            yield Finding(Level.WARNING, NAME, text, "name a standby, or leave read_url out")
        if isinstance(standby, StandbyEngine) and (found := standby.followed(connection)) is not None:
            begins = "" if found.begins is None else f", which begins at {found.begins}"
            if found.received is not None or found.is_past:
                yield Finding(
                    Level.WARNING,
                    NAME,
                    f"the standby has replayed to {found.replayed} and names timeline {found.received or found.control}; the"
                    f" primary writes timeline {found.timeline}{begins}",
                    "see whether it follows the primary: for minutes after a failover it may name the old one",
                    data_of(found),
                )
