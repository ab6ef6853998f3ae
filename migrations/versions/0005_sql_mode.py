"""Messages in the user's own SQL transaction: seals, records that wait for a COMMIT, keys of deduplication."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables; add to seals the offsets that they hold back, and the key that signs them."""
    for statement in TABLES:
        op.execute(statement)
    for table in ("staged_record", "transaction_seal"):
        # Few, short-lived rows: vacuum removes them before their index grows.
        op.execute(
            f"""alter table msgtx.{table} set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
                autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 10000)"""
        )
    # For reports by time: rows are stored in order of time, so a range of pages has a range of times. It costs an append
    # nothing measurable, and only bitmap scans use it, which the functions that read the log turn off.
    op.execute(
        """create index record_batch_appended_at on msgtx.record_batch using brin (appended_at)
            with (pages_per_range = 32)"""
    )
    for column in ("key", "value", "headers"):
        # They are read once: compressing them first is wasted work.
        op.execute(f"alter table msgtx.staged_record alter column {column} set storage external")
    op.execute("insert into msgtx.setting (name, value) values ('dedup_window_ms', 3600000)")
    op.execute("update msgtx.installation set schema_version = 5")


def downgrade() -> None:
    """Remove what `upgrade` made. Prepared transactions stay as they are."""
    op.execute("delete from msgtx.setting where name = 'dedup_window_ms'")
    op.execute("drop index msgtx.record_batch_appended_at")
    op.execute("drop table msgtx.dedup_key")
    op.execute("drop table msgtx.staged_record")
    op.execute("alter table msgtx.transaction_seal drop column group_ids, drop column group_partitions")
    op.execute("alter table msgtx.transaction_seal drop column commit_sequences")
    op.execute(
        """alter table msgtx.transaction_seal reset (autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold,
            autovacuum_vacuum_insert_threshold)"""
    )
    op.execute("alter table msgtx.transaction_seal set (autovacuum_vacuum_insert_scale_factor = 0.05)")
    op.execute("alter table msgtx.installation drop column seal_secret")


TABLES = (
    # The key that signs a seal: a decision in a user's session does not read the log, and trusts nothing but the signature.
    "alter table msgtx.installation add column seal_secret uuid not null default gen_random_uuid()",
    # The rows of group_offset that wait for the decision.
    """alter table msgtx.transaction_seal
        add column group_ids int[] not null default '{}',
        add column group_partitions int[] not null default '{}',
        add column commit_sequences bigint[] not null default '{}'""",
    # Records of msgtx.publish, until the COMMIT of the SQL transaction that holds them: no other session sees one, and a
    # crash leaves none, so they need no WAL.
    """create unlogged table msgtx.staged_record (
        staged_by xid8 not null default pg_current_xact_id(),
        staged_number bigint generated always as identity,
        partition_id int not null,
        key bytea,
        value bytea,
        headers jsonb,
        "timestamp" bigint not null,
        record_bytes bigint not null,
        constraint staged_record_pkey primary key (staged_by, staged_number)
    )""",
    """create table msgtx.dedup_key (
        topic_id int not null,
        dedup_key text not null constraint dedup_key_is_of_1_to_256_bytes check (octet_length(dedup_key) between 1 and 256),
        partition_id int not null,
        record_offset bigint not null,
        record_timestamp bigint not null,
        appended_at timestamptz not null,
        constraint dedup_key_pkey primary key (topic_id, dedup_key)
    ) with (fillfactor = 50)""",  # a key is taken first and gets its offset later: the page has room for that
    "create index dedup_key_appended_at on msgtx.dedup_key (appended_at)",
)
