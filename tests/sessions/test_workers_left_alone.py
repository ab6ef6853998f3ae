"""Workers that nobody watches: they outlive outages, and give no record up for what is not its fault (I10, I17)."""

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

import msgtx
from msgtx import Acknowledgement, ProcessReport, Record, aio, errors
from msgtx.database import address
from msgtx.database.faults import fault_of
from msgtx.errors import Fault
from msgtx.observer import Observer
from tests.databases import wait_until
from tests.links import Link, slow_link
from tests.sessions.conftest import Shop, application_url
from tests.store.steps import unique

pytestmark = pytest.mark.slow

KINDS: Final = ["into", "async", "shares", "process", "shares in process"]
GIVING_UP: Final = {"into": msgtx.Skip(after=0), "shares": Acknowledgement.REJECT, "process": msgtx.Skip(after=0)}
OUTAGE_SECONDS: Final = 1.5  # several times `request_timeout_ms`


def through(link: Link, url: str) -> str:
    """Return an address of SQLAlchemy that leads over a link."""
    place = address.parse(link.url)
    return make_url(application_url(url)).set(host=place["host"], port=int(place["port"])).render_as_string(False)


@dataclass
class Crew:
    """Workers of each kind on the shop's topic, whose client and sessions reach the database over a link."""

    shop: Shop
    link: Link
    client: msgtx.Client
    target: str
    handled: list[bytes | None] = field(default_factory=list)
    before: Callable[[Record], object] = lambda record: None
    stop: threading.Event = field(default_factory=threading.Event)
    raised: list[BaseException] = field(default_factory=list)
    reports: list[ProcessReport] = field(default_factory=list)

    @contextlib.contextmanager
    def running(self, kind: str, **options: Any) -> Iterator[threading.Thread]:
        """Have a worker run in a thread within the block."""
        thread = threading.Thread(target=self._run, args=(kind,), kwargs=options)
        thread.start()
        try:
            yield thread
        finally:
            self.stop.set()
            self.link.come_back()
            thread.join(60)
            assert not thread.is_alive()

    def _run(self, kind: str, **options: Any) -> None:
        try:
            self.reports.append(self.work(kind, **{"stop": self.stop, "transaction_ms": 20, **options}))
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.raised.append(error)

    def work(self, kind: str, **options: Any) -> ProcessReport:
        """Run a worker."""
        topic, shared = self.shop.topic, kind.startswith("shares")
        if shared:
            settings = {"auto_offset_reset": "earliest", "delivery_count_limit": 5}
            self.shop.client.admin.shares.configure(topic, settings)
            options = {"share_members": 1, **options}
        consuming = {"request_timeout_ms": "300ms", **({} if shared else {"session_timeout_ms": "6s"})}
        options = {"group": topic, "consumer_config": consuming, **options}
        if kind == "async":
            return asyncio.run(self._into_async(options))
        if kind.endswith("process"):
            return self.client.process(
                topic, to=self.target, transactional_id=topic, transform=self.transform, max_block_ms="1s", **options
            )
        engine = self.shop.engine(through(self.link, self.shop.url), pool_pre_ping=True)
        return self.client.process_into(sessionmaker(engine), self.handle, topic, **options)

    def transform(self, record: Record) -> bytes | None:
        self.before(record)
        self.handled.append(record.value)
        return record.value

    def handle(self, session: Session, record: Record) -> None:
        self.before(record)
        session.execute(text("insert into orders (number) values (:n)"), {"n": int(record.value or b"")})
        self.handled.append(record.value)

    async def _into_async(self, options: Any) -> ProcessReport:
        engine = create_async_engine(through(self.link, self.shop.url), pool_pre_ping=True)

        async def handle(session: AsyncSession, record: Record) -> None:
            self.before(record)
            await session.execute(text("insert into orders (number) values (:n)"), {"n": int(record.value or b"")})
            self.handled.append(record.value)

        async with await aio.connect(self.link.url) as client:
            try:
                return await client.process_into(async_sessionmaker(engine), handle, self.shop.topic, **options)
            finally:
                await engine.dispose()

    def results(self, kind: str) -> list[int]:
        """What the worker has made of the records."""
        if kind.endswith("process"):
            return sorted(int(record.value or b"") for record in self.shop.read(self.target))
        return self.shop.rows()

    def wait_for(self, kind: str, *wanted: int) -> None:
        wait_until(lambda: self.raised or self.results(kind) == [*wanted], f"results {wanted}")
        assert self.raised == []


@pytest.fixture
def crew(shop: Shop, database_url: str, caplog: pytest.LogCaptureFixture) -> Iterator[Crew]:
    caplog.set_level(logging.INFO, "msgtx")
    with slow_link(database_url) as link, msgtx.connect(link.url) as client:
        try:
            yield Crew(shop, link, client, shop.make_topic())
        finally:
            link.come_back()


def lines(caplog: pytest.LogCaptureFixture, logger: str, *starts: str) -> list[str]:
    """Return the lines of a logger that begin so."""
    return [each.getMessage() for each in caplog.records if each.name == logger and each.getMessage().startswith(starts)]


# ── outages ──


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_outlives_an_outage(crew: Crew, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    crew.shop.send(b"1")
    with crew.running(kind):
        crew.wait_for(kind, 1)
        crew.link.leave()
        time.sleep(OUTAGE_SECONDS)
        crew.shop.send(b"2")
        crew.link.come_back()
        crew.wait_for(kind, 1, 2)
        wait_until(lambda: lines(caplog, "msgtx.database", "the database is back"), "it is said")
    assert (crew.raised, crew.reports[0].failed) == ([], 0)
    told = lines(caplog, "msgtx.database", "the database is away")
    clients = 2 if kind == "async" else 1
    assert 1 <= len(told) <= clients, "one line of an outage and client"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "async"])
def test_a_worker_that_starts_in_an_outage_waits(crew: Crew, kind: str) -> None:
    crew.shop.send(b"1")
    crew.link.leave()
    with crew.running(kind):
        time.sleep(OUTAGE_SECONDS)
        assert (crew.raised, crew.results(kind)) == ([], [])
        crew.link.come_back()
        crew.wait_for(kind, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_stop_ends_the_wait_for_a_database(crew: Crew, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    crew.shop.send(b"1")
    with crew.running(kind, consumer_config={}) as worker:
        crew.wait_for(kind, 1)
        crew.link.leave()
        wait_until(lambda: lines(caplog, "msgtx.database", "the database is away"), "it is said")
        crew.stop.set()
        worker.join(10.0)
        assert not worker.is_alive(), "it does not wait for request_timeout_ms, 30 s"
    assert crew.raised == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_outage_may_have_a_limit(crew: Crew, kind: str) -> None:
    crew.shop.send(b"1")
    with crew.running(kind, outage_timeout="1s") as worker:
        crew.wait_for(kind, 1)
        crew.link.leave()
        worker.join(20.0)
        assert not worker.is_alive()
    (error,) = crew.raised
    assert fault_of(error) is Fault.OUTAGE
    assert any("outage_timeout is 1 s" in note for note in error.__notes__)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_whose_answer_is_lost_is_repeated(crew: Crew, when: str) -> None:
    crew.shop.send(b"1")
    calls: list[str] = []

    def hook(step: str) -> None:
        if step.startswith(f"{when} append_and_decide") and not calls:
            calls.append(step)
            crew.link.leave()
            threading.Timer(2 * OUTAGE_SECONDS, crew.link.come_back).start()

    crew.client.runtime.engine.hook = hook
    with crew.running("process"):
        wait_until(lambda: calls, "a commit")
        crew.wait_for("process", 1)
        crew.shop.send(b"2")
        crew.wait_for("process", 1, 2)
    assert crew.raised == []


# ── the installation is at fault ──


class Waiting(Observer):
    """How many partitions wait."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def waiting(self, group: str, change: int) -> None:
        self.now += change
        self.most = max(self.most, self.now)


FAULTS: Final[dict[str, Callable[[], Exception]]] = {
    "memory": MemoryError,
    "a module": lambda: ModuleNotFoundError("No module named 'pricing'"),
    "misuse": lambda: errors.IllegalState("of a call"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", GIVING_UP)
def test_what_no_record_has_caused_is_waited_for(crew: Crew, kind: str, fault: str, caplog: Any) -> None:
    broken, waiting = threading.Event(), Waiting()
    broken.set()
    crew.client.observe(waiting)

    def before(record: Record) -> None:
        if broken.is_set():
            raise FAULTS[fault]()

    crew.before = before
    crew.shop.send(b"1", b"2", b"3")
    with crew.running(kind, failure=GIVING_UP[kind]):
        wait_until(lambda: waiting.now == 1, "it waits")
        time.sleep(0.5)
        broken.clear()
        crew.wait_for(kind, 1, 2, 3)
        wait_until(lambda: waiting.now == 0, "it waits no more")
    assert (crew.raised, crew.reports[0].failed) == ([], 0)
    told = lines(caplog, "msgtx.process", f"{crew.shop.topic}-0 offset")
    assert "no record is at fault" in told[0]


def test_a_missing_table_holds_up_its_own_partition(crew: Crew) -> None:
    table = unique("later").replace("-", "_")

    def before(record: Record) -> None:
        with crew.shop.app.begin() as connection:
            if record.partition == 0:
                connection.execute(text(f"insert into {table} values (1)"))

    crew.before = before
    crew.shop.send(b"1")
    with crew.running("into", failure=msgtx.DeadLetter(crew.target, after=0)):
        for number in range(2, 5):
            crew.shop.send(b"%d" % number, partition=1)
        crew.wait_for("into", 2, 3, 4)
        with crew.shop.app.begin() as connection:
            connection.execute(text(f"create table {table} (n int)"))
        crew.wait_for("into", 1, 2, 3, 4)
    assert crew.shop.read(crew.target) == []


@pytest.mark.parametrize("kind", ["into", "process"])
def test_stop_raises_for_the_installation_too(crew: Crew, kind: str) -> None:
    def before(record: Record) -> None:
        raise MemoryError

    crew.before = before
    crew.shop.send(b"1")
    with crew.running(kind, failure=msgtx.Stop()) as worker:
        worker.join(20.0)
    assert [type(error) for error in crew.raised] == [MemoryError]


@pytest.mark.parametrize("kind", GIVING_UP)
def test_a_run_of_failures_stops_giving_records_up(crew: Crew, kind: str, caplog: Any) -> None:
    """The price service is away: each record fails, until it is back. Nobody knows whose fault that is."""
    broken = threading.Event()
    broken.set()

    def before(record: Record) -> None:
        if broken.is_set():
            raise ConnectionError("price service")

    crew.before = before
    crew.shop.send(*(b"%d" % number for number in range(8)))
    with crew.running(kind, failure=GIVING_UP[kind], max_failures_in_a_row=3):
        wait_until(lambda: lines(caplog, "msgtx.process", f"group '{crew.shop.topic}': 3 records"), "it is said")
        time.sleep(0.5)
        broken.clear()
        wait_until(lambda: set(crew.results(kind)) >= {3, 4, 5, 6, 7}, "the others are done")
    assert (crew.raised, crew.reports[0].failed <= 3) == ([], True)


@pytest.mark.parametrize("kind", GIVING_UP)
def test_failures_of_one_key_are_no_run(crew: Crew, kind: str) -> None:
    def before(record: Record) -> None:
        if record.key is not None:
            raise ValueError("this customer's records cannot be read")

    crew.before = before
    crew.shop.send(*(b"%d" % number for number in range(5)), key=b"ada")
    crew.shop.send(b"7")
    with crew.running(kind, failure=GIVING_UP[kind], max_failures_in_a_row=3):
        crew.wait_for(kind, 7)
    assert crew.reports[0].failed == 5


# ── what the log tells ──


def test_the_log_tells_the_life_of_a_worker(crew: Crew, caplog: pytest.LogCaptureFixture) -> None:
    topic = crew.shop.topic
    crew.shop.send(b"1", b"2")
    with crew.running("into"):
        crew.wait_for("into", 1, 2)
    told = lines(caplog, "msgtx.process", f"group '{topic}'")
    assert told[0].startswith(f"group '{topic}': a worker starts on {topic} (failure=Retry(")
    assert told[1] == f"group '{topic}': this worker got {topic}-0, {topic}-1, {topic}-2"
    assert told[-1].startswith(f"group '{topic}': the worker ends: 2 records in, 0 out, 0 failed")


def test_a_worker_without_partitions_says_for_whom_it_waits(crew: Crew, caplog: pytest.LogCaptureFixture) -> None:
    topic = crew.shop.topic
    silent = crew.shop.client.consumer(topic, group=topic, session_timeout_ms="15s", heartbeat_interval_ms="14s")
    assert len(silent.assignment()) == 3
    with crew.running("into", consumer_config={"heartbeat_interval_ms": "500ms"}):
        words = f"group '{topic}': waits for "
        line = wait_until(lambda: lines(caplog, "msgtx.process", words), "it says so")[0]
    assert " partitions of member " in line
    assert f"process {os.getpid()}), silent since " in line
    silent.close()


def test_a_dead_letter_is_named_by_its_place(crew: Crew, caplog: pytest.LogCaptureFixture) -> None:
    grave = crew.shop.make_topic()
    crew.shop.send(b"1", b"poison")

    def before(record: Record) -> None:
        int(record.value or b"")

    crew.before = before
    with crew.running("process", failure=msgtx.DeadLetter(grave, after=0)):
        crew.wait_for("process", 1)
        wait_until(lambda: crew.shop.read(grave), "a dead letter")
    (told,) = lines(caplog, "msgtx.process", f"{crew.shop.topic}-0 offset 1: ValueError")
    assert told.endswith(f"; became a dead letter at {grave}-0@0")
