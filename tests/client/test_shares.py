"""Share groups as users see them (internals: shares)."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import pytest

import msgtx
from msgtx import Acknowledgement, errors
from msgtx.shares import answering
from msgtx.shares import polls as share_polls
from msgtx.store.shares import shares as stored
from msgtx.store.shares.answers import acknowledge_records
from tests.client.sharing import Shares, accept, seen
from tests.databases import PATIENCE_SECONDS, Connection, wait_until
from tests.hooks import Hook, away
from tests.interrupts import interrupts
from tests.refusals import refuses
from tests.store.sharing import answers_of
from tests.store.test_compaction import compact

pytestmark = pytest.mark.slow

Unique = Callable[[str], str]
Read = Callable[..., list[msgtx.Record]]


def test_any_number_of_records_may_be_asked_for(share: Shares) -> None:
    share.fill(3)
    assert len(share().poll(5, max_records=2**63 - 1)) == 3


def test_what_is_accepted_is_done_and_what_is_released_comes_again(share: Shares) -> None:
    share.fill(4)
    one, other = share(), share()
    records = one.poll(5)
    for record, answer in zip(records, ("accept", "release", "reject", "renew"), strict=True):
        one.acknowledge(record, Acknowledgement(answer))
    assert other.poll(0) == [], "answers are given by commit"
    one.commit()
    assert seen(other.poll(5)) == [(b"1", 2)]
    one.acknowledge(records[3])
    one.commit()
    with refuses(errors.InvalidRecordState, offset=3, reason="not held"):
        one.acknowledge(records[3])


def release(connection: Connection, member: msgtx.ShareConsumer, first: int, last: int) -> None:
    """Release records of partition 0 for a member, which does not know of it."""
    number, place = member._member.number, min(member._acquisitions.places)
    assert number is not None
    answers = answers_of(member.config.group, number, (place, first, last, "release"))
    assert acknowledge_records(connection, answers, call_number=None) == []


def places(records: list[msgtx.ShareRecord]) -> list[tuple[int, int]]:
    return sorted((record.partition, record.offset) for record in records)


@pytest.fixture
def two(client: msgtx.Client, wide: str, share: Shares) -> Iterator[tuple[msgtx.ShareConsumer, list[msgtx.ShareRecord]]]:
    """A member with long locks that holds offsets 0 to 2 of partition 0 and 0 to 5 of partition 1, and what it holds."""
    share.configure(record_lock_duration_ms=60_000)
    with client.producer() as producer:
        for partition, count in ((0, 3), (1, 6)):
            producer.send_batch(wide, [b""] * count, partition=partition).result(30)
    with client.share_consumer(wide, group=share.name, acknowledgement_mode="explicit") as member:
        records: list[msgtx.ShareRecord] = []
        wait_until(lambda: records.extend(member.poll(0)) or len(records) == 9)
        yield member, records


def test_a_refusal_is_of_its_own_record_alone(
    two: tuple[msgtx.ShareConsumer, list[msgtx.ShareRecord]], connection: Connection, wide: str
) -> None:
    """Neither of those before it, nor of its offset in another partition. They are held however often the member polls."""
    member, records = two
    for _ in range(3):
        assert member.poll(0) == []
    release(connection, member, 1, 1)
    for record in records:
        member.acknowledge(record)
    with refuses(errors.InvalidRecordState, topic=wide, partition=0, offset=1):
        member.commit()
    assert places(member.holdings.of(records)) == [place for place in places(records) if place != (0, 1)]
    member.commit()
    assert [(record.offset, record.delivery_count) for record in member.poll(5)] == [(1, 2)]
    assert member.poll(0) == []


def test_what_lies_between_two_answers_has_none(
    client: msgtx.Client, two: tuple[msgtx.ShareConsumer, list[msgtx.ShareRecord]], wide: str, share: Shares
) -> None:
    """I17: in one partition, and where the offsets of another one continue those of the first."""
    member, records = two
    answered = {(0, 0), (0, 2), (1, 3), (1, 4), (1, 5)}
    for record in records:
        if (record.partition, record.offset) in answered:
            member.acknowledge(record)
    member.commit()
    member.close()
    with client.share_consumer(wide, group=share.name) as other:
        found: list[msgtx.ShareRecord] = []
        wait_until(lambda: found.extend(other.poll(0)) or len(found) == 4)
        assert places(found) == [(0, 1), (1, 0), (1, 1), (1, 2)]


def test_a_lock_begins_anew_once_for_each_answer_that_says_so(share: Shares, hook: Hook) -> None:
    share.fill(1)
    one = share()
    one.acknowledge(one.poll(5)[0], Acknowledgement.RENEW)
    for _ in range(2):
        one.commit()
    assert hook.seen["before acknowledge_records"] == 1


def test_in_implicit_mode_too_the_next_commit_applies_the_rest(connection: Connection, share: Shares) -> None:
    """Of a row of the log of which a part is not held any more, as with an order by key."""
    share.fill(6)
    implicit, other = share("implicit"), share()
    assert len(implicit.poll(5)) == 6
    release(connection, implicit, 2, 3)
    with refuses(errors.InvalidRecordState, offset=2):
        implicit.commit()
    implicit.commit()
    assert seen(other.poll(5)) == [(b"2", 2), (b"3", 2)]


@pytest.mark.parametrize("verb", ["acquire_records", "acknowledge_records"])
def test_a_call_whose_answer_was_lost_has_its_effect_once(share: Shares, hook: Hook, verb: str) -> None:
    share.fill(3)
    one = share()
    hook.at(f"after {verb}", away, times=1)
    records = one.poll(5)
    assert seen(records) == [(b"0", 1), (b"1", 1), (b"2", 1)]
    accept(one, records)
    one.commit()
    assert hook.seen[f"before {verb}"] > 1
    assert share.lag == 0


def test_states_stay_few_under_load(share: Shares, connection: Connection) -> None:
    """A member removes, beside its heartbeats, what newer states supersede: nobody has to sweep."""
    share.fill(200)
    one = share("implicit", heartbeat_interval_ms=50)
    while one.poll(0, max_records=1):
        pass
    newest = (
        "select (select count(*) from msgtx.share_state s where s.group_id = g.group_id),"
        " (select count(*) from msgtx.share_call c join msgtx.group_member m using (member_number)"
        " where m.group_id = g.group_id)"
        " from msgtx.consumer_group g where g.name = %s"
    )
    wait_until(lambda: connection.execute(newest, [share.name]).fetchone() == (1, 1))


def test_a_member_that_leaves_takes_what_it_left_behind_along(share: Shares, connection: Connection) -> None:
    """Workers that come and go add nothing, also where nobody sweeps: no call stays, and of the states the newest."""
    share.fill(50)
    one = share("implicit", heartbeat_interval_ms=10_000)
    while one.poll(0, max_records=1):
        pass
    calls = "select count(*) from msgtx.share_call where member_number = %s"
    states = "select count(*) from msgtx.share_state s join msgtx.consumer_group g using (group_id) where g.name = %s"
    number = one._member.number
    assert connection.execute(calls, [number]).fetchone() != (0,)
    one.close()
    assert connection.execute(calls, [number]).fetchone() == (0,)
    assert connection.execute(states, [share.name]).fetchone() == (1,)


@pytest.mark.parametrize("otherwise", [Acknowledgement.RELEASE, Acknowledgement.REJECT, Acknowledgement.RENEW])
def test_an_answer_that_changes_after_a_commit_without_an_answer_comes_too_late(
    share: Shares, hook: Hook, otherwise: Acknowledgement
) -> None:
    """I17: the first commit was applied. The caller is told, may go on with the rest, and can close."""
    share.fill(3)
    one = share(request_timeout_ms=300, retry_backoff_ms=50)
    first, second, _ = one.poll(5)
    one.acknowledge(first)
    with hook.at("after acknowledge_records", away), pytest.raises(errors.DatabaseUnavailable):
        one.commit()
    one.acknowledge(first, otherwise)
    one.acknowledge(second)
    with refuses(errors.InvalidRecordState, reason="late answer"):
        one.commit()
    one.commit()
    one.close()
    assert seen(share().poll(1)) == [(b"2", 2)]


def test_a_member_leaves_whatever_its_last_commit_raises(share: Shares, hook: Hook) -> None:
    """Else what it holds would wait for the end of its session."""
    share.fill(1)
    one = share()
    (record,) = one.poll(5)
    one.acknowledge(record)
    with hook.at("before acknowledge_records", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        one.close()
    assert one.closed
    assert share.described.members == 0
    assert seen(share().poll(5)) == [(b"0", 2)]


def test_close_from_another_thread_waits_for_a_commit(share: Shares, hook: Hook, background: ThreadPoolExecutor) -> None:
    """Both are told that what was answered is done, as it is (I17)."""
    share.configure(record_lock_duration_ms=30_000)
    share.fill(2)
    one, other = share(), share()
    one.acknowledge(one.poll(PATIENCE_SECONDS, 1)[0])
    held = hook.hold("before acknowledge_records")
    committing = background.submit(one.commit)
    held.wait()
    leaving = background.submit(one.close)
    wait([leaving], 0.2)
    held.go_on.set()
    committing.result(PATIENCE_SECONDS)
    leaving.result(PATIENCE_SECONDS)
    assert [value for value, _ in seen(other.poll(PATIENCE_SECONDS))] == [b"1"]


def test_a_new_member_does_not_repeat_the_call_of_one_that_is_gone(
    share: Shares, hook: Hook, connection: Connection
) -> None:
    """It would be told that it is unknown, and leave a member behind that nobody is."""
    share.fill(2)
    one = share(request_timeout_ms=300, retry_backoff_ms=50)
    with hook.at("after acquire_records", away), pytest.raises(errors.DatabaseUnavailable):
        one.poll(0)
    connection.execute("delete from msgtx.group_member where member_number = %s", [one._member.number])
    one._member._unknown = one._member._joined  # as a heartbeat has learnt
    assert seen(one.poll(5)) == [(b"0", 2), (b"1", 2)]
    assert share.described.members == 1


@pytest.mark.parametrize("way", ["in the same poll", "in the next poll", "together"])
def test_a_lost_answer_is_not_answered_with_what_has_come_since(
    client: msgtx.Client, share: Shares, monkeypatch: pytest.MonkeyPatch, unique: Unique, way: str
) -> None:
    """I17. Else the first records would reach nobody, and be dead letters at last."""
    topic = unique("pair")
    client.topics.create(topic, partitions=2)
    share.configure(record_lock_duration_ms=60_000)
    with client.producer() as producer:
        settings = {} if way != "in the next poll" else {"request_timeout_ms": 300, "retry_backoff_ms": 50}
        one = client.share_consumer(topic, group=share.name, acknowledgement_mode="explicit", **settings)
        assert one.poll(0) == []
        for partition in (0, 1):
            producer.send(topic, b"before", partition=partition).result(10)
        accept(one, [*one.poll(5), *one.poll(0)])
        one.commit()
        first = one._polls.place(list(one._acquisitions.places))
        place = one._acquisitions.places[first].partition
        monkeypatch.setattr(one._polls, "place", lambda _: first)
        producer.send(topic, b"lost", partition=1 - place).result(10)
        verb = "acquire_records_together" if way == "together" else "acquire_records"
        call = getattr(share_polls, verb)
        lost: list[object] = []

        def unanswered(connection: Any, asked: Any) -> Any:
            answer = call(connection, asked)
            if not lost or way == "in the next poll":
                lost.append(answer)
                producer.send(topic, b"since", partition=place).result(10)
                raise errors.DatabaseUnavailable("the answer is lost")
            return answer

        monkeypatch.setattr(share_polls, verb, unanswered)
        if way == "together":
            calls = one._polls._calls_of(first)
            monkeypatch.setattr(calls, "_lead", partial(lead_together, calls))
        if way == "in the next poll":
            with pytest.raises(errors.DatabaseUnavailable):
                one.poll(0, max_records=1)
            monkeypatch.setattr(share_polls, verb, call)
        assert seen(one.poll(5, max_records=1)) == [(b"lost", 1)]
        assert lost
        assert seen(one.poll(5, max_records=1)) == [(b"since", 1)]
        one.close()


def lead_together(calls: Any, group: Any, sent: Any) -> None:
    """Make a call of one as if it were one of several."""
    try:
        group[0].answer = calls._together([group[0].asked], sent)[0]
    except errors.MsgtxError:
        group[0].has_failed = True


def test_a_record_may_be_sent_for_later(client: msgtx.Client, topic: str, share: Shares, read: Read) -> None:
    """Share groups wait, consumers do not."""
    with client.producer() as producer:
        producer.send(topic, b"delayed", partition=0, delay_ms="1.5s", headers=[("a", b"b")])
        producer.send(topic, b"at", partition=0, deliver_at=int(time.time() * 1000) + 1500)
        producer.send(topic, b"now", partition=0)
    one = share("implicit")
    assert seen(one.poll(5)) == [(b"now", 1)]
    assert [record.value for record in read(topic)] == [b"delayed", b"at", b"now"]
    found: list[msgtx.ShareRecord] = []
    while len(found) < 2:
        found += one.poll(PATIENCE_SECONDS)
    assert {record.value for record in found} == {b"delayed", b"at"}
    with refuses(errors.InvalidRequest, name="deliver_at"), client.producer() as producer:
        producer.send(topic, b"x", delay_ms=1, deliver_at=1)
    with refuses(errors.ConfigError, name="delay_ms"), client.producer() as producer:
        producer.send(topic, b"x", delay_ms="soon")
    with refuses(errors.InvalidRequest, name="deliver_at"), client.producer() as producer:
        producer.send(topic, b"x", deliver_at=10**14)


def test_a_release_may_have_a_delay(share: Shares) -> None:
    share.fill(2)
    one = share()
    first, second = one.poll(5)
    for answer, delay in ((Acknowledgement.ACCEPT, 5), (Acknowledgement.RELEASE, -1)):
        with refuses(errors.InvalidRequest, name="delay_ms"):
            one.acknowledge(second, answer, delay_ms=delay)
    one.acknowledge(first, Acknowledgement.RELEASE, delay_ms="300ms")
    one.acknowledge(second, Acknowledgement.RELEASE)
    one.commit()
    released = time.monotonic()
    (again,) = one.poll(5)
    assert seen([again]) == [(b"1", 2)]
    one.acknowledge(again)
    one.commit()
    assert seen(one.poll(PATIENCE_SECONDS)) == [(b"0", 2)]
    assert time.monotonic() - released >= 0.3


def test_what_nobody_answers_for_is_forgotten_when_its_lock_is_over(share: Shares) -> None:
    """A member that drops records for days does not keep them; it keeps what it renews."""
    share.configure(delivery_count_limit=1)
    share.fill(4)
    one = share()
    records = one.poll(5)
    renewed = records[0]
    for _ in range(4):
        one.acknowledge(renewed, Acknowledgement.RENEW)
        one.commit()
        time.sleep(0.3)
        assert one.poll(0) == []
    assert one.holdings.of(records) == [renewed]


def test_what_has_an_answer_is_held_until_its_commit_is_refused(share: Shares) -> None:
    share.configure(delivery_count_limit=1, record_lock_duration_ms=200)
    share.fill(1)
    one = share()
    records = one.poll(5)
    one.acknowledge(records[0])
    for _ in range(3):
        time.sleep(0.2)
        assert one.poll(0) == []
    with refuses(errors.InvalidRecordState, partition=0, offset=0):
        one.commit()
    assert one.holdings.of(records) == []


# ── iteration, and what cannot be read ──


def test_an_iteration_accepts_what_it_came_to_and_nothing_else(share: Shares) -> None:
    """I17: a record that the caller has not seen is not accepted for it."""
    share.fill(10)
    with share("implicit") as consumer:
        for record in consumer:
            if record.offset == 3:
                break
        consumer.commit()
        assert share.described.partitions[0].acquired == 6
        assert seen(consumer.poll(0, max_records=2)) == [(b"4", 1), (b"5", 1)]
        threading.Timer(0.3, consumer.stop).start()
        assert [record.offset for record in consumer] == [6, 7, 8, 9]
        assert consumer.poll(0) == [], "what was iterated over is accepted by the poll"
    assert share.lag == 0


def test_a_transaction_within_an_iteration_accepts_its_record_alone(client: msgtx.Client, share: Shares) -> None:
    """I17."""
    share.fill(5)
    with share("implicit") as consumer, client.producer(transactional_id=share.name) as producer:
        for record in consumer:
            with producer.transaction() as tx:
                tx.send_acknowledgements(consumer)
            if record.offset == 1:
                break
        assert share.lag == 3


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_a_record_that_cannot_be_deserialized_is_released_and_at_last_a_dead_letter(
    client: msgtx.Client, topic: str, share: Shares, mode: str
) -> None:
    """I17: it was not handed out, so it is not accepted; and those beside it are delivered once."""
    share.configure(delivery_count_limit=2, record_lock_duration_ms=60_000)
    with client.producer() as producer:
        producer.send_batch(topic, [b"0", b"\xff", b"2"], partition=0).result(30)
    with share(mode, value_deserializer=lambda value: value.decode()) as consumer:
        got: list[str] = []
        refused = 0
        while len(got) < 2 or share.lag:
            try:
                records = consumer.poll(0.05)
            except errors.DeserializationError as error:
                refused += error.offset == 1 and isinstance(error.__cause__, UnicodeDecodeError)
                records = []
            accept(consumer, records)
            got += [record.value for record in records]
            consumer.commit()
        assert (got, refused) == (["0", "2"], 2)
    (letter,) = client.read(client.snapshot([f"{share.name}-dead-letters"]))
    assert letter.value == b"\xff"
    assert dict(letter.headers)["msgtx.dead-letter.reason"].startswith(b"delivery limit: the deserializer raised Unicode")


def test_a_tombstone_reaches_no_deserializer(client: msgtx.Client, topic: str, share: Shares) -> None:
    with client.producer() as producer:
        producer.send_batch(topic, [None, b"1"], partition=0).result(30)
    with share("implicit", value_deserializer=int) as consumer:
        assert [record.value for record in consumer.poll(PATIENCE_SECONDS)] == [None, 1]


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_what_an_interrupt_kept_from_its_caller_is_handed_out_after_a_rewind(share: Shares, mode: str) -> None:
    """Ctrl-C, while a poll deserializes: each record once more, as it is in the log, and none is accepted unseen (I17)."""
    share.configure(record_lock_duration_ms=30_000)
    for start in (0, 2):  # two rows of the log
        share.fill(2, start)
    interrupts = iter([KeyboardInterrupt])

    def deserialize(value: bytes | None) -> bytes:
        if value == b"3":
            for interrupt in interrupts:
                raise interrupt
        return b"<%s>" % (value or b"")

    member = share(mode, value_deserializer=deserialize)
    with pytest.raises(KeyboardInterrupt):
        member.poll(PATIENCE_SECONDS)
    calls: list[Callable[[], object]] = [member.poll, lambda: next(iter(member)), member.commit, member.transaction_answers]
    for call in calls:
        with refuses(errors.IllegalState, reason="interrupted"):
            call()
    member.rewind()
    assert [record.value for record in member.poll(PATIENCE_SECONDS)] == [b"<0>", b"<1>", b"<2>", b"<3>"]


ROOM = ("share_consumer", "acquiring", "answering", "waiting", "holdings")
HANDING_OUT = ["receiving/sole_use.py", "receiving/reader.py", *(f"shares/{name}.py" for name in ROOM)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a connection that was in use
@pytest.mark.parametrize("mode", ["implicit", "explicit", "iterated"])
def test_an_interrupt_at_any_line_of_handing_out_loses_and_repeats_nothing(
    client: msgtx.Client, topic: str, share: Shares, mode: str
) -> None:
    """And none is accepted unseen (I17)."""
    share.configure(record_lock_duration_ms=30_000, delivery_count_limit=100)
    with client.producer() as producer:
        for start in range(0, 2_400, 3):
            producer.send_batch(topic, [b"%d" % i for i in range(start, start + 3)])
    member = share("implicit" if mode == "iterated" else mode, value_deserializer=bytes)

    def take() -> list[msgtx.ShareRecord]:
        return [next(iter(member))] if mode == "iterated" else member.poll(PATIENCE_SECONDS, 4)

    def handle(records: list[msgtx.ShareRecord]) -> None:
        accept(member, records)
        member.commit()
        got.extend(record.offset for record in records)

    got: list[int] = []
    for interrupt in interrupts(*HANDING_OUT, least=50):
        records: list[msgtx.ShareRecord] = []
        with interrupt:
            records = take()
        if interrupt.place is not None:
            member.rewind()
        handle(records)
        handle(take())
        assert len(set(got)) == len(got), interrupt.place
    while rest := member.poll(1, 1_000):
        handle(rest)
    assert sorted(got) == list(range(2_400))


# ── what polls acquire, hand out and accept ──


def test_a_record_comes_as_it_was_sent(client: msgtx.Client, topic: str, share: Shares) -> None:
    with client.producer(linger_ms=1_000) as producer:
        for number in range(3):
            producer.send(topic, b"v", key=b"%d" % number, partition=0, timestamp=number, headers=[("h", b"%d" % number)])
    one = share()
    assert [(record.offset, record.key, record.timestamp, record.headers) for record in one.poll(PATIENCE_SECONDS)] == [
        (number, b"%d" % number, number, (("h", b"%d" % number),)) for number in range(3)
    ]


def test_what_compaction_left_is_answered_for_by_its_own_offsets(
    client: msgtx.Client, connection: Connection, unique: Callable[[str], str]
) -> None:
    """I17. A row of the log that has lost records from its front, middle and end: nobody else could answer for them."""
    topic = unique("compacted")
    client.topics.create(topic, cleanup_policy="compact")
    client.admin.shares.configure(topic, {"auto_offset_reset": "earliest"})
    with client.producer(linger_ms=1_000) as producer:
        for key in (b"b", b"a", b"b", b"c", b"b"):
            producer.send(topic, b"v", key=key, partition=0)
        producer.flush()
        for key in (b"d", b"b"):
            producer.send(topic, b"v", key=key, partition=0).result(PATIENCE_SECONDS)
    compact(connection)
    with client.share_consumer(topic, group=topic, acknowledgement_mode="explicit") as one:
        records = one.poll(PATIENCE_SECONDS)
        assert [(record.offset, record.key) for record in records] == [(1, b"a"), (3, b"c"), (5, b"d"), (6, b"b")]
        accept(one, records)
        one.commit()
        assert client.admin.shares.describe(topic).lag == 0


def test_what_is_removed_before_it_was_read_is_passed(
    client: msgtx.Client, connection: Connection, topic: str, share: Shares, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large answer is read behind the acquisition, without its locks."""
    read_rest = stored._read_rest
    one = share()
    with client.producer() as producer:
        for value in (b"large" * 10_000, b"small"):
            producer.send(topic, value, partition=0).result(PATIENCE_SECONDS)

    def late(on: Any, records: Any) -> None:
        connection.execute('delete from msgtx.record_batch where octet_length("values"[1]) > 20000')
        read_rest(on, records)

    monkeypatch.setattr(stored, "_read_rest", late)
    assert [record.value for record in one.poll(PATIENCE_SECONDS)] == [b"small"]


def test_what_is_over_of_an_acquisition_is_handed_out_before_more_is_acquired(share: Shares) -> None:
    share.fill(6)
    one, other = share(max_poll_records=3), share()
    share.configure(record_lock_duration_ms=60_000)
    assert next(iter(one)).offset == 0
    assert one.waiting_records.lock_seconds == 60.0
    assert seen(one.poll(0, 1)) == [(b"1", 1)]
    assert seen(one.poll(0)) == [(b"2", 1)]
    assert [held[1:] for held in one.waiting_records.handed_out] == [(2, 2)]
    assert seen(other.poll(0)) == [(b"3", 1), (b"4", 1), (b"5", 1)]


def test_implicit_mode_accepts_first_also_where_nothing_is_acquired(share: Shares) -> None:
    share.fill(4)
    with share("implicit") as one:
        assert next(iter(one)).offset == 0
        for offset in (1, 2, 3):
            assert [record.offset for record in one.poll(0, 1)] == [offset]
            assert share.lag == 4 - offset


def test_a_poll_says_that_what_it_would_accept_is_others(share: Shares) -> None:
    """I17: in implicit mode, with the acquisition that follows."""
    share.fill(1)
    implicit, other = share("implicit"), share()
    assert len(implicit.poll(PATIENCE_SECONDS)) == 1
    assert seen(other.poll(PATIENCE_SECONDS)) == [(b"0", 2)]
    with refuses(errors.InvalidRecordState, partition=0, offset=0):
        implicit.poll(0)


@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize("way", ["commit", "poll"])
def test_implicit_mode_finishes_what_had_no_answer_in_time(share: Shares, hook: Hook, way: str, is_done: bool) -> None:
    """I17: the call before accepts its records once, and no record that it acquires is lost."""
    share.configure(record_lock_duration_ms=60_000)
    share.fill(3)
    with share("implicit", request_timeout_ms=100, retry_backoff_ms=50) as one:
        assert seen(one.poll(PATIENCE_SECONDS, 1)) == [(b"0", 1)]
        verb = {"commit": "acknowledge_records", "poll": "acquire_records"}[way]
        with hook.at(f"{'after' if is_done else 'before'} {verb}", away), pytest.raises(errors.DatabaseUnavailable):
            one.commit() if way == "commit" else one.poll(0, 1)
        assert seen(one.poll(0, 1)) == [(b"1", 1)]
        assert seen(one.poll(0, 1)) == [(b"2", 1)]
        assert one.poll(0) == []
        assert share.lag == 0


def test_implicit_mode_accepts_the_rest_before_it_finishes_an_acquisition(share: Shares, hook: Hook) -> None:
    """Of two rows of the log, one of which it has lost while a call of its own was not answered."""
    share.configure(record_lock_duration_ms=60_000)
    for start in range(2):
        share.fill(1, start)
    with share("implicit", request_timeout_ms=100, retry_backoff_ms=50) as one:
        assert len(one.poll(PATIENCE_SECONDS)) == 2
        with hook.at("before acquire_records", away), pytest.raises(errors.DatabaseUnavailable):
            one.poll(0)
        one.answering.answer_if_held(one.waiting_records.handed_out[:1], answering.PLAIN_RELEASE)
        with refuses(errors.InvalidRecordState, partition=0, offset=0):
            one.poll(0)
        assert seen(one.poll(0)) == [(b"0", 2)]
        assert share.lag == 1


def test_only_what_is_held_is_renewed_and_in_one_call(share: Shares, hook: Hook) -> None:
    share.fill(4)
    one, other = share(), share()
    share.configure(record_lock_duration_ms=60_000)
    one.poll(PATIENCE_SECONDS, 2)
    other.poll(PATIENCE_SECONDS, 2)
    for others, calls in (([], 1), (other.waiting_records.handed_out, 1 + 2)):
        assert one.answering.renew([*one.waiting_records.handed_out, *others]) == one.waiting_records.handed_out
        assert hook.seen["before acknowledge_records"] == calls


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_keys_alone_may_be_deserialized_and_a_poll_hands_out_what_can_be(
    client: msgtx.Client, topic: str, share: Shares, mode: Any
) -> None:
    """What comes before a record that cannot be read is handed out; that one is an error of the next poll."""
    with client.producer(linger_ms=1_000) as producer:
        for key in (b"0", b"x", b"2"):
            producer.send(topic, b"v", key=key, partition=0)
    settings = {"group": share.name, "acknowledgement_mode": mode}
    with client.share_consumer(topic, key_deserializer=lambda key: int(key or b""), **settings) as one:
        assert [record.key for record in one.poll(PATIENCE_SECONDS)] == [0]
        with refuses(errors.DeserializationError, offset=1):
            one.poll(0)
        assert [record.key for record in one.poll(0)] == [2]
