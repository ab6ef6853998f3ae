"""Names and types of settings, for editors and type checkers. They follow from `msgtx.declared.settings`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypedDict

from msgtx import arguments
from msgtx.types import Acknowledgement, Isolation, MirrorReport, ProcessReport
from msgtx.units import Duration, Size

# make generate: settings.aliases
CleanupPolicy = Literal["delete", "compact", "compact,delete"]
TimestampType = Literal["CreateTime", "LogAppendTime"]
Ordering = Literal["none", "key"]
OnFailover = Literal["trust", "stop"]
Acks = Literal["0", "1", "all", "-1", 0, 1, -1]
Partitioner = Literal["crc32", "murmur2"]
AutoOffsetReset = Literal["earliest", "latest", "none"]
Assignment = Literal["range", "roundrobin", "cooperative-sticky"]
AcknowledgementMode = Literal["implicit", "explicit"]
OnRemoved = Literal["stop", "skip"]
# end


class SenderSettings(TypedDict, total=False):
    """What a producer and the producer of a worker may be given."""

    # make generate: settings.given workers_producer
    acks: Acks
    enable_idempotence: bool
    transaction_timeout_ms: Duration
    delivery_timeout_ms: Duration
    request_timeout_ms: Duration
    max_block_ms: Duration
    linger_ms: Duration
    batch_bytes: Size
    batch_records: int
    buffer_bytes: Size
    max_in_flight: int
    partitioner: Partitioner
    retry_backoff_ms: Duration
    # end


class ProducerSettings(SenderSettings, total=False):
    """What `client.producer` may be given."""

    # make generate: settings.given producer_alone
    transactional_id: str | None
    retries: int
    # end


class MemberSettings(TypedDict, total=False):
    """What a consumer and the consumer of a worker may be given."""

    # make generate: settings.given workers_consumer
    group_instance_id: str | None
    isolation: Isolation | Literal["read_committed", "read_uncommitted"]
    max_poll_records: int
    max_poll_interval_ms: Duration
    session_timeout_ms: Duration
    heartbeat_interval_ms: Duration
    assignment: Assignment
    fetch_max_bytes: Size
    fetch_max_wait_ms: Duration
    request_timeout_ms: Duration
    retry_backoff_ms: Duration
    # end


class ConsumerSettings(MemberSettings, total=False):
    """What `client.consumer` may be given."""

    # make generate: settings.given consumer_alone
    group: str | None
    auto_offset_reset: AutoOffsetReset
    enable_auto_commit: bool
    auto_commit_interval_ms: Duration
    # end


class ShareConsumerSettings(TypedDict, total=False):
    """What `client.share_consumer` may be given."""

    # make generate: settings.given share_consumer
    group: str
    acknowledgement_mode: AcknowledgementMode
    max_poll_records: int
    session_timeout_ms: Duration
    heartbeat_interval_ms: Duration
    fetch_max_wait_ms: Duration
    request_timeout_ms: Duration
    retry_backoff_ms: Duration
    # end


class ShareGroupSettings(TypedDict, total=False):
    """What `client.admin.shares.configure` may be given. `auto_offset_reset` may also be `by_duration:36h`."""

    # make generate: settings.given share_group
    auto_offset_reset: str
    isolation: Isolation | Literal["read_committed", "read_uncommitted"]
    record_lock_duration_ms: Duration
    delivery_count_limit: int
    max_record_locks: int
    dead_letter_topic: str | None
    ordering: Ordering
    release_backoff_ms: Duration
    release_backoff_max_ms: Duration
    # end


@dataclass(frozen=True, slots=True)
class Stop:
    """Raise what a worker's function raised, and end. Nothing of its transaction is left."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Try a record on which a worker's function failed again, with pauses, until it succeeds; or raise `after` retries."""

    after: int | None = None

    def __post_init__(self) -> None:
        """Raise `WrongType`, `InvalidRequest`."""
        _require_count(self.after)


@dataclass(frozen=True, slots=True)
class Skip:
    """Leave out a record on which a worker's function failed, `after` retries (3)."""

    after: int | None = None

    def __post_init__(self) -> None:
        """Raise `WrongType`, `InvalidRequest`."""
        _require_count(self.after)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Send a record on which a worker's function failed to a topic, `after` retries: as `Skip`. The offset goes with it."""

    topic: str
    after: int | None = None

    def __post_init__(self) -> None:
        """Raise `WrongType`, `InvalidRequest`."""
        arguments.topic(self.topic)
        _require_count(self.after)


def _require_count(after: int | None) -> None:
    if after is not None:
        arguments.whole("after", after)


Failure = Retry | DeadLetter | Skip | Stop | Literal[Acknowledgement.RELEASE, Acknowledgement.REJECT]
OnCommit = Callable[[ProcessReport], object]
OnProgress = Callable[[MirrorReport], object]


class StopSignal(Protocol):
    """What ends a loop: a `threading.Event`, for one."""

    def is_set(self) -> bool:
        """Return whether to end."""
        ...


class WorkerSettings(TypedDict, total=False):
    """What `process` and `process_into` may be given. Their `batch` decides the type of their function.

    `share_members`: the group is a share group, and so many members of it run here, each in a thread. `failure`: the
    treatment of a record on which the function fails. `transaction_ms`: about how long a transaction lasts.
    `idle_timeout`: end after so many seconds without a record. `outage_timeout`: raise after so many without the database.
    `max_failures_in_a_row`: after so many records with different keys were given up, wait. `on_commit` is called after
    each transaction.
    """

    # make generate: settings.given worker_alone
    share_members: int | None
    transaction_ms: Duration
    auto_offset_reset: AutoOffsetReset
    idle_timeout: Duration | None
    outage_timeout: Duration | None
    max_failures_in_a_row: int
    # end
    failure: Failure
    stop: StopSignal | None
    on_commit: OnCommit | None
    consumer_config: Mapping[str, object] | None


class MirrorSettings(TypedDict, total=False):
    """What `client.mirror` may be given besides its name, topics and ends.

    `stop` ends it. `on_progress` is called after each transaction, and at least each few seconds.
    """

    # make generate: settings.given mirror
    pattern: str | None
    repartition: bool
    on_removed: OnRemoved
    max_records: int
    max_bytes: Size
    rate_limit: int | None
    until_caught_up: bool
    outage_timeout: Duration | None
    # end
    stop: StopSignal | None
    on_progress: OnProgress | None


class TransformSettings(WorkerSettings, SenderSettings, total=False):
    """What `process` may be given besides its functions and topics: a worker's settings, and its producer's."""


class IntoSettings(WorkerSettings, MemberSettings, total=False):
    """What `process_into` may be given besides its functions and topics: a worker's settings, and its consumer's."""


class TopicSettings(TypedDict, total=False):
    """What `topics.create` and `topics.alter` may be given."""

    # make generate: settings.given topic
    cleanup_policy: CleanupPolicy
    retention_ms: Duration
    retention_bytes: Size
    delete_retention_ms: Duration
    max_message_bytes: Size
    timestamp_type: TimestampType
    # end
