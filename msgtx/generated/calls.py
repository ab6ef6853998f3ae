# Written by `make generate`: do not edit.
"""The functions of the database that may be called, and the rows of their answers; `| Any`: it may be null."""

from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from msgtx.declared.function import Function
from msgtx.types import TopicPartition, TransactionId

ABORT_BATCH: Final = Function("abort_batch", "in_app_id text, in_query_id text, in_batch_id int8, most int4", tuple[int])
ACKNOWLEDGE: Final = Function("acknowledge", "receipt text, answer text, delay interval, reason text", tuple[None])
ACKNOWLEDGE_ALL: Final = Function(
    "acknowledge_all", "receipts text[], answer text, delay interval, reason text", tuple[None]
)


class AcknowledgeInSessionRow(NamedTuple):
    error: str | Any
    detail: str | Any


ACKNOWLEDGE_IN_SESSION: Final = Function(
    "acknowledge_in_session",
    "share_groups text[], share_members int8[], share_partitions int4[], share_firsts int8[], share_lasts int8[], "
    "share_answers text[], share_reasons text[], share_delays int4[]",
    AcknowledgeInSessionRow,
)


class AcknowledgeInTransactionRow(NamedTuple):
    error: str | Any
    detail: str | Any


ACKNOWLEDGE_IN_TRANSACTION: Final = Function(
    "acknowledge_in_transaction",
    "in_producer_id int8, in_producer_epoch int4, in_transaction_number int8, in_call_number int8, "
    "group_names text[], member_numbers int8[], partition_ids int4[], first_offsets int8[], last_offsets int8[], "
    "answers text[], reasons text[], delays_ms int4[], timeout_ms int4, client_host text, client_process int4",
    AcknowledgeInTransactionRow,
)


class AcknowledgeRecordsRow(NamedTuple):
    error: str | Any
    group_name: str
    partition_id: int
    first_offset: int
    last_offset: int


ACKNOWLEDGE_RECORDS: Final = Function(
    "acknowledge_records",
    "group_names text[], member_numbers int8[], partition_ids int4[], first_offsets int8[], last_offsets int8[], "
    "answers text[], reasons text[], delays_ms int4[], in_call_number int8",
    AcknowledgeRecordsRow,
)


class AcquireRecordsRow(NamedTuple):
    error: str | Any
    asker: int | Any
    partition_id: int | Any
    first_offset: int | Any
    last_offset: int | Any
    delivery_count: int | Any
    lock_ms: int | Any
    max_timestamp: int | Any
    offsets: list[int] | Any
    keys: list[bytes | Any] | Any
    values: list[bytes | Any] | Any
    timestamps: list[int] | Any
    header_counts: list[int] | Any
    header_keys: list[str] | Any
    header_values: list[bytes | Any] | Any


ACQUIRE_RECORDS: Final = Function(
    "acquire_records",
    "group_name text, member_numbers int8[], call_numbers int8[], partition_ids int4[], mosts int4[], "
    "max_bytes int8, accepted_firsts int8[], accepted_lasts int8[], answered_partitions int4[], "
    "first_offsets int8[], last_offsets int8[], answers text[], reasons text[], delays_ms int4[], is_again bool, "
    "inline_bytes int8",
    AcquireRecordsRow,
    flushed=False,
)
ADOPT_OUTBOX: Final = Function(
    "adopt_outbox",
    "outbox regclass, topic text, id_column name, key_column name, type_column name, value_column name, "
    "topic_column name, event_source text",
    tuple[None],
)
ADVANCE_MIRROR: Final = Function(
    "advance_mirror",
    "in_name text, in_producer_id int8, in_producer_epoch int4, in_revision int8, in_source text, "
    "source_names text[], indexes int4[], offsets int8[], name_identities text[], row_identities text[], "
    "in_records int8, in_lag_records int8, in_lag_ms int8",
    tuple[int],
)
ALTER_TOPIC: Final = Function("alter_topic", "topic_name text, partition_count int4, settings jsonb", tuple[bool])


class AppendRow(NamedTuple):
    error: str | Any
    detail: str | Any
    base_offset: int | Any
    appended_at: datetime | Any
    duplicate: bool | Any


APPEND: Final = Function(
    "append",
    "batches msgtx.batch[], durable bool, wake bool, timeout_ms int4, client_host text, client_process int4",
    AppendRow,
)


class AppendAcknowledgeDecideRow(NamedTuple):
    error: str | Any
    detail: str | Any
    base_offset: int | Any
    appended_at: datetime | Any
    duplicate: bool | Any


APPEND_ACKNOWLEDGE_DECIDE: Final = Function(
    "append_acknowledge_decide",
    "in_producer_id int8, in_producer_epoch int4, in_transaction_number int8, batches msgtx.batch[], wake bool, "
    "group_names text[], offset_partitions int4[], offsets int8[], metadata text[], member_ids text[], "
    "generations int4[], read_identities text[], instance_ids text[], share_groups text[], share_members int8[], "
    "share_partitions int4[], share_firsts int8[], share_lasts int8[], share_answers text[], share_reasons text[], "
    "share_delays int4[]",
    AppendAcknowledgeDecideRow,
)


class AppendAndDecideRow(NamedTuple):
    error: str | Any
    detail: str | Any
    base_offset: int | Any
    appended_at: datetime | Any
    duplicate: bool | Any


APPEND_AND_DECIDE: Final = Function(
    "append_and_decide",
    "in_producer_id int8, in_producer_epoch int4, in_transaction_number int8, batches msgtx.batch[], wake bool, "
    "skip_locked bool, group_names text[], offset_partitions int4[], offsets int8[], metadata text[], "
    "member_ids text[], generations int4[], read_identities text[], instance_ids text[]",
    AppendAndDecideRow,
)
APPEND_AT_COMMIT: Final = Function("append_at_commit", "batches msgtx.batch[]", tuple[bool])


class AppendOnceRow(NamedTuple):
    error: str | Any
    detail: str | Any
    partition_index: int | Any
    record_offset: int | Any
    record_timestamp: int | Any
    duplicate: bool


APPEND_ONCE: Final = Function(
    "append_once",
    "partition_ids int4[], dedup_keys text[], timestamps int8[], record_keys bytea[], record_values bytea[], "
    "header_counts int4[], header_keys text[], header_values bytea[], wake bool",
    AppendOnceRow,
)
ASSIGN_PARTITIONS: Final = Function(
    "assign_partitions",
    "group_name text, expected_generation int4, in_topics_version int8, partition_ids int4[], targets int8[]",
    tuple[bool],
)
BASE_OFFSET_OF: Final = Function("base_offset_of", "in_partition_id int4, in_offset int8", tuple[int])


class BeginAttemptRow(NamedTuple):
    producer_id: int | Any


BEGIN_ATTEMPT: Final = Function(
    "begin_attempt", "in_app_id text, in_query_id text, in_batch_id int8, in_timeout_ms int4", BeginAttemptRow
)
BEGIN_BATCH: Final = Function("begin_batch", "app_id text, batch_id int8", tuple[bool])


class BlockingPartitionsRow(NamedTuple):
    partition_id: int | Any
    topic: str | Any
    partition_index: int | Any
    first_offset: int | Any
    log_end_offset: int | Any
    producer_id: int
    producer_epoch: int
    transaction_number: int
    transactional_id: str | Any
    opened_at: datetime | Any
    timeout_ms: int | Any
    client_host: str | Any
    client_process: int | Any
    database_backend: int | Any
    seal_kind: str | Any
    waits_since: datetime | Any
    deciding_session: int | Any
    checked_at: datetime

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition_index)

    @property
    def transaction_id(self) -> TransactionId:
        return TransactionId(self.producer_id, self.producer_epoch, self.transaction_number)


BLOCKING_PARTITIONS: Final = Function(
    "blocking_partitions",
    "most int4, in_producer_id int8, in_producer_epoch int4, in_transaction_number int8",
    BlockingPartitionsRow,
)


class BuryDeadSharesRow(NamedTuple):
    buried: int
    next_after: list[int] | Any


BURY_DEAD_SHARES: Final = Function(
    "bury_dead_shares", "in_after int8[], most int4, shards int4[], epochs int4[]", BuryDeadSharesRow
)
CHANGE_INCARNATION: Final = Function("change_incarnation", "", tuple[UUID])
CHECK_RANGE: Final = Function(
    "check_range",
    "in_partition_id int4, start_offset int8, end_offset int8, planned_incarnation uuid, strict bool",
    tuple[int],
)
COMMIT_BATCH: Final = Function(
    "commit_batch", "app_id text, batch_id int8, receipts text[], group_name text, cut text, start text", tuple[bool]
)


class CommitInSessionRow(NamedTuple):
    error: str | Any
    detail: str | Any


COMMIT_IN_SESSION: Final = Function(
    "commit_in_session",
    "batches msgtx.batch[], group_names text[], offset_partitions int4[], offsets int8[], metadata text[], "
    "member_ids text[], generations int4[], read_identities text[], instance_ids text[]",
    CommitInSessionRow,
)


class CommitOffsetsRow(NamedTuple):
    error: str | Any
    detail: str | Any


COMMIT_OFFSETS: Final = Function(
    "commit_offsets",
    "group_names text[], partition_ids int4[], offsets int8[], metadata text[], member_ids text[], "
    "generations int4[], read_identities text[], instance_ids text[]",
    CommitOffsetsRow,
)


class CommittedOffsetsRow(NamedTuple):
    partition_id: int
    committed_offset: int | Any
    metadata: str | Any
    pending: bool


COMMITTED_OFFSETS: Final = Function("committed_offsets", "group_name text, partition_ids int4[]", CommittedOffsetsRow)


class CompactBatchesRow(NamedTuple):
    done: bool
    done_at: datetime | Any
    bytes: int


COMPACT_BATCHES: Final = Function(
    "compact_batches",
    "in_partition_id int4, base_offsets int8[], identities text[], record_counts int4[], stay bytea[], "
    "waiting int4[], seen int8[], shards int4[], epochs int4[]",
    CompactBatchesRow,
    flushed=False,
)


class CompletePreparedRow(NamedTuple):
    outcome: str | Any
    error: str | Any
    detail: str | Any


COMPLETE_PREPARED: Final = Function(
    "complete_prepared",
    "in_producer_id int8, in_producer_epoch int4, in_transaction_number int8, in_outcome text",
    CompletePreparedRow,
)


class ConfigureShareGroupRow(NamedTuple):
    error: str | Any
    detail: str | Any


CONFIGURE_SHARE_GROUP: Final = Function("configure_share_group", "group_name text, settings jsonb", ConfigureShareGroupRow)


class ConsistentCutRow(NamedTuple):
    partition_id: int
    log_start_offset: int
    end_offset: int
    held_producer_id: int | Any
    held_epoch: int | Any
    held_number: int | Any


CONSISTENT_CUT: Final = Function("consistent_cut", "partition_ids int4[], positions int8[]", ConsistentCutRow)


class CountRecordsRow(NamedTuple):
    partition_id: int
    records: int


COUNT_RECORDS: Final = Function("count_records", "partition_ids int4[], positions int8[], isolation text", CountRecordsRow)


class CountTransactionsRow(NamedTuple):
    partition_id: int
    next_offset: int
    transactions: int


COUNT_TRANSACTIONS: Final = Function(
    "count_transactions", "partition_ids int4[], starts int8[], ends int8[], max_rows int4", CountTransactionsRow
)
CREATE_TOPIC: Final = Function("create_topic", "topic_name text, partition_count int4, settings jsonb", tuple[int])
CUT: Final = Function("cut", "topics text", tuple[str])
DATABASE_BYTES: Final = Function("database_bytes", "", tuple[int])


class DecideRow(NamedTuple):
    outcome: str | Any
    decided_by: str | Any
    error: str | Any
    detail: str | Any
    last_sequences: list[int | Any] | Any


DECIDE: Final = Function(
    "decide",
    "in_producer_id int8, in_producer_epoch int4, in_transaction_number int8, in_outcome text, "
    "tail_partitions int4[], tail_sequences int8[], group_names text[], offset_partitions int4[], offsets int8[], "
    "metadata text[], member_ids text[], generations int4[], read_identities text[], instance_ids text[], "
    "in_decided_by text, wake bool",
    DecideRow,
)


class DecideBatchRow(NamedTuple):
    skipped: bool
    aborted: int
    error: str | Any
    detail: str | Any


DECIDE_BATCH: Final = Function(
    "decide_batch",
    "in_app_id text, in_query_id text, in_batch_id int8, accepted int8[], tail_owners int8[], "
    "tail_partitions int4[], tail_sequences int8[], in_group_name text, offset_partitions int4[], "
    "start_offsets int8[], end_offsets int8[], in_run_id text, whole_query bool",
    DecideBatchRow,
)
DECIDE_SEALED: Final = Function(
    "decide_sealed",
    "in_producer_id int8, in_producer_epoch int4, in_transaction_number int8, deadline timestamptz, "
    "partitions int4[], first_offsets int8[], last_offsets int8[], signature bytea",
    tuple[bool],
)


class DeleteGroupRow(NamedTuple):
    error: str | Any
    detail: str | Any


DELETE_GROUP: Final = Function("delete_group", "group_name text", DeleteGroupRow)
DELETE_MIRROR: Final = Function("delete_mirror", "in_name text", tuple[bool])


class DeleteOffsetsRow(NamedTuple):
    error: str | Any
    detail: str | Any
    removed: list[int] | Any


DELETE_OFFSETS: Final = Function("delete_offsets", "group_name text, partition_ids int4[]", DeleteOffsetsRow)


class DeleteRecordsRow(NamedTuple):
    partition_id: int
    log_start_offset: int


DELETE_RECORDS: Final = Function("delete_records", "partition_ids int4[], befores int8[]", DeleteRecordsRow)
DELETE_SNAPSHOT: Final = Function("delete_snapshot", "in_name text", tuple[bool])
DELETE_TOPIC: Final = Function("delete_topic", "topic_name text", tuple[int])


class DescribeInstallationRow(NamedTuple):
    incarnation: UUID
    schema_version: int
    functions_hash: str


DESCRIBE_INSTALLATION: Final = Function("describe_installation", "", DescribeInstallationRow)


class DescribeLockTableRow(NamedTuple):
    places: int
    used: int
    partitions: int


DESCRIBE_LOCK_TABLE: Final = Function("describe_lock_table", "", DescribeLockTableRow)


class DescribeMembersRow(NamedTuple):
    group_id: int
    generation: int
    stale: bool
    strategy: str | Any
    group_topics_version: int
    topics_version: int
    member_number: int | Any
    member_id: str | Any
    group_instance_id: str | Any
    client_host: str | Any
    client_process: int | Any
    session_timeout_ms: int | Any
    joined_at: datetime | Any
    heartbeat_at: datetime | Any
    session_over: bool | Any
    topics: list[str] | Any
    pattern: str | Any
    owned: list[int]
    owned_since: list[int]
    target: list[int]


DESCRIBE_MEMBERS: Final = Function("describe_members", "group_name text", DescribeMembersRow)


class DescribeMirrorsRow(NamedTuple):
    name: str
    source: str | Any
    source_address: str
    client_host: str
    client_process: int
    started_at: datetime
    moved_ms: int
    seen_ms: int
    records: int
    lag_records: int
    lag_ms: int
    error: str | Any


DESCRIBE_MIRRORS: Final = Function("describe_mirrors", "in_name text", DescribeMirrorsRow)


class DescribeNotificationsRow(NamedTuple):
    usage: float
    pids: list[int] | Any
    begun: datetime | Any


DESCRIBE_NOTIFICATIONS: Final = Function("describe_notifications", "", DescribeNotificationsRow)


class DescribePlaceRow(NamedTuple):
    noted_system: int | Any
    noted_database: int | Any
    noted_timeline: int | Any
    found_system: int | Any
    found_database: int | Any
    found_timeline: int | Any


DESCRIBE_PLACE: Final = Function("describe_place", "", DescribePlaceRow)


class DescribeProducersRow(NamedTuple):
    producer_id: int
    producer_epoch: int | Any
    last_sequence: int | Any
    last_timestamp: datetime
    coordinator_epoch: int
    transaction_start_offset: int | Any


DESCRIBE_PRODUCERS: Final = Function(
    "describe_producers", "in_partition_id int4, after_producer_id int8, most int4", DescribeProducersRow
)


class DescribeQueriesRow(NamedTuple):
    app_id: str
    query_id: str
    batch_id: int | Any
    decided_at: datetime | Any
    run_id: str | Any
    undecided: int
    undecided_batch_id: int | Any
    undecided_since: datetime | Any


DESCRIBE_QUERIES: Final = Function("describe_queries", "most int4", DescribeQueriesRow)


class DescribeRightsRow(NamedTuple):
    role: str
    can: str
    resource: str
    name: str
    exists: bool


DESCRIBE_RIGHTS: Final = Function("describe_rights", "", DescribeRightsRow)


class DescribeRowsRow(NamedTuple):
    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    base_offset: int | Any
    last_offset: int | Any
    record_count: int | Any
    byte_size: int | Any
    appended_at: datetime | Any
    producer_id: int | Any
    producer_epoch: int | Any
    transaction_number: int | Any
    transactional_id: str | Any
    state: str | Any
    decided_at: datetime | Any

    @property
    def transaction_id(self) -> TransactionId:
        return TransactionId(self.producer_id, self.producer_epoch, self.transaction_number)


DESCRIBE_ROWS: Final = Function(
    "describe_rows", "in_partition_id int4, from_offset int8, before_offset int8, most int4", DescribeRowsRow
)


class DescribeServerRow(NamedTuple):
    role: str
    sees_all: bool
    hidden: int
    in_recovery: bool
    sessions: int
    connection_limit: int
    frozen_age: int
    settings: Any


DESCRIBE_SERVER: Final = Function("describe_server", "", DescribeServerRow)


class DescribeSessionsRow(NamedTuple):
    pid: int
    role: str
    application_name: str
    client_address: str | Any
    visible: bool
    state: str | Any
    state_since: datetime | Any
    wait_event: str | Any
    query_start: datetime | Any
    started_at: datetime | Any
    query: str | Any


DESCRIBE_SESSIONS: Final = Function("describe_sessions", "pids int4[]", DescribeSessionsRow)


class DescribeShareGroupsRow(NamedTuple):
    group_name: str
    settings: Any
    members: int
    partition_id: int | Any
    start_offset: int | Any
    next_offset: int | Any
    available: int | Any
    acquired: int | Any
    pending: int | Any
    rejected: int | Any
    lag: int | Any
    parked: int | Any
    lag_ms: int | Any
    sees_letters: bool


DESCRIBE_SHARE_GROUPS: Final = Function("describe_share_groups", "names text[]", DescribeShareGroupsRow)


class DescribeStandbysRow(NamedTuple):
    name: str
    role: str
    client_address: str | Any
    state: str | Any
    sync_state: str | Any
    behind_bytes: int | Any
    behind_ms: int | Any


DESCRIBE_STANDBYS: Final = Function("describe_standbys", "", DescribeStandbysRow)


class DescribeTopicsRow(NamedTuple):
    name: str
    partition_ids: list[int]
    settings: Any


DESCRIBE_TOPICS: Final = Function("describe_topics", "names text[]", DescribeTopicsRow)


class DescribeTransactionRow(NamedTuple):
    producer_id: int
    current_epoch: int
    producer_epoch: int | Any
    transaction_number: int | Any
    state: str
    timeout_ms: int | Any
    opened_at: datetime | Any
    client_host: str | Any
    decided_by: str | Any
    topics: list[str]
    partition_indexes: list[int]

    @property
    def transaction_id(self) -> TransactionId:
        return TransactionId(self.producer_id, self.producer_epoch, self.transaction_number)


DESCRIBE_TRANSACTION: Final = Function("describe_transaction", "in_transactional_id text", DescribeTransactionRow)


class EndSessionsRow(NamedTuple):
    ended: int
    not_ended: int


END_SESSIONS: Final = Function("end_sessions", "", EndSessionsRow)
END_TRANSACTION: Final = Function(
    "end_transaction",
    "in_producer_id int8, in_producer_epoch int4, in_transaction_number int8, in_decided_by text",
    tuple[str],
)
ENSURE_DEAD_LETTERS: Final = Function("ensure_dead_letters", "group_name text", tuple[str])


class ExpireHoldersRow(NamedTuple):
    partition_id: int
    producer_id: int
    producer_epoch: int
    transaction_number: int
    kind: str | Any
    expired: bool

    @property
    def transaction_id(self) -> TransactionId:
        return TransactionId(self.producer_id, self.producer_epoch, self.transaction_number)


EXPIRE_HOLDERS: Final = Function("expire_holders", "partition_ids int4[], group_name text", ExpireHoldersRow)


class ExpireOverdueRow(NamedTuple):
    expired: int
    next_after: list[int] | Any


EXPIRE_OVERDUE: Final = Function(
    "expire_overdue", "in_after int8[], most int4, shards int4[], epochs int4[]", ExpireOverdueRow
)


class FenceEverybodyRow(NamedTuple):
    fenced: int
    next_after: list[int] | Any


FENCE_EVERYBODY: Final = Function("fence_everybody", "in_after int8[], most int4", FenceEverybodyRow)


class FencePlainProducersRow(NamedTuple):
    fenced: int
    next_after: list[int] | Any


FENCE_PLAIN_PRODUCERS: Final = Function("fence_plain_producers", "in_after int8[], most int4", FencePlainProducersRow)


class FenceProducerRow(NamedTuple):
    producer_id: int | Any
    epoch: int | Any


FENCE_PRODUCER: Final = Function("fence_producer", "in_transactional_id text", FenceProducerRow)


class FetchBatchesRow(NamedTuple):
    partition_id: int
    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    previous_identity: str | Any
    truncated: bool
    blocked_producer_id: int | Any
    blocked_epoch: int | Any
    blocked_number: int | Any
    blocked_overdue: bool | Any
    base_offset: int | Any
    last_offset: int | Any
    identity: str | Any
    visible: bool | Any
    max_timestamp: int | Any
    keys: list[bytes | Any] | Any
    values: list[bytes | Any] | Any
    timestamps: list[int] | Any
    header_counts: list[int] | Any
    header_keys: list[str] | Any
    header_values: list[bytes | Any] | Any
    offset_deltas: list[int] | Any


FETCH_BATCHES: Final = Function(
    "fetch_batches",
    "partition_ids int4[], positions int8[], tokens text[], isolation text, max_bytes int8, max_rows int4, total_bytes int8",
    FetchBatchesRow,
)
FIND: Final = Function(
    "find",
    "topic text, key text, json_field text, header text, partition int4, offset int8, since interval, "
    "max_records int4, key_bytes bytea",
    tuple[Any],
)


class FindCoordinatorRow(NamedTuple):
    shard: int
    owner: int | Any
    host: str | Any
    process: int | Any
    coordinator_epoch: int
    started_at: datetime | Any
    lease_until: datetime | Any


FIND_COORDINATOR: Final = Function("find_coordinator", "in_transactional_id text", FindCoordinatorRow)


class FindDirtyLogRow(NamedTuple):
    partition_id: int | Any
    compacted_offset: int | Any
    until_offset: int | Any
    next_after: list[int] | Any


FIND_DIRTY_LOG: Final = Function(
    "find_dirty_log", "in_after int8[], most int4, min_dirty_ratio float8, shards int4[], epochs int4[]", FindDirtyLogRow
)


class FindNamesRow(NamedTuple):
    kind: str
    name: str
    told: str | Any


FIND_NAMES: Final = Function("find_names", "in_text text, most int4", FindNamesRow)


class FindRecordsRow(NamedTuple):
    next_before: int | Any
    record_offset: int | Any
    record_timestamp: int | Any
    stored_at: datetime | Any
    record_key: bytes | Any
    record_value: bytes | Any
    header_keys: list[str] | Any
    header_values: list[bytes | Any] | Any
    producer_id: int | Any
    producer_epoch: int | Any
    transaction_number: int | Any
    transactional_id: str | Any
    outcome: str | Any
    decided_at: datetime | Any
    deliver_at: datetime | Any

    @property
    def transaction_id(self) -> TransactionId:
        return TransactionId(self.producer_id, self.producer_epoch, self.transaction_number)


FIND_RECORDS: Final = Function(
    "find_records",
    "in_partition_id int4, before int8, since_ms int8, at_offset int8, in_key bytea, in_json text, in_header text, "
    "most int4, in_words text",
    FindRecordsRow,
)
FINISH_COMPACTION: Final = Function(
    "finish_compaction",
    "in_partition_id int4, from_offset int8, until_offset int8, in_tombstones_since timestamptz, shards int4[], "
    "epochs int4[]",
    tuple[bool],
    flushed=False,
)


class FirstRecordsRow(NamedTuple):
    partition_id: int
    record_offset: int
    record_timestamp: int
    age_ms: int


FIRST_RECORDS: Final = Function("first_records", "partition_ids int4[], positions int8[]", FirstRecordsRow)
FLUSH_LOG: Final = Function("flush_log", "", tuple[bool])


class FollowBatchRow(NamedTuple):
    error: str | Any
    detail: str | Any


FOLLOW_BATCH: Final = Function(
    "follow_batch",
    "in_group_name text, partition_ids int4[], start_offsets int8[], end_offsets int8[], in_source_id text",
    FollowBatchRow,
)


class GroupsOfRecordRow(NamedTuple):
    group_name: str
    is_share_group: bool
    state: str
    at: datetime | Any
    ahead: int | Any
    member_id: str | Any
    client_host: str | Any
    client_process: int | Any
    delivery_count: int | Any
    reason: str | Any
    told: str


GROUPS_OF_RECORD: Final = Function("groups_of_record", "in_partition_id int4, in_offset int8", GroupsOfRecordRow)


class GroupsOnPartitionsRow(NamedTuple):
    partition_id: int | Any
    group_name: str | Any
    is_share_group: bool | Any
    at: int | Any
    next_offset: int | Any
    records: int | Any
    age_ms: int | Any
    searched: int


GROUPS_ON_PARTITIONS: Final = Function("groups_on_partitions", "partition_ids int4[], pairs int4", GroupsOnPartitionsRow)


class HeartbeatGroupRow(NamedTuple):
    error: str | Any
    detail: str | Any
    generation: int | Any
    stale: bool | Any


HEARTBEAT_GROUP: Final = Function(
    "heartbeat_group",
    "group_name text, in_member_number int8, in_member_id text, in_instance_id text, in_heartbeat_number int8",
    HeartbeatGroupRow,
    flushed=False,
)
HOLD_COMMIT: Final = Function(
    "hold_commit",
    "group_names text[], offset_partitions int4[], offsets int8[], metadata text[], member_ids text[], "
    "generations int4[], read_identities text[], instance_ids text[]",
    tuple[int],
)


class IdentifyServerRow(NamedTuple):
    system_identifier: int | Any
    timeline: int | Any
    is_synchronous: bool | Any


IDENTIFY_SERVER: Final = Function("identify_server", "", IdentifyServerRow)


class InitProducerIdRow(NamedTuple):
    producer_id: int
    epoch: int


INIT_PRODUCER_ID: Final = Function(
    "init_producer_id",
    "in_transactional_id text, in_timeout_ms int4, expected_producer_id int8, expected_epoch int4, in_keep_prepared bool",
    InitProducerIdRow,
)
IS_BATCH_COMMITTED: Final = Function("is_batch_committed", "in_app_id text, in_query_id text, in_batch_id int8", tuple[bool])
IS_COMMITTED: Final = Function(
    "is_committed",
    "in_partition_id int4, in_base_offset int8, in_producer_id int8, in_producer_epoch int4, in_number int8",
    tuple[bool],
)


class JoinGroupRow(NamedTuple):
    error: str | Any
    detail: str | Any
    group_id: int | Any
    member_number: int | Any
    generation: int | Any


JOIN_GROUP: Final = Function(
    "join_group",
    "group_name text, in_member_id text, in_instance_id text, in_client_host text, in_client_process int4, "
    "in_session_timeout_ms int4, in_strategy text, in_topics text[], in_pattern text, in_topics_version int8",
    JoinGroupRow,
)


class JoinShareGroupRow(NamedTuple):
    error: str | Any
    detail: str | Any
    group_id: int | Any
    member_number: int | Any


JOIN_SHARE_GROUP: Final = Function(
    "join_share_group",
    "group_name text, in_member_id text, in_client_host text, in_client_process int4, in_session_timeout_ms int4, "
    "in_topics text[], in_member_number int8",
    JoinShareGroupRow,
)
KEPT_SEQUENCES: Final = Function(
    "kept_sequences", "in_producer_id int8, in_producer_epoch int4, partition_ids int4[]", tuple[list[int | Any]]
)
LAST_BATCH: Final = Function("last_batch", "in_app_id text, in_query_id text", tuple[int | Any])
LAST_SHARE_CALL: Final = Function("last_share_call", "group_name text, in_member_number int8", tuple[int])
LAST_STABLE_OFFSET: Final = Function("last_stable_offset", "in_partition_id int4", tuple[int])


class LateLogsRow(NamedTuple):
    topic: str
    partition_index: int
    age_ms: int
    retention_ms: int
    bytes: int | Any
    retention_bytes: int
    pace: int
    found: int

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition_index)


LATE_LOGS: Final = Function("late_logs", "late_ms int8, late_bytes int8, most int4", LateLogsRow)


class LeaseShardsRow(NamedTuple):
    coordinator_id: int
    shards: list[int]
    epochs: list[int]
    lease_ms: int
    look_again_ms: int
    sweep_interval_ms: int


LEASE_SHARDS: Final = Function(
    "lease_shards", "in_coordinator_id int8, in_host text, in_process int4", LeaseShardsRow, flushed=False
)
LEAVE_GROUP: Final = Function("leave_group", "group_name text, in_member_id text, in_member_number int8", tuple[bool])


class LettersOfRecordRow(NamedTuple):
    topic: str
    partition: int
    record_offset: int
    group_name: str | Any
    reason: str | Any


LETTERS_OF_RECORD: Final = Function(
    "letters_of_record", "in_topic text, in_partition int4, in_offset int8, in_stored_at timestamptz", LettersOfRecordRow
)


class ListCoordinatorsRow(NamedTuple):
    shard: int
    owner: int | Any
    host: str | Any
    process: int | Any
    coordinator_epoch: int
    started_at: datetime | Any
    lease_until: datetime | Any


LIST_COORDINATORS: Final = Function("list_coordinators", "in_shard int4", ListCoordinatorsRow)


class ListGroupsRow(NamedTuple):
    group_name: str
    generation: int
    strategy: str | Any
    members: int
    overdue: int
    settled: bool
    has_offsets: bool


LIST_GROUPS: Final = Function("list_groups", "names text[]", ListGroupsRow)


class ListOffsetsRow(NamedTuple):
    partition_id: int
    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    at_offset: int | Any
    at_timestamp: int | Any


LIST_OFFSETS: Final = Function("list_offsets", "partition_ids int4[], times int8[], isolation text", ListOffsetsRow)


class ListTransactionsRow(NamedTuple):
    transactional_id: str | Any
    producer_id: int | Any
    state: str | Any
    opened_at: datetime | Any
    next_after: int | Any


LIST_TRANSACTIONS: Final = Function(
    "list_transactions",
    "states text[], producer_ids int8[], prefix text, by_producer bool, descending bool, in_after int8, most int4",
    ListTransactionsRow,
)


class ListenRow(NamedTuple):
    channel: str
    has_records: bool


LISTEN: Final = Function("listen", "topic text, group_name text", ListenRow)


class LockHoldersRow(NamedTuple):
    pid: int | Any
    role: str | Any
    application_name: str | Any
    client_address: str | Any
    visible: bool
    state: str | Any
    state_since: datetime | Any
    transaction_since: datetime | Any
    locks: int
    partitions: int
    waiting: int
    checked_at: datetime


LOCK_HOLDERS: Final = Function("lock_holders", "", LockHoldersRow)
LOCK_PRODUCERS: Final = Function("lock_producers", "producer_ids int8[]", tuple[bool])


class MarkRow(NamedTuple):
    markers: int | Any
    floors: int | Any


MARK: Final = Function("mark", "everything bool, shards int4[], epochs int4[], rest_ms int4", MarkRow, flushed=False)


class MarkPartitionsRow(NamedTuple):
    markers: int
    floors: int
    next_after: list[int] | Any


MARK_PARTITIONS: Final = Function(
    "mark_partitions", "in_after int8[], most int4, shards int4[], epochs int4[]", MarkPartitionsRow, flushed=False
)
MAY_USE: Final = Function("may_use", "kind text, name text", tuple[bool])


class MeasureActivityRow(NamedTuple):
    piece_start: datetime
    piece_end: datetime
    records: int | Any
    removed: int
    committed: int | Any
    aborted: int | Any
    estimated: bool


MEASURE_ACTIVITY: Final = Function("measure_activity", "in_topic text, pieces int4, piece_ms int8", MeasureActivityRow)


class MeasureDeadLettersRow(NamedTuple):
    group_name: str | Any
    dead_letters: int
    next_after: list[int] | Any


MEASURE_DEAD_LETTERS: Final = Function("measure_dead_letters", "in_after int4[], most int4", MeasureDeadLettersRow)


class MeasureGroupsRow(NamedTuple):
    group_name: str | Any
    members: int | Any
    overdue: int | Any
    settled: bool | Any
    next_after: list[int] | Any


MEASURE_GROUPS: Final = Function("measure_groups", "in_after int4[], most int4", MeasureGroupsRow)


class MeasureLagsRow(NamedTuple):
    group_name: str | Any
    topic: str | Any
    records: int | Any
    age_ms: int | Any
    next_after: list[int] | Any


MEASURE_LAGS: Final = Function("measure_lags", "in_after int4[], most int4", MeasureLagsRow)


class MeasureLogsRow(NamedTuple):
    partition_id: int
    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    bytes: int


MEASURE_LOGS: Final = Function("measure_logs", "partition_ids int4[]", MeasureLogsRow)


class MeasurePartitionsRow(NamedTuple):
    partition_id: int
    topic: str
    partition_index: int
    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    bytes: int

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition_index)


MEASURE_PARTITIONS: Final = Function("measure_partitions", "in_after int4, most int4", MeasurePartitionsRow)


class MeasureRangesRow(NamedTuple):
    partition_id: int
    next_offset: int
    buckets: list[int]
    records: list[int]
    bytes: list[int]


MEASURE_RANGES: Final = Function(
    "measure_ranges", "partition_ids int4[], starts int8[], ends int8[], bucket_ms int8, max_rows int4", MeasureRangesRow
)


class MeasureSharesRow(NamedTuple):
    group_name: str | Any
    topic: str | Any
    records: int | Any
    in_flight: int | Any
    parked: int | Any
    age_ms: int | Any
    members: int | Any
    next_after: list[int] | Any


MEASURE_SHARES: Final = Function("measure_shares", "in_after int4[], most int4", MeasureSharesRow)


class MemberAssignmentRow(NamedTuple):
    generation: int
    stale: bool
    owned: list[int]
    owned_since: list[int]
    target: list[int]


MEMBER_ASSIGNMENT: Final = Function("member_assignment", "group_name text, in_member_number int8", MemberAssignmentRow)


class MirrorPlacesRow(NamedTuple):
    topic: str
    partition: int
    next_offset: int
    topic_identity: str
    row_identity: str


MIRROR_PLACES: Final = Function("mirror_places", "in_name text", MirrorPlacesRow)


class NeglectedGroupsRow(NamedTuple):
    group_name: str
    generation: int
    members: int
    session_timeout_ms: int | Any
    stale_since: datetime | Any
    dead: int
    partitions: int | Any
    heard_of_at: datetime | Any
    checked_at: datetime
    found: int


NEGLECTED_GROUPS: Final = Function("neglected_groups", "most int4", NeglectedGroupsRow)
NOTE_MIRROR: Final = Function(
    "note_mirror",
    "in_name text, in_run_id uuid, in_producer_id int8, in_lag_records int8, in_lag_ms int8, in_error text",
    tuple[bool],
)
NOTE_PLACE: Final = Function("note_place", "", tuple[bool])


class NotedBeginsRow(NamedTuple):
    partition_id: int
    committed_offset: int | Any
    start_offset: int | Any
    repeats: bool


NOTED_BEGINS: Final = Function("noted_begins", "in_group_name text, partition_ids int4[], offsets int8[]", NotedBeginsRow)
NOTIFY_READERS: Final = Function("notify_readers", "words text", tuple[bool])
OFFSET_COUNTS: Final = Function(
    "offset_counts", "in_producer_id int8, in_producer_epoch int4, in_transaction_number int8", tuple[bool]
)
PARTITION_ID_OF: Final = Function("partition_id_of", "in_topic text, in_partition int4", tuple[int])
POSITION: Final = Function("position", "group_name text, cut text", tuple[str])


class ProducerEpochsRow(NamedTuple):
    transactional_id: str | Any
    current_epoch: int
    epoch_before: int | Any
    timeout_ms: int
    initialized_at: datetime
    epoch: int
    first_number: int | Any
    first_at: datetime | Any
    last_number: int | Any
    last_at: datetime | Any
    last_outcome: str | Any
    last_decided_by: str | Any
    client_host: str | Any
    client_process: int | Any
    committed: int
    aborted: int
    counted_from: int | Any


PRODUCER_EPOCHS: Final = Function("producer_epochs", "in_producer_id int8, before int4, most int4", ProducerEpochsRow)


class ProducerSequencesRow(NamedTuple):
    topic: str
    partition_index: int
    producer_epoch: int | Any
    last_sequence: int | Any
    last_offset: int | Any
    appended_at: datetime | Any

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition_index)


PRODUCER_SEQUENCES: Final = Function("producer_sequences", "in_producer_id int8, most int4", ProducerSequencesRow)
PUBLISH: Final = Function(
    "publish",
    "topic text, value text, key text, value_bytes bytea, key_bytes bytea, partition int4, headers jsonb, "
    "timestamp timestamptz, deliver_at timestamptz, delay interval",
    tuple[None],
)


class PurgeTransactionsRow(NamedTuple):
    purged: int
    next_after: list[int] | Any


PURGE_TRANSACTIONS: Final = Function(
    "purge_transactions", "in_after int8[], most int4, shards int4[], epochs int4[]", PurgeTransactionsRow, flushed=False
)


class RangesRow(NamedTuple):
    topic: str
    partition: int
    start_offset: int
    end_offset: int
    predicate: str


RANGES: Final = Function("ranges", "cut text, pieces int4, start text", RangesRow)
READ: Final = Function("read", "topic text, partition int4, start int8, end int8", tuple[Any])


class ReadKeysRow(NamedTuple):
    base_offset: int
    last_offset: int
    record_count: int
    is_committed: bool
    keys: list[bytes | Any]
    offset_deltas: list[int] | Any
    tombstones: list[int] | Any
    tombstones_expired: bool
    compacted_at: datetime | Any
    identity: str


READ_KEYS: Final = Function(
    "read_keys",
    "in_partition_id int4, from_offset int8, until_offset int8, with_tombstones bool, most_rows int4, most_bytes int8",
    ReadKeysRow,
)


class ReadRecordsRow(NamedTuple):
    place: int
    first_offset: int
    last_offset: int
    max_timestamp: int
    offsets: list[int] | Any
    keys: list[bytes | Any] | Any
    values: list[bytes | Any]
    timestamps: list[int] | Any
    header_counts: list[int] | Any
    header_keys: list[str] | Any
    header_values: list[bytes | Any] | Any


READ_RECORDS: Final = Function(
    "read_records", "partition_ids int4[], first_offsets int8[], last_offsets int8[]", ReadRecordsRow
)
RECEIVE: Final = Function("receive", "topic text, share_group text, max_records int8, max_bytes int8", tuple[Any])


class RecentPartitionsRow(NamedTuple):
    partition_id: int
    topic: str
    partition_index: int

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition_index)


RECENT_PARTITIONS: Final = Function("recent_partitions", "since_ms int8, most int4", RecentPartitionsRow)


class RecordRangeRow(NamedTuple):
    error: str | Any
    detail: str | Any


RECORD_RANGE: Final = Function(
    "record_range",
    "in_query_id text, in_batch_id int8, in_group_name text, partition_ids int4[], start_offsets int8[], "
    "end_offsets int8[], in_run_id text, in_source_id text",
    RecordRangeRow,
)
RECORD_WAL_BYTES: Final = Function("record_wal_bytes", "", tuple[float | Any])


class RedriveDeadLettersRow(NamedTuple):
    error: str | Any
    detail: str | Any
    upto: int | Any
    sent: int
    skipped: int
    is_over: bool


REDRIVE_DEAD_LETTERS: Final = Function(
    "redrive_dead_letters",
    "group_name text, in_index int4, in_upto int8, most int4, skip_missing bool",
    RedriveDeadLettersRow,
)
RELEASE_COMMIT: Final = Function("release_commit", "number int8", tuple[int | Any])
RELEASE_OUTBOX: Final = Function("release_outbox", "outbox regclass", tuple[bool])
RELEASE_PARTITIONS: Final = Function(
    "release_partitions", "group_name text, in_member_number int8, partition_ids int4[]", tuple[int | Any]
)
RELEASE_SHARDS: Final = Function("release_shards", "in_coordinator_id int8", tuple[bool], flushed=False)


class RemoveAllMembersRow(NamedTuple):
    removed: int
    next_after: list[int] | Any


REMOVE_ALL_MEMBERS: Final = Function("remove_all_members", "in_after int8[], most int4", RemoveAllMembersRow)


class RemoveDecidedSealsRow(NamedTuple):
    removed: int
    next_after: list[int] | Any


REMOVE_DECIDED_SEALS: Final = Function(
    "remove_decided_seals", "in_after int8[], most int4, shards int4[], epochs int4[]", RemoveDecidedSealsRow, flushed=False
)


class RemoveDedupKeysRow(NamedTuple):
    removed: int
    next_after: list[int] | Any


REMOVE_DEDUP_KEYS: Final = Function(
    "remove_dedup_keys", "in_after int8[], most int4, shards int4[], epochs int4[]", RemoveDedupKeysRow, flushed=False
)


class RemoveDeletedLogsRow(NamedTuple):
    removed: int
    next_after: list[int] | Any
    bytes: int


REMOVE_DELETED_LOGS: Final = Function(
    "remove_deleted_logs", "in_after int8[], most int4, shards int4[], epochs int4[], most_bytes int8", RemoveDeletedLogsRow
)


class RemoveHeartbeatsRow(NamedTuple):
    removed: int
    next_after: list[int] | Any


REMOVE_HEARTBEATS: Final = Function(
    "remove_heartbeats", "in_after int8[], most int4, shards int4[], epochs int4[]", RemoveHeartbeatsRow, flushed=False
)


class RemoveIdleProducersRow(NamedTuple):
    removed: int
    next_after: list[int] | Any


REMOVE_IDLE_PRODUCERS: Final = Function(
    "remove_idle_producers", "in_after int8[], most int4, shards int4[], epochs int4[]", RemoveIdleProducersRow
)


class RemoveMembersRow(NamedTuple):
    removed: int
    next_after: list[int] | Any


REMOVE_MEMBERS: Final = Function(
    "remove_members", "in_after int8[], most int4, shards int4[], epochs int4[]", RemoveMembersRow
)


class RemoveOldBatchesRow(NamedTuple):
    removed: int
    next_after: list[int] | Any
    bytes: int


REMOVE_OLD_BATCHES: Final = Function(
    "remove_old_batches", "in_after int8[], most int4, shards int4[], epochs int4[], most_bytes int8", RemoveOldBatchesRow
)


class RemoveSparkHistoryRow(NamedTuple):
    removed: int
    next_after: list[int] | Any


REMOVE_SPARK_HISTORY: Final = Function(
    "remove_spark_history", "in_after int8[], most int4, shards int4[], epochs int4[]", RemoveSparkHistoryRow, flushed=False
)


class RemoveSupersededFloorsRow(NamedTuple):
    removed: int
    next_after: list[int] | Any


REMOVE_SUPERSEDED_FLOORS: Final = Function(
    "remove_superseded_floors",
    "in_after int8[], most int4, shards int4[], epochs int4[]",
    RemoveSupersededFloorsRow,
    flushed=False,
)


class RemoveSupersededOffsetsRow(NamedTuple):
    removed: int
    next_after: list[int] | Any


REMOVE_SUPERSEDED_OFFSETS: Final = Function(
    "remove_superseded_offsets",
    "in_after int8[], most int4, shards int4[], epochs int4[]",
    RemoveSupersededOffsetsRow,
    flushed=False,
)


class RemoveSupersededSharesRow(NamedTuple):
    removed: int
    next_after: list[int] | Any


REMOVE_SUPERSEDED_SHARES: Final = Function(
    "remove_superseded_shares",
    "in_after int8[], most int4, shards int4[], epochs int4[]",
    RemoveSupersededSharesRow,
    flushed=False,
)


class RemoveWakeUpsRow(NamedTuple):
    removed: int
    next_after: list[int] | Any


REMOVE_WAKE_UPS: Final = Function(
    "remove_wake_ups", "in_after int8[], most int4, shards int4[], epochs int4[]", RemoveWakeUpsRow, flushed=False
)
RENEW_ATTEMPTS: Final = Function(
    "renew_attempts", "in_app_id text, in_query_id text, in_batch_id int8, session_ms int4, in_timeout_ms int4", tuple[int]
)


class ResetOffsetsRow(NamedTuple):
    error: str | Any
    detail: str | Any


RESET_OFFSETS: Final = Function("reset_offsets", "group_name text, partition_ids int4[], offsets int8[]", ResetOffsetsRow)


class ResetShareOffsetsRow(NamedTuple):
    error: str | Any
    detail: str | Any


RESET_SHARE_OFFSETS: Final = Function(
    "reset_share_offsets", "group_name text, partition_ids int4[], offsets int8[]", ResetShareOffsetsRow
)


class SaveSnapshotRow(NamedTuple):
    error: str | Any
    detail: str | Any
    taken_at: datetime | Any


SAVE_SNAPSHOT: Final = Function("save_snapshot", "in_name text, in_snapshot text, in_replace bool", SaveSnapshotRow)


class SavedSnapshotsRow(NamedTuple):
    name: str
    snapshot: str
    taken_at: datetime
    role_name: str


SAVED_SNAPSHOTS: Final = Function("saved_snapshots", "in_name text", SavedSnapshotsRow)


class SealRow(NamedTuple):
    error: str | Any
    detail: str | Any
    last_sequences: list[int] | Any
    deadline: datetime | Any
    partitions: list[int] | Any
    first_offsets: list[int] | Any
    last_offsets: list[int] | Any
    signature: bytes | Any


SEAL: Final = Function(
    "seal",
    "in_producer_id int8, in_producer_epoch int4, in_transaction_number int8, in_kind text, tail_partitions int4[], "
    "tail_sequences int8[], group_names text[], offset_partitions int4[], offsets int8[], metadata text[], "
    "member_ids text[], generations int4[], read_identities text[], instance_ids text[], timeout_ms int4, "
    "client_host text, client_process int4, seat int4",
    SealRow,
)


class SequencesRow(NamedTuple):
    sequence_name: str
    next_number: int
    stored: int | Any
    is_behind: bool


SEQUENCES: Final = Function("sequences", "", SequencesRow)


class SettleSharesRow(NamedTuple):
    settled: int
    expired: int
    next_after: list[int] | Any


SETTLE_SHARES: Final = Function("settle_shares", "in_after int8[], most int4, shards int4[], epochs int4[]", SettleSharesRow)


class ShareGroupNamesRow(NamedTuple):
    group_name: str


SHARE_GROUP_NAMES: Final = Function("share_group_names", "", ShareGroupNamesRow)


class ShowAcknowledgementsRow(NamedTuple):
    group_name: str
    topic: str
    partition_index: int
    first_offset: int
    last_offset: int
    answer: str | Any

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition_index)


SHOW_ACKNOWLEDGEMENTS: Final = Function(
    "show_acknowledgements",
    "in_producer_id int8, in_producer_epoch int4, in_transaction_number int8",
    ShowAcknowledgementsRow,
)


class ShowOffsetsRow(NamedTuple):
    group_name: str | Any
    topic: str | Any
    partition_index: int | Any
    committed_offset: int | Any
    committed_at: datetime | Any
    next_after: list[int] | Any

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition_index)


SHOW_OFFSETS: Final = Function(
    "show_offsets",
    "in_producer_id int8, in_producer_epoch int4, in_transaction_number int8, in_after int4[], most int4",
    ShowOffsetsRow,
)


class ShowPartitionsRow(NamedTuple):
    topic: str | Any
    partition_index: int | Any
    first_offset: int
    last_offset: int | Any
    batches: int | Any
    records: int | Any
    bytes: int | Any
    is_estimate: bool
    first_appended_at: datetime | Any
    last_appended_at: datetime | Any
    marked: str | Any
    coordinator_epoch: int | Any
    removed: str | Any

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition_index)


SHOW_PARTITIONS: Final = Function(
    "show_partitions",
    "in_producer_id int8, in_producer_epoch int4, in_transaction_number int8, skip int4, most int4",
    ShowPartitionsRow,
)


class ShowTransactionRow(NamedTuple):
    state: str
    transactional_id: str | Any
    current_epoch: int | Any
    opened_at: datetime | Any
    timeout_ms: int | Any
    client_host: str | Any
    client_process: int | Any
    database_backend: int | Any
    seal_kind: str | Any
    sealed_at: datetime | Any
    seal_deadline: datetime | Any
    outcome: str | Any
    decided_at: datetime | Any
    decided_by: str | Any
    partitions: int
    app_id: str | Any
    query_id: str | Any
    batch_id: int | Any
    checked_at: datetime


SHOW_TRANSACTION: Final = Function(
    "show_transaction", "in_producer_id int8, in_producer_epoch int4, in_transaction_number int8", ShowTransactionRow
)


class SnapshotHoldersRow(NamedTuple):
    kind: str
    name: str
    pid: int | Any
    role: str | Any
    client_address: str | Any
    state: str | Any
    since: datetime | Any
    age: int | Any
    active: bool
    wal_status: str | Any
    retained: int | Any
    checked_at: datetime


SNAPSHOT_HOLDERS: Final = Function("snapshot_holders", "", SnapshotHoldersRow)


class SpansOfShareGroupsRow(NamedTuple):
    group_name: str
    topic: str
    partition: int
    first_offset: int
    last_offset: int
    state: str
    delivery_count: int
    reason: str
    member_id: str
    client_host: str
    client_process: int
    locked_until: datetime
    due_at: datetime
    producer_id: int
    producer_epoch: int
    transaction_number: int
    answer: str
    partition_id: int

    @property
    def transaction_id(self) -> TransactionId:
        return TransactionId(self.producer_id, self.producer_epoch, self.transaction_number)


SPANS_OF_SHARE_GROUPS: Final = Function("spans_of_share_groups", "", SpansOfShareGroupsRow)


class SpansOfTransactionsRow(NamedTuple):
    partitions: list[int]
    first_offsets: list[int]
    last_offsets: list[int]


SPANS_OF_TRANSACTIONS: Final = Function(
    "spans_of_transactions", "partition_ids int4[], start_offsets int8[], end_offsets int8[]", SpansOfTransactionsRow
)


class StalledPartitionsRow(NamedTuple):
    group_name: str
    topic: str
    partition_index: int
    committed_offset: int
    since: datetime
    records: int
    member_id: str
    client_host: str | Any
    client_process: int | Any
    checked_at: datetime
    found: int

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition_index)


STALLED_PARTITIONS: Final = Function("stalled_partitions", "silence_ms int8, most int4", StalledPartitionsRow)
SWEEP_PACE: Final = Function("sweep_pace", "", tuple[int])


class TableStatisticsRow(NamedTuple):
    name: str
    bytes: int
    live_rows: int
    dead_rows: int
    rows_since_vacuum: int
    last_vacuum: datetime | Any
    last_autovacuum: datetime | Any
    frozen_age: int


TABLE_STATISTICS: Final = Function("table_statistics", "", TableStatisticsRow)
TAKE: Final = Function(
    "take", "topic text, group_name text, max_records int8, max_bytes int8, auto_offset_reset text", tuple[Any]
)


class TakeOverMirrorRow(NamedTuple):
    revision: int
    source: str | Any
    topic: str | Any
    partition: int | Any
    next_offset: int | Any
    topic_identity: str | Any
    row_identity: str | Any


TAKE_OVER_MIRROR: Final = Function(
    "take_over_mirror",
    "in_name text, in_run_id uuid, is_new bool, in_producer_id int8, in_producer_epoch int4, "
    "in_source_address text, in_client_host text, in_client_process int4",
    TakeOverMirrorRow,
)
TAKE_SEAT: Final = Function("take_seat", "", tuple[int | Any])
TELL_READERS: Final = Function("tell_readers", "partition_ids int4[]", tuple[bool], flushed=False)
TOPICS_OF_CALLER: Final = Function("topics_of_caller", "cans text[]", tuple[list[int]])
TOPICS_VERSION: Final = Function("topics_version", "", tuple[int])


class TransactionOutcomeRow(NamedTuple):
    outcome: str
    decided_by: str | Any


TRANSACTION_OUTCOME: Final = Function(
    "transaction_outcome", "in_producer_id int8, in_producer_epoch int4, in_transaction_number int8", TransactionOutcomeRow
)


class UndecidedPreparedRow(NamedTuple):
    producer_epoch: int
    transaction_number: int


UNDECIDED_PREPARED: Final = Function("undecided_prepared", "in_producer_id int8", UndecidedPreparedRow)


class UndecidedSealsRow(NamedTuple):
    producer_id: int
    producer_epoch: int
    transaction_number: int
    transactional_id: str | Any
    kind: str
    sealed_at: datetime
    deadline: datetime | Any
    opened_at: datetime | Any
    timeout_ms: int | Any
    client_host: str | Any
    client_process: int | Any
    database_backend: int | Any
    partitions: int
    checked_at: datetime
    found: int

    @property
    def transaction_id(self) -> TransactionId:
        return TransactionId(self.producer_id, self.producer_epoch, self.transaction_number)


UNDECIDED_SEALS: Final = Function("undecided_seals", "most int4", UndecidedSealsRow)


class UndecidedTransactionsRow(NamedTuple):
    topic: str
    partition_index: int
    first_offset: int
    log_end_offset: int | Any
    producer_id: int
    producer_epoch: int
    transaction_number: int
    transactional_id: str | Any
    current_epoch: int | Any
    opened_at: datetime | Any
    timeout_ms: int | Any
    client_host: str | Any
    client_process: int | Any
    database_backend: int | Any
    seal_kind: str | Any
    sealed_at: datetime | Any
    seal_deadline: datetime | Any
    coordinator_epoch: int
    last_appended_at: datetime | Any
    checked_at: datetime
    found: int

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition_index)

    @property
    def transaction_id(self) -> TransactionId:
        return TransactionId(self.producer_id, self.producer_epoch, self.transaction_number)


UNDECIDED_TRANSACTIONS: Final = Function(
    "undecided_transactions",
    "in_partition_ids int4[], each_partition int4, overdue_only bool, limit_ms int8, most int4",
    UndecidedTransactionsRow,
)


class UnfinishedDecisionsRow(NamedTuple):
    producer_id: int
    producer_epoch: int
    transaction_number: int
    outcome: str
    decided_at: datetime
    decided_by: str
    missing: int
    checked_at: datetime
    found: int

    @property
    def transaction_id(self) -> TransactionId:
        return TransactionId(self.producer_id, self.producer_epoch, self.transaction_number)


UNFINISHED_DECISIONS: Final = Function("unfinished_decisions", "older_than_ms int8, most int4", UnfinishedDecisionsRow)
VALUE_JSON: Final = Function("value_json", "value bytea", tuple[Any])
VALUE_TEXT: Final = Function("value_text", "value bytea", tuple[str])


class VerifyAssignmentsRow(NamedTuple):
    next_after: list[int] | Any
    looked_at: int
    broken: Any


VERIFY_ASSIGNMENTS: Final = Function(
    "verify_assignments", "partition_ids int4[], in_after int8[], most int4", VerifyAssignmentsRow
)


class VerifyBatchesRow(NamedTuple):
    next_after: int | Any
    batches: int
    records: int
    broken: Any


VERIFY_BATCHES: Final = Function(
    "verify_batches",
    "in_partition_id int4, after_offset int8, max_rows int4, max_bytes int8, until_offset int8",
    VerifyBatchesRow,
)


class VerifyBeginningsRow(NamedTuple):
    next_after: list[int] | Any
    looked_at: int
    undecided: int
    broken: Any


VERIFY_BEGINNINGS: Final = Function(
    "verify_beginnings", "in_partition_id int4, in_after int8[], most int4", VerifyBeginningsRow
)


class VerifyCutRow(NamedTuple):
    next_after: list[int] | Any
    looked_at: int
    transactions: int
    broken: Any


VERIFY_CUT: Final = Function("verify_cut", "partition_ids int4[], ends int8[], in_after int8[], most int4", VerifyCutRow)


class VerifyDecisionsRow(NamedTuple):
    next_after: list[int] | Any
    looked_at: int
    transactions: int
    broken: Any


VERIFY_DECISIONS: Final = Function(
    "verify_decisions", "partition_ids int4[], in_after int8[], most int4", VerifyDecisionsRow
)


class VerifyMarkersRow(NamedTuple):
    next_after: list[int] | Any
    looked_at: int
    broken: Any


VERIFY_MARKERS: Final = Function("verify_markers", "in_partition_id int4, in_after int8[], most int4", VerifyMarkersRow)


class VerifyOffsetsRow(NamedTuple):
    next_after: list[int] | Any
    looked_at: int
    offsets: int
    behind: int
    broken: Any


VERIFY_OFFSETS: Final = Function("verify_offsets", "partition_ids int4[], in_after int8[], most int4", VerifyOffsetsRow)


class VerifyPartitionRow(NamedTuple):
    log_start_offset: int | Any
    first_offset: int | Any
    log_end_offset: int | Any
    stable_floor: int | Any
    broken: list[str]


VERIFY_PARTITION: Final = Function("verify_partition", "in_partition_id int4", VerifyPartitionRow)


class VerifyPartitionsRow(NamedTuple):
    partition_id: int
    log_start_offset: int
    first_offset: int | Any
    log_end_offset: int
    stable_floor: int | Any
    broken: list[str]
    last_row: int | Any
    has_beginnings: bool
    has_markers: bool


VERIFY_PARTITIONS: Final = Function("verify_partitions", "partition_ids int4[]", VerifyPartitionsRow)
WAIT_FOR_RECORDS: Final = Function("wait_for_records", "topic text, group_name text, timeout interval", tuple[bool])


class WaitingGroupsRow(NamedTuple):
    partition_id: int | Any
    group_name: str | Any
    is_share_group: bool | Any
    since: datetime | Any
    searched: int


WAITING_GROUPS: Final = Function("waiting_groups", "partition_ids int4[], stable_ends int8[]", WaitingGroupsRow)


class WaitingSharesRow(NamedTuple):
    group_name: str
    topic: str
    partition_index: int
    members: int
    start_offset: int
    next_offset: int
    readable_end: int
    max_record_locks: int
    available: int
    acquired: int
    pending: int
    rejected: int
    delayed: int
    waiting: int
    due_at: datetime | Any
    reason: str | Any
    deliveries: int | Any
    member_id: str | Any
    client_host: str | Any
    client_process: int | Any
    locked_until: datetime | Any
    lock_ms: int | Any
    producer_id: int | Any
    producer_epoch: int | Any
    transaction_number: int | Any
    transactional_id: str | Any
    opened_at: datetime | Any
    timeout_ms: int | Any
    opener_host: str | Any
    opener_process: int | Any
    database_backend: int | Any
    seal_kind: str | Any
    checked_at: datetime
    found: int
    writes_letters: bool
    exhausted: int

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition_index)

    @property
    def transaction_id(self) -> TransactionId:
        return TransactionId(self.producer_id, self.producer_epoch, self.transaction_number)


WAITING_SHARES: Final = Function("waiting_shares", "most int4", WaitingSharesRow)


class WokenSinceRow(NamedTuple):
    snapshot: str
    words: str | Any


WOKEN_SINCE: Final = Function("woken_since", "in_snapshot text", WokenSinceRow)
WRITE_BATCH: Final = Function(
    "write_batch",
    "app_id text, batch_id int8, receipt text, topic text, values bytea[], keys bytea[], partitions int4[], "
    "timestamps timestamptz[], headers jsonb[], timeout interval",
    tuple[str | Any],
)
