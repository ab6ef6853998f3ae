-- A shop's worker in psql: books the next ten sales, and moves the group's offsets, in one commit. Its last line tells whether
-- to run it again:   while psql -qAtXf take.sql "$DATABASE_URL" | grep -q t; do :; done
begin;
with taken as (select msgtx.value_json(value) as sale from msgtx.take('sales', 'booking', max_records => 10))
insert into shop_booked (sale_id, cents) select (sale ->> 'id')::bigint, (sale ->> 'cents')::bigint from taken;
commit;
select msgtx.wait_for_records('sales', 'booking', '2 s');
