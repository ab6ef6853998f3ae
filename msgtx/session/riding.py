"""What rides in a user's SQL transaction: consumer offsets, answers, records, decisions of sealed transactions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from msgtx.session.answers import Answers
from msgtx.session.published import Published
from msgtx.store.groups.groups import OffsetRows
from msgtx.store.transactions.seal import Sealed


class Owner(Protocol):
    """Whose transaction is decided by the user's COMMIT."""

    def lost(self) -> None:
        """Handle a rollback of the user's SQL transaction, or a failed COMMIT."""
        ...


@dataclass(slots=True)
class Writing:
    """A block that writes to a transaction: the user's COMMIT must wait for its end."""

    owner: Owner
    open: bool = True


@dataclass(slots=True, eq=False)
class Riding:
    """Consumer offsets that the user's COMMIT writes. `refusal`: the reason why it must not yet.

    `written`: the COMMIT was sent, and may be done; False again once it is known that it was not. `committed`: it was done.
    `release`: has the database allow the COMMIT, if that holds it back.
    """

    rows: OffsetRows
    owner: Owner
    refusal: str | None = None
    written: bool = False
    committed: bool = False
    release: Callable[[], None] | None = None

    def allow(self) -> None:
        """Allow the COMMIT. Raise the error of a connection that fails."""
        if self.release is not None:
            self.release()
        self.refusal = None


@dataclass(frozen=True, slots=True)
class SealedDecision:
    """A transaction that the user's COMMIT decides."""

    sealed: Sealed
    owner: Owner


Thing = Published | Riding | Answers | SealedDecision | Writing


class Enlisted(Protocol):
    """The additions to one SQL transaction of the user's."""

    def add(self, connection: Any, thing: Thing) -> None:
        """Have something ride in the SQL transaction that the connection is in."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether the SQL transaction has not ended, as far as that can be known."""
        ...
