"""The public face of the store, in the caller's SQL transaction (`msgtx.protocol`)."""

from collections.abc import Iterator

import pytest
import sqlalchemy

import msgtx
from msgtx import errors, protocol
from msgtx.protocol import Batch
from msgtx.types import GroupMetadata, OffsetAndMetadata, Outcome, OutputRecord, TopicPartition, TransactionId
from tests.databases import Connection


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


def test_a_lost_tail_is_an_abort_that_the_caller_must_commit(
    database: sqlalchemy.Engine, partitions: list[TopicPartition], client: msgtx.Client
) -> None:
    with database.begin() as connection:
        name = opened(connection, 3, partitions[0])
        with pytest.raises(errors.TransactionAborted, match="tail"):
            protocol.decide(connection, name, Outcome.COMMITTED, {partitions[0]: 1})
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
        with pytest.raises(errors.ConfigError, match="READ COMMITTED"):
            protocol.append(connection, [Batch(partitions[0], None, None, None, records(b"a"))])
        connection.rollback()


def test_what_cannot_be_right_is_refused(database: sqlalchemy.Engine, partitions: list[TopicPartition]) -> None:
    """I16."""
    with database.connect() as connection:
        with pytest.raises(errors.InvalidRequest, match="is empty"):
            protocol.append(connection, [Batch(partitions[0], None, None, None, [])])
        with pytest.raises(errors.InvalidRequest, match="COMMITTED or ABORTED"):
            protocol.decide(connection, TransactionId(1, 0, 0), Outcome.OPEN)
        with pytest.raises(errors.UnknownTopicOrPartition):
            protocol.fetch(connection, {TopicPartition("nowhere", 0): 0})
        with pytest.raises(errors.OffsetOutOfRange):
            protocol.fetch(connection, {partitions[0]: 5})
        with pytest.raises(errors.InvalidRequest, match="there is none"):
            protocol.decide_all(connection, {TransactionId(1, 0, 0): (Outcome.ABORTED, {})}, {"g": {partitions[0]: 1}})
