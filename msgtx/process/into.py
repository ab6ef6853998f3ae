"""Rows made of records, exactly once: the work of `client.process_into`."""

import asyncio
import contextlib
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from msgtx.database.faults import AGAIN, fault_of
from msgtx.errors import AuthorizationFailed, FatalError, IllegalState, WrongType
from msgtx.pauses import POLL_SECONDS
from msgtx.process.loop import Done, Failed
from msgtx.process.places import dead_letter_of, letter_in, reason_of, tell_set_aside
from msgtx.process.worker import Worker
from msgtx.session.enlistment import BrokenSession, UserSession
from msgtx.session.opened import in_session, opened, opened_async
from msgtx.types import Record

# `publish(session, topic, value, …)`: this room does not know the one that has it.
Publish = Callable[..., None]
NOT_YET: Final = "the handler commits its session: process_into does, behind it, with the offsets"


def require_handler(handler: object, *, awaited: bool) -> None:
    """Raise `WrongType` for a function that would do nothing when it is called."""
    if not callable(handler):
        raise WrongType(f"the handler is a function of a session and a record, not {type(handler).__name__}", name="handler")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise WrongType("the handler is a generator (it has a yield): calling it would do nothing", name="handler")
    if not awaited and inspect.iscoroutinefunction(handler):
        raise WrongType("the handler is a coroutine function: msgtx.aio's process_into awaits it", name="handler")


class SessionRide(Protocol):
    """The part of a session's commit that belongs to a consumer. `is_lost`: the session was rolled back."""

    is_lost: bool


class Rider(Protocol):
    """A consumer, whose positions or answers ride in a session."""

    def riding(self, session: UserSession, refusal: str, /) -> contextlib.AbstractContextManager[SessionRide]:
        """Add the returned records to the session; a commit within the block is refused with these words."""
        ...


@dataclass(slots=True, eq=False)
class Into:
    """Hands records to the user's function, each transaction in a session of its own. `most`: records of a transaction."""

    consumer: Rider
    session_factory: Callable[[], Any]
    handler: Callable[[Any, Any], object]
    worker: Worker
    publish: Publish
    most: int
    chunk: int = 1
    cancelled: bool = False
    deliveries: int = 1  # of the record that is set aside
    at: list[Record] = field(default_factory=list)  # the handler's arguments

    def start(self) -> None:
        """Do nothing: the sessions are the user's."""

    def attempt(self, records: list[Record]) -> Done | Failed:
        """Have records handled, and commit the session with their offsets."""
        begun = time.monotonic()
        failed = self._tried(records, None)
        if failed is not None:
            return failed
        fitting = int(self.worker.transaction_ms / 1000 * len(records) / max(time.monotonic() - begun, 1e-6))
        self.chunk = max(1, min(self.most, 2 * self.chunk, fitting))
        return Done(len(records), 0)

    def take_one(self) -> None:
        """Have the next transaction hold one record; later ones hold more and more."""
        self.chunk = 1

    def idle(self) -> None:
        """Do nothing: no failure ends this work for good."""

    def set_aside(self, record: Record, error: Exception, *, deliveries: int) -> Done | Failed:
        """Commit a record's offset without it; with a dead letter, if there is a topic for them."""
        try:
            self.deliveries = deliveries
            failed = self._tried([record], error)
        except Exception as refused:
            refused.add_note(f"it was to be set aside: {reason_of(error)}")
            raise
        if failed is not None:
            raise failed.error from error
        topic = self.worker.dead_letter
        tell_set_aside(record, error, None if topic is None else letter_in(record, topic))
        return Done(1, int(self.worker.dead_letter is not None), failed=1)

    def finish(self) -> Done | None:
        """Do nothing: after a COMMIT without an answer, the consumer goes back to what is committed."""
        return None

    def ends(self, error: Exception) -> bool:
        """Return whether no further attempt can succeed, or would do harm: a broken session has committed rows, maybe."""
        return isinstance(error, BrokenSession | FatalError) and not isinstance(error, AuthorizationFailed)

    def _tried(self, records: list[Record], aside: Exception | None) -> Failed | None:
        self.at = []
        try:
            self._transact(records, aside)
        except Exception as error:
            if self.cancelled or not self.at or fault_of(error) in AGAIN or isinstance(error, FatalError | BrokenSession):
                raise
            return Failed(error, self.at, alone=len(records) == 1)
        return None

    def _transact(self, records: list[Record], aside: Exception | None) -> None:
        with opened(self.session_factory) as (session, commit):
            with self.consumer.riding(session, NOT_YET) as ride:
                if aside is not None:
                    self._keep(session, records[0], aside)
                else:
                    for given in self._given(records):
                        self._require_done(self.handler(session, given))
                        self._require_rides(ride)
            self.at = records
            self._require_rides(ride)
            commit()

    def _given(self, records: list[Record]) -> Any:
        """Yield the arguments of the handler."""
        if self.worker.batch:
            self.at = records
            yield list(records)  # its own: it may take them out of it
            return
        for at, record in enumerate(records):
            self.at = records[at : at + 1]
            yield record

    @staticmethod
    def _require_done(result: object) -> None:
        if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
            if inspect.iscoroutine(result):
                result.close()
            raise WrongType(
                f"the handler returned a {type(result).__name__}, which nobody runs: it has done nothing", name="handler"
            )

    @staticmethod
    def _require_rides(ride: SessionRide) -> None:
        if ride.is_lost:
            raise IllegalState(
                "the handler rolled its session back, with what other records had led to: raise an exception, or use a"
                " savepoint (session.begin_nested())",
                reason="rolled back",
            )

    def _keep(self, session: UserSession, record: Record, error: Exception) -> None:
        topic = self.worker.dead_letter
        if topic is None:
            return
        kept = dead_letter_of(record, error, topic, group=self.worker.group, deliveries=self.deliveries)
        self.publish(session, topic, kept.value, key=kept.key, timestamp=kept.timestamp, headers=kept.headers)


@dataclass(slots=True, eq=False)
class IntoAsync(Into):
    """The same with async sessions: the loop runs in a thread, and each transaction in the event loop."""

    loop: asyncio.AbstractEventLoop | None = None
    task: "asyncio.Task[Any] | None" = None

    def cancel(self) -> None:
        """End the transaction that is under way; nothing of it is left. For the event loop."""
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()

    def _transact(self, records: list[Record], aside: Exception | None) -> None:
        assert self.loop is not None
        working = asyncio.run_coroutine_threadsafe(self._transaction(records, aside), self.loop)
        while True:
            try:
                return working.result(POLL_SECONDS)
            except TimeoutError:
                if working.done():  # meanwhile, or the error is the handler's
                    return working.result()
                if self.loop.is_closed():
                    raise FatalError("the worker's event loop was closed: nothing does what is under way") from None

    async def _transaction(self, records: list[Record], aside: Exception | None) -> None:
        if self.cancelled:
            raise asyncio.CancelledError
        self.task = asyncio.current_task()
        try:
            async with opened_async(self.session_factory) as (session, commit):
                with contextlib.ExitStack() as block:
                    ride = await in_session(session, lambda given: block.enter_context(self.consumer.riding(given, NOT_YET)))
                    if aside is not None:
                        await in_session(session, lambda given: self._keep(given, records[0], aside))
                    else:
                        for given in self._given(records):
                            result = self.handler(session, given)
                            self._require_done(await result if inspect.isawaitable(result) else result)
                            self._require_rides(ride)
                    await in_session(session, lambda _: block.close())
                self.at = records
                self._require_rides(ride)
                await commit()
        finally:
            self.task = None
