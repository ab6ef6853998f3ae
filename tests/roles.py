"""Logins for tests of rights: made by the superuser, granted rights by the owner, gone at the end."""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any, Final

import sqlalchemy

from msgtx.database.pool import Engine
from msgtx.database.schema import rights
from msgtx.database.schema.privileges import Resource, Right
from tests.databases import Connection, Server, connect

PASSWORD: Final = "x"  # noqa: S105 - of roles that live as long as one test
_number = itertools.count(1)


class Roles:
    """Roles of one database. A right is written `produce:orders*`, or, if not of topics, `consume:group:billing*`."""

    def __init__(self, server: Server, url: str) -> None:
        self.server = server
        self.url = url
        self.owner = server.role
        self.made: list[str] = []

    def make(self, *granted: str, options: str = "login") -> str:
        """Make a role and grant it rights. Returns its name."""
        role = f"{self.owner}_{next(_number):06}"  # names sort as they are made, also behind _9
        self.sql(f"create role {role} {options} password '{PASSWORD}'")
        self.made.append(role)
        self.grant(role, *granted)
        return role

    def sql(self, statement: str) -> None:
        """Run a statement as the superuser."""
        with self.server.administrator(sqlalchemy.make_url(self.url).database) as administrator:
            administrator.execute(statement)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlalchemy.Connection]:
        """Open a SQL transaction as the owner."""
        with Engine(self.url, pool_size=1) as engine, engine.transaction() as connection:
            yield connection

    def grant(self, role: str, *granted: str) -> None:
        """Grant rights to a role."""
        with self.transaction() as connection:
            for right in granted:
                rights.grant(connection, role, **_read(right))

    def revoke(self, role: str, right: str) -> bool:
        """Take a right from a role."""
        with self.transaction() as connection:
            return rights.revoke(connection, role, **_read(right))

    def read(self) -> list[tuple[str, str, str, bool]]:
        """Return all rights, as their owner sees them."""
        with self.transaction() as connection:
            return [
                (row.role, str(row.can), row.name if row.resource == "topic" else f"{row.resource}:{row.name}", row.exists)
                for row in rights.read_rights(connection)
            ]

    def url_of(self, role: str) -> str:
        """Return the address of the database for a login."""
        return sqlalchemy.make_url(self.url).set(username=role, password=PASSWORD).render_as_string(hide_password=False)

    def connect(self, role: str) -> Connection:
        """Open a connection as a login; the caller closes it."""
        return connect(self.url_of(role))

    def drop(self) -> None:
        """Remove the roles and their grants."""
        self.sql("delete from msgtx.role_right")
        for role in self.made:
            self.sql(f"drop owned by {role}")
            self.sql(f"drop role {role}")


def _read(right: str) -> dict[str, Any]:
    can, _, name = right.partition(":")
    resource, _, rest = name.partition(":")
    if resource in (Resource.GROUP, Resource.TRANSACTIONAL_ID):
        return {"can": Right(can), "resource": Resource(resource), "topic": rest}
    return {"can": Right(can), "topic": name or "*"}


@contextlib.contextmanager
def open_roles(server: Server, url: str) -> Iterator[Roles]:
    """Make roles for a database; they are gone at the end."""
    roles = Roles(server, url)
    try:
        yield roles
    finally:
        roles.drop()


@contextlib.contextmanager
def consumer_and_others(server: Server, url: str, topic: str, group: str) -> Iterator[tuple[Connection, list[Connection]]]:
    """Sessions of a role that may consume this topic for this group; of one for another group; of one that may produce."""
    granted = (
        (f"consume:{topic}", f"consume:group:{group}"),
        ("consume:*", "consume:group:another"),
        ("produce:*",),
    )
    with open_roles(server, url) as roles, contextlib.ExitStack() as sessions:
        mine, *others = [sessions.enter_context(contextlib.closing(roles.connect(roles.make(*each)))) for each in granted]
        yield mine, others
