"""`python -m tests.topology --minutes N --seed S`: topics grow, shrink, go and come again under every kind of reader.

Changes are drawn from the seed. Nobody may die of an error that is not typed; when the changes stop, nobody stands still:
each reader has got every record that is still there, and once, as far as its kind promises that. Groups that commit by
themselves may get a record again when they have lost their partition, so their repetitions are only counted.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import click
import sqlalchemy
from sqlalchemy.orm import sessionmaker

import msgtx
from msgtx import TopicPartition, aio, errors
from tests.databases import connect
from tests.faults import crash_server
from tests.verdicts import conclude

NAMES: Final = ("changes-0", "changes-1", "changes-2")
OUTPUT: Final = "output"
MOST_PARTITIONS: Final = 6
PAUSE_SECONDS: Final = 0.15  # the mean between two changes
PATIENCE_SECONDS: Final = 60.0  # for the last records
SESSION: Final[dict[str, Any]] = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 300}
EARLIEST: Final[dict[str, Any]] = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 200, "retry_backoff_ms": 10}
ONCE: Final = frozenset({"process", "process_into", "shared", "process_shared"})


@dataclass
class Report:
    """What was done, and what broke. `told`: typed errors, by reader and kind; `again`: records that came more than once."""

    seed: int
    changes: Counter[str] = field(default_factory=Counter)
    told: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    words: dict[str, str] = field(default_factory=dict)  # of the first error of each kind
    failures: list[str] = field(default_factory=list)
    records: int = 0
    read: Counter[str] = field(default_factory=Counter)


class World:
    """The topics, and what each reader has got."""

    def __init__(self, url: str, report: Report) -> None:
        self.url = url
        self.report = report
        self.client = msgtx.connect(url)
        self.got: dict[str, Counter[str]] = {}
        self.stop = threading.Event()
        self.calm = threading.Event()  # the topics are as they stay
        self.lock = threading.Lock()
        self.client.topics.create(OUTPUT, partitions=2)
        with connect(url) as connection:
            connection.execute("create table row_of_input (value text)")
        for name in NAMES:
            self.client.topics.create(name, partitions=2)

    def note(self, reader: str, value: bytes | None) -> None:
        with self.lock:
            self.got.setdefault(reader, Counter())[(value or b"").decode()] += 1

    def tell(self, reader: str, error: errors.MsgtxError) -> None:
        """Count a typed error. In the calm there is no reason for any."""
        with self.lock:
            self.report.told[f"{reader} {type(error).__name__}"] += 1
            self.report.words.setdefault(f"{reader} {type(error).__name__}", str(error)[:200])
            if time.monotonic() > self.calm_since + 10:
                self.report.failures.append(f"{reader} failed in calm: {type(error).__name__}: {str(error)[:300]}")

    calm_since = float("inf")

    @property
    def polls(self) -> bool:
        return not self.stop.is_set()


# ── readers: each lives until the end, whatever it is told ──


def _poll(world: World, reader: str, consumer: Any, before: Callable[[], None] = lambda: None) -> None:
    while world.polls:
        try:
            before()
            for record in consumer.poll(0.2):
                world.note(reader, record.value)
        except errors.FatalError:
            raise
        except errors.MsgtxError as error:
            world.tell(reader, error)
            time.sleep(0.02)


def subscribed(world: World) -> None:
    with world.client.consumer(*NAMES, group="subscribed", **EARLIEST, **SESSION) as consumer:
        _poll(world, "subscribed", consumer)


def matching(world: World) -> None:
    with world.client.consumer(pattern="changes-.*", group="matching", **EARLIEST, **SESSION) as consumer:
        _poll(world, "matching", consumer)


def second(world: World) -> None:
    """Another member of the same group."""
    with world.client.consumer(pattern="changes-.*", group="matching", **EARLIEST, **SESSION) as consumer:
        _poll(world, "matching", consumer)


def assigned(world: World) -> None:
    """Reads all partitions that there are; it looks for new ones itself."""
    known: set[TopicPartition] = set()
    with world.client.consumer(**EARLIEST) as consumer:

        def look() -> None:
            there = {
                TopicPartition(name, index)
                for name in set(NAMES) & set(world.client.topics.list())
                for index in range(world.client.topics.describe(name).partitions)
            }
            if there != known:
                places: dict[TopicPartition, int] = {}
                for each in known & there:
                    with contextlib.suppress(errors.UnknownTopicOrPartition):  # of a topic that was made again since
                        places[each] = consumer.position(each)
                known.clear()
                consumer.assign(there)
                for each, place in places.items():
                    consumer.seek(each, place)
                known.update(there)

        _poll(world, "assigned", consumer, look)


def shared(world: World) -> None:
    world.client.admin.shares.configure("shared", {"auto_offset_reset": "earliest"})
    with world.client.share_consumer(*NAMES, group="shared", fetch_max_wait_ms=200, retry_backoff_ms=10) as consumer:
        _poll(world, "shared", consumer)


def processed(world: World) -> None:
    world.client.process(
        NAMES[0], to=OUTPUT, group="process", transactional_id="process", stop=world.stop,
        transform=lambda record: b"process " + (record.value or b""), consumer_config={**EARLIEST, **SESSION},
    )  # fmt: skip


def processed_shared(world: World) -> None:
    world.client.admin.shares.configure("process_shared", {"auto_offset_reset": "earliest"})
    world.client.process(
        NAMES[1], to=OUTPUT, group="process_shared", transactional_id="process-shared", stop=world.stop, share_members=1,
        transform=lambda record: b"process_shared " + (record.value or b""),
    )  # fmt: skip


def processed_into(world: World) -> None:
    engine = sqlalchemy.create_engine(sqlalchemy.make_url(world.url).set(drivername="postgresql+psycopg"))

    def handle(session: Any, record: Any) -> None:
        session.execute(sqlalchemy.text("insert into row_of_input values (:value)"), {"value": record.value.decode()})

    try:
        world.client.process_into(
            sessionmaker(engine), handle, *NAMES[1:], group="process_into", stop=world.stop, **EARLIEST, **SESSION
        )
    finally:
        engine.dispose()


def awaited(world: World) -> None:
    async def read() -> None:
        async with await aio.connect(world.url) as client, client.consumer(
            *NAMES, group="awaited", **EARLIEST, **SESSION
        ) as consumer:  # fmt: skip
            while world.polls:
                try:
                    for record in await consumer.poll(0.2):
                        world.note("awaited", record.value)
                except errors.FatalError:
                    raise
                except errors.MsgtxError as error:
                    world.tell("awaited", error)
                    await asyncio.sleep(0.02)

    asyncio.run(read())


def cut(world: World) -> None:
    """Reads consistent cuts, each from the one before, or from the start where that is not there any more."""
    before = None
    while world.polls:
        names = sorted(set(NAMES) & set(world.client.topics.list()))
        try:
            at = world.client.snapshot(names)
            for record in world.client.read(at, before):
                world.note("cut", record.value)
            before = at
        except errors.MsgtxError as error:
            world.tell("cut", error)
            before = None
        world.stop.wait(0.1)


def followed(world: World) -> None:
    """The command line. It may end, with one sentence; then it is started again."""
    command = [
        sys.executable,
        "-m",
        "msgtx.cli",
        "consume",
        *NAMES,
        "--group",
        "followed",
        "--from-beginning",
        "-o",
        "jsonl",
    ]
    with subprocess.Popen(
        [*command, "--url", world.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        threading.Thread(target=lambda: (world.stop.wait(), running.terminate()), daemon=True).start()
        for line in running.stdout:
            world.note("followed", json.loads(line)["value"].encode())
        told = running.stderr.read().strip()
    if world.polls:
        if "Traceback" in told or not told:
            raise AssertionError(f"msgtx consume ended with {running.returncode}: {told[-1500:]}")
        world.tell("followed", errors.MsgtxError(told))


READERS: Final[dict[Callable[[World], None], str]] = {
    subscribed: "subscribed", matching: "matching", second: "matching", assigned: "assigned", shared: "shared",
    processed: "process", processed_shared: "process_shared", processed_into: "process_into", awaited: "awaited", cut: "cut",
    followed: "followed",
}  # fmt: skip
READS: Final = {"process": NAMES[:1], "process_shared": NAMES[1:2], "process_into": NAMES[1:]}


def _live(world: World, read: Callable[[World], None]) -> None:
    """Let a reader live. After an error that is typed it is started again, as a supervisor would."""
    while world.polls:
        try:
            read(world)
        except errors.MsgtxError as error:
            world.tell(f"{READERS[read]} ended by", error)
            world.stop.wait(0.1)
        except Exception as error:
            logging.getLogger(__name__).exception("%s died", READERS[read])
            with world.lock:
                world.report.failures.append(f"{READERS[read]} died: {type(error).__name__}: {str(error)[:500]}")
            return


# ── changes ──


def _write(world: World, chance: random.Random) -> None:
    """Send, one by one and in transactions; what is refused is refused with a typed error."""
    numbers = itertools.count()
    with world.client.producer(linger_ms=5, delivery_timeout_ms=20_000) as producer:
        while not world.calm.is_set():
            with contextlib.suppress(errors.MsgtxError):
                producer.send(chance.choice(NAMES), f"v{next(numbers)}".encode())
            time.sleep(chance.expovariate(1 / 0.004))
        with contextlib.suppress(errors.MsgtxError):
            producer.flush(PATIENCE_SECONDS)
    world.report.records = next(numbers)


def _change(world: World, chance: random.Random) -> str:
    name = chance.choice(NAMES)
    topics = world.client.topics
    if name not in topics.list():
        topics.create(name, partitions=chance.randint(1, 3))
        return "make"
    kind = chance.choice(("grow", "grow", "shrink", "shrink", "delete", "make again", "make again"))
    match kind:
        case "grow":
            there = topics.describe(name).partitions
            if there < MOST_PARTITIONS:
                topics.alter(name, partitions=there + 1)
        case "shrink":
            index = chance.randrange(topics.describe(name).partitions)
            partition = TopicPartition(name, index)
            end = world.client.admin.partitions.describe(partition).log_end_offset
            world.client.admin.partitions.delete_records({partition: chance.randint(0, end)})
        case _:
            topics.delete(name)
            if kind == "make again":
                topics.create(name, partitions=chance.randint(1, 3))
    return kind


def play(url: str, *, seed: int, seconds: float = 1e9, changes: int = 1 << 30) -> Report:
    """Change topics for so long, or so often; then wait until every reader has got what is there."""
    report, chance = Report(seed), random.Random(seed)
    world = World(url, report)
    threads = [threading.Thread(target=_live, args=(world, read), daemon=True) for read in READERS]
    threads.append(threading.Thread(target=_write, args=(world, random.Random(seed + 1)), daemon=True))
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    try:
        while report.changes.total() < changes and time.monotonic() < deadline:
            report.changes[_change(world, chance)] += 1
            time.sleep(chance.expovariate(1 / PAUSE_SECONDS))
        world.calm.set()
        threads.pop().join(PATIENCE_SECONDS)
        # One topic is gone, and the others are read; then it is there again.
        gone = chance.choice(NAMES)
        if gone in world.client.topics.list():
            world.client.topics.delete(gone)
        for there in (tuple(name for name in NAMES if name != gone), NAMES):
            for name in set(there) - set(world.client.topics.list()):
                world.client.topics.create(name)
            world.calm_since = time.monotonic() if there == NAMES else world.calm_since
            _wait_for_all(world, there)
    finally:
        world.stop.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
            if thread.is_alive():
                report.failures.append(f"{thread} does not end")
    _judge(world)
    world.client.close()
    return report


def _wait_for_all(world: World, topics: Sequence[str]) -> None:
    """Wait until every reader has got what is on these topics, and a last record on each partition."""
    there = _put_last_records(world, topics)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while missing := _missing(world, there):
        if time.monotonic() > deadline:
            absent = sorted({*NAMES} - {*topics})
            world.report.failures += [f"{reader} stands still: it lacks {len(some)} records, {some[:5]}; absent: {absent}"
                                      for reader, some in missing.items()]  # fmt: skip
            return
        time.sleep(0.2)


def _put_last_records(world: World, topics: Sequence[str]) -> dict[str, set[str]]:
    """Put a record on each partition; return what is on each topic."""
    with world.client.producer() as producer:
        for name in topics:
            for index in range(world.client.topics.describe(name).partitions):
                producer.send(name, f"last-{name}-{index}-of-{len(topics)}".encode(), partition=index).result(
                    PATIENCE_SECONDS
                )
    found: dict[str, set[str]] = {name: set() for name in NAMES}
    for record in world.client.read(world.client.snapshot(topics)):
        found[record.topic].add((record.value or b"").decode())
    return found


def _missing(world: World, there: dict[str, set[str]]) -> dict[str, list[str]]:
    _read_outputs(world)
    with world.lock:
        got = {reader: set(world.got.get(reader, ())) for reader in READERS.values()}
    wanted = {reader: set().union(*(there[name] for name in READS.get(reader, NAMES))) for reader in got}
    if not all(there.values()):
        del wanted["followed"]  # a command that begins without one of its topics is refused
    return {reader: sorted(some - got[reader]) for reader, some in wanted.items() if some - got[reader]}


def _read_outputs(world: World) -> None:
    """Note what the workers have written."""
    for reader in ("process", "process_shared", "process_into"):
        world.got[reader] = Counter()
    for record in world.client.read(world.client.snapshot([OUTPUT])):
        reader, _, value = (record.value or b"").decode().partition(" ")
        world.note(reader, value.encode())
    with connect(world.url) as connection:
        for (value,) in connection.execute("select value from row_of_input").fetchall():
            world.note("process_into", value.encode())


def _judge(world: World) -> None:
    _read_outputs(world)
    for reader, values in world.got.items():
        world.report.read[reader] = len(values)
        if several := [value for value, count in values.items() if count > 1]:
            world.report.again[reader] = len(several)
            if reader in ONCE:
                world.report.failures.append(f"{reader} got {len(several)} records more than once: {several[:5]}")
    violations = world.client.admin.verify([*NAMES, OUTPUT]).violations
    world.report.failures += [f"verify: {broken}" for broken in violations]


def _lines(report: Report) -> Iterator[str]:
    for what, counted in (("changes", report.changes), ("typed errors", report.told), ("read", report.read),
                          ("more than once", report.again)):  # fmt: skip
        yield f"{what}: " + ", ".join(f"{name} {count}" for name, count in sorted(counted.items()))
    yield from (f"  {name}: {words}" for name, words in sorted(report.words.items()))


@click.command()
@click.option("--minutes", type=float, default=1.0, show_default=True)
@click.option("--seed", type=int, default=None, help="Plans the changes. Default: the time.")
def main(*, minutes: float, seed: int | None) -> None:
    """Change topics under all readers for `minutes`; the exit code (tests/verdicts.py) says whether something broke."""
    chosen = int(time.time()) if seed is None else seed
    click.echo(f"seed {chosen}")
    with crash_server() as server:
        report = play(server.server.create_database(), seed=chosen, seconds=60 * minutes)
    for line in _lines(report):
        click.echo(line)
    again = f"tests.topology --minutes {minutes:g} --seed {chosen}"
    conclude(report.failures, looked=f"records read, together {report.read.total()}", again=again)


if __name__ == "__main__":
    main()
