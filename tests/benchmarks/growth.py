"""R7, the part with an open snapshot: append and fetch stay as fast while another session holds one."""

import statistics
import time
from collections.abc import Callable

from msgtx.cli.programs import perf
from msgtx.consumer.consumer import Consumer
from msgtx.producer.producer import Producer
from msgtx.types import TopicPartition
from tests.benchmarks import baselines
from tests.benchmarks.bulk import ready
from tests.benchmarks.sheet import Claim, Rounds, Settings, number, progress

HELD_SECONDS = 60.0
BEFORE = 4  # windows
FETCHED = 5_000  # records at the end of the log that are read repeatedly, a row each
NAMES = {
    "fused": "one-record transactions",
    "append": "one-record appends",
    "fetch": f"fetch of the last {FETCHED:,}",
    "control": "plain commits, the machine's own drift",
}


def open_snapshot(settings: Settings) -> list[dict[str, object]]:
    """Measure in windows before and while the snapshot is held; the last half of the latter counts."""
    rounds = Rounds()
    seconds = min(3.0, settings.seconds)
    with (
        ready(settings) as client,
        perf.temporary_topic(client, 1) as topic,
        client.producer(transactional_id=f"growth-{topic}") as transactional,
        client.producer(linger_ms=0) as plain,
        client.consumer(topic, auto_offset_reset="earliest") as consumer,
        baselines.connect(settings.url) as other,
    ):

        def window(part: str) -> None:
            rates = _window(topic, transactional, plain, consumer, seconds)
            rates["control"] = baselines.plain_commits(settings.url, connections=1, seconds=seconds / 2)
            for name, value in rates.items():
                rounds.add(f"{name}, {part}", value)
            progress(f"{part}: {', '.join(f'{name} {number(value)}' for name, value in rates.items())}")

        progress(f"filling with {FETCHED:,} rows of one record")
        for _ in range(FETCHED):
            _commit_one(transactional, topic)
        for _ in range(BEFORE):
            window("before")
        other.execute("begin isolation level repeatable read")
        other.execute("select count(*) from msgtx.topic")
        held = time.perf_counter()
        while time.perf_counter() - held < HELD_SECONDS:
            window("held")
        other.execute("rollback")
    claims = []
    for name, what in NAMES.items():
        found = rounds.series[f"{name}, held"]
        rounds.series[f"{name}, held"] = [statistics.median(found[len(found) // 2 :])]
        rounds.series[f"{name}, before"] = [statistics.median(rounds.series[f"{name}, before"])]
        claims.append(
            Claim(target="R7", what=f"{what}, snapshot held for 60 s", unit="rec/s", value=f"{name}, held",
                  base=f"{name}, before", at_least=None if name == "control" else 0.9)
        )  # fmt: skip
    return rounds.judge(claims)


def _window(topic: str, transactional: Producer, plain: Producer, consumer: Consumer, seconds: float) -> dict[str, float]:
    return {
        "fused": _rate(lambda: _commit_one(transactional, topic), seconds),
        "append": _rate(lambda: plain.send(topic, b"x" * 100, partition=0).result(), seconds),
        "fetch": FETCHED * _rate(lambda: _read_end(consumer, TopicPartition(topic, 0)), seconds * 2 / 3),
    }


def _rate(action: Callable[[], object], seconds: float) -> float:
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
