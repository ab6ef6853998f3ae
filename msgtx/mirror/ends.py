"""The two ends of a mirror: a source of records, and a target that holds them together with the mirror's progress.

A kind of database or cluster has a class for each end. The loop of the mirror knows these protocols alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from msgtx.types import Record, TopicPartition

NOTE_SECONDS: Final = 5.0  # between two notes of a mirror that it lives


@dataclass(frozen=True, slots=True)
class PortionLimits:
    """The size of a portion: it has at most so many records and bytes, unless one transaction of the source has more."""

    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """How far a partition of the source is copied.

    `offset`: the next record to copy. `topic_id`: of the source's topic; one that was made again has another. `identity`: of
    the last record before `offset`, such as no other history of the source has; "": unknown, or there is none.
    """

    offset: int
    topic_id: str
    identity: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a mirror is, as its target has it: `places` by partition of the source.

    `source`: the identity of the source (its incarnation, or the id of its cluster); None: nothing is copied yet.
    `revision`: of the stored progress; a write must name the one that it continues.
    """

    source: str | None = None
    places: Mapping[TopicPartition, SourcePlace] = field(default_factory=dict)
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class TopicShape:
    """A topic of the source: how many partitions it has, and the settings with which the target makes it."""

    partitions: int
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lag:
    """What a source still has behind a portion: records at most, and the age of the first of them in milliseconds."""

    records: int
    age_ms: int


@dataclass(frozen=True, slots=True)
class Portion:
    """Records of a source that reach its target together: whole transactions, by partition in the order of their offsets.

    `records`: may be gone through once. `source`: the identity of the source. `places`: those that change, after these
    records; they may change without any records (aborted ones were passed). `topics`: the topics of the records.
    """

    source: str
    records: Iterable[Record]
    places: Mapping[TopicPartition, SourcePlace]
    topics: Mapping[str, TopicShape]
    lag: Lag

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write: no record, and no place that changes."""
        return not self.places


class Source(Protocol):
    """Where records come from."""

    def next(self, progress: Progress, limits: PortionLimits) -> Portion:
        """Return the records behind a progress. An empty portion: there are none now.

        Raise `IncarnationChanged` for the progress of another source, `UnknownTopicOrPartition` for a topic that was made
        again, `LogTruncated` if the source has lost records that were copied, `OffsetOutOfRange` if retention has removed
        records that were not.
        """
        ...

    def wait(self, timeout: float) -> None:
        """Return when there may be further records, at the latest after `timeout` seconds."""
        ...

    def close(self) -> None:
        """Give up its connections."""
        ...


class Target(Protocol):
    """Where records go."""

    def take_over(self) -> Progress:
        """Fence every other mirror of this name, abort what it left undecided, and return the progress after that."""
        ...

    def write(self, progress: Progress, portion: Portion) -> Progress:
        """Store the records of a portion and move the progress, both or neither. Return the progress after it.

        Topics and partitions that the target lacks are made. `progress`: as `take_over` or the last `write` returned it.
        Raise `MirrorFenced` if another mirror of this name has taken over, or the progress was reset. After any error only
        `take_over` says whether the portion was written.
        """
        ...

    def note(self, lag: Lag) -> None:
        """Note that the mirror lives, and how far it is behind, while there is nothing to write.

        Raise `MirrorFenced` if another mirror of this name has taken over. A target may have no place for this.
        """
        ...

    def give_up(self, error: Exception) -> None:
        """Note why the mirror ends. A target may have no place for this."""
        ...

    def close(self) -> None:
        """Give up its connections. What is undecided is aborted."""
        ...
