"""One SQL object per file: its header is true, it is used, it can be planned."""

import functools
import re
from collections import Counter
from pathlib import Path

import psycopg
import pytest

from msgtx import errors
from msgtx.database.schema.functions import PLANS, files
from msgtx.database.schema.privileges import managed
from msgtx.rules.transaction import State
from tests.calls import CALLED
from tests.databases import Connection
from tests.house.sources import SQL, for_each, python_files, text_of
from tests.store.durable import CASES

FILES = sorted(SQL.glob("*/*.sql"), key=lambda path: path.name)
TABLES = (
    "installation", "setting", "topic", "partition", "record_batch", "producer_state", "producer", "transaction",
    "transaction_partition", "transaction_seal", "transaction_decision", "transaction_marker", "partition_floor",
    "consumer_group", "group_member", "group_assignment", "group_heartbeat", "group_offset", "coordinator",
    "coordinator_shard", "role_right", "named_snapshot", "spark_batch", "spark_attempt", "spark_range", "spark_floor",
    "staged_record", "staged_commit", "wake_up", "dedup_key", "deleted_partition", "share_group", "share_topic",
    "share_state", "share_call", "share_pending", "share_parked", "swept", "mirror", "mirror_place",
)  # fmt: skip
REFERENCE = SQL.parents[1] / "docs" / "reference" / "sql.md"
MIGRATIONS = sorted((SQL.parents[1] / "migrations").glob("**/*.py"))
NAMES = [path.stem for path in FILES]
LINE, HEADER_LINES, FUNCTION_LINES = 125, 12, 120
# Functions that remove what is no longer needed, or date what a clock that was set back has left in the future.
SWEEPS = {
    "compact_batches", "date_producer", "expire_overdue", "forget_transactions", "purge_transactions",
    "remove_decided_seals", "remove_log", "remove_front", "remove_idle_producers", "remove_superseded",
    "remove_spark_history", "remove_superseded_offsets", "remove_superseded_shares",
    "remove_wake_ups", "settle_shares", "note_swept", "forget_swept",
}  # fmt: skip


@functools.cache
def parts(path: Path) -> tuple[str, str]:
    """Return the header comment and the code without comments."""
    lines = path.read_text(encoding="utf-8").splitlines()
    header = []
    for line in lines:
        if not line.startswith("--"):
            break
        header.append(line)
    return "\n".join(header), re.sub(r"--.*", "", "\n".join(lines))


@functools.cache
def python_sources() -> str:
    return "\n".join(text_of(path) for path in python_files() if "generated" not in path.parts)


@for_each(FILES)
def test_a_file_creates_one_object_of_its_own_name(path: Path) -> None:
    _, code = parts(path)
    created = re.findall(
        r"\bcreate (?:(?:or replace )?(?:function|view|procedure) msgtx\.|constraint trigger )(\w+)", code, re.IGNORECASE
    )
    assert created == [path.stem]


@for_each(FILES)
def test_a_file_begins_with_what_it_is_for(path: Path) -> None:
    header, _ = parts(path)
    first = header.splitlines()[0]
    assert re.match(rf"-- (View )?{path.stem}\b", first), first
    assert without_marks(header).rstrip().endswith((".", ")"))


def without_marks(header: str) -> str:
    """Return the header's sentences, without the lines that programs read."""
    return re.sub(r"^-- (after|right|commit|null|plan|long): .*\n?", "", header, flags=re.MULTILINE)


@for_each(FILES)
def test_a_file_is_no_longer_than_can_be_read(path: Path) -> None:
    """A line `-- long: …` of the header says why its function is longer."""
    text, (header, _) = path.read_text(encoding="utf-8"), parts(path)
    assert [line for line in text.splitlines() if len(line) > LINE] == []
    assert len(without_marks(header).splitlines()) <= HEADER_LINES
    is_long = len(text.removeprefix(header).strip().splitlines()) > FUNCTION_LINES
    assert is_long is bool(re.search(r"^-- long: \w", header, re.MULTILINE))


@for_each(MIGRATIONS)
def test_a_line_of_a_migration_is_no_longer_than_can_be_read(path: Path) -> None:
    assert [line for line in path.read_text(encoding="utf-8").splitlines() if len(line) > LINE] == []


@for_each(FILES)
def test_what_is_written_is_named_in_the_header(path: Path) -> None:
    """A header lists the tables that its own code writes."""
    header, code = parts(path)
    written = set(re.findall(r"\b(?:insert into|update|delete from) msgtx\.(\w+)", code)) & set(TABLES)
    for table in written:
        assert re.search(rf"\b{table}\b", header), f"{path.name} writes {table}"


@for_each(FILES)
def test_what_locks_says_so(path: Path) -> None:
    header, code = parts(path)
    if re.search(r"msgtx\.(try_)?lock_|pg_\w*advisory", code):
        assert re.search(r"\b(lock|locks|locked|locking)\b", header, re.IGNORECASE), path.name


@for_each(FILES)
def test_an_object_is_used(path: Path) -> None:
    """By Python, by another file; views also by the roles that read them, triggers by their table; or users know it."""
    name = path.stem
    if parts(path)[1].lstrip().startswith(("create view", "create constraint trigger")):
        return
    elsewhere = "\n".join(parts(other)[1] for other in FILES if other is not path)
    assert (
        name in CALLED
        or re.search(rf"msgtx\.{name}\b", elsewhere)
        or re.search(rf'["\']{name}["\']|msgtx\.{name}\b', python_sources())
        or f"\n### {name}\n" in text_of(REFERENCE)
    )


@for_each(FILES)
def test_only_what_the_library_calls_runs_with_its_owners_rights_and_then_with_a_fixed_path(path: Path) -> None:
    _, code = parts(path)
    if "security definer" in code:
        assert re.search(r"set search_path = pg_catalog, pg_temp", code), path.name


@for_each(FILES)
def test_what_turns_a_way_of_planning_off_compiles_nothing(path: Path) -> None:
    """Before PostgreSQL 18 a plan that needs a disabled method costs 10¹⁰, so the server compiles it in each call."""
    _, code = parts(path)
    assert "set jit = off" in code or not re.search(r"\bset enable_\w+ = off", code), path.name


def test_a_header_names_ways_of_planning_that_are_there() -> None:
    assert {word for file in files() for word in file.plan} == PLANS.keys()
    assert all("set jit = off" in PLANS[file.plan[0]] for file in files() if file.plan)


def test_nothing_updates_or_deletes_on_the_hot_path() -> None:
    insert_only = set(TABLES) - {
        "installation",
        "setting",
        "topic",
        "partition",
        "producer_state",
        "producer",
        "consumer_group",
        "share_group",
        "group_member",
        "group_assignment",
        "coordinator",
        "coordinator_shard",
        "role_right",
        "named_snapshot",
        "mirror",
        "mirror_place",
        "dedup_key",  # taken first, and given its offset later; a record without a key never touches it
        "staged_record",
        "staged_commit",
        "wake_up",
        "share_parked",  # only what is delayed, or waits for its key, and goes with the state in which it is available
        "spark_range",  # a few rows per micro-batch: one that is not committed may be planned again
    }
    # It renews what tasks of Spark hold open, every 10 s. In a table of its own, every reader would have to look there, too.
    # A join that comes again after its session was over: one heartbeat.
    rare = {"renew_attempts", "join_share_group"}
    for path in FILES:
        if path.stem in {"delete_topic", "delete_group", "delete_offsets", *SWEEPS, *rare}:
            continue
        changed = set(re.findall(r"\b(?:update|delete from) msgtx\.(\w+)", parts(path)[1]))
        assert not changed & insert_only, path.name


def test_an_error_that_sql_raises_has_a_class() -> None:
    """MX000 names its class as a column of the error. The other values of an error come as a JSON object, its detail."""
    numbers = Counter(f"MX{kind.code:03}" for kind in errors.BY_NAME.values() if vars(kind).get("code"))
    for path in FILES:
        code = parts(path)[1]
        raised = set(re.findall(r"'(MX\d{3})'", code)) - {"MX000"}
        assert {numbers[state] for state in raised} <= {1}, path.name
        assert {*re.findall(r"column = '(\w+)'", code)} <= errors.BY_NAME.keys(), path.name
        for values in re.findall(r"detail = jsonb_build_object\((.*)\)", code):
            keys = {*re.findall(r"(?<!>> )'(\w+)', (?:'[^']*'|[\w(\"])", values)}
            assert keys, path.name
            assert keys <= errors.MsgtxError.__annotations__.keys(), path.name


# They have a value for any bytes. No other expression over the content of a record may raise: one would stop all readers.
TOTAL = {"value_json", "value_text", "header_text", "delivery_time"}
CONVERTS = r"\bconvert_from\(|\b(?:encode|decode)\(|\bto_(?:timestamp|date|number)\(|::jsonb?\b|\bget_(?:byte|bit)\("
CASTS = r"([^\s,]*)::(?:int|bigint|numeric|timestamptz|double|uuid|date)\b"
CONTENT = r"\b(?:value|key|header|content)s?\b"
# Not over content: a role's name, bits that compaction has made, bytes whose length bounds the loop, settings.
OTHERS = {"tag_of_role", "compact_batches", "crc32", "configure_share_group"}


def unsafe(code: str) -> list[str]:
    """Return what converts the content of a record in a way that some bytes make fail."""
    casts = [cast for cast in re.findall(CASTS, code) if re.search(CONTENT, cast) and "header_text(" not in cast]
    return re.findall(CONVERTS, code) + casts


@for_each(FILES)
def test_no_expression_over_the_content_of_a_record_may_raise(path: Path) -> None:
    """Except in functions that are named as total, and are tried with odd bytes (tests/store/test_content.py)."""
    assert path.stem in TOTAL | OTHERS or unsafe(parts(path)[1]) == []


def test_an_expression_that_may_raise_would_be_noticed() -> None:
    for code in ("convert_from(p.value, 'UTF8')", "u.key::text::int", "(r.value)::numeric", "encode(h.value, 'escape')"):
        assert unsafe(f"select {code} from r"), code


def test_nobody_asks_for_the_time_of_the_sql_transaction() -> None:
    """P33. The clock is read in one place, so tests can set it."""
    for path in FILES:
        _, code = parts(path)
        assert not re.search(r"\bnow\(\)|\bcurrent_timestamp\b|\btransaction_timestamp\b", code), path.name
        assert "clock_timestamp" not in code or path.stem == "clock", path.name


def test_whoever_waits_for_a_lock_of_ours_waits_with_a_limit() -> None:
    """P32. A function's SET clause also holds for what it calls; the session's limit is the user's, or limit_session's."""
    code = {path.stem: parts(path)[1] for path in FILES}
    called = {name: set(re.findall(r"\bmsgtx\.(\w+)\(", text)) & code.keys() - {name} for name, text in code.items()}
    waiting = {name for name, text in code.items() if "pg_advisory_xact_lock" in text}
    limited = {name for name, text in code.items() if re.search(r"\bset lock_timeout = '|msgtx\.limit_session\(\)", text)}
    begun = CALLED | managed() & code.keys()
    begun |= {name for text in code.values() for name in re.findall(r"execute function msgtx\.(\w+)", text)}

    def unlimited(name: str, way: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        if name in limited or name in way:
            return []
        if name in waiting:
            return [(*way, name)]
        return [found for inner in sorted(called[name]) for found in unlimited(inner, (*way, name))]

    assert waiting
    assert [way for name in sorted(begun) for way in unlimited(name)] == []


def test_what_flushes_or_promises_to_has_a_case_that_shows_it() -> None:
    """I9: a removed flush is noticed."""
    flushing = {path.stem for path in FILES if "flush_at_commit(" in parts(path)[1]} - {"flush_at_commit"}
    promising = set()
    for path in FILES:
        header = re.sub(r"\n--\s*", " ", parts(path)[0])
        if re.search(r"\b(?<!not )flushed\b(?! by itself)", header, re.IGNORECASE):
            promising.add(path.stem)
    assert flushing | promising == CASES.keys()


def test_every_function_can_be_planned_and_called(connection: Connection) -> None:
    """Called with nulls in a transaction that is rolled back: it may refuse, but every name in it must be known."""
    functions = connection.execute(
        "select p.proname, array(select format_type(t, null) from unnest(p.proargtypes) t), p.prorettype::regtype::text"
        " from pg_proc p where p.pronamespace = 'msgtx'::regnamespace order by 1"
    ).fetchall()
    assert {name for name, _, _ in functions} <= set(NAMES)
    for name, types, result in functions:
        if "record" in types or result == "trigger":
            continue  # internal, takes a row that its caller has read: the store's tests call it
        arguments = ", ".join(f"null::{kind}" for kind in types)
        with connection.transaction(force_rollback=True):
            connection.execute("set local lock_timeout = '5s'")
            refused: psycopg.Error | None = None
            try:
                with connection.transaction():
                    connection.execute(f"select * from msgtx.{name}({arguments})")
            except psycopg.Error as error:
                refused = error
            unknown = refused is not None and (refused.sqlstate or "42").startswith("42")
            assert not unknown, (name, refused)


@pytest.mark.parametrize("name", [path.stem for path in FILES if "create view" in path.read_text(encoding="utf-8")])
def test_every_view_can_be_explained(connection: Connection, name: str) -> None:
    assert connection.execute(f"explain select * from msgtx.{name}").fetchall()


def test_every_table_of_the_architecture_is_there_and_no_other(connection: Connection) -> None:
    found = connection.execute(
        "select relname from pg_class where relnamespace = 'msgtx'::regnamespace and relkind = 'r'"
        " and relname <> 'alembic_version' order by 1"
    ).fetchall()
    assert [name for (name,) in found] == sorted(TABLES)


def test_the_view_of_transactions_names_the_states_of_the_table() -> None:
    """Only the state Dead has no row."""
    _, code = parts(SQL / "views" / "transactions.sql")
    named = set(re.findall(r"'([A-Z][A-Za-z]+)'", code)) - {"COMMIT", "ABORT"}
    assert named == {state.value for state in State} - {"Dead"}


def test_what_takes_a_lock_reads_nothing_behind_it_in_the_same_statement() -> None:
    """Its snapshot is older than the lock: it would not see what the last holder has committed."""
    behind = re.compile(
        r"(?<!function )msgtx\.(?:try_)?lock_\w+\([^;]*?\)\s*(?:and|or)\b(?:(?!\bthen\b)[^;])*\b(?:select|exists)\b", re.S
    )
    assert [path.stem for path in FILES if behind.search(text_of(path))] == []
