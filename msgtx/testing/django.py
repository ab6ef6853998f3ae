"""Django on the database of a test."""

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgtx.database import address
from msgtx.database.throwaway import NAMES_PREFIX

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

_inherited: "list[object]" = []  # of a fork: what is collected as garbage closes the parent's connection


def is_set_up() -> bool:
    """Return whether this process has Django with msgtx's database."""
    if "django.conf" not in sys.modules:
        return False
    from django.apps import apps
    from django.conf import settings

    if not (settings.configured and apps.ready):
        return False
    from django.db import connections

    from msgtx.django.database import alias

    name = alias()
    return name in connections and str(connections[name].vendor) == "postgresql"


def forget_connections() -> None:
    """Have a fork open connections of its own. Those of the parent stay open: they are used there."""
    if "django.conf" not in sys.modules:
        return
    from django.conf import settings
    from django.db import connections

    for connection in connections.all(initialized_only=True) if settings.configured else ():
        pools = getattr(connection, "_connection_pools", {})  # of Django 5.1 and later
        _inherited.extend((connection, pools.pop(connection.alias, None)))
        del connections[connection.alias]


@contextlib.contextmanager
def led_to(url: str) -> Iterator[None]:
    """Lead Django's database to `url` if it is one of the kit's: a test without `msgtx_django` keeps its connection."""
    with leading_to(url) if is_set_up() and _is_of_the_kit() else contextlib.nullcontext():
        yield


def _is_of_the_kit() -> bool:
    from django.db import connections

    from msgtx.django.database import alias

    return str(connections[alias()].settings_dict["NAME"]).startswith(NAMES_PREFIX)


@contextlib.contextmanager
def leading_to(url: str) -> "Iterator[BaseDatabaseWrapper]":
    """Lead Django's database, the one that MSGTX names, to `url`, in all threads. Yields this thread's connection."""
    from django.db import connections

    from msgtx.django.database import alias

    connection = connections[alias()]
    settings = connection.settings_dict  # one for the connections of all threads
    before = {**settings}
    _close(connection)
    settings.update(_as_djangos(url, before.get("OPTIONS") or {}))
    try:
        yield connection
    finally:
        _close(connection)
        settings.clear()
        settings.update(before)


def _close(connection: "BaseDatabaseWrapper") -> None:
    connection.close()
    connection.close_pool()


def _as_djangos(url: str, options: dict[str, object]) -> dict[str, object]:
    rest = address.parse(url)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    given = {name: rest.pop(parameter, "") for name, parameter in names.items()}
    kept = {name: value for name, value in options.items() if name not in {"service", "passfile"}}
    return {**given, "OPTIONS": {**kept, **rest}}
