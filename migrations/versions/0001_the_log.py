"""The log, its producers, its transactions and the groups' offsets (architecture: tables)."""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

INSERT_ONLY = (
    "record_batch",
    "transaction",
    "transaction_partition",
    "transaction_seal",
    "transaction_decision",
    "transaction_marker",
    "partition_floor",
    "group_offset",
)
ARRAYS = ("keys", "values", "timestamps", "header_counts", "header_keys", "header_values", "offset_deltas")
NAME = r"'^[a-zA-Z0-9._-]{1,249}$'"


def upgrade() -> None:
    """Create the tables; probe how arrays are best compressed."""
    for statement in TABLES:
        op.execute(statement)
    for table in INSERT_ONLY:
        # Rows are inserted once: vacuum only freezes them and sets their visibility, early and in small steps.
        op.execute(
            f"""alter table msgtx.{table} set (autovacuum_vacuum_insert_scale_factor = 0.05,
                autovacuum_freeze_min_age = 1000000, autovacuum_analyze_scale_factor = 0.1)"""
        )
    for column in ARRAYS:
        # pglz is three to four times slower than lz4 and than no compression at all; a server without lz4 refuses it.
        op.execute(
            f"""do $$ begin
                alter table msgtx.record_batch alter column "{column}" set compression lz4;
            exception when feature_not_supported then
                alter table msgtx.record_batch alter column "{column}" set storage external;
            end $$"""
        )
    op.execute("insert into msgtx.installation (incarnation, schema_version) values (gen_random_uuid(), 1)")
    op.execute(
        """insert into msgtx.setting (name, value) values
            ('transaction_max_timeout_ms', 900000), ('transactional_id_expiration_ms', 604800000),
            ('transaction_history_ms', 604800000), ('offsets_retention_ms', 604800000),
            ('producer_id_expiration_ms', 86400000), ('sweep_interval_ms', 1000), ('lease_ms', 10000)"""
    )


def downgrade() -> None:
    """Remove everything that `upgrade` made."""
    op.execute("drop type msgtx.batch")
    for table in (
        *INSERT_ONLY,
        "producer_state",
        "producer",
        "consumer_group",
        "partition",
        "topic",
        "setting",
        "installation",
    ):
        op.execute(f"drop table msgtx.{table}")
    op.execute("drop sequence msgtx.producer_id_sequence")
    op.execute("drop sequence msgtx.commit_sequence")


# The tables of the hot path have no CHECK: PostgreSQL reads each from its text for every statement, measured 6 µs of an
# insert of 20. Only functions may write them, and they enforce these rules (lock_partitions, insert_decision).
TABLES = (
    """create table msgtx.installation (
        one boolean not null default true constraint installation_pkey primary key
            constraint installation_has_one_row check (one),
        incarnation uuid not null,
        schema_version int not null,
        functions_hash text,
        created_at timestamptz not null default clock_timestamp()
    )""",
    """create table msgtx.setting (
        name text not null constraint setting_pkey primary key,
        value bigint not null constraint setting_is_positive check (value > 0)
    )""",
    f"""create table msgtx.topic (
        topic_id int generated always as identity constraint topic_pkey primary key,
        name text not null constraint topic_name_is_unique unique
            constraint topic_name_is_valid check (name ~ {NAME} and name not in ('.', '..')),
        cleanup_policy text not null default 'delete'
            constraint topic_cleanup_policy_is_known check (cleanup_policy in ('delete', 'compact', 'compact,delete')),
        retention_ms bigint not null default 604800000,
        retention_bytes bigint not null default -1,
        delete_retention_ms bigint not null default 86400000,
        max_message_bytes int not null default 1048588
            constraint topic_max_message_bytes_is_positive check (max_message_bytes > 0),
        timestamp_type text not null default 'CreateTime'
            constraint topic_timestamp_type_is_known check (timestamp_type in ('CreateTime', 'LogAppendTime')),
        created_at timestamptz not null default clock_timestamp()
    )""",
    """create table msgtx.partition (
        partition_id int generated always as identity constraint partition_pkey primary key,
        topic_id int not null constraint partition_has_topic references msgtx.topic,
        partition_index int not null constraint partition_index_is_not_negative check (partition_index >= 0),
        log_start_offset bigint not null default 0
            constraint partition_log_start_is_not_negative check (log_start_offset >= 0),
        constraint partition_index_is_unique unique (topic_id, partition_index)
    )""",
    """create table msgtx.record_batch (
        partition_id int not null,
        base_offset bigint not null,
        last_offset bigint not null,
        producer_id bigint,
        producer_epoch int,
        transaction_number bigint,
        base_sequence bigint,
        last_sequence bigint,
        appended_at timestamptz not null,
        max_timestamp bigint not null,
        record_count int not null,
        byte_size bigint not null,
        keys bytea[],
        "values" bytea[] not null,
        timestamps bigint[],
        header_counts int[],
        header_keys text[],
        header_values bytea[],
        offset_deltas int[],
        constraint record_batch_pkey primary key (partition_id, base_offset)
    )""",
    """create index record_batch_producer on msgtx.record_batch
        (partition_id, producer_id, producer_epoch, base_sequence) where producer_id is not null""",
    """create table msgtx.producer_state (
        partition_id int not null,
        producer_id bigint not null,
        producer_epoch int not null,
        last_sequence bigint not null,
        last_offset bigint not null,
        appended_at timestamptz not null,
        constraint producer_state_pkey primary key (partition_id, producer_id)
    )""",
    """create table msgtx.producer (
        producer_id bigint not null constraint producer_pkey primary key,
        epoch int not null constraint producer_epoch_is_not_negative check (epoch >= 0),
        epoch_before int,
        transactional_id text constraint producer_transactional_id_is_unique unique
            constraint producer_transactional_id_is_not_empty check (transactional_id <> ''),
        timeout_ms int not null constraint producer_timeout_is_positive check (timeout_ms > 0),
        initialized_at timestamptz not null
    )""",
    """create table msgtx.transaction (
        producer_id bigint not null,
        producer_epoch int not null,
        transaction_number bigint not null,
        opened_at timestamptz not null,
        timeout_ms int not null,
        client_host text,
        client_process int,
        database_backend int not null,
        constraint transaction_pkey primary key (producer_id, producer_epoch, transaction_number)
    )""",
    """create table msgtx.transaction_partition (
        producer_id bigint not null,
        producer_epoch int not null,
        transaction_number bigint not null,
        partition_id int not null,
        first_offset bigint not null,
        constraint transaction_partition_pkey
            primary key (producer_id, producer_epoch, transaction_number, partition_id)
    )""",
    """create index transaction_partition_first_offset on msgtx.transaction_partition
        (partition_id, first_offset)""",
    """create table msgtx.transaction_seal (
        producer_id bigint not null,
        producer_epoch int not null,
        transaction_number bigint not null,
        kind text not null constraint transaction_seal_kind_is_known check (kind in ('session', 'external')),
        sealed_at timestamptz not null,
        deadline timestamptz,
        partitions int[] not null,
        first_offsets bigint[] not null,
        last_offsets bigint[] not null,
        constraint transaction_seal_pkey primary key (producer_id, producer_epoch, transaction_number)
    )""",
    """create table msgtx.transaction_decision (
        producer_id bigint not null,
        producer_epoch int not null,
        transaction_number bigint not null,
        outcome text not null,
        decided_at timestamptz not null,
        decided_by text not null,
        coordinator_epoch int not null default 0,
        partitions int[] not null,
        first_offsets bigint[] not null,
        last_offsets bigint[] not null,
        constraint transaction_decision_pkey primary key (producer_id, producer_epoch, transaction_number)
    )""",
    """create index transaction_decision_decided_at on msgtx.transaction_decision (decided_at)
        where partitions <> '{}'""",
    """create table msgtx.transaction_marker (
        partition_id int not null,
        producer_id bigint not null,
        producer_epoch int not null,
        transaction_number bigint not null,
        outcome text not null,
        first_offset bigint not null,
        last_offset bigint not null,
        coordinator_epoch int not null default 0,
        constraint transaction_marker_pkey
            primary key (partition_id, producer_id, producer_epoch, transaction_number)
    )""",
    """create table msgtx.partition_floor (
        partition_id int not null,
        stable_floor bigint not null,
        constraint partition_floor_pkey primary key (partition_id, stable_floor)
    )""",
    """create table msgtx.consumer_group (
        group_id int generated always as identity constraint consumer_group_pkey primary key,
        name text not null constraint consumer_group_name_is_unique unique
            constraint consumer_group_name_is_not_empty check (name <> ''),
        generation int not null default 0,
        created_at timestamptz not null default clock_timestamp()
    )""",
    """create table msgtx.group_offset (
        group_id int not null,
        partition_id int not null,
        commit_sequence bigint not null,
        committed_offset bigint not null
            constraint group_offset_is_not_negative check (committed_offset >= 0),
        metadata text not null default ''
            constraint group_offset_metadata_is_short check (octet_length(metadata) <= 4096),
        member_id text,
        generation int,
        producer_id bigint,
        producer_epoch int,
        transaction_number bigint,
        committed_at timestamptz not null,
        constraint group_offset_pkey primary key (group_id, partition_id, commit_sequence)
    )""",
    "create sequence msgtx.producer_id_sequence",
    "create sequence msgtx.commit_sequence",
    """create type msgtx.batch as (
        partition_id int,
        producer_id bigint,
        producer_epoch int,
        transaction_number bigint,
        base_sequence bigint,
        max_timestamp bigint,
        keys bytea[],
        "values" bytea[],
        timestamps bigint[],
        header_counts int[],
        header_keys text[],
        header_values bytea[]
    )""",
)
