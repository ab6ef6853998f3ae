"""A share group: members come and go, acquire records, answer for them by themselves and in transactions (I17).

Source: internals: shares.
Each step is the store's own call; so a member may answer for what it was handed out long ago, and repeat its newest call.
"""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from msgtx import TransactionId
from msgtx.store.append.append import append_and_decide
from msgtx.store.groups.members import heartbeat, leave_group
from msgtx.store.shares.answers import NO_ANSWERS, AnswerColumns, acknowledge_in_transaction, acknowledge_records
from msgtx.store.shares.shares import (
    Acquiring,
    Acquisition,
    acquire_records,
    configure_share_group,
    ensure_dead_letters,
    join_share_group,
    reset_share_offsets,
)
from tests.model.by_hand import ByHand
from tests.model.deliveries import ACCEPT, ACQUIRED, LIMIT, LOCK_MS, REJECT, RELEASE, RENEW
from tests.model.history import LONG_MS, PARTITIONS, SHORT_MS, crashes, partitions, some
from tests.model.lives import Life, Worker
from tests.model.membership import Person
from tests.model.oracle import ABORT, COMMIT, OPEN, Answers, Oracle
from tests.model.place import named
from tests.store.steps import batch

WORKERS, REMEMBERED = 3, 12
MANY = 1 << 26
answers = st.sampled_from([ACCEPT, ACCEPT, RELEASE, REJECT, RENEW])
parts = st.one_of(
    partitions.map(lambda p: [p]), st.lists(partitions, min_size=2, max_size=PARTITIONS, unique=True), st.just([0])
)


class Sharing(ByHand):
    def __init__(self) -> None:
        super().__init__()
        self.crew = self.place.name("share")
        self.workers: list[Worker] = []

    def _open_group(self) -> None:
        with self.place.observer.runtime.engine.connection() as connection:
            settings = {
                "auto_offset_reset": "earliest", "record_lock_duration_ms": LOCK_MS, "delivery_count_limit": LIMIT,
            }  # fmt: skip
            configure_share_group(connection, self.crew, settings)
            ensure_dead_letters(connection, self.crew)
        for oracle in self.oracles:  # one topic more
            oracle.topics, oracle.past = oracle.topics + 1, []

    @initialize(crew=st.integers(0, 2), timeout=st.sampled_from([SHORT_MS, LONG_MS, LONG_MS]))
    def hire(self, crew: int, timeout: int) -> None:
        """Perhaps there are members already."""
        for _ in range(crew):
            self.work(which=0, timeout=timeout, how="join", crash=0)

    # ── members ──

    @rule(
        which=some,
        timeout=st.sampled_from([SHORT_MS, LONG_MS, LONG_MS]),
        how=st.sampled_from(["join", "join", "leave", "beat"]),
        crash=crashes,
    )
    def work(self, which: int, timeout: int, how: str, crash: int) -> None:
        """A member comes, or comes again; leaves; says that it lives, perhaps after its session was over."""
        if not self.workers:
            self._open_group()
        if (how == "join" and len(self.workers) < WORKERS) or not self.workers:
            self.workers.append(Worker(f"worker-{len(self.workers)}"))
            self._join(self.workers[-1], timeout, crash)
            return
        worker = self.one_of(self.workers, which)
        if how == "join":
            self._join(worker, timeout, crash)
        elif how == "leave":
            self.ask(
                lambda: self.place.store(lambda c: leave_group(c, self.crew, worker.member)),
                lambda o, _: o.leave(self.crew, worker.member),
                crash=crash,
            )
        else:
            self._beat(worker, crash)

    def _join(self, worker: Worker, timeout: int, crash: int) -> None:
        who = Person(worker.member, None, timeout, frozenset(), 0, 0)

        def real() -> Any:
            joined = self.place.store(
                lambda c: join_share_group(
                    c, self.crew, member_id=worker.member, client_host=None, client_process=None,
                    session_timeout_ms=timeout, topics=[],
                )
            )  # fmt: skip
            return joined if isinstance(joined, str) else joined.number

        number = self.ask(real, lambda o, answer: o.join_share(self.crew, answer, who), crash=crash)
        if number != worker.number:
            worker.number, worker.beats, worker.calls, worker.last = number, 0, 0, ()

    def _beat(self, worker: Worker, crash: int) -> None:
        worker.beats += 1
        number, beat = worker.number, worker.beats
        who: dict[str, Any] = {"member_number": number, "member_id": worker.member, "group_instance_id": None}

        def real() -> Any:
            beaten = self.place.store(lambda c: heartbeat(c, self.crew, **who, number=beat))
            return beaten if isinstance(beaten, str) else None

        def model(o: Oracle, _: Any) -> str | None:
            answer = o.heartbeat(self.crew, number, worker.member, None, beat)
            return answer if isinstance(answer, str) else None

        self.ask(real, model, crash=crash)

    # ── records ──

    @precondition(lambda self: self.workers)
    @rule(
        which=some,
        where=parts,
        most=st.sampled_from([1, 2, 3, 50]),
        how=st.sampled_from(["new", "new", "accept", "again"]),
        crash=crashes,
    )
    def acquire(self, which: int, where: list[int], most: int, how: str, crash: int) -> None:
        """Poll; implicit mode accepts what the last poll handed out; or the newest call comes again."""
        worker = self.one_of(self.workers, which)
        if how != "again" or not worker.last:
            accepted = {}
            if how == "accept" and worker.handed:
                accepted = dict.fromkeys(self._given(worker, worker.handed[-1][0], 50), ACCEPT)
                where = [worker.handed[-1][0], *(p for p in where if p != worker.handed[-1][0])]
            worker.last = (worker.call(), where, most, accepted)
        self._acquire(worker, *worker.last, crash)

    def _acquire(self, worker: Worker, call: int, where: list[int], most: int, accepted: Answers, crash: int) -> Any:
        ids, number = [self.partition_ids[p] for p in where], worker.number
        given = self._columns(worker, accepted) if accepted else NO_ANSWERS
        asked = Acquiring(self.crew, number, call, ids, most, MANY, given)

        def real() -> tuple[Any, ...]:
            found = self.place.store(lambda c: acquire_records(c, asked))
            ended = [name for name in self.oracle.overdue() if self.place.outcome(name) != OPEN]
            return (found if isinstance(found, str) else self._counts(found)), ended

        def model(o: Oracle, answer: tuple[Any, ...]) -> tuple[Any, ...]:
            found, ended = answer
            if ended:
                o.expire(*ended)
            told = found if isinstance(found, dict) else {}
            return o.acquire(self.crew, number, call, where, most, told, accepted), ended

        found, _ = self.ask(real, model, crash=crash)
        if isinstance(found, dict):
            worker.handed = [*worker.handed, *found][-REMEMBERED:]
        return found

    def _counts(self, found: Acquisition) -> Any:
        """By partition and offset how often each was delivered; each has the value that the log has."""
        if found.refused:
            return self._refused(found.refused)
        counts = {}
        for each in found.records:
            p = self.partition_ids.index(each.range.partition_id)
            offsets = each.offsets or range(each.range.first, each.range.last + 1)
            for offset, value in zip(offsets, each.values, strict=True):
                assert (p, offset) not in counts, f"{p}, {offset} is handed out twice by one call"
                assert self.oracle.logs[p][offset].value == value
                counts[p, offset] = each.delivery_count
        return counts

    def _refused(self, refused: list[Any]) -> list[tuple[str, int, int]]:
        return sorted(
            (
                (error, self.partition_ids.index(each.partition_id), offset)
                for error, each in refused
                for offset in range(each.first, each.last + 1)
            ),
            key=lambda one: one[1:],
        )

    def _given(self, worker: Worker, partition: int, count: int) -> list[tuple[int, int]]:
        """The last run of offsets that a member was handed out on a partition."""
        offsets = sorted({offset for p, offset in worker.handed if p == partition})
        run = [offset for offset in offsets if set(range(offset, offsets[-1] + 1)) <= set(offsets)]
        return [(partition, offset) for offset in run[-count:]]

    def _columns(self, worker: Worker, given: Mapping[tuple[int, int], str]) -> AnswerColumns:
        """Return answers, one range for neighbours with the same answer."""
        ranges: list[list[Any]] = []
        for (p, offset), answer in sorted(given.items()):
            if ranges and (ranges[-1][0], ranges[-1][2], ranges[-1][3]) == (p, offset - 1, answer):
                ranges[-1][2] = offset
            else:
                ranges.append([p, offset, offset, answer])
        count = len(ranges)
        return AnswerColumns(
            (self.crew,) * count, (worker.number,) * count, tuple(self.partition_ids[each[0]] for each in ranges),
            *(tuple(each[at] for each in ranges) for at in (1, 2, 3)), (None,) * count, (None,) * count,
        )  # fmt: skip

    def _said(self, which: int, whose: int, count: int, answer: str, other: str) -> tuple[Worker, Answers]:
        """What a member says of what it was handed out, or of what another one was: the same of all but the last."""
        worker, holder = self.one_of(self.workers, which), self.one_of(self.workers, which + whose)
        self._stock(holder, count)
        if not holder.handed:
            return worker, {(0, 0): answer}
        run = self._given(holder, self.one_of(holder.handed[::-1], count)[0], count)
        return worker, {at: other if at == run[-1] else answer for at in run}

    def _stock(self, worker: Worker, most: int) -> None:
        """Who holds nothing acquires something, as long as there is something."""
        held = [one for known in self.oracle.shares.values() for one in known.flight.values() if one.status == ACQUIRED]
        if not any(one.member == worker.number and one.until > self.oracle.now for one in held):
            if not any(self.oracle.fresh(self.crew, p) for p in range(PARTITIONS)):
                self.send_plainly(where=[0], sizes=[3], crash=0)
            worker.last = (worker.call(), [*range(PARTITIONS)], most, {})
            self._acquire(worker, *worker.last, 0)

    @precondition(lambda self: self.workers)
    @rule(
        which=some,
        whose=st.sampled_from([0, 0, 0, 1]),
        count=st.sampled_from([1, 2, 12]),
        answer=answers,
        other=answers,
        again=st.booleans(),
        crash=crashes,
    )
    def answer(self, which: int, whose: int, count: int, answer: str, other: str, again: bool, crash: int) -> None:
        """Plainly; perhaps the call comes twice."""
        worker, given = self._said(which, whose, count, answer, other)
        call = worker.call()
        for _ in range(1 + again):
            self._answer(worker, call, given, crash)

    def _answer(self, worker: Worker, call: int, given: Answers, crash: int) -> None:
        columns, number = self._columns(worker, given), worker.number

        def real() -> Any:
            answer = self.place.store(lambda c: acknowledge_records(c, columns, call_number=call))
            return answer if isinstance(answer, str) else self._refused(answer)

        self.ask(real, lambda o, _: o.answer(self.crew, number, call, given), crash=crash)

    @precondition(lambda self: self.workers and self._hands(transactional=True))
    @rule(
        life=some,
        which=some,
        whose=st.sampled_from([0, 0, 0, 1]),
        count=st.sampled_from([1, 2, 12]),
        answer=st.sampled_from([ACCEPT, ACCEPT, RELEASE, REJECT]),
        other=st.sampled_from([ACCEPT, RELEASE, REJECT]),
        timeout=st.sampled_from([None, SHORT_MS]),
        outcome=st.sampled_from([COMMIT, ABORT, OPEN, OPEN, "whole"]),
        crash=crashes,
    )
    def answer_in(
        self, life: int, which: int, whose: int, count: int, answer: str, other: str, timeout: int | None, outcome: str,
        crash: int,
    ) -> None:  # fmt: skip
        """In a transaction: pending until its decision, which perhaps comes later; or with records, in one call (I6)."""
        user = self.one_of(self._hands(transactional=True), life)
        worker, given = self._said(which, whose, count, answer, other)
        if outcome == "whole":
            self._commit_answered(user, worker, given, crash)
            return
        columns, number, call, name = self._columns(worker, given), worker.number, worker.call(), user.name
        self.ask(
            lambda: self.place.store(
                lambda c: acknowledge_in_transaction(c, TransactionId(*name), columns, call_number=call, timeout_ms=timeout)
            ),
            lambda o, _: o.answer_in(name, timeout, self.crew, number, call, given),
            crash=crash,
        )
        if outcome != OPEN:
            self._decide(user, outcome, False, True, 0)

    def _commit_answered(self, life: Life, worker: Worker, given: Answers, crash: int) -> None:
        request = life.request(1, self.content(1))
        columns, number, name = self._columns(worker, given), worker.number, life.name
        row = batch(
            self.partition_ids[1], *request.values, producer=(request.producer, request.epoch), number=request.number,
            sequence=request.first,
        )  # fmt: skip

        def real() -> str | None:
            stored = self.place.store(lambda c: append_and_decide(c, TransactionId(*name), [row], answers=columns))
            if isinstance(stored, str):
                return stored
            return None if stored[0].error is None else named(stored[0].error)

        answer = self.ask(real, lambda o, _: o.commit_whole_answered(name, [request], self.crew, number, given), crash=crash)
        if answer is None:
            life.sequences[1] = request.last + 1
            life.number += 1
            life.handed.clear()

    # ── the group ──

    @precondition(lambda self: self.workers)
    @rule(partition=partitions, at=st.integers(0, 20), leaves=st.sampled_from([False, False, False, True]), crash=crashes)
    def reset(self, partition: int, at: int, leaves: bool, crash: int) -> None:
        for worker in self.workers if leaves else ():
            self.ask(
                lambda member=worker.member: self.place.store(lambda c: leave_group(c, self.crew, member)),
                lambda o, _, member=worker.member: o.leave(self.crew, member),
            )
        offset = at % (len(self.oracle.logs[partition]) + 1)
        self.ask(
            lambda: self.place.store(lambda c: reset_share_offsets(c, self.crew, {self.partition_ids[partition]: offset})),
            lambda o, _: o.reset_share(self.crew, partition, offset),
            crash=crash,
        )

    @precondition(lambda self: self._locks())
    @rule(which=some, late=st.sampled_from([0, 0, -1]), by=some)
    def outlast_lock(self, which: int, late: int, by: int = 0) -> None:
        """Time goes to the moment when a lock is over, or to the one before; then a member polls."""
        self.pass_time(max(0, self.one_of(self._locks(), which) + late - self.oracle.now))
        self.acquire(which=by, where=[*range(PARTITIONS)], most=50, how="new", crash=0)

    def _locks(self) -> list[int]:
        held = [one for known in self.oracle.shares.values() for one in known.flight.values()]
        return sorted({one.until for one in held if one.status == ACQUIRED and one.until > self.oracle.now})

    def pass_time(self, milliseconds: int) -> None:
        """Back only where no record is held: a lock would begin to hold again, or not, as somebody has looked meanwhile."""
        held = any(
            o.status == ACQUIRED for each in self.oracles for known in each.shares.values() for o in known.flight.values()
        )
        super().pass_time(max(0, milliseconds) if held else milliseconds)

    # ── comparing ──

    @invariant()
    def everything_agrees(self) -> None:
        super().everything_agrees()
        if not self.workers:
            return
        letters = self.place.letters(self.crew, self.partitions)
        fitting = [oracle for oracle in self.oracles if oracle.buried(self.crew, letters)]
        assert fitting, f"dead letters are {letters!r}; expected {[oracle.letters for oracle in self.oracles]!r}"
        seen = self.place.shares(self.crew, self.partition_ids)
        expected = [self._in_flight(oracle) for oracle in fitting]
        self._keep([oracle for oracle, one in zip(fitting, expected, strict=True) if one == seen])
        assert self.oracles, f"in flight is {seen!r}; expected {expected!r}"

    def _in_flight(self, oracle: Oracle) -> dict[tuple[int, int], tuple[object, ...]]:
        members = oracle.group(self.crew).members
        return {
            (p, at): (
                one.status,
                one.count,
                members[one.member].member if one.status == ACQUIRED else None,
                one.until if one.status == ACQUIRED else None,
            )
            for p in range(PARTITIONS)
            for at, one in oracle.deliveries(self.crew, p).flight.items()
        }

    def _settle(self) -> None:
        """Once everybody stopped, whatever is not done comes again, to who asks."""
        super()._settle()
        if not self.workers:
            return
        last = Worker("last")
        self._join(last, LONG_MS, 0)
        for p in range(PARTITIONS):
            while found := self._acquire(last, last.call(), [p], 50, {}, 0):
                self._answer(last, last.call(), dict.fromkeys(found, ACCEPT), 0)
                self.everything_agrees()
        self.everything_agrees()
        for p in range(PARTITIONS):
            known = self.oracle.deliveries(self.crew, p)
            assert known.done >= {at for at, _ in self.oracle.committed(p) if at >= known.start}, f"{p}: some are lost"
