"""A consumer that was interrupted between two of its own steps is rewound before it is used again (decision 0146)."""

import sys
from types import TracebackType
from typing import Self

from msgtx.errors import IllegalState, MsgtxError


class Integrity:
    """Whether the state of a consumer is whole. `what`: its name in a refusal."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.torn = False

    def steps(self) -> Self:
        """Mark the consumer as torn if an exception comes within the block, as a signal handler raises it."""
        return self  # a generator would take three times as many calls, in each poll

    def __enter__(self) -> Self:
        """Begin the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Look at what ends the block."""
        if error is not None:
            self.raised(error)

    def raised(self, error: BaseException) -> None:
        """Mark the consumer as torn by an exception between two steps. Our errors and those of SQLAlchemy tear nothing."""
        exc = sys.modules.get("sqlalchemy.exc")  # if it was never imported, this is no error of it
        whole = isinstance(error, MsgtxError) or (exc is not None and isinstance(error, exc.SQLAlchemyError))
        self.torn = self.torn or not whole

    def require(self) -> None:
        """Raise `IllegalState` if the consumer is torn: its positions may be behind records that nobody got."""
        if self.torn:
            raise IllegalState(
                f"{self._what} was interrupted in the middle of a step: call rewind() to read what is not committed again,"
                " or make a new one",
                reason="interrupted",
            )
