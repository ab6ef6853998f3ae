"""Reads on a real standby, a switchover to it, and a failover that loses what was acknowledged (operations/backup)."""

import contextlib
from collections.abc import Callable, Iterator

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

import msgtx
from msgtx import TopicPartition, errors, orm
from msgtx.database import embedded
from msgtx.database.calls import query
from msgtx.store.fetch.holders import expire_holders
from msgtx.store.groups.groups import NO_OFFSETS
from msgtx.store.operator.server import snapshot_holders
from msgtx.store.transactions.seal import seal, take_seat
from tests.cli.program import Ended
from tests.databases import Connection, connect, wait_until
from tests.refusals import refuses
from tests.replication import Pair
from tests.store.steps import Writer, look, named_topic, new_partition, plain, unique

pytestmark = pytest.mark.slow

Shell = Callable[..., Ended]
VIEWS = (
    "topics", "partitions", "records", "record_batches", "committed_records", "committed_records_now", "committed_batches",
    "transactions", "consumer_groups", "group_offsets", "share_groups", "share_partitions", "transaction_markers",
)  # fmt: skip


@pytest.fixture(scope="module")
def url(pair: Pair) -> str:
    return pair.primary.create_database()


@pytest.fixture
def primary(url: str) -> Iterator[Connection]:
    with connect(url) as connection:
        yield connection


@pytest.fixture
def standby(pair: Pair, url: str) -> Iterator[Connection]:
    pair.catch_up()
    with connect(pair.on_standby(url)) as connection:
        yield connection


# ── reading ──


def test_a_standby_shows_what_the_primary_shows(pair: Pair, url: str, standby: Connection) -> None:
    """I5: committed, aborted, open and sealed transactions, offsets of groups."""
    with msgtx.connect(url) as client, client.producer(transactional_id=unique("id")) as producer:
        client.topics.create("shown", partitions=2)
        with client.consumer("shown", group="readers", auto_offset_reset="earliest") as consumer:
            with producer.transaction():
                for partition in (0, 1):
                    producer.send("shown", b"committed", partition=partition)
            with contextlib.suppress(ZeroDivisionError), producer.transaction():
                producer.send("shown", b"aborted", partition=0)
                producer.flush()
                raise ZeroDivisionError
            assert len(consumer.poll(10.0)) > 0
            consumer.commit()
        producer.begin_transaction()
        producer.send("shown", b"open", partition=1)
        producer.flush()
        pair.catch_up()
        with connect(url) as primary:
            for view in VIEWS:
                asked = f"select v::text from msgtx.{view} v order by 1"
                there = primary.execute(asked).fetchall()
                assert standby.execute(asked).fetchall() == there, view
        producer.abort_transaction()


def test_a_consumer_without_a_group_reads_from_a_standby(pair: Pair, url: str) -> None:
    """It gets each record once, up to the end that the standby knows; it is not woken, and asks."""
    with msgtx.connect(url) as client:
        client.topics.create("read")
        with client.producer() as producer:
            producer.send("read", b"1").result(10.0)
            pair.catch_up()
            with (
                msgtx.connect(pair.on_standby(url)) as reader,
                reader.consumer("read", auto_offset_reset="earliest", enable_auto_commit=False) as consumer,
            ):
                assert [record.value for record in consumer.poll(10.0)] == [b"1"]
                assert consumer.end_offsets() == {TopicPartition("read", 0): 1}
                producer.send("read", b"2").result(10.0)
                assert [record.value for record in consumer.poll(10.0)] == [b"2"]
                assert consumer.poll(0.2) == []


def test_programs_that_consume_with_sql_are_refused_by_a_standby(
    url: str, primary: Connection, standby: Connection, pair: Pair
) -> None:
    """They write how far a group has come; LISTEN is not possible there, either."""
    asked = (named_topic(primary)[0], unique("group"))
    pair.catch_up()
    for verb in ("take", "receive"):
        with refuses(errors.ConfigError, reason="read-only"):
            query(standby, f"select * from msgtx.{verb}(%s, %s)", *asked)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="during recovery"):
        standby.execute("select msgtx.listen(%s, %s)", asked)


def test_what_is_published_on_a_standby_fails_as_an_own_statement_does(pair: Pair, url: str, primary: Connection) -> None:
    """I16: by 25006 services know that they have to look for the primary."""
    topic = named_topic(primary)[0]
    pair.catch_up()
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(pair.on_standby(url)))
    with Session(engine) as session:
        orm.publish(session, topic, b"x")
        with pytest.raises(sqlalchemy.exc.InternalError, match=f":{pair.standby_port} is a standby") as told:
            session.commit()
    engine.dispose()
    assert getattr(told.value.orig, "sqlstate", None) == "25006"
    with connect(pair.on_standby(url)) as session, pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="standby"):
        session.execute("select msgtx.publish(%s, 'x')", [topic])


@pytest.mark.parametrize("transactional_id", [None, "id"])
def test_a_new_producer_on_a_standby_is_refused_at_once(pair: Pair, url: str, transactional_id: str | None) -> None:
    """I16: the URL leads to a standby; one that has worked waits for the primary."""
    topic = unique("t")
    with msgtx.connect(url) as client:
        client.topics.create(topic)
        pair.catch_up()
    with (
        msgtx.connect(pair.on_standby(url)) as client,
        refuses(errors.ConfigError, reason="standby") as refused,
        client.producer(transactional_id=transactional_id) as producer,
    ):
        producer.send(topic, b"x").result(5.0)
    assert f":{pair.standby_port} is a standby" in str(refused.value)


def test_a_standby_does_not_take_a_seat_for_left_that_is_taken_on_its_primary(
    pair: Pair, url: str, primary: Connection, standby: Connection
) -> None:
    """I12: locks are not replicated. Readers of the standby wait; who may decide is asked on the primary."""
    partition, writer = new_partition(primary), Writer(primary)
    writer.send(partition, b"sealed")
    with connect(url) as session, session.transaction(force_rollback=True):
        sealing = seal(
            primary,
            writer.name,
            "session",
            tails=writer.tails,
            offsets=NO_OFFSETS,
            timeout_ms=60_000,
            seat=take_seat(session),
        )
        assert sealing.error is None
        pair.catch_up()
        for server in (primary, standby):
            found = look(server, partition)
            assert (found.blocked_by is not None, found.blocked_overdue) == (True, False)
    assert look(primary, partition).blocked_overdue
    assert not look(standby, partition).blocked_overdue


def test_what_is_overdue_is_told_on_a_standby_and_ended_by_the_primary(
    pair: Pair, primary: Connection, standby: Connection
) -> None:
    """I12."""
    partition, writer = new_partition(primary), Writer(primary, timeout_ms=1_000)
    writer.send(partition, b"overdue")
    plain(primary, partition, b"behind")
    pair.catch_up()
    wait_until(lambda: look(standby, partition).blocked_overdue, "its timeout has passed")
    (holder,) = expire_holders(standby, [partition])
    assert not holder.expired
    assert look(primary, partition).blocked_by is not None
    assert expire_holders(primary, [partition])[0].expired
    pair.catch_up()
    assert look(standby, partition).last_stable_offset == 2


def test_a_standby_that_holds_rows_back_is_told_once(pair: Pair, primary: Connection) -> None:
    """`hot_standby_feedback`: what its readers may still need is not cleaned; without it a standby pins nothing."""

    def standbys() -> list[str]:
        (sender,) = primary.execute("select pid from pg_stat_get_wal_senders()").fetchone() or (None,)
        return [each.kind for each in snapshot_holders(primary) if each.pid == sender]

    assert standbys() == []
    with pair.feeding_back():
        wait_until(lambda: standbys() == ["standby"], "the standby tells what it needs")


def test_a_standby_that_is_behind_is_told_in_bytes_and_about_how_many_records(
    pair: Pair, url: str, primary: Connection
) -> None:
    """A role without pg_read_all_stats learns that there is one, and nothing of it."""
    partition = new_partition(primary)
    written = 50
    with msgtx.connect(url) as client, pair.primary.administrator() as administrator:
        (hidden,) = client.admin.database().standbys
        assert (hidden.state, hidden.behind_bytes, hidden.behind_records) == (None, None, None)
        administrator.execute(f"grant pg_read_all_stats to {pair.primary.role}")
        try:
            with pair.replay_paused():
                for _ in range(written):
                    plain(primary, partition, *[b"x" * 100] * 20)
                (found,) = client.admin.database().standbys
                assert found.state == "streaming"
                assert (found.behind_bytes or 0) > written * 20  # its values are compressed
                # Estimated by the mean size of all rows in the database, which other tests have written as well.
                assert written * 2 <= (found.behind_records or 0) < written * 200
        finally:
            administrator.execute(f"revoke pg_read_all_stats from {pair.primary.role}")


def test_a_slot_of_a_standby_is_measured_by_what_that_has_replayed(pair: Pair, standby: Connection) -> None:
    with psycopg.connect(embedded.superuser_url(pair.home / "standby"), autocommit=True) as superuser:
        superuser.execute("select pg_create_physical_replication_slot('own', true)")
        try:
            (found,) = [each for each in snapshot_holders(standby) if each.name == "own"]
            assert (found.retained or 0) >= 0
        finally:
            superuser.execute("select pg_drop_replication_slot('own')")


# ── writing ──


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics", "create", "never"),
        ("topics", "delete", "refused", "--yes"),
        ("groups", "reset-offsets", "never", "--topic", "refused", "--to-earliest", "--yes"),
        ("sweep",),
        ("sweep", "--dry-run"),
        ("db", "after-failover", "--yes"),
    ],
    ids=" ".join,
)
def test_what_writes_says_where_the_primary_is_found(pair: Pair, url: str, shell: Shell, arguments: tuple[str, ...]) -> None:
    with msgtx.connect(url) as client:
        client.topics.create("refused", if_not_exists=True)
    pair.catch_up()
    ended = shell(pair.on_standby(url), *arguments, stdin=b"x\n")
    assert ended.code == 3
    assert "the server is a standby" in ended.err
    assert "target_session_attrs=read-write finds it" in ended.err


def test_a_doctor_and_verify_look_at_a_standby(pair: Pair, url: str, shell: Shell) -> None:
    pair.catch_up()
    for command in ("doctor", "verify"):
        ended = shell(pair.on_standby(url), command)
        assert ended.code == 0, ended
    assert b"this is a standby" in shell(pair.on_standby(url), "doctor").out


# ── another primary ──


def contents(client: msgtx.Client, topic: str) -> list[bytes]:
    """Return the values of a topic of one partition, up to its end."""
    found: list[bytes] = []
    with client.consumer(topic, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        while records := consumer.poll(1.0):
            found += [record.value or b"" for record in records]
    return found


def test_clients_go_on_at_the_new_primary_after_a_switchover(own_pair: Pair) -> None:
    """I1, I3, I6: nothing that was acknowledged is lost, nothing doubled, with the URL that the docs give."""
    url = own_pair.on_either(own_pair.primary.create_database())
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
    with msgtx.connect(url) as client:
        for name in ("in", "out"):
            client.topics.create(name)
        with (
            client.producer() as plain_one,
            client.producer(transactional_id="id") as producer,
            client.consumer("in", group="g", auto_offset_reset="earliest", enable_auto_commit=False) as consumer,
        ):
            for number in range(20):
                if number == 10:
                    own_pair.switch_over()
                plain_one.send("in", b"%d" % number).result(30.0)
                with Session(engine) as session:
                    orm.publish(session, "out", b"of a session %d" % number)
                    with contextlib.suppress(sqlalchemy.exc.OperationalError):  # one is connected to the old primary
                        session.commit()
                (record,) = wait_until(lambda: consumer.poll(1.0), "the record comes")
                with producer.transaction() as transaction:
                    producer.send("out", record.value)
                    transaction.send_offsets(consumer)
        found = contents(client, "out")
    engine.dispose()
    assert [value for value in found if b"session" not in value] == [b"%d" % number for number in range(20)]
    sent = [value for value in found if b"session" in value]
    assert len(sent) == len(set(sent)) >= 19


def test_after_a_failover_that_loses_records_clients_are_told(own_pair: Pair, shell: Shell) -> None:
    """What was acknowledged is gone. No offset that a client has seen means another record to it."""
    url = own_pair.on_either(own_pair.primary.create_database())
    with msgtx.connect(url) as client:
        client.topics.create("lost")
        with client.producer(transactional_id="id") as producer:
            with producer.transaction():
                producer.send("lost", b"kept")
            own_pair.catch_up()
            own_pair.fall_behind()
            with producer.transaction():
                producer.send("lost", b"lost")
            own_pair.fail_over()
            found = shell(url, "doctor")
            assert b"the server was promoted or restored" in found.out
            assert shell(url, "db", "after-failover", "--yes").code == 0
            with pytest.raises(errors.IncarnationChanged), producer.transaction():
                producer.send("lost", b"after")
        with pytest.raises(errors.IncarnationChanged):
            client.topics.list()
    with msgtx.connect(url) as client, client.producer(transactional_id="id") as producer:
        with producer.transaction():
            producer.send("lost", b"new")
        assert contents(client, "lost") == [b"kept", b"new"]
    assert b"promoted" not in shell(url, "doctor").out
