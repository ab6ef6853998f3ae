"""A seal whose session is gone is aborted at once, not after its timeout (I12)."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from msgtx import Isolation, TopicPartition, errors
from msgtx.store.fetch.fetch import Position, fetch
from msgtx.store.fetch.holders import expired_any
from msgtx.store.groups.groups import NO_OFFSETS
from msgtx.store.transactions.seal import Kind, Sealing, decide_sealed, seal, take_seat
from tests.databases import Connection, connect
from tests.sessions.conftest import Shop
from tests.store.steps import Writer, expire_transactions, new_partition, unique

pytestmark = pytest.mark.slow

# The longest that a reader may be held up by one: a few rounds of asking, on a busy machine, and far below any timeout.
SOON_SECONDS = 10.0
KILLED = """
import os, signal, sys
import sqlalchemy
from sqlalchemy.orm import Session
import msgtx
from msgtx import orm
from msgtx.session import enlistment

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

way, level, url, database, topic, name = sys.argv[1:]
engine = sqlalchemy.create_engine(url, isolation_level=level)
with msgtx.connect(database) as client, Session(engine) as session:
    enlistment.decide_sealed = enlistment.decide_sealed_and_commit = die  # just before the COMMIT
    if way == "transaction":
        with client.producer(transactional_id=name) as producer, client.consumer(
            topic, group=name, auto_offset_reset="earliest", enable_auto_commit=False
        ) as consumer:
            consumer.poll(5.0)
            with producer.transaction(session=session) as transaction:
                producer.send(topic, b"lost")
                transaction.send_offsets(consumer)
            session.commit()
    else:
        orm.publish(session, topic, b"lost")
        session.commit()
"""


@pytest.fixture
def session(database_url: str) -> Iterator[Connection]:
    """A user's session, in a SQL transaction."""
    made = connect(database_url)
    made.autocommit = False
    yield made
    made.close()


class Worker(Writer):
    """A transaction with one record, in the log, and how it is sealed."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.partition = new_partition(connection)
        self.send(self.partition, b"x")

    def seal(self, kind: Kind = "session", *, seat: int | None) -> Sealing:
        sealing = seal(self.connection, self.name, kind, tails=self.tails, offsets=NO_OFFSETS, timeout_ms=60_000, seat=seat)
        assert sealing.error is None
        return sealing

    def is_overdue(self) -> bool:
        """Whether a reader is told so."""
        (answer,) = fetch(
            self.connection, {self.partition: Position(0)}, isolation=Isolation.READ_COMMITTED, max_bytes=10**6
        ).values()
        return answer.blocked_overdue

    def decided_by(self) -> tuple[str, str] | None:
        row: tuple[str, str] | None = self.connection.execute(
            "select outcome, decided_by from msgtx.transaction_decision"
            " where (producer_id, producer_epoch, transaction_number) = (%s, %s, %s)",
            self.name,
        ).fetchone()
        return row


# A publish at READ COMMITTED is not sealed: its COMMIT writes it.
@pytest.mark.parametrize(
    ("way", "level"), [("transaction", "READ COMMITTED"), ("transaction", "SERIALIZABLE"), ("publish", "SERIALIZABLE")]
)
def test_a_worker_that_is_killed_between_seal_and_commit_holds_nobody_up(shop: Shop, way: str, level: str) -> None:
    """Not its readers, and not the group whose offsets it took along."""
    with shop.client.producer() as producer:
        first = producer.send(shop.topic, b"first", partition=0).result(SOON_SECONDS)
    name = unique("id")
    url = make_url(shop.url).set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, way, level, url, shop.url, shop.topic, name], timeout=60, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    with shop.client.producer() as producer:
        for partition in range(3):
            producer.send(shop.topic, b"behind", partition=partition)
    began = time.monotonic()
    with shop.client.consumer(group=name, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(shop.topic, partition) for partition in range(3)])
        read: list[Any] = []
        while len(read) < 4 and time.monotonic() - began < SOON_SECONDS:
            read += consumer.poll(1.0)
    assert sorted(record.value for record in read) == [b"behind", b"behind", b"behind", b"first"]
    assert first.offset == 0


def test_a_session_that_sits_is_waited_for(connection: Connection, session: Connection) -> None:
    worker = Worker(connection)
    sealing = worker.seal(seat=take_seat(session))
    assert not worker.is_overdue()
    assert not expired_any(connection, [worker.partition])
    expire_transactions(connection)
    assert worker.decided_by() is None
    assert sealing.sealed is not None
    decide_sealed(session, sealing.sealed)
    assert not worker.is_overdue()
    session.commit()
    assert worker.decided_by() == ("COMMIT", "client")


def test_a_lock_of_another_kind_on_the_same_number_is_no_seat(connection: Connection, session: Connection) -> None:
    worker, seat = Worker(connection), take_seat(session)
    worker.seal(seat=seat)
    session.rollback()
    session.execute("select pg_advisory_xact_lock(1836279553, %s), pg_advisory_xact_lock(%s)", [seat, seat])
    session.execute("select pg_advisory_xact_lock(1836279560::bigint << 32 | %s)", [seat])
    assert worker.is_overdue()


def test_a_seat_is_of_one_session_of_one_database(
    connection: Connection, session: Connection, open_connection: Callable[[], Connection], make_database: Callable[..., str]
) -> None:
    """Who sits on another one, or on the same number elsewhere, does not sit on this one."""
    worker, seat, other = Worker(connection), take_seat(session), open_connection()
    worker.seal(seat=seat)
    with contextlib.closing(connect(make_database())) as elsewhere, other.transaction():
        assert take_seat(other) is not None
        elsewhere.execute("select pg_advisory_lock(1836279560, %s)", [seat])
        assert not worker.is_overdue()
        session.rollback()
        assert worker.is_overdue()


@pytest.mark.parametrize("again", [Writer.next, Writer.init], ids=["number", "epoch"])
def test_a_seat_is_of_one_transaction(
    connection: Connection, session: Connection, open_connection: Callable[[], Connection], again: Callable[[Writer], None]
) -> None:
    """That the producer's last one was decided, and its session has left, does not desert this one."""
    worker, other = Worker(connection), open_connection()
    sealed = worker.seal(seat=take_seat(session)).sealed
    assert sealed is not None
    decide_sealed(session, sealed)
    session.commit()
    again(worker)
    worker.send(worker.partition, b"y")
    with other.transaction():
        worker.seal(seat=take_seat(other))
        assert not worker.is_overdue()
    assert worker.is_overdue()


@pytest.mark.parametrize("by", ["reader", "sweep"])
@pytest.mark.parametrize("end", ["rollback", "savepoint", "killed"])
def test_a_session_that_has_left_is_not(connection: Connection, session: Connection, server: Any, end: str, by: str) -> None:
    worker = Worker(connection)
    session.execute("savepoint one")
    worker.seal(seat=take_seat(session))
    if end == "killed":
        with server.administrator() as administrator:
            administrator.execute("select pg_terminate_backend(%s, 5000)", [session.info.backend_pid])
    else:
        session.execute("rollback" if end == "rollback" else "rollback to savepoint one")
    assert worker.is_overdue()
    if by == "reader":
        assert expired_any(connection, [worker.partition])
        assert not expired_any(connection, [worker.partition])
    else:
        expire_transactions(connection)
    assert worker.decided_by() == ("ABORT", "session")
    assert not worker.is_overdue()


def test_without_a_seat_its_timeout_ends_it(connection: Connection) -> None:
    """As of a client of before, or of one that got no seat."""
    worker = Worker(connection)
    worker.seal(seat=None)
    assert not worker.is_overdue()
    expire_transactions(connection)
    assert worker.decided_by() is None


def test_what_is_prepared_for_an_outside_party_needs_no_seat(connection: Connection, session: Connection) -> None:
    worker = Worker(connection)
    worker.seal("external", seat=take_seat(session))
    session.rollback()
    assert not worker.is_overdue()
    expire_transactions(connection)
    assert worker.decided_by() is None


def test_a_seat_that_another_session_has_locked_is_not_waited_for(connection: Connection, session: Connection) -> None:
    """Advisory locks are open to every login."""
    connection.execute("select setseed(0.5)")
    connection.execute("select pg_advisory_lock(1836279560, floor(random() * 2147483648)::int)")
    session.execute("select setseed(0.5)")
    session.execute("set local lock_timeout = '5s'")
    assert take_seat(session) is None
    assert take_seat(session) is not None
    connection.execute("select pg_advisory_unlock_all()")


def test_a_session_that_is_lost_before_the_block_can_be_closed(shop: Shop, server: Any) -> None:
    with shop.producer() as producer:
        engine = shop.engine()
        with Session(engine) as session, producer.transaction(session=session):
            pass  # the first one on this engine asks for the installation, too
        with pytest.raises(errors.DatabaseUnavailable), Session(engine) as session:  # noqa: PT012 - closed here
            pid = session.scalar(sqlalchemy.text("select pg_backend_pid()"))
            with server.administrator() as administrator:
                administrator.execute("select pg_terminate_backend(%s, 5000)", [pid])
            with producer.transaction(session=session):
                pass
        with producer.transaction():
            pass
