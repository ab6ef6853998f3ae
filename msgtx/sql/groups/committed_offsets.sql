-- committed_offsets(group, partitions) → the group's decided offset and metadata of each partition that has one; null
-- partitions: all. pending: a newer one is sealed and undecided. A row counts unless its transaction is decided ABORT, or
-- sealed and undecided. All are those of topics that the caller may consume (or observe); others are refused when they
-- are named. Reads consumer_group, group_offset, transaction_decision, transaction_seal.
-- right: consume, observe
-- null: committed_offset, metadata
create function msgtx.committed_offsets(group_name text, partition_ids int[] default null)
returns table (partition_id int, committed_offset bigint, metadata text, pending boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    -- Who may observe a topic sees each group's position in it.
    cans constant text[] := case when msgtx.may_use('group', group_name) then '{consume,observe}' else '{observe}' end;
    ignored boolean;
begin
    if not msgtx.acts_for_owner() then
        if partition_ids is not null and msgtx.patterns_of_caller('{observe}') = '{}' then
            ignored := msgtx.require_names('group', array[group_name]);
        end if;
        ignored := msgtx.require_rights(cans, partition_ids);
    end if;
    return query
    select p.partition_id, decided.committed_offset, decided.metadata, decided.pending
    from msgtx.consumer_group g
    cross join lateral (
        select u.partition_id from unnest(partition_ids) u(partition_id)
        union
        select distinct o.partition_id from msgtx.group_offset o
        where partition_ids is null and o.group_id = g.group_id
          and exists (
              select from msgtx.partition known where known.partition_id = o.partition_id
              and ((select msgtx.topics_of_caller(cans)) is null
                   or known.topic_id = any((select msgtx.topics_of_caller(cans))::int[])))) p
    cross join lateral msgtx.decided_offset_of(g.group_id, p.partition_id) decided
    where g.name = group_name;
end $$;
