"""The records that a share consumer has returned, and its caller's answers."""

import itertools
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Final, NamedTuple, TypeVar

from msgtx import errors
from msgtx.rules.record import as_reason
from msgtx.session.answers import Answers
from msgtx.store.fetch.records import uncollected
from msgtx.store.shares.answers import AnswerColumns, OffsetRange, Refused
from msgtx.types import Acknowledgement, ShareRecord

Key = tuple[str, int, int]  # topic, partition, offset of a record
Answer = tuple[Acknowledgement, str | None, int | None]  # the reason of a REJECT, the delay of a RELEASE


class Held(NamedTuple):
    """Offsets of a partition that were delivered together; `delivery`: how often by then."""

    partition_id: int
    first: int
    last: int
    delivery: int

    @property
    def range(self) -> OffsetRange:
        """The offsets."""
        return OffsetRange(self.partition_id, self.first, self.last)


Ranged = tuple[OffsetRange | Held, Answer]
Range = TypeVar("Range", OffsetRange, Held)
log = logging.getLogger("msgtx.consumer")
ACCEPTED: Final[Answer] = (Acknowledgement.ACCEPT, None, None)


class Holdings:
    """The records that a member of a share group holds. `implicit`: rows of the log as a whole, all to be accepted."""

    def __init__(self, group: str, *, implicit: bool) -> None:
        self._group = group
        self.implicit = implicit
        # Of a whole call, not of a record: a transaction may be undone in another thread, its producer's sender.
        self.lock = threading.RLock()
        self.call_numbers = itertools.count(1)  # a call whose answer was lost is sent again under the same one
        self._held: dict[Key, Held] = {}  # returned records without an answer
        self._answers: dict[Key, Answer] = {}
        self._undone: set[Key] = set()  # of what is held: to be released, unless the caller answers for it again
        self.rewound = False  # what was handed out last was not committed, and no poll came since: its answers count no more
        self._locked_until = math.inf  # when the first lock ends of what is held
        self._last_taken: Answers | None = None
        # What transactions and sessions have that are not over, as far as this consumer knows.
        self._riding: weakref.WeakSet[Answers] = weakref.WeakSet()
        self._taken: weakref.WeakKeyDictionary[Answers, dict[Key, Held]] = weakref.WeakKeyDictionary()
        self._aging: dict[Key, Held] = {}  # records held at the last look
        self._looks_again = 0.0

    # ── held records ──

    def hold(
        self, records: Sequence[ShareRecord], offsets: Sequence[int], held: OffsetRange, *, locked_until: float
    ) -> list[Key]:
        """Record which offsets of a batch were delivered. Return their keys."""
        topic, partition, delivery = records[0].topic, records[0].partition, records[0].delivery_count
        partition_id, first, last = held
        self._locked_until = min(self._locked_until, locked_until) if self._held else locked_until
        self.rewound = False
        if self.implicit:
            keys = [(topic, partition, first)]
            self._forget_earlier(keys)
            self._held[keys[0]] = Held(*held, delivery)
            return keys
        # Offsets without a record go with the record behind them, the last ones with the last record.
        firsts = offsets if isinstance(offsets, range) else [first, *(offset + 1 for offset in offsets[:-1])]
        with self.lock, uncollected():
            keys = list(zip(repeat(topic), repeat(partition), offsets))
            self._forget_earlier(keys)
            self._held.update(zip(keys, map(Held, repeat(partition_id), firsts, offsets, repeat(delivery)), strict=False))
        if offsets[-1] < last:
            self._held[keys[-1]] = self._held[keys[-1]]._replace(last=last)
        return keys

    def _forget_earlier(self, keys: Sequence[Key]) -> None:
        """Drop answers for an earlier delivery of these records, which was not committed before its lock expired."""
        if self._undone:
            self._undone.difference_update(keys)
        if not self._answers:
            return
        if late := [key for key in keys if self._answers.pop(key, None) is not None]:
            log.warning(
                "share group %r: %s: the answer was not committed before the lock expired; the record is delivered again",
                self._group,
                _named(late),
            )

    def require(self, record: ShareRecord) -> Key:
        """Return the key of a record that is held. Raise `TransactionConflict`, `InvalidRecordState` for another."""
        key = _key_of(record)
        held = self._held.get(key)
        if held is None or held.delivery != record.delivery_count:
            place = f"{record.topic}-{record.partition} offset {record.offset}"
            if held is not None:
                raise errors.InvalidRecordState(
                    f"{place}: this is delivery {record.delivery_count}, and delivery {held.delivery} was handed out since",
                    at=(record.topic, record.partition),
                    offset=record.offset,
                    reason="delivered again",
                )
            if any(key in answers.records and not answers.is_over for answers in self._riding):
                raise errors.TransactionConflict(
                    f"{place} is acknowledged in a transaction that is not decided",
                    at=(record.topic, record.partition),
                    offset=record.offset,
                )
            raise errors.InvalidRecordState(
                f"{place} is not held by this share consumer (any more)",
                at=(record.topic, record.partition),
                offset=record.offset,
                reason="not held",
            )
        return key

    def of(self, records: Iterable[ShareRecord]) -> list[ShareRecord]:
        """Return the held ones of these records."""
        held = self._held
        return [each for each in records if (found := held.get(_key_of(each))) and found.delivery == each.delivery_count]

    def forget_expired(self, lock_seconds: float) -> None:
        """Forget records without an answer whose locks have ended since the last look: others have them."""
        now = time.monotonic()
        if now < self._looks_again:
            return
        with self.lock:
            for key, held in self._aging.items():
                if self._held.get(key) is held and key not in self._answers:
                    del self._held[key]
                    self._undone.discard(key)
            self._aging, self._looks_again = dict(self._held), now + lock_seconds

    def clear(self) -> None:
        """Forget all of it: others have it."""
        with self.lock:
            self._held.clear()
            self._answers.clear()
            self._undone.clear()

    # ── undone records ──

    @property
    def has_undone(self) -> bool:
        """Whether something is to be released."""
        return bool(self._undone)

    def undo(self, *, but: Iterable[Key] = ()) -> None:
        """Drop the answers that are not committed. Mark their records, and the unanswered ones, as to be released.

        `but`: records of a commit without an answer, which may have been done.
        """
        with self.lock:
            last = self._last_taken
            if last is not None and not (last.is_owned or last.is_over):  # its taker was interrupted
                self.hold_again(last)
                last.is_over = True
            undone = set(self._held).difference(but)
            self._undone |= undone
            for key in undone:
                self._answers.pop(key, None)
            self.rewound |= bool(undone)

    def undone(self) -> dict[Key, Held]:
        """Return the records to release."""
        with self.lock:
            return {key: held for key in tuple(self._undone) if (held := self._held.get(key)) is not None}

    def released(self, undone: dict[Key, Held]) -> None:
        """Forget records that were released, or are others'."""
        with self.lock:
            for key, held in undone.items():
                if self._held.get(key) is held and key in self._undone:
                    del self._held[key]
                    self._undone.discard(key)

    # ── the answers for it ──

    @property
    def has_answers(self) -> bool:
        """Whether the caller has answered for anything that is not committed."""
        return bool(self._answers)

    @property
    def has_rejects(self) -> bool:
        """Whether there will be dead letters."""
        return any(answer[0] is Acknowledgement.REJECT for answer in self._answers.values())

    def answer(self, key: Key, answer: Answer) -> None:
        """Record the answer for a record; the last one counts."""
        with self.lock:  # another thread may undo a transaction
            self._answers[key] = answer
            if self._undone:
                self._undone.discard(key)

    def given(self) -> dict[Key, Answer]:
        """Return the answers to commit: in implicit mode all held records are accepted, except those to release."""
        if not self.implicit:
            return self.explicit()
        with self.lock:
            held = [key for key in self._held if key not in self._undone] if self._undone else self._held
            return dict.fromkeys(held, ACCEPTED) | self._answers

    def explicit(self) -> dict[Key, Answer]:
        """Return the answers that were given one by one."""
        with self.lock:
            return dict(self._answers)

    def columns(self, member: int, answers: Iterable[Ranged]) -> AnswerColumns:
        """Return a member's answers for ranges of offsets."""
        merged = _merged(answers)
        return AnswerColumns(
            (self._group,) * len(merged),
            (member,) * len(merged),
            tuple(each[0] for each in merged),
            tuple(each[1] for each in merged),
            tuple(each[2] for each in merged),
            tuple(answer.value for *_, (answer, _, _) in merged),
            tuple(None if reason is None else as_reason(reason) for *_, (_, reason, _) in merged),
            tuple(delay for *_, (_, _, delay) in merged),
        )

    def columns_of(self, member: int, answers: dict[Key, Answer]) -> AnswerColumns:
        """Return a member's answers, of these, for held records."""
        with self.lock:
            held = self._held
            return self.columns(member, [(held[key], answer) for key, answer in answers.items() if key in held])

    def answered(self, answers: dict[Key, Answer], refused: Sequence[Refused] | None) -> None:
        """Note the result of a commit; `refused` None: all of it, since the group does not know this member.

        Raise the error of a refusal; the refused answers are forgotten. Raise `InvalidRecordState` for answers that the
        caller has changed since, because this commit had no answer in time: it is done.
        """
        with self.lock:
            self._answered({key: answer for key, answer in answers.items() if key in self._held}, refused)

    def _answered(self, answers: dict[Key, Answer], refused: Sequence[Refused] | None) -> None:
        if refused is None:
            refused = [("InvalidRecordState", self._held[key].range) for key in answers]
        if refused:
            lost = [each for _, each in refused]
            bad: list[Key] = []
            for key in answers:
                held = self._held[key]
                hit = [each for each in lost if _overlap(held, each)]
                if hit:
                    del self._held[key]
                    self._answers.pop(key, None)
                    self._undone.discard(key)
                    bad.append((*key[:2], max(held.first, hit[0].first)) if self.implicit else key)
                    left = without([held], hit) if self.implicit else []  # else it is one record
                    self._held |= {(*key[:2], rest.first): rest for rest in left}
            raise errors.BY_NAME[refused[0][0]](
                f"share group {self._group!r}: {_named(bad)}: the lock has expired or the"
                " session of this member is over, so others get them; or their topic was deleted. Nothing was committed;"
                " call again for the rest",
                group=self._group,
                at=bad[0][:2] if bad else None,
                offset=bad[0][2] if bad else None,
            )
        late = []
        for key, answer in answers.items():
            if answer[0] is Acknowledgement.RENEW:
                self._held[key] = Held(*self._held[key])  # another one: `forget_expired` tells them apart
                if self._answers.get(key) == answer:
                    del self._answers[key]
                continue
            if self._answers.pop(key, answer) != answer:
                late.append(key)
            del self._held[key]
            self._undone.discard(key)
        if late:
            raise errors.InvalidRecordState(
                f"share group {self._group!r}: {_named(late)}: the commit before, which had no answer in time, has answered"
                " for them. Call again for the rest",
                group=self._group,
                reason="late answer",
            )

    # ── answers of transactions and sessions ──

    def to_take(self) -> dict[Key, Answer]:
        """Return the answers that a transaction may commit. A lock begins anew at once, by a plain commit: of none."""
        return {key: answer for key, answer in self.given().items() if answer[0] is not Acknowledgement.RENEW}

    def take(self, given: dict[Key, Answer], *, member: int, call: int, take_back: Callable[[Answers], None]) -> Answers:
        """Hand answers over, with the records. `take_back`: called when they are not committed."""
        with self.lock:
            held = {key: self._held[key] for key in given}
            columns = self.columns(member, [(held[key], answer) for key, answer in given.items()])
            taken = Answers(columns, frozenset(held), call, take_back, self._locked_until)
            self._taken[taken] = held
            self._riding.add(taken)
            self._last_taken = taken  # until somebody owns it: an interrupt may come before
            for key in given:
                self._held.pop(key, None)
                self._answers.pop(key, None)
            return taken

    def hold_again(self, answers: Answers) -> dict[Key, Held]:
        """Withdraw answers that are not committed. Return their records, to release them.

        Until then the records may be answered for again, unless others have them. Pending ones are available already.
        """
        with self.lock:
            self.rewound = True
            if answers.may_be_stored:
                return {}
            again = {key: Held(*held) for key, held in self._taken[answers].items() if key not in self._held}
            self._held |= again
            self._undone |= again.keys()
            return again

    def open(self) -> list[Answers]:
        """Return the answers of transactions and sessions that are not over."""
        return [answers for answers in tuple(self._riding) if not answers.is_over]


def _key_of(record: ShareRecord) -> Key:
    return record.topic, record.partition, record.offset


def _named(keys: Sequence[Key]) -> str:
    names = ", ".join(f"{topic}-{partition} offset {offset}" for topic, partition, offset in keys[:5])
    return f"{names}, …" if len(keys) > 5 else names


def _overlap(one: OffsetRange | Held, other: OffsetRange | Held) -> bool:
    return one.partition_id == other.partition_id and one.first <= other.last and other.first <= one.last


def without(ranges: Iterable[Range], taken: Iterable[OffsetRange]) -> list[Range]:
    """Subtract the taken ranges."""
    left = list(ranges)
    for other in taken:
        kept = [each for each in left if not _overlap(each, other)]
        for each in left:
            if _overlap(each, other):
                parts = (each._replace(last=other.first - 1), each._replace(first=other.last + 1))
                kept += [part for part in parts if part.first <= part.last]
        left = kept
    return left


def _merged(answers: Iterable[Ranged]) -> list[tuple[int, int, int, Answer]]:
    """Return the same answers in as few ranges as possible: partition id, first and last offset, answer."""
    found: list[tuple[int, int, int, Answer]] = []
    partition_id, first, last, answer = -1, 0, -1, None
    for each, given in sorted(answers):  # no two have the same range: answers are not compared
        if each[0] == partition_id and each[1] == last + 1 and given == answer:
            last = each[2]
            continue
        if answer is not None:
            found.append((partition_id, first, last, answer))
        partition_id, first, last, answer = *each[:3], given
    if answer is not None:
        found.append((partition_id, first, last, answer))
    return found
