-- time_text(moment) → a time in UTC as ISO 8601, to the second; null for null.
create function msgtx.time_text(moment timestamptz) returns text language sql stable
return to_char(moment at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"');
