"""The idempotent producer: batches with sequences, retries, failures, and its life from the first record to `close`."""

import logging
import os
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TypeVar

from msgtx import errors
from msgtx.config import ProducerConfig
from msgtx.database.connection import until
from msgtx.database.pool import Engine
from msgtx.errors import DatabaseUnavailable, IllegalState, MsgtxError, OutcomeUnknown
from msgtx.producer.batcher import Intake, Serializer, Topics
from msgtx.producer.batches import PendingBatch
from msgtx.producer.keyed import Deduplicator
from msgtx.producer.sender import Sender, Wake
from msgtx.rules.transaction import Call, ClientState, client_move
from msgtx.store.append_once import KeyedRecord
from msgtx.store.producers import init_producer_id
from msgtx.store.topics import Topic
from msgtx.types import ProducerId

log = logging.getLogger("msgtx.producer")
FAILED: Final = frozenset({ClientState.ABORTABLE_ERROR, ClientState.FATAL_ERROR})
Answer = TypeVar("Answer")


class IdempotentProducer(Intake):
    """What `Producer` is without its transactions; its state is a transactional producer's, too."""

    def __init__(
        self,
        engine: Engine,
        config: ProducerConfig,
        *,
        topics: Topics,
        wake: Wake,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
    ) -> None:
        super().__init__(config, topics=topics, key_serializer=key_serializer, value_serializer=value_serializer)
        self._engine = engine
        self._wake = wake
        self._sender = Sender(
            engine,
            self._accumulator,
            config,
            wake=wake,
            refresh_topic=self._refresh,
            on_failed=self._batch_failed,
        )
        self._deduplicator: Deduplicator | None = None  # from the first record with a dedup_key on
        self._transactional = config.transactional_id is not None
        self._enter(ClientState.UNINITIALIZED if self._transactional else ClientState.READY)
        self._error: MsgtxError | None = None
        self._started = False
        self._pid = os.getpid()
        _living.add(self)

    def _start(self) -> None:
        with self._lock:
            if self._started:
                return
            if self._state is ClientState.CLOSED:
                self._refuse(Call.SEND)
            if self.config.enable_idempotence and self._sender.producer is None and not self._transactional:
                deadline = time.monotonic() + self.config.max_block_ms / 1000
                self._sender.producer = self._retried(lambda: self._initialize(None), deadline, errors.DatabaseUnavailable)
            self._started = True
            self._sender.start()

    def _find_topic(self, name: str) -> Topic | None:
        return self._retried(lambda: self._topics(name, False), self._deadline(None), DatabaseUnavailable)

    def _made_again(self, topic: Topic) -> None:
        super()._made_again(topic)
        sender = self._sender
        if self._number is not None and any(tp.topic == topic.name for tp in sender.handed):
            self._fail(
                errors.UnknownTopicOrPartition(
                    f"{topic.name} was deleted and made again within the transaction: what it had is gone"
                )
            )
        for topic_partition in [tp for tp in sender.next_sequences if tp.topic == topic.name]:
            del sender.next_sequences[topic_partition]  # nobody has sent anything there yet

    def _add_keyed(self, record: KeyedRecord, batch: PendingBatch) -> None:
        if self._deduplicator is None:
            self._deduplicator = Deduplicator(
                self._engine,
                self._accumulator,
                self.config,
                wake=self._wake,
                refresh_topic=self._refresh,
                on_failed=self._batch_failed,
            )
        self._deduplicator.add(record, batch)

    def _batch_failed(self, transaction_number: int | None, error: MsgtxError) -> None:
        """Hear from the sender that a batch failed, or (number None, fatal) that the producer did."""
        with self._lock:
            if error.fatal:
                self._fail(error)
            elif transaction_number is not None and transaction_number == self._number:
                self._fail(error)
                self._accumulator.drop_unsent(error)

    def _fail(self, error: MsgtxError) -> None:
        if self._state in {ClientState.CLOSED, ClientState.FATAL_ERROR}:
            return
        if error.fatal:
            self._error = error
            self._enter(ClientState.FATAL_ERROR)
        elif self._state in {ClientState.IN_TRANSACTION, ClientState.COMMITTING, ClientState.SEALING}:
            self._error = error
            self._enter(client_move(self._state, Call.FAILED))
        self._accumulator.settled.notify_all()  # whoever waits for room hears of it

    def _refused(self, error: MsgtxError) -> MsgtxError:
        """Fail with a refusal, or with the reason behind it. Returns what to raise."""
        if error.fatal:
            error = self._engine.cause_of(error)
        with self._lock:
            self._fail(error)
        return error

    def _initialize(self, transactional_id: str | None, *, keep_prepared: bool = False) -> ProducerId:
        with self._engine.connection() as connection:
            return init_producer_id(
                connection,
                transactional_id,
                timeout_ms=self.config.transaction_timeout_ms,
                keep_prepared=keep_prepared,
            )

    def _enter(self, state: ClientState) -> None:
        self._state = state
        self._may_send = state is (ClientState.IN_TRANSACTION if self._transactional else ClientState.READY)

    def _refuse(self, call: Call) -> None:
        if self._error is not None and self._state in FAILED:
            raise self._error
        client_move(self._state, call)
        raise IllegalState(f"{call} while {self._state}: the producer is closed")

    def _deadline(self, timeout: float | None) -> float:
        return time.monotonic() + (self.config.max_block_ms / 1000 if timeout is None else timeout)

    def _retried(self, attempt: Callable[[], Answer], deadline: float, when_late: type[MsgtxError]) -> Answer:
        """Repeat a call that may be repeated until it is answered or time is over (semantics 4: lost answer)."""
        backoff = self.config.retry_backoff_ms / 1000
        while True:
            try:
                with until(deadline, silence=self.config.request_timeout_ms / 1000):
                    return attempt()
            except MsgtxError as error:
                if error.fatal:
                    error = self._refused(error)
                if not error.retriable:
                    raise error
                if time.monotonic() + backoff > deadline:
                    if isinstance(error, DatabaseUnavailable) or when_late is OutcomeUnknown:
                        raise when_late(f"no answer in time ({error}); the same call may be repeated") from error
                    raise
            time.sleep(backoff)
            backoff = min(backoff * 2, 1.0)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._state is ClientState.CLOSED

    def close(self, timeout: float | None = None) -> None:
        """Flush and end. Never raises on a fenced producer; may be called twice."""
        if self._state is ClientState.CLOSED:
            return
        if not self._transactional and self._started and os.getpid() == self._pid:
            seconds = self.config.delivery_timeout_ms / 1000 if timeout is None else timeout
            try:
                self.flush(seconds)
            except TimeoutError as error:
                log.warning("closing: %s", error)
        with self._lock:
            self._enter(ClientState.CLOSED)
            self._accumulator.settled.notify_all()  # whoever waits for room hears of it
        # Outside the lock: delivery callbacks are the user's code.
        self._accumulator.drop_unsent(IllegalState("the producer was closed before this was sent"))
        if self._deduplicator is not None:
            self._deduplicator.close(timeout)
        if self._started:
            self._sender.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


_living: "weakref.WeakSet[IdempotentProducer]" = weakref.WeakSet()


def _disown_after_fork() -> None:
    for producer in _living:
        producer._state = ClientState.CLOSED
        producer._may_send = False


os.register_at_fork(after_in_child=_disown_after_fork)
