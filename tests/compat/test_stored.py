"""The offsets that the facade's consumer stores and commits, as librdkafka does. The twins in tests/kafka saw the same."""

from collections.abc import Callable
from typing import Any

import pytest

from msgtx import errors
from msgtx.compat.confluent_kafka import (
    OFFSET_INVALID,
    OFFSET_STORED,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from tests.compat.test_positions import poll_until

WAIT = 60.0
Make = Callable[..., Consumer]


def offset(message: Message | None) -> int | None:
    """Return the offset of a message that is one."""
    assert message is not None
    assert message.error() is None
    return message.offset()


def committed(consumer: Consumer, topic: str) -> int:
    """Return the committed offset."""
    return int(consumer.committed([TopicPartition(topic, 0)])[0].offset)


def refused(consumer: Consumer) -> int:
    """Return the code of a commit that fails."""
    with pytest.raises(KafkaException) as failed:
        consumer.commit(asynchronous=False)
    return int(failed.value.args[0].code())


def test_an_interval_of_0_commits_at_the_end_only(
    send: Callable[..., None], make_consumer: Make, topic: str, unique: Callable[[str], str]
) -> None:
    send(topic, "a", "b", "c")
    told: list[str] = []
    given = {"group.id": unique("group"), "stats_cb": told.append, "statistics.interval.ms": 0}
    consumer = make_consumer(**given, **{"auto.commit.interval.ms": 0})
    consumer.subscribe([topic])
    assert [offset(each) for each in consumer.consume(2, WAIT)] == [0, 1]
    assert offset(consumer.poll(WAIT)) == 2
    assert consumer.poll(0) is None
    assert committed(consumer, topic) == OFFSET_INVALID
    consumer.close()
    assert committed(make_consumer(**given), topic) == 3
    assert told == []


@pytest.mark.parametrize("automatic", [False, True])
@pytest.mark.parametrize("begin", [OFFSET_STORED, 0])
def test_an_assignment_drops_what_was_stored_and_an_automatic_commit_is_made_first(
    send: Callable[..., None], make_consumer: Make, topic: str, automatic: bool, begin: int
) -> None:
    send(topic, "a", "b")
    consumer = make_consumer(**{"enable.auto.commit": automatic, "auto.commit.interval.ms": 600_000})
    consumer.assign([TopicPartition(topic, 0)])
    assert offset(consumer.poll(WAIT)) == 0
    consumer.assign([TopicPartition(topic, 0, begin)])
    assert committed(consumer, topic) == (1 if automatic else OFFSET_INVALID)
    assert refused(consumer) == KafkaError._NO_OFFSET
    assert offset(consumer.poll(WAIT)) == (1 if automatic and begin == OFFSET_STORED else 0)


@pytest.mark.parametrize("known", [True, False])
def test_a_commit_that_names_no_offsets_goes_never_back(
    send: Callable[..., None], make_consumer: Make, topic: str, unique: Callable[[str], str], known: bool
) -> None:
    send(topic, "a", "b", "c")
    given = {"group.id": unique("group"), "enable.auto.commit": False}
    make_consumer(**given).commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
    consumer = make_consumer(**given)
    consumer.subscribe([topic])
    assert offset(consumer.poll(WAIT)) == 2
    if known:
        consumer.commit(asynchronous=False)
    consumer.seek(TopicPartition(topic, 0, 0))
    assert offset(consumer.poll(WAIT)) == 0
    assert refused(consumer) == KafkaError._NO_OFFSET
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    assert committed(consumer, topic) == 1


def test_a_pause_holds_until_resume_whatever_is_assigned_meanwhile(
    send: Callable[..., None], make_consumer: Make, topic: str
) -> None:
    send(topic, "a")
    place = TopicPartition(topic, 0)
    by_hand, member = make_consumer(**{"enable.auto.commit": False}), make_consumer(**{"enable.auto.commit": False})
    by_hand.assign([place])
    member.subscribe([topic])
    for consumer in (by_hand, member):
        assert offset(consumer.poll(WAIT)) == 0
        consumer.pause([place])
    by_hand.assign([TopicPartition(topic, 0, 0)])
    member.unsubscribe()
    assert member.poll(0) is None
    member.subscribe([topic])
    poll_until(member.assignment, member)
    for consumer in (by_hand, member):
        assert consumer.poll(0.1) is None
        consumer.resume([place])
        assert offset(consumer.poll(WAIT)) == 0


@pytest.mark.parametrize("automatic", [False, True])
def test_an_offset_of_0_that_is_committed_is_not_committed_again(
    send: Callable[..., None], make_consumer: Make, topic: str, monkeypatch: pytest.MonkeyPatch, automatic: bool
) -> None:
    send(topic, "a")
    given = {"enable.auto.commit": automatic, "auto.commit.interval.ms": 1, "enable.auto.offset.store": False}
    consumer = make_consumer(**given)
    consumer.subscribe([topic])
    assert offset(consumer.poll(WAIT)) == 0
    consumer.store_offsets(offsets=[TopicPartition(topic, 0, 0)])
    if automatic:
        inner, made = consumer._inner(), []
        commit = inner.commit

        def noted(*args: Any, **kwargs: Any) -> None:
            made.append(args)
            commit(*args, **kwargs)

        monkeypatch.setattr(inner, "commit", noted)
        for _ in range(20):  # intervals
            assert consumer.poll(0.01) is None
        assert 1 <= len(made) <= 2  # in the background, and then awaited
    else:
        consumer.commit(asynchronous=False)
        assert refused(consumer) == KafkaError._NO_OFFSET
    assert committed(consumer, topic) == 0


def test_a_commit_without_the_database_tells_on_commit(
    send: Callable[..., None], make_consumer: Make, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_away(*_: object, **__: object) -> None:
        raise errors.DatabaseUnavailable("away")

    send(topic, "a")
    told: list[KafkaError] = []
    consumer = make_consumer(**{"enable.auto.commit": False, "on_commit": lambda error, _: told.append(error)})
    consumer.subscribe([topic])
    assert offset(consumer.poll(WAIT)) == 0
    consumer.seek(TopicPartition(topic, 0, 0))  # then a commit asks for the committed offset
    assert offset(consumer.poll(WAIT)) == 0
    with monkeypatch.context() as patch:
        patch.setattr(consumer._inner(), "committed", is_away)
        consumer.commit()
        assert refused(consumer) == KafkaError._ALL_BROKERS_DOWN
    poll_until(lambda: told, consumer)
    assert [each.code() for each in told] == [KafkaError._ALL_BROKERS_DOWN]
