"""Settings of Kafka's clients that have another name here, or none. `make generate` writes the tables of docs/porting.md."""

import fnmatch
from typing import Final

Table = tuple[tuple[str, str], ...]  # names, with `*` for any ending, and what stands beside them on the page

ELSEWHERE: Final[Table] = (
    (
        "bootstrap.servers metadata.broker.list",
        "the database's URL: `msgtx.connect(url)`",
    ),
    (
        "request.required.acks",
        "`acks`: `0`, `1`, `all`",
    ),
    (
        "message.send.max.retries",
        "`retries`",
    ),
    (
        "socket.timeout.ms",
        "`request_timeout_ms`",
    ),
    (
        "queue.buffering.max.ms",
        "`linger_ms`",
    ),
    (
        "max.batch.size",
        "`batch_bytes`",
    ),
    (
        "batch.num.messages",
        "`batch_records`",
    ),
    (
        "queue.buffering.max.kbytes queue.buffering.max.messages",
        "`buffer_bytes`",
    ),
    (
        "partitioner",
        "`partitioner`: `crc32` is librdkafka's `consistent_random`, `murmur2` is its `murmur2_random` and the default "
        "of kafka-python, aiokafka and Java",
    ),
    (
        "message.max.bytes max.request.size",
        "`max_message_bytes` of the topic",
    ),
    (
        "key.serializer value.serializer",
        "`client.producer(key_serializer=…, value_serializer=…)`",
    ),
    (
        "key.deserializer value.deserializer",
        "`client.consumer(key_deserializer=…, value_deserializer=…)`",
    ),
    (
        "dr.cb dr.msg.cb",
        "`producer.send(…, on_delivery=…)`",
    ),
    (
        "auto.commit.enable",
        "`enable_auto_commit`",
    ),
    (
        "rebalance.timeout.ms",
        "`max_poll_interval_ms`",
    ),
    (
        "queued.max.messages.kbytes",
        "`fetch_max_bytes`",
    ),
    (
        "fetch.wait.max.ms",
        "`fetch_max_wait_ms`",
    ),
    (
        "consumer.timeout.ms",
        "`consumer.poll(timeout)`",
    ),
    (
        "rebalance.cb",
        "`consumer.subscribe(…, on_assign=…, on_revoke=…, on_lost=…)`",
    ),
    (
        "offset.commit.cb default.offset.commit.callback",
        "none: `consumer.commit()` raises; a failure of `commit(wait=False)` is logged",
    ),
    (
        "compression.type compression.codec compression.level",
        "PostgreSQL compresses rows: `default_toast_compression`, a setting of the server",
    ),
    (
        "security.protocol ssl.* https.ca.* enable.ssl.certificate.verification",
        "`sslmode`, `sslrootcert`, `sslcert`, `sslkey` in the database's URL",
    ),
    (
        "sasl.* enable.sasl.oauthbearer.unsecure.jwt oauthbearer.token.refresh.cb",
        "user and password in the URL, and whatever PostgreSQL's `pg_hba.conf` asks for",
    ),
    (
        "socket.connection.setup.timeout.ms bootstrap.timeout.ms",
        "`connect_timeout` in the URL, in seconds",
    ),
    (
        "socket.keepalive.enable",
        "`keepalives` in the URL",
    ),
    (
        "broker.address.family client.dns.lookup",
        "`hostaddr` in the URL",
    ),
)

MEANINGLESS: Final[Table] = (
    (
        "fetch.min.bytes",
        "a fetch returns as soon as there is a record; for larger fetches, raise the producers' `linger_ms`",
    ),
    (
        "max.partition.fetch.bytes fetch.message.max.bytes queued.min.messages fetch.queue.backoff.ms "
        "fetch.error.backoff.ms consume.callback.max.messages consume.cb enable.incremental.fetch.sessions",
        "one fetch asks for all partitions, and `fetch_max_bytes` bounds their sum",
    ),
    (
        "client.id client.rack",
        "PostgreSQL shows a session by its role and `application_name`, which the URL can set; there are no racks",
    ),
    (
        "metadata.max.age.ms metadata.recovery.* topic.metadata.* topic.blacklist allow.auto.create.topics "
        "exclude.internal.topics coordinator.query.interval.ms",
        "clients read the topics from the database, and topics are not created by use",
    ),
    (
        "api.version api.version.* broker.version.fallback builtin.features internal.termination.signal enable.random.seed",
        "they concern Kafka's protocol, or librdkafka itself",
    ),
    (
        "reconnect.backoff.* connections.max.idle.ms broker.address.ttl socket.* receive.message.max.bytes "
        "message.copy.max.bytes receive.buffer.bytes send.buffer.bytes selector proxy.url socks5.proxy kafka.client",
        "they concern the connection to a broker",
    ),
    (
        "retry.backoff.max.ms queue.buffering.backpressure.threshold queuing.strategy sticky.partitioning.linger.ms "
        "partitioner.cb msg.order.cmp delivery.report.only.error produce.offset.report enable.gapless.guarantee",
        "they say how librdkafka queues; to choose the partition yourself, use `producer.send(…, partition=…)`",
    ),
    (
        "check.crcs",
        "PostgreSQL has page checksums",
    ),
    (
        "enable.partition.eof",
        "`poll` returns an empty list at the end; `consumer.lag()` says how far away the end is",
    ),
    (
        "enable.auto.offset.store offset.store.*",
        "a position is behind what `poll` has returned; to commit others, use `consumer.commit(offsets)`",
    ),
    (
        "group.protocol group.protocol.type group.remote.assignor",
        "there is one protocol",
    ),
    (
        "statistics.interval.ms stats.cb metric.* metrics.* enable.metrics.push interceptors plugin.library.paths",
        "see [monitoring](operations/monitoring.md)",
    ),
    (
        "debug log.* log_level log_cb error.cb throttle.cb background_event_cb enabled_events closesocket_cb "
        "connect_cb open_cb resolve_cb opaque default.topic.conf",
        "logs go to Python's `logging`, under `msgtx`; errors are raised",
    ),
)


def told_of(name: str) -> str | None:
    """Return a sentence about a setting of Kafka's clients, with dots or underscores. None: it is not known."""
    for table, form in ((ELSEWHERE, "{} is not a setting here; instead: {}"), (MEANINGLESS, "leave {} out: {}")):
        for names, text in table:
            patterns = names.replace(".", "_").split()
            if any(fnmatch.fnmatchcase(name.replace(".", "_"), pattern) for pattern in patterns):
                return form.format(name, text.replace("`", ""))
    return None
