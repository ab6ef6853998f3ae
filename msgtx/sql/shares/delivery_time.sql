-- delivery_time(content) → the time that header msgtx.deliver-at says, in milliseconds since 1970 UTC as 1 to 14 digits;
-- null for all other bytes. Total: it raises for no content.
create function msgtx.delivery_time(content bytea) returns timestamptz language sql immutable parallel safe
return to_timestamp(case when msgtx.header_text(content, 14) ~ '^[0-9]{1,14}$'
                    then msgtx.header_text(content, 14)::numeric / 1000 end::double precision);
