"""What a history and its end show, put together for the checker: what was sent, how it ended, what a crash may undo."""

import bisect
from dataclasses import dataclass, field

from msgtx import ProducerId, TopicPartition, TransactionId
from tests.histories.history import ID, History, Operation, Result
from tests.histories.settled import Settled

COMMITTED, ABORTED, UNKNOWN = "COMMITTED", "ABORTED", "UNKNOWN"


def attempt_of(text: str) -> tuple[str, int]:
    """Split `name attempt`."""
    name, _, attempt = text.partition(" ")
    return name, int(attempt or 0)


@dataclass(slots=True)
class Sent:
    """A value that was passed to a producer. `order`: among all values passed to it."""

    value: str
    partition: TopicPartition
    transaction: str | None
    producer: str
    order: int
    operation: Operation
    offset: int = -1  # the acknowledged one

    @property
    def refused(self) -> bool:
        """Its producer did not take it."""
        return self.operation.result is Result.FAIL

    @property
    def loose(self) -> bool:
        return self.operation.arguments["acks"] != "all"

    @property
    def once(self) -> bool:
        return bool(self.operation.arguments["once"])


@dataclass(slots=True)
class Transaction:
    """A transaction as its producer knows it, and how it ended.

    A name is used again if nothing of its transaction was sent to the database: then these are several attempts, and
    the name can only mean the last one.
    """

    name: str
    outcome: str
    sent: list[Sent] = field(default_factory=list)
    commits: list[Operation] = field(default_factory=list)
    aborts: list[Operation] = field(default_factory=list)

    @property
    def committed(self) -> bool:
        return self.outcome == COMMITTED

    @property
    def id(self) -> TransactionId:
        return TransactionId.parse(self.name)

    @property
    def producer(self) -> ProducerId | None:
        """Who began it; None: its name is the application's own."""
        return ProducerId(*self.id[:2]) if ID.fullmatch(self.name) else None

    @property
    def row(self) -> str | None:
        """The user's row in the same SQL transaction."""
        return self.commits[-1].arguments.get("row") if self.commits else None

    @property
    def offsets(self) -> dict[tuple[str, TopicPartition], int]:
        """The consumer offsets that its commit carried."""
        if not self.commits:
            return {}
        carried = self.commits[-1].arguments
        return {(carried["group"], TopicPartition(topic, index)): at for topic, index, at in carried["offsets"]}


class Facts:
    """Everything that the checks need."""

    def __init__(self, history: History, settled: Settled) -> None:
        self.history = history
        self.settled = settled
        self.sent: dict[str, Sent] = {}
        self.transactions: dict[tuple[str, int], Transaction] = {}
        self._attempts: dict[str, int] = {}  # the last one of each name
        for operation in history.kind("send", "commit", "abort"):
            if (text := operation.arguments["transaction"]) is not None:
                name, attempt = attempt_of(text)
                self._attempts[name] = max(attempt, self._attempts.get(name, 0))
        for operation in history.kind("send"):
            self._note_sent(operation)
        for operation in history.kind("commit", "abort"):
            ending = self.transaction(operation.arguments["transaction"])
            (ending.commits if operation.kind == "commit" else ending.aborts).append(operation)
        self._note_epochs()
        # A crash may be noted a little before it happens, and ends when the server is back.
        self.crashes = [(operation.invoked, operation.completed or operation.invoked) for operation in history.kind("crash")]
        self._places: dict[str, list[tuple[TopicPartition, int]]] = {}
        for partition, rows in settled.everything.items():
            for offset, value in rows:
                self._places.setdefault(value, []).append((partition, offset))
        self._committed_places = {(tp, offset): value for tp, rows in settled.committed.items() for offset, value in rows}
        self._infer_outcomes()
        self._flushes = self._find_flushes()

    def _note_sent(self, operation: Operation) -> None:
        about = operation.arguments
        partition = TopicPartition(about["topic"], about["partition"])
        offsets = operation.answer.get("offsets", ())
        for index, value in enumerate(about["values"]):
            sent = Sent(value, partition, about["transaction"], about["producer"], len(self.sent), operation)
            if index < len(offsets):
                sent.offset = offsets[index]
            assert value not in self.sent, f"{value} is sent twice"
            self.sent[value] = sent
            if sent.transaction is not None:
                self.transaction(sent.transaction).sent.append(sent)

    def transaction(self, text: str) -> Transaction:
        """Return the transaction of `name` or `name attempt`."""
        name, attempt = attempt_of(text)
        last = self._attempts.get(name, 0)
        key = name, attempt if " " in text else last
        found = self.transactions.get(key)
        if found is None:
            outcome = self.settled.outcomes.get(name, UNKNOWN) if key[1] == last else ABORTED
            found = self.transactions[key] = Transaction(name, outcome)
        return found

    def _note_epochs(self) -> None:
        """Note which epochs each transactional id had, in the order in which their inits returned."""
        self.epochs: dict[str, list[tuple[int, ProducerId]]] = {}  # by transactional id: when, what
        self._owners: dict[ProducerId, str] = {}
        for operation in self.history.kind("init", "fence"):
            if operation.ok and operation.completed is not None:
                producer, owner = ProducerId(*operation.answer["producer"]), operation.arguments["transactional_id"]
                self.epochs.setdefault(owner, []).append((operation.completed, producer))
                self._owners[producer] = owner

    def _infer_outcomes(self) -> None:
        """Take the outcome that the database does not know from an answer, or else from the records and the row."""
        visible = set(self._committed_places.values())
        told = {operation.arguments["transaction"]: operation.answer["outcome"] for operation in self.history.kind("outcome")
                if operation.answer.get("outcome") in {COMMITTED, ABORTED}}  # fmt: skip
        for transaction in self.transactions.values():
            if transaction.outcome == UNKNOWN and (self.settled.purged or transaction.producer is None):
                done = any(operation.ok for operation in transaction.commits)
                ended = done or any(operation.ok for operation in transaction.aborts)
                if not ended and transaction.commits:
                    done = transaction.row in self.settled.rows or any(sent.value in visible for sent in transaction.sent)
                transaction.outcome = told.get(transaction.name, COMMITTED if done else ABORTED)

    def places(self, value: str) -> list[tuple[TopicPartition, int]]:
        """Return where a value is in the log, committed or not."""
        return self._places.get(value, [])

    def committed_value(self, partition: TopicPartition, offset: int) -> str | None:
        """Return what a reader of committed data finds at an offset."""
        return self._committed_places.get((partition, offset))

    def aborted(self, sent: Sent) -> bool:
        """Return whether a record belongs to a transaction that is not committed."""
        return sent.transaction is not None and not self.transaction(sent.transaction).committed

    # ── what a crash of the server may undo ──

    def _find_flushes(self) -> list[tuple[int, int]]:
        """Find calls that were answered only after their own WAL, and all before it, was on disk."""
        found = [operation for operation in self.history.kind("init") if operation.ok]
        for transaction in self.transactions.values():
            if transaction.committed and (transaction.sent or transaction.offsets):
                found += [operation for operation in transaction.commits if operation.ok]
        for operation in self.history.kind("send"):
            flushed = operation.arguments["transaction"] is None and operation.arguments["acks"] == "all"
            if flushed and operation.ok and operation.answer["offsets"][0] >= 0:
                found.append(operation)
        return sorted((operation.invoked, operation.completed or 0) for operation in found)

    def may_be_lost(self, sent: Sent, *, stored_by: int) -> bool:
        """Return whether a record that was stored by a certain time may be gone later.

        Only records of transactions that were never committed, and acks=0/1; only by a crash; and not if a client was
        answered meanwhile that something later is on disk (WAL is one sequence).
        """
        if not (self.aborted(sent) or (sent.transaction is None and sent.loose)):
            return False
        if sent.operation.ok and sent.offset >= 0 and sent.operation.completed is not None:
            stored_by = min(stored_by, sent.operation.completed)
        return any(
            ended > sent.operation.invoked and not self._flushed_between(stored_by, began) for began, ended in self.crashes
        )

    def _flushed_between(self, since: int, until: int) -> bool:
        first = bisect.bisect_right(self._flushes, (since, 1 << 63))
        return any(completed < until for invoked, completed in self._flushes[first:] if invoked < until)

    def crashed_between(self, since: int, until: int) -> bool:
        return any(began < until and ended > since for began, ended in self.crashes)

    def taken_over(self, transaction: Transaction) -> int | None:
        """Return when the first newer epoch of a transaction's transactional id had begun.

        By number: a stopped process may note its own init later than its successor does.
        """
        if (own := transaction.producer) is None:
            return None
        return min((at for at, producer in self.epochs.get(self._owners.get(own, ""), ()) if producer > own), default=None)
