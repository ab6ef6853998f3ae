"""What verify finds where transactions share parts of their names, and partitions: nothing, until a row is changed.

A look at the wrong row finds that one sound, or a sound one broken (I4, P10).
"""

from collections.abc import Iterator
from typing import Any

import pytest

from msgtx.admin.verify import Look
from msgtx.database.pool import Engine
from msgtx.store import verify
from msgtx.store.fetch.cuts import consistent_cut
from msgtx.store.transactions.transactions import mark
from msgtx.types import TransactionId
from tests.databases import Connection
from tests.store.steps import Writer, new_topic, offsets_of, plain, unique

Found = set[tuple[str, TransactionId]]


class Crowd:
    """Two writers whose transactions have the same epochs and numbers, on the same two partitions."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.partitions = new_topic(connection, 2)
        self.marked: dict[TransactionId, str] = {}
        self.unmarked: dict[TransactionId, str] = {}
        Writer(connection)  # the first there is, at epoch 0
        writers, group = [Writer(connection), Writer(connection)], unique("group")
        for epoch in range(3):
            for turn, outcomes in enumerate((("COMMIT", "ABORT"), ("ABORT", "COMMIT"), ("ABORT", "ABORT"))):
                self._send(writers)
                for at, (writer, outcome) in enumerate(zip(writers, outcomes, strict=True)):
                    decided = self.marked if epoch < 2 else self.unmarked
                    if outcome == "ABORT":
                        decided[writer.abort()] = outcome
                    else:
                        decided[writer.commit(offsets_of((f"{group}-{epoch}-{turn}", self.partitions[at], 1)))] = outcome
            if epoch == 1:
                mark(connection, everything=True)
            for writer in writers if epoch < 2 else ():
                writer.init()
        self._send(writers)
        self.open = [writer.name for writer in writers]

    def _send(self, writers: list[Writer]) -> None:
        for value in (b"first", b"between", b"last"):
            for writer in writers:
                for partition in self.partitions:
                    writer.send(partition, value, b"")
        for partition in self.partitions:
            plain(self.connection, partition, b"of nobody")

    def found(self) -> Found:
        """Each rule that a row breaks, with the row's name."""
        connection, ids = self.connection, self.partitions
        ends = {partition: at.end for partition, at in consistent_cut(connection, ids).items()}
        looks: list[tuple[Look, Any]] = [
            (verify.verify_decisions, ids),
            (verify.verify_cut, ends),
            (verify.verify_offsets, ids),
        ]
        looks += [
            (look, one) for one in ids for look in (verify.verify_batches, verify.verify_beginnings, verify.verify_markers)
        ]
        rows = [row for look, key in looks for row in look(connection, key, None).broken]
        names = [TransactionId(row["producer_id"], row["producer_epoch"], row["transaction_number"]) for row in rows]
        return {(rule, name) for row, name in zip(rows, names, strict=True) for rule in row["rules"]}

    def found_after(self, change: str, name: TransactionId) -> Found:
        """What is found after a change of the row of this name in the first partition."""
        where = "producer_id = %s and producer_epoch = %s and transaction_number = %s"
        if "transaction_partition" in change or "transaction_marker" in change:
            where += f" and partition_id = {self.partitions[0]}"
        with self.connection.transaction(force_rollback=True):
            assert self.connection.execute(f"{change} where {where}", name).rowcount == 1
            return self.found()


@pytest.fixture(scope="module")
def crowd(engine: Engine) -> Iterator[Crowd]:
    connection = engine.dedicated()
    yield Crowd(connection)
    connection.close()


def test_the_crowd_is_sound(crowd: Crowd) -> None:
    assert crowd.found() == set()


MARKER = "update msgtx.transaction_marker set"
DECISION = "update msgtx.transaction_decision set"
BEGINNING = "update msgtx.transaction_partition set"


@pytest.mark.parametrize(
    ("state", "change", "rules"),
    [
        ("marked", f"{MARKER} first_offset = first_offset + 1", {"marker_span"}),
        ("marked", f"{MARKER} last_offset = last_offset + 1", {"marker_span"}),
        ("marked", f"{MARKER} outcome = case outcome when 'ABORT' then 'COMMIT' else 'ABORT' end", {"marker_outcome"}),
        (
            "decided",
            f"{DECISION} first_offsets[1] = first_offsets[1] + 2",
            {"before_decision", "decision_start", "span_start"},
        ),
        ("decided", f"{DECISION} last_offsets[1] = last_offsets[1] - 1", {"after_decision", "span_end"}),
        ("decided", f"{DECISION} last_offsets[1] = last_offsets[1] + 2", {"span_end"}),
        ("decided", f"{BEGINNING} first_offset = first_offset + 2", {"decision_start"}),
        ("open", f"{BEGINNING} first_offset = first_offset + 2", {"open_partition", "open_without_batch"}),
        ("open", "delete from msgtx.transaction_partition", {"open_partition"}),
        ("open", "delete from msgtx.transaction", {"transaction_row"}),
    ],
)
def test_what_is_wrong_is_named_and_nothing_beside_it(crowd: Crowd, state: str, change: str, rules: set[str]) -> None:
    names = {"marked": list(crowd.marked), "decided": [*crowd.marked, *crowd.unmarked], "open": crowd.open}[state]
    for name in names:
        marked = {"marker_span"} if change.startswith(DECISION) and name in crowd.marked else set()
        assert crowd.found_after(change, name) == {(rule, name) for rule in rules | marked}


def test_what_is_missing_is_named_and_nothing_beside_it(crowd: Crowd) -> None:
    for name, outcome in crowd.marked.items():
        missing = {("marker_missing", name)} if outcome == "ABORT" else set()
        assert crowd.found_after("delete from msgtx.transaction_marker", name) == missing
        rules = {"floor_passed_open", "marker_without_decision", *(("offset_of_undecided",) if outcome == "COMMIT" else ())}
        assert crowd.found_after("delete from msgtx.transaction_decision", name) == {(rule, name) for rule in rules}
    for name, outcome in crowd.unmarked.items():
        undecided = {("offset_of_undecided", name)} if outcome == "COMMIT" else set()
        assert crowd.found_after("delete from msgtx.transaction_decision", name) == undecided
