"""Records and offsets on a driver's own connection, which tells nobody of its COMMIT (I6, I10)."""

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import msgtx
from msgtx import OffsetAndMetadata, TopicPartition, errors, orm
from msgtx.session import moves
from msgtx.store.operator.installation import identify_server
from tests.refusals import refuses
from tests.sessions.conftest import Shop

pytestmark = pytest.mark.slow

SECONDS = 30.0


@pytest.fixture
def connection_of(shop: Shop) -> Iterator[psycopg.Connection[Any]]:
    """A user's connection."""
    with contextlib.closing(psycopg.connect(shop.url)) as made:
        yield made


@pytest.fixture
def consumer(shop: Shop) -> Iterator[msgtx.Consumer]:
    """The only member of its group, two records per poll, from the beginning of ten: 0 to 9 in partition 0."""
    shop.send(*(b"%d" % number for number in range(10)))
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "max_poll_records": 2}
    with shop.client.consumer(shop.topic, group=shop.topic, **settings) as made:
        yield made


def committed(shop: Shop) -> int | None:
    at = shop.client.admin.groups.offsets(shop.topic).get(TopicPartition(shop.topic, 0))
    return None if at is None else at.offset


def store(connection: psycopg.Connection[Any], *numbers: int) -> None:
    for number in numbers:
        connection.execute("insert into orders (number) values (%s)", [number])


def numbers(records: list[msgtx.Record]) -> list[int]:
    return [int(record.value or b"") for record in records]


# ── publish ──


def test_a_record_comes_with_the_row(shop: Shop, connection_of: psycopg.Connection[Any]) -> None:
    orm.publish(connection_of, shop.topic, b"x", key=b"k", headers=[("a", b"\xff"), ("a", None)])
    store(connection_of, 1)
    assert shop.seen() == ([], [])
    connection_of.commit()
    assert shop.seen() == ([b"x"], [1])
    (record,) = shop.read()
    assert (record.key, record.headers) == (b"k", (("a", b"\xff"), ("a", None)))


def test_a_session_on_an_old_primary_is_told_once(
    shop: Shop, connection_of: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Decision 0177: this process has been on a higher timeline of the same server."""
    found = identify_server(connection_of)
    incarnation = shop.client.runtime.engine.incarnation
    assert found is not None
    assert incarnation is not None
    key = (found.system_identifier, incarnation)
    monkeypatch.setitem(moves._seen, key, found._replace(timeline=found.timeline + 1))
    for _ in range(2):
        orm.publish(connection_of, shop.topic, b"x")
        connection_of.commit()
    assert [record.levelname for record in caplog.records if "a primary of before a failover" in record.message] == [
        "WARNING"
    ]


def test_a_session_is_asked_again_if_the_question_was_cancelled(
    shop: Shop, connection_of: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decision 0177. Once it was answered, it is not asked again."""
    asked: list[object] = []

    def once_interrupted(driver: psycopg.Connection[Any]) -> object:
        asked.append(driver)
        if len(asked) == 1:
            raise KeyboardInterrupt
        return identify_server(driver)

    monkeypatch.setattr(moves, "identify_server", once_interrupted)
    with pytest.raises(KeyboardInterrupt):
        orm.publish(connection_of, shop.topic, b"x")
    for _ in range(2):
        connection_of.rollback()
        orm.publish(connection_of, shop.topic, b"x")
    assert asked == [connection_of] * 2


def test_a_rollback_takes_a_record_back_also_to_a_savepoint(shop: Shop, connection_of: psycopg.Connection[Any]) -> None:
    orm.publish(connection_of, shop.topic, b"gone")
    connection_of.rollback()
    orm.publish(connection_of, shop.topic, b"kept")
    with contextlib.suppress(ZeroDivisionError), connection_of.transaction():
        orm.publish(connection_of, shop.topic, b"gone, too")
        raise ZeroDivisionError
    connection_of.commit()
    assert shop.seen()[0] == [b"kept"]


def test_a_connection_that_commits_each_statement_is_refused_outside_a_transaction(shop: Shop) -> None:
    with psycopg.connect(shop.url, autocommit=True) as connection:
        with refuses(errors.ConfigError, reason="autocommit"):
            orm.publish(connection, shop.topic, b"x")
        with connection.transaction():
            orm.publish(connection, shop.topic, b"y")
    assert shop.seen()[0] == [b"y"]


def test_a_record_above_read_committed_is_refused(shop: Shop, connection_of: psycopg.Connection[Any]) -> None:
    connection_of.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with refuses(errors.ConfigError, reason="isolation"):
        orm.publish(connection_of, shop.topic, b"x")


def test_a_connection_that_cannot_take_a_record_is_refused(shop: Shop, connection_of: psycopg.Connection[Any]) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection_of.execute("select 1 / 0")
    with refuses(errors.IllegalState, reason="failed"):
        orm.publish(connection_of, shop.topic, b"x")
    connection_of.close()
    with refuses(errors.IllegalState, reason="closed"):
        orm.publish(connection_of, shop.topic, b"x")


def test_a_record_that_the_topic_does_not_take_is_refused_at_once(
    shop: Shop, connection_of: psycopg.Connection[Any]
) -> None:
    small = shop.make_topic(max_message_bytes=10)
    with refuses(errors.RecordTooLarge, topic=small):
        orm.publish(connection_of, small, b"x" * 11)
    store(connection_of, 1)
    connection_of.commit()
    assert shop.rows() == [1]


# ── offsets ──


def test_rows_and_offsets_come_with_one_commit(
    shop: Shop, consumer: msgtx.Consumer, connection_of: psycopg.Connection[Any]
) -> None:
    for number in range(0, 10, 2):
        with consumer.batch(connection_of, SECONDS) as records:
            assert numbers(records) == [number, number + 1]
            store(connection_of, *numbers(records))
        assert committed(shop) == (number or None)
        connection_of.commit()
        assert (shop.rows(), committed(shop)) == (list(range(number + 2)), number + 2)
    with consumer.batch(connection_of, 0.0) as records:
        assert records == []
    assert connection_of.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_the_block_of_a_connection_commits_the_batch_inside_it(shop: Shop, consumer: msgtx.Consumer) -> None:
    for _ in range(2):
        with psycopg.connect(shop.url) as connection, consumer.batch(connection, SECONDS) as records:
            store(connection, *numbers(records))
    assert (shop.rows(), committed(shop)) == ([0, 1, 2, 3], 4)


@pytest.mark.parametrize("end", ["rollback", "savepoint", "within", "closed", "raised"])
def test_a_batch_that_is_rolled_back_is_handed_out_again(
    shop: Shop, consumer: msgtx.Consumer, connection_of: psycopg.Connection[Any], end: str
) -> None:
    with contextlib.ExitStack() as around, contextlib.suppress(ZeroDivisionError):
        if end == "savepoint":
            connection_of.execute("savepoint before")
        with consumer.batch(connection_of, SECONDS) as records:
            store(connection_of, *numbers(records))
            if end == "within":
                connection_of.rollback()
            if end == "raised":
                raise ZeroDivisionError
        if end == "savepoint":
            connection_of.execute("rollback to savepoint before")
            around.callback(connection_of.commit)
    if end == "closed":
        connection_of.close()
    elif end != "savepoint":
        connection_of.rollback()
    assert (shop.rows(), committed(shop)) == ([], None)
    assert numbers(consumer.poll(SECONDS)) == [0, 1]


@pytest.mark.parametrize("how", ["call", "sql"])
def test_a_commit_within_the_block_is_refused(
    shop: Shop, consumer: msgtx.Consumer, connection_of: psycopg.Connection[Any], how: str
) -> None:
    with pytest.raises(psycopg.DatabaseError, match="block") as caught, consumer.batch(connection_of, SECONDS) as records:  # noqa: PT012
        store(connection_of, *numbers(records)[:1])
        if how == "call":
            connection_of.commit()
        connection_of.execute("commit")
    assert caught.value.sqlstate == "MX000"
    assert (shop.rows(), committed(shop)) == ([], None)
    assert numbers(consumer.poll(SECONDS)) == [0, 1]


def test_a_session_that_is_used_again_after_a_rollback_in_the_block_is_refused(
    shop: Shop, consumer: msgtx.Consumer, connection_of: psycopg.Connection[Any]
) -> None:
    with refuses(errors.IllegalState, reason="rolled back"), consumer.batch(connection_of, SECONDS) as records:
        connection_of.rollback()
        store(connection_of, *numbers(records))
    connection_of.rollback()
    assert numbers(consumer.poll(SECONDS)) == [0, 1]


def test_several_batches_of_a_transaction_are_one_commit_or_none(
    shop: Shop, consumer: msgtx.Consumer, connection_of: psycopg.Connection[Any]
) -> None:
    for ending in (connection_of.rollback, connection_of.commit):
        for expected in ([0, 1], [2, 3], [4, 5]):
            with consumer.batch(connection_of, SECONDS) as records:
                assert numbers(records) == expected
                store(connection_of, *expected)
        ending()
    assert (shop.rows(), committed(shop)) == (list(range(6)), 6)


def test_a_batch_waits_for_the_commit_of_another_connection(
    shop: Shop, consumer: msgtx.Consumer, connection_of: psycopg.Connection[Any]
) -> None:
    with psycopg.connect(shop.url) as other:
        with consumer.batch(other, SECONDS) as records:
            store(other, *numbers(records))
        with refuses(errors.IllegalState, reason="another session"), consumer.batch(connection_of, SECONDS):
            pass
    with consumer.batch(connection_of, SECONDS) as records:
        store(connection_of, *numbers(records))
    connection_of.commit()
    assert shop.rows() == [0, 1, 2, 3]


def test_offsets_of_the_callers_choice_ride(
    shop: Shop, consumer: msgtx.Consumer, connection_of: psycopg.Connection[Any]
) -> None:
    consumer.poll(SECONDS)
    at = {TopicPartition(shop.topic, 0): OffsetAndMetadata(7, "seven")}
    consumer.commit(at, session=connection_of)
    assert committed(shop) is None
    connection_of.commit()
    assert committed(shop) == 7


def test_a_commit_that_fails_takes_the_offsets_with_it(
    shop: Shop, consumer: msgtx.Consumer, connection_of: psycopg.Connection[Any]
) -> None:
    with consumer.batch(connection_of, SECONDS) as records:
        store(connection_of, *numbers(records), 1)  # its constraint is looked at by the COMMIT
    with pytest.raises(psycopg.errors.UniqueViolation):
        connection_of.commit()
    assert committed(shop) is None
    assert numbers(consumer.poll(SECONDS)) == [0, 1]


def test_a_transaction_of_a_producer_takes_no_such_connection(shop: Shop, connection_of: psycopg.Connection[Any]) -> None:
    with (
        shop.producer() as producer,
        refuses(TypeError, name="session"),
        producer.transaction(session=connection_of),
    ):
        pass
