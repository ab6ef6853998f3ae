"""Every setting: name, kind, default, what it does, bounds, Kafka's name. `make generate` writes what follows from it.

To add a setting, add its row. Rules over several settings are in `msgtx.config`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, get_args

from msgtx import units
from msgtx.arguments import LARGEST_INT4, LARGEST_INT8
from msgtx.types import Isolation, Strategy

LARGEST: Final = 2**40  # of a client's setting, a TiB or 34 years: a thread cannot wait for more than 292 years
LARGEST_OF_A_GROUP: Final = 999_999_999


class Kind(StrEnum):
    """How a value is read. Of a duration or a size, a number alone is in milliseconds or bytes."""

    DURATION = "duration"
    SIZE = "size"
    NUMBER = "number"
    FLAG = "flag"
    CHOICE = "choice"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting. `default` as a user writes it; `says`: a sentence in Markdown, for the reference and the command line.

    `least`, `most`: bounds of a number. `choices`: the words that it takes; `synonyms` of them. `form` of a text.
    `kafka`: Kafka's dotted names, the usual one first. `of_workers`: a worker takes it for its producer or consumer.
    """

    name: str
    kind: Kind
    default: str | int | bool | None
    says: str
    least: int = 1
    most: int = LARGEST
    choices: tuple[str, ...] = ()
    synonyms: Mapping[str, str] = field(default_factory=dict)
    form: str | None = None
    kafka: tuple[str, ...] = ()
    of_workers: bool = True

    @property
    def initial(self) -> str | int | bool | None:
        """The default as the library holds it: milliseconds, bytes."""
        if self.default is None or self.kind not in {Kind.DURATION, Kind.SIZE}:
            return self.default
        return (units.milliseconds if self.kind is Kind.DURATION else units.size)(self.name, self.default)


Settings = tuple[Setting, ...]
ISOLATION: Final = tuple(Isolation)
_GROUP: Final = Setting(
    "group",
    Kind.TEXT,
    None,
    "the consumer group; without one there are no committed offsets",
    kafka=("group.id",),
    of_workers=False,
)
_SESSION_TIMEOUT: Final = Setting(
    "session_timeout_ms",
    Kind.DURATION,
    "45s",
    "without a heartbeat for this long, the member loses its partitions",
    most=LARGEST_INT4,
    kafka=("session.timeout.ms",),
)
_HEARTBEAT_INTERVAL: Final = Setting(
    "heartbeat_interval_ms",
    Kind.DURATION,
    "3s",
    "how often the member says that it is alive",
    kafka=("heartbeat.interval.ms",),
)
_MAX_POLL_RECORDS: Final = Setting(
    "max_poll_records", Kind.NUMBER, 500, "the most that one `poll` returns", most=LARGEST_INT4, kafka=("max.poll.records",)
)
_FETCH_MAX_WAIT: Final = Setting(
    "fetch_max_wait_ms",
    Kind.DURATION,
    "500ms",
    "how often the consumer looks at partitions about which it was not notified",
    least=0,
    kafka=("fetch.max.wait.ms",),
)
_REQUEST_TIMEOUT: Final = Setting(
    "request_timeout_ms",
    Kind.DURATION,
    "30s",
    "the longest silence of the server in one call",
    kafka=("request.timeout.ms",),
)
_RETRY_BACKOFF: Final = Setting(
    "retry_backoff_ms", Kind.DURATION, "100ms", "the pause before another try", kafka=("retry.backoff.ms",)
)
_RESET: Final = Setting(
    "auto_offset_reset",
    Kind.CHOICE,
    "latest",
    "where to begin without a committed offset: `latest`, `earliest`, or `none` (an error); for workers the default is"
    " `earliest`",
    choices=("earliest", "latest", "none"),
    kafka=("auto.offset.reset",),
    of_workers=False,
)

CLIENT: Final[Settings] = (
    Setting(
        "on_failover",
        Kind.CHOICE,
        "trust",
        "after a failover: `trust`: go on, and raise an error for each proven loss; `stop`: raise `FailedOver`",
        choices=("trust", "stop"),
    ),
)

PRODUCER: Final[Settings] = (
    Setting(
        "acks",
        Kind.CHOICE,
        "all",
        "`all`: `send` is done when the record is flushed. `1`: when it is stored but not flushed. `0`: at once.",
        choices=("0", "1", "all"),
        synonyms={"-1": "all"},
        kafka=("acks",),
    ),
    Setting(
        "enable_idempotence",
        Kind.FLAG,
        True,
        "a record that is retried is stored once; needs `acks=all` and at most five batches in flight",
        kafka=("enable.idempotence",),
    ),
    Setting(
        "transactional_id",
        Kind.TEXT,
        None,
        "names the producer across restarts; needed for transactions; in code only",
        kafka=("transactional.id",),
        of_workers=False,
    ),
    Setting(
        "transaction_timeout_ms",
        Kind.DURATION,
        "60s",
        "after this time, an open transaction is aborted",
        most=LARGEST_INT4,
        kafka=("transaction.timeout.ms",),
    ),
    Setting(
        "delivery_timeout_ms",
        Kind.DURATION,
        "120s",
        "after this time, an unacknowledged `send` fails",
        kafka=("delivery.timeout.ms", "message.timeout.ms"),
    ),
    _REQUEST_TIMEOUT,
    Setting(
        "max_block_ms",
        Kind.DURATION,
        "60s",
        "how long `send` waits for room in the buffer",
        least=0,
        kafka=("max.block.ms",),
    ),
    Setting(
        "linger_ms",
        Kind.DURATION,
        "5ms",
        "how long a batch waits for more records; below `delivery_timeout_ms`",
        least=0,
        kafka=("linger.ms",),
    ),
    Setting("batch_bytes", Kind.SIZE, "400KiB", "a batch that reaches this size is sent", kafka=("batch.size",)),
    Setting("batch_records", Kind.NUMBER, 10_000, "a batch with this many records is sent"),
    Setting(
        "buffer_bytes",
        Kind.SIZE,
        "32MiB",
        "the size of the buffer for records that wait; when it is full, `send` blocks",
        kafka=("buffer.memory",),
    ),
    Setting(
        "max_in_flight",
        Kind.NUMBER,
        5,
        "how many batches of a partition may be on their way at once",
        kafka=("max.in.flight.requests.per.connection", "max.in.flight"),
    ),
    Setting(
        "partitioner",
        Kind.CHOICE,
        "crc32",
        "how a key chooses its partition; `murmur2` does it as Kafka's Java client does",
        choices=("crc32", "murmur2"),
    ),
    Setting(
        "retries",
        Kind.NUMBER,
        2_147_483_647,
        "how often a batch is sent again, within `delivery_timeout_ms`",
        least=0,
        kafka=("retries",),
        of_workers=False,
    ),
    replace(_RETRY_BACKOFF, says="the pause before a batch is sent again"),
)

CONSUMER: Final[Settings] = (
    _GROUP,
    Setting(
        "group_instance_id",
        Kind.TEXT,
        None,
        "a name for this member, so that it gets its partitions back after a restart",
        kafka=("group.instance.id",),
    ),
    Setting(
        "isolation",
        Kind.CHOICE,
        Isolation.READ_COMMITTED,
        "what to see: only committed records, or all (`read_uncommitted`)",
        choices=ISOLATION,
        kafka=("isolation.level",),
    ),
    _RESET,
    Setting(
        "enable_auto_commit",
        Kind.FLAG,
        True,
        "whether offsets are committed automatically; only with a group, and off in workers",
        kafka=("enable.auto.commit",),
        of_workers=False,
    ),
    Setting(
        "auto_commit_interval_ms",
        Kind.DURATION,
        "5s",
        "how often offsets are committed automatically",
        kafka=("auto.commit.interval.ms",),
        of_workers=False,
    ),
    _MAX_POLL_RECORDS,
    Setting(
        "max_poll_interval_ms",
        Kind.DURATION,
        "300s",
        "without a poll for this long, the member loses its partitions",
        kafka=("max.poll.interval.ms",),
    ),
    _SESSION_TIMEOUT,
    _HEARTBEAT_INTERVAL,
    Setting(
        "assignment",
        Kind.CHOICE,
        "cooperative-sticky",
        "how the group divides partitions: `cooperative-sticky`, `range` or `roundrobin`",
        choices=get_args(Strategy),
        kafka=("partition.assignment.strategy",),
    ),
    Setting(
        "fetch_max_bytes", Kind.SIZE, "50MiB", "the most bytes of one fetch, over all partitions", kafka=("fetch.max.bytes",)
    ),
    _FETCH_MAX_WAIT,
    _REQUEST_TIMEOUT,
    _RETRY_BACKOFF,
)

SHARE_CONSUMER: Final[Settings] = (
    replace(_GROUP, default="", says="the share group; required"),
    Setting(
        "acknowledgement_mode",
        Kind.CHOICE,
        "implicit",
        "`implicit`: the next `poll` or `commit` accepts what was handed out. `explicit`: you answer with `acknowledge`",
        choices=("implicit", "explicit"),
        kafka=("share.acknowledgement.mode",),
    ),
    _MAX_POLL_RECORDS,
    replace(_SESSION_TIMEOUT, says="without a heartbeat for this long, others get the member's records"),
    replace(_HEARTBEAT_INTERVAL, default="5s"),
    replace(_FETCH_MAX_WAIT, says="how often it looks for what it is not notified of: expired locks, delayed records"),
    _REQUEST_TIMEOUT,
    _RETRY_BACKOFF,
)

MOST_SHARE_MEMBERS: Final = 100  # of one call: each has a thread, a session and a membership
WORKER: Final[Settings] = (
    Setting(
        "share_members",
        Kind.NUMBER,
        None,
        "the group is a share group, whose members divide the work record by record, and so many of them run here",
        most=MOST_SHARE_MEMBERS,
    ),
    Setting("batch", Kind.FLAG, False, "whether the function takes a list of records"),
    Setting("transaction_ms", Kind.DURATION, "100ms", "how long a transaction collects records"),
    replace(
        _RESET,
        default="earliest",
        says="where to begin without a committed offset; with `share_members`, where a share group begins that is new"
        " (`earliest` or `latest`; without it, as the group's setting of this name says)",
    ),
    Setting(
        "idle_timeout", Kind.DURATION, None, "end when no record came for this long: seconds, or `500ms`, `1h`", least=0
    ),
    Setting(
        "outage_timeout",
        Kind.DURATION,
        None,
        "end with an error when the database is away for this long: seconds, or `5min`; if it is not set, wait for ever",
        least=0,
    ),
    Setting(
        "max_failures_in_a_row",
        Kind.NUMBER,
        20,
        "how many records with different keys may be given up without a success in between; further ones wait",
    ),
)
MIRROR: Final[Settings] = (
    Setting(
        "pattern",
        Kind.TEXT,
        None,
        "also topics whose whole name this regular expression matches, also later ones",
        form="EXPRESSION",
    ),
    Setting("repartition", Kind.FLAG, False, "the key chooses the partition; else records keep theirs"),
    Setting(
        "on_removed",
        Kind.CHOICE,
        "stop",
        "what to do when retention has removed records before they were copied: `stop` with an error, or `skip` them",
        choices=("stop", "skip"),
    ),
    Setting(
        "max_records",
        Kind.NUMBER,
        20_000,
        "how many records a transaction of the target has, unless one of the source is larger",
    ),
    Setting("max_bytes", Kind.SIZE, "4MB", "the same in bytes", most=LARGEST_INT4),
    Setting("rate_limit", Kind.NUMBER, None, "the most records per second"),
    Setting("until_caught_up", Kind.FLAG, False, "end when the source has nothing more"),
    replace(
        next(one for one in WORKER if one.name == "outage_timeout"),
        says="end with an error when an end is away for this long: seconds, or `5min`; if it is not set, wait for ever",
    ),
)
# What the command line says for a worker's `failure`, which is a value in Python.
FAILURE: Final[Settings] = (
    Setting(
        "on_error",
        Kind.CHOICE,
        "retry",
        "what to do when the function fails",
        choices=("retry", "dead-letter", "skip", "stop"),
    ),
    Setting(
        "retries",
        Kind.NUMBER,
        None,
        "how often a record is tried again before it is given up (3 times; without a limit for `retry`)",
        least=0,
    ),
    Setting("dead_letter", Kind.TEXT, None, "the topic that keeps the records on which the function failed", form="TOPIC"),
)

SHARE_GROUP: Final[Settings] = (
    Setting(
        "auto_offset_reset",
        Kind.TEXT,
        "latest",
        "where the group begins on a partition that is new to it: `latest`, `earliest`, or `by_duration:36h`",
        form="latest|earliest|by_duration:DURATION",
    ),
    Setting(
        "isolation",
        Kind.CHOICE,
        "read_committed",
        "what the group sees: only committed records, or all (`read_uncommitted`, Kafka's default)",
        choices=ISOLATION,
    ),
    Setting(
        "record_lock_duration_ms",
        Kind.DURATION,
        "30s",
        "how long a member may hold a record before another one gets it",
        most=LARGEST_OF_A_GROUP,
    ),
    Setting(
        "delivery_count_limit",
        Kind.NUMBER,
        5,
        "a record that was delivered this often without being accepted becomes a dead letter",
        most=LARGEST_OF_A_GROUP,
    ),
    Setting(
        "max_record_locks",
        Kind.NUMBER,
        2000,
        "the most records of a partition that may be in flight",
        most=LARGEST_OF_A_GROUP,
    ),
    Setting(
        "dead_letter_topic",
        Kind.TEXT,
        None,
        "where dead letters go; if it is not set, to `GROUP-dead-letters`",
        form="TOPIC",
    ),
    Setting(
        "ordering",
        Kind.CHOICE,
        "none",
        "`key`: records of one key go to one member at a time, in order",
        choices=("none", "key"),
    ),
    Setting(
        "release_backoff_ms",
        Kind.DURATION,
        0,
        "the pause before a released record is delivered again; doubled with each delivery",
        least=0,
        most=LARGEST_OF_A_GROUP,
    ),
    Setting(
        "release_backoff_max_ms", Kind.DURATION, "1min", "the longest of these pauses", least=0, most=LARGEST_OF_A_GROUP
    ),
)

TOPIC: Final[Settings] = (
    Setting(
        "cleanup_policy",
        Kind.CHOICE,
        "delete",
        "what becomes of old records: `delete`, `compact` (the newest record of each key stays), or `compact,delete`",
        choices=("delete", "compact", "compact,delete"),
    ),
    Setting(
        "retention_ms",
        Kind.DURATION,
        "7d",
        "how long records stay, also delayed ones, from their timestamp on; -1: for ever",
        least=-1,
        most=LARGEST_INT8,
    ),
    Setting(
        "retention_bytes", Kind.SIZE, -1, "how many bytes of each partition stay; -1: no limit", least=-1, most=LARGEST_INT8
    ),
    Setting(
        "delete_retention_ms", Kind.DURATION, "1d", "how long tombstones stay after compaction", least=0, most=LARGEST_INT8
    ),
    Setting(
        # PostgreSQL holds no value of 1 GiB. What is left of it is for the batches that go with the record in one call
        # (append_staged: 32 MiB), and for lengths.
        "max_message_bytes",
        Kind.SIZE,
        1_048_588,
        "the largest record: key, value and headers; at most 1,000,000,000",
        most=1_000_000_000,
    ),
    Setting(
        "timestamp_type",
        Kind.CHOICE,
        "CreateTime",
        "the time of a record: given by its producer, or the time of its storage (`LogAppendTime`)",
        choices=("CreateTime", "LogAppendTime"),
    ),
)

INSTALLATION: Final[Settings] = (
    Setting("transaction_max_timeout_ms", Kind.DURATION, "15m", "the longest `transaction_timeout_ms`"),
    Setting(
        "transactional_id_expiration_ms", Kind.DURATION, "7d", "a transactional id that is idle for this long is removed"
    ),
    Setting("producer_id_expiration_ms", Kind.DURATION, "1d", "the same for a producer without a transactional id"),
    Setting("transaction_history_ms", Kind.DURATION, "7d", "how long `transaction_outcome` remembers a transaction"),
    Setting("offsets_retention_ms", Kind.DURATION, "7d", "how long a group without members keeps its offsets"),
    Setting("dedup_window_ms", Kind.DURATION, "1h", "the time within which a `dedup_key` is stored only once"),
    Setting("group_min_session_timeout_ms", Kind.DURATION, "100ms", "the shortest `session_timeout_ms`"),
    Setting("group_max_session_timeout_ms", Kind.DURATION, "30m", "the longest `session_timeout_ms`"),
    Setting("group_max_members", Kind.NUMBER, 1000, "the most members of a group"),
    Setting("sweep_interval_ms", Kind.DURATION, "1s", "the time between two rounds of a coordinator"),
    Setting("lease_ms", Kind.DURATION, "10s", "after this time, a coordinator that died is replaced"),
    Setting(
        "sweep_max_bytes_per_second",
        Kind.SIZE,
        "16MiB",
        "how fast each coordinator, and each `msgtx sweep`, removes and compacts records; see"
        " [sizing](../operations/sizing.md#retention)",
    ),
)
