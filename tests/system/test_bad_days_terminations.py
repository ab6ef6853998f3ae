"""Bad days: sessions of a busy client are terminated, one at each boundary, and all of them repeatedly."""

import concurrent.futures
import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import msgtx
from msgtx import OutputRecord, TopicPartition
from msgtx.client import Client
from msgtx.database.pool import Engine
from tests.cli.program import Ended
from tests.databases import Connection, connect, wait_until
from tests.faults import Action, Faults
from tests.faults import Connection as FaultyConnection
from tests.system.scenarios import FAST, PATIENCE_SECONDS, READING, SCENARIOS, World, prepare, read_all, settle

pytestmark = pytest.mark.slow

MOST = 60  # boundaries of one program
STRIDES = {"send": 1, "commit": 3, "abort": 4}  # the crash sweep breaks connections at every boundary
# The least numbers of boundaries at which a session was terminated.
BOUNDARIES = {"send": 6, "commit": 8, "abort": 5}
OTHERS = (
    "from pg_stat_activity"
    " where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"
)
TERMINATE_ALL = f"select pg_terminate_backend(pid) {OTHERS}"


@pytest.fixture
def observer(database_url: str) -> Iterator[Connection]:
    with connect(database_url) as connection:
        yield connection


def terminator(observer: Connection) -> Action:
    """Terminate the session of the connection that crosses the boundary; the library finds out by itself."""

    def terminate(connection: FaultyConnection | None) -> None:
        if connection is not None:
            observer.execute("select pg_terminate_backend(%s, 10000)", [connection.info.backend_pid])

    return terminate


@pytest.mark.parametrize("name", BOUNDARIES)
def test_a_session_that_is_terminated_at_a_boundary_loses_and_doubles_nothing(
    name: str, client: Client, observer: Connection, tmp_path: Path
) -> None:
    """Terminated before a call, that call gets a dead session; terminated after it, the next one does."""
    scenario = SCENARIOS[name]
    worlds: list[World] = []
    for number in range(1, MOST, STRIDES[name]):
        world = World(client, f"{name}-terminated-{number}", tmp_path, Faults({number: terminator(observer)}))
        world.faults.on = False
        prepare(world)
        world.faults.on = True
        try:
            scenario.program(world)
        finally:
            world.faults.on = False
            world.close()
        worlds.append(world)
        if not world.faults.fired:
            break
    assert settle(worlds, image=scenario.image) == []
    fired = sum(bool(world.faults.fired) for world in worlds)
    print(f"{name}: {fired} boundaries, terminated")  # noqa: T201 - the number is part of the report
    assert BOUNDARIES[name] <= fired < MOST - 1


def test_a_busy_client_whose_sessions_all_end_again_and_again_loses_and_doubles_nothing(
    database_url: str, client: Client, observer: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Producer, transactions with offsets, a waiting consumer, its listener, markers: every session, ten times."""
    total = 300
    for topic in ("in", "out"):
        client.topics.create(topic, partitions=2)

    def produce(busy: Client) -> None:
        with busy.producer(linger_ms=0, **FAST) as producer:
            for number in range(total):
                future = producer.send("in", str(number).encode(), partition=number % 2)
                if number % 4 == 3:
                    future.result(PATIENCE_SECONDS)

    def consume(busy: Client) -> list[str]:
        seen: list[str] = []
        with busy.consumer("out", group="reader", auto_commit_interval_ms=20, auto_offset_reset="earliest") as consumer:
            while len(seen) < total:
                seen += [(record.value or b"").decode() for record in consumer.poll(PATIENCE_SECONDS)]
        return seen

    with (
        caplog.at_level(logging.WARNING),
        msgtx.connect(database_url) as busy,
        concurrent.futures.ThreadPoolExecutor(3) as threads,
    ):
        processing = threads.submit(
            busy.process, "in", to="out", group="g", transactional_id="t", transaction_ms=5, idle_timeout=2,
            transform=lambda record: OutputRecord(record.value, partition=record.partition), **FAST,
        )  # fmt: skip
        working = [threads.submit(produce, busy), processing, threads.submit(consume, busy)]
        ended = 0
        for part in itertools.count(1):
            wait_until(
                lambda part=part: working[2].done() or processing.done() or _end(observer, "out") >= part * total // 12,
                "outputs come",
            )
            if part > 10:
                break
            wait_until(
                lambda: processing.done() or len(observer.execute(f"select {OTHERS}").fetchall()) > 2,
                "those that ended are replaced",
            )
            ended += len(observer.execute(TERMINATE_ALL).fetchall())
        seen = [future.result(PATIENCE_SECONDS) for future in working][2]
    assert ended > 20
    # An auto-committing consumer reads at least once; here its positions live in the client, so it is exactly once.
    assert isinstance(seen, list)
    assert sorted(seen, key=int) == [str(number) for number in range(total)]
    expected = {p: [str(number) for number in range(total) if number % 2 == p] for p in (0, 1)}
    for topic in ("in", "out"):
        assert {p: [value for _, value in rows] for p, rows in read_all(client, topic).items()} == expected
    said = [record for record in caplog.records if record.name != "msgtx.consumer"]  # which logs its failed auto-commits
    assert [record.message for record in said] == []
    assert [record.message for record in caplog.records if record.exc_info] == []


def _end(observer: Connection, topic: str) -> int:
    row = observer.execute(
        "select coalesce(sum(b.record_count), 0) from msgtx.record_batch b join msgtx.partition p using (partition_id)"
        " join msgtx.topic t using (topic_id) where t.name = %s",
        [topic],
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_a_waiting_consumer_hears_again_after_its_listener_was_terminated(database_url: str, observer: Connection) -> None:
    """It does not rely on polling: the listener connects again."""
    faults = Faults()
    with Client(Engine(database_url, connect=faults.connect)) as client:
        client.topics.create("heard")
        with client.consumer("heard", **READING) as consumer, client.producer(linger_ms=0, **FAST) as producer:
            for turn in range(3):
                wait_until(lambda: consumer.poll(0) or client.runtime.listener.confirmed, "the listener hears itself")
                with concurrent.futures.ThreadPoolExecutor(1) as threads:
                    polling = threads.submit(consumer.poll, PATIENCE_SECONDS)
                    observer.execute(TERMINATE_ALL)
                    producer.send("heard", b"%d" % turn).result(PATIENCE_SECONDS)
                    assert [record.value for record in polling.result()] == [b"%d" % turn]


def test_a_command_whose_sessions_end_goes_on_or_says_so_in_one_line(
    database_url: str, client: Client, observer: Connection, shell: Callable[..., Ended]
) -> None:
    client.topics.create("shell", partitions=2)
    lines = b"".join(b"%d\n" % number for number in range(20_000))
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        ending = threads.submit(_end_while_it_grows, observer)
        ended = shell(
            database_url, "produce", "shell", "--transactional-id", "shell", "--transaction-size", "500", stdin=lines
        )
        assert ending.result(PATIENCE_SECONDS) > 0
    assert ended.code == 0, ended.err
    ended = shell(database_url, "consume", "shell", "--from-beginning", "--no-follow")
    assert ended.code == 0
    assert sorted(map(int, ended.out.split())) == list(range(20_000))
    assert client.admin.partitions.describe(TopicPartition("shell", 0)).last_stable_offset > 0


def _end_while_it_grows(observer: Connection) -> int:
    ended = 0
    for part in (1, 2, 3):
        wait_until(lambda part=part: _end(observer, "shell") >= part * 3_000, "records come")
        ended += len(observer.execute(TERMINATE_ALL).fetchall())
    return ended
