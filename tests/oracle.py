"""What readers may see and must see: lists and dicts, written from the invariants. It never imports msgtx.

A test reports to the oracle what a client asked for and what it was answered; every value is unique. `read` takes what a
`read_committed` reader got from offset 0, at any moment; `settled` what is stored once nothing is open. Whatever
contradicts a promise is an anomaly, named as in Jepsen where it has a name; `anomalies` lists them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Seen = Mapping[int, Sequence[tuple[int, str]]]  # per partition: offsets and values, in the order in which they came

OPEN, DECIDING, COMMITTED, ABORTED = "open", "deciding", "committed", "aborted"


@dataclass
class Sent:
    """A record that was passed to a producer."""

    partition: int
    by: str
    transaction: str | None
    offset: int | None = None  # what was acknowledged
    refused: bool = False


@dataclass
class Transaction:
    """A transaction as its producer knows it. `deciding`: the commit was called but not answered."""

    state: str = OPEN
    values: list[str] = field(default_factory=list)
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    row: str | None = None  # of the user's, in the same SQL transaction


class Oracle:
    """Events in, anomalies out."""

    def __init__(self, events: Iterable[Sequence[object]] = ()) -> None:
        self.sent_values: dict[str, Sent] = {}
        self.transactions: dict[str, Transaction] = {}
        self.order: list[str] = []  # of transactions, as they were decided or their commit was called
        self.plain_offsets: dict[tuple[str, int], int] = {}
        self.last_read: dict[int, list[tuple[int, str]]] = {}
        self.anomalies: list[str] = []
        for name, *arguments in events:
            getattr(self, str(name))(*arguments)

    # ── what happened ──

    def sent(self, value: str, partition: int, by: str, transaction: str | None = None) -> None:
        assert value not in self.sent_values, f"a test sends {value} twice"
        self.sent_values[value] = Sent(partition, by, transaction)
        if transaction is not None:
            self.transactions.setdefault(transaction, Transaction()).values.append(value)

    def acknowledged(self, value: str, offset: int) -> None:
        self.sent_values[value].offset = offset

    def refused(self, value: str) -> None:
        """The producer was answered that this record is not stored."""
        self.sent_values[value].refused = True

    def offsets(self, transaction: str, group: str, partition: int, offset: int) -> None:
        self.transactions.setdefault(transaction, Transaction()).offsets[group, partition] = offset

    def row(self, transaction: str, name: str) -> None:
        self.transactions.setdefault(transaction, Transaction()).row = name

    def deciding(self, transaction: str) -> None:
        """The commit was called."""
        self.transactions.setdefault(transaction, Transaction()).state = DECIDING
        self.order.append(transaction)

    def committed(self, transaction: str) -> None:
        self._decided(transaction, COMMITTED)

    def aborted(self, transaction: str) -> None:
        self._decided(transaction, ABORTED)

    def fenced(self, by: str) -> None:
        """A successor has taken over: what this producer left open is aborted."""
        for name in {sent.transaction for sent in self.sent_values.values() if sent.by == by and sent.transaction}:
            if self.transactions[name].state == OPEN:
                self._decided(name, ABORTED)

    def _decided(self, name: str, state: str) -> None:
        transaction = self.transactions.setdefault(name, Transaction())
        if {transaction.state, state} == {COMMITTED, ABORTED}:
            self._found("two outcomes", f"{name} was {transaction.state} and is {state}")
        transaction.state = state

    # ── what was read ──

    def read(self, seen: Seen) -> None:
        """A `read_committed` reader got this, from offset 0."""
        where: dict[str, int] = {}
        for partition, rows in seen.items():
            before = self.last_read.get(partition, [])
            if list(rows[: len(before)]) != before:  # I14
                self._found("changed range", f"partition {partition} was {before} and is {list(rows)}")
            self.last_read[partition] = list(rows)
            last_offset = -1
            for offset, value in rows:
                if offset <= last_offset:
                    self._found("non-monotonic poll", f"{value} at {offset} came after {last_offset}")
                last_offset = offset
                if value in where:
                    self._found("duplicate", f"{value} at {partition}/{where[value]} and {partition}/{offset}")
                where[value] = offset
                self._seen(value, partition, offset)
        self._in_order(seen)

    def _seen(self, value: str, partition: int, offset: int) -> None:
        sent = self.sent_values.get(value)
        if sent is None or sent.partition != partition:
            self._found("phantom", f"{value} in partition {partition}, sent to {sent and sent.partition}")
            return
        if sent.refused:
            self._found("refused read", f"{value} was answered as not stored, and is there at {partition}/{offset}")
        if sent.transaction is not None and self.transactions[sent.transaction].state in {OPEN, ABORTED}:
            state = self.transactions[sent.transaction].state
            self._found("aborted read", f"{value} at {partition}/{offset}: {sent.transaction} is {state}")
        if sent.offset not in {None, offset}:
            self._found("inconsistent offsets", f"{value} was acknowledged at {sent.offset}, and is at {offset}")

    def _in_order(self, seen: Seen) -> None:
        at = {value: index for index, value in enumerate(self.sent_values)}
        for rows in seen.values():
            last: dict[str, int] = {}
            for _, value in rows:
                if (sent := self.sent_values.get(value)) is None:
                    continue
                if at[value] < last.get(sent.by, -1):  # I3
                    self._found("non-monotonic send", f"{value} comes after what {sent.by} sent later")
                last[sent.by] = at[value]

    def settled(
        self,
        seen: Seen,
        *,
        everything: Seen,
        ends: Mapping[int, tuple[int, int]],
        offsets: Mapping[tuple[str, int], int],
        rows: Sequence[str] = (),
    ) -> None:
        """Nothing is open. `ends`: last stable offset and log end by partition; `offsets`: of groups; `rows`: the user's."""
        self.read(seen)
        visible = {value for rows in seen.values() for _, value in rows}
        for value, sent in self.sent_values.items():
            if sent.transaction is None and sent.offset is not None and value not in visible:
                self._found("lost write", f"{value} was acknowledged at {sent.partition}/{sent.offset}")
        expected = dict(self.plain_offsets)
        for name, transaction in self.transactions.items():
            self._settle(name, transaction, visible, offsets, rows)
        for name in self.order:
            if self.transactions[name].state == COMMITTED:
                expected.update(self.transactions[name].offsets)
        for key in expected.keys() | offsets.keys():
            if expected.get(key) != offsets.get(key):  # I10
                self._found("offset–output split", f"{key} is {offsets.get(key)}, and {expected.get(key)} was committed")
        for partition, (stable, end) in ends.items():
            if stable != end:
                self._found("stuck", f"partition {partition}: last stable offset {stable}, log end {end}, nothing is open")
            log = everything.get(partition, [])
            if [offset for offset, _ in log] != list(range(end)):  # I2
                self._found("gap", f"partition {partition} up to {end} holds {[offset for offset, _ in log]}")
            if not set(seen.get(partition, [])) <= set(log):
                self._found("phantom", f"partition {partition}: {set(seen[partition]) - set(log)} is not in the log")

    def _settle(
        self,
        name: str,
        transaction: Transaction,
        visible: set[str],
        offsets: Mapping[tuple[str, int], int],
        rows: Sequence[str],
    ) -> None:
        there = [value for value in transaction.values if value in visible]
        if transaction.state == DECIDING:  # the answer was lost: all or nothing
            done = there if transaction.values else [k for k, at in transaction.offsets.items() if offsets.get(k) == at]
            if transaction.row is not None and not transaction.values:
                done = [row for row in rows if row == transaction.row]
            transaction.state = COMMITTED if done else ABORTED
        if transaction.state == COMMITTED and len(there) < len(transaction.values):
            kind = "torn transaction" if there else "lost write"
            self._found(kind, f"{name} is committed, and {set(transaction.values) - set(there)} is not there")
        if transaction.row is not None and rows.count(transaction.row) != (transaction.state == COMMITTED):  # I6
            self._found("row–record split", f"{name} is {transaction.state}, and its row is in {rows}")

    def image(self, seen: Seen, *, inputs: int, outputs: int) -> None:
        """Each input's outputs exactly once. A value reads `input/attempt/output`."""
        counted: dict[str, int] = {}
        for rows in seen.values():
            for _, value in rows:
                counted[value.split("/")[0]] = counted.get(value.split("/")[0], 0) + 1
        if counted != {str(number): outputs for number in range(inputs)}:
            self._found("image", f"outputs per input: {counted}; each of {inputs} should have {outputs}")

    def _found(self, anomaly: str, detail: str) -> None:
        self.anomalies.append(f"{anomaly}: {detail}")
