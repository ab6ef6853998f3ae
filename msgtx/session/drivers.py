"""What rides on a driver's connection without SQLAlchemy: psycopg's, the one below Django's, asyncpg's.

A driver tells nobody that it commits. So everything is staged in the SQL transaction at once, and the COMMIT itself writes
it; a rollback, also to a savepoint, takes it back. How a SQL transaction ended is asked of the server (internals:
sessions#connections-of-drivers).
"""

import contextlib
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol, TypeGuard, cast

import psycopg
from psycopg.pq import TransactionStatus

from msgtx import errors
from msgtx.database.asyncpg import Asyncpg
from msgtx.database.connection import RawConnection
from msgtx.database.pool import Engine
from msgtx.database.translation import sqlstate_of, translate_own
from msgtx.session.answers import Answers
from msgtx.session.endings import warn_of_unconfirmed
from msgtx.session.moves import look_for_move
from msgtx.session.published import Published, calls_of
from msgtx.session.riding import Riding, Thing
from msgtx.store.groups.groups import NO_OFFSETS, columns_of
from msgtx.store.operator.installation import Installation, describe_installation, require_version
from msgtx.store.shares.answers import acknowledge_in_session
from msgtx.store.transactions.seal import (
    Ended,
    commit_in_session,
    ended_as,
    hold_commit,
    release_commit,
    transaction_number,
)


class DjangoConnection(Protocol):
    """A connection of Django, such as `django.db.connection`."""

    connection: Any
    in_atomic_block: bool

    def ensure_connection(self) -> None:
        """Connect, unless it is connected."""
        ...


DriverSession = psycopg.Connection[Any] | DjangoConnection


@dataclass(slots=True, eq=False, weakref_slot=True)
class DriverEnlistment:
    """The additions to one SQL transaction. `number`: the server's for it; None: nothing but records is added."""

    engine: Engine | None
    number: int | None
    # With the number whose end decides, once it is known.
    things: list[tuple[Thing, list[int]]] = field(default_factory=list)

    def add(self, connection: RawConnection, thing: Thing) -> None:
        """Stage something. Raise the error of a refusal: the SQL transaction has failed then."""
        match thing:
            case Published():
                for batches in calls_of([thing]):
                    _require_read_committed(commit_in_session(connection, batches))
            case Riding():
                held = hold_commit(connection, columns_of(thing.rows))
                decided: list[int] = []
                self.things.append((thing, decided))
                thing.release = partial(self._release, connection, held, thing, decided)
                if thing.refusal is None:
                    thing.allow()
            case Answers():
                held = hold_commit(connection, NO_OFFSETS)
                _require_read_committed(acknowledge_in_session(connection, thing.columns))
                number = release_commit(connection, held)
                assert number is not None
                self.things.append((thing, [number]))
                thing.is_owned = True
            case _:
                raise AssertionError("a producer's transaction takes sessions of SQLAlchemy only")

    def _release(self, connection: RawConnection, held: int, riding: Riding, decided: list[int]) -> None:
        riding.release = None
        _require_good(connection)
        number = release_commit(connection, held) if is_in_transaction(connection) else None
        if number is None:
            self.roll_back()
        else:
            decided.append(number)

    @contextlib.contextmanager
    def committing(self) -> Iterator[None]:
        """Tell the owners how the COMMIT of the block ended. Its error is raised as msgtx's, if msgtx raised it."""
        for thing, _ in self.things:
            if isinstance(thing, Riding):
                thing.written = True
        try:
            yield
        except BaseException as error:
            self.roll_back(in_doubt=not _is_answered(error))
            if (own := translate_own(error)) is not None:
                raise own from error
            raise
        self.committed()

    def committed(self) -> None:
        """Note that the COMMIT was done."""
        for thing, _ in self.things:
            _committed(thing)
        self.things.clear()

    def roll_back(self, *, in_doubt: bool = False) -> None:
        """Note that nothing was committed. `in_doubt`: a COMMIT that was sent may be done."""
        things, self.things = self.things, []
        for thing, _ in reversed(things):
            _lost(thing, in_doubt=in_doubt)

    @property
    def is_open(self) -> bool:
        """Whether it has not ended, as the server knows. The owners of what has ended are told."""
        left = []
        for thing, decided in self.things:
            end = Ended.NOT_YET if not decided or self.engine is None else self._ended(decided[0])
            match end:
                case Ended.COMMITTED:
                    _committed(thing)
                case Ended.ROLLED_BACK:
                    _lost(thing, in_doubt=False)
                case Ended.NOT_YET:
                    left.append((thing, decided))
        self.things = left
        return bool(left)

    def _ended(self, number: int) -> Ended:
        assert self.engine is not None
        with self.engine.connection() as connection:
            return ended_as(connection, number)


def _committed(thing: Thing) -> None:
    if isinstance(thing, Riding):
        thing.committed = True
    elif isinstance(thing, Answers):
        thing.committed()


def _lost(thing: Thing, *, in_doubt: bool) -> None:
    if isinstance(thing, Riding):
        thing.written &= in_doubt
        thing.release = None
        thing.owner.lost()
    elif isinstance(thing, Answers):
        thing.lost()


def _is_answered(error: BaseException) -> bool:
    """Return whether the server has refused a COMMIT, and its session continues."""
    return sqlstate_of(error)[:2] not in {"", "08", "57", "58"}


def _require_read_committed(staged: bool) -> None:
    if not staged:
        raise errors.ConfigError(
            "the SQL transaction is above READ COMMITTED: records and offsets ride there in sessions of SQLAlchemy only",
            name="transaction_isolation",
            reason="isolation",
        )


def driver_below(session: object) -> RawConnection | None:
    """Return the driver's connection of a session that is not SQLAlchemy's; None: it is no such session.

    Raise `ConfigError` for Django's with another driver than psycopg 3, `IllegalState` for one that is closed.
    """
    found = _below(session)
    if found is not None and found.closed:
        raise errors.IllegalState("the connection is closed: use one that is open", reason="closed")
    return found


def _below(session: object) -> RawConnection | None:
    if is_asyncpgs(session):
        found: Any = _of_asyncpg(session)
    elif isinstance(session, psycopg.Connection | psycopg.AsyncConnection):
        found = session
    elif is_djangos(session):
        session.ensure_connection()
        found = session.connection
        if not isinstance(found, psycopg.Connection):
            raise errors.ConfigError("msgtx needs a connection of psycopg 3: install `psycopg` for Django", reason="driver")
    else:
        return None
    return cast(RawConnection, found)


def is_djangos(session: object) -> TypeGuard[DjangoConnection]:
    """Return whether it is a connection of Django. Only a method is asked for: other attributes may raise."""
    return hasattr(session, "ensure_connection")


def is_asyncpgs(session: object) -> bool:
    """Return whether this is a connection of asyncpg, or of its pool."""
    return type(session).__module__.partition(".")[0] == "asyncpg" and hasattr(session, "is_in_transaction")


def _of_asyncpg(session: Any) -> Asyncpg:
    given = getattr(session, "_con", session)  # below the proxy of its pool
    if given is None:
        raise errors.IllegalState("the connection is closed: its pool has it back", reason="closed")
    found = _of_asyncpgs.get(given)
    if found is None:
        found = _of_asyncpgs[given] = Asyncpg(given)
    return found


def is_in_transaction(driver: RawConnection) -> bool:
    """Return whether a driver's connection is in a SQL transaction."""
    if isinstance(driver, Asyncpg):
        return driver.given.is_in_transaction()
    return driver.info.transaction_status not in {TransactionStatus.IDLE, TransactionStatus.UNKNOWN}


def _require_good(driver: RawConnection) -> None:
    if not isinstance(driver, Asyncpg) and driver.info.transaction_status == TransactionStatus.INERROR:
        raise errors.IllegalState("a statement of the SQL transaction has failed: roll it back first", reason="failed")


def enlist_driver(driver: RawConnection, engine: Engine | None) -> DriverEnlistment:
    """Return the enlistment of a driver's SQL transaction. Raise as `enlist`."""
    _require_transaction(driver)
    warn_of_unconfirmed(driver)  # each time: a pool of asyncpg forgets it
    installation = _installations.get(driver)
    if installation is None or (engine is not None and installation.incarnation != engine.incarnation):
        installation = _installations[driver] = describe_installation(driver)
        require_version(installation)
    look_for_move(driver, installation.incarnation)
    if engine is None:
        return DriverEnlistment(None, None)
    if installation.incarnation != engine.incarnation:
        raise another_database(installation, engine)
    number = transaction_number(driver)
    found = _enlistments.get(driver)
    if found is None or found.number != number:
        found = _enlistments[driver] = DriverEnlistment(engine, number)
    return found


def enlistment_of(session: object) -> DriverEnlistment | None:
    """Return the last enlistment of a driver's connection; None: it has none, or the session is SQLAlchemy's."""
    driver = _below(session)
    return None if driver is None else _enlistments.get(driver)


def another_database(installation: Installation, engine: Engine) -> errors.ConfigError:
    """Return the refusal of a session on another database than the client's."""
    return errors.ConfigError(
        f"the session's database has another msgtx (incarnation {installation.incarnation}) than the client's"
        f" ({engine.incarnation}): what a session commits is in its own database",
        reason="another database",
    )


def _require_transaction(driver: RawConnection) -> None:
    if isinstance(driver, Asyncpg):
        autocommits = not driver.given.is_in_transaction()
    else:
        _require_good(driver)
        autocommits = driver.autocommit and driver.info.transaction_status == TransactionStatus.IDLE
    if autocommits:
        raise errors.ConfigError(
            "the connection commits each statement by itself: begin a SQL transaction, with connection.transaction()"
            " (psycopg, asyncpg) or transaction.atomic() (Django); there is nothing that the message could be atomic with",
            reason="autocommit",
        )


_installations: Final["weakref.WeakKeyDictionary[Any, Installation]"] = weakref.WeakKeyDictionary()
_enlistments: Final["weakref.WeakKeyDictionary[Any, DriverEnlistment]"] = weakref.WeakKeyDictionary()
_of_asyncpgs: Final["weakref.WeakKeyDictionary[Any, Asyncpg]"] = weakref.WeakKeyDictionary()
