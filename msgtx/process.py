"""Consume–transform–produce, exactly once: the loop that `client.process` runs."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from msgtx.consumer import Consumer
from msgtx.errors import AbortableError, InvalidRecord, RecordTooLarge
from msgtx.producer import Producer
from msgtx.types import OutputRecord, ProcessReport, Record

Output = OutputRecord | bytes | None
Transform = Callable[[Record], Output | Iterable[OutputRecord | bytes]]
POLL_SECONDS: Final = 0.2  # the longest wait for input before stop and idle_timeout are looked at
FIRST_RECORDS: Final = 100  # of a worker's first poll, before it knows how fast its transform is
MOST_RECORDS: Final = 10_000
RETRY_SECONDS: Final = 0.05  # after an aborted attempt, longer with each one in a row
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
    filler = _Filler(consumer, producer, to, transform, transaction_ms / 1000, stop)
    while not (stop is not None and stop.is_set()):
        records = consumer.poll(POLL_SECONDS if idle_timeout is None else min(POLL_SECONDS, idle_timeout), filler.chunk)
        if not records:
            if idle_timeout is not None and time.monotonic() - last_input >= idle_timeout:
                break
            continue
        try:
            with producer.transaction() as transaction:
                read, written = filler.fill(records)
                transaction.send_offsets(consumer)
        except AbortableError as error:
            failures += 1
            if isinstance(error, RecordTooLarge | InvalidRecord) or failures > RETRIES_IN_A_ROW:
                raise  # the same record would be refused again
            consumer.rewind()
            report = replace(report, aborted=report.aborted + 1)
            time.sleep(min(RETRY_SECONDS * failures, 1.0))
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


@dataclass(slots=True)
class _Filler:
    """Fills transactions. It polls as many records as the transform manages in the time that is left."""

    consumer: Consumer
    producer: Producer
    to: str
    transform: Transform
    seconds: float
    stop: threading.Event | None
    chunk: int = FIRST_RECORDS

    def fill(self, records: list[Record]) -> tuple[int, int]:
        """Send the outputs of what is polled within the time. Returns the numbers of records read and written."""
        begun = time.monotonic()
        deadline = begun + self.seconds
        read = written = 0
        while records:
            written += self._send(records)
            read += len(records)
            now = time.monotonic()
            self.chunk = max(1, min(MOST_RECORDS, int(self.seconds * read / max(now - begun, 1e-6) / 4)))
            if now >= deadline or (self.stop is not None and self.stop.is_set()):
                break
            records = self.consumer.poll(min(deadline - now, 0.01), self.chunk)
        return read, written

    def _send(self, records: list[Record]) -> int:
        send, transform, to = self.producer.send, self.transform, self.to
        written = 0
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
        return written
