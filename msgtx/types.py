"""The values that travel between the floors: names, records, results."""

import enum
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, NewType, Self

from msgtx.errors import DeserializationError, InvalidRequest, WrongType

# What the deserializers of a consumer make of keys and values; bytes without them. Python before 3.13 has no defaults.
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    K = TypeVar("K", default=bytes)
    V = TypeVar("V", default=bytes)
else:
    from typing import TypeVar

    K = TypeVar("K")
    V = TypeVar("V")

PartitionId = NewType("PartitionId", int)
Headers = tuple[tuple[str, bytes | None], ...]
INCARNATION: Final = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # of a database: changes with a failover


Strategy = Literal["range", "roundrobin", "cooperative-sticky"]  # how a group's partitions are divided


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise WrongType(f"{what} is read from a text, not from a {type(value).__name__}", name=what)
    return value


class TopicPartition(NamedTuple):
    """A partition of a topic, by name and index."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Return `topic-partition`, as Kafka's tools print it."""
        return f"{self.topic}-{self.partition}"


class PartitionEnds(dict[TopicPartition, int]):
    """Ends by partition, with the ids of the partitions: a topic that was made again has other ids."""

    __slots__ = ("ids",)

    def __init__(self, ends: Mapping[TopicPartition, int], ids: Mapping[TopicPartition, int]) -> None:
        super().__init__(ends)
        self.ids = dict(ids)


def ids_of(ends: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
    """Return the partition ids that belong to these ends, as far as they are known."""
    return ends.ids if isinstance(ends, PartitionEnds) else {}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A consistent cut: for each partition the end below which it has all of a transaction or nothing (I15). Picklable.

    `incarnation`: of the database that it was taken of. `str` and `parse` are each other's inverse:
    `INCARNATION orders:0=42@7,1=17@8 invoices:0=9@3`. The number behind `@` is the partition's id: a topic that was deleted
    and made again has others. A text without ids is read, too. Source: internals: visibility#consistent-cuts.
    """

    ends: Mapping[TopicPartition, int]
    incarnation: str

    def __str__(self) -> str:
        """Return it as one line, topics and partitions in order."""
        topics: dict[str, list[str]] = {}
        known = ids_of(self.ends)
        for each, end in sorted(self.ends.items()):
            at = f"@{known[each]}" if each in known else ""
            topics.setdefault(each.topic, []).append(f"{each.partition}={end}{at}")
        return " ".join([self.incarnation, *(f"{topic}:{','.join(ends)}" for topic, ends in topics.items())])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` wrote. Raise `InvalidRequest`."""
        incarnation, *topics = _text(text, "a snapshot").split() or [""]
        ends: dict[TopicPartition, int] = {}
        ids: dict[TopicPartition, int] = {}
        for part in topics:
            found = re.fullmatch(r"([a-zA-Z0-9._-]{1,249}):(\d+=\d+(?:@\d+)?(?:,\d+=\d+(?:@\d+)?)*)", part)
            if found is None:
                raise InvalidRequest(f"{part!r} is not TOPIC:PARTITION=END,…: no snapshot", name="snapshot")
            for pair in found[2].split(","):
                index, end, known = re.fullmatch(r"(\d+)=(\d+)@?(\d*)", pair).groups()  # type: ignore[union-attr]
                partition = TopicPartition(found[1], int(index))
                ends[partition] = int(end)
                if known:
                    ids[partition] = int(known)
        if not re.fullmatch(INCARNATION, incarnation):
            raise InvalidRequest(
                f"{incarnation!r} is no incarnation: a snapshot begins with the one that it was taken of", name="snapshot"
            )
        return cls(PartitionEnds(ends, ids), incarnation)

    def only(self, partitions: Iterable[TopicPartition]) -> "Snapshot":
        """Return the part of the cut on these partitions; it is consistent, too. Raise `InvalidRequest` for one it lacks."""
        wanted = [TopicPartition(*each) for each in partitions]
        if missing := [each for each in wanted if each not in self.ends]:
            raise InvalidRequest(f"the snapshot has nothing of {missing[0]}", at=missing[0])
        known = ids_of(self.ends)
        ids = {each: known[each] for each in wanted if each in known}
        return Snapshot(PartitionEnds({each: self.ends[each] for each in wanted}, ids), self.incarnation)

    def is_of(self, partition: TopicPartition, partition_id: int) -> bool:
        """Whether it has this partition, and not one of a topic of the same name that was deleted."""
        return partition in self.ends and ids_of(self.ends).get(partition, partition_id) == partition_id


@dataclass(frozen=True, slots=True)
class TakenSnapshot:
    """A snapshot, and by partition the transactions that keep it from reaching the log's end.

    `held_by`: an undecided transaction, or a committed one that has records behind an undecided one elsewhere.
    """

    snapshot: Snapshot
    held_by: Mapping[TopicPartition, "TransactionId"]


@dataclass(frozen=True, slots=True)
class SavedSnapshot:
    """A snapshot under its name. `taken_at`: when it was saved, in milliseconds since 1970 UTC.

    `saved_by`: the role that saved it first. `is_readable`: it is of this database, and not from before a failover.
    """

    name: str
    snapshot: Snapshot
    taken_at: int
    saved_by: str
    is_readable: bool


@dataclass(frozen=True, slots=True)
class CommittedRange:
    """A partition between two cuts: offsets in [start, end).

    `removed`: how many of its offsets, at its front, retention has removed since. `records`: the records that a reader
    would get now (no aborted, compacted or removed ones). `bytes`: of them as stored, about. `transactions`: committed ones
    that begin there; one on several partitions counts on each.
    """

    start: int
    end: int
    removed: int
    records: int
    bytes: int
    transactions: int


class Isolation(enum.StrEnum):
    """The records for a reader: all, or committed ones below the last stable offset (internals: visibility)."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class Outcome(enum.StrEnum):
    """How a transaction ended, as any process may ask (internals: transactions#the-outcome-asked-later)."""

    OPEN = "OPEN"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"
    UNKNOWN = "UNKNOWN"


class ProducerId(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    epoch: int


class TransactionId(NamedTuple):
    """The name of a transaction: producer id, producer epoch, number within the epoch."""

    producer_id: int
    producer_epoch: int
    transaction_number: int

    def __str__(self) -> str:
        """Return `producer_id.epoch.number`, which `parse` reads."""
        return f"{self.producer_id}.{self.producer_epoch}.{self.transaction_number}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` wrote. Raise `InvalidRequest` for anything else."""
        match = re.fullmatch(r"([0-9]{1,19})\.([0-9]{1,10})\.([0-9]{1,19})", _text(text, "a transaction id").strip())
        if match is None:
            raise InvalidRequest(
                f"{text!r} is no transaction id; it reads producer_id.epoch.number, like 17.0.3", name="transaction_id"
            )
        found = cls(*map(int, match.groups()))
        if found.producer_id >= 1 << 63 or found.producer_epoch >= 1 << 31 or found.transaction_number >= 1 << 63:
            raise InvalidRequest(
                f"{text!r} is no transaction id: a part of it is larger than any that is given out", name="transaction_id"
            )
        return found


class PreparedTransaction(NamedTuple):
    """The token of a transaction that is prepared for an outside decision: `client.complete` takes it, in any process.

    `incarnation`: of the database that holds it. `str` and `parse` are each other's inverse: `17.0.3@INCARNATION`.
    """

    transaction_id: TransactionId
    incarnation: str

    def __str__(self) -> str:
        """Return it as one word."""
        return f"{self.transaction_id}@{self.incarnation}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` wrote. Raise `InvalidRequest`."""
        name, _, incarnation = _text(text, "a token").strip().partition("@")
        if not re.fullmatch(INCARNATION, incarnation):
            raise InvalidRequest(
                f"{text!r} is no token of a prepared transaction; it reads producer_id.epoch.number@incarnation",
                name="token",
            )
        return cls(TransactionId.parse(name), incarnation)


@dataclass(slots=True)
class Record(Generic[K, V]):
    """A record as a consumer gets it. `timestamp` is in milliseconds since 1970 UTC.

    `Record` alone has bytes; `Record[str, Order]` has what deserializers made of them. A key or value may be None with both.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: K | None
    value: V | None
    headers: Headers = ()

    def json(self) -> Any:
        """Return the value, read as JSON; None for a tombstone. Raise `DeserializationError` for one that is no JSON."""
        if self.value is None:
            return None
        try:
            return json.loads(self.value)  # type: ignore[arg-type]  # of a deserialized value it is the caller's error
        except (TypeError, ValueError, RecursionError) as error:
            raise not_deserialized(self, f"the value is no JSON: {error}") from error


def not_deserialized(record: Record[Any, Any], reason: str) -> DeserializationError:
    """Return the error of a record whose key or value cannot be read, with its place."""
    at = TopicPartition(record.topic, record.partition)
    return DeserializationError(f"{at} offset {record.offset}: {reason}", at=at, offset=record.offset)


class Acknowledgement(enum.Enum):
    """The answer of a member of a share group for a record. Names are KIP-932's; RENEW is KIP-1222's."""

    ACCEPT = "accept"  # it is done
    RELEASE = "release"  # it is to be delivered again, to anyone
    REJECT = "reject"  # it can never be done
    RENEW = "renew"  # it is being worked on: its lock begins anew


@dataclass(slots=True)
class ShareRecord(Record[K, V]):
    """A record as a member of a share group gets it. `delivery_count`: 1 when it is delivered for the first time."""

    delivery_count: int = 1


@dataclass(slots=True)
class RecordMetadata:
    """Where a sent record is. `offset` is −1 with `acks=0` and for a duplicate older than the log."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class BatchMetadata:
    """Where the records of one `send_batch` are: their count, and (first, last) offsets per partition."""

    count: int
    offsets: dict[TopicPartition, list[tuple[int, int]]]


@dataclass(slots=True)
class OutputRecord:
    """A record to be sent. `topic`, `partition` and `timestamp` are chosen by the sender when they are None.

    Slots without frozen, as `Record`: a transform makes one per record.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: int | None = None
    topic: str | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed offset (the next one to read) and the text that was stored with it."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """The first offset at or after a time, and its record's timestamp in milliseconds."""

    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A member of a consumer group at one generation; a plain group name has no member. Picklable.

    `read_identities`: by partition id, the row read last: a commit checks that no crash has lost it.
    """

    group: str
    member_id: str | None = None
    generation: int = -1
    group_instance_id: str | None = None
    read_identities: Mapping[int, str | None] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A consumer group with its state (`msgtx.rules.group.State`), as `kafka-consumer-groups` lists them.

    `members`: those whose session is not over. `strategy`: the last one it had; None if it never had a member.
    """

    group: str
    state: str
    strategy: str | None
    members: int


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """A group's position on a partition, and the partition's owner.

    `current_offset`: the committed one, None if there is none; then the lag is not known. `lag`: records that are still to
    be delivered at read_committed. `lag_ms`: how old the first of them is, None when caught up. `pending`: a newer offset
    waits for the decision of a sealed transaction.
    """

    topic: str
    partition: int
    current_offset: int | None
    metadata: str
    pending: bool
    log_end_offset: int
    lag: int | None
    lag_ms: int | None
    member_id: str | None
    group_instance_id: str | None
    client_host: str | None
    client_process: int | None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A consumer group, and its partitions: all with an offset or an owner.

    `lag`: the sum over partitions where it is known. `lag_ms`: how old the oldest record is that is still to be delivered,
    None when caught up.
    """

    group: str
    state: str
    strategy: str | None
    generation: int
    members: int
    lag: int
    lag_ms: int | None
    partitions: list[GroupPartition]


@dataclass(frozen=True, slots=True)
class GroupLag:
    """How far a group is behind, over its partitions: quicker to get than its description.

    `lag`: records from its positions to the last stable offsets; what is aborted between the two counts. `lag_ms`: how old
    the oldest batch is that the group has not read to its end, None when caught up.
    """

    group: str
    lag: int
    lag_ms: int | None


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a consumer group. Times are in milliseconds since 1970 UTC; `heartbeat_at`: of its newest one.

    `topics`: its subscription; with a `pattern`, the topics found by it. `session_over`: the next heartbeat of another
    member removes it. `target`: the partitions that it is to own; it gets a partition of another member when that one
    releases it.
    """

    member_id: str
    group_instance_id: str | None
    client_host: str | None
    client_process: int | None
    session_timeout_ms: int
    joined_at: int
    heartbeat_at: int
    session_over: bool
    topics: tuple[str, ...]
    pattern: str | None
    owned: list[TopicPartition]
    target: list[TopicPartition]


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """A target of `client.admin.groups.reset`: this many offsets further; negative: back."""

    offsets: int


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """The change of an offset by a reset. `note`: why it is another one than was asked for."""

    topic: str
    partition: int
    current_offset: int | None
    new_offset: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic: name, number of partitions, settings."""

    name: str
    partitions: int
    settings: dict[str, int | str | None]


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """The three ends of a partition: log start ≤ last stable offset ≤ log end."""

    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id with its producer id and state, as `kafka-transactions list` shows them."""

    transactional_id: str | None
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionsPage:
    """Some of the listed transactions. `after`: the producer behind which the next page begins; None: this is the end."""

    transactions: list[TransactionListing]
    after: int | None


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id and its newest transaction. `started_at` is in milliseconds since 1970 UTC."""

    transactional_id: str | None
    producer_id: int
    state: str
    transaction_id: TransactionId | None
    producer_epoch: int
    timeout_ms: int
    started_at: int | None
    partitions: list[TopicPartition]
    client_host: str | None
    decided_by: str | None = None


@dataclass(frozen=True, slots=True)
class PreparedListing:
    """A transaction that waits for an outside decision. `prepared_at` is in milliseconds since 1970 UTC.

    `partitions`: on how many of them it wrote; each holds readers back there until it is decided.
    """

    token: PreparedTransaction
    transactional_id: str | None
    prepared_at: int
    partitions: int
    client_host: str | None


@dataclass(frozen=True, slots=True)
class ProducerState:
    """A partition's state of a producer, as `kafka-transactions describe-producers` shows it.

    `last_timestamp`: when its newest batch here was stored, in milliseconds. `coordinator_epoch`: of its newest marker here,
    −1 if there is none. `transaction_start_offset`: where its open transaction begins here, None if none is open.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start_offset: int | None


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """A transaction that is undecided on a partition for too long: the reason, and the remedy.

    `last_timestamp`: when its newest batch there was stored, in milliseconds. `duration_ms`: since it was opened, None if
    its row is missing. `coordinator_epoch` as in `ProducerState`.
    """

    topic: str
    partition: int
    transaction_id: TransactionId
    transactional_id: str | None
    state: str
    coordinator_epoch: int
    start_offset: int
    last_timestamp: int | None
    duration_ms: int | None
    reason: str
    advice: str


@dataclass(frozen=True, slots=True)
class ShownPartition:
    """What a transaction wrote to a partition, as far as it is stored.

    `last_offset`: of its newest row if it is undecided. `batches`, `bytes` (and `records`, where the first row is gone) are
    estimated if there are very many rows (`is_estimate`). `marked`: "marker", with the epoch of the coordinator that wrote
    it; "floor" if the partition's floor is above it; None: phase two has not come by. `removed`: why not all of it is stored
    any more: "retention", "compaction", or "topic", which was deleted and has no name. Times in milliseconds since 1970 UTC.
    """

    topic: str | None
    partition: int | None
    first_offset: int
    last_offset: int | None
    batches: int | None
    records: int | None
    bytes: int | None
    is_estimate: bool
    first_appended_at: int | None
    last_appended_at: int | None
    marked: str | None
    coordinator_epoch: int | None
    removed: str | None


@dataclass(frozen=True, slots=True)
class ShownOffset:
    """A group's offset that was committed with a transaction, or waits for its decision."""

    group: str
    topic: str
    partition: int
    offset: int
    committed_at: int


@dataclass(frozen=True, slots=True)
class ShownAcknowledgement:
    """Records of a share group that a transaction has acknowledged; they wait for its decision, or to be settled."""

    group: str
    topic: str
    partition: int
    first_offset: int
    last_offset: int
    answer: str | None


@dataclass(frozen=True, slots=True)
class TransactionEvent:
    """A point of a transaction's timeline.

    `event`: opened, first_batch, last_batch, sealed, decided or marked. `at`: in milliseconds, None if no row has the time
    (phase two notes none). `who`: the client's process, the decider, or the coordinator's epoch. `told`: all of it in words.
    """

    event: str
    at: int | None
    topic: str | None
    partition: int | None
    who: str | None
    told: str


@dataclass(frozen=True, slots=True)
class ShownTransaction:
    """All that is stored of a transaction. Times in milliseconds since 1970 UTC.

    `opened_at`, client and `database_backend` are None if it came in one call with its commit: nothing was open. `deadline`:
    when it is aborted if nothing else ends it. `partition_count`: those that the role may see; `partitions`: a page of them.
    `offsets`: those that no newer commit has replaced, of some thousand pairs of group and partition; `offsets_next`: where
    the search goes on, None at the end.
    `app_id`, `query_id`, `batch_id`: the batch of Spark for which a task wrote it.
    """

    transaction_id: TransactionId
    transactional_id: str | None
    state: str
    current_epoch: int | None
    opened_at: int | None
    timeout_ms: int | None
    deadline: int | None
    client_host: str | None
    client_process: int | None
    database_backend: int | None
    seal_kind: str | None
    sealed_at: int | None
    seal_deadline: int | None
    outcome: Outcome
    decided_at: int | None
    decided_by: str | None
    app_id: str | None
    query_id: str | None
    batch_id: int | None
    partition_count: int
    partitions: list[ShownPartition]
    offsets: list[ShownOffset]
    offsets_next: list[int] | None
    acknowledgements: list[ShownAcknowledgement]
    events: list[TransactionEvent]
    checked_at: int


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """A group that has read a partition up to where readers stop. `since`: in milliseconds since 1970 UTC."""

    group: str
    is_share_group: bool
    since: int | None


@dataclass(frozen=True, slots=True)
class BlockedPartition:
    """A partition that a transaction holds back. Readers stop at `last_stable_offset`, its first record there.

    `waits_since`: when that was stored, in milliseconds. `groups_searched`: False if there were too many groups to look for
    those that wait here.
    """

    topic: str
    partition: int
    last_stable_offset: int
    log_end_offset: int
    records_waiting: int
    waits_since: int | None
    groups: list[WaitingGroup]
    groups_searched: bool


@dataclass(frozen=True, slots=True)
class DatabaseSession:
    """A session as `pg_stat_activity` shows it to the role. Times in milliseconds since 1970 UTC.

    `visible`: False if PostgreSQL hides its state; a member of `pg_read_all_stats` sees it. `query`: its first 200 letters.
    """

    pid: int
    role: str | None
    application_name: str | None
    client_address: str | None
    visible: bool
    state: str | None
    state_since: int | None
    wait_event: str | None
    query_started_at: int | None
    query: str | None


@dataclass(frozen=True, slots=True)
class BlockingTransaction:
    """An undecided transaction, and all that waits for its end: partitions with records and groups, and what it will commit.

    `offsets`: of groups, which move when it commits. `acknowledgements`: records that no other member of a share group gets.

    `opened_at`, `age_ms`: None if its row is missing. `session`: that will decide it or has opened it, None if it is gone.
    `advice`: how to end it. Times in milliseconds since 1970 UTC.
    """

    transaction_id: TransactionId
    transactional_id: str | None
    state: str
    opened_at: int | None
    age_ms: int | None
    timeout_ms: int | None
    client_host: str | None
    client_process: int | None
    records_waiting: int
    partitions: list[BlockedPartition]
    offsets: list[ShownOffset]
    acknowledgements: list[ShownAcknowledgement]
    session: DatabaseSession | None
    advice: str


@dataclass(frozen=True, slots=True)
class ProducerEpoch:
    """An epoch of a producer, as its stored transactions tell it. Times in milliseconds since 1970 UTC.

    `first_number`, `last_number`: of its stored transactions. `committed`, `aborted`: of those from `counted_from` on; older
    ones are not counted, or not stored any more. `is_open`: its last one is undecided. `fenced_by`: the newer epoch that
    aborted its open transaction, and its client if that is known. `raised_from`: the producer began this epoch by itself.
    """

    epoch: int
    is_current: bool
    first_number: int | None
    first_at: int | None
    last_number: int | None
    last_at: int | None
    client_host: str | None
    client_process: int | None
    committed: int
    aborted: int
    counted_from: int | None
    is_open: bool
    fenced_by: str | None
    raised_from: int | None


@dataclass(frozen=True, slots=True)
class ProducerSequence:
    """The last sequence of a producer on a partition; None where the partition does not know it any more."""

    topic: str
    partition: int
    epoch: int | None
    last_sequence: int | None
    last_offset: int | None
    appended_at: int | None


@dataclass(frozen=True, slots=True)
class ProducerHistory:
    """The epochs of a producer, the newest first, and its sequences on the partitions of its newest transaction.

    `initialized_at`: when its current epoch began, in milliseconds since 1970 UTC. `epochs_before`: the argument for the
    older ones; None: these are all.
    """

    producer_id: int
    transactional_id: str | None
    current_epoch: int
    timeout_ms: int
    initialized_at: int
    epochs: list[ProducerEpoch]
    epochs_before: int | None
    sequences: list[ProducerSequence]


class Level(enum.StrEnum):
    """How bad a finding of `doctor` is."""

    PROBLEM = "problem"
    WARNING = "warning"
    INFORMATION = "information"


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of `doctor`: its subject, a sentence, the advice (empty: none is needed), and the numbers behind it."""

    level: Level
    subject: str
    text: str
    advice: str = ""
    data: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Violation:
    """A place where the log contradicts a promise (I1 to I17, architecture: promises).

    `check`: the name of the rule. `offset`: None where the partition as a whole is meant; `topic` and `partition`: None
    where the installation is.
    """

    topic: str | None
    partition: int | None
    offset: int | None
    check: str
    promise: str
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The counts and findings of `verify`.

    `violations`: the first ones; `violations_found` counts all. `offsets_behind`: offsets of groups below the log start; no
    violation, since `auto_offset_reset` applies to them.
    """

    partitions: int
    batches: int
    records: int
    transactions: int
    group_offsets: int
    offsets_behind: int
    violations_found: int
    violations: list[Violation]
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class SharePartition:
    """A share group's state of a partition. Counts are of offsets; `start_offset`: the first one that is not done.

    `parked`: delayed, or waiting for their key. `lag`: the records in flight or parked, and those behind them;
    `lag_ms`: how old the first of them is, None if there is none.
    """

    topic: str
    partition: int
    start_offset: int
    next_offset: int
    available: int
    acquired: int
    pending: int
    rejected: int
    lag: int
    parked: int
    lag_ms: int | None


@dataclass(frozen=True, slots=True)
class ShareGroupDescription:
    """A share group: its settings, living members, and the partitions from which it has acquired something.

    `dead_letters`: how many records of its topic of dead letters were not redriven; None if the role may not look there.
    That topic is not among the partitions.
    """

    group: str
    settings: dict[str, object]
    members: int
    lag: int
    lag_ms: int | None
    dead_letters: int | None
    partitions: list[SharePartition]


class RecordOutcome(enum.StrEnum):
    """What became of a stored record. Only a committed one is delivered at `read_committed`."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    PREPARED = "prepared"  # its transaction is sealed, and not decided
    OPEN = "open"


class RecordState(enum.StrEnum):
    """What a group has done with a record; all but `DONE`, `PENDING` and `AHEAD` are states of share groups only."""

    DONE = "done"
    PENDING = "pending"  # in a transaction that is not decided
    AHEAD = "ahead"  # not read yet
    ACQUIRED = "acquired"
    AVAILABLE = "available"  # to be delivered again
    DELAYED = "delayed"
    WAITING = "waiting"  # for an earlier record with its key
    REJECTED = "rejected"  # it becomes a dead letter


@dataclass(frozen=True, slots=True)
class RecordInGroup:
    """What a group has done with a record; `told` says all of it in words.

    `at`: when the group's offset passed the record (DONE; None: not known any more), or the end of its lock or delay.
    `ahead`: offsets in front of it that the group has not read; None: the group has not begun, or is past it. `member_id`:
    who has the record, or will read it. Times in milliseconds.
    """

    group: str
    is_share_group: bool
    state: RecordState
    at: int | None
    ahead: int | None
    member_id: str | None
    client_host: str | None
    client_process: int | None
    delivery_count: int | None
    reason: str | None
    told: str


@dataclass(frozen=True, slots=True)
class RecordLetter:
    """A dead letter of a record. `group`, `reason`: None if the letter does not say, or the role may not read it."""

    topic: str
    partition: int
    offset: int
    group: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record found by `client.find`, its outcome, and the progress of each group. Times in milliseconds.

    `stored_at`: when it was appended. `key`, `value`, `headers`: empty for a role that may only observe. `deliver_at`: the
    end of its delay. `transactional_id`: None if it has none, or the role may not use it.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    stored_at: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    outcome: RecordOutcome
    transaction_id: TransactionId | None
    transactional_id: str | None
    decided_at: int | None
    deliver_at: int | None
    groups: list[RecordInGroup]
    dead_letters: list[RecordLetter]


@dataclass(frozen=True, slots=True)
class FoundBefore:
    """Records of a partition found by `client.find_before`, the last one first.

    `next_before`: the search continues in front of this offset; None: there is nothing further back. With fewer records than
    the limit, the search was stopped there.
    """

    records: list[FoundRecord]
    next_before: int | None


@dataclass(frozen=True, slots=True)
class RedriveReport:
    """How many dead letters a redrive has sent back, and how many it has passed over since their topic is gone."""

    sent: int
    skipped: int


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The counts of one round of sweeping."""

    transactions_aborted: int = 0  # overdue ones
    markers_written: int = 0
    floors_moved: int = 0
    batches_removed: int = 0  # by retention, rows of logs
    records_compacted: int = 0  # removed: superseded by newer ones of their key, aborted, or tombstones whose time is up
    producer_ids_removed: int = 0  # idle ones, with and without transactional id
    transactions_purged: int = 0  # complete ones past their history
    offsets_removed: int = 0  # superseded by newer ones
    floors_removed: int = 0  # superseded by higher ones
    members_removed: int = 0  # of groups, whose session is over
    heartbeats_removed: int = 0  # superseded by newer ones, or of members that are gone
    shares_settled: int = 0  # share partitions, with what a decided transaction has acknowledged there
    share_rows_removed: int = 0  # of share groups, superseded by newer ones
    seals_removed: int = 0  # of decided transactions
    spark_rows_removed: int = 0  # attempts that are decided, and what newer batches have superseded
    dedup_keys_removed: int = 0  # past their window
    wake_ups_removed: int = 0  # that listeners have seen
    log_rows_removed: int = 0  # of deleted topics
    sweeps_unfinished: int = 0  # that their pace stopped before their end: the next sweep continues


class SearchKind(enum.StrEnum):
    """The kind of a place that `client.search` has found."""

    RECORD = "record"
    PARTITION = "partition"
    TRANSACTION = "transaction"
    TRANSACTIONAL_ID = "transactional_id"
    TOPIC = "topic"
    GROUP = "group"
    SHARE_GROUP = "share_group"
    SNAPSHOT = "snapshot"
    PRODUCER = "producer"


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A place that `client.search` has found: its kind, its name, and a line about it. `record`: of a record, itself."""

    kind: SearchKind
    name: str
    text: str
    record: FoundRecord | None = None


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """What `client.search` has found: places that the text names, then records. `similar`: names like it, if it found none.

    `is_complete`: false if the search for records was stopped, or has more to look at than one search may.
    """

    hits: list[SearchHit]
    similar: list[SearchHit]
    is_complete: bool


class RowState(enum.StrEnum):
    """What became of a row of the log; `PLAIN`: it belongs to no transaction, and counts as committed."""

    PLAIN = "plain"
    COMMITTED = "committed"
    ABORTED = "aborted"
    PREPARED = "prepared"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class LogRow:
    """A row of the log: the records of one batch, without their contents. Times in milliseconds since 1970 UTC.

    `records`: those that are stored; `compacted`: how many of its offsets compaction has emptied. `bytes`: of the records.
    `transactional_id`: None if there is none, or the role may not use it.
    """

    base_offset: int
    last_offset: int
    records: int
    compacted: int
    bytes: int
    appended_at: int
    producer_id: int | None
    transaction_id: TransactionId | None
    transactional_id: str | None
    state: RowState
    decided_at: int | None


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far a consumer group or share group is on a partition.

    `offset`: its committed offset; of a share group the first offset that is not done. `next_offset`: of a share group the
    next one to acquire for the first time. `lag`: from the first unread record to the stable end, aborted records in between
    too, and what a share group has in flight; `lag_ms`: the age of the oldest batch with one.
    """

    group: str
    is_share_group: bool
    offset: int
    next_offset: int | None
    lag: int
    lag_ms: int | None


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """A partition with the ends of its log, about how many bytes it has, and how far each group is, the last one first.

    `groups_searched`: false if there were too many groups to look for them on this partition.
    """

    partition: int
    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    bytes: int
    groups: list[GroupProgress]
    groups_searched: bool


@dataclass(frozen=True, slots=True)
class PartitionRows:
    """Rows of a partition's log, in order, and the ends of the log at the same moment."""

    topic: str
    partition: int
    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    rows: list[LogRow]


@dataclass(frozen=True, slots=True)
class RoleRight:
    """A right of a role on a name of `resource` (topic, group, transactional_id), or on all names with a prefix (`*`).

    `exists` is false when the role was dropped, even if another one of its name was made: it may nothing, and the next
    change or upgrade forgets this right.
    """

    role: str
    can: str
    resource: str
    name: str
    exists: bool


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A table of msgtx, as PostgreSQL's statistics know it; `bytes`: with indexes. `last_vacuum`: in milliseconds."""

    name: str
    bytes: int
    live_rows: int
    dead_rows: int
    rows_since_vacuum: int
    last_vacuum: int | None


@dataclass(frozen=True, slots=True)
class SnapshotHolder:
    """A session, standby, slot or prepared transaction of PostgreSQL that keeps VACUUM from removing dead rows.

    `age`: in transactions. `since`: in milliseconds since 1970 UTC. `retained_bytes`: WAL that a slot keeps.
    """

    kind: str
    name: str
    pid: int | None
    role: str | None
    client_address: str | None
    state: str | None
    since: int | None
    age: int | None
    retained_bytes: int | None


@dataclass(frozen=True, slots=True)
class Standby:
    """A server that follows this one, and how far what it shows is behind.

    `behind_ms`: as PostgreSQL measured it lately, None if it did not. `behind_records`: about as many records as would fit
    into `behind_bytes` of WAL, which hold other things, too; so it is hardly more. None: not known to the role.
    """

    name: str
    role: str
    client_address: str | None
    state: str | None
    sync_state: str | None
    behind_bytes: int | None
    behind_ms: int | None
    behind_records: int | None


@dataclass(frozen=True, slots=True)
class DatabaseDescription:
    """The database below msgtx. `connections`: of the server; `connection_limit`: those that ordinary roles may have.

    `bytes`: of the database, with what is not msgtx's; PostgreSQL keeps no history of it.
    `sees_all`: whether the role may see other roles' sessions (pg_read_all_stats); else some values are None.
    """

    server_version: str
    in_recovery: bool
    sees_all: bool
    connections: int
    connection_limit: int
    bytes: int
    tables: list[TableDescription]
    snapshot_holders: list[SnapshotHolder]
    standbys: list[Standby]
    rights: list[RoleRight]


@dataclass(frozen=True, slots=True)
class SparkQuery:
    """A query of an application of Spark. Times in milliseconds since 1970 UTC.

    `query_id`: None where a program counts its batches itself. `last_batch`, `decided_at`, `run_id`: of its fence row, the
    newest committed batch. `undecided_…`: attempts of tasks without a decision, the first batch of theirs, and since when.
    `rerun`: what a batch does that runs again.
    """

    application: str
    query_id: str | None
    last_batch: int | None
    decided_at: int | None
    run_id: str | None
    undecided_attempts: int
    undecided_batch: int | None
    undecided_since: int | None
    rerun: str


@dataclass(frozen=True, slots=True)
class ActivityPiece:
    """What was stored and decided from `start` to before `end`, in milliseconds since 1970 UTC.

    `records`: None if retention has removed what could tell; `removed`: the partitions that do not count in it, because
    their log does not reach back to `start`. `committed`, `aborted`: transactions with records, by the time of the
    decision; None if their history is over. `estimated`: some partitions stand for all, or some moments for the whole piece.
    """

    start: int
    end: int
    records: int | None
    removed: int
    committed: int | None
    aborted: int | None
    estimated: bool


@dataclass(frozen=True, slots=True)
class Coordinator:
    """A shard of the coordinator, and the process that leads it. `lease_until` is in milliseconds since 1970 UTC."""

    shard: int
    owner: int
    host: str
    epoch: int
    lease_until: int
    process: int


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """The counts of consume–transform–produce until it stopped. `failed`: records skipped or sent to dead letters."""

    transactions: int = 0
    aborted: int = 0
    records_in: int = 0
    records_out: int = 0
    seconds: float = field(default=0.0, compare=False)
    failed: int = 0


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """What a run of a mirror has copied so far, and what its source had behind that: records at most, and their age."""

    name: str
    records: int = 0
    transactions: int = 0
    running_ms: int = 0
    lag_records: int = 0
    lag_ms: int = 0


@dataclass(frozen=True, slots=True)
class MirrorPlace:
    """How far a mirror has copied a partition of its source: the next offset."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class MirrorDescription:
    """A mirror whose target is this database: its source, its run, and how far it is.

    `source`: the identity of the source; None: nothing is copied yet. `moved_ms`, `seen_ms`: how long ago its progress
    moved, and its run was heard of. `lag_records`, `lag_ms`: as the run said last. `places`: by `describe` only. `error`:
    why the run has ended, if only a person can decide about that.
    """

    name: str
    source: str | None
    source_address: str
    host: str
    process: int
    started_at: int
    moved_ms: int
    seen_ms: int
    records: int
    lag_records: int
    lag_ms: int
    places: tuple[MirrorPlace, ...] = ()
    error: str | None = None
