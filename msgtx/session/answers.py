"""Acknowledgements that a transaction or a session commits, as a share consumer hands them over (internals: shares)."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Protocol

from msgtx.store.answers import AnswerColumns


@dataclass(eq=False, slots=True, weakref_slot=True)
class Answers:
    """Answers of a member, until it is known whether they count. `call`: a number of the member's."""

    columns: AnswerColumns
    records: frozenset[Hashable]
    call: int
    take_back: Callable[["Answers"], None]
    due: float = 0.0  # when a transaction hands them over that is not committed by then
    handed: bool = False  # to the database, which may have them
    stored: bool = False
    refused: bool = False  # nothing of them was stored
    _over: bool = field(default=False, init=False)

    @property
    def may_be_stored(self) -> bool:
        """Whether the database may have them, pending: their transaction's end is theirs, too."""
        return self.handed and not self.refused

    def lost(self) -> None:
        """Handle that they will not be committed. What the database has of them ends with their transaction."""
        if not self._over:
            self._over = True
            self.take_back(self)


class AnswerSource(Protocol):
    """A share consumer, as a transaction or a session sees it."""

    def transaction_answers(self) -> Answers | None:
        """Return the answers given so far, which are the transaction's from here on; None: there are none."""
        ...
