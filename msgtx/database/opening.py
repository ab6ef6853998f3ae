"""The engine of a program: of the database that it names, else of the embedded one."""

import os
import sys
from typing import Final

from msgtx.database import embedded
from msgtx.database.embedded.sheltered import Sheltered
from msgtx.database.pool import POOL_SIZE, Engine
from msgtx.database.standby import StandbyEngine
from msgtx.errors import ConfigError

VARIABLE: Final = "MSGTX_DATABASE_URL"
READ_VARIABLE: Final = "MSGTX_READ_URL"
EMBEDDED: Final = "MSGTX_EMBEDDED"
_told: set[str] = set()  # folders of which this process has said that it uses them


def open_engine(url: str | None = None, *, read_url: str | None = None, pool_size: int = POOL_SIZE) -> Engine:
    """Return an engine for a URL, else for `MSGTX_DATABASE_URL`, else for the embedded server, which this starts.

    `read_url`: of a standby that answers what only reads; if neither URL is given, `MSGTX_READ_URL` counts. The embedded
    server is named on stderr; `MSGTX_EMBEDDED` is quiet, or never. Raise `ConfigError` for a URL that is empty.
    """
    reads = os.environ.get(READ_VARIABLE) if read_url is None and url is None else read_url
    if reads is not None and not reads.strip():
        where = f"in {READ_VARIABLE}" if read_url is None else "that was given"
        raise ConfigError(f"the URL to read from {where} is empty: name a standby, or none", name="read_url")
    engine = _open_engine(url, pool_size)
    try:
        if reads is not None:
            engine.standby = StandbyEngine(reads, engine, pool_size=pool_size)
    except BaseException:
        engine.close()
        raise
    return engine


def _open_engine(url: str | None, pool_size: int) -> Engine:
    given = os.environ.get(VARIABLE) if url is None else url
    if given is not None:
        if not given.strip():
            where = f"in {VARIABLE}" if url is None else "that was given"
            raise ConfigError(
                f"the database URL {where} is empty: name a database, or none for an embedded PostgreSQL", name="url"
            )
        return Engine(given, pool_size=pool_size)
    how = os.environ.get(EMBEDDED, "")
    if how not in {"", "quiet", "never"}:
        raise ConfigError(f"{EMBEDDED} is quiet or never, not {how!r}", name="MSGTX_EMBEDDED")
    if how == "never":
        raise ConfigError(f"no database is named, and {EMBEDDED}=never: set {VARIABLE}, or give a URL", name="url")
    server = embedded.start()
    if how != "quiet" and str(server.home) not in _told and sys.stderr is not None:
        _told.add(str(server.home))
        did = "started" if server.started else "joined"
        sys.stderr.write(
            f"msgtx: no database is named ({VARIABLE}): {did} the embedded PostgreSQL in {server.home}"
            f" ({EMBEDDED}=quiet|never)\n"
        )
    return Engine(server.url, pool_size=pool_size, embedded=True, connect=Sheltered.connect)
