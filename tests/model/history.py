"""One history: the system and the oracle side by side, compared after each step (I1–I10)."""

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant

from msgtx import Consumer, Isolation, TopicPartition
from tests.databases import wait_until
from tests.model.lives import Decision, Guest, Life
from tests.model.oracle import OPEN, Loss, NoSuchWorldError, Oracle, Request
from tests.model.place import Place

FAST: Final = {"linger_ms": 29_000, "retry_backoff_ms": 1, "max_block_ms": 30_000, "delivery_timeout_ms": 30_000}
READING: Final = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "retry_backoff_ms": 1}
PARTITIONS, IDS, LIVES, LETTERS = 3, 2, 6, 12
OUTSIDE: Final = -1  # stands for the producer id of a plain producer: no user learns it
SHORT_MS, LONG_MS = 1_000, 60_000  # timeouts

Model = Callable[[Oracle, Any], Any]  # the answer is there for what the database alone can know: a new id
partitions = st.integers(0, PARTITIONS - 1)
counts = st.integers(1, 3)
some = st.integers(0, 11)  # one of those there are
ids = st.integers(0, IDS - 1)
crashes = st.sampled_from([0] * 30 + [1, 2, 3, 4, 5, 6])  # the boundary at which the connection is lost; 0: none


@dataclass
class Reader:
    """A consumer that goes on from where it stands, and what it knows of where that is."""

    consumer: Consumer
    isolation: Isolation
    at: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))
    committed_by_hand: bool = False
    began: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))
    handed: set[int] = field(default_factory=set)  # partitions of which records came since it last went back

    def seek(self, partition: int, name: TopicPartition, offset: int) -> None:
        """Go on there. Before a record of the partition has come, reading begins there."""
        self.consumer.seek(name, offset)
        self.at[partition] = offset
        if partition not in self.handed:
            self.began[partition] = offset

    def rewind(self, committed: Mapping[int, int]) -> None:
        """Go back to what is committed; without that, to where reading began."""
        self.consumer.rewind()
        self.at = self.began | committed
        self.handed.clear()

    def visible(self, oracle: Oracle, partition: int) -> list[tuple[int, bytes]]:
        rows = oracle.committed(partition) if self.isolation is Isolation.READ_COMMITTED else oracle.everything(partition)
        return [row for row in rows if row[0] >= self.at[partition]]

    def end(self, oracle: Oracle, partition: int) -> int:
        committed = self.isolation is Isolation.READ_COMMITTED
        return oracle.blocking(partition)[0] if committed else len(oracle.logs[partition])


class History(RuleBasedStateMachine):
    """In its own topics, with its own ids and groups. The rules are in the classes that inherit."""

    find_place: ClassVar[Callable[[], Place]]
    remembers: ClassVar[bool] = False  # the server may crash: what was not flushed may be lost

    def __init__(self) -> None:
        super().__init__()
        self.place = place = type(self).find_place()
        place.histories += 1
        self.values = itertools.count()
        topics = [place.name("topic"), place.name("topic")]
        for topic, count in zip(topics, (PARTITIONS - 1, 1), strict=True):
            place.observer.topics.create(topic, partitions=count, retention_ms=-1)
        self.topics = topics
        self.partitions = [TopicPartition(topics[0], i) for i in range(PARTITIONS - 1)] + [TopicPartition(topics[1], 0)]
        self.partition_ids = place.partition_ids(topics)
        self.ids = [place.name("id") for _ in range(IDS)]
        self.groups = [place.name("group") for _ in range(3)]
        self.crowd = self.groups[2]  # the one that has members
        self.guests: list[Guest] = []
        self.oracles = [Oracle([[] for _ in range(PARTITIONS)], now=place.tick(10_000), remembers=self.remembers)]
        self.lives: list[Life] = []
        self.letters: list[Request | Decision] = []
        self.plain = Life(None, OUTSIDE, 0, place.client.producer(**FAST))
        self.members = [place.observer.consumer(group=group, **READING) for group in self.groups]
        self.readers = [
            self._reader(Isolation.READ_COMMITTED, group=self.groups[0]),
            self._reader(Isolation.READ_UNCOMMITTED),
        ]
        self.steps = itertools.count()

    def _reader(self, isolation: Isolation, **settings: Any) -> Reader:
        consumer = self.place.client.consumer(isolation=isolation.value, max_poll_records=3, **READING, **settings)
        consumer.assign(self.partitions)
        assert [consumer.position(partition) for partition in self.partitions] == [0] * PARTITIONS
        return Reader(consumer, isolation)

    # ── asking ──

    @property
    def oracle(self) -> Oracle:
        return self.oracles[0]

    def ask(self, real: Callable[[], Any], model: Model, *, crash: int = 0) -> Any:
        """Make a call; the oracle says what it must answer, after a loss one of what it may answer."""
        before = [oracle.fork() for oracle in self.oracles] if crash else []
        written = self.place.written()
        with self.place.losing(crash) as fired:
            answer = real()
        if fired:
            worlds = [world for oracle in before for world in self._worlds(oracle, model, answer)]
        else:
            worlds = [(oracle, model(oracle, answer)) for oracle in self.oracles]
        fitting = [oracle for oracle, expected in worlds if expected == answer]
        assert fitting, f"answered {answer!r}; allowed {[expected for _, expected in worlds]!r}; lost {fired}"
        if not fired and all(oracle.flushed for oracle in fitting):
            assert self.place.flushed() > written, f"answered {answer!r}, which must last, and nothing was flushed (I9)"
        self._keep(fitting)
        if fired:
            self.lost()
        return answer

    def _keep(self, fitting: list[Oracle]) -> None:
        self.oracles = []
        for oracle in fitting:
            oracle.calls, oracle.loss, oracle.flushed = 0, None, False
            if oracle not in self.oracles:
                self.oracles.append(oracle)

    def _worlds(self, oracle: Oracle, model: Model, answer: Any) -> Iterator[tuple[Oracle, Any]]:
        """Whatever may have happened: each call of the step was repeated, perhaps after a crash took changes back.

        A step that only reads has no call that counts: its crash takes back what came before it.
        """
        plain = oracle.fork()
        yield plain, model(plain, answer)
        for call, after in [(0, False), *itertools.product(range(1, plain.calls + 1), (False, True))]:
            for back in itertools.count():
                try:
                    world = oracle.fork(Loss(call, after, back))
                    expected = model(world, answer)
                except NoSuchWorldError:
                    break
                yield world, expected
                if not self.remembers:
                    break

    def lost(self) -> None:
        """A connection was lost in this step."""

    def one_of(self, found: list[Any], which: int) -> Any:
        return found[which % len(found)]

    def content(self, count: int) -> list[bytes]:
        number = next(self.values)
        return [b"%d-%d" % (number, i) + b"." * (number % 50) for i in range(count)]

    def keep(self, letter: Request | Decision) -> None:
        """Keep a request: it may arrive again, or for the first time, at any later moment."""
        self.letters = [*self.letters[-LETTERS + 1 :], letter]

    # ── comparing ──

    @invariant()
    def everything_agrees(self) -> None:
        self.place.operations += 1
        step = next(self.steps)
        known = list(self.oracle.transactions)
        names = {known[-1], self.one_of(known, step)} if known else set()
        group = self.one_of(self.groups, step)
        seen = (
            self.place.read(self.partition_ids),
            self._offsets(group),
            {name: self.place.outcome(name) for name in names},
            self.place.crowd(self.crowd, self.partition_ids) if self.guests else None,
        )
        expected = [
            (
                [_read(oracle, p) for p in range(PARTITIONS)],
                {p: at for (name, p), at in oracle.offsets.items() if name == group},
                {name: oracle.outcome(name) for name in names},
                _crowd(oracle, self.crowd) if self.guests else None,
            )
            for oracle in self.oracles
        ]
        fitting = [oracle for oracle, one in zip(self.oracles, expected, strict=True) if one == seen]
        assert fitting, f"found {seen!r}; expected {expected!r}"
        self._keep(fitting)

    def _offsets(self, group: str) -> dict[int, int]:
        member = self.members[self.groups.index(group)]
        found = member.committed(self.partitions, require_stable=False)
        return {p: at.offset for p, partition in enumerate(self.partitions) if (at := found[partition]) is not None}

    # ── the end ──

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:
                self._settle()
        finally:
            self.place.tick(2 * LONG_MS)
            self.place.observer.sweep()
            for user in (self.plain.producer, *(life.producer for life in self.lives)):
                if user is not None:
                    user.close()
            for consumer in (*self.members, *(reader.consumer for reader in self.readers)):
                consumer.close()

    def _settle(self) -> None:
        """Once everybody stopped, a few sweeps leave nothing open, and everything can be read, in every way (I12, I5)."""
        self.pass_time(2 * LONG_MS)
        self.ask(lambda: self.place.observer.sweep().transactions_aborted, lambda o, _: swept(o))
        oracle = self.oracle
        for _ in (*self.groups, *oracle.transactions):  # another one is looked at each time
            self.everything_agrees()
        assert all(oracle.blocking(p) == (len(oracle.logs[p]), None) for p in range(PARTITIONS))
        wait_until(lambda: self.place.observer.sweep() and self._states_agree(settled=True), "nothing is left to mark")
        for now, view in ((False, "committed_records"), (True, "committed_records_now")):
            expected = [(i, *row) for i in range(PARTITIONS) for row in oracle.committed(i, now=now)]
            assert self._view(view) == expected, view
        for reader in self.readers:
            self.drain(reader)

    def _states_agree(self, *, settled: bool) -> bool:
        listed = {one.transactional_id: one.state for one in self.place.observer.admin.transactions.list()}
        assert {one for one in listed if one in self.ids} == set(self.oracle.ids)
        for transactional_id in self.oracle.ids:
            allowed = self.oracle.state(transactional_id)
            assert listed[transactional_id] in allowed, (transactional_id, listed[transactional_id], allowed)
        return not settled or not any(listed[one].startswith("Prepare") for one in self.oracle.ids)

    def _view(self, view: str) -> list[tuple[int, int, bytes]]:
        with self.place.observer.runtime.engine.connection() as connection:
            rows = connection.execute(
                f'select topic, partition, "offset", value from msgtx.{view} where topic = any(%s)', [self.topics]
            ).fetchall()
        return sorted((self.partitions.index((topic, index)), offset, bytes(value)) for topic, index, offset, value in rows)

    def pass_time(self, milliseconds: int) -> None:
        """Set the clock; back so far that no open transaction lies further ahead than its own timeout (others test that)."""
        back = [
            found.deadline - 2 * found.timeout - oracle.now
            for oracle in self.oracles
            for found in oracle.transactions.values()
            if found.outcome == OPEN
        ]
        now = self.place.tick(max([milliseconds, *back]) if milliseconds < 0 else milliseconds)
        for oracle in self.oracles:
            oracle.now, oracle.past = now, []

    def drain(self, reader: Reader) -> None:
        raise NotImplementedError


def _read(oracle: Oracle, partition: int) -> tuple[object, ...]:
    stable, blocked = oracle.blocking(partition)
    return (
        stable,
        len(oracle.logs[partition]),
        blocked,
        list(oracle.committed(partition)),
        list(oracle.everything(partition)),
    )


def _crowd(oracle: Oracle, name: str) -> tuple[object, ...]:
    group = oracle.group(name)
    members = {
        number: (person.member, person.instance, person.at, person.over(oracle.now))
        for number, person in group.members.items()
    }
    places = {partition: (place.owner, place.since, place.heir) for partition, place in group.places.items()}
    return group.generation, oracle.stale(name), members, places


def swept(oracle: Oracle) -> int:
    """What a sweep does. Returns how many transactions it aborts.

    First those with records or a seal; then, in a call of its own, those that have nothing but answers of share groups.
    """
    overdue, written = oracle.overdue(), {entry.name for log in oracle.logs for entry in log}
    found = {name for name in overdue if name in written or oracle.transactions[name].sealed}
    aborted = 0
    for some in ([*found], [name for name in overdue if name not in found]):
        aborted += oracle.expire(*some) if some else 0
    if any(group.overdue(oracle.now) for group in oracle.groups.values()):
        oracle.remove_members()
    return aborted
