"""How what one COMMIT publishes is divided into calls: PostgreSQL takes no message of 1 GiB (internals: sessions)."""

import threading
from typing import Any, NoReturn

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from msgtx import errors, orm
from msgtx.config import ROW_BYTES
from msgtx.database.wire import BatchColumns
from msgtx.session import enlistment, side_connection
from msgtx.session.published import Published, calls_of
from msgtx.store.append.append import CALL_BYTES, PARTITIONS_AT_ONCE
from msgtx.store.append.rows import HeaderPairs
from msgtx.store.topics.topics import Topic
from tests.sessions.conftest import LEVELS, Shop, insert
from tests.store.steps import count

SECONDS = 30.0
MANY = Topic("many", tuple(range(1, 601)), {})


@pytest.fixture
def small_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of 100 bytes, or of two partitions."""
    monkeypatch.setattr("msgtx.session.published.CALL_BYTES", 100)
    monkeypatch.setattr("msgtx.session.published.PARTITIONS_AT_ONCE", 2)


Sent = list[list[int]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """The partitions of each call: in the session, and above READ COMMITTED beside it."""
    calls: Sent = []
    for room, name in ((enlistment, "append_and_commit"), (enlistment, "commit_in_session"), (side_connection, "append")):
        original = getattr(room, name)

        def counted(connection: Any, batches: Any, *rest: Any, _original: Any = original, **named: Any) -> Any:
            calls.append([batch.partition_id for batch in batches])
            return _original(connection, batches, *rest, **named)

        monkeypatch.setattr(room, name, counted)
    return calls


def published(partition: int, value: bytes, headers: HeaderPairs = ()) -> Published:
    return Published(MANY, partition, None, value, 0, headers)


def sizes(calls: list[list[BatchColumns]]) -> list[int]:
    return [
        sum(len(item or b"") for batch in call for item in (*batch.values, *(batch.header_values or ()))) for call in calls
    ]


# ── what goes into one call ──


def test_a_call_has_so_many_bytes_and_no_more() -> None:
    calls = list(calls_of(published(partition, bytes(ROW_BYTES)) for partition in range(20)))
    assert [len(call) for call in calls] == [5, 5, 5, 5]
    assert max(sizes(calls)) <= CALL_BYTES


def test_a_record_that_is_larger_goes_alone() -> None:
    values = [b"a", bytes(CALL_BYTES + 1), b"b", b"c"]
    calls = list(calls_of(published(partition, value) for partition, value in enumerate(values)))
    assert [[len(batch.values[0] or b"") for batch in call] for call in calls] == [[1], [CALL_BYTES + 1], [1, 1]]
    calls = list(calls_of(published(partition, value) for partition, value in enumerate(values[1:])))
    assert [len(call) for call in calls] == [1, 2]


def test_a_call_has_so_many_partitions_and_no_more() -> None:
    calls = list(calls_of(published(partition, b"x") for partition in range(600)))
    assert [len(call) for call in calls] == [PARTITIONS_AT_ONCE, PARTITIONS_AT_ONCE, 600 - 2 * PARTITIONS_AT_ONCE]


def test_headers_count() -> None:
    """A hundred records of one byte, with 100 KB of headers each, were one row and one call."""
    calls = list(calls_of(published(0, b"x", [("h", bytes(100_000))]) for _ in range(100)))
    assert max(sizes(calls)) <= ROW_BYTES
    assert sum(len(batch.values) for call in calls for batch in call) == 100


def test_calls_are_ascending_and_keep_the_order_of_a_partition(small_calls: None) -> None:
    calls = list(calls_of(published(partition, b"%d" % at) for at in range(3) for partition in (4, 1, 3)))
    assert [[batch.partition_id for batch in call] for call in calls] == [[2, 4], [5]]
    large = [published(partition, b"%d" % at + bytes(ROW_BYTES)) for at in range(3) for partition in (4, 1)]
    calls = list(calls_of(large))
    assert [(batch.partition_id, (batch.values[0] or b"")[:1]) for call in calls for batch in call] == [
        (partition, b"%d" % at) for at in range(3) for partition in (2, 5)
    ]


# ── and yet one COMMIT ──


def publish_each(session: Any, topic: str, partitions: Any, size: int = 60) -> None:
    session.execute(insert(1))
    for partition in partitions:
        orm.publish(session, topic, b"%d" % partition + bytes(size), partition=partition)


def test_calls_of_one_commit_are_there_together(
    shop: Shop, leveled: sqlalchemy.Engine, small_calls: None, sent: Sent
) -> None:
    topic = shop.make_topic(partitions=5)
    with Session(leveled) as session:
        publish_each(session, topic, [4, 0, 3, 1, 2])
        session.commit()
    assert shop.seen(topic) == ([b"%d" % partition + bytes(60) for partition in range(5)], [1])
    assert [len(call) for call in sent[-5:]] == [1] * 5
    assert sent[-5:] == sorted(sent[-5:])


@pytest.mark.parametrize("kind", [Session, sqlalchemy.Connection])
@pytest.mark.parametrize("why", ["refused", "not sent"])
def test_a_later_call_that_fails_takes_all_of_them_back(
    shop: Shop, leveled: sqlalchemy.Engine, small_calls: None, monkeypatch: pytest.MonkeyPatch, kind: Any, why: str
) -> None:
    """Also if it never came to the server, whose SQL transaction is in good order then; and if COMMIT is called again."""
    topic, other = shop.make_topic(partitions=3), shop.make_topic(partitions=3)
    with Session(leveled) if kind is Session else leveled.connect() as session:
        publish_each(session, topic, [0, 1, 2])
        orm.publish(session, other, bytes(90))
        if why == "refused":
            shop.client.topics.alter(other, max_message_bytes=10)
        else:
            monkeypatch.setattr("msgtx.database.wire.ARGUMENT_BYTES", 235)
        with pytest.raises(errors.RecordTooLarge):
            session.commit()
        monkeypatch.undo()
        assert shop.seen(topic) == ([], [])
        try:
            session.commit()
        except (errors.MsgtxError, sqlalchemy.exc.SQLAlchemyError):
            session.rollback()
        assert shop.seen(topic) == ([], [])
        publish_each(session, topic, [0, 1, 2])
        session.commit()
    assert shop.seen(topic) == ([b"%d" % partition + bytes(60) for partition in range(3)], [1])
    assert shop.nothing_is_open()


@pytest.mark.parametrize("level", LEVELS)
def test_sessions_that_publish_crosswise_in_several_calls_do_not_deadlock(
    shop: Shop, small_calls: None, background: Any, level: str
) -> None:
    """Their partitions are locked in one ascending round, whatever the number of calls."""
    engine, together = shop.engine(pool_size=3, isolation_level=level), threading.Barrier(3)

    def work(partitions: list[int]) -> None:
        together.wait(SECONDS)
        for _ in range(6):
            with Session(engine) as session:
                for partition in partitions:
                    orm.publish(session, shop.topic, bytes(90), partition=partition)
                session.commit()

    for done in [background.submit(work, order) for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0])]:
        done.result(SECONDS)
    assert len(shop.seen()[0]) == 54


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_what_is_large_has_more_time(shop: Shop, monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    """Else a COMMIT of gigabytes would end as one to try again, each time."""
    monkeypatch.setattr(side_connection, "SEALED_TIMEOUT_MS", 1)
    monkeypatch.setattr(side_connection, "BYTES_PER_MS", 1)
    shop.publish(shop.engine(isolation_level=level), bytes(60_000))
    assert shop.seen()[0] == [bytes(60_000)]


def test_what_does_not_ride_costs_no_call(shop: Shop, sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    def acknowledges(*_: object) -> bool:
        raise AssertionError("there are no acknowledgements")

    monkeypatch.setattr(enlistment, "acknowledge_in_session", acknowledges)
    shop.publish(shop.app, b"x")
    assert (len(sent), shop.seen()[0]) == (1, [b"x"])


# ── the ids of what is written beside a session ──


@pytest.fixture
def beside(shop: Shop) -> sqlalchemy.Engine:
    """An engine whose records are written beside its sessions."""
    return shop.engine(isolation_level="REPEATABLE READ")


def test_one_id_does_for_commits_that_follow_one_another(shop: Shop, beside: sqlalchemy.Engine) -> None:
    shop.publish(beside, b"first", partition=0)
    before = count(shop.connection, "producer")
    for _ in range(3):
        shop.publish(beside, b"more", partition=0)
    assert count(shop.connection, "producer") == before
    assert shop.seen()[0] == [b"first", b"more", b"more", b"more"]


def test_connections_share_ids_and_each_of_their_transactions_has_one_for_itself(
    shop: Shop, beside: sqlalchemy.Engine
) -> None:
    """A connection that is in a SQL transaction again is taken for one whose COMMIT is under way."""

    def publishes(user: sqlalchemy.Connection) -> int:
        orm.publish(user, shop.topic, b"x")
        user.commit()
        return count(shop.connection, "producer") - before

    with beside.connect() as first, beside.connect() as second:
        before = count(shop.connection, "producer")
        assert [publishes(user) for user in (first, first, second, first)] == [1, 1, 1, 1]
        first.execute(sqlalchemy.text("select 1"))
        assert publishes(second) == 2
        first.rollback()
        second.execute(sqlalchemy.text("select 1"))
        assert publishes(first) == 2


def one_by_one(*_: object, **__: object) -> NoReturn:
    """Refuse to do both at once."""
    raise errors.InvalidRequest("one by one")


def test_an_id_that_is_of_no_use_any_more_is_replaced(
    shop: Shop, beside: sqlalchemy.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most so many: then the COMMIT fails, with the reason."""
    for value in (b"a", b"b"):
        shop.publish(beside, value, partition=0)
        shop.connection.execute("update msgtx.producer set epoch = epoch + 1")
    tried: list[object] = []

    def fenced(_: object, batches: object, **named: object) -> NoReturn:
        tried.append(batches)
        raise errors.ProducerFenced("also a new one")

    with monkeypatch.context() as patched:
        patched.setattr(side_connection, "append_and_seal", one_by_one)
        patched.setattr(side_connection, "append", fenced)
        with pytest.raises(errors.ProducerFenced):
            shop.publish(beside, b"refused", partition=0)
    assert len(tried) == side_connection.NAMES_TRIED
    shop.publish(beside, b"c", partition=0)
    assert shop.seen()[0] == [b"a", b"b", b"c"]


def test_what_a_crash_takes_back_before_the_commit_is_not_committed(
    shop: Shop, beside: sqlalchemy.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what is written beside the session only the seal is flushed: it names what must be there then."""
    seal = side_connection.seal

    def crashes(*arguments: Any, **named: Any) -> Any:
        shop.connection.execute("delete from msgtx.record_batch where transaction_number is not null")
        return seal(*arguments, **named)

    monkeypatch.setattr(side_connection, "append_and_seal", one_by_one)
    monkeypatch.setattr(side_connection, "seal", crashes)
    with pytest.raises(errors.TransactionAborted):
        shop.publish(beside, b"gone", partition=0)
    monkeypatch.undo()
    shop.publish(beside, b"there", partition=0)
    assert shop.seen()[0] == [b"there"]
