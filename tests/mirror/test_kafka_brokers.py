"""Brokers of Kafka that elect a leader, or have not heard of a topic yet: a mirror waits, and forgets nothing."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, Final

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError
from confluent_kafka import TopicPartition as KafkaPartition

from msgtx.errors import KafkaUnavailable, LogTruncated, MirrorFenced
from msgtx.mirror import kafka_progress
from msgtx.mirror.kafka import KafkaTarget
from msgtx.mirror.kafka_address import parse_kafka
from msgtx.mirror.kafka_client import Cluster
from msgtx.mirror.kafka_stored import TargetEnd
from msgtx.types import TopicPartition
from tests.refusals import refuses

ADDRESS: Final = parse_kafka("kafka://127.0.0.1:1")
AT: Final = TopicPartition("t", 0)
# Kafka 4.3 calls these retriable, and a mirror can meet them.
RETRIABLE: Final = (5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 89, 103)


@pytest.mark.parametrize("code", RETRIABLE)
def test_what_kafka_calls_retriable_is_waited_for(code: int) -> None:
    assert type(Cluster(ADDRESS).error(KafkaError(code), "reading")) is KafkaUnavailable


@pytest.mark.parametrize(
    ("ids", "kept"), [({"t": "1"}, True), ({}, True), ({"t": "2"}, False)], ids=["same", "not known", "made again"]
)
def test_an_end_is_forgotten_only_if_the_topic_was_made_again(
    monkeypatch: pytest.MonkeyPatch, ids: dict[str, str], kept: bool
) -> None:
    """I14."""
    monkeypatch.setattr(kafka_progress, "topic_ids", lambda *_: ids)
    monkeypatch.setattr(kafka_progress, "ends_of", lambda _, places: dict.fromkeys(places, 7))
    target, ends = KafkaTarget(ADDRESS, "m", source_address=""), {AT: TargetEnd("1", 7)}
    assert target._kept(ends) == (ends if kept else {})
    if ids == {"t": "1"}:
        with refuses(LogTruncated, topic="t", partition=0, offset=8, limit=7):
            target._kept({AT: TargetEnd("1", 8)})


def test_an_end_that_no_leader_knows_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a leader's death in the middle is answered: it is no log that ends there (I14)."""
    answers = [OFFSET_INVALID, 7]

    def list_offsets(asked: dict[KafkaPartition, Any], **_: Any) -> dict[KafkaPartition, Future[Any]]:
        answer: Future[Any] = Future()
        answer.set_result(SimpleNamespace(offset=answers.pop(0)))
        return dict.fromkeys(asked, answer)

    monkeypatch.setattr(Cluster, "admin", SimpleNamespace(list_offsets=list_offsets, list_topics=lambda **_: None))
    assert kafka_progress.ends_of(Cluster(ADDRESS), [AT]) == {AT: 7}
    assert answers == []


def test_a_client_that_kafka_has_ended_counts_as_fenced() -> None:
    """confluent-kafka may raise a `SystemError` of Python that keeps no cause."""
    with pytest.raises(MirrorFenced, match="while writing"), Cluster(ADDRESS).asking("writing"):
        raise SystemError
