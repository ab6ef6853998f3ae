"""`msgtx.begin_batch`, `write_batch` and `commit_batch`: many tasks, any language, one decision (I3, I4, I6, I10)."""

from typing import Any

import pytest

from msgtx import errors
from msgtx.database.calls import query
from msgtx.store.spark import BatchName, is_batch_committed
from tests.databases import Clock, Connection
from tests.refusals import refuses
from tests.store.steps import committed_at, count, named_topic, plain, read, unique, values
from tests.store.test_cuts_as_text import cut


class Batch:
    """A batch of an application, written with SQL to a topic of two partitions."""

    def __init__(self, connection: Connection, number: int = 1, app: str | None = None) -> None:
        self.connection = connection
        self.app, self.number = app or unique("app"), number
        self.topic, self.partitions = named_topic(connection, 2, retention_ms=-1)

    def begin(self) -> bool:
        return bool(one(self.connection, "msgtx.begin_batch(%s, %s)", self.app, self.number))

    def write(self, receipt: str | None, *written: bytes | None, **columns: Any) -> str | None:
        named = "".join(f", {name} => %s" for name in columns)
        call = f"msgtx.write_batch(%s, %s, %s, %s, %s::bytea[]{named})"
        found = one(self.connection, call, self.app, self.number, receipt, self.topic, list(written), *columns.values())
        return None if found is None else str(found)

    def commit(self, *receipts: str | None, **named: str) -> bool:
        arguments = "".join(f", {name} => %s" for name in named)
        call = f"msgtx.commit_batch(%s, %s, %s::text[]{arguments})"
        return bool(one(self.connection, call, self.app, self.number, list(receipts), *named.values()))

    def records(self) -> list[bytes | None]:
        return [value for partition in self.partitions for value in values(self.connection, partition)]


def one(connection: Connection, call: str, *arguments: object) -> Any:
    ((found,),) = query(connection, f"select {call}", *arguments)
    return found


@pytest.fixture
def batch(connection: Connection) -> Batch:
    return Batch(connection)


def test_the_records_of_all_tasks_are_committed_together(batch: Batch) -> None:
    """I4, I3: and in the order of a task's calls."""
    assert batch.begin()
    first = batch.write(None, b"a", b"b", partitions=[0, 1])
    first = batch.write(first, b"c", b"d", partitions=[0, 0])
    second = batch.write(None, b"e", partitions=[1])
    assert batch.records() == []
    assert batch.commit(first, None, second) is True
    assert batch.records() == [b"a", b"c", b"d", b"b", b"e"]


def test_a_batch_is_written_once(batch: Batch) -> None:
    receipt = batch.write(None, b"a", partitions=[0])
    assert batch.commit(receipt) is True
    assert batch.commit(receipt) is False
    assert batch.begin() is False
    assert batch.write(None, b"again") is None
    assert batch.commit(None) is False
    assert batch.records() == [b"a"]


def test_an_attempt_that_no_receipt_names_is_aborted_with_the_batch(batch: Batch) -> None:
    """A task that failed or ran twice: its records are never seen, and hold no reader back."""
    lost = batch.write(None, b"lost", partitions=[0])
    receipt = batch.write(None, b"kept", partitions=[0])
    assert batch.commit(receipt) is True
    assert batch.records() == [b"kept"]
    with refuses(errors.InvalidTransactionState):
        batch.write(lost, b"late", partitions=[0])


def test_a_run_that_died_is_aborted_by_the_next_one(batch: Batch) -> None:
    dead = batch.write(None, b"dead", partitions=[0])
    plain(batch.connection, batch.partitions[0], b"behind")
    assert batch.records() == []
    assert batch.begin() is True
    assert batch.records() == [b"behind"]
    with refuses(errors.TransactionAborted):
        batch.commit(dead)


def test_a_call_that_is_repeated_stores_nothing_twice(batch: Batch) -> None:
    """I1: after its answer was lost."""
    first = batch.write(None, b"a", partitions=[0])
    second = batch.write(first, b"b", b"c", partitions=[0, 1])
    assert batch.write(first, b"b", b"c", partitions=[0, 1]) == second
    assert batch.commit(second) is True
    assert batch.records() == [b"a", b"b", b"c"]


def test_records_have_their_columns(batch: Batch) -> None:
    receipt = batch.write(
        None, b"a", None, keys=[b"k", b"k"], timestamps=["2026-01-02 03:04:05+00", None], headers=['{"h": "1"}', None]
    )
    assert batch.commit(receipt)
    found = query(
        batch.connection,
        'select key, value, "timestamp", header_keys, header_values from msgtx.committed_records'
        ' where topic = %s order by "offset"',
        batch.topic,
    )
    assert found[0] == (b"k", b"a", 1_767_323_045_000, ["h"], [b"1"])
    assert found[1][:2] == (b"k", None)
    assert found[1][2] > 1_767_323_045_000
    places = {
        one(batch.connection, "msgtx.partition_of_key(%s, 2)", b"k"),
        *(at for at, partition in enumerate(batch.partitions) if read(batch.connection, partition)),
    }
    assert len(places) == 1, "the key's partition, as a client chooses it"


def test_own_rows_are_committed_with_the_batch(batch: Batch, session: Connection) -> None:
    """I6: in the SQL transaction of the decision."""
    batch.connection.execute("create table if not exists booked (batch_id bigint primary key)")
    receipt = batch.write(None, b"a", partitions=[0])
    with batch.connection.transaction(force_rollback=True):
        batch.connection.execute("insert into booked values (%s)", [batch.number])
        assert batch.commit(receipt) is True
    assert batch.records() == []
    with batch.connection.transaction():
        batch.connection.execute("insert into booked values (%s)", [batch.number])
        assert batch.commit(receipt) is True
    assert batch.records() == [b"a"]
    assert session.execute("select batch_id from booked").fetchall() == [(batch.number,)]


def test_offsets_of_a_group_are_committed_with_the_batch(batch: Batch, group: str) -> None:
    """I10; of two runs that began at one position, one commits."""
    source, (partition,) = named_topic(batch.connection, retention_ms=-1)
    plain(batch.connection, partition, b"a", b"b")
    taken = cut(batch.connection, source)
    begun = one(batch.connection, "msgtx.position(%s, %s)", group, taken)
    assert batch.commit(batch.write(None, b"x", partitions=[0]), group_name=group, cut=taken, start=begun)
    assert committed_at(batch.connection, group, partition) == (2, False)
    other = Batch(batch.connection, 2, batch.app)
    receipt = other.write(None, b"twice", partitions=[0])
    with refuses(errors.BatchConflict):
        other.commit(receipt, group_name=group, cut=taken, start=begun)
    assert other.records() == []
    assert not is_batch_committed(batch.connection, BatchName(batch.app, "", 2))
    assert other.commit(other.write(None, b"once", partitions=[0]), group_name=group, cut=taken), "without a start: anywhere"


def test_a_batch_whose_records_were_lost_is_not_committed(batch: Batch) -> None:
    """I6, I9: a crash takes what was not flushed; the receipt remembers it."""
    receipt = batch.write(batch.write(None, b"a", partitions=[0]), b"b", partitions=[0])
    batch.connection.execute(
        "delete from msgtx.record_batch where partition_id = %s and base_offset = 1", [batch.partitions[0]]
    )
    with refuses(errors.TransactionAborted):
        batch.commit(receipt)
    assert batch.records() == []


def test_a_batch_that_takes_too_long_is_aborted(batch: Batch, clock: Clock) -> None:
    """I12: by any reader that it holds back."""
    receipt = batch.write(None, b"late", partitions=[0], timeout="1 min")
    clock("2 min")
    cut(batch.connection, batch.topic)
    with refuses(errors.TransactionAborted, reason="timeout"):
        batch.commit(receipt)


@pytest.mark.parametrize(
    ("columns", "kind", "told"),
    [
        ({"keys": [b"a", b"b"]}, errors.InvalidRequest, {"name": "records", "reason": "columns"}),
        ({"partitions": [2]}, errors.UnknownTopicOrPartition, {"partition": 2}),
        ({"timestamps": ["infinity"]}, errors.InvalidRequest, {}),
        ({"timeout": "1 year"}, errors.InvalidTransactionTimeout, {}),
    ],
)
def test_what_cannot_be_written_is_refused(
    batch: Batch, columns: dict[str, Any], kind: type[Exception], told: dict[str, Any]
) -> None:
    """I16"""
    before = count(batch.connection, "producer")
    with refuses(kind, **told):
        batch.write(None, b"a", **columns)
    assert count(batch.connection, "producer") == before


@pytest.mark.parametrize("receipt", ["x", "1 2", f"{2**63}", f"1 {2**31}=1", f"1 1={2**63 - 1}"])
def test_a_forged_receipt_is_refused(batch: Batch, receipt: str) -> None:
    """I16: also one with numbers that no id and no sequence can have."""
    for call in (lambda: batch.write(receipt, b"a"), lambda: batch.commit(receipt)):
        with refuses(errors.InvalidRequest, name="receipt"):
            call()


def test_other_refusals(batch: Batch) -> None:
    """I16: refused are a group without a cut, an unknown topic, and a record above the limit."""
    with refuses(errors.InvalidRequest, name="cut"):
        batch.commit(None, group_name="g")
    with refuses(errors.RecordTooLarge):
        batch.write(None, bytes(2_000_000))
    batch.topic = "nowhere"
    with refuses(errors.UnknownTopicOrPartition, topic="nowhere"):
        batch.write(None, b"a")
