"""R3: one-record transactions, one producer and sixteen."""

from msgtx.cli.programs import perf
from tests.benchmarks import baselines
from tests.benchmarks.bulk import produced, ready
from tests.benchmarks.sheet import Claim, Rounds, Settings, Step

PRODUCERS = 16


def one_record(settings: Settings) -> list[dict[str, object]]:
    rounds = Rounds()
    seconds = settings.seconds
    with ready(settings, pool_size=PRODUCERS + 4) as client:

        def ours(producers: int, partitions: int) -> float:
            what = perf.ProduceSettings(seconds=seconds, partitions=partitions, producers=producers, transaction_records=1)
            return produced(client, what).transactions_per_second or 0.0

        steps: dict[str, Step] = {
            "msgtx 1": lambda: ours(1, 1),
            "plain commits 1": lambda: baselines.plain_commits(settings.url, connections=1, seconds=seconds),
            "msgtx 16": lambda: ours(PRODUCERS, 6),
            "msgtx 16 on 64": lambda: ours(PRODUCERS, 64),
            "plain commits 16": lambda: baselines.plain_commits(settings.url, connections=PRODUCERS, seconds=seconds),
            "flushes": lambda: baselines.flushes(seconds=1.0),
        }
        for broker in settings.brokers:
            steps[f"{broker.name} 1"] = lambda broker=broker: broker.figure("w1", 100)
            steps[f"{broker.name} 16"] = lambda broker=broker: broker.figure("w6", 100, PRODUCERS)
        rounds.run(steps, rounds=settings.rounds)
    one, many, wide = "1 producer", "16 producers, 6 partitions", "16 producers, 64 partitions"
    return rounds.judge(
        [
            _claim(one, "msgtx 1", "Kafka 1", 10.0),
            _claim(one, "msgtx 1", "Kafka + fsync 1", 15.0),
            _claim(one, "msgtx 1", "plain commits 1", 0.50),
            _claim(many, "msgtx 16", "Kafka 16", 1.5),
            _claim(many, "msgtx 16", "Kafka + fsync 16", 1.5),
            _claim(many, "msgtx 16", "plain commits 16", 0.20),
            _claim(wide, "msgtx 16 on 64", "plain commits 16", 0.20),
            _claim(wide, "msgtx 16 on 64", "msgtx 16", None),
            Claim(target="R3", what="flushes of 8 kB, this machine", unit="/s", value="flushes"),
        ]
    )


def _claim(what: str, value: str, base: str, at_least: float | None) -> Claim:
    return Claim(target="R3", what=what, unit="tx/s", value=value, base=base, at_least=at_least)
