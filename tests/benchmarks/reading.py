"""R4: read_committed against read_uncommitted. R5: consuming against Kafka."""

from msgtx.cli.programs import perf
from msgtx.client import Client
from msgtx.types import Isolation
from tests.benchmarks.bulk import SIZES, ready
from tests.benchmarks.kafka import Kafka
from tests.benchmarks.sheet import Claim, Rounds, Settings, Step, progress

COUNTS = {100: 1_000_000, 1000: 300_000}
ABORTED = 10_000
PARTITIONS = 6


def isolation(settings: Settings) -> list[dict[str, object]]:
    rounds = Rounds()
    count = COUNTS[100]
    with (
        ready(settings) as client,
        perf.temporary_topic(client, PARTITIONS) as clean,
        perf.temporary_topic(client, PARTITIONS) as littered,
    ):
        perf.fill(client, clean, count, size=100, transaction_records=10_000)
        litter(client, littered, count)
        client.sweep()
        steps: dict[str, Step] = {}
        for topic, name, rubbish in ((clean, "all committed", 0), (littered, f"{ABORTED:,} aborted", ABORTED)):
            for level in Isolation:
                total = count + (rubbish if level is Isolation.READ_UNCOMMITTED else 0)
                what = perf.ConsumeSettings(isolation=level)
                steps[f"{level}, {name}"] = lambda topic=topic, total=total, what=what: (
                    perf.consume_once(client, topic, total, what).records_per_second
                )
        rounds.run(steps, rounds=max(5, settings.rounds))
    return rounds.judge(
        [
            Claim(target="R4", what=f"read_committed, {name}", unit="rec/s", value=f"read_committed, {name}",
                  base=f"read_uncommitted, {name}", at_least=0.97)
            for name in ("all committed", f"{ABORTED:,} aborted")
        ]
    )  # fmt: skip


def litter(client: Client, topic: str, count: int) -> None:
    """Write `count` committed records, with aborted one-record transactions spread evenly among them."""
    progress(f"aborting {ABORTED:,} transactions")
    values = perf.payloads(perf.PAYLOADS, 100)
    steps = 100
    chunk = count // steps
    with client.producer(transactional_id=f"litter-{topic}", linger_ms=0) as producer:
        for step in range(steps):
            for number in range(ABORTED // steps):
                producer.begin_transaction()
                producer.send(topic, b"aborted", partition=number % PARTITIONS)
                producer.flush()
                producer.abort_transaction()
            with producer.transaction():
                producer.send_batch(topic, [values[(step * chunk + i) % len(values)] for i in range(chunk)])


def consuming(settings: Settings) -> list[dict[str, object]]:
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
            for variant, what in (
                ("poll", perf.ConsumeSettings(size=size)),
                ("poll of 500", perf.ConsumeSettings(size=size, poll_records=500)),
                ("iteration", perf.ConsumeSettings(size=size, iterate=True)),
            ):
                steps[f"{variant} {name}"] = lambda topic=topic, count=count, what=what: (
                    perf.consume_once(client, topic, count, what).records_per_second
                )
            for broker in settings.brokers[:1]:
                _, (source, total) = broker.call("w2", size, count)
                steps[f"{broker.name} {name}"] = lambda broker=broker, source=source, total=total, size=size: kafka_consume(
                    broker, source, total, size
                )
        rounds.run(steps, rounds=settings.rounds)
    claims = []
    for size, name in SIZES.items():
        for variant in ("poll", "poll of 500", "iteration"):
            value, what = f"{variant} {name}", f"consume, {variant}, {name}"
            wanted = 1_000_000 if size == 100 and variant == "poll" else None
            claims.append(Claim(target="R5", what=what, unit="rec/s", value=value, at_least=wanted))
            for broker in settings.brokers[:1]:
                least = None if variant == "poll of 500" else 1.2
                claims.append(
                    Claim(target="R5", what=what, unit="rec/s", value=value, base=f"{broker.name} {name}", at_least=least)
                )
    return rounds.judge(claims)


def kafka_consume(broker: Kafka, source: str, total: int, size: int) -> float:
    return broker.figure("w4", source, total, size)
