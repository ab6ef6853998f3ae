-- notify_readers(words) notifies waiting consumers (channel msgtx) of a client's commit that is done, and the sessions that
-- listen to the topics of its partitions. The words are those of the channel: 17 a partition. Not flushed by itself.
-- right: any
create function msgtx.notify_readers(words text) returns boolean language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp as $$
begin
    perform pg_notify('msgtx', words);
    if msgtx.holds_listener_lock(0) then
        perform msgtx.notify_listeners(array(
            select w.word::int from regexp_split_to_table(words, ',') w(word) where w.word ~ '^[0-9]{1,9}$'));
    end if;
    return true;
end $$;
