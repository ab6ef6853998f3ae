"""What can be wrong, in Jepsen's words where there are some."""

import enum
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

MOST_SHOWN: Final = 20  # of each name


class Name(enum.StrEnum):
    """What can be wrong, and which promise that breaks."""

    ABORTED_READ = "aborted read"  # G1a: a reader got a record of a transaction that is not committed (I5)
    LOST_WRITE = "lost write"  # what was acknowledged is not there (I1, I9)
    DUPLICATE = "duplicate"  # a record is there twice (I1)
    INCONSISTENT_OFFSETS = "inconsistent offsets"  # acknowledged or read at one offset, and stored at another (I2)
    NON_MONOTONIC_POLL = "non-monotonic poll"  # a consumer went back by itself (I5)
    POLL_SKIP = "poll skip"  # a consumer passed a record without handing it out (I5)
    NON_MONOTONIC_SEND = "non-monotonic send"  # records of one producer in another order than it sent them (I3)
    UNSEEN = "unseen"  # a consumer that read to the end never got a record (I5)
    TORN_TRANSACTION = "torn transaction"  # a part of a committed transaction (I6)
    OFFSET_OUTPUT_SPLIT = "offset–output split"  # the group stands where no committed transaction put it (I10)
    ZOMBIE_WRITE = "zombie write"  # an older epoch did something after its successor's init had returned (I7)
    IMAGE = "image"  # an input's outputs are not there exactly once (exactly once, all of it)
    CHANGED_RANGE = "changed range"  # what was read as committed is gone or other (I14)
    PHANTOM = "phantom"  # nobody sent this record, or not there, or its producer had refused it
    TWO_OUTCOMES = "two outcomes"  # a transaction ended otherwise than somebody was told (I4)
    HOLE = "hole"  # offsets are not dense (I2)
    STUCK = "stuck"  # everything has ended and something is still undecided (I8, I12)
    VIOLATION = "violation"  # `verify` finds that what is stored contradicts itself
    FALSE_TRUNCATION = "false truncation"  # LogTruncated or out of range, and no crash took anything back
    OFFSET_BACK = "offset that moves back"  # a group stands below what a commit that returned had said (I11)
    COMMIT_LOST = "commit lost at close"  # handed over in the background, and not there when close had returned
    NEVER_PROCESSED = "never processed"  # a group has committed past an input that has no output (I10)
    PROCESSED_TWICE = "processed twice"  # two committed transactions of a group have outputs of one input (I10)
    ENDLESS_WAIT = "endless wait"  # a call came back long after its own timeout
    DEADLOCK = "deadlock"  # the order of locks was not kept
    DISORDERED = "disordered"  # outputs in another order than their inputs (I3, I10)
    STARVED = "starved"  # a call failed though nothing had been disturbed for long: somebody stops others


@dataclass(frozen=True, slots=True)
class Anomaly:
    name: Name
    detail: str

    def __str__(self) -> str:
        return f"{self.name}: {self.detail}"


def summary(anomalies: Iterable[Anomaly]) -> Iterator[str]:
    """Say what was found: the first few of each name."""
    shown: Counter[Name] = Counter()
    for anomaly in anomalies:
        shown[anomaly.name] += 1
        if shown[anomaly.name] <= MOST_SHOWN:
            yield str(anomaly)
    for name, count in shown.items():
        if count > MOST_SHOWN:
            yield f"{name}: {count} altogether"
