"""Rights of roles on topics, in table `msgtx.role_right`: for the schema's owner to see and to change."""

import re
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, text

from msgtx.database import migrate, privileges
from msgtx.database.privileges import ALL_TOPICS, Right
from msgtx.errors import ConfigError

_PATTERN: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}|[a-zA-Z0-9._-]{0,249}\*")


@dataclass(frozen=True, slots=True)
class RoleRight:
    """What a role may do, and on which topics: a name, or a prefix with `*` at its end.

    `exists` is false when the role was dropped, even if another one of its name was made: it may nothing, and the next
    change or upgrade forgets this right.
    """

    role: str
    can: Right
    topic: str
    exists: bool


def read(connection: Connection) -> list[RoleRight]:
    """Return all rights, in order."""
    rows = connection.execute(text(RIGHTS)).all()
    return [RoleRight(role, Right(can), topic, exists) for role, can, topic, exists in rows]


def grant(connection: Connection, role: str, *, can: Right, topic: str = ALL_TOPICS) -> None:
    """Let a role do this to topics. Repeatable. Does not commit. Raise `ConfigError` if there is no such role."""
    _check_pattern(topic)
    migrate.lock(connection)
    _check_grantee(connection, role)
    connection.execute(text(FORGET), {"role": role})
    connection.execute(text(INSERT), {"role": role, "can": can.value, "topic": topic})
    privileges.bring(connection, role)


def revoke(connection: Connection, role: str, *, can: Right, topic: str = ALL_TOPICS) -> bool:
    """Take back what was granted with the same pattern; calls that begin later are refused. Returns whether it was there.

    Does not commit. Raise `ConfigError` if there is neither such a role nor a right of one that is gone.
    """
    _check_pattern(topic)
    migrate.lock(connection)
    found = connection.execute(text(DELETE), {"role": role, "can": can.value, "topic": topic}).rowcount > 0
    if connection.scalar(text(ROLE_EXISTS), {"role": role}):
        _check_grantee(connection, role)
        if found:
            privileges.bring(connection, role)
    elif not found:
        raise ConfigError(f"there is no role {role!r} in this PostgreSQL")
    return found


def _check_pattern(topic: str) -> None:
    if not _PATTERN.fullmatch(topic):
        raise ConfigError(f"{topic!r} is neither the name of a topic nor the beginning of one with * at its end")


def _check_grantee(connection: Connection, role: str) -> None:
    if not connection.scalar(text(ROLE_EXISTS), {"role": role}):
        raise ConfigError(f"there is no role {role!r} in this PostgreSQL: `create role` makes one")
    if connection.scalar(text(OWNS), {"role": role}):
        raise ConfigError(f"role {role!r} owns the schema, and may everything")


RIGHTS = """
    select r.role_name::text, r.can, r.topic_pattern, exists (
        select from pg_roles g where g.rolname = r.role_name and has_schema_privilege(g.oid, 'msgtx', 'USAGE'))
    from msgtx.role_right r order by r.role_name, r.can, r.topic_pattern"""
ROLE_EXISTS = "select exists (select from pg_roles where rolname::text = :role)"
# Of a function, too: taking from its owner what he gave himself would leave him without.
OWNS = """
    select exists (
        select from pg_roles g where g.rolname::text = :role and (
            g.oid in (select n.nspowner from pg_namespace n where n.nspname = 'msgtx')
            or g.oid in (select p.proowner from pg_proc p where p.pronamespace = to_regnamespace('msgtx'))))"""
# Rights of a predecessor with this name, which was dropped: see `privileges`.
FORGET = """
    delete from msgtx.role_right r
    where r.role_name::text = :role and not exists (
        select from pg_roles g where g.rolname = r.role_name and has_schema_privilege(g.oid, 'msgtx', 'USAGE'))"""
INSERT = """
    insert into msgtx.role_right (role_name, can, topic_pattern) values (:role, :can, :topic) on conflict do nothing"""
DELETE = "delete from msgtx.role_right where role_name::text = :role and can = :can and topic_pattern = :topic"
