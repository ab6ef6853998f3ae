"""The public face of the store, in the caller's SQL transaction (`msgtx.protocol`)."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy

import msgtx
from msgtx import errors, protocol
from msgtx.protocol import Batch
from msgtx.types import (
    GroupMetadata,
    OffsetAndMetadata,
    Outcome,
    OutputRecord,
    PreparedTransaction,
    TopicPartition,
    TransactionId,
)
from tests.databases import Connection, Sessions, wait_until
from tests.refusals import refuses


@pytest.fixture
def database(database_url: str) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    yield engine
    engine.dispose()


@pytest.fixture
def partitions(client: msgtx.Client, request: pytest.FixtureRequest) -> list[TopicPartition]:
    name = f"protocol-{abs(hash(request.node.name))}"
    client.topics.create(name, partitions=3)
    return [TopicPartition(name, index) for index in range(3)]


def records(*values: bytes) -> list[OutputRecord]:
    return [OutputRecord(value, key=b"k", headers=[("h", b"v")], timestamp=1_000) for value in values]


def opened(connection: sqlalchemy.Connection, number: int, *partitions: TopicPartition) -> TransactionId:
    """A transaction of a producer of its own, with a record on each partition."""
    producer = protocol.init_producer_id(connection, f"id-{number}-{partitions[0].topic}", 60_000)
    batches = [Batch(tp, *producer, 0, records(b"%d" % number), transaction_number=0) for tp in partitions]
    assert all(result.error is None for result in protocol.append(connection, batches))
    return TransactionId(*producer, 0)


def now_ms(connection: sqlalchemy.Connection) -> int:
    """The database's time, in milliseconds since 1970 UTC, rounded down."""
    return int(connection.scalar(sqlalchemy.text("select floor(extract(epoch from clock_timestamp()) * 1000)::bigint")))


def test_nothing_is_there_until_the_caller_commits(
    database: sqlalchemy.Engine, partitions: list[TopicPartition], client: msgtx.Client
) -> None:
    with database.connect() as connection:
        (result,) = protocol.append(connection, [Batch(partitions[0], None, None, None, records(b"a"))])
        assert (result.error, result.base_offset, result.duplicate) == (None, 0, False)
        assert client.admin.partitions.describe(partitions[0]).log_end_offset == 0
        connection.rollback()
    assert client.admin.partitions.describe(partitions[0]).log_end_offset == 0


def test_a_commit_of_the_connection_commits_though_sqlalchemy_has_run_no_statement(
    database: sqlalchemy.Engine, partitions: list[TopicPartition], client: msgtx.Client
) -> None:
    with database.connect() as connection:
        for number in range(2):
            (result,) = protocol.append(connection, [Batch(partitions[0], None, None, None, records(b"kept"))])
            assert (result.error, result.base_offset) == (None, number)
            connection.commit()
        protocol.append(connection, [Batch(partitions[0], None, None, None, records(b"undone"))])
    assert client.admin.partitions.describe(partitions[0]).log_end_offset == 2


@pytest.mark.parametrize("option", ["-c client_encoding=latin1", "-c DateStyle=SQL", "-c bytea_output=escape"])
def test_the_settings_of_the_callers_session_spoil_nothing(
    option: str, database_url: str, partitions: list[TopicPartition], client: msgtx.Client
) -> None:
    name = "grüße"
    address = sqlalchemy.make_url(database_url).set(drivername="postgresql+psycopg").update_query_dict({"options": option})
    engine = sqlalchemy.create_engine(address)
    record = OutputRecord(b"\xff\\", key=name.encode(), headers=[(name, b"\xe4")], timestamp=1_000)
    with engine.begin() as connection:
        producer = protocol.init_producer_id(connection, f"{name}-{option}", 60_000)
        batch = Batch(partitions[0], *producer, 0, [record, OutputRecord(b"now")], transaction_number=0)
        (result,) = protocol.append(connection, [batch])
        assert result.error is None
        protocol.decide(
            connection, TransactionId(*producer, 0), Outcome.COMMITTED, {partitions[0]: 1}, {name: {partitions[0]: 2}}
        )
        theirs = protocol.fetch(connection, {partitions[0]: 0})[partitions[0]].records
    engine.dispose()
    assert client.admin.transactions.describe(f"{name}-{option}").decided_by == "client"
    with client.consumer(group=name, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.assign([partitions[0]])
        assert consumer.committed() == {partitions[0]: OffsetAndMetadata(2)}
        consumer.seek(partitions[0], 0)
        ours = consumer.poll(10)
    assert ours == theirs
    assert (ours[0].key, ours[0].value, list(ours[0].headers)) == (name.encode(), b"\xff\\", [(name, b"\xe4")])


def test_results_come_in_the_order_of_the_batches(database: sqlalchemy.Engine, partitions: list[TopicPartition]) -> None:
    one, two, three = partitions
    with database.begin() as connection:
        producer = protocol.init_producer_id(connection, None, 60_000)
        results = protocol.append(
            connection,
            [
                Batch(three, *producer, 0, records(b"a")),
                Batch(TopicPartition("nowhere", 0), *producer, 0, records(b"b")),
                Batch(one, *producer, 0, records(b"c", b"d")),
                Batch(one, *producer, 2, records(b"e")),
                Batch(two, *producer, 5, records(b"f")),
                Batch(one, *producer, 0, records(b"c", b"d")),
            ],
        )
    assert [result.base_offset for result in results[:1] + results[2:4]] == [0, 0, 2]
    assert isinstance(results[1].error, errors.UnknownTopicOrPartition)
    assert isinstance(results[4].error, errors.OutOfOrderSequence)
    assert (results[5].duplicate, results[5].base_offset) == (True, 0)


def test_a_record_without_a_time_has_that_of_its_append(
    database: sqlalchemy.Engine, partitions: list[TopicPartition]
) -> None:
    """By the database's clock."""
    with database.begin() as connection:
        before = now_ms(connection)
        (result,) = protocol.append(connection, [Batch(partitions[0], None, None, None, [OutputRecord(b"now")])])
        (record,) = protocol.fetch(connection, {partitions[0]: 0})[partitions[0]].records
    assert before <= record.timestamp <= result.timestamp


def test_a_commit_makes_records_and_offsets_readable_together(
    database: sqlalchemy.Engine, partitions: list[TopicPartition], client: msgtx.Client
) -> None:
    """I6, I10."""
    one, two, _ = partitions
    with database.begin() as connection:
        name = opened(connection, 1, one, two)
        assert protocol.fetch(connection, {one: 0})[one].records == []
        assert protocol.fetch(connection, {one: 0})[one].blocked_by == name
        decided = protocol.decide(
            connection,
            name,
            Outcome.COMMITTED,
            {one: 0, two: 0},
            {"g": {two: 7}, GroupMetadata("h"): {one: OffsetAndMetadata(8, "m")}},
        )
        assert decided.outcome is Outcome.COMMITTED
        fetched = protocol.fetch(connection, {one: 0, two: 0})
        assert [record.value for record in fetched[one].records] == [b"1"]
        assert fetched[two].records[0].headers == (("h", b"v"),)
        assert (fetched[one].position, fetched[one].last_stable_offset) == (1, 1)
    with client.consumer(group="h", enable_auto_commit=False) as consumer:
        assert consumer.committed([one]) == {one: OffsetAndMetadata(8, "m")}


def test_an_abort_tells_the_last_stored_sequences(database: sqlalchemy.Engine, partitions: list[TopicPartition]) -> None:
    one, two, _ = partitions
    with database.begin() as connection:
        name = opened(connection, 2, one)
        decided = protocol.decide(connection, name, Outcome.ABORTED, {one: 0, two: 3})
    assert decided.tails == {one: 0, two: -1}


@pytest.mark.parametrize("outcome", [Outcome.COMMITTED, Outcome.ABORTED])
def test_a_transaction_that_wrote_nothing_is_decided_by_its_name_alone(
    database: sqlalchemy.Engine, client: msgtx.Client, outcome: Outcome
) -> None:
    with database.begin() as connection:
        ids = [f"{outcome}-{number}" for number in range(2)]
        names = [TransactionId(*protocol.init_producer_id(connection, each, 60_000), 0) for each in ids]
        assert protocol.decide(connection, names[0], outcome) == protocol.DecideResult(outcome, {})
        assert protocol.decide_all(connection, {names[1]: (outcome, {})}).keys() == {names[1]}
    assert [client.transaction_outcome(name) for name in names] == [outcome] * 2


@pytest.mark.parametrize("end", ["decide", "seal"])
def test_a_lost_tail_is_an_abort_that_the_caller_must_commit(
    database: sqlalchemy.Engine, partitions: list[TopicPartition], client: msgtx.Client, end: str
) -> None:
    tails = {partitions[0]: 1}
    with database.begin() as connection:
        name = opened(connection, 3, partitions[0])
        with refuses(errors.TransactionAborted, reason="tail"):
            protocol.decide(connection, name, Outcome.COMMITTED, tails) if end == "decide" else protocol.seal(
                connection, name, tails
            )
    assert client.transaction_outcome(name) is Outcome.ABORTED


def test_several_transactions_are_decided_together_or_not_at_all(
    database: sqlalchemy.Engine, partitions: list[TopicPartition], client: msgtx.Client
) -> None:
    one, two, three = partitions
    with database.begin() as connection:
        names = [opened(connection, 4 + i, tp) for i, tp in enumerate(partitions)]
        commit = {name: (Outcome.COMMITTED, {tp: 0}) for name, tp in zip(names, partitions, strict=True)}
        with pytest.raises(errors.TransactionAborted):
            protocol.decide_all(connection, {**commit, names[2]: (Outcome.COMMITTED, {three: 9})})
    assert [client.transaction_outcome(name) for name in names] == [Outcome.OPEN] * 3
    with database.begin() as connection:
        results = protocol.decide_all(connection, {**commit, names[1]: (Outcome.ABORTED, {two: 0})}, {"together": {one: 1}})
    assert {name: result.outcome for name, result in results.items()} == {
        names[0]: Outcome.COMMITTED,
        names[1]: Outcome.ABORTED,
        names[2]: Outcome.COMMITTED,
    }


def test_offsets_of_decisions_together_are_committed_once_with_the_last_that_commits(
    database: sqlalchemy.Engine, partitions: list[TopicPartition], connection: Connection
) -> None:
    """I10."""
    group = f"group of {partitions[0].topic}"
    with database.begin() as session:
        names = [opened(session, 8 + i, tp) for i, tp in enumerate(partitions)]
        outcomes = (Outcome.COMMITTED, Outcome.COMMITTED, Outcome.ABORTED)
        decisions = {name: (outcome, {}) for name, outcome in zip(names, outcomes, strict=True)}
        protocol.decide_all(session, decisions, {group: {partitions[0]: 7}})
    assert connection.execute(
        "select o.producer_id, o.producer_epoch, o.transaction_number, o.committed_offset"
        " from msgtx.group_offset o join msgtx.consumer_group g using (group_id) where g.name = %s",
        [group],
    ).fetchall() == [(*names[1], 7)]


LOCKS = "select classid::bigint from pg_locks where locktype = 'advisory' and pid = %s and granted = %s"
PRODUCER, GROUP = 1836279553, 1836279554  # classes of locks (ARCHITECTURE.md)


def test_decisions_together_have_all_producers_before_they_lock_a_group(
    database: sqlalchemy.Engine, partitions: list[TopicPartition], connection: Connection, open_connection: Sessions
) -> None:
    """Else two sessions could wait for each other: a group's lock comes behind all producers'."""
    holder = open_connection()
    with database.begin() as session:
        first, last = (opened(session, 11 + i, tp) for i, tp in enumerate(partitions[:2]))
    decisions = {first: (Outcome.COMMITTED, {partitions[0]: 0}), last: (Outcome.ABORTED, {partitions[1]: 0})}
    with ThreadPoolExecutor(1) as threads, database.begin() as session:
        pid = session.scalar(sqlalchemy.text("select pg_backend_pid()"))
        with holder.transaction():
            holder.execute("select msgtx.lock_producer(%s)", [last.producer_id])
            decided = threads.submit(protocol.decide_all, session, decisions, {partitions[0].topic: {partitions[0]: 1}})
            wait_until(lambda: connection.execute(LOCKS, [pid, False]).fetchall() == [(PRODUCER,)])
            assert (GROUP,) not in connection.execute(LOCKS, [pid, True]).fetchall()
        assert decided.result(20).keys() == {first, last}
        assert (GROUP,) in connection.execute(LOCKS, [pid, True]).fetchall()


# ── seals ──


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_what_is_sealed_for_a_session_is_committed_by_its_commit(
    database: sqlalchemy.Engine, partitions: list[TopicPartition], client: msgtx.Client, level: str
) -> None:
    """I6: records and offsets, and the same seal again is the same."""
    one, two, _ = partitions
    group = f"sealed-{level}"
    with database.begin() as connection:
        before = now_ms(connection)
        name = opened(connection, 14, one, two)
        after = now_ms(connection)
        sealed, again = (protocol.seal(connection, name, {one: 0, two: 0}, {group: {one: 1}}) for _ in range(2))
        assert connection.exec_driver_sql("show synchronous_commit").scalar() == "on", "for what else is in it (I9)"
    assert (sealed.token, sealed.deadline) == (again.token, again.deadline)
    assert PreparedTransaction.parse(sealed.token) == PreparedTransaction(name, str(client.runtime.engine.incarnation))
    assert sealed.deadline is not None
    assert before <= sealed.deadline - 60_000 <= after, "the transaction's timeout"
    with database.connect().execution_options(isolation_level=level) as session:
        protocol.decide_sealed(session, sealed)
        assert client.transaction_outcome(name) is Outcome.OPEN
        session.commit()
    assert client.transaction_outcome(name) is Outcome.COMMITTED
    with client.consumer(group=group, enable_auto_commit=False) as consumer:
        assert consumer.committed([one]) == {one: OffsetAndMetadata(1)}


def test_what_is_sealed_for_an_outside_party_waits_until_it_is_decided_by_its_name(
    database: sqlalchemy.Engine, partitions: list[TopicPartition], client: msgtx.Client
) -> None:
    with database.begin() as connection:
        name = opened(connection, 15, partitions[0])
        sealed = protocol.seal(connection, name, {partitions[0]: 0}, kind="external")
    assert sealed.deadline is None
    with database.begin() as connection:
        protocol.decide(connection, PreparedTransaction.parse(sealed.token).transaction_id, Outcome.COMMITTED)
    assert client.transaction_outcome(name) is Outcome.COMMITTED
    assert client.complete(sealed.token, commit=True) is Outcome.COMMITTED


def test_decisions_together_wait_for_a_producer_no_longer_than_others_do(
    database: sqlalchemy.Engine, partitions: list[TopicPartition], connection: Connection
) -> None:
    """P32: the limit belongs to the function and is shortened here."""
    with database.begin() as session:
        name = opened(session, 7, partitions[0])
    connection.execute("alter function msgtx.lock_producers(bigint[]) set lock_timeout = '20ms'")
    try:
        with connection.transaction(), database.connect() as session:
            connection.execute("select msgtx.lock_producer(%s)", [name.producer_id])
            with pytest.raises(errors.LockTimeout):
                protocol.decide_all(session, {name: (Outcome.ABORTED, {})})
            assert session.scalar(sqlalchemy.text("show lock_timeout")) == "0"
    finally:
        connection.execute("alter function msgtx.lock_producers(bigint[]) set lock_timeout = '10s'")


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_kept_snapshot_is_refused(database: sqlalchemy.Engine, partitions: list[TopicPartition], level: str) -> None:
    """P23, P24, P39."""
    with database.connect().execution_options(isolation_level=level) as connection:
        with refuses(errors.ConfigError, name="transaction_isolation"):
            protocol.append(connection, [Batch(partitions[0], None, None, None, records(b"a"))])
        connection.rollback()


def test_what_cannot_be_right_is_refused(database: sqlalchemy.Engine, partitions: list[TopicPartition]) -> None:
    """I16."""
    with database.connect() as connection:
        with refuses(errors.InvalidRequest, name="batches"):
            protocol.append(connection, [Batch(partitions[0], None, None, None, [])])
        with refuses(errors.InvalidRequest, name="outcome"):
            protocol.decide(connection, TransactionId(1, 0, 0), Outcome.OPEN)
        with pytest.raises(errors.UnknownTopicOrPartition):
            protocol.fetch(connection, {TopicPartition("nowhere", 0): 0})
        with pytest.raises(errors.OffsetOutOfRange):
            protocol.fetch(connection, {partitions[0]: 5})
        protocol.append(connection, [Batch(partitions[0], None, None, None, records(b"gone", b"kept"))])
        connection.execute(
            sqlalchemy.text("select msgtx.delete_records(array(select partition_id from msgtx.partitions"
                            " where topic = :topic and partition = 0), '{1}')"), {"topic": partitions[0].topic},
        )  # fmt: skip
        with refuses(errors.OffsetOutOfRange, partition=0, offset=0):
            protocol.fetch(connection, {partitions[0]: 0})
        with pytest.raises(errors.InvalidRequest, match="there is none"):
            protocol.decide_all(connection, {TransactionId(1, 0, 0): (Outcome.ABORTED, {})}, {"g": {partitions[0]: 1}})
