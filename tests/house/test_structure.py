"""The structure: floors, strings, effects on the tables after a run."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import msgtx
from tests.databases import INSERT_ONLY, Connection, Server, wait_until
from tests.house.sources import FOLDERS, ROOT, nodes_of, python_files

SECONDS = 30.0
# The beginning of a statement, or a part of one.
SQL_TEXT = re.compile(
    r"\s*(select|listen|notify|unlisten|prepare|execute|lock table|set local|set session) \w"
    r"|(?is:.*\b(select\s[^`]*\sfrom|insert\s+into|delete\s+from|(update|table|view|function)\s+(msgtx|pg_catalog)\.))"
)
WITH_SQL = {
    "cli/programs/demo.py": "looks at its results as a user would, in SQL of its own",
    "cli/programs/spark_demo.py": "looks at its results as a user would, in SQL of its own",
}
COMMITS = re.compile(r"^\w*(connection|session|cursor|driver|raw)(\(\))?\.commit\(|\.begin\(\)$")
# The user's own session begins its transaction as before any statement of SQLAlchemy; the user commits.
BEGINS_WITHOUT_COMMIT = {("msgtx/database/calls.py", "connection.begin()")}


def test_modules_import_from_lower_floors_only() -> None:
    command = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_source_folder_is_looked_at() -> None:
    """Links are not followed, so each folder is named."""
    assert {path.parts[0] for path in python_files()} == set(FOLDERS)
    linked = {path.name for path in (ROOT / "msgtx").iterdir() if path.is_symlink()}
    assert linked == set(FOLDERS) - {"msgtx"}


def test_no_module_holds_sql_outside_the_database_floor() -> None:
    """STYLE 13."""
    found: dict[str, list[int]] = {}
    for path in python_files():
        if path.is_relative_to("msgtx/database") or path.is_relative_to("migrations"):
            continue
        for node in nodes_of(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                text = node.value if isinstance(node.value, str) else node.value.decode(errors="replace")
                if SQL_TEXT.match(text):
                    found.setdefault(str(path), []).append(node.lineno)
    assert {path: lines for path, lines in found.items() if path not in WITH_SQL} == {}
    assert found.keys() == WITH_SQL.keys(), "an exception that is no longer needed"


def test_only_the_engine_commits() -> None:
    """STYLE 9."""
    found = set()
    for path in python_files():
        for node in nodes_of(path):
            # To write a call as text takes a while: only what has such a name.
            match node:
                case ast.Call(func=ast.Attribute(attr="commit" | "begin")) if COMMITS.search(text := ast.unparse(node)):
                    found.add((str(path), text))
    of_a_worker = ("msgtx/session/opened.py", "session.commit()")  # the user's session, which it opened
    assert found == {("msgtx/database/pool.py", "connection.begin()"), of_a_worker, *BEGINS_WITHOUT_COMMIT}


def test_a_kept_error_is_raised_as_a_copy() -> None:
    """One object that is raised again and again keeps the frames of each time (`errors.fresh`)."""
    found = [
        f"{path}:{node.lineno}"
        for path in python_files()
        for node in nodes_of(path, holding="raise ")
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Attribute | ast.Subscript)
        if ast.unparse(node.exc).partition(".")[0].partition("[")[0] in {"self", "batch"}
    ]
    assert found == []


def test_a_run_updates_and_deletes_nothing_on_the_insert_only_tables(
    client: msgtx.Client, connection: Connection, server: Server, database_url: str
) -> None:
    """Nothing on the hot path updates or deletes a row (P21)."""
    client.topics.create("input", partitions=2)
    client.topics.create("output", partitions=2)
    with client.producer() as producer:
        for i in range(50):
            producer.send("input", b"%d" % i, key=b"%d" % i)
    report = client.process(
        "input",
        to="output",
        group="copy",
        transactional_id="copy",
        transform=lambda record: record.value,
        transaction_ms=1,
        idle_timeout=0.05,
    )
    assert report.records_out == 50
    with client.producer(transactional_id="long") as producer:
        for i in range(6):
            producer.begin_transaction()
            producer.send("output", b"x")
            producer.flush(SECONDS)
            (producer.abort_transaction if i % 2 else producer.commit_transaction)()
    with client.consumer("output", group="reader", auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        while any(consumer.lag().values()):
            consumer.poll(SECONDS)
            consumer.commit()
    client.sweep(only=["overdue", "markers"])  # the other sweeps remove what is no longer needed
    client.close()
    name = database_url.rsplit("/", 1)[1]

    def statistics() -> dict[str, tuple[int, int, int]]:
        with server.administrator(name) as administrator:
            administrator.execute("select pg_stat_force_next_flush()")
            rows = administrator.execute(
                "select relname, n_tup_ins, n_tup_upd, n_tup_del from pg_stat_user_tables where schemaname = 'msgtx'"
            ).fetchall()
        return {table: tuple(numbers) for table, *numbers in rows}

    found = wait_until(
        lambda: (seen := statistics())["transaction_decision"][0] >= 7 and seen, "the sessions report what they did"
    )
    for table in INSERT_ONLY:
        inserted, updated, deleted = found[table]
        assert (updated, deleted) == (0, 0), table
        if table != "transaction_seal":
            assert inserted > 0, table


@pytest.mark.parametrize("table", INSERT_ONLY)
def test_insert_only_tables_are_frozen_early(connection: Connection, table: str) -> None:
    (options,) = connection.execute(
        "select reloptions from pg_class where oid = format('msgtx.%%I', %s::text)::regclass", [table]
    ).fetchone()
    assert any(option.startswith("autovacuum_vacuum_insert_scale_factor") for option in options)


def test_arrays_are_never_compressed_by_pglz(connection: Connection) -> None:
    """lz4 where the server has it, else no compression: pglz is three to four times slower."""
    rows = connection.execute(
        "select attname, attstorage::text, attcompression::text from pg_attribute where attrelid ="
        " 'msgtx.record_batch'::regclass and attnum > 0 and atttypid::regtype::text like '%[]'"
    ).fetchall()
    assert len(rows) == 7
    assert all(storage == "e" or compression == "l" for _, storage, compression in rows)


# What has the names of others, for the same things as other users see them.
DOORS = {"aio.py", "protocol.py"}
OTHERS = ("msgtx/orm", "msgtx/generated", "msgtx/compat")


def homes(kinds: type | tuple[type, ...], *folders: str) -> dict[str, list[str]]:
    """Return the public names that modules define more than once, and where."""
    found: dict[str, list[str]] = {}
    for path in python_files():
        others = any(map(path.is_relative_to, OTHERS)) or path.name in DOORS
        if path.parts[0] in folders and not others:
            for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
                for name in names_of(node) if isinstance(node, kinds) else ():
                    found.setdefault(name, []).append(str(path))
    return {name: paths for name, paths in found.items() if len(paths) > 1 and not name.startswith("_")}


def names_of(node: ast.stmt) -> list[str]:
    """Return the names that a statement of a module defines, but those of type variables and loggers."""
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return [node.name]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return [] if re.match(r"TypeVar|ParamSpec|logging", ast.unparse(value)) else [name]
    return []


def test_a_class_has_one_home() -> None:
    """One word for a thing."""
    assert homes(ast.ClassDef, "msgtx", "cli") == {}


def test_a_function_and_a_constant_have_one_home() -> None:
    """A command of `cli`, and a job of Spark, is a program of its own, and its names are known from its file."""
    assert homes((ast.FunctionDef, ast.AsyncFunctionDef, ast.Assign, ast.AnnAssign), "msgtx") == {}


def test_nobody_waits_for_libpq_with_pythons_lock() -> None:
    """`get_result` does, where an answer is not whole: `msgtx.database.wire` asks first (`Arriving`)."""
    found = {
        str(path)
        for path in python_files()
        for node in nodes_of(path, holding="get_result")
        if isinstance(node, ast.Attribute) and node.attr == "get_result"
    }
    assert found == {"msgtx/database/wire.py"}
