-- A shop's worker in psql: labels the next five sales, one by one. Its last line tells whether to run it again, as take.sql.
create temporary table work as
    select receipt, msgtx.value_json(value) as sale from msgtx.receive('sales', 'labels', max_records => 5);
begin;
insert into shop_label (sale_id) select (sale ->> 'id')::bigint from work;
select from work cross join lateral msgtx.acknowledge(receipt);
commit;
select msgtx.wait_for_records('sales', 'labels', '2 s');
