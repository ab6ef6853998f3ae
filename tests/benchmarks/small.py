"""R3: one-record transactions, one producer and sixteen, of one client or of as many processes."""

import time
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier, Event

from msgtx.cli.programs import perf
from msgtx.client import connect
from tests.benchmarks import baselines
from tests.benchmarks.bulk import produced, ready
from tests.benchmarks.sheet import Claim, Rounds, Settings, Step

PRODUCERS = 16
WARM = 20  # transactions of a process before the others begin, too
STARTS_SECONDS = 60.0


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
            "msgtx 16 processes": partial(processes, settings.url, producers=PRODUCERS, partitions=6, seconds=seconds),
            "plain commits 16": lambda: baselines.plain_commits(settings.url, connections=PRODUCERS, seconds=seconds),
            "flushes": lambda: baselines.flushes(seconds=1.0),
        }
        for broker in settings.brokers:
            steps[f"{broker.name} 1"] = lambda broker=broker: broker.figure("w1", 100)
            steps[f"{broker.name} 16"] = lambda broker=broker: broker.figure("w6", 100, PRODUCERS)
        rounds.run(steps, rounds=settings.rounds)
    one, many, wide = "1 producer", "16 producers, 6 partitions", "16 producers, 64 partitions"
    apart = "16 processes, 6 partitions"
    return rounds.judge(
        [
            _claim(one, "msgtx 1", "Kafka 1", 10.0),
            _claim(one, "msgtx 1", "Kafka + fsync 1", 15.0),
            _claim(one, "msgtx 1", "plain commits 1", 0.50),
            _claim(many, "msgtx 16", "Kafka 16", 3.0),
            _claim(many, "msgtx 16", "Kafka + fsync 16", 8.0),
            _claim(many, "msgtx 16", "plain commits 16", 0.20),
            _claim(apart, "msgtx 16 processes", "Kafka 16", 1.5),
            _claim(apart, "msgtx 16 processes", "plain commits 16", None),
            _claim(wide, "msgtx 16 on 64", "plain commits 16", 0.20),
            _claim(wide, "msgtx 16 on 64", "msgtx 16", None),
            Claim(target="R3", what="flushes of 8 kB, this machine", unit="/s", value="flushes"),
        ]
    )


def processes(url: str | None, *, producers: int, partitions: int, seconds: float) -> float:
    """Commit transactions of one record, each producer in a process of its own. Returns transactions a second of all."""
    context = get_context("spawn")
    ready, over = context.Barrier(producers + 1), context.Event()
    with connect(url) as client, perf.temporary_topic(client, partitions) as topic:
        pipes = [context.Pipe(duplex=False) for _ in range(producers)]
        workers = [
            context.Process(target=_commit, args=(url, topic, at, ready, over, answer), daemon=True)
            for at, (_, answer) in enumerate(pipes)
        ]
        for worker, (_, answer) in zip(workers, pipes, strict=True):
            worker.start()
            answer.close()  # so that the end of a process is the end of its pipe
        ready.wait(STARTS_SECONDS)
        began = time.perf_counter()
        time.sleep(seconds)
        over.set()
        committed = sum(answers.recv() for answers, _ in pipes)
        took = time.perf_counter() - began
        for worker in workers:
            worker.join()
    return committed / took


def _commit(url: str | None, topic: str, at: int, ready: Barrier, over: Event, answer: Connection) -> None:
    with connect(url) as client, client.producer(transactional_id=f"benchmark-{topic}-{at}") as producer:

        def commit() -> int:
            with producer.transaction():
                producer.send(topic, b"x" * 100)
            return 1

        for _ in range(WARM):
            commit()
        ready.wait(STARTS_SECONDS)
        committed = 0
        while not over.is_set():
            committed += commit()
        answer.send(committed)


def _claim(what: str, value: str, base: str, at_least: float | None) -> Claim:
    return Claim(target="R3", what=what, unit="tx/s", value=value, base=base, at_least=at_least)
