"""A mirror, its source and its target are killed again and again, and a second mirror runs beside a stopped first one.

The records of the source and of its target are compared one by one, and a reader of the target watches that it never sees a
part of a source transaction (I6, I15).
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import msgtx
from msgtx import errors
from tests.databases import PATIENCE_SECONDS, wait_until
from tests.faults import CrashServer, crash_server
from tests.mirror.conftest import contents

pytestmark = pytest.mark.long

SECONDS: Final = float(os.environ.get("MIRROR_SECONDS", "25"))
BACKLOG: Final = 100_000  # records that are there before the mirror begins
TOPICS: Final = ("m1", "m2")
PLACES: Final = (("m1", 0), ("m1", 1), ("m1", 2), ("m2", 0), ("m2", 1))


class Aborted(Exception):
    """The program's own."""


@pytest.fixture
def ends() -> Iterator[tuple[CrashServer, CrashServer]]:
    """Two servers of their own."""
    with crash_server() as source, crash_server() as target:
        yield source, target


def send(url: str, number: int, stop: threading.Event, done: Counter[str]) -> None:
    """Send transactions over some of the partitions until `stop`; a fifth of them is aborted."""
    drawn = random.Random(number)
    count = 0
    while not stop.is_set():
        with (
            contextlib.suppress(errors.MsgtxError),
            msgtx.connect(url) as client,
            client.producer(transactional_id=f"source-{number}") as producer,
        ):
            while not stop.is_set():
                count += 1
                with contextlib.suppress(Aborted), producer.transaction():
                    for topic, partition in drawn.sample(PLACES, drawn.randint(1, 4)):
                        producer.send(
                            topic,
                            b"%d-%d" % (number, count),
                            key=None if count % 3 == 0 else b"k%d" % (count % 9),
                            partition=partition,
                            headers=[("n", b"%d" % count), ("empty", None)],
                            timestamp=1_700_000_000_000 + count,
                        )
                    if drawn.random() < 0.2:
                        raise Aborted
                done["transactions"] += 1
        done["failures"] += 1


def watch(url: str, stop: threading.Event, seen: dict[bytes, set[int]]) -> None:
    """Note how many records of each transaction a reader of the target sees at once."""
    while not stop.is_set():
        with contextlib.suppress(errors.MsgtxError), msgtx.connect(url) as client:
            start = None
            while not stop.is_set():
                cut = client.snapshots.take([each for each in TOPICS if each in client.topics.list()]).snapshot
                for value, count in Counter(record.value for record in client.read(cut, start)).items():
                    assert value is not None
                    seen.setdefault(value, set()).add(count)
                start = cut


def test_records_arrive_once_and_transactions_whole_whatever_is_killed(
    ends: tuple[CrashServer, CrashServer], tmp_path: Path
) -> None:
    (source, target), log = ends, tmp_path / "mirror.log"
    urls = [server.server.create_database() for server in ends]
    with msgtx.connect(urls[0]) as client:
        client.topics.create("m1", partitions=3)
        client.topics.create("m2", partitions=2)
        with client.producer() as producer:
            for number in range(BACKLOG):
                producer.send("m1", b"backlog-%d" % number, key=b"k%d" % number)

    def start() -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "msgtx.cli", "mirror", "run", *TOPICS, "--name", "x", "--max-records", "2000"]
        with log.open("ab") as errors_of_mirror:
            return subprocess.Popen(
                [*command, "--max-bytes", "200kB"],
                env={**os.environ, "MSGTX_DATABASE_URL": urls[0], "MSGTX_MIRROR_RUN_TARGET": urls[1]},
                stdout=subprocess.DEVNULL,
                stderr=errors_of_mirror,
            )

    stop, done, seen, kills = threading.Event(), Counter[str](), dict[bytes, set[int]](), Counter[str]()
    threads = [threading.Thread(target=send, args=(urls[0], number, stop, done)) for number in range(2)]
    threads.append(threading.Thread(target=watch, args=(urls[1], stop, seen)))
    for thread in threads:
        thread.start()
    drawn, mirror, end = random.Random(7), start(), time.monotonic() + SECONDS
    try:
        while time.monotonic() < end:
            what = drawn.choice(["mirror", "mirror", "source", "target", "second"])
            kills[what] += 1
            if what == "mirror":
                mirror.kill()
                mirror.wait()
            elif what == "second":
                mirror.send_signal(signal.SIGSTOP)
                second = start()
                time.sleep(2.0)
                mirror.send_signal(signal.SIGCONT)
                time.sleep(1.0)
                second.kill()
                second.wait()
            else:
                (source if what == "source" else target).crash()
            time.sleep(drawn.uniform(1.0, 3.0))
            if mirror.poll() is not None:
                mirror = start()
        stop.set()
        for thread in threads:
            thread.join()
        with msgtx.connect(urls[0]) as client, msgtx.connect(urls[1]) as copied:

            def is_complete() -> bool:
                nonlocal mirror
                if mirror.poll() is not None:
                    mirror = start()
                found = [each for each in copied.admin.mirrors.list() if each.source and not each.lag_records]
                return bool(found) and contents(client, *TOPICS) == contents(copied, *TOPICS)

            try:
                wait_until(is_complete, "the target has all records, in their order", seconds=2 * PATIENCE_SECONDS)
            except AssertionError as error:
                error.add_note(f"{copied.admin.mirrors.describe('x')}\n{log.read_text()[-5_000:]}")
                raise
            sizes = Counter(record.value for record in client.read(client.snapshot(TOPICS)))
            assert not list(copied.admin.verify().violations)
    finally:
        stop.set()
        mirror.kill()
        mirror.wait()
    assert done["transactions"] > 100, done
    assert {value for value, counts in seen.items() if counts != {sizes[value]}} == set(), "a part of a transaction"
