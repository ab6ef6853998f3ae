"""Messages that are atomic with the user's own rows: `publish` (internals: sessions)."""

from datetime import datetime
from types import EllipsisType
from typing import Any

from msgtx import arguments
from msgtx.rules.partitioner import by_crc32
from msgtx.rules.record import (
    GivenHeaders,
    as_bytes,
    as_headers,
    as_json,
    as_milliseconds,
    counted_bytes,
    lacks_key,
    record_bytes,
    too_large,
)
from msgtx.session.enlistment import UserSession, enlist, topic_of
from msgtx.session.published import Published
from msgtx.store.append.rows import delivered_later, milliseconds_now
from msgtx.units import Duration


def publish(
    session: UserSession,
    topic: str,
    value: bytes | EllipsisType | None = ...,
    *,
    json: Any = ...,
    key: bytes | None = None,
    partition: int | None = None,
    timestamp: int | datetime | None = None,
    headers: GivenHeaders | None = None,
    deliver_at: int | datetime | None = None,
    delay_ms: Duration | None = None,
) -> None:
    """Publish a record with the session's next commit: it is there when the user's rows are, and gone with a rollback.

    `session`: SQLAlchemy's `Session`, `scoped_session` or `Connection`, psycopg's `Connection` or Django's, on the database
    that holds msgtx. The record is appended by the COMMIT; a rolled-back savepoint takes it back, too. Several go in
    partition order. Works at every isolation level in sessions of SQLAlchemy, at READ COMMITTED in the others. A key chooses
    the partition (crc32, as the producer's default); the records of a topic without one go to one partition. `json` takes
    the place of the value. `deliver_at`, `delay_ms`: as in `Producer.send`; a delay counts from this call. Raise
    `ConfigError`, `IllegalState`, `UnknownTopicOrPartition`, `RecordTooLarge`, `InvalidRecord`, `InvalidRequest`,
    `TypeError`. Source: internals: sessions; I6.
    """
    topic = arguments.topic(topic)
    if partition is not None:
        partition = arguments.whole("partition", partition, least=-arguments.LARGEST_INT8)
    if json is not ... or value is ...:
        value = as_json(value, json)
    content, key = as_bytes(value, "value"), as_bytes(key, "key")
    pairs = () if headers is None else as_headers(headers)
    if deliver_at is not None or delay_ms is not None:
        pairs = delivered_later(pairs, deliver_at, delay_ms)
    stamp = milliseconds_now() if timestamp is None else as_milliseconds(timestamp)
    connection, enlistment = enlist(session)
    found = topic_of(connection, topic)
    if partition is not None:
        found.partition_id(partition)
    elif key:
        partition = by_crc32(key, len(found.partition_ids))
    size = counted_bytes(record_bytes(content, key, pairs), pairs)
    if size > found.max_message_bytes:
        raise too_large(topic, found.max_message_bytes, size)
    if key is None and found.is_compacted:
        raise lacks_key(topic)
    enlistment.add(connection, Published(found, partition, key, content, stamp, pairs))
