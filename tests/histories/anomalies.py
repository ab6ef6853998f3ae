"""What can be wrong, named as in Jepsen where it has a name."""

import enum
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

MOST_SHOWN: Final = 20  # anomalies shown of each name


class Name(enum.StrEnum):
    """What can be wrong, and which promise that breaks."""

    ABORTED_READ = "aborted read"  # G1a: a reader got a record of a transaction that is not committed (I5)
    LOST_WRITE = "lost write"  # an acknowledged record is missing (I1, I9)
    DUPLICATE = "duplicate"  # a record is stored twice (I1)
    INCONSISTENT_OFFSETS = "inconsistent offsets"  # acknowledged or read at one offset, but stored at another (I2)
    NON_MONOTONIC_POLL = "non-monotonic poll"  # a consumer went back by itself (I5)
    POLL_SKIP = "poll skip"  # a consumer skipped a record without returning it (I5)
    NON_MONOTONIC_SEND = "non-monotonic send"  # records of one producer in another order than it sent them (I3)
    UNSEEN = "unseen"  # a consumer that read to the end never got a record (I5)
    TORN_TRANSACTION = "torn transaction"  # a part of a committed transaction (I6)
    OFFSET_OUTPUT_SPLIT = "offset–output split"  # the group is at an offset that no committed transaction wrote (I10)
    ROW_SPLIT = "row–record split"  # a user's row without its transaction, or the other way round (I6)
    ZOMBIE_WRITE = "zombie write"  # an older epoch did something after its successor's init had returned (I7)
    IMAGE = "image"  # an input's outputs do not exist exactly once (exactly once, all of it)
    CHANGED_RANGE = "changed range"  # committed records that were read are gone or changed (I14)
    PHANTOM = "phantom"  # a record that was not sent, or not there, or that its producer had refused
    TWO_OUTCOMES = "two outcomes"  # a transaction ended otherwise than a client was answered (I4)
    HOLE = "hole"  # offsets are not dense (I2)
    STUCK = "stuck"  # everything has ended and something is still undecided (I8, I12)
    VIOLATION = "violation"  # `verify` finds contradictions in the stored data
    FALSE_TRUNCATION = "false truncation"  # LogTruncated or out of range, though no crash lost anything
    OFFSET_BACK = "offset that moves back"  # a group is below the offset of a commit that returned (I11)
    COMMIT_LOST = "commit lost at close"  # committed in the background, but missing after close had returned
    NEVER_PROCESSED = "never processed"  # a group has committed past an input that has no output (I10)
    PROCESSED_TWICE = "processed twice"  # two committed transactions of a group have outputs of one input (I10)
    ENDLESS_WAIT = "endless wait"  # a call came back long after its own timeout
    DEADLOCK = "deadlock"  # the order of locks was not kept
    DISORDERED = "disordered"  # outputs in another order than their inputs (I3, I10)
    STARVED = "starved"  # a call failed long after the last disturbance: some client blocks others


@dataclass(frozen=True, slots=True)
class Anomaly:
    name: Name
    detail: str

    def __str__(self) -> str:
        return f"{self.name}: {self.detail}"


def summary(anomalies: Iterable[Anomaly]) -> Iterator[str]:
    """Describe what was found: the first few of each name."""
    shown: Counter[Name] = Counter()
    for anomaly in anomalies:
        shown[anomaly.name] += 1
        if shown[anomaly.name] <= MOST_SHOWN:
            yield str(anomaly)
    for name, count in shown.items():
        if count > MOST_SHOWN:
            yield f"{name}: {count} altogether"
