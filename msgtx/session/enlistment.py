"""Decisions of sealed transactions, consumer offsets and records that ride in a SQL transaction of SQLAlchemy's.

It is kept beside the user's connection and written just before its COMMIT, after the session's flush: then SQLAlchemy's
connection says `commit`. A rollback, also to a savepoint, drops them, and they are never written.
"""

import contextlib
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import psycopg
import sqlalchemy
from psycopg.pq import TransactionStatus
from sqlalchemy import event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection, PoolResetState

from msgtx import errors
from msgtx.database.calls import driver_of
from msgtx.database.committing import (
    append_and_commit,
    has_deferrable_constraints,
    keeps_its_snapshot,
    may_append,
    may_commit,
)
from msgtx.database.connection import RawConnection
from msgtx.database.pool import Engine
from msgtx.database.translation import translate
from msgtx.database.wire import BatchColumns
from msgtx.session.answers import Answers
from msgtx.session.drivers import (
    DriverSession,
    another_database,
    driver_below,
    enlist_driver,
    is_djangos,
    is_in_transaction,
)
from msgtx.session.endings import endings_of
from msgtx.session.moves import look_for_move
from msgtx.session.published import Published, calls_of
from msgtx.session.riding import Enlisted, Riding, SealedDecision, Thing, Writing
from msgtx.session.side_connection import Settling, companion, dispose, engine_of, off_loop
from msgtx.store.fetch.wakeups import notify, tell_readers, words_of
from msgtx.store.groups.groups import NO_OFFSETS, OffsetColumns, OffsetRows, columns_of
from msgtx.store.operator.installation import Installation, describe_installation, require_version
from msgtx.store.shares.answers import NO_ANSWERS, AnswerColumns, acknowledge_in_session
from msgtx.store.topics.topics import Topic, describe_topics, unknown_topic
from msgtx.store.transactions.seal import (
    Sealed,
    commit_in_session,
    decide_sealed,
    decide_sealed_and_commit,
    take_seat,
    take_seat_and_name,
)

OF_A_STANDBY: Final = "msgtx.refuse_standby("  # in the context of an error
# How long a topic is known: then it may have more partitions, or another limit; and whether constraints are deferrable.
TOPIC_SECONDS: Final = 30.0

UserSession = Session | scoped_session[Any] | sqlalchemy.Connection | DriverSession
Answer = TypeVar("Answer")


class BrokenSession(errors.IllegalState):
    """The SQL transaction of a session was ended, and SQLAlchemy was not told. Leave that to the session."""


@dataclass(slots=True, weakref_slot=True)
class Enlistment:
    """The additions to one SQL transaction of the user, SQLAlchemy's `transaction`. `written`: its COMMIT comes, or came."""

    transaction: "weakref.ref[sqlalchemy.RootTransaction]"
    ended: int  # SQL transactions of the driver's connection before this one
    things: list[tuple[frozenset[str], Thing]] = field(default_factory=list)  # with the savepoints in which each was added
    written: bool = False
    partitions: set[int] = field(default_factory=set)  # partitions of the written records
    # What goes with the COMMIT, in one round trip: says whether readers were notified; None: the COMMIT is still to come.
    with_commit: Callable[[], bool | None] | None = None

    def add(self, connection: sqlalchemy.Connection, thing: Thing) -> None:
        """Have something ride in the transaction that the connection is in."""
        self.things.append((_savepoints(connection), thing))
        if isinstance(thing, Answers):
            thing.is_owned = True

    def write(self, connection: sqlalchemy.Connection) -> None:
        """Write decisions (producers ascending), offsets (groups), records (partitions). Raise the error of a refusal.

        Records that are alone, the usual case, go with the COMMIT, or the decision of what is written beside the session.
        """
        if any(isinstance(thing, Writing) and thing.open for _, thing in self.things):
            raise errors.IllegalState(
                "a block of producer.transaction(session=…) is open: leave it before the commit", reason="block"
            )
        ridings = self._of(Riding)
        for riding in ridings:
            if riding.refusal is not None:
                raise errors.IllegalState(riding.refusal, reason="block")
        driver = driver_of(connection)
        _require_good(driver)
        self.require_unbroken(connection)
        for decision in sorted(self._of(SealedDecision), key=lambda each: each.sealed.transaction_id):
            decide_sealed(driver, decision.sealed)
        offsets: OffsetRows = {}
        for riding in ridings:
            offsets |= riding.rows
        calls = list(calls_of(self._of(Published)))
        self.partitions.update(batch.partition_id for batches in calls for batch in batches)
        self.partitions.update(*(decision.sealed.partitions for decision in self._of(SealedDecision)))
        answers = sum((each.columns for each in self._of(Answers)), NO_ANSWERS)
        is_alone = len(calls) == 1 and all(isinstance(thing, Published) for _, thing in self.things)
        if is_alone and may_append(driver) and not _has_deferrable_constraints(connection, driver):
            self.with_commit = partial(self._append_and_commit, connection, driver, calls[0])
        elif offsets or calls or answers.groups:
            self._write_log(connection, calls, columns_of(offsets), answers)
        for riding in ridings:
            riding.written = True

    def commit(self, connection: sqlalchemy.Connection) -> None:
        """Commit, with what was left to the COMMIT; if that finds that it cannot, leave the COMMIT to SQLAlchemy."""
        while (work := self.with_commit) is not None:
            self.with_commit = None
            self.require_unbroken(connection)  # again: another listener to the commit may have ended it
            if work():
                self.partitions.clear()  # else they are notified when the connection goes back to its pool

    def _append_and_commit(
        self, connection: sqlalchemy.Connection, driver: psycopg.Connection[Any], batches: Sequence[BatchColumns]
    ) -> bool | None:
        notified = append_and_commit(driver, batches, words=self._words)
        if notified is None:
            self._write_log(connection, [batches], NO_OFFSETS, NO_ANSWERS)
        elif not notified:
            _tell_readers(driver, self.partitions)
        return notified

    def _decide_and_commit(self, driver: psycopg.Connection[Any], sealed: Sealed) -> bool:
        return decide_sealed_and_commit(driver, sealed, words=self._words)

    @property
    def _words(self) -> str:
        """Who is notified of the COMMIT."""
        return words_of(sorted(self.partitions))

    def require_unbroken(self, connection: sqlalchemy.Connection) -> None:
        """Raise `BrokenSession` if this is another SQL transaction than the one in which the things were added."""
        if endings_of(driver_of(connection)).count != self.ended:
            raise BrokenSession(
                "the SQL transaction was ended below SQLAlchemy, by a ROLLBACK, a COMMIT or autocommit, as SQL or of the"
                " driver: its rows would part from what is committed with them; use the session's own rollback and commit,"
                " or a savepoint (session.begin_nested())"
            )

    def _write_log(
        self,
        connection: sqlalchemy.Connection,
        calls: Sequence[Sequence[BatchColumns]],
        offsets: OffsetColumns,
        answers: AnswerColumns,
    ) -> None:
        driver = driver_of(connection)
        if keeps_its_snapshot(driver):
            self._write_beside(connection, calls, offsets, answers)
            return
        # The first call of all says that this is not the isolation for it: nothing is written then.
        if answers.groups and not acknowledge_in_session(driver, answers):
            self._write_beside(connection, calls, offsets, answers)
            return
        for at, batches in enumerate(calls or ([()] if offsets.groups else [])):
            if not commit_in_session(driver, batches, offsets if at == 0 else NO_OFFSETS):
                self._write_beside(connection, calls, offsets, answers)
                return

    def _write_beside(
        self,
        connection: sqlalchemy.Connection,
        calls: Sequence[Sequence[BatchColumns]],
        offsets: OffsetColumns,
        answers: AnswerColumns,
    ) -> None:
        driver = driver_of(connection)
        beside, (seat, role) = companion(connection), take_seat_and_name(driver)

        def seal_it() -> Sealed:
            sealed = beside.seal(connection, calls, offsets, answers, seat=seat, role=role)
            self.add(connection, SealedDecision(sealed, Settling(beside, sealed.transaction_id, role)))
            return sealed

        sealed = off_loop(connection, seal_it)
        if may_commit(driver):
            self.with_commit = partial(self._decide_and_commit, driver, sealed)
        else:
            decide_sealed(driver, sealed)

    @property
    def is_open(self) -> bool:
        """Whether the COMMIT is still to come, or under way in another thread.

        Else it has ended, whether or not an event said so.
        """
        transaction = self.transaction()
        return transaction is not None and transaction.is_active

    def roll_back(self, connection: sqlalchemy.Connection | None, savepoint: str | None, *, in_doubt: bool = False) -> None:
        """Drop the additions since a savepoint (None: all), and tell their owners.

        `in_doubt`: a COMMIT that was sent may be done.
        """
        if savepoint is None:  # else it is one of another listener's to the commit
            self.with_commit = None
        gone = [thing for names, thing in self.things if savepoint is None or savepoint in names]
        for thing in gone:
            if isinstance(thing, Riding):
                thing.written &= in_doubt
        self.things = [(names, thing) for names, thing in self.things if savepoint is not None and savepoint not in names]
        with contextlib.ExitStack() as each:  # all are told, even if an interrupt ends the wait of one
            for thing in reversed(gone):
                if isinstance(thing, Answers):
                    each.callback(off_loop, connection, thing.lost)
                elif not isinstance(thing, Published):
                    each.callback(off_loop, connection, thing.owner.lost)

    def _of(self, kind: type[Answer]) -> list[Answer]:
        return [thing for _, thing in self.things if isinstance(thing, kind)]


def enlist(session: UserSession, engine: Engine | None = None) -> tuple[Any, Enlisted]:
    """Return the connection of a session, and the enlistment of its SQL transaction, which is begun if need be.

    `engine`: a client's, whose database must be the session's. Raise `ConfigError` for a database without msgtx, another
    driver, autocommit, or two-phase commit; `IllegalState` for a session that is closed, or must be rolled back first;
    `TypeError` if it is no session.
    """
    if (driver := driver_below(session)) is not None:
        return driver, enlist_driver(driver, engine)
    require_session(session)
    return enlist_in(session, engine)


def enlist_in(session: UserSession, engine: Engine | None) -> tuple[sqlalchemy.Connection, Enlistment]:
    """Return the connection and the enlistment of a session of SQLAlchemy. Raise as `enlist`."""
    connection = _connection_of(session)
    with _usable():
        driver = driver_of(connection)
    _require_good(driver)
    transaction = connection.get_transaction()
    assert transaction is not None
    if isinstance(transaction, sqlalchemy.TwoPhaseTransaction):
        raise errors.ConfigError(
            "the session commits in two phases (twophase=True): its COMMIT PREPARED could come at any time, while records"
            " hold their partitions; use a session of one phase, or producer.transaction() with tx.prepare()",
            reason="two phases",
        )
    installation = installation_of(connection)
    if engine is not None and installation.incarnation != engine.incarnation:
        installation = _ask_again(connection)  # the client may be made after a failover, and the engine before it
        if installation.incarnation != engine.incarnation:
            raise another_database(installation, engine)
    with _telling_of_a_loss(connection):
        look_for_move(driver, installation.incarnation)
    enlistment = _enlistments.get(connection)
    if enlistment is not None and enlistment.written:
        _take_back(connection, enlistment)
        raise errors.IllegalState(
            "the session is being committed: what is added now would miss its COMMIT", reason="being committed"
        )
    if enlistment is not None:
        enlistment.require_unbroken(connection)
    else:
        enlistment = Enlistment(weakref.ref(transaction), endings_of(driver).count)
        _enlisted[driver] = (weakref.ref(connection), weakref.ref(enlistment))
        _enlistments[connection] = enlistment
    return connection, enlistment


def published_in(session: UserSession) -> list[Published]:
    """Return the records that ride in the SQL transaction of a session of SQLAlchemy. Raise `TypeError` for another one."""
    enlistment = _enlistments.get(_connection_of(session))
    return [] if enlistment is None else enlistment._of(Published)


def is_begun(session: UserSession) -> bool:
    """Return whether a session is in a SQL transaction."""
    if (driver := driver_below(session)) is not None:
        return is_in_transaction(driver)
    assert isinstance(session, Session | scoped_session | sqlalchemy.Connection)
    return (session() if isinstance(session, scoped_session) else session).in_transaction()


def require_session(session: object) -> None:
    """Raise `WrongType` if it is no session, or one of an event loop."""
    known = isinstance(session, sqlalchemy.Connection | Session | scoped_session | psycopg.Connection)
    if not known and not is_djangos(session):
        raise _no_session(session, "SQLAlchemy's Session, scoped_session or Connection, psycopg's Connection or Django's")


def _no_session(session: object, wanted: str) -> errors.WrongType:
    kind = type(session)
    also = " (msgtx.aio takes async ones)" if kind.__name__.startswith(("Async", "async")) else ""
    return errors.WrongType(f"expected {wanted}{also}, not {kind.__module__}.{kind.__qualname__}", name="session")


def _connection_of(session: object) -> sqlalchemy.Connection:
    if not isinstance(session, sqlalchemy.Connection | Session | scoped_session):
        raise _no_session(session, "SQLAlchemy's Session, scoped_session or Connection")
    if isinstance(session, sqlalchemy.Connection):
        connection = session
    else:
        with _usable():
            connection = session.connection()
    if connection.closed or connection.invalidated:
        raise errors.IllegalState("the connection is closed: use one that is open", reason="closed")
    driver: Any = connection.connection.driver_connection
    if getattr(driver, "autocommit", False) is True:  # another database's driver has another meaning for it
        raise errors.ConfigError(
            "the connection commits each statement by itself (AUTOCOMMIT): use one with transactions, there is nothing that"
            " the message could be atomic with",
            reason="autocommit",
        )
    return connection


def _require_good(driver: RawConnection) -> None:
    """PostgreSQL would answer the COMMIT of a SQL transaction that has failed with a rollback, and no error."""
    if driver.info.transaction_status == TransactionStatus.INERROR:
        raise errors.IllegalState("a statement of the SQL transaction has failed: roll it back first", reason="failed")


@contextlib.contextmanager
def _usable() -> Iterator[None]:
    try:
        yield
    except sqlalchemy.exc.UnboundExecutionError as error:
        raise errors.ConfigError(
            "the session has no default bind: hand over the Connection of msgtx's database", reason="no bind"
        ) from error
    except sqlalchemy.exc.InvalidRequestError as error:
        raise errors.IllegalState(f"the session cannot be used: {str(error).splitlines()[0]}", reason="unusable") from error


def installation_of(connection: sqlalchemy.Connection) -> Installation:
    """Return the installation of msgtx in a session's database; asked once for each engine. Raise `ConfigError`."""
    engine = engine_of(connection)
    found = _installations.get(engine)
    if found is None:
        found = _described(connection)
        _topics[engine] = {}
        for name, heard in _HEARD.items():
            event.listen(engine, name, heard)
        _prove_commits(engine.dialect)
        _installations[engine] = found  # last: what finds it here has its listeners
    return found


def _ask_again(connection: sqlalchemy.Connection) -> Installation:
    found = _installations[engine_of(connection)] = _described(connection)
    forget(connection)
    return found


def _described(connection: sqlalchemy.Connection) -> Installation:
    with _telling_of_a_loss(connection), _as_savepoint(connection):
        found = describe_installation(driver_of(connection))
    require_version(found)
    return found


def seat_of(connection: sqlalchemy.Connection) -> int | None:
    """Take a seat in a user's SQL transaction, for a transaction that will be sealed for it."""
    with _telling_of_a_loss(connection):
        return take_seat(driver_of(connection))


@contextlib.contextmanager
def _telling_of_a_loss(connection: sqlalchemy.Connection) -> Iterator[None]:
    """Tell SQLAlchemy of a connection that is lost in a call which it does not see: its session can be closed then."""
    driver = driver_of(connection)
    try:
        yield
    except errors.MsgtxError as error:
        if driver.closed:
            connection.invalidate(error)
        raise


def forget(connection: sqlalchemy.Connection) -> None:
    """Forget the known facts of the database: a change of them may be the reason of a refusal."""
    _topics[engine_of(connection)] = {}


def topic_of(connection: sqlalchemy.Connection | RawConnection, name: str) -> Topic:
    """Return a topic; it is asked for now and then. Raise `UnknownTopicOrPartition`."""
    key, driver = (
        (engine_of(connection), driver_of(connection))
        if isinstance(connection, sqlalchemy.Connection)
        else (connection, connection)
    )
    known = _topics.setdefault(key, {})
    since, topic = known.get(name, (0.0, None))
    now = time.monotonic()
    if topic is None or now - since > TOPIC_SECONDS:
        topic = describe_topics(driver, [name]).get(name)
        if topic is None:
            raise unknown_topic(driver, name)
        known[name] = (now, topic)
    return topic


def _has_deferrable_constraints(connection: sqlalchemy.Connection, driver: psycopg.Connection[Any]) -> bool:
    """Return whether the user's tables have any; it is asked now and then."""
    engine = engine_of(connection)
    since, found = _deferrable.get(engine, (0.0, True))
    if time.monotonic() - since > TOPIC_SECONDS:
        found = has_deferrable_constraints(driver)
        _deferrable[engine] = (time.monotonic(), found)
    return found


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


# SQLAlchemy's events


def _commit(connection: sqlalchemy.Connection) -> None:
    enlistment = _enlistments.get(connection)
    if enlistment is None:
        return
    try:
        with _as_a_statement():
            enlistment.write(connection)
        enlistment.written = True
    except BaseException:
        forget(connection)
        _take_back(connection, enlistment)
        raise


@contextlib.contextmanager
def _as_a_statement() -> Iterator[None]:
    """Raise SQLAlchemy's error on a standby, as a statement of the user's does: by it services look for the primary."""
    try:
        yield
    except errors.ConfigError as error:
        original = error.__cause__
        if not isinstance(original, psycopg.Error) or OF_A_STANDBY not in (original.diag.context or ""):
            raise  # a read-only transaction is the user's own setting
        raise sqlalchemy.exc.DBAPIError.instance(None, None, original, psycopg.Error) from original


def _prove_commits(dialect: sqlalchemy.Dialect) -> None:
    """Call `_committed` after each COMMIT that succeeds: SQLAlchemy has an event before it only."""
    do_commit = dialect.do_commit

    def commit(adapted: PoolProxiedConnection) -> None:
        driver: Any = adapted.driver_connection
        if driver in _enlisted:
            _require_good(driver)  # again: another listener may have run a statement since
            _commit_with_records(driver)
        do_commit(adapted)
        _committed(driver)

    dialect.do_commit = commit  # type: ignore[assignment,method-assign]


def _commit_with_records(driver: Any) -> None:
    connection, enlistment = _enlisted[driver][0](), _enlisted[driver][1]()
    if connection is None or enlistment is None or enlistment.with_commit is None:
        return
    try:
        with _as_a_statement():
            enlistment.commit(connection)
    except BaseException as error:
        forget(connection)
        if not (driver.closed and isinstance(error, psycopg.Error)):  # else SQLAlchemy sees that it is lost, as it is here
            _take_back(connection, enlistment)
        raise


def _tell_readers(driver: psycopg.Connection[Any], partitions: set[int]) -> None:
    """Have listeners find a COMMIT that could not be notified, in a SQL transaction that the dialect's `do_commit` ends.

    The COMMIT itself is done: no error of this is one of it.
    """
    try:
        tell_readers(driver, sorted(partitions))
    except (errors.MsgtxError, psycopg.Error):
        with contextlib.suppress(psycopg.Error):
            driver.rollback()


def _committed(driver: Any) -> None:
    """Note that a COMMIT was done. If an interrupt comes before the note, the COMMIT is in doubt."""
    refs = None if driver is None else _enlisted.pop(driver, None)
    connection = None if refs is None else refs[0]()
    enlistment = None if connection is None else _enlistments.pop(connection, None)
    if enlistment is None:
        return
    for riding in enlistment._of(Riding):
        riding.committed = True
    for answers in enlistment._of(Answers):
        answers.committed()
    _not_notified[driver] = enlistment.partitions
    enlistment.things.clear()  # its producer may hold it for long


def _take_back(connection: sqlalchemy.Connection, enlistment: Enlistment) -> None:
    """Roll back in the middle of a commit: SQLAlchemy takes the transaction for ended, and would leave it as it is."""
    adapted = None if connection.invalidated else connection.connection
    was_open = adapted is not None and _roll_back(adapted, adapted.driver_connection, connection.invalidate)
    enlistment.roll_back(connection, None, in_doubt=not was_open)


def _roll_back(
    adapted: DBAPIConnection | PoolProxiedConnection, driver: Any, invalidate: Callable[[BaseException], object]
) -> bool:
    """Roll back the transaction of a connection. Returns whether there was anything, so that nothing was committed."""
    was_open = driver.info.transaction_status not in {TransactionStatus.IDLE, TransactionStatus.UNKNOWN}
    try:
        adapted.rollback()
    except psycopg.Error as lost:
        invalidate(lost)  # the pool does not hand it out again
    return was_open


def _executed(connection: sqlalchemy.Connection, cursor: object, statement: str, *_: object) -> None:
    """Handle that a statement was executed: it may have ended the SQL transaction."""
    if connection in _enlistments:
        driver = driver_of(connection)
        endings_of(driver).executed(driver, cursor, statement)


def _begun(connection: sqlalchemy.Connection) -> None:
    """Handle the begin of a transaction. An interrupted or refused commit may have left the one before open."""
    before = _enlistments.get(connection)
    if before is not None:
        _take_back(connection, before)
        del _enlistments[connection]


def _rollback(connection: sqlalchemy.Connection, savepoint: str | None = None, _: None = None) -> None:
    enlistment = _enlistments.get(connection)
    if enlistment is not None:
        enlistment.roll_back(connection, savepoint)


def _failed(context: sqlalchemy.engine.ExceptionContext) -> Exception | None:
    """Handle a failure. A failed COMMIT ends the transaction, and its owner must know.

    Other failures have no statement either, and the transaction continues: those of a requested isolation level, or,
    with the context of their statement, of unreadable rows. Returns msgtx's error for a refusal of its own functions at
    COMMIT; None: SQLAlchemy's is as good.
    """
    connection = context.connection
    if connection is None or context.statement is not None or context.execution_context is not None:
        return None
    enlistment = _enlistments.get(connection)
    if enlistment is None or not enlistment.written:
        return None
    forget(connection)
    enlistment.roll_back(connection, None, in_doubt=context.is_disconnect)
    original = context.original_exception
    if isinstance(original, psycopg.Error) and "msgtx." in (original.diag.context or ""):
        driver: Any = connection.connection.driver_connection
        translated = translate(original, driver)
        return None if translated is original else translated
    return None


def _returned(adapted: DBAPIConnection, record: ConnectionPoolEntry | None, state: PoolResetState) -> None:
    """Roll back a connection that goes back to the pool, and notify listeners of its earlier commits.

    SQLAlchemy does not roll back where its commit was interrupted, or another listener has raised, and the pool may be told
    not to, or to commit: the next user's COMMIT would have the rows.
    """
    if record is None or not state.asyncio_safe:
        return  # it is not the pool's any more, or nothing can be sent on it here
    driver: Any = record.driver_connection
    if (left := _enlisted.pop(driver, None)) is not None:
        connection, enlistment = left[0](), left[1]()
        was_open = _roll_back(adapted, driver, record.invalidate)
        if enlistment is not None:
            enlistment.roll_back(connection, None, in_doubt=not was_open)
    _notify_of_commit(driver)


def _notify_of_commit(driver: Any) -> None:
    """Notify the readers of a connection's commits.

    They would look by themselves, a little later: so they do for a connection that stays with its user, and an async one.
    """
    if isinstance(driver, psycopg.Connection) and (partitions := _not_notified.pop(driver, None)):
        before = driver.autocommit  # True in the pool of `Engine`
        with contextlib.suppress(psycopg.Error, errors.MsgtxError):  # it is lost, or still in a SQL transaction
            driver.autocommit = True
            try:
                notify(driver, words_of(sorted(partitions)))
            finally:
                driver.autocommit = before


def _savepoints(connection: sqlalchemy.Connection) -> frozenset[str]:
    """Return the names of the savepoints that the connection is in."""
    found = set()
    nested: Any = connection.get_nested_transaction()
    while nested is not None:
        found.add(nested._savepoint)
        nested = nested._previous_nested
    return frozenset(found)


_HEARD: Final[dict[str, Callable[..., object]]] = {
    "begin": _begun,
    "after_cursor_execute": _executed,
    "commit": _commit,
    "rollback": _rollback,
    "rollback_savepoint": _rollback,
    "handle_error": _failed,
    "engine_disposed": dispose,
    "reset": _returned,
}
_enlistments: "weakref.WeakKeyDictionary[sqlalchemy.Connection, Enlistment]" = weakref.WeakKeyDictionary()
# By the driver's connection: the connection of SQLAlchemy's whose additions ride in its transaction.
_enlisted: "weakref.WeakKeyDictionary[Any, tuple[weakref.ref[sqlalchemy.Connection], weakref.ref[Enlistment]]]" = (
    weakref.WeakKeyDictionary()
)
# Partitions of the last COMMIT of a driver's connection, whose readers are not notified yet.
_not_notified: "weakref.WeakKeyDictionary[Any, set[int]]" = weakref.WeakKeyDictionary()
_installations: "weakref.WeakKeyDictionary[sqlalchemy.Engine, Installation]" = weakref.WeakKeyDictionary()
_deferrable: "weakref.WeakKeyDictionary[sqlalchemy.Engine, tuple[float, bool]]" = weakref.WeakKeyDictionary()
# By engine of SQLAlchemy, or by connection of a driver.
_topics: "weakref.WeakKeyDictionary[Any, dict[str, tuple[float, Topic]]]" = weakref.WeakKeyDictionary()
