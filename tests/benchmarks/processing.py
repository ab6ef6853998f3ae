"""R10: consume–transform–produce in transactions of 100 ms, against the same loop on Kafka."""

import threading
import time

from msgtx.cli.programs import perf
from msgtx.client import Client
from msgtx.types import OutputRecord, ProcessReport, Record
from tests.benchmarks.bulk import SIZES, ready
from tests.benchmarks.reading import COUNTS, PARTITIONS
from tests.benchmarks.sheet import Claim, Rounds, Settings, Step


def processing(settings: Settings) -> list[dict[str, object]]:
    rounds = Rounds()
    with (
        ready(settings) as client,
        perf.temporary_topic(client, PARTITIONS) as small,
        perf.temporary_topic(client, PARTITIONS) as large,
    ):
        steps: dict[str, Step] = {}
        for topic, (size, name) in zip((small, large), SIZES.items(), strict=True):
            count = COUNTS[size]
            perf.fill(client, topic, count, size=size)
            steps[f"process {name}"] = lambda topic=topic, count=count: processed(client, topic, count)
            for broker in settings.brokers:
                _, (source, total) = broker.call("w2", size, count)
                steps[f"{broker.name} {name}"] = lambda broker=broker, source=source, total=total, size=size: broker.figure(
                    "w7", source, total, size
                )
        rounds.run(steps, rounds=settings.rounds)
    claims = []
    for name, wanted in zip(SIZES.values(), (1.0, 1.3), strict=True):
        what, value = f"process, 100 ms, {name}", f"process {name}"
        claims.append(Claim(target="R10", what=what, unit="rec/s", value=value))
        for at, broker in enumerate(settings.brokers):
            least = None if at else wanted
            base = f"{broker.name} {name}"
            claims.append(Claim(target="R10", what=what, unit="rec/s", value=value, base=base, at_least=least))
    return rounds.judge(claims)


def processed(client: Client, source: str, count: int) -> float:
    """Copy a topic. Returns records/s, from the first record read to the last commit."""
    stop = threading.Event()
    began: list[float] = []
    ended: list[float] = []

    def transform(record: Record) -> OutputRecord:
        if not began:
            began.append(time.perf_counter())
        return OutputRecord(record.value, key=record.key)

    def on_commit(report: ProcessReport) -> None:
        if report.records_in >= count:
            ended.append(time.perf_counter())
            stop.set()

    with perf.temporary_topic(client, PARTITIONS) as target:
        group = f"benchmark-{target}"
        client.process(
            source, to=target, group=group, transactional_id=group, transform=transform, stop=stop, on_commit=on_commit,
            transaction_ms=100, idle_timeout=perf.SILENCE_SECONDS,
        )  # fmt: skip
    return count / (ended[0] - began[0])
