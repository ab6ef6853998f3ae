"""R13: share groups against queues (pgmq on the same server, a RabbitMQ quorum queue), and against consumers."""

import threading
import time
from collections.abc import Mapping
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from multiprocessing.sharedctypes import Synchronized
from typing import Any

from msgtx.cli.programs import perf
from msgtx.client import Client, connect
from msgtx.settings import ShareGroupSettings
from msgtx.types import ShareRecord
from tests.benchmarks.bulk import SIZES, ready
from tests.benchmarks.latency import spread
from tests.benchmarks.sheet import Claim, Rounds, Settings, Step

BATCH = 500
BATCHED, ONE_BY_ONE, FORWARDED, POLLED = 40_000, 10_000, 20_000, 400_000  # records; the first three as of the peers
POLLS = {500: 0, 2000: 0, 20_000: 0.6}  # records of a poll, and which part of a consumer's rate they are to have
PROCESSES, WORKERS = 4, 16
RATE = 200
WAITS_SECONDS = 60.0
EMPTY_SECONDS = 0.005  # for which a worker waits that finds nothing, as the peers' do
EVERYTHING: ShareGroupSettings = {"auto_offset_reset": "earliest"}
# Sixteen workers with 500 each are more than the default of 2,000 records of a partition: the rest would wait for them.
ROOMY: ShareGroupSettings = {**EVERYTHING, "max_record_locks": BATCHED}


def queues(settings: Settings) -> list[dict[str, object]]:
    rounds = Rounds()
    with ready(settings, pool_size=WORKERS + 4) as client, perf.temporary_topic(client, 1) as polled:
        perf.fill(client, polled, POLLED, size=100)
        steps: dict[str, Step] = {}
        for size, name in SIZES.items():
            for workers, partitions in ((1, 1), (WORKERS, 1), (WORKERS, 6)):
                steps[f"msgtx {name}, {workers} on {partitions}"] = partial(
                    rate, settings.url, client, size=size, count=BATCHED, workers=workers, partitions=partitions, most=BATCH
                )
        steps |= {f"{peer.name} Q1": partial(peer.figures, "Q1") for peer in settings.queues}
        for partitions in (1, 6):
            steps[f"msgtx one by one on {partitions}"] = partial(
                rate, settings.url, client, size=100, count=ONE_BY_ONE, workers=WORKERS, partitions=partitions, most=1
            )
        steps |= {f"{peer.name} Q2": partial(peer.figures, "Q2") for peer in settings.queues}
        steps["msgtx forwarded"] = partial(forwarded, client)
        steps |= {f"{peer.name} Q4": partial(peer.figures, "Q4") for peer in settings.queues}
        for most in POLLS:
            steps[f"consumer {most}"] = partial(consumed, client, polled, most)
            steps[f"share {most}"] = partial(shared, client, polled, most)
        steps["consumer waits"] = partial(delivered, client, settings, perf.read_delays)
        steps["share waits"] = partial(delivered, client, settings, read_delays_shared)
        steps |= {f"{peer.name} Q3": partial(peer.figures, "Q3") for peer in settings.queues}
        rounds.run(steps, rounds=settings.rounds)
    return rounds.judge(_claims(settings))


def _claims(settings: Settings) -> list[Claim]:
    claims = []
    for peer in settings.queues:
        for size, name in SIZES.items():
            for workers, partitions in ((1, 1), (WORKERS, 1), (WORKERS, 6)):
                ours = f"msgtx {name}, {workers} on {partitions}"
                theirs = f"{peer.name} Q1 {size} B, {workers} consumers, batches of {BATCH}"
                claims.append(_claim(ours, theirs, at_least=peer.batched))
        for partitions in (1, 6):
            theirs = f"{peer.name} Q2 100 B, {WORKERS} workers, one at a time"
            claims.append(_claim(f"msgtx one by one on {partitions}", theirs, at_least=peer.one_by_one))
        theirs = f"{peer.name} Q4 1000 B, receive, publish, acknowledge in one transaction, batches of {BATCH}"
        claims.append(_claim("msgtx forwarded", theirs, at_least=peer.forwarded))
        claims += [_claim(f"share waits p{at}", f"{peer.name} Q3 {RATE}/s, p{at}", unit="ms") for at in (50, 99)]
    claims += [_claim(f"share {most}", f"consumer {most}", at_least=least or None) for most, least in POLLS.items()]
    return [*claims, *(_claim(f"share waits p{at}", f"consumer waits p{at}", unit="ms", at_most=1.3) for at in (50, 99))]


def _claim(
    ours: str, theirs: str, *, unit: str = "rec/s", at_least: float | None = None, at_most: float | None = None
) -> Claim:
    return Claim(target="R13", what=ours, unit=unit, value=ours, base=theirs, at_least=at_least, at_most=at_most)


def rate(url: str | None, client: Client, *, size: int, count: int, workers: int, partitions: int, most: int) -> float:
    """Return how many records a second workers of one group receive and accept: one process, or four with threads."""
    context = get_context("spawn")
    processes = min(PROCESSES, workers)
    begins, done = context.Event(), context.Value("q", 0)
    with perf.temporary_topic(client, partitions) as topic:
        client.admin.shares.configure(topic, ROOMY)
        joined = context.Semaphore(0)
        started = [
            context.Process(
                target=_work, args=(url, topic, workers // processes, most, count, joined, begins, done), daemon=True
            )
            for _ in range(processes)
        ]
        for process in started:
            process.start()
        for _ in range(workers):
            assert joined.acquire(timeout=WAITS_SECONDS)
        perf.fill(client, topic, count, size=size)
        began = time.perf_counter()
        begins.set()
        while done.value < count and time.perf_counter() < began + WAITS_SECONDS:
            time.sleep(0.001)
        took, accepted = time.perf_counter() - began, done.value
        for process in started:
            process.join(WAITS_SECONDS)
        client.admin.shares.delete(topic)
    return float(accepted / took)


def _work(
    url: str | None, topic: str, members: int, most: int, count: int, joined: Any, begins: Any, done: "Synchronized[int]"
) -> None:
    with connect(url, pool_size=members + 4) as client:

        def run() -> None:
            with client.share_consumer(topic, group=topic) as consumer:
                consumer.poll(0)  # there is nothing yet
                joined.release()
                begins.wait()
                held = 0
                while done.value < count:
                    got = len(consumer.poll(EMPTY_SECONDS, most))  # what the last one returned is accepted with it
                    with done.get_lock():
                        done.value += held
                    held = got
                consumer.commit()

        threads = [threading.Thread(target=run) for _ in range(members)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def forwarded(client: Client) -> float:
    """Receive batches, send them to another topic and accept them, each in one transaction. Returns records a second."""
    with perf.temporary_topic(client, 1) as source, perf.temporary_topic(client, 1) as target:
        perf.fill(client, source, FORWARDED, size=1000)
        client.admin.shares.configure(source, EVERYTHING)
        with (
            client.share_consumer(source, group=source) as consumer,
            client.producer(transactional_id=f"forward-{source}") as producer,
        ):
            done, began = 0, time.perf_counter()
            while done < FORWARDED and (records := consumer.poll(5.0, BATCH)):
                with producer.transaction() as transaction:
                    producer.send_batch(target, [record.value for record in records])
                    transaction.send_acknowledgements(consumer)
                done += len(records)
            took = time.perf_counter() - began
        client.admin.shares.delete(source)
    return done / took


def consumed(client: Client, topic: str, most: int) -> float:
    with client.consumer(topic, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        return _polled(lambda: len(consumer.poll(5.0, most)))


def shared(client: Client, topic: str, most: int) -> float:
    """Poll, and accept with the next poll."""
    group = f"{topic}-{time.monotonic_ns()}"
    client.admin.shares.configure(group, ROOMY)
    with client.share_consumer(topic, group=group) as consumer:
        found = _polled(lambda: len(consumer.poll(5.0, most)))
    client.admin.shares.delete(group)
    return found


def _polled(poll: Any) -> float:
    done, began = 0, time.perf_counter()
    while done < POLLED:
        done += poll()
    return done / (time.perf_counter() - began)


def delivered(client: Client, settings: Settings, reader: Any) -> Mapping[str, float]:
    """Send at a rate to a reader that waits; returns its delays."""
    count = int(RATE * max(4.0, settings.seconds))
    with (
        perf.temporary_topic(client, 1) as topic,
        perf.reading(partial(reader, settings.url, topic, count)) as delays,
        client.producer(linger_ms=0) as producer,
    ):
        for _ in perf.paced(RATE, count):
            producer.send(topic, perf.stamped(time.perf_counter(), 100)).result()
        return spread(delays())


def read_delays_shared(url: str | None, topic: str, count: int, pipe: Pipe) -> None:
    """Be the reader's process, as `perf.read_delays`, in a share group."""
    delays: list[float] = []
    with connect(url) as client, client.share_consumer(topic, group=topic) as consumer:
        consumer.poll(0.1)
        pipe.send(None)
        records: list[ShareRecord]
        while len(delays) < count and (records := consumer.poll(perf.SILENCE_SECONDS)):
            now = time.perf_counter()
            delays.extend(perf.delay_ms(record.value, now) for record in records)
    pipe.send(delays)
