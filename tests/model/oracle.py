"""What each call must answer and what the log then holds: lists and dicts, written from the invariants.

It never imports msgtx. Everything happens one after the other here, so each call has exactly one right answer; what a lost
answer or a crash leaves open is a choice between several oracles (`worlds`). Errors are named as users see them.

A promise in brackets says where a rule comes from.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any

from tests.model.deliveries import (
    ACCEPT,
    ACQUIRED,
    AVAILABLE,
    LOCK_MS,
    PENDING,
    REJECT,
    REJECTED,
    RENEW,
    Deliveries,
    Delivery,
    Letter,
)
from tests.model.membership import FENCED_INSTANCE, UNKNOWN_MEMBER, Commit, Group, Person, first_refusal

Name = tuple[int, int, int]  # producer id, epoch, number
Offsets = Mapping[tuple[str, int], Commit]  # by group and partition
Answers = Mapping[tuple[int, int], str]  # by partition and offset
Refused = list[tuple[str, int, int]]
Found = Mapping[tuple[int, int], int]  # delivery counts, by partition and offset
NOBODY = -2  # stands for the producer id of what a session publishes
OPEN, COMMIT, ABORT, UNKNOWN = "OPEN", "COMMIT", "ABORT", "UNKNOWN"
FENCED, ABORTED, INVALID = "ProducerFenced", "TransactionAborted", "InvalidTransactionState"
NO_ID, GAP, WAIT = "InvalidProducerIdMapping", "OutOfOrderSequence", "ConcurrentTransactions"
UNSTABLE = "UnstableOffset"


@dataclass(frozen=True, slots=True)
class Entry:
    """A record in the log, and the batch that brought it: who, and its first and last sequence."""

    value: bytes
    producer: int
    epoch: int
    number: int | None
    first: int
    last: int
    shown: bool = True  # False: it was aborted under a name that no client knows

    @property
    def name(self) -> Name | None:
        return None if self.number is None else (self.producer, self.epoch, self.number)


@dataclass(frozen=True, slots=True)
class Request:
    """A batch as it goes over the network."""

    producer: int
    epoch: int
    number: int | None
    partition: int
    first: int
    values: tuple[bytes, ...]
    timeout: int | None = None

    @property
    def last(self) -> int:
        return self.first + len(self.values) - 1


@dataclass(frozen=True, slots=True)
class Transaction:
    """Its outcome, who decided it, and when it may be aborted by anyone; who is to decide it, and what waits for that."""

    outcome: str
    by: str | None = None
    deadline: int = 0
    timeout: int = 0
    sealed: str | None = None  # by a session, or external
    pending: Offsets = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Loss:
    """The `call`-th call of a step is interrupted: before or after it was done. `back`: how many changes are lost.

    The 0th is the step itself, before it has called anything.
    """

    call: int
    after: bool
    back: int = 0


class NoSuchWorldError(Exception):
    """The step has fewer calls, or fewer changes to lose."""


def call(*, flushed: bool) -> Any:
    """Mark what is one call to the database, all or nothing. Flushed: what came before it is safe, too (I9)."""

    def mark(method: Any) -> Any:
        @wraps(method)
        def wrapped(self: "Oracle", *args: Any, **options: Any) -> Any:
            def once() -> Any:
                if not self.remembers:
                    return method(self, *args, **options)
                before, self.flushes = self.snapshot(), flushed
                answer = method(self, *args, **options)
                if before != self.snapshot():  # who writes nothing flushes nothing
                    self.past = [] if self.flushes else [*self.past, before]
                    self.flushed = self.flushed or self.flushes
                return answer

            self.calls += 1
            if self.loss is not None and self.loss.call == self.calls:
                loss, self.loss = self.loss, None
                if loss.after:
                    once()
                self.lose(loss.back)
            return once()

        return wrapped

    return mark


@dataclass
class Oracle:
    """The state of a few topics' partitions, producers and groups. Times are milliseconds."""

    logs: list[list[Entry]]
    now: int = 0
    ids: dict[str, int] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)  # no entry: a plain producer at epoch 0
    epochs_before: dict[int, int] = field(default_factory=dict)
    timeouts: dict[int, int] = field(default_factory=dict)
    transactions: dict[Name, Transaction] = field(default_factory=dict)
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    shares: dict[tuple[str, int], Deliveries] = field(default_factory=dict)  # of share groups
    answered: dict[int, int] = field(default_factory=dict)  # the newest call of a member of one
    letters: tuple[Letter, ...] = ()
    topics: int = 0  # how many there are: an assignment is made of them
    remembers: bool = False  # what a crash of the server may bring back
    past: list["Oracle"] = field(default_factory=list)
    calls: int = 0
    loss: Loss | None = None
    flushes: bool = field(default=False, compare=False)  # the call that runs now
    flushed: bool = field(default=False, compare=False)  # a call of this step has changed what must last

    def snapshot(self) -> "Oracle":
        """Return a copy without its past."""
        made = copy.copy(self)
        for name in (
            "ids",
            "epochs",
            "epochs_before",
            "timeouts",
            "transactions",
            "offsets",
            "groups",
            "shares",
            "answered",
        ):
            setattr(made, name, dict(getattr(self, name)))
        made.logs = [list(log) for log in self.logs]
        made.past = []
        return made

    def fork(self, loss: Loss | None = None) -> "Oracle":
        """Return another world that begins as this one."""
        made = self.snapshot()
        made.past, made.calls, made.loss = list(self.past), 0, loss
        if loss is not None and loss.call == 0:
            made.lose(loss.back)
        return made

    def lose(self, back: int) -> None:
        """The newest changes are gone: never one that was flushed."""
        if back > len(self.past):
            raise NoSuchWorldError
        if back:
            kept, past = self.past[-back].snapshot(), self.past[:-back]
            self.__dict__.update(kept.__dict__ | {"past": past, "now": self.now, "calls": self.calls, "loss": None})

    # ── producers ──

    @call(flushed=True)
    def init(self, transactional_id: str, timeout: int, new_id: int) -> tuple[int, int]:
        """A successor: older epochs are out, what they left open is aborted (I7)."""
        if transactional_id not in self.ids:
            self.ids[transactional_id], self.epochs[new_id] = new_id, -1
        producer = self.ids[transactional_id]
        self.timeouts[producer] = timeout
        return producer, self._raise_epoch(producer)

    @call(flushed=True)
    def fence(self, transactional_id: str) -> tuple[int, int]:
        producer = self.ids[transactional_id]
        return producer, self._raise_epoch(producer)

    @call(flushed=True)
    def bump(self, producer: int, epoch: int, timeout: int) -> tuple[int, int] | str:
        """A running producer raises its own epoch; the same request again gets the same answer (I1)."""
        current = self.epochs.get(producer, 0)
        if epoch == self.epochs_before.get(producer) and epoch != current:
            return producer, current
        if epoch != current:
            return FENCED if epoch < current else NO_ID
        raised = self._raise_epoch(producer)
        self.epochs_before[producer], self.timeouts[producer] = epoch, timeout
        return producer, raised

    def _raise_epoch(self, producer: int) -> int:
        if (name := self.open_of(producer)) is not None:
            self._end(name, ABORT, "fence")
        self.epochs_before.pop(producer, None)
        self.epochs[producer] = self.epochs.get(producer, 0) + 1
        return self.epochs[producer]

    # ── records ──

    @call(flushed=False)
    def append(self, *requests: Request) -> list[tuple[str | None, int, bool]]:
        """Store what belongs there. One answer per request: error, offset, whether it was there before (I1, I3, I8)."""
        return [self._append(request) for request in requests]

    @call(flushed=True)
    def append_flushed(self, *requests: Request) -> list[tuple[str | None, int, bool]]:
        return [self._append(request) for request in requests]

    def _append(self, request: Request) -> tuple[str | None, int, bool]:
        refused = self._standing(request.producer, request.epoch, request.number)
        if refused in {FENCED, NO_ID} and (request.producer, request.epoch, request.number) not in self.transactions:
            return refused, -1, False
        log = self.logs[request.partition]
        for offset, entry in enumerate(log):
            if (entry.producer, entry.epoch, entry.number, entry.first, entry.last) == (
                request.producer, request.epoch, request.number, request.first, request.last,
            ):  # fmt: skip
                return None, offset, True
        if refused is not None:
            return refused, -1, False
        if request.first != self.last_sequence(request.producer, request.epoch, request.partition) + 1:
            return GAP, -1, False
        self._store(request)
        if request.number is not None:
            name = (request.producer, request.epoch, request.number)
            timeout = self.timeouts[request.producer] if request.timeout is None else request.timeout
            self.transactions.setdefault(name, Transaction(OPEN, deadline=self.now + timeout, timeout=timeout))
        return None, len(log) - len(request.values), False

    def _store(self, request: Request) -> None:
        self.logs[request.partition].extend(
            Entry(value, request.producer, request.epoch, request.number, request.first, request.last)
            for value in request.values
        )

    def _standing(self, producer: int, epoch: int, number: int | None) -> str | None:
        """Why nothing more may be appended under this name; None: it may."""
        if number is not None and (own := self.transactions.get((producer, epoch, number))) and own.outcome != OPEN:
            if own.outcome == ABORT and own.by == "fence":
                return FENCED
            return ABORTED if own.outcome == ABORT and own.by != "client" else INVALID
        current = self.epochs.get(producer, 0)
        if epoch != current:
            return FENCED if epoch < current else NO_ID
        undecided = self.open_of(producer)
        if number is None:
            return INVALID if undecided else None
        if producer not in self.epochs:
            return NO_ID
        if undecided == (producer, epoch, number):
            return INVALID if self.transactions[undecided].sealed else None
        if number != self.newest(producer, epoch) + 1:
            return INVALID
        return WAIT if undecided else None

    # ── decisions ──

    @call(flushed=True)
    def decide(
        self, name: Name, outcome: str, tails: Mapping[int, int], offsets: Offsets
    ) -> tuple[str | None, dict[int, int]]:
        """End a transaction, once (I4). Returns the error, and after an ABORT the last sequence on each partition named."""
        return self._decide(name, outcome, tails, offsets)

    def _decide(
        self, name: Name, outcome: str, tails: Mapping[int, int], offsets: Offsets
    ) -> tuple[str | None, dict[int, int]]:
        stands = self.transactions.get(name)
        if stands is None or stands.outcome == OPEN:
            refused = self._standing(*name)
            if refused is not None and not (refused == WAIT and (outcome == ABORT or tails)):
                return refused, {}
            if outcome == COMMIT and (untaken := first_refusal(self.groups, offsets)) is not None:
                return untaken, {}
            there = {partition: self._tail(name, partition) for partition in tails}
            if outcome == COMMIT and there != dict(tails):  # what a crash took back makes it an abort, never a hole
                self._end(name, ABORT, "tail")
            else:
                self._end(name, outcome, "client")
                self._take(offsets if outcome == COMMIT else {})  # I10
        stands = self.transactions[name]
        stored = {partition: self.last_sequence(name[0], name[1], partition) for partition in tails}
        if stands.outcome == outcome:
            return None, stored if outcome == ABORT else {}
        if stands.outcome == COMMIT:
            return INVALID, {}
        return FENCED if stands.by == "fence" else ABORTED, {}

    @call(flushed=True)
    def commit_whole(self, name: Name, requests: Sequence[Request], offsets: Offsets) -> str | None:
        """Records, offsets and the decision: all or nothing (I6)."""
        stands = self.transactions.get(name)
        if stands is not None and stands.outcome == COMMIT:
            return None
        if stands is not None and stands.outcome == OPEN:
            return INVALID
        refused = self._standing(*name) or first_refusal(self.groups, offsets)
        if refused is None and any(r.first != self.last_sequence(name[0], name[1], r.partition) + 1 for r in requests):
            refused = GAP
        if refused is None:
            for request in requests:
                self._store(request)
            self._end(name, COMMIT, "client")
            self._take(offsets)
        return refused

    # ── what a session or an outside party decides ──

    @call(flushed=True)
    def publish(self, contents: Mapping[int, Sequence[bytes]], *, shown: bool) -> None:
        """Records of a session's COMMIT; not shown: they were written beside it, and it failed."""
        for partition, values in contents.items():
            self.logs[partition].extend(Entry(value, NOBODY, 0, None, -1, -1, shown) for value in values)

    @call(flushed=True)
    def seal(self, name: Name, kind: str, tails: Mapping[int, int], offsets: Offsets) -> str | None:
        """End the writing part: verified as for a commit, and then only its partner commits it."""
        stands = self.transactions.get(name)
        if stands is not None and stands.outcome == OPEN and stands.sealed == kind:
            return None
        refused = self._standing(*name) or first_refusal(self.groups, offsets)
        if refused is None and {partition: self._tail(name, partition) for partition in tails} != dict(tails):
            self._end(name, ABORT, "tail")
            refused = ABORTED
        if refused is None:
            stands = self.transactions.pop(name)
            self.transactions[name] = replace(stands, sealed=kind, pending=dict(offsets))
        return refused

    @call(flushed=True)
    def commit_sealed(self, name: Name) -> str:
        """The session's COMMIT. Returns the outcome: it comes in time, or not at all."""
        if self.transactions[name].outcome == OPEN and name not in self.overdue():
            self._commit_sealed(name)
        return self.transactions[name].outcome

    @call(flushed=True)
    def complete(self, name: Name, outcome: str) -> str:
        """The outside party's word, as often as it likes."""
        if self.transactions[name].outcome == OPEN and outcome == COMMIT:
            self._commit_sealed(name)
        elif self.transactions[name].outcome == OPEN:
            self._end(name, ABORT, "client")
        return outcome if self.transactions[name].outcome == outcome else INVALID

    def _commit_sealed(self, name: Name) -> None:
        self._end(name, COMMIT, "client")
        self._take(self.transactions[name].pending, name)

    @call(flushed=True)
    def end(self, name: Name, by: str) -> str:
        """An administrator, or a client that asks for the outcome, aborts what its producer will not end."""
        stands = self.transactions.get(name)
        if stands is not None and (stands.outcome != OPEN or stands.sealed == "external"):
            return stands.outcome
        if stands is not None or (by == "resolve" and self._standing(*name) in {None, WAIT}):
            self._end(name, ABORT, by)
            return ABORT
        return UNKNOWN

    @call(flushed=True)
    def expire(self, *names: Name) -> int:
        """A sweep or a reader aborts what is overdue (I12)."""
        ended = [name for name in names if self.transactions[name].outcome == OPEN]
        for name in ended:
            self._end(name, ABORT, "timeout")
        return len(ended)

    def _take(self, offsets: Offsets, sealed: Name | None = None) -> None:
        """Take offsets. What was sealed before them is older, whenever it is decided."""
        self.offsets.update({place: commit.offset for place, commit in offsets.items()})
        for name, stands in self.transactions.items():  # sealed ones in the order of their seals
            if name == sealed:
                break
            pending = {place: commit for place, commit in stands.pending.items() if place not in offsets}
            self.transactions[name] = replace(stands, pending=pending)

    def _end(self, name: Name, outcome: str, by: str) -> None:
        stands = self.transactions.get(name, Transaction(OPEN))
        assert stands.outcome == OPEN, "I4"
        self.transactions[name] = replace(stands, outcome=outcome, by=by)

    # ── consumer groups ──

    @call(flushed=True)
    def commit_offsets(self, offsets: Offsets) -> str | None:
        """The newest one that was taken is the group's (I11)."""
        refused = first_refusal(self.groups, offsets)
        if refused is None:
            self._take(offsets)
        return refused

    @call(flushed=True)
    def join(self, name: str, number: int, who: Person) -> tuple[int | None, int]:
        """Returns the member's number, which the database alone can know of a new one, and the generation."""
        group = self.groups[name] = self.group(name).join(number, replace(who, at=self.now))
        return group.number_of(who.member), group.generation

    @call(flushed=True)
    def leave(self, name: str, member: str) -> bool:
        number = self.group(name).number_of(member)
        if number is not None:
            self.groups[name] = self.group(name).without([number])
        return number is not None

    @call(flushed=False)
    def heartbeat(self, name: str, number: int, member: str, instance: str | None, beat: int) -> tuple[int, bool] | str:
        """A member lives; others whose session is over are out. Only their going is flushed: a generation is never lost."""
        group, holder = self.group(name), self.group(name).holder(instance)
        if holder is not None and group.members[holder].member != member:
            return FENCED_INSTANCE
        if number not in group.members or group.members[number].member != member:
            return UNKNOWN_MEMBER
        gone = group.overdue(self.now, but=[number])
        self.flushes = bool(gone)
        self.groups[name] = group.beat(number, beat, self.now).without(gone)
        return self.groups[name].generation, self.stale(name)

    @call(flushed=True)
    def assign(self, name: str, generation: int, topics: int, heirs: Mapping[int, int]) -> bool:
        """Who computed it of another generation than today's comes too late."""
        if name not in self.groups or self.groups[name].generation != generation:
            return False
        self.groups[name] = self.groups[name].assign(topics, heirs)
        return True

    @call(flushed=True)
    def release(self, name: str, number: int, partitions: Sequence[int]) -> int:
        self.groups[name] = self.group(name).release(number, partitions)
        return self.groups[name].generation

    @call(flushed=True)
    def remove_members(self) -> None:
        """A sweep: members whose session is over are out."""
        for name, group in self.groups.items():
            self.groups[name] = group.without(group.overdue(self.now))

    # ── share groups ──

    @call(flushed=True)
    def join_share(self, name: str, number: int, who: Person) -> int | None:
        """Returns the member's number. Others whose session is over are out; one that is there already changes nothing."""
        group = self.group(name)
        if group.number_of(who.member) is None:
            group = group.without(group.overdue(self.now))
            self.groups[name] = replace(group, members={**group.members, number: replace(who, at=self.now)})
        return self.groups[name].number_of(who.member)

    def deliveries(self, name: str, partition: int) -> Deliveries:
        """What holds now."""
        members = self.group(name).members
        living = [number for number, person in members.items() if not person.over(self.now)]
        return self.shares.get((name, partition), Deliveries()).now(self.now, living, self.outcome)

    def fresh(self, name: str, partition: int) -> list[int]:
        """Offsets of committed records that were never delivered."""
        known = self.deliveries(name, partition)
        seen = known.done | known.flight.keys()
        return [at for at, _ in self.committed(partition) if at >= known.start and at not in seen]

    @call(flushed=False)
    def acquire(
        self, name: str, number: int, call_number: int, where: Sequence[int], most: int, found: Found, accepted: Answers
    ) -> Found | Refused | str:
        """A member gets what nobody else has; what it accepts first is all taken, or nothing is done."""
        group, late = self.group(name), call_number < self.answered.get(number, -1)
        if number not in group.members or group.members[number].over(self.now):
            return UNKNOWN_MEMBER
        if accepted and late:
            return {}
        if accepted and call_number != self.answered.get(number):
            if refused := self._refused(name, number, accepted):
                return refused
            self._answer(name, number, accepted)
            self.answered[number] = call_number
            self.flushes = True
        known = {p: self.deliveries(name, p) for p in where}
        again = {
            (p, at): one.count
            for p, each in known.items()
            for at, one in each.flight.items()
            if (one.status, one.member, one.call) == (ACQUIRED, number, call_number)
        }
        if len(where) == 1 and not again:
            if any(one.status == PENDING and one.transaction in self.overdue() for one in known[where[0]].flight.values()):
                return "what is pending is overdue (I12)"
            self._bury(name, where[0], known[where[0]].dying())
            known = {p: self.deliveries(name, p) for p in where}
        mine = {p: {at: count for (part, at), count in found.items() if part == p} for p in where}
        for p, each in known.items():
            if (misfit := each.misfit(self.fresh(name, p), mine[p], number, call_number)) is not None:
                return f"partition {p}: {misfit}"
        if not again.items() <= found.items() or sum(map(len, mine.values())) != len(found) or len(found) > most:
            return f"the same call had {again}; of {where}; at most {most}"
        waits = any(one.status == AVAILABLE and not one.is_dying for p in where for one in known[p].flight.values())
        if not found and (waits or any(self.fresh(name, p) for p in where)):
            return f"something waits: {known}, {[self.fresh(name, p) for p in where]}"
        for p, each in known.items():
            new = [at for at in mine[p] if (p, at) not in again]
            if new:
                self.shares[name, p] = each.acquired(new, number, call_number, self.now)
        return found

    @call(flushed=True)
    def answer(self, name: str, number: int, call_number: int, answers: Answers) -> Refused | str:
        """All of it, or nothing. A call that comes again has no effect."""
        if call_number <= self.answered.get(number, -1):
            return []
        if number not in self.group(name).members:
            return UNKNOWN_MEMBER
        refused = self._refused(name, number, answers)
        if not refused:
            self._answer(name, number, answers)
            self.answered[number] = call_number
        return refused

    @call(flushed=True)
    def answer_in(
        self, transaction: Name, timeout: int | None, name: str, number: int, call_number: int, answers: Answers
    ) -> str | None:
        """Pending until the decision. The same call again has no effect."""
        if (refusal := self._standing(*transaction)) is not None:
            return refusal
        if number not in self.group(name).members:
            return UNKNOWN_MEMBER
        said = {at: Delivery(0, PENDING, number, call_number, 0, transaction, answer) for at, answer in answers.items()}
        for error, p, at in self._refused(name, number, answers):
            one = self.deliveries(name, p).flight.get(at, Delivery(0))
            if replace(one, count=0) != said[p, at]:
                return error
        for (p, at), one in said.items():
            known = self.deliveries(name, p)
            self.shares[name, p] = known.changed({at: replace(one, count=known.flight[at].count)})
        timeout = self.timeouts[transaction[0]] if timeout is None else timeout
        self.transactions.setdefault(transaction, Transaction(OPEN, deadline=self.now + timeout, timeout=timeout))
        return None

    @call(flushed=True)
    def commit_whole_answered(
        self, transaction: Name, requests: Sequence[Request], name: str, number: int, answers: Answers
    ) -> str | None:
        """Records, answers and the decision: all or nothing (I6)."""
        stands = self.transactions.get(transaction)
        if stands is not None and stands.outcome == COMMIT:
            return None
        refusal = INVALID if stands is not None and stands.outcome == OPEN else self._standing(*transaction)
        tails = [self.last_sequence(r.producer, r.epoch, r.partition) for r in requests]
        if refusal is None and any(r.first != last + 1 for r, last in zip(requests, tails, strict=True)):
            refusal = GAP
        if refusal is None and number not in self.group(name).members:
            refusal = UNKNOWN_MEMBER
        if refusal is None and (refused := self._refused(name, number, answers)):
            refusal = refused[0][0]
        if refusal is None:
            for request in requests:
                self._store(request)
            self._end(transaction, COMMIT, "client")
            self._answer(name, number, answers)
        return refusal

    @call(flushed=True)
    def reset_share(self, name: str, partition: int, offset: int) -> str | None:
        """From there on everything is delivered as if for the first time."""
        if any(not person.over(self.now) for person in self.group(name).members.values()):
            return "GroupNotEmpty"
        self.shares[name, partition] = Deliveries(min(offset, len(self.logs[partition])))
        return None

    def buried(self, name: str, letters: Sequence[Letter]) -> bool:
        """Whether these may be the dead letters: each record that had to die once, and more only of what is dying."""
        left = list(letters)
        for letter in self.letters:
            if letter not in left:
                return False
            left.remove(letter)
        for partition, at, count, rejected in left:
            one = self.deliveries(name, partition).flight.get(at)
            if one is None or not one.is_dying or (one.count, one.status == REJECTED) != (count, rejected):
                return False
            self._bury(name, partition, [at])
            self.past = []  # who writes a letter flushes
        return True

    def _refused(self, name: str, number: int, answers: Answers) -> Refused:
        found = [(self.deliveries(name, p).refusal(at, number), p, at) for p, at in sorted(answers)]
        return [(error, p, at) for error, p, at in found if error is not None]

    def _answer(self, name: str, number: int, answers: Answers) -> None:
        for (p, at), answer in sorted(answers.items()):
            known = self.deliveries(name, p)
            one = known.flight[at]
            if answer == RENEW:
                self.shares[name, p] = known.changed({at: replace(one, until=self.now + LOCK_MS)})
            elif answer == ACCEPT:
                self.shares[name, p] = known.finished([at])
            else:
                status = REJECTED if answer == REJECT else AVAILABLE
                self.shares[name, p] = known.changed({at: Delivery(one.count, status)})
                self._bury(name, p, [at] if answer == REJECT else [])

    def _bury(self, name: str, partition: int, offsets: Sequence[int]) -> None:
        if offsets:
            known = self.deliveries(name, partition)
            dead = [(partition, at, known.flight[at].count, known.flight[at].status == REJECTED) for at in offsets]
            self.letters = (*self.letters, *dead)
            self.shares[name, partition] = known.finished(offsets)
            self.flushes = True

    # ── what is there ──

    def group(self, name: str) -> Group:
        return self.groups.get(name, Group())

    def stale(self, name: str) -> bool:
        return self.group(name).stale or self.group(name).topics != self.topics

    def open_of(self, producer: int) -> Name | None:
        return next((n for n, t in self.transactions.items() if n[0] == producer and t.outcome == OPEN), None)

    def newest(self, producer: int, epoch: int) -> int:
        return max((number for p, e, number in self.transactions if (p, e) == (producer, epoch)), default=-1)

    def overdue(self) -> list[Name]:
        found = [(n, t) for n, t in self.transactions.items() if t.outcome == OPEN and t.sealed != "external"]
        return [name for name, transaction in found if transaction.deadline < self.now]

    def pending(self, group: str, partition: int) -> list[Name]:
        """Who is undecided and has an offset that may become the group's."""
        return [name for name, t in self.transactions.items() if t.outcome == OPEN and (group, partition) in t.pending]

    def outcome(self, name: Name) -> str:
        return self.transactions[name].outcome if name in self.transactions else UNKNOWN

    def last_sequence(self, producer: int, epoch: int, partition: int) -> int:
        mine = (e.last for e in reversed(self.logs[partition]) if (e.producer, e.epoch) == (producer, epoch))
        return next(mine, -1)

    def _tail(self, name: Name, partition: int) -> int:
        newest = next((e for e in reversed(self.logs[partition]) if (e.producer, e.epoch) == name[:2]), None)
        return newest.last if newest is not None and newest.name == name else -1

    def blocking(self, partition: int) -> tuple[int, Name | None]:
        """The last stable offset, and the undecided transaction that holds it back."""
        for offset, entry in enumerate(self.logs[partition]):
            if entry.name is not None and self.transactions[entry.name].outcome == OPEN:
                return offset, entry.name
        return len(self.logs[partition]), None

    def committed(self, partition: int, *, now: bool = False) -> Iterator[tuple[int, bytes]]:
        """Offsets and values as a `read_committed` reader gets them (I5); `now`: also behind what is undecided (I6)."""
        stable, _ = self.blocking(partition)
        for offset, entry in enumerate(self.logs[partition] if now else self.logs[partition][:stable]):
            if entry.shown and (entry.name is None or self.transactions[entry.name].outcome == COMMIT):
                yield offset, entry.value

    def everything(self, partition: int) -> Iterator[tuple[int, bytes]]:
        for offset, entry in enumerate(self.logs[partition]):
            yield offset, entry.value

    def state(self, transactional_id: str) -> set[str]:
        """The states that `transactions list` may show: nothing promises when phase two is done."""
        producer = self.ids[transactional_id]
        known = [name for name in self.transactions if name[0] == producer]
        if not known:
            return {"Empty"}
        newest = max(known)
        outcome = self.transactions[newest].outcome
        if outcome == OPEN:
            return {"Prepared" if self.transactions[newest].sealed else "Ongoing"}
        done = "Empty" if newest[1] < self.epochs[producer] else f"Complete{outcome.title()}"
        return {f"Prepare{outcome.title()}", done}
