-- The tables of the shop. shop_booked and shop_label have no key on purpose: a record handled twice would be seen.
create table if not exists shop_sale (id bigint primary key, cents bigint);
create table if not exists shop_booked (sale_id bigint, cents bigint);
create table if not exists shop_label (sale_id bigint);
