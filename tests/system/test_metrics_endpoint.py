"""The daemon's HTTP: which paths and methods there are, whether it is ready, and what a scrape costs."""

import concurrent.futures
import contextlib
import http.client
import signal
import socket
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

import msgtx
from msgtx import errors
from msgtx.coordinator import metrics as shown
from msgtx.coordinator.gauges import Gauges
from msgtx.coordinator.metrics import DaemonMetrics
from msgtx.coordinator.pace import Pace
from msgtx.coordinator.sweep import PACED, Sweeper
from msgtx.database.pool import Engine
from msgtx.store.mirrors import note_mirror, take_over_mirror
from msgtx.store.operator.server import is_weak
from msgtx.store.sweeps.coordinators import Leases
from msgtx.store.transactions.producers import init_producer_id
from msgtx.types import SweepReport, TopicPartition
from tests.cli.program import Program
from tests.databases import Connection, connect, wait_until

pytestmark = pytest.mark.slow

LEASES = Leases(1, {0: 1}, 10_000, 3_000, 1_000)
Ask = Callable[..., http.client.HTTPResponse]


@pytest.fixture
def metrics(engine: Engine) -> DaemonMetrics:
    made = DaemonMetrics()
    made.watch(engine)
    made.leased(LEASES)
    return made


@pytest.fixture
def ask(metrics: DaemonMetrics) -> Iterator[Ask]:
    endpoint = metrics.serve("127.0.0.1", 0)

    def send(path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=20)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        answer.text = answer.read()  # type: ignore[attr-defined]
        return answer

    with contextlib.closing(endpoint):
        yield send


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/metrics", 200),
        ("GET", "/metrics?name[]=msgtx_swept_total", 200),
        ("HEAD", "/metrics", 200),
        ("GET", "/healthz", 200),
        ("HEAD", "/healthz", 200),
        ("GET", "/readyz", 200),
        ("POST", "/metrics", 405),
        ("DELETE", "/readyz", 405),
        ("OPTIONS", "/healthz", 405),
        ("BREW", "/healthz", 405),
        ("GET", "/", 404),
        ("GET", "/nope", 404),
        ("GET", "/metrics/", 404),
        ("GET", "/healthz/more", 404),
        ("POST", "/nope", 404),
    ],
)
def test_there_are_three_pages_to_get(ask: Ask, method: str, path: str, status: int) -> None:
    answer = ask(path, method)
    assert answer.status == status
    assert answer.getheader("Allow") == ("GET, HEAD" if status == 405 else None)
    assert bool(answer.text) == (method != "HEAD")  # type: ignore[attr-defined]
    assert int(answer.getheader("Content-Length") or 0) > 0


def test_a_page_is_packed_for_who_takes_that(ask: Ask) -> None:
    packed, whole = ask("/metrics", **{"Accept-Encoding": "gzip"}), ask("/metrics")
    assert packed.getheader("Content-Encoding") == "gzip"
    assert len(packed.text) < len(whole.text) / 2  # type: ignore[attr-defined]


def test_a_daemon_is_alive_before_it_is_ready() -> None:
    metrics = DaemonMetrics()
    endpoint = metrics.serve("127.0.0.1", 0)
    with contextlib.closing(endpoint):
        for path, status in (("/healthz", 200), ("/readyz", 503), ("/metrics", 200)):
            connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=20)
            connection.request("GET", path)
            assert connection.getresponse().status == status, path


def test_a_daemon_whose_rounds_stopped_is_not_ready_until_the_next_one(
    metrics: DaemonMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, ahead = time.monotonic, 0.0
    monkeypatch.setattr(shown.time, "monotonic", lambda: real() + ahead)
    assert metrics.unready() is None
    ahead = 55.0
    assert metrics.unready() is None
    ahead = 65.0
    assert (metrics.unready() or "").startswith("its last round was 6")
    metrics.swept(SweepReport(), Sweeper(), 0.1)
    assert metrics.unready() is None
    metrics.leased(None)
    assert metrics.unready() == "it has not begun, or has ended"


def test_how_long_a_paced_sweep_is_behind_is_told(metrics: DaemonMetrics) -> None:
    sweeper = Sweeper(pace=Pace())
    sweeper.behind["retention"] = time.monotonic() - 100.0
    metrics.swept(SweepReport(), sweeper, 0.1)
    told = {name: metrics.registry.get_sample_value("msgtx_sweep_behind_seconds", {"sweep": name}) or 0.0 for name in PACED}
    assert told.pop("retention") >= 100.0
    assert set(told.values()) == {0.0}


def test_a_daemon_beside_a_schema_of_another_version_is_not_ready(
    metrics: DaemonMetrics, ask: Ask, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown, "ASKED_SECONDS", -1.0)
    (version,) = connection.execute("select schema_version from msgtx.installation").fetchone() or (0,)
    connection.execute("update msgtx.installation set schema_version = %s", [version - 1])
    try:
        answer = ask("/readyz")
        assert (answer.status, b"run `msgtx db upgrade`" in answer.text) == (503, True)  # type: ignore[attr-defined]
        assert ask("/healthz").status == 200
    finally:
        connection.execute("update msgtx.installation set schema_version = %s", [version])
    assert ask("/readyz").status == 200


def test_a_daemon_whose_database_is_away_is_not_ready() -> None:
    metrics = DaemonMetrics()
    metrics.watch(Engine("postgresql://nobody@127.0.0.1:1/nowhere"))
    metrics.leased(LEASES)
    assert "127.0.0.1" in (metrics.unready() or "")


def test_what_topics_and_groups_hold_is_shown(
    client: msgtx.Client, metrics: DaemonMetrics, unique: Callable[[str], str]
) -> None:
    topic, group = unique("topic"), unique("group")
    client.topics.create(topic, partitions=2)
    with client.producer() as producer:
        for index in (0, 0, 1):
            producer.send(topic, b"value", partition=index).result()
    client.admin.groups.reset(group, {TopicPartition(topic, 0): 1, TopicPartition(topic, 1): 1})
    with client.consumer(topic, group=group, enable_auto_commit=False):
        lines = metrics.text().decode().splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if f'topic="{topic}"' in line or f'group="{group}"' in line)
    ages = {name: float(found.pop(name)) for name in list(found) if "seconds" in name or "bytes" in name}
    assert {name: float(value) for name, value in found.items()} == {
        f'msgtx_topic_partitions{{topic="{topic}"}}': 2,
        f'msgtx_topic_offsets_total{{topic="{topic}"}}': 3,
        f'msgtx_topic_records{{topic="{topic}"}}': 3,
        f'msgtx_topic_held_records{{topic="{topic}"}}': 0,
        f'msgtx_group_lag_records{{group="{group}",topic="{topic}"}}': 1,
        f'msgtx_group_members{{group="{group}"}}': 1,
        f'msgtx_group_overdue_members{{group="{group}"}}': 0,
        f'msgtx_group_settled{{group="{group}"}}': 1,
        **{f'msgtx_partition_log_start_offset{{partition="{index}",topic="{topic}"}}': 0 for index in (0, 1)},
        **{f'msgtx_partition_last_stable_offset{{partition="{index}",topic="{topic}"}}': 2 - index for index in (0, 1)},
        **{f'msgtx_partition_log_end_offset{{partition="{index}",topic="{topic}"}}': 2 - index for index in (0, 1)},
    }
    assert len(ages) == 4
    assert all(value > 0 for value in ages.values())


def test_what_share_groups_have_to_do_is_shown(
    client: msgtx.Client, metrics: DaemonMetrics, unique: Callable[[str], str]
) -> None:
    topic, group = unique("topic"), unique("share")
    client.topics.create(topic, partitions=2)
    client.admin.shares.configure(group, {"auto_offset_reset": "earliest"})
    with client.producer() as producer:
        for index in (0, 0, 1):
            producer.send(topic, b"value", partition=index).result()
        producer.send(topic, b"later", partition=1, delay_ms="1h").result()
    with client.share_consumer(topic, group=group, acknowledgement_mode="explicit") as consumer:
        first, *_ = consumer.poll(10)
        consumer.acknowledge(first, msgtx.Acknowledgement.REJECT)
        consumer.commit()
        lines = metrics.text().decode().splitlines()
    found = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if f'group="{group}"' in line)}
    of = f'{{group="{group}",topic="{topic}"}}'
    assert found.pop(f"msgtx_share_lag_seconds{of}") > 0
    assert found == {
        f"msgtx_share_lag_records{of}": 3,
        f"msgtx_share_in_flight_records{of}": 2,
        f"msgtx_share_parked_records{of}": 1,
        f'msgtx_share_members{{group="{group}"}}': 1,
        f'msgtx_share_dead_letters{{group="{group}"}}': 1,
    }


def test_the_lag_of_mirrors_is_shown(engine: Engine, metrics: DaemonMetrics, unique: Callable[[str], str]) -> None:
    name, run = unique("mirror"), uuid.uuid4()
    with engine.connection() as connection:
        producer = init_producer_id(connection, f"mirror.{name}", timeout_ms=60_000)
        take_over_mirror(connection, name, run, producer, is_new=True, address="")
        assert note_mirror(connection, name, run, producer, (3, 4_500))
    found = [line for line in metrics.text().decode().splitlines() if f'mirror="{name}"' in line]
    seen, *lags = sorted(found, reverse=True)
    assert lags == [f'msgtx_mirror_lag_seconds{{mirror="{name}"}} 4.5', f'msgtx_mirror_lag_records{{mirror="{name}"}} 3.0']
    assert float(seen.rpartition(" ")[2]) >= 0


def test_with_many_partitions_there_are_figures_of_topics_alone(
    client: msgtx.Client, metrics: DaemonMetrics, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = unique("topic")
    client.topics.create(topic, partitions=2)
    monkeypatch.setattr("msgtx.coordinator.gauges.MOST_SHOWN", 1)
    text = metrics.text().decode()
    assert f'msgtx_topic_partitions{{topic="{topic}"}} 2.0' in text
    assert "msgtx_partition_" not in text


def test_more_than_is_measured_is_told(metrics: DaemonMetrics, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "msgtx_database_reading_complete 1.0" in metrics.text().decode()
    monkeypatch.setattr("msgtx.coordinator.gauges.MOST_LAGS", 0)
    again = DaemonMetrics()
    again.watch(metrics._engine)  # type: ignore[arg-type]
    assert "msgtx_database_reading_complete 0.0" in again.text().decode()


@pytest.mark.parametrize(
    ("figures", "broken", "gone"),
    [
        ("transactions", "unfinished_decisions", "msgtx_held_partitions"),
        ("server", "table_statistics", "msgtx_sessions"),
        ("holders", "snapshot_holders", "msgtx_oldest_snapshot_seconds"),
        ("groups", "measure_groups", "msgtx_group_members"),
        ("topics", "measure_partitions", "msgtx_topic_bytes"),
        ("lags", "measure_lags", "msgtx_group_lag_records"),
        ("shares", "measure_shares", "msgtx_share_lag_records"),
        ("dead_letters", "measure_dead_letters", "msgtx_share_dead_letters"),
        ("mirrors", "describe_mirrors", "msgtx_mirror_lag_records"),
    ],
)
@pytest.mark.parametrize("error", [errors.LockTimeout("planted"), psycopg.errors.DivisionByZero("planted")])
def test_figures_that_cannot_be_read_leave_all_others_there(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    figures: str, broken: str, gone: str, error: Exception,
) -> None:  # fmt: skip
    """And are told, by a metric each time and in the log once."""

    def fail(*_: object, **__: object) -> object:
        raise error

    def told(gauges: Gauges) -> dict[str, float]:
        return {
            sample.name + "".join(sample.labels.values()): sample.value
            for each in gauges.collect()
            for sample in each.samples
        }

    def names(gauges: Gauges) -> set[str]:
        return {family.name for family in gauges.collect()}

    gauges = Gauges(engine)
    before = names(gauges)
    monkeypatch.setattr(f"msgtx.coordinator.gauges.{broken}", fail)
    assert gone in before - names(gauges)
    assert len(before - names(gauges)) <= 9
    found = told(gauges)
    failed = {name: value for name, value in found.items() if name.startswith("msgtx_database_reading_failed")}
    assert failed.pop(f"msgtx_database_reading_failed{figures}") == 1
    assert len(failed) == 8
    assert set(failed.values()) == {0}
    assert found["msgtx_database_up"] == 1
    assert [record.getMessage() for record in caplog.records] == [f"the figures of {figures} cannot be read: planted"]
    monkeypatch.undo()
    assert names(gauges) == before


def test_more_groups_than_are_measured_are_left_out(
    client: msgtx.Client, engine: Engine, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, stem = unique("topic"), unique("group")
    client.topics.create(topic)
    client.admin.shares.configure(f"{stem}-share", {})
    groups = {f"{stem}-{n}" for n in range(4)}
    for group in groups:
        client.admin.groups.reset(group, {TopicPartition(topic, 0): 0})
    client.admin.shares.configure(f"{stem}-another", {})

    def shown() -> tuple[set[str], float]:
        found = {family.name: family.samples for family in Gauges(engine).collect()}
        members = {sample.labels["group"] for sample in found["msgtx_group_members"]}
        return {name for name in members if name.startswith(stem)}, found["msgtx_database_reading_complete"][0].value

    monkeypatch.setattr("msgtx.store.monitoring.GROUPS_AT_ONCE", 1)
    assert shown() == (groups, 1)
    monkeypatch.setattr("msgtx.coordinator.gauges.MOST_GROUPS", 2)
    some, complete = shown()
    assert (len(some) <= 2, complete) == (True, 0)


def test_requests_at_the_same_time_and_soon_after_read_the_database_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings: list[float] = []
    gate = threading.Event()
    collect = Gauges.collect

    def counted(gauges: Gauges) -> object:
        readings.append(time.monotonic())
        gate.wait(20)
        return collect(gauges)

    monkeypatch.setattr(Gauges, "collect", counted)
    metrics = DaemonMetrics()
    metrics.watch(engine)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(metrics.text) for _ in range(8)]
        time.sleep(0.1)
        gate.set()
        texts = {answer.result(20) for answer in asked}
    assert len(readings) == 1
    assert all(b"msgtx_database_up 1.0" in text for text in texts)
    metrics.text()
    assert len(readings) == 1
    # What took long is read anew after ten times as long.
    real, ahead = time.monotonic, 6.0
    monkeypatch.setattr(shown.time, "monotonic", lambda: real() + ahead)
    metrics.text()
    assert len(readings) == 2


def test_a_worker_of_the_command_line_is_watched(
    client: msgtx.Client, database_url: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    source, target = unique("source"), unique("target")
    for name in (source, target):
        client.topics.create(name)
    with client.producer() as producer:
        producer.send(source, b"x").result()
    (tmp_path / "shop.py").write_text("def same(record):\n    return record.value\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = ["process", source, target, "shop:same", "--group", source, "--transactional-id", source]
    with Program(database_url).start(*arguments, "--metrics-port", str(port), cwd=tmp_path) as worker:

        def page(path: str) -> str:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer,
            ):
                return str(answer.read().decode())
            return ""

        wait_until(lambda: f'msgtx_worker_records_total{{group="{source}"}} 1.0' in page("/metrics"), "it is counted")
        assert page("/healthz") == "alive\n"
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0


def test_a_reading_waits_for_nobody_and_nobody_for_it(client: msgtx.Client, engine: Engine, database_url: str) -> None:
    """Locks that writers and administrators hold, in both directions."""
    client.topics.create("locked")
    with connect(database_url) as holder:
        holder.execute("begin")
        holder.execute("select msgtx.lock_partition(p.partition_id) from msgtx.partition p")
        holder.execute("update msgtx.partition set counted_bytes = counted_bytes")
        holder.execute("update msgtx.consumer_group set generation = generation")
        names = {family.name for family in Gauges(engine).collect()}
        holder.execute("rollback")
    assert "msgtx_topic_bytes" in names
    with engine.connection() as connection, connection.transaction():
        taken = [metric.name for metric in Gauges(_Same(connection)).collect()]  # type: ignore[arg-type]
        modes = connection.execute(
            "select distinct mode from pg_locks where pid = pg_backend_pid() and locktype in ('relation', 'advisory')"
        ).fetchall()
    assert "msgtx_group_settled" in taken
    assert modes == [("AccessShareLock",)]


class _Same:
    """An engine of one connection, whose locks can be looked at."""

    def __init__(self, connection: object) -> None:
        self._connection = connection
        self.reading, self.standby = self, None

    def connection(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext(self._connection)


def test_what_only_the_doctor_knew_is_measured(
    metrics: DaemonMetrics, connection: Connection, open_connection: Callable[[], Connection]
) -> None:
    """A forgotten transaction, and a promotion that nobody noted."""

    def told(name: str) -> float:
        again = DaemonMetrics()
        again.watch(metrics._engine)  # type: ignore[arg-type]
        lines = again.text().decode().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith(f"msgtx_{name} ")))

    for name in ("place_is_not_noted", "weak_synchronous_commit", "unused_slot_retained_bytes"):
        assert told(name) == 0, name
    assert 0 <= told("notification_queue_usage") < 1
    forgotten = open_connection()
    forgotten.execute("begin isolation level repeatable read")
    forgotten.execute("select 1")
    wait_until(lambda: told("oldest_snapshot_seconds") > 1, "it grows old")
    forgotten.execute("rollback")
    connection.execute("update msgtx.installation set timeline = timeline + 1")
    assert told("place_is_not_noted") == 1
    connection.execute("select msgtx.note_place()")
    assert told("place_is_not_noted") == 0


def test_commits_that_do_not_wait_for_the_synchronous_standby_are_weak() -> None:
    for commit, weak in (("on", False), ("remote_apply", False), ("off", False), ("local", True), ("remote_write", True)):
        assert is_weak({"synchronous_standby_names": "b", "synchronous_commit": commit}) is weak
        assert not is_weak({"synchronous_standby_names": "", "synchronous_commit": commit})
