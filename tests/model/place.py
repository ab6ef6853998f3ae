"""Where histories take place: a database with a clock that stands still, a client that loses connections, an observer."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import sqlalchemy

from msgtx import Client, GroupMetadata, Isolation, Outcome, TopicPartition, TransactionId, errors
from msgtx.database.connection import RawConnection
from msgtx.database.pool import Engine
from msgtx.session.enlistment import enlist
from msgtx.session.side_connection import companion
from msgtx.store.fetch.fetch import FetchedBatch, Position, fetch
from msgtx.store.groups.members import describe_members
from msgtx.store.operator.installation import describe_installation
from msgtx.store.topics.topics import describe_topics
from tests.databases import connect
from tests.faults import CrashServer, Faults, lose_connection
from tests.model.deliveries import Letter
from tests.model.membership import Commit

Answer = TypeVar("Answer")
HISTORIES: Final = 100  # in one database: what sweeps and views look at grows with it
PATIENCE_SECONDS: Final = 30.0
BEGINNING: Final = datetime(2030, 1, 1, tzinfo=UTC)
# Of psycopg's own accounts, no word of which reaches the server: a connection cannot be lost there.
NO_BOUNDARY: Final = frozenset({"set_autocommit", "set_isolation_level"})
TICK: Final = """
    update public.clock set at = %s from (select set_config('synchronous_commit', 'on', true)) flushed
"""
MADE: Final = sqlalchemy.table("made", sqlalchemy.column("name"))  # rows of a user's
_numbers = itertools.count(1)


@dataclass
class Place:
    """A database for some histories. `client` crosses the boundaries that fail, `observer` does not."""

    url: str
    server: CrashServer | None = None  # it crashes where otherwise only the connection would be lost
    faults: Faults = field(default_factory=lambda: Faults(uncounted=NO_BOUNDARY))
    histories: int = 0
    operations: int = 0
    now: int = 0  # milliseconds since BEGINNING

    def __post_init__(self) -> None:
        with connect(self.url) as connection:
            if self.server is not None:  # whatever must last has to ask for its flush by itself, also in a user's session
                name = sqlalchemy.make_url(self.url).database
                connection.execute(f'alter database "{name}" set synchronous_commit = off')
            connection.execute("create table if not exists public.clock (at timestamptz)")
            connection.execute("delete from public.clock")
            connection.execute("insert into public.clock values (%s)", [BEGINNING])
            # The table instead of a function made anew for each tick: no session has to plan its calls again.
            connection.execute(
                "create or replace function msgtx.clock() returns timestamptz language sql volatile"
                " return (select at from public.clock)"
            )
            connection.execute("create table if not exists public.made (name text)")
            incarnation = describe_installation(connection).incarnation
        self.client = Client(Engine(self.url, connect=self.faults.connect))
        self.client.runtime.engine.expect(incarnation)
        self.observer = Client(Engine(self.url))
        self._besides: list[Engine] = []
        self._users = [self._user(isolation) for isolation in ("READ COMMITTED", "REPEATABLE READ")]

    def _user(self, isolation: str) -> sqlalchemy.Engine:
        """A user's own engine, whose connections fail as the client's do; and so do those that are opened beside it."""
        conninfo = sqlalchemy.make_url(self.url).set(drivername="postgresql").render_as_string(hide_password=False)
        user = sqlalchemy.create_engine(
            "postgresql+psycopg://", creator=lambda: self.faults.connect(conninfo), isolation_level=isolation
        )
        with user.connect() as connection:
            enlist(connection)
            companion(connection).engine = Engine(self.url, connect=self.faults.connect)
            self._besides.append(companion(connection).engine)
        return user

    def sessions(self, *, keeps: bool) -> sqlalchemy.Engine:
        return self._users[keeps]

    def has_row(self, name: str) -> bool:
        with self.observer.runtime.engine.connection() as connection:
            return connection.execute("select from public.made where name = %s", [name]).fetchone() is not None

    def close(self) -> None:
        """End, after what the histories left has been compared with the promises, row by row."""
        for user in self._users:
            user.dispose()
        for beside in self._besides:
            beside.close()
        self.client.close()
        with self.observer:
            report = self.observer.admin.verify()
        assert report.violations == [], report.violations

    def reconnect(self) -> None:
        """After a crash of the server, no connection of the pools is good: each is asked once."""
        for user in self._users:
            user.dispose()
        for engine in (self.client.runtime.engine, self.observer.runtime.engine, *self._besides):
            for _ in range(engine.pool_size):
                with contextlib.suppress(errors.DatabaseUnavailable), engine.connection() as connection:
                    connection.execute("select 1")

    def name(self, kind: str) -> str:
        return f"{kind}-{next(_numbers)}"

    def tick(self, milliseconds: int) -> int:
        """Let time pass, which it never does by itself. The update is flushed, and with it all that came before."""
        self.now += milliseconds
        with self.observer.runtime.engine.connection() as connection:
            connection.execute(TICK, [BEGINNING + timedelta(milliseconds=self.now)])
        return self.now

    def written(self) -> int:
        """Return how far WAL is written: what is written from here on must last only where it was flushed, too."""
        return 0 if self.server is None else self._wal("pg_current_wal_insert_lsn()")

    def flushed(self) -> int:
        """Return how far WAL is on disk. On a server that is to crash, only a commit that must be durable flushes."""
        return 1 if self.server is None else self._wal("pg_current_wal_flush_lsn()")

    def _wal(self, position: str) -> int:
        with self.observer.runtime.engine.connection() as connection:
            ((at,),) = connection.execute(f"select {position} - '0/0'").fetchall()
        return int(at)

    @contextlib.contextmanager
    def losing(self, boundary: int) -> Iterator[list[str]]:
        """Lose the connection at the n-th boundary from here (0: never). Yields what was lost."""
        self.faults.crossed.clear()
        self.faults.fired = []
        self.faults.at = {boundary: self.server.crash_at if self.server else lose_connection} if boundary else {}
        try:
            yield self.faults.fired
        finally:
            self.faults.at = {}

    def again(self, attempt: Callable[[], Answer]) -> Answer:
        """An administrator's call is repeated by its caller, not by the library. Another thread may crash the server."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return attempt()
            except errors.DatabaseUnavailable as away:
                if time.monotonic() > deadline:
                    raise AssertionError(f"the database was away for {PATIENCE_SECONDS:g} s") from away
            time.sleep(0.01)

    def protocol(self, ask: Callable[[sqlalchemy.Connection], Answer]) -> Answer | str:
        """Make a call in a SQL transaction of its own, repeated until it is answered. Returns the name of a refusal."""

        def attempt() -> Answer | str:
            with self.client.runtime.engine.transaction() as connection:
                try:
                    return ask(connection)
                except errors.RetriableError as error:
                    if isinstance(error, errors.DatabaseUnavailable):
                        raise
                    return named(error)
                except errors.MsgtxError as error:  # an error may carry a decision: it is committed
                    return named(error)

        return self.again(attempt)

    def store(self, ask: Callable[[RawConnection], Answer]) -> Answer | str:
        """Make a call of the store, repeated until it is answered. Returns the name of a refusal."""

        def attempt() -> Answer | str:
            try:
                with self.client.runtime.engine.connection() as connection:
                    return ask(connection)
            except errors.DatabaseUnavailable:
                raise
            except errors.MsgtxError as error:
                return named(error)

        return self.again(attempt)

    # ── what the observer sees ──

    def partition_ids(self, topics: list[str]) -> list[int]:
        with self.observer.runtime.engine.connection() as connection:
            known = describe_topics(connection, topics)
        return [partition_id for topic in topics for partition_id in known[topic].partition_ids]

    def read(self, partition_ids: list[int]) -> list[tuple[object, ...]]:
        """Per partition: both ends, who holds them back, what a reader of either isolation gets from offset 0."""
        positions = {partition_id: Position(0) for partition_id in partition_ids}
        with self.observer.runtime.engine.connection() as connection:
            seen = [fetch(connection, positions, isolation=isolation, max_bytes=1 << 26) for isolation in Isolation]
        found = []
        for partition_id in partition_ids:
            committed, everything = (answers[partition_id] for answers in seen)
            rows = [_rows(answer.batches) for answer in (committed, everything)]
            found.append((committed.last_stable_offset, committed.log_end_offset, committed.blocked_by, *rows))
        return found

    def holds(self, partition_id: int, values: list[bytes]) -> bool:
        """Whether these are in the log, visible or not."""
        with self.observer.runtime.engine.connection() as connection:
            answer = fetch(connection, {partition_id: Position(0)}, isolation=Isolation.READ_UNCOMMITTED, max_bytes=1 << 26)
        stored = {value for _, value in _rows(answer[partition_id].batches)}
        return stored.issuperset(values)

    def crowd(self, group: str, partition_ids: list[int]) -> tuple[object, ...]:
        """Who is a member of a group, and who owns what. Owners are read without asking whether they are members."""
        with self.observer.runtime.engine.connection() as connection:
            state = describe_members(connection, group)
            assert state is not None
            rows = connection.execute(
                "select partition_id, owner, owner_since, target from msgtx.group_assignment where group_id = %s",
                [state.group_id],
            ).fetchall()
        members = {
            member.number: (
                member.member_id,
                member.group_instance_id,
                round((member.heartbeat_at - BEGINNING) / timedelta(milliseconds=1)),
                member.session_over,
            )
            for member in state.members
        }
        places = {partition_ids.index(partition_id): tuple(place) for partition_id, *place in rows}
        for member in state.members:
            told = {partition_ids.index(partition_id): since for partition_id, since in member.owned.items()}
            assert told == {p: since for p, (owner, since, _) in places.items() if owner == member.number}
            heir_of = {partition_ids.index(partition_id) for partition_id in member.target}
            assert heir_of == {p for p, (_, _, heir) in places.items() if heir == member.number}
        return state.generation, state.stale, members, places

    def shares(self, group: str, partition_ids: list[int]) -> dict[tuple[int, int], tuple[object, ...]]:
        """What a share group has in flight: by partition and offset the state, deliveries, who has it, its lock's end."""
        with self.observer.runtime.engine.connection() as connection:
            rows = connection.execute(
                "select partition_id, first_offset, last_offset, state, delivery_count, member_id, locked_until"
                " from msgtx.share_spans where group_name = %s",
                [group],
            ).fetchall()
        found: dict[tuple[int, int], tuple[object, ...]] = {}
        for partition_id, first, last, state, count, member, locked_until in rows:
            until = None if locked_until is None else round((locked_until - BEGINNING) / timedelta(milliseconds=1))
            for offset in range(first, last + 1):
                place = (partition_ids.index(partition_id), offset)
                assert place not in found, f"{place} is in two spans"
                found[place] = (state, count, None if until is None else member, until)
        return found

    def letters(self, group: str, partitions: list[TopicPartition]) -> list[Letter]:
        """What is in a share group's dead-letter topic."""
        topic = f"{group}-dead-letters"
        with self.observer.runtime.engine.connection() as connection:
            ids = describe_topics(connection, [topic])[topic].partition_ids
            ends = {each: Position(0) for each in ids}
            answers = fetch(connection, ends, isolation=Isolation.READ_UNCOMMITTED, max_bytes=1 << 26)
        found = []
        for batch in (batch for answer in answers.values() for batch in answer.batches):  # a row each
            pairs = zip(batch.header_keys or (), batch.header_values or (), strict=True)
            said = {key.removeprefix("msgtx.dead-letter."): (value or b"").decode() for key, value in pairs}
            place = partitions.index(TopicPartition(said["topic"], int(said["partition"])))
            found.append((place, int(said["offset"]), int(said["deliveries"]), said["reason"] == "rejected"))
        return found

    def outcome(self, name: tuple[int, int, int]) -> str:
        return OUTCOMES[self.observer.transaction_outcome(TransactionId(*name))]


def _rows(batches: Sequence[FetchedBatch]) -> list[tuple[int, bytes | None]]:
    return [(batch.base_offset + i, value) for batch in batches for i, value in enumerate(batch.values)]


OUTCOMES: Final = {
    Outcome.OPEN: "OPEN",
    Outcome.COMMITTED: "COMMIT",
    Outcome.ABORTED: "ABORT",
    Outcome.UNKNOWN: "UNKNOWN",
}


def metadata_of(group: str, commit: Commit) -> GroupMetadata:
    """Return who commits an offset, as the library says it."""
    return GroupMetadata(group, commit.member, commit.generation, commit.instance)


def named(error: BaseException) -> str:
    """Return the name of an error, as a user tells them apart."""
    kind = errors.ProducerFenced if isinstance(error, errors.ProducerFenced) else type(error)
    return kind.__name__


def refusal(attempt: Callable[[], Any]) -> Any:
    """Return the answer, or the name of the error."""
    try:
        return attempt()
    except errors.MsgtxError as error:
        return named(error)
