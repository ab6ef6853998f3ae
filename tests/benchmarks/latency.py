"""R6: from send to delivery against a bare LISTEN/NOTIFY outbox; the first record after silence; the cost of idling."""

import threading
import time
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import psycopg

from msgtx.cli.programs import perf
from msgtx.client import Client, connect
from tests.benchmarks import baselines
from tests.benchmarks.bulk import ready
from tests.benchmarks.kafka import Kafka
from tests.benchmarks.sheet import Claim, Rounds, Settings, Step, progress

RATES = (50, 200, 500)
SILENCE_SECONDS = 10.0
SILENCES = 5
IDLE_SECONDS = 6.0


def latency(settings: Settings) -> list[dict[str, object]]:
    rounds = Rounds()
    seconds = max(4.0, settings.seconds)
    with ready(settings) as client:
        steps: dict[str, Step] = {}
        for rate in RATES:
            for variant, transactional in (("msgtx", True), ("without transaction", False)):
                if not transactional and rate != RATES[1]:
                    continue
                what = perf.EndToEndSettings(rate=rate, seconds=seconds, transactional=transactional)
                steps[f"{variant} {rate}/s"] = lambda what=what: delivered(client, settings, what)
            steps[f"outbox {rate}/s"] = lambda rate=rate: spread(
                baselines.outbox_delays(settings.url, rate=rate, seconds=seconds)
            )
            for broker in settings.brokers[:1]:
                if rate == RATES[-1]:
                    steps[f"{broker.name} {rate}/s"] = lambda broker=broker, rate=rate: kafka_delays(broker, rate)
        rounds.run(steps, rounds=settings.rounds)
        silence(settings, client, rounds)
        idle(settings, client, rounds)
    claims = []
    for rate in RATES:
        bounds = (1.3, 1.5) if rate != RATES[-1] else (None, None)
        for part, most in zip((" p50", " p99"), bounds, strict=True):
            base = f"outbox {rate}/s{part}"
            what = f"send → delivered, {rate}/s,{part}"
            claims.append(Claim(target="R6", what=what, unit="ms", value=f"msgtx {rate}/s{part}", base=base, at_most=most))
            name = f"without transaction {rate}/s{part}"
            claims.append(Claim(target="R6", what=f"{what}, no transaction", unit="ms", value=name, base=base))
    claims += [
        Claim(target="R6", what="send → delivered, 500/s, p50", unit="ms", value="msgtx 500/s p50",
              base="Kafka 500/s p50", at_most=0.7),
        Claim(target="R6", what="send → delivered, 500/s, p99", unit="ms", value="msgtx 500/s p99",
              base="Kafka 500/s p99"),
        Claim(target="R6", what="first after 10 s of silence, p50", unit="ms", value="silence", at_most=20.0),
        Claim(target="R6", what="the same, bare outbox", unit="ms", value="silence, outbox"),
        Claim(target="R6", what="an idle consumer, both sides", unit="% core", value="idle 1", at_most=1.0),
        Claim(target="R6", what="— of these, the client", unit="% core", value="idle 1, client"),
        Claim(target="R6", what="100 idle consumers, both sides", unit="% core", value="idle 100", at_most=50.0),
        Claim(target="R6", what="— of these, the client", unit="% core", value="idle 100, client"),
        Claim(target="R6", what="the server without consumers", unit="% core", value="idle 0"),
    ]  # fmt: skip
    return rounds.judge(claims)


def delivered(client: Client, settings: Settings, what: perf.EndToEndSettings) -> dict[str, float]:
    with perf.temporary_topic(client, 1) as topic:
        figures = perf.end_to_end_once(client, topic, what, url=settings.url)
    return {" p50": figures.delivered_p50_ms, " p99": figures.delivered_p99_ms}


def spread(delays: list[float]) -> dict[str, float]:
    return {" p50": perf.percentile(delays, 0.5), " p99": perf.percentile(delays, 0.99)}


def kafka_delays(broker: Kafka, rate: int) -> dict[str, float]:
    figures, _ = broker.call("w5", rate)
    found = {part: next((v for name, v in figures.items() if f"delivered{part}" in name), None) for part in (" p50", " p99")}
    return {part: value for part, value in found.items() if value is not None}


def silence(settings: Settings, client: Client, rounds: Rounds) -> None:
    """Time the first record after silence, of msgtx and of the outbox in turn."""
    progress(f"{SILENCES} silences of {SILENCE_SECONDS:.0f} s")
    with (
        perf.temporary_topic(client, 1) as topic,
        perf.reading(partial(perf.read_delays, settings.url, topic, SILENCES)) as ours,
        perf.reading(partial(baselines.read_outbox, settings.url, SILENCES)) as bare,
        client.producer(transactional_id=f"silence-{topic}") as producer,
        baselines.connect(settings.url) as connection,
    ):
        for _ in range(SILENCES):
            time.sleep(SILENCE_SECONDS)
            with producer.transaction():
                producer.send(topic, perf.stamped(time.perf_counter(), 100))
            time.sleep(0.2)
            connection.execute(baselines.INSERT_NOTIFY, (perf.stamped(time.perf_counter(), 100),))
        for name, delays in (("silence", ours()), ("silence, outbox", bare())):
            rounds.series[name] = delays


def idle(settings: Settings, client: Client, rounds: Rounds) -> None:
    """Measure the processor time of waiting consumers: their process and the server's."""
    with baselines.connect(settings.url) as connection:
        parent = postmaster_of(connection)
        if parent is None:
            progress("the server is not on this machine: no figures of idle consumers")
            return
        before = server_seconds(parent)
        time.sleep(IDLE_SECONDS)
        alone = server_seconds(parent) - before
        rounds.add("idle 0", 100 * alone / IDLE_SECONDS)
        for consumers in (1, 100):
            progress(f"{consumers} idle consumers, {IDLE_SECONDS:.0f} s")
            with (
                perf.temporary_topic(client, 6) as topic,
                perf.reading(partial(_idle_consumers, settings.url, topic, consumers)) as spent,
            ):
                before = server_seconds(parent)
                time.sleep(IDLE_SECONDS)
                server = server_seconds(parent) - before
                (theirs,) = spent()
            rounds.add(f"idle {consumers}", 100 * (server - alone + theirs) / IDLE_SECONDS)
            rounds.add(f"idle {consumers}, client", 100 * theirs / IDLE_SECONDS)


def _idle_consumers(url: str | None, topic: str, consumers: int, pipe: Pipe) -> None:
    ends = time.monotonic() + IDLE_SECONDS + 60.0

    def wait(barrier: threading.Barrier) -> None:
        with client.consumer(topic) as consumer:
            consumer.poll(0.1)
            barrier.wait()
            while not over.is_set() and time.monotonic() < ends:
                consumer.poll(2.0)

    over = threading.Event()
    with connect(url) as client:
        barrier = threading.Barrier(consumers + 1)
        threads = [threading.Thread(target=wait, args=(barrier,), daemon=True) for _ in range(consumers)]
        for thread in threads:
            thread.start()
        barrier.wait()
        time.sleep(1.0)
        began = time.process_time()
        pipe.send(None)
        time.sleep(IDLE_SECONDS)
        pipe.send([time.process_time() - began])
        over.set()
        for thread in threads:
            thread.join()


def postmaster_of(connection: psycopg.Connection[Any]) -> int | None:
    """Return the server's first process; None if it is not on this machine."""
    backend = connection.info.backend_pid
    if not Path(f"/proc/{backend}/comm").exists() or "postgres" not in Path(f"/proc/{backend}/comm").read_text():
        return None
    return _parent(backend)


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def server_seconds(postmaster: int) -> float:
    """Return the processor time that all processes of a server have used."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int(folder.name) == postmaster or _parent(int(folder.name)) == postmaster:
                total += int((folder / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
    return total / 1e9
