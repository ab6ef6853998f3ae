"""Members of consumer groups, what retention and compaction remember, and rights (architecture: tables)."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables of membership and rights; add columns for compaction and members."""
    for statement in TABLES:
        op.execute(statement)
    op.execute(
        """alter table msgtx.installation add column topics_version bigint not null default 0,
            add column topics_changed_at timestamptz"""
    )
    op.execute(
        """alter table msgtx.consumer_group add column strategy text,
            add column topics_version bigint not null default 0, add column stale boolean not null default false,
            add column emptied_at timestamptz, add column changed_at timestamptz"""
    )
    # counted_bytes: of the rows below counted_offset, compacted_bytes: of those below compacted_offset. Only cleaning
    # writes them, and for many rows at once: to learn the size of a log, it is not read from end to end.
    op.execute(
        """alter table msgtx.partition add column compacted_offset bigint not null default 0,
            add column compacted_bytes bigint not null default 0, add column counted_offset bigint not null default 0,
            add column counted_bytes bigint not null default 0, add column tombstones_since timestamptz"""
    )
    op.execute("alter table msgtx.record_batch add column compacted_at timestamptz")
    op.execute("update msgtx.installation set schema_version = 3")


def downgrade() -> None:
    """Remove what `upgrade` made."""
    op.execute("alter table msgtx.record_batch drop column compacted_at")
    op.execute(
        """alter table msgtx.partition drop column compacted_offset, drop column compacted_bytes,
            drop column counted_offset, drop column counted_bytes, drop column tombstones_since"""
    )
    op.execute(
        """alter table msgtx.consumer_group drop column strategy, drop column topics_version, drop column stale,
            drop column emptied_at, drop column changed_at"""
    )
    op.execute("alter table msgtx.installation drop column topics_version, drop column topics_changed_at")
    for table in ("role_right", "group_heartbeat", "group_assignment", "group_member"):
        op.execute(f"drop table msgtx.{table}")


TABLES = (
    """create table msgtx.group_member (
        member_number bigint generated always as identity constraint group_member_pkey primary key,
        group_id int not null,
        member_id text not null constraint group_member_id_is_not_empty check (member_id <> ''),
        group_instance_id text constraint group_member_instance_is_not_empty check (group_instance_id <> ''),
        client_host text,
        client_process int,
        session_timeout_ms int not null constraint group_member_session_timeout_is_positive check (session_timeout_ms > 0),
        topics text[],
        pattern text,
        joined_at timestamptz not null,
        constraint group_member_id_is_unique unique (group_id, member_id),
        constraint group_member_has_one_subscription check ((topics is null) <> (pattern is null))
    )""",
    # Partial: of two indexes that begin alike, a plan that was made while the table was small may use either.
    """create unique index group_member_instance_is_unique on msgtx.group_member (group_id, group_instance_id)
        where group_instance_id is not null""",
    # The primary key: a partition has at most one owner.
    """create table msgtx.group_assignment (
        group_id int not null,
        partition_id int not null,
        owner bigint,
        owner_since int,
        target bigint,
        constraint group_assignment_pkey primary key (group_id, partition_id)
    )""",
    """create table msgtx.group_heartbeat (
        member_number bigint not null,
        heartbeat_number bigint not null,
        heartbeat_at timestamptz not null,
        constraint group_heartbeat_pkey primary key (member_number, heartbeat_number)
    )""",
    """create table msgtx.role_right (
        role_name name not null,
        can text not null constraint role_right_is_known check (can in ('produce', 'consume', 'admin')),
        topic_pattern text not null,
        constraint role_right_pkey primary key (role_name, can, topic_pattern)
    )""",
)
