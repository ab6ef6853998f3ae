"""Members of a share group in processes that are killed and stopped: what was promised holds (I17).

Each member writes down what it gets and what it has accepted, with the time, which all processes of a machine share.
Anomalies: a record that is lost, accepted twice, delivered after its acknowledgement, or out of the order of its key.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

import msgtx

pytestmark = pytest.mark.long

RECORDS: Final = 600
PATIENCE_SECONDS: Final = 60.0
MEMBER: Final = """
import random, sys, time
import msgtx
from msgtx import Acknowledgement, errors
url, topic, path, ending = sys.argv[1:]
drawn = random.Random()
with open(path, "a", buffering=1) as notes, msgtx.connect(url) as client:
    member = client.share_consumer(topic, group=topic, acknowledgement_mode="explicit", session_timeout_ms=6000)
    empty = 0
    while ending == "never" or empty < 6:
        asked = time.monotonic()
        records = member.poll(0.5, max_records=drawn.randint(1, 20))
        empty = 0 if records else empty + 1
        for record in records:
            notes.write(f"got {record.offset} {asked} {time.monotonic()} {record.delivery_count}\\n")
        for record in records:
            if ending == "never":
                time.sleep(drawn.random() * 0.01)
            answer = Acknowledgement.ACCEPT if ending != "never" or drawn.random() < 0.8 else Acknowledgement.RELEASE
            try:
                member.acknowledge(record, answer)
                notes.write(f"accepting {record.offset} {time.monotonic()}\\n" if answer is Acknowledgement.ACCEPT else "")
                member.commit()
                if answer is Acknowledgement.ACCEPT:
                    notes.write(f"accepted {record.offset} {time.monotonic()}\\n")
            except errors.InvalidRecordState:
                notes.write(f"refused {record.offset} {time.monotonic()}\\n")
"""


@dataclass
class History:
    """What members wrote down, by offset."""

    got: dict[int, list[tuple[float, float, int, str]]] = field(default_factory=lambda: defaultdict(list))
    accepting: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    accepted: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    def read(self, path: Path) -> None:
        for line in path.read_text().splitlines():
            match line.split():
                case ["got", offset, asked, at, deliveries] if deliveries:
                    self.got[int(offset)].append((float(asked), float(at), int(deliveries), path.name))
                case ["accepting", offset, at]:
                    self.accepting[int(offset)].append(float(at))
                case ["accepted", offset, at]:
                    self.accepted[int(offset)].append(float(at))

    def anomalies(self, keys: list[bytes | None]) -> list[str]:
        found = []
        for offset in range(len(keys)):
            if not self.accepting[offset]:
                found.append(f"{offset} is lost")
            if len(self.accepted[offset]) > 1:
                found.append(f"{offset} is accepted twice")
            late = [asked for asked, *_ in self.got[offset] if self.accepted[offset] and asked > self.accepted[offset][0]]
            if late:
                found.append(f"{offset} is delivered after its acknowledgement")
            counts = [deliveries for *_, deliveries, _ in sorted(self.got[offset])]
            if len(set(counts)) < len(counts):
                found.append(f"{offset} is delivered twice with one count: {counts}")
        last: dict[bytes, int] = {}
        for offset, key in enumerate(keys):
            if key is None:
                continue
            before, last[key] = last.get(key), offset
            for _, at, _, member in self.got[offset] if before is not None else ():
                assert before is not None
                own = any(name == member and earlier <= at for _, earlier, _, name in self.got[before])
                if not own and not any(done < at for done in self.accepting[before]):
                    found.append(f"{offset} of key {key!r} is delivered before {before} is done")
        return found


def read(folder: Path) -> History:
    history = History()
    for path in folder.glob("member-*"):
        history.read(path)
    return history


@pytest.fixture
def topic(client: msgtx.Client, unique: Callable[[str], str]) -> str:
    name = unique("topic")
    client.topics.create(name)
    return name


@pytest.fixture
def spawn(database_url: str, topic: str, tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    made: list[subprocess.Popen[bytes]] = []

    def start(ending: str) -> subprocess.Popen[bytes]:
        path = tmp_path / f"member-{len(made)}"
        path.touch()
        made.append(subprocess.Popen([sys.executable, "-c", MEMBER, database_url, topic, str(path), ending]))
        return made[-1]

    yield start
    for process in made:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        process.kill()
        process.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_members_that_are_killed_and_stopped_lose_and_repeat_nothing(
    client: msgtx.Client,
    topic: str,
    spawn: Callable[[str], subprocess.Popen[bytes]],
    tmp_path: Path,
    ordering: str,
) -> None:
    drawn = random.Random(ordering)
    client.admin.shares.configure(
        topic,
        {
            "auto_offset_reset": "earliest",
            "record_lock_duration_ms": 700,
            "delivery_count_limit": 1_000_000,
            "release_backoff_ms": 50,
            "ordering": ordering,
        },
    )
    keys = [drawn.choice([b"a", b"b", b"c", b"d", b"e", None]) for _ in range(RECORDS)]
    with client.producer() as producer:
        producer.send_batch(topic, [b"%d" % each for each in range(RECORDS)], keys, partition=0).result(PATIENCE_SECONDS)
    members = [spawn("never") for _ in range(4)]
    stopped: list[subprocess.Popen[bytes]] = []
    ends = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < ends and len(read(tmp_path).accepted) < RECORDS * 2 // 3:
        time.sleep(drawn.uniform(0.5, 1.5))
        victim = drawn.choice(members)
        if stopped and drawn.random() < 0.5:
            os.kill(stopped.pop().pid, signal.SIGCONT)
        elif drawn.random() < 0.5:
            victim.kill()
            members[members.index(victim)] = spawn("never")
        elif victim not in stopped:
            os.kill(victim.pid, signal.SIGSTOP)
            stopped.append(victim)
    for each in members:
        each.kill()
    assert spawn("when it is empty").wait(PATIENCE_SECONDS) == 0
    history = read(tmp_path)
    assert history.anomalies(keys if ordering == "key" else [None] * RECORDS) == []
    assert max(deliveries for all_of in history.got.values() for *_, deliveries, _ in all_of) > 1, "nothing came again"
