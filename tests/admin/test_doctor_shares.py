"""client.admin.doctor() of share groups: what each of their partitions waits for."""

from collections.abc import Callable

import pytest

import msgtx
from msgtx import Acknowledgement, Finding, Level
from msgtx.admin.doctor.findings import Limits
from tests.databases import Connection
from tests.store.steps import unique

pytestmark = pytest.mark.slow


@pytest.fixture
def topic(client: msgtx.Client) -> str:
    """A topic with six records."""
    name = unique("topic")
    client.topics.create(name)
    with client.producer() as producer:
        producer.send_batch(name, [b"x"] * 6).result(30)
    return name


@pytest.fixture
def group(client: msgtx.Client) -> str:
    name = unique("share")
    client.admin.shares.configure(name, {"auto_offset_reset": "earliest"})
    return name


def found(client: msgtx.Client, group: str, limits: Limits | None = None, most: int = 1_000) -> list[Finding]:
    return [one for one in client.admin.doctor(limits=limits, most=most) if one.subject == f"share group {group}"]


def explicit(client: msgtx.Client, topic: str, group: str) -> msgtx.ShareConsumer:
    return client.share_consumer(topic, group=group, acknowledgement_mode="explicit")


def test_who_holds_a_record_is_told_and_for_how_long(client: msgtx.Client, topic: str, group: str) -> None:
    assert found(client, group) == []
    with explicit(client, topic, group) as member:
        records = member.poll(10, max_records=4)
        (one,) = found(client, group)
        assert one.level is Level.INFORMATION
        assert f"{topic}-0 from offset 0 on: 4 acquired, the first by member " in one.text
        assert "whose lock ends in 30 s" in one.text or "whose lock ends in 29 s" in one.text
        assert "2 behind them were never delivered" in one.text
        assert one.data["acquired"] == 4
        for record in records:
            member.acknowledge(record)
        member.commit()
        for record in member.poll(10):
            member.acknowledge(record)
        member.commit()
        assert found(client, group) == []


def test_an_expired_lock_is_told_and_a_group_without_members_is_a_warning(
    client: msgtx.Client, topic: str, group: str, connection: Connection
) -> None:
    client.admin.shares.configure(group, {"record_lock_duration_ms": 1})
    with explicit(client, topic, group) as member:
        member.poll(10)
        (one,) = found(client, group)
        assert "6 to be delivered again (lock expired, the first one delivered 1 times)" in one.text
        assert one.level is Level.INFORMATION
    (one,) = found(client, group)
    assert one.level is Level.WARNING
    assert one.text.endswith("the group has no members")
    assert f"msgtx shares delete {group}" in one.advice


def test_a_group_that_nobody_reads_for_is_told(client: msgtx.Client, topic: str, group: str) -> None:
    with explicit(client, topic, group) as member:
        for record in member.poll(10):
            member.acknowledge(record)
    assert found(client, group) == []
    with client.producer() as producer:
        producer.send(topic, b"more").result(30)
    (one,) = found(client, group)
    assert (one.level, "1 behind them were never delivered; the group has no members" in one.text) == (Level.WARNING, True)


def test_the_transaction_of_an_answer_is_told_down_to_its_session(
    client: msgtx.Client, topic: str, group: str, clock: Callable[..., None]
) -> None:
    identity = unique("id")
    with explicit(client, topic, group) as member, client.producer(transactional_id=identity) as producer:
        for record in member.poll(10, max_records=2):
            member.acknowledge(record)
        producer.begin_transaction()
        producer.send_acknowledgements_to_transaction(member)
        producer.flush()
        producer.send(topic, b"late")
        while (one := found(client, group)[0]).data["pending"] != 2:
            pass
        assert one.level is Level.INFORMATION
        assert "2 answered in a transaction that is not decided: " in one.text
        assert f"{producer.transaction_id} of {identity!r} is Ongoing for " in one.text
        assert "database session " in one.text
        assert f"msgtx transactions abort {producer.transaction_id}" in one.advice
        clock("70 seconds")
        (one,) = found(client, group)
        assert (one.level, "overdue by" in one.text) == (Level.PROBLEM, True)
        clock("0 seconds")
        token = producer.prepare_transaction()
        (one,) = found(client, group)
        assert (one.level, "waits for an outside decision" in one.text) == (Level.INFORMATION, True)
        (one,) = found(client, group, Limits(snapshot_seconds=0.0))
        assert one.level is Level.WARNING
        client.complete(token, commit=True)
        assert all("transaction" not in one.text for one in found(client, group))


def test_a_full_partition_is_a_warning(client: msgtx.Client, topic: str, group: str) -> None:
    client.admin.shares.configure(group, {"max_record_locks": 3})
    with explicit(client, topic, group) as member:
        assert len(member.poll(10)) == 3
        (one,) = found(client, group)
        assert one.level is Level.WARNING
        assert "no more are delivered: 3 (max_record_locks) are in flight" in one.text
        assert f"msgtx shares configure {group} --max-record-locks" in one.advice


def test_members_of_a_share_group_divide_nothing(
    client: msgtx.Client, topic: str, group: str, connection: Connection
) -> None:
    """A share group has no assignment that could be out of date."""
    with client.share_consumer(topic, group=group) as member:
        member.poll(0)
        client.topics.create(f"{topic}-new")
        connection.execute("update msgtx.installation set topics_changed_at = clock_timestamp() - interval '1 day'")
        assert [one for one in client.admin.doctor() if one.subject == f"group {group}"] == []


def test_of_many_the_first_are_told_and_the_others_counted(client: msgtx.Client, topic: str) -> None:
    for _ in range(3):
        name = unique("share")
        client.admin.shares.configure(name, {"auto_offset_reset": "earliest"})
        with explicit(client, topic, name) as member:
            member.poll(10, max_records=1)
    told = client.admin.doctor(most=2)
    assert len([one for one in told if one.subject.startswith("share group ")]) == 2
    (rest,) = [one for one in told if one.subject == "share groups"]
    assert rest.data["more"] >= 1


def test_a_rejected_record_that_waits_for_its_letter_is_told(client: msgtx.Client, topic: str, group: str) -> None:
    with explicit(client, topic, group) as member, client.producer(transactional_id=unique("id")) as producer:
        (record,) = member.poll(10, max_records=1)
        member.acknowledge(record, Acknowledgement.REJECT)
        producer.begin_transaction()
        producer.send_acknowledgements_to_transaction(member)
        client.complete(producer.prepare_transaction(), commit=True)
        (one,) = found(client, group)
        assert "1 rejected, which the next poll of a member writes as dead letters" in one.text
        client.sweep()
        assert found(client, group) == []


def test_what_is_delayed_and_what_waits_for_its_key_is_told(client: msgtx.Client) -> None:
    topic, group = unique("topic"), unique("share")
    client.topics.create(topic)
    client.admin.shares.configure(group, {"auto_offset_reset": "earliest", "ordering": "key"})
    with client.producer() as producer:
        for key in (b"a", b"a", b"b"):
            producer.send(topic, b"x", key=key).result(30)
        producer.send(topic, b"later", delay_ms=600_000).result(30)
    with explicit(client, topic, group) as one, explicit(client, topic, group) as other:
        assert [record.offset for record in one.poll(10, max_records=1)] == [0]
        assert [record.offset for record in other.poll(10)] == [2]
        (told,) = found(client, group)
        assert "2 acquired, the first by member " in told.text
        assert "1 delayed, the first one for another 10 min" in told.text
        assert "1 waiting for an earlier one with their key (ordering=key)" in told.text
        shown = client.admin.shares.describe(group)
        assert (shown.lag, shown.partitions[0].parked) == (4, 2)
        with client.runtime.engine.connection() as connection:
            spans = connection.execute(
                "select first_offset, state, due_at is not null from msgtx.share_spans where group_name = %s order by 1",
                [group],
            ).fetchall()
            counts = connection.execute(
                "select acquired, delayed, waiting from msgtx.share_partitions where group_name = %s", [group]
            ).fetchall()
    assert spans == [(0, "acquired", False), (1, "waiting", False), (2, "acquired", False), (3, "delayed", True)]
    assert counts == [(2, 1, 1)]


def test_what_was_delivered_for_the_last_time_is_not_told_to_be_delivered_again(
    client: msgtx.Client, topic: str, group: str, connection: Connection
) -> None:
    client.admin.shares.configure(group, {"delivery_count_limit": 1})
    with explicit(client, topic, group) as member:
        (record,) = member.poll(10, max_records=1)
        member.acknowledge(record, Acknowledgement.RELEASE)
        member.commit()
        (one,) = found(client, group)
        assert "1 delivered as often as they may be, which the next poll or sweep writes as dead letters" in one.text
        assert "delivered again" not in one.text
        connection.execute("update msgtx.share_group set writes_dead_letters = false")
        (one,) = found(client, group)
        assert one.level is Level.WARNING
        assert "it may not write dead letters" in one.text
        assert f"msgtx shares configure {group} --dead-letter-topic {group}-dead-letters" in one.advice
        client.admin.shares.configure(group, {})
        client.sweep()
        assert client.admin.shares.describe(group).dead_letters == 1
        assert not any("dead letters" in one.text for one in found(client, group))
