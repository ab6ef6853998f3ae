"""What a share consumer's polls acquire, hand out and accept (internals: shares)."""

from collections.abc import Callable
from typing import Any

import pytest

import msgtx
from msgtx import errors
from msgtx.shares import answering
from msgtx.shares import polls as share_polls
from msgtx.store.shares import shares as stored
from tests.client.sharing import Shares, accept, away, seen
from tests.databases import PATIENCE_SECONDS, Connection
from tests.refusals import refuses
from tests.store.test_compaction import compact

pytestmark = pytest.mark.slow


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
def test_implicit_mode_finishes_what_had_no_answer_in_time(
    share: Shares, monkeypatch: pytest.MonkeyPatch, way: str, is_done: bool
) -> None:
    """I17: what the call before was to accept is accepted once, and what it was to acquire is not lost."""
    share.configure(record_lock_duration_ms=60_000)
    share.fill(3)
    with share("implicit", request_timeout_ms=100, retry_backoff_ms=50) as one:
        assert seen(one.poll(PATIENCE_SECONDS, 1)) == [(b"0", 1)]
        verb = {"commit": "acknowledge_records", "poll": "acquire_records"}[way]
        call = getattr(share_polls, verb)

        def unanswered(*arguments: Any, **named: Any) -> Any:
            if is_done:
                call(*arguments, **named)
            raise errors.DatabaseUnavailable("the answer is lost")

        with monkeypatch.context() as patched:
            patched.setattr(share_polls, verb, unanswered)
            with pytest.raises(errors.DatabaseUnavailable):
                one.commit() if way == "commit" else one.poll(0, 1)
        assert seen(one.poll(0, 1)) == [(b"1", 1)]
        assert seen(one.poll(0, 1)) == [(b"2", 1)]
        assert one.poll(0) == []
        assert share.lag == 0


def test_implicit_mode_accepts_the_rest_before_it_finishes_an_acquisition(
    share: Shares, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two rows of the log, one of which it has lost while a call of its own was not answered."""
    share.configure(record_lock_duration_ms=60_000)
    for start in range(2):
        share.fill(1, start)
    with share("implicit", request_timeout_ms=100, retry_backoff_ms=50) as one:
        assert len(one.poll(PATIENCE_SECONDS)) == 2

        with monkeypatch.context() as patched:
            patched.setattr(share_polls, "acquire_records", away)
            with pytest.raises(errors.DatabaseUnavailable):
                one.poll(0)
        one.answering.answer_if_held(one.waiting_records.handed_out[:1], answering.PLAIN_RELEASE)
        with refuses(errors.InvalidRecordState, partition=0, offset=0):
            one.poll(0)
        assert seen(one.poll(0)) == [(b"0", 2)]
        assert share.lag == 1


def test_what_is_held_stays_so_until_its_lock_is_over(share: Shares) -> None:
    """However many polls come in between."""
    share.fill(1)
    one = share()
    share.configure(record_lock_duration_ms=60_000)
    (record,) = one.poll(PATIENCE_SECONDS)
    for _ in range(3):
        assert one.poll(0) == []
    one.acknowledge(record)
    one.commit()


def test_only_what_is_held_is_renewed_and_in_one_call(share: Shares, monkeypatch: pytest.MonkeyPatch) -> None:
    share.fill(4)
    one, other = share(), share()
    share.configure(record_lock_duration_ms=60_000)
    one.poll(PATIENCE_SECONDS, 2)
    other.poll(PATIENCE_SECONDS, 2)
    calls: list[object] = []
    acknowledge = answering.acknowledge_records

    def counted(*arguments: Any, **named: Any) -> Any:
        calls.append(None)
        return acknowledge(*arguments, **named)

    monkeypatch.setattr(answering, "acknowledge_records", counted)
    assert one.answering.renew(one.waiting_records.handed_out) == one.waiting_records.handed_out
    assert len(calls) == 1
    theirs = other.waiting_records.handed_out
    assert one.answering.renew([*one.waiting_records.handed_out, *theirs]) == one.waiting_records.handed_out
    assert len(calls) == 3


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
