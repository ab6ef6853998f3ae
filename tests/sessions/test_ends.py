"""How a user's SQL transaction has ended is known, though SQLAlchemy may tell nobody (internals: sessions; I6, I10)."""

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

import msgtx
from msgtx import Outcome, errors
from tests.interrupts import interrupts
from tests.refusals import refuses
from tests.sessions.conftest import LEVELS, Order, Shop, insert, refuse_the_next

pytestmark = pytest.mark.slow

SECONDS = 30.0
POOLS: dict[str, dict[str, Any]] = {
    "": {},
    "no pool": {"poolclass": sqlalchemy.NullPool},
    "no reset": {"pool_reset_on_return": None},
    "commits": {"pool_reset_on_return": "commit"},
}


@dataclass
class Pair:
    """A consumer of 0 to 9, two in a batch, and a transactional producer to another topic."""

    client: msgtx.Client
    consumer: msgtx.Consumer
    producer: msgtx.Producer
    output: str

    def ride(self, user: Session | sqlalchemy.Connection) -> tuple[list[bytes | None], msgtx.TransactionId]:
        """Have the next batch's offsets, a row and a transaction ride. Returns the batch and the transaction."""
        with self.consumer.batch(user, SECONDS) as records:
            user.execute(sqlalchemy.insert(Order).values(number=int(records[0].value or b"")))
        with self.producer.transaction(session=user) as transaction:
            self.producer.send(self.output, records[0].value)
        return [record.value for record in records], transaction.id

    def goes_on(self, engine: sqlalchemy.Engine, batch: list[bytes | None], shop: Shop) -> None:
        """The next session of both is as good as any, and has this batch."""
        with Session(engine) as session:
            assert self.ride(session)[0] == batch
            session.commit()
        assert shop.seen(self.output) == ([batch[0]], [int(batch[0] or b"")])


@pytest.fixture
def pair(shop: Shop) -> Iterator[Pair]:
    source, output = shop.make_topic(), shop.make_topic()
    with shop.client.producer() as producer:
        for number in range(10):
            producer.send(source, b"%d" % number)
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "max_poll_records": 2}
    with shop.client.consumer(source, group=source, **settings) as consumer, shop.producer(retry_backoff_ms=5) as producer:
        yield Pair(shop.client, consumer, producer, output)


@pytest.mark.parametrize("level", LEVELS[:2])
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("ends", ["rollback", "close", "rollback, close", "forgotten"])
def test_a_commit_that_another_listener_refuses_leaves_its_batch_to_be_handled(
    shop: Shop, pair: Pair, level: str, pool: str, ends: str
) -> None:
    """SQLAlchemy rolls back in the pool only, and has no event for it. What is closed holds no reader up."""

    def refused() -> tuple[list[bytes | None], msgtx.TransactionId, object]:
        user = engine.connect()
        batch, transaction = pair.ride(user)
        refuse_the_next(engine)
        with pytest.raises(ZeroDivisionError):
            user.commit()
        for end in ends.split(", "):
            getattr(user, end, lambda: None)()
        return batch, transaction, None if ends == "forgotten" else user

    engine = shop.engine(isolation_level=level, **POOLS[pool])
    batch, transaction, kept = refused()
    gc.collect()
    if ends != "rollback":
        assert pair.client.transaction_outcome(transaction) is Outcome.ABORTED
    elif isinstance(kept, sqlalchemy.Connection):
        kept.execute(sqlalchemy.text("select"))  # until then it is open in the database
        kept.commit()
    assert shop.seen(pair.output) == ([], [])
    pair.goes_on(engine, batch, shop)


def test_a_consumer_that_went_on_is_not_told_again(shop: Shop, pair: Pair) -> None:
    """It has seen that the commit came to nothing; the connection begins again only while the batch is handled anew."""
    engine = shop.engine()
    with engine.connect() as user, Session(engine) as session:
        with pair.consumer.batch(user, SECONDS):
            user.execute(insert(1))
        refuse_the_next(engine)
        with pytest.raises(ZeroDivisionError):
            user.commit()
        with pair.consumer.batch(session, SECONDS) as records:  # nothing waits for the rollback
            assert [record.value for record in records] == [b"0", b"1"]
        member = pair.consumer.group_metadata().member_id
        user.rollback()
        user.invalidate()
        user.begin()
        session.commit()
        with pair.consumer.batch(session, SECONDS) as records:
            assert [record.value for record in records] == [b"2", b"3"]
        session.commit()
        assert pair.consumer.group_metadata().member_id == member, "it has left the group once, not twice"


@pytest.mark.parametrize("level", LEVELS[:2])
def test_a_commit_whose_sql_transaction_another_listener_has_made_fail_is_none(shop: Shop, pair: Pair, level: str) -> None:
    """PostgreSQL would answer it with a rollback, and no error."""
    engine = shop.engine(isolation_level=level)
    statements = ["select 1 / 0", "select 1"]

    def listener(connection: sqlalchemy.Connection) -> None:
        with contextlib.suppress(sqlalchemy.exc.DataError):
            connection.execute(sqlalchemy.text(statements.pop(0)))

    with engine.connect() as user:
        batch, transaction = pair.ride(user)
        sqlalchemy.event.listen(engine, "commit", listener)
        with refuses(errors.IllegalState, reason="failed"):
            user.commit()
    assert pair.client.transaction_outcome(transaction) is Outcome.ABORTED
    pair.goes_on(engine, batch, shop)


@pytest.mark.parametrize("how", ["fails", "is refused", "is refused, and it goes on"])
def test_a_commit_that_was_not_done_for_certain_costs_no_place_in_the_group(shop: Shop, pair: Pair, how: str) -> None:
    """Nothing is in doubt, and nobody else has to take partitions over."""
    engine = shop.engine()
    member = None
    for _ in range(2):
        with engine.connect() as user:
            with pair.consumer.batch(user, SECONDS) as records:
                assert [record.value for record in records] == [b"0", b"1"]
                numbers = [1, 1] if how == "fails" else [1, 2]
                user.execute(sqlalchemy.insert(Order), [{"number": number} for number in numbers])
            if how != "fails":
                refuse_the_next(engine)
            with pytest.raises((sqlalchemy.exc.IntegrityError, ZeroDivisionError)):
                user.commit()
            if "goes on" in how:
                user.rollback()
                user.execute(sqlalchemy.text("select"))
        member = member or pair.consumer.group_metadata().member_id
        assert pair.consumer.group_metadata().member_id == member


@pytest.mark.parametrize("how", ["forgotten", "invalidated, forgotten", "invalidated, rolled back"])
def test_a_connection_that_does_not_commit_leaves_its_batch_to_be_handled(shop: Shop, pair: Pair, how: str) -> None:
    """Also where the consumer asks before the producer does."""

    def ended() -> tuple[list[bytes | None], sqlalchemy.Connection | None]:
        user = engine.connect()
        batch, _ = pair.ride(user)
        if "invalidated" in how:
            user.invalidate()
            with pytest.raises(sqlalchemy.exc.PendingRollbackError):
                user.commit()
        if "rolled back" in how:
            user.rollback()
            return batch, user
        return batch, None

    engine = shop.engine()
    batch, _kept = ended()
    gc.collect()
    pair.goes_on(engine, batch, shop)


@pytest.mark.parametrize("end", ["rollback", "commit that fails"])
def test_an_interrupt_at_any_line_of_an_end_leaves_the_batch_to_be_handled(shop: Shop, pair: Pair, end: str) -> None:
    """I10: also where the connection is closed, and its object still there."""
    engine = shop.engine(pool_size=5, max_overflow=20)
    for interrupt in interrupts("session/enlistment.py", least=10):
        user = engine.connect()
        batch, _ = pair.ride(user)
        if end == "commit that fails":
            user.execute(sqlalchemy.insert(Order), [{"number": 1_000}, {"number": 1_000}])
        try:
            with interrupt:
                (user.rollback if end == "rollback" else user.commit)()
        except sqlalchemy.exc.IntegrityError:
            pass
        user.rollback()
        user.close()
        assert shop.seen(pair.output) == ([], []), interrupt.place
        with Session(engine) as session:
            assert pair.ride(session)[0] == batch == [b"0", b"1"], interrupt.place
            session.rollback()


def test_a_connection_that_was_taken_out_of_the_pool_commits_as_sqlalchemys(
    shop: Shop, pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """With msgtx it cannot be used, as its errors then say."""
    engine = shop.engine()
    with Session(engine) as session:
        pair.ride(session)
        session.rollback()
    with engine.connect() as user:
        user.detach()
        with pytest.raises(errors.ConfigError):
            pair.consumer.commit(session=user)
        user.execute(insert(1))
        user.commit()
    assert shop.seen(pair.output) == ([], [1])
    assert [record.getMessage() for record in caplog.records] == [], "SQLAlchemy logs what raises at the end"


def test_a_connection_that_goes_on_without_messages_commits(shop: Shop, pair: Pair) -> None:
    """Whatever has become of those that it had."""
    with shop.engine().connect() as user:
        pair.ride(user)
        user.rollback()
        user.execute(insert(1))
        user.commit()
        user.execute(insert(2))
        user.commit()
    assert shop.seen(pair.output) == ([], [1, 2])


def test_a_commit_that_is_interrupted_behind_the_servers_answer_is_asked_for(
    shop: Shop, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batch does not come again: what nobody noted is read from the group's offsets."""
    engine = shop.engine()
    with engine.connect() as user:
        pair.ride(user)
        do_commit = engine.dialect.do_commit

        def interrupted(adapted: Any) -> None:
            adapted.commit()
            raise KeyboardInterrupt

        monkeypatch.setattr(engine.dialect, "do_commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            user.commit()
        monkeypatch.setattr(engine.dialect, "do_commit", do_commit)
    assert shop.seen(pair.output) == ([b"0"], [0])
    with Session(engine) as session:
        assert pair.ride(session)[0] == [b"2", b"3"]
        session.commit()
    assert shop.seen(pair.output) == ([b"0", b"2"], [0, 2])
