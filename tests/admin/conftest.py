"""Roles for tests of rights."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.databases import Connection, Server
from tests.roles import Roles, open_roles
from tests.topics import topic  # noqa: F401 - a fixture


@dataclass(frozen=True)
class Realm:
    """The owner of a database, and logins that were granted some rights."""

    connection: Connection  # the owner's
    roles: Roles
    stack: contextlib.ExitStack

    def guest(self, *granted: str) -> Connection:
        """Connect as a new login with these rights."""
        return self.login(self.roles.make(*granted))

    def login(self, role: str) -> Connection:
        """Connect as a login; the connection is closed at the end."""
        return self.stack.enter_context(contextlib.closing(self.roles.connect(role)))


@pytest.fixture
def roles(server: Server, database_url: str) -> Iterator[Roles]:
    with open_roles(server, database_url) as made:
        yield made


@pytest.fixture
def realm(connection: Connection, roles: Roles) -> Iterator[Realm]:
    with contextlib.ExitStack() as stack:
        yield Realm(connection, roles, stack)
