"""The facade's AdminClient."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import pytest

from msgtx.compat.confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from msgtx.compat.confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)
from msgtx.database.opening import VARIABLE

WAIT = 60.0


@pytest.fixture
def admin() -> AdminClient:
    """An administrator."""
    return AdminClient({"bootstrap.servers": "nowhere:9092", "socket.timeout.ms": 10})


def code(future: "Future[Any]") -> int:
    """Return the code of a future's error."""
    error = future.exception(WAIT)
    assert isinstance(error, KafkaException), future
    return int(error.args[0].code())


def only(futures: "Mapping[Any, Future[Any]]") -> "Future[Any]":
    """Return the only one."""
    (future,) = futures.values()
    return future


def test_topics_are_created_widened_described_and_deleted(admin: AdminClient, unique: Callable[[str], str]) -> None:
    name = unique("made")
    new = NewTopic(name, 2, 3, config={"retention.ms": "5000", "segment.ms": "7"})
    assert only(admin.create_topics([new], validate_only=True)).result(WAIT) is None
    assert name not in admin.list_topics().topics
    assert only(admin.create_topics([new])).result(WAIT) is None
    assert code(only(admin.create_topics([new]))) == KafkaError.TOPIC_ALREADY_EXISTS
    assert code(only(admin.create_topics([NewTopic("no/name", 1)]))) == KafkaError.TOPIC_EXCEPTION
    assert code(only(admin.create_topics([NewTopic(name, 1, config={"odd": "1"})]))) == KafkaError.INVALID_CONFIG
    assert only(admin.create_partitions([NewPartitions(name, 3)])).result(WAIT) is None
    assert code(only(admin.create_partitions([NewPartitions(name, 3)]))) == KafkaError.INVALID_PARTITIONS
    assert sorted(admin.list_topics(name).topics[name].partitions) == [0, 1, 2]
    described = admin.describe_topics(TopicCollection([name, "absent"]))
    assert len(described[name].result(WAIT).partitions) == 3
    assert code(described["absent"]) == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert only(admin.delete_topics([name])).result(WAIT) is None
    assert code(only(admin.delete_topics([name]))) == KafkaError.UNKNOWN_TOPIC_OR_PART
    error = admin.list_topics(name).topics[name].error
    assert error is not None
    assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_settings_of_a_topic_are_described_and_altered(admin: AdminClient, topic: str) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def settings() -> dict[str, str]:
        found = only(admin.describe_configs([resource])).result(WAIT)
        return {name: entry.value for name, entry in found.items() if not entry.is_default}

    def change(name: str, value: str, operation: AlterConfigOpType) -> "Future[Any]":
        entry = ConfigEntry(name, value, incremental_operation=operation)
        return only(
            admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])])
        )

    assert settings() == {}
    change("retention.ms", "5000", AlterConfigOpType.SET).result(WAIT)
    change("cleanup.policy", "compact", AlterConfigOpType.APPEND).result(WAIT)
    assert settings() == {"retention.ms": "5000", "cleanup.policy": "compact,delete"}
    change("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT).result(WAIT)
    change("retention.ms", "", AlterConfigOpType.DELETE).result(WAIT)
    assert settings() == {"cleanup.policy": "compact"}
    assert code(change("retention.ms", "much", AlterConfigOpType.SET)) == KafkaError.INVALID_CONFIG
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        replaced = admin.alter_configs([ConfigResource(ResourceType.TOPIC, topic, set_config={"max.message.bytes": "10"})])
    only(replaced).result(WAIT)
    assert settings() == {"max.message.bytes": "10"}
    assert code(only(admin.describe_configs([ConfigResource("broker", "1")]))) == KafkaError._UNSUPPORTED_FEATURE


def test_groups_and_their_offsets(
    admin: AdminClient,
    make_producer: Callable[..., Producer],
    make_consumer: Callable[..., Consumer],
    topic: str,
    unique: Callable[[str], str],
) -> None:
    group = unique("seen")
    producer, consumer = make_producer(), make_consumer(**{"group.id": group})
    for value in "abc":
        producer.produce(topic, value)
    producer.flush(WAIT)
    consumer.subscribe([topic])
    assert consumer.poll(WAIT) is not None
    described = only(admin.describe_consumer_groups([group])).result(WAIT)
    assert described.state == ConsumerGroupState.STABLE
    assert described.members[0].assignment.topic_partitions == [TopicPartition(topic, 0)]
    assert [each.id for each in admin.list_groups(group)] == [group]
    assert code(only(admin.delete_consumer_groups([group]))) == KafkaError.NON_EMPTY_GROUP
    consumer.close()
    listed = admin.list_consumer_groups(states={ConsumerGroupState.EMPTY}).result(WAIT)
    assert group in [each.group_id for each in listed.valid]

    def offsets() -> list[int]:
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
        return [each.offset for each in only(admin.list_consumer_group_offsets([asked])).result(WAIT).topic_partitions]

    assert offsets() == [1]
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 2)])
    only(admin.alter_consumer_group_offsets([wanted])).result(WAIT)
    assert offsets() == [2]
    only(admin.delete_consumer_groups([group])).result(WAIT)
    assert code(only(admin.delete_consumer_groups([group]))) == KafkaError.GROUP_ID_NOT_FOUND
    assert only(admin.describe_consumer_groups([group])).result(WAIT).state == ConsumerGroupState.DEAD


def test_ends_and_deleted_records(admin: AdminClient, make_producer: Callable[..., Producer], topic: str) -> None:
    producer, place = make_producer(), TopicPartition(topic, 0)
    for number, value in enumerate("abc"):
        producer.produce(topic, value, timestamp=1_000 + number)
    producer.flush(WAIT)

    def look(spec: OffsetSpec) -> int:
        asked = admin.list_offsets({place: spec}, isolation_level=IsolationLevel.READ_COMMITTED)
        return int(only(asked).result(WAIT).offset)

    assert [look(OffsetSpec.earliest()), look(OffsetSpec.for_timestamp(1_001)), look(OffsetSpec.latest())] == [0, 1, 3]
    assert look(OffsetSpec.for_timestamp(9_999)) == -1
    assert only(admin.delete_records([TopicPartition(topic, 0, 2)])).result(WAIT).low_watermark == 2
    assert look(OffsetSpec.earliest()) == 2
    assert code(only(admin.delete_records([TopicPartition(topic, 0, 9)]))) == KafkaError.OFFSET_OUT_OF_RANGE
    assert code(only(admin.list_offsets({place: OffsetSpec.max_timestamp()}))) == KafkaError._UNSUPPORTED_FEATURE


def test_what_has_no_meaning_here_is_refused_with_a_sentence(admin: AdminClient) -> None:
    binding = AclBinding(
        ResourceType.TOPIC,
        "t",
        ResourcePatternType.LITERAL,
        "User:a",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    with pytest.raises(KafkaException, match="msgtx db grant") as refused:
        admin.create_acls([binding])
    assert refused.value.args[0].code() == KafkaError._UNSUPPORTED_FEATURE
    with pytest.raises(KafkaException, match="roles of PostgreSQL"):
        admin.describe_user_scram_credentials(["ada"])
    assert admin.describe_cluster().result(WAIT).controller.id == 1


def test_an_error_of_the_whole_call_is_that_of_each_future(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "postgresql://ada:secret@127.0.0.1:1/nowhere")
    away = AdminClient({})
    for futures in (
        away.create_topics([NewTopic("a", 1), NewTopic("b", 1)]),
        away.delete_topics(["a"]),
        away.describe_consumer_groups(["a"]),
        away.describe_configs([ConfigResource(ResourceType.TOPIC, "a")]),
        {"cluster": away.describe_cluster(), "groups": away.list_consumer_groups()},
    ):
        for future in futures.values():
            assert code(future) == KafkaError._ALL_BROKERS_DOWN
            assert "secret" not in str(future.exception())
