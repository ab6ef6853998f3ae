"""The asyncio classes: the facade's producer and consumer, whose blocking calls run in threads."""

import asyncio
import concurrent.futures
import contextvars
import functools
import importlib.util
import queue
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Self

from confluent_kafka import KafkaError, KafkaException, Message

from msgtx.compat.confluent_kafka.consumer import Consumer
from msgtx.compat.confluent_kafka.producer import MayWaitError, Producer
from msgtx.executor import Threads

SERVED_SECONDS: Final = 0.1  # how long one poll waits for reports of deliveries; a shorter one costs more polls
CALLBACKS: Final = ("error_cb", "throttle_cb", "stats_cb", "on_commit")
Callback = Callable[..., Coroutine[Any, Any, object]]


class _Calls:
    """Calls that a coroutine makes while a thread waits for it. The waiting thread makes them.

    A consumer belongs to one thread at a time, and `on_assign` may call `assign`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = True
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def make(self, call: Callable[[], None]) -> bool:
        """Have the waiting thread make a call. Return whether it still waits."""
        with self._lock:
            if self._open:
                self._calls.put(call)
            return self._open

    def end(self, _: object) -> None:
        """Note that the coroutine is over."""
        with self._lock:
            self._open = False
            self._calls.put(None)

    def serve(self) -> None:
        """Make calls until the coroutine is over."""
        while (call := self._calls.get()) is not None:
            call()


_calls: "contextvars.ContextVar[_Calls | None]" = contextvars.ContextVar("msgtx_compat_calls", default=None)


def _awaited(loop: asyncio.AbstractEventLoop, callback: Callback, first: object = None) -> Callable[..., object]:
    """Return a function for another thread that has the loop run `callback`. `first` replaces its first argument."""

    def call(*args: object) -> object:
        calls = _Calls()

        async def run() -> object:
            _calls.set(calls)
            return await callback(*((first, *args[1:]) if first is not None else args))

        running = asyncio.run_coroutine_threadsafe(run(), loop)
        running.add_done_callback(calls.end)
        calls.serve()
        return running.result()

    return call


def _with_callbacks(conf: Mapping[str, Any]) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    return {name: _awaited(loop, value) if name in CALLBACKS and value else value for name, value in conf.items()}


class _Blocking:
    """Makes the calls of one client in threads; with `one_by_one` each after the one before."""

    def __init__(self, executor: concurrent.futures.Executor | None, most: int, *, one_by_one: bool) -> None:
        if most < 1:
            raise ValueError("max_workers must be at least 1")
        self._own = executor is None
        self.executor = executor or Threads(most, name="msgtx-compat-aio")
        self._turns = asyncio.Semaphore(1 if one_by_one else most)

    async def call(
        self, method: Callable[..., Any], /, *args: Any, kept: Callable[[Any], object] | None = None, **kwargs: Any
    ) -> Any:
        """Make a call. `kept` gets the answer of one whose caller was cancelled meanwhile."""
        bound = functools.partial(method, *args, **kwargs)
        calls = _calls.get()
        if calls is not None:
            answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
            if calls.make(functools.partial(_answer, answer, bound)):
                return await asyncio.wrap_future(answer)
        await self._turns.acquire()
        try:
            running = asyncio.get_running_loop().run_in_executor(self.executor, bound)
        except BaseException:
            self._turns.release()
            raise
        cancelled = False

        def done(ended: asyncio.Future[Any]) -> None:
            if cancelled and kept is not None and not ended.cancelled() and ended.exception() is None:
                kept(ended.result())
            self._turns.release()

        running.add_done_callback(done)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            cancelled = True
            raise

    def shutdown(self) -> None:
        if self._own:
            self.executor.shutdown(wait=False)


def _answer(answer: "concurrent.futures.Future[Any]", bound: Callable[[], Any]) -> None:
    if not answer.set_running_or_notify_cancel():
        return
    try:
        answer.set_result(bound())
    except BaseException as error:  # noqa: BLE001 - it is for the caller that awaits it
        answer.set_exception(error)


def _in_thread(method: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return a method of an asyncio client: the same method of the client below, called in a thread."""

    @functools.wraps(method)
    async def call(self: "AIOProducer | AIOConsumer", /, *args: Any, **kwargs: Any) -> Any:
        return await self._call(method.__name__, *args, **kwargs)

    return call


class AIOProducer:
    """A producer for asyncio. `produce` returns a future, which becomes the stored message.

    `batch_size` and `buffer_timeout` are accepted and unused: batches are msgtx's, by `linger.ms`.
    """

    def __init__(
        self,
        producer_conf: Mapping[str, Any],
        max_workers: int = 4,
        executor: concurrent.futures.Executor | None = None,
        batch_size: int = 1000,
        buffer_timeout: float = 1.0,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._blocking = _Blocking(executor, max_workers, one_by_one=False)
        self._producer = Producer(_with_callbacks(producer_conf))
        self._pending: set[asyncio.Future[Message]] = set()
        self._serving: asyncio.Task[None] | None = None
        self._connected = False
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __len__(self) -> int:
        return 0 if self._is_closed else len(self._producer)

    async def produce(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int = -1,
        timestamp: int = 0,
        headers: Any = None,
        **_: object,
    ) -> "asyncio.Future[Message]":
        """Send a message. Return a future of it. Await space in a full queue. Raise as `Producer.produce`.

        As in the original, other arguments such as `on_delivery` are ignored.
        """
        if self._is_closed:
            raise RuntimeError("Producer closed")
        stored: asyncio.Future[Message] = self._loop.create_future()
        send = functools.partial(
            self._producer.produce, topic, value, key, partition, self._report(stored), timestamp=timestamp, headers=headers
        )
        while True:
            try:
                if self._connected:
                    send(_at_once=True)
                    break
            except MayWaitError:
                pass
            except BufferError:
                await self._blocking.call(self._producer.poll, SERVED_SECONDS)
                continue
            try:  # what waits for the database
                await self._blocking.call(send)
                self._connected = True
                break
            except BufferError:
                await self._blocking.call(self._producer.poll, SERVED_SECONDS)
        self._pending.add(stored)
        stored.add_done_callback(self._pending.discard)
        if self._serving is None or self._serving.done():
            self._serving = self._loop.create_task(self._serve())
        return stored

    def _report(self, stored: "asyncio.Future[Message]") -> Callable[[KafkaError | None, Message], object]:
        def report(error: KafkaError | None, message: Message) -> None:
            if stored.done():
                return
            if error is None:
                stored.set_result(message)
            else:
                stored.set_exception(KafkaException(error))

        return lambda error, message: self._loop.call_soon_threadsafe(report, error, message)

    async def _serve(self) -> None:
        """Poll for reports as long as a message waits for its own."""
        while self._pending and not self._is_closed:
            await self._blocking.call(self._producer.poll, SERVED_SECONDS)

    async def _call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        return await self._blocking.call(getattr(self._producer, name), *args, **kwargs)

    async def poll(self, timeout: float = 0, *args: Any, **kwargs: Any) -> int:
        """Serve callbacks and return their number."""
        answered: int = await self._blocking.call(self._producer.poll, timeout, *args, **kwargs)
        return answered

    async def flush(self, *args: Any, **kwargs: Any) -> Any:
        """Wait until all messages are stored. Return the number of those that are not."""
        return await self._blocking.call(self._producer.flush, *args, **kwargs)

    async def purge(self, *args: Any, **kwargs: Any) -> Any:
        """Discard messages that were not sent; their futures are cancelled."""
        for stored in list(self._pending):
            stored.cancel()
        return await self._blocking.call(self._producer.purge, *args, **kwargs)

    list_topics = _in_thread(Producer.list_topics)
    cluster_id = _in_thread(Producer.cluster_id)
    init_transactions = _in_thread(Producer.init_transactions)
    begin_transaction = _in_thread(Producer.begin_transaction)
    send_offsets_to_transaction = _in_thread(Producer.send_offsets_to_transaction)
    commit_transaction = _in_thread(Producer.commit_transaction)
    abort_transaction = _in_thread(Producer.abort_transaction)
    set_sasl_credentials = _in_thread(Producer.set_sasl_credentials)

    async def close(self) -> None:
        """Flush, then close. Futures of messages that could not be stored have their error."""
        if self._is_closed:
            return
        try:
            await self.flush()
        finally:
            self._is_closed = True
            if self._serving is not None:
                await asyncio.wait([self._serving])
            await self._blocking.call(self._producer.close)
            self._blocking.shutdown()


class AIOConsumer:
    """A consumer for asyncio: the methods of `Consumer`, awaited. Callbacks are coroutine functions.

    A message that a cancelled `poll` or `consume` received is returned by the next one, and not committed before.
    """

    def __init__(
        self,
        consumer_conf: Mapping[str, Any],
        max_workers: int = 100,
        executor: concurrent.futures.Executor | None = None,
    ) -> None:
        self._blocking = _Blocking(executor, max_workers, one_by_one=True)
        self._consumer = Consumer(_with_callbacks(consumer_conf))
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        if self._closed:
            raise RuntimeError("Consumer closed")
        return await self._blocking.call(getattr(self._consumer, name), *args, **kwargs)

    async def poll(self, timeout: float = -1) -> Message | None:
        """Return the next message, or None after `timeout` seconds."""
        message: Message | None = await self._call("poll", timeout, kept=lambda got: self._consumer._unread([got]))
        return message

    async def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Return up to `num_messages` messages; fewer after `timeout` seconds."""
        messages: list[Message] = await self._call("consume", num_messages, timeout, kept=self._consumer._unread)
        return messages

    async def subscribe(self, *args: Any, **kwargs: Any) -> Any:
        """See `Consumer.subscribe`. Callbacks get this object."""
        loop = asyncio.get_running_loop()
        for name in ("on_assign", "on_revoke", "on_lost"):
            if kwargs.get(name) is not None:
                kwargs[name] = _awaited(loop, kwargs[name], self)
        return await self._call("subscribe", *args, **kwargs)

    unsubscribe = _in_thread(Consumer.unsubscribe)
    seek = _in_thread(Consumer.seek)
    assign = _in_thread(Consumer.assign)
    unassign = _in_thread(Consumer.unassign)
    incremental_unassign = _in_thread(Consumer.incremental_unassign)
    commit = _in_thread(Consumer.commit)
    pause = _in_thread(Consumer.pause)
    resume = _in_thread(Consumer.resume)
    store_offsets = _in_thread(Consumer.store_offsets)
    committed = _in_thread(Consumer.committed)
    incremental_assign = _in_thread(Consumer.incremental_assign)
    assignment = _in_thread(Consumer.assignment)
    position = _in_thread(Consumer.position)
    consumer_group_metadata = _in_thread(Consumer.consumer_group_metadata)
    set_sasl_credentials = _in_thread(Consumer.set_sasl_credentials)
    list_topics = _in_thread(Consumer.list_topics)
    cluster_id = _in_thread(Consumer.cluster_id)
    get_watermark_offsets = _in_thread(Consumer.get_watermark_offsets)
    offsets_for_times = _in_thread(Consumer.offsets_for_times)

    async def close(self) -> None:
        """Leave the group and close."""
        if self._closed:
            return
        try:
            await self._call("close")
        finally:
            self._closed = True
            self._blocking.shutdown()


def _above(name: str, base: type) -> Any:
    """Return a class of the original's, of a module of its own, with the facade's class as its base. None: it has none."""
    spec = importlib.util.find_spec(f"confluent_kafka.aio._{name}")
    if spec is None or spec.loader is None:  # before confluent-kafka 2.16
        return None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    setattr(module, base.__name__, base)  # by this name it makes its base
    found = getattr(module, name)
    found.__bases__ = (base, *found.__bases__[1:])
    return found


AsyncSerializingProducer: Any = _above("AsyncSerializingProducer", AIOProducer)
AsyncDeserializingConsumer: Any = _above("AsyncDeserializingConsumer", AIOConsumer)
