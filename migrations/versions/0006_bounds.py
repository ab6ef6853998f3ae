"""Bounds: what waits, grows or is asked for has a limit, and groups and transactional ids have rights of their own."""

import sqlalchemy
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the tables."""
    for statement in TABLES:
        op.execute(statement)
    for name, value in SETTINGS.items():
        insert = sqlalchemy.text("insert into msgtx.setting (name, value) values (:name, :value)")
        op.execute(insert.bindparams(name=name, value=value))
    for table in ("staged_commit", "wake_up"):
        # Few, short-lived rows: vacuum removes them before their index grows.
        op.execute(
            f"""alter table msgtx.{table} set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
                autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 10000)"""
        )
    # It is read once: compressing it first is wasted work.
    op.execute("alter table msgtx.staged_commit alter column batches set storage external")
    op.execute("update msgtx.installation set schema_version = 6")


def downgrade() -> None:
    """Undo what `upgrade` did."""
    for name in SETTINGS:
        op.execute(sqlalchemy.text("delete from msgtx.setting where name = :name").bindparams(name=name))
    for statement in UNDONE:
        op.execute(statement)
    op.execute("update msgtx.installation set schema_version = 5")


SETTINGS = {
    # Kafka's is 6 s; a heartbeat costs a row here, and a group this quick is its members' choice.
    "group_min_session_timeout_ms": 100,
    "group_max_session_timeout_ms": 1_800_000,  # Kafka's: how long a silent member may keep its partitions
    "group_max_members": 1_000,  # each division of a group reads what every member subscribes to
}

TABLES: tuple[str, ...] = (
    # Partitions of deleted topics whose logs are not removed yet.
    "create table msgtx.deleted_partition (partition_id int not null constraint deleted_partition_pkey primary key)",
    # Where the database was when its incarnation was made: a copy of it is in another place.
    """alter table msgtx.installation add column system_identifier bigint, add column database_oid bigint,
        add column timeline int""",
    # For the sweep of the producers that retention has kept, which reads only the old ones.
    "create index producer_state_appended_at on msgtx.producer_state (appended_at)",
    # A member reports which topics its pattern matches. For the members that exist now the database does so, once.
    "alter table msgtx.group_member add column topics_version bigint",
    """do $$
    declare
        one record;
    begin
        for one in select m.member_number, m.pattern from msgtx.group_member m where m.topics is null loop
            begin
                update msgtx.group_member m
                set topics = array(
                    select t.name from msgtx.topic t where t.name ~ ('^(?' || chr(58) || one.pattern || ')$') order by 1)
                where m.member_number = one.member_number;
            exception when invalid_regular_expression then
                update msgtx.group_member m set topics = '{}' where m.member_number = one.member_number;
            end;
        end loop;
    end $$""",
    """alter table msgtx.group_member drop constraint group_member_has_one_subscription,
        add constraint group_member_names_its_topics check (topics is not null)""",
    # topic_pattern: a pattern of the resource's names, of a topic or not.
    """alter table msgtx.role_right add column resource text not null default 'topic'
            constraint role_right_is_about_something_known check (
                resource = 'topic' or (resource = 'group' and can = 'consume')
                or (resource = 'transactional_id' and can = 'produce')),
        drop constraint role_right_pkey,
        add constraint role_right_pkey primary key (role_name, can, topic_pattern, resource)""",
    # The owner of a producer id: the role that initialized it last. Null: an earlier version initialized it.
    "alter table msgtx.producer add column role_name name",
    "alter table msgtx.installation add column first_owned_producer_id bigint not null default 0",
    """update msgtx.installation set first_owned_producer_id = (
        select case when s.is_called then s.last_value + 1 else s.last_value end from msgtx.producer_id_sequence s)""",
    # What a SQL transaction is to write when it commits: offsets and batches of a session; the rows with a round fire the
    # trigger that does it. No other session ever sees one, and a crash leaves none, so they need no WAL.
    """create unlogged table msgtx.staged_commit (
        staged_by xid8 not null default pg_current_xact_id(),
        staged_number bigint generated always as identity,
        round int,
        batches msgtx.batch[],
        group_names text[],
        offset_partitions int[],
        offsets bigint[],
        metadata text[],
        member_ids text[],
        generations int[],
        read_identities text[],
        instance_ids text[],
        constraint staged_commit_pkey primary key (staged_by, staged_number)
    )""",
    # Readers of a COMMIT that nothing else notifies. After a crash every listener connects again, and looks.
    """create unlogged table msgtx.wake_up (
        woken_by xid8 not null default pg_current_xact_id(),
        wake_number bigint generated always as identity,
        words text not null,
        woken_at timestamptz not null default clock_timestamp(),
        constraint wake_up_pkey primary key (woken_by, wake_number)
    )""",
    # Which run of a query committed a batch, and which source of which run notes what it reads.
    "alter table msgtx.spark_batch add column run_id text not null default ''"
    " constraint spark_batch_run_is_short check (octet_length(run_id) <= 1000)",
    "create index spark_batch_by_query on msgtx.spark_batch (query_id, batch_id)",
    "alter table msgtx.spark_range add column run_id text not null default ''"
    " constraint spark_range_run_is_short check (octet_length(run_id) <= 1000)",
    "alter table msgtx.spark_range add column source_id text not null default ''"
    " constraint spark_range_source_is_short check (octet_length(source_id) <= 1000)",
)
# To be undone in this order.
UNDONE: tuple[str, ...] = (
    "alter table msgtx.spark_range drop column source_id",
    "alter table msgtx.spark_range drop column run_id",
    # What is noted without a group means nothing to an older version.
    "delete from msgtx.spark_range where group_name = ''",
    "drop index msgtx.spark_batch_by_query",
    "alter table msgtx.spark_batch drop column run_id",
    "drop index msgtx.producer_state_appended_at",
    "alter table msgtx.installation drop column system_identifier, drop column database_oid, drop column timeline",
    "drop table msgtx.deleted_partition",
    "alter table msgtx.installation drop column first_owned_producer_id",
    "alter table msgtx.producer drop column role_name",
    "delete from msgtx.role_right where resource <> 'topic'",
    """alter table msgtx.role_right drop constraint role_right_pkey, drop column resource,
        add constraint role_right_pkey primary key (role_name, can, topic_pattern)""",
    "alter table msgtx.group_member drop constraint group_member_names_its_topics",
    "update msgtx.group_member set topics = null where pattern is not null",
    """alter table msgtx.group_member drop column topics_version,
        add constraint group_member_has_one_subscription check ((topics is null) <> (pattern is null))""",
    "drop table msgtx.wake_up",
    "drop table msgtx.staged_commit",
)
