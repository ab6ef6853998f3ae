"""The database of Django's that holds msgtx."""

from typing import Any

import psycopg
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from msgtx import client as clients

KNOWN = {"database"}


def alias() -> str:
    """Return the alias of the database: `MSGTX["database"]`, else "default". Raise `ImproperlyConfigured`."""
    given = getattr(settings, "MSGTX", {})
    if unknown := set(given) - KNOWN:
        raise ImproperlyConfigured(f"MSGTX has an unknown setting {min(unknown)!r}; known are {', '.join(sorted(KNOWN))}")
    return str(given.get("database", "default"))


def client(using: str | None = None, **options: Any) -> clients.Client:
    """Return a client of the database of an alias, by default the one that MSGTX names. `options`: of `msgtx.connect`."""
    parameters = connections[using or alias()].get_connection_params()
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    given = {name: value for name, value in parameters.items() if name in known and value not in {None, ""}}
    return clients.connect(psycopg.conninfo.make_conninfo("", **given), **options)
