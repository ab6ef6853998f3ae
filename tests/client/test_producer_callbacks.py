"""The user's functions in a producer: none of them ends a thread of msgtx, or waits for what that thread has to do."""

import asyncio
import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import msgtx
from msgtx import errors
from msgtx.background import BackgroundThread
from msgtx.observer import Observer, Observers
from msgtx.process import watched_call
from msgtx.producer.batches import Accumulator, PendingBatch, RecordFuture
from tests.client.steps import SECONDS, begun
from tests.databases import wait_until
from tests.refusals import refuses

pytestmark = pytest.mark.slow

Read = Callable[..., list[msgtx.Record]]
EXITS: list[BaseException] = [
    SystemExit(1), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), RuntimeError("theirs"),
]  # fmt: skip


# ── what they raise ──


@pytest.mark.parametrize("dedup", [False, True])
@pytest.mark.parametrize("error", EXITS, ids=lambda error: type(error).__name__)
def test_a_callback_that_exits_ends_nothing(
    client: msgtx.Client, wide: str, error: BaseException, dedup: bool, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[object] = []

    def told(future: object) -> None:
        called.append(future)
        if len(called) == 1:
            raise error

    with client.producer(linger_ms=20) as producer:
        futures = [
            producer.send(wide, b"v", partition=n % 3, on_delivery=told, dedup_key=str(n) if dedup else None)
            for n in range(9)
        ]
        producer.flush(SECONDS)
        assert len(called) == 9
        assert [future.exception(0) for future in futures] == [None] * 9
        assert producer.send(wide, b"next").result(SECONDS).offset >= 0
    assert caplog.text.count("a delivery callback raised") == 1


def test_an_observer_that_exits_ends_nothing(client: msgtx.Client, topic: str) -> None:
    class Exits(Observer):
        def batch_settled(self, *_: Any, **__: Any) -> None:
            sys.exit(1)

    client.observe(Exits())
    with client.producer(linger_ms=0) as producer:
        for _ in range(2):
            assert producer.send(topic, b"v").exception(SECONDS) is None


class Around(Observer):
    """Is around a handler: its end raises, or hides what the handler has raised."""

    def __init__(self, hides: bool) -> None:
        self.hides = hides
        self.ended = 0

    @contextlib.contextmanager
    def handling(self, *_: object) -> Iterator[None]:
        try:
            yield
        except ValueError:
            if not self.hides:
                raise
        finally:
            self.ended += 1
        if not self.hides:
            raise RuntimeError("theirs")


@pytest.mark.parametrize("hides", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_what_is_around_a_handler_changes_nothing_of_how_it_ends(hides: bool, fails: bool) -> None:
    def handle(record: int) -> int:
        if fails:
            raise ValueError("the handler's")
        return record

    async def handle_later(record: int) -> int:
        return handle(record)

    observers, each = Observers(), [Around(hides), Around(False)]
    for observer in each:
        observers.add(observer)
    for call in (
        lambda: watched_call(handle, observers, "group")(7),
        lambda: asyncio.run(watched_call(handle_later, observers, "group")(7)),
    ):
        with pytest.raises(ValueError, match="the handler's") if fails else contextlib.nullcontext():
            assert call() == 7
    assert [observer.ended for observer in each] == [2, 2]


@pytest.mark.parametrize("error", EXITS[:4], ids=lambda error: type(error).__name__)
def test_a_serializer_that_exits_tears_nothing(client: msgtx.Client, topic: str, error: BaseException) -> None:
    def serialize(value: object) -> bytes:
        if value == "exit":
            raise error
        return str(value).encode()

    with client.producer(linger_ms=20, value_serializer=serialize) as producer:
        before = producer.send(topic, "before")
        with pytest.raises(type(error)):
            producer.send(topic, "exit")
        assert before.result(SECONDS).offset == 0
        assert producer.send(topic, "behind").result(SECONDS).offset == 1


def test_an_exit_in_the_callers_own_thread_comes_when_all_is_settled(client: msgtx.Client, wide: str, read: Read) -> None:
    """A small transaction is committed, and its callbacks are called, in the thread that commits: Ctrl-C belongs to it."""
    called: list[object] = []

    def told(future: RecordFuture) -> None:
        called.append(future.exception(0))
        if len(called) == 1:
            raise KeyboardInterrupt

    with client.producer(transactional_id=wide) as producer:
        producer.begin_transaction()
        for partition in range(3):
            producer.send(wide, b"v", partition=partition, on_delivery=told)
        with pytest.raises(KeyboardInterrupt):
            producer.commit_transaction()
        assert called == [None] * 3
        producer.commit_transaction()  # may be called again
    assert len(read(wide)) == 3


# ── what they may not do ──


CALLS: dict[str, Callable[[msgtx.Producer, msgtx.Client, str], Any]] = {
    "flush": lambda producer, client, topic: producer.flush(3),
    "close": lambda producer, client, topic: producer.close(3),
    "close of the client": lambda producer, client, topic: client.close(),
    "result": lambda producer, client, topic: producer.send(topic, b"late", partition=1).result(3),
    "exception": lambda producer, client, topic: producer.send(topic, b"late", partition=1).exception(3),
    "result of columns": lambda producer, client, topic: producer.send_batch(topic, [b"late"], partition=1).result(3),
    "exception of columns": lambda producer, client, topic: producer.send_batch(topic, [b"late"], partition=1).exception(3),
}


@pytest.mark.parametrize("dedup", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_what_would_wait_for_its_own_thread_is_refused_at_once(
    client: msgtx.Client, wide: str, name: str, dedup: bool
) -> None:
    heard: list[BaseException | None] = []

    with client.producer(linger_ms=0) as producer:

        def told(_: object) -> None:
            began = time.monotonic()
            try:
                CALLS[name](producer, client, wide)
            except (errors.MsgtxError, TimeoutError) as error:
                assert time.monotonic() - began < 5
                heard.append(error)
            else:
                heard.append(None)

        producer.send(wide, b"question", partition=0, on_delivery=told, dedup_key="once" if dedup else None)
        wait_until(lambda: heard, "the callback is over")
        assert isinstance(heard[0], errors.IllegalState)
        assert heard[0].reason == "callback"
        producer.flush(SECONDS)
        assert producer.send(wide, b"next").result(SECONDS).offset >= 0


@pytest.mark.parametrize("call", ["commit_transaction", "abort_transaction", "prepare_transaction", "flush", "close"])
def test_a_callback_cannot_end_its_transaction(client: msgtx.Client, wide: str, call: str, read: Read) -> None:
    """The end would wait for it."""
    heard: list[BaseException] = []

    with client.producer(transactional_id=wide, linger_ms=0) as producer:

        def told(_: object) -> None:
            with refuses(errors.IllegalState, reason="callback") as raised:
                getattr(producer, call)()
            heard.append(raised.value)

        producer.begin_transaction()
        producer.send(wide, b"v", on_delivery=told)
        producer.flush(SECONDS)
        assert len(heard) == 1
        producer.commit_transaction()
    assert len(read(wide)) == 1


@pytest.mark.parametrize("of", ["callback", "observer"])
def test_what_is_forwarded_through_another_producer_may_be_waited_for(
    client: msgtx.Client, database_url: str, wide: str, of: str
) -> None:
    heard: list[object] = []
    with client.producer() as other, client.producer(transactional_id=wide) as steps:

        def forward(*_: Any, **__: Any) -> None:
            if heard:
                return
            heard.append("begun")
            heard.append(other.send(wide, b"forwarded", partition=1).result(SECONDS).offset)
            other.flush(SECONDS)
            with steps.transaction():
                steps.send(wide, b"in a transaction", partition=1)
            with msgtx.connect(database_url) as another:
                heard.append(wide in another.topics.list())

        with client.producer(linger_ms=0) as producer:
            if of == "observer":
                observer = Observer()
                observer.batch_settled = forward  # type: ignore[method-assign]
                client.observe(observer)
            producer.send(wide, b"v", partition=0, on_delivery=forward if of == "callback" else None)
            wait_until(lambda: len(heard) == 3, "it is forwarded")
    assert heard == ["begun", 0, True]


def test_an_observer_cannot_wait_for_its_own_thread(client: msgtx.Client, topic: str) -> None:
    heard: list[BaseException] = []

    class Waits(Observer):
        def batch_settled(self, *_: Any, **__: Any) -> None:
            try:
                producer.flush()
            except errors.IllegalState as error:
                heard.append(error)

    client.observe(Waits())
    with client.producer(linger_ms=0) as producer:
        producer.send(topic, b"v").result(SECONDS)
        wait_until(lambda: heard, "it is told so")


@pytest.mark.parametrize("transactional", [False, True])
def test_a_callback_cannot_wait_for_room(client: msgtx.Client, wide: str, transactional: bool, read: Read) -> None:
    """A transaction that lacks the record fails: it would be committed without it (I1)."""
    heard: list[BaseException | None] = []
    settings: Any = {"transactional_id": wide} if transactional else {}
    with client.producer(linger_ms=0, buffer_bytes=100_000, max_block_ms=20_000, **settings) as producer:

        def told(_: object) -> None:
            producer.send(wide, bytes(95_000), partition=1)  # fits; nothing is sent as long as this callback runs
            try:
                producer.send(wide, bytes(60_000), partition=1)
            except errors.MsgtxError as error:
                heard.append(error)
            else:
                heard.append(None)

        if transactional:
            producer.begin_transaction()
        producer.send(wide, b"question", partition=0, on_delivery=told)
        wait_until(lambda: heard, "the callback is over")
        assert isinstance(heard[0], errors.IllegalState)
        if transactional:
            with refuses(errors.DeliveryTimeout, name="buffer_bytes", limit=100000):
                producer.commit_transaction()
            producer.abort_transaction()
        else:
            producer.flush(SECONDS)
    assert len(read(wide)) == (0 if transactional else 2)


def test_what_is_known_can_be_asked_in_a_callback(client: msgtx.Client, topic: str) -> None:
    places: list[int] = []
    with client.producer(linger_ms=0) as producer:
        first = producer.send(topic, b"a")
        first.result(SECONDS)
        producer.send(topic, b"b", on_delivery=lambda future: places.extend([future.result().offset, first.result().offset]))
        producer.flush(SECONDS)
    assert places == [1, 0]


# ── when they are called ──


@pytest.mark.parametrize(
    ("ends", "dedup"), [("flush", False), ("flush", True), ("close", False), ("close", True), ("commit_transaction", False)]
)
def test_what_waits_for_records_waits_for_their_callbacks(client: msgtx.Client, wide: str, ends: str, dedup: bool) -> None:
    called: list[object] = []

    def told(future: object) -> None:
        time.sleep(0.01)
        called.append(future)

    transactional = ends == "commit_transaction"
    producer = client.producer(transactional_id=wide) if transactional else client.producer(linger_ms=1)
    with producer:
        if transactional:
            producer.begin_transaction()
            producer.send(wide, b"opens it", partition=2)
            producer.flush(SECONDS)  # so that it takes more than one call
        for n in range(10):
            producer.send(wide, b"v", partition=n % 2, on_delivery=told, dedup_key=str(n) if dedup else None)
        getattr(producer, ends)()
        assert len(called) == 10


# ── the errors that are kept ──


def _entries(error: BaseException) -> int:
    return len(traceback.extract_tb(error.__traceback__))


def test_a_kept_error_is_raised_as_a_fresh_copy_each_time(client: msgtx.Client, topic: str) -> None:
    old, _ = begun(client, topic)
    old.send(topic, b"x")
    old.flush(SECONDS)
    with client.producer(transactional_id=topic):
        pass
    with pytest.raises(errors.ProducerFenced):
        old.commit_transaction()
    raised: list[BaseException] = []
    for _ in range(5):
        with pytest.raises(errors.ProducerFenced) as caught:
            old.send(topic, bytes(100_000))
        raised.append(caught.value)
    old.close()
    assert len({id(error) for error in raised}) == 5
    assert len({_entries(error) for error in raised}) == 1
    assert len({str(error) for error in raised}) == 1


def test_each_record_of_a_failed_batch_has_an_error_of_its_own(client: msgtx.Client, topic: str) -> None:
    with client.producer(linger_ms=500) as producer:
        futures = [producer.send(topic, b"v") for _ in range(20)]
        columns = producer.send_batch(topic, [b"v"] * 3)
        client.topics.delete(topic)
        found = [future.exception(SECONDS) for future in futures] + [columns.exception(SECONDS) for _ in range(3)]
        assert {type(error) for error in found} == {errors.UnknownTopicOrPartition}
        assert len({id(error) for error in found}) == len(found)
        for future in futures[:2]:
            for _ in range(3):
                with pytest.raises(errors.UnknownTopicOrPartition) as caught:
                    future.result(SECONDS)
                assert _entries(caught.value) <= 4


# ── what is no error of ours ──


def test_a_torn_producer_answers_who_waits(client: msgtx.Client, topic: str, background: ThreadPoolExecutor) -> None:
    """An interrupt between two steps (decision 0128); what is still in its lane is failed, and nobody waits for ever."""
    with client.producer(linger_ms=60_000) as producer:
        waiting = producer.send(topic, b"waiting")
        with producer._accumulator.lock:
            producer._accumulator.unfinished += 1  # as one that was between two places
            producer._accumulator.raised(KeyboardInterrupt())
        flushing = background.submit(producer.flush)
        assert isinstance(waiting.exception(SECONDS), errors.FatalError)
        assert isinstance(flushing.exception(SECONDS), errors.FatalError)
        with refuses(errors.FatalError, reason="interrupted"):
            producer.send(topic, b"refused")


@pytest.mark.parametrize("error", [MemoryError(), SystemExit(1), AssertionError("a bug")], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("step", ["_wait_for_work", "_expire", "_drain", "_take", "_settle"])
def test_what_ends_the_senders_loop_is_told_to_those_who_wait(
    client: msgtx.Client, topic: str, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    with client.producer(linger_ms=0) as producer:
        producer.send(topic, b"first").result(SECONDS)
        planted = iter([error])
        works = getattr(producer._sender, step)

        def raises(*arguments: Any, **named: Any) -> Any:
            for each in planted:
                raise each
            return works(*arguments, **named)

        monkeypatch.setattr(producer._sender, step, raises)
        with contextlib.suppress(errors.FatalError):
            outcome = producer.send(topic, b"second").exception(SECONDS)  # it may be stored before the step is reached
            assert isinstance(outcome, errors.FatalError | None)
        wait_until(lambda: producer._state.has_failed, "the sender has failed")
        with refuses(errors.FatalError, reason="failed"):
            producer.send(topic, b"third").result(SECONDS)


@pytest.mark.parametrize("call", ["result", "flush", "send", "send to another topic", "dedup_key"])
def test_a_sender_that_died_within_its_supervisor_is_started_again(
    client: msgtx.Client, topic: str, wide: str, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    with client.producer(linger_ms=0, batch_records=1) as producer:
        with monkeypatch.context() as patch:
            patch.setattr(BackgroundThread, "_run", lambda _: None)
            first = producer.send(topic, b"first", dedup_key="once" if call == "dedup_key" else None)
            wait_until(lambda: not producer._sender._thread.lives, "it has died")
        numbered = producer._state.producer
        if call == "flush":
            producer.flush(SECONDS)
        elif call.startswith("send"):
            producer.send(wide if "another" in call else topic, b"second")
            wait_until(first.done, "both are sent")
        assert first.result(SECONDS).offset == 0
        assert producer._state.producer == numbered


def test_a_thread_that_cannot_be_started_is_a_typed_error_and_the_next_send_starts_it(
    client: msgtx.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with client.producer(linger_ms=0) as producer:
        for dedup_key in (None, "once"):
            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", refuse)
                with pytest.raises(errors.ThreadNotStarted):
                    producer.send(topic, b"a", dedup_key=dedup_key)
            assert producer.send(topic, b"a", dedup_key=dedup_key).result(SECONDS).offset >= 0


def test_a_batch_that_is_settled_twice_is_counted_once(client: msgtx.Client) -> None:
    accumulator = Accumulator(linger_ms=0, batch_bytes=1_000, buffer_bytes=1_000, observers=client.runtime.observers)
    batch = PendingBatch(msgtx.TopicPartition("t", 0), None, accumulator.lock)
    accumulator.take_in(batch)
    for _ in range(2):
        accumulator.finish([batch])
    assert accumulator.unfinished == 0


def test_close_has_one_time_for_all_its_steps(client: msgtx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[float | None] = []
    producer = client.producer()
    monkeypatch.setattr(producer, "_flush_or_abort", time.sleep)
    monkeypatch.setattr(producer._keyed, "close", left.append)
    monkeypatch.setattr(producer._sender, "close", left.append)
    producer.close(0.1)
    assert left == [0.0, 0.0]
