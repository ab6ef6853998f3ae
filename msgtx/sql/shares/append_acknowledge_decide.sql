-- append_acknowledge_decide(name, batches, offsets, acknowledgements) is a whole transaction in one call, one SQL
-- transaction and one flush, as append_and_decide, with answers for records of share groups: they hold at the instant
-- of the COMMIT. A refused one is raised, and undoes all. Without batches it is decided all the same. Repeated, it
-- answers with the stored offsets. Locks the producer (exclusive), groups (share), partitions (exclusive, ascending),
-- share partitions (exclusive, ascending). Reads transaction_decision. Writes through append_and_decide, decide and
-- apply_answers. Flushed.
-- right: consume
-- null: base_offset, appended_at, duplicate
-- plan: look-ups, in order
create function msgtx.append_acknowledge_decide(
    in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint, batches msgtx.batch[], wake boolean,
    group_names text[], offset_partitions int[], offsets bigint[], metadata text[], member_ids text[], generations int[],
    read_identities text[], instance_ids text[],
    share_groups text[], share_members bigint[], share_partitions int[], share_firsts bigint[], share_lasts bigint[],
    share_answers text[], share_reasons text[], share_delays int[])
returns table (error text, detail text, base_offset bigint, appended_at timestamptz, duplicate boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    is_refused boolean := false;
    share_group text;
    locked_id int;
    ignored boolean := msgtx.refuse_stale_snapshot() and msgtx.lock_producer(in_producer_id);
    is_repeated constant boolean := exists (
        select from msgtx.decision_of(in_producer_id, in_producer_epoch, in_transaction_number));
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_rights('{consume}', share_partitions)
        and msgtx.require_names('group', share_groups);
    if not is_repeated and array_position(share_answers, 'reject') is not null then
        for share_group in select g from unnest(group_names) g group by g order by hashtext(g) loop
            ignored := msgtx.lock_group_shared(share_group);
        end loop;
        for locked_id in
            select u from unnest(msgtx.dead_letter_partitions(share_groups, share_partitions, share_answers)) u
            union select b.partition_id from unnest(batches) b order by u
        loop
            ignored := msgtx.lock_partition(locked_id);
        end loop;
    end if;
    if cardinality(batches) > 0 then
        for error, detail, base_offset, appended_at, duplicate in
            select a.error, a.detail, a.base_offset, a.appended_at, a.duplicate from msgtx.append_and_decide(
                in_producer_id, in_producer_epoch, in_transaction_number, batches, wake, false, group_names,
                    offset_partitions, offsets, metadata, member_ids, generations, read_identities, instance_ids) a
        loop
            is_refused := is_refused or error is not null;
            return next;
        end loop;
    else
        select d.error, d.detail into error, detail from msgtx.decide(
            in_producer_id, in_producer_epoch, in_transaction_number, 'COMMIT', '{}', '{}', group_names, offset_partitions,
                offsets, metadata, member_ids, generations, read_identities, instance_ids, 'client', false) d;
        is_refused := error is not null;
        if is_refused then
            return next;
        end if;
    end if;
    if not is_refused and not is_repeated then
        ignored := msgtx.answer_or_raise(share_groups, share_members, share_partitions, share_firsts, share_lasts,
                                         share_answers, share_reasons, share_delays);
    end if;
end $$;
