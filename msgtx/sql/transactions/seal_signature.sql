-- seal_signature(incarnation, name, deadline, spans) → the proof that a seal is of this installation. A decision in a
-- user's session reads no log; without it, any role that may call it could decide others' open transactions, with
-- made-up spans. Read at every isolation: the row changes with a failover only, which ends every session.
-- Reads installation.
create function msgtx.seal_signature(
    in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint, deadline timestamptz,
    partitions int[], first_offsets bigint[], last_offsets bigint[]
) returns bytea language sql stable as $$
    select sha256(convert_to(concat_ws('|', i.seal_secret, i.incarnation, in_producer_id, in_producer_epoch,
        in_transaction_number, extract(epoch from deadline), partitions, first_offsets, last_offsets), 'UTF8'))
    from msgtx.installation i
$$;
