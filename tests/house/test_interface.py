"""Two versions at once: clients of every version that `connect` accepts find the functions that they call."""

import json
import re
from pathlib import Path

import pytest

import msgtx
from msgtx import errors
from msgtx.store.installation import SCHEMA_VERSION
from tests import interface
from tests.databases import Connection

VERSIONS = interface.versions()
PINNED = {version: json.loads(interface.path(version).read_text()) for version in VERSIONS}
CALLS = [(version, call) for version in VERSIONS for call in PINNED[version]["calls"]]


def test_the_versions_are_pinned_whose_clients_connect() -> None:
    assert SCHEMA_VERSION in VERSIONS
    assert [version for version in VERSIONS if not interface.is_accepted(version)] == []


@pytest.mark.parametrize(
    ("version", "call"), CALLS, ids=[f"{v}-{call['function']}-{len(call['arguments'])}" for v, call in CALLS]
)
def test_an_older_client_calls_todays_function(version: int, call: interface.Interface, connection: Connection) -> None:
    """Arguments by name and type; new ones have defaults. The columns are unpacked by position: none may be added."""
    assert interface.answer(connection, interface.statement(call)) == call["answer"]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_older_clients_batches_are_todays(version: int, connection: Connection) -> None:
    """They are encoded in binary, field by field."""
    assert interface.columns(connection, "msgtx.batch") == PINNED[version]["batch"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("view", interface.VIEWS)
def test_an_older_client_reads_todays_view(version: int, view: str, connection: Connection) -> None:
    """By the names of its columns: new ones do no harm."""
    today = interface.columns(connection, f"msgtx.{view}")
    assert [column for column in PINNED[version]["views"][view] if column not in today] == []


def test_the_file_of_todays_version_names_every_call_of_today() -> None:
    calls = PINNED[SCHEMA_VERSION]["calls"]
    said = [(call.name, call.arguments) for call in interface.functions()]
    assert [(call["function"], call["arguments"]) for call in calls] == said, "python -m tests.interface"


def test_calls_are_made_below_the_command_line_and_the_jobs_of_spark() -> None:
    """No calls are made where `interface.functions` does not look."""
    above = [
        path for name in ("cli", "migrations", "spark_jobs") for path in (Path(msgtx.__file__).parent / name).rglob("*.py")
    ]
    assert above
    assert [path for path in above if re.search(r"\bFunction\(", path.read_text(encoding="utf-8"))] == []


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
