"""`audit`: read everything of a log, on executors at once, and check the promises of msgtx.

The database looks at the rows in pieces (`msgtx.admin.verify` holds the rules and their words) and answers with counts
and violations; no record leaves it. A task has pieces of several partitions, and one connection. Shipping the rows to
Spark and comparing them there was a fifth as fast, and needs the owner of the tables.
"""

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from pyspark.sql import SparkSession

from msgtx import errors
from msgtx.admin.verify import LISTED, pieces, violation
from msgtx.client import Client, connect
from msgtx.database.connection import RawConnection
from msgtx.spark_jobs.runtime.outage import BATCH_OUTAGE_SECONDS, again, patient
from msgtx.spark_jobs.runtime.parts import Database, divided, on_executors
from msgtx.store.fetch.fetch import LATEST, list_offsets
from msgtx.store.topics.topics import require_partitions
from msgtx.store.verify import (
    Facts,
    Piece,
    verify_assignments,
    verify_batches,
    verify_beginnings,
    verify_cut,
    verify_decisions,
    verify_markers,
    verify_offsets,
    verify_partition,
)
from msgtx.types import Isolation, Snapshot, TopicPartition, Violation

RECORDS_OF_A_TASK: Final = 10_000_000  # half a second of a log in large rows, minutes of one-record transactions

# The report's counts, and the rules of `verify` behind them; any other rule is `other`.
KINDS: Final[Mapping[str, frozenset[str]]] = {
    "offsets": frozenset(
        {"offsets_dense", "log_start", "last_offset", "offset_deltas", "floor_above_end", "log_start_beyond_end"}
    ),
    "duplicates": frozenset({"stored_twice"}),
    "sequences": frozenset(
        {"sequence", "sequence_order", "sequence_span", "epoch_order", "epoch_ahead", "producer_columns"}
    ),
    "torn": frozenset(
        {"torn", "span_start", "span_end", "before_decision", "after_decision", "decision_start", "decision_outcome"}
        | {"decision_arrays", "marker_missing", "marker_outcome", "marker_span", "marker_without_decision", "open_partition"}
        | {"open_without_batch", "transaction_row", "floor_passed_open"}
    ),
    "group_offsets": frozenset({"offset_beyond_end", "offset_of_aborted", "offset_of_undecided"}),
}
KIND_OF: Final[Mapping[str, str]] = {rule: kind for kind, rules in KINDS.items() for rule in rules}


@dataclass(frozen=True, slots=True)
class TopicAudit:
    """The counts of a topic, and the number of violations of each kind.

    `offsets`: not dense, or overlapping; `duplicates`: a batch stored twice; `sequences`: out of order; `torn`: a
    transaction not stored as decided, on both sides of the cut, or hanging; `group_offsets`: outside the log, or of an
    uncommitted transaction; `other`: arrays, sizes, times, owners.
    """

    topic: str
    partitions: int
    batches: int
    records: int
    offsets: int
    duplicates: int
    sequences: int
    torn: int
    group_offsets: int
    other: int


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The counts and findings of the audit.

    `snapshot`: the consistent cut that transactions were compared with. `offsets_behind`: offsets of groups below the log
    start; no violation. `violations`: the first ones, by place; `violations_found` counts all.
    """

    topics: list[TopicAudit]
    snapshot: Snapshot
    transactions: int
    group_offsets: int
    offsets_behind: int
    pieces: int
    violations_found: int
    violations: list[Violation]
    seconds: float = field(default=0.0, compare=False)

    @property
    def records(self) -> int:
        """How many records were looked at."""
        return sum(topic.records for topic in self.topics)


def run(
    spark: SparkSession,
    topics: Iterable[str] | None = None,
    *,
    url: str | None = None,
    records_of_a_task: int = RECORDS_OF_A_TASK,
) -> AuditReport:
    """Audit these topics (None: all), up to the log ends of now; it runs beside producers and consumers.

    `url` as in `msgtx.connect`. Raise `UnknownTopicOrPartition`, `InvalidRequest`, and the errors of a task's
    connection.
    """
    if records_of_a_task < 1:
        raise errors.InvalidRequest(f"a task has at least one record, not {records_of_a_task}")
    began = time.monotonic()
    with connect(url) as client:
        engine = patient(client.runtime.engine, BATCH_OUTAGE_SECONDS)
        plan = again(engine, lambda: _plan(client, None if topics is None else [*dict.fromkeys(topics)], records_of_a_task))
    tasks = math.ceil(plan.records / records_of_a_task)
    found = on_executors(spark, partial(look_at, plan.scope), plan.parts, database=plan.database, tasks=tasks)
    return _report(plan, found, time.monotonic() - began)


# ── pieces ──


@dataclass(frozen=True, slots=True)
class Part:
    """A look at a piece of a log (offsets in [start, until)), at a partition as a whole, or at the installation (None)."""

    look: str
    partition_id: int | None = None
    start: int = 0
    until: int = 0


@dataclass(frozen=True, slots=True)
class Scope:
    """The arguments of each task. `ends`: the cut, by partition id; `names`: of the partitions."""

    names: Mapping[int, TopicPartition]
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Plan:
    """The work of a piece: its kind and its place."""

    database: Database
    scope: Scope
    snapshot: Snapshot
    parts: list[Part]
    records: int


def _plan(client: Client, topics: Sequence[str] | None, records_of_a_task: int) -> Plan:
    """Cut the logs into ranges. Rows belong to the range that holds their first offset; the last one ends at the log end."""
    snapshot = client.snapshots.take(topics).snapshot
    with client.runtime.engine.connection() as connection:
        ids = require_partitions(connection, snapshot.ends)
        listed = list_offsets(connection, dict.fromkeys(ids.values(), LATEST), Isolation.READ_UNCOMMITTED)
    ranges = {partition_id: (at.log_start_offset, at.log_end_offset) for partition_id, at in listed.items()}
    # Rows in front of the log start, until the sweep removes them, belong to the first piece; there is one of an empty
    # log.
    whole = {partition_id: (start, max(end, start + 1)) for partition_id, (start, end) in ranges.items()}
    logs = [
        Part("batches", partition_id, 0 if start == ranges[partition_id][0] else start, end)
        for partition_id, start, end in divided(whole, records_of_a_task)
    ]
    partitions = [Part(look, partition_id) for partition_id in ranges for look in ("partition", "beginnings", "markers")]
    everywhere = [Part(look) for look in ("decisions", "cut", "offsets", "assignments")]
    return Plan(
        database=Database.of(client, snapshot),
        scope=Scope(
            names={partition_id: name for name, partition_id in ids.items()},
            ends={ids[name]: end for name, end in snapshot.ends.items()},
        ),
        snapshot=snapshot,
        parts=[*everywhere, *logs, *partitions],
        records=sum(end - start for start, end in ranges.values()),
    )


# ── on executors ──


@dataclass(slots=True)
class Found:
    """The counts and findings of a task. `broken`: how often each rule is broken on each partition."""

    records: Counter[int] = field(default_factory=Counter)
    batches: Counter[int] = field(default_factory=Counter)
    broken: Counter[tuple[int, str]] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    transactions: int = 0
    group_offsets: int = 0
    offsets_behind: int = 0

    def add(self, other: "Found") -> None:
        """Add the findings of another task."""
        self.records += other.records
        self.batches += other.batches
        self.broken += other.broken
        self.violations += other.violations
        self.transactions += other.transactions
        self.group_offsets += other.group_offsets
        self.offsets_behind += other.offsets_behind


def look_at(scope: Scope, connection: RawConnection, parts: Sequence[Part]) -> Found:
    """Look at some parts, on an executor."""
    found = Found()
    for part in parts:
        _look(connection, scope, part, found)
    return found


def _look(connection: RawConnection, scope: Scope, part: Part, found: Found) -> None:
    if part.look == "partition":
        assert part.partition_id is not None
        ends = verify_partition(connection, part.partition_id)
        if ends is not None:  # else it was deleted
            facts = {name: getattr(ends, name) for name in ("log_start_offset", "log_end_offset", "stable_floor")}
            _broken(scope, found, part.partition_id, None, [{**facts, "rules": ends.broken}])
        return
    for piece, at in _pieces(connection, scope, part):
        if part.partition_id is not None and part.look == "batches":
            found.records[part.partition_id] += piece.records
            found.batches[part.partition_id] += piece.rows
        if part.look != "cut":  # they are counted with the decisions
            found.transactions += piece.transactions
        found.group_offsets += piece.offsets
        found.offsets_behind += piece.behind
        _broken(scope, found, part.partition_id, at, piece.broken)


def _pieces(connection: RawConnection, scope: Scope, part: Part) -> Iterator[tuple[Piece, str | None]]:
    """Yield the pieces of a part, each with the column that says where its rows are."""
    at: str | None
    match part.look:
        case "batches":
            # `after` is the row in front of the first one; pieces begin behind it.
            look = partial(_batches, first=part.start - 1, until=part.until)
            found, at = pieces(connection, look, part.partition_id), "base_offset"
        case "beginnings":
            found, at = pieces(connection, verify_beginnings, part.partition_id), "first_offset"
        case "markers":
            found, at = pieces(connection, verify_markers, part.partition_id), "first_offset"
        case "decisions":
            found, at = pieces(connection, verify_decisions, [*scope.names]), "first_offset"
        case "cut":
            found, at = pieces(connection, verify_cut, scope.ends), "first_offset"
        case "offsets":
            found, at = pieces(connection, verify_offsets, [*scope.names]), "committed_offset"
        case "assignments":
            found, at = pieces(connection, verify_assignments, [*scope.names]), None
        case _:
            raise AssertionError(part.look)
    for piece in found:
        yield piece, at


def _batches(connection: RawConnection, partition_id: int, after: Sequence[int] | None, *, first: int, until: int) -> Piece:
    return verify_batches(connection, partition_id, [first] if after is None else after, until=until)


def _broken(scope: Scope, found: Found, partition_id: int | None, at: str | None, rows: Iterable[Facts]) -> None:
    for facts in rows:
        place = facts["partition_id"] if partition_id is None else partition_id
        for name in facts["rules"]:
            found.broken[place, name] += 1
            if len(found.violations) < LISTED:
                found.violations.append(violation(scope.names[place], None if at is None else facts[at], name, facts))


# ── the report ──


def _report(plan: Plan, answers: Iterable[Found], seconds: float) -> AuditReport:
    found = Found()
    for answer in answers:
        found.add(answer)
    counts: dict[str, Counter[str]] = {}
    for partition_id, name in plan.scope.names.items():
        count = counts.setdefault(name.topic, Counter())
        count["partitions"] += 1
        count["records"] += found.records[partition_id]
        count["batches"] += found.batches[partition_id]
    for (partition_id, rule), times in found.broken.items():
        counts[plan.scope.names[partition_id].topic][KIND_OF.get(rule, "other")] += times
    fields: tuple[str, ...] = ("partitions", "batches", "records", *KINDS, "other")
    return AuditReport(
        topics=[TopicAudit(topic, **{name: count[name] for name in fields}) for topic, count in sorted(counts.items())],
        snapshot=plan.snapshot,
        transactions=found.transactions,
        group_offsets=found.group_offsets,
        offsets_behind=found.offsets_behind,
        pieces=len(plan.parts),
        violations_found=found.broken.total(),
        violations=sorted(found.violations, key=_place)[:LISTED],
        seconds=seconds,
    )


def _place(one: Violation) -> tuple[Any, ...]:
    return (one.topic, one.partition, -1 if one.offset is None else one.offset, one.check)


if __name__ == "__main__":
    from msgtx.spark_jobs.runtime.launch import launch

    launch("audit")
