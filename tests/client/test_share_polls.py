"""Workers of a share group in one process share their calls; each has its own records, answers and errors."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import pytest

import msgtx
from msgtx.shares import acquiring
from msgtx.shares import polls as share_polls
from msgtx.shares.polls import EMPTY_SECONDS, MOST_RECORDS, TURN_SECONDS, GroupPolls, SharePolls
from msgtx.store.shares.answers import AnswerColumns, OffsetRange
from msgtx.store.shares.shares import Acquired, Acquiring, Acquisition
from tests.databases import PATIENCE_SECONDS, wait_until

WORKERS, RECORDS = 4, 400


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How many shared calls there were, by how many members they were for."""
    counts: Counter[int] = Counter()
    together = share_polls.acquire_records_together

    def counting(connection: Any, several: Sequence[Acquiring]) -> list[Acquisition | None]:
        found = together(connection, several)
        counts[len(several)] += found[0] is not None
        return found

    monkeypatch.setattr(share_polls, "acquire_records_together", counting)
    return counts


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_workers_of_one_process_share_calls_and_every_record_is_ones(
    client: msgtx.Client, unique: Any, shared: Counter[int], partitions: int, mode: Any
) -> None:
    topic = group = unique("topic")
    client.topics.create(topic, partitions=partitions)
    client.admin.shares.configure(group, {"auto_offset_reset": "earliest"})
    with client.producer() as producer:
        for at in range(RECORDS):
            producer.send(topic, b"%d" % at, partition=at % partitions)
    found: Counter[bytes | None] = Counter()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            with client.share_consumer(topic, group=group, acknowledgement_mode=mode) as consumer:
                while records := consumer.poll(1.0, 1):
                    found.update(record.value for record in records)
                    assert {record.delivery_count for record in records} == {1}
                    if mode == "explicit":
                        consumer.acknowledge(records[0])
                        consumer.commit()
        except BaseException as error:  # noqa: BLE001 - for the thread that asserts
            failed.append(error)

    workers = [threading.Thread(target=work) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not failed
    assert found == {b"%d" % at: 1 for at in range(RECORDS)}
    assert client.admin.shares.describe(group).lag == 0
    assert sum(count for members, count in shared.items() if members > 1) > 0


# ── which partition is asked first ──


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time_stands(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(share_polls, "time", clock)
    return clock


def found_in(partition: int) -> Acquisition:
    return Acquisition(
        [Acquired(OffsetRange(partition, 0, 0), 1, 1, 0, None, None, [b""], None, None, None, None)], [], has_passed=False
    )


def test_members_ask_for_the_same_partition_and_each_has_its_turn(client: msgtx.Client, time_stands: Clock) -> None:
    polls = SharePolls(client.runtime.engine).of("g")
    places = []
    for _ in range(6):
        places.append(polls.place([7, 8, 9]))
        assert polls.place([7, 8, 9]) == places[-1]
        time_stands.now += TURN_SECONDS
    assert places[:3] == places[3:]
    assert sorted(places[:3]) == [7, 8, 9]


def test_members_follow_the_one_that_found_something(
    client: msgtx.Client, time_stands: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition that had nothing loses its next turns, unless no other one is left."""
    polls = SharePolls(client.runtime.engine).of("g")
    first = polls.place([7, 8])
    other = 15 - first
    monkeypatch.setattr(GroupPolls, "_by_itself", lambda *_: found_in(other))
    polls.acquire(Acquiring("g", 1, 1, [first, other], 1000, 1))
    assert polls.place([7, 8]) == other
    assert at_next_turn(polls, time_stands) == other
    assert polls.place([first]) == first
    for again in ("later", "news", "lost channel"):
        if again == "later":
            time_stands.now += EMPTY_SECONDS
        else:
            polls.heard({9, first} if again == "news" else None)
        assert {polls.place([7, 8]), at_next_turn(polls, time_stands)} == {7, 8}
        polls.acquire(Acquiring("g", 1, 1, [first, other], 1000, 1))
        assert at_next_turn(polls, time_stands) == other
    assert at_next_turn(polls, time_stands) == other, "not by turns alone"


def at_next_turn(polls: GroupPolls, clock: Clock) -> int:
    clock.now += TURN_SECONDS
    return polls.place([7, 8])


def test_a_group_is_forgotten_with_its_last_member(client: msgtx.Client) -> None:
    polls = SharePolls(client.runtime.engine)
    one = polls.of("g")
    assert polls.of("g") is one
    del one
    assert not polls._groups


def test_a_partition_that_has_more_keeps_its_turns(
    client: msgtx.Client, time_stands: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls = SharePolls(client.runtime.engine).of("g")
    first = polls.place([7, 8])
    monkeypatch.setattr(GroupPolls, "_by_itself", lambda *_: found_in(first))
    polls.acquire(Acquiring("g", 1, 1, [first, 15 - first], 1000, 1))
    assert {at_next_turn(polls, time_stands), at_next_turn(polls, time_stands)} == {7, 8}


def test_news_of_a_partition_that_was_passed_over_give_it_its_turn(client: msgtx.Client, topic: str) -> None:
    with client.share_consumer(topic, group=topic) as consumer:
        consumer.poll(0)
        (partition,) = consumer._acquisitions.places
        consumer._polls._empty[partition] = time.monotonic() + PATIENCE_SECONDS
        wait_until(lambda: client.runtime.listener.confirmed)
        with client.producer() as producer:
            producer.send(topic, b"x").result(PATIENCE_SECONDS)
        wait_until(lambda: consumer.poll(0) and partition not in consumer._polls._empty)


# ── what is asked, by itself or together with others ──


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Acquiring]:
    """The calls of all members."""
    found: list[Acquiring] = []
    acquire = GroupPolls.acquire

    def noting(polls: GroupPolls, asking: Acquiring) -> Acquisition:
        found.append(asking)
        return acquire(polls, asking)

    monkeypatch.setattr(GroupPolls, "acquire", noting)
    return found


def answering(*answers: str) -> AnswerColumns:
    """The answers of a member for one offset after another of partition 7."""
    many = len(answers)
    offsets = tuple(range(many))
    return AnswerColumns(("g",) * many, (1,) * many, (7,) * many, offsets, offsets, answers, (None,) * many, (None,) * many)


SMALL: Final = Acquiring("g", 1, 1, [7], MOST_RECORDS, 1)
ACCEPTING: Final = SMALL._replace(answers=answering("accept"))


@pytest.mark.parametrize(
    ("asking", "shares"),
    [
        (SMALL, True),
        (ACCEPTING, True),
        (SMALL._replace(max_records=MOST_RECORDS + 1), False),
        (SMALL._replace(is_again=True), False),
        (SMALL._replace(answers=answering("release")), False),
        (SMALL._replace(answers=answering("accept", "accept")), False),
    ],
)
def test_only_what_is_small_and_usual_is_shared(
    client: msgtx.Client, monkeypatch: pytest.MonkeyPatch, asking: Acquiring, shares: bool
) -> None:
    """The rest would hold the others up, or have them asked once more, each by itself."""
    monkeypatch.setattr(GroupPolls, "_by_itself", lambda *_: Acquisition([], [], has_passed=False))
    polls = SharePolls(client.runtime.engine).of("g")
    polls.acquire(asking)
    assert bool(polls._calls) is shares


@pytest.mark.parametrize(
    ("answers", "is_whole", "shares"),
    [
        (("accept",), True, True),
        (("accept",), False, False),
        (("release",), True, False),
        (("accept", "accept"), True, False),
    ],
)
def test_only_an_acceptance_of_all_that_was_acquired_is_shared(
    client: msgtx.Client, monkeypatch: pytest.MonkeyPatch, answers: tuple[str, ...], is_whole: bool, shares: bool
) -> None:
    monkeypatch.setattr(GroupPolls, "_by_itself", lambda *_: Acquisition([], [], has_passed=False))
    polls = SharePolls(client.runtime.engine).of("g")
    polls.acknowledge("g", 1, 1, answering(*answers), is_whole=is_whole)
    assert bool(polls._calls) is shares


@pytest.mark.parametrize("order", ["none", "key"])
def test_where_nothing_can_be_shared_nobody_tries_for_a_while(
    client: msgtx.Client, topic: str, time_stands: Clock, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    """As with an order by key: a shared call finds that it has nothing for anybody."""
    client.admin.shares.configure(topic, {"auto_offset_reset": "earliest", "ordering": order})
    with client.share_consumer(topic, group=topic) as one, client.share_consumer(topic, group=topic) as other:
        other.poll(0)
        with client.producer() as producer:
            for value in (b"a", b"b", b"c"):
                producer.send(topic, value, key=value).result(PATIENCE_SECONDS)
        assert len(one.poll(PATIENCE_SECONDS, 1)) == 1
        polls, (partition,) = one._polls, one._acquisitions.places
        several = [Acquiring(topic, each._member.number or 0, 99, [partition], 1, 1 << 20) for each in (one, other)]
        found = polls._together(several, lambda: None)
        assert [each is None for each in found] == [order == "key"] * 2
        calls: list[Acquiring] = []
        monkeypatch.setattr(polls._calls_of(partition), "call", lambda asking: calls.append(asking) or found_in(partition))
        for at, expected in ((0.0, order != "key"), (TURN_SECONDS, True)):
            time_stands.now += at
            calls.clear()
            polls.acquire(several[0]._replace(call_number=100, max_records=1))
            assert bool(calls) is expected


def test_who_answers_for_a_part_of_what_it_acquired_does_so_by_itself(
    client: msgtx.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shared call would find that it is not usual, for all of them."""
    wholes: list[bool] = []
    acknowledge = GroupPolls.acknowledge

    def noting(polls: GroupPolls, *asked: Any, is_whole: bool) -> Any:
        wholes.append(is_whole)
        return acknowledge(polls, *asked, is_whole=is_whole)

    monkeypatch.setattr(GroupPolls, "acknowledge", noting)
    client.admin.shares.configure(topic, {"auto_offset_reset": "earliest"})
    with client.producer() as producer:
        producer.send_batch(topic, [b"0", b"1", b"2", b"3", b"4"])
    with client.share_consumer(topic, group=topic, acknowledgement_mode="explicit") as consumer:
        for most, is_whole in ((1, True), (2, False)):
            consumer.acknowledge(consumer.poll(5.0, most)[0])
            consumer.commit()
            assert wholes.pop() is is_whole
    with client.share_consumer(topic, group=topic) as consumer:
        consumer.poll(5.0, 2)
        consumer.commit()
        assert wholes.pop(), "implicit mode answers for all of it"


def test_small_polls_ask_for_one_partition_and_large_ones_for_each_in_turn(
    client: msgtx.Client, wide: str, time_stands: Clock, asked: list[Acquiring]
) -> None:
    with client.share_consumer(wide, group=wide) as one, client.share_consumer(wide, group=wide) as other:
        for member in (one, one, other, other):
            member.poll(0, MOST_RECORDS)
        assert len({asking.partition_ids[0] for asking in asked}) == 1
        asked.clear()
        for _ in range(6):
            one.poll(0, MOST_RECORDS + 1)
    firsts = [asking.partition_ids[0] for asking in asked]
    assert firsts[:3] == firsts[3:]
    assert len(set(firsts)) == 3
    assert {len(asking.partition_ids) for asking in asked} == {3}


def test_implicit_mode_accepts_with_the_call_that_acquires(
    client: msgtx.Client, wide: str, time_stands: Clock, asked: list[Acquiring]
) -> None:
    """In one partition, while small polls ask for that; what was acquired in another one is accepted before."""
    client.admin.shares.configure(wide, {"auto_offset_reset": "earliest"})
    with client.producer() as producer:
        for partition in range(3):
            producer.send_batch(wide, [b"x"] * 5, partition=partition).result(PATIENCE_SECONDS)
    with client.share_consumer(wide, group=wide) as one:
        for _ in range(3):
            assert len(one.poll(0, 1)) == 1
        assert [(asking.max_records, len(asking.answers.partition_ids)) for asking in asked] == [(1, 0), (1, 1), (1, 1)]
        asked.clear()
        time_stands.now += TURN_SECONDS
        assert len(one.poll(0, 1)) == 1
        assert [(asking.max_records, len(asking.answers.partition_ids)) for asking in asked] == [(1, 0)]
        assert client.admin.shares.describe(wide).lag == 12


def test_large_polls_in_implicit_mode_stay_on_a_partition_for_a_while(
    client: msgtx.Client, topic: str, monkeypatch: pytest.MonkeyPatch, asked: list[Acquiring]
) -> None:
    """One state of the partition has both what is accepted and what is acquired; then others have their turn."""
    monkeypatch.setattr(acquiring, "STAYS", 3)
    client.topics.alter(topic, partitions=2)
    client.admin.shares.configure(topic, {"auto_offset_reset": "earliest"})
    most = MOST_RECORDS + 1
    with client.producer() as producer:
        for partition in range(2):
            producer.send_batch(topic, [b"x"] * most * 10, partition=partition).result(PATIENCE_SECONDS)
    with client.share_consumer(topic, group=topic) as one:
        for _ in range(12):
            assert len(one.poll(0, most)) == most
    firsts = [asking.partition_ids[0] for asking in asked if asking.max_records]
    runs = [len(list(run)) for _, run in itertools.groupby(firsts)]
    assert len(runs) > 2
    assert all(3 <= run <= 3 + 2 for run in runs[:-1])
