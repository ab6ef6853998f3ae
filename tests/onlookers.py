"""`python -m tests.onlookers --minutes N --seed S`: odd records beside all that reads, measures, passes on or sets aside.

What is accepted is readable by all, as it was sent; what is refused has a typed error, and the sender goes on working
(internals: append#what-a-record-may-be). A scene is a topic of odd records; each onlooker looks at all of it. The same seed
makes the same records.
"""

import contextlib
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import sqlalchemy
from sqlalchemy.orm import Session, sessionmaker

import msgtx
from msgtx import Acknowledgement, OutputRecord, Record, orm, otel
from msgtx.coordinator.compactor import Compactor
from msgtx.coordinator.gauges import Gauges
from msgtx.coordinator.sweep import Sweeper
from msgtx.process.places import dead_letter_of
from msgtx.rules.record import as_reason
from msgtx.store.append.append_once import KeyedRecord, append_once
from msgtx.store.topics.topics import describe_topics
from tests.faults import crash_server
from tests.odd_records import REFUSED, REFUSED_DEDUP_KEYS, odd_records
from tests.store.steps import unique
from tests.verdicts import conclude

SECONDS: Final = 30.0
PARTITIONS: Final = 2
RECORDS: Final = 400  # of a scene of the program
Content = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def content_of(record: Record | OutputRecord) -> Content:
    """Return what a copy of a record has of it."""
    return record.value, record.key, tuple(record.headers)


class Scene:
    """A topic of odd records, sent through any door; `sent`: those that were accepted."""

    def __init__(self, client: msgtx.Client, url: str, *, seed: int, count: int) -> None:
        self.client, self.url = client, url
        self.chance = random.Random(seed)
        self.topic = unique("odd")
        client.topics.create(self.topic, partitions=PARTITIONS, retention_ms=-1)
        address = sqlalchemy.make_url(url).set(drivername="postgresql+psycopg")
        self.engine = sqlalchemy.create_engine(address)
        self.sent: list[OutputRecord] = []
        self.failures: list[str] = []
        with client.producer() as producer, client.producer(transactional_id=self.topic) as transactional:
            doors = self._doors(producer, transactional)
            for record in odd_records(seed, count=count):
                name = self.chance.choice([*doors])
                doors[name](record)
                self.sent.append(record)
                if self.chance.random() < 0.2:
                    self._refused(producer)

    def close(self) -> None:
        """Remove the topic."""
        self.engine.dispose()
        self.client.topics.delete(self.topic)

    def _doors(self, producer: Any, transactional: Any) -> dict[str, Callable[[OutputRecord], None]]:
        def rest(record: OutputRecord) -> dict[str, Any]:
            return {"key": record.key, "timestamp": record.timestamp, "headers": record.headers or None}

        def send(record: OutputRecord) -> None:
            producer.send(self.topic, record.value, **rest(record)).result(SECONDS)

        def send_keyed(record: OutputRecord) -> None:
            producer.send(self.topic, record.value, dedup_key=unique("key"), **rest(record)).result(SECONDS)

        def send_in_transaction(record: OutputRecord) -> None:
            with transactional.transaction():
                transactional.send(self.topic, record.value, **rest(record))

        def publish(record: OutputRecord) -> None:
            with Session(self.engine) as session:
                orm.publish(session, self.topic, record.value, **rest(record))
                session.commit()

        def append(record: OutputRecord) -> None:
            with self.client.runtime.engine.connection() as connection:
                partition = describe_topics(connection, [self.topic])[self.topic].partition_ids[0]
                at = 7 if record.timestamp is None else record.timestamp
                (answer,) = append_once(
                    connection, [KeyedRecord(partition, unique("key"), record.value, record.key, at, tuple(record.headers))]
                )
                assert answer.error is None, answer

        return {
            "send": send, "send_keyed": send_keyed, "send_in_transaction": send_in_transaction, "publish": publish,
            "append": append,
        }  # fmt: skip

    def _refused(self, producer: Any) -> None:
        if self.chance.random() < 0.2:
            key, error, _ = self.chance.choice(REFUSED_DEDUP_KEYS)
            value, rest = b"v", {"dedup_key": key}
        else:
            odd = self.chance.choice(REFUSED)
            value, error, rest = odd.value, odd.error, odd.rest
        try:
            producer.send(self.topic, value, **rest).result(SECONDS)
        except msgtx.errors.MsgtxError as refused:
            if type(refused).__name__ != error:
                self.failures.append(f"{value!r:.80} {rest!r:.80} is refused by {refused!r}, not by {error}")
        else:
            self.failures.append(f"{value!r:.80} {rest!r:.80} is accepted")

    def expected(self) -> "Counter[Content]":
        """Return what each reader is given, in any order."""
        return Counter(map(content_of, self.sent))

    def waits(self) -> int:
        """Return how many records their headers delay for longer than anybody waits."""
        return sum(_delay(record) > time.time() * 1000 for record in self.sent)


def _delay(record: OutputRecord) -> int:
    times = [value for name, value in record.headers if name == "msgtx.deliver-at" and value is not None]
    return min((int(at) for at in times if at.isascii() and at.isdigit() and len(at) <= 14), default=0)


# ── onlookers: each raises, or returns what it was given ──

Onlooker = Callable[[Scene], None]


def same(found: "Counter[Content]", expected: "Counter[Content]", what: str) -> None:
    """Compare what was given with what was sent."""
    missing, surplus = expected - found, found - expected
    assert not missing, (
        f"{what}: {missing.total()} are missing, as {next(iter(missing))!r:.300}; instead {[*surplus][:1]!r:.300}"
    )
    assert not surplus, f"{what}: {surplus.total()} are too many, as {next(iter(surplus))!r:.300}"


def everything(scene: Scene, topic: str) -> list[Record]:
    return list(scene.client.read(scene.client.snapshot([topic])))


@contextlib.contextmanager
def made(scene: Scene, kind: str, **settings: Any) -> Iterator[str]:
    """Make a topic, and remove it."""
    name = unique(f"odd-{kind}")
    scene.client.topics.create(name, **{"retention_ms": -1, **settings})
    try:
        yield name
    finally:
        scene.client.topics.delete(name)


def a_cut(scene: Scene) -> None:
    found = everything(scene, scene.topic)
    same(Counter(map(content_of, found)), scene.expected(), "a cut")
    times = Counter(record.timestamp for record in scene.sent if record.timestamp is not None)
    assert not times - Counter(record.timestamp for record in found)


def consumers(scene: Scene) -> None:
    for isolation in ("read_committed", "read_uncommitted"):
        group = unique("group")
        found: list[Record] = []
        with scene.client.consumer(
            scene.topic, group=group, isolation=isolation, auto_offset_reset="earliest", enable_auto_commit=False
        ) as consumer:
            while any(consumer.offset_lag().values()) or not consumer.assignment():
                found += consumer.poll(1.0)
            consumer.commit()
        same(Counter(map(content_of, found)), scene.expected(), isolation)
        assert scene.client.admin.groups.describe(group).lag == 0
        scene.client.admin.groups.delete(group)


def share_groups(scene: Scene) -> None:
    for ordering in ("none", "key"):
        group = unique("share")
        scene.client.admin.shares.configure(group, {"auto_offset_reset": "earliest", "ordering": ordering})
        found: list[Record] = []
        with scene.client.share_consumer(scene.topic, group=group, acknowledgement_mode="explicit") as consumer:
            while records := consumer.poll(0.5):
                found += records
                for record in records:
                    consumer.acknowledge(record)
                consumer.commit()
        expected = Counter(content_of(record) for record in scene.sent if _delay(record) <= time.time() * 1000)
        same(Counter(map(content_of, found)), expected, f"a share group with ordering={ordering}")
        described = scene.client.admin.shares.describe(group)
        assert described.lag == scene.waits(), described
        scene.client.admin.shares.delete(group)


def process(scene: Scene) -> None:
    with made(scene, "copy") as copy:
        name = unique("process")
        scene.client.process(
            scene.topic, to=copy, group=name, transactional_id=name, idle_timeout="200ms",
            transform=lambda record: OutputRecord(record.value, record.key, record.headers, record.timestamp),
        )  # fmt: skip
        same(Counter(map(content_of, everything(scene, copy))), scene.expected(), "process")
        assert Counter(r.timestamp for r in everything(scene, copy)) == Counter(
            r.timestamp for r in everything(scene, scene.topic)
        )


def refuse(record: Record) -> None:
    """Fail with the content of a record as text, whatever it is."""
    raise ValueError((record.value or record.key or b"").decode("utf-8", "surrogateescape"))


def dead_letters(scene: Scene) -> None:
    with made(scene, "letters") as letters, made(scene, "none") as none:
        name = unique("process")
        began = time.time() * 1000 - 60_000
        scene.client.process(
            scene.topic, to=none, group=name, transactional_id=name, idle_timeout="200ms",
            failure=msgtx.DeadLetter(letters, 0), transform=refuse, max_failures_in_a_row=1_000_000,
        )  # fmt: skip
        found = everything(scene, letters)
        assert len(found) == len(scene.sent), len(found)
        assert min(letter.timestamp for letter in found) > began, "retention counts from now"
        own = len(dead_letter_of(Record("t", 0, 0, 0, None, None), ValueError(), letters, group=name, deliveries=1).headers)
        same(
            Counter((letter.value, letter.key, letter.headers[:-own]) for letter in found), scene.expected(), "dead letters"
        )
        times = Counter(int(dict(letter.headers[-own:])["msgtx.dead-letter.timestamp"] or b"") for letter in found)
        assert times == Counter(record.timestamp for record in everything(scene, scene.topic))


def dead_letters_of_outputs(scene: Scene) -> None:
    """Each record makes an output that is refused."""
    bad = [odd for odd in REFUSED if odd.rest.keys() <= {"timestamp", "headers", "key"}]
    chance = random.Random(1)
    with made(scene, "letters") as letters, made(scene, "out") as out:
        name = unique("process")

        def transform(record: Record) -> Any:
            if record.offset % 40 != 7:
                return OutputRecord(record.value, record.key, record.headers)
            odd = chance.choice(bad)
            return OutputRecord(odd.value, **{"headers": (), **odd.rest})

        scene.client.process(
            scene.topic, to=out, group=name, transactional_id=name, idle_timeout="200ms",
            failure=msgtx.DeadLetter(letters, 0), transform=transform,
        )  # fmt: skip
        expected = sum(record.offset % 40 == 7 for record in everything(scene, scene.topic))
        found = len(everything(scene, letters)), len(everything(scene, out))
        assert found == (expected, len(scene.sent) - expected), found


def process_into(scene: Scene) -> None:
    name = unique("into")
    seen: list[Record] = []
    with made(scene, "letters") as letters:

        def handler(session: Session, record: Record) -> None:
            session.execute(sqlalchemy.text("select octet_length(:value)"), {"value": record.value})
            if record.offset % 20 == 3:
                refuse(record)
            seen.append(record)

        scene.client.process_into(
            sessionmaker(scene.engine), handler, scene.topic, group=name,
            failure=msgtx.DeadLetter(letters, 0), idle_timeout="200ms",
        )  # fmt: skip
        expected = sum(record.offset % 20 == 3 for record in everything(scene, scene.topic))
        assert len(everything(scene, letters)) == expected
        assert scene.client.admin.groups.describe(name).lag == 0


def rejects_and_redrive(scene: Scene) -> None:
    """All records become letters of a share group, are sent back, and read again."""
    group = unique("share")
    scene.client.admin.shares.configure(group, {"auto_offset_reset": "earliest"})
    with made(scene, "source") as source:
        with scene.client.producer() as producer:
            for record in scene.sent:
                if _delay(record) <= time.time() * 1000:
                    producer.send(
                        source, record.value, key=record.key, headers=record.headers or None, timestamp=record.timestamp
                    )
            producer.flush(SECONDS)
        before = everything(scene, source)
        with scene.client.share_consumer(source, group=group, acknowledgement_mode="explicit") as consumer:
            while records := consumer.poll(0.5):
                for record in records:
                    reason = as_reason((record.value or b"").decode("utf-8", "surrogateescape"))  # as workers do
                    consumer.acknowledge(record, Acknowledgement.REJECT, reason=reason)
                consumer.commit()
        letters = everything(scene, f"{group}-dead-letters")
        assert len(letters) == len(before), (len(letters), len(before))
        assert min(letter.timestamp for letter in letters) > time.time() * 1000 - 600_000
        described = scene.client.admin.shares.describe(group)
        assert (described.lag, described.dead_letters) == (0, len(letters))
        assert scene.client.admin.shares.redrive(group).sent == len(letters)
        again = everything(scene, source)[len(before) :]
        found = Counter((r.value, r.key, r.headers if dict(r.headers).keys() >= {"msgtx.timestamp"} else ()) for r in again)
        expected = Counter((r.value, r.key, _redriven(r)) for r in before)
        same(found, expected, "redriven")
        scene.client.admin.shares.delete(group)
        scene.client.topics.delete(f"{group}-dead-letters")


def _redriven(record: Record) -> tuple[tuple[str, bytes | None], ...]:
    headers = tuple(record.headers)
    if any(name == "msgtx.timestamp" for name, _ in headers):
        return headers
    return (*headers, ("msgtx.timestamp", b"%d" % record.timestamp))


def compaction(scene: Scene) -> None:
    """What is left is the newest record of each key."""
    with made(scene, "compacted", cleanup_policy="compact", delete_retention_ms=10**12) as topic:
        with scene.client.producer() as producer:
            for record in scene.sent:
                key = record.key if record.key is not None else b"none"
                producer.send(topic, record.value, key=key, headers=record.headers or None, timestamp=record.timestamp)
            producer.flush(SECONDS)
        newest = {record.key: content_of(record) for record in everything(scene, topic)}
        sweeper = Sweeper(["markers", "floors"])
        with scene.client.runtime.engine.connection() as connection:
            sweeper.round(connection)
            step, after = Compactor(min_dirty_ratio=0, rows_at_once=50), None
            while (after := step(connection, after, None).after) is not None:
                pass
        found = everything(scene, topic)
        assert len(found) == len(newest), (len(found), len(newest))
        assert {record.key: content_of(record) for record in found} == newest


def views(scene: Scene) -> None:
    """Views, functions and mapped classes; each value as JSON."""
    with scene.client.runtime.engine.connection() as connection:
        asked = [scene.topic]
        for view in ("records", "committed_records", "committed_records_now"):
            rows = connection.execute(
                f"select value, key, header_keys, header_values, msgtx.value_json(value),"
                f" msgtx.value_json(key),"
                f" to_timestamp(timestamp / 1000.0) from msgtx.{view} where topic = %s",
                asked,
            ).fetchall()
            found = Counter(
                (value, key, tuple(zip(names or (), contents or (), strict=True)))
                for value, key, names, contents, *_ in rows
            )
            same(found, scene.expected(), view)
        for view in ("record_batches", "partitions"):
            connection.execute(f"select * from msgtx.{view} where topic = %s", asked).fetchall()
        connection.execute("select * from msgtx.read(%s, 0, null, null)", asked).fetchall()
    with Session(scene.engine) as session:
        for each in session.scalars(sqlalchemy.select(orm.CommittedRecord).where(orm.CommittedRecord.topic == scene.topic)):
            assert each.value is None or isinstance(each.value, bytes)
        session.execute(
            sqlalchemy.select(orm.CommittedRecord.value_json).where(orm.CommittedRecord.topic == scene.topic)
        ).all()


def command_line(scene: Scene) -> None:
    """`consume -o jsonl | produce --json` copies all of it; `consume` prints each as a line."""
    with made(scene, "copied") as copy:
        lines = _run(scene, "consume", scene.topic, "--from-beginning", "--no-follow", "-o", "jsonl")
        _run(scene, "produce", copy, "--json", stdin=lines)
        same(Counter(map(content_of, everything(scene, copy))), scene.expected(), "consume | produce")
        assert Counter(r.timestamp for r in everything(scene, copy)) == Counter(
            r.timestamp for r in everything(scene, scene.topic)
        )
        _run(scene, "consume", scene.topic, "--from-beginning", "--no-follow")


def _run(scene: Scene, *arguments: str, stdin: bytes = b"") -> bytes:
    ended = subprocess.run(
        [sys.executable, "-m", "msgtx.cli", *arguments], input=stdin, capture_output=True, check=False,
        env={**os.environ, "MSGTX_DATABASE_URL": scene.url},
    )  # fmt: skip
    assert ended.returncode == 0, (arguments, ended.stderr.decode(errors="replace")[-500:])
    return ended.stdout


def measures(scene: Scene) -> None:
    """Lags, gauges, `doctor`, `verify`, offsets by time, what is between two cuts, every sweep."""
    client = scene.client
    group = unique("measured")
    with client.consumer(group=group) as consumer:
        consumer.assign([msgtx.TopicPartition(scene.topic, index) for index in range(PARTITIONS)])
        consumer.commit({msgtx.TopicPartition(scene.topic, index): 0 for index in range(PARTITIONS)})
        consumer.offsets_for_times({msgtx.TopicPartition(scene.topic, 0): 10**12})
    assert client.admin.groups.describe(group).lag == len(scene.sent)
    share = unique("measured-share")
    client.admin.shares.configure(share, {"auto_offset_reset": "earliest", "ordering": "key"})
    with client.share_consumer(scene.topic, group=share, acknowledgement_mode="explicit") as member:
        while member.poll(0.2):  # held, or delayed for thousands of years
            pass
        client.admin.shares.list()
        assert client.admin.shares.describe(share).lag == len(scene.sent)
        with client.runtime.engine.connection() as connection:
            for view in (
                "share_groups",
                "share_partitions",
                "share_spans",
                "consumer_groups",
                "group_offsets",
                "partitions",
            ):
                connection.execute(f"select * from msgtx.{view}").fetchall()
        _measure(scene, group)
    client.admin.shares.delete(share)
    client.admin.groups.delete(group)


def _measure(scene: Scene, group: str) -> None:
    client = scene.client
    for metric in Gauges(client.runtime.engine).collect():
        assert metric.samples is not None
    client.admin.doctor()
    report = client.admin.verify([scene.topic])
    assert report.violations == [], report.violations
    assert report.records == len(scene.sent), report
    client.sweep()
    assert client.admin.groups.describe(group).lag == len(scene.sent), "a sweep has removed something"


def traces(scene: Scene) -> None:
    """OpenTelemetry reads headers of traces, and says in its log which it cannot read."""
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    found = everything(scene, scene.topic)
    for record in found:
        otel.context_of(record)
    otel.links(found)


ONLOOKERS: Final[tuple[Onlooker, ...]] = (
    a_cut, consumers, share_groups, process, dead_letters, dead_letters_of_outputs, process_into, rejects_and_redrive,
    compaction, views, command_line, measures, traces,
)  # fmt: skip


@click.command()
@click.option("--minutes", type=float, default=1.0, show_default=True)
@click.option("--seed", type=int, default=None, help="Makes the records of the first scene. Default: the time.")
def main(*, minutes: float, seed: int | None) -> None:
    """Have every onlooker look at scenes of odd records; the exit code is that of tests/verdicts.py."""
    logging.getLogger("msgtx").setLevel(logging.ERROR)  # each record that is set aside has its line
    chosen = int(time.time()) if seed is None else seed
    deadline = time.monotonic() + 60 * minutes
    failures: list[str] = []
    looked = scenes = 0
    with tempfile.TemporaryDirectory(prefix="msgtx-onlookers-") as folder, crash_server() as server:
        Path(folder).chmod(0o700)
        url = server.server.create_database()
        with msgtx.connect(url) as client:
            while scenes == 0 or (time.monotonic() < deadline and not failures):
                click.echo(f"seed {chosen + scenes}")
                found, count = look(client, url, seed=chosen + scenes, count=RECORDS, deadline=deadline)
                failures += found
                looked += count
                scenes += 1
    again = f"tests.onlookers --minutes 0.1 --seed {chosen + scenes - 1}"
    conclude(failures, looked=f"records looked at, together {looked}", again=again)


def look(client: msgtx.Client, url: str, *, seed: int, count: int, deadline: float) -> tuple[list[str], int]:
    """Make a scene and have each onlooker look at it, while there is time. Return failures and what was looked at."""
    scene = Scene(client, url, seed=seed, count=count)
    failures, looked = list(scene.failures), 0
    for onlooker in ONLOOKERS:
        if looked and time.monotonic() > deadline:
            break
        try:
            onlooker(scene)
        except Exception as error:  # noqa: BLE001 - reported; the others look, too
            failures.append(f"seed {seed}, {onlooker.__name__}: {type(error).__name__}: {error}"[:1_000])
        looked += count
    with contextlib.suppress(msgtx.errors.MsgtxError):
        scene.close()
    return failures, looked


if __name__ == "__main__":
    main()
