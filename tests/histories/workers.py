"""The processes of a history: copy jobs, writers, readers, sweepers, meddlers.

Each process is a life of a worker: the next life has the same name and transactional id, and continues from what is stored.
SIGTERM asks it to finish: writers end, a copy job and a reader first read to the end. What it does is drawn from its seed;
when things happen is not.
"""

import contextlib
import ctypes
import logging
import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import msgtx
from msgtx import Client, Consumer, OutputRecord, Producer, Record, TopicPartition, errors
from msgtx.cli import main as cli
from msgtx.process import Worker
from tests.client.steps import process
from tests.histories.history import Recorder, Result
from tests.histories.members import EXTRA, EXTRA_PARTITIONS, INPUT, OnPurposeError, late, seals, tally
from tests.histories.neighbours import OWN, WIDE, WIDE_PARTITIONS, WIDE_USED, bounded, low, publisher, wide
from tests.histories.recorded import ConsumerTape, ProducerTape, outcome_recorded
from tests.histories.relays import RELAY_PARTITIONS, RELAY_TARGET, RELAYED, keyed, relay

LEDGERS, LOOSE = ("ledger-a", "ledger-b"), "loose"
LOOSE_INPUT: Final = f"{LOOSE}-input"
TOPICS: Final = {INPUT: 3, LEDGERS[0]: 2, LEDGERS[1]: 2, LOOSE: 2, LOOSE_INPUT: 1, EXTRA: EXTRA_PARTITIONS}
# Topics of workers that take part in some rounds.
BESIDE: Final = {
    low.__name__: (OWN, 1), wide.__name__: (WIDE, WIDE_PARTITIONS),
    keyed.__name__: (RELAYED, RELAY_PARTITIONS), relay.__name__: (RELAY_TARGET, RELAY_PARTITIONS),
}  # fmt: skip
RELAYS: Final = [TopicPartition(name, index) for name in (RELAYED, RELAY_TARGET) for index in range(RELAY_PARTITIONS)]
WIDELY: Final = [TopicPartition(WIDE, index) for index in WIDE_USED]
COPIED: Final = (INPUT, LOOSE_INPUT)
PARTITIONS: Final = [TopicPartition(name, index) for name, count in TOPICS.items() for index in range(count)]
GROUP: Final = "copy"
COORDINATOR: Final = "coordinator"
FENCED, AGAIN = 4, 75  # exit codes of a life: it learned of its successor; the next life may continue
PATIENCE_SECONDS: Final = 60.0  # to read to the end when all else has stopped
FAST: Final = {"retry_backoff_ms": 10, "max_block_ms": 30_000, "delivery_timeout_ms": 30_000}
VIEW: Final = """
    select r.producer_id || '.' || r.producer_epoch || '.' || r.transaction_number, r.topic || '-' || r.partition, count(*)
    from msgtx.committed_records_now r
    where (r.producer_id, r.producer_epoch, r.transaction_number) in (
        select b.producer_id, b.producer_epoch, b.transaction_number from msgtx.record_batch b
        where b.transaction_number is not null and b.appended_at > clock_timestamp() - interval '3 s')
    group by 1, 2
"""


@dataclass(frozen=True)
class Life:
    """A process's orders."""

    role: str
    name: str  # of the worker; the same for all its lives
    life: int
    url: str
    folder: str
    seed: int
    pace: float = 0.02  # the mean of the pauses between two steps, in seconds
    finish: bool = False  # it is to finish from the start
    low_url: str = ""  # of the login that has almost no rights

    @property
    def process(self) -> str:
        return f"{self.name}.{self.life}"

    @property
    def errors(self) -> Path:
        """The file of its stderr."""
        return Path(self.folder) / f"{self.process}.stderr"

    @property
    def began(self) -> bool:
        """Whether it has begun to work."""
        told = self.errors if self.role == COORDINATOR else self.errors.with_suffix(".jsonl")
        return told.exists() and told.stat().st_size > 0


class Finish:
    """Whether this process is to end. A signal handler may set it: unlike an Event it takes no lock."""

    def __init__(self, *, now: bool) -> None:
        self.now = now

    def set(self, *_: object) -> None:
        self.now = True

    def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self.now and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))


class World:
    """What a worker works with."""

    def __init__(self, life: Life, client: Client, finish: Finish) -> None:
        self.life = life
        self.client = client
        self.finish = finish
        self.recorder = Recorder(Path(life.folder), life.process)
        self.random = random.Random(f"{life.seed} {life.process}")
        self._values = 0
        self.copies = 0

    def pause(self) -> None:
        """Wait a little, rarely long."""
        self.finish.wait(self.random.expovariate(1 / self.life.pace))

    def value(self, what: str = "") -> bytes:
        """Return a unique value, sometimes a long one."""
        self._values += 1
        size = self.random.choice((0, 0, 0, 0, 0, 0, 0, 20, 200, 3_000))
        return f"{what}{self.life.process}/{self._values} ".encode() + b"." * size

    def values(self, most: int) -> list[bytes]:
        return [self.value() for _ in range(self.random.randint(1, most))]

    def producer(self, **settings: Any) -> tuple[Producer, ProducerTape]:
        settings = {**FAST, "linger_ms": self.random.choice((0, 0, 5, 20_000)), **settings}
        producer = self.client.producer(**settings)
        return producer, ProducerTape(producer, self.recorder)

    def consumer(self, **settings: Any) -> tuple[Consumer, ConsumerTape]:
        defaults = {"enable_auto_commit": False, "retry_backoff_ms": 10, "fetch_max_wait_ms": 100}
        consumer = self.client.consumer(**{**defaults, **settings})
        return consumer, ConsumerTape(consumer, self.recorder)

    def copied(self) -> bool:
        """Return whether the group has copied all records, also on partitions that a dead member still owns."""
        ends = [self.client.admin.partitions.describe(partition) for partition in PARTITIONS if partition.topic in COPIED]
        decided = all(end.last_stable_offset == end.log_end_offset for end in ends)
        return decided and all(at.lag == 0 for at in self.client.admin.groups.describe(GROUP).partitions)

    def read_to_the_end(self, consumer: Consumer) -> bool:
        """Return whether a consumer has read all records."""
        return all(
            consumer.position(partition) == self.client.admin.partitions.describe(partition).log_end_offset
            for partition in consumer.assignment()
        )


# ── copy jobs ──


def copy(world: World) -> None:
    """Consume–transform–produce, exactly once: each input gives a record in each ledger. The jobs are members of one group.

    Also inputs that a crash may undo: then they have none, and the records that get their offsets have one (P38).
    """
    session_timeout_ms = world.random.choice((600, 2_000, 6_000))
    consumer, tape = world.consumer(
        group=GROUP, auto_offset_reset="earliest", session_timeout_ms=session_timeout_ms, heartbeat_interval_ms=200
    )
    timeout_ms = world.random.choice((1_000, 3_000, 10_000))
    producer, recorded = world.producer(transactional_id=world.life.name, transaction_timeout_ms=timeout_ms)
    producer.init_transactions()
    tape.subscribe(COPIED)
    attempts = 0

    def outputs(record: Record) -> Iterator[OutputRecord]:
        nonlocal attempts
        attempts += 1
        value = (record.value or b"").split(b" ", 1)[0]
        for name in LEDGERS:
            partition = world.random.randrange(TOPICS[name])
            yield OutputRecord(b"%s>%s@%s:%d" % (value, name[-1:].encode(), recorded.label.encode(), attempts),
                               topic=name, partition=partition)  # fmt: skip

    if world.random.random() < 0.5:
        _copy_with_process(world, consumer, producer, outputs)
    else:
        _copy_by_name(world, consumer, producer, outputs)


def _copy_with_process(world: World, consumer: Consumer, producer: Producer, transform: Callable[[Record], Any]) -> None:
    stop = threading.Event()
    recorded_poll = consumer.poll

    def poll(timeout: float = 1.0, max_records: int | None = None) -> list[Record]:
        records = recorded_poll(timeout, max_records)
        if not records and world.finish.now and world.copied():
            stop.set()
        return records

    consumer.poll = poll  # type: ignore[method-assign]
    worker = Worker(consumer.config.group or "", transaction_ms=world.random.choice((1, 20, 100)), stop=stop)
    process(consumer, producer, worker, to=LEDGERS[0], transform=transform)


def _copy_by_name(
    world: World, consumer: Consumer, producer: Producer, transform: Callable[[Record], Iterator[OutputRecord]]
) -> None:
    flush, slow, abort = world.random.choice(((0.0, 0.0, 0.0), (0.7, 0.2, 0.1)))
    while True:
        records = consumer.poll(0.1, world.random.choice((1, 10, 100)))
        if not records:
            if world.finish.now and world.copied():
                consumer.close()
                return
            continue
        try:
            with producer.transaction() as transaction:
                for record in records:
                    for output in transform(record):
                        assert output.topic is not None
                        assert output.partition is not None
                        producer.send(output.topic, output.value, partition=output.partition)
                    if world.random.random() < flush / len(records):
                        producer.flush(PATIENCE_SECONDS)
                if world.random.random() < slow:
                    world.pause()
                transaction.send_offsets(consumer)
                if world.random.random() < abort:
                    raise OnPurposeError
        except (errors.AbortableError, OnPurposeError):
            consumer.rewind()


# ── writers ──


def writer(world: World) -> None:
    """Transactions of all shapes: one to four partitions, in one call or in steps, aborted at times, too slow at times."""
    producer, _ = world.producer(transactional_id=world.life.name, transaction_timeout_ms=world.random.choice((800, 2_000)))
    producer.init_transactions()
    while not world.finish.now:
        partitions = world.random.sample(PARTITIONS, world.random.randint(1, 4))
        in_steps, slow, abort = (world.random.random() < part for part in (0.5, 0.3, 0.2))
        timeout_ms = 200 if world.random.random() < 0.1 else None
        producer.begin_transaction(timeout_ms)
        try:
            for partition in partitions * (2 if in_steps else 1):
                producer.send_batch(partition.topic, world.values(40), partition=partition.partition)
                if in_steps and world.random.random() < 0.6:
                    producer.flush(PATIENCE_SECONDS)
                if slow:
                    world.pause()
            if timeout_ms is not None and world.random.random() < 0.5:
                time.sleep(timeout_ms / 500)  # its time is over
            if not abort:
                _commit(world, producer)
                world.pause()
                continue
        except errors.AbortableError:
            pass
        _again(producer.abort_transaction)
        world.pause()


def _commit(world: World, producer: Producer) -> None:
    # With a short timeout the outcome may stay unknown; then only the same call may be repeated.
    if world.random.random() < 0.2:
        try:
            producer.commit_transaction(timeout=0.05)
            return
        except errors.OutcomeUnknown:
            pass
    _again(producer.commit_transaction)


def _again(call: Callable[[], None]) -> None:
    while True:
        try:
            call()
            return
        except errors.OutcomeUnknown:
            continue


def plain(world: World) -> None:
    """An idempotent producer without transactions, several batches in flight; it writes the input and all other topics."""
    _write(world, [INPUT, INPUT, *TOPICS], linger_ms=world.random.choice((0, 5)))


def loose(world: World) -> None:
    """A producer that does not wait for the disk: a crash of the server may undo its last records."""
    settings = world.random.choice(({"acks": "0"}, {"acks": "1"}, {"acks": "1", "retries": 0}))
    _write(world, [LOOSE, LOOSE_INPUT], linger_ms=0, **settings)


def _write(world: World, topics: list[str], **settings: Any) -> None:
    while not world.finish.now:
        producer, tape = world.producer(**settings)
        with contextlib.suppress(errors.FatalError), producer:
            for _ in range(200):
                topic = world.random.choice(topics)
                partition = world.random.randrange(TOPICS[topic])
                if world.random.random() < 0.5:
                    producer.send_batch(topic, world.values(60), partition=partition)
                else:
                    producer.send(topic, world.value(), partition=partition)
                tape.settle()
                world.pause()
                if world.finish.now:
                    break
            with contextlib.suppress(TimeoutError):
                producer.flush(PATIENCE_SECONDS)
            tape.settle()


# ── readers ──


def reader(world: World) -> None:
    """A long-lived consumer of committed data that sometimes goes back; it commits its position for its next life."""
    _read(world, group=world.life.name, isolation="read_committed")


def dirty(world: World) -> None:
    """A consumer that sees everything; its next life begins at the beginning."""
    _read(world, isolation="read_uncommitted")


def _read(world: World, **settings: Any) -> None:
    consumer, tape = world.consumer(auto_offset_reset="none", **settings)
    consumer.assign(PARTITIONS)
    stored = consumer.committed() if "group" in settings else {}
    for partition in PARTITIONS:
        at = stored.get(partition)
        consumer.seek(partition, 0 if at is None else at.offset)
    deadline = None
    while True:
        try:
            records = consumer.poll(0.1, world.random.choice((10, 500, 5_000)))
        except (errors.LogTruncated, errors.OffsetOutOfRange) as error:
            consumer.seek(_place_of(error), 0)
            continue
        if "group" in settings and world.random.random() < 0.1:
            with contextlib.suppress(errors.LogTruncated):  # the next poll raises it, too
                consumer.commit({tp: consumer.position(tp) for tp in consumer.assignment()})
        if not world.finish.now:
            if records and world.random.random() < 0.02:
                partition = world.random.choice(PARTITIONS)
                back = world.random.choice((10, 1_000, 1 << 40))
                consumer.seek(partition, max(0, consumer.position(partition) - world.random.randint(1, back)))
            world.pause()
            continue
        deadline = deadline or time.monotonic() + PATIENCE_SECONDS
        if not records and (world.read_to_the_end(consumer) or time.monotonic() > deadline):
            tape.drained()
            return


def hopper(world: World) -> None:
    """A consumer of committed data that jumps into open transactions (P22); it must wait there, and then miss nothing."""
    consumer, _ = world.consumer(auto_offset_reset="none")
    consumer.assign(PARTITIONS)
    for partition in PARTITIONS:
        consumer.seek(partition, 0)
    while not world.finish.now:
        partition = world.random.choice(PARTITIONS)
        ends = world.client.admin.partitions.describe(partition)
        low = world.random.choice((0, ends.last_stable_offset, ends.last_stable_offset))
        consumer.seek(partition, world.random.randint(low, ends.log_end_offset))
        consumer.pause(consumer.assignment() - {partition})
        consumer.resume([partition])
        for _ in range(world.random.randint(1, 5)):
            try:
                consumer.poll(0.05, 100)
            except (errors.LogTruncated, errors.OffsetOutOfRange):
                break


def _place_of(error: errors.MsgtxError) -> TopicPartition:
    found = re.match(r"(\S+)-(\d+):", str(error))
    assert found is not None, error
    return TopicPartition(found[1], int(found[2]))


def view(world: World) -> None:
    """One statement over `committed_records_now` sees all of a transaction or none (I6)."""
    while not world.finish.now:
        number = world.recorder.invoke("view")
        try:
            with world.client.runtime.engine.connection() as connection:
                rows = connection.execute(VIEW).fetchall()
        except errors.RetriableError as error:
            world.recorder.complete(Result.INFO, number, error=type(error).__name__)
            world.pause()
            continue
        seen: dict[str, dict[str, int]] = {}
        for transaction, partition, count in rows:
            seen.setdefault(transaction, {})[partition] = count
        world.recorder.complete(Result.OK, number, transactions=seen)
        world.finish.wait(1.0)


# ── sweepers and meddlers ──


def sweeper(world: World) -> None:
    """`client.sweep()` in a loop, as cron would."""
    while not world.finish.now:
        number = world.recorder.invoke("sweep")
        try:
            report = world.client.sweep()
        except errors.RetriableError as error:
            world.recorder.complete(Result.INFO, number, error=type(error).__name__)
            world.pause()
            continue
        world.recorder.complete(Result.OK, number, **asdict(report))
        world.finish.wait(0.3)


def meddler(world: World) -> None:
    """An administrator that looks up open transactions, ends some of them by name, and fences their owners."""
    while not world.finish.now:
        world.finish.wait(world.random.uniform(0.2, 1.0))
        with contextlib.suppress(errors.RetriableError):
            _meddle(world)


def _meddle(world: World) -> None:
    admin = world.client.admin.transactions
    open_now = [found.transactional_id for found in admin.list(states=["Ongoing"]) if found.transactional_id is not None]
    if not open_now:
        return
    chosen = world.random.choice(open_now)
    name = admin.describe(chosen).transaction_id
    draw = world.random.random()
    if draw < 0.05:
        number = world.recorder.invoke("fence", transactional_id=chosen)
        world.recorder.complete(Result.OK, number, producer=list(admin.fence(chosen)))
    elif name is not None:
        outcome_recorded(world.client, world.recorder, str(name), resolve=draw < 0.3)


ROLES: Final[dict[str, Callable[[World], None]]] = {
    role.__name__: role
    for role in (
        *(copy, writer, plain, loose, reader, dirty, hopper, view, sweeper, meddler),
        *(tally, late, seals, publisher, bounded, low, wide, keyed),
    )
}


def live(life: Life) -> None:
    """Be the whole life of a process, through all that a user's program would survive. A bug ends it with a traceback."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # it does not outlive its parent
    os.dup2(os.open(life.errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), 2)
    if life.role == COORDINATOR:
        os.environ["MSGTX_DATABASE_URL"] = life.url
        cli.main(["coordinator", "run"])
    if life.role == relay.__name__:
        relay(life)
    logging.basicConfig(level=logging.ERROR)
    finish = Finish(now=life.finish)
    signal.signal(signal.SIGTERM, finish.set)
    sys.exit(_work(life, finish))


def _work(life: Life, finish: Finish) -> int:
    try:
        with msgtx.connect(life.url) as client:
            ROLES[life.role](World(life, client, finish))
            return 0
    except errors.FatalError:
        return FENCED
    except (errors.RetriableError, errors.DeliveryTimeout, errors.OutcomeUnknown):
        return AGAIN
