"""A storm: six workers of a group on twelve partitions, disturbed for some time, and what is there when it is over."""

import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgtx
from msgtx import Client, Consumer
from tests.databases import wait_until
from tests.storm.workers import FENCED, SESSION_TIMEOUT_MS, Worker, Workshop

SOURCE, TARGET, GROUP = "storm-input", "storm-output", "storm"
PARTITIONS: Final = 12
WORKERS: Final = 6
KEYS: Final = 60
LEAST, MOST = 3, 8  # workers that run at a time
SEND_SECONDS: Final = 0.01  # between two batches of input
PATIENCE_SECONDS: Final = 60.0
DECK: Final = ("kill", "kill", "kill same", "kill same", "zombie", "zombie", "zombie same", "terminate", "terminate", "join")


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a storm did and found."""

    sent: int
    repeated: int  # outputs that were there before, or that nobody sent
    missing: int
    disordered: int
    seed: int = 0
    blows: Counter[str] = field(default_factory=Counter)
    lives: int = 0
    fenced: int = 0  # zombies that heard of their successor
    lost: int = 0  # workers that heard that their partitions were another one's
    generations: int = 0
    failures: list[str] = field(default_factory=list)
    settled_seconds: float = 0.0  # from the end of the disturbance to the last output

    @property
    def clean(self) -> bool:
        return not (self.repeated or self.missing or self.disordered or self.failures)


@dataclass
class Input:
    """Sends keyed input until it is stopped: each key counts its values."""

    client: Client
    sent: Counter[bytes] = field(default_factory=Counter)
    stopping: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.stopping.set()
            thread.join()

    def _run(self) -> None:
        chance = random.Random(0)
        with self.client.producer() as producer:
            while not self.stopping.wait(SEND_SECONDS):
                for _ in range(chance.randint(1, 9)):
                    key = b"key-%d" % chance.randrange(KEYS)
                    producer.send(SOURCE, b"%s %d" % (key, self.sent[key]), key=key)
                    self.sent[key] += 1


class Storm:
    """Draws blows from a deck that is shuffled anew when it is used up, so that each kind comes soon."""

    def __init__(self, client: Client, shop: Workshop, *, seed: int, blow_seconds: float) -> None:
        self._client = client
        self._shop = shop
        self._random = random.Random(f"storm {seed}")
        self._blow_seconds = blow_seconds
        self._deck: list[str] = []
        self._sleeping: list[tuple[float, Worker]] = []  # until when, at the earliest
        self._ids = 0
        self.blows: Counter[str] = Counter()

    def start(self) -> None:
        for _ in range(WORKERS):
            self._join()
        wait_until(lambda: len(self._members()) == WORKERS, "all workers are members", seconds=PATIENCE_SECONDS)

    def blow(self, seconds: float) -> None:
        """Strike for so many seconds, longer where the machine was too slow for every kind; then let all zombies go on."""
        deadline = time.monotonic() + seconds
        next_blow = time.monotonic()
        while (now := time.monotonic()) < deadline or (self.blows.keys() != set(DECK) and now < deadline + PATIENCE_SECONDS):
            self._wake(now)
            if now >= next_blow:
                self._strike()
                next_blow = now + self._random.uniform(0.5, 1.5) * self._blow_seconds
            time.sleep(0.02)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while zombies := [each.number for each in self._shop.living if each.stopped or each.expected == {FENCED}]:
            self._wake(time.monotonic())
            if time.monotonic() > deadline:
                self._shop.failures.append(
                    f"zombies {zombies} stay members, or have successors of the same id, and do not hear of them"
                )
                return
            time.sleep(0.02)

    def end(self) -> None:
        """Ask everybody to end, once it has begun to work: each one drains."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while living := self._shop.living:
            members = self._members()
            for worker in living:
                if not worker.expected and worker.process.pid in members:
                    worker.expected.add(0)
                    worker.signal(signal.SIGTERM)
            if time.monotonic() > deadline:
                self._shop.failures.append(f"workers {[worker.number for worker in living]} do not end")
                return
            time.sleep(0.05)

    def _members(self) -> set[int]:
        """Return the process numbers of the group's members."""
        return {found.client_process for found in self._client.admin.groups.members(GROUP) if found.client_process}

    def _join(self, transactional_id: str | None = None) -> None:
        if transactional_id is None:
            self._ids += 1
        self._shop.start(transactional_id or f"w-{self._ids}")

    def _at_work(self) -> list[Worker]:
        members = self._members()
        return [worker for worker in self._shop.living
                if not worker.stopped and not worker.expected and worker.process.pid in members]  # fmt: skip

    def _strike(self) -> None:
        if not self._deck:
            self._deck = list(DECK)
            self._random.shuffle(self._deck)
        kind = self._deck.pop()
        at_work = self._at_work()
        if kind == "join" or len(at_work) <= LEAST:
            if kind != "join":
                self._deck.append(kind)
            if len(self._shop.living) < MOST:
                self._join()
                self.blows["join"] += 1
            return
        victim = self._random.choice(at_work)
        name, _, same = kind.partition(" ")
        blow: dict[str, Callable[[Worker, str | None], None]] = {
            "kill": self._kill, "zombie": self._zombie, "terminate": self._terminate
        }  # fmt: skip
        blow[name](victim, victim.transactional_id if same else None)
        self.blows[kind] += 1

    def _kill(self, victim: Worker, successor: str | None) -> None:
        victim.expected = {-signal.SIGKILL}
        victim.signal(signal.SIGKILL)
        self._join(successor)

    def _zombie(self, victim: Worker, successor: str | None) -> None:
        """Stop a worker until its session is over and its partitions have moved."""
        victim.signal(signal.SIGSTOP)
        if successor is not None:
            victim.expected = {FENCED}
            self._join(successor)
        self._sleeping.append((time.monotonic() + SESSION_TIMEOUT_MS / 1000, victim))

    def _terminate(self, victim: Worker, _: str | None) -> None:
        """Ask a worker to end: it drains."""
        victim.expected = {0}
        victim.signal(signal.SIGTERM)

    def _wake(self, now: float) -> None:
        for entry in list(self._sleeping):
            until, worker = entry
            if until <= now and (worker.process.pid not in self._members() or now > until + PATIENCE_SECONDS):
                self._sleeping.remove(entry)
                worker.signal(signal.SIGCONT)


def play(url: str, *, seed: int, seconds: float, blow_seconds: float = 0.8) -> Report:
    """Play a storm in a database of its own, and count what is there."""
    folder = Path(tempfile.mkdtemp(prefix="msgtx-storm-"))
    with msgtx.connect(url) as client:
        for topic in (SOURCE, TARGET):
            client.topics.create(topic, partitions=PARTITIONS)
        shop = Workshop(url, folder, SOURCE, TARGET, GROUP)
        storm = Storm(client, shop, seed=seed, blow_seconds=blow_seconds)
        sender = Input(client)
        try:
            storm.start()
            with sender.running():
                storm.blow(seconds)
            began = time.monotonic()
            with client.consumer(TARGET, auto_offset_reset="earliest") as reader:
                found = read(reader, sender.sent.total())
                settled = time.monotonic() - began
                storm.end()
                found += read(reader, 0)
            report = judged(sender.sent, found)
            group = client.admin.groups.describe(GROUP)
            if group.members or group.lag:
                shop.failures.append(f"at the end the group has {group.members} members and is {group.lag} behind")
            return replace(
                report, seed=seed, blows=storm.blows, lives=len(shop.all), generations=group.generation,
                failures=shop.failures, settled_seconds=settled, lost=sum("were lost" in worker.said for worker in shop.all),
                fenced=sum(worker.process.returncode == FENCED for worker in shop.all),
            )  # fmt: skip
        finally:
            shop.close()
            shutil.rmtree(folder)


def read(reader: Consumer, count: int) -> list[bytes]:
    """Read so many outputs, or until nothing comes any more; 0: what is there now."""
    found: list[bytes] = []
    last = time.monotonic()
    while len(found) < count or (not count and any(reader.lag().values())):
        records = reader.poll(0.5, 10_000)
        found += [record.value or b"" for record in records]
        if records:
            last = time.monotonic()
        elif time.monotonic() - last > PATIENCE_SECONDS:
            break
    return found


def judged(sent: Counter[bytes], found: list[bytes]) -> Report:
    """Compare: each value once, and those of a key in the order in which they were sent."""
    seen: set[bytes] = set()
    latest: dict[bytes, int] = {}
    repeated = disordered = 0
    for value in found:
        key, _, number = value.partition(b" ")
        repeated += value in seen
        disordered += value not in seen and int(number) < latest.get(key, -1)
        latest[key] = max(int(number), latest.get(key, -1))
        seen.add(value)
    expected = {b"%s %d" % (key, number) for key, count in sent.items() for number in range(count)}
    return Report(sent=len(expected), repeated=repeated + len(seen - expected), missing=len(expected - seen),
                  disordered=disordered)  # fmt: skip
