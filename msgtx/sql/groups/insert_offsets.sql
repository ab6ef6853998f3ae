-- insert_offsets(groups, partitions, …, name) appends to the groups' offsets. The caller holds the groups' locks: the
-- commit sequence is drawn after them, so that the newest commit wins (P17). Name null: a plain commit.
-- Writes consumer_group, group_offset.
create function msgtx.insert_offsets(
    group_names text[], partition_ids int[], offsets bigint[], metadata text[], member_ids text[], generations int[],
    in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint
) returns boolean language plpgsql volatile as $$
begin
    if cardinality(group_names) = 0 then
        return false;
    end if;
    insert into msgtx.consumer_group (name)
    select g from unnest(group_names) g
    where (select true from msgtx.consumer_group c where c.name = g) is null
    group by g order by g
    on conflict do nothing;
    insert into msgtx.group_offset (
        group_id, partition_id, commit_sequence, committed_offset, metadata, member_id, generation,
        producer_id, producer_epoch, transaction_number, committed_at)
    select c.group_id, o.partition_id, nextval('msgtx.commit_sequence'), o.committed_offset, coalesce(o.note, ''),
           o.member_id, o.generation, in_producer_id, in_producer_epoch, in_transaction_number, msgtx.clock()
    from unnest(group_names, partition_ids, offsets, metadata, member_ids, generations)
        o(group_name, partition_id, committed_offset, note, member_id, generation)
    cross join lateral (select c.group_id from msgtx.consumer_group c where c.name = o.group_name limit 1) c;
    return true;
end $$;
