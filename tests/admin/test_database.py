"""`client.admin.database` and `msgtx db status`: the database below msgtx, as an operator looks at it."""

import json
from collections.abc import Callable

import pytest

import msgtx
from msgtx import errors
from tests.admin.conftest import Realm
from tests.cli.conftest import msgtx as program  # noqa: F401 - a fixture
from tests.cli.program import Ended
from tests.databases import Connection, Sessions, backend
from tests.refusals import refuses
from tests.store.steps import new_partition, plain

pytestmark = pytest.mark.slow


def test_it_names_tables_connections_and_rights(client: msgtx.Client, realm: Realm) -> None:
    role = realm.roles.make("observe:*", "consume:group:billing*")
    found = client.admin.database()
    tables = {one.name: one for one in found.tables}
    assert {"record_batch", "topic", "transaction_decision"} <= tables.keys()
    assert all(one.bytes >= 0 and one.dead_rows >= 0 for one in found.tables)
    assert 0 < found.connections <= found.connection_limit
    assert not found.in_recovery
    assert [(one.can, one.resource, one.name, one.exists) for one in found.rights if one.role == role] == [
        ("consume", "group", "billing*", True),
        ("observe", "topic", "*", True),
    ]
    assert found.standbys == []


def test_a_session_that_holds_a_snapshot_is_named(client: msgtx.Client, open_connection: Sessions) -> None:
    holder = open_connection()
    with holder.transaction():
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select 1")
        found = [one for one in client.admin.database().snapshot_holders if one.pid == backend(holder)]
        assert [(one.kind, one.state, one.since is not None) for one in found] == [("session", "idle in transaction", True)]


def test_it_takes_the_right_to_observe_every_topic(realm: Realm) -> None:
    with msgtx.connect(realm.roles.url_of(realm.roles.make("observe:*"))) as guest:
        found = guest.admin.database()
        assert not found.sees_all
        assert found.tables
    for right in ("observe:orders", "consume:*", "produce:*"):
        with msgtx.connect(realm.roles.url_of(realm.roles.make(right))) as guest, refuses(errors.AuthorizationFailed):
            guest.admin.database()


def test_the_command_shows_the_same(program: Callable[..., Ended], connection: Connection) -> None:  # noqa: F811
    plain(connection, new_partition(connection), b"x")
    done = program("db", "status", "-o", "json")
    row = json.loads(done.out)
    assert row.keys() == set(msgtx.DatabaseDescription.__dataclass_fields__)
    assert {one["name"] for one in row["tables"]} >= {"record_batch"}
    table = program("db", "status")
    assert (table.code, table.err) == (0, "")
    assert "record_batch" in table.out.decode()
