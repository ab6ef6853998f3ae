"""What a producer asks of its client's notifier."""

from collections.abc import Sequence
from typing import Protocol


class Wake(Protocol):
    """Tells waiting consumers of commits."""

    def claim(self) -> bool:
        """Return whether the caller is to notify behind its own COMMIT; if not, or if it did not, it calls `tell`."""
        ...

    def failed(self) -> None:
        """Take note that what was claimed was not done."""
        ...

    def tell(self, partition_ids: Sequence[int]) -> None:
        """Notify consumers of these partitions of a commit that is done."""
        ...
