"""Fixtures: Django's settings, made once for the process; the database is that of the test's module."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

import msgtx
from tests.databases import Connection, as_djangos
from tests.store.steps import unique

with contextlib.suppress(ModuleNotFoundError):  # each test says it: fixture `use`
    import django
    from django.conf import settings
    from django.db import connections

    if not settings.configured:
        settings.configure(
            INSTALLED_APPS=["msgtx.django"],
            DATABASES={"default": {"ENGINE": "django.db.backends.dummy"}},
            MSGTX={"database": "shop"},
            USE_TZ=True,
        )
        django.setup()


@dataclass
class Site:
    """A site: its database, a table of numbers, a topic."""

    url: str
    client: msgtx.Client
    outside: Connection
    topic: str = field(default_factory=lambda: unique("topic"))

    def insert(self, number: int) -> None:
        with connections["shop"].cursor() as cursor:
            cursor.execute("insert into orders (number) values (%s)", [number])

    def rows(self) -> list[int]:
        return [number for (number,) in self.outside.execute("select number from orders order by number").fetchall()]

    def values(self, topic: str | None = None) -> list[bytes | None]:
        return [record.value for record in self.client.read(self.client.snapshot([topic or self.topic]))]

    def send(self, *values: bytes) -> None:
        with self.client.producer() as producer:
            for value in values:
                producer.send(self.topic, value)

    @property
    def lag(self) -> int:
        return self.client.admin.groups.describe(self.topic).lag


@pytest.fixture
def use(database_url: str) -> Iterator[Callable[..., None]]:
    """Have Django use the module's database under the alias `shop`, with further settings."""
    import django  # noqa: F401 - it may be missing

    def call(**more: Any) -> None:
        connections.settings = connections.configure_settings(
            {"default": {"ENGINE": "django.db.backends.dummy"}, "shop": {**as_djangos(database_url), **more}}
        )
        if hasattr(connections._connections, "shop"):
            connections["shop"].close()
            del connections["shop"]

    call()
    yield call
    call()


@pytest.fixture
def site(use: object, database_url: str, client: msgtx.Client, connection: Connection) -> Site:
    connection.execute("drop table if exists orders")
    connection.execute("create table orders (number int unique deferrable initially deferred)")
    made = Site(database_url, client, connection)
    client.topics.create(made.topic)
    return made
