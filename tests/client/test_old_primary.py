"""After a failover: the old primary that comes back is refused, and a host that is silent is tried last (decision 0168)."""

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import msgtx
from msgtx import errors
from msgtx.database import pool
from msgtx.database.pool import OLD_PRIMARY, STANDBY
from msgtx.database.standby import TAKES_WRITES
from msgtx.producer import losses
from tests.client.steps import SECONDS, store
from tests.databases import connect, wait_until
from tests.refusals import refuses
from tests.replication import Pair

pytestmark = pytest.mark.slow


@pytest.fixture
def url(own_pair: Pair) -> str:
    """An address of both, the primary first."""
    made = own_pair.primary.create_database()
    with msgtx.connect(made) as client:
        client.topics.create("t", partitions=1)
    own_pair.catch_up()
    return own_pair.on_either(made)


def values(client: msgtx.Client) -> list[bytes | None]:
    return [record.value for record in client.read(client.snapshot(["t"]))]


def test_a_client_that_was_on_the_new_primary_refuses_the_old_one(own_pair: Pair, url: str) -> None:
    """I1: else what the old one acknowledges is lost. It waits for the new one, and the log says why."""
    with msgtx.connect(url) as client, client.producer(retry_backoff_ms=5) as producer:
        engine = client.runtime.engine
        producer.send("t", b"1").result(SECONDS)
        own_pair.catch_up()
        own_pair.fail_over()
        producer.send("t", b"2").result(SECONDS)
        own_pair.stop_standby()
        own_pair.start_old_primary()
        with refuses(errors.DatabaseUnavailable, reason=OLD_PRIMARY):
            engine.dedicated()
        sent = producer.send("t", b"3")
        with pytest.raises(TimeoutError):
            sent.result(1.0)
        own_pair.start_standby()
        sent.result(SECONDS)
        engine.hosts._first = 0  # as if the old one came first
        engine.dedicated().close()
        assert values(client) == [b"1", b"2", b"3"]


def test_a_producer_whose_acknowledged_records_are_lost_is_told(own_pair: Pair, url: str) -> None:
    """I1, without a synchronous standby; a producer that lost nothing goes on."""
    with (
        msgtx.connect(url) as client,
        client.producer(retry_backoff_ms=5) as producer,
        client.producer(retry_backoff_ms=5) as other,
    ):
        producer.send("t", b"1").result(SECONDS)
        other.send("t", b"2").result(SECONDS)
        own_pair.catch_up()
        own_pair.fall_behind()
        producer.send("t", b"lost").result(SECONDS)
        own_pair.fail_over()
        with refuses(errors.RecordsLost):
            producer.send("t", b"3").result(SECONDS)
        with refuses(errors.RecordsLost):
            producer.send("t", b"4")
        other.send("t", b"5").result(SECONDS)
        with client.producer() as new:
            new.send("t", b"lost").result(SECONDS)
        assert values(client) == [b"1", b"2", b"5", b"lost"]


def test_a_producer_looks_for_losses_before_it_raises_its_epoch(own_pair: Pair, url: str) -> None:
    """I1: a new epoch, as behind a batch that was never answered, forgets what was acknowledged in the old one."""
    with (
        msgtx.connect(url) as client,
        client.producer(retry_backoff_ms=5, request_timeout_ms=500, delivery_timeout_ms=1_000) as producer,
    ):
        producer.send("t", b"1").result(SECONDS)
        own_pair.catch_up()
        own_pair.fall_behind()
        producer.send("t", b"lost").result(SECONDS)
        with own_pair.frozen():
            with refuses(errors.DeliveryTimeout):
                producer.send("t", b"in flight").result(SECONDS)
            own_pair.promote()
            wait_until(lambda: producer._state.has_failed, "it has looked in the new primary")
        with refuses(errors.RecordsLost):
            producer.send("t", b"2")


def test_a_producer_whose_id_is_lost_is_told(own_pair: Pair, url: str) -> None:
    """I1: the new primary knows neither its records nor its id, as if the id were an idle one that was removed."""
    with msgtx.connect(url) as client:
        own_pair.catch_up()
        own_pair.fall_behind()
        with client.producer(retry_backoff_ms=5) as producer:
            producer.send("t", b"lost").result(SECONDS)
            own_pair.fail_over()
            with refuses(errors.RecordsLost):
                producer.send("t", b"2").result(SECONDS)
        assert values(client) == []


def test_a_new_producer_waits_while_the_primary_moves(own_pair: Pair, url: str) -> None:
    """A client that has worked is at the standby for a moment; its URL may not say what takes writes."""
    with msgtx.connect(url.partition("?")[0]) as client, ThreadPoolExecutor(1) as threads:
        asked = threading.Semaphore(0)
        client.runtime.engine.hook = lambda moment: moment == "before init_producer_id" and asked.release()
        own_pair.catch_up()
        own_pair.stop_primary()
        sending = threads.submit(lambda: client.producer(retry_backoff_ms=5).send("t", b"1").result(SECONDS))
        for _ in range(2):
            assert asked.acquire(timeout=SECONDS), "the standby was asked, and then again"
        own_pair.promote()
        sending.result(SECONDS)
        assert values(client) == [b"1"]


def test_a_promotion_behind_a_refusal_is_one_that_passes(own_pair: Pair, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server says that it is read-only, and is a primary when the client asks for the reason: another try finds that."""
    refused, promoted = pool._says_read_only, []

    def late(error: BaseException | None) -> bool:
        if (found := refused(error)) and not promoted:
            promoted.append(own_pair.promote())
        return found

    monkeypatch.setattr(pool, "_says_read_only", late)
    standby = own_pair.on_standby(url.partition("?")[0].replace(f"127.0.0.1:{own_pair.primary_port},", ""))
    own_pair.catch_up()
    with msgtx.connect(standby) as client:
        with refuses(errors.DatabaseUnavailable, reason=STANDBY):
            client.topics.create("u")
        client.topics.create("u")
        assert len(promoted) == 1


def test_a_producer_that_sends_nothing_more_is_told(own_pair: Pair, url: str) -> None:
    """I1: another call of its client finds the new primary, and each producer looks there for its last acknowledgements."""
    with msgtx.connect(url) as client:
        client.topics.create("u", partitions=2)
        lost, kept = client.producer(retry_backoff_ms=5), client.producer(retry_backoff_ms=5)
        transactional = client.producer(transactional_id="lost", retry_backoff_ms=5)
        kept_id = client.producer(transactional_id="kept", retry_backoff_ms=5)
        for each in (transactional, kept_id):
            each.init_transactions()
        for each in (lost, kept):
            each.send("t", b"1").result(SECONDS)
        with kept_id.transaction():
            kept_id.send("t", b"2")
        own_pair.catch_up()
        own_pair.fall_behind()
        lost.send("u", b"lost", partition=0).result(SECONDS)
        with transactional.transaction():
            transactional.send("t", b"lost")
        own_pair.fail_over()
        wait_until(lambda: answers(client), "the client has found the new primary")
        wait_until(lambda: lost._state.has_failed and transactional._state.has_failed, "both have looked")
        with refuses(errors.RecordsLost):
            lost.send("u", b"3", partition=1)
        with refuses(errors.TransactionsLost):
            transactional.begin_transaction()
        kept.send("t", b"4").result(SECONDS)
        with kept_id.transaction():
            kept_id.send("t", b"5")
        assert values(client) == [b"1", b"1", b"2", b"4", b"5"]
        for each in (lost, kept, transactional, kept_id):
            each.close()


def answers(client: msgtx.Client) -> bool:
    try:
        client.topics.list()
    except errors.DatabaseUnavailable:
        return False
    return True


@pytest.mark.parametrize("standby", ["", "walreceiver"], ids=["asynchronous", "synchronous"])
def test_a_client_without_a_proof_is_warned_once(
    standby: str, own_pair: Pair, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Not if a synchronous standby had confirmed everything: then nothing is missing."""
    own_pair.confirm_by(standby)
    with msgtx.connect(url) as client:
        client.admin.shares.configure("s", {"auto_offset_reset": "earliest"})
        store(client, "t", b"1", b"2", b"3")
        member = client.share_consumer("t", group="s", max_poll_records=1)

        def act() -> None:
            assert len(member.poll(SECONDS)) == 1
            member.commit()

        act()
        own_pair.catch_up()
        own_pair.fail_over()
        caplog.clear()
        for _ in range(2):
            act()
    said = [
        record.levelname for record in caplog.records if record.name == "msgtx.database" and "has moved" in record.message
    ]
    assert said == ([] if standby else ["WARNING"])


def test_a_living_primary_is_asked_again_whether_commits_wait_for_a_standby(own_pair: Pair, url: str) -> None:
    """On the connection that the client has: nothing else of this client makes a new one."""
    with msgtx.connect(url) as client:
        engine = client.runtime.engine
        with engine.connection():
            pass
        (kept,) = engine._idle

        def is_known() -> bool:
            engine._asked = -math.inf  # as if a minute were over
            with engine.connection():
                return engine._was_synchronous is bool(standby)

        for standby in ("walreceiver", "", "walreceiver"):
            own_pair.confirm_by(standby)
            wait_until(is_known, "the client knows of the change")
        assert engine._idle == [kept]


def test_a_client_that_is_to_stop_ends_at_the_first_failover(own_pair: Pair, url: str) -> None:
    """Also at one that has lost nothing; a new client goes on."""
    with msgtx.connect(url, on_failover="stop") as client:
        producer, reader = client.producer(retry_backoff_ms=5), client.consumer("t", auto_offset_reset="earliest")
        producer.send("t", b"1").result(SECONDS)
        assert len(reader.poll(SECONDS)) == 1
        own_pair.catch_up()
        own_pair.switch_over()
        for call in (
            lambda: producer.send("t", b"2").result(SECONDS),
            lambda: producer.send("t", b"3"),
            lambda: polled(reader),
            client.topics.list,
        ):
            with refuses(errors.FailedOver):
                call()
        with msgtx.connect(url, on_failover="stop") as new:
            assert values(new) == [b"1"]


def test_no_open_connection_to_the_old_primary_is_used_once_the_new_one_has_answered(own_pair: Pair, url: str) -> None:
    """I1: the old one lives, as before it is fenced. A client that is to stop uses none at all."""
    with (
        msgtx.connect(url, read_url=url) as trusting,
        msgtx.connect(url, read_url=url, on_failover="stop") as stopping,
    ):
        for client in (trusting, stopping):
            client.topics.list()
            assert values(client) == []
        own_pair.promote()
        for client in (trusting, stopping):
            client.runtime.engine.hosts._first = 1
        trusting.runtime.engine.dedicated().close()
        with trusting.runtime.engine.connection() as connection:
            assert connection.info.port == own_pair.standby_port
        with refuses(errors.DatabaseUnavailable, reason=TAKES_WRITES):
            values(trusting)
        for call in (stopping.runtime.engine.dedicated, stopping.topics.list, lambda: values(stopping)):
            with refuses(errors.FailedOver):
                call()


def polled(reader: msgtx.Consumer) -> None:
    while True:
        reader.poll(1.0)


def test_an_acknowledgement_of_long_ago_proves_no_loss(own_pair: Pair, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """I13: the same gap is there where the sequences of an idle producer were removed. It goes on in a new epoch."""
    monkeypatch.setattr(losses, "LATELY_SECONDS", 0.0)
    with msgtx.connect(url) as client, client.producer(retry_backoff_ms=5) as producer:
        producer.send("t", b"1").result(SECONDS)
        own_pair.catch_up()
        own_pair.fall_behind()
        producer.send("t", b"removed").result(SECONDS)
        own_pair.fail_over()
        producer.send("t", b"2").result(SECONDS)
        assert values(client) == [b"1", b"2"]


def test_after_a_silent_host_the_next_one_is_tried_first(own_pair: Pair, url: str) -> None:
    """Not again the frozen one, whose system takes connections that nobody answers (10 s for each)."""
    with msgtx.connect(url) as client, client.producer(retry_backoff_ms=5, request_timeout_ms=500) as producer:
        producer.send("t", b"1").result(SECONDS)
        own_pair.catch_up()
        with own_pair.frozen():
            own_pair.promote()
            began = time.monotonic()
            producer.send("t", b"2").result(SECONDS)
            assert time.monotonic() - began < 5.0
            assert values(client) == [b"1", b"2"]


@pytest.mark.parametrize("standby", ["walreceiver", ""], ids=["synchronous", "asynchronous"])
def test_a_frozen_primary_that_goes_on_beside_the_new_one_acknowledges_only_without_a_synchronous_standby(
    standby: str, own_pair: Pair, url: str
) -> None:
    """I1: all connections of the client still lead to the old primary. With the standby, it finds the new one."""
    own_pair.confirm_by(standby)
    timeout_ms = 500 if standby else 30_000  # without the standby, a late answer must not look like silence
    with msgtx.connect(url) as client, client.producer(retry_backoff_ms=5, request_timeout_ms=timeout_ms) as producer:
        producer.send("t", b"1").result(SECONDS)
        own_pair.catch_up()
        with own_pair.frozen():
            own_pair.promote()
        producer.send("t", b"2").result(SECONDS)
    with msgtx.connect(own_pair.on_standby(url.partition("?")[0].replace(f"127.0.0.1:{own_pair.primary_port},", ""))) as new:
        assert values(new) == ([b"1", b"2"] if standby else [b"1"])


def test_a_server_that_was_moved_may_have_a_lower_timeline(own_pair: Pair, url: str) -> None:
    """pg_upgrade and logical replicas make another server; what they lost, the incarnation tells (decision 0097)."""
    with msgtx.connect(url) as client:
        engine = client.runtime.engine
        assert engine.server is not None
        system, timeline = engine.server
        engine.server = (system + 1, timeline + 7)
        engine.dedicated().close()
        assert engine.server == (system, timeline)


def test_a_standby_has_no_timeline_of_its_own(own_pair: Pair, url: str) -> None:
    standby = own_pair.on_standby(url.partition("?")[0].replace(f"127.0.0.1:{own_pair.primary_port},", ""))
    with connect(standby) as connection:
        assert connection.execute("select * from msgtx.identify_server()").fetchone() == (None, None, None)
