"""The settings of confluent-kafka and their meaning here: one table, from which docs/reference/compat.md is generated."""

import fnmatch
import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from msgtx.config import ConsumerConfig, ProducerConfig, resolve
from msgtx.declared import kafka
from msgtx.declared.settings import LARGEST, TOPIC
from msgtx.errors import ConfigError

log = logging.getLogger("msgtx.compat")
# Other names of a setting, as librdkafka has them.
SYNONYMS: Final = {
    "metadata.broker.list": "bootstrap.servers",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "request.required.acks": "acks",
    "message.send.max.retries": "retries",
    "queue.buffering.max.ms": "linger.ms",
    "delivery.timeout.ms": "message.timeout.ms",
    "auto.commit.enable": "enable.auto.commit",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
}
PRODUCER: Final = "producer"
LEAST_SESSION_MS: Final = 1_000  # librdkafka takes shorter timeouts, which no heartbeat can keep
CONSUMER: Final = "consumer"
_MAPPED: Final = "as `{}` of msgtx"
# What the facade passes on: Kafka's name, the owner. The name in msgtx is that of docs/reference/settings.md.
PASSED_ON: Final[Mapping[str, tuple[str, str]]] = {
    "acks": (PRODUCER, "acks"),
    "enable.idempotence": (PRODUCER, "enable_idempotence"),
    "transactional.id": (PRODUCER, "transactional_id"),
    "transaction.timeout.ms": (PRODUCER, "transaction_timeout_ms"),
    "message.timeout.ms": (PRODUCER, "delivery_timeout_ms"),
    "linger.ms": (PRODUCER, "linger_ms"),
    "batch.num.messages": (PRODUCER, "batch_records"),
    "batch.size": (PRODUCER, "batch_bytes"),
    "max.in.flight.requests.per.connection": (PRODUCER, "max_in_flight"),
    "retries": (PRODUCER, "retries"),
    "group.id": (CONSUMER, "group"),
    "group.instance.id": (CONSUMER, "group_instance_id"),
    "isolation.level": (CONSUMER, "isolation"),
    "auto.offset.reset": (CONSUMER, "auto_offset_reset"),
    "max.poll.interval.ms": (CONSUMER, "max_poll_interval_ms"),
    "session.timeout.ms": (CONSUMER, "session_timeout_ms"),
    "heartbeat.interval.ms": (CONSUMER, "heartbeat_interval_ms"),
    "partition.assignment.strategy": (CONSUMER, "assignment"),
    "fetch.max.bytes": (CONSUMER, "fetch_max_bytes"),
    "fetch.max.wait.ms": (CONSUMER, "fetch_max_wait_ms"),
}
# What the facade does by itself, as the original does it.
DONE_HERE: Final[Mapping[str, str]] = {
    "queue.buffering.max.messages": "`produce` raises `BufferError` when so many messages wait for their report",
    "enable.auto.commit": "stored offsets are committed in `poll`, `consume` and `close`",
    "auto.commit.interval.ms": "how often",
    "enable.auto.offset.store": "whether `poll` and `consume` store the offset behind each message",
    "enable.partition.eof": "`poll` returns a message with the error `_PARTITION_EOF` at the end of a partition",
    "message.max.bytes": "`produce` raises `MSG_SIZE_TOO_LARGE` for a longer message; a topic has a limit of its own, too",
    "delivery.report.only.error": "delivery callbacks are called for failures only",
    "partitioner": "all of librdkafka's",
    "statistics.interval.ms": "how often `stats_cb` is called; its text has the counts of messages only",
    "dr_cb": "the delivery callback of messages without one of their own",
    "dr_msg_cb": "the same",
    "on_delivery": "the same",
    "on_commit": "called in `poll` with the outcome of each commit",
    "offset_commit_cb": "the same",
    "error_cb": "called in `poll` and `flush` when the database is away, or the producer is fenced",
    "stats_cb": "see `statistics.interval.ms`",
    "throttle_cb": "never called: nothing is throttled",
    "logger": "gets what the facade logs",
    "default.topic.config": "its settings count as if they stood outside",
    "allow.auto.create.topics": "a producer creates a missing topic with one partition; a consumer waits for it",
}
# Topic settings of Kafka that msgtx has under the same name, or another one.
TOPIC_SETTINGS: Final[Mapping[str, str]] = {
    "message.timestamp.type" if one.name == "timestamp_type" else one.name.replace("_", "."): one.name for one in TOPIC
}
# Every name that confluent-kafka 2.16 takes and that is not above; the reason stands in `msgtx.declared.kafka`.
IGNORED: Final = """
api.version.fallback.ms api.version.request api.version.request.timeout.ms
background_event_cb bootstrap.servers broker.address.family broker.address.ttl broker.version.fallback
builtin.features check.crcs client.dns.lookup client.id client.rack closesocket_cb compression.codec compression.level
compression.type connect_cb connections.max.idle.ms consume.callback.max.messages consume_cb
coordinator.query.interval.ms debug default_topic_conf enable.gapless.guarantee enable.metrics.push enable.random.seed
enable.sasl.oauthbearer.unsecure.jwt enable.ssl.certificate.verification enabled_events fetch.error.backoff.ms
fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms group.protocol group.protocol.type
group.remote.assignor https.ca.location https.ca.pem interceptors internal.termination.signal log.connection.close
log.queue log.thread.name log_cb log_level max.partition.fetch.bytes max.poll.records message.copy.max.bytes
metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy msg_order_cmp
oauth_cb oauthbearer_token_refresh_cb offset.store.method offset.store.path offset.store.sync.interval.ms opaque
open_cb partitioner_cb plugin.library.paths produce.offset.report queue.buffering.backpressure.threshold
queue.buffering.max.kbytes queued.max.messages.kbytes queued.min.messages queuing.strategy rebalance_cb
receive.message.max.bytes reconnect.backoff.jitter.ms reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms
resolve_cb retry.backoff.max.ms retry.backoff.ms sasl.kerberos.keytab sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.principal sasl.kerberos.service.name sasl.mechanism
sasl.mechanisms sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
sasl.oauthbearer.assertion.jwt.template.file sasl.oauthbearer.assertion.private.key.file
sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.private.key.pem
sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.config sasl.oauthbearer.extensions
sasl.oauthbearer.grant.type sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.method
sasl.oauthbearer.scope sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url sasl.password
sasl.username security.protocol share.acknowledgement.mode socket.blocking.max.ms
socket.connection.setup.timeout.ms socket.keepalive.enable socket.max.fails socket.nagle.disable
socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms socket_cb ssl.ca.certificate.stores
ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.certificate.verify_cb ssl.cipher.suites
ssl.crl.location ssl.curves.list ssl.endpoint.identification.algorithm ssl.engine.id ssl.engine.location
ssl.key.location ssl.key.password ssl.key.pem ssl.keystore.location ssl.keystore.password ssl.providers
ssl.sigalgs.list ssl_ca ssl_certificate ssl_engine_callback_data ssl_key sticky.partitioning.linger.ms
topic.blacklist topic.metadata.propagation.max.ms topic.metadata.refresh.fast.cnt
topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
"""
_IGNORED: Final = frozenset(IGNORED.split())
CALLBACKS: Final = ("error_cb", "stats_cb", "throttle_cb")
_CALLABLES: Final = ("on_delivery", "on_commit")
_MOST_MESSAGES: Final = 100_000  # librdkafka's default of queue.buffering.max.messages
_AUTO_COMMIT_MS: Final = 5_000
_HEARTBEAT_MS: Final = 3_000


@dataclass(frozen=True, slots=True)
class Given:
    """A configuration that was read. `passed`: the settings of the msgtx object; `own`: those that the facade does."""

    passed: Mapping[str, object]
    own: Mapping[str, Any]

    def flag(self, name: str, default: bool) -> bool:
        """Return a setting that is true or false. Raise `KafkaException`."""
        value = self.own.get(name, default)
        text = str(value).lower()
        if text in {"true", "1", "t"}:
            return True
        if text in {"false", "0", "f"}:
            return False
        raise refused(f'Expected bool value for "{name}": true or false')

    def number(self, name: str, default: int, least: int = 0) -> int:
        """Return a setting that is a number. Raise `KafkaException`."""
        try:
            value = int(self.own.get(name, default))
        except (TypeError, ValueError):
            raise refused(f'Invalid value for configuration property "{name}"') from None
        if value < least:
            raise refused(f'Configuration property "{name}" value {value} is outside allowed range {least}..2147483647')
        return value


def refused(sentence: str) -> KafkaException:
    """Return the error for a setting that is not taken."""
    return KafkaException(KafkaError(KafkaError._INVALID_ARG, sentence))


def read(owner: str, config: tuple[Any, ...], keywords: Mapping[str, Any]) -> Given:
    """Read the arguments of a constructor, as the original takes them. Raise `TypeError`, `KafkaException`.

    Settings without a meaning here are named in one line of the log.
    """
    if len(config) > 1 or (config and not isinstance(config[0], dict)):
        raise TypeError("expected configuration dict")
    settings = _flat({**(config[0] if config else {}), **keywords})
    passed: dict[str, object] = {}
    own: dict[str, Any] = {}
    ignored: list[str] = []
    for name, value in settings.items():
        if name in CALLBACKS and not callable(value) and value is not None:
            raise TypeError(f"expected {name} property as a callable function")
        if name in _CALLABLES and not callable(value) and value is not None:
            raise refused(f"{name} requires a callable object")
        if name in PASSED_ON:
            if PASSED_ON[name][0] == owner:
                passed[name] = LEAST_SESSION_MS if _is_too_short(name, value) else value
        elif name in DONE_HERE:
            own[name] = value
        elif name in _IGNORED:
            ignored.append(name)
        else:
            raise refused(f'No such configuration property: "{name}"')
    if ignored:
        (own.get("logger") or log).info("no effect on msgtx: %s (docs/reference/compat.md)", ", ".join(sorted(ignored)))
    return Given(_checked(owner, passed), own)


def _flat(config: Mapping[Any, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in config.items():
        if not isinstance(name, str):
            raise TypeError(f"expected configuration property name as type unicode string, not {type(name).__name__}")
        if name == "default.topic.config":
            if not isinstance(value, dict):
                raise TypeError("expected default.topic.config to be a dict")
            found.update(_flat(value))
        else:
            found[SYNONYMS.get(name, name)] = value
    return found


def _is_too_short(name: str, value: object) -> bool:
    return name == "session.timeout.ms" and str(value).isdecimal() and int(str(value)) < LEAST_SESSION_MS


def _checked(owner: str, passed: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of the msgtx object. Raise `KafkaException` for a value that it does not take."""
    passed = {name: value for name, value in passed.items() if value != "" or name not in _MAY_BE_EMPTY}
    found = {PASSED_ON[name][1]: _VALUES.get(name, _plain)(value) for name, value in passed.items()}
    (_complete_producer if owner == PRODUCER else _complete_consumer)(found)
    try:
        _resolve(owner, found)
    except ConfigError as error:
        for name, value in passed.items():
            if PASSED_ON[name][1] == error.name:
                told = f'Invalid value "{value}" for configuration property "{name}": {kafka_words(str(error))}'
                raise refused(told) from error
        raise refused(kafka_words(str(error))) from error
    return found


def kafka_words(sentence: str) -> str:
    """Return a sentence of msgtx with Kafka's names of settings and of calls.

    Settings that a program cannot set stay, and what stands in quotes.
    """
    return _OURS.sub(lambda found: _THEIRS.get(found[0], found[0]), sentence)


def _resolve(owner: str, values: Mapping[str, object]) -> None:
    if owner == PRODUCER:
        resolve(ProducerConfig, values)
    else:
        resolve(ConsumerConfig, values)


def _complete_producer(found: dict[str, object]) -> None:
    # A producer is idempotent unless its other settings exclude that, as `enable.idempotence` is off by default there.
    excluded = str(found.get("acks", "all")) not in {"all", "-1"} or _number(found.get("max_in_flight"), 5) > 5
    if "enable_idempotence" not in found and (excluded or str(found.get("retries", 1)) == "0"):
        found["enable_idempotence"] = False


def _complete_consumer(found: dict[str, object]) -> None:
    found.setdefault("assignment", "range")
    # Offsets are committed as the program stored them, not as msgtx returned the records.
    found["enable_auto_commit"] = False
    if "heartbeat_interval_ms" not in found and "session_timeout_ms" in found:
        session = _number(found["session_timeout_ms"], LEAST_SESSION_MS)
        found["heartbeat_interval_ms"] = max(1, min(_HEARTBEAT_MS, session // 3))


def _number(value: object, default: int) -> int:
    """Return a value that is a number. Another one is refused behind this."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() else default


def _plain(value: object) -> object:
    return value


def _timeout(value: object) -> object:
    return LARGEST if str(value) == "0" else value  # librdkafka's word for no limit


def _whole_milliseconds(value: object) -> object:
    try:
        return math.ceil(float(value)) if isinstance(value, int | float | str) else value
    except ValueError:
        return value


def _reset(value: object) -> object:
    words = {"smallest": "earliest", "beginning": "earliest", "largest": "latest", "end": "latest", "error": "none"}
    return words.get(str(value), value)


def _first_strategy(value: object) -> object:
    return str(value).split(",")[0].strip()


_VALUES: Final[Mapping[str, Callable[[object], object]]] = {
    "message.timeout.ms": _timeout,
    "linger.ms": _whole_milliseconds,
    "auto.offset.reset": _reset,
    "partition.assignment.strategy": _first_strategy,
}


_MAY_BE_EMPTY: Final = frozenset({"transactional.id", "group.instance.id"})  # then as if they were not given, as there
_SETTINGS: Final[Mapping[str, str]] = {
    "transaction_max_timeout_ms": "transaction.max.timeout.ms",
    **{ours: name for name, ours in TOPIC_SETTINGS.items()},
    **{ours: name for name, (_, ours) in PASSED_ON.items() if "_" in ours},
}
_THEIRS: Final[Mapping[str, str]] = {
    **_SETTINGS,
    **dict.fromkeys(("call rewind()", "call rewind", "rewind()", "rewind"), "seek back"),
    "send while": "produce while",
    " (entering `with` does it)": "",
}
_OURS: Final = re.compile(
    r"(?<!\w)'(?:[^'\\]|\\.)*'"  # a name or a value of the program: it stays
    r'|(?<!\w)"(?:[^"\\]|\\.)*"'
    rf"|\b(?:{'|'.join(_SETTINGS)})\b"
    r"|\b(?:call )?rewind\b(?:\(\))?|^send while\b| \(entering `with` does it\)"
)


def meaning_of(name: str) -> str:
    """Return what a setting does here, in Markdown, for the reference."""
    if name in PASSED_ON:
        return _MAPPED.format(PASSED_ON[name][1])
    if name in DONE_HERE:
        return DONE_HERE[name]
    for table in (kafka.ELSEWHERE, kafka.MEANINGLESS):
        for names, text in table:
            if any(fnmatch.fnmatchcase(name.replace("_", "."), each) for each in names.replace("_", ".").split()):
                return f"no effect: {text}"
    return "no effect"
