"""The generated calls: PostgreSQL takes each as it is written, and answers with the columns that its row has."""

import re
from typing import NamedTuple

import pytest
from psycopg.pq import ExecStatus

import msgtx
from msgtx import errors
from msgtx.database.calls import call
from msgtx.database.wire import numbered
from msgtx.declared.function import Function
from msgtx.store.operator.installation import SCHEMA_VERSION
from tests.calls import FUNCTIONS
from tests.databases import Connection
from tests.house.sources import python_files, text_of
from tools.generate import calls as generated

SAID = {said.name: said for said in generated.calls()}
OF_POSTGRESQL = {
    "bool": 16, "bytea": 17, "int8": 20, "int4": 23, "text": 25, "float8": 701, "timestamptz": 1184, "uuid": 2950,
    "jsonb": 3802, "bytea[]": 1001, "int4[]": 1007, "text[]": 1009, "int8[]": 1016,
}  # fmt: skip


class Pair(NamedTuple):
    first: int
    second: str


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_postgresql_answers_with_the_columns_of_the_row(name: str, connection: Connection) -> None:
    """The parser of the SQL files and PostgreSQL agree."""
    raw, said = connection.pgconn, SAID[name]
    prepared = raw.prepare(b"", numbered(FUNCTIONS[name].statement))
    assert prepared.status == ExecStatus.COMMAND_OK, prepared.error_message.decode()
    told = raw.describe_prepared(b"")
    if said.columns:
        columns = {(told.fname(at) or b"").decode(): told.ftype(at) for at in range(told.nfields)}
        assert columns == {column: OF_POSTGRESQL[kind] for column, kind in said.columns.items()}
    else:
        assert told.nfields == (1 if "." not in said.value else told.nfields)


def test_a_header_marks_what_is_there() -> None:
    for said in SAID.values():
        assert said.said("commit") in ([], ["asynchronous"]), said.name
        assert {each.removesuffix("[]") for each in said.said("null")} <= {*said.columns, "value"}, said.name


def test_an_answer_may_get_further_columns(connection: Connection) -> None:
    """A client goes on when the database is newer: it asks for columns by name."""
    connection.execute(
        "create function msgtx.pair_of_a_test(number int4, out added text, out second text, out first int4)"
        " language sql as $$ select 'new', 'two', number $$"
    )
    try:
        assert call(connection, Function("pair_of_a_test", "number int4", Pair), 1) == [Pair(1, "two")]
    finally:
        connection.execute("drop function msgtx.pair_of_a_test")


def test_every_call_is_a_generated_one() -> None:
    at_home = ("msgtx/generated/", "msgtx/declared/")
    by_hand = [
        path for path in python_files() if re.search(r"\bFunction\(", text_of(path)) and not str(path).startswith(at_home)
    ]
    assert by_hand == []


def test_a_client_works_with_the_next_schema_and_refuses_the_one_after(database_url: str, connection: Connection) -> None:
    try:
        for ahead in (1, 2):
            connection.execute("update msgtx.installation set schema_version = %s", [SCHEMA_VERSION + ahead])
            if ahead == 1:
                with msgtx.connect(database_url) as client:
                    client.topics.create("ahead")
                    with client.producer() as producer:
                        assert producer.send("ahead", b"value").result(10).offset == 0
            else:
                with pytest.raises(errors.ConfigError, match="newer msgtx"):
                    msgtx.connect(database_url)
    finally:
        connection.execute("update msgtx.installation set schema_version = %s", [SCHEMA_VERSION])
