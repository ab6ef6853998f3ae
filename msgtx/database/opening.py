"""The engine that a program asks for: of the database that it names, else of the embedded one."""

import os

from msgtx.database import embedded
from msgtx.database.pool import POOL_SIZE, Engine


def open_engine(url: str | None = None, *, pool_size: int = POOL_SIZE) -> Engine:
    """Return an engine for a URL, else for that in `MSGTX_DATABASE_URL`, else for the embedded server, which it starts."""
    given = url or os.environ.get("MSGTX_DATABASE_URL")
    if given:
        return Engine(given, pool_size=pool_size)
    return Engine(embedded.start().url, pool_size=pool_size, embedded=True)
