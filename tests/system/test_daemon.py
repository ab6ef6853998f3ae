"""The coordinator daemon as real processes: each shard has one leader at a time, whatever happens to it or its database."""

import contextlib
import json
import logging
import math
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import pytest

import msgtx
from msgtx import Client
from msgtx.coordinator.daemon import BACKOFF_FIRST_SECONDS
from msgtx.coordinator.daemon import Daemon as InProcess
from msgtx.coordinator.metrics import DaemonMetrics
from msgtx.coordinator.sweep import STEPS
from msgtx.database.pool import Engine
from msgtx.store.sweeps.coordinators import lease_shards
from msgtx.types import SweepReport
from tests.cli.program import Program
from tests.databases import Connection, connect, wait_until
from tests.faults import CrashServer, crash_server
from tests.hooks import Hook, away
from tests.store.steps import fill, new_partition, unique
from tests.system.scenarios import FAST

pytestmark = pytest.mark.slow

LEASE_MS = 600
INTERVAL_MS = 50
ALL = set(range(50))
STARTED_SECONDS = 30.0
COUNTS = tuple(entry.name for entry in fields(SweepReport))
SWEEPS = tuple(STEPS)


def hurry(url: str, **settings: int) -> None:
    with connect(url) as connection:
        for name, value in {"lease_ms": LEASE_MS, "sweep_interval_ms": INTERVAL_MS, **settings}.items():
            connection.execute("update msgtx.setting set value = %s where name = %s", [value, name])


class Daemon:
    """A daemon and the lines that it writes."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.decode().rstrip("\n"))

    def told(self, text: str) -> str | None:
        return next((line for line in self.lines if re.search(text, line)), None)

    def wait_for(self, text: str) -> str:
        found: str = wait_until(lambda: self.told(text), f"{text!r} among {self.lines}")
        return found

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.send(number)
        code = self.process.wait(STARTED_SECONDS)
        self._reader.join(STARTED_SECONDS)
        assert not self.told("Traceback"), self.lines
        return code


Start = Callable[..., Daemon]


@pytest.fixture(scope="module", autouse=True)
def _in_a_hurry(database_url: str) -> None:
    hurry(database_url)


@contextlib.contextmanager
def starting(url: str) -> Iterator[Start]:
    """Start daemons; none outlives the block."""
    with contextlib.ExitStack() as stack:
        program = Program(url)

        def start(*options: str) -> Daemon:
            return Daemon(stack.enter_context(program.start("coordinator", "run", *options)))

        yield start


@pytest.fixture
def start(database_url: str) -> Iterator[Start]:
    with starting(database_url) as made:
        yield made


def owners(client: Client) -> dict[int, int | None]:
    """The process that leads each shard."""
    return {shard.shard: shard.process for shard in client.admin.coordinators()}


def shares(client: Client, *daemons: Daemon) -> list[int]:
    led = list(owners(client).values())
    return [led.count(daemon.process.pid) for daemon in daemons]


def await_shares(client: Client, *daemons: Daemon) -> None:
    """Wait until these daemons, and no others, share the shards."""
    expected = sorted(50 // len(daemons) + (index < 50 % len(daemons)) for index in range(len(daemons)))
    wait_until(
        lambda: sorted(shares(client, *daemons)) == expected, f"the shards are divided: {[each.lines for each in daemons]}"
    )


# ── one daemon ──


def test_ctrl_c_releases_the_shards(start: Start, client: Client) -> None:
    daemon = start()
    await_shares(client, daemon)
    epochs = {shard.shard: shard.epoch for shard in client.admin.coordinators()}
    assert daemon.end(signal.SIGINT) == 130
    assert set(owners(client).values()) == {None}
    assert {shard.shard: shard.epoch for shard in client.admin.coordinators()} == epochs
    assert [re.sub(r"^\S+ (info|warning) |\d+(?= stops)", "", line) for line in daemon.lines[1:]] == [
        "leads shards 0-49",
        "coordinator  stops",
    ]


def test_a_daemon_alone_does_what_time_brings(start: Start, client: Client, database_url: str) -> None:
    """I12: no client reads or sweeps; its lines report what it did."""
    topic = unique("topic")
    client.topics.create(topic)
    daemon = start("--log-format", "json", "--metrics-port", "0")
    address = json.loads(daemon.wait_for('"event": "metrics"'))["message"].split()[-1]
    producer = client.producer(transactional_id=topic, **FAST)
    producer.init_transactions()
    name = producer.begin_transaction(timeout_ms=1).id
    producer.send(topic, b"overdue").result(STARTED_SECONDS)
    with connect(database_url) as watcher:  # reads the table: a call of the library might abort it
        wait_until(
            lambda: watcher.execute(
                "select true from msgtx.transaction_decision where producer_id = %s and decided_by = 'timeout'",
                [name.producer_id],
            ).fetchone(),
            "it is aborted",
        )
        wait_until(
            lambda: watcher.execute("select true from msgtx.transaction_marker where outcome = 'ABORT'").fetchone(),
            "it is marked",
        )
    daemon.wait_for('"event": "floors_moved"')
    found = metrics(address)
    assert {name.split("{")[0] for name in found} >= {
        "msgtx_coordinator_shards", "msgtx_sweep_round_seconds_count", "msgtx_sweep_round_seconds_sum",
        "msgtx_sweep_step_seconds", "msgtx_swept_total",
    }  # fmt: skip
    assert found["msgtx_coordinator_shards"] == 50
    assert {kind: found[f'msgtx_swept_total{{kind="{kind}"}}'] >= (kind in COUNTS[:3]) for kind in COUNTS} == dict.fromkeys(
        COUNTS, True
    )
    assert found['msgtx_swept_total{kind="transactions_aborted"}'] == 1
    assert all(found[f'msgtx_sweep_step_seconds{{sweep="{name}"}}'] >= 0 for name in SWEEPS)
    before = found["msgtx_sweep_round_seconds_count"]
    wait_until(lambda: metrics(address)["msgtx_sweep_round_seconds_count"] > before, "rounds go on")
    assert daemon.end() == 0
    assert set(owners(client).values()) == {None}
    lines = [json.loads(line) for line in daemon.lines]
    assert all(line.keys() >= {"time", "level", "event", "message"} for line in lines)
    assert [line["event"] for line in lines if not line["event"].startswith("floors")] == [
        "metrics", "start", "shards_gained", "transactions_aborted", "markers_written", "stop",
    ]  # fmt: skip
    (gained,) = [line for line in lines if line["event"] == "shards_gained"]
    assert (set(gained["shards"]), gained["coordinator_id"] > 0) == (ALL, True)
    producer.close()


def test_whatever_a_round_can_do_is_told_and_counted(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """A field of the report without words for a line ended the daemon in the first round that counted one."""
    caplog.set_level(logging.INFO, logger="msgtx.coordinator")
    observer = DaemonMetrics()
    report = SweepReport(**{name: number for number, name in enumerate(COUNTS, 1)})
    InProcess(engine, observer=observer)._tell(report, 0.1)
    told = {line.event: line.getMessage() for line in caplog.records}  # type: ignore[attr-defined]
    assert told == {name: f"{name.replace('_', ' ')}: {number}" for number, name in enumerate(COUNTS, 1)}
    counted = [observer.registry.get_sample_value("msgtx_swept_total", {"kind": name}) for name in COUNTS]
    assert counted == list(range(1, len(COUNTS) + 1))


def test_shards_that_were_taken_over_are_counted_as_a_failure_and_leased_again(
    engine: Engine, connection: Connection
) -> None:
    observer = DaemonMetrics()
    daemon = InProcess(engine, observer=observer)
    daemon._work()
    connection.execute("update msgtx.coordinator_shard set coordinator_epoch = coordinator_epoch + 1")
    daemon._renew_at = math.inf  # it does not know yet
    assert daemon._work() == BACKOFF_FIRST_SECONDS
    assert observer.registry.get_sample_value("msgtx_coordinator_errors_total", {"error": "CoordinatorFenced"}) == 1
    daemon._work()
    rows = connection.execute("select shard, coordinator_epoch from msgtx.coordinator_shard").fetchall()
    assert daemon._leases is not None
    assert daemon._leases.epochs == dict(rows)
    daemon._release()


def test_a_database_that_is_away_is_asked_less_and_less_often_each_time_anew(
    engine: Engine, engine_hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever happened before it answered; and it says once that it does."""
    caplog.set_level(logging.INFO, logger="msgtx.coordinator")
    daemon = InProcess(engine)
    for _ in range(2):
        daemon._renew_at = 0.0
        with engine_hook.at("before lease_shards", away):
            assert [daemon._work() for _ in range(3)] == [BACKOFF_FIRST_SECONDS * times for times in (1, 2, 4)]
        for _ in range(2):
            daemon._work()
    daemon._release()
    told = [line.event for line in caplog.records if line.event.startswith("database")]  # type: ignore[attr-defined]
    assert told == ["database_away", "database_back"] * 2


def test_a_daemon_that_rests_is_stopped_at_once(engine: Engine, database_url: str) -> None:
    class Stop:
        looks = 0

        def is_set(self) -> bool:
            self.looks += 1
            return self.looks > 2  # not at the start, and not when it begins to rest

    hurry(database_url, sweep_interval_ms=60_000, lease_ms=60_000)
    try:
        began = time.monotonic()
        InProcess(engine).run(Stop())
        assert time.monotonic() - began < 10.0
    finally:
        hurry(database_url)


def test_between_two_rounds_a_daemon_continues_what_its_pace_has_interrupted(
    engine: Engine, connection: Connection, database_url: str
) -> None:
    """A round removes one of the rows; the next round is ten minutes away."""
    partition = new_partition(connection, retention_bytes=0)
    fill(connection, partition, 4, byte_size=2 << 20)

    class Stop:
        def is_set(self) -> bool:
            (left,) = connection.execute(
                "select count(*) from msgtx.record_batch where partition_id = %s", [partition]
            ).fetchone() or (0,)
            return not left or time.monotonic() - began > 60

    hurry(database_url, sweep_interval_ms=600_000, lease_ms=600_000)
    try:
        began = time.monotonic()
        InProcess(engine).run(Stop())
        assert time.monotonic() - began < 60
    finally:
        hurry(database_url)


def metrics(address: str) -> dict[str, float]:
    with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 - of the daemon itself
        text = answer.read().decode()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")}


def test_a_daemon_that_is_alone_rests_between_its_rounds(start: Start, client: Client, database_url: str) -> None:
    """Its pauses follow the settings: a lease is renewed after a third of its time, each interval has one round."""
    hurry(database_url, sweep_interval_ms=60_000, lease_ms=60_000)
    try:
        daemon = start("--metrics-port", "0")
        address = daemon.wait_for("metrics at").split()[-1]
        await_shares(client, daemon)
        wait_until(lambda: metrics(address)["msgtx_sweep_round_seconds_count"], "a round is done")
        with connect(database_url) as watcher:
            used = [_seconds_used(daemon.process.pid)]
            watcher.execute("select pg_sleep(0.5)")
            used.append(_seconds_used(daemon.process.pid))
        assert metrics(address)["msgtx_sweep_round_seconds_count"] == 1
        assert used[1] - used[0] < 0.2
        assert daemon.end() == 0, "it still reacts to signals"
    finally:
        hurry(database_url)


def _seconds_used(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:  # noqa: PTH123
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ── several ──


class Watch:
    """Continually reads which process leads which shard from the database; notes what must never happen."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self.looks = 0
        self.wrong: list[Any] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        last: dict[int, tuple[int | None, int]] = {}
        with connect(self._url) as connection:
            while not self._stop.is_set():
                rows = connection.execute(
                    "select s.shard, s.coordinator_id, s.coordinator_epoch from msgtx.coordinator_shard s order by 1"
                ).fetchall()
                now = {shard: (owner, epoch) for shard, owner, epoch in rows}
                if len(rows) != len(now) or set(now) != ALL:
                    self.wrong.append(rows)
                for shard, (owner, epoch) in now.items():
                    owner_before, epoch_before = last.get(shard, (owner, epoch))
                    if epoch < epoch_before or (owner not in {owner_before, None} and epoch == epoch_before):
                        self.wrong.append((shard, last[shard], now[shard]))
                last = now
                self.looks += 1

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self.wrong == []
        assert self.looks > 10


def test_two_daemons_divide_the_shards_and_one_that_is_killed_loses_its_own_in_time(
    start: Start, client: Client, database_url: str
) -> None:
    with Watch(database_url):
        first, second = start(), start()
        await_shares(client, first, second)
        before = {shard.shard: shard for shard in client.admin.coordinators()}
        first.send(signal.SIGKILL)
        first.process.wait()
        with connect(database_url) as connection:
            (killed_at,) = connection.execute("select clock_timestamp()").fetchone() or (None,)
            await_shares(client, second)
            (moved_at,) = connection.execute("select max(leased_at) from msgtx.coordinator_shard").fetchone() or (None,)
        # The rest of the lease, and the time until the other one looks; slow machines need more.
        assert (moved_at - killed_at).total_seconds() <= LEASE_MS / 1000 + 1.0
        after = {shard.shard: shard for shard in client.admin.coordinators()}
        risen = {shard: after[shard].epoch - before[shard].epoch for shard in ALL}
        assert risen == {shard: int(before[shard].process == first.process.pid) for shard in ALL}
        assert second.end() == 0


def test_a_daemon_that_was_stopped_hears_that_it_was_fenced_and_goes_on(
    start: Start, client: Client, database_url: str
) -> None:
    with Watch(database_url):
        first, second = start(), start()
        await_shares(client, first, second)
        before = {shard.shard: shard.epoch for shard in client.admin.coordinators() if shard.process == first.process.pid}
        first.send(signal.SIGSTOP)
        await_shares(client, second)
        after = {shard.shard: shard.epoch for shard in client.admin.coordinators()}
        assert {shard: after[shard] - epoch for shard, epoch in before.items()} == dict.fromkeys(before, 1)
        first.send(signal.SIGCONT)
        first.wait_for("warning .*taken over")
        await_shares(client, first, second)
        assert first.end() == 0
        assert second.end() == 0


# ── the database is unavailable ──


@pytest.fixture(scope="module")
def crashing() -> Iterator[CrashServer]:
    with crash_server() as server:
        yield server


def test_a_daemon_outlives_its_database(crashing: CrashServer) -> None:
    """One line when it goes, one when it comes back; then the daemon leads again and continues."""
    url = crashing.server.create_database()
    hurry(url)
    with starting(url) as start:
        daemon = start()
        with msgtx.connect(url) as client:
            await_shares(client, daemon)
        for round_number in (1, 2):
            crashing.kill()
            daemon.wait_for("the database is away")
            crashing.start()
            wait_until(
                lambda number=round_number: sum("answers again" in line for line in daemon.lines) == number,  # type: ignore[misc]
                f"it is back: {daemon.lines}",
            )
            with msgtx.connect(url) as client:
                await_shares(client, daemon)
                client.topics.create(f"topic-{round_number}")
                producer = client.producer(transactional_id=f"id-{round_number}", **FAST)
                producer.init_transactions()
                producer.begin_transaction(timeout_ms=1)
                producer.send(f"topic-{round_number}", b"x").result(STARTED_SECONDS)
                wait_until(
                    lambda number=round_number: sum("transactions aborted: 1" in line for line in daemon.lines) == number,  # type: ignore[misc]
                    "it sweeps",
                )
                producer.close()
        assert sum("is away" in line for line in daemon.lines) == 2, daemon.lines
        crashing.kill()
        try:
            wait_until(lambda: sum("is away" in line for line in daemon.lines) == 3, "it is away again")
            assert daemon.end() == 0, "it still ends"
            assert daemon.told("its shards stay until its lease is over")
        finally:
            crashing.start()


def test_a_lease_that_was_answered_survives_a_crash(crashing: CrashServer) -> None:
    """No coordinator id and no epoch is issued twice. The call flushes by itself, and no other session does."""
    url = crashing.server.create_database()
    given: list[tuple[int, int]] = []
    for _ in range(4):
        with connect(url) as connection:
            connection.execute("set synchronous_commit = off")
            connection.execute("update msgtx.coordinator set lease_until = lease_until - interval '1 hour'")
            leases = lease_shards(connection, None, host="here", process=1)
            given.append((leases.coordinator_id, leases.epochs[0]))
        crashing.crash()
    ids, epochs = zip(*given, strict=True)
    assert len(set(ids)) == len(ids), given
    assert list(epochs) == [1, 2, 3, 4]


# ── wrong usage ──


def test_a_port_in_use_is_one_line_and_exit_code_2(database_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = Program(database_url).run("coordinator", "run", "--metrics-port", str(taken.getsockname()[1]))
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert re.fullmatch(r"msgtx: metrics cannot be served at 127\.0\.0\.1:\d+: Address already in use", line)
