"""Verify's rules once more, in Python, compared on tables with random rows (`msgtx.admin.verify.RULES` words them)."""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import pytest

from msgtx.admin import verify as admin
from msgtx.database.calls import call
from msgtx.generated import calls
from msgtx.store import verify
from msgtx.store.append.append import epoch_ms
from msgtx.store.transactions.producers import describe_producers
from msgtx.types import ProducerState
from tests.databases import Connection
from tests.store.soup import Row, Soup, Tables, below, named, nth
from tests.store.steps import new_topic

pytestmark = pytest.mark.slow

Found = list[dict[str, Any]]  # of each row, facts of it; in `rules`, those that it breaks

SEEDS: Final = 200


# ── the rules ──


class Rules(Tables):
    """What the rules say of the rows."""

    def partition(self, partition: int) -> verify.Ends:
        log, start, floor = self.log(partition), self.log_start(partition), self.floor(partition)
        rules = ["floor_above_end"] if below(self.end(partition), floor) else []
        rules += ["log_start_beyond_end"] if log and start > log[-1]["last_offset"] + 1 else []
        return verify.Ends(start, log[0]["base_offset"] if log else None, self.end(partition), floor, rules)

    def batches(self, partition: int) -> Found:
        log = self.log(partition)
        return [self._batch(partition, log, at) for at in range(len(log))]

    def _batch(self, partition: int, log: Sequence[Row], at: int) -> dict[str, Any]:
        row, front = log[at], log[at - 1] if at else None
        base, last, producer, epoch = row["base_offset"], row["last_offset"], row["producer_id"], row["producer_epoch"]
        begins, ends = row["base_sequence"], row["last_sequence"]
        before = self._before(log, row)
        kept = (
            None
            if before is not None or producer is None
            else self.one("producer_state", partition_id=partition, producer_id=producer)
        )
        registered = self.one("producer", producer_id=producer)
        decision = self.of("transaction_decision", row)
        span = span_of(decision, partition)
        begun = self.of("transaction_partition", row, partition_id=partition) if decision is None else None
        rules = {rule for rule, broken in itself(row).items() if broken}
        if front is not None:
            rules |= {"offsets_dense"} if base != front["last_offset"] + 1 else set()
            rules |= {"append_time"} if row["appended_at"] < front["appended_at"] else set()
        elif base > self.log_start(partition):
            rules.add("log_start")
        if before is not None:
            again = (before["producer_epoch"], before["base_sequence"]) == (epoch, begins)
            if again:
                rules |= {"stored_twice"} if before["base_offset"] < base else set()
            else:
                order = "sequence_order" if before["producer_epoch"] == epoch else "epoch_order"
                rules |= {order} if before["base_offset"] > base else set()
                due = before["last_sequence"] + 1 if order == "sequence_order" and before["last_sequence"] is not None else 0
                known = order == "epoch_order" or before["last_sequence"] is not None
                rules |= {"sequence"} if known and begins is not None and begins != due else set()
        elif kept is not None and kept["producer_epoch"] == epoch:
            rules |= {"sequence"} if begins is not None and begins <= kept["last_sequence"] else set()
        else:
            rules |= {"epoch_order"} if kept is not None and below(epoch, kept["producer_epoch"]) else set()
            rules |= {"sequence"} if below(0, begins) and log[0]["base_offset"] == 0 else set()
        if registered is not None and below(registered["epoch"], epoch):
            rules.add("epoch_ahead")
        if decision is not None:
            rules |= {"before_decision"} if below(base, span[0]) else set()
            rules |= set() if span[1] is not None and last <= span[1] else {"after_decision"}
        elif row["transaction_number"] is not None:
            floor = self.floor(partition)
            forgotten = below(base, floor) and self.of("transaction", row) is None
            goes_on = before is not None and (before["transaction_number"], before["producer_epoch"]) == (
                row["transaction_number"],
                epoch,
            )
            known = begun is not None and base >= begun["first_offset"]
            rules |= set() if forgotten or goes_on or known else {"open_partition"}
        return {
            "rules": rules,
            "base_offset": base,
            "expected_offset": None if front is None else front["last_offset"] + 1,
            "before_offset": None if before is None else before["base_offset"],
            "before_sequence": None if before is None else before["last_sequence"],
            "before_epoch": None if before is None else before["producer_epoch"],
            "current_epoch": None if registered is None else registered["epoch"],
            "decided_first": span[0],
            "decided_last": span[1],
            "begun_at": None if begun is None else begun["first_offset"],
            "last_sequence": ends,
            "bytes": row["bytes"],
        }

    @staticmethod
    def _before(log: Iterable[Row], row: Row) -> Row | None:
        """The producer's last row in front of this one, or the same, by epoch and sequence."""

        def key(other: Row) -> tuple[int, float]:
            return (other["producer_epoch"], float("inf") if other["base_sequence"] is None else other["base_sequence"])

        if row["producer_id"] is None or row["producer_epoch"] is None:
            return None
        others = [
            other
            for other in log
            if other is not row
            and other["producer_id"] == row["producer_id"]
            and other["producer_epoch"] is not None
            and (
                other["producer_epoch"] < row["producer_epoch"]
                or (
                    other["producer_epoch"] == row["producer_epoch"]
                    and None not in (other["base_sequence"], row["base_sequence"])
                    and other["base_sequence"] <= row["base_sequence"]
                )
            )
        ]
        return max(others, key=key, default=None)

    def beginnings(self, partition: int) -> tuple[Found, int]:
        found: Found = []
        counted = 0
        for row in self.where("transaction_partition", partition_id=partition):
            decision, first, rules = self.of("transaction_decision", row), row["first_offset"], set()
            if decision is not None:
                rules |= {"decision_start"} if span_of(decision, partition)[0] != first else set()
            else:
                counted += partition == min(o["partition_id"] for o in self.where("transaction_partition", **named(row)))
                rules |= {"floor_passed_open"} if below(first, self.floor(partition)) else set()
                rules |= {"transaction_row"} if self.of("transaction", row) is None else set()
                at = self.of("record_batch", row, partition_id=partition, base_offset=first)
                rules |= {"open_without_batch"} if at is None else set()
            told = {"first_offset": first, "decided_first": span_of(decision, partition)[0]}
            found.append({"rules": rules, **named(row), **told, "stable_floor": self.floor(partition)})
        return found, counted

    def markers(self, partition: int) -> Found:
        found: Found = []
        for row in self.where("transaction_marker", partition_id=partition):
            decision, rules = self.of("transaction_decision", row), set()
            if row["outcome"] not in ("COMMIT", "ABORT") or (decision is not None and decision["outcome"] != row["outcome"]):
                rules.add("marker_outcome")
            if decision is not None:
                rules |= (
                    {"marker_span"} if span_of(decision, partition) != (row["first_offset"], row["last_offset"]) else set()
                )
            elif self.of("transaction", row) is not None or not below(row["last_offset"], self.floor(partition)):
                rules.add("marker_without_decision")
            told = {each: row[each] for each in ("outcome", "first_offset", "last_offset")}
            decided = None if decision is None else decision["outcome"]
            found.append({"rules": rules, **named(row), **told, "decided": decided})
        return found

    def decisions(self, partitions: Sequence[int]) -> tuple[Found, int]:
        found: Found = []
        concerned = [row for row in self.rows["transaction_decision"] if set(row["partitions"]) & set(partitions)]
        for row in concerned:
            times: Counter[int] = Counter()
            uneven = not len(row["partitions"]) == len(row["first_offsets"]) == len(row["last_offsets"])
            for place, partition in enumerate(row["partitions"]):
                times[partition] += 1
                if partition not in partitions:
                    continue
                first, last = nth(row["first_offsets"], place), nth(row["last_offsets"], place)
                log, rules = self.log(partition), set()
                front = log[0]["base_offset"] if log else self.log_start(partition)
                at_end = [each for each in log if not below(last, each["base_offset"])][-1:] if last is not None else []
                ends = bool(at_end) and at_end[0]["last_offset"] == last and named(at_end[0]) == named(row)
                begins = self.of("record_batch", row, partition_id=partition, base_offset=first) is not None
                rules |= {"decision_outcome"} if row["outcome"] not in ("COMMIT", "ABORT") else set()
                rules |= {"decision_arrays"} if uneven or below(last, first) or times[partition] > 1 else set()
                rules |= {"span_start"} if first is not None and first >= front and not begins else set()
                rules |= {"span_end"} if last is not None and last >= front and not ends else set()
                if row["outcome"] == "ABORT" and below(first, self.floor(partition)) and last is not None and last >= front:
                    marker = self.of("transaction_marker", row, partition_id=partition)
                    rules |= {"marker_missing"} if marker is None else set()
                told = {"partition_id": partition, "first_offset": first, "last_offset": last, "outcome": row["outcome"]}
                found.append({"rules": rules, **named(row), **told, "stable_floor": self.floor(partition)})
        return found, len(concerned)

    def cut(self, ends: Mapping[int, int]) -> tuple[Found, int]:
        found: Found = []
        concerned = [row for row in self.rows["transaction_decision"] if set(row["partitions"]) & set(ends)]
        for row in concerned:
            spans = [
                (partition, nth(row["first_offsets"], place), nth(row["last_offsets"], place))
                for place, partition in enumerate(row["partitions"])
                if partition in ends
            ]
            spans = [each for each in spans if each[2] is not None and each[2] >= self.log_start(each[0])]
            under = any(max(first or 0, self.log_start(partition)) < ends[partition] for partition, first, _ in spans)
            over = any(last >= ends[partition] for partition, _, last in spans)
            for partition, first, last in spans if under and over and row["outcome"] == "COMMIT" else ():
                told = {"partition_id": partition, "first_offset": first, "last_offset": last, "cut_end": ends[partition]}
                found.append({"rules": {"torn"}, **named(row), **told})
        return found, len(concerned)

    def offsets(self, partitions: Sequence[int]) -> tuple[Found, int, int]:
        found: Found = []
        behind = 0
        for row in self.rows["group_offset"]:
            partition, at = row["partition_id"], row["committed_offset"]
            if partition not in partitions:
                continue
            group = {"group_id": row["group_id"], "partition_id": partition}
            newest = max(other["commit_sequence"] for other in self.where("group_offset", **group))
            behind += at < self.log_start(partition) and row["commit_sequence"] == newest
            decision, rules = self.of("transaction_decision", row), set()
            outcome = None if decision is None else decision["outcome"]
            sealed = self.of("transaction_seal", row) is not None
            is_members = row["member_id"] is not None and (not sealed or outcome == "COMMIT")
            rules |= {"offset_beyond_end"} if at > self.end(partition) and is_members else set()
            if not sealed:
                rules |= {"offset_of_aborted"} if outcome == "ABORT" else set()
                rules |= {"offset_of_undecided"} if outcome is None and self.of("transaction", row) is not None else set()
            name = self.one("consumer_group", group_id=row["group_id"])
            told = {"partition_id": partition, "committed_offset": at, "end_offset": self.end(partition)}
            group_name = None if name is None else name["name"]
            found.append({"rules": rules, **named(row), **told, "group_name": group_name})
        return found, len(found), behind

    def assignments(self, partitions: Sequence[int]) -> Found:
        found: Found = []
        for row in self.rows["group_assignment"]:
            if row["partition_id"] not in partitions:
                continue
            group, rules = self.one("consumer_group", group_id=row["group_id"]), set()
            members = {each["member_number"] for each in self.where("group_member", group_id=row["group_id"])}
            rules |= {"owner_no_member"} if row["owner"] not in members else set()
            rules |= {"target_no_member"} if row["target"] is not None and row["target"] not in members else set()
            if group is None or row["owner_since"] is None or row["owner_since"] > group["generation"]:
                rules.add("owner_from_later")
            told = {each: row[each] for each in ("partition_id", "owner", "owner_since", "target")}
            of_group = {"group_name": None, "generation": None}
            if group is not None:
                of_group = {"group_name": group["name"], "generation": group["generation"]}
            found.append({"rules": rules, **told, **of_group})
        return found

    def producers(self, partition: int) -> dict[int, ProducerState]:
        """The producers that a partition knows; without those of whose rows two are the newest."""
        log = [row for row in self.log(partition) if row["producer_id"] is not None]
        states = {row["producer_id"]: row for row in self.where("producer_state", partition_id=partition)}
        found: dict[int, ProducerState] = {}
        for producer in {row["producer_id"] for row in log} | states.keys():
            rows = [row for row in log if row["producer_id"] == producer]
            most = max((nulls_last(row) for row in rows), default=None)
            newest = [row for row in rows if nulls_last(row) == most] or [
                {**states.get(producer, {}), "transaction_number": None}
            ]
            if len(newest) > 1:
                continue
            row = newest[0]
            markers = self.where("transaction_marker", partition_id=partition, producer_id=producer)
            marked = max(markers, key=lambda each: (each["producer_epoch"], each["transaction_number"]), default=None)
            begun = self.of("transaction_partition", row, partition_id=partition)
            found[producer] = ProducerState(
                producer,
                row["producer_epoch"],
                row["last_sequence"],
                epoch_ms(row["appended_at"]),
                -1 if marked is None else marked["coordinator_epoch"],
                None if begun is None or self.of("transaction_decision", row) is not None else begun["first_offset"],
            )
        return found


def nulls_last(row: Row) -> tuple[float, float]:
    epoch, sequence = row["producer_epoch"], row["base_sequence"]
    return float("inf") if epoch is None else epoch, float("inf") if sequence is None else sequence


def span_of(decision: Row | None, partition: int) -> tuple[int | None, int | None]:
    if decision is None or partition not in decision["partitions"]:
        return None, None
    place = decision["partitions"].index(partition)
    return nth(decision["first_offsets"], place), nth(decision["last_offsets"], place)


def itself(row: Row) -> dict[str, bool]:
    """The rules of a row by itself."""
    count, reach, deltas = row["record_count"], row["last_offset"] - row["base_offset"], row["offset_deltas"]
    arrays = [row[each] for each in ("values", "keys", "timestamps", "header_counts", "offset_deltas")]
    headers = sum(row["header_counts"] or ())
    columns = [row[each] is None for each in ("producer_id", "producer_epoch", "base_sequence", "last_sequence")]
    begins, ends = row["base_sequence"], row["last_sequence"]
    return {
        "last_offset": reach < 0 or (deltas is None and reach != count - 1),
        "offset_deltas": deltas is not None
        and not (all(0 <= each <= reach for each in deltas) and all(a < b for a, b in pairwise(deltas))),
        "array_lengths": any(each is not None and len(each) != count for each in arrays)
        or any(len(row[each] or ()) != headers for each in ("header_keys", "header_values")),
        "byte_size": not row["bytes"] - 12 <= row["byte_size"] <= row["bytes"],
        "timestamps": row["timestamps"] is not None and below(row["max_timestamp"], max(row["timestamps"], default=None)),
        "producer_columns": len(set(columns)) > 1 or (columns[0] and row["transaction_number"] is not None),
        "sequence_span": below(begins, 0) or (None not in (begins, ends) and ends - begins != reach),
    }


# ── both readings ──


@pytest.fixture
def partitions(connection: Connection) -> list[int]:
    return new_topic(connection, 3)


def compare(found: Iterable[verify.Facts], expected: Found) -> None:
    """The rows that the database names are those that break a rule, with these facts."""

    def told(facts: Mapping[str, Any], names: Iterable[str]) -> tuple[tuple[str, str], ...]:
        return tuple((name, str(sorted(facts[name]) if name == "rules" else facts[name])) for name in names)

    broken = [facts for facts in expected if facts["rules"]]
    names = expected[0].keys() if expected else ()
    assert Counter(told(facts, names) for facts in found) == Counter(told(facts, names) for facts in broken)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_database_and_this_file_read_the_rules_alike(
    connection: Connection, partitions: list[int], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(verify, "VERIFIED_ROWS", dice.choice((1, 2, 3, 5, 100)))
    monkeypatch.setattr(verify, "MAX_BYTES", dice.choice((1, 100, 1 << 20)))
    with connection.transaction(force_rollback=True):
        Soup(connection, partitions, seed).fill()
        tables = Rules(connection)

        def whole(look: Any, key: Any) -> tuple[list[verify.Piece], list[verify.Facts]]:
            pieces = list(admin.pieces(connection, look, key))
            assert all(piece.rows <= verify.VERIFIED_ROWS for piece in pieces)
            return pieces, [facts for piece in pieces for facts in piece.broken]

        for partition in partitions:
            ends = tables.partition(partition)
            assert verify.verify_partition(connection, partition) == ends
            extent = verify.verify_partitions(connection, [partition])[partition]
            assert all(getattr(extent, name) == getattr(ends, name) for name in ends._fields)
            log = tables.log(partition)
            assert extent.last_row == (log[-1]["base_offset"] if log else None)
            pieces, found = whole(verify.verify_batches, partition)
            compare(found, tables.batches(partition))
            sizes = iter([row["byte_size"] for row in tables.log(partition)])
            for piece in pieces:  # one more row only while it is below the limit
                assert sum(next(sizes) for _ in range(piece.rows)[1:]) < verify.MAX_BYTES
                next(sizes)
            assert next(sizes, None) is None
            pieces, found = whole(verify.verify_beginnings, partition)
            expected, counted = tables.beginnings(partition)
            compare(found, expected)
            assert sum(piece.transactions for piece in pieces) == counted
            compare(whole(verify.verify_markers, partition)[1], tables.markers(partition))
            states = {state.producer_id: state for state in describe_producers(connection, partition)}
            assert len(call(connection, calls.DESCRIBE_PRODUCERS, partition, -1, 1)) == min(len(states), 1)
            clear = tables.producers(partition)
            assert {producer: states[producer] for producer in clear} == clear
        some = dice.sample(partitions, dice.choice((1, 2, 2, 3)))
        pieces, found = whole(verify.verify_decisions, some)
        expected, counted = tables.decisions(some)
        compare(found, expected)
        assert sum(piece.transactions for piece in pieces) == counted
        ends = {partition: dice.randrange(9) for partition in some}
        pieces, found = whole(verify.verify_cut, ends)
        expected, counted = tables.cut(ends)
        compare(found, expected)
        assert sum(piece.transactions for piece in pieces) == counted
        pieces, found = whole(verify.verify_offsets, some)
        expected, counted, behind = tables.offsets(some)
        compare(found, expected)
        assert (sum(piece.offsets for piece in pieces), sum(piece.behind for piece in pieces)) == (counted, behind)
        compare(whole(verify.verify_assignments, some)[1], tables.assignments(some))
