-- batch_identity(row) → the identity of a row of the log. After a crash that lost unflushed rows, another row at the same
-- offset has another identity: so a reader notices the loss (LogTruncated, P38).
create function msgtx.batch_identity(
    base_offset bigint, producer_id bigint, producer_epoch int, base_sequence bigint, appended_at timestamptz
) returns text language sql stable
return concat_ws(':', base_offset, producer_id, producer_epoch, base_sequence,
                 (extract(epoch from appended_at) * 1000000)::bigint);
