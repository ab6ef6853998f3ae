-- is_deserted(name) → whether nobody can decide a sealed transaction any more: the SQL transaction with its seat ended in a
-- rollback, with its session, or in a crash of the server. A session that has committed has left its decision before the
-- seat: the caller looks for it after the producer's lock. A standby does not know the seats of its primary. Reads
-- transaction_seal, pg_locks.
create function msgtx.is_deserted(in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint)
returns boolean language plpgsql volatile as $$
declare
    seat_number int;
begin
    select s.seat into seat_number from msgtx.transaction_seal s
    where s.producer_id = in_producer_id and s.producer_epoch = in_producer_epoch
      and s.transaction_number = in_transaction_number limit 1;
    return case
        when seat_number is null or pg_is_in_recovery() then false
        else not exists (
            select from pg_locks l
            where l.locktype = 'advisory' and l.classid = 1836279560 and l.objid = seat_number::oid and l.objsubid = 2
              and l.granted and l.database = (select d.oid from pg_database d where d.datname = current_database())) end;
end $$;
