"""What the tests of mirrors run: a source that is filled, mirrors in processes of their own, and what a target has."""

import contextlib
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import msgtx
from tests.mirror.conftest import columns

PARTITIONS: Final = 3
Contents = Mapping[tuple[str, int], Sequence[tuple[object, ...]]]
IN_EACH: Final = 8  # records of a transaction
COPY_SECONDS: Final = 120.0  # for a mirror that begins, and servers that were killed
LOOK_SECONDS: Final = 0.1
MIRROR: Final = """
import sys
import msgtx

url, topic, name, end, other = sys.argv[1:]
with msgtx.connect(url) as client:
    client.mirror(topic, name=name, **{end: other}, max_records=100)
"""


def contents(client: msgtx.Client, topic: str) -> Contents:
    """Return what a reader of committed records gets, by partition, without its offsets."""
    found: dict[tuple[str, int], list[tuple[object, ...]]] = {}
    if topic in client.topics.list():
        for record in client.read(client.snapshot([topic])):
            found.setdefault((record.topic, record.partition), []).append(columns(record))
    return found


def fill(
    client: msgtx.Client,
    topic: str,
    transactions: int,
    over: threading.Event | None = None,
    *,
    records: int = IN_EACH,
    run: int = 0,
    pause_seconds: float = 0.0,
) -> None:
    """Store transactions over all partitions, every fifth of them aborted, until `over`.

    The key names the transaction. `run`: its first part, another one for each call. `pause_seconds`: between transactions.
    """
    drawn = random.Random(run)
    with client.producer(transactional_id=f"fill-{topic}") as producer:
        for number in range(transactions):
            if over is not None and over.wait(pause_seconds):
                return
            producer.begin_transaction()
            for each in range(records):
                producer.send(
                    topic,
                    None if drawn.random() < 0.1 else drawn.randbytes(drawn.randrange(200)),
                    key=transaction_key(run, number, records),
                    partition=each % PARTITIONS,
                    timestamp=1_700_000_000_000 + number,
                    headers=[("n", b"%d" % each), ("none", None)] if drawn.random() < 0.3 else None,
                )
            if number % 5 == 4:
                producer.abort_transaction()
            else:
                producer.commit_transaction()


def transaction_key(run: int, number: int, records: int) -> bytes:
    """Return the key of all records of a transaction, which says how many they are."""
    return b"%d-%d/%d" % (run, number, records)


def torn(found: Contents) -> Collection[bytes]:
    """Return the keys of transactions of which another number of records is there than they have."""
    counts = Counter(one[0] for partition in found.values() for one in partition)
    return [key for key, count in counts.items() if isinstance(key, bytes) and count != int(key.partition(b"/")[2])]


@contextlib.contextmanager
def mirror(arguments: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a mirror in a process, and kill it at the end of the block, wherever it is."""
    with subprocess.Popen([sys.executable, "-c", MIRROR, *arguments]) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def beside(function: Callable[[threading.Event], None]) -> Iterator[Future[None]]:
    """Run a function in a thread, which ends with the block."""
    over = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(function, over)
        try:
            yield running
        finally:
            over.set()
        running.result()


def require_same(found: Contents, expected: Contents) -> None:
    """Compare the contents of two logs record by record."""
    for place in sorted(found.keys() | expected.keys()):
        one, other = found.get(place, []), expected.get(place, [])
        differing = next((number for number, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
        assert differing is None, (
            f"{place}: {one[differing]} and not {other[differing]} at {differing} of {len(one)}, {len(other)}"
        )
        assert len(one) == len(other), place


def size(found: Contents) -> int:
    """Return how many records there are."""
    return sum(map(len, [*found.values()]))


def require_copied(read: Callable[[], Contents], expected: Contents) -> None:
    """Read until as many records are there, and compare: Kafka answers a commit before each partition knows of it."""
    deadline = time.monotonic() + COPY_SECONDS
    while size(found := read()) < size(expected) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    require_same(found, expected)
