"""The records that readers got, against what is stored at the end."""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgtx import Isolation, TopicPartition
from tests.histories.anomalies import Anomaly, Name
from tests.histories.facts import Facts
from tests.histories.history import Operation, Result
from tests.histories.workers import LOOSE, hopper

Rows = Sequence[tuple[int, str]]


@dataclass(slots=True)
class Reader:
    """One consumer: its position on each partition, and the records that it got."""

    name: str
    isolation: str
    began: int
    position: dict[TopicPartition, int] = field(default_factory=dict)

    @property
    def committed(self) -> bool:
        return self.isolation == Isolation.READ_COMMITTED


def check_polls(facts: Facts) -> Iterator[Anomaly]:
    """Each consumer gets all it may see, in order, and nothing else; one that has read to the end has seen everything."""
    readers: dict[str, Reader] = {}
    seen: dict[str, set[str]] = {}  # by worker, over all its lives
    drained: dict[tuple[str, str], set[TopicPartition]] = {}
    for operation in facts.history.kind("seek", "poll", "drained"):
        about = operation.arguments
        reader = readers.setdefault(about["consumer"], Reader(about["consumer"], about["isolation"], operation.invoked))
        worker = operation.process.rpartition(".")[0]
        if operation.kind == "poll":
            _note_gained(reader, operation)
            yield from _check_poll(facts, reader, operation, seen.setdefault(worker, set()))
        elif operation.kind == "drained":
            drained.setdefault((worker, reader.isolation), set()).update(_positions(operation))
        reader.position.update(_positions(operation))
    for (worker, isolation), partitions in drained.items():
        log = facts.settled.committed if isolation == Isolation.READ_COMMITTED else facts.settled.everything
        for partition in sorted(partitions):
            unseen = [f"{value} at {offset}" for offset, value in log.get(partition, ()) if value not in seen[worker]]
            if unseen:
                told = f"{worker} read {partition} to the end without {len(unseen)}: {', '.join(unseen[:5])}"
                yield Anomaly(Name.UNSEEN, told)


def _positions(operation: Operation) -> dict[TopicPartition, int]:
    told = operation.answer.get("positions", ())
    return {TopicPartition(topic, index): position for topic, index, position in told}


def _note_gained(reader: Reader, operation: Operation) -> None:
    """A member continues at the group's offset, wherever it was when it had the partition before."""
    for topic, index, position in operation.answer.get("gained", ()):
        reader.position.pop(TopicPartition(topic, index), None)
        if position is not None:
            reader.position[TopicPartition(topic, index)] = position


def _check_poll(facts: Facts, reader: Reader, operation: Operation, seen: set[str]) -> Iterator[Anomaly]:
    if operation.result is Result.FAIL:
        yield from _check_truncation(facts, reader, operation)
        return
    assert not operation.ok or operation.completed is not None
    positions = _positions(operation)
    handed = {TopicPartition(topic, index): (offsets, values)
              for topic, index, offsets, values in operation.answer.get("records", ())}  # fmt: skip
    for partition in handed.keys() | positions.keys():
        offsets, values = handed.get(partition, ([], []))
        seen.update(values)
        for offset, value in zip(offsets, values, strict=True):
            yield from _check_record(facts, reader, operation, partition=partition, offset=offset, value=value)
        yield from _check_progress(facts, reader, partition, offsets=offsets, end=positions.get(partition))


def _check_record(
    facts: Facts, reader: Reader, operation: Operation, *, partition: TopicPartition, offset: int, value: str
) -> Iterator[Anomaly]:
    sent = facts.sent.get(value)
    place = f"{reader.name} read {value} at {partition}/{offset}"
    if sent is None or sent.partition != partition:
        yield Anomaly(Name.PHANTOM, f"{place}, and nobody sent it there")
        return
    if reader.committed and facts.aborted(sent):
        assert sent.transaction is not None
        yield Anomaly(Name.ABORTED_READ, f"{place}; {sent.transaction} is {facts.transaction(sent.transaction).outcome}")
        return
    places = facts.places(value)
    if (partition, offset) in places:
        return
    assert operation.completed is not None
    if facts.may_be_lost(sent, stored_by=operation.completed):
        return
    if places:
        yield Anomaly(Name.INCONSISTENT_OFFSETS, f"{place}, and it is at {places[0][0]}/{places[0][1]}")
    else:
        yield Anomaly(Name.CHANGED_RANGE, f"{place}; there is {facts.committed_value(partition, offset)} now")


def _check_progress(
    facts: Facts, reader: Reader, partition: TopicPartition, *, offsets: list[int], end: int | None
) -> Iterator[Anomaly]:
    """From its last position to the next one it got everything that it may see, in order."""
    start = reader.position.get(partition, min(offsets, default=end))
    if start is None:
        return
    reached = start
    for offset in offsets:
        if offset < reached:
            yield Anomaly(Name.NON_MONOTONIC_POLL, f"{reader.name} read {partition}/{offset} after {reached - 1}")
        reached = max(reached, offset + 1)
    if end is not None and end < reached:
        yield Anomaly(Name.NON_MONOTONIC_POLL, f"{reader.name} stands at {partition}/{end} after {reached - 1}")
    reached = max(reached, end or 0)
    rows = (facts.settled.committed if reader.committed else facts.settled.everything).get(partition, ())
    first, last = (bisect.bisect_left(rows, at, key=lambda row: row[0]) for at in (start, reached))
    handed = set(offsets)
    passed = [f"{value} at {offset}" for offset, value in rows[first:last] if offset not in handed]
    if passed:
        told = f"{reader.name} passed {partition} from {start} to {reached} without {', '.join(passed[:5])}"
        yield Anomaly(Name.POLL_SKIP, told)


def _check_truncation(facts: Facts, reader: Reader, operation: Operation) -> Iterator[Anomaly]:
    """Committed data is not lost: only a reader of everything, of acks=0/1, or in open data may notice a loss."""
    detail = operation.answer.get("detail", "")
    may_notice = not reader.committed or detail.startswith(f"{LOOSE}-") or reader.name.startswith(hopper.__name__)
    if not may_notice or not facts.crashed_between(reader.began, operation.completed or operation.invoked):
        yield Anomaly(Name.FALSE_TRUNCATION, f"{reader.name}: {detail}")
