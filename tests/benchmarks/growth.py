"""R7, its part with an open snapshot: append and fetch stay as fast while another session holds one."""

import time

from msgtx import perf
from msgtx.consumer import Consumer
from msgtx.producer import Producer
from msgtx.types import TopicPartition
from tests.benchmarks import baselines
from tests.benchmarks.bulk import ready
from tests.benchmarks.sheet import Claim, Rounds, Settings, progress

HELD_SECONDS = 60.0
FETCHED = 5_000  # records at the end of the log that are read again and again


def open_snapshot(settings: Settings) -> list[dict[str, object]]:
    rounds = Rounds()
    with (
        ready(settings) as client,
        perf.temporary_topic(client, 1) as topic,
        client.producer(transactional_id=f"growth-{topic}") as transactional,
        client.producer(linger_ms=0) as plain,
        client.consumer(topic, auto_offset_reset="earliest") as consumer,
        baselines.connect(settings.url) as other,
    ):
        seconds = min(3.0, settings.seconds)

        def window(part: str) -> None:
            for name, value in _window(topic, transactional, plain, consumer, seconds).items():
                rounds.add(f"{name}, {part}", value)
            rates = [f"{name} {values[-1]:,.0f}" for name, values in rounds.series.items() if name.endswith(part)]
            progress(", ".join(rates))

        window("warm-up")
        window("before")
        window("before")
        other.execute("begin isolation level repeatable read")
        other.execute("select count(*) from msgtx.topic")
        held = time.perf_counter()
        while time.perf_counter() - held < HELD_SECONDS:
            window("held")
        other.execute("rollback")
    claims = []
    for name in ("fused", "append", "fetch"):
        rounds.series[f"{name}, before"] = [min(rounds.series[f"{name}, before"])] * 2
        rounds.series[f"{name}, held, last"] = rounds.series[f"{name}, held"][-2:]
        unit = "rec/s" if name == "fetch" else "/s"
        what = {"fused": "one-record transactions", "append": "appends", "fetch": "fetch of the last 5,000"}[name]
        claims.append(
            Claim(target="R7", what=f"{what}, snapshot open for 60 s", unit=unit, value=f"{name}, held, last",
                  base=f"{name}, before", at_least=0.9)
        )  # fmt: skip
    return rounds.judge(claims)


def _window(
    topic: str, transactional: Producer, plain: Producer, consumer: Consumer, seconds: float
) -> dict[str, float]:
    return {
        "fused": _rate(lambda: _commit_one(transactional, topic), seconds),
        "append": _rate(lambda: plain.send(topic, b"x" * 100, partition=0).result(), seconds),
        "fetch": FETCHED * _rate(lambda: _read_end(consumer, TopicPartition(topic, 0)), seconds * 2 / 3),
    }


def _rate(action: object, seconds: float) -> float:
    assert callable(action)
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        action()
        count += 1
    return count / (time.perf_counter() - began)


def _commit_one(producer: Producer, topic: str) -> None:
    producer.begin_transaction()
    producer.send(topic, b"x" * 100, partition=0)
    producer.commit_transaction()


def _read_end(consumer: Consumer, partition: TopicPartition) -> None:
    end = consumer.end_offsets([partition])[partition]
    consumer.seek(partition, max(0, end - FETCHED))
    got = 0
    while got < min(end, FETCHED):
        got += len(consumer.poll(1.0, FETCHED))
