"""Programs that are crashed, whose transactions are decided by an application's session or by another database.

As in `scenarios`. When the answer of such a COMMIT is lost, the application finds out its outcome: by the transaction's
name, by its own row, or by that of the other database.
"""

import contextlib
from functools import partial
from typing import Final

import sqlalchemy
from sqlalchemy.orm import Session

from msgtx import Client, Consumer, Outcome, Record, TopicPartition, errors, orm
from msgtx.producer.producer import Producer
from tests.system.scenarios import INPUTS, PARTITIONS, Scenario, World, again, inputs

LEVELS: Final = {"": "READ COMMITTED", "-repeatable": "REPEATABLE READ", "-serializable": "SERIALIZABLE"}
# What a session's commit, or a call beside it, may raise in the application, which then finds out the outcome.
LOST: Final = (errors.MsgtxError, sqlalchemy.exc.DBAPIError)


def session(world: World, isolation: str) -> None:
    """Consume–transform–produce over two partitions with offsets, decided by the COMMIT of a session with a row."""
    with (
        world.client() as client,
        world.sessions(isolation) as sessions,
        world.producer(client, linger_ms=20_000) as producer,
    ):
        for consumer, record, name in inputs(world, client):
            _in_session(world, client, sessions, producer, consumer, record, name)


def _in_session(
    world: World,
    client: Client,
    sessions: sqlalchemy.Engine,
    producer: Producer,
    consumer: Consumer,
    record: Record,
    name: str,
) -> None:
    """Make a row and the outputs of a record; when the COMMIT is not answered, ask how the transaction ended."""
    assert record.value is not None
    number, begun, deciding = record.value.decode(), None, None
    try:
        with Session(sessions) as session:
            world.write(session, number, name)
            with producer.transaction(session=session) as begun:
                for output in range(PARTITIONS + 1):
                    world.send(producer, f"{number}>{name}/{output}", output % PARTITIONS)
                begun.send_offsets(consumer)
            deciding = world.tapes[producer].deciding(row=name)
            session.commit()
        committed = True
    except LOST:
        transaction_id = None if begun is None else begun.id
        committed = transaction_id is not None and (
            again(lambda: client.transaction_outcome(transaction_id, resolve=True)) is Outcome.COMMITTED
        )
        if not committed:
            consumer.rewind()
    if deciding is not None:
        world.decided(deciding, committed=committed)


def _positions(consumer: Consumer) -> dict[TopicPartition, int]:
    return {partition: at.offset for partition, at in consumer._transaction_offsets().items()}


def publish(world: World, isolation: str) -> None:
    """A row for each number that has none, with records on two partitions; the row shows whether that is done."""
    bury(world)
    with world.sessions(isolation) as sessions:
        attempt = 0
        while missing := {str(number) for number in range(INPUTS)} - {number for number, _ in world.rows()}:
            number, attempt = min(missing), attempt + 1
            name, deciding = f"{world.me}.{attempt}", None
            with contextlib.suppress(*LOST), Session(sessions) as session:
                world.write(session, number, name)
                for output in range(PARTITIONS + 1):
                    value = f"{number}>{name}/{output}"
                    world.sent(value, output % PARTITIONS, name)
                    orm.publish(session, world.topic, value.encode(), partition=output % PARTITIONS)
                deciding = world.deciding(name, {}, row=name)
                session.commit()
            _find_out(world, name, deciding)


def _find_out(world: World, name: str, deciding: int | None) -> bool:
    """Whether an attempt is done: its row exists."""
    done = name in {found for _, found in world.rows()}
    if deciding is not None:
        world.decided(deciding, committed=done)
    return done


def consume(world: World, isolation: str) -> None:
    """Consume into a table: a row for each record, with the consumer's new positions."""
    bury(world)
    with world.client() as client, world.sessions(isolation) as sessions:
        for consumer, record, name in inputs(world, client):
            assert record.value is not None
            deciding = None
            with contextlib.suppress(*LOST), Session(sessions) as session:
                world.write(session, record.value.decode(), name)
                positions = _positions(consumer)
                consumer.commit(session=session)
                deciding = world.deciding(name, positions, row=name)
                session.commit()
            if not _find_out(world, name, deciding):
                consumer.rewind()


def bury(world: World) -> None:
    """Let what a dead process, or one that lost its connection twice, has left open time out, as of an hour ago."""
    with world.observer.runtime.engine.connection() as connection:
        connection.execute(
            "update msgtx.transaction t set opened_at = opened_at - interval '1 hour' where not exists ("
            "select from msgtx.transaction_decision d where (d.producer_id, d.producer_epoch, d.transaction_number)"
            " = (t.producer_id, t.producer_epoch, t.transaction_number))"
        )


def prepared(world: World) -> None:
    """Consume–transform–produce, decided by another database: its row tells a successor after a crash."""
    assert world.elsewhere is not None
    with (
        world.client() as client,
        world.books(world.elsewhere, "READ COMMITTED") as books,
        contextlib.closing(world.producer(client, linger_ms=20_000)) as producer,
    ):
        producer.init_transactions(keep_prepared=True)
        if (left := producer.prepared_transaction) is not None:
            _complete(world, client, str(left))
        for consumer, record, name in inputs(world, client):
            _prepare(world, client, books, producer, consumer, record, name)


def _prepare(
    world: World,
    client: Client,
    books: sqlalchemy.Engine,
    producer: Producer,
    consumer: Consumer,
    record: Record,
    name: str,
) -> None:
    assert record.value is not None
    number = record.value.decode()
    transaction = producer.begin_transaction()
    try:
        for output in range(PARTITIONS + 1):
            world.send(producer, f"{number}>{name}/{output}", output % PARTITIONS)
        transaction.send_offsets(consumer)
        token = str(transaction.prepare())
    except errors.AbortableError:
        producer.abort_transaction()
        consumer.rewind()
        return
    deciding = world.tapes[producer].deciding(row=token)
    with contextlib.suppress(sqlalchemy.exc.DBAPIError), Session(books) as session:
        world.write(session, number, token)
        session.commit()
    done = _complete(world, client, token)
    world.decided(deciding, committed=done)
    if not done:
        consumer.rewind()


def _complete(world: World, client: Client, token: str) -> bool:
    """Complete what is prepared as the other database says."""
    commit = token in {name for _, name in world.rows()}
    outcome = again(lambda: client.complete(token, commit=commit))
    assert outcome is (Outcome.COMMITTED if commit else Outcome.ABORTED)
    return commit


SESSIONS: Final = {
    "prepared": Scenario(prepared, image=INPUTS, rows=INPUTS),
    **{
        f"{program.__name__}{suffix}": Scenario(partial(program, isolation=isolation), None, bury, image=image, rows=INPUTS)
        for program, image in ((session, INPUTS), (publish, INPUTS), (consume, 0))
        for suffix, isolation in LEVELS.items()
    },
}
