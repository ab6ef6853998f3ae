"""Each door by which records come in refuses the same ones, with the same error and words, and goes on working (I16)."""

import asyncio
import functools
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

import msgtx
from msgtx import aio, orm, protocol
from msgtx.database.translation import translate
from msgtx.rules.record import TIMES_BEFORE
from msgtx.store.append.append import append, append_and_decide
from msgtx.store.append.append_once import KeyedRecord, append_once
from msgtx.store.append.rows import OpenRow
from msgtx.store.topics.topics import describe_topics
from msgtx.store.transactions.producers import init_producer_id
from msgtx.store.transactions.seal import commit_in_session
from msgtx.types import OutputRecord, TransactionId
from tests.databases import Connection
from tests.odd_records import REFUSED, REFUSED_DEDUP_KEYS, Refused
from tests.sessions.conftest import application_url
from tests.store.steps import unique

pytestmark = pytest.mark.slow

LIMIT: Final = 10_000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Doors:
    """The doors of one topic. Each takes a record as `send` does, and raises what refuses it."""

    def __init__(self, client: msgtx.Client, connection: Connection, url: str) -> None:
        self.client, self.connection, self.url = client, connection, url
        self.topic = unique("doors")
        client.topics.create(self.topic, max_message_bytes=LIMIT)
        self.engine = sqlalchemy.create_engine(application_url(url))
        self.producer = client.producer()
        self.transactional = client.producer(transactional_id=self.topic)
        self.transactional.init_transactions()
        (self.partition,) = describe_topics(connection, [self.topic])[self.topic].partition_ids

    def close(self) -> None:
        self.producer.close()
        self.transactional.close()
        self.engine.dispose()

    # ── doors in Python ──

    def send(self, value: Any, **rest: Any) -> None:
        self.producer.send(self.topic, value, **rest).result(10)

    def send_keyed(self, value: Any, **rest: Any) -> None:
        self.producer.send(self.topic, value, dedup_key=unique("key"), **rest).result(10)

    def send_batch(self, value: Any, *, key: Any = None, timestamp: Any = None, headers: Any = None) -> None:
        assert headers is None
        keys = None if key is None else [key]
        times = None if timestamp is None else [timestamp]
        self.producer.send_batch(self.topic, [value], keys, timestamps=times).result(10)

    def send_in_transaction(self, value: Any, **rest: Any) -> None:
        with self.transactional.transaction():
            self.transactional.send(self.topic, value, **rest)

    def publish(self, value: Any, **rest: Any) -> None:
        with Session(self.engine) as session:
            orm.publish(session, self.topic, value, **rest)
            session.commit()

    def send_async(self, value: Any, **rest: Any) -> None:
        async def sent() -> None:
            async with await aio.connect(self.url) as client, client.producer() as producer:
                await (await producer.send(self.topic, value, **rest))

        asyncio.run(sent())

    def append_by_protocol(self, value: Any, *, key: Any = None, timestamp: Any = None, headers: Any = ()) -> None:
        with self.engine.connect() as connection:
            record = OutputRecord(value, key, headers, timestamp)
            batch = protocol.Batch(msgtx.TopicPartition(self.topic, 0), None, None, None, [record])
            (answer,) = protocol.append(connection, [batch])
            if answer.error is not None:
                raise answer.error
            connection.commit()

    # ── doors in SQL ──

    def row(self, value: Any, *, key: Any, timestamp: Any, headers: Any) -> OpenRow:
        row = OpenRow()
        row.add(value, key, _stamp(timestamp), headers or (), size=0)
        return row

    def append(self, value: Any, *, key: Any = None, timestamp: Any = None, headers: Any = None) -> None:
        row = self.row(value, key=key, timestamp=timestamp, headers=headers)
        (answer,) = append(self.connection, [row.stored_as(self.partition)])
        if answer.error is not None:
            raise answer.error

    def append_among_others(self, value: Any, *, key: Any = None, timestamp: Any = None, headers: Any = None) -> None:
        """As a record of several, whose highest time is fine."""
        row = self.row(value, key=key, timestamp=timestamp, headers=headers)
        row.add(b"fine", key, TIMES_BEFORE - 1, (), size=0)
        (answer,) = append(self.connection, [row.stored_as(self.partition)])
        if answer.error is not None:
            raise answer.error

    def append_and_decide(self, value: Any, *, key: Any = None, timestamp: Any = None, headers: Any = None) -> None:
        producer = init_producer_id(self.connection, unique("id"), timeout_ms=60_000)
        row = self.row(value, key=key, timestamp=timestamp, headers=headers)
        batch = row.stored_as(self.partition, producer, transaction_number=0, base_sequence=0)
        (answer,) = append_and_decide(self.connection, TransactionId(*producer, 0), [batch])
        if answer.error is not None:
            raise answer.error

    def append_once(self, value: Any, *, key: Any = None, timestamp: Any = None, headers: Any = None) -> None:
        at = 7 if timestamp is None else _stamp(timestamp)
        assert at is not None
        record = KeyedRecord(self.partition, unique("key"), value, key, at, tuple(headers or ()))
        (answer,) = append_once(self.connection, [record])
        if answer.error is not None:
            raise answer.error

    def commit_in_session(self, value: Any, *, key: Any = None, timestamp: Any = None, headers: Any = None) -> None:
        row = self.row(value, key=key, timestamp=timestamp, headers=headers)
        with self.connection.transaction():
            commit_in_session(self.connection, [row.stored_as(self.partition)])

    def publish_in_sql(self, value: Any, *, key: Any = None, timestamp: Any = None, headers: Any = None) -> None:
        at = _stamp(timestamp)
        given = None if headers is None else json.dumps({name: content.decode() for name, content in headers})
        self.connection.execute(
            "select msgtx.publish(%s, value_bytes => %s::bytea, key_bytes => %s::bytea, headers => %s::jsonb,"
            """ "timestamp" => 'epoch'::timestamptz + %s::bigint * interval '1 ms')""",
            [self.topic, value, key, given, at],
        )


def _stamp(timestamp: Any) -> int | None:
    if isinstance(timestamp, datetime) and timestamp.tzinfo is not None:
        return (timestamp - EPOCH) // timedelta(milliseconds=1)
    return timestamp  # type: ignore[no-any-return]


IN_PYTHON: Final = (
    "send", "send_keyed", "send_batch", "send_in_transaction", "publish", "send_async", "append_by_protocol"
)  # fmt: skip
IN_SQL: Final = (
    "append", "append_among_others", "append_and_decide", "append_once", "commit_in_session", "publish_in_sql"
)  # fmt: skip


@pytest.fixture(scope="module")
def doors(database_url: str, engine: Any) -> Iterator[Doors]:
    with msgtx.connect(database_url) as client, client.runtime.engine.connection() as connection:
        made = Doors(client, connection, database_url)
        yield made
        made.close()


def verdict(door: Callable[..., None], value: Any, **rest: Any) -> tuple[str, str] | None:
    """Return class and text of the refusal; None: it was taken."""
    try:
        door(value, **rest)
    except (psycopg.Error, sqlalchemy.exc.DBAPIError) as raw:
        error = translate(raw)
        return type(error).__name__, str(error)
    except (msgtx.errors.MsgtxError, TypeError) as error:
        return type(error).__name__, str(error)
    return None


@pytest.mark.parametrize("odd", REFUSED, ids=lambda odd: odd.name)
def test_what_one_door_refuses_all_refuse(doors: Doors, odd: Refused) -> None:
    names = [*IN_PYTHON]
    stamp = None if odd.by_type else _stamp(odd.rest.get("timestamp"))
    if not odd.by_type and "headers" not in odd.rest and (stamp is None or -(2**63) <= stamp < 2**63):
        names += IN_SQL
    if "headers" in odd.rest:
        names.remove("send_batch")
    ends = doors.client.snapshot([doors.topic])
    for name in names:
        if name == "publish_in_sql" and stamp is not None and abs(stamp) > 9_000_000_000_000_000:
            continue  # no time of PostgreSQL's
        told = verdict(getattr(doors, name), odd.value, **odd.rest)
        assert told is not None, f"{name} takes it"
        assert told[0] == odd.error, (name, told)
        assert odd.words in told[1], (name, told)
    assert doors.client.snapshot([doors.topic]).ends == ends.ends, "nothing has changed"


@pytest.mark.parametrize("name", [*IN_PYTHON, *IN_SQL])
def test_after_refusals_a_door_is_open(doors: Doors, name: str) -> None:
    assert verdict(getattr(doors, name), b"v", timestamp=-1) is not None
    assert verdict(getattr(doors, name), bytes(LIMIT + 1)) == (
        "RecordTooLarge",
        f"{doors.topic} takes records of at most {LIMIT} bytes (max_message_bytes); one has {LIMIT + 1}",
    )
    assert verdict(getattr(doors, name), bytes(LIMIT)) is None


@pytest.mark.parametrize("name", [*IN_PYTHON, *IN_SQL])
def test_a_door_to_a_compacted_topic_asks_for_a_key(database_url: str, connection: Connection, name: str) -> None:
    with msgtx.connect(database_url) as client:
        doors = Doors(client, connection, database_url)
        client.topics.alter(doors.topic, cleanup_policy="compact")
        try:
            assert verdict(getattr(doors, name), b"v") == (
                "InvalidRecord",
                f"{doors.topic} is compacted: every record needs a key",
            )
            assert verdict(getattr(doors, name), b"v", key=b"k") is None
        finally:
            doors.close()


@pytest.mark.parametrize("key", REFUSED_DEDUP_KEYS, ids=lambda key: ascii(key[0])[:20])
def test_a_key_of_deduplication_has_one_gate(doors: Doors, key: tuple[Any, str, str]) -> None:
    given, error, words = key
    calls = [functools.partial(doors.producer.send, doors.topic, dedup_key=given)]
    if error != "WrongType" and "\0" not in given and given.isprintable():
        calls.append(lambda value: append_once(doors.connection, [KeyedRecord(doors.partition, given, value, None, 7)]))
    for call in calls:
        told = verdict(call, b"v")
        assert told is not None
        assert told[0] == error
        assert words in told[1]
    doors.send_keyed(b"v")
