"""Share groups: records delivered one by one, acknowledged one by one. Where attempts of Spark are decided; times ahead."""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    for statement in TABLES:
        op.execute(statement)
    # Versions are short-lived: vacuum removes those that were superseded before the index grows.
    for table in ("share_state", "share_parked", "share_call", "share_pending", "swept"):
        op.execute(
            f"""alter table msgtx.{table} set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
                autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000)"""
        )
    op.execute("alter table msgtx.installation add column sequences_system bigint, add column sequences_database bigint")
    op.execute("update msgtx.installation set sequences_system = system_identifier, sequences_database = database_oid")
    op.execute("insert into msgtx.setting (name, value) values ('sweep_max_bytes_per_second', 16777216)")
    op.execute("update msgtx.installation set schema_version = 8")


def downgrade() -> None:
    """Remove what `upgrade` made."""
    op.execute("delete from msgtx.setting where name = 'sweep_max_bytes_per_second'")
    op.execute("alter table msgtx.installation drop column sequences_system, drop column sequences_database")
    op.execute("delete from msgtx.role_right where can = 'observe'")
    op.execute(
        """alter table msgtx.role_right drop constraint role_right_is_known,
            add constraint role_right_is_known check (can in ('produce', 'consume', 'admin'))"""
    )
    for column in ("groups", "members", "partitions", "firsts", "lasts", "answers", "reasons", "delays", "calls"):
        op.execute(f"alter table msgtx.staged_commit drop column share_{column}")
    op.execute("alter table msgtx.partition drop column seen_at, drop column seen_offset")
    op.execute("alter table msgtx.transaction drop column seen_at")
    op.execute("alter table msgtx.spark_attempt drop constraint spark_attempt_names_are_short")
    op.execute("drop table msgtx.mirror_place")
    op.execute("drop table msgtx.mirror")
    op.execute("drop table msgtx.spark_floor")
    op.execute("drop index msgtx.spark_attempt_by_number")
    op.execute("drop index msgtx.spark_range_by_end")
    op.execute(
        """alter table msgtx.spark_attempt drop constraint spark_attempt_pkey,
            add constraint spark_attempt_pkey primary key (app_id, query_id, batch_id, producer_id)"""
    )
    op.execute("drop table msgtx.swept")
    op.execute("drop table msgtx.share_pending")
    op.execute("drop table msgtx.share_call")
    op.execute("drop table msgtx.share_parked")
    op.execute("drop table msgtx.share_state")
    op.execute("drop table msgtx.share_topic")
    op.execute("drop table msgtx.share_group")
    op.execute("drop type msgtx.received_record")
    op.execute("drop type msgtx.taken_record")
    op.execute("drop type msgtx.found_record")
    op.execute("drop type msgtx.share_span")
    op.execute("update msgtx.installation set schema_version = 7")


TABLES = (
    # Records of one state, in a row: what is not in any span is acknowledged, or was never acquired (behind next_offset).
    """create type msgtx.share_span as (
        first_offset bigint,
        last_offset bigint,
        status text,
        delivery_count int,
        member_number bigint,
        call_number bigint,
        locked_until timestamptz,
        producer_id bigint,
        producer_epoch int,
        transaction_number bigint,
        answer text,
        reason text
    )""",
    # Its settings; a group with a row here is a share group. longest_lock_ms: the longest record_lock_duration_ms so far;
    # such locks may still run. writes_dead_letters: one that had the right to has said so.
    """create table msgtx.share_group (
        group_id int not null constraint share_group_pkey primary key,
        auto_offset_reset text not null default 'latest'
            constraint share_group_reset_is_known check (auto_offset_reset ~ '^(latest|earliest|by_duration:P.+)$'),
        isolation text not null default 'read_committed'
            constraint share_group_isolation_is_known check (isolation in ('read_committed', 'read_uncommitted')),
        record_lock_duration_ms int not null default 30000
            constraint share_group_lock_is_positive check (record_lock_duration_ms > 0),
        delivery_count_limit int not null default 5
            constraint share_group_limit_is_positive check (delivery_count_limit > 0),
        max_record_locks int not null default 2000 constraint share_group_locks_are_positive check (max_record_locks > 0),
        dead_letter_topic text,
        ordering text not null default 'none' constraint share_group_ordering_is_known check (ordering in ('none', 'key')),
        release_backoff_ms int not null default 0
            constraint share_group_backoff_is_not_negative check (release_backoff_ms >= 0),
        release_backoff_max_ms int not null default 60000
            constraint share_group_backoff_has_a_limit check (release_backoff_max_ms >= 0),
        longest_lock_ms int not null default 30000,
        writes_dead_letters boolean not null default false
    )""",
    # Topics with which a group has begun, by name: what is made under that name later is read from its beginning.
    """create table msgtx.share_topic (
        group_id int not null,
        topic_name text not null,
        constraint share_topic_pkey primary key (group_id, topic_name)
    )""",
    """create table msgtx.share_state (
        group_id int not null,
        partition_id int not null,
        version bigint not null,
        next_offset bigint not null,
        next_token text,
        spans msgtx.share_span[] not null,
        next_due timestamptz,
        waiting_keys bigint[] not null default '{}',
        constraint share_state_pkey primary key (group_id, partition_id, version)
    )""",
    # Records that are not to be delivered now: those that are delayed, until due_at, and those that wait for an earlier one
    # with their key.
    """create table msgtx.share_parked (
        group_id int not null,
        partition_id int not null,
        first_offset bigint not null,
        last_offset bigint not null,
        parked_at timestamptz,
        due_at timestamptz,
        key_hash bigint,
        delivery_count int not null,
        member_number bigint,
        reason text,
        constraint share_parked_pkey primary key (group_id, partition_id, first_offset)
    )""",
    """create index share_parked_due on msgtx.share_parked (group_id, partition_id, due_at, first_offset)
        where due_at is not null""",
    """create index share_parked_parked_at on msgtx.share_parked (parked_at) where parked_at is not null""",
    """create index share_parked_key on msgtx.share_parked (group_id, partition_id, key_hash, first_offset)
        where key_hash is not null""",
    # Acknowledgements that were applied, the newest of each member: one that is sent again is not refused for that.
    """create table msgtx.share_call (
        member_number bigint not null,
        call_number bigint not null,
        constraint share_call_pkey primary key (member_number, call_number)
    )""",
    # Where a transaction has acknowledgements: its decision is kept until they are settled.
    """create table msgtx.share_pending (
        producer_id bigint not null,
        producer_epoch int not null,
        transaction_number bigint not null,
        group_id int not null,
        partition_id int not null,
        constraint share_pending_pkey primary key (producer_id, producer_epoch, transaction_number, group_id, partition_id)
    )""",
    # Below which number sweeps have left no superseded row of a key: those that were removed may stay in the index for long.
    """create table msgtx.swept (
        kind text not null
            constraint swept_kind_is_known check (kind in ('state', 'call', 'heartbeat', 'floor', 'offset')),
        key_1 bigint not null,
        key_2 bigint not null,
        below bigint not null,
        constraint swept_pkey primary key (kind, key_1, key_2, below)
    )""",
    # Answers of members that a session commits.
    """alter table msgtx.staged_commit
        add column share_groups text[] not null default '{}',
        add column share_members bigint[] not null default '{}',
        add column share_partitions int[] not null default '{}',
        add column share_firsts bigint[] not null default '{}',
        add column share_lasts bigint[] not null default '{}',
        add column share_answers text[] not null default '{}',
        add column share_reasons text[] not null default '{}',
        add column share_delays int[] not null default '{}',
        add column share_calls bigint[] not null default '{}'""",
    # No other attempt has its producer id.
    """alter table msgtx.spark_attempt drop constraint spark_attempt_pkey,
        add constraint spark_attempt_pkey primary key (producer_id),
        add constraint spark_attempt_names_are_short
            check (octet_length(app_id) <= 1000 and octet_length(query_id) <= 1000)""",
    # The sequence's part of a producer id, without the tag of a role: attempts in the order in which they were registered.
    """create index spark_attempt_by_number
        on msgtx.spark_attempt (app_id, (query_id = ''), (producer_id & 1099511627775))""",
    # Which batch of a group ended at an offset.
    "create index spark_range_by_end on msgtx.spark_range (group_name, partition_id, end_offset)",
    # When a sweep first saw that its time lies further in the future than it lasts: its age counts from then. Of a log, that
    # of its first row; seen_offset is where the log ended then.
    "alter table msgtx.transaction add column seen_at timestamptz",
    "alter table msgtx.partition add column seen_at timestamptz, add column seen_offset bigint",
    # Attempts of the application with a lower number are decided; the newest counts. Of a program's batches, or of queries'.
    """create table msgtx.spark_floor (
        app_id text not null,
        of_program boolean not null,
        decided_below bigint not null,
        constraint spark_floor_pkey primary key (app_id, of_program, decided_below)
    )""",
    # A mirror whose target this is. run_id: of the process that copies; producer_id, producer_epoch: with which it does;
    # revision: of its progress, which a write compares.
    # moved_at: the last write of progress; seen_at: the last word of the run, with its lag; error: why it has ended.
    """create table msgtx.mirror (
        name text not null constraint mirror_pkey primary key,
        run_id uuid not null,
        producer_id bigint not null,
        producer_epoch int not null,
        revision bigint not null default 0,
        source text,
        source_address text not null,
        client_host text not null,
        client_process int not null,
        started_at timestamptz not null,
        moved_at timestamptz not null,
        seen_at timestamptz not null,
        records bigint not null default 0,
        lag_records bigint not null default 0,
        lag_ms bigint not null default 0,
        error text,
        constraint mirror_names_are_short check (octet_length(name) <= 230 and octet_length(source_address) <= 2000),
        constraint mirror_error_is_short check (octet_length(error) <= 8000)
    ) with (fillfactor = 50)""",
    # How far a mirror has copied a partition of its source; the identities are the source's.
    """create table msgtx.mirror_place (
        mirror_name text not null,
        topic_name text not null,
        partition_index int not null,
        next_offset bigint not null constraint mirror_place_is_not_negative check (next_offset >= 0),
        topic_identity text not null,
        row_identity text not null,
        constraint mirror_place_pkey primary key (mirror_name, topic_name, partition_index)
    ) with (fillfactor = 50)""",
    # A record as `msgtx.take` returns it.
    """create type msgtx.taken_record as (
        topic text,
        partition int,
        "offset" bigint,
        "timestamp" timestamptz,
        key bytea,
        value bytea,
        headers jsonb
    )""",
    # A record as `msgtx.find` returns it.
    """create type msgtx.found_record as (
        topic text,
        partition int,
        "offset" bigint,
        "timestamp" timestamptz,
        stored_at timestamptz,
        key bytea,
        value bytea,
        headers jsonb,
        outcome text,
        transactional_id text,
        producer_id bigint,
        decided_at timestamptz,
        deliver_at timestamptz,
        groups jsonb,
        dead_letters jsonb
    )""",
    """alter table msgtx.role_right drop constraint role_right_is_known,
        add constraint role_right_is_known check (can in ('produce', 'consume', 'observe', 'admin'))""",
    # A record as `msgtx.receive` returns it.
    """create type msgtx.received_record as (
        topic text,
        partition int,
        "offset" bigint,
        "timestamp" timestamptz,
        key bytea,
        value bytea,
        headers jsonb,
        delivery_count int,
        locked_until timestamptz,
        receipt text
    )""",
)
