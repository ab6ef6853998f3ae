"""After a failover: the old primary that comes back is refused, and a host that is silent is tried last (decision 0168)."""

import time
from collections.abc import Iterator

import pytest

import msgtx
from msgtx import errors
from msgtx.database.pool import OLD_PRIMARY
from msgtx.producer import sender
from tests.client.steps import SECONDS
from tests.databases import connect
from tests.refusals import refuses
from tests.replication import Pair, replicated

pytestmark = pytest.mark.slow


@pytest.fixture
def pair() -> Iterator[Pair]:
    with replicated() as found:
        yield found


@pytest.fixture
def url(pair: Pair) -> str:
    """An address of both, the primary first."""
    made = pair.primary.create_database()
    with msgtx.connect(made) as client:
        client.topics.create("t", partitions=1)
    pair.catch_up()
    return pair.on_either(made)


def values(client: msgtx.Client) -> list[bytes | None]:
    return [record.value for record in client.read(client.snapshot(["t"]))]


def test_a_client_that_was_on_the_new_primary_refuses_the_old_one(pair: Pair, url: str) -> None:
    """I1: else what the old one acknowledges is lost. It waits for the new one, and the log says why."""
    with msgtx.connect(url) as client, client.producer(retry_backoff_ms=5) as producer:
        engine = client.runtime.engine
        producer.send("t", b"1").result(SECONDS)
        pair.catch_up()
        pair.fail_over()
        producer.send("t", b"2").result(SECONDS)
        pair.stop_standby()
        pair.start_old_primary()
        with refuses(errors.DatabaseUnavailable, reason=OLD_PRIMARY):
            engine.dedicated()
        sent = producer.send("t", b"3")
        with pytest.raises(TimeoutError):
            sent.result(1.0)
        pair.start_standby()
        sent.result(SECONDS)
        engine.hosts._first = 0  # as if the old one came first
        engine.dedicated().close()
        assert values(client) == [b"1", b"2", b"3"]


def test_a_producer_whose_acknowledged_records_are_lost_is_told(pair: Pair, url: str) -> None:
    """I1, without a synchronous standby; a producer that lost nothing goes on."""
    with (
        msgtx.connect(url) as client,
        client.producer(retry_backoff_ms=5) as producer,
        client.producer(retry_backoff_ms=5) as other,
    ):
        producer.send("t", b"1").result(SECONDS)
        other.send("t", b"2").result(SECONDS)
        pair.catch_up()
        pair.fall_behind()
        producer.send("t", b"lost").result(SECONDS)
        pair.fail_over()
        with refuses(errors.RecordsLost):
            producer.send("t", b"3").result(SECONDS)
        with refuses(errors.RecordsLost):
            producer.send("t", b"4")
        other.send("t", b"5").result(SECONDS)
        with client.producer() as new:
            new.send("t", b"lost").result(SECONDS)
        assert values(client) == [b"1", b"2", b"5", b"lost"]


def test_an_acknowledgement_of_long_ago_proves_no_loss(pair: Pair, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """I13: the same gap is there where the sequences of an idle producer were removed. It goes on in a new epoch."""
    monkeypatch.setattr(sender, "LATELY_SECONDS", 0.0)
    with msgtx.connect(url) as client, client.producer(retry_backoff_ms=5) as producer:
        producer.send("t", b"1").result(SECONDS)
        pair.catch_up()
        pair.fall_behind()
        producer.send("t", b"removed").result(SECONDS)
        pair.fail_over()
        producer.send("t", b"2").result(SECONDS)
        assert values(client) == [b"1", b"2"]


def test_after_a_silent_host_the_next_one_is_tried_first(pair: Pair, url: str) -> None:
    """Not again the frozen one, whose system takes connections that nobody answers (10 s for each)."""
    with msgtx.connect(url) as client, client.producer(retry_backoff_ms=5, request_timeout_ms=500) as producer:
        producer.send("t", b"1").result(SECONDS)
        pair.catch_up()
        with pair.frozen():
            pair.promote()
            began = time.monotonic()
            producer.send("t", b"2").result(SECONDS)
            assert time.monotonic() - began < 5.0
            assert values(client) == [b"1", b"2"]


def test_a_server_that_was_moved_may_have_a_lower_timeline(pair: Pair, url: str) -> None:
    """pg_upgrade and logical replicas make another server; what they lost, the incarnation tells (decision 0097)."""
    with msgtx.connect(url) as client:
        engine = client.runtime.engine
        assert engine.server is not None
        system, timeline = engine.server
        engine.server = (system + 1, timeline + 7)
        engine.dedicated().close()
        assert engine.server == (system, timeline)


def test_a_standby_has_no_timeline_of_its_own(pair: Pair, url: str) -> None:
    standby = pair.on_standby(url.partition("?")[0].replace(f"127.0.0.1:{pair.primary_port},", ""))
    with connect(standby) as connection:
        assert connection.execute("select * from msgtx.identify_server()").fetchone() == (None, None)
