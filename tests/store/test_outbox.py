"""`msgtx.adopt_outbox`: the rows of a user's outbox are published by a trigger (I6)."""

from collections.abc import Iterator

import psycopg
import pytest

import msgtx
from msgtx import errors
from msgtx.database.calls import query
from tests.databases import Connection, Server
from tests.refusals import refuses
from tests.roles import open_roles
from tests.store.steps import named_topic, unique

DEBEZIUM = "id uuid, aggregatetype text, aggregateid text, type text, payload jsonb"
ID = "5dcb6c0c-6b0e-4e8f-9d0c-0d0a0b0c0d0e"
INSERT = f"insert into public.outbox values ('{ID}', 'customer', '7', 'CustomerMoved', '{{\"id\": 7}}')"


@pytest.fixture
def outbox(connection: Connection) -> Iterator[str]:
    connection.execute(f"create table public.outbox ({DEBEZIUM})")
    yield "public.outbox"
    connection.execute("select msgtx.release_outbox('public.outbox')")
    connection.execute("drop table public.outbox")


@pytest.fixture
def topic(connection: Connection) -> str:
    return named_topic(connection, retention_ms=-1)[0]


def records(client: msgtx.Client, topic: str) -> list[msgtx.Record]:
    """Return what a consumer reads of a topic."""
    with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        return list(consumer.poll(1.0))


def test_a_row_is_a_cloud_event(client: msgtx.Client, connection: Connection, topic: str, outbox: str) -> None:
    """Also if it is deleted at once, as Debezium advises."""
    query(connection, "select msgtx.adopt_outbox(%s::regclass, topic => %s)", outbox, topic)
    with connection.transaction():
        connection.execute(INSERT)
        connection.execute("delete from public.outbox")
    (record,) = records(client, topic)
    assert (record.key, record.value) == (b"7", b'{"id": 7}')
    assert dict(record.headers) == {
        "ce_specversion": b"1.0",
        "ce_id": ID.encode(),
        "ce_type": b"CustomerMoved",
        "ce_source": b"public.outbox",
        "content-type": b"application/json",
    }


def test_a_row_that_is_rolled_back_is_no_record(
    client: msgtx.Client, connection: Connection, topic: str, outbox: str
) -> None:
    query(connection, "select msgtx.adopt_outbox(%s::regclass, topic => %s)", outbox, topic)
    with connection.transaction(force_rollback=True):
        connection.execute(INSERT)
    assert records(client, topic) == []


def test_a_row_names_its_topic(client: msgtx.Client, connection: Connection, topic: str, outbox: str) -> None:
    query(connection, "select msgtx.adopt_outbox(%s::regclass)", outbox)
    connection.execute(INSERT.replace("customer'", f"{topic}'"))
    assert [record.key for record in records(client, topic)] == [b"7"]
    with refuses(errors.UnknownTopicOrPartition, topic="customer"):
        query(connection, INSERT)


def test_columns_have_any_names(client: msgtx.Client, connection: Connection, topic: str) -> None:
    """And bytes stay bytes. Adopted again, the new arguments hold."""
    connection.execute('create table public."my outbox" ("the id" int, body bytea)')
    for source in ("first", "second"):
        query(
            connection,
            "select msgtx.adopt_outbox('public.\"my outbox\"', %s, id_column => 'the id', key_column => null,"
            " type_column => null, value_column => 'body', event_source => %s)",
            topic,
            source,
        )
    connection.execute("insert into public.\"my outbox\" values (1, '\\x00ff')")
    (record,) = records(client, topic)
    assert (record.key, record.value) == (None, b"\x00\xff")
    assert dict(record.headers) == {"ce_specversion": b"1.0", "ce_id": b"1", "ce_source": b"second"}
    connection.execute("select msgtx.release_outbox('public.\"my outbox\"')")
    connection.execute('drop table public."my outbox"')


def test_a_released_outbox_is_a_plain_table(client: msgtx.Client, connection: Connection, topic: str, outbox: str) -> None:
    query(connection, "select msgtx.adopt_outbox(%s::regclass, topic => %s)", outbox, topic)
    assert query(connection, "select msgtx.release_outbox(%s::regclass)", outbox) == [(True,)]
    connection.execute(INSERT)
    assert records(client, topic) == []
    assert query(connection, "select msgtx.release_outbox(%s::regclass)", outbox) == [(False,)]
    assert query(connection, "select count(*) from pg_proc where starts_with(proname, 'msgtx_outbox_')") == [(0,)]


def test_a_missing_column_is_refused(connection: Connection, outbox: str) -> None:
    with refuses(errors.InvalidRequest, name="outbox", given="body"):
        query(connection, "select msgtx.adopt_outbox(%s::regclass, %s, value_column => 'body')", outbox, unique("topic"))


def test_an_outbox_is_its_owners_and_needs_the_right_to_produce(
    server: Server, database_url: str, connection: Connection, topic: str, outbox: str
) -> None:
    with open_roles(server, database_url) as roles:
        name = roles.make(f"produce:{topic}")
        connection.execute(f"grant insert on {outbox} to public")
        with roles.connect(name) as session, pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("select msgtx.adopt_outbox('public.outbox', %s)", [topic])
        query(connection, "select msgtx.adopt_outbox(%s::regclass, topic => %s)", outbox, topic)
        with roles.connect(name) as session:
            session.execute(INSERT)
        with roles.connect(roles.make("consume:*")) as session, pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute(INSERT)
