"""A producer's calls of its client's notifier."""

from collections.abc import Sequence
from typing import Protocol


class Wake(Protocol):
    """Notifies waiting consumers of commits."""

    def claim(self) -> bool:
        """Return whether the caller is to notify after its own COMMIT; if not, or if it did not, it calls `tell`."""
        ...

    def failed(self) -> None:
        """Record that a claimed notification was not sent."""
        ...

    def tell(self, partition_ids: Sequence[int]) -> None:
        """Notify consumers of these partitions of a commit that is done."""
        ...
