-- append_plain(batches, wake) stores a set of batches without a producer, as `append` does, row by row (append_and_decide
-- says why): mostly it is one. Returns false, and stores nothing, if one of them may be refused or has a producer: then
-- `append` says why. Flushed. wake: have waiting consumers woken. For SQL transactions at READ COMMITTED, which the caller
-- has made sure of, and with the settings of append_staged.
-- Locks partitions (exclusive, ascending). Reads partition, topic. Writes record_batch through store_batches.
create function msgtx.append_plain(batches msgtx.batch[], wake boolean default true) returns boolean
language plpgsql volatile as $$
declare
    b msgtx.batch;
    place record;
    at int := 0;
    partition_ids int[];
    first_offsets bigint[];
    times timestamptz[];
    stamped boolean[];
    ignored boolean := msgtx.lock_partitions(batches);
begin
    foreach b in array batches loop
        place := msgtx.usual_place(b.partition_id, null, null, null,
                                   msgtx.batch_bytes(b.keys, b."values", b.header_keys, b.header_values));
        if (place.is_usual and b.producer_id is null
            and (not place.needs_keys or b.keys is not null and array_position(b.keys, null) is null)) is not true then
            return false;
        end if;
        at := at + 1;
        partition_ids[at] := b.partition_id;
        first_offsets[at] := place.base_offset;
        times[at] := place.appended_at;
        stamped[at] := place.log_append_time;
    end loop;
    ignored := msgtx.store_batches(batches, first_offsets, times, stamped, '{}');
    ignored := msgtx.acts_for_owner() or msgtx.require_rights('{produce}', partition_ids);
    ignored := msgtx.flush_at_commit();
    return not wake or msgtx.wake_readers(partition_ids);
end $$;
