"""Reading from a standby with `read_url`: the primary keeps the offsets, and judges what the standby does not show."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import make_url, text
from sqlalchemy.orm import Session

import msgtx
from msgtx import TopicPartition, aio, errors, metrics
from msgtx.admin.shares import describe_now
from msgtx.consumer import awaited, fetcher
from msgtx.database.connection import RawConnection, until
from msgtx.database.pool import Engine
from msgtx.database.standby import BEHIND, LACK_SECONDS, OLD_TIMELINE, TAKES_WRITES, Followed, StandbyEngine
from msgtx.store.fetch.fetch import FetchedPartition
from msgtx.store.operator.installation import change_incarnation
from msgtx.types import Finding, Level, RecordOutcome
from tests.cli.program import Ended
from tests.client.steps import SECONDS, begun, store, values
from tests.databases import connect, wait_until
from tests.hooks import Hook
from tests.refusals import refuses
from tests.replication import Pair, replicated
from tests.roles import open_roles
from tests.store.steps import unique

pytestmark = pytest.mark.slow

Shell = Callable[..., Ended]
UNREACHABLE = "postgresql://nobody@127.0.0.1:1/nothing"


@pytest.fixture(scope="module")
def url(pair: Pair) -> str:
    made = pair.primary.create_database()
    pair.catch_up()
    return made


@pytest.fixture
def client(pair: Pair, url: str) -> Iterator[msgtx.Client]:
    with msgtx.connect(url, read_url=pair.on_standby(url)) as client:
        yield client


@pytest.fixture
def topic(client: msgtx.Client, pair: Pair) -> str:
    """A topic that the standby shows, with one record."""
    name = unique("topic")
    client.topics.create(name)
    store(client, name, b"0")
    pair.catch_up()
    return name


def hook_of_standby(client: msgtx.Client) -> Hook:
    standby = client.runtime.engine.standby
    assert standby is not None
    return Hook(standby)


def reader(client: msgtx.Client, *topics: str, **settings: object) -> msgtx.Consumer:
    given = {"auto_offset_reset": "earliest", "enable_auto_commit": False, **settings}
    return client.consumer(*topics, **given)  # type: ignore[arg-type]


def polled(consumer: msgtx.Consumer, count: int) -> list[bytes | None]:
    """Return the values of so many records."""
    found: list[bytes | None] = []
    while len(found) < count:
        records = consumer.poll(SECONDS)
        assert records, f"{found} and no more"
        found += values(records)
    return found


# ── consumers ──


def test_a_member_of_a_group_reads_from_the_standby_and_commits_on_the_primary(client: msgtx.Client, topic: str) -> None:
    """I5, I11: no record comes from the primary, and the standby is asked for nothing else."""
    on_primary, on_standby = Hook(client.runtime.engine), hook_of_standby(client)
    with reader(client, topic, group=unique("group")) as consumer:
        assert polled(consumer, 1) == [b"0"]
        store(client, topic, b"1")
        assert polled(consumer, 1) == [b"1"]
        consumer.commit()
        group = consumer.config.group
    assert group is not None
    assert client.admin.groups.offsets(group) == {TopicPartition(topic, 0): msgtx.OffsetAndMetadata(2)}
    assert {moment for moment in on_standby.seen if moment.startswith("before")} == {"before fetch_batches"}
    assert on_primary.seen["before commit_offsets"] == 1


def test_a_transaction_takes_its_input_from_the_standby(client: msgtx.Client, topic: str, pair: Pair) -> None:
    """I10: offsets and outputs are decided on the primary."""
    target, group = unique("target"), unique("group")
    client.topics.create(target)
    store(client, topic, *(b"%d" % number for number in range(1, 50)))
    stop = threading.Event()

    def transform(record: msgtx.Record) -> bytes | None:
        if record.value == b"49":
            stop.set()
        return record.value

    settings = {"group": group, "transactional_id": unique("id"), "auto_offset_reset": "earliest"}
    report = client.process(topic, to=target, transform=transform, stop=stop, **settings)  # type: ignore[call-overload]
    assert (report.records_in, report.records_out) == (50, 50)
    pair.catch_up()
    found = values(client.read(client.snapshot([target])))
    assert found == [b"%d" % number for number in range(50)]


def test_a_record_that_the_standby_does_not_show_is_waited_for(
    pair: Pair, client: msgtx.Client, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Woken by the primary, the consumer knows that there is more. The log says once that the standby is behind."""
    monkeypatch.setattr(awaited, "BEHIND_SECONDS", 0.0)
    monkeypatch.setattr(awaited, "ASK_SECONDS", 0.0)
    registry = CollectorRegistry()
    metrics.watch(client, registry=registry)
    labels = {"group": "", "topic": topic}
    with reader(client, topic, fetch_max_wait_ms=60_000) as consumer, caplog.at_level(logging.INFO, "msgtx.consumer"):
        assert polled(consumer, 1) == [b"0"]
        wait_until(lambda: consumer.poll(0.01) or consumer._waiter.notified, "notifications arrive")
        with pair.replay_paused() as resume:
            store(client, topic, b"1", b"2")
            behind = lambda: registry.get_sample_value("msgtx_consumer_standby_lag_records", labels)  # noqa: E731
            wait_until(lambda: consumer.poll(0.01) or behind() == 2, "the end of the primary is known")
            assert registry.get_sample_value("msgtx_consumer_lag_records", labels) == 2
            resume()
            assert polled(consumer, 2) == [b"1", b"2"]
            lacking = consumer._fetcher.awaited
            assert lacking is not None
            wait_until(lambda: consumer.poll(0.01) or not lacking.partition_ids, "a later wake-up is answered, too")
            assert behind() == 0
    told = [record.message for record in caplog.records if "standby" in record.message]
    assert ["has been behind" in told[0], told[1:]] == [True, ["the standby of read_url shows what the primary had"]]


@pytest.mark.parametrize("paused", [False, True])
def test_a_wake_up_is_not_lost_in_a_look_at_everything(pair: Pair, client: msgtx.Client, topic: str, paused: bool) -> None:
    """Nor while its partition is paused. Else the record waits on the standby for the next look, a minute later."""
    with reader(client, topic, fetch_max_wait_ms=60_000) as consumer:
        assert polled(consumer, 1) == [b"0"]
        wait_until(lambda: consumer.poll(0.01) or consumer._waiter.notified, "notifications arrive")
        lacking = consumer._fetcher.awaited
        assert lacking is not None
        wait_until(lambda: consumer.poll(0.01) or not lacking.partition_ids, "it awaits nothing")
        if paused:
            consumer.pause(consumer.assignment())
        with pair.replay_paused() as resume:
            store(client, topic, b"1")
            wait_until(lambda: consumer._waiter._named, "it is woken")
            assert consumer.poll(0) == []
            if paused:
                consumer.resume(consumer.assignment())
                assert consumer.poll(0) == []
            resume()
            assert polled(consumer, 1) == [b"1"]


def test_a_reader_that_joins_waits_for_what_was_stored_before(pair: Pair, client: msgtx.Client, topic: str) -> None:
    """The wake-up came before it read the partition."""
    with reader(client, topic) as other:
        wait_until(lambda: other._waiter.notified, "notifications arrive")
    with pair.replay_paused() as resume:
        store(client, topic, b"1")
        with reader(client, topic, fetch_max_wait_ms=60_000) as consumer:
            assert polled(consumer, 1) == [b"0"]
            assert consumer.poll(0) == []
            resume()
            assert polled(consumer, 1) == [b"1"]


def test_who_read_a_backlog_has_not_waited_for_the_standby(caplog: pytest.LogCaptureFixture) -> None:
    """The wait begins where the standby has no more to show."""
    found = awaited.Awaited()
    found.woken([1])
    found._partitions[1].since -= 40
    found.asked(1, 8)
    found.tell()
    assert [record.message for record in caplog.records if record.name == "msgtx.consumer"] == []


@pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
def test_a_position_that_the_standby_does_not_show_is_never_reset(
    pair: Pair, client: msgtx.Client, topic: str, reset: str
) -> None:
    """I5: the group has read further than the standby shows; a reset would return records twice, or none."""
    group = unique("group")
    partition = TopicPartition(topic, 0)
    with pair.replay_paused() as resume:
        store(client, topic, b"1", b"2")
        with reader(client, topic, group=group) as consumer:
            consumer.commit({partition: 2})
        with reader(client, topic, group=group, auto_offset_reset=reset) as consumer:
            wait_until(lambda: consumer.poll(0.1) or consumer.assignment(), "it has joined")
            assert consumer.poll(0) == []
            assert consumer.position(partition) == 2
            resume()
            assert polled(consumer, 1) == [b"2"]


def test_the_end_is_that_of_the_primary(pair: Pair, client: msgtx.Client, topic: str) -> None:
    """A reset to the latest offset skips what the standby does not show yet, and nothing later."""
    with pair.replay_paused() as resume:
        store(client, topic, b"skipped")
        with reader(client, topic, auto_offset_reset="latest") as consumer:
            assert consumer.poll(0) == []
            assert consumer.position(TopicPartition(topic, 0)) == 2
            store(client, topic, b"read")
            resume()
            assert polled(consumer, 1) == [b"read"]


def test_the_primary_says_that_an_offset_is_out_of_range(client: msgtx.Client, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    with reader(client, topic, auto_offset_reset="none") as consumer:
        consumer.seek(partition, 1_000)
        with refuses(errors.OffsetOutOfRange, topic=topic, offset=1_000):
            consumer.poll(SECONDS)
        consumer.seek(partition, 0)
        assert polled(consumer, 1) == [b"0"]


def test_the_primary_says_that_records_are_lost(client: msgtx.Client, topic: str, url: str, pair: Pair) -> None:
    """I5: what a crash takes back and stores anew is another record. A standby has it only after the primary."""
    with reader(client, topic) as consumer:
        assert polled(consumer, 1) == [b"0"]
        with connect(url) as connection:
            connection.execute(
                "delete from msgtx.record_batch b using msgtx.partitions p"
                " where p.partition_id = b.partition_id and p.topic = %s",
                [topic],
            )
        pair.catch_up()
        with refuses(errors.LogTruncated, topic=topic, offset=1):
            consumer.poll(SECONDS)


def test_the_primary_says_so_before_the_standby_shows_it(client: msgtx.Client, topic: str, url: str, pair: Pair) -> None:
    """Asked for its end, it says whether it holds the position."""
    with reader(client, topic) as consumer:
        assert polled(consumer, 1) == [b"0"]
        with pair.replay_paused():
            with connect(url) as connection:
                connection.execute(
                    "delete from msgtx.record_batch b using msgtx.partitions p"
                    " where p.partition_id = b.partition_id and p.topic = %s",
                    [topic],
                )
            store(client, topic, b"another")
            with refuses(errors.LogTruncated, topic=topic, offset=1):
                consumer.poll(SECONDS)


def test_a_topic_that_the_standby_does_not_show_is_waited_for(pair: Pair, client: msgtx.Client) -> None:
    name = unique("topic")
    with pair.replay_paused() as resume:
        client.topics.create(name)
        store(client, name, b"new")
        with reader(client, name) as consumer:
            assert consumer.poll(0.5) == []
            resume()
            assert polled(consumer, 1) == [b"new"]
    client.topics.delete(name)
    pair.catch_up()
    with refuses(errors.UnknownTopicOrPartition, topic=name):
        client.snapshot([name])


@contextlib.contextmanager
def shown_early(pair: Pair, url: str, topic: str) -> Iterator[Callable[[], None]]:
    """Have the standby show record `1` before the primary does, whose COMMIT waits for another standby until the call."""
    with msgtx.connect(url) as other, other.producer(enable_idempotence=False) as producer, pair.nothing_confirmed():
        sent = producer.send(topic, b"1")

        def confirm() -> None:
            pair.confirm_by("")
            sent.result(SECONDS)

        try:
            yield confirm
        finally:
            confirm()


def looked_for(consumer: msgtx.Consumer) -> list[bytes | None]:
    """Return the values of records that nobody was woken for."""
    found: list[bytes | None] = []
    wait_until(lambda: consumer._fetcher.woken(None) or found.extend(values(consumer.poll(0.1))) or found, "it is there")
    return found


def test_what_the_standby_shows_before_the_primary_is_not_lost(
    pair: Pair, url: str, client: msgtx.Client, topic: str
) -> None:
    """I5: a COMMIT is flushed and replayed before the primary shows it."""
    with reader(client, topic) as consumer:
        assert polled(consumer, 1) == [b"0"]
        with shown_early(pair, url, topic) as confirm:
            assert looked_for(consumer) == [b"1"]
            consumer._fetcher.woken(None)
            wait_until(lambda: consumer.poll(0.01) or consumer._fetcher._lacked, "the primary was asked, and lacks it")
            confirm()
            store(client, topic, b"2")
            assert polled(consumer, 1) == [b"2"]


def forget_asked(consumer: msgtx.Consumer) -> None:
    """Forget what the primary has answered: it is asked by the next fetch that finds less."""
    lacking = consumer._fetcher.awaited
    assert lacking is not None
    lacking.keep([])
    consumer._fetcher._lacked.clear()


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_what_another_standby_has_shown_before_the_primary_is_not_lost(
    pair: Pair, url: str, client: msgtx.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: the next one does not show it either."""
    with reader(client, topic) as consumer:
        assert polled(consumer, 1) == [b"0"]
        with shown_early(pair, url, topic) as confirm:
            assert looked_for(consumer) == [b"1"]
            forget_asked(consumer)
            monkeypatch.setattr(Engine, "reading", property(lambda engine: engine))  # a standby that shows as little
            consumer._fetcher.woken(None)
            wait_until(lambda: consumer.poll(0.01) or consumer._fetcher._lacked, "the primary was asked, and lacks it")
            confirm()
            store(client, topic, b"2")
            assert polled(consumer, 1) == [b"2"]


def test_steady_traffic_that_the_primary_shows_later_is_not_lost(
    client: msgtx.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: each time that the primary is asked, it lacks another record. One that never comes is lost, again after 10 s."""
    clock, asked = Clock(), 0
    monkeypatch.setattr(awaited, "ASK_SECONDS", 0.0)
    with reader(client, topic) as consumer:

        def lacks_the_last(partition_ids: list[int]) -> dict[int, FetchedPartition]:
            nonlocal asked
            (assigned,) = consumer._fetcher.assigned.values()
            assert assigned.next is not None
            asked += len(partition_ids)
            end = assigned.next.offset - 1
            return dict.fromkeys(partition_ids, FetchedPartition(0, end, end, end, None, True, None, False, []))

        def ask() -> None:
            before = asked
            wait_until(lambda: consumer._fetcher.woken(None) or consumer.poll(0.01) or asked > before, "it is asked")

        assert polled(consumer, 1) == [b"0"]
        monkeypatch.setattr(fetcher, "time", clock)
        monkeypatch.setattr(consumer._fetcher, "_ends", lacks_the_last)
        for value in (b"1", b"2", b"3"):
            store(client, topic, value)
            assert looked_for(consumer) == [value]
            ask()
            clock.now += LACK_SECONDS - 1
        for _ in range(2):
            ask()
            clock.now += LACK_SECONDS
            with refuses(errors.LogTruncated, topic=topic, offset=4):
                ask()
            consumer.rewind()
            assert polled(consumer, 4) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("by", ["itself", "transaction", "session"])
def test_what_the_standby_shows_before_the_primary_is_committed_when_that_shows_it(
    pair: Pair, url: str, client: msgtx.Client, topic: str, by: str
) -> None:
    """I10, I11: such a commit is not refused as one of a lost record."""
    group, partition, engine = unique("group"), TopicPartition(topic, 0), client.engine()
    hook = Hook(client.runtime.engine)
    producer = client.producer(transactional_id=unique("id"))
    with contextlib.closing(producer), reader(client, group=group) as consumer, Session(engine) as session:
        producer.init_transactions()
        consumer.assign([partition])
        assert polled(consumer, 1) == [b"0"]
        with shown_early(pair, url, topic) as confirm:
            assert looked_for(consumer) == [b"1"]
            hook.at("after commit_offsets" if by == "itself" else "after fetch_batches", confirm, times=1)
            if by == "itself":
                consumer.commit()
            elif by == "transaction":
                with producer.transaction():
                    producer.send_offsets_to_transaction(consumer)
            else:
                consumer.commit(session=session)
                session.commit()
    engine.dispose()
    assert client.admin.groups.offsets(group)[partition].offset == 2


def test_the_primary_is_awaited_within_the_time_of_the_call(pair: Pair, url: str, client: msgtx.Client, topic: str) -> None:
    """It is asked again after it has moved: the new one may show less."""
    hook = Hook(client.runtime.engine)
    with reader(client, topic) as consumer:
        assert polled(consumer, 1) == [b"0"]
        with shown_early(pair, url, topic):
            assert looked_for(consumer) == [b"1"]
            asked = hook.seen["before fetch_batches"]
            with until(time.monotonic()):
                consumer._fetcher.await_primary()
            assert hook.seen["before fetch_batches"] == asked
        consumer._fetcher.await_primary()
        consumer._fetcher._primary = (0, 0)  # the primary has moved since
        asked = hook.seen["before fetch_batches"]
        consumer._fetcher.await_primary()
        assert hook.seen["before fetch_batches"] == asked + 1


@pytest.mark.parametrize("by_standby", [False, True])
@pytest.mark.parametrize("right", ["produce", "observe"])
def test_a_reader_without_the_right_to_consume_is_refused(
    pair: Pair, url: str, topic: str, right: str, by_standby: bool
) -> None:
    """I16: other rights show it the end of the log."""
    with open_roles(pair.primary, url) as roles:
        role = roles.make(f"{right}:{topic}")
        own = roles.url_of(role)
        pair.catch_up()
        read_url = pair.on_standby(own) if by_standby else None
        with (
            msgtx.connect(own, read_url=read_url) as guest,
            reader(guest, topic) as consumer,
            refuses(errors.AuthorizationFailed),
        ):
            polled(consumer, 1)


@pytest.mark.parametrize("has_another", [False, True])
def test_a_right_that_the_standby_does_not_show_is_waited_for(
    pair: Pair, url: str, client: msgtx.Client, topic: str, has_another: bool
) -> None:
    """The primary alone refuses."""
    with open_roles(pair.primary, url) as roles:
        role = roles.make(*["consume:another"] * has_another)
        own = roles.url_of(role)
        pair.catch_up()
        with pair.replay_paused() as resume:
            roles.grant(role, f"consume:{topic}")
            with msgtx.connect(own, read_url=pair.on_standby(own)) as guest, reader(guest, topic) as consumer:
                assert consumer.poll(0.3) == []
                Hook(guest.runtime.engine).at("after describe_topics", resume, times=1)
                assert values(guest.read(guest.snapshot([topic]))) == [b"0"]
                assert polled(consumer, 1) == [b"0"]
        roles.revoke(role, f"consume:{topic}")
        pair.catch_up()


def test_an_overdue_transaction_is_aborted_on_the_primary(pair: Pair, client: msgtx.Client, topic: str) -> None:
    """I12: nobody sweeps, and a standby cannot write."""
    producer, _ = begun(client, unique("id"), transaction_timeout_ms=100)
    with contextlib.closing(producer):
        producer.send(topic, b"overdue").result(SECONDS)
        store(client, topic, b"behind")
        with reader(client, topic) as consumer:
            assert polled(consumer, 2) == [b"0", b"behind"]
        assert values(client.read(client.snapshot([topic]))) == [b"0", b"behind"]


def test_a_call_that_replay_cancels_is_repeated(client: msgtx.Client, topic: str) -> None:
    """Replay removes rows that a statement of the standby may need, and cancels it."""
    hook = hook_of_standby(client)
    hook.at("before fetch_batches", psycopg.errors.SerializationFailure("conflict with recovery"), times=3)
    assert values(client.read(client.snapshot([topic]))) == [b"0"]
    hook.at("before fetch_batches", errors.DatabaseUnavailable("the connection was ended"), times=1)
    assert values(client.read(client.snapshot([topic]))) == [b"0"]
    for moment, call in (
        ("before find_records", lambda: client.find(topic)),
        ("before measure_lags", client.admin.groups.lags),
        ("before describe_share_groups", client.admin.shares.list),
    ):
        with hook.at(moment, errors.DatabaseUnavailable("the connection was ended"), times=1):
            call()
    hook.at("before fetch_batches", psycopg.errors.DeadlockDetected("conflict with recovery"), times=2)
    with reader(client, topic) as consumer:
        assert polled(consumer, 1) == [b"0"]
    with hook.at("before verify_batches", psycopg.errors.SerializationFailure("conflict with recovery"), times=1):
        assert client.admin.verify([topic]).violations == []


# ── single calls ──


def test_a_snapshot_of_the_primary_is_read_when_the_standby_shows_it(pair: Pair, url: str, client: msgtx.Client) -> None:
    """I14, I15: a lagging standby is no truncated log."""
    name = unique("topic")
    with pair.replay_paused() as resume, msgtx.connect(url) as other:
        client.topics.create(name)
        store(client, name, b"1", b"2")
        cut = other.snapshot([name])
        hook = hook_of_standby(client)
        hook.at("after describe_topics", resume, times=1)  # it was asked before it had replayed
        assert values(client.read(cut)) == [b"1", b"2"]
    assert client.snapshots.ranges(end=cut)[TopicPartition(name, 0)].records == 2
    assert client.snapshot([name]) == cut


def test_a_standby_that_stays_behind_is_reported(
    pair: Pair, client: msgtx.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("msgtx.database.standby.ANSWER_SECONDS", 0.3)
    with pair.replay_paused():
        store(client, topic, b"1")
        with msgtx.connect(client.secret_url) as other:
            cut = other.snapshot([topic])
        for call in (lambda: list(client.read(cut)), lambda: client.snapshots.ranges(end=cut)):
            with refuses(errors.DatabaseUnavailable, reason=BEHIND):
                call()
    pair.catch_up()
    with refuses(errors.UnknownTopicOrPartition, topic="nowhere"):
        client.snapshot(["nowhere"])


def test_searches_verify_and_lags_read_from_the_standby(pair: Pair, client: msgtx.Client, topic: str) -> None:
    group = unique("group")
    client.admin.shares.configure(group, {"auto_offset_reset": "earliest"})
    with client.share_consumer(topic, group=group) as members:
        assert values(members.poll(SECONDS)) == [b"0"]
    pair.catch_up()
    hook = hook_of_standby(client)
    for call in (
        lambda: client.find(topic),
        lambda: client.find(topic, partition=0, offset=0),
        lambda: client.find_before(topic, 0),
        lambda: client.search(topic),
        lambda: client.admin.verify([topic]),
        client.admin.groups.lags,
        client.admin.shares.list,
        lambda: client.admin.shares.describe(group),
        lambda: list(client.read(client.snapshot([topic]))),
    ):
        asked = hook.seen.total()
        call()
        assert hook.seen.total() > asked
    for reads_only in (True, False):
        engine = client.engine(reads_only=reads_only)
        with engine.connect() as connection:
            assert connection.execute(text("select pg_is_in_recovery()")).scalar_one() is reads_only
        engine.dispose()


def test_what_the_standby_does_not_show_is_looked_up_on_the_primary(pair: Pair, client: msgtx.Client, topic: str) -> None:
    """A place, a transaction or a name; a search through records does not go there."""
    name, ids = unique("new"), unique("id")
    with pair.replay_paused():
        client.topics.create(name)
        store(client, topic, b"only there")
        producer, transaction = begun(client, ids)
        with contextlib.closing(producer):
            producer.send(topic, b"2").result(SECONDS)
            producer.commit_transaction()
        (found,) = client.find(topic, partition=0, offset=1)
        assert (found.value, found.outcome) == (b"only there", RecordOutcome.COMMITTED)
        assert client.find(topic, partition=0, offset=3) == []
        for text, kinds in (
            (f"{topic}/0/1", {"record"}),
            (f"{topic}/0/3", {"partition"}),
            (f"{name}-0", {"partition"}),
            (name, {"topic"}),
            (ids, {"transactional_id"}),
            (str(transaction.id), {"transaction"}),
        ):
            assert {hit.kind for hit in client.search(text, contents=False).hits} == kinds, text
        assert client.search("only there").hits == []


def test_a_share_group_that_the_standby_does_not_show_is_waited_for(pair: Pair, client: msgtx.Client) -> None:
    group = unique("group")
    with pair.replay_paused() as resume:
        client.admin.shares.configure(group, {"auto_offset_reset": "earliest"})
        assert describe_now(client.runtime.engine, group).settings["auto_offset_reset"] == "earliest"
        hook_of_standby(client).at("after describe_share_groups", resume, times=1)
        assert client.admin.shares.describe(group).settings["auto_offset_reset"] == "earliest"
    with refuses(errors.GroupNotFound, group="nowhere"):
        client.admin.shares.describe("nowhere")


def test_asyncio_reads_from_the_standby(pair: Pair, url: str, client: msgtx.Client, topic: str) -> None:
    async def read() -> tuple[list[bytes | None], bool]:
        async with await aio.connect(url, read_url=pair.on_standby(url)) as other:
            hook = hook_of_standby(other.sync)
            async with other.consumer(topic, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
                found = values(await consumer.poll(SECONDS))
            return found, hook.seen["before fetch_batches"] > 0

    assert asyncio.run(read()) == ([b"0"], True)


def test_the_command_line_reads_from_the_standby(
    pair: Pair, url: str, shell: Shell, topic: str, client: msgtx.Client
) -> None:
    """By an option or a variable; an end that the standby does not show is waited for."""
    given = ("--read-url", pair.on_standby(url))
    consume = ("consume", topic, "--from-beginning", "--no-follow")
    with pair.replay_paused():
        store(client, topic, b"1")
        assert len(shell(url, "find", topic, *given, "-o", "jsonl").rows) == 1
        assert shell(url, "find", topic, "--offset", "0:1", *given, "-o", "jsonl").rows[0]["value"] == "1"
        (found,) = shell(url, "search", f"{topic}/0/1", *given, "-o", "jsonl").rows
        assert [hit["kind"] for hit in found["hits"]] == ["record"]
        assert shell(url, *consume, "--timeout-ms", "5s", *given).out == b"0\n"
    assert shell(url, *consume, *given).out == b"0\n1\n"
    assert shell(url, "verify", topic, *given).code == 0
    assert b"msgtx_database_up 1.0" in shell(url, *given, "metrics").out
    assert shell(url, "find", topic, "--read-url", UNREACHABLE).code == 3


# ── what the address leads to ──


def findings(client: msgtx.Client) -> list[Finding]:
    return [finding for finding in client.admin.doctor() if finding.subject == "read_url"]


def test_doctor_says_where_read_url_leads(pair: Pair, url: str, client: msgtx.Client) -> None:
    """I16: another installation is refused by the first call that reads."""
    assert findings(client) == []
    other, copy = pair.primary.create_database(), pair.primary.create_database()  # a copy has the same incarnation
    with Engine(other) as engine, engine.connection() as connection:
        change_incarnation(connection)
    pair.catch_up()
    for read_url, level, kind in (
        (url, Level.WARNING, None),
        (pair.on_standby(copy), Level.PROBLEM, errors.ConfigError),
        (pair.on_standby(other), Level.PROBLEM, errors.IncarnationChanged),
        (pair.on_standby(url).rpartition("/")[0] + "/postgres", Level.PROBLEM, errors.DatabaseUnavailable),
        (UNREACHABLE, Level.PROBLEM, errors.DatabaseUnavailable),
    ):
        with msgtx.connect(url, read_url=read_url) as wrong:
            assert [finding.level for finding in findings(wrong)] == [level], read_url
            if kind is not None:
                with refuses(kind):
                    wrong.snapshot([])


def test_an_address_that_is_none_is_refused(url: str) -> None:
    for given in ("", "mysql://x/y", "postgresql://a@b:99999/c"):
        with refuses(errors.ConfigError):
            msgtx.connect(url, read_url=given)
    with refuses(errors.WrongType, name="read_url"):
        msgtx.connect(url, read_url=1)  # type: ignore[arg-type]


def test_a_variable_names_the_standby_of_the_database_of_the_environment(
    pair: Pair, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To an address that is given belongs a `read_url` that is given."""
    monkeypatch.setenv("MSGTX_READ_URL", pair.on_standby(url))
    monkeypatch.setenv("MSGTX_DATABASE_URL", url)
    for given, standby in ((None, True), (url, False)):
        with msgtx.connect(given) as client:
            assert (client.runtime.engine.standby is not None) == standby
    monkeypatch.setenv("MSGTX_READ_URL", " ")
    with refuses(errors.ConfigError, name="read_url"):
        msgtx.connect()


def test_the_primary_may_be_read_while_the_standby_is_away(own_pair: Pair) -> None:
    """With an address of both; a standby that was promoted beside the primary is refused."""
    url = own_pair.primary.create_database()
    both = own_pair.on_either(url).replace("read-write", "prefer-standby")
    with msgtx.connect(url) as client:
        client.topics.create("t")
        store(client, "t", b"1")
    own_pair.catch_up()
    with msgtx.connect(url, read_url=both) as client, reader(client, "t") as consumer:
        assert polled(consumer, 1) == [b"1"]
        own_pair.stop_standby()
        store(client, "t", b"2")
        assert polled(consumer, 1) == [b"2"]
        own_pair.start_standby()
    with msgtx.connect(url, read_url=own_pair.on_standby(url)) as client:
        own_pair.catch_up()
        client.snapshot(["t"])
        own_pair.promote()
        client.snapshot(["t"])  # its answer says that the connection leads to no standby any more
        with refuses(errors.DatabaseUnavailable, reason=TAKES_WRITES):
            client.snapshot(["t"])
        assert [finding.level for finding in findings(client)] == [Level.PROBLEM]


def test_a_standby_that_follows_an_old_primary_is_told_by_its_timeline() -> None:
    """I5: it shows what the new primary never had. Roles that may see its WAL receiver are refused, others hear of it."""
    with replicated() as own, own.another_standby() as another:
        url = own.primary.create_database()
        role = make_url(url).username
        with own.primary.administrator() as administrator:
            administrator.execute(f"grant pg_read_all_stats to {role}")
        with msgtx.connect(url) as client:
            client.topics.create("t")
        own.catch_up()
        another.catch_up()
        with msgtx.connect(own.on_either(url), read_url=another.on_standby(url)) as client:
            client.find("t")
            own.fall_behind()
            store(client, "t", b"never on the new one")
            another.catch_up()
            assert [record.value for record in client.find("t")] == [b"never on the new one"]
            own.fail_over()
            client.topics.list()  # the new primary answers
            own.start_old_primary()
            another.catch_up()  # it receives again
            with refuses(errors.DatabaseUnavailable, reason=OLD_TIMELINE):
                client.find("t")
            assert [finding.level for finding in findings(client)] == [Level.PROBLEM]
        with own.primary.administrator() as administrator:
            administrator.execute(f"revoke pg_read_all_stats from {role}")
        another.catch_up()
        with msgtx.connect(own.on_standby(url), read_url=another.on_standby(url)) as client:
            client.find("t")
            (found,) = findings(client)
            assert (found.level, found.data["control"], found.data["timeline"]) == (Level.WARNING, 1, 2)


def test_a_standby_is_judged_again_if_the_primary_moves_meanwhile(
    client: msgtx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: it may not follow the new one."""
    primary, standby = client.runtime.engine, client.runtime.engine.standby
    assert isinstance(standby, StandbyEngine)
    judged = standby.followed
    with monkeypatch.context() as patch:

        def moves(connection: RawConnection) -> Followed | None:
            found = judged(connection)
            patch.setattr(primary, "server", (0, 0))
            return found

        patch.setattr(standby, "followed", moves)
        with contextlib.closing(standby.dedicated()) as connection:
            assert not standby.is_current(connection)


def test_a_standby_of_the_new_primary_is_none_of_an_old_one() -> None:
    """Its control file names the old timeline until its next restart point."""
    with replicated() as own, own.another_standby() as another:
        url = own.primary.create_database()
        with own.primary.administrator() as administrator:
            administrator.execute(f"grant pg_read_all_stats to {make_url(url).username}")
        with msgtx.connect(url) as client:
            client.topics.create("t")
        own.switch_over()  # both standbys get the rest
        another.follow(own)
        with msgtx.connect(own.on_standby(url), read_url=another.on_standby(url)) as client:
            store(client, "t", b"on both")
            wait_until(lambda: client.find("t") and not findings(client), "it follows the new primary")
