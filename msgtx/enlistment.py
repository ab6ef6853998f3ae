"""What rides in the user's SQL transaction: decisions of sealed transactions, consumer offsets, records (architecture 5).

It is kept beside the user's connection and written just before its COMMIT, after the session's flush: then SQLAlchemy's
connection says `commit`. What a rollback takes back, also one of a savepoint, is never written.
"""

import asyncio
import contextlib
import os
import random
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeVar

import psycopg
import sqlalchemy
from sqlalchemy import event
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.util import await_only

from msgtx import errors
from msgtx.cancellation import to_its_end
from msgtx.database.engine import DEFAULT_ISOLATION, Engine, RawConnection, driver_of, query
from msgtx.database.wire import BatchColumns
from msgtx.store.append import append
from msgtx.store.groups import NO_OFFSETS, OffsetColumns, OffsetRows, columns_of
from msgtx.store.installation import Installation, describe_installation, require_version
from msgtx.store.producers import init_producer_id
from msgtx.store.seal import Sealed, commit_in_session, decide_sealed, seal
from msgtx.store.topics import Topic, describe_topics
from msgtx.store.transactions import end_transaction
from msgtx.types import ProducerId, TransactionId

# As the producer's batch_bytes and batch_records: rows of the log of this size are the fastest to write and to read.
ROW_BYTES: Final = 400 * 1024
ROW_RECORDS: Final = 10_000
POOL_SIZE: Final = 5  # own connections beside a user's engine, for SQL transactions above READ COMMITTED
SEALED_TIMEOUT_MS: Final = 10_000  # of what is sealed just before a COMMIT: twice what an idle session is allowed
TOPIC_SECONDS: Final = 30.0  # how long a topic is known: then it may have more partitions, or another limit
NAMES_TRIED: Final = 5  # producer ids that turn out to be taken or expired, before the commit gives up

UserSession = Session | scoped_session[Any] | sqlalchemy.Connection
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Published:
    """A record that waits for the user's COMMIT. `partition` None: it has no key, and goes where the others go."""

    topic: Topic
    partition: int | None
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Sequence[tuple[str, bytes | None]]


class Owner(Protocol):
    """Whose transaction is decided by the user's COMMIT."""

    def lost(self) -> None:
        """Hear that the user's SQL transaction was rolled back, or that its COMMIT failed."""
        ...


@dataclass(slots=True)
class Writing:
    """A transaction that is still written to, in a block that the user's COMMIT must wait for."""

    owner: Owner
    open: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """A transaction that the user's COMMIT decides."""

    sealed: Sealed
    owner: Owner


@dataclass(slots=True)
class Enlistment:
    """What rides in one SQL transaction of the user. Each thing with the savepoints in which it was added."""

    things: list[tuple[frozenset[str], Published | OffsetRows | Decision | Writing]] = field(default_factory=list)
    over: bool = False

    def add(self, connection: sqlalchemy.Connection, thing: Published | OffsetRows | Decision | Writing) -> None:
        """Have something ride in the transaction that the connection is in."""
        self.things.append((_savepoints(connection), thing))

    def write(self, connection: sqlalchemy.Connection) -> None:
        """Write decisions (producers ascending), offsets (groups), records (partitions). Raise what is refused."""
        if any(isinstance(thing, Writing) and thing.open for _, thing in self.things):
            raise errors.IllegalState("a block of producer.transaction(session=…) is open: leave it before the commit")
        _require_good(connection)
        driver = driver_of(connection)
        for decision in sorted(self._of(Decision), key=lambda each: each.sealed.transaction_id):
            decide_sealed(driver, decision.sealed)
        offsets: OffsetRows = {}
        for rows in self._of(dict):
            offsets |= rows
        calls = list(_calls(self._of(Published)))
        if offsets or calls:
            self._write_log(connection, calls, columns_of(offsets))

    def _write_log(
        self, connection: sqlalchemy.Connection, calls: Sequence[Sequence[BatchColumns]], offsets: OffsetColumns
    ) -> None:
        driver = driver_of(connection)
        for at, batches in enumerate(calls or [()]):
            if not commit_in_session(driver, batches, offsets if at == 0 else NO_OFFSETS):
                self._write_beside(connection, calls, offsets)  # the first call says so: nothing is written yet
                return

    def _write_beside(
        self, connection: sqlalchemy.Connection, calls: Sequence[Sequence[BatchColumns]], offsets: OffsetColumns
    ) -> None:
        driver = driver_of(connection)
        beside = companion(connection)

        def seal_it() -> Sealed:
            sealed = beside.seal(connection, calls, offsets)
            self.add(connection, Decision(sealed, _Settling(beside.engine, sealed.transaction_id)))
            return sealed

        decide_sealed(driver, _off_loop(connection, seal_it))

    def roll_back(self, connection: sqlalchemy.Connection, savepoint: str | None) -> None:
        """Drop what was added since a savepoint (None: everything), and tell whose it was."""
        gone = [thing for names, thing in self.things if savepoint is None or savepoint in names]
        self.things = [(names, thing) for names, thing in self.things if savepoint is not None and savepoint not in names]
        for thing in gone:
            if isinstance(thing, Decision | Writing):
                _off_loop(connection, thing.owner.lost)

    def _of(self, kind: type[Answer]) -> list[Answer]:
        return [thing for _, thing in self.things if isinstance(thing, kind)]


def enlist(session: UserSession, engine: Engine | None = None) -> tuple[sqlalchemy.Connection, Enlistment]:
    """Return the connection of a session, and what rides in its SQL transaction, which is begun if need be.

    `engine`: a client's, whose database must be the session's. Raise `ConfigError` for a database without msgtx, another
    driver, autocommit, or two-phase commit; `IllegalState` for a session that is closed, or must be rolled back first;
    `TypeError` for what is no session.
    """
    connection = _connection_of(session)
    with _usable():
        driver_of(connection)
    _require_good(connection)
    transaction = connection.get_transaction()
    if isinstance(transaction, sqlalchemy.TwoPhaseTransaction):
        raise errors.ConfigError(
            "the session commits in two phases (twophase=True): its COMMIT PREPARED could come at any time, while records"
            " hold their partitions; use a session of one phase, or producer.transaction() with tx.prepare()"
        )
    installation = installation_of(connection)
    if engine is not None and installation.incarnation != engine.incarnation:
        raise errors.ConfigError(
            f"the session's database has another msgtx (incarnation {installation.incarnation}) than the client's"
            f" ({engine.incarnation}): what a session commits is in its own database"
        )
    enlistment = _enlistments.get(connection)
    if connection in _written:
        _take_back(connection, _written.pop(connection))
        raise errors.IllegalState("the session is being committed: what is added now would miss its COMMIT")
    if enlistment is None or enlistment.over:
        enlistment = _enlistments[connection] = Enlistment()
    return connection, enlistment


def _connection_of(session: object) -> sqlalchemy.Connection:
    if isinstance(session, sqlalchemy.Connection):
        connection = session
    elif isinstance(session, Session | scoped_session):
        with _usable():
            connection = session.connection()
    else:
        also = " (msgtx.aio takes async ones)" if type(session).__name__.startswith(("Async", "async")) else ""
        raise TypeError(f"expected SQLAlchemy's Session, scoped_session or Connection{also}, not {type(session).__name__}")
    if connection.closed or connection.invalidated:
        raise errors.IllegalState("the connection is closed: use one that is open")
    driver: Any = connection.connection.driver_connection
    if getattr(driver, "autocommit", False):
        raise errors.ConfigError(
            "the connection commits each statement by itself (AUTOCOMMIT): use one with transactions, there is nothing that"
            " the message could be atomic with"
        )
    return connection


def _require_good(connection: sqlalchemy.Connection) -> None:
    """PostgreSQL would answer the COMMIT of a SQL transaction that has failed with a rollback, and no error."""
    if driver_of(connection).info.transaction_status == psycopg.pq.TransactionStatus.INERROR:
        raise errors.IllegalState("a statement of the SQL transaction has failed: roll it back first")


@contextlib.contextmanager
def _usable() -> Iterator[None]:
    try:
        yield
    except sqlalchemy.exc.UnboundExecutionError as error:
        raise errors.ConfigError("the session has no default bind: hand over the Connection of msgtx's database") from error
    except sqlalchemy.exc.InvalidRequestError as error:
        raise errors.IllegalState(f"the session cannot be used: {str(error).splitlines()[0]}") from error


def installation_of(connection: sqlalchemy.Connection) -> Installation:
    """Return the installation of msgtx in a session's database; asked once for each engine. Raise `ConfigError`."""
    engine = _engine_of(connection)
    found = _installations.get(engine)
    if found is None:
        with _as_savepoint(connection):
            found = describe_installation(driver_of(connection))
        require_version(found)
        _topics[engine] = {}
        for name, heard in _HEARD.items():
            event.listen(engine, name, heard)
        _installations[engine] = found  # last: whoever finds it is heard
    return found


def _engine_of(connection: sqlalchemy.Connection) -> sqlalchemy.Engine:
    """Return the engine that was made; those of `engine.execution_options` share its pool, and come and go."""
    engine = connection.engine
    while (shared := getattr(engine, "_proxied", None)) is not None:
        engine = shared
    return engine


def forget(connection: sqlalchemy.Connection) -> None:
    """Have what is known of the database asked for again: a refusal may come of what has changed there."""
    _topics[_engine_of(connection)] = {}


def topic_of(connection: sqlalchemy.Connection, name: str) -> Topic:
    """Return a topic; it is asked for now and then. Raise `UnknownTopicOrPartition`."""
    known = _topics[_engine_of(connection)]
    since, topic = known.get(name, (0.0, None))
    now = time.monotonic()
    if topic is None or now - since > TOPIC_SECONDS:
        topic = describe_topics(driver_of(connection), [name]).get(name)
        if topic is None:
            raise errors.UnknownTopicOrPartition(f"there is no topic {name!r}; create it first")
        known[name] = (now, topic)
    return topic


@contextlib.contextmanager
def _as_savepoint(connection: sqlalchemy.Connection) -> Iterator[None]:
    """Keep the user's SQL transaction good when the first question is refused: there may be no msgtx."""
    nested = connection.begin_nested()
    try:
        yield
    except BaseException:
        nested.rollback()
        raise
    nested.commit()


# What SQLAlchemy tells


def _commit(connection: sqlalchemy.Connection) -> None:
    enlistment = _enlistments.pop(connection, None)
    if enlistment is None:
        return
    try:
        enlistment.write(connection)
    except BaseException:
        forget(connection)
        _take_back(connection, enlistment)
        raise
    enlistment.over = True
    enlistment.things = [(names, thing) for names, thing in enlistment.things if isinstance(thing, Decision)]
    _written[connection] = enlistment  # its COMMIT may fail; the connection may live for long, and keeps no records


def _take_back(connection: sqlalchemy.Connection, enlistment: Enlistment) -> None:
    """Roll back in the middle of a commit: SQLAlchemy takes the transaction for ended, and would leave it as it is."""
    enlistment.over = True
    try:
        connection.connection.rollback()
    except psycopg.Error as lost:
        connection.invalidate(lost)  # the pool does not hand it out again
    enlistment.roll_back(connection, None)


def _begun(connection: sqlalchemy.Connection) -> None:
    _written.pop(connection, None)


def _rollback(connection: sqlalchemy.Connection) -> None:
    enlistment = _enlistments.pop(connection, None)
    if enlistment is not None:
        enlistment.over = True
        enlistment.roll_back(connection, None)


def _rollback_savepoint(connection: sqlalchemy.Connection, name: str, _: None) -> None:
    enlistment = _enlistments.get(connection)
    if enlistment is not None:
        enlistment.roll_back(connection, name)


def _failed(context: sqlalchemy.engine.ExceptionContext) -> None:
    """Hear that a statement failed; if it was the COMMIT, the transaction is over, and whose it was must know."""
    connection = context.connection
    if connection is not None and context.statement is None and (enlistment := _written.pop(connection, None)) is not None:
        enlistment.roll_back(connection, None)


def _savepoints(connection: sqlalchemy.Connection) -> frozenset[str]:
    """Return the names of the savepoints that the connection is in."""
    found = set()
    nested: Any = connection.get_nested_transaction()
    while nested is not None:
        found.add(nested._savepoint)
        nested = nested._previous_nested
    return frozenset(found)


# Records as rows of the log


def _calls(records: Iterable[Published]) -> Iterator[list[BatchColumns]]:
    """Yield what goes in one call: a row for each partition, ascending; further rows of a partition in further calls."""
    lanes: dict[int, list[Published]] = {}
    drawn: dict[str, int] = {}
    for record in records:
        ids = record.topic.partition_ids
        index = record.partition
        if index is None:
            index = drawn.setdefault(record.topic.name, random.randrange(len(ids)))  # noqa: S311 - spreads load
        lanes.setdefault(ids[index], []).append(record)
    rows = {partition_id: _rows(partition_id, lane) for partition_id, lane in sorted(lanes.items())}
    while rows:
        batches = {partition_id: next(left, None) for partition_id, left in rows.items()}
        if any(batches.values()):
            yield [batch for batch in batches.values() if batch is not None]
        rows = {partition_id: rows[partition_id] for partition_id, batch in batches.items() if batch is not None}


def _rows(partition_id: int, records: Sequence[Published]) -> Iterator[BatchColumns]:
    first, size = 0, 0
    for at, record in enumerate(records):
        added = len(record.key or b"") + len(record.value or b"")
        if at > first and (size + added > ROW_BYTES or at - first >= ROW_RECORDS):
            yield _row(partition_id, records[first:at])
            first, size = at, 0
        size += added
    yield _row(partition_id, records[first:])


def _row(partition_id: int, records: Sequence[Published]) -> BatchColumns:
    return BatchColumns.of(
        partition_id,
        (None, None, None, None),
        keys=[record.key for record in records],
        values=[record.value for record in records],
        timestamps=[record.timestamp for record in records],
        headers=[record.headers for record in records],
    )


# Above READ COMMITTED: sealed on a connection of our own


@dataclass(slots=True)
class _Name:
    """A producer id for transactions that end in users' SQL transactions, one at a time."""

    producer: ProducerId
    number: int = 0
    sequences: dict[int, int] = field(default_factory=dict)  # the next one, by partition id


class Companion:
    """Our own connections beside a user's engine. A kept snapshot does not see the end of the log; they do."""

    def __init__(self, connection: sqlalchemy.Connection) -> None:
        driver = driver_of(connection)
        given = {**driver.info.get_parameters(), "password": driver.info.password}
        if query(driver, DEFAULT_ISOLATION) != [("read committed",)]:  # else nothing is said: not every pooler takes options
            given["options"] = given.get("options", "") + r" -c default_transaction_isolation=read\ committed"
        conninfo = psycopg.conninfo.make_conninfo(**given)

        def connect(_: str, **settings: Any) -> RawConnection:
            return psycopg.connect(conninfo, **settings)

        self.engine = Engine("postgresql://", pool_size=POOL_SIZE, connect=connect)
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[_Name] = []
        self._busy: list[tuple[_Name, weakref.ref[sqlalchemy.Connection]]] = []

    def seal(self, user: sqlalchemy.Connection, calls: Sequence[Sequence[BatchColumns]], offsets: OffsetColumns) -> Sealed:
        """Write and seal a transaction that the user's COMMIT decides. Raise what is refused; nothing stays open then."""
        for attempt in range(NAMES_TRIED):
            try:
                with self.engine.connection() as connection:
                    name = self._take(user) or self._new(connection)
                    sealed = self._seal(connection, name, calls, offsets)
            except (errors.ConcurrentTransactions, errors.FatalError):
                # The COMMIT before failed and nobody could say so yet; or the id was idle for too long.
                if attempt == NAMES_TRIED - 1:
                    raise
                continue
            with self._lock:
                self._busy.append((name, weakref.ref(user)))
            return sealed
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        """Close the connections. Those of before a fork are the parent's."""
        if self.pid == os.getpid():
            self.engine.close()

    def _seal(
        self,
        connection: RawConnection,
        name: _Name,
        calls: Sequence[Sequence[BatchColumns]],
        offsets: OffsetColumns,
    ) -> Sealed:
        transaction_id = TransactionId(*name.producer, name.number)
        tails: dict[int, int] = {}
        try:
            for batches in calls:
                rows = [
                    replace(
                        batch,
                        producer_id=name.producer.producer_id,
                        producer_epoch=name.producer.epoch,
                        transaction_number=name.number,
                        base_sequence=name.sequences.get(batch.partition_id, 0),
                    )
                    for batch in batches
                ]
                answers = append(connection, rows, flushed=False, wake=False, timeout_ms=SEALED_TIMEOUT_MS)
                for batch, answer in zip(rows, answers, strict=True):
                    if answer.error is not None:
                        raise answer.error
                    name.sequences[batch.partition_id] = (batch.base_sequence or 0) + len(batch.values)
                    tails[batch.partition_id] = name.sequences[batch.partition_id] - 1
            sealing = seal(
                connection,
                transaction_id,
                "session",
                tails=tails,
                offsets=offsets,
                timeout_ms=SEALED_TIMEOUT_MS,
                client_host=socket.gethostname(),
                client_process=os.getpid(),
            )
            if sealing.error is not None:
                raise sealing.error
        except BaseException:
            # On a connection of its own: this one may be what has failed.
            with contextlib.suppress(errors.MsgtxError), contextlib.closing(self.engine.dedicated()) as other:
                end_transaction(other, transaction_id, "resolve")
            raise
        assert sealing.sealed is not None
        name.number += 1
        return sealing.sealed

    def _take(self, user: sqlalchemy.Connection) -> _Name | None:
        """Return an id whose last transaction is decided, as far as its user's connection tells."""
        with self._lock:
            still_busy = []
            for name, reference in self._busy:
                held_by = reference()
                if held_by is None or held_by is user or not held_by.in_transaction():
                    self._idle.append(name)
                else:
                    still_busy.append((name, reference))
            self._busy = still_busy
            return self._idle.pop() if self._idle else None

    @staticmethod
    def _new(connection: RawConnection) -> _Name:
        """Return a new id that may hold transactions: the second call gives it its row."""
        plain = init_producer_id(connection, None, timeout_ms=SEALED_TIMEOUT_MS)
        return _Name(init_producer_id(connection, None, timeout_ms=SEALED_TIMEOUT_MS, expected=plain))


@dataclass(frozen=True, slots=True)
class _Settling:
    """The owner of what a companion sealed."""

    engine: Engine
    transaction_id: TransactionId

    def lost(self) -> None:
        """Abort at once, so that it holds no reader up; if that cannot be done, its timeout does it."""
        with contextlib.suppress(errors.MsgtxError), self.engine.connection() as connection:
            end_transaction(connection, self.transaction_id, "resolve")


def companion(connection: sqlalchemy.Connection) -> Companion:
    """Return our own connections beside the engine of a user's connection."""
    engine = _engine_of(connection)
    found = _companions.get(engine)
    if found is not None and found.pid == os.getpid():
        return found
    made = Companion(connection)  # outside the lock: it asks a question, and an event loop goes on meanwhile
    with _companions_lock:
        found = _companions.get(engine)
        if found is None or found.pid != os.getpid():
            found = _companions[engine] = made
            weakref.finalize(engine, found.close)
        return found


def _disposed(engine: sqlalchemy.Engine) -> None:
    """Close our connections with the user's; they are opened again when they are needed."""
    with _companions_lock:
        found = _companions.pop(engine, None)
    if found is not None:
        found.close()


def _off_loop(connection: sqlalchemy.Connection, work: Callable[[], Answer]) -> Answer:
    """Do work that waits, and let an async session's event loop go on meanwhile."""
    if not connection.dialect.is_async:
        return work()
    return await_only(to_its_end(asyncio.get_running_loop().run_in_executor(None, work)))


_HEARD: Final[dict[str, Callable[..., None]]] = {
    "begin": _begun,
    "commit": _commit,
    "rollback": _rollback,
    "rollback_savepoint": _rollback_savepoint,
    "handle_error": _failed,
    "engine_disposed": _disposed,
}
_enlistments: "weakref.WeakKeyDictionary[sqlalchemy.Connection, Enlistment]" = weakref.WeakKeyDictionary()
_written: "weakref.WeakKeyDictionary[sqlalchemy.Connection, Enlistment]" = weakref.WeakKeyDictionary()
_installations: "weakref.WeakKeyDictionary[sqlalchemy.Engine, Installation]" = weakref.WeakKeyDictionary()
_topics: "weakref.WeakKeyDictionary[sqlalchemy.Engine, dict[str, tuple[float, Topic]]]" = weakref.WeakKeyDictionary()
_companions: "weakref.WeakKeyDictionary[sqlalchemy.Engine, Companion]" = weakref.WeakKeyDictionary()
_companions_lock: Final = threading.Lock()
