"""Rights of roles, in table `msgtx.role_right`: for the schema's owner to see and to change.

On topics a role has the rights that it was granted. Consumer groups and transactional ids are open to all roles that
may consume or produce, until a grant names them: then only the granted roles may use them. A role with a grant of any
group may use only its granted groups; so with transactional ids.
"""

import re
from typing import Final, assert_never

from sqlalchemy import Connection, text

from msgtx.database.schema import migrate, privileges
from msgtx.database.schema.privileges import ALL_TOPICS, Resource, Right
from msgtx.errors import ConfigError
from msgtx.types import RoleRight

_TOPICS: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}|[a-zA-Z0-9._-]{0,249}\*")
_NAMES: Final = re.compile(r"[^*\x00]{0,249}\*|[^*\x00]{1,249}")
# The right with which a group or an id is used. To end others' transactions, or change others' groups, is to administer
# every topic.
_USED_WITH: Final = {Resource.GROUP: Right.CONSUME, Resource.TRANSACTIONAL_ID: Right.PRODUCE}


def read_rights(connection: Connection) -> list[RoleRight]:
    """Return all rights, in order."""
    rows = connection.execute(text(RIGHTS)).all()
    return [RoleRight(role, Right(can), Resource(of), name, exists) for role, can, of, name, exists in rows]


def grant(
    connection: Connection, role: str, *, can: Right, topic: str = ALL_TOPICS, resource: Resource = Resource.TOPIC
) -> None:
    """Give a role this right on topics, or on the kind of `resource`; `topic` names it. Repeatable. Does not commit.

    Raise `ConfigError` if there is no such role, or nothing that this right could be about.
    """
    _check(can, resource, topic)
    migrate.lock(connection)
    _check_grantee(connection, role)
    connection.execute(text(FORGET), {"role": role})
    connection.execute(text(INSERT), {"role": role, "can": can.value, "resource": resource.value, "name": topic})
    privileges.bring(connection, role)


def revoke(
    connection: Connection, role: str, *, can: Right, topic: str = ALL_TOPICS, resource: Resource = Resource.TOPIC
) -> bool:
    """Revoke the grant with the same pattern; calls that begin later are refused. Returns whether it was there.

    Does not commit. Raise `ConfigError` if there is neither such a role nor a right of one that is gone.
    """
    _check(can, resource, topic)
    migrate.lock(connection)
    given = {"role": role, "can": can.value, "resource": resource.value, "name": topic}
    found = connection.execute(text(DELETE), given).rowcount > 0
    if connection.scalar(text(ROLE_EXISTS), {"role": role}):
        _check_grantee(connection, role)
        if found:
            privileges.bring(connection, role)
    elif not found:
        raise ConfigError(f"there is no role {role!r} in this PostgreSQL", role=role, reason="no role")
    return found


def _check(can: Right, resource: Resource, name: str) -> None:
    match resource:
        case Resource.TOPIC:
            if not _TOPICS.fullmatch(name):
                raise ConfigError(
                    f"{name!r} is neither the name of a topic nor the beginning of one with * at its end",
                    name=name,
                    reason="pattern",
                )
        case Resource.GROUP | Resource.TRANSACTIONAL_ID:
            what, right = resource.value.replace("_", " "), _USED_WITH[resource]
            if can is not right:
                raise ConfigError(f"a right on a {what} is one to {right}, not to {can}", right=can, reason="right")
            if not _NAMES.fullmatch(name):
                raise ConfigError(
                    f"{name!r} is neither the name of a {what} nor the beginning of one with * at its end",
                    name=name,
                    reason="pattern",
                )
        case _:
            assert_never(resource)


def _check_grantee(connection: Connection, role: str) -> None:
    if not connection.scalar(text(ROLE_EXISTS), {"role": role}):
        raise ConfigError(
            f"there is no role {role!r} in this PostgreSQL: `create role` makes one", role=role, reason="no role"
        )
    if connection.scalar(text(OWNS), {"role": role}):
        raise ConfigError(f"role {role!r} owns the schema, and may everything", role=role, reason="owner")


RIGHTS = "select role, can, resource, name, exists from msgtx.describe_rights()"
ROLE_EXISTS = "select exists (select from pg_roles where rolname::text = :role)"
# Of a function, too: its owner must keep the privileges that it has given itself.
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
    insert into msgtx.role_right (role_name, can, resource, topic_pattern) values (:role, :can, :resource, :name)
    on conflict do nothing"""
DELETE = """
    delete from msgtx.role_right
    where role_name::text = :role and can = :can and resource = :resource and topic_pattern = :name"""
