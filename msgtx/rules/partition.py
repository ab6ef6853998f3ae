"""Two tables of moves for a consumer's partition: one of its next position, one of its last returned records.

A move that a table does not list is illegal. Source: internals: groups; Kafka's `SubscriptionState.FetchStates`.
"""

import enum
from collections.abc import Mapping
from typing import Final


class FetchState(enum.StrEnum):
    """Where a partition is read on."""

    FINDING = "finding"  # at the group's offset, or where auto_offset_reset says
    LOOKING_UP = "looking up"  # at a time that the caller has named
    WAITING = "waiting"  # the group's offset is part of an undecided transaction: nothing is read
    OUT_OF_RANGE = "out of range"  # the log does not hold the offset: auto_offset_reset says where to go on
    READING = "reading"  # at an offset


# What the consumer finds by itself. From each place, the caller leads it to FINDING (rewind), LOOKING_UP or READING (seek).
PLACES: Final[Mapping[FetchState, frozenset[FetchState]]] = {
    FetchState.FINDING: frozenset({FetchState.READING, FetchState.WAITING}),
    FetchState.LOOKING_UP: frozenset({FetchState.READING}),
    FetchState.WAITING: frozenset({FetchState.READING, FetchState.WAITING, FetchState.FINDING}),
    FetchState.OUT_OF_RANGE: frozenset({FetchState.READING}),
    FetchState.READING: frozenset({FetchState.READING, FetchState.OUT_OF_RANGE, FetchState.FINDING}),
}


class Returned(enum.StrEnum):
    """The state of the records returned last."""

    SETTLED = "settled"  # a commit holds them, or there are none
    HANDED = "handed"  # no commit and no transaction holds them yet
    GOES_BACK = "goes back"  # they were not processed: the next poll returns them again
    ASKS = "asks"  # they were not processed: the next poll asks the caller to rewind


class ReturnedEvent(enum.StrEnum):
    """The events that change that."""

    HAND_OUT = "hand out"
    COMMIT = "commit"
    TAKE_BACK = "take back"  # they could not ride in a session
    LOSE_BATCH = "lose a batch"  # the session of `Consumer.batch` was rolled back
    LOSE = "lose"  # the session that was to commit them was rolled back
    SEEK = "seek"
    REWIND = "rewind"


_UNDONE: Final = {
    ReturnedEvent.COMMIT: Returned.SETTLED,
    ReturnedEvent.TAKE_BACK: Returned.GOES_BACK,
    ReturnedEvent.LOSE_BATCH: Returned.GOES_BACK,
    ReturnedEvent.LOSE: Returned.ASKS,
    ReturnedEvent.REWIND: Returned.SETTLED,
}
RETURNED: Final[Mapping[tuple[Returned, ReturnedEvent], Returned]] = {
    **{(state, event): after for state in Returned for event, after in _UNDONE.items()},
    (Returned.SETTLED, ReturnedEvent.HAND_OUT): Returned.HANDED,
    (Returned.SETTLED, ReturnedEvent.SEEK): Returned.SETTLED,
    (Returned.HANDED, ReturnedEvent.HAND_OUT): Returned.HANDED,
    (Returned.HANDED, ReturnedEvent.SEEK): Returned.HANDED,
    # Where a batch is rolled back while records are iterated, the loop may have one more.
    (Returned.GOES_BACK, ReturnedEvent.HAND_OUT): Returned.GOES_BACK,
    (Returned.GOES_BACK, ReturnedEvent.SEEK): Returned.HANDED,
    (Returned.ASKS, ReturnedEvent.HAND_OUT): Returned.ASKS,
    (Returned.ASKS, ReturnedEvent.SEEK): Returned.HANDED,
}
