"""A bare producer and a bare reader over the store's functions: each step of the protocol by hand."""

import contextlib
import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from msgtx.database.calls import batch_array, call, query
from msgtx.database.wire import BatchColumns
from msgtx.declared.function import Function
from msgtx.generated import calls
from msgtx.store.append.append import Appended, append, append_and_decide, read_appended
from msgtx.store.fetch.fetch import FetchedPartition, Position, fetch
from msgtx.store.groups.groups import NO_OFFSETS, OffsetColumns, committed_offsets, offset_columns
from msgtx.store.mirrors import advance_mirror, take_over_mirror
from msgtx.store.sweeps.coordinators import Leases
from msgtx.store.sweeps.sweeps import Step
from msgtx.store.topics.topics import create_topic, delete_topic, describe_topics
from msgtx.store.transactions.decide import Decided, decide
from msgtx.store.transactions.producers import init_producer_id
from msgtx.types import GroupMetadata, Isolation, OffsetAndMetadata, ProducerId, TransactionId
from tests.databases import Connection

Ending = Literal["COMMIT", "ABORT"]
COMMITTED = Isolation.READ_COMMITTED
UNCOMMITTED = Isolation.READ_UNCOMMITTED
TABLES: Final = (  # that hold what clients do; shards and settings are of the installation
    "topic", "partition", "record_batch", "producer_state", "producer", "transaction", "transaction_partition",
    "transaction_seal", "transaction_decision", "transaction_marker", "partition_floor", "consumer_group", "group_offset",
    "coordinator", "group_member", "group_assignment", "group_heartbeat", "dedup_key",
    "share_group", "share_state", "share_parked", "share_call", "share_pending",
    "spark_batch", "spark_attempt", "spark_range", "spark_floor",
)  # fmt: skip
_number = itertools.count(1)
_EXPIRE: Final = Function(
    "expire_transaction", "in_producer_id int8, in_producer_epoch int4, in_transaction_number int8", tuple
)


def unique(prefix: str) -> str:
    """Return a name that no other test uses."""
    return f"{prefix}-{next(_number)}"


def named_topic(connection: Connection, partitions: int = 1, **settings: object) -> tuple[str, list[int]]:
    """Create a topic. Returns its name and its partition ids."""
    name = unique("topic")
    create_topic(connection, name, partitions, settings)
    return name, list(describe_topics(connection, [name])[name].partition_ids)


def new_topic(connection: Connection, partitions: int = 1, **settings: object) -> list[int]:
    """Create a topic that keeps its records forever, unless the settings say otherwise. Returns its partition ids."""
    return named_topic(connection, partitions, **{"retention_ms": -1, **settings})[1]


def new_partition(connection: Connection, **settings: object) -> int:
    """Create a topic of one partition. Returns its partition id."""
    return new_topic(connection, **settings)[0]


def batch(
    partition: int,
    *values: bytes | None,
    producer: tuple[int, int] | None = None,
    number: int | None = None,
    sequence: int | None = None,
    keys: Sequence[bytes | None] | None = None,
    timestamp: int = 1_000,
    timestamps: Sequence[int] | None = None,
    headers: Sequence[Sequence[tuple[str, bytes | None]]] | None = None,
) -> BatchColumns:
    """Return a row to append."""
    return BatchColumns(
        partition_id=partition,
        producer_id=None if producer is None else producer[0],
        producer_epoch=None if producer is None else producer[1],
        transaction_number=number,
        base_sequence=sequence,
        max_timestamp=timestamp if timestamps is None else max(timestamps),
        keys=keys,
        values=values,
        timestamps=timestamps,
        header_counts=None if headers is None else [len(pairs) for pairs in headers],
        header_keys=None if headers is None else [name for pairs in headers for name, _ in pairs],
        header_values=None if headers is None else [content for pairs in headers for _, content in pairs],
    )


def append_unless_locked(
    connection: Connection, name: TransactionId, rows: Sequence[BatchColumns], offsets: OffsetColumns = NO_OFFSETS
) -> list[Appended]:
    """Append and commit in one call, as of several that go together. Nothing: another session holds a lock of it."""
    arguments = (*name, batch_array(connection, rows), False, True, *offsets.arguments())
    return read_appended(call(connection, calls.APPEND_AND_DECIDE, *arguments))


def append_one(connection: Connection, row: BatchColumns, **options: Any) -> Appended:
    """Append one batch. Returns its answer."""
    (answer,) = append(connection, [row], **options)
    return answer


def plain(connection: Connection, partition: int, *values: bytes | None, **columns: Any) -> int:
    """Append outside any transaction, without a producer id. Returns the offset."""
    answer = append_one(connection, batch(partition, *values, **columns))
    assert answer.error is None, answer.error
    return answer.base_offset


def plain_batches(connection: Connection, partition: int, *values: bytes) -> None:
    """Append each value in a batch of its own, outside any transaction."""
    for value in values:
        plain(connection, partition, value)


def offsets_of(*entries: tuple[str | GroupMetadata, int, int | OffsetAndMetadata]) -> OffsetColumns:
    """Return group offsets as columns, from (group, partition id, offset)."""
    found: dict[GroupMetadata, dict[int, OffsetAndMetadata]] = {}
    for group, partition, at in entries:
        metadata = GroupMetadata(group) if isinstance(group, str) else group
        found.setdefault(metadata, {})[partition] = at if isinstance(at, OffsetAndMetadata) else OffsetAndMetadata(at)
    return offset_columns(found)


def committed_at(connection: Connection, group: str, partition: int) -> tuple[int | None, bool]:
    """Return the group's decided offset, and whether a newer one waits."""
    found = committed_offsets(connection, group, [partition]).get(partition)
    return (None, False) if found is None else (None if found.at is None else found.at.offset, found.pending)


class Writer:
    """A transactional producer that counts its sequences and does nothing by itself."""

    def __init__(self, connection: Connection, transactional_id: str | None = None, *, timeout_ms: int = 60_000) -> None:
        self.connection = connection
        self.transactional_id = transactional_id or unique("writer")
        self.timeout_ms = timeout_ms
        self.id = ProducerId(-1, -1)
        self.init()

    def init(self) -> None:
        """Take over the transactional id."""
        self.id = init_producer_id(self.connection, self.transactional_id, timeout_ms=self.timeout_ms)
        self.number = 0
        self.sequences: dict[int, int] = {}
        self.tails: dict[int, int] = {}

    @property
    def name(self) -> TransactionId:
        """The current transaction."""
        return TransactionId(*self.id, self.number)

    def row(self, partition: int, *values: bytes | None, **columns: Any) -> BatchColumns:
        """Return the next row for a partition; it is not counted yet."""
        given = {
            "producer": self.id,
            "number": self.number,
            "sequence": self.sequences.get(partition, 0),
            **columns,
        }
        return batch(partition, *values, **given)

    def counted(self, row: BatchColumns) -> None:
        """Count a row that was handed to the database."""
        assert row.base_sequence is not None
        self.sequences[row.partition_id] = row.base_sequence + len(row.values)
        self.tails[row.partition_id] = self.sequences[row.partition_id] - 1

    def send(self, partition: int, *values: bytes | None, timeout_ms: int | None = None, **columns: Any) -> int:
        """Append to the transaction. Returns the offset."""
        row = self.row(partition, *values, **columns)
        answer = append_one(self.connection, row, flushed=False, timeout_ms=timeout_ms)
        assert answer.error is None, answer.error
        assert not answer.duplicate
        self.counted(row)
        return answer.base_offset

    def send_and_commit(self, partition: int, *values: bytes | None, **columns: Any) -> TransactionId:
        """Append, commit and go on. Returns the name of what was committed."""
        self.send(partition, *values, **columns)
        return self.commit()

    def send_and_abort(self, partition: int, *values: bytes | None, **columns: Any) -> TransactionId:
        """Append, abort and go on. Returns the name of what was aborted."""
        self.send(partition, *values, **columns)
        return self.abort()

    @property
    def state(self) -> str:
        """What the view of transactions tells of this producer."""
        ((found,),) = query(
            self.connection, "select state from msgtx.transactions where producer_id = %s", self.id.producer_id
        )
        return str(found)

    def decide(
        self,
        outcome: Ending,
        *,
        offsets: OffsetColumns = NO_OFFSETS,
        name: TransactionId | None = None,
        tails: Mapping[int, int] | None = None,
    ) -> Decided:
        """Decide the current transaction (or another), as often as wanted."""
        tails = self.tails if tails is None else tails
        return decide(self.connection, name or self.name, outcome, tails=tails, offsets=offsets)

    def next(self) -> None:
        """Go on to the next number."""
        self.number += 1
        self.tails = {}

    def commit(self, offsets: OffsetColumns = NO_OFFSETS) -> TransactionId:
        """Commit and go on. Returns the name of what was committed."""
        return self.end("COMMIT", offsets)

    def abort(self) -> TransactionId:
        """Abort and go on. Returns the name of what was aborted."""
        return self.end("ABORT")

    def end(self, outcome: Ending, offsets: OffsetColumns = NO_OFFSETS) -> TransactionId:
        """Decide and go on. Returns the name of what was decided."""
        name = self.name
        answer = self.decide(outcome, offsets=offsets)
        assert (answer.error, answer.outcome) == (None, outcome)
        self.next()
        return name

    def whole(self, *rows: BatchColumns, offsets: OffsetColumns = NO_OFFSETS) -> list[Appended]:
        """Append and commit in one call; nothing is counted."""
        return append_and_decide(self.connection, self.name, rows, offsets=offsets)

    def commit_whole(self, *rows: BatchColumns, offsets: OffsetColumns = NO_OFFSETS) -> list[int]:
        """Append and commit in one call, and go on. Returns the offsets."""
        answers = self.whole(*rows, offsets=offsets)
        assert [answer.error for answer in answers] == [None] * len(rows)
        for row in rows:
            self.counted(row)
        self.next()
        return [answer.base_offset for answer in answers]


def look(
    connection: Connection,
    partition: int,
    position: int = 0,
    *,
    token: str | None = None,
    isolation: Isolation = COMMITTED,
    max_bytes: int = 1 << 20,
    max_rows: int = 1_000,
) -> FetchedPartition:
    """Fetch one partition once."""
    answers = fetch(
        connection, {partition: Position(position, token)}, isolation=isolation, max_bytes=max_bytes, max_rows=max_rows
    )
    return answers[partition]


def answers(
    connection: Connection, partition: int, start: int = 0, **options: Any
) -> Iterator[tuple[int, FetchedPartition]]:
    """Read on from a position, as a consumer does, until nothing moves. Yields each position with what is found there."""
    position, token = start, None
    while True:
        answer = look(connection, partition, position, token=token, **options)
        assert not answer.truncated
        yield position, answer
        if answer.position == position:
            return
        assert answer.position > position, "a position never goes back"
        position, token = answer.position, answer.token


def read(connection: Connection, partition: int, start: int = 0, **options: Any) -> list[tuple[int, bytes | None]]:
    """Return the offsets and values that a consumer gets from a position on."""
    found: list[tuple[int, bytes | None]] = []
    for position, answer in answers(connection, partition, start, **options):
        for row in answer.batches:
            deltas: Iterable[int] = range(len(row.values)) if row.offset_deltas is None else row.offset_deltas
            found.extend(
                (row.base_offset + delta, value)
                for delta, value in zip(deltas, row.values, strict=True)
                if row.base_offset + delta >= position
            )
    return found


def values(connection: Connection, partition: int, start: int = 0, **options: Any) -> list[bytes | None]:
    """Return what `read` finds, without offsets."""
    return [value for _, value in read(connection, partition, start, **options)]


def ends(connection: Connection, partition: int) -> tuple[int, int, int]:
    """Return log start, last stable offset and log end."""
    answer = look(connection, partition, max_bytes=0, max_rows=0)
    return answer.log_start_offset, answer.last_stable_offset, answer.log_end_offset


def count(connection: Connection, table: str, where: str = "true", *arguments: object) -> int:
    """Return the number of a table's rows."""
    ((found,),) = query(connection, f"select count(*) from msgtx.{table} where {where}", *arguments)
    return int(found)


def counts(connection: Connection) -> dict[str, int]:
    """Return the number of rows of each table."""
    return {table: count(connection, table) for table in TABLES}


def spent(connection: Connection, table: str, what: Literal["idx_scan", "idx_tup_fetch"], work: Callable[[], object]) -> int:
    """Return how many looks at a table some work takes, or how many rows it reads there."""
    counted = f"select {what} from pg_stat_xact_user_tables where schemaname = 'msgtx' and relname = %s"
    with connection.transaction():
        counts = []
        for step in (lambda: None, work):
            step()
            ((number,),) = query(connection, counted, table)
            counts.append(int(number))
    return counts[1] - counts[0]


@contextlib.contextmanager
def spoiled(
    connection: Connection, table: str, event: Literal["insert", "update", "delete"], when: str, *, state: str = "P0001"
) -> Iterator[None]:
    """Let a table refuse some of its rows: `spoiled(connection, "producer", "delete", "old.producer_id = 7")`."""
    connection.execute(
        "create or replace function msgtx.spoil() returns trigger language plpgsql as"
        f" $$ begin raise exception 'spoiled' using errcode = '{state}'; end $$"
    )
    connection.execute(
        f"create trigger spoil before {event} on msgtx.{table} for each row when ({when}) execute function msgtx.spoil()"
    )
    try:
        yield
    finally:
        connection.execute(f"drop trigger spoil on msgtx.{table}")
        connection.execute("drop function msgtx.spoil()")


def seal(
    connection: Connection,
    name: TransactionId,
    kind: Literal["session", "external"],
    *,
    offset: tuple[str, int, int] | None = None,
) -> None:
    """Seal a transaction by hand; `offset`: group, partition id and offset that wait for its decision."""
    with connection.transaction():
        connection.execute(
            "insert into msgtx.transaction (producer_id, producer_epoch, transaction_number, opened_at, timeout_ms,"
            " database_backend) values (%s, %s, %s, msgtx.clock(), 60000, pg_backend_pid()) on conflict do nothing",
            name,
        )
        connection.execute(
            "insert into msgtx.transaction_seal (producer_id, producer_epoch, transaction_number, kind, sealed_at,"
            " partitions, first_offsets, last_offsets) values (%s, %s, %s, %s, msgtx.clock(), '{}', '{}', '{}')",
            [*name, kind],
        )
        if offset is None:
            return
        group, partition, at = offset
        connection.execute("insert into msgtx.consumer_group (name) values (%s) on conflict do nothing", [group])
        connection.execute(
            "insert into msgtx.group_offset (group_id, partition_id, commit_sequence, committed_offset, producer_id,"
            " producer_epoch, transaction_number, committed_at) select group_id, %s, nextval('msgtx.commit_sequence'),"
            " %s, %s, %s, %s, msgtx.clock() from msgtx.consumer_group where name = %s",
            [partition, at, *name, group],
        )


def decide_by_hand(connection: Connection, name: TransactionId, outcome: str) -> None:
    """Write a decision over no partition."""
    connection.execute(
        "insert into msgtx.transaction_decision (producer_id, producer_epoch, transaction_number, outcome, decided_at,"
        " decided_by, partitions, first_offsets, last_offsets)"
        " values (%s, %s, %s, %s, msgtx.clock(), 'admin', '{}', '{}', '{}')",
        [*name, outcome],
    )


def decide_widely(connection: Connection, number: int) -> None:
    """Write so many commits of one producer, each over 10,001 partitions."""
    connection.execute(
        "insert into msgtx.transaction_decision (producer_id, producer_epoch, transaction_number, outcome, decided_at,"
        " decided_by, partitions, first_offsets, last_offsets)"
        " select 1, 0, n, 'COMMIT', msgtx.clock(), 'client', wide.partitions, wide.zeros, wide.zeros from ("
        " select array_agg(1000000 + i) as partitions, array_agg(0) as zeros from generate_series(0, 10000) i) wide"
        " cross join generate_series(1, %s) n",
        [number],
    )


def forget(connection: Connection, name: TransactionId) -> None:
    """Remove what history removes of a transaction, but for the markers of an ABORT."""
    its = "(producer_id, producer_epoch, transaction_number) = (%s, %s, %s)"
    for table in ("transaction_decision", "transaction", "transaction_partition"):
        connection.execute(f"delete from msgtx.{table} where {its}", name)
    connection.execute(f"delete from msgtx.transaction_marker where {its} and outcome = 'COMMIT'", name)


def topic_of(connection: Connection, partition: int) -> str:
    """Return the name of a partition's topic."""
    ((name,),) = query(
        connection,
        "select t.name from msgtx.topic t join msgtx.partition p using (topic_id) where p.partition_id = %s",
        partition,
    )
    return str(name)


def delete_topic_of(connection: Connection, partition: int) -> None:
    """Delete the topic of a partition."""
    delete_topic(connection, topic_of(connection, partition))


def note_sequence(
    connection: Connection,
    partition: int,
    producer_id: int,
    sequence: int,
    *,
    epoch: int = 0,
    offset: int = 0,
    age: str = "0",
) -> None:
    """Note the newest sequence of a producer, as retention does when it removes the batch."""
    connection.execute(
        "insert into msgtx.producer_state (partition_id, producer_id, producer_epoch, last_sequence, last_offset,"
        " appended_at) values (%s, %s, %s, %s, %s, msgtx.clock() - %s::interval)",
        [partition, producer_id, epoch, sequence, offset, age],
    )


def to_its_end(connection: Connection, sweep: Step, leases: Leases | None = None) -> Iterator[dict[str, int]]:
    """Call a sweep until nothing is left to look at. Yields what each call has done."""
    after = None
    while True:
        swept = sweep(connection, after, leases)
        yield swept.done
        after = swept.after
        if after is None:
            return


def swept_by(connection: Connection, function: str, most: int = 500) -> list[int]:
    """Call a sweep's function until nothing is left to look at. Returns how many rows each call removed."""
    removed: list[int] = []
    after: list[int] | None = None
    for _ in range(1_000):
        ((number, after, *_),) = query(connection, f"select * from msgtx.{function}(%s::bigint[], %s::int)", after, most)
        removed.append(number)
        if after is None:
            return removed
    raise AssertionError(f"it does not end: {removed}")


def expire_transactions(connection: Connection) -> int:
    """Abort all overdue transactions, as the sweep does. Returns how many."""
    return sum(swept_by(connection, "expire_overdue"))


def expire_transaction(connection: Connection, transaction_id: TransactionId) -> bool:
    """Abort an overdue transaction if its lock is free (I12), as a reader or a sweep does. Returns whether it ended it."""
    ((expired,),) = call(connection, _EXPIRE, *transaction_id)
    return bool(expired)


def fill(connection: Connection, partition: int, rows: int, byte_size: int = 100) -> None:
    """Write rows of one record each, which count as so many bytes, from offset 0 of an empty log."""
    connection.execute(
        "insert into msgtx.record_batch (partition_id, base_offset, last_offset, appended_at, max_timestamp, record_count,"
        " byte_size, \"values\") select %s, n, n, msgtx.clock(), 0, 1, %s, array['x'::bytea]"
        " from generate_series(0, %s - 1) n",
        [partition, byte_size, rows],
    )


def new_mirror(connection: Connection, name: str, *, lag: tuple[int, int] = (0, 0)) -> ProducerId:
    """Make a mirror to this database that has copied a record from an offset of another one. Return its producer."""
    producer = init_producer_id(connection, f"mirror.{name}", timeout_ms=60_000)
    (row, *_) = take_over_mirror(connection, name, uuid.uuid4(), producer, is_new=True, address="postgresql://a.example/s")
    place = ("orders", 0, 5, "7", "row before 5")
    advance_mirror(connection, name, producer, row.revision, source="s", places=[place], records=1, lag=lag)
    return producer
