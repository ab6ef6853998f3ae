"""Granting and revoking rights; through upgrades; roles that are gone; the command line."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace

import pytest

import msgtx
from msgtx import errors
from msgtx.cli.main import run
from msgtx.database.schema import functions, migrate, privileges, rights
from msgtx.database.schema.privileges import Right
from tests.databases import Connection
from tests.refusals import refuses
from tests.roles import Roles
from tests.store.steps import new_topic, plain, unique

pytestmark = pytest.mark.slow


def given(connection: Connection, role: str) -> set[str]:
    """Return the functions that a role may call and the views that it may read."""
    rows = connection.execute(
        "select p.proname from pg_proc p where p.pronamespace = 'msgtx'::regnamespace and has_function_privilege(%s, p.oid,"
        " 'execute') union all select c.relname from pg_class c where c.relnamespace = 'msgtx'::regnamespace"
        " and c.relkind in ('r', 'v') and has_table_privilege(%s, c.oid, 'select')",
        [role, role],
    ).fetchall()
    return {name for (name,) in rows}


def renew(connection: Connection, roles: Roles) -> None:
    """Upgrade as if by another build."""
    connection.execute("update msgtx.installation set functions_hash = 'another build'")
    with roles.transaction() as transaction:
        assert migrate.upgrade(transaction).functions_renewed


def there(connection: Connection, names: frozenset[str] | set[str]) -> set[str]:
    rows = connection.execute(
        "select proname from pg_proc where pronamespace = 'msgtx'::regnamespace union select viewname from pg_views"
        " where schemaname = 'msgtx'"
    ).fetchall()
    return {name for (name,) in rows} & names


@pytest.mark.parametrize("can", [*Right, "everywhere"])
def test_a_role_gets_exactly_what_its_right_needs(can: str, roles: Roles, connection: Connection) -> None:
    role = roles.make("admin:*" if can == "everywhere" else f"{can}:orders*")
    needed = privileges.needed([(Right.ADMIN, "*") if can == "everywhere" else (Right(can), "orders*")])
    assert given(connection, role) == there(connection, needed)
    assert roles.revoke(role, "admin:*" if can == "everywhere" else f"{can}:orders*")
    assert given(connection, role) == set()
    usage = connection.execute("select has_schema_privilege(%s, 'msgtx', 'usage')", [role]).fetchone()
    assert usage == (False,)


def test_granting_and_revoking_again_changes_nothing_and_says_so(roles: Roles, connection: Connection) -> None:
    role = roles.make("produce:a", "produce:b*", "consume:a")
    before = given(connection, role)
    roles.grant(role, "produce:a")
    assert given(connection, role) == before
    assert not roles.revoke(role, "produce")  # never granted for all topics
    assert roles.revoke(role, "produce:a")
    assert not roles.revoke(role, "produce:a")
    assert given(connection, role) == before  # it still produces to b*
    assert roles.read() == [(role, "consume", "a", True), (role, "produce", "b*", True)]
    assert roles.revoke(role, "produce:b*")
    assert given(connection, role) == there(connection, privileges.needed([(Right.CONSUME, "x")]))


@pytest.mark.parametrize("topic", ["", "*a", "a*b", "a**", "a b", "ä", "%", "a'; drop role x", "x" * 250])
def test_a_pattern_is_a_name_or_a_prefix(topic: str, roles: Roles) -> None:
    role = roles.make()
    right = f"produce:{topic or ' '}"
    for change in (lambda: roles.grant(role, right), lambda: roles.revoke(role, right)):
        with refuses(errors.ConfigError, reason="pattern"):
            change()
    assert roles.read() == []


@pytest.mark.parametrize("role", ["nobody-of-this-name", "public", "none", "x" * 70, 'a"; drop schema msgtx; --'])
def test_a_role_that_is_not_there_is_named(role: str, roles: Roles) -> None:
    for change in (lambda: roles.grant(role, "produce"), lambda: roles.revoke(role, "produce")):
        with pytest.raises(errors.ConfigError) as refused:
            change()
        assert repr(role) in str(refused.value)


@pytest.mark.parametrize("odd", ['Ro"le; drop schema msgtx', "current_user", "Rolle für %s :x \U0001f600"])
def test_a_roles_name_is_an_identifier(odd: str, roles: Roles, connection: Connection) -> None:
    name = f"{odd} {roles.owner}" if odd != "current_user" else odd
    quoted = '"' + name.replace('"', '""') + '"'
    roles.sql(f"create role {quoted}")
    try:
        roles.grant(name, "produce")
        assert "append" in given(connection, name)
        assert roles.read() == [(name, "produce", "*", True)]
        assert roles.revoke(name, "produce")
        assert given(connection, name) == set()
    finally:
        roles.sql(f"drop role {quoted}")


def test_the_owner_needs_no_rights_and_loses_none(roles: Roles, client: msgtx.Client) -> None:
    for change in (lambda: roles.grant(roles.owner, "consume"), lambda: roles.revoke(roles.owner, "consume")):
        with refuses(errors.ConfigError, reason="owner"):
            change()
    assert client.topics.list() is not None


def test_only_the_owner_grants(roles: Roles) -> None:
    role = roles.make("admin")
    guest = Roles(roles.server, roles.url_of(role))
    with pytest.raises(errors.AuthorizationFailed):
        guest.grant(role, "produce")
    with pytest.raises(errors.AuthorizationFailed):
        guest.revoke(role, "admin")
    assert roles.read() == [(role, "admin", "*", True)]


def test_a_revoke_in_a_transaction_that_is_taken_back_takes_nothing(roles: Roles, connection: Connection) -> None:
    role = roles.make("produce")
    with contextlib.suppress(errors.IllegalState), roles.transaction() as transaction:
        assert rights.revoke(transaction, role, can=Right.PRODUCE)
        raise errors.IllegalState
    assert "append" in given(connection, role)


# ── upgrades ──


def test_an_upgrade_keeps_rights_and_extends_them(
    roles: Roles, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    role, by_hand = roles.make("produce:orders*"), roles.make()
    connection.execute(f"grant usage on schema msgtx to {by_hand}")
    connection.execute(f"grant execute on function msgtx.clock() to {by_hand}")
    before = given(connection, role)
    changed = {"clock": frozenset({privileges.ANY}), "lock_producers": frozenset({privileges.OWNER})}
    later = tuple(replace(file, rights=changed.get(file.name, file.rights)) for file in functions.files())
    monkeypatch.setattr(privileges, "files", lambda: later)
    renew(connection, roles)
    assert given(connection, role) == before - {"lock_producers"} | {"clock"}
    assert given(connection, by_hand) == {"clock"}
    assert roles.read() == [(role, "produce", "orders*", True)]
    with msgtx.connect(roles.url_of(role)) as client, pytest.raises(errors.UnknownTopicOrPartition):
        client.topics.describe("none")
    monkeypatch.undo()
    renew(connection, roles)
    assert given(connection, role) - {"clock"} == before


@pytest.mark.parametrize("made_again", [False, True])
def test_a_dropped_roles_rights_are_shown_and_then_forgotten(made_again: bool, roles: Roles, connection: Connection) -> None:
    """Also when there is a new role of its name: that role was granted nothing."""
    partition = new_topic(connection)[0]
    role, other = roles.make("produce", "consume:x"), roles.make("consume:y")
    roles.sql(f"drop owned by {role}")
    roles.sql(f"drop role {role}")
    roles.made.remove(role)
    if made_again:
        roles.sql(f"create role {role} login password 'x'")
        roles.made.append(role)
    assert sorted(roles.read()) == sorted([
        (role, "consume", "x", False), (role, "produce", "*", False), (other, "consume", "y", True),
    ])  # fmt: skip
    if made_again:
        member = roles.make("produce:other*")
        roles.sql(f"grant {role} to {member}")
        with contextlib.closing(roles.connect(member)) as caller, pytest.raises(errors.AuthorizationFailed):
            plain(caller, partition, b"x")
        roles.revoke(member, "produce:other*")
        roles.grant(role, "consume:z")
        assert sorted(roles.read()) == sorted([(role, "consume", "z", True), (other, "consume", "y", True)])
    else:
        assert roles.revoke(role, "produce")
        assert roles.read()[0] == (role, "consume", "x", False)
        renew(connection, roles)
        assert roles.read() == [(other, "consume", "y", True)]
    assert given(connection, other) == there(connection, privileges.needed([(Right.CONSUME, "x")]))


# ── the command line ──


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The program in this process: exit code, stdout, stderr."""

    def call(url: str, *arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run(("--url", url, *arguments))
        return code, *capfd.readouterr()

    return call


def test_rights_from_the_command_line(
    cli: Callable[..., tuple[int, str, str]], roles: Roles, connection: Connection
) -> None:
    role, topic = roles.make(), unique("cli")
    owner, guest = roles.url, roles.url_of(role)
    grant = ("db", "grant", "--role", role, "--can", "admin", "--topic", f"{topic}*")
    assert cli(guest, "topics", "create", topic)[0] == 1
    code, out, _ = cli(owner, *grant, "-o", "json")
    granted = {"role": role, "can": "admin", "resource": "topic", "name": f"{topic}*", "exists": True}
    assert (code, json.loads(out)) == (0, [granted])
    assert cli(guest, "topics", "create", topic)[0] == 0
    code, _, told = cli(guest, "topics", "create", "others")
    assert (code, told) == (
        1,
        f"msgtx: role {role} lacks the right to admin on topic others: the owner of the schema gives it with"
        f" `msgtx db grant --role {role} --can admin --topic others`\n",
    )
    code, _, told = cli(guest, "consume", topic, "--from-beginning", "--max-messages", "1")
    assert (code, told.count("\n"), f"--role {role} --can consume" in told) == (1, 1, True)
    code, _, told = cli(guest, "sweep")
    assert (code, told.count("\n")) == (1, 1)
    assert told.startswith("msgtx: permission denied for function expire_overdue: the owner of the schema gives")
    assert f"`msgtx db grant --role {role} --can admin`" in told
    code, _, told = cli(guest, "db", "grants")
    assert (code, told.count("\n")) == (1, 1)
    code, out, _ = cli(owner, "db", "grants")
    assert (code, [line.split() for line in out.splitlines()]) == (
        0,
        [["role", "can", "resource", "name", "exists"], [role, "admin", "topic", f"{topic}*", "True"]],
    )
    revoke = ("db", "revoke", "--role", role, "--can", "admin")
    code, out, told = cli(owner, *revoke, "-o", "jsonl")
    assert (code, json.loads(out)["name"], "had no right to admin on '*'" in told) == (2, f"{topic}*", True)
    assert cli(owner, *revoke, "--topic", f"{topic}*", "-o", "json")[:2] == (0, "[]\n")
    assert cli(guest, "topics", "create", f"{topic}-2")[0] == 1
    assert cli(owner, "db", "grant", "--role", role, "--can", "everything")[0] == 2
    code, _, told = cli(owner, "db", "grant", "--role", "nobody here", "--can", "produce")
    assert (code, "there is no role 'nobody here'" in told) == (2, True)
    assert connection.execute("select count(*) from msgtx.role_right").fetchone() == (0,)
