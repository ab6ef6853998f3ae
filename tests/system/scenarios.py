"""The programs that are crashed: each as an application would write it, with every step recorded for the checker.

A program runs as a *life* of one application: another life of the same `World` is its successor, with the same
transactional id. It must continue from what its predecessor left, wherever that was crashed.
"""

import concurrent.futures
import contextlib
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
import sqlalchemy
from sqlalchemy.orm import Session

from msgtx import (
    Acknowledgement,
    Client,
    Consumer,
    Isolation,
    Outcome,
    Record,
    ShareConsumer,
    TopicPartition,
    TransactionId,
    errors,
)
from msgtx.coordinator.sweep import Sweeper
from msgtx.database.pool import POOL_SIZE, Engine
from msgtx.database.together import WaitingCall
from msgtx.producer.producer import Producer
from msgtx.session.enlistment import enlist
from msgtx.session.side_connection import companion
from msgtx.spark_jobs.batch import abort as abort_batch
from msgtx.spark_jobs.batch import begins_again, decide, make_target
from msgtx.spark_jobs.writing.attempt import AttemptWriter, Target
from msgtx.store.append.append import Whole
from msgtx.store.groups.groups import committed_offsets
from msgtx.store.groups.members import describe_members
from msgtx.store.operator.installation import describe_installation
from msgtx.store.spark import BatchName, BatchRange
from msgtx.store.sweeps.coordinators import lease_shards, release_shards
from msgtx.store.topics.topics import describe_topics
from tests.databases import connect, wait_until
from tests.faults import Faults
from tests.histories.checker import check, check_outputs
from tests.histories.history import History, Recorder, Result, read_history
from tests.histories.recorded import ProducerTape
from tests.histories.settled import Settled, settled

Answer = TypeVar("Answer")
PARTITIONS: Final = 2
INPUTS: Final = 2  # per partition of the source; most programs read only its first one
SOURCES: Final = 2
SHARDS: Final = 50
PATIENCE_SECONDS: Final = 30.0
FAST: Final = {"retry_backoff_ms": 1, "max_block_ms": 30_000, "delivery_timeout_ms": 30_000}
QUICK: Final = {"session_timeout_ms": 2_000, "heartbeat_interval_ms": 100}  # a member that cannot leave is soon removed
MADE: Final = sqlalchemy.table("made", *map(sqlalchemy.column, ("run", "number", "name")))  # rows of the business
READING: Final = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "retry_backoff_ms": 1}


@dataclass
class World:
    """The scene of one run of a program: its own topics, ids and group in a database that it shares with other runs."""

    observer: Client  # not counted; sees only what every client sees
    run: str
    folder: Path  # of the history, with those of other runs
    faults: Faults = field(default_factory=Faults)
    life: int = 0
    elsewhere: str | None = None  # another database, without msgtx
    zombie: Producer | None = None
    aged: int | None = None  # a producer id past its expiry
    overdue: TransactionId | None = None
    cleanup: list[Client] = field(default_factory=list)
    tapes: dict[Producer, ProducerTape] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / self.run).mkdir(parents=True, exist_ok=True)
        self.recorder = Recorder(self.folder / self.run, str(os.getpid()))

    @property
    def topic(self) -> str:
        return f"out-{self.run}"

    @property
    def source(self) -> str:
        return f"in-{self.run}"

    @property
    def group(self) -> str:
        return f"group-{self.run}"

    @property
    def me(self) -> str:
        """This life's name."""
        return f"{self.run}.{self.life}"

    def client(self) -> Client:
        """The counted client. The pool's first calls on a connection are not counted: another test covers them."""
        return Client(self._engine())

    def _engine(self) -> Engine:
        engine = Engine(self.observer.secret_url, connect=self.faults.connect)
        with self._uncounted(), engine.connection() as connection:
            engine.expect(describe_installation(connection).incarnation)
        return engine

    @contextlib.contextmanager
    def _uncounted(self) -> Iterator[None]:
        on, self.faults.on = self.faults.on, False
        yield
        self.faults.on = on

    @contextlib.contextmanager
    def sessions(self, isolation: str) -> Iterator[sqlalchemy.Engine]:
        """The application's own engine on msgtx's database, counted, as are the library's connections beside it."""
        with self.books(self.observer.secret_url, isolation) as engine, self._engine() as beside:
            with self._uncounted(), engine.connect() as connection:
                enlist(connection)
                own, companion(connection).engine = companion(connection).engine, beside
                own.close()
            yield engine

    @contextlib.contextmanager
    def books(self, url: str, isolation: str) -> Iterator[sqlalchemy.Engine]:
        """The application's own engine on any database, counted."""
        conninfo = sqlalchemy.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        engine = sqlalchemy.create_engine(
            "postgresql+psycopg://", creator=lambda: self.faults.connect(conninfo), isolation_level=isolation
        )
        with self._uncounted(), engine.connect():
            pass
        try:
            yield engine
        finally:
            engine.dispose()

    def write(self, session: Session, number: str, name: str) -> None:
        """Write a row of the business."""
        session.execute(MADE.insert().values(run=self.run, number=number, name=name))

    def rows(self) -> list[tuple[str, str]]:
        """The rows of the business: numbers and names; this read is not counted."""
        found: list[tuple[str, str]] = []
        for url in (self.observer.secret_url, self.elsewhere):
            if url is not None:
                with contextlib.closing(connect(url)) as connection:
                    found += connection.execute("select number, name from made where run = %s", [self.run]).fetchall()
        return found

    def bystander(self) -> Client:
        """A client whose boundaries are not counted, closed at the end of the run."""
        self.cleanup.append(Client(Engine(self.observer.secret_url)))
        return self.cleanup[-1]

    def producer(self, client: Client, **settings: object) -> Producer:
        """A transactional producer whose calls are recorded."""
        return self.taped(client.producer(**{"transactional_id": f"id-{self.run}", **FAST, **settings}))

    def taped(self, producer: Producer) -> Producer:
        """Record the calls of a producer."""
        self.tapes[producer] = ProducerTape(producer, self.recorder)
        return producer

    def send(self, producer: Producer, value: str, partition: int) -> Any:
        return producer.send(self.topic, value.encode(), partition=partition)

    def sent(self, value: str, partition: int, transaction: str | None = None) -> int:
        """Note a record that no recorded producer sends. Returns the operation's number."""
        return self.recorder.invoke(
            "send", topic=self.topic, partition=partition, values=[value], transaction=transaction, producer=self.me,
            acks="all", once=True,
        )  # fmt: skip

    def deciding(self, transaction: str, offsets: Mapping[TopicPartition, int], *, row: str | None = None) -> int:
        """Note the commit of a transaction that no recorded producer has begun. Returns the operation's number."""
        carried = [[*place, at] for place, at in offsets.items()]
        return self.recorder.invoke("commit", transaction=transaction, group=self.group, offsets=carried, row=row)

    def decided(self, number: int, *, committed: bool) -> None:
        """Note how a commit ended."""
        self.recorder.complete(Result.OK if committed else Result.FAIL, number)

    def close(self) -> None:
        while self.cleanup:
            self.cleanup.pop().close()


@dataclass(frozen=True)
class Ground:
    """Where programs are crashed: a database with its observer, a folder for their histories, perhaps another database."""

    observer: Client
    folder: Path
    elsewhere: str | None = None

    def world(self, run: str, faults: Faults | None = None) -> World:
        return World(self.observer, run, self.folder, faults or Faults(), elsewhere=self.elsewhere)


def prepare(world: World, *, rows: int = 0) -> None:
    """Make a run's topics, the input of those that consume, and the table of those that write rows of the business."""
    for url in (world.observer.secret_url, world.elsewhere):
        if rows and url is not None:
            with contextlib.closing(connect(url)) as connection:
                connection.execute("create table if not exists made (run text, number text, name text)")
    world.observer.topics.create(world.topic, partitions=PARTITIONS)
    world.observer.topics.create(world.source, partitions=SOURCES)
    with world.taped(world.observer.producer(linger_ms=0)) as producer:
        for source in range(SOURCES):
            numbers = [str(source * INPUTS + number).encode() for number in range(INPUTS)]
            producer.send_batch(world.source, numbers, partition=source).result(PATIENCE_SECONDS)


# ── the programs ──


def send(world: World) -> None:
    """An idempotent producer, several batches on two partitions, the later ones sent before the earlier are answered."""
    with world.client() as client, world.taped(client.producer(linger_ms=0, **FAST)) as producer:
        futures = [world.send(producer, f"{world.life}-{number}", number % PARTITIONS) for number in range(8)]
        for future in futures:
            future.result(PATIENCE_SECONDS)
            world.tapes[producer].settle()


def commit(world: World) -> None:
    """Consume–transform–produce over two partitions with offsets, flushed in the middle: append, append, decide."""
    _process(world, flush=True)


def fused(world: World) -> None:
    """Consume–transform–produce, each transaction in one call."""
    _process(world, flush=False)


def _process(world: World, *, flush: bool) -> None:
    with world.client() as client, world.producer(client, linger_ms=20_000) as producer:
        for consumer, record, name in inputs(world, client):
            _transform(world, producer, consumer, record, name, flush=flush)


def inputs(world: World, client: Client) -> Iterator[tuple[Consumer, Record, str]]:
    """Yield the source's records one by one, each with a name for its transaction; after a rewind again."""
    consumer = client.consumer(group=world.group, **READING)
    source = TopicPartition(world.source, 0)
    consumer.assign([source])
    attempt = 0
    while True:
        if records := consumer.poll(0, 1):
            attempt += 1
            yield consumer, records[0], f"{world.me}.{attempt}"
        elif consumer.position(source) >= INPUTS:
            return


def _transform(world: World, producer: Producer, consumer: Consumer, record: Record, name: str, *, flush: bool) -> None:
    """Make the outputs of a record in a transaction, with the consumer's new positions."""
    if not _committed(world, producer, record, name, lambda: producer.send_offsets_to_transaction(consumer), flush=flush):
        consumer.rewind()


def _committed(
    world: World, producer: Producer, record: Record, name: str, hand_over: Callable[[], None], *, flush: bool
) -> bool:
    """Make the outputs of a record in a transaction with what is handed over to it. Returns False if it was aborted."""
    assert record.value is not None
    number = record.value.decode()
    try:
        producer.begin_transaction()
        for output in range(PARTITIONS):
            world.send(producer, f"{number}>{name}/{output}", output)
        if flush:
            producer.flush(PATIENCE_SECONDS)
        world.send(producer, f"{number}>{name}/{PARTITIONS}", 0)
        hand_over()
        producer.commit_transaction()
    except errors.AbortableError:
        producer.abort_transaction()
        return False
    return True


class Crew:
    """Members of a group, polled in turn by one thread. A member returns records only in its turns."""

    def __init__(self, world: World, client: Client, producer: Producer) -> None:
        self.world = world
        self.client = client
        self.producer = producer
        self.members: list[Consumer] = []
        self.attempt = 0

    def join(self) -> Consumer:
        member = self.client.consumer(group=self.world.group, **READING, **QUICK)
        self.members.append(member)
        member.subscribe([self.world.source], on_assign=member.pause, on_revoke=lambda _: member.commit())
        return member

    def settles(self) -> bool:
        """Poll each member; return whether the members own all partitions, evenly shared."""
        for member in self.members:
            try:
                assert member.poll(0) == []
            except errors.AbortableError:  # while revoking: it was removed meanwhile
                member.rewind()
        owned = [partition for member in self.members for partition in member.assignment()]
        even = {len(member.assignment()) for member in self.members} == {SOURCES // len(self.members)}
        assert len(owned) == len(set(owned)) or not even, f"two owners: {owned}"
        return even

    def turn(self, member: Consumer) -> bool:
        """Take one record and make its outputs. Returns whether there was one."""
        member.resume(member.assignment())
        records = member.poll(0, 1)
        member.pause(member.assignment())
        for record in records:
            self.attempt += 1
            name = f"{self.world.me}.{self.attempt}"
            _transform(self.world, self.producer, member, record, name, flush=False)
        return bool(records)

    def leave(self, member: Consumer) -> None:
        self.members.remove(member)
        member.close()


def rebalance(world: World) -> None:
    """A member works alone; another one joins, and gets a partition; both work; one leaves, the other continues."""
    bury(world)
    with world.client() as client, world.producer(client, linger_ms=20_000) as producer:
        crew = Crew(world, client, producer)
        first = crew.join()
        wait_until(crew.settles, "the first owns all")
        crew.turn(first)
        second = crew.join()
        wait_until(crew.settles, "each owns its part")
        for member in crew.members:
            crew.turn(member)
        crew.leave(first)
        wait_until(crew.settles, "the second owns all")
        ends = {TopicPartition(world.source, index): INPUTS for index in range(SOURCES)}
        wait_until(
            lambda: not crew.turn(second) and {tp: second.position(tp) for tp in second.assignment()} == ends, "all is done"
        )
        second.commit()
        crew.leave(second)


def bury(world: World) -> None:
    """End the sessions of all earlier members: they are dead by now."""
    with world.observer.runtime.engine.connection() as connection:
        connection.execute(
            "update msgtx.group_heartbeat h set heartbeat_at = heartbeat_at - interval '1 hour'"
            " from msgtx.group_member m join msgtx.consumer_group g using (group_id)"
            " where m.member_number operator(pg_catalog.=) h.member_number and g.name = %s",
            [world.group],
        )


def after_rebalance(world: World) -> None:
    """Every partition has exactly one living owner; newcomers share them, and find nothing left to do."""
    bury(world)
    with world.observer.producer(**FAST) as idle:
        crew = Crew(world, world.observer, idle)
        for _ in range(SOURCES):
            crew.join()
        wait_until(crew.settles, "newcomers own everything")
        with world.observer.runtime.engine.connection() as connection:
            state = describe_members(connection, world.group)
        assert state is not None
        assert {each.member_id for each in state.members} == {each.group_metadata().member_id for each in crew.members}
        assert not any(each.session_over for each in state.members)
        assert sorted(len(each.owned) for each in state.members) == [1] * SOURCES
        for member in list(crew.members):
            assert not crew.turn(member)
            crew.leave(member)


def share_fused(world: World) -> None:
    """A share group's records become outputs, each in a transaction of one call, with its acknowledgement."""
    _share(world, flush=False)


def share_steps(world: World) -> None:
    """The same, flushed in the middle: append, acknowledge, decide."""
    _share(world, flush=True)


def share_dead(world: World) -> None:
    """Every record of a share group is rejected."""
    with world.client() as client, _member(world, client) as member:
        while not _all_answered(world):
            try:
                for record in member.poll(0, 1):
                    member.acknowledge(record, Acknowledgement.REJECT)
                member.commit()
            except errors.AbortableError:
                pass  # another life has it


def _share(world: World, *, flush: bool) -> None:
    with world.client() as client, world.producer(client, linger_ms=20_000) as producer, _member(world, client) as member:
        attempt = 0
        while not _all_answered(world):
            for record in member.poll(0, 1):
                attempt += 1
                _transform_shared(world, producer, member, record, f"{world.me}.{attempt}", flush=flush)


def _transform_shared(
    world: World, producer: Producer, member: ShareConsumer, record: Record, name: str, *, flush: bool
) -> None:
    """Make the outputs of a record in a transaction, with its acknowledgement."""

    def hand_over() -> None:
        member.acknowledge(record)
        producer.send_acknowledgements_to_transaction(member)

    _committed(world, producer, record, name, hand_over, flush=flush)


@contextlib.contextmanager
def _member(world: World, client: Client) -> Iterator[ShareConsumer]:
    """Be a member of the share group; earlier ones are dead by now."""
    bury(world)
    with client.share_consumer(
        world.source, group=world.group, acknowledgement_mode="explicit", retry_backoff_ms=1
    ) as member:
        yield member


def before_share(world: World) -> None:
    """The group begins at the start of the log, and gives nothing up."""
    world.observer.admin.shares.configure(world.group, {"auto_offset_reset": "earliest", "delivery_count_limit": 100})


def _all_answered(world: World) -> bool:
    """Return whether nothing of the source is available, held or pending."""
    found = world.observer.admin.shares.describe(world.group).partitions
    return [(each.start_offset, each.next_offset) for each in found] == [(INPUTS, INPUTS)] * SOURCES


def after_share_dead(world: World) -> None:
    """Each record is a dead letter once."""
    letters: list[bytes | None] = []
    with world.observer.consumer(auto_offset_reset="none") as reader:
        place = TopicPartition(f"{world.group}-dead-letters", 0)
        reader.assign([place])
        reader.seek(place, 0)
        while records := reader.poll(0):
            letters += [record.value for record in records]
    assert sorted(letters, key=str) == [b"%d" % number for number in range(SOURCES * INPUTS)]


def abort(world: World) -> None:
    """Transactions that are aborted after records were stored, with a committed one after each."""
    with world.client() as client, world.producer(client, linger_ms=20_000) as producer:
        for number in range(2):
            name = f"{world.me}.{number}"
            producer.begin_transaction()
            for output in range(PARTITIONS):
                world.send(producer, f"{name}/{output}", output)
            producer.flush(PATIENCE_SECONDS)
            world.send(producer, f"{name}/unsent", 0)
            producer.abort_transaction()
            _transaction(world, producer, f"{name}+")


def _transaction(world: World, producer: Producer, name: str, *, flush: bool = True) -> None:
    """One transaction over both partitions, repeated until it is committed."""
    for attempt in range(10):
        transaction = f"{name}{attempt}"
        try:
            producer.begin_transaction()
            for output in range(PARTITIONS):
                world.send(producer, f"{transaction}/{output}", output)
            if flush:
                producer.flush(PATIENCE_SECONDS)
            producer.commit_transaction()
        except errors.AbortableError:
            producer.abort_transaction()
        else:
            return
    raise AssertionError(f"{name} was aborted ten times")


def together(world: World) -> None:
    """Two producers of one client commit at the same time: their transactions share a call."""
    with (
        world.client() as client,
        world.producer(client, linger_ms=20_000) as first,
        world.producer(client, transactional_id=f"id-{world.run}-2", linger_ms=20_000) as second,
        concurrent.futures.ThreadPoolExecutor(2) as threads,
    ):
        for number in range(2):
            with held_back(client, 2):
                waiting = [
                    threads.submit(_transaction, world, producer, f"{world.me}.{number}.{which}.", flush=False)
                    for producer, which in ((first, "first"), (second, "second"))
                ]
            for each in waiting:
                each.result(PATIENCE_SECONDS)


@contextlib.contextmanager
def held_back(client: Client, count: int) -> Iterator[None]:
    """Let no transaction go before `count` of them wait to be committed: then they go together."""
    calls = client.runtime.group_commit.calls
    ahead: WaitingCall[Whole, object] = WaitingCall(Whole(TransactionId(0, 0, 0), []))
    ahead.group, calls.patience = [ahead], PATIENCE_SECONDS
    calls.leader = ahead
    try:
        yield
        wait_until(lambda: len(calls.queue) >= count)
    finally:
        del calls.patience
        calls.hand_over(ahead)


def zombie(world: World) -> None:
    """A successor initializes over a zombie that has a transaction open, and commits one of its own."""
    with world.client() as client, world.producer(client) as producer:
        _transaction(world, producer, f"{world.me}.", flush=False)


def before_zombie(world: World) -> None:
    """The zombie of `zombie`: flushed records on both partitions, no decision."""
    alive = world.zombie = world.producer(world.bystander())
    alive.init_transactions()
    alive.begin_transaction()
    for output in range(PARTITIONS):
        world.send(alive, f"zombie/{output}", output)
    alive.flush(PATIENCE_SECONDS)


def after_zombie(world: World) -> None:
    """It wakes up, sends more and commits: it learns that it was fenced (I7)."""
    alive = world.zombie
    assert alive is not None
    told: list[str] = []
    for step in (
        lambda: world.send(alive, "zombie/late", 0).result(PATIENCE_SECONDS),
        alive.commit_transaction,
    ):
        try:
            step()
        except errors.ProducerFenced as error:
            told.append(type(error).__name__)
    assert len(told) == 2, f"the zombie was answered {told}"


def spark(world: World) -> None:
    """A driver and its tasks in one process: a batch per input; the second task's first attempt fails."""
    with world.client() as client:
        count = 0
        while (start := _group_offset(world)) < INPUTS:
            batch = BatchName(f"app-{world.run}", "", start)
            target = make_target(client.runtime.engine, world.topic)
            assert not begins_again(client.runtime.engine, batch)
            count += 1
            _batch(world, client, target, batch, f"{world.me}.{count}")


def _batch(world: World, client: Client, target: Target, batch: BatchName, name: str) -> None:
    """Make the outputs of an input, with the group's new offset."""
    number = batch.batch_id
    try:
        accepted = []
        for task, outputs in enumerate([(0, PARTITIONS), (1,)]):
            for transaction in (f"{name}.failed", name) if task else (name,):
                writer = AttemptWriter(client.runtime.engine, target, batch)
                values = [f"{number}>{transaction}/{output}" for output in outputs]
                for value in values:
                    world.sent(value, task, transaction)
                rows = {
                    "value": [value.encode() for value in values],
                    "partition": pa.array([task] * len(values), pa.int32()),
                }
                attempt = writer.write([pa.RecordBatch.from_pydict(rows)])
                assert attempt is not None
            accepted.append(attempt)
        deciding = world.deciding(name, {TopicPartition(world.source, 0): number + 1})
        report = decide(
            client.runtime.engine,
            batch,
            accepted,
            group=world.group,
            ranges={_source_id(world): BatchRange(number, number + 1)},
        )
        assert not report.skipped
        world.decided(deciding, committed=True)
    except errors.AbortableError:
        abort_batch(client.runtime.engine, batch)


def _source_id(world: World) -> int:
    with world.observer.runtime.engine.connection() as connection:
        return describe_topics(connection, [world.source])[world.source].partition_ids[0]


def _group_offset(world: World) -> int:
    partition_id = _source_id(world)
    with world.observer.runtime.engine.connection() as connection:
        found = committed_offsets(connection, world.group, [partition_id]).get(partition_id)
    return 0 if found is None or found.at is None else found.at.offset


def timeout(world: World) -> None:
    """A transaction passes its timeout, a reader that it holds back ends it; its owner aborts, and continues."""
    with world.client() as client, world.producer(client) as producer:
        name = f"{world.me}.late"
        try:
            producer.begin_transaction(timeout_ms=1)
            for output in range(PARTITIONS):
                world.send(producer, f"{name}/{output}", output)
            producer.flush(PATIENCE_SECONDS)
            reader = client.consumer(**READING)
            reader.assign(TopicPartition(world.topic, index) for index in range(PARTITIONS))
            watcher = world.bystander()
            wait_until(lambda: reader.poll(0) or stable(watcher, world.topic), "a reader passes the overdue transaction")
            producer.commit_transaction()
        except errors.AbortableError:
            producer.abort_transaction()
        _transaction(world, producer, f"{world.me}.next")
        again(lambda: client.sweep(only=["overdue", "markers"]))  # the others have a scenario of their own


def again(call: Callable[[], Answer]) -> Answer:
    """Repeat an administrator's call: the library does not."""
    for _ in range(POOL_SIZE + 2):  # after a crash of the server the pool finds its dead connections one by one
        with contextlib.suppress(errors.DatabaseUnavailable):
            return call()
    raise AssertionError("the database stays unavailable")


def recovery(world: World) -> None:
    """A producer without transactions finds its tail gone, raises its epoch, and continues to send."""
    with world.client() as client, client.producer(linger_ms=0, **FAST) as producer:
        for number in range(2):
            noted = world.sent(f"{world.life}-first-{number}", 0)
            offset = world.send(producer, f"{world.life}-first-{number}", 0).result(PATIENCE_SECONDS).offset
            if number == 0:
                world.recorder.complete(Result.OK, noted, offsets=[offset])
        with world.observer.runtime.engine.connection() as connection:  # which no client should do
            connection.execute(
                "delete from msgtx.record_batch r using msgtx.partition p join msgtx.topic t using (topic_id)"
                " where t.name = %s and p.partition_index = 0 and r.partition_id = p.partition_id and r.base_offset = %s",
                [world.topic, offset],
            )
        world.recorder.complete(Result.FAIL, noted)
        tape = world.tapes[world.taped(producer)]
        futures = [world.send(producer, f"{world.life}-then-{number}", number % PARTITIONS) for number in range(6)]
        for future in futures:
            future.result(PATIENCE_SECONDS)
        tape.settle()


def sweep(world: World) -> None:
    """A coordinator leases the shards of a dead one, does a round for them and releases them."""
    with world.client() as client:

        def lead() -> None:
            with world.observer.runtime.engine.connection() as connection:  # earlier leaders are dead by now
                connection.execute("update msgtx.coordinator set lease_until = lease_until - interval '1 hour'")
            with client.runtime.engine.connection() as connection:
                leases = lease_shards(connection, None, host="here", process=world.life)
                assert len(leases.epochs) == SHARDS
                Sweeper().round(connection, leases)
                release_shards(connection, leases.coordinator_id)

        again(lead)


def before_sweep(world: World) -> None:
    """An id last used nine days ago, with history and offsets, and an overdue transaction of another."""
    producer = world.producer(world.observer, transactional_id=f"aged-{world.run}")
    producer.init_transactions()
    for name, committed in (("first", True), ("undone", False), ("newest", True)):
        producer.begin_transaction()
        for output in range(PARTITIONS):
            world.send(producer, f"{name}/{output}", output)
        producer.flush(PATIENCE_SECONDS)
        if committed:
            offset = 1 if name == "first" else INPUTS
            producer.send_offsets_to_transaction({TopicPartition(world.source, 0): offset}, world.group)
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close()
    world.observer.sweep(only=["markers"])
    late = world.producer(world.bystander(), transactional_id=f"late-{world.run}")
    late.init_transactions()
    world.overdue = late.begin_transaction(timeout_ms=1).id
    world.send(late, "late", 0)
    late.flush(PATIENCE_SECONDS)
    with world.observer.runtime.engine.connection() as connection:
        row = connection.execute(
            "update msgtx.producer set initialized_at = initialized_at - interval '9 days' where transactional_id = %s"
            " returning producer_id",
            [f"aged-{world.run}"],
        ).fetchone()
        assert row is not None
        world.aged = row[0]
        for column in ("transaction.opened_at", "transaction_decision.decided_at"):
            table, name = column.split(".")
            connection.execute(
                f"update msgtx.{table} set {name} = {name} - interval '9 days' where producer_id = %s", [world.aged]
            )


def after_sweep(world: World) -> None:
    """All of it is gone, once; readers read the same as before (the checker looks)."""
    again(world.observer.sweep)
    assert world.overdue is not None
    assert world.observer.transaction_outcome(world.overdue) is Outcome.ABORTED
    with world.observer.runtime.engine.connection() as connection:
        left = {
            table: connection.execute(f"select count(*) from msgtx.{table} where producer_id = %s", [world.aged]).fetchone()
            for table in ("producer", "transaction", "transaction_partition", "transaction_decision", "group_offset")
        }
        markers = connection.execute(
            "select outcome from msgtx.transaction_marker where producer_id = %s", [world.aged]
        ).fetchall()
    assert left == {**dict.fromkeys(left, (0,)), "group_offset": (1,)}
    assert markers == [("ABORT",)] * PARTITIONS


def stable(client: Client, topic: str) -> bool:
    """Return whether nothing of a topic is undecided."""
    found = client.admin.partitions.offsets([topic], -1, Isolation.READ_COMMITTED).values()
    return all(partition.last_stable_offset == partition.log_end_offset for partition in found)


@dataclass(frozen=True)
class Scenario:
    """A program, the steps before and after it, and the number of inputs whose outputs must exist in the end."""

    program: Callable[[World], None]
    before: Callable[[World], None] | None = None
    after: Callable[[World], None] | None = None
    image: int = 0
    rows: int = 0  # how many of the inputs have a row of the business, too


SCENARIOS: Final = {
    "send": Scenario(send),
    "commit": Scenario(commit, image=INPUTS),
    "fused": Scenario(fused, image=INPUTS),
    "abort": Scenario(abort),
    "zombie": Scenario(zombie, before_zombie, after_zombie),
    "timeout": Scenario(timeout),
    "together": Scenario(together),
    "spark": Scenario(spark, image=INPUTS),
    "rebalance": Scenario(rebalance, None, after_rebalance, image=INPUTS * SOURCES),
    "sweep": Scenario(sweep, before_sweep, after_sweep),
    "share-fused": Scenario(share_fused, before_share, image=INPUTS * SOURCES),
    "share-steps": Scenario(share_steps, before_share, image=INPUTS * SOURCES),
    "share-dead": Scenario(share_dead, before_share, after_share_dead),
}
RECOVERY: Final = {"recovery": Scenario(recovery)}


# ── the result ──


def anomalies_of(client: Client, run: str, name: str) -> list[str]:
    """Run a program without a crash. Returns what the checker finds."""
    scenario = SCENARIOS[name]
    with tempfile.TemporaryDirectory() as folder:
        world = World(client, run, Path(folder))
        try:
            prepare(world, rows=scenario.rows)
            if scenario.before is not None:
                scenario.before(world)
            scenario.program(world)
            if scenario.after is not None:
                scenario.after(world)
        finally:
            world.close()
        return settle([world], image=scenario.image, rows=scenario.rows)


def settle(worlds: Sequence[World], *, image: int, rows: int = 0) -> list[str]:
    """Sweep, read everything in every way, and let the checker compare; verify the rows before and after.

    Many runs at once: sweeps, `verify` and new readers take longer than a program.
    """
    client, topics = worlds[0].observer, [topic for world in worlds for topic in (world.topic, world.source)]
    found = [str(violation) for violation in client.admin.verify(topics).violations]
    client.sweep()
    client.sweep()
    histories = [read_history(world.folder / world.run) for world in worlds]
    end = settled(
        client,
        History([operation for history in histories for operation in history.operations]),
        partitions=[TopicPartition(*place) for place in itertools.product(topics, range(PARTITIONS))],
        groups={world.group: [TopicPartition(world.source, index) for index in range(SOURCES)] for world in worlds},
        topics=topics,
        ids={f"id-{world.run}{suffix}" for world in worlds for suffix in ("", "-2")},
        undecided=("Ongoing", "Prepared", "PrepareCommit", "PrepareAbort"),
        purged=True,
    )
    found += [*end.violations, *end.open_transactions]
    seen = {partition: list(shown) for partition, shown in end.committed.items() if shown}
    found += [f"{view}: {shown}, and a reader sees {seen}" for view, shown in views(client, topics).items() if shown != seen]
    for world, history in zip(worlds, histories, strict=True):
        of_run = _checked(world, history, end, image=image, rows=rows)
        found += [f"{world.run}, crashed at {world.faults.fired}: {anomaly}" for anomaly in of_run]
    return found


def _checked(world: World, history: History, end: Settled, *, image: int, rows: int) -> Iterator[object]:
    """What the checker finds in one of several runs."""
    made = world.rows() if rows else []
    if sorted(number for number, _ in made) != [str(number) for number in range(rows)]:
        yield f"rows: {made}, of {rows} inputs"
    mine = (world.topic, world.source)
    own = Settled(
        committed={partition: shown for partition, shown in end.committed.items() if partition.topic in mine},
        everything={partition: shown for partition, shown in end.everything.items() if partition.topic in mine},
        ends={partition: at for partition, at in end.ends.items() if partition.topic in mine},
        offsets={key: at for key, at in end.offsets.items() if key[0] == world.group},
        outcomes=end.outcomes,
        purged=end.purged,
        rows=[name for _, name in made],
    )
    yield from check(history, own)
    if image:
        sources = [TopicPartition(world.source, index) for index in range(image // INPUTS)]
        yield from check_outputs(own, sources, world.topic, outputs=PARTITIONS + 1)


def read_all(client: Client, topic: str, isolation: str = "read_committed") -> dict[int, list[tuple[int, str]]]:
    """Read a topic from offset 0 to its end, as a consumer."""
    seen: dict[int, list[tuple[int, str]]] = {}
    with client.consumer(isolation=isolation, auto_offset_reset="none", max_poll_records=3) as reader:
        partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        reader.assign(partitions)
        for partition in partitions:
            reader.seek(partition, 0)
        while records := reader.poll(0):
            for record in records:
                assert record.value is not None
                seen.setdefault(record.partition, []).append((record.offset, record.value.decode()))
        assert all(reader.position(tp) == end for tp, end in reader.end_offsets().items())
    return dict(sorted(seen.items()))


def views(client: Client, topics: Sequence[str]) -> dict[str, dict[TopicPartition, list[tuple[int, str]]]]:
    """Read topics through the views that show committed records."""
    answers: dict[str, dict[TopicPartition, list[tuple[int, str]]]] = {}
    with client.runtime.engine.connection() as connection:
        for view in ("committed_records", "committed_records_now"):
            statement = f'select topic, partition, "offset", value from msgtx.{view} where topic = any(%s) order by 1, 2, 3'
            rows = answers.setdefault(view, {})
            for topic, partition, offset, value in connection.execute(statement, [topics]).fetchall():
                rows.setdefault(TopicPartition(topic, partition), []).append((offset, bytes(value).decode()))
    return answers
