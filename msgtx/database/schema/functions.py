"""The functions, views and triggers of `msgtx/sql`: dropped and created anew whenever their text differs.

A file creates one function, view or constraint trigger of its own name; a file that does not begin with `create` is a
statement and no business of this module.
"""

import hashlib
import importlib.resources
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any, Final

import psycopg

from msgtx.errors import ConfigError

if TYPE_CHECKING:
    from sqlalchemy import Connection, CursorResult


@dataclass(frozen=True, slots=True)
class SqlFile:
    """A file that creates one function, view or trigger.

    `after`: the objects that must exist before it. In the words of its header: `rights`, who may call or read it; `plan`,
    how its statements are planned.
    """

    kind: str
    name: str
    sql: str
    after: frozenset[str]
    rights: frozenset[str]
    plan: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grant:
    """A right on a function or view, given by its owner. It is given again when the object is created again."""

    kind: str
    identity: str
    privilege: str
    grantee: str
    grantable: bool


@dataclass(frozen=True, slots=True)
class _Object:
    """A function, view or trigger in the database."""

    kind: str
    name: str
    identity: str
    description: str


def functions_hash() -> str:
    """Return a hash of the text of all functions, views and triggers."""
    return contents()[0]


@cache
def contents() -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return that hash, and the kind and name of each object. The files are read once; a client asks for both."""
    digest = hashlib.sha256(repr(PLANS).encode())
    found = []
    for name, sql in _sources():
        digest.update(f"{name}\0{sql}\0".encode())
        if head := _head(sql):
            found.append((head[1].lower(), name))
    return digest.hexdigest(), tuple(found)


@cache
def files() -> tuple[SqlFile, ...]:
    """Return the files of `msgtx/sql`, each after the ones that it needs.

    Views, triggers and functions with an SQL-standard body are bound when they are created: they come after every object of
    ours that they name. All other bodies are bound when they run. A header line `-- after: name` adds a dependency that
    the text hides.
    """
    sources = dict(_sources())
    found = {name: file for name, sql in sources.items() if (file := _parse(name, sql, names=frozenset(sources)))}
    order = TopologicalSorter({name: sorted(file.after & found.keys()) for name, file in found.items()})
    return tuple(found[name] for name in order.static_order())


def missing(connection: "Connection") -> list[str]:
    """Return the functions, views and triggers of this package that the database lacks."""
    return _lacking((found.kind, found.name) for found in _objects(connection))


def are_all_there(connection: "psycopg.Connection[Any]") -> bool:
    """Return whether the database lacks none of them; asked without SQLAlchemy."""
    return not _lacking((kind, name) for kind, name, *_ in connection.execute(OBJECTS))


def _lacking(there: Iterable[tuple[str, str]]) -> list[str]:
    found = {*there}
    return [name for kind, name in contents()[1] if (kind, name) not in found]


def grants(connection: "Connection") -> list[Grant]:
    """Return the rights that others than the owner have on functions and views."""
    return [Grant(*tuple(row)) for row in _run(connection, GRANTS)]


def drop(connection: "Connection") -> None:
    """Drop all functions, views and triggers, in rounds: an object that another one uses goes in a later round.

    Raises ConfigError if an object of the user stands on one of them: nothing of the user's is ever dropped.
    """
    left = _objects(connection)
    while left:
        refused = {found: dependents for found in left if (dependents := _drop(connection, found))}
        if len(refused) == len(left):
            ours = tuple(f"{found.description} depends on " for found in left)
            lines = {line for dependents in refused.values() for line in dependents if not line.startswith(ours)}
            raise ConfigError(
                f"{'; '.join(sorted(lines))}: drop it, run `msgtx db upgrade`, and create it again", reason="in use"
            )
        left = list(refused)


def create(connection: "Connection", given: Iterable[Grant]) -> None:
    """Create all functions, views and triggers, and give the rights on them again."""
    _run(connection, "set local check_function_bodies = off")  # bodies name each other
    for file in files():
        _run(connection, file.sql)
    _run(connection, "set local check_function_bodies to default")
    _run(connection, "revoke execute on all routines in schema msgtx from public")
    created = _objects(connection)
    for trigger in created:
        if trigger.kind == "trigger":
            # Also where session_replication_role is replica, as in a subscription's worker: our triggers run in every
            # COMMIT.
            name, _, table = trigger.identity.partition(" on ")
            _run(connection, f"alter table {table} enable always trigger {name}")
    plans = {file.name: file.plan for file in files() if file.plan}
    for found in created:
        if found.kind == "function" and found.name in plans:
            _run(connection, f"alter function {found.identity} {' '.join(PLANS[word] for word in plans[found.name])}")
    there = {(found.kind, found.identity) for found in created}
    for grant in given:
        if (grant.kind, grant.identity) in there:
            target = "table" if grant.kind == "view" else grant.kind
            option = " with grant option" if grant.grantable else ""
            _run(connection, f"grant {grant.privilege} on {target} {grant.identity} to {grant.grantee}{option}")


def _sources() -> Iterator[tuple[str, str]]:
    rooms = (importlib.resources.files("msgtx") / "sql").iterdir()
    for path in sorted((path for room in rooms for path in room.iterdir()), key=lambda path: path.name):
        yield path.name.removesuffix(".sql"), path.read_text(encoding="utf-8")


def _parse(name: str, sql: str, *, names: frozenset[str]) -> SqlFile | None:
    code = re.sub(r"--.*", "", sql).strip()
    if not code.lower().startswith("create"):
        return None
    head = _head(sql)
    assert head is not None, f"msgtx/sql/{name}.sql creates a function, a view or a constraint trigger"
    assert head[2] == name, f"msgtx/sql/{name}.sql creates {head[2]}: a file has the name of what it creates"
    kind = head[1].lower()
    after = set(re.findall(r"^-- after: *(\w+)", sql, re.MULTILINE))
    if kind == "view" or not re.search(r"\bas\s+(\$|')", code, re.IGNORECASE):
        after |= set(re.findall(r"\bmsgtx\.(\w+)", code)) & names - {name}
    return SqlFile(kind, name, sql, frozenset(after), frozenset(said("right", sql)), tuple(said("plan", sql)))


def _head(sql: str) -> re.Match[str] | None:
    """Return what a file creates, behind its header: the kind and the name."""
    return re.match(HEAD, sql, re.IGNORECASE)


def said(word: str, sql: str) -> list[str]:
    """Return what the lines `-- word: a, b` of a file's header list."""
    return [each for line in re.findall(rf"^-- {word}: (.*)", sql, re.MULTILINE) for each in line.split(", ")]


def _objects(connection: "Connection") -> list[_Object]:
    return [_Object(*tuple(row)) for row in _run(connection, OBJECTS)]


def _drop(connection: "Connection", found: _Object) -> list[str]:
    """Drop one object. If it cannot be dropped, return the objects that use it, in PostgreSQL's words."""
    from sqlalchemy.exc import DBAPIError

    try:
        with connection.begin_nested():
            _run(connection, f"drop {found.kind} {found.identity}")
    except DBAPIError as error:
        if isinstance(error.orig, psycopg.errors.DependentObjectsStillExist):
            return (error.orig.diag.message_detail or str(error.orig)).splitlines()
        raise
    return []


def _run(connection: "Connection", statement: str) -> "CursorResult[Any]":
    """Run a statement as it is written: no parameters, so that `:` and `%` are PostgreSQL's."""
    return connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


# How the statements of a function are planned, by what its header says after `-- plan: `. No plan depends on statistics
# (decision 0003): rows are looked up by keys, joined by the index of a key where no array is joined with an array, and read
# in the order of an index. What turns a way of planning off turns the JIT compiler off (decision 0003).
PLANS: Final = {
    "look-ups": "set plan_cache_mode = force_generic_plan set jit = off set enable_seqscan = off"
    " set enable_bitmapscan = off",
    "nested loops": "set enable_hashjoin = off set enable_mergejoin = off",
    "in order": "set enable_sort = off",
}

HEAD = r"(?:--.*\n|\s)*create (?:or replace |constraint )?(function|procedure|view|trigger) (?:msgtx\.)?(\w+)"

# All functions and views in the schema, without those of an extension, and all triggers on its tables that call one of its
# functions: others are the user's. The description is PostgreSQL's own, as in its messages about dependencies.
OBJECTS = """
    select case p.prokind when 'p' then 'procedure' else 'function' end,
           p.proname, format('msgtx.%I(%s)', p.proname, pg_get_function_identity_arguments(p.oid)),
           pg_describe_object('pg_proc'::regclass, p.oid, 0)
    from pg_proc p
    where p.pronamespace = to_regnamespace('msgtx') and not exists (
        select from pg_depend d where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e')
    union all
    select 'view', c.relname, format('msgtx.%I', c.relname), pg_describe_object('pg_class'::regclass, c.oid, 0)
    from pg_class c
    where c.relnamespace = to_regnamespace('msgtx') and c.relkind = 'v' and not exists (
        select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e')
    union all
    select 'trigger', t.tgname, format('%I on msgtx.%I', t.tgname, c.relname),
           pg_describe_object('pg_trigger'::regclass, t.oid, 0)
    from pg_trigger t join pg_class c on c.oid = t.tgrelid join pg_proc p on p.oid = t.tgfoid
    where c.relnamespace = to_regnamespace('msgtx') and p.pronamespace = c.relnamespace and not t.tgisinternal
    order by 1 desc, 3"""

GRANTS = """
    select kind, identity, privilege_type,
           case grantee when 0 then 'public' else quote_ident(pg_get_userbyid(grantee)) end, is_grantable
    from (
        select case p.prokind when 'p' then 'procedure' else 'function' end as kind, p.proowner as owner, a.*,
               format('msgtx.%I(%s)', p.proname, pg_get_function_identity_arguments(p.oid)) as identity
        from pg_proc p cross join lateral aclexplode(p.proacl) a
        where p.pronamespace = to_regnamespace('msgtx')
        union all
        select 'view', c.relowner, a.*, format('msgtx.%I', c.relname)
        from pg_class c cross join lateral aclexplode(c.relacl) a
        where c.relnamespace = to_regnamespace('msgtx') and c.relkind = 'v') given
    where grantee <> owner
    order by identity, privilege_type, grantee"""
