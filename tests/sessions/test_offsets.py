"""consumer.commit(session=…): rows that are made of records are there exactly once (internals: sessions; I10, I11, P39)."""

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

import msgtx
from msgtx import OffsetAndMetadata, TopicPartition, errors, orm
from tests.refusals import refuses
from tests.sessions.conftest import LEVELS, Order, Shop
from tests.store.steps import unique

pytestmark = pytest.mark.slow

SECONDS = 30.0
Make = Callable[..., msgtx.Consumer]


@pytest.fixture
def make_consumer(shop: Shop) -> Make:
    """Members of a group on the topic, which holds the numbers from 0 to 9."""
    group = unique("group")
    with shop.client.producer() as producer:
        for number in range(10):
            producer.send(shop.topic, b"%d" % number, partition=number % 3)

    def make(**settings: Any) -> msgtx.Consumer:
        settings = {"group": group, "auto_offset_reset": "earliest", "enable_auto_commit": False, **settings}
        return shop.client.consumer(shop.topic, **settings)

    return make


def store(session: Session, records: list[msgtx.Record]) -> None:
    session.add_all([Order(number=int(record.value or b"")) for record in records])


def test_rows_made_of_records_are_there_exactly_once(shop: Shop, make_consumer: Make, session: Session) -> None:
    """Every second attempt is rolled back and rewound, and the consumer is replaced again and again."""
    for attempt in range(100):
        with make_consumer(max_poll_records=2) as consumer:
            if not (records := consumer.poll(2.0)):
                break
            store(session, records)
            consumer.commit(session=session)
            if attempt % 2:
                session.commit()
                continue
            session.rollback()
            consumer.rewind()
            again = consumer.poll(SECONDS)
            assert {r.value for r in again} == {r.value for r in records}
            store(session, again)
            consumer.commit(session=session)
            session.commit()
    assert shop.seen()[1] == list(range(10))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("meanwhile", ["nothing", "it is lost"])
def test_what_a_connection_has_committed_does_not_come_again_when_it_begins_again(
    shop: Shop, make_consumer: Make, level: str, meanwhile: str
) -> None:
    """Neither to the consumer, which goes on, nor to the next one (I10)."""
    with shop.engine(isolation_level=level).connect() as user, make_consumer(max_poll_records=2) as consumer:
        for _ in range(2):
            records = consumer.poll(SECONDS)
            user.execute(sqlalchemy.insert(Order), [{"number": int(record.value or b"")} for record in records])
            consumer.commit(session=user)
            user.commit()
            if meanwhile == "it is lost":
                driver: Any = user.connection.driver_connection
                driver.close()
                user.begin()
                with pytest.raises(sqlalchemy.exc.OperationalError, match="closed"):
                    user.execute(sqlalchemy.text("select"))
                user.rollback()
        user.execute(sqlalchemy.text("select"))
        user.rollback()
        rest = consumer.poll(SECONDS, max_records=10)
    with make_consumer(max_poll_records=10) as consumer:
        assert {record.value for record in consumer.poll(SECONDS)} == {record.value for record in rest}
    assert sorted(shop.seen()[1] + [int(record.value or b"") for record in rest]) == list(range(10))


def test_offsets_come_with_the_commit_and_go_with_a_savepoint(shop: Shop, make_consumer: Make, session: Session) -> None:
    place = TopicPartition(shop.topic, 0)
    with make_consumer() as consumer:
        consumer.poll(SECONDS)
        consumer.commit({place: 1}, session=session)
        with session.begin_nested() as nested:
            consumer.commit({place: 3}, session=session)
            nested.rollback()
        assert consumer.committed([place]).get(place) is None
        session.commit()
        assert consumer.committed([place]) == {place: OffsetAndMetadata(1)}
        consumer.commit({place: 2}, session=session)
        consumer.commit({place: OffsetAndMetadata(4, "note")}, session=session)  # the later one counts
        session.commit()
        assert consumer.committed([place]) == {place: OffsetAndMetadata(4, "note")}
        consumer.commit({}, session=session)
        session.commit()


def test_offsets_of_which_nothing_came_may_ride_again(shop: Shop, make_consumer: Make, session: Session) -> None:
    """The rows are made anew of records that are still at hand: nothing was handed out behind them."""
    with make_consumer(max_poll_records=1) as consumer:
        records = []
        for _ in range(2):
            records += consumer.poll(SECONDS)
            store(session, records[-1:])
            consumer.commit(session=session)
        session.rollback()
        store(session, records)
        consumer.commit(session=session)
        session.commit()
        assert consumer.committed()[TopicPartition(shop.topic, records[0].partition)] == OffsetAndMetadata(2)
    assert shop.seen()[1] == sorted(int(record.value or b"") for record in records)


@pytest.mark.parametrize("moved", ["left", "expired generation", "assigned to another"])
def test_a_member_that_lost_its_partitions_commits_neither_offsets_nor_rows(
    shop: Shop, make_consumer: Make, session: Session, moved: str
) -> None:
    """P39, I11: it is fenced just before the COMMIT, however old the session's snapshot is."""
    with make_consumer() as consumer:
        session.execute(sqlalchemy.select(Order)).all()
        store(session, consumer.poll(SECONDS))
        consumer.commit(session=session)
        session.flush()
        member, group = consumer.group_metadata().member_id, consumer.group_metadata().group
        of_group = "(select group_id from msgtx.consumer_group where name = %s)"
        match moved:
            case "left":
                shop.connection.execute("select msgtx.leave_group(%s, %s)", [group, member])
                expected: type[errors.MsgtxError] = errors.UnknownMember
            case "expired generation":
                shop.connection.execute(
                    f"update msgtx.group_assignment set owner_since = owner_since + 1 where group_id = {of_group}", [group]
                )
                expected = errors.IllegalGeneration
            case _:
                shop.connection.execute(
                    f"update msgtx.group_assignment set owner = owner + 1 where group_id = {of_group}", [group]
                )
                expected = errors.NotAssigned
        with pytest.raises(expected):
            session.commit()
        session.rollback()
        assert shop.seen()[1] == []
        rows = shop.connection.execute(f"select from msgtx.group_offset where group_id = {of_group}", [group]).fetchall()
        assert rows == [], "nothing is pending either"


def test_offsets_records_and_rows_are_one(shop: Shop, make_consumer: Make, session: Session) -> None:
    output = shop.make_topic()
    with make_consumer() as consumer, shop.producer() as producer:
        for ending in ("rollback", "commit"):
            records = consumer.poll(SECONDS)
            while len(records) < 10:
                records += consumer.poll(SECONDS)
            store(session, records)
            orm.publish(session, output, b"%d" % len(records))
            with producer.transaction(session=session):
                producer.send(output, b"done")
            consumer.commit(session=session)
            getattr(session, ending)()
            if ending == "rollback":
                assert shop.seen(output) == ([], [])
                consumer.rewind()
    assert shop.seen(output) == ([b"done", b"10"], list(range(10)))
    with make_consumer() as consumer:
        assert consumer.poll(0.5) == []


def test_a_log_that_was_truncated_is_noticed_at_the_commit(shop: Shop, make_consumer: Make, session: Session) -> None:
    """The row before the position is another one: a crash of the server has taken back what was read."""
    with make_consumer() as consumer:
        store(session, consumer.poll(SECONDS))
        consumer.commit(session=session)
        shop.connection.execute(
            "update msgtx.record_batch set appended_at = appended_at + interval '1 second' where partition_id in"
            " (select partition_id from msgtx.partition join msgtx.topic using (topic_id) where name = %s)",
            [shop.topic],
        )
        with pytest.raises(errors.LogTruncated):
            session.commit()
        session.rollback()
    assert shop.seen()[1] == []


def test_automatic_commits_and_sessions_exclude_each_other(make_consumer: Make, session: Session) -> None:
    with make_consumer(enable_auto_commit=True) as consumer:
        consumer.poll(SECONDS)
        with refuses(errors.IllegalState, reason="enable_auto_commit"):
            consumer.commit(session=session)


def test_a_consumer_without_a_group_cannot_commit_with_a_session(shop: Shop, session: Session) -> None:
    with shop.client.consumer(shop.topic) as consumer, refuses(errors.MsgtxError, reason="no group"):
        consumer.commit({TopicPartition(shop.topic, 0): 1}, session=session)


def test_offsets_do_not_ride_in_a_session_of_another_database(
    shop: Shop, make_consumer: Make, make_database: Callable[..., str]
) -> None:
    """Its partitions have the same numbers."""
    engine = shop.engine(make_database())
    with Session(engine) as elsewhere, make_consumer() as consumer:
        elsewhere.execute(sqlalchemy.text("update msgtx.installation set incarnation = gen_random_uuid()"))
        elsewhere.commit()
        consumer.poll(SECONDS)
        with refuses(errors.ConfigError, reason="another database"):
            consumer.commit(session=elsewhere)
        elsewhere.commit()
