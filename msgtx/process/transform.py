"""Consume–transform–produce, exactly once: the work of `client.process`."""

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from msgtx.consumer.consumer import Consumer
from msgtx.database.faults import AGAIN, fault_of
from msgtx.errors import OF_RECORDS, FatalError, InvalidRequest, MsgtxError, UnknownTopicOrPartition, UsageError
from msgtx.process.failures import Failures, waits
from msgtx.process.loop import Done, Failed
from msgtx.process.places import dead_letter_of, reason_of, tell_set_aside
from msgtx.process.worker import Worker
from msgtx.producer.batches import RecordFuture
from msgtx.producer.producer import Producer, Transaction
from msgtx.settings import Stop
from msgtx.types import OutputRecord, Record

Output = OutputRecord | bytes | None
Outputs = Output | Iterable[OutputRecord | bytes]
Transform = Callable[[Any], Outputs]  # of a record, or a list of them
FIRST_RECORDS: Final = 100  # of a worker's first poll, before it knows how fast its transform is
MOST_OF_A_POLL: Final = 300  # with their outputs fewer objects than it takes for Python's garbage collector to look at them
MOST_OF_A_LIST: Final = 10_000
POLLS: Final = 4  # of a transaction, about


class Input(Protocol):
    """The source of a worker's records, as its transactions see it."""

    def keeping(self) -> contextlib.AbstractContextManager[None]:
        """Keep the returned records within the block: a transaction is being filled from them."""
        ...

    def more(self, timeout: float, most: int) -> list[Any]:
        """Return records for a transaction that has time left."""
        ...

    def ride(self, transaction: Transaction) -> None:
        """Have the transaction commit the returned records."""
        ...


@dataclass(frozen=True, slots=True)
class ConsumerInput:
    """A consumer, whose positions ride in transactions."""

    consumer: Consumer

    def keeping(self) -> contextlib.AbstractContextManager[None]:
        """Give no partition away within the block."""
        return self.consumer.subscription.keep_partitions()

    def more(self, timeout: float, most: int) -> list[Record]:
        """Poll on."""
        return self.consumer.poll(timeout, most)

    def ride(self, transaction: Transaction) -> None:
        """Have the positions ride."""
        transaction.send_offsets(self.consumer)


def outputs(result: Outputs) -> Iterable[OutputRecord]:
    """Return the result of a transform as records."""
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


@dataclass(slots=True)
class Filler:
    """Fills transactions, each with the outputs of the records polled within `seconds`, and the positions (I10).

    It polls as many records as the transform manages in the time that is left. If a record is set aside without a retry,
    this happens beside the others, in the same transaction. After a failed batch, each record is tried alone. A refused
    output counts as an exception of its record's transform, unless `to` itself is missing.
    """

    input: Input
    producer: Producer
    to: str
    transform: Transform
    worker: Worker
    failures: Failures
    seconds: float
    chunk: int = FIRST_RECORDS
    failed: int = 0  # records of this transaction that were left out or went to `dead_letter`
    read: int = 0
    written: int = 0
    aside: list[tuple[Record, Exception, RecordFuture | None]] = field(default_factory=list)  # with their dead letters
    at: list[Record] = field(default_factory=list)  # what the transform is given
    found: list[OutputRecord] = field(default_factory=list)  # the outputs of the last records
    sending: bool = False  # one of them
    one: bool = False  # the next transaction has one record
    started: bool = False  # the transactional id is this worker's
    filled: Done | None = None  # the transaction that is to be committed

    def start(self) -> None:
        """Take over the transactional id."""
        if not self.started:
            self.producer.init_transactions()
            self.started = True

    def attempt(self, records: list[Record]) -> Done | Failed:
        """Send the outputs of the records polled within the time, and commit them with the offsets."""
        self.written = 0
        self.failed, self.read, self.at, self.sending, self.filled, self.aside = 0, 0, [], False, None, []
        try:
            with self.input.keeping(), self.producer.transaction() as transaction:
                self._fill(records)
                self.input.ride(transaction)
                done = self.filled = Done(self.read, self.written, self.failed)
        except Exception as error:
            if self.at and _is_of_a_record(error):
                return Failed(error, self.at, alone=self.read == 1)
            if not isinstance(self.worker.failure, Stop) and self._is_refusal(error):
                # The failing record is found when each is alone: by now a part of the outputs is on its way.
                return Failed(error, records, alone=self.read == 1)
            raise
        self.one = False
        self._tell_aside()
        return done

    def take_one(self) -> None:
        """Have the next transaction hold one record; later ones hold more and more."""
        self.chunk, self.one = 1, True

    def idle(self) -> None:
        """Raise the error that has ended the producer, as `TransactionsLost` after a failover."""
        self.producer._state.raise_fatal()

    def finish(self) -> Done | None:
        """Repeat the commit or the abort that was not answered; return the transaction if it is committed."""
        if not self.producer._finish_transaction():
            return None
        self._tell_aside()
        return self.filled

    def ends(self, error: Exception) -> bool:
        """Return whether the producer can do nothing more."""
        return isinstance(error, FatalError)

    def set_aside(self, record: Record, error: Exception, *, deliveries: int) -> Done | Failed:
        """Commit the position behind a record whose output is refused; with a dead letter, if there is a topic for them."""
        self.aside = []
        done = self.filled = Done(1, int(self.worker.dead_letter is not None), failed=1)
        try:
            with self.input.keeping(), self.producer.transaction() as transaction:
                self._put_aside(record, error, deliveries)
                self.input.ride(transaction)
        except Exception as refused:
            refused.add_note(f"it was to be set aside: {reason_of(error)}")
            raise
        self._tell_aside()
        return done

    def _fill(self, records: list[Record]) -> None:
        begun = time.monotonic()
        deadline = begun if self.one else begun + self.seconds
        stop = self.worker.stop
        while records:
            self.read += len(records)
            sent = self._send(records)  # which may count dead letters
            self.written += sent
            now = time.monotonic()
            fitting = int(self.seconds * self.read / max(now - begun, 1e-6) / POLLS)
            self.chunk = max(1, min(MOST_OF_A_LIST if self.worker.batch else MOST_OF_A_POLL, 2 * self.chunk, fitting))
            if now >= deadline or (stop is not None and stop.is_set()):
                break
            records = self.input.more(min(deadline - now, 0.01), self.chunk)

    def _send(self, records: list[Record]) -> int:
        self.found = self._transformed(records)
        self.at = []
        self.sending = True
        self.producer._send_outputs(self.to, self.found)
        self.sending = False
        return len(self.found)

    def _is_refusal(self, error: Exception) -> bool:
        """Return whether an output is itself refused, by the call that sends it or by its answer.

        A topic or partition that is missing is the record's fault where its output names it: not if `to` is missing.
        """
        if isinstance(error, UnknownTopicOrPartition):
            given = (None, self.to, self.worker.dead_letter)
            return any(output.topic not in given or output.partition is not None for output in self.found)
        if isinstance(error, OF_RECORDS):
            return True
        wrong = isinstance(error, InvalidRequest) or not isinstance(error, MsgtxError)
        return self.sending and wrong and isinstance(error, TypeError | ValueError)

    def _transformed(self, records: list[Record]) -> list[OutputRecord]:
        transform: Callable[[Any], Outputs] = self.transform
        at_once = self.worker.sets_aside and not self.worker.retries
        self.at = records
        if self.worker.batch:
            try:
                return list(outputs(transform(list(records))))  # its own: it may take them out of it
            except Exception as error:
                if not at_once or waits(error) or not _is_of_a_record(error):
                    raise
            transform = _alone(transform)
        found: list[OutputRecord] = []
        for at, record in enumerate(records):
            try:
                result = transform(record)
                if result.__class__ is OutputRecord:
                    found.append(result)
                else:
                    found.extend(outputs(result))
                if at_once:
                    self.failures.succeeded()
            except Exception as error:
                if not _is_of_a_record(error):
                    raise
                if not at_once or waits(error) or not self.failures.gives_up(record):
                    self.at = records[at : at + 1]
                    raise
                self.failed += 1
                self.written += self._put_aside(record, error, 1)
        return found

    def _put_aside(self, record: Record, error: Exception, deliveries: int) -> int:
        """Send a dead letter, if there is a topic for them. Return how many were sent."""
        topic, sent = self.worker.dead_letter, None
        if topic is not None:
            letter = dead_letter_of(record, error, topic, group=self.worker.group, deliveries=deliveries)
            sent = self.producer.send(topic, letter.value, key=letter.key, headers=letter.headers)
        self.aside.append((record, error, sent))
        return int(sent is not None)

    def _tell_aside(self) -> None:
        """Log which records were set aside, now that their transaction is committed."""
        for record, error, sent in self.aside:
            at = None if sent is None else sent.result()
            tell_set_aside(record, error, None if at is None else f"at {at.topic}-{at.partition}@{at.offset}")
        self.aside = []


def _is_of_a_record(error: Exception) -> bool:
    """Whether an exception of a transform is its records' fault, and not that of the database or the group."""
    if isinstance(error, MsgtxError):
        return isinstance(error, UsageError)
    return fault_of(error) not in AGAIN


def _alone(transform: Callable[[list[Record]], Outputs]) -> Callable[[Record], Outputs]:
    """Return a transform of lists as one of single records."""
    return lambda record: transform([record])
