"""Tables with random rows, which a test reads a second time, in Python: rows have neighbours that differ in one column.

Nothing here is a log that msgtx could have written. What counts is that both readings agree, whichever rows are around.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

from psycopg.rows import dict_row

from tests.databases import Connection

Row = Mapping[str, Any]
Name = tuple[int, int, int]

GONE: Final = 99_999  # no such partition
NAMES: Final[list[Name]] = list(product((1, 2), (0, 1), (0, 1)))  # producer id, epoch, transaction number
TABLES: Final = (
    "record_batch",
    "producer_state",
    "producer",
    "transaction",
    "transaction_partition",
    "transaction_seal",
    "transaction_decision",
    "transaction_marker",
    "partition_floor",
    "consumer_group",
    "group_offset",
    "group_member",
    "group_assignment",
    "share_group",
    "share_state",
    "share_parked",
    "role_right",
)


class Soup:
    """Fills the tables, with few different values, so that rows meet."""

    def __init__(self, connection: Connection, partitions: Sequence[int], seed: int) -> None:
        self.connection = connection
        self.partitions = partitions
        self.dice = random.Random(seed)
        self.spans: dict[tuple[int, Name], list[int]] = {}

    def often(self, value: Any, *others: Any) -> Any:
        return value if self.dice.random() < 0.8 else self.dice.choice(others)

    def some(self, of: Iterable[Any], share: float = 0.5) -> list[Any]:
        return [each for each in of if self.dice.random() < share]

    def insert(self, table: str, **columns: Any) -> None:
        names, values = ", ".join(f'"{name}"' for name in columns), ", ".join(["%s"] * len(columns))
        self.connection.execute(
            f"insert into msgtx.{table} ({names}) overriding system value values ({values})", [*columns.values()]
        )

    def fill(self) -> None:
        for table in TABLES:
            self.connection.execute(f"delete from msgtx.{table}")
        for partition in self.partitions:
            self.connection.execute(
                "update msgtx.partition set log_start_offset = %s where partition_id = %s",
                [self.dice.choice((0, 0, 1, 3)), partition],
            )
            self.log(partition)
        for producer in self.some((1, 2, 3), 0.8):
            its = {"epoch": self.dice.choice((0, 1)), "timeout_ms": 7, "initialized_at": "now", "shard": 0}
            name = self.often(f"t{producer}", None)
            self.insert("producer", producer_id=producer, transactional_id=name, **its)
        self.transactions()
        self.groups()
        self.share_groups()

    def log(self, partition: int) -> None:
        base, second, keys = self.dice.choice((0, 0, 1, 3)), 0, list(product((1, 2), (0, 1), (0, 1, 2, 3)))
        self.dice.shuffle(keys)
        rows: list[dict[str, Any]] = []
        odd = self.dice.randrange(10)  # the row in which something is missing, if there is one
        for number in range(self.dice.randrange(8)):
            count = self.dice.choice((1, 2, 3))
            row: dict[str, Any] = {"base_offset": base, "last_offset": base + count - 1 + self.often(0, -1, 1)}
            if self.dice.random() < 0.8:
                producer, epoch, sequence = keys.pop()
                row |= {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
                row["last_sequence"] = sequence + row["last_offset"] - base + self.often(0, 1)
                if self.dice.random() < 0.7:
                    row["transaction_number"] = self.dice.choice((0, 1))
            if number == odd:
                row[self.dice.choice(("producer_id", "producer_epoch", "base_sequence", "last_sequence"))] = None
            second += self.often(1, 0, -1)
            row |= self.arrays(count, row["last_offset"] - base)
            row |= {"record_count": self.often(count, 0), "appended_at": f"2026-01-01 00:00:{second + 9}Z"}
            rows.append(row)
            base = max(base + 1, row["last_offset"] + 1 + self.often(0, 1, -1))
        for producer in self.some((1, 2), 0.3):
            self.twice([row for row in rows if row.get("producer_id") == producer])
        for row in rows:
            self.batch(partition, row)
        for producer in self.some((1, 2)):
            epoch, sequence, at = self.dice.choice((0, 1)), self.dice.randrange(4), f"2026-01-01 00:01:{producer}0Z"
            columns = {"producer_epoch": epoch, "last_sequence": sequence, "last_offset": 0, "appended_at": at}
            self.insert("producer_state", partition_id=partition, producer_id=producer, **columns)
        for floor in self.dice.sample(range(9), self.dice.randrange(3)):
            self.insert("partition_floor", partition_id=partition, stable_floor=floor)

    def twice(self, rows: Sequence[dict[str, Any]]) -> None:
        """Store the newest row of a producer again, as far as its sequence goes: no other row has the two behind it."""
        if len(rows) > 1 and not any(None in (row["producer_epoch"], row["base_sequence"]) for row in rows):
            other, newest = sorted(rows, key=lambda row: (row["producer_epoch"], row["base_sequence"]))[-2:]
            other |= {"producer_epoch": newest["producer_epoch"], "base_sequence": newest["base_sequence"]}

    def arrays(self, count: int, reach: int) -> dict[str, Any]:
        """The record arrays of a row, of which one may be too long."""
        lengths = [self.often(count, count + 1) if self.dice.random() < 0.3 else count for _ in range(6)]
        row: dict[str, Any] = {"values": [b"x" * self.dice.randrange(9)] * lengths[0]}
        newest = self.dice.randrange(5)
        row["max_timestamp"] = newest
        if self.dice.random() < 0.4:
            row["keys"] = [b"k"] * lengths[1]
        if self.dice.random() < 0.4:
            row["timestamps"] = [newest] * (lengths[2] - 1) + [newest + self.often(0, 1, -1)]
        if self.dice.random() < 0.4:
            row["header_counts"] = [1] * lengths[3]
            row["header_keys"], row["header_values"] = ["h"] * lengths[4], [b"v"] * lengths[5]
        if self.dice.random() < 0.4:
            row["offset_deltas"] = sorted(self.dice.choices(range(-1, max(reach, 0) + 2), k=lengths[4]))
            if self.dice.random() < 0.2:
                row["offset_deltas"].reverse()
        return row

    def batch(self, partition: int, row: Mapping[str, Any]) -> None:
        number = row.get("transaction_number")
        if number is not None and row["producer_id"] and row["producer_epoch"] is not None:
            name = (row["producer_id"], row["producer_epoch"], number)
            self.spans.setdefault((partition, name), [row["base_offset"], 0])[1] = row["last_offset"]
        self.insert("record_batch", partition_id=partition, byte_size=0, **row)
        self.connection.execute(
            f"update msgtx.record_batch set byte_size = {BYTES} - %s where partition_id = %s and base_offset = %s",
            [self.often(self.dice.randrange(13), -1, 13), partition, row["base_offset"]],
        )

    def offset(self) -> int:
        return self.dice.randrange(9)

    def span(self, partition: int, name: Name) -> list[int]:
        """The true one, mostly."""
        return self.often(
            self.spans.get((partition, name)) or [self.offset(), self.offset()], [self.offset(), self.offset()]
        )

    def transactions(self) -> None:
        for name in NAMES:
            its = dict(zip(("producer_id", "producer_epoch", "transaction_number"), name, strict=True))
            if self.dice.random() < 0.5:
                self.insert("transaction", **its, opened_at="now", timeout_ms=self.offset() + 1, database_backend=1)
            if self.dice.random() < 0.3:
                seal = {"kind": "session", "sealed_at": "now", "partitions": [], "first_offsets": [], "last_offsets": []}
                self.insert("transaction_seal", **its, **seal)
            if self.dice.random() < 0.6:
                named = self.some([p for p in self.partitions if (p, name) in self.spans], 0.9)
                named += self.some([*self.partitions, GONE], 0.15)
                spans = [self.span(partition, name) for partition in named]
                firsts, lasts = [first for first, _ in spans], [last for _, last in spans]
                if self.dice.random() < 0.1:
                    self.dice.choice((firsts, lasts)).append(0)
                ended = {"outcome": self.outcome(), "decided_at": "now", "decided_by": "producer"}
                arrays = {"partitions": named, "first_offsets": firsts, "last_offsets": lasts}
                self.insert("transaction_decision", **its, **ended, **arrays)
            for partition in self.partitions:
                if self.dice.random() < (0.7 if (partition, name) in self.spans else 0.15):
                    first = self.span(partition, name)[0]
                    self.insert("transaction_partition", **its, partition_id=partition, first_offset=first)
                if self.dice.random() < 0.4:
                    first, last = self.span(partition, name)
                    marker = {"outcome": self.outcome(), "first_offset": first, "last_offset": last}
                    self.insert(
                        "transaction_marker", **its, partition_id=partition, **marker, coordinator_epoch=self.offset()
                    )

    def outcome(self) -> str:
        return str(self.often(self.dice.choice(("COMMIT", "ABORT")), "PERHAPS"))

    def groups(self) -> None:
        for group in (1, 2, 4, 5):  # the last two for shares
            self.insert("consumer_group", group_id=group, name=f"g{group}", generation=self.dice.randrange(3))
        for member in range(1, 5):
            its = {"member_id": f"m{member}", "session_timeout_ms": 1, "topics": [], "joined_at": "now"}
            self.insert("group_member", member_number=member, group_id=self.dice.choice((1, 2, 4, 5)), **its)
        for group, partition in self.some(product((1, 2, 3), (*self.partitions, GONE)), 0.7):
            for sequence in self.some(range(3), 0.5):
                name = self.dice.choice([*NAMES, (None, None, None)])
                its = dict(zip(("producer_id", "producer_epoch", "transaction_number"), name, strict=True))
                at = {"commit_sequence": sequence, "committed_offset": self.offset(), "committed_at": "now"}
                self.insert("group_offset", group_id=group, partition_id=partition, **its, **at)
        for group, partition in self.some(product((1, 2, 3), (*self.partitions, GONE)), 0.5):
            owner, target = self.dice.choices((None, 1, 2, 3, 6), k=2)
            its = {"owner": owner, "owner_since": self.dice.choice((None, 0, 1, 2)), "target": target}
            self.insert("group_assignment", group_id=group, partition_id=partition, **its)

    def share_groups(self) -> None:
        for group in (4, 5):
            self.insert("share_group", group_id=group)
            for partition in self.some((*self.partitions, GONE)):
                for version in self.some(range(3), 0.6):
                    its = {"version": version, "next_offset": self.offset(), "spans": []}
                    self.insert("share_state", group_id=group, partition_id=partition, **its)
                for first in self.some(range(0, 8, 2), 0.3):
                    its = {"first_offset": first, "last_offset": first + self.dice.choice((0, 1)), "delivery_count": 1}
                    due = self.dice.choice((None, "tomorrow"))
                    self.insert("share_parked", group_id=group, partition_id=partition, due_at=due, **its)


BYTES: Final = " + ".join(
    f"case when {column} is null then 0 else pg_column_size({column} || '{{}}') end"
    for column in ('"values"', "keys", "header_keys", "header_values")
)


def below(a: Any, b: Any) -> bool:
    """Whether a < b; nothing is below or above what is not there."""
    return a is not None and b is not None and a < b


@dataclass
class Tables:
    """All rows, and what the rules say of them."""

    connection: Connection
    rows: dict[str, list[Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with self.connection.cursor(row_factory=dict_row) as cursor:
            for table in (*TABLES, "partition", "topic"):
                what = f"*, {BYTES} as bytes" if table == "record_batch" else "*"
                self.rows[table] = list(cursor.execute(f"select {what} from msgtx.{table}").fetchall())  # type: ignore[arg-type]

    def where(self, table: str, **columns: Any) -> list[Row]:
        return [row for row in self.rows[table] if all(row[name] == value for name, value in columns.items())]

    def one(self, table: str, **columns: Any) -> Row | None:
        return next(iter(self.where(table, **columns)), None)

    def of(self, table: str, row: Row, **columns: Any) -> Row | None:
        """The row of the same transaction; a batch or an offset may have none."""
        return None if None in named(row).values() else self.one(table, **named(row), **columns)

    def log(self, partition: int) -> list[Row]:
        return sorted(self.where("record_batch", partition_id=partition), key=lambda row: row["base_offset"])

    def log_start(self, partition: int) -> int:
        (row,) = self.where("partition", partition_id=partition)
        return int(row["log_start_offset"])

    def end(self, partition: int) -> int:
        return max([self.log_start(partition), *(row["last_offset"] + 1 for row in self.log(partition)[-1:])])

    def floor(self, partition: int) -> int | None:
        return max((row["stable_floor"] for row in self.where("partition_floor", partition_id=partition)), default=None)


def nth(values: Sequence[int], place: int) -> int | None:
    return values[place] if place < len(values) else None


def named(row: Row) -> dict[str, Any]:
    return {each: row[each] for each in ("producer_id", "producer_epoch", "transaction_number")}
