"""Groups' offsets against what they committed; and the outputs of each input that a group has committed past."""

import bisect
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from msgtx import TopicPartition
from tests.histories.anomalies import Anomaly, Name
from tests.histories.facts import Facts
from tests.histories.history import Operation
from tests.histories.members import EXTRA

Key = tuple[str, TopicPartition]
BACKWARDS: Final = "none"  # such a consumer seeks by itself, and commits its position, also backwards
LATEST: Final = "latest"


def places_of(rows: Iterable[Iterable[object]]) -> Iterator[tuple[TopicPartition, int]]:
    """Split `[topic, partition, offset]`."""
    for topic, index, offset in rows:
        if offset is not None:
            yield TopicPartition(str(topic), int(str(index))), int(str(offset))


def check_commits(facts: Facts) -> Iterator[Anomaly]:
    """I11: after a commit, plain, in the background or at close, a group that only goes forward is never behind it."""
    promised: dict[Key, list[tuple[int, int, str, Name]]] = {}  # since when, which offset, by which process and call
    found: dict[Key, list[tuple[int, int, str]]] = {}  # asked when, the offset, by which process
    for operation in facts.history.kind("commit offsets", "close", "committed", "poll"):
        about = operation.arguments
        group = about.get("group")
        if group is None or about.get("reset") == BACKWARDS:
            continue
        who = f"{operation.kind} of {about['consumer']}"
        if operation.kind in {"committed", "poll"}:
            told = operation.answer.get("positions" if operation.kind == "committed" else "gained", ())
            for partition, at in places_of(told):
                found.setdefault((group, partition), []).append((operation.invoked, at, who))
        elif operation.ok and operation.completed is not None and about.get("wait", True):
            name = Name.COMMIT_LOST if operation.kind == "close" else Name.OFFSET_BACK
            for partition, at in places_of(about["offsets"]):
                promised.setdefault((group, partition), []).append((operation.completed, at, who, name))
    for key, promises in promised.items():
        group, partition = key
        looks = [*found.get(key, ()), (1 << 63, facts.settled.offsets.get(key, 0), "the end")]
        done, at, who, name = max(promises, key=lambda promise: promise[1])
        behind = [(where, by) for asked, where, by in looks if asked > done and where < at]
        if behind:
            yield Anomaly(name, f"{who} said that {group} is at {at} of {partition}; {behind[0][1]} finds {behind[0][0]}")


def check_processed(facts: Facts) -> Iterator[Anomaly]:
    """I10: of each input from where a group began to where it has committed, one output of that group is committed."""
    outputs: dict[str, Counter[str]] = {}
    for partition, rows in facts.settled.committed.items():
        for _, value in rows if partition.topic == EXTRA else ():
            source, is_output, rest = value.partition(">")
            if is_output:
                outputs.setdefault(rest.partition("@")[0], Counter())[source] += 1
    began = _beginnings(facts.history.kind("seek", "poll"))
    for key, end in sorted(facts.settled.offsets.items()):
        group, partition = key
        if group not in outputs or key not in began:
            continue
        rows = facts.settled.committed.get(partition, ())
        first, last = (bisect.bisect_left(rows, at, key=lambda row: row[0]) for at in (began[key], end))
        for offset, value in rows[first:last]:
            count = outputs[group][value]
            if count != 1:
                name = Name.PROCESSED_TWICE if count else Name.NEVER_PROCESSED
                yield Anomaly(name, f"{group} is at {end} of {partition}; {value} at {offset} has {count} outputs")


def _beginnings(operations: Iterable[Operation]) -> dict[Key, int]:
    """Return the first offset at which a member of each group began."""
    began: dict[Key, int] = {}
    for operation in operations:
        if (group := operation.arguments.get("group")) is not None:
            told = operation.answer.get("gained" if operation.kind == "poll" else "positions", ())
            for partition, at in places_of(told):
                began.setdefault((group, partition), at)
    return began
