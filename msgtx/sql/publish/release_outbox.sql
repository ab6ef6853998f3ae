-- release_outbox(outbox) ends what adopt_outbox has begun: it drops trigger msgtx_outbox of the table, and its function. →
-- whether there was one. With the rights of the caller, who owns the table.
-- right: produce
create function msgtx.release_outbox(outbox regclass) returns boolean language plpgsql volatile
set search_path = pg_catalog, pg_temp as $$
declare
    called regprocedure;
begin
    select t.tgfoid::regprocedure into called from pg_trigger t where t.tgrelid = outbox and t.tgname = 'msgtx_outbox';
    if not found then
        return false;
    end if;
    execute format('drop trigger msgtx_outbox on %s', outbox);
    execute format('drop function %s', called);
    return true;
end $$;
