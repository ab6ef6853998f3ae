"""Our own connections beside a user's engine, for SQL transactions above READ COMMITTED (internals: sessions; P24).

Their snapshot is kept, and does not show the end of the log. So their records are written and sealed here, on the side,
with the rights of the session's role.
"""

import asyncio
import contextlib
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import psycopg
import sqlalchemy
from sqlalchemy.util import await_only

from msgtx import errors, forks
from msgtx.database.calls import CALLER, DEFAULT_ISOLATION, SET_ROLE, driver_of, query
from msgtx.database.connection import Connection, RawConnection, until
from msgtx.database.pool import Engine
from msgtx.database.translation import translated
from msgtx.database.wire import BatchColumns
from msgtx.session.cancellation import to_its_end
from msgtx.store.append.append import Appended, append
from msgtx.store.groups.groups import OffsetColumns
from msgtx.store.shares.answers import AnswerColumns, acknowledge_in_transaction
from msgtx.store.transactions.producers import init_producer_id
from msgtx.store.transactions.seal import Sealed, append_and_seal, seal
from msgtx.store.transactions.transactions import end_transaction
from msgtx.types import ProducerId, TransactionId

SIDE_CONNECTIONS: Final = 5
ONLY_CALL: Final = 0  # of a transaction: its answers are handed over once
SEALED_TIMEOUT_MS: Final = 10_000  # of a transaction that is sealed just before a COMMIT: twice the limit of an idle session
BYTES_PER_MS: Final = 5_000  # a large one has more time: a slow disk writes so much
NAMES_TRIED: Final = 5  # producer ids that turn out to be taken, fenced or expired; the last one tried is a new one

Answer = TypeVar("Answer")


@dataclass(slots=True)
class _Name:
    """A producer id for transactions that end in users' SQL transactions, one at a time."""

    producer: ProducerId
    role: str  # to which it belongs
    number: int = 0
    sequences: dict[int, int] = field(default_factory=dict)  # the next one, by partition id


class Companion:
    """Our own connections beside a user's engine. A kept snapshot does not see the end of the log; they do."""

    at_end: "weakref.finalize[..., sqlalchemy.Engine]"  # closes them with the user's engine

    def __init__(self, connection: sqlalchemy.Connection) -> None:
        driver = driver_of(connection)
        given = driver.info.get_parameters()
        self._place = _place(driver)
        self._password = driver.info.password
        if query(driver, DEFAULT_ISOLATION) != [("read committed",)]:  # else nothing is said: not every pooler takes options
            options = given.get("options", "") + r" -c default_transaction_isolation=read\ committed"
            given = {**given, "options": options}
        conninfo = psycopg.conninfo.make_conninfo(**given)

        def connect(_: str, **settings: Any) -> Connection:
            return Connection.connect(conninfo, password=self._password, **settings)

        self.engine = Engine("postgresql://", pool_size=SIDE_CONNECTIONS, connect=connect)
        self.origin = self.engine.origin
        self._role: str | None = None  # of the connections, if it is known
        self._lock = threading.Lock()
        self._idle: list[_Name] = []
        self._busy: list[tuple[_Name, weakref.ref[sqlalchemy.Connection]]] = []

    def follows(self, connection: sqlalchemy.Connection) -> bool:
        """Take the password of a user's connection: it may be a token. Returns False if login or host are others."""
        driver = driver_of(connection)
        if _place(driver) != self._place:
            return False
        self._password = driver.info.password
        return True

    def seal(
        self,
        user: sqlalchemy.Connection,
        calls: Sequence[Sequence[BatchColumns]],
        offsets: OffsetColumns,
        answers: AnswerColumns,
        *,
        seat: int | None,
        role: str,
    ) -> Sealed:
        """Write and seal a transaction that the user's COMMIT decides.

        Raise the error of a refusal; nothing stays open then.

        `role`: of the user's session, whose rights count.
        """
        timeout_ms = SEALED_TIMEOUT_MS + _bytes_of(calls) // BYTES_PER_MS
        for attempt in range(NAMES_TRIED):
            try:
                # Longer than that it is of no use: its transaction is past its timeout.
                limit = until(time.monotonic() + timeout_ms / 1000)
                with limit, self.engine.connection() as connection:
                    known = self._take(user, role) if attempt < NAMES_TRIED - 1 else None
                    name = known or self._new(connection, role)
                    sealed = self._seal(connection, name, calls, offsets, answers, seat, timeout_ms)
            except (errors.ConcurrentTransactions, errors.FatalError, errors.OutOfOrderSequence):
                # The COMMIT before failed, which could not be reported yet; or the id was idle for too long, or fenced; or
                # the server has crashed before that COMMIT, and lost records.
                if attempt == NAMES_TRIED - 1:
                    raise
                continue
            with self._lock:
                self._busy.append((name, weakref.ref(user)))
            return sealed
        raise AssertionError("the last attempt returns or raises")

    @contextlib.contextmanager
    def acting_as(self, role: str, connection: RawConnection) -> Iterator[None]:
        """Make one call as a role. The setting ends with its SQL transaction: a pooler may share the session."""
        if self._role is None:
            self._role = query(connection, CALLER)[0][0]
        if role == self._role:
            yield
            return
        with translated(connection), connection.transaction():
            query(connection, SET_ROLE, role)
            yield

    def resolve(self, transaction_id: TransactionId, role: str, connection: RawConnection) -> None:
        """Abort a transaction unless it is decided."""
        with self.acting_as(role, connection):
            end_transaction(connection, transaction_id, "resolve")

    def close(self) -> None:
        """Close the connections."""
        self.engine.close()

    def _seal(
        self,
        connection: Connection,
        name: _Name,
        calls: Sequence[Sequence[BatchColumns]],
        offsets: OffsetColumns,
        answers: AnswerColumns,
        seat: int | None,
        timeout_ms: int,
    ) -> Sealed:
        transaction_id = TransactionId(*name.producer, name.number)
        tails: dict[int, int] = {}
        try:
            if len(calls) == 1 and not answers.groups and self._role == name.role:
                sealed = self._seal_at_once(connection, name, transaction_id, calls[0], offsets, seat, timeout_ms)
                if sealed is not None:
                    return sealed
            for batches in calls:
                rows = _rows_of(name, batches)
                with self.acting_as(name.role, connection):
                    appended = append(connection, rows, flushed=False, wake=False, timeout_ms=timeout_ms)
                tails |= _counted(name, rows, appended)
            if answers.groups:
                with self.acting_as(name.role, connection):
                    acknowledge_in_transaction(
                        connection,
                        transaction_id,
                        answers,
                        call_number=ONLY_CALL,
                        timeout_ms=timeout_ms,
                        client_host=socket.gethostname(),
                        client_process=os.getpid(),
                    )
            with self.acting_as(name.role, connection):
                sealing = seal(
                    connection,
                    transaction_id,
                    "session",
                    tails=tails,
                    offsets=offsets,
                    timeout_ms=timeout_ms,
                    client_host=socket.gethostname(),
                    client_process=os.getpid(),
                    seat=seat,
                )
            if sealing.error is not None:
                raise sealing.error
        except BaseException:
            # On a connection of its own: this one may have failed.
            with contextlib.suppress(errors.MsgtxError), contextlib.closing(self.engine.dedicated()) as other:
                self.resolve(transaction_id, name.role, other)
            raise
        assert sealing.sealed is not None
        name.number += 1
        return sealing.sealed

    def _seal_at_once(
        self,
        connection: Connection,
        name: _Name,
        transaction_id: TransactionId,
        batches: Sequence[BatchColumns],
        offsets: OffsetColumns,
        seat: int | None,
        timeout_ms: int,
    ) -> Sealed | None:
        """Write and seal in one round trip, the usual case. None: nothing was done, and the calls one by one say why."""
        rows = _rows_of(name, batches)
        try:
            appended, sealing = append_and_seal(
                connection,
                transaction_id,
                rows,
                tails={row.partition_id: (row.base_sequence or 0) + len(row.values) - 1 for row in rows},
                offsets=offsets,
                timeout_ms=timeout_ms,
                client_host=socket.gethostname(),
                client_process=os.getpid(),
                seat=seat,
            )
        except errors.MsgtxError:
            return None
        _counted(name, rows, appended)
        if sealing.error is not None:
            raise sealing.error
        name.number += 1
        return sealing.sealed

    def _take(self, user: sqlalchemy.Connection, role: str) -> _Name | None:
        """Return an id of a role whose last transaction is decided, as far as its user's connection knows."""
        with self._lock:
            still_busy = []
            for name, reference in self._busy:
                held_by = reference()
                if held_by is None or held_by is user or not held_by.in_transaction():
                    self._idle.append(name)
                else:
                    still_busy.append((name, reference))
            self._busy = still_busy
            found = next((name for name in reversed(self._idle) if name.role == role), None)
            if found is not None:
                self._idle.remove(found)
            return found

    def _new(self, connection: RawConnection, role: str) -> _Name:
        """Return a new id that may hold transactions: the second call gives it its row."""
        with self.acting_as(role, connection):
            plain = init_producer_id(connection, None, timeout_ms=SEALED_TIMEOUT_MS)
        with self.acting_as(role, connection):
            return _Name(init_producer_id(connection, None, timeout_ms=SEALED_TIMEOUT_MS, expected=plain), role)


def _rows_of(name: _Name, batches: Sequence[BatchColumns]) -> list[BatchColumns]:
    return [
        batch._replace(
            producer_id=name.producer.producer_id,
            producer_epoch=name.producer.epoch,
            transaction_number=name.number,
            base_sequence=name.sequences.get(batch.partition_id, 0),
        )
        for batch in batches
    ]


def _counted(name: _Name, rows: Sequence[BatchColumns], appended: Sequence[Appended]) -> dict[int, int]:
    """Count the sequences of stored rows. Returns the last one of each, by partition id. Raise the first refusal."""
    for row, answer in zip(rows, appended, strict=True):
        if answer.error is not None:
            raise answer.error
        name.sequences[row.partition_id] = (row.base_sequence or 0) + len(row.values)
    return {row.partition_id: name.sequences[row.partition_id] - 1 for row in rows}


def _place(driver: RawConnection) -> tuple[str, str, int, str]:
    info = driver.info
    return info.user, info.host, info.port, info.dbname


def _bytes_of(calls: Sequence[Sequence[BatchColumns]]) -> int:
    columns = (
        column
        for batches in calls
        for batch in batches
        for column in (batch.keys, batch.values, batch.header_values)
        if column
    )
    return sum(len(each or b"") for column in columns for each in column)


@dataclass(frozen=True, slots=True)
class Settling:
    """The owner of the transactions that a companion sealed."""

    beside: Companion
    transaction_id: TransactionId
    role: str

    def lost(self) -> None:
        """Abort at once, so that it holds no reader up; if that cannot be done, its timeout does it."""
        limit = until(time.monotonic() + SEALED_TIMEOUT_MS / 1000)
        with contextlib.suppress(errors.MsgtxError), limit, self.beside.engine.connection() as connection:
            self.beside.resolve(self.transaction_id, self.role, connection)


def companion(connection: sqlalchemy.Connection) -> Companion:
    """Return our own connections beside the engine of a user's connection, and as that was opened."""
    engine = engine_of(connection)
    before = _companions.get(engine)
    if before is not None and not before.origin.is_parent and before.follows(connection):
        return before
    made = Companion(connection)  # outside the lock: it asks a question, and an event loop runs on
    with _companions_lock:
        found = _companions.get(engine)
        if found is not before and found is not None:
            return found
        made.at_end = weakref.finalize(engine, made.close)
        _companions[engine] = made
    if before is not None:
        before.close()
        before.at_end.detach()
    return made


def dispose(engine: sqlalchemy.Engine) -> None:
    """Close our connections with the user's; they are opened again when they are needed."""
    with _companions_lock:
        found = _companions.pop(engine, None)
    if found is not None:
        found.close()
        found.at_end.detach()  # it keeps what it would close


def engine_of(connection: sqlalchemy.Connection) -> sqlalchemy.Engine:
    """Return the engine that was made; those of `engine.execution_options` share its pool, and come and go."""
    engine = connection.engine
    while (shared := getattr(engine, "_proxied", None)) is not None:
        engine = shared
    return engine


def off_loop(connection: sqlalchemy.Connection | None, work: Callable[[], Answer]) -> Answer:
    """Do work that waits; an async session's event loop runs on."""
    if connection is None or not connection.dialect.is_async:
        return work()
    return await_only(to_its_end(asyncio.get_running_loop().run_in_executor(None, work)))


_companions: "weakref.WeakKeyDictionary[sqlalchemy.Engine, Companion]" = weakref.WeakKeyDictionary()
_companions_lock: Final = threading.Lock()
os.register_at_fork(after_in_child=lambda: forks.release(_companions_lock))
