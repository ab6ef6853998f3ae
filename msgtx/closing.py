"""Objects that are closed at the end of a `with` block."""

import abc
from types import TracebackType
from typing import Any, Self


class Closing(abc.ABC):
    """An object for `with`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close."""

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


class ClosingAsync(abc.ABC):
    """An object for `async with`. `sync`: the blocking one that it stands on."""

    sync: Any

    def __repr__(self) -> str:
        return f"<msgtx.aio.{type(self).__name__} on {self.sync!r}>"

    @abc.abstractmethod
    async def close(self) -> None:
        """Close."""

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()
