"""Each error of the facade says what Kafka says, and then the cause in msgtx with Kafka's names."""

import re
from collections.abc import Callable
from typing import Any, Final

import pytest

import msgtx
from msgtx.compat.confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from msgtx.compat.confluent_kafka.admin import AdminClient, NewTopic
from msgtx.compat.confluent_kafka.settings import PASSED_ON, kafka_words

WAIT: Final = 60.0
# What no sentence holds: msgtx's names of settings that have one of Kafka's, and calls that the facade does not have.
OURS: Final = re.compile(
    "|".join([
        *(rf"\b{ours}\b" for _, ours in PASSED_ON.values() if "_" in ours),
        r"\bmax_message_bytes\b", r"\btransaction_max_timeout_ms\b", r"\brewind\b", "`with`",
    ])
)  # fmt: skip
SETTINGS: Final[tuple[tuple[type[Any], dict[str, Any], str], ...]] = (
    (Producer, {"linger.ms": -1}, 'property "linger.ms": linger.ms must be 0 or more, not -1'),
    (Producer, {"linger.ms": 5_000, "message.timeout.ms": 4_000}, "linger.ms=5000 must be below message.timeout.ms=4000"),
    (Producer, {"acks": 1, "enable.idempotence": True}, "enable.idempotence=true needs acks=all"),
    (Producer, {"transactional.id": "x", "acks": 1}, "transactional.id needs"),
    (Producer, {"enable.idempotence": True, "max.in.flight": 9}, "max.in.flight.requests.per.connection=9 is set"),
    (Producer, {"max.in.flight": "many"}, 'Invalid value "many" for configuration property "max.in.flight'),
    (Producer, {"message.max.bytes": 5}, '"message.max.bytes" value 5 is outside allowed range'),
    (Producer, {"no.such": 5}, 'No such configuration property: "no.such"'),
    (Consumer, {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 7_000}, "below session.timeout.ms=6000"),
    (Consumer, {"session.timeout.ms": "long"}, 'Invalid value "long" for configuration property "session.timeout.ms"'),
    (Consumer, {"fetch.max.bytes": -1}, 'property "fetch.max.bytes": fetch.max.bytes must be'),
    (Consumer, {"isolation.level": "odd"}, 'Invalid value "odd" for configuration property "isolation.level"'),
    (Consumer, {"auto.offset.reset": "odd"}, 'Invalid value "odd" for configuration property "auto.offset.reset"'),
)


def told(call: Callable[[], object]) -> KafkaError:
    """Return the error that a call raises."""
    with pytest.raises(KafkaException) as refused:
        call()
    error = refused.value.args[0]
    assert isinstance(error, KafkaError)
    assert not OURS.search(error.str()), error.str()
    return error


@pytest.mark.parametrize(("kind", "config", "sentence"), SETTINGS)
def test_a_setting_that_is_refused_has_its_name_of_kafka(kind: type[Any], config: dict[str, Any], sentence: str) -> None:
    error = told(lambda: kind({"group.id": "g", **config}))
    assert error.code() == KafkaError._INVALID_ARG
    assert sentence in error.str()


def test_settings_that_are_right_together_are_taken() -> None:
    Producer({"linger.ms": 200_000, "message.timeout.ms": 300_000}).close()
    Producer({"transactional.id": "", "max.in.flight": 9}).close()
    Consumer({"group.id": "g", "group.instance.id": ""}).close()


def test_each_state_of_a_transaction_is_told_in_words_of_kafka(
    make_producer: Callable[..., Producer], topic: str, unique: Callable[[str], str]
) -> None:
    producer = make_producer(**{"transactional.id": unique("id")})
    state = "Local: Erroneous state: {}: call {} first"
    early = state.format("{} while UNINITIALIZED", "init_transactions")
    assert told(lambda: producer.produce(topic, "a")).str() == early.format("produce")
    assert told(producer.begin_transaction).str() == early.format("begin_transaction")
    producer.init_transactions(WAIT)
    outside = state.format("{} while READY", "begin_transaction")
    assert told(lambda: producer.produce(topic, "a")).str() == outside.format("produce")
    assert told(lambda: producer.commit_transaction(WAIT)).str() == outside.format("commit_transaction")
    long = make_producer(**{"transactional.id": unique("id"), "transaction.timeout.ms": 86_400_000})
    error = told(lambda: long.init_transactions(WAIT))
    assert error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT
    assert error.str().startswith("Broker: Transaction timeout is larger than the maximum value allowed by the broker's")
    assert error.str().endswith("(transaction.max.timeout.ms)")
    assert "transactional.id" in told(make_producer().begin_transaction).str()


def test_a_message_that_is_too_long_for_the_client_or_for_the_topic(
    make_producer: Callable[..., Producer], client: msgtx.Client, topic: str
) -> None:
    reports: list[KafkaError | None] = []

    def note(error: KafkaError | None, _: object) -> None:
        reports.append(error)

    error = told(lambda: make_producer().produce(topic, b"x" * 1_000_000))
    assert (error.code(), error.txn_requires_abort()) == (KafkaError.MSG_SIZE_TOO_LARGE, False)
    small = make_producer(**{"message.max.bytes": 1_000})
    assert told(lambda: small.produce(topic, key=b"k" * 999)).str().endswith("message.max.bytes=1000")
    small.produce(topic, b"x" * 900, on_delivery=note)
    client.topics.alter(topic, max_message_bytes=500)
    large = make_producer(**{"message.max.bytes": 5_000_000})
    assert small.flush(WAIT) == 0
    large.produce(topic, b"x" * 600, on_delivery=note)
    assert large.flush(WAIT) == 0
    _, refused = reports
    assert refused is not None
    assert refused.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert refused.str().startswith("Broker: Message size too large: ")
    assert "(max.message.bytes)" in refused.str()


def test_places_and_topics_that_are_not_there(
    make_producer: Callable[..., Producer], make_consumer: Callable[..., Consumer], topic: str
) -> None:
    producer, consumer = make_producer(), make_consumer(**{"auto.offset.reset": "error"})
    for partition in (7, -2):
        error = told(lambda at=partition: producer.produce(topic, "a", partition=at))  # type: ignore[misc]
        assert error.code() == KafkaError._UNKNOWN_PARTITION
        assert "Local: Unknown partition: " in error.str()
    for wrong in (None, "0", 1.5):
        with pytest.raises(TypeError, match="interpreted as an integer"):
            producer.produce(topic, "a", partition=wrong)  # type: ignore[arg-type]
    for call in (producer.poll, producer.flush, consumer.poll):
        with pytest.raises(TypeError, match="must be real number, not str"):
            call("5")  # type: ignore[operator]
    consumer.assign([TopicPartition(topic, 0)])
    message = consumer.poll(WAIT)
    assert message is not None
    error = message.error()
    assert error is not None
    assert error.code() == KafkaError._AUTO_OFFSET_RESET
    assert "auto.offset.reset" in error.str()
    assert not OURS.search(error.str())
    error = told(lambda: AdminClient({}).create_topics([NewTopic(topic, 1)])[topic].result(WAIT))
    assert error.str().startswith("Broker: ")
    absent = consumer.list_topics(f"{topic}-absent").topics[f"{topic}-absent"]
    assert absent.error is not None
    assert absent.error.str() == "Broker: Unknown topic or partition"


def test_headers_count_as_a_part_of_their_message(make_producer: Callable[..., Producer], topic: str) -> None:
    """The longest values that librdkafka takes beside these headers."""
    small = make_producer(**{"message.max.bytes": 1_000})
    for headers, most in (
        ([], 964),
        ([("a", b"b")], 960),
        ([("a", None)], 961),
        ([("é", b"b")], 959),
        ([("a" * 100, b"b" * 200)], 660),
    ):
        small.produce(topic, b"x" * most, headers=headers)
        error = told(lambda most=most, headers=headers: small.produce(topic, b"x" * (most + 1), headers=headers))  # type: ignore[misc]
        assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE


def test_words_in_quotes_stay_as_they_are() -> None:
    ours = "topic 'rewind' and the broker's \"linger_ms\": call rewind() first; the group's batch_bytes"
    assert kafka_words(ours) == "topic 'rewind' and the broker's \"linger_ms\": seek back first; the group's batch.size"
