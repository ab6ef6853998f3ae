"""What share consumers and the transactions or sessions that commit their answers tell each other (internals: shares)."""

import math
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from msgtx.store.answers import AnswerColumns


@dataclass(eq=False, slots=True, weakref_slot=True)
class Answers:
    """Answers of a member, until it is known whether they count. `call`: a number of the member's.

    `locked_until`: when the first lock of their records ends, of `time.monotonic`; a renewed one ends later.
    """

    columns: AnswerColumns
    records: frozenset[Hashable]
    call: int
    take_back: Callable[["Answers"], None]
    locked_until: float = math.inf
    due: float = 0.0  # when a transaction hands them over that is not committed by then
    hand_over: Callable[[float], None] | None = None  # at once; waits at most so many seconds
    handed: bool = False  # to the database, which may have them
    stored: bool = False
    refused: bool = False  # nothing of them was stored
    is_owned: bool = False  # a transaction or session has them
    is_over: bool = False  # committed or lost

    @property
    def may_be_stored(self) -> bool:
        """Whether the database may have them, pending: their transaction's end is theirs, too."""
        return self.handed and not self.refused

    def committed(self) -> None:
        """Handle that they count."""
        self.is_over = True

    def lost(self) -> None:
        """Handle that they will not be committed. What the database has of them ends with their transaction."""
        if not self.is_over:
            self.take_back(self)
            self.is_over = True  # last: one that is interrupted can be repeated


class AnswerSource(Protocol):
    """A share consumer, as a transaction or a session sees it."""

    def transaction_answers(self) -> Answers | None:
        """Return the answers given so far, which are the transaction's from here on; None: there are none."""
        ...

    def undo(self, *, release: bool) -> None:
        """Handle that a transaction is not committed: what was handed out by then will be handed out again.

        `release`: it is over, so others may have the records at once.
        """
        ...


class Enclosing(Protocol):
    """A producer's transaction, as a share consumer sees it."""

    is_over: bool


# Of each thread or task: the share consumers that handed out records there, and the transactions that began there. So a
# transaction that is aborted before it was given any answers finds the records it was for.
_sources: ContextVar[tuple["weakref.ref[AnswerSource]", ...]] = ContextVar("msgtx_sources", default=())
_transactions: ContextVar[tuple["weakref.ref[Enclosing]", ...]] = ContextVar("msgtx_transactions", default=())


def hands_out_here(source: "weakref.ref[AnswerSource]") -> None:
    """Register a share consumer that hands out records in this thread or task."""
    known = _sources.get()
    if source not in known:
        _sources.set((*(each for each in known if each() is not None), source))


def sources_here() -> Iterator[AnswerSource]:
    """Yield the share consumers that handed out records in this thread or task."""
    for each in _sources.get():
        source = each()
        if source is not None:
            yield source


def begins_here(transaction: Enclosing) -> None:
    """Register a transaction that begins in this thread or task."""
    others = (each for each in _transactions.get() if _is_open(each()) and each() is not transaction)
    _transactions.set((*others, weakref.ref(transaction)))


def is_in_transaction() -> bool:
    """Return whether a transaction that began in this thread or task is not over."""
    return any(_is_open(each()) for each in _transactions.get())


def _is_open(transaction: Enclosing | None) -> bool:
    return transaction is not None and not transaction.is_over
