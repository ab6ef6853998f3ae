"""Consumers that share a group: joining, leaving, dying, handing partitions over (internals: groups)."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import Any

import pytest

import msgtx
import msgtx.consumer.membership
from msgtx import Consumer, OffsetAndMetadata, TopicPartition, errors
from msgtx.consumer import subscription as assignments
from msgtx.database.connection import RawConnection
from msgtx.store.groups.members import describe_members, join_group, leave_group
from msgtx.store.topics.topics import Topic, describe_topics
from tests.client.steps import SECONDS, asleep, listens, losing_clients
from tests.databases import Connection, wait_until
from tests.hooks import Hook, away
from tests.refusals import refuses

pytestmark = pytest.mark.slow

Unique = Callable[[str], str]
QUICK = {"session_timeout_ms": 600, "heartbeat_interval_ms": 100}
RARE = {"session_timeout_ms": 120_000, "heartbeat_interval_ms": 60_000}  # no heartbeat: what it learns, it was notified of


@pytest.fixture
def wide(client: msgtx.Client, unique: Unique) -> str:
    name = unique("wide")
    client.topics.create(name, partitions=4)
    return name


class Members:
    """Consumers of one group, polled in turn by one thread, and the records that each got."""

    def __init__(self, client: msgtx.Client, group: str, stack: ExitStack) -> None:
        self.client = client
        self.group = group
        self.stack = stack
        self.alive: list[Consumer] = []
        self.values: list[bytes | None] = []
        self.events: list[tuple[Consumer, str, tuple[int, ...]]] = []

    def join(self, *topics: str, pattern: str | None = None, **settings: Any) -> Consumer:
        given = {"group": self.group, "auto_offset_reset": "earliest", "enable_auto_commit": False, **settings}
        consumer = self.stack.enter_context(self.client.consumer(**given))
        told = {f"on_{event}": self._told(consumer, event) for event in ("assign", "revoke", "lost")}
        consumer.subscribe(topics, pattern=pattern, **told)
        self.alive.append(consumer)
        return consumer

    def _told(self, consumer: Consumer, event: str) -> Callable[[list[TopicPartition]], object]:
        return lambda partitions: self.events.append((consumer, event, tuple(sorted(tp.partition for tp in partitions))))

    def told(self, consumer: Consumer) -> list[tuple[str, tuple[int, ...]]]:
        return [(event, partitions) for who, event, partitions in self.events if who is consumer]

    def leave(self, consumer: Consumer) -> None:
        self.alive.remove(consumer)
        consumer.close()

    def die(self, consumer: Consumer) -> None:
        """Send no more heartbeats, and do not leave the group."""
        self.alive.remove(consumer)
        membership = consumer.subscription.membership
        assert membership is not None
        membership._closing = True
        membership._waiter.wake()

    def until(self, condition: Callable[[], bool], seconds: float = SECONDS) -> float:
        """Poll all members until this holds. Returns how long that took."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < seconds, [consumer.assignment() for consumer in self.alive]
            for consumer in self.alive:
                self.values += [record.value for record in consumer.poll(0.01)]
        return time.monotonic() - began

    def shares(self) -> list[int]:
        """How many partitions each has; checks that each partition has one owner."""
        owned = [tp for consumer in self.alive for tp in consumer.assignment()]
        assert len(set(owned)) == len(owned), owned
        return sorted(len(consumer.assignment()) for consumer in self.alive)


@pytest.fixture
def members(client: msgtx.Client, unique: Unique) -> Iterator[Members]:
    with ExitStack() as stack:
        yield Members(client, unique("group"), stack)


def heartbeats(connection: Connection, group: str) -> int:
    """Return how often those who are members now have said that they live."""
    state = describe_members(connection, group)
    numbers = [] if state is None else [member.number for member in state.members]
    rows = connection.execute(
        "select from msgtx.group_heartbeat where heartbeat_number > 0 and member_number = any(%s)", [numbers]
    )
    return len(rows.fetchall())


def fill(client: msgtx.Client, topic: str, count: int, start: int = 0) -> list[bytes]:
    partitions = client.topics.describe(topic).partitions
    values = [b"%s %d" % (topic.encode(), at) for at in range(start, start + count)]
    with client.producer() as producer:
        for at, value in enumerate(values):
            producer.send(topic, value, partition=at % partitions)
    return values


# ── joining and leaving ──


@pytest.mark.parametrize("lost", ["join_group", "describe_members", "assign_partitions", "member_assignment"])
def test_a_connection_that_is_lost_while_joining_does_not_lose_the_partitions(
    members: Members, wide: str, hook: Hook, lost: str
) -> None:
    hook.at(f"after {lost}", away, times=1)
    assert len(members.join(wide, retry_backoff_ms=1).assignment()) == 4
    assert hook.seen[f"after {lost}"]


def test_a_member_that_never_heard_that_it_joined_leaves_when_it_is_closed(
    client: msgtx.Client, wide: str, hook: Hook
) -> None:
    hook.at("after join_group", away)
    with client.consumer(group=wide, request_timeout_ms=50, retry_backoff_ms=1) as consumer:
        with pytest.raises(errors.DatabaseUnavailable):
            consumer.subscribe([wide])
        assert len(client.admin.groups.members(wide)) == 1, "asked again, it is the same member"
    assert client.admin.groups.members(wide) == []


def test_without_notifications_a_heartbeat_tells_a_member_what_has_changed(
    client: msgtx.Client, connection: Connection, members: Members, wide: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler. One that the group gave up joins again with its next poll."""
    monkeypatch.setattr(msgtx.receiving.wakeup.Listener, "watch", lambda *_: None)
    first = members.join(wide, heartbeat_interval_ms=50)
    second = members.join(wide, heartbeat_interval_ms=50)
    members.until(lambda: members.shares() == [2, 2])
    members.leave(second)
    members.until(lambda: members.shares() == [4])
    (member,) = client.admin.groups.members(members.group)
    leave_group(connection, members.group, member.member_id)
    members.until(lambda: ("lost", (0, 1, 2, 3)) in members.told(first) and members.shares() == [4])


def test_a_member_that_was_not_polled_joins_again_without_notifications(
    client: msgtx.Client, members: Members, wide: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(msgtx.receiving.wakeup.Listener, "watch", lambda *_: None)
    slow = members.join(wide, max_poll_interval_ms=100, session_timeout_ms=6_000, heartbeat_interval_ms=50)
    wait_until(lambda: client.admin.groups.members(members.group) == [], "it has left")
    members.until(lambda: [event for event, _ in members.told(slow)][:3] == ["assign", "lost", "assign"])


def test_a_poll_that_waits_gives_away_what_another_member_is_to_have(
    client: msgtx.Client, connection: Connection, members: Members, wide: str
) -> None:
    """It is woken by a notification, which costs the members no heartbeat."""
    first = members.join(wide, fetch_max_wait_ms=60_000, **RARE)
    members.alive.remove(first)
    listens(client)
    with ThreadPoolExecutor(1) as threads:
        polling = asleep(threads, first)
        second = members.join(wide, **RARE)
        members.until(lambda: len(second.assignment()) == 2)
        first.stop()
        assert polling.result(SECONDS) == []
    assert heartbeats(connection, members.group) == 0


def test_heartbeats_come_at_their_interval_and_after_a_failure_sooner(members: Members, wide: str, hook: Hook) -> None:
    """A member whose heartbeats fail has not long to live."""
    failures = 20
    begun: list[float] = []

    def fails() -> None:
        begun.append(time.monotonic())
        if len(begun) <= failures:
            away()

    hook.at("before heartbeat_group", fails)
    members.join(wide, heartbeat_interval_ms=100, retry_backoff_ms=1)
    wait_until(lambda: len(begun) >= failures + 3, "it goes on")
    assert begun[failures] - begun[0] < failures * 0.1 / 2
    assert begun[failures + 2] - begun[failures] > 2 * 0.1 * 0.9


def test_a_member_lives_while_it_learns_for_the_first_time_what_it_has(
    connection: Connection, members: Members, wide: str, hook: Hook
) -> None:
    hook.at("before member_assignment", lambda: wait_until(lambda: heartbeats(connection, members.group) > 1, "it lives"))
    assert len(members.join(wide, heartbeat_interval_ms=10).assignment()) == 4


def test_who_cannot_join_again_for_a_while_is_a_member_like_any_other_after_that(
    client: msgtx.Client, connection: Connection, members: Members, wide: str, hook: Hook
) -> None:
    """What a session may still commit for the member that it was is refused anyway: it need not leave for that."""
    consumer = members.join(wide, heartbeat_interval_ms=10, retry_backoff_ms=1)
    membership = consumer.subscription.membership
    assert membership is not None
    membership.polled_at -= 3_600  # as if the last poll were that long ago
    wait_until(lambda: client.admin.groups.members(members.group) == [], "it has left")
    with hook.at("before join_group", away):
        members.until(lambda: members.told(consumer)[-1] == ("lost", (0, 1, 2, 3)))
        assert consumer.poll(0.1) == []  # heartbeats would be due
        with pytest.raises(errors.UnknownMember):
            consumer.group_metadata()
        consumer.subscription.in_doubt()
    members.until(lambda: members.shares() == [4])
    consumer.rewind()  # so its next poll attends to the group
    members.until(lambda: heartbeats(connection, members.group) > 1)
    assert [event for event, _ in members.told(consumer)] == ["assign", "lost", "assign"]


def test_a_member_whose_commit_is_in_doubt_goes_back_to_what_is_committed(
    client: msgtx.Client, members: Members, wide: str
) -> None:
    """As another member, so that what is not committed now is refused (I11)."""
    fill(client, wide, 8)
    consumer = members.join(wide, **RARE)
    assert len(consumer.poll(SECONDS)) == 8
    consumer.commit({TopicPartition(wide, 0): 1})
    consumer.subscription.in_doubt()
    assert len(consumer.poll(SECONDS)) == 7
    assert [event for event, _ in members.told(consumer)] == ["assign", "lost", "assign"]


@pytest.mark.parametrize("by", ["names", "pattern"])
def test_what_has_not_changed_is_not_joined_nor_divided_again(
    client: msgtx.Client, members: Members, unique: Unique, hook: Hook, by: str
) -> None:
    """A division of a group reads all its members, and its generation is flushed."""
    every = ("join_group", "describe_members", "assign_partitions")

    def calls() -> list[int]:
        return [hook.seen.pop(f"before {name}", 0) for name in every]

    stem = unique("stem")
    topics = [f"{stem}.a", f"{stem}.b"]
    for topic in topics:
        client.topics.create(topic)
    subscription: dict[str, Any] = {"topics": topics} if by == "names" else {"pattern": rf"{stem}\..*"}
    consumer = members.join(*subscription.get("topics", ()), pattern=subscription.get("pattern"), **RARE)
    assert calls() == [1, 1, 1]
    consumer.subscribe(**subscription)
    assert calls()[2] == 0, "it has subscribed to the same"
    client.topics.delete(topics[1])
    members.until(lambda: len(consumer.assignment()) == 1)
    assert calls() == [by == "pattern", 1, 1]
    consumer.rewind()  # so its next poll attends to the group
    assert consumer.poll(0) == []
    assert calls() == [0, 0, 0]


def test_a_division_that_another_change_overtakes_is_made_again(
    connection: Connection, members: Members, wide: str, hook: Hook
) -> None:
    """Who leaves like this does not make it."""
    join_group(
        connection, members.group, member_id="leaving", group_instance_id=None, client_host=None, client_process=None,
        session_timeout_ms=60_000, strategy="cooperative-sticky", topics=[wide], pattern=None,
    )  # fmt: skip
    hook.at("before assign_partitions", lambda: leave_group(connection, members.group, "leaving"), times=1)
    assert len(members.join(wide, **RARE).assignment()) == 4
    assert hook.seen["before assign_partitions"]


def test_a_static_member_has_its_place_by_its_instance(members: Members, wide: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of them is started first; beside others, which have theirs by their member ids."""
    ids = iter(["1", "2", "c"])
    monkeypatch.setattr(msgtx.consumer.membership, "new_member_id", lambda: next(ids))
    second, first, third = (
        members.join(wide, assignment="range", group_instance_id=instance) for instance in ("b", "a", None)
    )
    members.until(lambda: members.shares() == [1, 1, 2])
    owned = [sorted(tp.partition for tp in each.assignment()) for each in (first, second, third)]
    assert owned == [[0, 1], [2], [3]]


def test_a_member_has_everything_when_subscribe_returns_wherever_a_connection_breaks(
    database_url: str, wide: str, unique: Unique
) -> None:
    for client, faults in losing_clients(database_url, wide, least=10):
        consumer = client.consumer(group=unique("group"), retry_backoff_ms=1)
        faults.on = True
        consumer.subscribe([wide])
        faults.on = False
        assert len(consumer.assignment()) == 4, faults.fired
        consumer.close()


def test_members_divide_the_partitions_and_each_record_comes_once(members: Members, client: msgtx.Client, wide: str) -> None:
    first = members.join(wide)
    second = members.join(wide)
    assert second.assignment() == set(), "a partition that another member still owns is not given away"
    members.until(lambda: members.shares() == [2, 2])
    assert [event for event, _ in members.told(first)] == ["assign", "revoke"]
    assert [event for event, _ in members.told(second)] == ["assign"]
    values = fill(client, wide, 40)
    members.until(lambda: len(members.values) >= 40)
    assert sorted(filter(None, members.values)) == sorted(values)


@pytest.mark.parametrize("automatic", [False, True])
def test_what_is_committed_while_revoking_is_where_the_next_owner_begins(
    members: Members, client: msgtx.Client, wide: str, automatic: bool
) -> None:
    values = fill(client, wide, 40)
    settings = {"enable_auto_commit": automatic, "auto_commit_interval_ms": 60_000, "max_poll_records": 5}
    first = members.join(wide, **settings)
    if not automatic:
        first.subscribe([wide], on_revoke=lambda partitions: first.commit())
    members.until(lambda: len(members.values) >= 10)
    members.join(wide, **settings)
    members.until(lambda: members.shares() == [2, 2] and len(members.values) >= 40)
    assert sorted(filter(None, members.values)) == sorted(values), "at least once, and here exactly once"


def test_a_waiting_member_is_woken_when_another_one_leaves(
    client: msgtx.Client, wide: str, unique: Unique, background: ThreadPoolExecutor
) -> None:
    """Long before its next heartbeat, or its next look for records."""
    slow: Any = {"heartbeat_interval_ms": 60_000, "session_timeout_ms": 180_000, "fetch_max_wait_ms": 60_000}
    group = unique("group")
    with client.consumer(wide, group=group, **slow) as one, client.consumer(wide, group=group, **slow) as other:
        wait_until(lambda: [each.poll(0) for each in (one, other)] and one.assignment() and other.assignment())
        listens(client)
        polling = asleep(background, one, SECONDS + 5.0)
        other.close()
        wait_until(lambda: len(one.assignment()) == 4, "it has all")
        fill(client, wide, 1)
        assert len(polling.result(SECONDS)) == 1


def test_partitions_are_kept_within_the_block_and_given_away_behind_it(members: Members, wide: str) -> None:
    one = members.join(wide)
    members.until(lambda: members.shares() == [4])
    with one.subscription.keep_partitions():
        other = members.join(wide)
        members.until(lambda: one.subscription.membership is not None and one.subscription.membership.due)
        for _ in range(3):
            one.poll(0.01)
        assert (len(one.assignment()), len(other.assignment())) == (4, 0)
    members.until(lambda: members.shares() == [2, 2])


def test_who_subscribes_to_something_else_has_it_when_subscribe_returns(
    client: msgtx.Client, wide: str, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had is given away by the same call, whether or not it hears of what that changes in the group."""
    monkeypatch.setattr(msgtx.consumer.membership.Membership, "_changed", lambda _: None)
    other = unique("other")
    client.topics.create(other)
    with client.consumer(wide, group=unique("group")) as consumer:
        consumer.subscribe([other])
        assert consumer.assignment() == {TopicPartition(other, 0)}
        with refuses(TypeError, name="topic"):
            consumer.subscribe([5])  # type: ignore[list-item]


def test_a_rewind_looks_at_the_group(client: msgtx.Client, connection: Connection, wide: str, unique: Unique) -> None:
    """What was refused may have been refused because this is no member any more."""
    group = unique("group")
    with client.consumer(wide, group=group, heartbeat_interval_ms=60_000, session_timeout_ms=180_000) as consumer:
        consumer.poll(0)
        connection.execute(
            "delete from msgtx.group_member where group_id = (select group_id from msgtx.consumer_group where name = %s)",
            [group],
        )
        membership = consumer.subscription.membership
        assert membership is not None
        membership.due = False  # nothing else has it look
        consumer.rewind()
        consumer.poll(0)
        assert len(client.admin.groups.members(group)) == 1


def test_a_rewind_goes_back_behind_a_commit_that_is_under_way(
    client: msgtx.Client, connection: Connection, topic: str, background: ThreadPoolExecutor
) -> None:
    """What was handed over is committed first: it is not read again."""
    fill(client, topic, 3)
    with client.consumer(topic, group=topic, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        assert len(consumer.poll(SECONDS)) == 3
        connection.execute("begin")
        connection.execute("select msgtx.lock_group(%s)", [topic])
        consumer.commit(wait=False)

        def again() -> list[msgtx.Record]:
            consumer.rewind()
            return consumer.poll(0)

        reading = background.submit(again)
        wait([reading], 0.2)
        connection.execute("rollback")
        assert reading.result(SECONDS) == []


def test_a_clean_leave_moves_partitions_at_once(members: Members, wide: str) -> None:
    first, second = members.join(wide, **RARE), members.join(wide, **RARE)
    members.until(lambda: members.shares() == [2, 2])
    members.leave(first)
    members.until(lambda: members.shares() == [4])
    assert second.assignment() == {TopicPartition(wide, index) for index in range(4)}


def test_the_last_member_that_leaves_divides_nothing(
    client: msgtx.Client, connection: Connection, members: Members, wide: str
) -> None:
    consumer = members.join(wide, **RARE)
    before = describe_members(connection, members.group)
    members.leave(consumer)
    after = describe_members(connection, members.group)
    assert before is not None
    assert after is not None
    assert after.generation == before.generation + 1


def test_who_was_given_up_with_its_group_closes(
    client: msgtx.Client, connection: Connection, members: Members, wide: str
) -> None:
    consumer = members.join(wide, **RARE)
    (member,) = client.admin.groups.members(members.group)
    leave_group(connection, members.group, member.member_id)
    client.admin.groups.delete(members.group)
    members.leave(consumer)
    assert describe_members(connection, members.group) is None


def test_a_close_waits_for_a_heartbeat_that_is_under_way(members: Members, wide: str, hook: Hook) -> None:
    """What is closed calls the database no more."""
    held = hook.hold("before heartbeat_group")
    consumer = members.join(wide, heartbeat_interval_ms=10)
    held.wait()
    with ThreadPoolExecutor(1) as threads:
        leaving = threads.submit(members.leave, consumer)
        wait([leaving], 0.2)  # time enough to leave
        waited = not leaving.done()
        held.go_on.set()
        leaving.result(SECONDS)
    assert waited


def test_who_leaves_has_left_wherever_a_connection_breaks(
    client: msgtx.Client, database_url: str, wide: str, unique: Unique
) -> None:
    for losing, faults in losing_clients(database_url, wide, least=2):
        group = unique("group")
        leaving = losing.consumer(wide, group=group)
        with client.consumer(wide, group=group) as other:
            faults.on = True
            leaving.close()
            faults.on = False
            other.rewind()  # so its next poll attends to the group
            other.poll(0)
            assert len(other.assignment()) == 4, faults.fired


@pytest.mark.parametrize("call", ["member_assignment", "join_group"])
def test_who_is_closed_within_a_call_of_another_thread_does_not_join_again(
    client: msgtx.Client, members: Members, wide: str, hook: Hook, call: str
) -> None:
    """It would keep partitions that nobody reads, until its session is over."""
    consumer = members.join(wide)
    held = hook.hold(f"before {call}")
    membership = consumer.subscription.membership
    assert membership is not None
    if call == "join_group":
        membership.subscribe(msgtx.consumer.membership.Subscription([wide], None))
    membership.due = True
    with ThreadPoolExecutor(2) as threads:
        polling = threads.submit(consumer.poll, SECONDS)
        held.wait()
        leaving = threads.submit(consumer.close)
        wait([leaving], 0.5)  # it waits for the call, or has left by then
        held.go_on.set()
        leaving.result(SECONDS)
        polling.exception(SECONDS)
    assert client.admin.groups.members(members.group) == []


@pytest.mark.parametrize("error", [errors.DatabaseUnavailable("where it keeps its positions"), OSError("the same")])
@pytest.mark.parametrize("later", [False, True])
def test_an_assign_that_its_callback_could_not_handle_is_told_again(
    client: msgtx.Client, members: Members, wide: str, later: bool, error: Exception
) -> None:
    """It may have been about to seek: nothing is read from where it does not want to."""
    fill(client, wide, 8)
    failures = iter([error])
    consumer = client.consumer(group=members.group, auto_offset_reset="earliest")
    members.stack.callback(consumer.close)

    def seek(partitions: list[TopicPartition]) -> None:
        for failure in failures:
            raise failure
        for partition in partitions:
            consumer.seek(partition, 1)

    other = members.join(wide) if later else None
    with contextlib.suppress(OSError):
        consumer.subscribe([wide], on_assign=seek)
    if other is not None:
        members.leave(other)
    found: list[msgtx.Record] = []

    def read() -> bool:
        with contextlib.suppress(OSError):
            found.extend(consumer.poll(0.1))
        return len(found) == 4

    wait_until(read, "all of them")
    assert {(record.partition, record.offset) for record in found} == {(partition, 1) for partition in range(4)}


def test_a_callback_may_commit_while_another_thread_closes(client: msgtx.Client, members: Members, wide: str) -> None:
    """The close waits for it."""
    consumer = client.consumer(group=members.group, enable_auto_commit=False)
    revoking, closing = threading.Event(), threading.Event()

    def commit(_: object) -> None:
        revoking.set()
        assert closing.wait(SECONDS)
        consumer.commit({TopicPartition(wide, 0): 7})

    consumer.subscribe([wide], on_revoke=commit)
    members.join(wide)
    with ThreadPoolExecutor(2) as threads:
        polling = threads.submit(consumer.poll, SECONDS)
        assert revoking.wait(SECONDS)
        leaving = threads.submit(consumer.close)
        wait_until(lambda: consumer.closed, "it is being closed")
        closing.set()
        leaving.result(SECONDS)
        polling.result(SECONDS)
    assert client.admin.groups.offsets(members.group)[TopicPartition(wide, 0)].offset == 7


@pytest.mark.parametrize("event", ["on_assign", "on_revoke", "on_lost"])
def test_who_is_closed_by_its_callback_does_not_join_again(
    client: msgtx.Client, connection: Connection, members: Members, wide: str, event: str
) -> None:
    consumer = client.consumer(group=members.group, enable_auto_commit=False)
    callback: Any = {event: lambda _: consumer.close()}
    with contextlib.suppress(errors.IllegalState):  # what is closed by then says so
        consumer.subscribe([wide], **callback)
    if event == "on_revoke":
        members.stack.callback(members.join(wide).close)
    if event == "on_lost":
        leave_group(connection, members.group, client.admin.groups.members(members.group)[0].member_id)
    others = len(members.alive)
    with contextlib.suppress(errors.IllegalState):
        while not consumer.closed:
            consumer.poll(0.1)
    assert len(client.admin.groups.members(members.group)) == others


def test_who_was_given_up_commits_nothing_until_it_has_joined_again(
    client: msgtx.Client, connection: Connection, members: Members, wide: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I11: its group is empty by now and takes the offsets of no member; another may have committed later ones."""
    first = TopicPartition(wide, 0)
    consumer = members.stack.enter_context(client.consumer(group=members.group, enable_auto_commit=False))
    told: list[object] = []

    def refuse(partitions: object) -> None:
        told.append(partitions)
        for attempt in (lambda: consumer.commit({first: 1}), consumer.group_metadata):
            with pytest.raises(errors.UnknownMember):
                attempt()
        consumer.commit({first: 1}, wait=False)
        assert "no member now" in caplog.messages[-1]

    consumer.subscribe([wide], on_lost=refuse)
    leave_group(connection, members.group, client.admin.groups.members(members.group)[0].member_id)
    consumer.rewind()  # so the next poll attends to the group
    consumer.poll(0)
    assert len(told) == 1
    assert consumer.committed([first]) == {first: None}
    consumer.commit({first: 1})


def test_a_static_member_that_was_replaced_commits_nothing_when_the_other_has_left(
    client: msgtx.Client, connection: Connection, members: Members, wide: str
) -> None:
    """I11: a group without members takes the offsets of no member, but this is one that was fenced."""
    first = members.join(wide, group_instance_id="one")
    members.alive.remove(first)
    members.join(wide, group_instance_id="one")
    first.rewind()
    with pytest.raises(errors.FencedInstance):
        first.poll(0)
    leave_group(connection, members.group, client.admin.groups.members(members.group)[0].member_id)
    with pytest.raises(errors.FencedInstance):
        first.commit({TopicPartition(wide, 0): 1})


def test_a_dead_members_partitions_move_within_its_session_timeout(members: Members, wide: str) -> None:
    first, _ = members.join(wide, **QUICK), members.join(wide, **QUICK)
    members.until(lambda: members.shares() == [2, 2])
    members.die(first)
    took = members.until(lambda: members.shares() == [4])
    assert 0.3 < took < 5.0
    with pytest.raises(errors.UnknownMember):
        first.commit({TopicPartition(wide, index): 0 for index in range(4)})


def test_a_member_without_partitions_waits_and_takes_over(members: Members, client: msgtx.Client, topic: str) -> None:
    first, second = members.join(topic), members.join(topic)
    assert second.poll(0) == []
    assert members.shares() == [0, 1]
    members.leave(first)
    members.until(lambda: members.shares() == [1])
    values = fill(client, topic, 3)
    members.until(lambda: len(members.values) == 3)
    assert members.values == values


def test_a_consumer_that_is_not_polled_leaves_and_comes_back(members: Members, wide: str) -> None:
    slow = members.join(wide, max_poll_interval_ms=200, **QUICK)
    members.alive.remove(slow)
    other = members.join(wide, **QUICK)
    members.until(lambda: len(other.assignment()) == 4)
    with pytest.raises(errors.UnknownMember):
        slow.commit({TopicPartition(wide, 0): 1})
    slow.poll(0)
    members.alive.append(slow)
    members.until(lambda: members.shares() == [2, 2])
    assert [event for event, _ in members.told(slow)] == ["assign", "lost", "assign"]


def test_polls_from_what_is_buffered_count_as_polls(members: Members, client: msgtx.Client, wide: str) -> None:
    fill(client, wide, 200)
    slow = members.join(wide, max_poll_interval_ms=300, max_poll_records=1, **QUICK)
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        assert len(slow.poll(SECONDS)) == 1
        time.sleep(0.02)
    assert [event for event, _ in members.told(slow)] == ["assign"]


def test_a_poll_that_waits_for_longer_than_the_interval_is_a_poll(members: Members, wide: str) -> None:
    waiting = members.join(wide, max_poll_interval_ms=100, session_timeout_ms=6_000, heartbeat_interval_ms=50)
    waiting.config = dataclasses.replace(waiting.config, fetch_max_wait_ms=20)
    assert waiting.poll(0.6) == []
    assert [event for event, _ in members.told(waiting)] == ["assign"]


def test_who_does_not_poll_is_told_once(members: Members, wide: str, caplog: pytest.LogCaptureFixture) -> None:
    slow = members.join(wide, max_poll_interval_ms=100, session_timeout_ms=600, heartbeat_interval_ms=50)
    time.sleep(0.6)
    assert sum("no poll for max_poll_interval_ms=100" in message for message in caplog.messages) == 1
    members.until(lambda: members.told(slow)[-1][0] == "assign" and len(members.told(slow)) == 3)


def test_a_slow_iteration_stays_a_member_and_hands_over_between_two_records(
    members: Members, client: msgtx.Client, wide: str
) -> None:
    fill(client, wide, 200)
    slow = members.join(wide, max_poll_interval_ms=300, **QUICK)
    members.alive.remove(slow)
    begun = time.monotonic()
    other = None
    threading.Timer(2.5, slow.stop).start()  # processing all of it takes longer
    for _ in slow:
        time.sleep(0.02)
        if other is None and time.monotonic() > begun + 0.8:
            other = members.join(wide, **QUICK)
        if other is not None:
            other.poll(0)
            if len(other.assignment()) == 2:
                break
    assert len(slow.assignment()) == 2
    assert [event for event, _ in members.told(slow)] == ["assign", "revoke"]


# ── subscriptions ──


def test_new_topics_and_partitions_are_picked_up(members: Members, client: msgtx.Client, unique: Unique) -> None:
    stem = unique("stem")
    client.topics.create(f"{stem}.a", partitions=2)
    client.topics.create(f"other-{stem}.a")
    first = members.join(pattern=rf"{stem}\..*", heartbeat_interval_ms=50)
    assert first.assignment() == {TopicPartition(f"{stem}.a", 0), TopicPartition(f"{stem}.a", 1)}
    second = members.join(pattern=rf"{stem}\..*", heartbeat_interval_ms=50)
    members.until(lambda: members.shares() == [1, 1])
    client.topics.create(f"{stem}.b", partitions=2)
    members.until(lambda: members.shares() == [2, 2])
    client.topics.delete(f"{stem}.a")
    members.until(lambda: members.shares() == [1, 1])
    assert {tp.topic for each in (first, second) for tp in each.assignment()} == {f"{stem}.b"}


def test_what_is_made_later_is_read_from_its_beginning(members: Members, client: msgtx.Client, unique: Unique) -> None:
    """Also with auto_offset_reset=latest: the partition did not exist before the member did. That is so once."""
    stem = unique("stem")
    client.topics.create(f"{stem}.a")
    fill(client, f"{stem}.a", 3)
    member = members.join(pattern=rf"{stem}\..*", heartbeat_interval_ms=50, auto_offset_reset="latest")
    client.topics.create(f"{stem}.b")
    values = fill(client, f"{stem}.b", 3)
    members.until(lambda: len(members.values) == 3)
    assert members.values == values
    made = TopicPartition(f"{stem}.b", 0)
    member.seek(made, 1_000)
    assert member.poll(0) == []
    assert member.position(made) == 3


def test_a_consumer_without_a_group_picks_up_new_topics(
    client: msgtx.Client, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignments, "LOOK_FOR_PARTITIONS_SECONDS", 0.05)
    stem = unique("stem")
    client.topics.create(f"{stem}.a")
    told: list[TopicPartition] = []
    with client.consumer() as consumer:
        consumer.subscribe(pattern=rf"{stem}\..*", on_assign=told.extend)
        client.topics.create(f"{stem}.b", partitions=2)
        values = fill(client, f"{stem}.b", 4)
        found: list[bytes | None] = []
        deadline = time.monotonic() + SECONDS
        while len(found) < 4 and time.monotonic() < deadline:
            found += [record.value for record in consumer.poll(0.05)]
    assert sorted(filter(None, found)) == values
    assert told == [TopicPartition(f"{stem}.a", 0), TopicPartition(f"{stem}.b", 0), TopicPartition(f"{stem}.b", 1)]


def test_an_assign_that_is_refused_changes_nothing(
    client: msgtx.Client, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I16: the consumer goes on to look for what is new in what it has subscribed to."""
    monkeypatch.setattr(assignments, "LOOK_FOR_PARTITIONS_SECONDS", 0.05)
    stem = unique("stem")
    client.topics.create(f"{stem}.a")
    with client.consumer() as consumer:
        consumer.subscribe(pattern=rf"{stem}\..*")
        with pytest.raises(errors.UnknownTopicOrPartition):
            consumer.assign([TopicPartition(f"{stem}.b", 0)])
        client.topics.create(f"{stem}.b")
        wait_until(lambda: consumer.poll(0.05) == [] and len(consumer.assignment()) == 2, "the new one", seconds=5.0)


@pytest.mark.parametrize("later", [False, True])
def test_a_consumer_without_a_group_reads_nothing_that_its_callback_could_not_handle(
    client: msgtx.Client, wide: str, unique: Unique, monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    monkeypatch.setattr(assignments, "LOOK_FOR_PARTITIONS_SECONDS", 0.05)
    failures = iter([None, OSError("where it keeps its positions")] if later else [OSError("the same")])
    told: list[TopicPartition] = []
    found: list[bytes | None] = []
    topic = unique("other")
    with client.consumer(auto_offset_reset="earliest") as consumer:

        def note(partitions: list[TopicPartition]) -> None:
            for failure in failures:
                if failure is None:
                    break
                raise failure
            told.extend(partitions)

        with contextlib.nullcontext() if later else pytest.raises(OSError, match="the same"):
            consumer.subscribe(pattern=f"{wide}|{topic}", on_assign=note)
        values = fill(client, wide, 4)
        if later:
            client.topics.create(topic)
            values += fill(client, topic, 4)
        else:
            with refuses(errors.IllegalState, reason="nothing assigned"):
                consumer.poll(0)
            consumer.subscribe([wide], on_assign=note)

        def read() -> bool:
            with contextlib.suppress(OSError):
                found.extend(record.value for record in consumer.poll(0.05))
            return len(found) == len(values)

        wait_until(read, "all of them")
        assert len(told) == len(set(told)) == len(consumer.assignment())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The topics that clients look up, call by call."""
    found: list[list[str]] = []

    def describe(connection: RawConnection, names: Sequence[str]) -> dict[str, Topic]:
        found.append(list(names))
        return describe_topics(connection, names)

    monkeypatch.setattr("msgtx.runtime.describe_topics", describe)
    return found


@pytest.mark.parametrize("by", ["names", "pattern"])
def test_a_consumer_without_a_group_looks_up_its_topics_together(
    client: msgtx.Client, unique: Unique, asked: list[list[str]], monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """However many there are; those that match a pattern are found among all by a call before."""
    stem = unique("stem")
    names = [f"{stem}.{n}" for n in range(5)]
    for name in names:
        client.topics.create(name, partitions=2)
    monkeypatch.setattr(assignments, "LOOK_FOR_PARTITIONS_SECONDS", 0.0)
    with client.consumer() as consumer:
        if by == "names":
            consumer.subscribe([*names[::-1], names[0]])
        else:
            consumer.subscribe(pattern=rf"{stem}\..*")
        assert sorted(tp.topic for tp in consumer.assignment()) == sorted(names * 2)
        asked.clear()
        consumer.poll(0)
        assert asked == [names]
        consumer.assign([TopicPartition(name, 0) for name in names])
        assert asked == [names] * 2


def test_a_member_knows_its_partitions_from_its_group(client: msgtx.Client, unique: Unique, asked: list[list[str]]) -> None:
    """The client looks up none of the topics by itself, however many there are."""
    stem = unique("stem")
    for number in range(3):
        client.topics.create(f"{stem}.{number}")
    with client.consumer(group=stem, pattern=rf"{stem}\..*") as consumer:
        assert len(consumer.assignment()) == 3
    assert [names for names in asked if names] == []


def test_without_a_group_topics_are_looked_up_now_and_then_and_not_for_partitions_by_hand(
    client: msgtx.Client, unique: Unique, asked: list[list[str]]
) -> None:
    stem = unique("stem")
    client.topics.create(f"{stem}.a")
    with client.consumer() as consumer:
        consumer.subscribe(pattern=rf"{stem}\..*")
        for due, looks in ((False, 0), (True, 1)):
            asked.clear()
            if due:
                consumer.subscription._next_look = time.monotonic()
            for _ in range(3):
                consumer.poll(0)
            assert len(asked) == looks
        consumer.assign([TopicPartition(f"{stem}.a", 0)])
        client.topics.create(f"{stem}.b")
        consumer.subscription._next_look = time.monotonic()
        consumer.poll(0)
        assert consumer.assignment() == {TopicPartition(f"{stem}.a", 0)}


@pytest.mark.parametrize("polls_between", [False, True])
def test_a_topic_that_is_deleted_and_made_again_is_read_from_its_beginning(
    members: Members, client: msgtx.Client, unique: Unique, polls_between: bool
) -> None:
    again = unique("again")
    client.topics.create(again, partitions=2)
    consumer = members.join(again, heartbeat_interval_ms=50, session_timeout_ms=5_000)
    fill(client, again, 4)
    members.until(lambda: len(members.values) == 4)
    client.topics.delete(again)
    if polls_between:
        members.until(lambda: consumer.assignment() == set())
    client.topics.create(again, partitions=3)
    with msgtx.connect(client.secret_url) as other:
        values = fill(other, again, 6, start=4)
    members.until(lambda: len(members.values) >= 10)
    assert sorted(filter(None, members.values[4:])) == sorted(values)
    assert len(consumer.assignment()) == 3


@pytest.mark.parametrize("keeps", [False, True])
def test_a_poll_whose_topic_is_deleted_ends_in_time(members: Members, client: msgtx.Client, topic: str, keeps: bool) -> None:
    """While a transaction is being filled, its group has nothing else for it."""
    consumer = members.join(topic, retry_backoff_ms=10_000, fetch_max_wait_ms=10, **RARE)
    assert consumer.poll(0) == []
    client.topics.delete(topic)
    began = time.monotonic()
    with consumer.subscription.keep_partitions() if keeps else contextlib.nullcontext():
        assert consumer.poll(20.0 if keeps else 0) == []
    assert time.monotonic() - began < 5.0


def test_members_with_different_topics_get_only_their_own(members: Members, client: msgtx.Client, unique: Unique) -> None:
    one, two = unique("one"), unique("two")
    for name in (one, two):
        client.topics.create(name, partitions=2)
    first, second = members.join(one), members.join(one, two)
    members.until(lambda: members.shares() == [2, 2])
    assert {tp.topic for tp in first.assignment()} == {one}
    assert {tp.topic for tp in second.assignment()} == {two}
    first.subscribe([two])
    members.until(lambda: {tp.topic for tp in first.assignment()} == {two} and members.shares() in ([1, 3], [2, 2]))


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_every_strategy_divides_without_two_owners_and_all_members_use_one(
    members: Members, wide: str, strategy: str
) -> None:
    for shares in ([4], [2, 2], [1, 1, 2]):
        members.join(wide, assignment=strategy)
        members.until(lambda shares=shares: members.shares() == shares)  # type: ignore[misc]
    members.leave(members.alive[0])
    members.until(lambda: members.shares() == [2, 2])
    with refuses(errors.ConfigError, group=members.group):
        members.join(wide, assignment="range" if strategy == "roundrobin" else "roundrobin")


def test_assign_and_subscribe_exclude_each_other(members: Members, wide: str) -> None:
    with refuses(errors.IllegalState, reason="subscribed"):
        members.join(wide).assign([TopicPartition(wide, 0)])


@pytest.mark.parametrize(
    "settings",
    [
        {"group": "g", "heartbeat_interval_ms": 1_000, "session_timeout_ms": 1_000},
        {"group_instance_id": "i"},
        {"group": "g", "assignment": "sticky"},
    ],
)
def test_settings_that_cannot_be_are_refused(client: msgtx.Client, settings: dict[str, object]) -> None:
    with pytest.raises(errors.ConfigError):
        client.consumer(**settings)  # type: ignore[arg-type]


# ── static members ──


def test_a_static_member_that_comes_back_moves_nothing(members: Members, wide: str) -> None:
    first, second = members.join(wide, group_instance_id="one"), members.join(wide, group_instance_id="two")
    members.until(lambda: members.shares() == [2, 2])
    held, kept = first.assignment(), second.assignment()
    members.leave(first)
    for _ in range(20):
        second.poll(0.01)
    assert second.assignment() == kept
    again = members.join(wide, group_instance_id="one")
    assert again.assignment() == held
    assert members.told(second)[-1][0] == "assign"


def test_a_static_member_that_was_replaced_stays_out_wherever_a_connection_breaks(
    client: msgtx.Client, database_url: str, wide: str, unique: Unique
) -> None:
    """It could not ask why it is unknown, but must not fence the member that replaced it."""
    for losing, faults in losing_clients(database_url, wide, least=2):
        settings: Any = {"group": unique("group"), "group_instance_id": "one", "retry_backoff_ms": 1, **RARE}
        with losing.consumer(wide, **settings) as first, client.consumer(wide, **settings) as second:
            first.rewind()  # so its next poll attends to the group
            faults.on = True
            with pytest.raises(errors.FencedInstance):
                first.poll(SECONDS)
            faults.on = False
            assert second.assignment() == {TopicPartition(wide, index) for index in range(4)}
            second.commit(dict.fromkeys(second.assignment(), 0))


def test_a_static_member_that_was_replaced_is_fenced(members: Members, client: msgtx.Client, wide: str) -> None:
    first = members.join(wide, group_instance_id="one")
    members.alive.remove(first)
    second = members.join(wide, group_instance_id="one")
    assert len(second.assignment()) == 4
    with pytest.raises(errors.FencedInstance):
        first.commit({TopicPartition(wide, 0): 1})
    first.rewind()
    for _ in range(2):
        with pytest.raises(errors.FencedInstance):
            first.poll(SECONDS)
    assert members.told(first)[-1] == ("lost", (0, 1, 2, 3))
    second.commit({TopicPartition(wide, 0): 1})


# ── transactions ──


def test_a_transaction_of_partitions_that_were_taken_away_is_aborted(
    members: Members, client: msgtx.Client, wide: str, unique: Unique
) -> None:
    """I10, I11, P15: another member reads what it read; the outputs must not exist twice."""
    values = fill(client, wide, 8)
    target = unique("target")
    client.topics.create(target)
    first = members.join(wide)
    with client.producer(transactional_id=unique("worker")) as producer:
        records = first.poll(SECONDS)
        assert sorted(filter(None, (record.value for record in records))) == values
        producer.begin_transaction()
        for record in records:
            producer.send(target, record.value)
        members.join(wide)
        members.until(lambda: members.shares() == [2, 2])
        with pytest.raises(errors.NotAssigned):
            producer.send_offsets_to_transaction(first)
        producer.abort_transaction()
        first.rewind()
        members.until(lambda: len(set(members.values)) == 8)
        with producer.transaction() as transaction:
            producer.send(target, b"of what is left")
            transaction.send_offsets(first)
    with client.consumer(target, auto_offset_reset="earliest") as reader:
        assert [record.value for record in reader.poll(SECONDS)] == [b"of what is left"]


@pytest.mark.parametrize("by", ["commit", "transaction", "automatic"])
def test_what_is_committed_may_be_taken_away(
    members: Members, client: msgtx.Client, wide: str, unique: Unique, by: str
) -> None:
    """A transaction of what is left is not refused for it."""
    fill(client, wide, 8)
    first = members.join(wide, enable_auto_commit=by == "automatic", auto_commit_interval_ms=60_000)
    assert len(first.poll(SECONDS)) == 8
    if by == "commit":
        first.commit()
    if by == "transaction":
        with client.producer(transactional_id=unique("worker")) as producer, producer.transaction() as transaction:
            transaction.send_offsets(first)
    members.join(wide)
    members.until(lambda: members.shares() == [2, 2])
    assert first.group_metadata().member_id is not None


@pytest.mark.parametrize("automatic", [False, True])
def test_what_was_taken_away_is_settled_by_the_next_commit(
    members: Members, client: msgtx.Client, connection: Connection, wide: str, automatic: bool
) -> None:
    fill(client, wide, 8)
    first = members.join(wide, enable_auto_commit=automatic, auto_commit_interval_ms=60_000)
    assert len(first.poll(SECONDS)) == 8
    leave_group(connection, members.group, client.admin.groups.members(members.group)[0].member_id)
    members.until(lambda: len(members.told(first)) == 3)
    with refuses(errors.NotAssigned, topic=wide, group=members.group):
        first.group_metadata()
    if automatic:
        first.committing._next_commit = 0.0  # as if the interval were over
        first.poll(0)
    else:
        first.commit({})
    assert first.group_metadata().member_id is not None


def test_who_is_closed_has_no_offsets_for_a_transaction(
    members: Members, client: msgtx.Client, wide: str, unique: Unique
) -> None:
    """I11: others may have gone on, and left; a group without members would take them as those of no member."""
    fill(client, wide, 8)
    first = members.join(wide)
    assert len(first.poll(SECONDS)) == 8
    members.leave(first)
    with client.producer(transactional_id=unique("worker")) as producer, producer.transaction() as transaction:
        for call in (lambda: transaction.send_offsets(first), first._transaction_offsets, first.group_metadata):
            with refuses(errors.IllegalState, reason="closed"):
                call()
    assert client.admin.groups.offsets(members.group) == {}


@pytest.mark.parametrize("form", ["consumer", "map"])
def test_a_zombies_transaction_is_refused(
    members: Members, client: msgtx.Client, wide: str, unique: Unique, form: str
) -> None:
    """I11, P31: also if it has not noticed that its session is over."""
    fill(client, wide, 8)
    first = members.join(wide, **QUICK)
    assert len(first.poll(SECONDS)) == 8
    with client.producer(transactional_id=unique("worker")) as producer:
        producer.begin_transaction()
        producer.send(wide, b"output", partition=0)
        members.die(first)
        second = members.join(wide, **QUICK)
        members.until(lambda: len(second.assignment()) == 4)
        if form == "consumer":
            producer.send_offsets_to_transaction(first)
        else:
            producer.send_offsets_to_transaction({TopicPartition(wide, 1): 2}, first.group_metadata())
        with pytest.raises(errors.UnknownMember):
            producer.commit_transaction()
        producer.abort_transaction()
    assert second.committed() == dict.fromkeys(second.assignment())


def test_a_commit_without_a_member_is_for_groups_without_members(members: Members, client: msgtx.Client, wide: str) -> None:
    member = members.join(wide)
    with client.consumer(group=members.group, enable_auto_commit=False) as apart:
        apart.assign([TopicPartition(wide, 0)])
        with pytest.raises(errors.UnknownMember):
            apart.commit({TopicPartition(wide, 0): 1})
        apart.committing.commit_starts()
        with pytest.raises(errors.UnknownMember):
            apart.poll(0)
        members.leave(member)
        apart.commit({TopicPartition(wide, 0): 1})
        assert apart.committed() == {TopicPartition(wide, 0): OffsetAndMetadata(1)}
        apart.commit({TopicPartition(wide, 1): 2})  # not assigned
        assert apart.committed([TopicPartition(wide, 1)]) == {TopicPartition(wide, 1): OffsetAndMetadata(2)}


def test_who_lost_its_partitions_before_it_read_joins_again_and_begins_then(
    client: msgtx.Client, connection: Connection, members: Members, wide: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11: where reading begins is committed before that, and refused. It learns of it in no other way here."""
    monkeypatch.setattr(msgtx.receiving.wakeup.Listener, "watch", lambda *_: None)
    fill(client, wide, 8)
    consumer = members.join(wide, **RARE)
    consumer.committing.commit_starts()
    leave_group(connection, members.group, client.admin.groups.members(members.group)[0].member_id)
    assert consumer.poll(0) == []
    assert len(consumer.poll(5.0)) == 8
    assert [event for event, _ in members.told(consumer)] == ["assign", "lost", "assign"]
    assert set(client.admin.groups.offsets(members.group).values()) == {OffsetAndMetadata(0)}


# ── the loop ──


def test_workers_of_a_group_process_each_record_once(
    members: Members, client: msgtx.Client, wide: str, unique: Unique, read: Callable[[str], list[msgtx.Record]]
) -> None:
    target = unique("target")
    client.topics.create(target, partitions=2)
    stop = threading.Event()
    reports: list[msgtx.ProcessReport] = []

    def work(name: str) -> None:
        reports.append(
            client.process(
                wide, to=target, group=members.group, transactional_id=name, transform=lambda record: record.value,
                transaction_ms=10, stop=stop,
            )
        )  # fmt: skip

    workers = [threading.Thread(target=work, args=(unique("worker"),)) for _ in range(3)]
    values: list[bytes] = []
    for at, worker in enumerate(workers):
        worker.start()
        values += fill(client, wide, 200, start=200 * at)
    wait_until(lambda: len(read(target)) >= len(values), "all of them")
    stop.set()
    for worker in workers:
        worker.join()
    assert sorted(record.value or b"" for record in read(target)) == sorted(values)
    assert sum(report.records_in for report in reports) == len(values)


@pytest.fixture
def impatient_joins(connection: Connection) -> Iterator[None]:
    """A join waits for the group's lock for a moment only."""
    name = "msgtx.join_group(text, text, text, text, int, int, text, text[], text, bigint)"
    connection.execute(f"alter function {name} set lock_timeout = '20ms'")
    yield
    connection.execute(f"alter function {name} set lock_timeout = '10s'")


@pytest.mark.usefixtures("impatient_joins")
def test_a_consumer_waits_to_join_while_a_sql_transaction_takes_from_the_group(
    client: msgtx.Client, open_connection: Callable[[], Connection], unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """However long: it has no partitions, and nothing fails. Its log says once for what it waits."""
    topic, group = unique("taken"), unique("group")
    client.topics.create(topic)
    session = open_connection()
    session.execute("select msgtx.publish(%s, value => 'a')", [topic])
    caplog.set_level("INFO", "msgtx.consumer")
    session.execute("begin")
    assert session.execute("select from msgtx.take(%s, %s)", [topic, group]).fetchone() is not None
    with client.consumer(topic, group=group, auto_offset_reset="earliest") as consumer:
        for _ in range(3):
            assert consumer.poll(0.1) == []
            assert consumer.failing is None
        session.execute("rollback")
        assert [record.value for record in consumer.poll(SECONDS)] == [b"a"]
    assert [each for each in caplog.messages if "msgtx.take" in each] == [
        f"group {group!r}: waits for a SQL transaction that takes from it (msgtx.take), until it ends"
    ]
