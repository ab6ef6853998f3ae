"""Kafka's clients for a mirror, by confluent-kafka: how they are made, and their errors."""

import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from msgtx.errors import (
    AuthorizationFailed,
    ConfigError,
    InvalidRecord,
    KafkaRefused,
    KafkaUnavailable,
    LoginRefused,
    MirrorFenced,
    MsgtxError,
    RecordTooLarge,
    UnknownTopicOrPartition,
)
from msgtx.mirror.kafka_address import SERVERS, KafkaAddress
from msgtx.types import TopicPartition

KAFKA_ANSWER_SECONDS: Final = 30.0  # for one request: a broker that was restarted is back by then, or somebody should know
LEAST_ANSWER_SECONDS: Final = 1.0  # a broker that is well takes less, and a commit no more than it
METADATA_SECONDS: Final = 1.0  # so much later than others a broker may hear of a new topic
ANSWER_OPTION: Final = "socket.timeout.ms"  # librdkafka's, for one request
ANSWER_MS: Final = re.compile(r"\d{1,9}", re.ASCII)
# Of a large portion while brokers are slow. Theirs allow 15 minutes, unless they say otherwise.
TRANSACTION_TIMEOUT_MS: Final = 300_000
LARGEST_MESSAGE: Final = 1_000_000_000  # librdkafka's; the topic's own limit is the broker's to check
# Settings of a topic that Kafka has, too, with dots. Not the type of its timestamps: a mirror keeps those of the source.
COPIED_SETTINGS: Final = ("cleanup_policy", "retention_ms", "retention_bytes", "delete_retention_ms", "max_message_bytes")
log = logging.getLogger("msgtx.mirror")

LOGIN: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})
KAFKA_ERRORS: Final[dict[int, type[MsgtxError]]] = {
    **dict.fromkeys((KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH), MirrorFenced),
    **dict.fromkeys(LOGIN, LoginRefused),
    **dict.fromkeys(
        (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.GROUP_AUTHORIZATION_FAILED,
            KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        AuthorizationFailed,
    ),
    **dict.fromkeys((KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE), RecordTooLarge),
    **dict.fromkeys((KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP), InvalidRecord),
    **dict.fromkeys(
        (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError.UNKNOWN_TOPIC_ID,
            KafkaError._UNKNOWN_TOPIC,
            KafkaError._UNKNOWN_PARTITION,
        ),
        UnknownTopicOrPartition,
    ),
}
# The client knows an older leader of a partition or none, and keeps to it until it reads the metadata again.
STALE: Final = frozenset({
    KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError._NOENT,
})  # fmt: skip
# Of the way to a broker, or of a cluster that elects a leader; librdkafka marks only some of them as retriable. All that
# Kafka documents as retriable, but for what a mirror never asks and what may stay: an unknown topic, a corrupt message.
AWAY: Final = STALE | frozenset({
    KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT_QUEUE,
    KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._WAIT_COORD, KafkaError._DESTROY,
    KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError.REQUEST_TIMED_OUT, KafkaError.NETWORK_EXCEPTION,
    KafkaError.BROKER_NOT_AVAILABLE, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.NOT_CONTROLLER, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR, KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.KAFKA_STORAGE_ERROR, KafkaError.CONCURRENT_TRANSACTIONS, KafkaError.THROTTLING_QUOTA_EXCEEDED,
    KafkaError.REPLICA_NOT_AVAILABLE, KafkaError.LISTENER_NOT_FOUND, KafkaError.INCONSISTENT_TOPIC_ID,
    KafkaError.FETCH_SESSION_ID_NOT_FOUND, KafkaError.INVALID_FETCH_SESSION_EPOCH,
})  # fmt: skip


def message_partition(message: Message) -> TopicPartition:
    """Return a message's partition. Each message of a consumer has one."""
    topic, partition = message.topic(), message.partition()
    assert topic is not None
    assert partition is not None
    return TopicPartition(topic, partition)


def message_offset(message: Message) -> int:
    """Return the offset of a record, or of the end of a partition; other errors have none."""
    offset = message.offset()
    assert offset is not None
    return offset


class _Library:
    """librdkafka's log. An error that it reports is raised as well, by the call that it ends."""

    def log(self, _level: int, text: str, *values: object) -> None:
        log.debug(text, *values)


class Cluster:
    """The clients of one end of a mirror, and what the brokers last complained of.

    `answer_seconds`: for one request, whichever is less of `outage_timeout` and what the address says (`socket.timeout.ms`).
    """

    def __init__(self, address: KafkaAddress, outage_timeout: float | None = None) -> None:
        self.address = address
        longest = _answer_seconds(address)
        self.answer_seconds = max(LEAST_ANSWER_SECONDS, longest if outage_timeout is None else min(longest, outage_timeout))
        self._complaint: KafkaError | None = None
        self._admin: AdminClient | None = None

    @property
    def admin(self) -> AdminClient:
        """Return the client for questions about topics."""
        if self._admin is None:
            self._admin = self._made(AdminClient, {})
        return self._admin

    def consumer(self, **own: Any) -> Consumer:
        """Return a consumer of committed records that belongs to no group and commits nothing."""
        made: Consumer = self._made(
            Consumer,
            {
                "group.id": "msgtx-mirror",  # librdkafka demands one; nothing is committed under it
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                **own,
            },
        )
        return made

    def producer(self, transactional_id: str, on_failure: Callable[[KafkaError, Message], None]) -> Producer:
        """Return a transactional producer. `on_failure`: called for each record that was not stored, with the reason."""
        made: Producer = self._made(
            Producer,
            {
                "transactional.id": transactional_id,
                "message.max.bytes": LARGEST_MESSAGE,
                "delivery.report.only.error": True,
                "on_delivery": on_failure,
            },
            **{"transaction.timeout.ms": TRANSACTION_TIMEOUT_MS},
        )
        return made

    @contextlib.contextmanager
    def asking(self, purpose: str) -> Iterator[None]:
        """Raise the error of msgtx for one of Kafka's. `purpose` stands behind "while"."""
        try:
            yield
        except KafkaException as error:
            raise self.error(error.args[0], purpose) from error
        except SystemError as error:
            # Of Python, when confluent-kafka calls back after it has found the client fenced: it may keep Kafka's error.
            cause = error.__cause__
            if isinstance(cause, KafkaException):
                raise self.error(cause.args[0], purpose) from error
            raise MirrorFenced(f"{self.address}, while {purpose}: Kafka has ended the client") from error
        self._complaint = None

    def error(self, error: KafkaError, purpose: str, **values: Any) -> MsgtxError:
        """Return the error of msgtx for one of Kafka's."""
        code, told = error.code(), error.str()
        if self._admin is not None:
            self._admin.poll(0)  # calls `_complain`
        complaint = self._complaint
        if code in AWAY and complaint is not None:
            if complaint.code() in LOGIN:
                code = complaint.code()
            told = f"{told} ({complaint.str()})"
        kind = KAFKA_ERRORS.get(code) or (KafkaUnavailable if code in AWAY or error.retriable() else KafkaRefused)
        return kind(f"{self.address}, while {purpose}: {' '.join(told.split())}", **values)

    def close(self) -> None:
        """Give up the connections."""
        self._admin = None

    def _made(self, kind: Any, own: dict[str, Any], **defaults: Any) -> Any:
        """Make a client; the address outranks `defaults`.

        Raise `ConfigError` for a property that librdkafka refuses, without its value.
        """
        own |= {SERVERS: self.address.servers, "error_cb": self._complain}
        try:
            return kind({"client.id": "msgtx-mirror", **defaults, **self.address.options, **own}, logger=_Library())
        except KafkaException as error:
            told = error.args[0].str()
        name = next((name for name in self.address.options if f'"{name}"' in told), None)
        if name is None:
            raise ConfigError(f"librdkafka refuses the options of {self.address}: {told}")
        reason = "there is no such property" if told.startswith("No such") else "its value cannot be used"
        raise ConfigError(f"librdkafka refuses the option {name} of {self.address}: {reason}", name=name)

    def _complain(self, error: KafkaError) -> None:
        """Keep what brokers complain of: a refused login before all, and no summary instead of a reason."""
        before = self._complaint
        if before is None or (before.code() not in LOGIN and error.code() != KafkaError._ALL_BROKERS_DOWN):
            self._complaint = error


def _answer_seconds(address: KafkaAddress) -> float:
    """Return how long the brokers of an address may take to answer. librdkafka refuses a value that is no number."""
    given = address.options.get(ANSWER_OPTION, "")
    return int(given) / 1000 if ANSWER_MS.fullmatch(given) else KAFKA_ANSWER_SECONDS
