-- verify_offsets(partitions, after, most) looks at the next committed offsets of the installation, by key, for verify, on
-- one snapshot: those of these partitions. → where it came to (null: the end), how many rows, how many of them are of these
-- partitions, how many of the newest ones retention has overtaken (behind), and as JSON each one that breaks a rule.
--   offset_beyond_end     above the log end, of a member: the records that it has read are gone. Without a member any
--                         offset may be committed, as in Kafka; readers begin where auto_offset_reset says
--   offset_of_aborted     its transaction was aborted, and was never sealed      offset_of_undecided   it is open, and
--                         counts
-- Reads group_offset, consumer_group, partition, record_batch, transaction, transaction_decision, transaction_seal.
-- right: admin of all topics
-- plan: look-ups, nested loops
create function msgtx.verify_offsets(
    partition_ids int[], in_after bigint[], most int,
    out next_after bigint[], out looked_at bigint, out offsets bigint, out behind bigint, out broken jsonb
) language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    with chunk as materialized (
        select o.*, o.partition_id = any(partition_ids) as concerned from msgtx.group_offset o
        where (o.group_id, o.partition_id, o.commit_sequence)
              > (coalesce(in_after[1], -1), coalesce(in_after[2], -1), coalesce(in_after[3], -1))
        order by o.group_id, o.partition_id, o.commit_sequence limit most),
    looked as (
        select c.producer_id, c.producer_epoch, c.transaction_number, c.partition_id, c.committed_offset,
               g.name as group_name, log.end_offset, c.committed_offset < p.log_start_offset and not exists (
                   select from msgtx.group_offset n
                   where n.group_id = c.group_id and n.partition_id = c.partition_id
                     and n.commit_sequence > c.commit_sequence) as behind,
               array_remove(array[
                   case when c.committed_offset > log.end_offset and c.member_id is not null
                          and (s.kind is null or d.outcome = 'COMMIT')
                        then 'offset_beyond_end' end,
                   case when d.outcome = 'ABORT' and s.kind is null then 'offset_of_aborted' end,
                   case when d.outcome is null and s.kind is null and t.opened_at is not null
                        then 'offset_of_undecided' end], null) as rules
        from chunk c
        cross join lateral (select p.* from msgtx.partition p where p.partition_id = c.partition_id limit 1) p
        cross join lateral (
            select greatest(p.log_start_offset, (
                select r.last_offset + 1 from msgtx.last_row_of(c.partition_id) r)) as end_offset) log
        left join lateral (
            select g.name from msgtx.consumer_group g where g.group_id = c.group_id limit 1) g on true
        left join lateral msgtx.decision_of(c.producer_id, c.producer_epoch, c.transaction_number) d on true
        left join lateral msgtx.seal_of(c.producer_id, c.producer_epoch, c.transaction_number) s on true
        left join lateral msgtx.transaction_of(c.producer_id, c.producer_epoch, c.transaction_number) t on true
        where c.concerned)
    select (select max(array[c.group_id, c.partition_id, c.commit_sequence]) from chunk c), (select count(*) from chunk c),
           count(*), count(*) filter (where l.behind),
           coalesce(jsonb_agg(to_jsonb(l) order by l.partition_id) filter (where l.rules <> '{}'), '[]')
    into next_after, looked_at, offsets, behind, broken
    from looked l;
end $$;
