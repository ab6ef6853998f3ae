"""Workers of a share group in one process share their calls; each has its own records, answers and errors."""

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

import msgtx
from msgtx.consumer import share_polls
from msgtx.consumer.share_polls import EMPTY_SECONDS, TURN_SECONDS, GroupPolls, SharePolls
from msgtx.store.answers import OffsetRange
from msgtx.store.shares import Acquired, Acquiring, Acquisition

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
    polls = SharePolls(client.engine).of("g")
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
    polls = SharePolls(client.engine).of("g")
    first = polls.place([7, 8])
    other = 15 - first
    monkeypatch.setattr(GroupPolls, "_by_itself", lambda *_: found_in(other))
    polls.acquire(Acquiring("g", 1, 1, [first, other], 1000, 1))
    assert polls.place([7, 8]) == other
    time_stands.now += TURN_SECONDS
    assert polls.place([7, 8]) == other
    assert polls.place([first]) == first
    for again in ("later", "news", "lost channel"):
        if again == "later":
            time_stands.now += EMPTY_SECONDS
        else:
            polls.heard({9, first} if again == "news" else None)
        assert {polls.place([7, 8]), at_next_turn(polls, time_stands)} == {7, 8}
        polls.acquire(Acquiring("g", 1, 1, [first, other], 1000, 1))
        assert at_next_turn(polls, time_stands) == other


def at_next_turn(polls: GroupPolls, clock: Clock) -> int:
    clock.now += TURN_SECONDS
    return polls.place([7, 8])


def test_a_group_is_forgotten_with_its_last_member(client: msgtx.Client) -> None:
    polls = SharePolls(client.engine)
    one = polls.of("g")
    assert polls.of("g") is one
    del one
    assert not polls._groups


def test_who_answers_for_a_part_of_what_it_acquired_does_so_by_itself(
    client: msgtx.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shared call would find that it is not usual, for all of them."""
    client.admin.shares.configure(topic, {"auto_offset_reset": "earliest"})
    with client.producer() as producer:
        producer.send_batch(topic, [b"0", b"1", b"2"])
    asked: list[Acquiring] = []
    acquire = GroupPolls.acquire

    def noting(polls: GroupPolls, asking: Acquiring) -> Acquisition:
        asked.append(asking)
        return acquire(polls, asking)

    monkeypatch.setattr(GroupPolls, "acquire", noting)
    with client.share_consumer(topic, group=topic, acknowledgement_mode="explicit") as consumer:
        for most, is_whole in ((1, True), (2, False)):
            consumer.acknowledge(consumer.poll(5.0, most)[0])
            consumer.commit()
            assert asked[-1].max_records == 0
            assert (asked[-1].accepted() is not None) is is_whole
