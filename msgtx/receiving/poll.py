"""A poll in two halves, and the end of polls, for an event loop beside a waiting thread."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from msgtx.types import Record

Found = TypeVar("Found", bound=Record[Any, Any])


@dataclass(frozen=True, slots=True)
class Poll(Generic[Found]):
    """`wait` returns whether there are records: False when time is over, or after `stop`. Then `take` or `each`, at once."""

    wait: Callable[[], bool]
    take: Callable[[], list[Found]]
    each: Callable[[], Iterator[Found]]


@dataclass(slots=True)
class Stopping:
    """Whether a poll is to end. One ends after `stop`; all of them do so if it is `for_good`."""

    asked: bool = False
    for_good: bool = False

    def heard(self) -> None:
        """Have the next poll wait again."""
        self.asked = self.for_good
