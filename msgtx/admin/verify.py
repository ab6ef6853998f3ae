"""`client.admin.verify()`: read everything of a log and compare it with what msgtx promises.

One partition after the other, in pieces of one snapshot each, so it runs beside writers and in constant memory. The database
looks at the rows (`msgtx/sql/verify/`) and names the rules that they break; the rules' words are here.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from msgtx import arguments
from msgtx.database.connection import LONG_ANSWER_SECONDS, RawConnection, until
from msgtx.database.pool import Engine
from msgtx.database.standby import once_shown
from msgtx.store.fetch.cuts import consistent_cut
from msgtx.store.operator.installation import sequences_behind
from msgtx.store.topics.topics import partitions_of, require_topics
from msgtx.store.verify import (
    Extent,
    Piece,
    verify_assignments,
    verify_batches,
    verify_beginnings,
    verify_cut,
    verify_decisions,
    verify_markers,
    verify_offsets,
    verify_partitions,
)
from msgtx.types import TopicPartition, TransactionId, VerifyReport, Violation

LISTED: Final = 1_000  # violations in a report; all are counted
EXTENTS: Final = 100  # partitions whose ends are read in one call

Progress = Callable[[int, str], None]
Look = Callable[[RawConnection, Any, Sequence[int] | None], Piece]  # at a partition, at several, or at ends by partition


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, the promise it belongs to, and the words for a violation; names in braces are the row's facts."""

    promise: str
    expected: str
    found: str


RULES: Final[Mapping[str, Rule]] = {
    # the installation
    "sequence_behind": Rule("I1", "sequence {name} above {stored}, the largest number in a table", "{next_number} is next"),
    # the partition
    "floor_above_end": Rule("I2", "a floor of at most the log end, {log_end_offset}", "{stable_floor}"),
    "log_start_beyond_end": Rule("I2", "a log start of at most the log end", "{log_start_offset}"),
    # a row of the log
    "offsets_dense": Rule("I2", "base offset {expected_offset}, after the row in front", "{base_offset}"),
    "log_start": Rule("I2", "a first row that holds the log start {log_start_offset}", "base offset {base_offset}"),
    "last_offset": Rule("I2", "as many offsets as records, {record_count}", "{base_offset} to {last_offset}"),
    "offset_deltas": Rule("I2", "ascending offset deltas inside {base_offset} to {last_offset}", "others"),
    "append_time": Rule("I2", "appended not before the row in front, at {previous_appended_at}", "{appended_at}"),
    "array_lengths": Rule(
        "I1", "{record_count} entries in every array", "{lengths} values, keys, timestamps, header counts, offset deltas"
    ),
    "byte_size": Rule("internals: cleaning#retention", "a byte size of {bytes}", "{byte_size}"),
    "timestamps": Rule("internals: visibility", "no timestamp above max_timestamp {max_timestamp}", "{newest_timestamp}"),
    "producer_columns": Rule("I1", "producer id, epoch and sequences together", "some of them"),
    "sequence_span": Rule("I1", "as many sequences as offsets", "{base_sequence} to {last_sequence}"),
    "sequence": Rule(
        "I3",
        "the sequence of producer {producer_id} after {before_sequence} of epoch {before_epoch} (a new epoch begins at 0)",
        "{base_sequence} of epoch {producer_epoch}",
    ),
    "stored_twice": Rule(
        "I1",
        "sequence {base_sequence} of producer {producer_id}, epoch {producer_epoch}, once",
        "the same at offset {before_offset}",
    ),
    "sequence_order": Rule(
        "I3", "lower sequences of producer {producer_id} in front of {base_sequence}", "one behind it, at {before_offset}"
    ),
    "epoch_order": Rule(
        "I7", "no older epoch of producer {producer_id} behind epoch {producer_epoch}", "one, at offset {before_offset}"
    ),
    "epoch_ahead": Rule("I7", "an epoch of producer {producer_id} of at most {current_epoch}", "epoch {producer_epoch}"),
    "before_decision": Rule("I4", "no batch of {name} before {decided_first}, as its decision says", "one"),
    "after_decision": Rule(
        "I8", "no batch of {name} after {decided_last}, where it was decided {outcome}", "{base_offset} to {last_offset}"
    ),
    "open_partition": Rule("I8", "{name} decided, or known to be open here from this batch on", "{begun_at}"),
    # where a transaction began
    "decision_start": Rule("I4", "{name} to begin at {first_offset} in its decision", "{decided_first}"),
    "floor_passed_open": Rule("I5", "a floor of at most {first_offset}, where undecided {name} began", "{stable_floor}"),
    "transaction_row": Rule("I8", "a transaction row of undecided {name}: else no timeout ends it", "none"),
    "open_without_batch": Rule("I8", "a batch of undecided {name} where it began", "none"),
    # its markers
    "marker_outcome": Rule("I4", "a marker of {name} with its outcome {decided}", "{outcome}"),
    "marker_span": Rule(
        "I4", "a marker of {name} from {decided_first} to {decided_last}", "{first_offset} to {last_offset}"
    ),
    "marker_without_decision": Rule("I4", "a decision of {name}, which has a marker ({outcome})", "none"),
    # its decision
    "decision_outcome": Rule("I4", "COMMIT or ABORT of {name}", "{outcome}"),
    "decision_arrays": Rule("I4", "one span of {name} per partition", "{first_offset} to {last_offset}"),
    "span_start": Rule("I6", "a batch of {name} ({outcome}) that begins here", "none"),
    "span_end": Rule("I6", "a batch of {name} ({outcome}) that ends at {last_offset}", "none"),
    "marker_missing": Rule("I5", "an ABORT marker of {name} below the floor {stable_floor}", "none"),
    # a consistent cut
    "torn": Rule("I15", "all of {name} below the cut (here {cut_end}), or nothing", "{first_offset} to {last_offset}"),
    # groups' offsets
    "offset_beyond_end": Rule(
        "I9",
        "an offset of at most the log end, {end_offset}, committed by a member of group {group_name}",
        "{committed_offset}",
    ),
    "offset_of_aborted": Rule("I10", "no offset of group {group_name} from aborted {name}", "{committed_offset}"),
    "offset_of_undecided": Rule("I10", "no offset of group {group_name} from undecided {name}", "{committed_offset}"),
    # groups' members
    "owner_no_member": Rule("I11", "an owner that is a member of group {group_name}", "member number {owner}"),
    "target_no_member": Rule("I11", "nobody to own it but a member of group {group_name}", "member number {target}"),
    "owner_from_later": Rule(
        "I11", "owned since a generation of group {group_name} of at most {generation}", "{owner_since}"
    ),
}


def verify(engine: Engine, topics: Iterable[str] | None, *, progress: Progress | None = None) -> VerifyReport:
    """Verify these topics (None: all, and the sequences). `progress(records, words)` is called after each piece."""
    names = None if topics is None else list(dict.fromkeys(arguments.topics(topics)))
    arguments.function("progress", progress)
    began = time.monotonic()
    topics_by_name = once_shown(engine, lambda connection: require_topics(connection, names))
    partitions = partitions_of(topics_by_name.values())
    with until(silence=LONG_ANSWER_SECONDS), engine.reading.connection() as connection:
        verifier = _Verifier(connection, partitions, progress or (lambda records, words: None))
        ids = list(partitions)
        for at in range(0, len(ids), EXTENTS):
            for partition_id, extent in verify_partitions(connection, ids[at : at + EXTENTS]).items():
                verifier.partition(partition_id, extent)
        verifier.installation()
        if names is None:
            verifier.sequences()
    return verifier.report(time.monotonic() - began)


def pieces(connection: RawConnection, look: Look, key: Any, last: Sequence[int] | None = None) -> Iterator[Piece]:
    """Look at one piece after the other, to the end, or until one has come to the row at `last`."""
    after: Sequence[int] | None = None
    while True:
        piece = look(connection, key, after)
        if not piece.rows:
            return
        after = piece.after
        yield piece
        if last is not None and after is not None and list(after) >= list(last):
            return


def violation(partition: TopicPartition | None, offset: int | None, name: str, facts: Mapping[str, Any]) -> Violation:
    """Return the report of a row that breaks a rule: the rule's words with the row's facts."""
    rule = RULES[name]
    more = dict(facts)
    if facts.get("transaction_number") is not None:
        key = (facts["producer_id"], facts["producer_epoch"], facts["transaction_number"])
        more["name"] = f"transaction {TransactionId(*key)}"
    told = {key: "nothing" if value is None else value for key, value in more.items()}
    expected, found = rule.expected.format_map(told), rule.found.format_map(told)
    topic, number = partition or (None, None)
    return Violation(topic, number, offset, name, rule.promise, expected, found)


class _Verifier:
    """The counts and findings so far."""

    def __init__(self, connection: RawConnection, partitions: Mapping[int, TopicPartition], progress: Progress) -> None:
        self._connection = connection
        self._partitions = partitions
        self._progress = progress
        self._batches = self._records = self._transactions = self._offsets = self._behind = self._found = 0
        self._violations: list[Violation] = []

    def partition(self, partition_id: int, ends: Extent) -> None:
        """Read a partition, up to its last row: its log, where transactions began on it, its markers."""
        facts = {
            "log_start_offset": ends.log_start_offset,
            "log_end_offset": ends.log_end_offset,
            "stable_floor": ends.stable_floor,
        }
        for name in ends.broken:
            self._violated(partition_id, None, name, facts)
        words = str(self._partitions[partition_id])
        if ends.last_row is not None:
            for piece in self._pieces(verify_batches, partition_id, words, last=[ends.last_row]):
                self._batches += piece.rows
                self._rows(piece, "base_offset", partition_id)
        for look, is_there in ((verify_beginnings, ends.has_beginnings), (verify_markers, ends.has_markers)):
            for piece in self._pieces(look, partition_id, words) if is_there else ():
                self._rows(piece, "first_offset", partition_id)

    def installation(self) -> None:
        """Read the rows outside the partitions' logs: decisions, committed offsets, owners of partitions."""
        ids = list(self._partitions)
        for piece in self._pieces(verify_decisions, ids, "decisions"):
            self._rows(piece, "first_offset")
        ends = {partition_id: at.end for partition_id, at in consistent_cut(self._connection, ids).items()}
        for piece in self._pieces(verify_cut, ends, "a cut", counted=False):
            self._rows(piece, "first_offset")
        for piece in self._pieces(verify_offsets, ids, "committed offsets"):
            self._rows(piece, "committed_offset")
        for piece in self._pieces(verify_assignments, ids, "members of groups"):
            self._rows(piece, None)

    def sequences(self) -> None:
        """Compare the sequences with the numbers in all tables."""
        for behind in sequences_behind(self._connection):
            self._add(violation(None, None, "sequence_behind", asdict(behind)))

    def _pieces(
        self, look: Look, key: Any, words: str, *, counted: bool = True, last: Sequence[int] | None = None
    ) -> Iterable[Piece]:
        for piece in pieces(self._connection, look, key, last):
            if counted:
                self._records += piece.records
                self._transactions += piece.transactions
                self._offsets += piece.offsets
                self._behind += piece.behind
            self._progress(self._records, words)
            yield piece

    def _rows(self, piece: Piece, at: str | None, partition_id: int | None = None) -> None:
        for facts in piece.broken:
            for name in facts["rules"]:
                offset = None if at is None else facts[at]
                self._violated(facts["partition_id"] if partition_id is None else partition_id, offset, name, facts)

    def _violated(self, partition_id: int, offset: int | None, name: str, facts: Mapping[str, Any]) -> None:
        self._add(violation(self._partitions[partition_id], offset, name, facts))

    def _add(self, found: Violation) -> None:
        self._found += 1
        if len(self._violations) < LISTED:
            self._violations.append(found)

    def report(self, seconds: float) -> VerifyReport:
        """Return the counts and findings."""
        return VerifyReport(
            partitions=len(self._partitions),
            batches=self._batches,
            records=self._records,
            transactions=self._transactions,
            group_offsets=self._offsets,
            offsets_behind=self._behind,
            violations_found=self._found,
            violations=self._violations,
            seconds=seconds,
        )
