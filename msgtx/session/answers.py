"""Share consumers, and the transactions or sessions that commit their answers (internals: share-answers)."""

import asyncio
import contextlib
import math
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from msgtx.store.shares.answers import AnswerColumns


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
        """Handle that they will not be committed. Answers in the database end with their transaction."""
        if not self.is_over:
            self.take_back(self)
            self.is_over = True  # last: one that is interrupted can be repeated


class AnswerSource(Protocol):
    """A share consumer, as a transaction or a session sees it."""

    def transaction_answers(self) -> Answers | None:
        """Return the answers given so far, which are the transaction's from here on; None: there are none."""
        ...

    def undo(self, *, release: bool) -> None:
        """Have the records returned so far delivered again: their transaction was not committed.

        `release`: it is over, so others may have the records at once.
        """
        ...


class HandingOut(AnswerSource, Protocol):
    """A share consumer that returns records one by one."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        ...


class Enclosing(Protocol):
    """A producer's transaction, as a share consumer sees it."""

    is_over: bool


_loop = asyncio._get_running_loop
_thread = threading.get_ident
Worker = object  # the number of a thread, or a weak reference to a task: a reference is equal to others to the same
Sources = tuple["weakref.ref[HandingOut]", ...]
Transactions = tuple["weakref.ref[Enclosing]", ...]
# For each thread or task: the share consumers that returned records there, and the transactions that began there. Its
# name is kept, since a child inherits the value of its parent. So a transaction that is aborted before it was given any
# answers finds the records it was for.
_sources: ContextVar[tuple[Worker, Sources]] = ContextVar("msgtx_sources", default=(None, ()))
_transactions: ContextVar[tuple[Worker, Transactions]] = ContextVar("msgtx_transactions", default=(None, ()))
_lender: ContextVar[Worker] = ContextVar("msgtx_lender", default=None)


def _worker() -> Worker:
    lender = _lender.get()
    if lender is not None:
        return lender
    loop = _loop()
    task = None if loop is None else asyncio.current_task(loop)
    return _thread() if task is None else weakref.ref(task)


@contextlib.contextmanager
def lending() -> Iterator[None]:
    """Have a thread or task of ours that copies the context within the block count as this one."""
    token = _lender.set(_worker())
    try:
        yield
    finally:
        _lender.reset(token)


def hands_out_here(source: "weakref.ref[HandingOut]") -> None:
    """Register a share consumer that returns records in this thread or task."""
    worker, known = _sources.get()
    if worker == _thread() and source in known and _loop() is None:  # as a rule, and quickly: it is asked for each record
        return
    me = _worker()
    if worker != me:
        known = ()
    if source not in known:
        _sources.set((me, (*(each for each in known if each() is not None), source)))


def sources_here() -> list[AnswerSource]:
    """Return the share consumers that returned records in this thread or task, except closed ones."""
    worker, known = _sources.get()
    found = [each() for each in known] if known and worker == _worker() else []
    return [source for source in found if source is not None and not source.closed]


def begins_here(transaction: Enclosing) -> None:
    """Register a transaction that begins in this thread or task."""
    worker, known = _transactions.get()
    me = _worker()
    others = [each for each in known if is_open(each) and each() is not transaction] if known and worker == me else []
    _transactions.set((me, (*others, weakref.ref(transaction))))


def began_here(transaction: Enclosing) -> bool:
    """Return whether a transaction began in this thread or task."""
    worker, known = _transactions.get()
    return bool(known) and worker == _worker() and any(each() is transaction for each in known)


def transactions_here() -> Transactions:
    """Return the transactions that began in this thread or task and are not over."""
    worker, known = _transactions.get()
    return tuple(each for each in known if is_open(each)) if known and worker == _worker() else ()


def is_open(transaction: "weakref.ref[Enclosing]") -> bool:
    """Return whether a transaction is not over."""
    found = transaction()
    return found is not None and not found.is_over
