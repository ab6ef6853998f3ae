"""The privileges behind each right: functions to call and views to read, given to the roles of `msgtx.role_right`.

Rights on topics, consumer groups and transactional ids are checked inside the functions and views. Functions without such
a check are given only to roles that may administer every topic; the rest is the owner's.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from sqlalchemy import Connection, text

ALL_TOPICS: Final = "*"


class Resource(StrEnum):
    """The kind of resource that a right names. Groups are consumed with, transactional ids produced with."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional_id"


class Right(StrEnum):
    """The rights of a role on topics."""

    PRODUCE = "produce"
    CONSUME = "consume"
    ADMIN = "admin"


# Every call of the library stands here, or is the owner's. `fetch_batches` shows a topic's ends to every
# role with a right on it, for view `partitions`; records only to roles that may consume.
_EVERYBODY: Final = frozenset(
    {
        "describe_installation",
        "describe_topics",
        "expire_holders",
        "fetch_batches",
        "list_offsets",
        "topics_of_caller",
        "transaction_outcome",
        "partitions",
        "topics",
    }
)
# Views of data beside the records, and the right that each asks for.
_HISTORY: Final = frozenset(
    {"transaction_markers", "consumer_groups", "group_offsets", "offset_counts", "may_use"}
    | {"share_groups", "share_partitions", "share_spans", "spans_of_share_groups"}
)
NEEDS: Final[Mapping[Right, frozenset[str]]] = MappingProxyType(
    {
        Right.PRODUCE: _EVERYBODY
        | {"init_producer_id", "append", "append_and_decide", "decide", "end_transaction", "mark"}
        | {
            "lock_producers",
            "try_lock_transactions",
            "append_once",
            "seal",
            "take_seat",
            "decide_sealed",
            "commit_in_session",
            "undecided_prepared",
            "complete_prepared",
        }
        | {"tell_readers", "publish", "begin_attempt", "is_batch_committed", "last_batch", "decide_batch", "abort_batch"}
        | {"renew_attempts"},
        Right.CONSUME: _EVERYBODY
        | {"count_records", "commit_offsets", "commit_in_session", "committed_offsets"}
        | {"record_range", "save_snapshot", "saved_snapshots", "delete_snapshot", "measure_ranges"}
        | {"consistent_cut", "spans_of_transactions"}
        | {"join_group", "describe_members", "assign_partitions", "release_partitions"}
        | {"join_share_group", "acquire_records", "acquire_records_together", "read_records", "acknowledge_records"}
        | {"flush_log"}
        | {"remove_superseded_shares"}
        | {"acknowledge_in_transaction", "acknowledge_in_session", "append_acknowledge_decide", "ensure_dead_letters"}
        | {"redrive_dead_letters"}
        | {"leave_group", "heartbeat_group", "member_assignment", "topics_version", "woken_since", "remove_wake_ups"}
        | {"records", "committed_records", "committed_records_now", "is_committed", "last_stable_offset"}
        | {"transactions", "describe_transaction"}
        | {"committed_batches", "check_range", "record_batches", "read", "partition_id_of", "base_offset_of", "value_json"}
        | _HISTORY,
        Right.ADMIN: _EVERYBODY
        | {"create_topic", "alter_topic", "delete_topic", "remove_deleted_logs", "delete_records"}
        | {"describe_producers", "transactions", "describe_transaction"}
        | {"committed_offsets", "count_records", "consistent_cut", "measure_ranges"}
        | _HISTORY,
    }
)
# Beside `NEEDS[ADMIN]`, for roles that administer every topic: objects that concern the whole installation.
EVERYWHERE: Final = frozenset(
    {
        *("end_transaction", "expire_overdue", "fence_producer"),
        *("mark", "mark_partitions"),
        *("remove_idle_producers", "purge_transactions", "remove_superseded_offsets", "remove_superseded_floors"),
        *("remove_members", "remove_heartbeats", "remove_old_batches", "remove_spark_history", "remove_decided_seals"),
        *("remove_dedup_keys", "remove_wake_ups", "remove_superseded_shares", "settle_shares", "bury_dead_shares"),
        *("find_dirty_log", "read_keys", "compact_batches", "finish_compaction"),
        *("lease_shards", "release_shards", "list_coordinators", "find_coordinator"),
        *("undecided_transactions", "undecided_seals", "unfinished_decisions", "neglected_groups", "waiting_shares"),
        *("describe_members", "first_records", "list_groups", "delete_group", "delete_offsets", "reset_offsets"),
        *("configure_share_group", "describe_share_groups", "share_group_names", "reset_share_offsets"),
        *("describe_server", "describe_sessions", "lock_holders", "snapshot_holders", "table_statistics"),
        *("describe_lock_table", "describe_notifications", "describe_place"),
        *("measure_groups", "measure_partitions", "measure_lags", "measure_shares", "measure_dead_letters"),
        *("verify_partition", "verify_batches", "verify_beginnings", "verify_markers", "verify_decisions", "verify_offsets"),
        *("verify_cut", "verify_assignments"),
    }
)
OWNERS: Final = frozenset({"change_incarnation", "fence_everybody", "fence_plain_producers", "end_sessions", "note_place"})
MANAGED: Final = frozenset().union(*NEEDS.values(), EVERYWHERE, OWNERS)


def needed(rights: Iterable[tuple[Right, str]]) -> frozenset[str]:
    """Return the functions and views that a role with these rights needs: pairs of a right and its pattern of names."""
    found: set[str] = set()
    for right, pattern in rights:
        found |= NEEDS[right]
        if right is Right.ADMIN and pattern == ALL_TOPICS:
            found |= EVERYWHERE
    return frozenset(found)


def rights_on(name: str) -> tuple[Right, ...]:
    """Return the rights of which each lets a role call this function or read this view; none: it is the owner's."""
    found = tuple(right for right in Right if name in NEEDS[right])
    return found or ((Right.ADMIN,) if name in EVERYWHERE else ())


def derive(connection: Connection) -> None:
    """Grant and revoke until every role has exactly the privileges of its rights. Forget dropped roles."""
    connection.execute(text(FORGET_THE_GONE))
    for (role,) in connection.execute(text("select distinct role_name::text from msgtx.role_right order by 1")).all():
        bring(connection, role)


def bring(connection: Connection, role: str) -> None:
    """Give a role the functions and views that its rights need, and take the others from it. The role exists."""
    rows = connection.execute(text(RIGHTS_OF), {"role": role}).all()
    wanted = needed((Right(can), pattern) for can, pattern in rows)
    (grantee,) = connection.execute(text("select quote_ident(:role)"), {"role": role}).one()
    for names, verb, word in ((MANAGED - wanted, "revoke", "from"), (wanted, "grant", "to")):
        for kind, privilege, identities in connection.execute(text(OBJECTS_NAMED), {"names": sorted(names)}).all():
            cascade = " cascade" if verb == "revoke" else ""
            _run(connection, f"{verb} {privilege} on {kind} {identities} {word} {grantee}{cascade}")
    _run(
        connection,
        f"grant usage on schema msgtx to {grantee}" if wanted else f"revoke usage on schema msgtx from {grantee} cascade",
    )


def _run(connection: Connection, statement: str) -> None:
    """Run a statement whose identifiers the database has quoted: no parameters, so that `:` and `%` are PostgreSQL's."""
    connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


# A role that was dropped and made anew has lost its USAGE: the rights were its predecessor's.
FORGET_THE_GONE = """
    delete from msgtx.role_right r
    where not exists (
        select from pg_roles g where g.rolname = r.role_name and has_schema_privilege(g.oid, 'msgtx', 'USAGE'))"""
RIGHTS_OF = """
    select can, case resource when 'topic' then topic_pattern else '' end
    from msgtx.role_right where role_name::text = :role order by 1, 2"""
OBJECTS_NAMED = """
    select kind, privilege, string_agg(identity, ', ' order by identity)
    from (
        select 'function' as kind, 'execute' as privilege, p.proname as name,
               format('msgtx.%I(%s)', p.proname, pg_get_function_identity_arguments(p.oid)) as identity
        from pg_proc p where p.pronamespace = to_regnamespace('msgtx') and p.prokind = 'f'
        union all
        select 'table', 'select', c.relname, format('msgtx.%I', c.relname)
        from pg_class c where c.relnamespace = to_regnamespace('msgtx') and c.relkind = 'v') objects
    where name::text = any(:names)
    group by kind, privilege order by kind"""
