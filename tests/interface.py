"""What clients of one schema version say to the database, as a file: calls with their arguments, and what comes back.

`python -m tests.interface URL` writes the file of today's version, from a database with today's schema. A file is written
once, with the release of its version, and not edited afterwards: clients of that version are out there.
"""

import importlib
import json
import pkgutil
import sys
from pathlib import Path
from typing import Any, Final

import msgtx
from msgtx.database.calls import Function
from msgtx.store.installation import SCHEMA_VERSION
from tests.databases import Connection, connect

FOLDER: Final = Path(__file__).parent / "house"
VIEWS: Final = ("transactions", "partitions")  # that clients read, by the names of their columns
COLUMNS: Final = """
    select a.attname, format_type(a.atttypid, a.atttypmod) from pg_attribute a
    where a.attrelid = %s::regclass and a.attnum > 0 and not a.attisdropped order by a.attnum"""
Interface = dict[str, Any]


def path(version: int) -> Path:
    """Return the file of a schema version."""
    return FOLDER / f"interface_{version}.json"


def functions() -> list[Function]:
    """Return every call that this package makes."""
    found: dict[tuple[str, ...], Function] = {}
    for module in pkgutil.walk_packages(msgtx.__path__, "msgtx."):
        if module.name.startswith(("msgtx.cli", "msgtx.migrations", "msgtx.spark_jobs")):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, Function):
                found.setdefault((value.name, *value.arguments), value)
    return [found[key] for key in sorted(found)]


def statement(call: Interface) -> str:
    """Return the call as a client of its version writes it."""
    arguments = (f"{name} => ${at}::{kind}" for at, (name, kind) in enumerate(call["arguments"].items(), 1))
    return f"select f.* from msgtx.{call['function']}({', '.join(arguments)}) f"


def answer(connection: Connection, sql: str) -> list[list[str]]:
    """Return names and types of the columns that a statement answers with, without running it."""
    raw = connection.pgconn
    prepared = raw.prepare(b"", sql.encode())
    assert not prepared.error_message, prepared.error_message.decode()
    told = raw.describe_prepared(b"")
    columns = []
    for at in range(told.nfields):
        name = told.fname(at)
        assert name is not None
        (kind,) = connection.execute("select format_type(%s::oid, %s)", [told.ftype(at), told.fmod(at)]).fetchone() or ("",)
        columns.append([name.decode(), kind])
    return columns


def columns(connection: Connection, relation: str) -> list[list[str]]:
    """Return names and types of the columns of a view or a composite type."""
    return [list(row) for row in connection.execute(COLUMNS, [relation]).fetchall()]


def unreleased() -> Interface:
    """Return the calls of a version that has no file yet."""
    return {"calls": [{"function": call.name, "arguments": dict(call.arguments)} for call in functions()]}


def interface(connection: Connection) -> Interface:
    """Return what clients of today say, and what they are answered."""
    calls = [{**call, "answer": answer(connection, statement(call))} for call in unreleased()["calls"]]
    return {
        "calls": calls,
        "batch": columns(connection, "msgtx.batch"),
        "views": {view: columns(connection, f"msgtx.{view}") for view in VIEWS},
    }


def main() -> None:
    with connect(sys.argv[1]) as connection:
        path(SCHEMA_VERSION).write_text(json.dumps(interface(connection), indent=1) + "\n")


if __name__ == "__main__":
    main()
