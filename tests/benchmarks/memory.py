"""R9: the memory of a process that produces, and of one that consumes, a million records of 1 KB."""

import re
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from msgtx.cli.programs import perf
from msgtx.client import connect
from tests.benchmarks.bulk import ready
from tests.benchmarks.sheet import Claim, Rounds, Settings, progress

RECORDS = 1_000_000
SIZE = 1_000
VALUES = 1_000  # different ones, so the program's own values take one megabyte


def memory(settings: Settings) -> list[dict[str, object]]:
    rounds = Rounds()
    with ready(settings) as client, perf.temporary_topic(client, 6) as topic:
        for name, work in (("producing", _produce), ("consuming by poll", _poll), ("consuming by iteration", _iterate)):
            with perf.reading(partial(work, settings.url, topic)) as peak:
                rounds.add(name, peak()[0])
            progress(f"{name}: {rounds.series[name][0]:.0f} MB")
    return rounds.judge(
        [
            Claim(target="R9", what=f"peak of a process {name} 10⁶ × 1 KB", unit="MB", value=name, at_most=300.0)
            for name in rounds.series
        ]
    )


def _produce(url: str | None, topic: str, pipe: Pipe) -> None:
    pipe.send(None)
    values = perf.payloads(VALUES, SIZE)
    with connect(url) as client, client.producer() as producer:
        for at in range(RECORDS):
            producer.send(topic, values[at % VALUES])
        producer.flush()
        pipe.send([_peak_megabytes()])


def _poll(url: str | None, topic: str, pipe: Pipe) -> None:
    pipe.send(None)
    got = 0
    with connect(url) as client, client.consumer(topic, auto_offset_reset="earliest") as consumer:
        while got < RECORDS and (records := consumer.poll(perf.SILENCE_SECONDS)):
            got += len(records)
        pipe.send([_peak_megabytes()] if got >= RECORDS else [])


def _iterate(url: str | None, topic: str, pipe: Pipe) -> None:
    pipe.send(None)
    with connect(url) as client, client.consumer(topic, auto_offset_reset="earliest") as consumer:
        for got, _ in enumerate(consumer, start=1):
            if got >= RECORDS:
                break
        pipe.send([_peak_megabytes()])


def _peak_megabytes() -> float:
    # Not getrusage: a new process's peak begins at that of its parent.
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024
