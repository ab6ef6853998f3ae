"""A member whose heartbeats are not answered hands nothing out that others may have (internals: groups)."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import msgtx
from msgtx import Consumer, ShareConsumer, TopicPartition, errors
from msgtx.consumer.membership import Membership
from msgtx.shares.member import ShareMember
from msgtx.store.groups.members import leave_group
from tests.client.steps import SECONDS, store
from tests.databases import Connection, wait_until
from tests.hooks import Hook, away

Unique = Callable[[str], str]
Make = Callable[..., Consumer]
MakeShare = Callable[..., ShareConsumer]
RECORDS = 10


@pytest.fixture
def filled(client: msgtx.Client, topic: str) -> str:
    store(client, topic, *[b"%d" % number for number in range(RECORDS)], partition=0)
    return topic


@pytest.fixture
def make(client: msgtx.Client, filled: str, unique: Unique, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Make a member without a heartbeat, as when its thread is held up."""
    monkeypatch.setattr(Membership, "_live", lambda self: wait_until(lambda: self._closing))
    made: list[Consumer] = []
    group = unique("group")

    def make_one(**settings: Any) -> Consumer:
        given = {"group": group, "auto_offset_reset": "earliest", "enable_auto_commit": False, **settings}
        made.append(client.consumer(filled, **given))
        return made[-1]

    yield make_one
    for each in made:
        each.close()


@pytest.fixture
def share(client: msgtx.Client, filled: str, unique: Unique, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeShare]:
    """Make a member of a share group without a heartbeat."""
    monkeypatch.setattr(ShareMember, "_live", lambda self: self._over.wait(SECONDS))
    group = unique("group")
    client.admin.shares.configure(group, {"auto_offset_reset": "earliest", "record_lock_duration_ms": 60_000})
    made: list[ShareConsumer] = []

    def make_one(**settings: Any) -> ShareConsumer:
        made.append(client.share_consumer(filled, group=group, acknowledgement_mode="explicit", **settings))
        return made[-1]

    yield make_one
    for each in made:
        each.close()


def of(consumer: Consumer) -> Membership:
    found = consumer.subscription.membership
    assert found is not None
    return found


def fall_silent(member: Membership | ShareMember) -> None:
    """As if no heartbeat had been answered for the session timeout."""
    if isinstance(member, Membership):
        member.heard_until = time.monotonic()
    else:
        member._heard_until = time.monotonic()


def give_up(connection: Connection, consumer: Consumer) -> None:
    """Have the group give a member up, which does not know it yet."""
    member = of(consumer)
    assert member._member is not None
    leave_group(connection, member.group, member._member.member_id)


def test_one_that_the_group_still_knows_goes_on_with_one_heartbeat_of_its_own(make: Make, hook: Hook) -> None:
    consumer = make()
    assert len(consumer.poll(SECONDS, max_records=3)) == 3
    fall_silent(of(consumer))
    assert [record.offset for record in consumer.poll(SECONDS, max_records=3)] == [3, 4, 5]
    assert [record.offset for record in consumer.poll(SECONDS, max_records=3)] == [6, 7, 8]
    assert hook.seen["before heartbeat_group"] == 1


@pytest.mark.parametrize("how", ["poll", "iterate"])
def test_one_that_was_given_up_hands_nothing_more_out_and_joins_again(make: Make, connection: Connection, how: str) -> None:
    """Another member may read the same records by now."""
    consumer = make()
    lost: list[object] = []
    consumer.subscribe(of(consumer)._subscription.topics or [], on_lost=lost.append)
    following = iter(consumer)
    handed = [next(following).offset for _ in range(3)]
    consumer.commit({TopicPartition(consumer.assignment().pop().topic, 0): 2})
    give_up(connection, consumer)
    fall_silent(of(consumer))
    again = next(following).offset if how == "iterate" else consumer.poll(SECONDS, max_records=1)[0].offset
    assert (handed, again) == ([0, 1, 2], 2), "what is committed, not what was buffered"
    assert len(lost) == 1


def test_one_that_cannot_ask_hands_nothing_out(make: Make, hook: Hook) -> None:
    consumer = make(request_timeout_ms=300, retry_backoff_ms=10)
    assert len(consumer.poll(SECONDS, max_records=3)) == 3
    fall_silent(of(consumer))
    with hook.at("before heartbeat_group", away):
        assert consumer.poll(0.1) == []
        with pytest.raises(errors.DatabaseUnavailable):
            consumer.poll(SECONDS)
    assert [record.offset for record in consumer.poll(SECONDS)] == [3, 4, 5, 6, 7, 8, 9]


def test_one_that_was_given_up_within_a_transaction_hands_nothing_more_out_there(make: Make, connection: Connection) -> None:
    consumer = make()
    assert len(consumer.poll(SECONDS, max_records=3)) == 3
    give_up(connection, consumer)
    fall_silent(of(consumer))
    with consumer.subscription.keep_partitions():
        assert consumer.poll(0.1) == []
        with pytest.raises(errors.NotAssigned):
            consumer.group_metadata()
    consumer.rewind()
    assert [record.offset for record in consumer.poll(SECONDS)] == [*range(RECORDS)]


def test_a_heartbeat_thread_that_died_is_started_with_the_next_look(
    make: Make, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = make()
    heart = of(consumer)._heart
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "is_alive", lambda _: False)
        assert not heart.lives
    thread = heart._thread
    assert thread is not None
    dead = threading.Thread(target=int)
    dead.start()
    dead.join()
    heart._thread = dead
    consumer.rewind()  # the next poll looks at the group
    consumer.poll(0)
    assert heart.lives
    heart._thread, second = thread, heart._thread  # both end with the consumer
    of(consumer)._closing = True
    second.join(SECONDS)


@pytest.mark.parametrize("wait", [True, False], ids=["awaited", "in the background"])
def test_who_is_refused_a_commit_joins_again_with_the_next_poll(
    make: Make, connection: Connection, caplog: pytest.LogCaptureFixture, wait: bool
) -> None:
    """As in Kafka. No heartbeat tells it."""
    consumer = make()
    tp = consumer.assignment().pop()
    consumer.poll(SECONDS, max_records=4)
    consumer.commit({tp: 2})
    give_up(connection, consumer)
    if wait:
        with pytest.raises(errors.UnknownMember):
            consumer.commit()
    else:
        consumer.commit(wait=False)
        consumer._commits.settle()
        assert "offsets were not committed" in caplog.text
    assert [record.offset for record in consumer.poll(SECONDS)] == [*range(2, RECORDS)]
    consumer.commit()
    assert consumer.committed([tp])[tp] == msgtx.OffsetAndMetadata(RECORDS)


# ── share groups ──


def seen(records: list[msgtx.ShareRecord]) -> list[tuple[int, int]]:
    return [(record.offset, record.delivery_count) for record in records]


def test_a_silent_member_of_a_share_group_that_is_known_goes_on(share: MakeShare, hook: Hook) -> None:
    member = share()
    assert len(member.poll(SECONDS, max_records=3)) == 3
    fall_silent(member._member)
    assert seen(member.poll(SECONDS, max_records=3)) == [(3, 1), (4, 1), (5, 1)]
    assert hook.seen["before heartbeat_group"] == 1


@pytest.mark.parametrize("how", ["poll", "iterate"])
def test_a_silent_member_of_a_share_group_that_was_given_up_hands_nothing_more_out(
    share: MakeShare, connection: Connection, how: str
) -> None:
    """I17: what it had acquired and not handed out is others' by now."""
    member = share()
    following = iter(member)
    assert next(following).offset == 0
    connection.execute("delete from msgtx.group_member where member_number = %s", [member._member.number])
    fall_silent(member._member)
    record = next(following) if how == "iterate" else member.poll(SECONDS)[0]
    assert (record.offset, record.delivery_count) == (0, 2)


def test_a_silent_member_of_a_share_group_that_cannot_ask_hands_nothing_out(share: MakeShare, hook: Hook) -> None:
    member = share(request_timeout_ms=200, retry_backoff_ms=10)
    following = iter(member)
    assert next(following).offset == 0
    fall_silent(member._member)
    with hook.at("before heartbeat_group", away), pytest.raises(errors.DatabaseUnavailable):
        next(following)
    assert seen(member.poll(SECONDS, max_records=2)) == [(1, 1), (2, 1)]


# ── closing ──


@pytest.mark.parametrize("kind", ["consumer", "share consumer"])
def test_a_close_while_nothing_is_answered_has_one_deadline(
    kind: str, client: msgtx.Client, filled: str, unique: Unique, connection: Connection
) -> None:
    """Commits, a heartbeat and leaving would each wait for as long as a request may."""
    group, settings = unique("group"), {"request_timeout_ms": 800, "session_timeout_ms": 60_000, "heartbeat_interval_ms": 50}
    member: Any
    if kind == "consumer":
        member = client.consumer(filled, group=group, auto_offset_reset="earliest", enable_auto_commit=False, **settings)
    else:
        client.admin.shares.configure(group, {"auto_offset_reset": "earliest"})
        member = client.share_consumer(filled, group=group, acknowledgement_mode="explicit", **settings)
    (record,) = member.poll(SECONDS, max_records=1)
    connection.execute("begin")
    connection.execute(
        "lock msgtx.consumer_group, msgtx.group_offset, msgtx.group_member, msgtx.share_state in access exclusive mode"
    )
    try:
        time.sleep(0.2)  # a heartbeat is on its way
        if isinstance(member, Consumer):
            member.commit(wait=False)
        else:
            member.acknowledge(record)
        began = time.monotonic()
        member.close()
        assert time.monotonic() - began < 1.4
    finally:
        connection.execute("rollback")
