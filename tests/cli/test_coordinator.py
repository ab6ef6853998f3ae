"""`msgtx coordinator list` and `find`, `msgtx sweep`; the daemon itself is tested in tests/system."""

import json
import re
import signal
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from msgtx import Client, TopicPartition
from msgtx.store.sweeps.coordinators import Leases, lease_shards, release_shards
from tests.cli.program import Ended, Program
from tests.databases import Connection, wait_until

Msgtx = Callable[..., Ended]
COUNTS = {
    "transactions_aborted", "markers_written", "floors_moved", "batches_removed", "records_compacted",
    "producer_ids_removed", "transactions_purged", "offsets_removed", "floors_removed", "members_removed",
    "heartbeats_removed", "shares_settled", "share_rows_removed",
    "spark_rows_removed", "seals_removed", "dedup_keys_removed", "log_rows_removed", "wake_ups_removed",
    "sweeps_unfinished",
}  # fmt: skip


@pytest.fixture
def leases(client: Client) -> Iterator[Leases]:
    """A coordinator that leads every shard."""
    with client.runtime.engine.connection() as connection:
        made = lease_shards(connection, None, host="somewhere", process=4711)
        yield made
        release_shards(connection, made.coordinator_id)


def test_who_leads_nothing_is_listed_as_nobody(msgtx: Msgtx) -> None:
    (row,) = msgtx("coordinator", "list", "-o", "jsonl").rows
    assert (row["owner"], row["host"], len(row["shards"])) == (None, None, 50)
    assert "0-49" in msgtx("coordinator", "list").out.decode()


def test_coordinators_are_listed_with_their_shards_and_epochs(msgtx: Msgtx, leases: Leases) -> None:
    (row,) = msgtx("coordinator", "list", "-o", "jsonl").rows
    assert (row["owner"], row["host"], row["process"]) == (leases.coordinator_id, "somewhere", 4711)
    assert {int(shard): epoch for shard, epoch in row["shards"].items()} == leases.epochs
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", row["lease_until"])
    table = msgtx("coordinator", "list").out.decode()
    assert all(text in table for text in ("somewhere", "4711", "0-49"))


def test_the_coordinator_of_an_id_is_found(msgtx: Msgtx, leases: Leases, client: Client) -> None:
    row = json.loads(msgtx("coordinator", "find", "id", "-o", "json").out)
    led = client.admin.find_coordinator("id")
    assert (row["shard"], row["owner"], row["epoch"]) == (led.shard, leases.coordinator_id, leases.epochs[led.shard])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", row["lease_until"])
    table = msgtx("coordinator", "find", "id").out.decode()
    assert all(text in table for text in ("somewhere", "4711", str(led.shard)))


def test_without_a_coordinator_one_line_says_what_to_run(msgtx: Msgtx) -> None:
    done = msgtx("coordinator", "find", "id")
    assert (done.code, done.out) == (1, b"")
    assert re.fullmatch(r"msgtx: no coordinator leads shard \d+ now; run `msgtx coordinator run`.*\n", done.err)
    assert msgtx("coordinator", "find", "").code == 2


def test_a_sweep_tells_what_it_did(msgtx: Msgtx, client: Client, topic: str) -> None:
    with client.producer(transactional_id=topic) as producer:
        producer.begin_transaction(timeout_ms=1)
        producer.send(topic, b"x").result(30)
        told = json.loads(msgtx("sweep", "--dry-run", "-o", "json").out)
        assert (set(told), told["transactions_aborted"]) == (COUNTS, 1)
        some = json.loads(msgtx("sweep", "--only", "markers", "--only", "floors", "-o", "json").out)
        assert some["transactions_aborted"] == 0
        assert json.loads(msgtx("sweep", "-o", "json").out)["transactions_aborted"] == 1
        assert all(name in msgtx("sweep").out.decode() for name in COUNTS)


@pytest.fixture
def slow_sweeps(msgtx: Msgtx) -> Iterator[Callable[[str], Ended]]:
    """Change the pace of sweeps; afterwards it is as before."""
    set_pace = partial(msgtx, "db", "settings", "sweep_max_bytes_per_second")
    yield set_pace
    set_pace("16MiB")


def test_ctrl_c_ends_the_pause_of_a_sweep(
    msgtx: Msgtx, program: Program, client: Client, topic: str, connection: Connection, slow_sweeps: Callable[[str], Ended]
) -> None:
    """The pause would last for days."""
    slow_sweeps("1")
    with client.producer(batch_bytes=1_000) as producer:
        for _ in range(3):
            producer.send(topic, b"x" * 900_000, partition=0).result()
    client.admin.partitions.delete_records({TopicPartition(topic, 0): -1})
    with program.start("sweep") as process:
        wait_until(lambda: rows_of(connection, topic) < 3, "a row is gone")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    assert rows_of(connection, topic) > 0
    assert msgtx("sweep", "--full-speed", "--only", "retention").code == 0
    assert rows_of(connection, topic) == 0


def rows_of(connection: Connection, topic: str) -> int:
    (rows,) = connection.execute(
        "select count(*) from msgtx.record_batch join msgtx.partition using (partition_id) join msgtx.topic using (topic_id)"
        " where name = %s",
        [topic],
    ).fetchone() or (0,)
    return int(rows)


def test_an_unknown_sweep_is_refused_in_one_line(msgtx: Msgtx) -> None:
    done = msgtx("sweep", "--only", "everything")
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert (
        "overdue, markers, acknowledgements, seals, deleted, retention, compaction, ids, history, offsets, floors"
        in done.err
    )
