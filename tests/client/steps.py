"""Steps that the tests of clients have in common."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import msgtx
from msgtx.database.outages import Outages
from msgtx.database.pool import Engine
from msgtx.observer import Observers
from msgtx.process import ConsumerInput, Failures, Filler, Loop, Patience, Worker
from tests.databases import Connection, wait_until
from tests.faults import Faults, lose_connection

SECONDS: Final = 30.0
MOST_BOUNDARIES: Final = 100  # of one call: more mean that a retry never ends
Reader = msgtx.Consumer | msgtx.ShareConsumer


def process(
    consumer: msgtx.Consumer, producer: msgtx.Producer, worker: Worker, *, to: str, transform: Callable[[Any], Any]
) -> msgtx.ProcessReport:
    """Run the loop of `client.process` with a consumer and a producer of one's own."""
    failures = Failures(worker, Observers())
    seconds = worker.transaction_ms / 1000
    filler = Filler(ConsumerInput(consumer), producer, to, transform, worker, failures, seconds, started=True)
    return Loop(consumer, filler, worker, Patience(Outages(), worker), failures, list).run(lambda: None)


def values(records: Iterable[msgtx.Record]) -> list[Any]:
    return [record.value for record in records]


def require_in_order(records: Iterable[msgtx.Record], count: int, partitions: Iterable[int] = range(3)) -> None:
    """Raise if these of three partitions do not hold the numbers below `count`, dealt out in turn, once and in order."""
    records = list(records)
    for partition in partitions:
        found = values(record for record in records if record.partition == partition)
        assert found == [b"%d" % number for number in range(partition, count, 3)]


def store(client: msgtx.Client, topic: str, *contents: bytes | None, **columns: Any) -> None:
    """Store records with a producer of their own."""
    with client.producer() as producer:
        producer.send_batch(topic, contents, **columns).result(SECONDS)


# ── who waits ──


def listens(client: msgtx.Client) -> None:
    """Wait until notifications arrive."""
    wait_until(lambda: client.runtime.listener.confirmed, "notifications arrive")


def asleep(threads: ThreadPoolExecutor, reader: Reader, seconds: float = SECONDS) -> Future[Any]:
    """Have a thread poll, and return when it waits to be woken."""
    reader._waiter._waited = False
    polling = threads.submit(reader.poll, seconds)
    wait_until(lambda: reader._waiter._waited, "the poll waits")
    return polling


# ── producers ──


def begun(client: msgtx.Client, name: str, **settings: Any) -> tuple[msgtx.Producer, msgtx.Transaction]:
    """Make a producer whose first transaction has begun."""
    producer = client.producer(transactional_id=name, **settings)
    producer.init_transactions()
    return producer, producer.begin_transaction()


@contextlib.contextmanager
def producer_held(holder: Connection, transaction: msgtx.Transaction) -> Iterator[None]:
    """Hold the lock of a transaction's producer within the block: its end waits."""
    with holder.transaction():
        holder.execute("select msgtx.lock_producer(%s)", [transaction.id.producer_id])
        yield


# ── what happens to the database and to connections ──


def losing_clients(database_url: str, topic: str, *, least: int) -> Iterator[tuple[msgtx.Client, Faults]]:
    """Yield clients that know a topic and lose a connection at one boundary each, in turn, until none comes so far.

    Nothing is lost before `faults.on` is set.
    """
    for boundary in range(1, MOST_BOUNDARIES):
        faults = Faults({boundary: lose_connection}, on=False)
        with msgtx.Client(Engine(database_url, connect=faults.connect)) as client:
            client.topics.describe(topic)
            yield client, faults
        if not faults.fired:
            break
    assert least < boundary < MOST_BOUNDARIES - 1


def lower_limit(connection: Connection, topic: str, max_message_bytes: int = 20) -> None:
    """Alter a topic without telling its producers."""
    connection.execute("update msgtx.topic set max_message_bytes = %s where name = %s", [max_message_bytes, topic])


def lose_rows(connection: Connection, topic: str, *, start: int = 0, partition: int = 0) -> None:
    """Lose the rows of a partition from an offset on, as a server does that loses its last seconds."""
    connection.execute(
        "delete from msgtx.record_batch b using msgtx.partitions p where p.partition_id = b.partition_id"
        " and p.topic = %s and p.partition = %s and b.base_offset >= %s",
        [topic, partition, start],
    )


@contextlib.contextmanager
def without_function(connection: Connection, name: str) -> Iterator[None]:
    """Take a function away within the block: who calls it is refused."""
    connection.execute(f"alter function msgtx.{name} rename to {name}_away")
    try:
        yield
    finally:
        connection.execute(f"alter function msgtx.{name}_away rename to {name}")
