"""What happened: every operation of a client process as invoke → ok | fail | info, one JSON line per event.

Each process has its own file, opened with O_APPEND and written by one `os.write` per call: what was written survives
SIGKILL. An operation without an answer, or with `info`, is unknown: it may have happened, may happen later, or never. Times
are the machine's monotonic clock, the same for all its processes.

What the kinds carry (a value is the record's text up to its first space, a transaction is `name attempt`):

| kind | invoke | ok |
|---|---|---|
| init, fence | transactional_id | producer (id, epoch) |
| send | topic, partition, values, transaction, producer (a label), acks, once | offsets |
| commit | transaction, group, offsets [topic, partition, next], within (its own timeout, seconds), row (a user's) | |
| abort | transaction, within | |
| answer | within | of one send, which is awaited |
| spread | within, partitions | a record to each of this many partitions |
| commit offsets | consumer, group, offsets, wait | without wait: it was passed on |
| committed | group | positions: the group's offsets |
| close | consumer, group, offsets: what was passed on before, of partitions that it still has | |
| poll | consumer, isolation, group | gained [topic, partition, next or null]: what it was assigned, before it got
  anything; records [topic, partition, offsets, values], positions [topic, partition, next] |
| seek | consumer, isolation | positions: where it continues, whatever it read before |
| drained | consumer, isolation | positions: it has read all records |
| view | | transactions {name: {topic-partition: count}} |
| outcome | transaction, resolve | outcome |
| sweep | | what was done |
| try | deed | |
| kill, pause, resume, terminate, crash, block, freeze, slow | of the nemesis: its target | |
"""

import enum
import itertools
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

WRITTEN: Final = "send"
DECISIONS: Final = frozenset({"commit", "abort"})
NEMESIS: Final = "nemesis"
ID: Final = re.compile(r"\d+\.\d+\.\d+")  # a transaction's name in the database; others are the application's own


class Result(enum.StrEnum):
    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"  # it did not happen and never will
    INFO = "info"  # it is not known whether it happened


@dataclass(slots=True)
class Operation:
    """One operation: its arguments, and its answer if there was one."""

    process: str
    number: int
    kind: str
    arguments: dict[str, Any]
    invoked: int
    completed: int | None = None
    result: Result = Result.INFO
    answer: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.result is Result.OK


class Recorder:
    """Writes one process's file. May be shared by threads."""

    def __init__(self, folder: Path, process: str) -> None:
        self.process = process
        self._file = os.open(folder / f"{process}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._numbers = itertools.count()

    def invoke(self, kind: str, **arguments: object) -> int:
        """Note that an operation is about to begin; returns its number."""
        number = next(self._numbers)
        self._write([self._event(Result.INVOKE, number, kind=kind, **arguments)])
        return number

    def complete(self, result: Result, number: int, **answer: object) -> None:
        self._write([self._event(result, number, **answer)])

    def complete_all(self, answers: Sequence[tuple[Result, int, Mapping[str, object]]]) -> None:
        """Note many answers at once."""
        self._write([self._event(result, number, **answer) for result, number, answer in answers])

    def happened(self, kind: str, *, arguments: Mapping[str, object] | None = None, **answer: object) -> None:
        """Note something that happens at once."""
        number = next(self._numbers)
        self._write(
            [self._event(Result.INVOKE, number, kind=kind, **(arguments or {})), self._event(Result.OK, number, **answer)]
        )

    def _event(self, result: Result, number: int, **what: object) -> dict[str, object]:
        return {"time": time.monotonic_ns(), "process": self.process, "type": result, "number": number, **what}

    def _write(self, events: Sequence[Mapping[str, object]]) -> None:
        text = "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events)
        os.write(self._file, text.encode())


def operations_of(path: Path) -> Iterator[Operation]:
    """Read one process's file. A last line that was cut off by a kill is left out."""
    found: dict[int, Operation] = {}
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if not line.endswith("\n"):
                continue
            event = json.loads(line)
            moment, process, result, number = (event.pop(name) for name in ("time", "process", "type", "number"))
            if result == Result.INVOKE:
                found[number] = Operation(process, number, event.pop("kind"), event, moment)
            else:
                operation = found[number]
                operation.completed, operation.result, operation.answer = moment, Result(result), event
    yield from found.values()


class History:
    """All operations of a run, in the order in which they were invoked; `by_kind` groups them."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = sorted(operations, key=lambda operation: operation.invoked)
        self.by_kind: dict[str, list[Operation]] = {}
        for operation in self.operations:
            self.by_kind.setdefault(operation.kind, []).append(operation)

    def kind(self, *kinds: str) -> list[Operation]:
        if len(kinds) == 1:
            return self.by_kind.get(kinds[0], [])
        return [operation for operation in self.operations if operation.kind in kinds]

    def counts(self) -> Counter[str]:
        """Count what is checked: each record sent, each record polled, each other operation of a client as one."""
        counted: Counter[str] = Counter()
        for operation in self.operations:
            if operation.process == NEMESIS:
                continue
            if operation.kind == WRITTEN:
                counted["records sent"] += len(operation.arguments["values"])
            elif operation.kind == "poll":
                counted["polls"] += 1
                counted["records polled"] += sum(len(rows[3]) for rows in operation.answer.get("records", ()))
            else:
                counted[operation.kind] += 1
        return counted

    def results(self) -> Counter[str]:
        """Count answers by kind and result: `commit info: 3`."""
        return Counter(f"{operation.kind} {operation.result}" for operation in self.operations)


def read_history(folder: Path) -> History:
    """Read all files of a run."""
    return History([operation for path in sorted(folder.glob("*.jsonl")) for operation in operations_of(path)])
