-- commit_in_session(batches, offsets) writes in the user's SQL transaction, just before its COMMIT: consumer offsets, then
-- records, as commit_offsets and append do. All or nothing: the caller rolls back when a row has an error.
--   no row          all is written
--   error 'stale'   this SQL transaction is above READ COMMITTED, and nothing was done: seal instead (P24, P39)
-- Locks groups (share), partitions (exclusive, ascending). Writes what append and commit_offsets write. Flushed.
create function msgtx.commit_in_session(
    batches msgtx.batch[] default '{}', group_names text[] default '{}', offset_partitions int[] default '{}',
    offsets bigint[] default '{}', metadata text[] default '{}', member_ids text[] default '{}',
    generations int[] default '{}', read_identities text[] default '{}', instance_ids text[] default '{}')
returns table (error text, detail text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    ignored boolean;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        error := 'stale';
        return next;
        return;
    end if;
    ignored := msgtx.limit_idle_session();
    if group_names <> '{}' then
        select c.error, c.detail into error, detail
        from msgtx.commit_offsets(group_names, offset_partitions, offsets, metadata, member_ids, generations,
                                  read_identities, instance_ids) c;
        if error is not null then
            return next;
            return;
        end if;
    end if;
    if batches <> '{}' and not msgtx.append_plain(batches) then
        return query select a.error, a.detail from msgtx.append(batches) a where a.error is not null;
    end if;
end $$;
