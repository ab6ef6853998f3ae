"""Where the facade differs from confluent-kafka: one row for each call. `make generate` writes docs/reference/compat.md."""

from typing import Final

# Calls that are not named here do as there. `tests/kafka/test_twins.py` compares both.
CALLS: Final[tuple[tuple[str, str], ...]] = (
    (
        "Producer.produce",
        "waits for a moment while 32 MiB are on their way, and raises `BufferError` after a minute; in a transaction that"
        " fails the transaction. A topic that does not exist is created with one partition, as a broker does by default."
        " A negative timestamp raises `_INVALID_ARG`, a header without a name `TypeError`",
    ),
    ("Producer.poll", "calls delivery callbacks in the order of `produce`, also across partitions"),
    ("Producer.flush", "calls the callbacks at its end"),
    ("Producer.purge", "takes nothing back: the messages' error is `_PURGE_INFLIGHT`, and they may be stored"),
    ("Producer.close", "sends what waits; also when the garbage collector finds a producer"),
    (
        "Producer.init_transactions",
        "the transaction's timeout is at most `transaction_max_timeout_ms` of the installation (15 minutes, as there); the"
        " error for a longer one is not `fatal()`",
    ),
    (
        "Consumer.subscribe",
        "joins the group in the next `poll` or `consume`. Topics that are created later are found within seconds",
    ),
    (
        "Consumer.assign",
        "outside a callback of a subscribed consumer it only moves positions: the group gives it its partitions",
    ),
    ("Consumer.commit", "with `on_commit` it waits for the outcome, also if `asynchronous`"),
    ("Consumer.get_watermark_offsets", "asks the database, also if `cached`; the end is that of committed messages"),
    ("Consumer.list_topics", "names one broker: the database's server"),
    ("Consumer.consumer_group_metadata", "returns an object instead of bytes"),
    ("Consumer.set_sasl_credentials", "does nothing: user and password are in the database's URL"),
    ("AdminClient.create_topics", "takes all settings of topics that Kafka has, and names those without effect in the log"),
    ("AdminClient.describe_configs", "of topics; of a broker or a group the error is `_UNSUPPORTED_FEATURE`"),
    ("AdminClient.list_offsets", "not `OffsetSpec.max_timestamp()`: `_UNSUPPORTED_FEATURE`"),
    ("AdminClient.describe_topics", "`topic_id` is 0"),
    (
        "AdminClient.create_acls",
        "`KafkaException` with `_UNSUPPORTED_FEATURE`, as `describe_acls`, `delete_acls`, `elect_leaders`,"
        " `describe_user_scram_credentials` and `alter_user_scram_credentials`: rights are granted with `msgtx db grant`",
    ),
    ("Message.timestamp", "always `TIMESTAMP_CREATE_TIME`"),
    ("Message.leader_epoch", "None"),
    (
        "ShareConsumer.poll",
        "raises `_UNSUPPORTED_FEATURE` when it is made: use `client.share_consumer` ([share"
        " groups](../how-to/share-groups.md))",
    ),
)
GENERAL: Final[tuple[str, ...]] = (
    "Objects connect to the database with their first call that needs it; all of a process share one pool of connections.",
    "The futures of `AdminClient` are done when its call returns.",
    "A sentence of an error is Kafka's for its code, and then the cause in msgtx with Kafka's names; its code, `fatal()`, "
    "`retriable()` and `txn_requires_abort()` are as there.",
    "A partition's offsets have no gaps for markers of transactions.",
    "Rebalances move only the partitions that have to move. With `range` and `roundrobin` (the default), callbacks are "
    "nevertheless told of all partitions, as there.",
    "While the database is away, `poll` returns None and `error_cb` gets `_ALL_BROKERS_DOWN`.",
    "`produce` looks a topic up in the database the first time. While the database is away, it waits for a minute and "
    "raises `_ALL_BROKERS_DOWN`.",
    "`message.timeout.ms` is two minutes unless it is given.",
    "Bounds of settings are msgtx's: `heartbeat.interval.ms` must be below `session.timeout.ms`, and "
    "`auto.offset.reset=none` is taken.",
    "`TOPIC_AUTHORIZATION_FAILED` is `fatal()` for a producer: make a new one when the right is granted.",
    "A poll that comes later than `max.poll.interval.ms` calls `on_lost` and joins the group again. It returns no "
    "`_MAX_POLL_EXCEEDED`.",
    "With `range` and `roundrobin`, a program without `on_assign` and `on_revoke` reads on where it was after a rebalance. "
    "With one of them, it begins at the committed offsets, as there.",
    "A call from another thread waits until a look of `poll` has ended, at most half a second, or a callback. After 30 "
    "seconds it raises `_TIMED_OUT`.",
    "`AsyncSerializingProducer` and `AsyncDeserializingConsumer` are there if the installed confluent-kafka has them.",
)
