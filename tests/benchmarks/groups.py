"""R12: groups. From a worker's end to resumed work, rebalances, what heartbeats cost the server, polls with a membership."""

import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection as Pipe
from typing import Final

from msgtx.cli.programs import perf
from msgtx.client import Client, connect
from msgtx.consumer.consumer import Consumer
from msgtx.store.groups.members import heartbeat, join_group, leave_group
from tests.benchmarks import baselines
from tests.benchmarks.bulk import ready
from tests.benchmarks.latency import postmaster_of, server_seconds
from tests.benchmarks.reading import COUNTS
from tests.benchmarks.sheet import Claim, Rounds, Settings, Step, progress

PARTITIONS: Final = 6
SESSIONS: Final = {"6 s": (6_000, 2_000, 3), "45 s (default)": (45_000, 3_000, 1)}  # timeout, heartbeats, runs
MEMBERS: Final = 10
INTERVAL_SECONDS: Final = 3.0  # the default between two heartbeats
BEAT_SECONDS: Final = 15.0
CONNECTIONS: Final = 4
GROUPS: Final = {"100 consumers in one group": (1, 100), "1,000 groups of one": (1_000, 1)}
LEAVES: Final = 5


def groups(settings: Settings) -> list[dict[str, object]]:
    rounds = Rounds()
    with ready(settings, pool_size=4 * MEMBERS) as client:
        with perf.temporary_topic(client, PARTITIONS) as topic:
            rounds.run(_polls(client, topic), rounds=max(9, settings.rounds))
        rebalances(client, rounds, seconds=max(5.0, settings.seconds))
        beats(settings, client, rounds)
        takeovers(settings, client, rounds)
    claims = [
        Claim(target="R12", what="poll, a member of a group", unit="rec/s", value="member", base="alone", at_least=0.95),
        Claim(target="R12", what="poll, with automatic commits", unit="rec/s", value="committing", base="alone"),
        Claim(target="R12", what=f"joins and leaves in a group of {MEMBERS}", unit="rebalances/s", value="rebalances"),
        Claim(target="R12", what="clean leave → work goes on", unit="ms", value="leave", at_most=1_000),
    ]
    for name in SESSIONS:
        what = f"SIGKILL → work goes on, session timeout {name}"
        claims.append(Claim(target="R12", what=what, unit="s", value=f"kill, {name}"))
    for name in GROUPS:
        what = f"heartbeats of {name}, the server"
        claims.append(Claim(target="R12", what=what, unit="% core", value=name))
        claims.append(Claim(target="R12", what="— of these, each one", unit="ms", value=f"{name}, each"))
    claims.append(Claim(target="R12", what="the server without heartbeats", unit="% core", value="no heartbeats"))
    return rounds.judge(claims)


# ── the data path ──


def _polls(client: Client, topic: str) -> dict[str, Step]:
    """Read the same topic alone, as a member, and as a member that commits."""
    count = COUNTS[100]
    perf.fill(client, topic, count, size=100)
    steps: dict[str, Step] = {}
    for name, automatic in (("alone", None), ("member", False), ("committing", True)):

        def read(name: str = name, automatic: bool | None = automatic) -> float:
            group = {"group": f"{topic}-{name}-{time.monotonic_ns()}", "enable_auto_commit": automatic}
            what = perf.ConsumeSettings(consumer={} if automatic is None else group)
            return perf.consume_once(client, topic, count, what).records_per_second

        steps[name] = read
    return steps


# ── rebalances ──


@contextmanager
def polled(consumer: Consumer) -> Iterator[None]:
    """Poll a consumer in a thread; it is closed at the end."""
    over = threading.Event()

    def poll() -> None:
        with consumer:
            while not over.is_set():
                consumer.poll(0.1)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        consumer.stop()
        thread.join()


def rebalances(client: Client, rounds: Rounds, *, seconds: float) -> None:
    """Let an eleventh member join and leave; a rebalance is over when every partition has its new owner."""
    with perf.temporary_topic(client, 3 * MEMBERS) as topic, ExitStack() as stack:
        members: list[Consumer] = []

        def join() -> Consumer:
            member = client.consumer(group=topic, enable_auto_commit=False, auto_offset_reset="earliest")
            member.subscribe([topic])
            return member

        def settled(expected: list[Consumer]) -> bool:
            counts = [len(member.assignment()) for member in expected]
            return sum(counts) == 3 * MEMBERS and max(counts) - min(counts) <= 1

        for _ in range(MEMBERS):
            members.append(join())
            stack.enter_context(polled(members[-1]))
        _wait(lambda: settled(members))
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            another = join()
            with polled(another):
                _wait(partial(settled, [*members, another]))
            _wait(lambda: settled(members))
            count += 2
        rounds.add("rebalances", count / (time.perf_counter() - began))


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + perf.SILENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the group does not settle"
        time.sleep(0.001)


# ── heartbeats ──


def beats(settings: Settings, client: Client, rounds: Rounds) -> None:
    """Measure the server's processor time under heartbeats at the default interval, without the consumers' other work."""
    with baselines.connect(settings.url) as connection:
        postmaster = postmaster_of(connection)
        if postmaster is None:
            progress("the server is not on this machine: no figures of heartbeats")
            return
        before = server_seconds(postmaster)
        time.sleep(BEAT_SECONDS)
        idle = (server_seconds(postmaster) - before) / BEAT_SECONDS
        rounds.add("no heartbeats", 100 * idle)
        for name, (count, members) in GROUPS.items():
            progress(f"{name}, {BEAT_SECONDS:.0f} s")
            stem = f"heartbeats-{time.time_ns()}"
            lives = [_Life(client, f"{stem}-{group}", member) for group in range(count) for member in range(members)]
            before = server_seconds(postmaster)
            sent = _beat_all(client, lives)
            spent = (server_seconds(postmaster) - before) / BEAT_SECONDS - idle
            rounds.add(name, 100 * spent)
            rounds.add(f"{name}, each", 1000 * spent * BEAT_SECONDS / sent)
            progress(f"{sent / BEAT_SECONDS:.0f} heartbeats/s")
            for life in lives:
                life.end(client)
            for group in {life.group for life in lives}:
                client.admin.groups.delete(group)


class _Life:
    """A member that only sends heartbeats."""

    def __init__(self, client: Client, group: str, index: int) -> None:
        self.group, self.member_id, self.beats = group, f"member-{index}", 0
        with client.runtime.engine.connection() as connection:
            self.number = join_group(
                connection, group, member_id=self.member_id, group_instance_id=None, client_host=None, client_process=None,
                session_timeout_ms=45_000, strategy="cooperative-sticky", topics=["heartbeats"], pattern=None,
            ).member_number  # fmt: skip

    def beat(self, client: Client) -> None:
        self.beats += 1
        with client.runtime.engine.connection() as connection:
            heartbeat(connection, self.group, member_number=self.number, member_id=self.member_id, group_instance_id=None,
                      number=self.beats)  # fmt: skip

    def end(self, client: Client) -> None:
        with client.runtime.engine.connection() as connection:
            leave_group(connection, self.group, self.member_id)


def _beat_all(client: Client, lives: list[_Life]) -> int:
    """Send all members' heartbeats for a while, evenly spread. Returns their number."""
    ends = time.perf_counter() + BEAT_SECONDS

    def some(lives: list[_Life]) -> int:
        pause = INTERVAL_SECONDS / len(lives)
        due, sent = time.perf_counter(), 0
        while due < ends:
            for life in lives:
                if due >= ends:
                    break
                time.sleep(max(0.0, due - time.perf_counter()))
                life.beat(client)
                sent += 1
                due += pause
        return sent

    with ThreadPoolExecutor(CONNECTIONS) as threads:
        return sum(threads.map(some, (lives[at::CONNECTIONS] for at in range(CONNECTIONS))))


# ── from a worker's end to resumed work ──


def takeovers(settings: Settings, client: Client, rounds: Rounds) -> None:
    for name, (timeout_ms, interval_ms, runs) in SESSIONS.items():
        for _ in range(runs):
            rounds.add(f"kill, {name}", _takeover(settings, client, timeout_ms, interval_ms, signal.SIGKILL))
            progress(f"kill, {name}: {rounds.series[f'kill, {name}'][-1]:.1f} s")
    for _ in range(LEAVES):
        rounds.add("leave", 1000 * _takeover(settings, client, 45_000, 3_000, signal.SIGTERM))


def _takeover(settings: Settings, client: Client, timeout_ms: int, interval_ms: int, end: signal.Signals) -> float:
    """End one of two workers; return the seconds until the other one has a record of a partition that it did not own."""
    config = {"session_timeout_ms": timeout_ms, "heartbeat_interval_ms": interval_ms}
    with perf.temporary_topic(client, PARTITIONS) as topic, client.producer(linger_ms=0) as producer:
        processes = multiprocessing.get_context("spawn")
        ours, theirs = processes.Pipe()
        victim = processes.Process(target=_work, args=(settings.url, topic, config, theirs), daemon=True)
        victim.start()
        ours.recv()
        with client.consumer(topic, group=topic, enable_auto_commit=False, config=config) as survivor:
            while len(survivor.assignment()) < PARTITIONS // 2:
                survivor.poll(0.05)
            own = {partition.partition for partition in survivor.assignment()}
            _idle(survivor, random.uniform(0.0, interval_ms / 1000))  # since its last heartbeat
            began = time.perf_counter()
            os.kill(victim.pid or 0, end)
            while time.perf_counter() - began < 2 * timeout_ms / 1000:
                for partition in set(range(PARTITIONS)) - own:
                    producer.send(topic, b"work", partition=partition)
                if any(record.partition not in own for record in survivor.poll(0.02)):
                    break
            took = time.perf_counter() - began
        victim.join()
        return took


def _idle(consumer: Consumer, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        consumer.poll(min(left, 0.1))


def _work(url: str | None, topic: str, config: dict[str, object], pipe: Pipe) -> None:
    """Be a worker until SIGTERM, then leave."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    settings = {"enable_auto_commit": False, "auto_offset_reset": "earliest"}
    with connect(url) as client, client.consumer(topic, group=topic, config={**settings, **config}) as consumer:
        consumer.poll(0.0)
        pipe.send(None)
        while not over.is_set():
            consumer.poll(0.05)
