"""msgtx for asyncio: producer, transactions, consumer, and `publish` with SQLAlchemy's async sessions.

Each object stands on the blocking one of the same name (`sync`) and has no logic of its own: a call that may wait for
the database is awaited here, and waits there in a thread. A cancelled call is waited for: a thread cannot be
interrupted, and its objects are for one user at a time. A consumer's poll ends at once then, a commit or a flush with
its answer; the object can be used as before.
"""

import asyncio
import contextlib
import contextvars
import functools
import inspect
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Mapping, Sequence
from datetime import datetime
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, Literal, ParamSpec, Self, TypeVar, Unpack, cast, overload

import psycopg

from msgtx import arguments, errors, forks, orm, shares
from msgtx import client as clients
from msgtx import consumer as consumers
from msgtx import producer as producers
from msgtx.admin.topics import TopicsAdmin
from msgtx.closing import ClosingAsync
from msgtx.consumer.subscription import RebalanceCallback
from msgtx.database.asyncpg import AsyncpgConnection
from msgtx.database.pool import POOL_SIZE
from msgtx.ending import Ending
from msgtx.executor import Threads
from msgtx.process import IntoAsync
from msgtx.producer.batcher import Serializer
from msgtx.producer.batches import BatchFuture, RecordFuture
from msgtx.receiving.deserializers import Deserializers
from msgtx.receiving.poll import Found, Poll
from msgtx.rules.record import GivenHeaders, as_headers
from msgtx.session.answers import lending
from msgtx.session.cancellation import to_its_end
from msgtx.session.drivers import is_asyncpgs
from msgtx.session.enlistment import UserSession
from msgtx.session.offsets import Offsets
from msgtx.session.opened import in_session
from msgtx.settings import ConsumerSettings, IntoSettings, OnFailover, ProducerSettings, ShareConsumerSettings
from msgtx.shares.rides import ShareRide
from msgtx.types import (
    BatchMetadata,
    GroupMetadata,
    K,
    OffsetAndMetadata,
    PreparedTransaction,
    ProcessReport,
    Record,
    RecordMetadata,
    ShareRecord,
    TopicPartition,
    TransactionId,
    V,
)
from msgtx.units import Duration
from msgtx.workers import process_into

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session

    AsyncUserSession = (
        AsyncSession | async_scoped_session[Any] | AsyncConnection | psycopg.AsyncConnection[Any] | AsyncpgConnection
    )

S = TypeVar("S")  # a session
Answer = TypeVar("Answer")
Place = TypeVar("Place", RecordMetadata, BatchMetadata)
Arguments = ParamSpec("Arguments")
SENDS_IN_A_ROW: Final = 100  # that find room; then others in the event loop have their turn


async def _in_thread(threads: Threads, call: Callable[[], Answer], *, stop: Callable[[], object] | None = None) -> Answer:
    """Have a thread wait. When this is cancelled, `stop` ends the call, and its end is waited for.

    Raise `ThreadNotStarted` if the system gives no thread: nothing was done.
    """
    with lending():
        context = contextvars.copy_context()
    try:
        running = threads.submit(context.run, call)
    except RuntimeError as error:
        raise errors.IllegalState("it is closed: make a new one", reason="closed") from error

    def end() -> None:
        if not running.cancel() and stop is not None:  # it has begun
            stop()

    return await to_its_end(asyncio.wrap_future(running), stop=end)


class _Turn(asyncio.Lock):
    """A lock that nobody waits for in the child of a fork, where its holder is not, nor in two event loops at once."""

    def __init__(self) -> None:
        super().__init__()
        self._origin = forks.here()
        self._loop: asyncio.AbstractEventLoop | None = None  # asyncio's own name: its lock stays with one for good

    async def acquire(self) -> Literal[True]:
        """Wait for one's turn. Raise `IllegalState` while another event loop has it."""
        self._origin.require("this client")
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None and self._loop.is_running():
                raise errors.IllegalState(
                    "a consumer is for one event loop at a time: make one in each", reason="event loop"
                )
            self._loop = loop  # the other one is over
        return await super().acquire()


async def _surely(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Run a call that must be made even if this is cancelled before it begins."""
    with lending():
        working = asyncio.ensure_future(work)
    return await to_its_end(working)


async def _end(threads: Threads, close: Coroutine[Any, Any, None]) -> None:
    """Close an object, then its threads: also when this is cancelled, since a second call finds the object closed."""
    try:
        await _surely(close)
    finally:
        threads.shutdown(wait=False)


def _awaited(
    method: Callable[Concatenate[Any, Arguments], Answer],
) -> Callable[Concatenate[Any, Arguments], Coroutine[Any, Any, Answer]]:
    """Make a method that waits one that is awaited."""

    @functools.wraps(method)
    async def forward(self: Any, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Answer:
        return cast(Answer, await self._run(method, self.sync, *arguments, **named))

    return forward


def _direct(
    method: Callable[Concatenate[Any, Arguments], Answer],
) -> Callable[Concatenate[Any, Arguments], Answer]:
    """Forward a method that never waits."""

    @functools.wraps(method)
    def forward(self: Any, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Answer:
        return method(self.sync, *arguments, **named)

    return forward


def _require_async(session: object) -> None:
    """Raise `ConfigError` without greenlet, `WrongType` for an object that is no async session."""
    try:
        from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    except ImportError as error:
        raise errors.ConfigError("async sessions need greenlet: pip install msgtx[async]") from error
    known = isinstance(session, AsyncSession | AsyncConnection | async_scoped_session | psycopg.AsyncConnection)
    if not known and not is_asyncpgs(session):
        kind = type(session)
        raise errors.WrongType(
            "expected SQLAlchemy's AsyncSession, async_scoped_session or AsyncConnection, psycopg's AsyncConnection or"
            f" asyncpg's Connection, not {kind.__module__}.{kind.__qualname__} (msgtx.orm and msgtx.connect() take those"
            " that are not async)",
            name="session",
        )


async def _in_session(session: "AsyncUserSession", call: Callable[[UserSession], Answer]) -> Answer:
    """Do a call in an async session. Raise as `_require_async`."""
    _require_async(session)
    return await in_session(session, call)


async def publish(
    session: "AsyncUserSession",
    topic: str,
    value: bytes | EllipsisType | None = ...,
    *,
    json: Any = ...,
    key: bytes | None = None,
    partition: int | None = None,
    timestamp: int | datetime | None = None,
    headers: GivenHeaders | None = None,
    deliver_at: int | datetime | None = None,
    delay_ms: Duration | None = None,
) -> None:
    """Publish a record with the next commit of an `AsyncSession`, `async_scoped_session` or `AsyncConnection`.

    Or with the SQL transaction of a connection of psycopg or asyncpg. As `msgtx.orm.publish`; SQLAlchemy's sessions are
    those on psycopg (`postgresql+psycopg://`). Raise as that does, and `ConfigError` without greenlet.
    """
    record: dict[str, Any] = {"json": json, "key": key, "partition": partition, "timestamp": timestamp, "headers": headers}
    record |= {"deliver_at": deliver_at, "delay_ms": delay_ms}
    await _in_session(session, lambda given: orm.publish(given, topic, value, **record))


class Delivery(Generic[Place]):
    """The future of a send: `await` it for its place, or leave it. It completes by itself, without flush."""

    __slots__ = ("_future",)

    def __init__(self, future: RecordFuture | BatchFuture) -> None:
        self._future = future

    def __repr__(self) -> str:
        return f"<msgtx.aio.Delivery of {self._future!r}>"

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self._future.done()

    def __await__(self) -> Generator[Any, None, Place]:
        """Wait for the place. Raise the error of the record, or the first one of the batch."""
        if not self._future.done():
            loop = asyncio.get_running_loop()
            settled = loop.create_future()

            def settle() -> None:
                if not settled.done():  # else it was cancelled
                    settled.set_result(None)

            def tell(_: object) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits
                    loop.call_soon_threadsafe(settle)

            self._future.add_done_callback(tell)
            yield from settled
        return cast(Place, self._future.result())


class Transaction:
    """The open transaction of a producer."""

    __slots__ = ("_producer", "id")

    def __init__(self, producer: "Producer", transaction_id: TransactionId) -> None:
        self._producer = producer
        self.id = transaction_id

    async def send_offsets(
        self, offsets: "Consumer[Any, Any] | Offsets", group_metadata: GroupMetadata | str | None = None
    ) -> None:
        """Commit consumer offsets with this transaction; see `Producer.send_offsets_to_transaction`."""
        await self._producer.send_offsets_to_transaction(offsets, group_metadata)

    async def send_acknowledgements(self, share_consumer: "ShareConsumer[Any, Any]") -> None:
        """Commit the answers of a share consumer with this transaction; see `msgtx.Transaction.send_acknowledgements`."""
        await self._producer.send_acknowledgements_to_transaction(share_consumer)

    async def prepare(self, timeout: Duration | None = None) -> PreparedTransaction:
        """Prepare for an outside decision: see `Producer.prepare_transaction`."""
        return await self._producer.prepare_transaction(timeout)


class Producer(ClosingAsync):
    """`msgtx.Producer` for an event loop. Made by `client.producer()`; `async with` runs `init_transactions`."""

    sync: producers.Producer

    def __init__(self, client: "Client", producer: producers.Producer) -> None:
        self.sync = producer
        self._run = client.run
        self._in_a_row = 0

    async def send(
        self,
        topic: str,
        value: Any = ...,
        *,
        json: Any = ...,
        key: Any = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: GivenHeaders | None = None,
        dedup_key: str | None = None,
        deliver_at: int | datetime | None = None,
        delay_ms: Duration | None = None,
    ) -> Delivery[RecordMetadata]:
        """Send a record: `delivery = await producer.send(…)` takes it in, `await delivery` waits until it is stored.

        The first is done at once, unless the topic is a new one or `buffer_bytes` are waiting. Serializers run in the event
        loop. Raise as `msgtx.Producer.send`.
        """
        if headers is not None and not isinstance(headers, list | tuple | Mapping):
            headers = as_headers(headers)  # it may be read only once, and is given twice where the first call has to wait
        rest: dict[str, Any] = {
            "json": json,
            "key": key,
            "partition": partition,
            "timestamp": timestamp,
            "headers": headers,
            "dedup_key": dedup_key,
            "deliver_at": deliver_at,
            "delay_ms": delay_ms,
        }
        future = self.sync.send_at_once(topic, value, **rest)
        if future is None:
            future = await self._run(self.sync.send, topic, value, **rest)
        self._in_a_row += 1
        if self._in_a_row % SENDS_IN_A_ROW == 0:
            await asyncio.sleep(0)
        return Delivery(future)

    async def send_batch(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        *,
        partition: int | None = None,
        timestamps: Sequence[int] | None = None,
    ) -> Delivery[BatchMetadata]:
        """Send columns; one delivery for all of them. See `msgtx.Producer.send_batch`."""
        send = functools.partial(self.sync.send_batch, topic, values, keys, partition=partition, timestamps=timestamps)
        return Delivery(await self._run(send))

    flush = _awaited(producers.Producer.flush)
    init_transactions = _awaited(producers.Producer.init_transactions)
    commit_transaction = _awaited(producers.Producer.commit_transaction)
    abort_transaction = _awaited(producers.Producer.abort_transaction)
    prepare_transaction = _awaited(producers.Producer.prepare_transaction)

    async def close(self, timeout: Duration | None = None) -> None:
        """Flush, abort an open transaction, and end; see `msgtx.Producer.close`."""
        if self.sync.closed:
            return
        await _surely(self._run(self.sync.close, timeout))

    async def begin_transaction(self, timeout_ms: Duration | None = None) -> Transaction:
        """Begin a transaction; see `msgtx.Producer.begin_transaction`."""
        begun = await self._run(self.sync.begin_transaction, timeout_ms)
        self.sync.begins_here()
        return Transaction(self, begun.id)

    async def send_offsets_to_transaction(
        self, offsets: "Consumer[Any, Any] | Offsets", group_metadata: GroupMetadata | str | None = None
    ) -> None:
        """Commit consumer offsets with this transaction: a consumer's positions, or a map and its group (I10)."""
        given = offsets.sync if isinstance(offsets, Consumer) else offsets
        await self._run(self.sync.send_offsets_to_transaction, given, group_metadata)

    async def send_acknowledgements_to_transaction(self, share_consumer: "ShareConsumer[Any, Any]") -> None:
        """Commit the answers that a share consumer has been given with this transaction (I17)."""
        arguments.an_instance("share_consumer", share_consumer, ShareConsumer, "a msgtx.aio.ShareConsumer")
        async with share_consumer._turn:
            await self._run(self.sync.send_acknowledgements_to_transaction, share_consumer.sync)

    @contextlib.asynccontextmanager
    async def transaction(
        self, timeout_ms: Duration | None = None, session: "AsyncUserSession | None" = None
    ) -> AsyncIterator[Transaction]:
        """Run a transaction: commit at the end of the block, abort if it raises or is cancelled.

        `session`: an `AsyncSession`, `async_scoped_session` or `AsyncConnection`, whose next commit then decides the
        transaction; see `msgtx.Producer.transaction`.
        """
        block = contextlib.ExitStack()
        try:
            if session is None:
                begun = await self._run(block.enter_context, self.sync.transaction(timeout_ms))
            else:
                await self._run(self.sync.settle)  # on our own connections; the rest is asked in the session
                begun = await _in_session(
                    session, lambda given: block.enter_context(self.sync.transaction(timeout_ms, given))
                )
            self.sync.begins_here()
            yield Transaction(self, begun.id)
            await self._run(block.close)
        except BaseException as error:
            # A commit that has begun leaves nothing to do here. One that was cancelled before a thread was free is an abort;
            # that is waited for, however often this is cancelled: nothing else would do it.
            await _surely(self._run(block.__exit__, type(error), error, error.__traceback__))
            raise

    @property
    def transaction_id(self) -> TransactionId | None:
        """The name of the current transaction, or of the last one."""
        return self.sync.transaction_id

    @property
    def prepared_transaction(self) -> PreparedTransaction | None:
        """The token of the transaction that is prepared and not known to be decided."""
        return self.sync.prepared_transaction

    async def __aenter__(self) -> Self:
        """Initialize transactions, if there is a transactional id."""
        await self._run(self.sync.__enter__)
        return self


class _Reader(ClosingAsync, Generic[Found]):
    """A consumer of either kind for an event loop, with a thread of its own. Tasks may share it: its calls take turns."""

    sync: consumers.Consumer[Any, Any] | shares.ShareConsumer[Any, Any]

    def __init__(self, *, thread: str) -> None:
        self._turn = _Turn()
        self._thread = Threads(1, name=thread)

    async def _run(self, call: Callable[Arguments, Answer], *arguments: Arguments.args, **named: Arguments.kwargs) -> Answer:
        async with self._turn:
            return await _in_thread(self._thread, functools.partial(call, *arguments, **named))

    async def poll(self, timeout: Duration = 1.0, max_records: int | None = None) -> list[Found]:
        """Return up to `max_records` records; [] when `timeout` seconds are over. See `poll` of the `sync` consumer.

        A cancelled poll has returned nothing: the next one returns its records. Deserializers run in the event loop.
        """
        poll = self._begin(timeout, max_records)
        if await self._found(poll):
            return poll.take()
        self.sync.stopping.heard()  # `stop` ended this poll, not those that follow
        return []

    async def __aiter__(self) -> AsyncIterator[Found]:
        """Yield records forever; `stop` ends it, also from a signal handler."""
        while not self.sync.stopping.asked and not self.sync.closed:
            poll = self._begin()
            if await self._found(poll):
                for record in poll.each():
                    yield record
        self.sync.stopping.heard()

    def _begin(self, timeout: Duration = 1.0, max_records: int | None = None) -> Poll[Found]:
        return cast(Poll[Found], self.sync.begin(timeout, max_records))

    async def _found(self, poll: Poll[Found]) -> bool:
        async with self._turn:
            try:
                return await _in_thread(self._thread, poll.wait, stop=self.sync.stop)
            except asyncio.CancelledError:
                self.sync.stopping.heard()  # it was for this call
                raise

    async def _ride(self, session: "AsyncUserSession", call: Callable[[UserSession], Answer]) -> Answer:
        async with self._turn:
            # Earlier commits are waited for in the thread: in the session they would hold up the event loop.
            await _in_thread(self._thread, self.sync.settle)
            return await _in_session(session, call)

    async def close(self) -> None:
        """End waiting calls, then close the `sync` consumer. May be called twice."""
        if not self.sync.closed and not self._thread.origin.is_parent:
            self.sync.stopping.for_good = True  # also of a poll that waits for its turn
            self.sync.stop()
            await _end(self._thread, self._run(self.sync.close))


class Consumer(_Reader[Record[K, V]], Generic[K, V]):
    """`msgtx.Consumer` for an event loop, with a thread of its own. Made by `client.consumer()`.

    `async with` subscribes to the topics that were named there. Tasks may share it: its calls come one after the other.
    """

    sync: consumers.Consumer[K, V]

    def __init__(self, consumer: consumers.Consumer[K, V], topics: Sequence[str], pattern: str | None) -> None:
        super().__init__(thread="msgtx-consumer")
        self.sync = consumer
        self._wanted = (topics, pattern)

    @contextlib.asynccontextmanager
    async def batch(
        self, session: "AsyncUserSession", timeout: Duration = 1.0, max_records: int | None = None
    ) -> AsyncIterator[list[Record[K, V]]]:
        """Poll, and have an async session's next commit write these records' offsets, with the rows that the block makes.

        See `msgtx.Consumer.batch`.
        """
        _require_async(session)
        self.sync.committing.require_by_session()
        records = await self.poll(timeout, max_records)
        if not records:
            yield records
            return
        with contextlib.ExitStack() as block:  # after an exception its end does not wait
            try:
                await self._ride(session, lambda given: block.enter_context(self.sync.committing.riding(given)))
            except BaseException:
                self.sync.committing.take_back()
                raise
            yield records
            await _in_session(session, lambda _: block.close())

    async def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        wait: bool = True,
        *,
        session: "AsyncUserSession | None" = None,
    ) -> None:
        """Commit these offsets (default: all positions) for the group, or with the next commit of an async session.

        See `msgtx.Consumer.commit`.
        """
        if session is None:
            await self._run(self.sync.commit, offsets, wait)
            return
        await self._ride(session, lambda given: self.sync.commit(offsets, session=given))

    async def subscribe(
        self,
        topics: Sequence[str] = (),
        *,
        pattern: str | None = None,
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Read these topics, or those whose whole name matches `pattern`; see `msgtx.Consumer.subscribe`.

        The callbacks are plain functions: they run within a poll, in the consumer's thread, and may use `consumer.sync`.
        """
        callbacks = {"on_assign": on_assign, "on_revoke": on_revoke, "on_lost": on_lost}
        for name, callback in callbacks.items():
            if inspect.iscoroutinefunction(callback):
                raise errors.WrongType(
                    f"{name} runs within a poll, in the consumer's thread: a plain function, with consumer.sync", name=name
                )
        await self._run(functools.partial(self.sync.subscribe, topics, pattern=pattern, **callbacks))

    assign = _awaited(consumers.Consumer.assign)
    seek = _awaited(consumers.Consumer.seek)
    seek_to_beginning = _awaited(consumers.Consumer.seek_to_beginning)
    seek_to_end = _awaited(consumers.Consumer.seek_to_end)
    seek_to_time = _awaited(consumers.Consumer.seek_to_time)
    rewind = _awaited(consumers.Consumer.rewind)
    position = _awaited(consumers.Consumer.position)
    committed = _awaited(consumers.Consumer.committed)
    beginning_offsets = _awaited(consumers.Consumer.beginning_offsets)
    end_offsets = _awaited(consumers.Consumer.end_offsets)
    offsets_for_times = _awaited(consumers.Consumer.offsets_for_times)
    lag = _awaited(consumers.Consumer.lag)
    offset_lag = _awaited(consumers.Consumer.offset_lag)

    assignment = _direct(consumers.Consumer.assignment)
    group_metadata = _direct(consumers.Consumer.group_metadata)
    pause = _direct(consumers.Consumer.pause)
    resume = _direct(consumers.Consumer.resume)
    stop = _direct(consumers.Consumer.stop)

    async def __aenter__(self) -> Self:
        """Subscribe to the topics that it was made with."""
        topics, pattern = self._wanted
        if topics or pattern is not None:
            try:
                await self.subscribe(topics, pattern=pattern)
            except BaseException:
                await self.close()
                raise
        return self


class ShareConsumer(_Reader[ShareRecord[K, V]], Generic[K, V]):
    """`msgtx.ShareConsumer` for an event loop, with a thread of its own. Made by `client.share_consumer()`.

    For `async with`. Tasks may share it: its calls come one after the other.
    """

    sync: shares.ShareConsumer[K, V]

    def __init__(self, consumer: shares.ShareConsumer[K, V]) -> None:
        super().__init__(thread="msgtx-share-consumer")
        self.sync = consumer

    async def commit(self, *, session: "AsyncUserSession | None" = None) -> None:
        """Make the answers given so far real, or with the next commit of an async session.

        See `msgtx.ShareConsumer.commit`.
        """
        if session is not None:
            await self._ride(session, lambda given: self.sync.commit(session=given))
            return
        await self._run(self.sync.commit)

    @contextlib.asynccontextmanager
    async def batch(
        self, session: "AsyncUserSession", timeout: Duration = 1.0, max_records: int | None = None
    ) -> AsyncIterator[list[ShareRecord[K, V]]]:
        """Poll, and have an async session's next commit write the answers for these records, with the rows of the block.

        See `msgtx.ShareConsumer.batch`.
        """
        _require_async(session)
        records = await self.poll(timeout, max_records)
        if not records:
            yield records
            return
        ride: ShareRide | None = None
        try:
            ride = await self._ride(session, self.sync.rides.begin)
            yield records
            begun = ride
            await self._ride(session, lambda given: self.sync.rides.end(given, begun))
        except BaseException:
            await _surely(_in_thread(self._thread, functools.partial(self.sync.rides.fail, ride)))
            raise

    async def rewind(self) -> None:
        """Have the returned, uncommitted records delivered again; see `msgtx.ShareConsumer.rewind`."""
        await self._run(self.sync.rewind)

    acknowledge = _direct(shares.ShareConsumer.acknowledge)
    stop = _direct(shares.ShareConsumer.stop)


class Topics:
    """`client.topics`."""

    def __init__(self, client: "Client") -> None:
        self.sync = client.sync.topics
        self._run = client.run

    create = _awaited(TopicsAdmin.create)
    list = _awaited(TopicsAdmin.list)
    describe = _awaited(TopicsAdmin.describe)
    describe_all = _awaited(TopicsAdmin.describe_all)
    alter = _awaited(TopicsAdmin.alter)
    delete = _awaited(TopicsAdmin.delete)


class Client(ClosingAsync):
    """`msgtx.Client` for an event loop, with threads for as many calls as it has connections. Made by `connect`."""

    sync: clients.Client

    def __init__(self, client: clients.Client, threads: Threads) -> None:
        self.sync = client
        self.topics = Topics(self)
        self._threads = threads
        self._consumers: weakref.WeakSet[Consumer[Any, Any] | ShareConsumer[Any, Any]] = weakref.WeakSet()
        self._workers: set[IntoAsync] = set()

    async def run(self, call: Callable[Arguments, Answer], *arguments: Arguments.args, **named: Arguments.kwargs) -> Answer:
        """Make any other call in a thread: `await client.run(client.sync.admin.groups.list)`.

        One that is endless needs a way to end: a cancelled call is waited for (`process` takes `stop`).
        """
        return await _in_thread(self._threads, functools.partial(call, *arguments, **named))

    _run = run

    @overload
    async def process_into(
        self,
        session_factory: Callable[[], S],
        handler: Callable[[S, ShareRecord], object],
        *topics: str,
        group: str,
        batch: Literal[False] = False,
        **settings: Unpack[IntoSettings],
    ) -> ProcessReport: ...

    @overload
    async def process_into(
        self,
        session_factory: Callable[[], S],
        handler: Callable[[S, ShareRecord[bytes, V]], object],
        *topics: str,
        group: str,
        batch: Literal[False] = False,
        value_deserializer: Callable[[bytes], V],
        **settings: Unpack[IntoSettings],
    ) -> ProcessReport: ...

    @overload
    async def process_into(
        self,
        session_factory: Callable[[], S],
        handler: Callable[[S, ShareRecord[K, V]], object],
        *topics: str,
        group: str,
        batch: Literal[False] = False,
        key_deserializer: Callable[[bytes], K],
        value_deserializer: Callable[[bytes], V] | None = None,
        **settings: Unpack[IntoSettings],
    ) -> ProcessReport: ...

    @overload
    async def process_into(
        self,
        session_factory: Callable[[], S],
        handler: Callable[[S, list[Record]], object] | Callable[[S, list[ShareRecord]], object],
        *topics: str,
        group: str,
        batch: Literal[True],
        **settings: Unpack[IntoSettings],
    ) -> ProcessReport: ...

    @overload
    async def process_into(
        self,
        session_factory: Callable[[], S],
        handler: Callable[[S, list[Record[bytes, V]]], object] | Callable[[S, list[ShareRecord[bytes, V]]], object],
        *topics: str,
        group: str,
        batch: Literal[True],
        value_deserializer: Callable[[bytes], V],
        **settings: Unpack[IntoSettings],
    ) -> ProcessReport: ...

    @overload
    async def process_into(
        self,
        session_factory: Callable[[], S],
        handler: Callable[[S, list[Record[K, V]]], object] | Callable[[S, list[ShareRecord[K, V]]], object],
        *topics: str,
        group: str,
        batch: Literal[True],
        key_deserializer: Callable[[bytes], K],
        value_deserializer: Callable[[bytes], V] | None = None,
        **settings: Unpack[IntoSettings],
    ) -> ProcessReport: ...

    async def process_into(
        self,
        session_factory: Callable[[], Any],
        handler: Callable[[Any, Any], object],
        *topics: str,
        group: str,
        batch: bool = False,
        key_deserializer: Callable[[bytes], Any] | None = None,
        value_deserializer: Callable[[bytes], Any] | None = None,
        **settings: Unpack[IntoSettings],
    ) -> ProcessReport:
        """Consume topics and await `handler(session, record)`, which writes rows: exactly once, whatever crashes or raises.

        `session_factory` makes AsyncSessions (an `async_sessionmaker`) or AsyncConnections of SQLAlchemy, or connections of
        psycopg or asyncpg (`pool.connection`, `pool.acquire`); the rest as in
        `msgtx.Client.process_into`. The consumer polls in a thread of its own. Cancelled, it rolls back the current
        transaction.
        """
        loop = asyncio.get_running_loop()
        ending = Ending(arguments.stop_signal("stop", settings.get("stop")))
        on_commit = arguments.function("on_commit", settings.get("on_commit"))
        made: list[IntoAsync] = []

        def make(*given: Any) -> IntoAsync:
            work = IntoAsync(*given)
            work.loop = loop
            made.append(work)
            self._workers.add(work)
            return work

        def cancel() -> None:
            ending.ask()
            for work in made:
                work.cancel()

        def tell(report: ProcessReport) -> None:
            if on_commit is not None:
                loop.call_soon_threadsafe(on_commit, report)

        settings |= {"stop": ending, "on_commit": tell}
        deserializers = Deserializers(key_deserializer, value_deserializer)
        work = functools.partial(
            process_into, self.sync, make, session_factory, handler, topics, group, batch, deserializers, settings
        )
        with Threads(1, name="msgtx-worker") as thread, ending.by_sigterm():
            try:
                return await _in_thread(thread, work, stop=cancel)
            finally:
                ending.ask()  # the event loop may be closed before the worker's end: it destroys this coroutine
                self._workers.difference_update(made)

    def async_engine(self, *, reads_only: bool = False, **arguments: Any) -> "AsyncEngine":
        """Return a new AsyncEngine of SQLAlchemy for this database; see `msgtx.Client.engine`."""
        return self.sync.async_engine(reads_only=reads_only, **arguments)

    snapshot = _awaited(clients.Client.snapshot)
    transaction_outcome = _awaited(clients.Client.transaction_outcome)
    complete = _awaited(clients.Client.complete)
    sweep = _awaited(clients.Client.sweep)

    def producer(
        self,
        *,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        config: Mapping[str, object] | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> Producer:
        """Make a producer, for `async with`; see `msgtx.Client.producer`. Raise `ConfigError`."""
        made = self.sync.producer(
            key_serializer=key_serializer, value_serializer=value_serializer, config=config, **settings
        )
        return Producer(self, made)

    def consumer(
        self,
        *topics: str,
        pattern: str | None = None,
        key_deserializer: Callable[[bytes], K] | None = None,
        value_deserializer: Callable[[bytes], V] | None = None,
        config: Mapping[str, object] | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> Consumer[K, V]:
        """Make a consumer, for `async with`, which subscribes it; see `msgtx.Client.consumer`. Raise `ConfigError`."""
        names = arguments.topics(topics)
        if pattern is not None:
            arguments.text("pattern", pattern)
        made = self.sync.consumer(
            pattern=None,  # subscribed to on entry
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            config=config,
            **settings,
        )
        consumer = Consumer(made, names, pattern)
        self._consumers.add(consumer)
        return consumer

    def share_consumer(
        self,
        *topics: str,
        key_deserializer: Callable[[bytes], K] | None = None,
        value_deserializer: Callable[[bytes], V] | None = None,
        config: Mapping[str, object] | None = None,
        **settings: Unpack[ShareConsumerSettings],
    ) -> ShareConsumer[K, V]:
        """Make a member of a share group, for `async with`; see `msgtx.Client.share_consumer`. Raise `ConfigError`."""
        made = self.sync.share_consumer(
            *topics, key_deserializer=key_deserializer, value_deserializer=value_deserializer, config=config, **settings
        )
        consumer = ShareConsumer(made)
        self._consumers.add(consumer)
        return consumer

    async def close(self) -> None:
        """Close its producers and consumers, then the connections. May be called twice.

        Raise `IllegalState` in a handler of its own `process_into`, whose end it would wait for.
        """
        if asyncio.current_task() in {work.task for work in self._workers}:
            raise errors.IllegalState("a handler cannot close its own client: set the worker's `stop`", reason="handler")
        for consumer in list(self._consumers):
            await consumer.close()
        if not self.sync.closed and not self._threads.origin.is_parent:
            # A thread of its own: all others may be busy with calls that the close is to end.
            with Threads(1, name="msgtx-close") as thread:
                await _end(self._threads, _in_thread(thread, self.sync.close))


async def connect(
    url: str | None = None,
    *,
    read_url: str | None = None,
    create: bool = False,
    pool_size: int = POOL_SIZE,
    on_failover: OnFailover | None = None,
) -> Client:
    """Connect to msgtx in a PostgreSQL database, as `msgtx.connect`: `async with await msgtx.aio.connect() as client`."""
    pool_size = arguments.whole("pool_size", pool_size, least=1, most=clients.MOST_CONNECTIONS)
    given: dict[str, Any] = {"read_url": read_url, "create": create, "on_failover": on_failover}
    threads = Threads(pool_size, name="msgtx-client")
    opened: list[clients.Client] = []
    try:
        await _in_thread(threads, lambda: opened.append(clients.connect(url, pool_size=pool_size, **given)))
    except BaseException:
        for client in opened:  # cancelled when it was there
            await _in_thread(threads, client.close)
        threads.shutdown(wait=False)
        raise
    return Client(opened[0], threads)


__all__ = ["Client", "Consumer", "Delivery", "Producer", "ShareConsumer", "Topics", "Transaction", "connect", "publish"]
