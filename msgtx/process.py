"""Consume–transform–produce, exactly once: the loop that `client.process` runs."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from msgtx.consumer import Consumer
from msgtx.errors import AbortableError, OutcomeUnknown
from msgtx.producer import Producer
from msgtx.types import OutputRecord, ProcessReport, Record

Output = OutputRecord | bytes | None
Transform = Callable[[Record], Output | Iterable[OutputRecord | bytes]]
POLL_SECONDS: Final = 0.2  # the longest wait for input before stop and idle_timeout are looked at
RETRIES_IN_A_ROW: Final = 100  # aborted attempts without a commit in between, before the error goes on


def outputs(result: Output | Iterable[OutputRecord | bytes]) -> Iterable[OutputRecord]:
    """Return what a transform gave as records."""
    if result is None:
        return ()
    if isinstance(result, bytes):
        return (OutputRecord(result),)
    if isinstance(result, OutputRecord):
        return (result,)
    if isinstance(result, str):  # type: ignore[unreachable]  # not every caller is type-checked
        raise TypeError("a transform returns None, bytes, an OutputRecord or an iterable of them, not str; encode it")
    return [_output(item) for item in result]


def _output(item: object) -> OutputRecord:
    if isinstance(item, bytes):
        return OutputRecord(item)
    if isinstance(item, OutputRecord):
        return item
    raise TypeError(f"a transform gives bytes or OutputRecord, not {type(item).__name__}")


def process(
    consumer: Consumer,
    producer: Producer,
    *,
    to: str,
    transform: Transform,
    transaction_ms: int,
    idle_timeout: float | None = None,
    stop: threading.Event | None = None,
    on_commit: Callable[[ProcessReport], object] | None = None,
) -> ProcessReport:
    """Run the loop until `stop` is set, or until nothing came for `idle_timeout` seconds.

    Each transaction holds the outputs of what was polled within `transaction_ms`, and the consumer's positions (I10). An
    abortable error aborts, rewinds and goes on; what the transform raises aborts and is raised.
    """
    report = ProcessReport()
    started = last_input = time.monotonic()
    failures = 0
    while not (stop is not None and stop.is_set()):
        records = consumer.poll(POLL_SECONDS if idle_timeout is None else min(POLL_SECONDS, idle_timeout), 10_000)
        if not records:
            if idle_timeout is not None and time.monotonic() - last_input >= idle_timeout:
                break
            continue
        try:
            with producer.transaction() as transaction:
                read, written = _fill(consumer, producer, records, to=to, transform=transform, seconds=transaction_ms / 1000)
                transaction.send_offsets(consumer)
        except (AbortableError, OutcomeUnknown) as error:
            failures += 1
            if isinstance(error, OutcomeUnknown) or failures > RETRIES_IN_A_ROW:
                raise
            consumer.rewind()
            report = replace(report, aborted=report.aborted + 1)
            continue
        failures = 0
        last_input = time.monotonic()
        report = replace(
            report,
            transactions=report.transactions + 1,
            records_in=report.records_in + read,
            records_out=report.records_out + written,
            seconds=time.monotonic() - started,
        )
        if on_commit is not None:
            on_commit(report)
    return report


def _fill(
    consumer: Consumer, producer: Producer, records: list[Record], *, to: str, transform: Transform, seconds: float
) -> tuple[int, int]:
    """Send the outputs of what is polled within `seconds`. Returns the numbers of records read and written."""
    deadline = time.monotonic() + seconds
    read = written = 0
    send = producer.send
    while records:
        for record in records:
            result = transform(record)
            for output in (result,) if result.__class__ is OutputRecord else outputs(result):
                send(
                    output.topic or to,
                    output.value,
                    key=output.key,
                    partition=output.partition,
                    timestamp=output.timestamp,
                    headers=output.headers or None,
                )
                written += 1
        read += len(records)
        left = deadline - time.monotonic()
        if left <= 0:
            break
        records = consumer.poll(min(left, 0.01), 10_000)
    return read, written
