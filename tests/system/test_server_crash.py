"""Scenarios around a crash of the database server: what was promised is there; nothing else is half there."""

import concurrent.futures
import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Final

import psycopg
import pytest
import sqlalchemy
import sqlalchemy.exc
import sqlalchemy.orm

import msgtx
from msgtx import Client, Consumer, OffsetAndMetadata, Outcome, TopicPartition, errors
from msgtx.database.pool import Engine
from msgtx.database.wire import BatchColumns
from msgtx.store.append.append import append
from msgtx.store.transactions.producers import init_producer_id
from tests.databases import connect, wait_until
from tests.faults import CrashServer, Faults, crash_server
from tests.sessions.conftest import application_url
from tests.store.steps import unique
from tests.system.scenarios import FAST, PATIENCE_SECONDS, READING, read_all

pytestmark = pytest.mark.slow

MOST_BOUNDARIES: Final = 40  # of one send: more mean that a retry never ends


@pytest.fixture(scope="module")
def crashing() -> Iterator[CrashServer]:
    with crash_server() as server:
        yield server


@pytest.fixture(scope="module")
def url(crashing: CrashServer) -> str:
    return crashing.server.create_database()


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with msgtx.connect(url) as made:
        yield made


@pytest.fixture
def fresh(url: str) -> Iterator[Callable[[], Client]]:
    """Clients that are made after a crash."""
    made: list[Client] = []

    def make() -> Client:
        made.append(msgtx.connect(url))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def topic(client: Client) -> str:
    name = unique("topic")
    client.topics.create(name, partitions=2)
    return name


def test_a_crash_takes_back_what_nobody_flushed(crashing: CrashServer, url: str) -> None:
    """The server of these tests does lose data: otherwise they would show nothing."""
    with connect(url) as connection:
        connection.execute("create table if not exists kept (value text)")
        connection.execute("set synchronous_commit = off")
        connection.execute("insert into kept values ('flushed by another')")
        crashing.flush()
        connection.execute("insert into kept values ('lost')")
    crashing.crash()
    with connect(url) as connection:
        assert connection.execute("select value from kept").fetchall() == [("flushed by another",)]


def test_two_producers_never_get_the_same_id(crashing: CrashServer, url: str) -> None:
    """P41: an id that was issued is not issued again, though no row records it."""
    given: list[int] = []
    for _ in range(3):
        with connect(url) as connection:
            given += [init_producer_id(connection, None, timeout_ms=1_000).producer_id for _ in range(2)]
        crashing.crash()
    assert len(set(given)) == len(given), given


def test_an_id_that_was_drawn_beside_an_open_sql_transaction_is_not_given_again(crashing: CrashServer, url: str) -> None:
    """P41: the session that draws the sequence's next block writes the WAL for it, and may not have committed yet."""
    given: list[int] = []
    for _ in range(2):
        with contextlib.closing(connect(url)) as slow, contextlib.closing(connect(url)) as fast:
            slow.autocommit = False
            init_producer_id(slow, None, timeout_ms=1_000)  # the first one after a start begins a new block
            given.append(init_producer_id(fast, None, timeout_ms=1_000).producer_id)
            crashing.crash()
    assert len(set(given)) == len(given), given


def test_an_abort_that_was_read_survives(
    crashing: CrashServer, client: Client, topic: str, fresh: Callable[[], Client]
) -> None:
    """P28: otherwise the transaction could commit after a client was answered that it had not."""
    producer = client.producer(transactional_id=topic, **FAST)
    producer.init_transactions()
    name = producer.begin_transaction().id
    producer.send(topic, b"value", partition=0).result(PATIENCE_SECONDS)
    assert client.transaction_outcome(name, resolve=True) is Outcome.ABORTED
    crashing.crash()
    assert fresh().transaction_outcome(name) is Outcome.ABORTED
    with pytest.raises(errors.TransactionAborted):
        producer.commit_transaction()
    assert read_all(fresh(), topic) == {}


def test_offsets_and_outputs_of_a_commit_that_returned_are_both_there(
    crashing: CrashServer, client: Client, topic: str, fresh: Callable[[], Client]
) -> None:
    """P27, I9, I10: only the decision was flushed, and with it all that came before it."""
    partition = TopicPartition(topic, 0)
    with client.producer(transactional_id=topic, **FAST) as producer:
        producer.begin_transaction()
        producer.send(topic, b"early", partition=0).result(PATIENCE_SECONDS)
        producer.send_offsets_to_transaction({partition: 7}, topic)
        producer.send(topic, b"late", partition=1)
        producer.commit_transaction()
        crashing.crash()
    assert read_all(fresh(), topic) == {0: [(0, "early")], 1: [(0, "late")]}
    with fresh().consumer(group=topic, **READING) as member:
        assert member.committed([partition])[partition] == OffsetAndMetadata(7)


@pytest.mark.parametrize("flushed", ["nothing", "first batch"])
def test_a_commit_whose_records_were_lost_is_an_abort_and_the_producer_goes_on(
    flushed: str, crashing: CrashServer, client: Client, topic: str, fresh: Callable[[], Client]
) -> None:
    """The tail check: a hole never becomes a commit. Offsets of the lost transaction are lost with it."""
    partition = TopicPartition(topic, 0)
    with client.producer(transactional_id=topic, **FAST) as producer:
        producer.begin_transaction()
        producer.send(topic, b"first", partition=0).result(PATIENCE_SECONDS)
        if flushed == "first batch":
            crashing.flush()
        producer.send(topic, b"second", partition=1).result(PATIENCE_SECONDS)
        producer.send_offsets_to_transaction({partition: 7}, topic)
        crashing.crash()
        with pytest.raises(errors.TransactionAborted):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"again", partition=0)
            producer.send(topic, b"again", partition=1)
    seen = read_all(fresh(), topic)
    assert [[value for _, value in rows] for rows in seen.values()] == [["again"], ["again"]]
    with fresh().consumer(group=topic, **READING) as member:
        assert member.committed([partition])[partition] is None


def test_what_must_last_is_flushed_also_where_the_server_would_not_wait_for_it(crashing: CrashServer) -> None:
    """I9: synchronous_commit is off for the whole database. Acknowledged records, commits, offsets and epochs survive."""
    url = crashing.server.create_database()
    with crashing.server.administrator() as connection:
        connection.execute(f"alter database {url.rpartition('/')[2]} set synchronous_commit = off")
    partition = TopicPartition("topic", 0)

    def client_that_crashes(work: Callable[[Client], object]) -> None:
        with msgtx.connect(url) as client:
            work(client)
            crashing.crash()

    def send(client: Client) -> None:
        client.producer(linger_ms=0, **FAST).send("topic", b"plain", partition=0).result(PATIENCE_SECONDS)

    def commit(client: Client, value: bytes, *, flush: bool) -> None:
        producer = client.producer(transactional_id="id", linger_ms=20_000, **FAST)
        producer.init_transactions()
        crashing.flush()
        producer.begin_transaction()
        producer.send("topic", value, partition=0)
        if flush:
            producer.flush()
        producer.commit_transaction()

    def commit_offset(client: Client) -> None:
        client.consumer(group="group", **READING).commit({partition: 1})

    client_that_crashes(lambda client: client.topics.create("topic", partitions=2))
    client_that_crashes(send)
    client_that_crashes(lambda client: commit(client, b"whole", flush=False))
    client_that_crashes(lambda client: commit(client, b"in steps", flush=True))
    client_that_crashes(commit_offset)
    client_that_crashes(lambda client: client.producer(transactional_id="id", **FAST).init_transactions())
    with msgtx.connect(url) as client:
        assert [value for _, value in read_all(client, "topic")[0]] == ["plain", "whole", "in steps"]
        assert client.consumer(group="group", **READING).committed([partition])[partition] == OffsetAndMetadata(1)
        assert client.admin.transactions.describe("id").producer_epoch == 2


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("overwritten", [False, True], ids=["shorter", "overwritten"])
def test_a_reader_notices_that_what_it_read_was_taken_back(
    isolation: str,
    overwritten: bool,
    crashing: CrashServer,
    client: Client,
    topic: str,
) -> None:
    """P38, P45: also when other records have the same offsets by now. It never skips silently."""
    partition = TopicPartition(topic, 0)
    with client.producer(acks="1") as producer:
        producer.send(topic, b"kept", partition=0).result(PATIENCE_SECONDS)
        crashing.flush()
        producer.send(topic, b"lost", partition=0).result(PATIENCE_SECONDS)
    reader = client.consumer(isolation=isolation, **READING)
    reader.assign([partition])
    assert [record.value for record in reader.poll(PATIENCE_SECONDS)] == [b"kept", b"lost"]
    crashing.crash()
    if overwritten:
        with client.producer(**FAST) as producer:
            for value in (b"other", b"more"):
                producer.send(topic, value, partition=0).result(PATIENCE_SECONDS)
    with pytest.raises(errors.LogTruncated, match=r"-0"):
        reader.poll(PATIENCE_SECONDS)
    reader.seek(partition, 1)
    left = [b"other", b"more"] if overwritten else []
    assert [record.value for record in reader.poll(PATIENCE_SECONDS if left else 0)] == left


def commit_of_the_consumer(consumer: Consumer, partition: TopicPartition, position: int, client: Client) -> None:
    consumer.commit()


def commit_of_a_map(consumer: Consumer, partition: TopicPartition, position: int, client: Client) -> None:
    consumer.commit({partition: position})


def transaction_with_the_consumer(consumer: Consumer, partition: TopicPartition, position: int, client: Client) -> None:
    with client.producer(transactional_id=f"of {partition}", **FAST) as producer, producer.transaction() as transaction:
        producer.send(partition.topic, b"output", partition=1)
        transaction.send_offsets(consumer)


def transaction_with_a_map(consumer: Consumer, partition: TopicPartition, position: int, client: Client) -> None:
    with client.producer(transactional_id=f"of {partition}", **FAST) as producer, producer.transaction() as transaction:
        producer.send(partition.topic, b"output", partition=1).result(PATIENCE_SECONDS)
        transaction.send_offsets({partition: position}, consumer.group_metadata())


@pytest.mark.parametrize(
    "commit", [commit_of_the_consumer, commit_of_a_map, transaction_with_the_consumer, transaction_with_a_map]
)
@pytest.mark.parametrize("overwritten", [False, True], ids=["shorter", "overwritten"])
def test_a_position_behind_records_that_were_taken_back_is_not_committed(
    commit: Callable[[Consumer, TopicPartition, int, Client], None],
    overwritten: bool,
    crashing: CrashServer,
    client: Client,
    topic: str,
    fresh: Callable[[], Client],
) -> None:
    """P38: the next reader would skip the record that gets its offset, and an output has lost its input."""
    partition = TopicPartition(topic, 0)
    with client.producer(acks="1") as producer:
        producer.send(topic, b"kept", partition=0).result(PATIENCE_SECONDS)
        crashing.flush()
        producer.send(topic, b"lost", partition=0).result(PATIENCE_SECONDS)
    with client.consumer(group=topic, **READING) as reader:
        reader.assign([partition])
        assert [record.value for record in reader.poll(PATIENCE_SECONDS)] == [b"kept", b"lost"]
        crashing.crash()
        left = [b"kept"]
        if overwritten:
            with client.producer(**FAST) as producer:
                producer.send(topic, b"durable", partition=0).result(PATIENCE_SECONDS)
            left.append(b"durable")
        with pytest.raises(errors.LogTruncated, match=r"offset 1 is no longer in the log"):
            commit(reader, partition, 2, client)
        assert reader.committed([partition]) == {partition: None}
        reader.rewind()
        assert [record.value for record in reader.poll(PATIENCE_SECONDS)] == left
        commit(reader, partition, len(left), client)
    after = {index: [value for _, value in records] for index, records in read_all(fresh(), topic).items()}
    assert after[0] == [value.decode() for value in left]
    assert after.get(1, ["output"]) == ["output"], "the first transaction was aborted"


def test_the_loop_goes_back_when_its_input_was_taken_back(crashing: CrashServer, client: Client, topic: str) -> None:
    """P38, I10: one output for each record that exists, none for the lost one."""
    seen: list[bytes | None] = []

    def transform(record: msgtx.Record) -> msgtx.OutputRecord:
        if not seen:
            with client.producer(acks="1") as producer:
                producer.send(topic, b"lost", partition=0).result(PATIENCE_SECONDS)
        elif record.value == b"lost":
            crashing.crash()
            with client.producer(**FAST) as producer:
                producer.send(topic, b"durable", partition=0).result(PATIENCE_SECONDS)
        seen.append(record.value)
        return msgtx.OutputRecord(record.value, partition=0)

    client.topics.create(f"{topic}-out", partitions=2)
    with client.producer(**FAST) as producer:
        producer.send(topic, b"kept", partition=0).result(PATIENCE_SECONDS)
    report = client.process(
        topic,
        to=f"{topic}-out",
        group=topic,
        transactional_id=topic,
        transform=transform,
        transaction_ms=1_000,
        idle_timeout=1.0,
    )
    assert seen == [b"kept", b"lost", b"kept", b"durable"]
    assert (report.transactions, report.aborted) == (1, 1)
    assert [value for _, value in read_all(client, f"{topic}-out")[0]] == ["kept", "durable"]


# ── transactions that a user's session decides ──


@pytest.mark.parametrize("writes", ["publishes", "seals"])
def test_what_a_session_committed_survives_and_what_it_had_only_sealed_is_gone(
    writes: str, crashing: CrashServer, client: Client, url: str, topic: str, fresh: Callable[[], Client]
) -> None:
    """I6, I9: a seal is not flushed by itself. At REPEATABLE READ, where each publish is sealed, too."""
    with connect(url) as connection:
        connection.execute(f'create table "{topic}" (id int)')
    engine = sqlalchemy.create_engine(application_url(url), isolation_level="REPEATABLE READ", poolclass=sqlalchemy.NullPool)
    producer = client.producer(transactional_id=topic, **FAST)
    producer.init_transactions()

    def write(session: sqlalchemy.orm.Session, value: str) -> None:
        session.execute(sqlalchemy.text(f'insert into "{topic}" values (1)'))
        if writes == "publishes":
            msgtx.publish(session, topic, value.encode(), partition=0)
        else:
            with producer.transaction(session=session):
                producer.send(topic, value.encode(), partition=0)

    with sqlalchemy.orm.Session(engine) as session:
        session.execute(sqlalchemy.text("set synchronous_commit = off"))
        write(session, "kept")
        session.commit()
    with sqlalchemy.orm.Session(engine) as session:
        write(session, "lost")
        sqlalchemy.event.listen(engine, "commit", lambda _: crashing.crash(), once=True)  # behind the seal of a publish
        with pytest.raises(sqlalchemy.exc.OperationalError):
            session.commit()
    with sqlalchemy.orm.Session(engine) as session:  # the records that are lost have used sequences
        write(session, "next")
        session.commit()
    producer.close()
    engine.dispose()
    with connect(url) as connection:
        assert connection.execute(f'select id from "{topic}"').fetchall() == [(1,), (1,)]
    assert [value for _, value in read_all(fresh(), topic)[0]] == ["kept", "next"]


# ── publish in plain SQL ──


def test_what_was_published_survives_though_its_session_does_not_flush(
    crashing: CrashServer, url: str, topic: str, fresh: Callable[[], Client]
) -> None:
    """I9, I6: its business row survives, too; nothing is left of what did not commit, not even staged."""
    with connect(url) as connection:
        connection.execute(f'create table "{topic}" (id int)')
        connection.execute("set synchronous_commit = off")
        with connection.transaction():
            connection.execute(f'insert into "{topic}" values (1)')
            connection.execute("select msgtx.publish(%s, 'kept', partition => 0)", [topic])
        with contextlib.suppress(psycopg.OperationalError), connection.transaction():
            connection.execute("select msgtx.publish(%s, 'lost', partition => 1)", [topic])
            crashing.crash()
    with connect(url) as connection:
        assert connection.execute(f'select id from "{topic}"').fetchall() == [(1,)]
        assert connection.execute("select count(*) from msgtx.staged_record").fetchone() == (0,)
        connection.execute("select msgtx.publish(%s, 'next', partition => 0)", [topic])
    assert read_all(fresh(), topic) == {0: [(0, "kept"), (1, "next")]}


def test_a_prepared_transaction_cannot_publish(
    crashing: CrashServer, url: str, topic: str, fresh: Callable[[], Client]
) -> None:
    """It would hold the partitions until it is ended. PostgreSQL refuses it because of a lock taken for this purpose."""
    with connect(url) as connection:
        connection.execute("begin")
        connection.execute("select msgtx.publish(%s, 'a', partition => 0)", [topic])
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="cannot PREPARE while holding both"):
            connection.execute(f"prepare transaction '{topic}'")
        assert connection.execute("select count(*) from pg_prepared_xacts").fetchone() == (0,)
        connection.execute("select msgtx.publish(%s, 'b', partition => 0)", [topic])
    assert read_all(fresh(), topic) == {0: [(0, "b")]}


def test_an_open_transaction_that_was_read_uncommitted_and_lost_is_noticed(
    crashing: CrashServer, client: Client, topic: str
) -> None:
    reader = client.consumer(isolation="read_uncommitted", **READING)
    reader.assign([TopicPartition(topic, 0)])
    with client.producer(transactional_id=topic, **FAST) as producer:
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0).result(PATIENCE_SECONDS)
        assert [record.value for record in reader.poll(PATIENCE_SECONDS)] == [b"open"]
        crashing.crash()
        with pytest.raises(errors.LogTruncated):
            reader.poll(PATIENCE_SECONDS)


@pytest.mark.parametrize("flush", [False, True], ids=["whole", "in steps"])
def test_a_commit_without_a_database_is_unknown_until_it_is_back(
    flush: bool,
    crashing: CrashServer,
    client: Client,
    topic: str,
    fresh: Callable[[], Client],
) -> None:
    """The same call may be repeated; any process may ask how it ended."""
    with client.producer(transactional_id=topic, linger_ms=20_000, **FAST) as producer:
        name = producer.begin_transaction().id
        producer.send(topic, b"value", partition=0)
        if flush:
            producer.flush()
            crashing.flush()
        crashing.kill()
        try:
            for _ in range(2):
                with pytest.raises(errors.OutcomeUnknown):
                    producer.commit_transaction(timeout=0.05)
            with pytest.raises(errors.IllegalState):
                producer.abort_transaction()
        finally:
            crashing.start()
        assert fresh().transaction_outcome(name) in {Outcome.OPEN if flush else Outcome.UNKNOWN}
        producer.commit_transaction()
    assert fresh().transaction_outcome(name) is Outcome.COMMITTED
    assert read_all(fresh(), topic) == {0: [(0, "value")]}


def test_an_acknowledged_batch_survives_and_its_retry_is_a_duplicate(crashing: CrashServer, url: str, topic: str) -> None:
    """I9: acks=all outside a transaction; the retry after the crash gets the original offset."""
    with connect(url) as connection:
        rows = connection.execute(
            "select p.partition_id from msgtx.partition p join msgtx.topic t using (topic_id) where t.name = %s order by 1",
            [topic],
        ).fetchall()
        who = init_producer_id(connection, None, timeout_ms=1_000)
        batch = BatchColumns(rows[0][0], *who, None, 0, 1, None, [b"value"])
        assert append(connection, [batch])[0].base_offset == 0
    crashing.crash()
    with connect(url) as connection:
        (again,) = append(connection, [batch])
    assert (again.error, again.base_offset, again.duplicate) == (None, 0, True)


def test_a_run_goes_on_through_crashes_without_loss_or_doubling(
    crashing: CrashServer, client: Client, topic: str, fresh: Callable[[], Client]
) -> None:
    """An idempotent producer, consume–transform–produce after it, and a server that is killed three times meanwhile."""
    total, target = 400, f"{topic}-out"
    client.topics.create(target, partitions=2)

    def produce() -> None:
        with client.producer(linger_ms=0, **FAST) as producer:
            for number in range(total):
                future = producer.send(topic, str(number).encode(), partition=number % 2)
                if number % 4 == 3:
                    future.result(PATIENCE_SECONDS)

    def transform(record: msgtx.Record) -> msgtx.OutputRecord:
        return msgtx.OutputRecord(record.value, partition=record.partition)

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        producing = threads.submit(produce)
        processing = threads.submit(
            client.process, topic, to=target, group=topic, transactional_id=topic, transform=transform,
            transaction_ms=5, idle_timeout=2, **FAST,
        )  # fmt: skip
        for part in (1, 2, 3):
            wait_until(
                lambda part=part: _ends(fresh, target) >= part * total // 5 or producing.done(),  # type: ignore[misc]
                "outputs come",
            )
            crashing.crash()
        producing.result(PATIENCE_SECONDS)
        processing.result(PATIENCE_SECONDS)
    expected = [[str(number) for number in range(total) if number % 2 == partition] for partition in (0, 1)]
    for name in (topic, target):
        assert [[value for _, value in rows] for rows in read_all(fresh(), name).values()] == expected


def _ends(fresh: Callable[[], Client], topic: str) -> int:
    client = fresh()
    try:
        parts = [client.admin.partitions.describe(TopicPartition(topic, index)) for index in (0, 1)]
        return sum(part.last_stable_offset for part in parts)
    finally:
        client.close()


def test_a_record_with_a_dedup_key_is_stored_once_whenever_the_server_is_killed(
    crashing: CrashServer, url: str, topic: str
) -> None:
    """I1, I9: an answered record was flushed; after a lost answer the send is repeated."""
    sent: list[bytes] = []
    for boundary in itertools.count(1):
        assert boundary < MOST_BOUNDARIES
        faults = Faults({boundary: crashing.crash_at}, on=False)
        with Client(Engine(url, connect=faults.connect)) as killed, killed.producer(**FAST) as producer:
            producer.send(topic, b"before", dedup_key=f"before {boundary}", partition=1).result(PATIENCE_SECONDS)
            faults.on = True
            sent.append(b"%d" % boundary)
            metadata = producer.send(topic, sent[-1], dedup_key=f"{boundary}", partition=0).result(PATIENCE_SECONDS)
            faults.on = False
            crashing.crash()
            again = producer.send(topic, b"again", dedup_key=f"{boundary}", partition=1).result(PATIENCE_SECONDS)
        assert (again.partition, again.offset, again.duplicate) == (0, metadata.offset, True)
        if not faults.fired:
            break
    assert len(sent) > 2, "before and after the call"
    with msgtx.connect(url) as reading:
        assert [value for _, value in read_all(reading, topic)[0]] == [value.decode() for value in sent]


@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_pending_acknowledgements_survive(
    outcome: str, crashing: CrashServer, client: Client, topic: str, fresh: Callable[[], Client]
) -> None:
    """I17: nobody else gets the record until the decision, and after an abort somebody does."""
    client.admin.shares.configure(topic, {"auto_offset_reset": "earliest", "record_lock_duration_ms": 300})
    with client.producer(**FAST) as producer:
        producer.send_batch(topic, [b"0", b"1"], partition=0).result(PATIENCE_SECONDS)
    member = client.share_consumer(topic, group=topic, acknowledgement_mode="explicit")
    first, _ = member.poll(PATIENCE_SECONDS)
    member.acknowledge(first)
    producer = client.producer(transactional_id=topic, **FAST)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"out", partition=1).result(PATIENCE_SECONDS)
    producer.send_acknowledgements_to_transaction(member)
    described = lambda: fresh().admin.shares.describe(topic).partitions[0].pending  # noqa: E731
    wait_until(lambda: described() == 1)
    crashing.crash()
    assert described() == 1
    with fresh().share_consumer(topic, group=topic, acknowledgement_mode="explicit") as other:
        found = []
        while not found:
            found = [record.value for record in other.poll(PATIENCE_SECONDS)]
        assert found == [b"1"]
        if outcome == "commit":
            producer.commit_transaction()
            assert [record.value for record in other.poll(1) if record.value == b"0"] == []
        else:
            producer.abort_transaction()
            while b"0" not in found:
                found += [record.value for record in other.poll(PATIENCE_SECONDS)]
