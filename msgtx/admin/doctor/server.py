"""The database itself: schema, settings, connections, age, tables."""

from collections.abc import Iterator
from typing import Final

from msgtx.admin.doctor.findings import Look, data_of, words_of_bytes
from msgtx.database.calls import query
from msgtx.database.pool import IS_STANDBY, Engine
from msgtx.store.append.append import PARTITIONS_AT_ONCE
from msgtx.store.operator.installation import describe_place, identify_server, sequences_behind
from msgtx.store.operator.server import describe_lock_table, describe_notifications, is_weak, table_statistics
from msgtx.types import Finding, Level

# name, value, level, effect, advice. A value that does not stand here does no harm.
JUDGED_SETTINGS: Final = (
    ("fsync", "off", Level.PROBLEM, "a crash of the machine may destroy the database", "`alter system set fsync = on`"),
    ("full_page_writes", "off", Level.PROBLEM, "a crash of the machine may tear pages", "turn it on"),
    ("zero_damaged_pages", "on", Level.PROBLEM, "damaged pages are emptied instead of told", "turn it off"),
    ("autovacuum", "off", Level.PROBLEM, "nothing is frozen before it is too late", "turn it on"),
    ("track_counts", "off", Level.PROBLEM, "autovacuum does not run without it", "turn it on"),
    ("default_transaction_read_only", "on", Level.PROBLEM, "nothing can be written", "turn it off"),
    ("synchronous_commit", "off", Level.INFORMATION, "msgtx raises it for what it acknowledges", ""),
)  # fmt: skip
XID_LIMIT: Final = 2**31  # transactions; PostgreSQL stops before it
READ_COMMITTED: Final = "read committed"
LISTED_TABLES: Final = 3  # tables that are listed by name


def schema(engine: Engine) -> Iterator[Finding]:
    """Find a schema or functions of another version."""
    from msgtx.database.schema import migrate

    with engine.transaction() as connection:
        problems = migrate.check(connection)
    for problem in problems:
        text, _, advice = problem.partition(": ")
        yield Finding(Level.PROBLEM, "schema", text, advice)


def place(look: Look) -> Iterator[Finding]:
    """Find a database that is a copy of another one, or was moved or promoted: it has the incarnation of the original."""
    places = describe_place(look.connection)
    if places is None or places[0] == places[1]:
        return
    noted, found = places
    if (noted.system, noted.database) != (found.system, found.database):
        level = Level.PROBLEM
        text = "this database is a copy, or was moved: tokens and snapshots of the original are taken for its own"
    else:
        level = Level.WARNING
        text = "the server was promoted or restored: what it acknowledged before may be missing"
    yield Finding(
        level,
        "incarnation",
        text,
        "`msgtx db after-failover`; if it has everything and the original is gone, `select msgtx.note_place()` as owner",
        {"noted": data_of(noted), "found": data_of(found)},
    )


def sequences(look: Look) -> Iterator[Finding]:
    """Find sequences that would give out a number again, as those of a logical replica do."""
    for each in sequences_behind(look.connection):
        yield Finding(
            Level.PROBLEM,
            f"sequence {each.name}",
            f"{each}: ids are given out twice, and records are taken for another producer's duplicates",
            "`select msgtx.note_place()` as owner: every sequence skips ahead",
            data_of(each),
        )


def timeline(look: Look) -> Iterator[Finding]:
    """Find a primary that does not show its timeline, by which clients know one of before a failover."""
    if identify_server(look.connection) is None and query(look.connection, IS_STANDBY) == [(False,)]:
        yield Finding(
            Level.INFORMATION,
            "timeline",
            "the server does not show its timeline: clients cannot refuse an old primary that comes back",
            "have the old primary fenced in a failover, or use a synchronous standby",
        )


def settings(look: Look) -> Iterator[Finding]:
    """Find settings of the server that hurt."""
    given = look.server.settings
    for name, value, level, effect, advice in JUDGED_SETTINGS:
        if given.get(name) == value:
            yield Finding(level, f"setting {name}", f"{name} is {value}: {effect}", advice, {"name": name, "value": value})
    isolation = given.get("default_transaction_isolation", READ_COMMITTED)
    if isolation != READ_COMMITTED:
        yield Finding(
            Level.PROBLEM,
            "setting default_transaction_isolation",
            f"default_transaction_isolation is {isolation}: msgtx's functions refuse to run above read committed",
            f"`alter database … set default_transaction_isolation = '{READ_COMMITTED}'`",
            {"name": "default_transaction_isolation", "value": isolation},
        )
    standbys, commit = given.get("synchronous_standby_names"), given.get("synchronous_commit")
    if is_weak(given):
        yield Finding(
            Level.WARNING,
            "setting synchronous_commit",
            f"synchronous_commit is {commit}: a commit does not wait until {standbys} has flushed it",
            "set it to on",
            {"name": "synchronous_commit", "value": commit},
        )
    if look.server.in_recovery:
        text = "this is a standby: it serves readers, and says nothing about the sessions of the primary"
        yield Finding(Level.INFORMATION, "server", text, "run doctor on the primary, too")


def connections(look: Look) -> Iterator[Finding]:
    """Find out whether connections run short."""
    server, limits = look.server, look.limits
    fraction = server.sessions / max(server.connection_limit, 1)
    if fraction < limits.connections_warning:
        return
    yield Finding(
        Level.PROBLEM if fraction >= limits.connections_problem else Level.WARNING,
        "connections",
        f"{server.sessions} of {server.connection_limit} connections are used (max_connections less the reserved ones)",
        "use a pooler (msgtx needs no session state), smaller pools, or a larger max_connections",
        {"sessions": server.sessions, "limit": server.connection_limit},
    )


def lock_table(look: Look) -> Iterator[Finding]:
    """Find a table of locks that is nearly full, or too small for today's sessions together."""
    table, limits = describe_lock_table(look.connection), look.limits
    wanted = look.server.sessions * min(table.partitions, PARTITIONS_AT_ONCE)
    if table.used >= limits.locks_warning * table.places:
        text = f"{table.used} of {table.places} places of the lock table are used: when it is full, calls fail"
        level = Level.PROBLEM
    elif wanted > table.places:
        text = (
            f"the lock table has {table.places} places; {look.server.sessions} sessions that each write to"
            f" {min(table.partitions, PARTITIONS_AT_ONCE)} partitions in one call want {wanted}"
        )
        level = Level.INFORMATION
    else:
        return
    yield Finding(
        level, "lock table", text, "raise max_locks_per_transaction, and restart the server", data_of(table, wanted=wanted)
    )


def notifications(look: Look) -> Iterator[Finding]:
    """Find a queue of notifications that a session holds back. When it is full, every NOTIFY fails."""
    queue, limits = describe_notifications(look.connection), look.limits
    if queue.usage < limits.notifications_warning:
        return
    oldest = ", ".join(map(str, queue.pids or ())) or "not visible to this role"
    yield Finding(
        Level.PROBLEM if queue.usage >= limits.notifications_problem else Level.WARNING,
        "notifications",
        f"the queue of notifications is {queue.usage:.0%} full: some session listens and does not read, as it stays in a SQL"
        f" transaction (the oldest: {oldest}); when it is full, applications that NOTIFY fail, and consumers hear later",
        "end that transaction, or `select pg_terminate_backend(pid)`",
        data_of(queue),
    )


def frozen_age(look: Look) -> Iterator[Finding]:
    """Find a database that is not frozen in time."""
    age, limits = look.server.frozen_age, look.limits
    most = int(look.server.settings["autovacuum_freeze_max_age"])
    if age < limits.frozen_warning * most:
        return
    yield Finding(
        Level.PROBLEM if age >= min(limits.frozen_problem * most, XID_LIMIT / 2) else Level.WARNING,
        "transaction ids",
        f"the database's oldest rows are {age} transactions old (autovacuum_freeze_max_age is {most}, the end {XID_LIMIT})",
        "look for what pins the horizon, then `vacuum (freeze)`",
        {"age": age, "autovacuum_freeze_max_age": most},
    )


def tables(look: Look) -> Iterator[Finding]:
    """Find tables with many dead rows, and report the size of all in one line."""
    found = list(table_statistics(look.connection))
    for table in found:
        if table.dead_rows > max(look.limits.dead_rows, look.limits.dead_fraction * table.live_rows):
            last = max((time for time in (table.last_vacuum, table.last_autovacuum) if time is not None), default=None)
            vacuumed = "never vacuumed" if last is None else f"last vacuumed {last:%Y-%m-%d %H:%M}"
            text = f"{words_of_bytes(table.bytes)}, {table.live_rows} rows, {table.dead_rows} dead, {vacuumed}"
            advice = f"look for what pins the horizon, then `vacuum msgtx.{table.name}`"
            yield Finding(Level.WARNING, f"table {table.name}", text, advice, data_of(table))
    largest = sorted(found, key=lambda table: table.bytes, reverse=True)[:LISTED_TABLES]
    yield Finding(
        Level.INFORMATION,
        "tables",
        f"{words_of_bytes(sum(table.bytes for table in found))} in {len(found)} tables, the largest: "
        + ", ".join(f"{table.name} {words_of_bytes(table.bytes)}" for table in largest),
        "",
        {"tables": [data_of(table) for table in found]},
    )
