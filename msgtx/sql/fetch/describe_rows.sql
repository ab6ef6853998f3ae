-- describe_rows(partition, from_offset, before_offset, most) → rows of a log in order, without their records: the last ones
-- in front of before_offset (null: of the log), or the first ones from the row with from_offset on. Beside them the ends of
-- the log, in one snapshot. At least one row, with nulls if the log has none there.
--   record_count   stored records: fewer than offsets where compaction has removed some
--   state          plain (of no transaction), committed, aborted, prepared (sealed, undecided) or open
-- Reads partition, record_batch, producer, transaction tables and, through log_ends, what fetch_batches does.
-- right: consume, observe
-- null: base_offset, last_offset, record_count, byte_size, appended_at, producer_id, producer_epoch, transaction_number
-- null: transactional_id, state, decided_at
-- plan: look-ups, nested loops
create function msgtx.describe_rows(
    in_partition_id int, from_offset bigint default null, before_offset bigint default null, most int default 1000)
returns table (
    log_start_offset bigint, last_stable_offset bigint, log_end_offset bigint, base_offset bigint, last_offset bigint,
    record_count int, byte_size bigint, appended_at timestamptz, producer_id bigint, producer_epoch int,
    transaction_number bigint, transactional_id text, state text, decided_at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    before constant bigint := coalesce(before_offset, 9223372036854775807);
    first bigint;
    ignored boolean;
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_rights('{consume,observe}', array[in_partition_id]);
    if from_offset is null then
        first := (
            select min(b.base_offset) from (
                select r.base_offset from msgtx.record_batch r
                where r.partition_id = in_partition_id and r.base_offset < before
                order by r.base_offset desc limit most) b);
    else
        first := coalesce((
            select r.base_offset from msgtx.record_batch r
            where r.partition_id = in_partition_id and r.base_offset <= from_offset
            order by r.base_offset desc limit 1), 0);
    end if;
    return query
    select e.log_start_offset, e.last_stable_offset, e.log_end_offset, b.base_offset, b.last_offset, b.record_count,
           b.byte_size, b.appended_at, b.producer_id, b.producer_epoch, b.transaction_number, w.transactional_id,
           case when b.base_offset is null then null
               when b.transaction_number is null then 'plain'
               when o.is_committed then 'committed'
               when d.outcome is not null or b.base_offset < f.stable_floor then 'aborted'
               when l.kind is not null then 'prepared'
               else 'open' end,
           d.decided_at
    from msgtx.log_ends(array[in_partition_id], 'read_committed') e
    left join lateral msgtx.floor_of(in_partition_id) f on true
    left join lateral (
        select r.* from msgtx.record_batch r
        where r.partition_id = in_partition_id and r.base_offset >= first and r.base_offset < before
          and r.last_offset >= greatest(e.log_start_offset, from_offset)
        order by r.base_offset limit most) b on true
    left join lateral msgtx.decision_of(b.producer_id, b.producer_epoch, b.transaction_number) d on true
    left join lateral msgtx.seal_of(b.producer_id, b.producer_epoch, b.transaction_number) l on true
    left join lateral (
        select msgtx.is_committed(
            b.partition_id, b.base_offset, b.producer_id, b.producer_epoch, b.transaction_number) as is_committed) o
        on b.transaction_number is not null
    left join lateral (
        select p.transactional_id from msgtx.producer p
        where p.producer_id = b.producer_id and (
            msgtx.topics_of_caller('{observe}') is null or msgtx.may_use('transactional_id', p.transactional_id))
        limit 1) w on true
    order by b.base_offset;
end $$;
