"""Clients that call the protocol by hand: requests that are delayed, doubled, reordered, or arrive for the first time when
all is over."""

from typing import Any

import sqlalchemy
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from msgtx import Outcome, ProducerId, TransactionId, protocol
from msgtx.types import OutputRecord
from tests.model.history import IDS, LONG_MS, SHORT_MS, counts, crashes, ids, partitions, some
from tests.model.joining import Joining
from tests.model.lives import Decision, Life
from tests.model.membership import RANKS, Commit
from tests.model.oracle import ABORT, ABORTED, COMMIT, FENCED, INVALID, Oracle, Request
from tests.model.place import metadata_of, named

WRITTEN = {COMMIT: Outcome.COMMITTED, ABORT: Outcome.ABORTED}
REFUSED = {FENCED, ABORTED, INVALID}
outcomes = st.sampled_from([COMMIT, ABORT])
now_or_later = st.booleans()  # later: the request is kept, and arrives when `deliver` takes it, or never


class ByHand(Joining):
    def _hands(self, *, transactional: bool | None = None) -> list[Life]:
        hands = [life for life in self.lives if life.producer is None]
        return [life for life in hands if transactional in {None, life.transactional_id is not None}]

    @initialize(by_hand=st.lists(st.booleans(), min_size=IDS, max_size=IDS))
    def begin(self, by_hand: list[bool]) -> None:
        for which, hand in enumerate(by_hand):
            self._init(which, LONG_MS, hand, 0)

    @rule(
        which=ids,
        timeout=st.sampled_from([LONG_MS, SHORT_MS]),
        how=st.sampled_from(["library", "by hand", "library", "by hand", "without id", "raise", "fence"]),
        crash=crashes,
    )
    def init(self, which: int, timeout: int, how: str, crash: int) -> None:
        """Take an id over: its former user is a zombie from here on (I7). Or raise the epoch in another way."""
        if how == "without id":
            self._init_without_id()
        elif how == "fence":
            self._fence(self.ids[which], crash)
        elif how == "raise" and self._hands():
            self._raise_epoch(self._hands()[-1 - which % len(self._hands())], crash)
        else:
            self._init(which, timeout, how != "library", crash)

    def _fence(self, name: str, crash: int) -> None:
        fence = self.place.client.admin.transactions.fence
        self.ask(lambda: tuple(self.place.again(lambda: fence(name))), lambda o, _: o.fence(name), crash=crash)

    def _init(self, which: int, timeout: int, by_hand: bool, crash: int) -> None:
        if by_hand:
            self._init_by_hand(which, timeout, crash)
        else:
            self.init_library(which, timeout, crash)

    def _init_by_hand(self, which: int, timeout: int, crash: int) -> None:
        name = self.ids[which]
        found = self.ask(
            lambda: self.place.protocol(lambda c: _plain(protocol.init_producer_id(c, name, timeout))),
            lambda o, answer: o.init(name, timeout, answer[0]),
            crash=crash,
        )
        self.born(Life(name, *found))

    def _init_without_id(self) -> None:
        found = self.place.protocol(lambda c: _plain(protocol.init_producer_id(c, None, LONG_MS)))
        assert found[1] == 0
        assert found[0] not in {life.producer_id for life in self.lives}, "P41"
        self.born(Life(None, *found))

    def _raise_epoch(self, life: Life, crash: int) -> None:
        """A producer raises its own epoch; a zombie that tries is not handed its successor's (P30)."""
        expected, before = ProducerId(life.producer_id, life.epoch), life.epoch
        answer = self.ask(
            lambda: self.place.protocol(
                lambda c: _plain(protocol.init_producer_id(c, life.transactional_id, LONG_MS, expected))
            ),
            lambda o, _: o.bump(life.producer_id, before, LONG_MS),
            crash=crash,
        )
        if not isinstance(answer, str):
            life.bumped(answer[1])

    @precondition(lambda self: self._hands())
    @rule(which=some, partition=partitions, count=counts, now=now_or_later, crash=crashes)
    def append(self, which: int, partition: int, count: int, now: bool, crash: int) -> None:
        self._append(self.one_of(self._hands(), which), partition, count, now, crash)

    def _append(self, life: Life, partition: int, count: int, now: bool, crash: int) -> None:
        request = life.request(partition, self.content(count))
        self.keep(request)
        if not now or self._deliver_request(request, crash)[0] is None:
            life.sent(request)

    @precondition(lambda self: self._hands(transactional=True))
    @rule(which=some, outcome=outcomes, offsets=st.booleans(), now=now_or_later, crash=crashes)
    def decide(self, which: int, outcome: str, offsets: bool, now: bool, crash: int) -> None:
        self._decide(self.one_of(self._hands(transactional=True), which), outcome, offsets, now, crash)

    @precondition(lambda self: self._hands(transactional=True))
    @rule(which=some, partition=partitions, outcome=outcomes, offsets=st.booleans(), now=now_or_later, crash=crashes)
    def append_and_decide(self, which: int, partition: int, outcome: str, offsets: bool, now: bool, crash: int) -> None:
        """A whole transaction; perhaps its last batch is still on the way when it is decided."""
        life = self.one_of(self._hands(transactional=True), which)
        self._append(life, partition, 1, True, 0)
        self._append(life, partition, 1, now, crash)
        self._decide(life, outcome, offsets, True, crash)

    def _decide(self, life: Life, outcome: str, offsets: bool, now: bool, crash: int) -> None:
        at = len(self.oracle.logs[1])
        sent = {(self.groups[1], 1): Commit(at)} if offsets else {}
        if offsets and self.guests:  # as its owner, with one of the last generations that it learned
            sent[self.crowd, 1] = self.owner(1, at).commit(at, at % 2)
        decision = Decision(life.name, outcome, dict(life.handed), sent)
        self.keep(decision)
        if not now:
            return
        error, _ = self._deliver_decision(decision, crash)
        if error not in {ABORTED, FENCED, *RANKS}:  # an aborted one is aborted by its producer, which learns what is stored
            for partition in life.handed:
                life.sequences[partition] = self.oracle.last_sequence(life.producer_id, life.epoch, partition) + 1
            life.number = self.oracle.newest(life.producer_id, life.epoch) + 1
            life.handed.clear()

    @precondition(lambda self: self.letters)
    @rule(which=some, crash=crashes)
    def deliver(self, which: int, crash: int) -> None:
        """A request arrives: again, or for the first time, in any order, whatever has happened since (P10, P25, P26)."""
        letter = self.one_of(self.letters, which)
        if isinstance(letter, Request):
            self._deliver_request(letter, crash)
        else:
            self._deliver_decision(letter, crash)

    def _deliver_request(self, request: Request, crash: int) -> Any:
        batch = protocol.Batch(
            self.partitions[request.partition],
            request.producer,
            request.epoch,
            request.first,
            [OutputRecord(value) for value in request.values],
            request.number,
        )

        def real(connection: sqlalchemy.Connection) -> tuple[str | None, int, bool]:
            (result,) = protocol.append(connection, [batch])
            error = None if result.error is None else named(result.error)
            return error, -1 if error else result.base_offset, result.duplicate

        def model(oracle: Oracle, answer: Any) -> tuple[str | None, int, bool]:
            append = oracle.append_flushed if request.number is None else oracle.append
            expected: tuple[str | None, int, bool] = append(request)[0]
            refused_as_old = expected[2] and answer[0] in REFUSED and request.epoch < oracle.epochs.get(request.producer, 0)
            return answer if refused_as_old else expected  # a zombie's retry has no effect, whatever it is answered (I7)

        return self.ask(lambda: self.place.protocol(real), model, crash=crash)

    def _deliver_decision(self, decision: Decision, crash: int) -> Any:
        tails = {self.partitions[partition]: last for partition, last in decision.tails.items()}
        offsets: dict[Any, dict[Any, int]] = {}
        for (group, partition), commit in decision.offsets.items():
            offsets.setdefault(metadata_of(group, commit), {})[self.partitions[partition]] = commit.offset

        def real(connection: sqlalchemy.Connection) -> tuple[str | None, dict[int, int]]:
            result = protocol.decide(connection, TransactionId(*decision.name), WRITTEN[decision.outcome], tails, offsets)
            return None, {self.partitions.index(partition): last for partition, last in result.tails.items()}

        def asked() -> tuple[str | None, dict[int, int]]:
            answer = self.place.protocol(real)
            return (answer, {}) if isinstance(answer, str) else answer

        def model(oracle: Oracle, _: Any) -> tuple[str | None, dict[int, int]]:
            return oracle.decide(decision.name, decision.outcome, decision.tails, decision.offsets)

        return self.ask(asked, model, crash=crash)


def _plain(found: ProducerId) -> tuple[int, int]:
    return found.producer_id, found.epoch
