"""System checks: the database that MSGTX names can hold msgtx, and does."""

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from msgtx import errors
from msgtx.django.database import alias, client


def check_database(**_: Any) -> list[CheckMessage]:
    """Check that the alias is one of PostgreSQL's, with psycopg 3. It is not connected to."""
    try:
        name = alias()
    except ImproperlyConfigured as error:
        return [Error(str(error), id="msgtx.E001")]
    if name not in connections.settings:
        return [Error(f"MSGTX names the database {name!r}, which DATABASES does not have", id="msgtx.E002")]
    if connections[name].vendor != "postgresql":
        hint = "Name the alias of a PostgreSQL database in MSGTX = {'database': …}."
        return [Error(f"msgtx needs PostgreSQL, and the database {name!r} is another one", hint=hint, id="msgtx.E003")]
    if connections[name].Database.__name__ != "psycopg":
        return [Error(f"msgtx needs psycopg 3 for the database {name!r}", hint="pip install psycopg", id="msgtx.E004")]
    return []


def check_schema(*, databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Check that the database has msgtx's schema, in the version of this package (`check --database`, `migrate`)."""
    if check_database() or alias() not in (databases or ()):
        return []
    try:
        client().close()
    except errors.ConfigError as error:
        return [Error(str(error), id="msgtx.E005")]
    except errors.DatabaseUnavailable:
        return []  # Django itself says so
    return []
