"""A producer as its user sees it: what it has begun, sent and been answered. Its successor is another life of the same id.

And a member of a group, as it sees itself.
"""

from dataclasses import dataclass, field
from typing import Any

from msgtx.producer.producer import Producer, RecordFuture
from tests.model.membership import Commit
from tests.model.oracle import FENCED, NO_ID, Name, Request

Offsets = dict[tuple[str, int], Commit]


@dataclass
class Life:
    """`producer` None: a client in another language, that calls the protocol by hand."""

    transactional_id: str | None
    producer_id: int
    epoch: int
    producer: Producer | None = None
    number: int = 0
    begun: bool = False
    timeout: int | None = None  # of this transaction alone
    sequences: dict[int, int] = field(default_factory=dict)  # the next one, by partition
    handed: dict[int, int] = field(default_factory=dict)  # of the open transaction: the last one that was sent
    waiting: dict[int, list[bytes]] = field(default_factory=dict)  # sent by the user and not yet by the producer
    futures: list[tuple[int, RecordFuture]] = field(default_factory=list)
    offsets: Offsets = field(default_factory=dict)
    decides: bool = False  # a decision was handed over
    error: str | None = None
    sealed: Name | None = None  # the last one that somebody else was left to decide

    @property
    def name(self) -> Name:
        return self.producer_id, self.epoch, self.number

    @property
    def dead(self) -> bool:
        return self.error in {FENCED, NO_ID}

    def request(self, partition: int, values: list[bytes]) -> Request:
        number = None if self.transactional_id is None else self.number
        first = self.sequences.get(partition, 0)
        return Request(self.producer_id, self.epoch, number, partition, first, tuple(values), self.timeout)

    def requests(self) -> list[Request]:
        """What waits, one batch per partition, ascending."""
        return [self.request(partition, values) for partition, values in sorted(self.waiting.items())]

    def sent(self, request: Request) -> None:
        """It was handed over, and keeps its sequence forever."""
        self.sequences[request.partition] = request.last + 1
        self.handed[request.partition] = request.last

    def flushed(self) -> None:
        self.waiting.clear()
        self.futures.clear()

    def begin(self, timeout: int | None) -> None:
        self.begun, self.timeout = True, timeout

    def ended(self) -> None:
        if self.handed or self.decides:
            self.number += 1
        self.begun, self.decides, self.error, self.timeout = False, False, None, None
        self.handed.clear()
        self.offsets.clear()
        self.flushed()

    def bumped(self, epoch: int) -> None:
        self.epoch, self.number, self.error = epoch, 0, None
        self.sequences.clear()
        self.handed.clear()


@dataclass(frozen=True)
class Decision:
    """A decision as it goes over the network."""

    name: Name
    outcome: str
    tails: dict[int, int]
    offsets: Offsets


@dataclass
class Guest:
    """A member of a group, or one that was: the number it has there, and every generation that it learned."""

    member: str
    instance: str | None
    number: int = -1
    told: list[int] = field(default_factory=list)
    beats: int = 0

    def commit(self, offset: int, when: int) -> Commit:
        """With a generation that it learned: 0 newest, 1 the one before, …; -1: with a generation that is still to come."""
        if when < 0:
            return Commit(offset, self.member, self.told[-1] + 100, self.instance)
        return Commit(offset, self.member, self.told[-1 - when % len(self.told)], self.instance)


@dataclass
class Worker:
    """A member of a share group, or one that was: its number there, and what it was handed out, newest last."""

    member: str
    number: int = -1
    beats: int = 0
    calls: int = 0
    last: tuple[Any, ...] = ()  # the newest call that acquired
    handed: list[tuple[int, int]] = field(default_factory=list)

    def call(self) -> int:
        self.calls += 1
        return self.calls


@dataclass(frozen=True)
class Division:
    """An assignment on its way: computed for a generation and a number of topics."""

    generation: int
    topics: int
    topics_version: int
    heirs: dict[int, int]
