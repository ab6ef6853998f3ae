"""The views as mapped classes, read-only: they show a role the topics on which it has rights.

Their tables are not mapped: only the owner may read them. Writing through a Session raises `IllegalState`;
through a Connection the database refuses, since none of the views can be written.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final, cast

from sqlalchemy import BigInteger, ColumnElement, Integer, MetaData, Text, column, event, func, literal
from sqlalchemy.dialects.postgresql import ARRAY, BYTEA, JSONB, TIMESTAMP
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Mapper,
    ORMExecuteState,
    Session,
    aliased,
    column_property,
    declared_attr,
    mapped_column,
)

from msgtx import arguments
from msgtx.errors import IllegalState
from msgtx.types import Headers

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ReadOnly(DeclarativeBase):
    """A view of msgtx. `written_by`: the call to use instead of a write."""

    metadata = MetaData(schema="msgtx")
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        int: BigInteger,
        bytes: BYTEA,
        datetime: TIMESTAMP(timezone=True),
        list[int]: ARRAY(BigInteger),
        list[str]: ARRAY(Text),
        list[bytes | None]: ARRAY(BYTEA),
    }
    written_by: ClassVar[str]


def _refuse(mapped: type[Any]) -> None:
    raise IllegalState(f"orm.{mapped.__name__} is read-only: use {mapped.written_by}", reason="read-only")


@event.listens_for(ReadOnly, "before_insert", propagate=True)
@event.listens_for(ReadOnly, "before_update", propagate=True)
@event.listens_for(ReadOnly, "before_delete", propagate=True)
def _refuse_flush(mapper: Mapper[Any], _connection: object, _target: object) -> None:
    _refuse(mapper.class_)


@event.listens_for(Session, "do_orm_execute")
def _refuse_statement(state: ORMExecuteState) -> None:
    """Refuse insert(), update() and delete() of these classes, which no flush sees."""
    writes = state.is_insert or state.is_update or state.is_delete
    if writes and state.bind_mapper is not None and issubclass(state.bind_mapper.class_, ReadOnly):
        _refuse(state.bind_mapper.class_)


class Topic(ReadOnly):
    """A topic with its settings, as `client.topics.describe` returns them. `partitions`: how many."""

    __tablename__ = "topics"
    written_by = "client.topics"

    name: Mapped[str] = mapped_column(primary_key=True)
    partitions: Mapped[int]
    # make generate: settings.mapped topic
    cleanup_policy: Mapped[str]
    retention_ms: Mapped[int]
    retention_bytes: Mapped[int]
    delete_retention_ms: Mapped[int]
    max_message_bytes: Mapped[int]
    timestamp_type: Mapped[str]
    # end
    created_at: Mapped[datetime]


class Partition(ReadOnly):
    """A partition: its three ends, the bytes and the rows of its log."""

    __tablename__ = "partitions"
    written_by = "client.topics"

    topic: Mapped[str] = mapped_column(primary_key=True)
    partition: Mapped[int] = mapped_column(primary_key=True)
    log_start_offset: Mapped[int]
    last_stable_offset: Mapped[int]
    log_end_offset: Mapped[int]
    bytes: Mapped[int]
    batches: Mapped[int]
    partition_id: Mapped[int]


class RecordBatch(ReadOnly):
    """A row of a log, also an aborted or open one, without its records. `max_timestamp` in milliseconds."""

    __tablename__ = "record_batches"
    written_by = "orm.publish or a producer"

    topic: Mapped[str] = mapped_column(primary_key=True)
    partition: Mapped[int] = mapped_column(primary_key=True)
    base_offset: Mapped[int] = mapped_column(primary_key=True)
    last_offset: Mapped[int]
    record_count: Mapped[int]
    byte_size: Mapped[int]
    max_timestamp: Mapped[int]
    appended_at: Mapped[datetime]
    compacted_at: Mapped[datetime | None]
    producer_id: Mapped[int | None]
    producer_epoch: Mapped[int | None]
    transaction_number: Mapped[int | None]
    base_sequence: Mapped[int | None]
    last_sequence: Mapped[int | None]
    partition_id: Mapped[int]


class _Record:
    """The columns of the records of all three views.

    `timestamp` is in milliseconds, `time` the same as an aware datetime; `appended_at` is when the row of the log was
    stored. `value_json` is the value as JSON, null if it is none; it is loaded when it is asked for. Conditions on topic,
    partition and base_offset reach the index; rows of the log that others rule out (appended_at, the transaction) are not
    taken apart; offset, time, key and value are asked of each record.
    """

    written_by = "orm.publish or a producer"

    topic: Mapped[str] = mapped_column(primary_key=True)
    partition: Mapped[int] = mapped_column(primary_key=True)
    offset: Mapped[int] = mapped_column(primary_key=True)
    timestamp: Mapped[int]
    key: Mapped[bytes | None]
    value: Mapped[bytes | None]
    header_keys: Mapped[list[str] | None]
    header_values: Mapped[list[bytes | None] | None]
    partition_id: Mapped[int]
    # Part of the key, so that a refresh by the key is a look-up and no search in the whole partition.
    base_offset: Mapped[int] = mapped_column(primary_key=True)
    appended_at: Mapped[datetime]
    producer_id: Mapped[int | None]
    producer_epoch: Mapped[int | None]
    transaction_number: Mapped[int | None]

    @declared_attr
    def value_json(cls) -> Mapped[Any]:  # noqa: N805 - declarative's way
        return column_property(func.msgtx.value_json(cls.value, type_=JSONB), deferred=True)

    @property
    def headers(self) -> Headers:
        """The headers as a consumer gets them."""
        return tuple(zip(self.header_keys or (), self.header_values or (), strict=True))

    @hybrid_property
    def time(self) -> datetime:
        return EPOCH + timedelta(milliseconds=self.timestamp)

    @time.inplace.expression
    @classmethod
    def _time(cls) -> ColumnElement[datetime]:
        # Whole seconds, as `to_timestamp` takes a float: milliseconds of far years would be some microseconds away.
        seconds = func.to_timestamp(cls.timestamp // 1000, type_=TIMESTAMP(timezone=True))
        return seconds + cls.timestamp % 1000 * literal(timedelta(milliseconds=1))


class Record(_Record, ReadOnly):
    """A record of the log, also of an aborted or open transaction."""

    __tablename__ = "records"


class CommittedRecord(_Record, ReadOnly):
    """A record that a log reader sees: committed, below the last stable offset. A second reading shows the same (I14).

    For a range of offsets use `read`.
    """

    __tablename__ = "committed_records"


class CommittedRecordNow(_Record, ReadOnly):
    """A record that is committed in this snapshot, also behind open transactions.

    The one to join with business tables: a statement sees all of a transaction or nothing (I6).
    """

    __tablename__ = "committed_records_now"


class Transaction(ReadOnly):
    """A producer and its newest transaction, with the state as Kafka names it. `partitions`: their ids."""

    __tablename__ = "transactions"
    written_by = "a producer or client.admin.transactions"

    producer_id: Mapped[int] = mapped_column(primary_key=True)
    transactional_id: Mapped[str | None]
    current_epoch: Mapped[int]
    producer_epoch: Mapped[int | None]
    transaction_number: Mapped[int | None]
    state: Mapped[str]
    timeout_ms: Mapped[int]
    opened_at: Mapped[datetime | None]
    decided_at: Mapped[datetime | None]
    decided_by: Mapped[str | None]
    client_host: Mapped[str | None]
    client_process: Mapped[int | None]
    database_backend: Mapped[int | None]
    partitions: Mapped[list[int]] = mapped_column(ARRAY(Integer))
    first_offsets: Mapped[list[int]]
    initialized_at: Mapped[datetime]


class Marker(ReadOnly):
    """How a transaction ended on a partition; written in phase two."""

    __tablename__ = "transaction_markers"
    written_by = "a producer or client.admin.transactions"

    topic: Mapped[str] = mapped_column(primary_key=True)
    partition: Mapped[int] = mapped_column(primary_key=True)
    producer_id: Mapped[int] = mapped_column(primary_key=True)
    producer_epoch: Mapped[int] = mapped_column(primary_key=True)
    transaction_number: Mapped[int] = mapped_column(primary_key=True)
    outcome: Mapped[str]
    first_offset: Mapped[int]
    last_offset: Mapped[int]
    coordinator_epoch: Mapped[int]
    partition_id: Mapped[int]


class ConsumerGroup(ReadOnly):
    """A consumer group. `members`: how many."""

    __tablename__ = "consumer_groups"
    written_by = "a consumer or client.admin.groups"

    name: Mapped[str] = mapped_column(primary_key=True)
    generation: Mapped[int]
    strategy: Mapped[str | None]
    members: Mapped[int]
    created_at: Mapped[datetime]


class GroupOffset(ReadOnly):
    """An offset that a group has committed. `newest`: the group continues from this row, of those that count.

    `counts`: it is decided. `pending`: it waits for the decision of a sealed transaction.
    """

    __tablename__ = "group_offsets"
    written_by = "a consumer, a transaction or client.admin.groups"

    group_name: Mapped[str] = mapped_column(primary_key=True)
    topic: Mapped[str] = mapped_column(primary_key=True)
    partition: Mapped[int] = mapped_column(primary_key=True)
    commit_sequence: Mapped[int] = mapped_column(primary_key=True)
    committed_offset: Mapped[int]
    metadata_: Mapped[str] = mapped_column("metadata")
    committed_at: Mapped[datetime]
    counts: Mapped[bool]
    pending: Mapped[bool]
    newest: Mapped[bool]
    member_id: Mapped[str | None]
    generation: Mapped[int | None]
    producer_id: Mapped[int | None]
    producer_epoch: Mapped[int | None]
    transaction_number: Mapped[int | None]
    partition_id: Mapped[int]


class ShareGroup(ReadOnly):
    """A share group: its settings, and how many members it has."""

    __tablename__ = "share_groups"
    written_by = "a share consumer or client.admin.shares"

    name: Mapped[str] = mapped_column(primary_key=True)
    # make generate: settings.mapped share_group
    auto_offset_reset: Mapped[str]
    isolation: Mapped[str]
    record_lock_duration_ms: Mapped[int]
    delivery_count_limit: Mapped[int]
    max_record_locks: Mapped[int]
    ordering: Mapped[str]
    release_backoff_ms: Mapped[int]
    release_backoff_max_ms: Mapped[int]
    # end
    dead_letter_topic: Mapped[str]
    members: Mapped[int]
    created_at: Mapped[datetime]


class SharePartition(ReadOnly):
    """How far a share group is on a partition, as `client.admin.shares.describe` has it, without the lag."""

    __tablename__ = "share_partitions"
    written_by = "a share consumer or client.admin.shares"

    group_name: Mapped[str] = mapped_column(primary_key=True)
    topic: Mapped[str] = mapped_column(primary_key=True)
    partition: Mapped[int] = mapped_column(primary_key=True)
    start_offset: Mapped[int]
    next_offset: Mapped[int]
    available: Mapped[int]
    acquired: Mapped[int]
    pending: Mapped[int]
    rejected: Mapped[int]
    delayed: Mapped[int]
    waiting: Mapped[int]
    partition_id: Mapped[int]


class ShareSpan(ReadOnly):
    """Records of a share group that are not done: available again, acquired, pending in a transaction, rejected, or parked.

    Those are delayed (until `due_at`), or waiting for an earlier one with their key. `reason`: why they are available.
    `member_id`: the member that has them, or had them last. `answer`: the pending one.
    """

    __tablename__ = "share_spans"
    written_by = "a share consumer"

    group_name: Mapped[str] = mapped_column(primary_key=True)
    topic: Mapped[str] = mapped_column(primary_key=True)
    partition: Mapped[int] = mapped_column(primary_key=True)
    first_offset: Mapped[int] = mapped_column(primary_key=True)
    last_offset: Mapped[int]
    state: Mapped[str]
    delivery_count: Mapped[int]
    reason: Mapped[str | None]
    member_id: Mapped[str | None]
    client_host: Mapped[str | None]
    client_process: Mapped[int | None]
    locked_until: Mapped[datetime | None]
    due_at: Mapped[datetime | None]
    producer_id: Mapped[int | None]
    producer_epoch: Mapped[int | None]
    transaction_number: Mapped[int | None]
    answer: Mapped[str | None]
    partition_id: Mapped[int]


def read(topic: str, partition: int, start: int | None = None, end: int | None = None) -> type[CommittedRecord]:
    """Return `CommittedRecord` over the offsets start ≤ offset < end of one partition, for select() and joins.

    It reads only the rows of this range. None: from the log start, up to the last stable offset; a later `end` means the
    same. An unknown topic, or one that the role may not consume, has no records.
    """
    topic, partition = arguments.topic(topic), arguments.whole("partition", partition, most=arguments.LARGEST_INT4)
    start, end = (
        None if at is None else arguments.whole("an offset", at, least=-arguments.LARGEST_INT8) for at in (start, end)
    )
    found = func.msgtx.read(
        literal(topic, Text), literal(partition, Integer), literal(start, BigInteger), literal(end, BigInteger)
    ).table_valued(*(column(each.name, each.type) for each in CommittedRecord.__table__.columns))
    return cast(type[CommittedRecord], aliased(CommittedRecord, found.alias(), adapt_on_names=True))
