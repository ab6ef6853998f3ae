"""Group commit: small transactions of one client that wait at the same time share an SQL transaction and its flush."""

from collections.abc import Callable, Sequence
from typing import Final

from msgtx.database.pool import Engine
from msgtx.database.together import MOST_TOGETHER, SharedCalls
from msgtx.producer.wake import Wake
from msgtx.store.append.append import (
    PARTITIONS_AT_ONCE,
    Appended,
    Whole,
    append_and_decide,
    append_and_decide_together,
    append_decide_and_notify,
)

MOST_BYTES: Final = 64 * 1024  # of a transaction that shares: a larger one would hold the others up


class GroupCommit:
    """Commits whole transactions, for any thread."""

    def __init__(self, engine: Engine, wake: Wake) -> None:
        self._engine = engine
        self._wake = wake
        self.calls = SharedCalls(self._by_itself, self._together, most=MOST_TOGETHER)

    def commit(self, whole: Whole, size: int) -> list[Appended]:
        """Store and commit a transaction of `size` bytes, and tell consumers.

        Answers and errors are those of a call by itself.
        """
        if whole.answers.groups or size > MOST_BYTES or len(whole.batches) > PARTITIONS_AT_ONCE // MOST_TOGETHER:
            return self._by_itself(whole)
        return self.calls.call(whole)

    def _by_itself(self, whole: Whole) -> list[Appended]:
        with self._engine.connection() as connection:
            if whole.batches and not self._engine.pooled and self._wake.claim():
                answers, notified = append_decide_and_notify(connection, whole)
                if notified:
                    return answers
                self._wake.failed()
            else:
                answers = append_and_decide(
                    connection, whole.id, whole.batches, offsets=whole.offsets, answers=whole.answers, wake=False
                )
        self._tell(whole)
        return answers

    def _together(self, several: Sequence[Whole], sent: Callable[[], object]) -> Sequence[list[Appended] | None]:
        with self._engine.connection() as connection:
            answers = append_and_decide_together(connection, several, sent)
        for whole, answer in zip(several, answers, strict=True):
            if answer is not None:
                self._tell(whole)
        return answers

    def _tell(self, whole: Whole) -> None:
        self._wake.tell([batch.partition_id for batch in whole.batches])
