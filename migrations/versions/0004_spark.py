"""Named snapshots, and what makes Spark's batches exactly once (architecture: tables)."""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    for statement in TABLES:
        op.execute(statement)
    op.execute("update msgtx.installation set schema_version = 4")


def downgrade() -> None:
    """Remove what `upgrade` made."""
    for table in ("spark_range", "spark_attempt", "spark_batch", "named_snapshot"):
        op.execute(f"drop table msgtx.{table}")


TABLES = (
    """create table msgtx.named_snapshot (
        name text not null constraint named_snapshot_pkey primary key
            constraint named_snapshot_name_is_allowed check (name ~ '^[a-zA-Z0-9._-]{1,249}$'),
        snapshot text not null,
        taken_at timestamptz not null,
        role_name name not null
    )""",
    # query_id: Spark's, which lives in the checkpoint; '' for batches that a program counts by itself.
    """create table msgtx.spark_batch (
        app_id text not null constraint spark_batch_app_is_not_empty check (app_id <> ''),
        query_id text not null,
        batch_id bigint not null constraint spark_batch_id_is_not_negative check (batch_id >= 0),
        decided_at timestamptz not null,
        constraint spark_batch_pkey primary key (app_id, query_id, batch_id)
    )""",
    """create table msgtx.spark_attempt (
        app_id text not null,
        query_id text not null,
        batch_id bigint not null,
        producer_id bigint not null,
        begun_at timestamptz not null,
        constraint spark_attempt_pkey primary key (app_id, query_id, batch_id, producer_id)
    )""",
    """create table msgtx.spark_range (
        query_id text not null,
        batch_id bigint not null,
        group_name text not null,
        partition_id int not null,
        start_offset bigint not null,
        end_offset bigint not null,
        recorded_at timestamptz not null,
        constraint spark_range_pkey primary key (query_id, batch_id, group_name, partition_id)
    )""",
)
