"""One client of each kind, all at work while their primary is lost: what each did and was answered is recorded.

Each kind is a function that works in a thread of its own until it is to stop. It repeats a *step*, which ends with an answer
of the primary. The first answer after a promotion ends the gap of this kind.
"""

import asyncio
import bisect
import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg
import sqlalchemy
from sqlalchemy.orm import Session, sessionmaker

import msgtx
from msgtx import OutputRecord, Record, ShareRecord, TopicPartition, aio, errors, orm
from tests.histories.anomalies import Anomaly, Name
from tests.histories.checker import check, check_outputs
from tests.histories.history import History, Recorder, Result, read_history
from tests.histories.recorded import ConsumerTape, ProducerTape, text_of
from tests.histories.settled import settled

FEED: Final = "feed"  # all consumers read it; it is also mirrored to the other database
ARRIVING: Final = "arriving"  # is mirrored from there
TOPICS: Final = {FEED: 3, "spread": 3, "copied": 2, "handled": 2, "published": 2, "awaited": 1, ARRIVING: 2}
PAUSE_SECONDS: Final = 0.03  # between two steps
STEP_SECONDS: Final = 120.0  # a step takes no longer: an election, and the wait for a frozen server
END_SECONDS: Final = 120.0  # until all that was sent has been handled
LOOK_SECONDS: Final = 0.1  # between two looks at that
RETRY: Final = {"retry_backoff_ms": 10, "request_timeout_ms": 3_000, "max_block_ms": 110_000, "linger_ms": 0}
MEMBER: Final = {"auto_offset_reset": "earliest", "retry_backoff_ms": 10, "request_timeout_ms": 3_000}
TABLES: Final = ("row_handled", "row_sqlalchemy", "row_psycopg")
# Another call of a member does what these refuse, as when a group has taken partitions from a member that was away for long.
OF_MEMBERS: Final = (errors.RetriableError, errors.AbortableError)
# What a user's own session is told when its server is gone; msgtx's own calls are repeated by themselves.
OF_SESSIONS: Final = (sqlalchemy.exc.SQLAlchemyError, psycopg.Error, errors.DatabaseUnavailable)


@dataclass
class Work:
    """What a kind works with. `failure`: the exception that has ended it."""

    name: str
    url: str
    other_url: str
    recorder: Recorder
    stop: threading.Event
    failure: BaseException | None = None
    # A share group's own notes: by value, when a delivery was asked for, and when its acceptance was answered.
    asked: dict[str, list[int]] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    answers: list[int] = field(default_factory=list)  # when it had them

    def value(self) -> tuple[int, bytes]:
        """Return a number and a value of its own."""
        number = next(self.numbers)
        return number, f"{self.name}/{number}".encode()

    @contextlib.contextmanager
    def step(self, *tolerated: type[BaseException]) -> Iterator[None]:
        """Record a step, and pause behind it. Its answer may be one of these exceptions."""
        number = self.recorder.invoke("step", client=self.name, within=STEP_SECONDS)
        try:
            yield
        except tolerated as error:
            self.recorder.complete(Result.INFO, number, error=type(error).__name__, detail=str(error))
        else:
            self.answers.append(time.monotonic_ns())
            self.recorder.complete(Result.OK, number)
        self.stop.wait(PAUSE_SECONDS)

    def answered(self, *_: object) -> None:
        """Note an answer that a loop of the library got."""
        self.answers.append(time.monotonic_ns())
        self.recorder.happened("step", arguments={"client": self.name})

    @contextlib.contextmanager
    def sending(self, topic: str, partition: int, value: bytes) -> Iterator[None]:
        """Record a send outside a producer. If the block raises, it may have been stored."""
        number = self.recorder.invoke(
            "send", topic=topic, partition=partition, values=[text_of(value)], transaction=None, acks="all", once=True,
            producer=f"{self.name}-{value.decode()}",
        )  # fmt: skip
        try:
            yield
        except BaseException as error:
            self.recorder.complete(Result.INFO, number, error=type(error).__name__)
            raise
        self.recorder.complete(Result.OK, number, offsets=[-1])


# ── producers ──


def idempotent(work: Work) -> None:
    """An idempotent producer: it feeds all that consume."""
    with msgtx.connect(work.url) as client, client.producer(**RETRY) as producer:
        tape = ProducerTape(producer, work.recorder)
        while not work.stop.is_set():
            number, value = work.value()
            with work.step():
                producer.send(FEED, value, partition=number % TOPICS[FEED]).result(STEP_SECONDS)
            tape.settle()


def transactional(work: Work) -> None:
    """A transactional producer: each transaction writes to all partitions of a topic."""
    with (
        msgtx.connect(work.url) as client,
        contextlib.closing(client.producer(transactional_id=work.name, **RETRY)) as producer,
    ):
        ProducerTape(producer, work.recorder)
        producer.init_transactions()
        while not work.stop.is_set():
            with work.step(errors.AbortableError), producer.transaction():
                for partition in range(TOPICS["spread"]):
                    producer.send("spread", work.value()[1], partition=partition)


def asynchronous(work: Work) -> None:
    """A producer of `msgtx.aio`."""

    async def send() -> None:
        async with await aio.connect(work.url) as client, client.producer(**RETRY) as producer:
            while not work.stop.is_set():
                _, value = work.value()
                with work.step(), work.sending("awaited", 0, value):
                    await (await producer.send("awaited", value, partition=0))

    asyncio.run(send())


# ── consumers ──


def reader(work: Work) -> None:
    """A consumer without a group, of transactions."""
    with msgtx.connect(work.url) as client:
        consumer = client.consumer(enable_auto_commit=False, **MEMBER)
        tape = ConsumerTape(consumer, work.recorder)
        consumer.assign([TopicPartition("spread", partition) for partition in range(TOPICS["spread"])])
        tape.begin()
        _consume(work, consumer, tape)


def group(work: Work) -> None:
    """A member of a consumer group that commits what it has got."""
    with msgtx.connect(work.url) as client:
        consumer = client.consumer(group=work.name, enable_auto_commit=False, **MEMBER)
        tape = ConsumerTape(consumer, work.recorder)
        tape.subscribe([FEED])
        _consume(work, consumer, tape, commits=True)
        consumer.close()


def _consume(work: Work, consumer: msgtx.Consumer, tape: ConsumerTape, *, commits: bool = False) -> None:
    """Poll until all writers have ended and everything is read."""
    records: list[Record] = []
    while records or not work.stop.is_set() or not _is_at_the_end(consumer):
        with work.step(*OF_MEMBERS):
            records = _some(lambda: consumer.poll(0.1), work)
            if commits and records:
                consumer.commit()
    tape.drained()


def _some(poll: Callable[[], list[Any]], work: Work) -> list[Any]:
    """Poll until there is something, or until the end: an empty poll need not have asked the server."""
    while not (found := poll()) and not work.stop.is_set():
        pass
    return found


def _is_at_the_end(consumer: msgtx.Consumer) -> bool:
    return all(consumer.position(partition) == end for partition, end in consumer.end_offsets().items())


def share(work: Work) -> None:
    """A member of a share group that accepts record by record."""
    with msgtx.connect(work.url) as client:
        client.admin.shares.configure(work.name, {"auto_offset_reset": "earliest", "record_lock_duration_ms": 5_000})
        member = client.share_consumer(
            FEED, group=work.name, acknowledgement_mode="explicit", max_poll_records=3, retry_backoff_ms=10,
            request_timeout_ms=3_000,
        )  # fmt: skip
        while not work.stop.is_set():
            with work.step(*OF_MEMBERS):
                asked = time.monotonic_ns()
                for record in _some(lambda: member.poll(0.1), work):
                    _accept(work, member, record, asked)
        member.close()


def _accept(work: Work, member: msgtx.ShareConsumer, record: ShareRecord, asked: int) -> None:
    value = text_of(record.value)
    work.asked.setdefault(value, []).append(asked)
    member.acknowledge(record)
    member.commit()
    work.accepted.setdefault(value, time.monotonic_ns())


# ── workers ──


def worker(work: Work) -> None:
    """`process`: each record of the feed has one copy."""

    def copied(record: Record) -> OutputRecord:
        return OutputRecord(f"{text_of(record.value)}>copied".encode(), partition=record.partition % 2)

    with msgtx.connect(work.url) as client:
        client.process(
            FEED, to="copied", group=work.name, transactional_id=work.name, transform=copied, stop=work.stop,
            transaction_ms=30, on_commit=work.answered, consumer_config=MEMBER, **RETRY,
        )  # fmt: skip


def process_into(work: Work) -> None:
    """`process_into`: each record of the feed has one row and one message."""

    def handle(session: Session, record: Record) -> None:
        value = f"{text_of(record.value)}>handled"
        session.execute(sqlalchemy.text("insert into row_handled values (:value)"), {"value": value})
        msgtx.publish(session, "handled", value.encode(), partition=record.partition % 2)

    with msgtx.connect(work.url) as client:
        engine = client.engine()
        client.process_into(
            sessionmaker(engine), handle, FEED, group=work.name, stop=work.stop, transaction_ms=30,
            on_commit=work.answered, **MEMBER,
        )  # fmt: skip
        engine.dispose()


# ── services that publish with their rows ──


def publish_sqlalchemy(work: Work) -> None:
    with msgtx.connect(work.url) as client:
        engine = client.engine()
        while not work.stop.is_set():
            _, value = work.value()
            with work.step(*OF_SESSIONS), work.sending("published", 0, value), Session(engine) as session:
                session.execute(sqlalchemy.text("insert into row_sqlalchemy values (:value)"), {"value": value.decode()})
                orm.publish(session, "published", value, partition=0)
                session.commit()
        engine.dispose()


def publish_psycopg(work: Work) -> None:
    session: psycopg.Connection[Any] | None = None
    while not work.stop.is_set():
        _, value = work.value()
        with work.step(*OF_SESSIONS), work.sending("published", 1, value):
            if session is None or session.closed:
                session = psycopg.connect(work.url, prepare_threshold=None)  # also through a pooler
            with session.transaction():
                session.execute("insert into row_psycopg values (%s)", [value.decode()])
                msgtx.publish(session, "published", value, partition=1)
    if session is not None:
        session.close()


# ── mirrors ──


def mirror_out(work: Work) -> None:
    """A mirror from the primary to another database."""
    with msgtx.connect(work.url) as client:
        client.mirror(FEED, name=work.name, target=work.other_url, stop=work.stop, on_progress=_grown(work))


def mirror_in(work: Work) -> None:
    """A mirror from another database to the primary."""
    with msgtx.connect(work.url) as client:
        client.mirror(ARRIVING, name=work.name, source=work.other_url, stop=work.stop, on_progress=_grown(work))


def _grown(work: Work) -> Callable[[msgtx.MirrorReport], None]:
    """Note an answer when a mirror has copied more."""
    before = Counter[str]()

    def told(report: msgtx.MirrorReport) -> None:
        if report.records > before["records"]:
            before["records"] = report.records
            work.answered()

    return told


def arriving(work: Work) -> None:
    """A producer of the other database: it feeds a mirror."""
    with msgtx.connect(work.other_url) as client, client.producer(**RETRY) as producer:
        while not work.stop.is_set():
            number, value = work.value()
            producer.send(ARRIVING, value, partition=number % TOPICS[ARRIVING]).result(STEP_SECONDS)
            work.stop.wait(PAUSE_SECONDS)


Kind = Callable[[Work], None]
FIRST: Final = (idempotent, transactional, asynchronous, publish_sqlalchemy, publish_psycopg, arriving)
LAST: Final = (reader, group, share, worker, process_into, mirror_out, mirror_in)  # they read what those write
KINDS: Final = tuple(kind.__name__ for kind in (*FIRST, *LAST) if kind is not arriving)


class Clients:
    """One client of each kind. `url` leads to all servers; `other_url` is a database that is not lost."""

    def __init__(self, url: str, other_url: str, folder: Path) -> None:
        self.url = url
        self.other_url = other_url
        self.folder = folder
        self.works: dict[str, Work] = {}
        self._threads: dict[str, threading.Thread] = {}
        with msgtx.connect(url) as client:
            for name, partitions in TOPICS.items():
                if name != ARRIVING:
                    client.topics.create(name, partitions=partitions)
        with psycopg.connect(url) as connection:
            for table in TABLES:
                connection.execute(f"create table {table} (value text)")
        with msgtx.connect(other_url) as other:
            other.topics.create(ARRIVING, partitions=TOPICS[ARRIVING])

    def start(self) -> None:
        """Start all, and wait until each has had an answer."""
        for kind in (*FIRST, *LAST):
            recorder = Recorder(self.folder, f"{kind.__name__}.0")
            work = Work(kind.__name__, self.url, self.other_url, recorder, threading.Event())
            self.works[work.name] = work
            self._threads[work.name] = threading.Thread(target=partial(_run, kind, work), name=work.name, daemon=True)
            self._threads[work.name].start()
        self.await_answers(time.monotonic_ns())

    def await_answers(self, since: int) -> dict[str, float]:
        """Wait until each kind has had an answer after this time. Return how many seconds that took each."""
        waiting = {*KINDS}

        def have_all() -> bool:
            waiting.difference_update([name for name in waiting if self._first(name, since) is not None])
            return not waiting

        self._wait(have_all, lambda: f"these have no answer: {sorted(waiting)}")
        return {name: ((self._first(name, since) or since) - since) / 1e9 for name in KINDS}

    def _first(self, name: str, since: int) -> int | None:
        answers = self.works[name].answers
        at = bisect.bisect_right(answers, since)
        return answers[at] if at < len(answers) else None

    def _wait(self, condition: Callable[[], bool], told: Callable[[], str]) -> None:
        deadline = time.monotonic() + END_SECONDS
        while not condition():
            self._check()
            assert time.monotonic() < deadline, told()
            time.sleep(LOOK_SECONDS)

    def _check(self) -> None:
        for work in self.works.values():
            if work.failure is not None:
                raise AssertionError(f"{work.name} has ended: {work.failure!r}") from work.failure

    def finish(self) -> None:
        """Let writers end, then the others when they have handled all that is there."""
        self._end(FIRST)
        with msgtx.connect(self.url) as client, msgtx.connect(self.other_url) as other:
            fed = set(values(client, FEED))
            complete = {
                "copied": lambda: set(values(client, "copied")) >= {f"{value}>copied" for value in fed},
                "handled": lambda: set(values(client, "handled")) >= {f"{value}>handled" for value in fed},
                "accepted": lambda: client.admin.shares.describe("share").lag == 0,
                "mirror out": lambda: set(values(other, FEED)) >= fed,
                "mirror in": lambda: set(values(client, ARRIVING)) >= set(values(other, ARRIVING)),
            }
            for what, condition in complete.items():
                self._wait(condition, lambda what=what: f"not all is there: {what}")
        self._end(LAST)

    def _end(self, kinds: Iterable[Kind]) -> None:
        for kind in kinds:
            self.works[kind.__name__].stop.set()
        for kind in kinds:
            self._threads[kind.__name__].join(END_SECONDS)
            assert not self._threads[kind.__name__].is_alive(), f"{kind.__name__} does not end"
        self._check()

    def close(self) -> None:
        """Let all end, whatever they have done."""
        for work in self.works.values():
            work.stop.set()
        for thread in self._threads.values():
            thread.join(END_SECONDS)

    def judge(self) -> list[Anomaly]:
        """Compare what was recorded with what is stored: what was lost, doubled or torn."""
        history = read_history(self.folder)
        with msgtx.connect(self.url) as client, msgtx.connect(self.other_url) as other:
            names = [name for name in TOPICS if name != ARRIVING]
            own = (FEED, "spread", "published", "awaited")  # what copies write is judged by their inputs
            partitions = {name: [TopicPartition(name, index) for index in range(TOPICS[name])] for name in names}
            end = settled(
                client, history, partitions=[each for name in own for each in partitions[name]],
                groups={"group": partitions[FEED]},
            )  # fmt: skip
            whole = settled(client, History([]), partitions=[each for name in names for each in partitions[name]], groups={})
            found = check(history, end)
            for target in ("copied", "handled"):
                found += check_outputs(whole, partitions[FEED], target)
            found += _judge_rows(client, self.url)
            found += _judge_share(self.works["share"], values(client, FEED))
            for topic, copied, source in ((FEED, other, client), (ARRIVING, client, other)):
                if places(copied, topic) != places(source, topic):
                    found.append(Anomaly(Name.IMAGE, f"the mirror of {topic} is not its source"))
            found += [Anomaly(Name.VIOLATION, str(each)) for each in other.admin.verify().violations]
        return found


def _run(kind: Kind, work: Work) -> None:
    try:
        kind(work)
    except BaseException as error:  # noqa: BLE001 - the test raises it
        work.failure = error


def values(client: msgtx.Client, topic: str) -> list[str]:
    """Return what is committed in a topic; nothing if there is none."""
    if topic not in client.topics.list():
        return []
    return [text_of(record.value) for record in client.read(client.snapshot([topic]))]


def places(client: msgtx.Client, topic: str) -> dict[int, list[str]]:
    """Return what is committed in each partition of a topic, in order."""
    found: dict[int, list[str]] = {}
    for record in client.read(client.snapshot([topic])):
        found.setdefault(record.partition, []).append(text_of(record.value))
    return found


def _judge_rows(client: msgtx.Client, url: str) -> Iterator[Anomaly]:
    """I6: each message has its row, and each row its message."""
    with psycopg.connect(url) as connection:
        rows = Counter(value for each in TABLES for (value,) in connection.execute(f"select value from {each}").fetchall())
    messages = Counter(values(client, "handled") + values(client, "published"))
    for value in rows.keys() | messages.keys():
        if rows[value] != messages[value] or messages[value] > 1:
            yield Anomaly(Name.ROW_SPLIT, f"{value} has {rows[value]} rows and {messages[value]} messages")


def _judge_share(work: Work, fed: list[str]) -> Iterator[Anomaly]:
    """I17: each record is delivered, and none is delivered to a poll that began when it was accepted."""
    for value in fed:
        if value not in work.asked:
            yield Anomaly(Name.NEVER_PROCESSED, f"{value} was not delivered to the share group")
        elif value in work.accepted and max(work.asked[value]) > work.accepted[value]:
            yield Anomaly(Name.PROCESSED_TWICE, f"{value} was delivered after it was accepted")
