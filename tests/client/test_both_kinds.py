"""Consumer groups and share groups side by side: one table of scenarios for both (internals: groups, shares).

A scenario is played by a member of each kind: a consumer group, a share group in implicit and explicit mode, each also in an
event loop. `DIFFERENCES` is the list of what is meant to differ, with the reasons; all else is the same.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

import msgtx
from msgtx import aio, errors, orm
from tests.databases import PATIENCE_SECONDS, Connection
from tests.store.steps import unique

pytestmark = pytest.mark.slow

READ_SECONDS: Final = 0.1  # until nothing comes, where nothing should
# What differs between the kinds, by scenario: what a share group does instead, and why.
DIFFERENCES: Final[dict[str, tuple[object, str]]] = {
    "a partition that is added, with latest": (
        ["added"],
        "a share group begins with a topic, in all its partitions; a consumer begins by its own setting with each partition"
        " that has no committed offset, as in Kafka",
    ),
    "a partition that is added while all are away, with latest": (["added"], "the same"),
    "two members of one partition": (
        [1, 1],
        "members of a share group divide records; of a consumer group partitions, so that one of them has nothing to read",
    ),
    "more members than partitions": ([1, 1, 1], "the same"),
    "an abort": (
        ["a"],
        "a share consumer learns of the abort (decision 0137); a consumer's positions are the caller's, who rewinds",
    ),
    "what a silent member had and commits late": (
        "InvalidRecordState",
        "answers are refused record by record, offsets by the membership",
    ),
    "a topic that is deleted while it is read": (
        ["refused"],
        "a share consumer reads exactly the topics that it names; a member of a consumer group goes on with what is left",
    ),
    "what was handed out counts": (
        [1, 2, 3],
        "a share group counts deliveries, so that a record that fails each time ends as a dead letter",
    ),
}


class Interrupted(BaseException):
    """As a signal handler raises it."""


RETRY: Final = msgtx.Retry()
SET_ASIDE: Final = "set aside"  # as the kind of group does it


class Oops(Exception):
    """What the user's code raises."""


@dataclass
class Group:
    """A group of one kind, made of members that do not beat by themselves: their sessions end when a test says so."""

    name: str
    is_share: bool
    is_explicit: bool
    is_async: bool
    client: msgtx.Client
    url: str
    topic: str
    connection: Connection
    reset: str = "earliest"
    members: list["Member"] = field(default_factory=list)
    runner: asyncio.Runner | None = None
    loop_client: aio.Client | None = None
    interrupt: bool = False

    def begin(self) -> None:
        """Configure the group, and start the event loop."""
        if self.is_share:
            self.client.admin.shares.configure(
                self.name, {"auto_offset_reset": self.reset, "record_lock_duration_ms": "10min", "delivery_count_limit": 9}
            )
        if self.is_async and self.runner is None:
            self.runner = asyncio.Runner()
            self.loop_client = self.runner.run(aio.connect(self.url))

    @property
    def own_client(self) -> Any:
        """The client of the members."""
        return self.loop_client if self.is_async else self.client

    def join(self) -> "Member":
        """Return a new member."""
        settings: dict[str, Any] = {"session_timeout_ms": "2min", "heartbeat_interval_ms": "1min"}
        if self.is_share:
            mode = "explicit" if self.is_explicit else "implicit"
            made = self.own_client.share_consumer(
                self.topic, group=self.name, acknowledgement_mode=mode, value_deserializer=self.deserialize, **settings
            )
        else:
            made = self.own_client.consumer(
                self.topic, group=self.name, auto_offset_reset=self.reset, enable_auto_commit=False,
                value_deserializer=self.deserialize, **settings,
            )  # fmt: skip
        member = Member(self, made)
        self.members.append(member)
        if self.is_async:
            member.run(made.__aenter__())
        member.read(0)
        return member

    def deserialize(self, value: bytes | None) -> str:
        """Raise what a signal handler would, once."""
        if self.interrupt:
            self.interrupt = False
            raise Interrupted
        return (value or b"").decode()

    def send(self, *values: str, partition: int = 0) -> None:
        """Send records to the topic."""
        with self.client.producer() as producer:
            for value in values:
                producer.send(self.topic, value.encode(), partition=partition).result(PATIENCE_SECONDS)

    def expire(self) -> None:
        """End the sessions of all members, as far as the database is concerned."""
        self.connection.execute(
            "update msgtx.group_heartbeat set heartbeat_at = heartbeat_at - interval '1 hour' where member_number in"
            " (select m.member_number from msgtx.group_member m join msgtx.consumer_group g using (group_id)"
            " where g.name = %s)",
            [self.name],
        )

    def reset_to(self, target: str) -> None:
        """Have the group begin elsewhere."""
        shares, groups = self.client.admin.shares, self.client.admin.groups
        (shares.reset_offsets if self.is_share else groups.reset)(self.name, target, topics=[self.topic])  # type: ignore[operator]

    def delete(self) -> None:
        """Delete the group."""
        (self.client.admin.shares if self.is_share else self.client.admin.groups).delete(self.name)

    def end(self) -> None:
        """Close everything."""
        for member in self.members:
            member.leave()
        if self.runner is not None:
            assert self.loop_client is not None
            self.runner.run(self.loop_client.close())
            self.runner.close()


@dataclass
class Member:
    """A member of a group: `handed` is what was handed out and not committed."""

    group: Group
    consumer: Any
    handed: list[Any] = field(default_factory=list)

    def run(self, awaited: Any) -> Any:
        """Return the result of a call, which is awaited in the event loop."""
        if not self.group.is_async or not isinstance(awaited, Coroutine):
            return awaited
        assert self.group.runner is not None
        return self.group.runner.run(awaited)

    def poll(self, most: int, seconds: float) -> list[Any]:
        """Poll once."""
        found: list[Any] = self.run(self.consumer.poll(seconds, most))
        self.handed += found
        return found

    def read(self, count: int) -> list[str]:
        """Return the values of so many records, or of those that come within the time; 0: of one poll."""
        if count == 0:
            return [record.value for record in self.poll(100, 0)]
        found: list[str] = []
        ends = time.monotonic() + PATIENCE_SECONDS
        while len(found) < count and time.monotonic() < ends:
            found += [record.value for record in self.poll(count - len(found), 0.2)]
        return found

    def first(self, *, comes: bool = True) -> list[str]:
        """Return the values that it was handed when it joined, or of the next record; `comes`: wait for one."""
        return [record.value for record in self.handed] or (self.read(1) if comes else self.rest())

    def rest(self) -> list[str]:
        """Return the values of what comes within a short time."""
        return [record.value for record in self.poll(100, READ_SECONDS)]

    def answer(self) -> None:
        """Accept what was handed out, where that is said one by one."""
        for record in self.handed if self.group.is_explicit else ():
            with contextlib.suppress(errors.InvalidRecordState):  # an earlier delivery
                self.consumer.acknowledge(record, msgtx.Acknowledgement.ACCEPT)

    def commit(self) -> None:
        """Commit what was handed out."""
        self.answer()
        self.run(self.consumer.commit())
        self.handed.clear()

    def rewind(self) -> None:
        """Have what is not committed handed out again."""
        self.run(self.consumer.rewind())
        self.handed.clear()

    def transact(self, output: str, *, fails: bool = False, rides: bool = True) -> list[str]:
        """Poll a record, and write it to the output in a producer's transaction, together with its position or answer."""
        client = self.group.own_client
        if self.group.is_async:
            return self.run(self._transact_async(client, output, fails, rides))  # type: ignore[no-any-return]
        with client.producer(transactional_id=f"{self.group.name}-{output}") as producer:
            records = self.poll(1, 5)
            with contextlib.suppress(Oops), producer.transaction() as tx:
                for record in records:
                    producer.send(output, record.value.encode(), partition=0)
                self.answer()
                if rides:
                    (tx.send_acknowledgements if self.group.is_share else tx.send_offsets)(self.consumer)
                if fails:
                    raise Oops
        self.handed.clear()
        return [record.value for record in records]

    async def _transact_async(self, client: aio.Client, output: str, fails: bool, rides: bool) -> list[str]:
        """Do the same in one task."""
        async with client.producer(transactional_id=f"{self.group.name}-{output}") as producer:
            records = await self.consumer.poll(5, 1)
            self.handed += records
            with contextlib.suppress(Oops):
                async with producer.transaction() as tx:
                    for record in records:
                        await producer.send(output, record.value.encode(), partition=0)
                    self.answer()
                    if rides:
                        await (tx.send_acknowledgements if self.group.is_share else tx.send_offsets)(self.consumer)
                    if fails:
                        raise Oops
        self.handed.clear()
        return [record.value for record in records]

    def leave(self) -> None:
        """Close."""
        self.run(self.consumer.close())


KINDS: Final = {
    "consumer group": (False, False, False),
    "share group, implicit": (True, False, False),
    "share group, explicit": (True, True, False),
    "consumer group, asyncio": (False, False, True),
    "share group, implicit, asyncio": (True, False, True),
    "share group, explicit, asyncio": (True, True, True),
}
Scenario = Callable[[Group], object]
SCENARIOS: dict[str, tuple[Scenario, object]] = {}


def scenario(name: str, expected: object) -> Callable[[Scenario], Scenario]:
    """Add a scenario to the table: what it gives, of each kind that has no entry in `DIFFERENCES`."""

    def add(play: Scenario) -> Scenario:
        SCENARIOS[name] = (play, expected)
        return play

    return add


# ── joining, and where a group begins ──


@scenario("the first position, earliest", ["before", "after"])
def begins_at_the_start(group: Group) -> object:
    group.send("before")
    member = group.join()
    group.send("after")
    return [record.value for record in member.handed] + member.read(2 - len(member.handed))


@scenario("the first position, latest", ["after"])
def begins_at_the_end(group: Group) -> object:
    group.reset = "latest"
    group.begin()
    group.send("before")
    member = group.join()
    group.send("after")
    return member.read(1) + member.rest()


@scenario("what comes while all are away", ["away"])
def goes_on_where_it_was(group: Group) -> object:
    group.reset = "latest"
    group.begin()
    member = group.join()
    group.send("first")
    member.read(1)
    member.commit()
    member.leave()
    group.send("away")
    return group.join().first()


@scenario("a partition that is added, with latest", [])
def reads_added_partitions(group: Group) -> object:
    group.reset = "latest"
    group.begin()
    member = group.join()
    group.client.topics.alter(group.topic, partitions=2)
    group.send("added", partition=1)
    return member.read(1) if group.is_share else member.rest()


@scenario("a partition that is added while all are away, with latest", [])
def reads_partitions_that_were_added_while_it_was_away(group: Group) -> object:
    group.reset = "latest"
    group.begin()
    member = group.join()
    group.send("first")
    member.read(1)
    member.commit()
    member.leave()
    group.client.topics.alter(group.topic, partitions=2)
    group.send("added", partition=1)
    return group.join().first(comes=group.is_share)


@scenario("a topic that is deleted and made again", ["new"])
def reads_topics_that_are_made_again(group: Group) -> object:
    member = group.join()
    group.send("old", "older")
    member.read(1)
    group.client.topics.delete(group.topic)
    group.client.topics.create(group.topic)
    group.send("new")
    ends, found = time.monotonic() + PATIENCE_SECONDS, []
    while not found and time.monotonic() < ends:
        with contextlib.suppress(errors.UnknownTopicOrPartition, errors.InvalidRecordState, errors.OffsetOutOfRange):
            found = [value for value in member.read(1) if value == "new"]
    member.commit()
    return found


# ── several members ──


@scenario("two members of one partition", [0, 1])
def divides(group: Group) -> object:
    return counts_of(group, 2)


@scenario("more members than partitions", [0, 0, 1])
def is_full(group: Group) -> object:
    return counts_of(group, 3)


def counts_of(group: Group, count: int) -> list[int]:
    """Return how many records each of so many members gets. Each polls until it has one, or all have what they can get."""
    members = [group.join() for _ in range(count)]
    for member in members:
        member.rest()
    group.send(*"abc"[:count])
    found, ends = [0] * count, time.monotonic() + PATIENCE_SECONDS
    while sum(found) < (count if group.is_share else 1) and time.monotonic() < ends:
        found = [had or len(member.poll(1, 0.05)) for had, member in zip(found, members, strict=True)]
    return sorted(had or len(member.poll(1, READ_SECONDS)) for had, member in zip(found, members, strict=True))


@scenario("a member that leaves", ["a"])
def has_what_a_member_left(group: Group) -> object:
    group.send("a")
    first = group.join()
    first.handed or first.read(1)
    first.leave()
    return group.join().first()


@scenario("a member whose session ends", ["a"])
def has_what_a_silent_member_had(group: Group) -> object:
    group.send("a")
    first = group.join()
    assert first.handed or first.read(1)
    group.expire()
    return group.join().first()


@scenario("what a silent member had and commits late", "UnknownMember")
def refuses_late_commits(group: Group) -> object:
    has_what_a_silent_member_had(group)
    try:
        group.members[0].commit()
    except errors.MsgtxError as error:
        return type(error).__name__
    return "nothing"


@scenario("a silent member that reads on", ["b"])
def has_nothing_twice(group: Group) -> object:
    has_what_a_silent_member_had(group)
    first, other = group.members
    other.commit()
    other.leave()
    group.send("b")
    for _ in range(20):
        with contextlib.suppress(errors.InvalidRecordState, errors.UnknownMember):
            first.handed.clear()
            if found := first.read(1):
                first.commit()
                return found + first.rest()
    return "nothing"


# ── what is not committed ──


@scenario("a rewind", ["a", "a", "b"])
def reads_again_after_a_rewind(group: Group) -> object:
    member = group.join()
    group.send("a", "b")
    found = member.read(1)
    member.answer()
    member.rewind()
    found += member.read(1)
    member.commit()
    found += member.read(1)
    member.commit()
    return found + member.rest()


@scenario("what was handed out counts", [])
def counts_deliveries(group: Group) -> object:
    member = group.join()
    group.send("a")
    found = []
    for _ in range(3):
        member.read(1)
        found += [record.delivery_count for record in member.handed if group.is_share]
        member.rewind()
    return found


@scenario("a close in the middle", ["a"])
def closes_without_a_commit(group: Group) -> object:
    member = group.join()
    group.send("a")
    member.read(1)
    member.leave()
    return group.join().first()


@scenario("an interrupt while records are handed out", ("interrupted", ["a"]))
def is_interrupted(group: Group) -> object:
    member = group.join()
    group.send("a")
    group.interrupt = True
    with contextlib.suppress(Interrupted):
        member.read(1)
    assert not group.interrupt
    with pytest.raises(errors.IllegalState) as refused:
        member.read(1)
    member.rewind()
    found = member.read(1)
    member.commit()
    return refused.value.reason, found


@scenario("an abort", [])
def loses_nothing_in_an_abort(group: Group) -> object:
    """Before the positions or answers were handed over; nobody rewinds."""
    member = group.join()
    output = output_of(group)
    group.send("a")
    assert member.transact(output, fails=True, rides=False) == ["a"]
    return member.rest()


@scenario("an abort and a rewind", (["a", "b"], ["a", "b"]))
def writes_once_after_an_abort(group: Group) -> object:
    member = group.join()
    output = output_of(group)
    group.send("a", "b")
    for rides in (False, True):
        member.transact(output, fails=True, rides=rides)
        member.rewind()
    found = member.transact(output) + member.transact(output)
    member.leave()
    written = [(record.value or b"").decode() for record in group.client.read(group.client.snapshot([output]))]
    return found, written


@scenario("transactions and a member that follows", (["a", "b"], []))
def hands_over_to_another_member(group: Group) -> object:
    member = group.join()
    output = output_of(group)
    group.send("a", "b")
    found = member.transact(output) + member.transact(output)
    member.leave()
    other = group.join()
    return found, other.rest()


def output_of(group: Group) -> str:
    """Make a topic for the output."""
    name = unique("output")
    group.client.topics.create(name)
    return name


# ── an administrator ──


@scenario("a reset", ["a", "a"])
def begins_again_after_a_reset(group: Group) -> object:
    return begins_again_after(group, lambda: group.reset_to("earliest"))


@scenario("a group that is deleted", ["a", "a"])
def begins_again_after_it_was_deleted(group: Group) -> object:
    return begins_again_after(group, group.delete)


def begins_again_after(group: Group, act: Callable[[], None]) -> list[str]:
    """Return the values before and after an act that is refused while the group has members."""
    member = group.join()
    group.send("a")
    found = member.read(1)
    member.commit()
    with pytest.raises(errors.GroupNotEmpty):
        act()
    member.leave()
    act()
    group.begin()
    return found + group.join().first()


@scenario("a topic that is deleted while it is read", [])
def says_that_a_topic_is_gone(group: Group) -> object:
    member = group.join()
    group.client.topics.delete(group.topic)
    with contextlib.suppress(errors.UnknownTopicOrPartition):
        for _ in range(3):
            assert member.rest() == []
        return []
    return ["refused"]


@pytest.fixture
def group(
    request: pytest.FixtureRequest, client: msgtx.Client, database_url: str, topic: str, connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Group]:  # fmt: skip
    is_share, is_explicit, is_async = KINDS[request.param]
    monkeypatch.setattr("msgtx.shares.acquiring.TOPICS_SECONDS", 0.05)
    made = Group(unique("group"), is_share, is_explicit, is_async, client, database_url, topic, connection)
    made.begin()
    yield made
    made.end()


@pytest.mark.parametrize("group", KINDS, indirect=True)
@pytest.mark.parametrize("name", SCENARIOS)
def test_both_kinds_do_the_same_but_for_what_is_listed(group: Group, name: str) -> None:
    play, expected = SCENARIOS[name]
    if group.is_share and name in DIFFERENCES:
        expected = DIFFERENCES[name][0]
    assert play(group) == expected


# ── workers ──


@dataclass
class Work:
    """A worker of one kind: `process` or `process_into`, of a consumer group or a share group, also in an event loop."""

    client: msgtx.Client
    url: str
    topic: str
    output: str
    way: str
    is_share: bool
    failed: int = 0
    done: threading.Event = field(default_factory=threading.Event)

    def send(self, *values: str) -> None:
        """Send records to the topic."""
        with self.client.producer() as producer:
            producer.send_batch(self.topic, [value.encode() for value in values], partition=0).result(PATIENCE_SECONDS)

    def run(self, handle: Callable[[str], object], **options: Any) -> None:
        """Work until nothing is left. Every record that `handle` takes leads to one record of the output."""
        self.done.clear()
        given: dict[str, Any] = {
            "group": self.topic, "idle_timeout": "600ms", "stop": self.done, "on_commit": self.stop_if_done, **options
        }  # fmt: skip
        if self.is_share:
            given["share_members"] = 1
        if given.get("failure") is SET_ASIDE:
            letters = f"{self.topic}-dead-letters"
            self.client.topics.create(letters, if_not_exists=True)
            given["failure"] = msgtx.Acknowledgement.REJECT if self.is_share else msgtx.DeadLetter(letters)
        if given.get("failure") is RETRY and self.is_share:
            given["failure"] = msgtx.Acknowledgement.RELEASE
        if self.way == "process":

            def transform(record: msgtx.Record) -> bytes | None:
                handle((record.value or b"").decode())
                return record.value

            report = self.client.process(
                self.topic, to=self.output, transactional_id=unique("worker"), transform=transform, **given
            )
        elif self.way == "process_into":
            engine = sqlalchemy.create_engine(self._address())

            def insert(session: Any, record: msgtx.Record) -> None:
                handle((record.value or b"").decode())
                orm.publish(session, self.output, record.value, partition=0)

            try:
                report = self.client.process_into(sessionmaker(engine), insert, self.topic, **given)
            finally:
                engine.dispose()
        else:
            report = asyncio.run(self._run_async(handle, given))
        self.failed += report.failed

    def stop_if_done(self, _: msgtx.ProcessReport) -> None:
        """End the workers once nothing is left that could be handled again."""
        groups = self.client.admin.shares if self.is_share else self.client.admin.groups
        if groups.describe(self.topic).lag == 0:
            self.done.set()

    def _address(self) -> sqlalchemy.URL:
        return sqlalchemy.make_url(self.url).set(drivername="postgresql+psycopg")

    async def _run_async(self, handle: Callable[[str], object], given: dict[str, Any]) -> msgtx.ProcessReport:
        async def insert(session: Any, record: msgtx.Record) -> None:
            handle((record.value or b"").decode())
            await aio.publish(session, self.output, record.value, partition=0)

        engine = create_async_engine(self._address())
        try:
            async with await aio.connect(self.url) as client:
                return await client.process_into(async_sessionmaker(engine), insert, self.topic, **given)
        finally:
            await engine.dispose()

    def made(self) -> list[str]:
        """Return what is committed of the output."""
        found = self.client.read(self.client.snapshot([self.output]))
        return sorted((record.value or b"").decode() for record in found)


def nothing(_: str) -> None:
    """Take a record."""


class Once:
    """A handler that fails on a record, so often. `meanwhile`: called before."""

    def __init__(self, value: str, times: int, meanwhile: Callable[[], object] = lambda: None) -> None:
        self._value, self._times, self._meanwhile = value, times, meanwhile

    def __call__(self, value: str) -> None:
        """Fail on the record."""
        if value == self._value and self._times > 0:
            self._times -= 1
            self._meanwhile()
            raise Oops


def a_record_that_fails_twice(work: Work) -> None:
    work.send("a", "b", "c")
    work.run(Once("b", 2), failure=RETRY)
    assert work.failed == 0


def a_record_that_always_fails(work: Work) -> None:
    work.send("a", "b", "bad", "c")
    work.run(Once("bad", 1000), failure=SET_ASIDE)
    assert work.failed == 1


def a_worker_that_stops_at_an_error(work: Work) -> None:
    work.send("a", "b", "c")
    with pytest.raises(Oops):
        work.run(Once("b", 1), failure=msgtx.Stop())
    work.run(nothing)


def a_worker_that_is_stopped(work: Work) -> None:
    work.send("a", "b", "c")
    stop = threading.Event()
    work.run(lambda value: stop.set() if value == "b" else None, stop=stop)
    work.run(nothing)


def a_worker_that_is_interrupted(work: Work) -> None:
    work.send("a", "b", "c")

    def interrupts() -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        work.run(Once("b", 1, interrupts))
    work.run(nothing)


def a_topic_that_is_made_again(work: Work) -> None:
    work.send("a")
    work.run(nothing)
    work.client.topics.delete(work.topic)
    work.client.topics.create(work.topic)
    work.send("b", "c")
    work.run(nothing)


def a_partition_that_is_added(work: Work) -> None:
    work.send("a")

    def adds() -> None:
        work.client.topics.alter(work.topic, partitions=2)
        with work.client.producer() as producer:
            for value in (b"b", b"c"):
                producer.send(work.topic, value, partition=1).result(PATIENCE_SECONDS)

    work.run(Once("a", 1, adds), failure=RETRY)
    work.run(nothing)


def two_workers(work: Work) -> None:
    work.send("a", "b", "c")
    with ThreadPoolExecutor(2) as threads:
        for running in [threads.submit(work.run, nothing) for _ in range(2)]:
            running.result()


def a_handler_whose_own_transaction_is_aborted(work: Work) -> None:
    """It is of the handler, and catches the error: the worker's records are none of its business."""
    work.send("a", "b", "c")
    with work.client.producer(transactional_id=unique("own")) as producer:

        def aborts(_: str) -> None:
            with contextlib.suppress(Oops), producer.transaction():
                raise Oops

        work.run(aborts)


WAYS: Final = ("process", "process_into", "process_into, asyncio")
WORK: Final = (
    a_record_that_fails_twice, a_record_that_always_fails, a_worker_that_stops_at_an_error, a_worker_that_is_stopped,
    a_worker_that_is_interrupted, a_topic_that_is_made_again, a_partition_that_is_added, two_workers,
    a_handler_whose_own_transaction_is_aborted,
)  # fmt: skip


@pytest.mark.parametrize("is_share", [False, True], ids=["consumer group", "share group"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("play", WORK, ids=lambda play: play.__name__)
def test_workers_of_both_kinds_do_each_record_once(
    client: msgtx.Client, database_url: str, topic: str, output: str, play: Callable[[Work], None], way: str, is_share: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Whatever happens to them (I10, I17)."""
    monkeypatch.setattr("msgtx.shares.acquiring.TOPICS_SECONDS", 0.05)
    if is_share:
        client.admin.shares.configure(topic, {"auto_offset_reset": "earliest", "delivery_count_limit": 5})
    work = Work(client, database_url, topic, output, way, is_share)
    play(work)
    assert work.made() == ["a", "b", "c"]


def test_each_difference_is_one_and_belongs_to_a_scenario() -> None:
    for name, (share, reason) in DIFFERENCES.items():
        assert share != SCENARIOS[name][1]
        assert reason
