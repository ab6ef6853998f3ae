"""One attempt of one task of a batch: rows in, records under a transaction of its own out. Knows Arrow, not Spark.

No other attempt gets this one's producer id, so none can fence it. It only writes; whether that counts is decided
on the driver, with all other attempts of the batch.
"""

import contextlib
import os
import random
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from msgtx import errors
from msgtx.config import ROW_BYTES
from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.pool import Engine
from msgtx.database.wire import BatchColumns
from msgtx.rules.partitioner import PARTITIONERS
from msgtx.spark_jobs.runtime.kept import lent
from msgtx.spark_jobs.runtime.outage import persevering
from msgtx.spark_jobs.runtime.primary import Primary
from msgtx.spark_jobs.writing.content import bytes_of, check_content, headers_of, milliseconds_of, numbered, pieces, placed
from msgtx.store.append.append import APPEND_UNFLUSHED, PARTITIONS_AT_ONCE, append_arguments, read_appended
from msgtx.store.append.rows import OpenRow
from msgtx.store.spark import Attempt, BatchName, begin_attempt, is_batch_committed, renew_attempts
from msgtx.store.topics.topics import describe_topics
from msgtx.store.transactions.transactions import end_transaction
from msgtx.types import TransactionId

BUFFER_BYTES: Final = 32 * 1024 * 1024  # of one attempt, over all partitions
# A batch stays undecided for this long after the last sign of its tasks and its driver, and holds every reader of its
# topics. Long enough for the time between two tasks and before the decision; as Kafka's consumers' sessions.
SESSION_MS: Final = 45_000
RENEW_SECONDS: Final = 10.0  # several in a session: one that is lost, or late on a busy machine, ends nothing


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how the tasks of a batch write. Picklable. `topic` None: each row names its own."""

    url: str = field(repr=False)  # holds a password
    incarnation: str
    topic: str | None
    transaction_timeout_ms: int
    partitioner: str
    outage_timeout: float | None = None
    primary: Primary | None = None  # the only one that may answer, as of `primary_of`


def write_attempt(rows: Iterable[pa.RecordBatch], target: Target, batch: BatchName) -> Attempt | None:
    """Write a task's rows. Returns the attempt's part of the decision; None: no rows, or the batch is committed already.

    Columns: `value`; if they are there `key`, `partition`, `headers`, `timestamp`, and `topic` when the target has none.
    Raise refusals of the database; `TransactionAborted` names `transaction_timeout_ms` when the batch took longer.
    """
    filled = (each for each in rows if each.num_rows)
    first = next(filled, None)
    if first is None:
        return None
    with (
        lent(target.url, target.incarnation, target.outage_timeout, target.primary) as engine,
        kept_alive(engine, batch, timeout_ms=target.transaction_timeout_ms),
    ):
        return AttemptWriter(engine, target, batch).write(chain([first], filled))


@contextlib.contextmanager
def kept_alive(
    engine: Engine, batch: BatchName, *, timeout_ms: int, is_over: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Renew the attempts of a batch until `is_over`, at most until `timeout_ms` after they began (I12)."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(RENEW_SECONDS) and not is_over():
            # A database that is away ends nothing either; the next renewal may succeed.
            with contextlib.suppress(errors.MsgtxError, psycopg.Error), engine.connection() as connection:
                renew_attempts(connection, batch, session_ms=SESSION_MS, timeout_ms=timeout_ms)

    renewing = threading.Thread(target=renew, name=f"msgtx renews {batch}", daemon=True)
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join()


@dataclass(slots=True)
class _Lane:
    """The waiting records of one partition."""

    partition_id: int
    row: OpenRow = field(default_factory=OpenRow)


@dataclass(frozen=True, slots=True)
class _Topic:
    """The partitions of a topic, and its limits."""

    name: str
    lanes: list[_Lane]
    limit: int
    compacted: bool


class AttemptWriter:
    """Divides rows among partitions and appends them under (producer_id, 0, 0). For one attempt."""

    def __init__(self, engine: Engine, target: Target, batch: BatchName) -> None:
        self._engine = engine
        self._target = target
        self._batch = batch
        self._partition_of = PARTITIONERS[target.partitioner]
        self._producer_id = -1
        self._topics: dict[str, _Topic] = {}
        self._sequences: dict[int, int] = {}  # the next one, by partition id
        self._records = 0

    def write(self, rows: Iterable[pa.RecordBatch]) -> Attempt | None:
        """Write everything, as `write_attempt` does."""
        batch, timeout_ms = self._batch, min(SESSION_MS, self._target.transaction_timeout_ms)
        producer_id = persevering(self._engine, lambda connection: begin_attempt(connection, batch, timeout_ms=timeout_ms))
        if producer_id is None:
            return None
        self._producer_id = producer_id
        try:
            for each in numbered(rows):
                for topic, part in self._by_topic(each):
                    for piece in pieces(part):
                        self._add(topic, piece)
                        self._flush_what_is_full()
            self._flush(self._lanes())
        except BaseException as error:
            self._give_up()
            if isinstance(error, errors.MsgtxError) and self._is_committed():
                return None  # another attempt was accepted
            raise
        if self._is_committed():
            self._give_up()  # of many attempts the decision leaves some to its driver, which may be gone
            return None
        return Attempt(producer_id, {partition: n - 1 for partition, n in self._sequences.items()}, self._records)

    def _give_up(self) -> None:
        """Abort the written records: they would hold readers up, and the driver may not learn of a failed task."""
        name = TransactionId(self._producer_id, 0, 0)
        # Why the task fails is reported already; a decision about the batch, or the timeout, ends the rest.
        with contextlib.suppress(errors.MsgtxError), self._engine.connection() as connection:
            end_transaction(connection, name, "resolve")

    def _is_committed(self) -> bool:
        return persevering(self._engine, lambda connection: is_batch_committed(connection, self._batch))

    # ── rows to lanes ──

    def _by_topic(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._target.topic is not None:
            yield self._target.topic, rows
            return
        topics = rows.column("topic")
        if topics.null_count:
            raise errors.InvalidRequest(
                f"{topics.null_count} of {rows.num_rows} rows have no topic: fill the column topic, or give the option topic"
            )
        names = pc.unique(topics).to_pylist()
        for name in names:
            yield name, rows if len(names) == 1 else rows.filter(pc.equal(topics, name))

    def _add(self, name: str, rows: pa.RecordBatch) -> None:
        topic = self._topic(name)
        names = rows.schema.names
        columns: dict[str, list[Any]] = {"value": bytes_of(rows, "value")}
        if "key" in names:
            columns["key"] = bytes_of(rows, "key")
        if "timestamp" in names:
            columns["timestamp"] = milliseconds_of(rows)
        if "headers" in names:
            columns["headers"] = headers_of(rows)
        check_content(rows, columns, topic=name, limit=topic.limit, compacted=topic.compacted)
        chosen = rows.column("partition").to_pylist() if "partition" in names else None
        size = rows.nbytes / rows.num_rows
        for lane, places in self._divide(topic, rows, keys=columns.get("key"), chosen=chosen):
            taken = columns if places is None else {name: [column[at] for at in places] for name, column in columns.items()}
            lane.row.extend(
                taken["value"],
                taken.get("key"),
                taken.get("timestamp"),
                taken.get("headers"),
                size=int(size * len(taken["value"])),
            )
        self._records += rows.num_rows

    def _divide(
        self, topic: _Topic, rows: pa.RecordBatch, *, keys: list[bytes | None] | None, chosen: list[int | None] | None
    ) -> Iterator[tuple[_Lane, list[int] | None]]:
        """Yield lanes and the places of their rows (None: all), in order: by partition, else by key, else anywhere."""
        lanes = topic.lanes
        # Rows without a key go to one partition per piece, as a producer's go to one per batch.
        free = random.randrange(len(lanes))  # noqa: S311 - spreads load, guards nothing
        if chosen is None and (keys is None or len(lanes) == 1):
            yield lanes[free], None
            return
        places: list[list[int]] = [[] for _ in lanes]
        partition_of, partitions = self._partition_of, len(lanes)
        for at in range(rows.num_rows):
            index = None if chosen is None else chosen[at]
            if index is None:
                key = None if keys is None else keys[at]
                index = free if key is None else partition_of(key, partitions)
            elif not 0 <= index < partitions:
                raise placed(
                    errors.InvalidRequest(
                        f"a row names partition {index}; topic {topic.name} has the partitions 0 to {partitions - 1}"
                    ),
                    rows,
                    at,
                )
            places[index].append(at)
        for lane, found in zip(lanes, places, strict=True):
            if found:
                yield lane, found

    def _topic(self, name: str) -> _Topic:
        known = self._topics.get(name)
        if known is None:
            found = persevering(self._engine, lambda connection: describe_topics(connection, [name])).get(name)
            if found is None:
                raise errors.UnknownTopicOrPartition(f"there is no topic {name!r}; create it first", topic=name)
            known = self._topics[name] = _Topic(
                name,
                [_Lane(partition_id) for partition_id in found.partition_ids],
                int(found.settings["max_message_bytes"] or 0),
                "compact" in str(found.settings["cleanup_policy"]),
            )
        return known

    # ── lanes to the log ──

    def _lanes(self) -> list[_Lane]:
        return [lane for topic in self._topics.values() for lane in topic.lanes if lane.row.values]

    def _flush_what_is_full(self) -> None:
        filled = self._lanes()
        if sum(lane.row.size for lane in filled) >= BUFFER_BYTES:
            self._flush(filled)
        elif any(lane.row.is_full for lane in filled):
            # Those that are nearly full go along: lanes fill evenly, and a call takes as long for six as for two.
            self._flush([lane for lane in filled if lane.row.is_full or lane.row.size >= ROW_BYTES // 2])

    def _flush(self, lanes: list[_Lane]) -> None:
        lanes.sort(key=lambda lane: lane.partition_id)
        for at in range(0, len(lanes), PARTITIONS_AT_ONCE):
            self._append(lanes[at : at + PARTITIONS_AT_ONCE])

    def _append(self, lanes: Sequence[_Lane]) -> None:
        rows = [self._columns(lane) for lane in lanes]
        answers = persevering(self._engine, lambda connection: _append(connection, rows))
        for lane, answer in zip(lanes, answers, strict=True):
            if answer.error is not None:
                raise explained(answer.error, self._target.transaction_timeout_ms)
            self._sequences[lane.partition_id] = self._sequences.get(lane.partition_id, 0) + len(lane.row.values)
            lane.row = OpenRow()

    def _columns(self, lane: _Lane) -> BatchColumns:
        sequence = self._sequences.get(lane.partition_id, 0)
        return lane.row.stored_as(lane.partition_id, (self._producer_id, 0), transaction_number=0, base_sequence=sequence)


def _append(connection: RawConnection, rows: Sequence[BatchColumns]) -> list[Any]:
    arguments = append_arguments(
        connection, rows, durable=False, wake=False, client_host=socket.gethostname(), client_process=os.getpid()
    )
    answers = read_appended(call(connection, APPEND_UNFLUSHED, *arguments))
    for answer in answers:
        if answer.error is not None and answer.error.retriable:
            raise answer.error
    return answers


def explained(error: errors.MsgtxError, timeout_ms: int) -> errors.MsgtxError:
    """Add the reason and the remedy to the abort of a batch."""
    if isinstance(error, errors.TransactionAborted) and error.reason == "timeout":
        return errors.TransactionAborted(
            f"{error}: the batch took longer than transaction_timeout_ms = {timeout_ms}; raise it (at most to the setting"
            " transaction_max_timeout_ms of the installation), or make batches smaller; or none of its tasks was heard of"
            f" for {SESSION_MS // 1_000} s",
            reason="timeout",
        )
    if isinstance(error, errors.TransactionAborted) and error.reason == "client":
        return errors.TransactionAborted(
            f"{error}: its own driver has given it up, or another query of the same application has written a batch; an"
            " application (txnAppId, app_id) is of one query at a time: end one of them, or give each its own",
            reason="client",
        )
    return error
