"""The session that a worker opens for a transaction: made by the user's factory, committed here, closed at the end."""

import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar

from sqlalchemy.orm import scoped_session
from sqlalchemy.util import greenlet_spawn

from msgtx import errors
from msgtx.database.translation import translate_own
from msgtx.session.drivers import driver_below, enlistment_of, is_asyncpgs

Answer = TypeVar("Answer")


@contextlib.contextmanager
def opened(factory: Callable[[], Any]) -> Iterator[tuple[Any, Callable[[], object]]]:
    """Open a session of SQLAlchemy, or a connection of psycopg, also one of a pool. Yields it, and the call that commits.

    It is closed, or back in its pool, at the end. A `scoped_session` is removed from its scope.
    """
    made = factory()
    if isinstance(made, scoped_session):
        entered: Any = _in_its_scope(made)
    elif hasattr(made, "__enter__"):
        entered = made
    else:
        raise _wrong(made, "Sessions or Connections of SQLAlchemy or Connections of psycopg", "msgtx.aio's takes async ones")
    with entered as session, _told(session):

        def commit() -> None:
            with _committing(session):
                session.commit()

        yield session, commit


@contextlib.contextmanager
def _in_its_scope(session: scoped_session[Any]) -> Iterator[scoped_session[Any]]:
    try:
        yield session
    finally:
        session.remove()


@contextlib.asynccontextmanager
async def opened_async(factory: Callable[[], Any]) -> AsyncIterator[tuple[Any, Callable[[], Awaitable[object]]]]:
    """Do the same with an async session of SQLAlchemy, or a connection of psycopg or asyncpg, also one of a pool."""
    made = factory()
    if not hasattr(made, "__aenter__") and inspect.isawaitable(made):
        made = await made
        if is_asyncpgs(made):
            made = contextlib.aclosing(_Closing(made))
    if not hasattr(made, "__aenter__"):
        wanted = "AsyncSessions or AsyncConnections of SQLAlchemy, AsyncConnections of psycopg, or connections of asyncpg"
        raise _wrong(made, wanted, "client.sync's takes the others")
    async with made as entered:
        session = entered.connection if isinstance(entered, _Closing) else entered
        with _told(session):
            if is_asyncpgs(session):
                transaction = session.transaction()
                await transaction.start()
                try:
                    yield session, lambda: _commit(session, transaction.commit)
                finally:
                    if session.is_in_transaction() and not session.is_closed():
                        await transaction.rollback()
            else:
                yield session, lambda: _commit(session, session.commit)


class _Closing:
    """Closes a connection of asyncpg, which is no context manager itself."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.aclose = connection.close


async def _commit(session: Any, send: Callable[[], Awaitable[object]]) -> None:
    with _committing(session):
        await send()


def _committing(session: Any) -> contextlib.AbstractContextManager[None]:
    enlistment = enlistment_of(session)
    return contextlib.nullcontext() if enlistment is None else enlistment.committing()


@contextlib.contextmanager
def _told(session: Any) -> Iterator[None]:
    """Note a rollback that follows from an exception: the driver tells nobody. Errors of msgtx's functions are msgtx's."""
    try:
        yield
    except BaseException as error:
        if (enlistment := enlistment_of(session)) is not None:
            enlistment.roll_back()
            if (own := translate_own(error)) is not None:
                raise own from error
        raise


async def in_session(session: Any, call: Callable[[Any], Answer]) -> Answer:
    """Do a call with an async session, in which waits look synchronous."""
    if driver_below(session) is not None:
        return await greenlet_spawn(call, session)
    from sqlalchemy.ext.asyncio import async_scoped_session

    given = session() if isinstance(session, async_scoped_session) else session
    done: Answer = await given.run_sync(call)
    return done


def _wrong(made: object, wanted: str, other: str) -> errors.WrongType:
    kind = type(made)
    return errors.WrongType(
        f"session_factory makes {wanted}, not {kind.__module__}.{kind.__qualname__} ({other})", name="session_factory"
    )
