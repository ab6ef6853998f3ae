"""After a failover or a restore: clients learn of it, no id is issued twice (internals: operations#after-a-failover)."""

from collections.abc import Callable, Iterator

import pytest

import msgtx
from msgtx import TopicPartition, errors
from msgtx.admin.failover import after_failover
from msgtx.database.pool import Engine
from tests.client.steps import begun, store
from tests.databases import PATIENCE_SECONDS, connect, wait_until


@pytest.fixture
def url(make_database: Callable[..., str]) -> str:
    """A database of its own, with a topic: the incarnation belongs to all of it."""
    made = make_database()
    with msgtx.connect(made) as client:
        client.topics.create("t", partitions=1)
    return made


@pytest.fixture
def administrator(url: str) -> Iterator[Engine]:
    with Engine(url) as engine:
        yield engine


def test_every_client_made_before_is_told_and_a_new_one_goes_on(url: str, administrator: Engine) -> None:
    with msgtx.connect(url) as old:
        transactional, _ = begun(old, "a")
        plain = old.producer()
        transactional.send("t", b"open")
        transactional.flush()
        assert plain.send("t", b"1").result(PATIENCE_SECONDS).offset == 1
        consumer = old.consumer("t", auto_offset_reset="earliest", isolation="read_uncommitted")
        assert len(consumer.poll(PATIENCE_SECONDS)) == 2
        report = after_failover(administrator)
        assert report.producers_fenced == 2
        assert report.sessions_ended > 0
        for call in (
            transactional.commit_transaction,
            transactional.begin_transaction,
            lambda: plain.send("t", b"2").result(PATIENCE_SECONDS),
            lambda: consumer.poll(PATIENCE_SECONDS),
            old.topics.list,
        ):
            with pytest.raises(errors.IncarnationChanged):
                call()
    with msgtx.connect(url) as new, new.producer(transactional_id="a") as producer:
        with producer.transaction():
            producer.send("t", b"new")
        with new.consumer("t", auto_offset_reset="earliest") as reader:
            assert [record.value for record in reader.poll(PATIENCE_SECONDS)] == [b"1", b"new"]


def test_members_that_cannot_come_back_hold_no_partitions(url: str, administrator: Engine) -> None:
    """A new member need not wait until their sessions are over."""
    with msgtx.connect(url) as old:
        store(old, "t", b"1")
        old.admin.shares.configure("s", {"auto_offset_reset": "earliest"})
        gone = old.consumer("t", group="g", auto_offset_reset="earliest")
        assert len(gone.poll(PATIENCE_SECONDS)) == 1
        share = old.share_consumer("t", group="s")
        assert len(share.poll(PATIENCE_SECONDS)) == 1
        assert after_failover(administrator).members_removed == 2
        with msgtx.connect(url) as new, new.consumer("t", group="g", auto_offset_reset="earliest") as member:
            assert len(member.poll(5.0)) == 1
            assert new.admin.groups.describe("g").members == 1
    assert after_failover(administrator).members_removed == 0


def test_sessions_that_nobody_could_end_are_fenced_and_say_why(url: str, administrator: Engine) -> None:
    """Behind a pooler connections survive: a refusal makes a client check the incarnation."""
    with msgtx.connect(url) as old, old.producer() as plain, old.producer(transactional_id="a") as transactional:
        plain.send("t", b"1").result(PATIENCE_SECONDS)
        transactional.begin_transaction()
        transactional.send("t", b"2")
        transactional.flush()
        fence_without_ending(url)
        with pytest.raises(errors.IncarnationChanged):
            plain.send("t", b"3").result(PATIENCE_SECONDS)
        with pytest.raises(errors.IncarnationChanged):
            transactional.commit_transaction()


def fence_without_ending(url: str) -> None:
    """Change the incarnation, and let all sessions live."""
    with connect(url) as connection:
        connection.execute("select msgtx.change_incarnation()")
        connection.execute("select msgtx.fence_everybody(), msgtx.fence_plain_producers()")


def test_acknowledgements_of_a_transaction_that_was_fenced_say_why(url: str, administrator: Engine) -> None:
    with msgtx.connect(url) as old:
        old.admin.shares.configure("g", {"auto_offset_reset": "earliest"})
        store(old, "t", b"1")
        (producer, transaction), member = begun(old, "a"), old.share_consumer("t", group="g")
        assert len(member.poll(PATIENCE_SECONDS)) == 1
        producer.send("t", b"2")
        producer.flush()  # from here on acknowledgements are handed over at once
        fence_without_ending(url)
        transaction.send_acknowledgements(member)
        wait_until(lambda: producer._state.has_failed, "they are refused")
        with pytest.raises(errors.IncarnationChanged):
            producer.send("t", b"3")


def test_ids_skip_ahead_and_epochs_rise(url: str, administrator: Engine) -> None:
    with msgtx.connect(url) as client:
        with client.producer(transactional_id="a") as producer, producer.transaction():
            producer.send("t", b"1")
        described = client.admin.transactions.describe("a")
    first, second = after_failover(administrator), after_failover(administrator)
    assert first.incarnation != second.incarnation
    with msgtx.connect(url) as client:
        assert client.admin.transactions.describe("a").producer_epoch == described.producer_epoch + 2
        assert begun(client, "b")[1].id.producer_id > described.producer_id + 2_000_000_000
        client.topics.create("later", partitions=1)
        assert client.admin.partitions.describe(TopicPartition("later", 0)).log_end_offset == 0
    with connect(url) as connection:
        ids = connection.execute("select min(partition_id), max(partition_id) from msgtx.partition").fetchone()
        assert ids[1] > ids[0] + 2_000_000
        epochs = connection.execute("select min(coordinator_epoch) from msgtx.coordinator_shard").fetchone()
        assert epochs == (2_000_000,)


def test_what_is_prepared_for_an_outside_decision_stays(url: str, administrator: Engine) -> None:
    with msgtx.connect(url) as client:
        producer, transaction = begun(client, "a")
        producer.send("t", b"1")
        producer.flush()
        name = transaction.id
        with connect(url) as connection:
            connection.execute(
                """insert into msgtx.transaction_seal (producer_id, producer_epoch, transaction_number, kind, sealed_at,
                       partitions, first_offsets, last_offsets)
                   values (%s, %s, %s, 'external', msgtx.clock(), '{}', '{}', '{}')""",
                name,
            )
        after_failover(administrator)
    with msgtx.connect(url) as client:
        assert client.transaction_outcome(name) == "OPEN"


def test_what_a_member_of_a_share_group_held_is_delivered_again(url: str, administrator: Engine) -> None:
    with msgtx.connect(url) as old:
        old.admin.shares.configure("g", {"auto_offset_reset": "earliest", "record_lock_duration_ms": 1000})
        store(old, "t", b"done", b"held")
        member = old.share_consumer("t", group="g", acknowledgement_mode="explicit")
        done, held = member.poll(PATIENCE_SECONDS)
        member.acknowledge(done)
        member.commit()
        after_failover(administrator)
        member.acknowledge(held)
        with pytest.raises(errors.IncarnationChanged):
            member.commit()
        with pytest.raises(errors.IncarnationChanged):
            member.poll(PATIENCE_SECONDS)
    with msgtx.connect(url) as new, new.share_consumer("t", group="g") as member:
        assert [(record.value, record.delivery_count) for record in member.poll(PATIENCE_SECONDS)] == [(b"held", 2)]
