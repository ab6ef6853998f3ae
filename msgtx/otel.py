"""Traces and metrics of producers, consumers and workers, for OpenTelemetry (`pip install 'msgtx[otel]'`).

    from msgtx import otel

    otel.instrument(client)

    for record in consumer:
        with otel.processing(record, group="mail"):
            ...

Names follow the semantic conventions for messaging. A `send` span covers the records of one trace to a topic: in a
transaction all of them, to its end; without one the records that go together. Its context goes into the records'
headers (`traceparent`, or those of the process's propagator). `receive` (of a poll) and `process` (of a worker's or
your own handling) are linked with the spans that their records came from. Records of `send_batch` have no headers.
Without `instrument` nothing is done.
"""

import contextlib
import functools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from msgtx import arguments, callbacks
from msgtx.client import Client
from msgtx.errors import ConfigError, FatalError
from msgtx.observer import Ended, Observer
from msgtx.producer.batches import RecordFuture
from msgtx.producer.producer import Producer
from msgtx.rules.record import GivenHeaders, as_headers
from msgtx.types import Record

try:
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
except ImportError as error:
    raise ConfigError("OpenTelemetry is not installed: pip install 'msgtx[otel]'") from error

__all__ = ["context_of", "headers", "instrument", "links", "processing"]

SYSTEM: Final = "msgtx"
MOST_LINKS: Final = 128  # of one span, as the SDK's own limit is
MOST_OF_A_SPAN: Final = 10_000  # of one send span outside transactions
NANOSECONDS: Final = 1_000_000_000
log = logging.getLogger("msgtx.observer")


class _Sending:
    """A `send` span and the records that are sent under it. It ends with the last of them, or with its transaction."""

    def __init__(self, span: Span, *, transactional: bool) -> None:
        self.span = span
        self.records = 0
        self.waiting = 0
        self.over = False
        self.began = time.monotonic()
        self.transactional = transactional
        with trace.use_span(span):
            self.headers = headers()

    def failed(self, error: BaseException) -> None:
        _fail(self.span, error)


class _Sendings:
    """The `send` spans of one producer: in a transaction one for each topic, without one for each trace and topic."""

    def __init__(self, producer: Producer, observer: "Instruments") -> None:
        self._producer = weakref.ref(producer)
        self._observer = observer
        self._transactional = producer.config.transactional_id is not None
        self._lock = threading.Lock()
        self._open: dict[tuple[str, int], _Sending] = {}

    def sent(
        self,
        send: Callable[..., RecordFuture | None],
        topic: str,
        value: Any,
        *,
        headers: GivenHeaders | None = None,
        **rest: Any,
    ) -> RecordFuture | None:
        """Send a record with the context of its span; without one where there is none to be had."""
        try:
            sending = self._of(topic)
        except Exception:
            log.exception("an observer failed")
            return send(topic, value, headers=headers, **rest)
        own = {name for name, _ in sending.headers}
        try:
            given = [pair for pair in (() if headers is None else as_headers(headers)) if pair[0] not in own]
            future = send(topic, value, headers=[*given, *sending.headers], **rest)
        except BaseException as error:
            self._settled(sending, error)
            raise
        if future is None:  # nothing was sent: it would have had to wait
            with self._lock:
                sending.records -= 1
            self._settled(sending, None)
        else:
            future.add_done_callback(functools.partial(self._delivered, sending))
        return future

    def _of(self, topic: str) -> _Sending:
        key = (topic, 0 if self._transactional else trace.get_current_span().get_span_context().span_id)
        with self._lock:
            sending = self._open.get(key)
            if sending is None or sending.over or (sending.records >= MOST_OF_A_SPAN and not self._transactional):
                sending = self._open[key] = self._observer.sending(topic, transactional=self._transactional)
            sending.records += 1
            sending.waiting += 1
            return sending

    def _delivered(self, sending: _Sending, future: RecordFuture) -> None:
        self._settled(sending, future.exception(0))

    def _settled(self, sending: _Sending, error: BaseException | None) -> None:
        """Take note of a record's outcome. An exception of the span is reported: its record has an outcome all the same."""
        interrupt = callbacks.run(log, "an observer failed", self, self._note, sending, error)
        if interrupt is not None:
            raise interrupt

    def _note(self, sending: _Sending, error: BaseException | None) -> None:
        if error is not None:
            sending.failed(error)
        with self._lock:
            sending.waiting -= 1
            ends = sending.waiting == 0 and not sending.transactional and not sending.over
            if ends:
                self._close(sending)
        if ends:
            self._end(sending)

    def _close(self, sending: _Sending) -> None:
        sending.over = True
        for key in [key for key, other in self._open.items() if other is sending]:
            del self._open[key]

    def end_transaction(self, outcome: Ended | Exception) -> None:
        """End the spans of a transaction."""
        with self._lock:
            ended = list(self._open.values())
            for sending in ended:
                self._close(sending)
        for sending in ended:
            if isinstance(outcome, Exception):
                sending.failed(outcome)
            else:
                sending.span.set_attribute("msgtx.transaction.outcome", outcome)
            producer = self._producer()
            if producer is not None and producer.transaction_id is not None:
                sending.span.set_attribute("msgtx.transaction.id", str(producer.transaction_id))
            self._end(sending)

    def _end(self, sending: _Sending) -> None:
        if sending.records:
            sending.span.set_attribute("messaging.batch.message_count", sending.records)
            sending.span.end()


class Instruments(Observer):
    """The spans and metrics of the process's providers. Made by `instrument`."""

    def __init__(
        self, tracer_provider: trace.TracerProvider | None = None, meter_provider: metrics.MeterProvider | None = None
    ) -> None:
        self._tracer = trace.get_tracer("msgtx", tracer_provider=tracer_provider)
        meter = metrics.get_meter("msgtx", meter_provider=meter_provider)
        self._sendings: weakref.WeakKeyDictionary[Producer, _Sendings] = weakref.WeakKeyDictionary()
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Records that were sent.")
        self._received = meter.create_counter("messaging.client.consumed.messages", "{message}", "Records handed out.")
        self._operation = meter.create_histogram("messaging.client.operation.duration", "s", "Length of a call.")
        self._process = meter.create_histogram("messaging.process.duration", "s", "Length of the handling of records.")
        self._dead = meter.create_counter("msgtx.worker.dead_letters", "{message}", "Records sent to dead letters.")

    def made(self, user: Any) -> None:
        """Have a producer send with the context of a span."""
        if not isinstance(user, Producer) or user in self._sendings:
            return
        sendings = self._sendings[user] = _Sendings(user, self)
        user.send = functools.partial(sendings.sent, user.send)  # type: ignore[assignment, method-assign]
        user.send_at_once = functools.partial(sendings.sent, user.send_at_once)  # type: ignore[method-assign]

    def sending(self, topic: str, *, transactional: bool) -> _Sending:
        """Begin a `send` span, below the one that is current."""
        span = self._tracer.start_span(
            f"send {topic}", kind=SpanKind.PRODUCER, attributes=_attributes("send", "send", topic)
        )
        return _Sending(span, transactional=transactional)

    def transaction_ended(self, producer: object, outcome: Ended, seconds: float) -> None:
        """End the spans of a transaction."""
        sendings = self._sendings.get(producer) if isinstance(producer, Producer) else None
        if sendings is not None:
            sendings.end_transaction(outcome)
        name = "commit" if outcome == "committed" else "abort"
        self._operation.record(seconds, {"messaging.system": SYSTEM, "messaging.operation.name": name})

    def transaction_failed(self, producer: object, error: Exception) -> None:
        """End the spans of a transaction that its producer cannot end any more."""
        sendings = self._sendings.get(producer) if isinstance(producer, Producer) else None
        if sendings is not None and isinstance(error, FatalError):
            sendings.end_transaction(error)

    def batch_settled(
        self, topic: str, *, records: int, size: int, seconds: float, retries: int, error: BaseException | None
    ) -> None:
        """Count a batch."""
        told = _metric("send", topic, error)
        self._sent.add(records, told)
        self._operation.record(seconds, told)

    def received(self, group: str | None, counts: Mapping[str, int], records: Sequence[Record], since: float | None) -> None:
        """Report a poll in a span with links to the spans of its records. An iteration has no such span."""
        now, ended = time.monotonic(), time.time_ns()
        by_topic: dict[str, list[Record]] = {}
        for record in records:
            by_topic.setdefault(record.topic, []).append(record)
        for topic, found in by_topic.items():
            told = _metric("receive", topic) | _group(group)
            self._received.add(len(found), told)
            if since is None:
                continue
            self._operation.record(now - since, told)
            span = self._tracer.start_span(
                f"receive {topic}",
                kind=SpanKind.CLIENT,
                attributes=_attributes("receive", "receive", topic, group=group, records=found),
                links=links(found),
                start_time=ended - int((now - since) * NANOSECONDS),
            )
            span.end(ended)

    def poll_failed(self, group: str | None, error: Exception) -> None:
        """Count a poll that raised."""
        self._operation.record(0.0, {"messaging.operation.name": "receive", "messaging.system": SYSTEM, **_error(error)})

    def set_aside(self, group: str, records: int, dead_letter: str | None) -> None:
        """Count dead letters."""
        if dead_letter is not None:
            self._dead.add(records, _metric("process", dead_letter) | _group(group))

    def handling(self, group: str, records: Sequence[Record]) -> AbstractContextManager[object]:
        """Return a `process` span."""
        return self.process(records, group)

    @contextlib.contextmanager
    def process(self, records: Sequence[Record], group: str | None) -> Iterator[Span]:
        """Run the block in a `process` span."""
        topic = records[0].topic if len({record.topic for record in records}) == 1 else None
        began = time.monotonic()
        failed: BaseException | None = None
        with self._tracer.start_as_current_span(
            "process" if topic is None else f"process {topic}",
            kind=SpanKind.CONSUMER,
            attributes=_attributes("process", "process", topic, group=group, records=records),
            links=links(records),
        ) as span:
            try:
                yield span
            except BaseException as error:
                failed = error
                span.set_attribute("error.type", type(error).__name__)
                raise
            finally:
                told = _metric("process", topic, failed) | _group(group)
                self._process.record(time.monotonic() - began, told)


def instrument(
    client: Client,
    *,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> None:
    """Trace and measure this client's producers, consumers and workers; by the process's providers if none are given.

    Before a worker is started, and once. Of an asynchronous client give `client.sync`. Raise `ConfigError` if it is none.
    """
    if not isinstance(client, Client):
        raise ConfigError(
            f"instrument takes a client of msgtx.connect (of msgtx.aio its .sync), not {type(client).__name__}",
            name="client",
        )
    if meter_provider is not None:
        arguments.an_instance("meter_provider", meter_provider, metrics.MeterProvider, "a MeterProvider")
    client.observe(Instruments(_provider(tracer_provider), meter_provider))


def _provider(given: object) -> trace.TracerProvider | None:
    if given is None:
        return None
    return arguments.an_instance("tracer_provider", given, trace.TracerProvider, "a TracerProvider")


def _records(given: object) -> list[Record]:
    found = [given] if isinstance(given, Record) else arguments.listed("records", given)
    return [_record(each) for each in found]


def _record(given: object) -> Record:
    return arguments.an_instance("a record", given, Record, "a Record of msgtx")


def processing(
    records: Record[Any, Any] | Sequence[Record[Any, Any]],
    *,
    group: str | None = None,
    tracer_provider: trace.TracerProvider | None = None,
) -> AbstractContextManager[Span]:
    """Run a block in a `process` span that is linked with where these records came from; for a loop of your own."""
    found = _records(records)
    if group is not None:
        group = arguments.text("group", group)
    if not found:
        raise ConfigError("processing takes a record or several, not none", name="records")
    return _made(_provider(tracer_provider)).process(found, group)


@functools.lru_cache(maxsize=8)
def _made(tracer_provider: trace.TracerProvider | None) -> Instruments:
    return Instruments(tracer_provider)


def context_of(record: Record[Any, Any]) -> Context:
    """Return the trace context from a record's headers, to use as parent of the consumer's span."""
    carrier = {name: (value or b"").decode(errors="replace") for name, value in _record(record).headers}
    return propagate.extract(carrier)


def headers() -> list[tuple[str, bytes]]:
    """Return the current span's context as headers: for `orm.publish`, which sends under no span of its own."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return [(name, value.encode()) for name, value in carrier.items()]


def links(records: Sequence[Record[Any, Any]]) -> list[Link]:
    """Return links to the spans that sent these records: each once, the first 128."""
    found: dict[tuple[int, int], Link] = {}
    seen: set[tuple[Any, ...]] = set()
    for record in _records(records):
        if record.headers and record.headers not in seen and len(found) < MOST_LINKS:
            seen.add(record.headers)
            context = trace.get_current_span(context_of(record)).get_span_context()
            if context.is_valid:
                found.setdefault((context.trace_id, context.span_id), Link(context))
    return list(found.values())


def _attributes(
    kind: str, name: str, topic: str | None, *, group: str | None = None, records: Sequence[Record] = ()
) -> dict[str, str | int]:
    told: dict[str, str | int] = {
        "messaging.system": SYSTEM,
        "messaging.operation.type": kind,
        "messaging.operation.name": name,
        **_group(group),
    }
    if topic is not None:
        told["messaging.destination.name"] = topic
    if len(records) > 1:
        told["messaging.batch.message_count"] = len(records)
    if len(records) == 1:
        told["messaging.destination.partition.id"] = str(records[0].partition)
        told["messaging.message.id"] = f"{records[0].topic}-{records[0].partition}-{records[0].offset}"
    return told


def _metric(name: str, topic: str | None, error: BaseException | None = None) -> dict[str, str]:
    told = {"messaging.system": SYSTEM, "messaging.operation.name": name, **_error(error)}
    return told if topic is None else told | {"messaging.destination.name": topic}


def _group(group: str | None) -> dict[str, str]:
    return {} if group is None else {"messaging.consumer.group.name": group}


def _error(error: BaseException | None) -> dict[str, str]:
    return {} if error is None else {"error.type": type(error).__name__}


def _fail(span: Span, error: BaseException) -> None:
    span.set_status(Status(StatusCode.ERROR, str(error)))
    span.set_attribute("error.type", type(error).__name__)
