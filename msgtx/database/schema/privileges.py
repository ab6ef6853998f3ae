"""The privileges behind each right: functions to call and views to read, given to the roles of `msgtx.role_right`.

Each says in its header who may use it: `-- right: produce, consume`. Rights on topics, consumer groups and transactional ids
are checked inside the functions and views. Functions without such a check are given only to roles that may observe or
administer every topic; the rest is the owner's. `fetch_batches` shows a topic's ends to every role with a right on it, for
view `partitions`; records only to roles that may consume.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from sqlalchemy import Connection, text

from msgtx.database.schema.functions import files

ALL_TOPICS: Final = "*"


class Resource(StrEnum):
    """The kind of resource that a right names. Groups are consumed with, transactional ids produced with."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional_id"


class Right(StrEnum):
    """The rights of a role on topics."""

    PRODUCE = "produce"
    CONSUME = "consume"
    OBSERVE = "observe"
    ADMIN = "admin"  # includes OBSERVE


# What a header of `msgtx/sql` may say after `-- right: `, beside the rights themselves.
ANY: Final = "any"  # any right will do
EVERYWHERE: Final = {right: f"{right} of all topics" for right in (Right.OBSERVE, Right.ADMIN)}  # the whole installation
OWNER: Final = "owner"


def given_by(*words: str) -> frozenset[str]:
    """Return the functions and views whose header names one of these."""
    return frozenset(file.name for file in files() if not file.rights.isdisjoint(words))


def managed() -> frozenset[str]:
    """Return the functions and views that this module grants and revokes, and the owner's."""
    return frozenset(file.name for file in files() if file.rights)


def needed(rights: Iterable[tuple[Right, str]]) -> frozenset[str]:
    """Return the functions and views that a role with these rights needs: pairs of a right and its pattern of names."""
    found: set[str] = set()
    for right, pattern in rights:
        for each in (right, Right.OBSERVE) if right is Right.ADMIN else (right,):
            found |= given_by(ANY, each)
            if pattern == ALL_TOPICS and each in EVERYWHERE:
                found |= given_by(EVERYWHERE[each])
    return frozenset(found)


def rights_on(name: str) -> tuple[Right, ...]:
    """Return the rights of which each lets a role call this function or read this view; none: it is the owner's."""
    found = tuple(right for right in Right if name in given_by(ANY, right))
    return found or tuple(right for right, word in EVERYWHERE.items() if name in given_by(word))


def derive(connection: Connection) -> None:
    """Grant and revoke until every role has exactly the privileges of its rights. Forget dropped roles."""
    connection.execute(text(FORGET_THE_GONE))
    for (role,) in connection.execute(text("select distinct role_name::text from msgtx.role_right order by 1")).all():
        bring(connection, role)


def bring(connection: Connection, role: str) -> None:
    """Give a role the functions and views that its rights need, and take the others from it. The role exists."""
    rows = connection.execute(text(RIGHTS_OF), {"role": role}).all()
    wanted = needed((Right(can), pattern) for can, pattern in rows)
    (grantee,) = connection.execute(text("select quote_ident(:role)"), {"role": role}).one()
    for names, verb, word in ((managed() - wanted, "revoke", "from"), (wanted, "grant", "to")):
        for kind, privilege, identities in connection.execute(text(OBJECTS_NAMED), {"names": sorted(names)}).all():
            cascade = " cascade" if verb == "revoke" else ""
            _run(connection, f"{verb} {privilege} on {kind} {identities} {word} {grantee}{cascade}")
    _run(
        connection,
        f"grant usage on schema msgtx to {grantee}" if wanted else f"revoke usage on schema msgtx from {grantee} cascade",
    )


def _run(connection: Connection, statement: str) -> None:
    """Run a statement whose identifiers the database has quoted: no parameters, so that `:` and `%` are PostgreSQL's."""
    connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


# A role that was dropped and made anew has lost its USAGE: the rights were its predecessor's.
FORGET_THE_GONE = """
    delete from msgtx.role_right r
    where not exists (
        select from pg_roles g where g.rolname = r.role_name and has_schema_privilege(g.oid, 'msgtx', 'USAGE'))"""
RIGHTS_OF = """
    select can, case resource when 'topic' then topic_pattern else '' end
    from msgtx.role_right where role_name::text = :role order by 1, 2"""
OBJECTS_NAMED = """
    select kind, privilege, string_agg(identity, ', ' order by identity)
    from (
        select 'function' as kind, 'execute' as privilege, p.proname as name,
               format('msgtx.%I(%s)', p.proname, pg_get_function_identity_arguments(p.oid)) as identity
        from pg_proc p where p.pronamespace = to_regnamespace('msgtx') and p.prokind = 'f'
        union all
        select 'table', 'select', c.relname, format('msgtx.%I', c.relname)
        from pg_class c where c.relnamespace = to_regnamespace('msgtx') and c.relkind = 'v') objects
    where name::text = any(:names)
    group by kind, privilege order by kind"""
