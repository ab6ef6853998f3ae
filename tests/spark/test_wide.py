"""Topics of many partitions, batches of many attempts: what one call locks is bounded (decisions 0004, 0042)."""

import pyarrow as pa
import pytest

import msgtx
from msgtx.database.connection import RawConnection
from msgtx.spark_jobs.batch import decide, make_target
from msgtx.spark_jobs.writing import attempt
from msgtx.store.append.append import PARTITIONS_AT_ONCE
from msgtx.store.spark import AT_ONCE, BatchName, begin_attempt, decide_batch
from msgtx.store.transactions.transactions import transaction_outcome
from msgtx.types import Outcome, TransactionId


def test_an_attempt_writes_to_many_partitions_in_several_calls(
    client: msgtx.Client, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 2 * PARTITIONS_AT_ONCE + 1
    name = f"{output}-wide"
    client.topics.create(name, partitions=size)
    calls: list[int] = []
    append = attempt._append

    def counted(connection: RawConnection, rows: list[object]) -> object:
        calls.append(len(rows))
        return append(connection, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(attempt, "_append", counted)
    rows = pa.RecordBatch.from_pydict({"value": [b"x"] * size, "partition": pa.array(range(size), pa.int32())})
    made = attempt.write_attempt([rows], make_target(client.runtime.engine, name), BatchName(name, "query", 0))
    assert made is not None
    assert len(made.tails) == made.records == size
    assert calls == [PARTITIONS_AT_ONCE, PARTITIONS_AT_ONCE, 1]


def outcomes(client: msgtx.Client, producers: list[int]) -> set[Outcome]:
    with client.runtime.engine.connection() as connection:
        return {transaction_outcome(connection, TransactionId(each, 0, 0)).outcome for each in producers}


def begin_many(client: msgtx.Client, batch: BatchName, number: int) -> list[int]:
    with client.runtime.engine.connection() as connection:
        begun = [begin_attempt(connection, batch, timeout_ms=60_000) for _ in range(number)]
    return [each for each in begun if each is not None]


def test_a_driver_ends_all_attempts_of_a_batch_however_many_one_call_takes(client: msgtx.Client, output: str) -> None:
    batch = BatchName(output, "query", 0)
    left = begin_many(client, batch, AT_ONCE + 1)
    assert decide(client.runtime.engine, batch, []).aborted == len(left)
    assert outcomes(client, left) == {Outcome.ABORTED}


def test_an_attempt_that_has_written_behind_its_batchs_decision_ends_itself(
    client: msgtx.Client, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I12: the driver may have died between the decision and the last of its aborts."""
    batch = BatchName(output, "query", 0)
    begin_many(client, batch, AT_ONCE)
    begun: list[int] = []

    def begin(connection: RawConnection, of: BatchName, *, timeout_ms: int) -> int | None:
        producer = begin_attempt(connection, of, timeout_ms=timeout_ms)
        assert producer is not None
        begun.append(producer)
        assert decide_batch(connection, of, []).aborted == AT_ONCE
        assert outcomes(client, begun) == {Outcome.UNKNOWN}
        return producer

    monkeypatch.setattr(attempt, "begin_attempt", begin)
    rows = pa.RecordBatch.from_pydict({"value": [b"late"]})
    assert attempt.write_attempt([rows], make_target(client.runtime.engine, output), batch) is None
    assert outcomes(client, begun) == {Outcome.ABORTED}
