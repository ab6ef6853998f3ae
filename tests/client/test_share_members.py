"""A member of a share group: its session, and what ends its polls (internals: shares)."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest

import msgtx
from msgtx import errors
from msgtx.shares import acquiring
from msgtx.shares.polls import GroupPolls
from msgtx.store.shares.shares import Acquiring
from tests.client.sharing import Shares, accept, fill, seen
from tests.databases import PATIENCE_SECONDS, Connection, wait_until
from tests.hooks import Hook, away
from tests.refusals import refuses

pytestmark = pytest.mark.slow

Unique = Callable[[str], str]
Sleeping = Callable[[msgtx.ShareConsumer], Future[list[msgtx.ShareRecord]]]


# ── the end of a member's session ──


def end_session(connection: Connection, member: msgtx.ShareConsumer) -> None:
    """Have the group remove a member, as when it was not heard of for too long. It does not know yet."""
    connection.execute("delete from msgtx.group_member where member_number = %s", [member._member.number])


def is_told(member: msgtx.ShareConsumer) -> bool:
    """Whether a heartbeat has told a member that the group does not know it."""
    return member._member.number is None


QUICK: Any = {"heartbeat_interval_ms": 30}


@pytest.mark.parametrize("told", [False, True])
def test_who_accepts_without_a_word_is_told_when_its_session_was_over(
    share: Shares, connection: Connection, told: bool
) -> None:
    """I17: what others get again was not accepted. Then it goes on as another member."""
    share.fill(2)
    one = share("implicit", **QUICK if told else {})
    assert len(one.poll(PATIENCE_SECONDS)) == 2
    end_session(connection, one)
    if told:
        wait_until(lambda: is_told(one), "a heartbeat is told")
    with refuses(errors.InvalidRecordState, partition=0, offset=0):
        one.poll(0)
    assert seen(one.poll(PATIENCE_SECONDS)) == [(b"0", 2), (b"1", 2)]


def test_a_poll_goes_on_as_another_member_when_the_session_was_over(
    share: Shares, connection: Connection, hook: Hook
) -> None:
    """What the former member had, it answers no more for: neither by a commit whose call did not come through."""
    share.fill(2)
    one = share(request_timeout_ms=100, retry_backoff_ms=50)
    records = one.poll(PATIENCE_SECONDS)
    one.acknowledge(records[0])
    with hook.at("before acknowledge_records", away), pytest.raises(errors.DatabaseUnavailable):
        one.commit()
    end_session(connection, one)
    again = one.poll(PATIENCE_SECONDS)
    assert seen(again) == [(b"0", 2), (b"1", 2)]
    accept(one, again)
    one.commit()
    assert share.lag == 0


def test_heartbeats_end_with_the_session_and_what_was_held_is_given_up(
    share: Shares, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I17: also what was acquired with it and not handed out is others', and no commit takes part of it."""
    share.fill(3)
    one = share(**QUICK)
    share.configure(record_lock_duration_ms=60_000)
    first = next(iter(one))
    end_session(connection, one)
    wait_until(lambda: is_told(one), "a heartbeat is told")
    beats: list[object] = []
    rounds = beat_counter(one, monkeypatch)
    monkeypatch.setattr("msgtx.shares.member.heartbeat", lambda *_, **__: beats.append(None))
    wait_until(lambda: len(rounds) > 2, "the thread goes on")
    assert one.answering.renew(one.waiting_records.handed_out) == []
    with refuses(errors.InvalidRecordState, reason="session over"):
        one.answering.accepting([first])
    assert one.holdings.of([first]) == []
    rounds.clear()
    wait_until(lambda: len(rounds) > 2, "the thread goes on")
    assert beats == []
    assert seen(one.poll(PATIENCE_SECONDS)) == [(b"0", 2), (b"1", 2), (b"2", 2)]
    wait_until(lambda: beats, "the next member's heartbeat")
    one.close()
    assert one.answering.renew(one.waiting_records.handed_out) == []


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_what_was_acquired_before_the_session_was_over_is_not_handed_out(
    share: Shares, connection: Connection, mode: str
) -> None:
    """I17: it could not be accepted, and others do its work by now."""
    share.fill(3)
    failures = iter([ValueError])

    def fails_once(value: bytes | None) -> object:
        for failure in failures if value == b"1" else ():
            raise failure
        return value

    one = share(mode, value_deserializer=fails_once, **QUICK)
    share.configure(record_lock_duration_ms=60_000)
    (first,) = one.poll(PATIENCE_SECONDS)
    end_session(connection, one)
    wait_until(lambda: is_told(one), "a heartbeat is told")
    if mode == "implicit":
        with pytest.raises(errors.InvalidRecordState):
            one.poll(0)
    assert seen([first]) == [(b"0", 1)]
    assert seen(one.poll(PATIENCE_SECONDS)) == [(b"0", 2), (b"1", 2), (b"2", 2)]


def beat_counter(member: msgtx.ShareConsumer, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Note each time when the thread of a member's heartbeats has waited for one interval more."""
    rounds: list[object] = []
    wait_for = member._member._over.wait

    def counted(seconds: float | None = None) -> bool:
        rounds.append(None)
        return wait_for(seconds)

    monkeypatch.setattr(member._member._over, "wait", counted)
    return rounds


def test_nothing_of_a_member_runs_on_when_it_is_closed(share: Shares, hook: Hook, background: ThreadPoolExecutor) -> None:
    """A heartbeat that is under way is waited for."""
    held = hook.hold("before heartbeat_group")
    one = share(**QUICK)
    one.poll(0)
    held.wait()
    closing = background.submit(one.close)
    wait([closing], 0.2)
    assert not closing.done()
    held.go_on.set()
    closing.result(PATIENCE_SECONDS)


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_a_commit_behind_the_end_of_the_session_is_refused(share: Shares, connection: Connection, mode: str) -> None:
    """I17. Whether the member has been told of it, or not."""
    share.fill(1)
    one = share(mode, **QUICK)
    for count, waits in ((1, True), (2, False)):
        records = one.poll(PATIENCE_SECONDS)
        assert seen(records) == [(b"0", count)]
        accept(one, records)
        end_session(connection, one)
        if waits:
            wait_until(lambda: is_told(one), "a heartbeat is told")
        with refuses(errors.InvalidRecordState, partition=0, offset=0):
            one.commit()


def test_a_join_whose_answer_was_lost_leaves_no_member_behind(share: Shares, hook: Hook) -> None:
    one = share(request_timeout_ms=100, retry_backoff_ms=50)
    with hook.at("after join_share_group", away), pytest.raises(errors.DatabaseUnavailable):
        one.poll(0)
    one.poll(0)
    assert share.described.members == 1


# ── stop, close, and calls that are no use ──


@pytest.fixture
def sleeping(client: msgtx.Client, background: ThreadPoolExecutor) -> Sleeping:
    """Have a member, which looks by itself only once a minute, wait for records in a poll in another thread."""

    def begin(member: msgtx.ShareConsumer) -> Future[list[msgtx.ShareRecord]]:
        member._waiter._waited = False
        polling: Future[list[msgtx.ShareRecord]] = background.submit(member.poll, 2 * PATIENCE_SECONDS)
        wait_until(lambda: client.runtime.listener.confirmed and member._waiter._waited, "it waits to be woken")
        return polling

    return begin


def test_stop_ends_the_poll_that_waits_and_no_other_one(share: Shares, sleeping: Sleeping) -> None:
    one = share(fetch_max_wait_ms=60_000)
    polling = sleeping(one)
    with refuses(errors.IllegalState, reason="thread"):
        one.poll(0)
    one.stop()
    assert polling.result(PATIENCE_SECONDS) == []
    polling = sleeping(one)
    assert not polling.done()
    share.fill(1)
    assert seen(polling.result(PATIENCE_SECONDS)) == [(b"0", 1)]


def test_close_wakes_a_poll_that_waits(client: msgtx.Client, share: Shares, sleeping: Sleeping) -> None:
    """The client forgets who is closed. If the closed member joined again, it would get the new record and keep it."""
    one, other = share(fetch_max_wait_ms=60_000, request_timeout_ms=60_000), share()
    polling = sleeping(one)
    begun = time.monotonic()
    one.close()
    assert polling.result(PATIENCE_SECONDS) == []
    assert time.monotonic() - begun < PATIENCE_SECONDS
    assert not client.runtime.listener._waiters
    share.fill(3)
    assert seen(other.poll(PATIENCE_SECONDS)) == [(b"0", 1), (b"1", 1), (b"2", 1)]
    assert share.described.members == 1


def test_an_iteration_ends_with_the_record_at_which_it_is_stopped(share: Shares) -> None:
    """What was acquired with it is handed out by the next one, or by a poll; a record that is closed behind is others'."""
    share.fill(4)
    one = share()
    share.configure(record_lock_duration_ms=60_000)
    for expected in (0, 1):
        offsets = []
        for record in one:
            offsets.append(record.offset)
            one.stop()
        assert offsets == [expected]
    offsets = []
    for record in one:
        offsets.append(record.offset)
        one.close()
    assert offsets == [2]
    assert list(one) == []
    assert seen(share().poll(PATIENCE_SECONDS)) == [(b"0", 2), (b"1", 2), (b"2", 2), (b"3", 2)]


def test_an_iteration_that_takes_too_long_hands_out_nothing_that_others_have(share: Shares) -> None:
    share.fill(2)
    one, other = share(), share()
    share.configure(record_lock_duration_ms=100)
    iterating = iter(one)
    assert next(iterating).offset == 0
    share.configure(record_lock_duration_ms=60_000)
    assert [record.value for record in other.poll(PATIENCE_SECONDS)] == [b"0", b"1"]
    share.fill(1, 2)
    assert next(iterating).offset == 2


def test_a_callback_may_close_its_share_consumer(client: msgtx.Client, topic: str, share: Shares) -> None:
    """It does not wait for the call that it is a part of."""
    share.fill(1)
    took: list[float] = []

    def closing(value: bytes | None) -> bytes | None:
        begun = time.monotonic()
        one.close()
        took.append(time.monotonic() - begun)
        return value

    one = client.share_consumer(
        topic,
        group=share.name,
        acknowledgement_mode="explicit",
        value_deserializer=closing,
        request_timeout_ms=int(PATIENCE_SECONDS * 1000),
    )
    one.poll(PATIENCE_SECONDS)
    assert max(took) < PATIENCE_SECONDS
    assert share.described.members == 0


def test_who_is_closed_or_implicit_answers_for_nothing(
    client: msgtx.Client, topic: str, share: Shares, caplog: pytest.LogCaptureFixture, hook: Hook
) -> None:
    share.fill(2)
    one, implicit = share(), share("implicit")
    (record,) = one.poll(PATIENCE_SECONDS, 1)
    with refuses(errors.IllegalState, reason="acknowledgement_mode"):
        implicit.acknowledge(implicit.poll(PATIENCE_SECONDS)[0])
    one.acknowledge(record)
    with hook.at("before acknowledge_records", errors.GroupNotFound("it is not there")):
        one.close()
    assert "closing: it is not there" in caplog.text
    caplog.clear()
    one.close()
    assert not caplog.records, "closing it again does nothing"
    with client.producer(transactional_id=topic) as producer:
        for call in (
            lambda: one.poll(0),
            lambda: one.acknowledge(record),
            one.commit,
            lambda: one.answering.accepting([record]),
            lambda: producer.begin_transaction().send_acknowledgements(one),
        ):
            with refuses(errors.IllegalState, reason="closed"):
                call()


def test_topics_of_a_share_group_are_there_as_they_are_needed(client: msgtx.Client, topic: str, unique: Unique) -> None:
    """A topic of dead letters once something is rejected; one that is read has to be there before."""
    group, other = unique("share"), unique("share")
    fill(client, topic, 1)
    with client.share_consumer(topic, group=group, acknowledgement_mode="explicit") as one:
        one.poll(0)
        fill(client, topic, 1)
        one.acknowledge(one.poll(PATIENCE_SECONDS)[0])
        one.commit()
    assert f"{group}-dead-letters" not in client.topics.list()
    with client.share_consumer(topic, group=other) as one:
        assert one.answering.dead_letter_topic() == f"{other}-dead-letters"
    assert f"{other}-dead-letters" in client.topics.list()
    missing = unique("missing")
    one = client.share_consumer(missing, group=other)
    with refuses(errors.UnknownTopicOrPartition, topic=missing):
        one.poll(0)
    client.topics.create(missing)
    one.poll(0)
    client.topics.delete(missing)
    one._acquisitions.looked -= acquiring.TOPICS_SECONDS  # it is time for another look
    with refuses(errors.UnknownTopicOrPartition, topic=missing):
        one.poll(0)
    one.close()


def test_a_poll_that_waits_asks_again_when_it_is_told_and_at_once_behind_a_lock(
    client: msgtx.Client,
    wide: str,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
    sleeping: Sleeping,
    background: ThreadPoolExecutor,
) -> None:
    """A member neither asks in a circle where there is nothing, nor sleeps because another one had the partition."""
    one = client.share_consumer(wide, group=wide, acknowledgement_mode="explicit", fetch_max_wait_ms=60_000)
    sleep = sleeping(one)
    one.stop()
    sleep.result(PATIENCE_SECONDS)
    asked: list[bool] = []
    acquire = GroupPolls.acquire

    def noted(polls: GroupPolls, asking: Acquiring) -> Any:
        found = acquire(polls, asking)
        asked.append(found.has_passed)
        return found

    monkeypatch.setattr(GroupPolls, "acquire", noted)
    assert one.poll(0.5) == []
    assert 1 <= len(asked) <= 3
    first, second, _ = one._acquisitions.places
    monkeypatch.setattr(one._polls, "place", lambda _: first)
    with client.producer() as producer:
        producer.send(wide, b"0", partition=1).result(PATIENCE_SECONDS)
    asked.clear()
    connection.execute("begin")
    connection.execute(
        "select msgtx.lock_share_partition(group_id, %s) from msgtx.consumer_group where name = %s", [second, wide]
    )
    polling = background.submit(one.poll, 2 * PATIENCE_SECONDS, 1)
    wait_until(lambda: len(asked) > 1, "it asks again")
    connection.execute("rollback")
    assert asked[0]
    assert seen(polling.result(PATIENCE_SECONDS)) == [(b"0", 1)]
    one.close()
