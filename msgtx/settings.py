"""Names and types of settings, for editors and type checkers; `msgtx.config` has the defaults, and a house test compares."""

from collections.abc import Mapping
from typing import Literal, Required, TypedDict

from msgtx.types import Isolation, Strategy
from msgtx.units import Duration, Size

Acks = Literal["0", "1", "all", "-1", 0, 1, -1]
OffsetReset = Literal["earliest", "latest", "none"]
AcknowledgementMode = Literal["implicit", "explicit"]
Partitioner = Literal["crc32", "murmur2"]
OnError = Literal["retry", "dead-letter", "skip", "stop"]
CleanupPolicy = Literal["delete", "compact", "compact,delete"]


class SenderSettings(TypedDict, total=False):
    """What a producer and the producer of a worker may be given."""

    acks: Acks
    enable_idempotence: bool
    transaction_timeout_ms: Duration
    max_in_flight: int
    retries: int
    retry_backoff_ms: Duration
    delivery_timeout_ms: Duration
    request_timeout_ms: Duration
    max_block_ms: Duration
    linger_ms: Duration
    batch_bytes: Size
    batch_records: int
    buffer_bytes: Size
    partitioner: Partitioner


class ProducerSettings(SenderSettings, total=False):
    """What `client.producer` may be given."""

    transactional_id: str | None


class MemberSettings(TypedDict, total=False):
    """What a consumer and the consumer of a worker may be given."""

    isolation: Isolation | Literal["read_committed", "read_uncommitted"]
    group_instance_id: str | None
    assignment: Strategy
    session_timeout_ms: Duration
    heartbeat_interval_ms: Duration
    max_poll_interval_ms: Duration
    max_poll_records: int
    fetch_max_bytes: Size
    fetch_max_wait_ms: Duration
    request_timeout_ms: Duration
    retry_backoff_ms: Duration


class ConsumerSettings(MemberSettings, total=False):
    """What `client.consumer` may be given."""

    group: str | None
    auto_offset_reset: OffsetReset
    enable_auto_commit: bool
    auto_commit_interval_ms: Duration


class ShareConsumerSettings(TypedDict, total=False):
    """What `client.share_consumer` may be given."""

    group: str
    acknowledgement_mode: AcknowledgementMode
    session_timeout_ms: Duration
    heartbeat_interval_ms: Duration
    max_poll_records: int
    fetch_max_wait_ms: Duration
    request_timeout_ms: Duration
    retry_backoff_ms: Duration


class ShareGroupSettings(TypedDict, total=False):
    """What `client.admin.shares.configure` may be given. `auto_offset_reset` may also be `by_duration:36h`."""

    auto_offset_reset: str
    isolation: Isolation | Literal["read_committed", "read_uncommitted"]
    record_lock_duration_ms: Duration
    delivery_count_limit: int
    max_record_locks: int
    dead_letter_topic: str | None
    ordering: Literal["none", "key"]
    release_backoff_ms: Duration
    release_backoff_max_ms: Duration


class IntoSettings(MemberSettings, total=False):
    """What `process_into` may be given besides its functions and topics."""

    group: Required[str]
    share: bool
    concurrency: int
    batch: bool
    on_error: OnError
    retries: int | None
    dead_letter: str | None
    transaction_ms: Duration
    auto_offset_reset: OffsetReset
    idle_timeout: Duration | None
    config: Mapping[str, object] | None


class TopicSettings(TypedDict, total=False):
    """What `topics.create` and `topics.alter` may be given."""

    cleanup_policy: CleanupPolicy
    retention_ms: Duration
    retention_bytes: Size
    delete_retention_ms: Duration
    max_message_bytes: Size
    timestamp_type: Literal["CreateTime", "LogAppendTime"]
