"""What the original's `AdminClient` asks of a cluster, answered by `client.admin` and `client.topics`.

The original checks arguments and makes the futures. Here a call is made at once, so its futures are done when it returns.
"""

import functools
import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final, ParamSpec, Self, TypeVar, cast

from confluent_kafka import (
    OFFSET_END,
    OFFSET_INVALID,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Node,
    TopicPartition,
    TopicPartitionInfo,
    Uuid,
)
from confluent_kafka.admin import (
    AlterConfigOpType,
    ClusterMetadata,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ConsumerGroupDescription,
    ConsumerGroupListing,
    DeletedRecords,
    DescribeClusterResult,
    GroupMember,
    GroupMetadata,
    ListConsumerGroupsResult,
    ListOffsetsResultInfo,
    MemberAssignment,
    MemberDescription,
    NewPartitions,
    NewTopic,
    ResourceType,
    TopicDescription,
)
from confluent_kafka.cimpl import OFFSET_SPEC_MAX_TIMESTAMP, _AdminClientImpl

import msgtx
from msgtx import errors
from msgtx.compat.confluent_kafka import metadata, settings
from msgtx.compat.confluent_kafka.clients import ClientOf
from msgtx.compat.confluent_kafka.error import as_kafka, translated
from msgtx.compat.confluent_kafka.settings import TOPIC_SETTINGS
from msgtx.declared.settings import TOPIC
from msgtx.types import Isolation

log = logging.getLogger("msgtx.compat")
Key = TypeVar("Key", bound=Hashable)
P = ParamSpec("P")
# Settings of topics that msgtx does not have: they are accepted for a new topic, and named in the log.
WITHOUT_EFFECT: Final = """
compression.gzip.level compression.lz4.level compression.type compression.zstd.level file.delete.delay.ms
flush.messages flush.ms follower.replication.throttled.replicas index.interval.bytes
leader.replication.throttled.replicas local.retention.bytes local.retention.ms max.compaction.lag.ms
message.downconversion.enable message.format.version message.timestamp.after.max.ms message.timestamp.before.max.ms
message.timestamp.difference.max.ms min.cleanable.dirty.ratio min.compaction.lag.ms min.insync.replicas preallocate
remote.storage.enable segment.bytes segment.index.bytes segment.jitter.ms segment.ms unclean.leader.election.enable
"""
_WITHOUT_EFFECT: Final = frozenset(WITHOUT_EFFECT.split())
STATES: Final[Mapping[str, ConsumerGroupState]] = {
    "Stable": ConsumerGroupState.STABLE,
    "PreparingRebalance": ConsumerGroupState.PREPARING_REBALANCING,
    "Empty": ConsumerGroupState.EMPTY,
    "Dead": ConsumerGroupState.DEAD,
}
NOT_HERE: Final[Mapping[str, str]] = {
    "create_acls": "rights are granted with `msgtx db grant`",
    "describe_acls": "`msgtx db grants` lists the rights of roles",
    "delete_acls": "rights are revoked with `msgtx db revoke`",
    "elect_leaders": "partitions have no leaders",
    "describe_user_scram_credentials": "users are roles of PostgreSQL",
    "alter_user_scram_credentials": "passwords are PostgreSQL's (`alter role`)",
}


def _answered(method: Callable[P, None]) -> Callable[P, None]:
    """Give the error of a whole call to its future, as the original does."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with translated():
                method(*args, **kwargs)
        except KafkaException as error:
            future = next(each for each in (*args, *kwargs.values()) if isinstance(each, Future))
            future.set_exception(error)

    return call


_Original: Any = _AdminClientImpl


class Administration(_Original):  # type: ignore[misc]  # its types stop short of keywords
    """The calls below the original's `AdminClient`."""

    def __init__(self, *config: Any, **keywords: Any) -> None:
        # Without the original's constructor: it would connect to a broker.
        settings.read(settings.PRODUCER, config, keywords)
        self._client: ClientOf | None = ClientOf(self)

    def _connected(self) -> msgtx.Client:
        if self._client is None:
            raise RuntimeError("AdminClient has been closed")
        with translated():
            return self._client.get()

    def __enter__(self) -> Self:
        """Return the client. The end of the block closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect."""
        if self._client is not None:
            self._client.release()
            self._client = None

    def poll(self, timeout: float = -1) -> int:
        """Return 0: there are no callbacks."""
        return 0

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Do nothing: user and password are part of the database's URL."""

    # ── topics ──

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """Return the topics, and the database as the only broker."""
        with translated():
            return metadata.cluster(self._connected(), topic)

    def cluster_id(self, timeout: float = -1) -> str:
        """Return the id of the installation."""
        with translated():
            return metadata.cluster_id(self._connected())

    @_answered
    def create_topics(self, topics: list[NewTopic], future: "Future[Any]", validate_only: bool = False, **_: Any) -> None:
        """Create topics. Replicas mean nothing here."""
        client = self._connected()

        def create(new: NewTopic) -> None:
            given = _topic_settings((new.config or {}).items())
            if validate_only:
                if new.topic in client.topics.list():
                    raise errors.TopicExists(f"topic {new.topic!r} exists")
                return
            client.topics.create(new.topic, 1 if new.num_partitions == -1 else new.num_partitions, **given)

        _answer_each(future, topics, create, name=lambda new: cast(Hashable, new.topic))

    @_answered
    def delete_topics(self, topics: list[str], future: "Future[Any]", **_: Any) -> None:
        """Delete topics."""
        _answer_each(future, topics, self._connected().topics.delete)

    @_answered
    def create_partitions(
        self, topics: list[NewPartitions], future: "Future[Any]", validate_only: bool = False, **_: Any
    ) -> None:
        """Give topics more partitions."""
        client = self._connected()

        def widen(new: NewPartitions) -> None:
            has = client.topics.describe(new.topic).partitions
            if new.new_total_count <= has:
                told = f"Topic currently has {has} partitions, which is not less than the requested {new.new_total_count}"
                raise KafkaException(KafkaError(KafkaError.INVALID_PARTITIONS, told))
            if not validate_only:
                client.topics.alter(new.topic, new.new_total_count)

        _answer_each(future, topics, widen, name=lambda new: cast(Hashable, new.topic))

    @_answered
    def describe_topics(self, topic_names: list[str], future: "Future[Any]", **_: Any) -> None:
        """Describe topics."""
        client = self._connected()
        node = _node(client)

        def describe(name: str) -> TopicDescription:
            count = client.topics.describe(name).partitions
            partitions = [TopicPartitionInfo(number, node, [node], [node]) for number in range(count)]
            return TopicDescription(name, Uuid(0, 0), False, partitions)

        future.set_result(_outcomes(topic_names, describe))

    @_answered
    def describe_cluster(self, future: "Future[Any]", **_: Any) -> None:
        """Describe the database as a cluster."""
        client = self._connected()
        future.set_result(DescribeClusterResult(_node(client), [_node(client)], metadata.cluster_id(client)))

    # ── settings ──

    @_answered
    def describe_configs(self, resources: list[ConfigResource], future: "Future[Any]", **_: Any) -> None:
        """Return the settings of topics."""
        client = self._connected()

        def describe(resource: ConfigResource) -> dict[str, ConfigEntry]:
            found = client.topics.describe(_topic_of(resource)).settings
            defaults = {one.name: one.initial for one in TOPIC}
            entries = {}
            for name, ours in TOPIC_SETTINGS.items():
                is_default = found[ours] == defaults[ours]
                source = ConfigSource.DEFAULT_CONFIG if is_default else ConfigSource.DYNAMIC_TOPIC_CONFIG
                entries[name] = ConfigEntry(name, str(found[ours]), source, is_default=is_default)
            return entries

        _answer_resources(future, resources, describe)

    @_answered
    def alter_configs(
        self, resources: list[ConfigResource], future: "Future[Any]", validate_only: bool = False, **_: Any
    ) -> None:
        """Replace the settings of topics: those that are not given go back to their defaults."""
        client = self._connected()

        def replace(resource: ConfigResource) -> None:
            defaults: dict[str, Any] = {one.name: one.default for one in TOPIC}
            given = _topic_settings(resource.set_config_dict.items())
            _alter(client, resource, {**defaults, **given}, validate_only)

        _answer_resources(future, resources, replace)

    @_answered
    def incremental_alter_configs(
        self, resources: list[ConfigResource], future: "Future[Any]", validate_only: bool = False, **_: Any
    ) -> None:
        """Change settings of topics."""
        client = self._connected()

        def change(resource: ConfigResource) -> None:
            known = client.topics.describe(_topic_of(resource)).settings
            defaults: dict[str, Any] = {one.name: one.default for one in TOPIC}
            changes: dict[str, Any] = {}
            for entry in resource.incremental_configs:
                given = _topic_settings([(entry.name, entry.value or "")])
                for ours, value in given.items():
                    match entry.incremental_operation:
                        case AlterConfigOpType.DELETE:
                            changes[ours] = defaults[ours]
                        case AlterConfigOpType.SET:
                            changes[ours] = value
                        case operation:
                            changes[ours] = _listed(str(changes.get(ours, known[ours])), str(value), operation)
            _alter(client, resource, changes, validate_only)

        _answer_resources(future, resources, change)

    # ── groups ──

    def list_groups(self, group: str | None = None, timeout: float = -1) -> list[GroupMetadata]:
        """Return groups with their members."""
        client = self._connected()
        with translated():
            return [
                _group(client, one.group, one.state)
                for one in client.admin.groups.list()
                if group is None or one.group == group
            ]

    @_answered
    def list_consumer_groups(
        self, future: "Future[Any]", states_int: list[int] | None = None, types_int: list[int] | None = None, **_: Any
    ) -> None:
        """Return groups, of these states and types."""
        client = self._connected()
        with translated():
            found = client.admin.groups.list()
        listed = [
            ConsumerGroupListing(one.group, one.strategy is None, STATES[one.state], ConsumerGroupType.CLASSIC)
            for one in found
            if not states_int or STATES[one.state].value in states_int
            if not types_int or ConsumerGroupType.CLASSIC.value in types_int
        ]
        future.set_result(ListConsumerGroupsResult(valid=listed, errors=[]))

    @_answered
    def describe_consumer_groups(self, group_ids: list[str], future: "Future[Any]", **_: Any) -> None:
        """Describe groups with their members. One that does not exist is dead."""
        client = self._connected()
        node = _node(client)

        def describe(group: str) -> ConsumerGroupDescription:
            found = client.admin.groups.describe(group)
            members = [
                MemberDescription(
                    one.member_id,
                    f"{one.client_host}:{one.client_process}",
                    one.client_host or "",
                    MemberAssignment([TopicPartition(*each) for each in one.owned]),
                    one.group_instance_id,
                    MemberAssignment([TopicPartition(*each) for each in one.target]),
                )
                for one in client.admin.groups.members(group)
                if not one.session_over
            ]
            strategy = found.strategy or ""
            state, kind = STATES[found.state], ConsumerGroupType.CLASSIC
            return ConsumerGroupDescription(group, not strategy, members, strategy, state, node, None, kind)

        future.set_result(_outcomes(group_ids, describe))

    @_answered
    def delete_consumer_groups(self, group_ids: list[str], future: "Future[Any]", **_: Any) -> None:
        """Delete groups without members."""
        future.set_result(_outcomes(group_ids, self._connected().admin.groups.delete))

    @_answered
    def list_consumer_group_offsets(
        self, request: list[ConsumerGroupTopicPartitions], future: "Future[Any]", require_stable: bool = False, **_: Any
    ) -> None:
        """Return the committed offsets of groups."""
        client = self._connected()

        def offsets(asked: ConsumerGroupTopicPartitions) -> ConsumerGroupTopicPartitions:
            known = client.admin.groups.offsets(asked.group_id)
            if asked.topic_partitions is None:
                places = list(known)
            else:
                places = [msgtx.TopicPartition(each.topic, each.partition) for each in asked.topic_partitions]
            found = [(each, known.get(each)) for each in places]
            return ConsumerGroupTopicPartitions(
                asked.group_id, [TopicPartition(*each, OFFSET_INVALID if at is None else at.offset) for each, at in found]
            )

        future.set_result(_outcomes(request, offsets))

    @_answered
    def alter_consumer_group_offsets(
        self, requests: list[ConsumerGroupTopicPartitions], future: "Future[Any]", **_: Any
    ) -> None:
        """Set the committed offsets of groups without members."""
        client = self._connected()

        def reset(asked: ConsumerGroupTopicPartitions) -> ConsumerGroupTopicPartitions:
            wanted = {msgtx.TopicPartition(each.topic, each.partition): each.offset for each in asked.topic_partitions or ()}
            done = client.admin.groups.reset(asked.group_id, wanted)
            return ConsumerGroupTopicPartitions(
                asked.group_id, [TopicPartition(one.topic, one.partition, one.new_offset) for one in done]
            )

        future.set_result(_outcomes(requests, reset))

    # ── partitions ──

    @_answered
    def list_offsets(
        self,
        topic_partitions: list[TopicPartition],
        future: "Future[Any]",
        isolation_level_value: int | None = None,
        **_: Any,
    ) -> None:
        """Return offsets: the ends, or the first one at or after a time, which stands in `offset`."""
        client = self._connected()
        committed = isolation_level_value == IsolationLevel.READ_COMMITTED.value
        isolation = Isolation.READ_COMMITTED if committed else Isolation.READ_UNCOMMITTED

        def look(each: TopicPartition) -> ListOffsetsResultInfo:
            if each.offset == OFFSET_SPEC_MAX_TIMESTAMP:
                raise _unsupported("list_offsets", "msgtx keeps no offset of the largest timestamp")
            place = msgtx.TopicPartition(each.topic, each.partition)
            found = client.admin.partitions.offsets([each.topic], each.offset, isolation).get(place)
            if found is None:
                raise errors.UnknownTopicOrPartition(f"there is no partition {place}")
            offset = OFFSET_END if found.offset is None else found.offset
            return ListOffsetsResultInfo(offset, -1 if found.timestamp is None else found.timestamp, -1)

        future.set_result(dict(zip(topic_partitions, _outcomes(topic_partitions, look), strict=True)))

    @_answered
    def delete_records(self, topic_partition_offsets: list[TopicPartition], future: "Future[Any]", **_: Any) -> None:
        """Delete the records below these offsets; −1: all."""
        client = self._connected()

        def delete(each: TopicPartition) -> DeletedRecords:
            place = msgtx.TopicPartition(each.topic, each.partition)
            return DeletedRecords(client.admin.partitions.delete_records({place: each.offset})[place])

        found = _outcomes(topic_partition_offsets, delete)
        future.set_result(dict(zip(topic_partition_offsets, found, strict=True)))

    # ── what has no meaning here ──

    def create_acls(self, *_: Any, **__: Any) -> None:
        """Raise `KafkaException`."""
        raise _unsupported("create_acls")

    def describe_acls(self, *_: Any, **__: Any) -> None:
        """Raise `KafkaException`."""
        raise _unsupported("describe_acls")

    def delete_acls(self, *_: Any, **__: Any) -> None:
        """Raise `KafkaException`."""
        raise _unsupported("delete_acls")

    def elect_leaders(self, *_: Any, **__: Any) -> None:
        """Raise `KafkaException`."""
        raise _unsupported("elect_leaders")

    def describe_user_scram_credentials(self, *_: Any, **__: Any) -> None:
        """Raise `KafkaException`."""
        raise _unsupported("describe_user_scram_credentials")

    def alter_user_scram_credentials(self, *_: Any, **__: Any) -> None:
        """Raise `KafkaException`."""
        raise _unsupported("alter_user_scram_credentials")


def _unsupported(call: str, why: str | None = None) -> KafkaException:
    return KafkaException(KafkaError(KafkaError._UNSUPPORTED_FEATURE, f"{call}: {why or NOT_HERE[call]}"))


def _outcome(call: Callable[[Any], object], given: Any) -> object:
    """Return what a call returns, or its error as the original has it."""
    try:
        return call(given)
    except errors.MsgtxError as error:
        return as_kafka(error, error.code)
    except KafkaException as error:
        return error.args[0]


def _outcomes(asked: Iterable[Any], call: Callable[[Any], object]) -> list[object]:
    return [_outcome(call, each) for each in asked]


def _answer_each(
    future: "Future[Any]",
    asked: Iterable[Any],
    call: Callable[[Any], object],
    name: Callable[[Any], Hashable] = lambda each: cast(Hashable, each),
) -> None:
    future.set_result({name(each): _outcome(call, each) for each in asked})


def _answer_resources(
    future: "Future[Any]", resources: Iterable[ConfigResource], call: Callable[[ConfigResource], object]
) -> None:
    found = {}
    for each in resources:
        outcome = _outcome(call, each)
        failed = outcome if isinstance(outcome, KafkaError) else None
        found[ConfigResource(each.restype, each.name, error=failed)] = None if failed else outcome
    future.set_result(found)


def _topic_of(resource: ConfigResource) -> str:
    if resource.restype is not ResourceType.TOPIC:
        raise _unsupported("settings", "of a broker or a group, they are `msgtx db settings` and arguments of clients")
    return resource.name


def _topic_settings(given: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return settings of a topic as msgtx has them. Raise `KafkaException` for unknown ones."""
    found: dict[str, Any] = {}
    for name, value in given:
        if name in TOPIC_SETTINGS:
            found[TOPIC_SETTINGS[name]] = value
        elif name in _WITHOUT_EFFECT:
            log.info("no effect on msgtx: %s of a topic (docs/reference/compat.md)", name)
        else:
            raise KafkaException(KafkaError(KafkaError.INVALID_CONFIG, f"Unknown topic config name: {name}"))
    return found


def _listed(value: str, given: str, operation: AlterConfigOpType | None) -> str:
    words = [word for word in value.split(",") if word]
    changed = [word for word in given.split(",") if word]
    if operation is AlterConfigOpType.APPEND:
        return ",".join(sorted({*words, *changed}))  # of which there is one order
    return ",".join(word for word in words if word not in changed)


def _alter(client: msgtx.Client, resource: ConfigResource, changes: dict[str, Any], validate_only: bool) -> None:
    name = _topic_of(resource)
    if validate_only or not changes:
        client.topics.describe(name)
    else:
        client.topics.alter(name, **changes)


def _node(client: msgtx.Client) -> Node:
    broker = metadata.broker(client)
    return Node(broker.id, str(broker.host), broker.port)


def _group(client: msgtx.Client, name: str, state: str) -> GroupMetadata:
    found: Any = GroupMetadata()
    described = client.admin.groups.describe(name)
    found.broker, found.id, found.state = metadata.broker(client), name, state
    found.protocol_type, found.protocol = "consumer", described.strategy or ""
    for one in client.admin.groups.members(name):
        member: Any = GroupMember()
        member.id, member.client_host = one.member_id, one.client_host
        member.client_id, member.metadata, member.assignment = str(one.client_process), b"", b""
        found.members.append(member)
    return cast(GroupMetadata, found)
