-- header_text(content, most) → the content of a header, any bytes, as text: characters other than printable ASCII are
-- escaped. Null if it has more than `most` bytes, or none are given. Total: it raises for no content.
create function msgtx.header_text(content bytea, most int) returns text language sql immutable parallel safe
return case when octet_length(content) <= most then encode(content, 'escape') end;
