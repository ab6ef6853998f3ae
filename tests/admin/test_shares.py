"""client.admin.shares: settings, states, resets and deletion of share groups (internals: shares)."""

import time
from collections.abc import Collection, Mapping
from datetime import timedelta

import pytest

import msgtx
from msgtx import TopicPartition, errors
from msgtx.admin import shares
from msgtx.database.connection import RawConnection
from msgtx.store.append.append import PARTITIONS_AT_ONCE
from msgtx.store.shares.shares import ShareState, describe_share_groups, reset_share_offsets
from tests.databases import Connection
from tests.refusals import refuses
from tests.store.steps import unique

pytestmark = pytest.mark.slow


@pytest.fixture
def topic(client: msgtx.Client) -> str:
    """A topic with five records in the first of its two partitions."""
    name = unique("topic")
    client.topics.create(name, partitions=2)
    with client.producer() as producer:
        producer.send_batch(name, [b"%d" % number for number in range(5)], partition=0).result(30)
    return name


@pytest.fixture
def group(client: msgtx.Client) -> str:
    name = unique("share")
    client.admin.shares.configure(name, {"auto_offset_reset": "earliest"})
    return name


def member(client: msgtx.Client, topic: str, group: str) -> msgtx.ShareConsumer:
    return client.share_consumer(topic, group=group, acknowledgement_mode="explicit")


def values(records: list[msgtx.ShareRecord]) -> list[bytes | None]:
    return [record.value for record in records]


def test_durations_of_a_group_have_units(client: msgtx.Client, group: str) -> None:
    client.admin.shares.configure(group, {"record_lock_duration_ms": "5min", "release_backoff_ms": timedelta(seconds=2)})
    client.admin.shares.configure(group, {"auto_offset_reset": "by_duration:1h30m"})
    found = client.admin.shares.describe(group).settings
    assert (found["record_lock_duration_ms"], found["release_backoff_ms"]) == (300_000, 2_000)
    assert found["auto_offset_reset"] == "by_duration:PT5400S"


@pytest.mark.parametrize(
    ("given", "kept"),
    [("14d", "PT1209600S"), ("123456.789s", "PT123456.789S"), ("1ms", "PT0.001S"), ("5200w", "PT3144960000S")],
)
def test_how_far_back_a_group_begins_is_kept_exactly(client: msgtx.Client, group: str, given: str, kept: str) -> None:
    client.admin.shares.configure(group, {"auto_offset_reset": f"by_duration:{given}"})
    assert client.admin.shares.describe(group).settings["auto_offset_reset"] == f"by_duration:{kept}"


def test_a_name_that_is_nearly_right_is_told_and_no_other_group_is_looked_at(
    client: msgtx.Client, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their lag may take minutes to count."""
    looked_at: list[Collection[str] | None] = []

    def describe(connection: RawConnection, groups: Collection[str] | None) -> list[ShareState]:
        looked_at.append(groups)
        return describe_share_groups(connection, groups)

    monkeypatch.setattr(shares, "describe_share_groups", describe)
    with pytest.raises(errors.GroupNotFound, match=f"did you mean '{group}'"):
        client.admin.shares.describe(f"{group}x")
    assert looked_at == [[f"{group}x"]]
    with pytest.raises(errors.GroupNotFound, match=f"did you mean '{group}'"):
        client.admin.shares.delete(f"{group}x")
    assert looked_at == [[f"{group}x"]], "to delete one, its partitions are not described"


def test_settings_come_back_and_the_rest_keeps_its_defaults(client: msgtx.Client, group: str) -> None:
    client.admin.shares.configure(group, {"delivery_count_limit": 7, "dead_letter_topic": "graves"})
    assert client.admin.shares.describe(group).settings == {
        "auto_offset_reset": "earliest",
        "isolation": "read_committed",
        "record_lock_duration_ms": 30_000,
        "delivery_count_limit": 7,
        "max_record_locks": 2_000,
        "dead_letter_topic": "graves",
        "ordering": "none",
        "release_backoff_ms": 0,
        "release_backoff_max_ms": 60_000,
    }
    client.admin.shares.configure(group, {"dead_letter_topic": None})
    assert client.admin.shares.describe(group).settings["dead_letter_topic"] == f"{group}-dead-letters"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"locks": 1}, "unknown share group setting 'locks'; known are auto_offset_reset"),
        ({"auto_offset_reset": "none"}, "latest, earliest or by_duration"),
        ({"isolation": "serializable"}, "read_committed or read_uncommitted"),
        ({"delivery_count_limit": 0}, "a number from 1"),
        ({"max_record_locks": "many"}, "a number from 1"),
        ({"record_lock_duration_ms": None}, "record_lock_duration_ms reads like 10s"),
        ({"record_lock_duration_ms": "0s"}, "a number from 1"),
        ({"auto_offset_reset": "by_duration:1 hour"}, "by_duration reads like"),
        *(
            ({"auto_offset_reset": f"by_duration:{text}"}, "latest, earliest or by_duration")
            for text in (
                "P",
                "PT",
                "PTT",
                "P1.5.5D",
                "PDDD",
                "PT1H.",
                "P1DT",
                "PT1S1H",
                "P1M",
                "P99999999999D",
                "10000000000w",
            )
        ),
        *(({"dead_letter_topic": name}, "no name of a topic") for name in ("a b", "", ".", "..", "x" * 250)),
        ({"ordering": "value"}, "none or key"),
        ({"release_backoff_ms": -1}, "a number from 0"),
        ({"release_backoff_max_ms": "long"}, "release_backoff_max_ms reads like"),
    ],
)
def test_what_is_no_setting_is_refused(client: msgtx.Client, group: str, settings: dict[str, object], text: str) -> None:
    """I16."""
    before = client.admin.shares.describe(group)
    with pytest.raises(errors.ConfigError, match=text):
        client.admin.shares.configure(group, {**settings, "delivery_count_limit": settings.get("delivery_count_limit", 9)})
    assert client.admin.shares.describe(group) == before


def test_a_compacted_topic_takes_no_dead_letters(client: msgtx.Client, group: str) -> None:
    name = unique("compacted")
    client.topics.create(name, cleanup_policy="compact")
    with refuses(errors.ConfigError, group=group):
        client.admin.shares.configure(group, {"dead_letter_topic": name})


def test_a_consumer_group_is_not_configured(client: msgtx.Client, topic: str) -> None:
    name = unique("group")
    with client.consumer(topic, group=name) as consumer:
        consumer.poll(0)
    with refuses(errors.ConfigError, group=name):
        client.admin.shares.configure(name, {})


def test_where_a_group_begins_is_settled_before_it_has_members(client: msgtx.Client, topic: str, group: str) -> None:
    with member(client, topic, group) as one:
        one.poll(0)
        for settings in ({"auto_offset_reset": "latest"}, {"isolation": "read_uncommitted"}):
            with refuses(errors.GroupNotEmpty, group=group):
                client.admin.shares.configure(group, settings)
        client.admin.shares.configure(group, {"max_record_locks": 10})


def test_a_group_begins_at_a_time(client: msgtx.Client) -> None:
    topic, group = unique("topic"), unique("share")
    client.topics.create(topic)
    with client.producer() as producer:
        now = int(time.time() * 1000)
        for age_ms in (7_200_000, 60_000, 0):
            producer.send(topic, b"%d" % age_ms, partition=0, timestamp=now - age_ms)
            producer.flush()
    client.admin.shares.configure(group, {"auto_offset_reset": "by_duration:PT1H"})
    with member(client, topic, group) as one:
        assert values(one.poll(5)) == [b"60000", b"0"]


def test_a_group_is_described_with_what_is_in_flight(client: msgtx.Client, topic: str, group: str) -> None:
    with member(client, topic, group) as one, client.producer(transactional_id=unique("id")) as producer:
        first, second, third = one.poll(5, max_records=3)
        one.acknowledge(first)
        one.commit()
        one.acknowledge(second, msgtx.Acknowledgement.RELEASE)
        one.commit()
        one.acknowledge(third)
        producer.begin_transaction()
        producer.send_acknowledgements_to_transaction(one)
        token = producer.prepare_transaction()
        one.poll(5, max_records=1)
        found = client.admin.shares.describe(group)
        assert (found.group, found.members, found.lag, found.dead_letters) == (group, 1, 4, 0)
        (shown,) = [each for each in found.partitions if each.partition == 0]
        assert shown == msgtx.SharePartition(topic, 0, 1, 3, 0, 1, 1, 0, 4, 0, shown.lag_ms)
        assert shown.lag_ms == found.lag_ms is not None
        assert group in [each.group for each in client.admin.shares.list()]
        client.complete(token, commit=True)


@pytest.mark.parametrize(("isolation", "lag"), [("read_committed", 0), ("read_uncommitted", 3)])
def test_a_groups_lag_is_what_it_may_read(client: msgtx.Client, topic: str, group: str, isolation: str, lag: int) -> None:
    """In the second partition: each one's end is its own."""
    client.admin.shares.configure(group, {"isolation": isolation})
    with member(client, topic, group) as one:
        for record in one.poll(5):
            one.acknowledge(record)
        one.commit()
    with client.producer(transactional_id=unique("id")) as producer:
        producer.begin_transaction()
        for _ in range(3):
            producer.send(topic, b"open", partition=1)
        producer.flush()
        found = client.admin.shares.describe(group)
        assert [each.lag for each in found.partitions] == [0, lag]
        producer.abort_transaction()
    with client.producer() as producer:
        producer.send(topic, b"more", partition=0).result()
    assert [each.lag for each in client.admin.shares.describe(group).partitions] == [1, lag]


def test_a_group_goes_on_where_it_is_put(client: msgtx.Client, topic: str, group: str) -> None:
    with member(client, topic, group) as one:
        one.poll(5, max_records=2)
        with pytest.raises(errors.GroupNotEmpty):
            client.admin.shares.reset_offsets(group, "earliest", topics=[topic])
    for target, expected in (
        ("earliest", [b"0", b"1", b"2", b"3", b"4"]),
        ("latest", []),
        ({TopicPartition(topic, 0): 3}, [b"3", b"4"]),
        ({TopicPartition(topic, 0): 99}, []),
    ):
        topics = None if isinstance(target, dict) else [topic]
        planned = client.admin.shares.reset_offsets(group, target, topics=topics, dry_run=True)  # type: ignore[arg-type]
        assert client.admin.shares.reset_offsets(group, target, topics=topics) == planned  # type: ignore[arg-type]
        with member(client, topic, group) as one:
            records = one.poll(0)
            assert values(records) == expected
            assert {record.delivery_count for record in records} <= {1}


def test_resets_that_cannot_be_are_refused(client: msgtx.Client, topic: str, group: str) -> None:
    """I16."""
    shares = client.admin.shares
    with pytest.raises(errors.GroupNotFound):
        shares.reset_offsets("nobody", "earliest", topics=[topic])
    with pytest.raises(errors.UnknownTopicOrPartition):
        shares.reset_offsets(group, "earliest", topics=["nothing"])
    with refuses(errors.UnknownTopicOrPartition, topic=topic, partition=2):
        shares.reset_offsets(group, {TopicPartition(topic, 2): 0})
    with refuses(errors.InvalidRequest, name="target"):
        shares.reset_offsets(group, "soon", topics=[topic])  # type: ignore[arg-type]
    with refuses(errors.ConfigError, group=group):
        client.admin.groups.reset(group, "earliest", topics=[topic])


def test_a_group_is_deleted_with_its_states(client: msgtx.Client, topic: str, group: str, connection: Connection) -> None:
    with member(client, topic, group) as one:
        one.poll(5)
        with pytest.raises(errors.GroupNotEmpty):
            client.admin.shares.delete(group)
    client.admin.shares.delete(group)
    with pytest.raises(errors.GroupNotFound):
        client.admin.shares.delete(group)
    assert connection.execute(
        "select count(*) from msgtx.share_state where group_id not in (select group_id from msgtx.share_group)"
    ).fetchone() == (0,)
    with client.consumer(topic, group=group) as consumer:  # the name is free
        consumer.poll(0)


def test_one_name_is_either_kind_of_group(client: msgtx.Client, topic: str, group: str) -> None:
    """I16: offsets under a share group's name would be nobody's."""
    place = {TopicPartition(topic, 0): 1}
    with client.consumer(group=group, enable_auto_commit=False) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        with refuses(errors.ConfigError, reason="share group"):
            consumer.commit(place)
    with (
        client.producer(transactional_id=unique("id")) as producer,
        refuses(errors.ConfigError, reason="share group"),
        producer.transaction() as tx,
    ):
        tx.send_offsets(place, group)
    with refuses(errors.GroupNotFound, group=group):
        client.admin.groups.delete(group)
    assert client.admin.groups.describe(group).partitions == []
    assert group not in [each.group for each in client.admin.groups.list()]
    assert client.admin.shares.describe(group).group == group


def test_many_partitions_are_reset_in_steps(client: msgtx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a lock for each of its partitions; together they would not find room in the lock table."""
    name, size = unique("many"), 2 * PARTITIONS_AT_ONCE + 1
    client.topics.create(name, partitions=size)
    client.admin.shares.configure(name, {"auto_offset_reset": "earliest"})
    with client.share_consumer(name, group=name) as consumer:
        assert consumer.poll(0) == []
        client.producer().send(name, b"1", partition=size - 1).result()
        assert len(consumer.poll(5.0)) == 1
    steps: list[int] = []

    def reset(connection: RawConnection, group: str, offsets: Mapping[int, int]) -> None:
        steps.append(len(offsets))
        reset_share_offsets(connection, group, offsets)

    monkeypatch.setattr(shares, "reset_share_offsets", reset)
    assert [one.new_offset for one in client.admin.shares.reset_offsets(name, "latest")] == [0] * (size - 1) + [1]
    assert steps == [PARTITIONS_AT_ONCE, PARTITIONS_AT_ONCE, 1]
    with client.share_consumer(name, group=name) as consumer:
        assert consumer.poll(0.5) == []
