"""share_consumer.commit(session=…): a row and the acknowledgement of its record are one commit (internals: shares; I17)."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy.orm import Session

import msgtx
from msgtx import Acknowledgement, errors, orm
from msgtx.session import side_connection
from msgtx.shares import polls as share_polls
from tests.databases import lose_answers
from tests.refusals import refuses
from tests.sessions.conftest import NARROW, Order, Shop
from tests.store.steps import unique

pytestmark = pytest.mark.slow

Share = Callable[..., msgtx.ShareConsumer]


@pytest.fixture
def share(shop: Shop) -> Iterator[Share]:
    """Members of a group that begins at the start of the log, which holds the numbers from 0 to 5."""
    shop.send(*(b"%d" % number for number in range(6)))
    made: list[msgtx.ShareConsumer] = []
    name = unique("share")

    def make(**settings: Any) -> msgtx.ShareConsumer:
        made.append(shop.client.share_consumer(shop.topic, group=name, **{"acknowledgement_mode": "explicit", **settings}))
        return made[-1]

    shop.client.admin.shares.configure(
        name, {"auto_offset_reset": "earliest", "record_lock_duration_ms": 60_000, "delivery_count_limit": 9}
    )
    yield make
    for consumer in made:
        consumer.close()


def accept(consumer: msgtx.ShareConsumer, records: list[msgtx.ShareRecord]) -> None:
    for record in records:
        consumer.acknowledge(record)


def counts(records: list[msgtx.ShareRecord]) -> list[tuple[bytes | None, int]]:
    return [(record.value, record.delivery_count) for record in records]


@pytest.mark.parametrize("mode", ["explicit", "implicit"])
def test_rows_records_and_acknowledgements_are_one_commit(
    shop: Shop, share: Share, session: Session, output: str, mode: str
) -> None:
    """Every second attempt is rolled back."""
    one = share(acknowledgement_mode=mode)
    for attempt in range(100):
        records = one.poll(0, max_records=2)
        if not records:
            break
        session.add_all([Order(number=int(record.value or b"")) for record in records])
        orm.publish(session, output, b"out", partition=0)
        if mode == "explicit":
            accept(one, records)
        one.commit(session=session)
        if attempt % 2:
            session.commit()
        else:
            session.rollback()
            if mode == "explicit":  # it holds them still
                for record in records:
                    one.acknowledge(record, Acknowledgement.RELEASE)
                one.commit()
    published, numbers = shop.seen(output)
    assert numbers == list(range(6))
    assert len(published) >= 3
    assert share().poll(0) == []


def test_a_savepoint_that_is_rolled_back_takes_its_acknowledgements_back(share: Share, session: Session) -> None:
    one, other = share(), share()
    first, second, third = one.poll(0, max_records=3)
    accept(one, [first])
    one.commit(session=session)
    with session.begin_nested() as savepoint:
        accept(one, [second])
        one.commit(session=session)
        savepoint.rollback()
    one.acknowledge(second, Acknowledgement.RELEASE)
    accept(one, [third])
    one.commit(session=session)
    with pytest.raises(errors.TransactionConflict):
        one.acknowledge(first)
    session.commit()
    assert counts(other.poll(0, max_records=1)) == [(b"1", 2)]
    assert counts(other.poll(0)) == [(b"3", 1), (b"4", 1), (b"5", 1)]


def test_what_is_lost_meanwhile_fails_the_commit(shop: Shop, share: Share, session: Session) -> None:
    one, other = share(), share()
    records = one.poll(0, max_records=2)
    one.acknowledge(records[0], Acknowledgement.RELEASE)
    one.commit()
    assert counts(other.poll(0, max_records=1)) == [(b"0", 2)]
    accept(one, records[1:])
    session.add(Order(number=1))
    one.commit(session=session)
    shop.connection.execute("update msgtx.group_heartbeat set heartbeat_at = heartbeat_at - interval '1 hour'")
    with pytest.raises(errors.MsgtxError) as refused:
        session.commit()
    assert isinstance(refused.value, errors.InvalidRecordState | errors.UnknownMember)
    assert shop.seen()[1] == []


def test_a_commit_that_had_no_answer_is_finished_before_a_session_has_answers(
    shop: Shop, share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I17: it was applied. Else the session would have its records, too, and its commit would be refused."""
    one = share(request_timeout_ms=500, retry_backoff_ms=50)

    with Session(shop.engine(**NARROW)) as session:
        for way in ("commit", "riding"):
            first, second = one.poll(0, max_records=2)
            accept(one, [first])
            with monkeypatch.context() as patched:
                lose_answers(patched, share_polls, "acknowledge_records")
                with pytest.raises(errors.DatabaseUnavailable):
                    one.commit()
            if way == "commit":
                accept(one, [second])
                one.commit(session=session)
            else:
                with one.rides.accepting(session, [second], "not yet"):
                    pass
            session.commit()
    assert counts(share().poll(0)) == [(b"4", 1), (b"5", 1)]


def test_a_session_that_idles_holds_nobody_up(shop: Shop, share: Share) -> None:
    """P32. Nothing is locked before the COMMIT; the records are this member's until then."""
    one, other = share(), share()
    with Session(shop.engine()) as session:
        accept(one, one.poll(0, max_records=2))
        one.commit(session=session)
        assert counts(other.poll(0, max_records=2)) == [(b"2", 1), (b"3", 1)]
        session.commit()
    assert counts(other.poll(0)) == [(b"4", 1), (b"5", 1)]


def test_at_read_committed_acknowledgements_need_no_connection_of_ours(shop: Shop, share: Share) -> None:
    one, engine = share(), shop.engine()
    with Session(engine) as session:
        accept(one, one.poll(0))
        one.commit(session=session)
        session.commit()
    assert engine not in side_connection._companions
    assert share().poll(0) == []


def test_a_block_of_a_producer_takes_acknowledgements_alone_into_the_session(
    shop: Shop, share: Share, session: Session
) -> None:
    one, other = share(), share()
    accept(one, one.poll(0))
    with shop.producer() as producer, producer.transaction(session=session) as transaction:
        transaction.send_acknowledgements(one)
    assert shop.outcome(transaction.id) is msgtx.Outcome.OPEN
    session.commit()
    assert shop.outcome(transaction.id) is msgtx.Outcome.COMMITTED
    assert other.poll(0) == []


def test_a_block_of_a_producer_takes_acknowledgements_into_the_session(
    shop: Shop, share: Share, session: Session, output: str
) -> None:
    one, other = share(), share()
    with shop.producer() as producer:
        for ends in (session.rollback, session.commit):
            records = one.poll(5, max_records=1)
            assert [record.value for record in records] == [b"0"]
            with producer.transaction(session=session) as tx:
                session.add_all([Order(number=int(record.value or b"")) for record in records])
                producer.send(output, b"out", partition=0)
                accept(one, records)
                tx.send_acknowledgements(one)
            ends()
    assert shop.seen(output) == ([b"out"], [0])
    assert counts(other.poll(0)) == [(b"%d" % number, 1) for number in range(1, 6)]


class Oops(Exception):
    """What the user's code raises."""


MODES = pytest.mark.parametrize("mode", ["explicit", "implicit"])


@MODES
def test_after_a_rollback_the_next_poll_hands_the_records_out_again(share: Share, session: Session, mode: str) -> None:
    one = share(acknowledgement_mode=mode)
    records = one.poll(0, max_records=1)
    if mode == "explicit":
        accept(one, records)
    one.commit(session=session)
    session.rollback()
    if mode == "implicit":
        with refuses(errors.IllegalState, reason="poll first"):
            one.commit(session=session)
    assert counts(one.poll(0, max_records=1)) == [(b"0", 2)]
    one.rewind()


@MODES
@pytest.mark.parametrize("fails", ["not at all", "in the block", "behind the block", "in a savepoint"])
def test_a_batch_is_committed_with_the_session_or_handed_out_again(
    shop: Shop, share: Share, session: Session, mode: str, fails: str
) -> None:
    one = share(acknowledgement_mode=mode)

    def block() -> None:
        with one.batch(session, 0, max_records=1) as records:
            session.add_all([Order(number=int(record.value or b"")) for record in records])
            if mode == "explicit":
                accept(one, records)
            if fails in {"in the block", "in a savepoint"}:
                raise Oops

    with contextlib.suppress(Oops):
        with session.begin_nested() if fails == "in a savepoint" else contextlib.nullcontext():
            block()
        if fails == "behind the block":
            raise Oops
        session.commit()
    session.rollback()
    is_done = fails == "not at all"
    assert shop.seen()[1] == ([0] if is_done else [])
    assert counts(one.poll(0, max_records=1)) == ([(b"1", 1)] if is_done else [(b"0", 2)])
    one.rewind()


def test_the_commit_comes_behind_the_block(shop: Shop, share: Share, session: Session) -> None:
    one = share(acknowledgement_mode="implicit")

    def block(*steps: Callable[[], object]) -> int:
        with one.batch(session, 0, max_records=1) as records:
            for step in steps:
                step()
        return records[0].delivery_count

    def adds() -> None:
        session.add(Order(number=0))
        session.flush()

    with refuses(errors.IllegalState, reason="block"):
        block(adds, session.commit)
    session.rollback()
    with refuses(errors.IllegalState, reason="rolled back"):
        block(session.rollback, adds)
    session.rollback()
    block(session.rollback)
    assert block(adds) == 4
    session.commit()
    with one.batch(session, 0) as records:
        assert [record.offset for record in records] == [1, 2, 3, 4, 5]
    session.commit()
    with one.batch(session, 0) as records:
        assert records == []
    assert shop.seen()[1] == [0]


def test_a_session_elsewhere_leaves_the_records_to_the_next_poll(share: Share) -> None:
    one = share(acknowledgement_mode="implicit")
    with pytest.raises(TypeError), one.batch("no session", 0, max_records=1):  # type: ignore[arg-type]
        raise AssertionError("the block does not begin")
    assert counts(one.poll(0, max_records=1)) == [(b"0", 1)]


def test_a_sealed_transaction_that_its_session_rolls_back_has_its_records_handed_out_again(
    shop: Shop, share: Share, session: Session
) -> None:
    """Implicit mode; the producer has learnt nothing when the next transaction begins."""
    one = share(acknowledgement_mode="implicit")
    with shop.producer() as producer:
        for ends, delivery in ((session.rollback, 1), (session.commit, 2)):
            assert counts(one.poll(0, max_records=1)) == [(b"0", delivery)]
            with producer.transaction(session=session) as tx:
                tx.send_acknowledgements(one)
            ends()
    assert counts(one.poll(0, max_records=1)) == [(b"1", 1)]
