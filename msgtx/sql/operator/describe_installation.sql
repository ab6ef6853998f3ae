-- describe_installation() → incarnation, schema version and hash of the functions; what a client compares when it connects.
-- The first client after a move makes the sequences skip ahead: a logical replica has every row and no sequence, and would
-- give a new producer the id of another one, whose records the client's would be taken for (I1). Not where nothing can be
-- written; a later connection does it. Locks and writes through skip_ahead. Reads
-- installation.
-- right: any
create function msgtx.describe_installation(out incarnation uuid, out schema_version int, out functions_hash text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    if msgtx.has_moved() and not pg_is_in_recovery() and current_setting('transaction_read_only') = 'off'
            and current_setting('transaction_isolation') = 'read committed' then
        perform msgtx.skip_ahead(true);
    end if;
    select i.incarnation, i.schema_version, i.functions_hash into incarnation, schema_version, functions_hash
    from msgtx.installation i;
end $$;
