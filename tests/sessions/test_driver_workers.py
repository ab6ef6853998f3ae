"""Workers whose sessions are connections of drivers: each row comes with its offset, whatever fails (I10, I17)."""

import contextlib
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import msgtx
from msgtx import Acknowledgement, DeadLetter, ProcessReport, Record, Skip, TopicPartition, errors
from msgtx.orm import publish
from tests.refusals import refuses
from tests.sessions.conftest import Shop

pytestmark = pytest.mark.slow

SECONDS = 30.0
Factory = Callable[[], Any]


def insert(connection: psycopg.Connection[Any], number: int) -> None:
    connection.execute("insert into orders (number) values (%s)", [number])


def store(connection: psycopg.Connection[Any], record: Record) -> None:
    insert(connection, int(record.value or b""))


@pytest.fixture(params=["connection", "pool"])
def factory(request: pytest.FixtureRequest, shop: Shop) -> Any:
    """What opens psycopg's connections."""
    if request.param == "connection":
        yield lambda: psycopg.connect(shop.url)
        return
    import psycopg_pool

    with psycopg_pool.ConnectionPool(shop.url, min_size=1, max_size=2, open=True) as pool:
        yield pool.connection


def work(shop: Shop, factory: Factory, handler: Any = store, **options: Any) -> ProcessReport:
    """Work on the topic to its end, for a group of its name."""
    return shop.client.process_into(factory, handler, shop.topic, **{"group": shop.topic, "idle_timeout": 0.2, **options})


def lag(shop: Shop) -> int:
    return shop.client.admin.groups.describe(shop.topic).lag


def send(shop: Shop, *numbers: int) -> None:
    shop.send(*(b"%d" % number for number in numbers))


def test_rows_and_offsets_are_one_commit(shop: Shop, factory: Factory) -> None:
    send(shop, *range(20))
    report = work(shop, factory)
    assert (report.records_in, report.aborted, shop.rows(), lag(shop)) == (20, 0, list(range(20)), 0)
    assert work(shop, factory).records_in == 0


def test_a_record_that_fails_is_a_dead_letter_with_its_offset(shop: Shop, factory: Factory) -> None:
    letters = shop.make_topic()
    shop.send(b"1", b"poison", b"3", headers=[("a", b"\xff")])
    report = work(shop, factory, failure=DeadLetter(letters, after=0))
    assert (shop.rows(), report.failed, lag(shop)) == ([1, 3], 1, 0)
    (letter,) = shop.read(letters)
    assert (letter.value, letter.headers[0]) == (b"poison", ("a", b"\xff"))


def test_a_handler_that_commits_has_failed(shop: Shop, factory: Factory) -> None:
    send(shop, 1)

    def handler(connection: psycopg.Connection[Any], record: Record) -> None:
        store(connection, record)
        connection.commit()

    with refuses(errors.IllegalState, reason="block"):
        work(shop, factory, handler, failure=msgtx.Stop())
    assert (shop.rows(), lag(shop)) == ([], 1)


def test_a_handler_that_rolls_back_has_failed(shop: Shop, factory: Factory) -> None:
    send(shop, 1, 2)

    def handler(connection: psycopg.Connection[Any], record: Record) -> None:
        store(connection, record)
        connection.rollback()

    with refuses(errors.IllegalState, reason="rolled back"):
        work(shop, factory, handler, failure=msgtx.Stop())
    assert (shop.rows(), lag(shop)) == ([], 2)


def test_a_commit_that_fails_leaves_no_offset(shop: Shop, factory: Factory) -> None:
    """The constraint is looked at by the COMMIT."""
    send(shop, 1, 2, 3)

    def handler(connection: psycopg.Connection[Any], record: Record) -> None:
        store(connection, record)
        if record.value == b"2":
            store(connection, record)

    report = work(shop, factory, handler, failure=Skip(0))
    assert (shop.rows(), report.failed, lag(shop)) == ([1, 3], 1, 0)


def test_a_connection_that_is_lost_is_another_try(shop: Shop, factory: Factory) -> None:
    send(shop, 1, 2)
    ended = []

    def handler(connection: psycopg.Connection[Any], record: Record) -> None:
        store(connection, record)
        if record.value == b"2" and not ended:
            ended.append(connection.info.backend_pid)
            shop.connection.execute("select pg_terminate_backend(%s, 10000)", ended)

    report = work(shop, factory, handler)
    assert (shop.rows(), report.aborted, lag(shop)) == ([1, 2], 1, 0)


def test_a_savepoint_of_the_handlers_is_its_own(shop: Shop, factory: Factory) -> None:
    send(shop, 1, 2)

    def handler(connection: psycopg.Connection[Any], record: Record) -> None:
        with contextlib.suppress(ZeroDivisionError), connection.transaction():
            insert(connection, 99)
            raise ZeroDivisionError
        store(connection, record)

    work(shop, factory, handler)
    assert (shop.rows(), lag(shop)) == ([1, 2], 0)


def test_a_record_published_by_the_handler_comes_with_the_row(shop: Shop, factory: Factory) -> None:
    output = shop.make_topic()
    send(shop, 1, 2)

    def handler(connection: psycopg.Connection[Any], record: Record) -> None:
        store(connection, record)
        publish(connection, output, record.value)

    work(shop, factory, handler)
    assert shop.seen(output) == ([b"1", b"2"], [1, 2])


# ── share groups ──


@pytest.fixture
def shared(shop: Shop) -> dict[str, Any]:
    """Options of a worker of a share group."""
    shop.client.admin.shares.configure(shop.topic, {"auto_offset_reset": "earliest", "delivery_count_limit": 2})
    return {"share_members": 1, "idle_timeout": 0.3}


def test_rows_and_answers_are_one_commit(shop: Shop, factory: Factory, shared: dict[str, Any]) -> None:
    shop.send(b"1", b"poison", b"3")
    report = work(shop, factory, failure=Acknowledgement.REJECT, **shared)
    assert (shop.rows(), report.failed) == ([1, 3], 1)
    assert shop.client.admin.shares.describe(shop.topic).lag == 0


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_the_answers_of_a_batch_end_with_its_transaction(shop: Shop, shared: dict[str, Any], end: str) -> None:
    send(shop, 1, 2)
    with psycopg.connect(shop.url) as connection, shop.client.share_consumer(shop.topic, group=shop.topic) as consumer:
        with consumer.batch(connection, SECONDS) as records:
            for record in records:
                store(connection, record)
        getattr(connection, end)()
        again = consumer.poll(0.5)
    assert (shop.rows(), [record.value for record in again][:1]) == (([1, 2], []) if end == "commit" else ([], [b"1"]))


# ── scoped sessions of SQLAlchemy ──


def test_the_handler_s_scoped_session_is_the_worker_s(shop: Shop) -> None:
    """As `db.session` of Flask-SQLAlchemy: what the handler calls uses it by its name."""
    scoped = scoped_session(sessionmaker(shop.app))
    seen: set[Session] = set()
    send(shop, 1, 2)

    def handler(session: Any, record: Record) -> None:
        assert session is scoped
        seen.add(scoped())
        scoped.execute(sqlalchemy.text("insert into orders (number) values (:number)"), {"number": int(record.value or b"")})

    shop.client.process_into(lambda: scoped, handler, shop.topic, group=shop.topic, idle_timeout=0.2)
    assert (shop.rows(), lag(shop)) == ([1, 2], 0)
    assert not scoped.registry.has(), "it is removed from its scope"
    offset = shop.client.admin.groups.offsets(shop.topic)[TopicPartition(shop.topic, 0)].offset
    assert offset == 2
