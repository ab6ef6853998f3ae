-- append_or_raise(batches, wake) stores a set of batches without a producer, all of them, or raises the first refusal.
-- Locks partitions (exclusive, ascending). Writes record_batch, by append_plain.
create function msgtx.append_or_raise(batches msgtx.batch[], wake boolean default true) returns boolean
language plpgsql volatile as $$
declare
    refused record;
begin
    if not msgtx.append_plain(batches, wake) then
        select a.error, a.detail into refused from msgtx.append(batches, true, wake) a where a.error is not null limit 1;
        if found then
            raise exception using errcode = 'MX000', column = refused.error, message = refused.detail;
        end if;
    end if;
    return true;
end $$;
