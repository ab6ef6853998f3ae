"""R1: bulk produce. R2: transactions of 100 ms against no transactions."""

from collections.abc import Iterator
from contextlib import contextmanager

from msgtx.cli.programs import perf
from msgtx.client import Client, connect
from tests.benchmarks import baselines
from tests.benchmarks.kafka import Kafka
from tests.benchmarks.sheet import Claim, Rounds, Settings, Step

SIZES = {100: "100 B", 1000: "1 KB"}


@contextmanager
def ready(settings: Settings, *, pool_size: int = 10) -> Iterator[Client]:
    """Set up the bare tables and a client; tidy up afterwards."""
    with baselines.tables(settings.url), connect(settings.url, pool_size=pool_size) as client:
        yield client
    baselines.tidy(settings.url)
    for broker in settings.brokers:
        broker.clean()


def produced(client: Client, settings: perf.ProduceSettings) -> perf.ProduceFigures:
    with perf.temporary_topic(client, settings.partitions) as topic:
        return perf.produce_once(client, topic, settings)


def bulk(settings: Settings) -> list[dict[str, object]]:
    rounds = Rounds()
    claims = []
    with ready(settings) as client:
        steps: dict[str, Step] = {}
        for size, name in SIZES.items():
            one = perf.ProduceSettings(seconds=settings.seconds, size=size)
            many = perf.ProduceSettings(seconds=settings.seconds, size=size, batched=True)
            steps[f"send {name}"] = lambda one=one: produced(client, one).records_per_second
            steps[f"send_batch {name}"] = lambda many=many: produced(client, many).records_per_second
            steps[f"bare inserts {name}"] = lambda size=size: baselines.bare_batches(
                settings.url, size=size, seconds=settings.seconds
            )
            for broker in settings.brokers:
                count = int(settings.seconds * (500_000 if size == 100 else 130_000))
                steps[f"{broker.name} {name}"] = lambda broker=broker, size=size, count=count: kafka_bulk(
                    broker, size, count
                )
        rounds.run(steps, rounds=settings.rounds)
    for size, name in SIZES.items():
        small = size == 100
        for call, share in (("send", 0.5 if small else 0.8), ("send_batch", 0.9)):
            ours = f"{call} {name}"
            claims += [
                Claim(target="R1", what=ours, unit="rec/s", value=ours, base=f"Kafka + fsync {name}",
                      at_least=(1.0 if small else 1.2) if call == "send" else None),
                Claim(target="R1", what=ours, unit="rec/s", value=ours, base=f"Kafka {name}"),
                Claim(target="R1", what=ours, unit="rec/s", value=ours, base=f"bare inserts {name}", at_least=share),
            ]  # fmt: skip
    return rounds.judge(claims)


def kafka_bulk(broker: Kafka, size: int, count: int) -> float:
    figures, _ = broker.call("w2", size, count)
    return next(iter(figures.values()))


def transactions(settings: Settings) -> list[dict[str, object]]:
    rounds = Rounds()
    with ready(settings) as client:
        steps: dict[str, Step] = {}
        for size, name in SIZES.items():
            plain = perf.ProduceSettings(seconds=settings.seconds, size=size)
            inside = perf.ProduceSettings(seconds=settings.seconds, size=size, transaction_ms=100)
            steps[f"no transaction {name}"] = lambda plain=plain: produced(client, plain).records_per_second
            steps[f"100 ms {name}"] = lambda inside=inside: produced(client, inside).records_per_second
            for broker in settings.brokers[-1:]:
                steps[f"{broker.name} {name}, "] = lambda broker=broker, size=size: kafka_transactions(broker, size)
        rounds.run(steps, rounds=settings.rounds)
    claims = []
    for name in SIZES.values():
        ours = f"100 ms {name}"
        what = f"100 ms transactions, {name}"
        claims.append(Claim(target="R2", what=what, unit="rec/s", value=ours, base=f"no transaction {name}", at_least=1.0))
        for broker in settings.brokers[-1:]:
            claims.append(Claim(target="R2", what=what, unit="rec/s", value=ours, base=f"{broker.name} {name}, 100 ms"))
            claims.append(
                Claim(target="R2", what=f"{broker.name}'s own, {name}", unit="rec/s",
                      value=f"{broker.name} {name}, 100 ms", base=f"{broker.name} {name}, no transaction")
            )  # fmt: skip
    return rounds.judge(claims)


def kafka_transactions(broker: Kafka, size: int) -> dict[str, float]:
    figures, _ = broker.call("w3", size)
    return {variant.split(", ", 1)[1]: value for variant, value in figures.items() if not variant.endswith("ratio")}
