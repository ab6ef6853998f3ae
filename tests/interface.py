"""What clients of one schema version send to the database, as a file: calls with their arguments, and the answers' columns.

`python -m tests.interface` writes the current version's file, from a server of its own, and removes those of versions whose
clients `connect` refuses. Until a version is released its file is rewritten with each change; from then on it is not
edited: clients of that version are out there.
"""

import importlib
import json
import os
import pkgutil
import tempfile
from pathlib import Path
from typing import Any, Final

import msgtx
from msgtx.database import embedded
from msgtx.database.calls import Function
from msgtx.store.installation import SCHEMA_VERSION
from tests.databases import Connection, connect, use_server

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
    """Return names and types of a statement's columns, without running it."""
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


def interface(connection: Connection) -> Interface:
    """Return what clients of this version send, and what they are answered."""
    said = [{"function": call.name, "arguments": dict(call.arguments)} for call in functions()]
    calls = [{**call, "answer": answer(connection, statement(call))} for call in said]
    return {
        "calls": calls,
        "batch": columns(connection, "msgtx.batch"),
        "views": {view: columns(connection, f"msgtx.{view}") for view in VIEWS},
    }


def lines(found: Interface) -> str:
    """Return an interface as JSON with a line for each call and view, so that a diff shows each change."""
    calls = ",\n".join(f"  {json.dumps(call)}" for call in found["calls"])
    views = ",\n".join(f"  {json.dumps(view)}: {json.dumps(columns)}" for view, columns in found["views"].items())
    return f'{{"calls": [\n{calls}],\n "batch": {json.dumps(found["batch"])},\n "views": {{\n{views}}}}}\n'


def versions() -> list[int]:
    """Return the versions that have a file."""
    return sorted(int(path.stem.removeprefix("interface_")) for path in FOLDER.glob("interface_*.json"))


def is_accepted(version: int) -> bool:
    """Return whether clients of a version work with the current schema: it is theirs or the next one."""
    return version in {SCHEMA_VERSION - 1, SCHEMA_VERSION}


def main() -> None:
    for version in versions():
        if not is_accepted(version):
            path(version).unlink()
    with tempfile.TemporaryDirectory(prefix="msgtx-interface-") as folder:
        Path(folder).chmod(0o755)  # as root, the server's user must get in
        os.environ["MSGTX_HOME"] = str(Path(folder) / "home")
        embedded.start()
        try:
            with connect(use_server(embedded.superuser_url()).create_database()) as connection:
                path(SCHEMA_VERSION).write_text(lines(interface(connection)))
        finally:
            embedded.stop()


if __name__ == "__main__":
    main()
