"""Consume–transform–produce, exactly once: the loop that `client.process` runs."""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from msgtx.consumer.consumer import Consumer
from msgtx.errors import AbortableError, ConfigError, InvalidRecord, MsgtxError, RecordTooLarge
from msgtx.producer.producer import Producer
from msgtx.types import OutputRecord, ProcessReport, Record

log = logging.getLogger("msgtx.process")
Output = OutputRecord | bytes | None
Outputs = Output | Iterable[OutputRecord | bytes]
Transform = Callable[[Record], Outputs] | Callable[[list[Record]], Outputs]
OnError = Literal["stop", "skip", "dead-letter"]
POLL_SECONDS: Final = 0.2  # the longest wait for input before stop and idle_timeout are looked at
FIRST_RECORDS: Final = 100  # of a worker's first poll, before it knows how fast its transform is
MOST_RECORDS: Final = 10_000
RETRY_SECONDS: Final = 0.05  # after an aborted attempt, longer with each one in a row
RETRIES_IN_A_ROW: Final = 100  # aborted attempts without a commit in between, before the error goes on


def outputs(result: Outputs) -> Iterable[OutputRecord]:
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
    batch: bool = False,
    on_error: OnError = "stop",
    dead_letter: str | None = None,
    idle_timeout: float | None = None,
    stop: threading.Event | None = None,
    on_commit: Callable[[ProcessReport], object] | None = None,
) -> ProcessReport:
    """Run the loop until `stop` is set, or until nothing came for `idle_timeout` seconds.

    Each transaction holds the outputs of what was polled within `transaction_ms`, and the consumer's positions (I10). An
    abortable error aborts, rewinds and goes on, also after partitions were taken away. `batch`: the transform gets a list of
    records. What it raises aborts and is raised; with `on_error` "skip" its record is left out, with "dead-letter" it goes
    to topic `dead_letter` in the same transaction, with headers that say why; either is logged. (Of a batch that fails, each
    record is tried alone.) Raise `ConfigError` if `on_error` and `dead_letter` do not fit together.
    """
    if on_error not in {"stop", "skip", "dead-letter"}:
        raise ConfigError(f"on_error is stop, skip or dead-letter, not {on_error!r}")
    if (on_error == "dead-letter") != (dead_letter is not None):
        raise ConfigError("on_error=dead-letter and the topic dead_letter need each other")
    report = ProcessReport()
    started = last_input = time.monotonic()
    failures = 0
    consumer.commit_starts()  # with `latest`, what comes before the first commit would be skipped by the next process
    filler = _Filler(consumer, producer, to, transform, transaction_ms / 1000, stop, batch, on_error, dead_letter)
    while not (stop is not None and stop.is_set()):
        records = consumer.poll(POLL_SECONDS if idle_timeout is None else min(POLL_SECONDS, idle_timeout), filler.chunk)
        if not records:
            if idle_timeout is not None and time.monotonic() - last_input >= idle_timeout:
                break
            continue
        try:
            with consumer.keep_partitions(), producer.transaction() as transaction:
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
            failed=report.failed + filler.failed,
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
    batch: bool
    on_error: OnError
    dead_letter: str | None
    chunk: int = FIRST_RECORDS
    failed: int = 0  # records of this transaction that were left out or went to `dead_letter`

    def fill(self, records: list[Record]) -> tuple[int, int]:
        """Send the outputs of what is polled within the time. Returns the numbers of records read and written."""
        self.failed = 0
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
        send, to = self.producer.send, self.to
        found = self._transformed(records)
        for output in found:
            send(
                output.topic or to,
                output.value,
                key=output.key,
                partition=output.partition,
                timestamp=output.timestamp,
                headers=output.headers or None,
            )
        return len(found)

    def _transformed(self, records: list[Record]) -> list[OutputRecord]:
        transform: Callable[[Any], Outputs] = self.transform
        if self.batch:
            try:
                return list(outputs(transform(records)))
            except MsgtxError:
                raise
            except Exception:
                if self.on_error == "stop":
                    raise
            transform = _alone(transform)
        found: list[OutputRecord] = []
        for record in records:
            try:
                result = transform(record)
                if result.__class__ is OutputRecord:
                    found.append(result)
                else:
                    found.extend(outputs(result))
            except MsgtxError:
                raise
            except Exception as error:
                if self.on_error == "stop":
                    raise
                found.extend(self._set_aside(record, error))
        return found

    def _set_aside(self, record: Record, error: Exception) -> Iterable[OutputRecord]:
        """Leave a record out that the transform failed on, or keep it in `dead_letter` with headers that say why."""
        self.failed += 1
        place = f"{record.topic}-{record.partition} offset {record.offset}"
        reason = " ".join(f"{type(error).__name__}: {error}".splitlines())
        if self.dead_letter is None:
            log.warning("%s: %s; skipped", place, reason)
            return ()
        log.warning("%s: %s; sent to %s", place, reason, self.dead_letter)
        why = {"topic": record.topic, "partition": record.partition, "offset": record.offset, "error": reason}
        headers = [
            *record.headers,
            *((f"msgtx.{name}", str(value).encode(errors="backslashreplace")) for name, value in why.items()),
        ]
        return (OutputRecord(record.value, record.key, headers, record.timestamp, self.dead_letter),)


def _alone(transform: Callable[[list[Record]], Outputs]) -> Callable[[Record], Outputs]:
    """Return a transform of lists as one of single records."""
    return lambda record: transform([record])
