"""`msgtx.otel` with the SDK of OpenTelemetry: a record's trace goes on where it is handled."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from sqlalchemy.orm import Session, sessionmaker

import msgtx
from msgtx import aio, errors, orm, otel
from msgtx.types import OutputRecord
from tests.databases import connect

pytestmark = pytest.mark.slow


class Told:
    """What the providers were told."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        data = self.reader.get_metrics_data()
        return [
            (dict(point.attributes or {}), point)
            for of_resource in (data.resource_metrics if data else ())
            for scope in of_resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def told(client: msgtx.Client) -> Iterator[Told]:
    made = Told()
    otel.instrument(client, tracer_provider=made.tracers, meter_provider=made.meters)
    yield made
    made.tracers.shutdown()
    made.meters.shutdown()


def ids(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def traceparent(span: ReadableSpan) -> bytes:
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}".encode()


def test_a_record_carries_the_context_of_its_send_span(client: msgtx.Client, topic: str, told: Told) -> None:
    with client.producer() as producer, told.tracers.get_tracer("test").start_as_current_span("request") as request:
        producer.send(topic, b"x", headers=[("own", b"1"), ("traceparent", b"of another")]).result()
    (sent,) = told.spans(f"send {topic}")
    assert sent.kind is SpanKind.PRODUCER
    assert sent.parent is not None
    assert sent.parent.span_id == request.get_span_context().span_id
    assert dict(sent.attributes or {}) == {
        "messaging.system": "msgtx",
        "messaging.operation.type": "send",
        "messaging.operation.name": "send",
        "messaging.destination.name": topic,
        "messaging.batch.message_count": 1,
    }
    with client.consumer(topic, group=topic, auto_offset_reset="earliest") as consumer:
        (record,) = consumer.poll(10)
    assert dict(record.headers) == {"own": b"1", "traceparent": traceparent(sent)}
    (received,) = told.spans(f"receive {topic}")
    assert (received.kind, linked(received), received.parent) == (SpanKind.CLIENT, [ids(sent)], None)
    assert (received.attributes or {})["messaging.consumer.group.name"] == topic
    with otel.processing(record, group=topic, tracer_provider=told.tracers):
        pass
    (processed,) = told.spans(f"process {topic}")
    assert (processed.kind, linked(processed)) == (SpanKind.CONSUMER, [ids(sent)])
    assert (processed.attributes or {})["messaging.message.id"] == f"{topic}-0-0"


def test_what_is_on_its_way_together_shares_a_span_and_traces_do_not(client: msgtx.Client, topic: str, told: Told) -> None:
    tracer = told.tracers.get_tracer("test")
    with client.producer(linger_ms=300) as producer:
        for name in ("first", "second"):
            with tracer.start_as_current_span(name):
                for _ in range(3):
                    producer.send(topic, b"x")
        producer.flush()
    sent = told.spans(f"send {topic}")
    assert [(span.attributes or {})["messaging.batch.message_count"] for span in sent] == [3, 3]
    assert len({ids(span)[0] for span in sent}) == 2
    with client.consumer(topic, auto_offset_reset="earliest", group=topic) as consumer:
        assert len(consumer.poll(10)) == 6
    (received,) = told.spans(f"receive {topic}")
    assert sorted(linked(received)) == sorted(map(ids, sent))
    assert (received.attributes or {})["messaging.batch.message_count"] == 6


def test_a_transaction_has_one_span_for_each_topic_and_it_ends_with_it(
    client: msgtx.Client, topic: str, wide: str, told: Told
) -> None:
    with client.producer(transactional_id=topic) as producer:
        with producer.transaction() as transaction:
            producer.send(topic, b"1").result()
            producer.send(topic, b"2")
            producer.send(wide, b"3")
            assert told.spans(f"send {topic}") == []
        producer.begin_transaction()
        producer.send(topic, b"4")
        producer.abort_transaction()
    committed, aborted = told.spans(f"send {topic}")
    assert (committed.attributes or {})["messaging.batch.message_count"] == 2
    assert (committed.attributes or {})["msgtx.transaction.outcome"] == "committed"
    assert (committed.attributes or {})["msgtx.transaction.id"] == str(transaction.id)
    assert (aborted.attributes or {})["msgtx.transaction.outcome"] == "aborted"
    assert aborted.status.status_code is StatusCode.ERROR
    assert len(told.spans(f"send {wide}")) == 1


def test_a_send_that_fails_is_an_error_of_its_span(client: msgtx.Client, topic: str, told: Told) -> None:
    client.topics.alter(topic, max_message_bytes=1_000)
    with client.producer() as producer:
        assert producer.send(topic, b"x" * 2_000).exception(30) is not None
        with pytest.raises(errors.UnknownTopicOrPartition):
            producer.send("not-there", b"x")
    (sent,) = told.spans(f"send {topic}")
    assert (sent.status.status_code, (sent.attributes or {})["error.type"]) == (StatusCode.ERROR, "RecordTooLarge")
    (refused,) = told.spans("send not-there")
    assert (refused.attributes or {})["error.type"] == "UnknownTopicOrPartition"


def test_headers_may_be_given_in_each_form(client: msgtx.Client, topic: str, told: Told) -> None:
    forms: list[Any] = [{"own": b"1", "more": b"2"}, iter([("own", b"1"), ("more", b"2")])]
    with client.producer() as producer:
        for headers in forms:
            producer.send(topic, b"x", headers=headers).result()
        for wrong in (5, [()], {"own": "text"}):
            with pytest.raises(errors.WrongType):
                producer.send(topic, b"x", headers=wrong)  # type: ignore[arg-type]
    with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        assert [record.headers[:2] for record in consumer.poll(10)] == [(("own", b"1"), ("more", b"2"))] * 2


class BrokenSpans(SpanProcessor):
    """Raises when a span starts, or when it ends."""

    def __init__(self, at: str) -> None:
        self.at = at

    def on_start(self, *_: object, **__: object) -> None:
        if self.at == "start":
            raise RuntimeError("the exporter is broken")

    def on_end(self, *_: object) -> None:
        if self.at == "end":
            raise RuntimeError("the exporter is broken")


@pytest.mark.parametrize("at", ["start", "end"])
def test_spans_that_raise_do_no_harm_to_records_and_workers(
    client: msgtx.Client, topic: str, app: sqlalchemy.Engine, at: str
) -> None:
    tracers = TracerProvider()
    tracers.add_span_processor(BrokenSpans(at))
    otel.instrument(client, tracer_provider=tracers)
    with client.producer(transactional_id=topic) as producer, producer.transaction():
        producer.send(topic, b"in a transaction", headers={"own": b"1"})
    with client.producer() as producer:
        assert producer.send(topic, b"outside").result().offset == 1
        with pytest.raises(errors.WrongType):
            producer.send(topic, "text")
    handled: list[bytes | None] = []

    def handle(_: Session, record: msgtx.Record) -> None:
        handled.append(record.value)

    report = client.process_into(sessionmaker(app), handle, topic, group=topic, failure=msgtx.Stop(), idle_timeout=1.0)
    assert (handled, report.failed, report.aborted) == ([b"in a transaction", b"outside"], 0, 0)


def test_a_fenced_producers_spans_end(client: msgtx.Client, topic: str, told: Told) -> None:
    with client.producer(transactional_id=topic) as producer:
        producer.begin_transaction()
        producer.send(topic, b"fenced")
        with client.producer(transactional_id=topic), pytest.raises(errors.ProducerFenced):
            producer.commit_transaction()
    (sent,) = told.spans(f"send {topic}")
    assert (sent.attributes or {})["error.type"] == "ProducerFenced"


def test_a_workers_handling_is_linked_with_where_its_record_came_from(
    client: msgtx.Client, topic: str, told: Told, app: sqlalchemy.Engine
) -> None:
    with client.producer() as producer:
        for text in (b"good", b"poison"):
            producer.send(topic, text).result()
    below: list[Any] = []

    def handle(_: Session, record: msgtx.Record) -> None:
        with told.tracers.get_tracer("test").start_as_current_span("in the handler") as span:
            below.append(span)
        if record.value == b"poison":
            raise ValueError("poison")

    client.process_into(sessionmaker(app), handle, topic, group=topic, failure=msgtx.Skip(0), idle_timeout=1.0)
    sent = told.spans(f"send {topic}")
    processed = told.spans(f"process {topic}")
    assert {place for span in processed for place in linked(span)} == {ids(span) for span in sent}
    assert below[0].parent.span_id == ids(processed[0])[1]
    failed = [span for span in processed if span.status.status_code is StatusCode.ERROR]
    assert failed
    assert {(span.attributes or {})["error.type"] for span in failed} == {"ValueError"}
    assert {tuple(linked(span)) for span in failed} == {(ids(sent[1]),)}


def test_a_worker_of_topics_sends_under_its_own_trace_not_that_of_its_input(
    client: msgtx.Client, topic: str, wide: str, told: Told
) -> None:
    """A transform that hands the headers on does not pass the old context off as the new one."""
    with client.producer() as producer:
        producer.send(topic, b"x").result()
    names = {"to": wide, "group": topic, "transactional_id": topic}
    client.process(
        topic, **names, transform=lambda record: OutputRecord(record.value, headers=record.headers), idle_timeout=1.0
    )
    with client.consumer(wide, auto_offset_reset="earliest") as consumer:
        (record,) = consumer.poll(10)
    (output,) = told.spans(f"send {wide}")
    assert [value for name, value in record.headers if name == "traceparent"] == [traceparent(output)]
    (processed,) = told.spans(f"process {topic}")
    assert linked(processed) == [ids(told.spans(f"send {topic}")[0])]


def test_links_are_each_there_once_and_bounded() -> None:
    def record(number: int) -> msgtx.Record:
        return msgtx.Record("t", 0, 0, 0, None, None, (("traceparent", f"00-{number:032x}-{number:016x}-01".encode()),))

    assert len(otel.links([record(1), record(2), record(1)])) == 2
    assert len(otel.links([record(number) for number in range(1, 500)])) == 128
    bad = [msgtx.Record("t", 0, 0, 0, None, None, (("traceparent", value),)) for value in (None, b"nonsense", b"\xff")]
    assert otel.links(bad) == []


def test_what_a_session_publishes_can_carry_the_current_context(
    client: msgtx.Client, topic: str, told: Told, app: sqlalchemy.Engine
) -> None:
    with Session(app) as session, told.tracers.get_tracer("test").start_as_current_span("request"):
        orm.publish(session, topic, b"x", headers=otel.headers())
        session.commit()
    with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        (record,) = consumer.poll(10)
    assert dict(record.headers)["traceparent"] == traceparent(told.spans("request")[0])


def test_an_asynchronous_producer_sends_with_its_span(database_url: str, topic: str) -> None:
    told = Told()

    async def run() -> None:
        async with await aio.connect(database_url) as client:
            otel.instrument(client.sync, tracer_provider=told.tracers)
            async with client.producer() as producer:
                for _ in range(2):  # the first one waits for the topic, in a thread
                    with told.tracers.get_tracer("test").start_as_current_span("request"):
                        await (await producer.send(topic, b"x", headers=iter([("own", b"1")])))
            async with client.consumer(topic, auto_offset_reset="earliest") as consumer:
                assert [record.headers[0] for record in await consumer.poll(10)] == [("own", b"1")] * 2

    asyncio.run(run())
    sent, requests = told.spans(f"send {topic}"), told.spans("request")
    assert [span.parent.span_id for span in sent if span.parent] == [ids(span)[1] for span in requests]


def test_figures_have_the_names_of_the_conventions(client: msgtx.Client, topic: str, told: Told) -> None:
    with client.producer() as producer:
        producer.send(topic, b"x").result()
    with client.consumer(topic, group=topic, auto_offset_reset="earliest") as consumer:
        (record,) = consumer.poll(10)
    with connect(client.secret_url):
        pass
    of_topic = {"messaging.system": "msgtx", "messaging.destination.name": topic}
    (sent,) = told.points("messaging.client.sent.messages")
    assert (sent[0], sent[1].value) == (of_topic | {"messaging.operation.name": "send"}, 1)
    (received,) = told.points("messaging.client.consumed.messages")
    group = {"messaging.consumer.group.name": topic}
    assert (received[0], received[1].value) == (of_topic | group | {"messaging.operation.name": "receive"}, 1)
    durations = {
        attributes["messaging.operation.name"] for attributes, _ in told.points("messaging.client.operation.duration")
    }
    assert durations == {"send", "receive"}
    assert record.offset == 0


def test_a_workers_dead_letters_are_counted(client: msgtx.Client, topic: str, wide: str, told: Told) -> None:
    client.admin.shares.configure(topic, {"auto_offset_reset": "earliest"})
    with client.producer() as producer:
        producer.send(topic, b"x").result()

    def transform(record: msgtx.Record) -> bytes:
        raise ValueError(record)

    worker: dict[str, Any] = {"to": wide, "transform": transform, "idle_timeout": 0.5}
    client.process(topic, group=f"{topic}-c", transactional_id=topic, failure=msgtx.DeadLetter(wide, 0), **worker)
    client.process(
        topic, group=topic, transactional_id=topic, share_members=1, failure=msgtx.Acknowledgement.REJECT, **worker
    )
    found = {
        (attributes["messaging.consumer.group.name"], attributes["messaging.destination.name"]): point.value
        for attributes, point in told.points("msgtx.worker.dead_letters")
    }
    assert found == {(f"{topic}-c", wide): 1, (topic, f"{topic}-dead-letters"): 1}


def test_a_client_that_is_not_instrumented_adds_no_header_and_imports_nothing(client: msgtx.Client, topic: str) -> None:
    with client.producer() as producer:
        producer.send(topic, b"x").result()
    with client.consumer(topic, auto_offset_reset="earliest") as consumer:
        (record,) = consumer.poll(10)
    assert record.headers == ()
    code = "import sys, msgtx, msgtx.client, msgtx.aio; print([name for name in sys.modules if 'opentelemetry' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_the_extra_one_line_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None; from msgtx import errors\ntry:\n import msgtx.otel\n"
        "except errors.ConfigError as error:\n print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "OpenTelemetry is not installed: pip install 'msgtx[otel]'\n"
