"""The measurements of `msgtx perf produce|consume|e2e`, and of the benchmarks.

Each function makes topics of its own, warms up, repeats, deletes the topics, and returns every run and the medians.
Times are of `perf_counter`, which all processes of a machine share.
"""

import contextlib
import functools
import json
import math
import multiprocessing
import random
import signal
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, Final, Generic, Literal, TypeVar

from msgtx.client import Client, connect
from msgtx.errors import ConfigError, DatabaseUnavailable
from msgtx.producer.producer import Producer
from msgtx.types import Isolation

Acks = Literal["0", "1", "all"]
PAYLOADS: Final = 50_000  # different values that are sent in turn: enough that compression finds no repetition
WARM_UP_SECONDS: Final = 0.5
WARM_UP_RECORDS: Final = 20_000  # the other end of a warm-up
CHUNK: Final = 256  # records between two looks at the clock; one of them is timed
COLUMN_BYTES: Final = 1024 * 1024  # of values in one send_batch
FILL_RECORDS: Final = 10_000  # of a send_batch that fills a topic for consumers
READ_BYTES: Final = 256 * 1024 * 1024  # of a topic that is read, if nothing else is asked for
READ_RECORDS: Final = 1_000_000
SILENCE_SECONDS: Final = 30.0  # a reader that gets nothing for so long has lost something
_WORDS: Final = ("lorem", "ipsum", "dolor", "sit", "amet", "consectetur", "adipiscing", "elit")


# Settings and figures


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceSettings:
    """The load of `produce`. `seconds` counts if `records` is None; both are of one run, all producers together.

    `transaction_ms`, `transaction_records`: a transaction ends with the first of these limits; with neither there are
    no transactions. `batched`: `send_batch` instead of `send`. `producers`: threads, each with its own one.
    """

    records: int | None = None
    seconds: float = 5.0
    size: int = 100
    partitions: int = 6
    acks: Acks = "all"
    transaction_ms: int | None = None
    transaction_records: int | None = None
    batched: bool = False
    producers: int = 1
    repeats: int = 3
    producer: Mapping[str, object] = field(default_factory=dict)  # further settings of the producers

    @property
    def transactional(self) -> bool:
        """Whether records are sent in transactions."""
        return self.transaction_ms is not None or self.transaction_records is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceFigures:
    """One run of `produce`.

    Acknowledged: from `send` (a sample of them) to the answer that the record is stored; None if `batched`. Commit: the
    call of `commit_transaction`. A figure without measurements is None.
    """

    records: int
    seconds: float
    records_per_second: float
    megabytes_per_second: float
    transactions_per_second: float | None
    acknowledged_p50_ms: float | None
    acknowledged_p99_ms: float | None
    acknowledged_max_ms: float | None
    commit_p50_ms: float | None
    commit_p99_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeSettings:
    """The load that `consume` writes first and then reads.

    `records`: None for as many as fit into 256 MB, at most a million.

    `transaction_records`: of the transactions in the log, None for none. `iterate`: `for record in consumer` instead of
    `poll(max_records=poll_records)`.
    """

    records: int | None = None
    size: int = 100
    partitions: int = 6
    isolation: Isolation = Isolation.READ_COMMITTED
    transaction_records: int | None = FILL_RECORDS
    iterate: bool = False
    poll_records: int = 10_000
    repeats: int = 3
    consumer: Mapping[str, object] = field(default_factory=dict)  # further settings of the consumer


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeFigures:
    """One run of `consume`. The rate counts from the first answer on, without its records."""

    records: int
    seconds: float
    records_per_second: float
    megabytes_per_second: float
    first_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EndToEndSettings:
    """The load of `end_to_end`: `rate` records a second to one partition, read in another process.

    `transactional`: each record is a transaction; else it is sent without one, and without linger.
    """

    rate: float = 200.0
    seconds: float = 5.0
    size: int = 100
    transactional: bool = True
    repeats: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class EndToEndFigures:
    """One run of `end_to_end`: from before `send` to the record in the consumer's hands; and to the answer."""

    records: int
    delivered_p50_ms: float
    delivered_p99_ms: float
    delivered_max_ms: float
    acknowledged_p50_ms: float
    acknowledged_p99_ms: float


Settings = TypeVar("Settings")
Figures = TypeVar("Figures", ProduceFigures, ConsumeFigures, EndToEndFigures)


@dataclass(frozen=True, slots=True)
class Measured(Generic[Settings, Figures]):
    """The load, every run, and the median of each figure."""

    settings: Settings
    runs: list[Figures]
    median: Figures


Told = Callable[[int, Figures], object]  # is called after each run with its index and its figures


# The three measurements


def produce(
    url: str | None, settings: ProduceSettings, told: Told[ProduceFigures] | None = None
) -> Measured[ProduceSettings, ProduceFigures]:
    """Measure how fast records are sent and acknowledged. `url` as for `connect`. Raise `ConfigError`."""
    _require(settings, "seconds", "size", "partitions", "producers", "repeats")
    with connect(url, pool_size=settings.producers + 4) as client:

        def run() -> ProduceFigures:
            with temporary_topic(client, settings.partitions) as topic:
                return produce_once(client, topic, settings)

        return _repeated(settings, run, told)


def consume(
    url: str | None, settings: ConsumeSettings, told: Told[ConsumeFigures] | None = None
) -> Measured[ConsumeSettings, ConsumeFigures]:
    """Measure how fast records are read through the public interface. `url` as for `connect`. Raise `ConfigError`."""
    _require(settings, "size", "partitions", "poll_records", "repeats")
    count = settings.records or min(READ_RECORDS, READ_BYTES // settings.size)
    with connect(url) as client, temporary_topic(client, settings.partitions) as topic:
        fill(client, topic, count, size=settings.size, transaction_records=settings.transaction_records)
        consume_once(client, topic, min(count, WARM_UP_RECORDS), settings)
        return _repeated(settings, lambda: consume_once(client, topic, count, settings), told)


def end_to_end(
    url: str | None, settings: EndToEndSettings, told: Told[EndToEndFigures] | None = None
) -> Measured[EndToEndSettings, EndToEndFigures]:
    """Measure from `send` to delivery in another process. `url` as for `connect`. Raise `ConfigError`."""
    _require(settings, "rate", "seconds", "size", "repeats")
    with connect(url) as client:

        def run() -> EndToEndFigures:
            with temporary_topic(client, 1) as topic:
                return end_to_end_once(client, topic, settings, url=url)

        return _repeated(settings, run, told)


def _require(settings: object, *names: str) -> None:
    for name in names:
        if getattr(settings, name) <= 0:
            raise ConfigError(f"{name} must be above 0, not {getattr(settings, name)}")


def _repeated(settings: Any, run: Callable[[], Figures], told: Told[Figures] | None) -> Measured[Any, Figures]:
    runs: list[Figures] = []
    for index in range(settings.repeats):
        runs.append(run())
        if told is not None:
            told(index, runs[-1])
    return Measured(settings, runs, median_of(runs))


def median_of(runs: Sequence[Figures]) -> Figures:
    """Return the median of each figure over some runs."""
    columns = {one.name: [getattr(run, one.name) for run in runs] for one in fields(runs[0])}
    medians: dict[str, Any] = {
        name: None if None in column else statistics.median(column) for name, column in columns.items()
    }
    return type(runs[0])(**medians)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the values lie. They are in ascending order, and not none."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


# Topics and payloads


@contextlib.contextmanager
def temporary_topic(client: Client, partitions: int) -> Iterator[str]:
    """Create a topic for the length of a measurement."""
    name = _new_id()
    client.topics.create(name, partitions=partitions)
    try:
        yield name
    finally:
        client.topics.delete(name)


def _new_id() -> str:
    return f"msgtx-perf-{uuid.uuid4().hex[:12]}"


@functools.lru_cache(maxsize=4)  # runs repeat, and making them takes longer than sending them
def payloads(count: int, size: int, seed: int = 1) -> tuple[bytes, ...]:
    """Return orders as JSON, padded with words or cut to `size` bytes; the same for the same arguments."""
    dice = random.Random(seed)  # noqa: S311 - the same values in each run are the purpose
    made = []
    for number in range(count):
        customer, amount, sku = dice.randrange(10**6), round(dice.random() * 1000, 2), dice.randrange(10_000)
        order = {"order": number, "customer": customer, "amount": amount, "sku": f"SKU-{sku:05d}"}
        value = json.dumps(order).encode()
        if (missing := size - len(value)) > 0:
            value += b" " + " ".join(dice.choice(_WORDS) for _ in range(missing // 5 + 1)).encode()
        made.append(value[:size])
    return tuple(made)


def fill(client: Client, topic: str, count: int, *, size: int, transaction_records: int | None = None) -> None:
    """Write `count` records, fast; in transactions of `transaction_records` if that is given."""
    values = payloads(min(count, PAYLOADS), size)
    chunk = transaction_records or FILL_RECORDS
    with client.producer(transactional_id=_new_id() if transaction_records else None) as producer:
        for start in range(0, count, chunk):
            some = [values[i % len(values)] for i in range(start, min(count, start + chunk))]
            with producer.transaction() if transaction_records else contextlib.nullcontext():
                producer.send_batch(topic, some)
        producer.flush()


# Producing


@dataclass(slots=True)
class _Tally:
    """The counts of one producing thread."""

    records: int = 0
    bytes: int = 0
    acknowledged: list[float] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)
    ended: float = 0.0
    error: BaseException | None = None


def produce_once(client: Client, topic: str, settings: ProduceSettings) -> ProduceFigures:
    """Send to a topic: one run, after a warm-up. The client's pool must have a connection for each producer."""
    values = payloads(PAYLOADS if settings.size < COLUMN_BYTES // 100 else 1_000, settings.size)
    tallies = [_Tally() for _ in range(settings.producers)]
    started: list[float] = []
    barrier = threading.Barrier(settings.producers, lambda: started.append(time.perf_counter()))
    threads = [
        threading.Thread(target=_produce_thread, args=(client, topic, settings, values, tally, barrier), daemon=True)
        for tally in tallies
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for tally in tallies:
        if tally.error is not None and not isinstance(tally.error, threading.BrokenBarrierError):
            raise tally.error
    return _produce_figures(tallies, max(tally.ended for tally in tallies) - started[0])


def _produce_thread(
    client: Client,
    topic: str,
    settings: ProduceSettings,
    values: Sequence[bytes],
    tally: _Tally,
    barrier: threading.Barrier,
) -> None:
    transactional_id = _new_id() if settings.transactional else None
    try:
        with client.producer(acks=settings.acks, transactional_id=transactional_id, config=settings.producer) as producer:
            _send_all(producer, topic, settings, values, _Tally(), WARM_UP_SECONDS, WARM_UP_RECORDS)
            barrier.wait()
            share = None if settings.records is None else max(1, settings.records // settings.producers)
            seconds = settings.seconds if share is None else None
            _send_all(producer, topic, settings, values, tally, seconds, share)
            tally.ended = time.perf_counter()
    except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
        tally.error = error
        barrier.abort()


def _send_all(
    producer: Producer,
    topic: str,
    settings: ProduceSettings,
    values: Sequence[bytes],
    tally: _Tally,
    seconds: float | None,
    records: int | None,
) -> None:
    """Send until `seconds` are over or `records` are sent, and wait for the answers."""
    ends = math.inf if seconds is None else time.perf_counter() + seconds
    total = sys.maxsize if records is None else records
    send = _send_columns if settings.batched else _send_each
    while (left := total - tally.records) > 0 and time.perf_counter() < ends:
        if not settings.transactional:
            send(producer, topic, values, tally, left)
            continue
        now = time.perf_counter()
        until = min(ends, math.inf if settings.transaction_ms is None else now + settings.transaction_ms / 1000)
        room = min(left, settings.transaction_records or left)
        producer.begin_transaction()
        while room > 0:
            room -= send(producer, topic, values, tally, room)
            if time.perf_counter() >= until:
                break
        before = time.perf_counter()
        producer.commit_transaction()
        tally.commits.append(time.perf_counter() - before)
    producer.flush()


def _send_each(producer: Producer, topic: str, values: Sequence[bytes], tally: _Tally, most: int) -> int:
    """Send up to a chunk of records one by one, the first of them timed. Returns how many."""
    at = tally.records % len(values)
    some = values[at : at + min(most, CHUNK)]
    before, note = time.perf_counter(), tally.acknowledged.append
    producer.send(topic, some[0], on_delivery=lambda _: note(time.perf_counter() - before))
    send = producer.send
    for value in some[1:]:
        send(topic, value)
    tally.records += len(some)
    tally.bytes += len(some[0]) * len(some)
    return len(some)


def _send_columns(producer: Producer, topic: str, values: Sequence[bytes], tally: _Tally, most: int) -> int:
    """Send up to a chunk of records at once. Returns how many."""
    at = tally.records % len(values)
    some = values[at : at + min(most, max(1, COLUMN_BYTES // len(values[0])))]
    producer.send_batch(topic, some)
    tally.records += len(some)
    tally.bytes += len(some[0]) * len(some)
    return len(some)


def _produce_figures(tallies: Sequence[_Tally], seconds: float) -> ProduceFigures:
    records = sum(tally.records for tally in tallies)
    acknowledged = sorted(1000 * took for tally in tallies for took in tally.acknowledged)
    commits = sorted(1000 * took for tally in tallies for took in tally.commits)
    return ProduceFigures(
        records=records,
        seconds=seconds,
        records_per_second=records / seconds,
        megabytes_per_second=sum(tally.bytes for tally in tallies) / seconds / 1e6,
        transactions_per_second=len(commits) / seconds if commits else None,
        acknowledged_p50_ms=percentile(acknowledged, 0.5) if acknowledged else None,
        acknowledged_p99_ms=percentile(acknowledged, 0.99) if acknowledged else None,
        acknowledged_max_ms=acknowledged[-1] if acknowledged else None,
        commit_p50_ms=percentile(commits, 0.5) if commits else None,
        commit_p99_ms=percentile(commits, 0.99) if commits else None,
    )


# Consuming


def consume_once(client: Client, topic: str, count: int, settings: ConsumeSettings) -> ConsumeFigures:
    """Read `count` records of a topic from its beginning: one run. Raise `DatabaseUnavailable` if they do not come."""
    began = time.perf_counter()
    with client.consumer(
        topic, isolation=settings.isolation, auto_offset_reset="earliest", config=settings.consumer
    ) as consumer:
        records = consumer.poll(SILENCE_SECONDS, settings.poll_records)
        first = time.perf_counter()
        size = len(records[0].value or b"") if records else 0
        skipped = got = len(records)
        if settings.iterate:
            for record in consumer if got < count else ():
                record.value  # noqa: B018 - what a reader does with each record
                got += 1
                if got >= count:
                    break
        else:
            while got < count:
                records = consumer.poll(SILENCE_SECONDS, settings.poll_records)
                if not records:
                    raise DatabaseUnavailable(f"{topic}: {got} of {count} records came, and then nothing")
                for record in records:
                    record.value  # noqa: B018 - as above
                got += len(records)
    seconds = time.perf_counter() - first
    timed = got - skipped
    return ConsumeFigures(
        records=got,
        seconds=seconds,
        records_per_second=timed / seconds,
        megabytes_per_second=timed * size / seconds / 1e6,
        first_ms=(first - began) * 1000,
    )


# From end to end


def end_to_end_once(client: Client, topic: str, settings: EndToEndSettings, *, url: str | None) -> EndToEndFigures:
    """Send at a rate to a topic, with a reader in a process of its own: one run."""
    count = max(1, int(settings.rate * settings.seconds))
    acknowledged: list[float] = []
    transactional_id = _new_id() if settings.transactional else None
    with (
        reading(functools.partial(read_delays, url, topic, count)) as delays_of_reader,
        client.producer(linger_ms=0, transactional_id=transactional_id) as producer,
    ):
        for _ in paced(settings.rate, count):
            before = time.perf_counter()
            value = stamped(before, settings.size)
            if settings.transactional:
                producer.begin_transaction()
                producer.send(topic, value, partition=0)
                producer.commit_transaction()
            else:
                producer.send(topic, value, partition=0).result()
            acknowledged.append(1000 * (time.perf_counter() - before))
        delays = delays_of_reader()
    acknowledged.sort()
    return EndToEndFigures(
        records=len(delays),
        delivered_p50_ms=percentile(delays, 0.5),
        delivered_p99_ms=percentile(delays, 0.99),
        delivered_max_ms=delays[-1],
        acknowledged_p50_ms=percentile(acknowledged, 0.5),
        acknowledged_p99_ms=percentile(acknowledged, 0.99),
    )


def read_delays(url: str | None, topic: str, count: int, pipe: Connection) -> None:
    """Be the reader's process: report that it reads, then the delays of `count` records."""
    delays: list[float] = []
    with connect(url) as client, client.consumer(topic, auto_offset_reset="latest") as consumer:
        consumer.poll(0.1)
        pipe.send(None)
        while len(delays) < count and (records := consumer.poll(SILENCE_SECONDS)):
            now = time.perf_counter()
            delays.extend(delay_ms(record.value, now) for record in records)
    pipe.send(delays)


@contextlib.contextmanager
def reading(reader: Callable[[Connection], None]) -> Iterator[Callable[[], list[float]]]:
    """Run a reader in a process of its own, from when it reads; the result has its delays, sorted.

    `reader` is sent to the process: a function of a module, or a `partial` of one. It sends None when it reads,
    and at the end its delays. Raise `DatabaseUnavailable` if it ends without.
    """
    processes = multiprocessing.get_context("spawn")  # a fork would take threads' locks with it
    ours, theirs = processes.Pipe()
    process = processes.Process(target=reader, args=(theirs,), daemon=True)
    # Ctrl-C reaches all processes of a terminal; the reader inherits that it is blocked, and is ended by us.
    resource_tracker.ensure_running()  # which `start` would do otherwise, and unblock it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()

    def answer() -> Any:
        if not ours.poll(2 * SILENCE_SECONDS):
            raise DatabaseUnavailable("the reader's process does not answer")
        try:
            return ours.recv()
        except EOFError:
            raise DatabaseUnavailable("the reader's process failed; its error is above") from None

    def delays() -> list[float]:
        found: list[float] = sorted(answer())
        if not found:
            raise DatabaseUnavailable("nothing was delivered")
        return found

    try:
        answer()
        yield delays
    finally:
        process.join(1.0)
        if process.is_alive():
            process.terminate()
            process.join()


def paced(rate: float, count: int) -> Iterator[int]:
    """Yield `count` numbers, each when its time has come."""
    began = time.perf_counter()
    for index in range(count):
        due = began + index / rate
        while (now := time.perf_counter()) < due:
            time.sleep(min(due - now, 0.0002))
        yield index


def stamped(now: float, size: int) -> bytes:
    """Return a value of about `size` bytes that carries a time of `perf_counter`."""
    return repr(now).encode().ljust(size)


def delay_ms(value: bytes | None, now: float) -> float:
    """Return the milliseconds between the time in a value and `now`."""
    return (now - float(value or b"nan")) * 1000
