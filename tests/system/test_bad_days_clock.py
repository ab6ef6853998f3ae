"""Bad days: the server's clock is set an hour forward or back while everything runs."""

import concurrent.futures
from collections.abc import Callable
from pathlib import Path

import pytest

import msgtx
from msgtx import Outcome, TopicPartition, errors
from msgtx.client import Client
from tests.cli.program import Ended
from tests.databases import Connection, wait_until
from tests.refusals import refuses
from tests.system.scenarios import FAST, PATIENCE_SECONDS, READING, SCENARIOS, World, prepare, read_all, settle, stable

pytestmark = pytest.mark.slow

Clock = Callable[..., None]
STEPS = ("1 hour", None, "-1 hour", None)  # forward, back to the real time, back, forward again


def in_order(connection: Connection) -> bool:
    """Whether no row of the log is dated before the row in front of it."""
    found = connection.execute(
        "select count(*) from (select appended_at, lag(appended_at) over (partition by partition_id order by base_offset)"
        " as before from msgtx.record_batch) r where appended_at < before"
    ).fetchone()
    return found == (0,)


def test_a_clock_that_goes_forward_ends_open_transactions_and_their_producers_live_on(
    client: Client, clock: Clock, connection: Connection
) -> None:
    client.topics.create("forward", partitions=2)
    partition = TopicPartition("forward", 0)
    with client.producer(transactional_id="forward", **FAST) as producer:
        for end in ("commit", "send", "sweep"):
            name = producer.begin_transaction(timeout_ms=60_000).id
            producer.send("forward", b"open", partition=0).result(PATIENCE_SECONDS)
            clock("1 hour")
            if end == "sweep":
                client.sweep()
            else:
                with client.consumer(**READING) as reader:  # a reader that it holds back ends it
                    reader.assign([partition])
                    wait_until(lambda reader=reader: (reader.poll(0), stable(client, "forward"))[1], "readers pass")
            if end == "send":
                late = producer.send("forward", b"late", partition=0)
                with refuses(errors.TransactionAborted, reason="timeout"):
                    late.result(PATIENCE_SECONDS)
            with refuses(errors.TransactionAborted, reason="timeout"):
                producer.commit_transaction()
            producer.abort_transaction()
            assert client.admin.transactions.outcome(name).decided_by == "timeout"
            with producer.transaction():
                producer.send("forward", f"after {end}".encode(), partition=0)
            clock(None)
    client.sweep()
    assert [value for _, value in read_all(client, "forward")[0]] == ["after commit", "after send", "after sweep"]
    assert in_order(connection)


def test_a_clock_that_goes_back_ends_nothing_early(client: Client, clock: Clock, connection: Connection) -> None:
    client.topics.create("back", partitions=2)
    with client.producer(transactional_id="back", **FAST) as producer:
        clock("1 hour")
        name = producer.begin_transaction(timeout_ms=60_000).id
        producer.send("back", b"kept", partition=0).result(PATIENCE_SECONDS)
        clock("-1 hour")
        client.sweep()
        assert client.transaction_outcome(name) is Outcome.OPEN
        producer.send("back", b"kept, too", partition=0)
        producer.commit_transaction()
    assert [value for _, value in read_all(client, "back")[0]] == ["kept", "kept, too"]
    assert in_order(connection)


def test_what_a_dead_producer_left_in_the_future_holds_nobody_up(
    client: Client, clock: Clock, database_url: str, shell: Callable[..., Ended]
) -> None:
    """I8, I12: otherwise readers would wait until the clock has caught up: an hour, or ten years."""
    client.topics.create("left", partitions=2)
    clock("10 years")
    dead = msgtx.connect(database_url)
    producer = dead.producer(transactional_id="left", **FAST)
    producer.init_transactions()
    name = producer.begin_transaction().id
    producer.send("left", b"left", partition=0).result(PATIENCE_SECONDS)
    clock(None)
    with client.producer(linger_ms=0, **FAST) as other, client.consumer("left", **READING) as reader:
        other.send("left", b"behind", partition=0).result(PATIENCE_SECONDS)
        assert reader.poll(0) == []
        dead.runtime.engine.close()  # the process is gone; no client aborts
        assert [record.value for record in reader.poll(PATIENCE_SECONDS)] == [b"behind"]
    assert client.admin.transactions.outcome(name).decided_by == "timeout"
    assert shell(database_url, "sweep").code == 0
    with pytest.raises(errors.TransactionAborted):
        producer.commit_transaction()
    dead.close()


def test_programs_notice_nothing_of_a_clock_that_is_set_while_they_run(
    client: Client, clock: Clock, connection: Connection, tmp_path: Path
) -> None:
    """Only transactions longer than a jump may be ended by it. At the end everything is complete."""

    def run(name: str) -> list[World]:
        worlds = [World(client, f"set-{name}-{turn}", tmp_path) for turn in range(3)]
        for world in worlds:
            try:
                prepare(world)
                SCENARIOS[name].program(world)
            finally:
                world.close()
        return worlds

    names = ("send", "commit", "fused", "abort")
    with concurrent.futures.ThreadPoolExecutor(len(names)) as threads:
        running = {name: threads.submit(run, name) for name in names}
        steps = 0
        while not all(future.done() for future in running.values()):
            clock(STEPS[steps % len(STEPS)])
            steps += 1
            concurrent.futures.wait(running.values(), timeout=0.03)
    assert steps > 2
    clock(None)
    for name, future in running.items():
        assert settle(future.result(), image=SCENARIOS[name].image) == []
    assert in_order(connection)
    missing = connection.execute(
        "select d.* from msgtx.transaction_decision d cross join lateral unnest(d.partitions) p(partition_id)"
        " left join msgtx.transaction_marker m using (partition_id, producer_id, producer_epoch, transaction_number)"
        " where d.outcome = 'ABORT' and m.outcome is null"
    ).fetchall()
    assert missing == []
    states = {listing.state for listing in client.admin.transactions.list()}
    assert states <= {"Empty", "CompleteCommit", "CompleteAbort"}, states
    behind = connection.execute(
        "select f.partition_id from msgtx.partition_floor f join msgtx.record_batch b using (partition_id)"
        " where exists (select from msgtx.transaction_partition t where t.partition_id = f.partition_id)"
        " group by 1 having max(f.stable_floor) < max(b.last_offset) + 1"
    ).fetchall()
    assert behind == []


def test_a_client_marks_its_own_decisions_after_the_clock_was_set_back(
    client: Client, clock: Clock, connection: Connection
) -> None:
    """Without a sweep: a second after the decision, as always."""
    client.topics.create("marked", partitions=2)
    with client.producer(transactional_id="marked", **FAST) as producer:
        for at in ("1 hour", None, "-1 hour"):
            clock(at)
            for end in (producer.abort_transaction, producer.commit_transaction):
                producer.begin_transaction()
                producer.send("marked", str(at).encode(), partition=0)
                producer.flush(PATIENCE_SECONDS)
                end()
            wait_until(
                lambda: (
                    connection.execute(
                        "select count(*) = 0 from msgtx.transaction_decision d join msgtx.producer p using (producer_id)"
                        " left join msgtx.transaction_marker m using (producer_id, producer_epoch, transaction_number)"
                        " where p.transactional_id = 'marked' and m.outcome is null"
                    ).fetchone()
                    == (True,)
                ),
                f"all decisions are marked, the clock at {at}",
                seconds=5,
            )
    assert [value for _, value in read_all(client, "marked")[0]] == ["1 hour", "None", "-1 hour"]
