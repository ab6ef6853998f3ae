-- A hundred sales, each with its message, in one commit.
begin;
insert into shop_sale (id, cents) select id, id * 5 from generate_series(1, 100) id;
select from generate_series(1, 100) id
cross join lateral msgtx.publish('sales', value => json_build_object('id', id, 'cents', id * 5)::text, key => id::text);
commit;
