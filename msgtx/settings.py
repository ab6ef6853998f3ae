"""Names and types of settings, for editors and type checkers. They follow from `msgtx.declared.settings`."""

from collections.abc import Mapping
from typing import Literal, Required, TypedDict

from msgtx.types import Isolation
from msgtx.units import Duration, Size

# make generate: settings.aliases
CleanupPolicy = Literal["delete", "compact", "compact,delete"]
TimestampType = Literal["CreateTime", "LogAppendTime"]
Ordering = Literal["none", "key"]
Acks = Literal["0", "1", "all", "-1", 0, 1, -1]
Partitioner = Literal["crc32", "murmur2"]
AutoOffsetReset = Literal["earliest", "latest", "none"]
Assignment = Literal["range", "roundrobin", "cooperative-sticky"]
AcknowledgementMode = Literal["implicit", "explicit"]
OnError = Literal["retry", "dead-letter", "skip", "stop"]
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
    retries: int
    retry_backoff_ms: Duration
    # end


class ProducerSettings(SenderSettings, total=False):
    """What `client.producer` may be given."""

    # make generate: settings.given producer_alone
    transactional_id: str | None
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


class IntoSettings(MemberSettings, total=False):
    """What `process_into` may be given besides its functions and topics."""

    group: Required[str]
    config: Mapping[str, object] | None
    # make generate: settings.given worker
    share: bool
    concurrency: int
    batch: bool
    on_error: OnError
    retries: int | None
    dead_letter: str | None
    transaction_ms: Duration
    auto_offset_reset: AutoOffsetReset
    idle_timeout: Duration | None
    # end


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
