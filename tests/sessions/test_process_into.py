"""`client.process_into`: rows made of records, exactly once, by a loop that owns itself (I10, I11)."""

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

import msgtx
from msgtx import ProcessReport, Record, TopicPartition, errors, orm
from msgtx.process.into import Into, IntoAsync
from tests.client.steps import lose_rows
from tests.databases import Connection, wait_until, waiting_backends
from tests.refusals import refuses
from tests.sessions.conftest import LEVELS, Order, Shop
from tests.store.steps import unique

pytestmark = pytest.mark.slow

Handler = Callable[[Any, Any], object]
Run = Callable[..., ProcessReport]
LETTER: Final = ["group", "topic", "partition", "offset", "deliveries", "reason", "member", "time", "timestamp"]
VALUES: Final = [b"1", b"2", b"poison", b"4", b"5"]


@pytest.fixture
def run(shop: Shop, caplog: pytest.LogCaptureFixture) -> Run:
    """Work on the topic to its end; the group has its name. What is said of records is in `caplog`."""
    caplog.set_level(logging.WARNING, "msgtx.process")

    def call(handler: Handler, factory: Callable[[], Any] | None = None, **options: Any) -> ProcessReport:
        factory = factory or sessionmaker(shop.engine())
        return shop.client.process_into(
            factory, handler, shop.topic, **{"group": shop.topic, "idle_timeout": 0.2, **options}
        )

    return call


def store(session: Session, record: Record) -> None:
    session.add(Order(number=int(record.value or b"")))


def store_all(session: Session, records: list[Record]) -> None:
    session.add_all([Order(number=int(record.value or b"")) for record in records])


def lag(client: msgtx.Client, group: str) -> int:
    return client.admin.groups.describe(group).lag


def test_a_handler_that_raises_once_loses_nothing(shop: Shop, run: Run) -> None:
    shop.send(b"0", b"1", b"2", b"3")
    failures = [ConnectionError("mail server")]

    def handler(session: Session, record: Record) -> None:
        store(session, record)
        if record.value == b"1" and failures:
            raise failures.pop()

    report = run(handler)
    assert (shop.rows(), lag(shop.client, shop.topic)) == ([0, 1, 2, 3], 0)
    assert (report.records_in, report.records_out, report.failed) == (4, 0, 0)
    assert report.aborted >= 1


@pytest.mark.parametrize("when", ["commit", "poll"])
def test_a_log_that_has_lost_what_was_read_is_read_again_from_the_committed_offsets(
    shop: Shop, run: Run, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    """P38, decision 0025: as after a failover. What the loss left without a record is rolled back."""
    shop.send(b"0", b"1", b"2")
    left = [when]

    def lose(here: str) -> None:
        if here in left:
            left.remove(here)
            for partition in range(3):
                lose_rows(shop.connection, shop.topic, partition=partition)
            shop.connection.execute("delete from msgtx.group_offset")
            shop.send(*(b"%d" % number for number in range(10, 25)))

    def handler(session: Session, records: list[Record]) -> None:
        store_all(session, records)
        lose("commit")

    run(handler, batch=True, on_commit=lambda report: lose("poll") if report.records_in == 3 else None)
    assert set(shop.rows()) - {0, 1, 2} == set(range(10, 25))
    assert left == []
    assert sum("goes on from what is committed" in message for message in caplog.messages) >= 1


@pytest.mark.parametrize("handler", [store, store_all])
@pytest.mark.parametrize("level", LEVELS)
def test_many_records_are_one_commit_and_a_batch_is_one_call(shop: Shop, run: Run, handler: Handler, level: str) -> None:
    shop.send(*(b"%d" % number for number in range(300)))
    report = run(handler, sessionmaker(shop.engine(isolation_level=level)), batch=handler is store_all)
    assert shop.rows() == list(range(300))
    assert report.records_in == 300
    assert report.transactions <= 100


@pytest.mark.parametrize("kind", ["engine.connect", "engine.begin", "sessionmaker.begin"])
def test_connections_and_sessions_that_commit_themselves_will_do(shop: Shop, run: Run, kind: str) -> None:
    shop.send(b"1", b"2", b"3")

    def handler(session: Any, record: Record) -> None:
        session.execute(sqlalchemy.insert(Order).values(number=int(record.value or b"")))

    factories = {
        "engine.connect": shop.app.connect,
        "engine.begin": shop.app.begin,
        "sessionmaker.begin": sessionmaker(shop.app).begin,
    }
    run(handler, factories[kind])
    assert shop.rows() == [1, 2, 3]


# ── what a handler fails on ──


@pytest.mark.parametrize("batch", [False, True])
def test_a_poisoned_record_stops_the_worker_and_is_named(shop: Shop, run: Run, batch: bool) -> None:
    shop.send(*VALUES)
    with pytest.raises(ValueError, match="poison") as caught:
        run(store_all if batch else store, failure=msgtx.Stop(), batch=batch)
    (note,) = caught.value.__notes__
    assert note.startswith(f"failed on {shop.topic}-0 offset")
    assert batch or note.startswith(f"failed on {shop.topic}-0 offset 2;")
    assert set(shop.rows()) <= {1, 2}
    with shop.client.consumer(shop.topic, group=shop.topic, auto_offset_reset="earliest") as successor:
        assert successor.position(TopicPartition(shop.topic, 0)) == len(shop.rows())


@pytest.mark.parametrize("batch", [False, True])
def test_a_poisoned_record_is_a_dead_letter_in_one_commit_with_its_offset(shop: Shop, run: Run, batch: bool) -> None:
    grave = shop.make_topic()
    shop.send(*VALUES, key=b"key", headers=[("origin", b"shop")])
    tried: list[bytes | None] = []

    def handler(session: Session, given: Any) -> None:
        records = given if batch else [given]
        tried.extend(record.value for record in records if len(records) == 1 or not batch)
        store_all(session, records)

    report = run(handler, failure=msgtx.DeadLetter(grave, 1), batch=batch)
    assert (shop.rows(), lag(shop.client, shop.topic)) == ([1, 2, 4, 5], 0)
    assert (report.records_in, report.records_out, report.failed) == (5, 1, 1)
    assert tried.count(b"poison") >= 2
    (kept,) = shop.read(grave)
    assert (kept.value, kept.key) == (b"poison", b"key")
    headers = dict(kept.headers)
    why = {name: (headers.pop(f"msgtx.dead-letter.{name}") or b"").decode() for name in LETTER}
    assert why["reason"].startswith("ValueError: invalid literal")
    assert abs(kept.timestamp - time.time() * 1000) < 60_000, "retention counts from now"
    assert int(why["timestamp"]) <= kept.timestamp
    assert [why[name] for name in ("group", "topic", "partition", "offset")] == [shop.topic, shop.topic, "0", "2"]
    assert int(why["deliveries"]) == 2
    assert headers == {"origin": b"shop"}
    (names,) = shop.connection.execute("select msgtx.dead_letter_headers()").fetchall()
    assert names[0] == [f"msgtx.dead-letter.{name}" for name in LETTER], "as a share group has them"
    (shared,) = shop.connection.execute(
        "select count(*) from msgtx.group_offset o join msgtx.record_batch b on o.xmin = b.xmin"
        " join msgtx.partition p on b.partition_id = p.partition_id join msgtx.topic t using (topic_id) where t.name = %s",
        [grave],
    ).fetchall()
    assert shared[0] >= 1, "the letter and an offset are of one SQL transaction"


@pytest.mark.parametrize("batch", [False, True])
def test_a_value_that_cannot_be_deserialized_is_a_dead_letter_with_its_bytes(shop: Shop, run: Run, batch: bool) -> None:
    """And a tombstone reaches the handler as None."""
    grave = shop.make_topic()
    shop.send(*VALUES, key=b"7")
    shop.send(None)

    def handler(session: Session, given: Any) -> None:
        for record in given if batch else [given]:
            assert record.key in {7, None}
            session.add(Order(number=0 if record.value is None else record.value))

    functions: Any = {"key_deserializer": int, "value_deserializer": int}
    report = run(handler, failure=msgtx.DeadLetter(grave, 0), batch=batch, **functions)
    assert (shop.rows(), report.failed) == ([0, 1, 2, 4, 5], 1)
    (kept,) = shop.read(grave)
    assert (kept.value, kept.key) == (b"poison", b"7")


def test_a_handler_may_empty_the_list_that_it_is_given(shop: Shop, run: Run) -> None:
    """Else the record that fails would not be known, and another one be set aside."""
    grave = shop.make_topic()
    shop.send(*VALUES)

    def handler(session: Session, records: list[Record]) -> None:
        while records:
            store(session, records.pop(0))

    report = run(handler, batch=True, failure=msgtx.DeadLetter(grave, 0))
    assert (shop.rows(), report.records_in, report.failed) == ([1, 2, 4, 5], 5, 1)
    assert [record.value for record in shop.read(grave)] == [b"poison"]


def test_a_dead_letter_of_a_long_error_fits_into_its_topic(shop: Shop, run: Run) -> None:
    grave = shop.make_topic(max_message_bytes=2_000)
    shop.send(b"1")

    def handler(session: Session, record: Record) -> None:
        raise ValueError("long" * 10_000)

    run(handler, failure=msgtx.DeadLetter(grave, 0))
    (kept,) = shop.read(grave)
    assert (dict(kept.headers)["msgtx.dead-letter.reason"] or b"").startswith(b"ValueError: longlong")


def test_a_dead_letter_that_is_refused_says_what_it_was_for(shop: Shop, run: Run) -> None:
    grave = shop.make_topic(max_message_bytes=10)
    shop.send(b"1", key=b"a longer key")

    def handler(session: Session, record: Record) -> None:
        raise ValueError("no amount")

    with refuses(errors.RecordTooLarge, topic=grave) as caught:
        run(handler, failure=msgtx.DeadLetter(grave, 0))
    assert caught.value.__notes__ == [
        "it was to be set aside: ValueError: no amount",
        f"at {shop.topic}-0 offset 0; the transaction was rolled back, with the offsets",
    ]
    assert {at.offset for at in shop.client.admin.groups.offsets(shop.topic).values()} == {0}


def test_a_record_whose_setting_aside_fails_is_not_passed(shop: Shop, run: Run) -> None:
    class Failing(Session):
        def commit(self) -> None:
            raise ConnectionError("an audit trail")

    def handler(session: Session, record: Record) -> None:
        raise ValueError("no amount")

    shop.send(b"1")
    with pytest.raises(ConnectionError, match="audit") as caught:
        run(handler, sessionmaker(shop.app, class_=Failing), failure=msgtx.Skip(0))
    assert str(caught.value.__cause__) == "no amount"
    assert {at.offset for at in shop.client.admin.groups.offsets(shop.topic).values()} == {0}


def test_what_is_skipped_is_said_in_a_line(shop: Shop, run: Run, caplog: Any) -> None:
    shop.send(*VALUES)
    report = run(store, failure=msgtx.Skip(0))
    assert (shop.rows(), report.failed) == ([1, 2, 4, 5], 1)
    (line,) = caplog.messages
    assert line.startswith(f"{shop.topic}-0 offset 2: ValueError: invalid literal")
    assert line.endswith("; skipped")


def test_a_record_is_retried_with_growing_pauses_while_other_partitions_go_on(shop: Shop, run: Run, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG, "msgtx.process")  # further lines of a kind
    shop.send(*VALUES)
    shop.send(b"10", b"11", b"12", partition=1)
    tries: list[float] = []

    def handler(session: Session, record: Record) -> None:
        if record.value == b"poison":
            tries.append(time.monotonic())
            if len(tries) < 6 or not {10, 11, 12} <= set(shop.rows()):
                raise ConnectionError("mail server")
            return
        store(session, record)

    report = run(handler)
    assert shop.rows() == [1, 2, 4, 5, 10, 11, 12]
    assert report.failed == 0
    lines = [line for line in caplog.messages if line.startswith(f"{shop.topic}-0 offset 2: ConnectionError: mail server")]
    assert [line.rpartition("; ")[2] for line in lines][:3] == [f"tried again in {s} s" for s in ("0.1", "0.2", "0.4")]
    pauses = [after - before for before, after in itertools.pairwise(tries[-len(lines) - 1 :])]
    assert len(tries) <= len(lines) + 3, "once its failure was alone, each try is"
    assert all(after >= expected for after, expected in zip(pauses, (0.1, 0.2, 0.4), strict=False))


@pytest.mark.parametrize("retries", [0, 2])
def test_retries_may_have_an_end(shop: Shop, run: Run, retries: int) -> None:
    """Only the failures of a record alone count: others of its transaction are done first."""
    shop.send(*VALUES)
    tries: list[Record] = []

    def handler(session: Session, record: Record) -> None:
        tries.extend([record] if record.value == b"poison" else [])
        store(session, record)

    with pytest.raises(ValueError, match="poison") as caught:
        run(handler, failure=msgtx.Retry(retries), transaction_ms=60_000)
    assert f"failed on {shop.topic}-0 offset 2; its transaction was rolled back, with the offsets" in caught.value.__notes__
    assert shop.rows() == [1, 2]
    assert len(tries) == 2 + 1 + retries, "with the one before it, with the one behind it, and alone"


def test_a_failure_of_the_commit_is_said_to_be_that_of_all_its_records(shop: Shop, run: Run) -> None:
    shop.send(b"1", b"2", b"2")
    with pytest.raises(sqlalchemy.exc.IntegrityError) as caught:
        run(store, failure=msgtx.Stop(), transaction_ms=60_000)
    assert shop.rows() == [1]
    assert [note.partition(";")[0] for note in caught.value.__notes__] == [f"failed on {shop.topic}-0 offsets 1 to 2"]


@pytest.mark.parametrize("failure", [msgtx.Skip(0), msgtx.Retry(1)], ids=repr)
def test_what_is_known_of_a_record_that_is_gone_is_not_held_against_the_next(
    shop: Shop, run: Run, failure: msgtx.Skip | msgtx.Retry
) -> None:
    """Its place in the partition is another one's when its log is cut off."""
    shop.send(b"poison", b"2")
    failures = [ConnectionError("mail server")]

    def handler(session: Session, record: Record) -> None:
        if record.value == b"poison":
            shop.client.admin.partitions.delete_records({TopicPartition(shop.topic, 0): 1})
            raise ValueError("no amount")
        if failure.after and failures:
            raise failures.pop()
        store(session, record)

    report = run(handler, failure=failure)
    assert (shop.rows(), report.records_in, report.failed) == ([2], 1, 0)


def test_a_partition_that_is_taken_away_is_not_waited_for(shop: Shop, run: Run, background: Any) -> None:
    """What has failed on it is its next owner's."""
    for number in range(3):
        shop.send(b"%d" % number, partition=number)
    failed: set[int] = set()
    healed = threading.Event()

    def handler(session: Session, record: Record) -> None:
        if not healed.is_set():
            failed.add(record.partition)
            raise ConnectionError("mail server")
        store(session, record)

    running = background.submit(run, handler)
    wait_until(lambda: len(failed) == 3, "each has failed")
    with shop.client.consumer(shop.topic, group=shop.topic, enable_auto_commit=False) as other:
        while not other.assignment():
            other.poll(0.05)
        healed.set()
        report = running.result(30)
        taken = {partition.partition for partition in other.assignment()}
    assert shop.rows() == [number for number in range(3) if number not in taken]
    assert (report.records_in, report.failed) == (3 - len(taken), 0)


def test_a_row_that_only_the_commit_refuses_is_found_alone(shop: Shop, run: Run) -> None:
    """Its constraint is deferred: the handler of no record fails."""
    grave = shop.make_topic()
    shop.send(b"1", b"2", b"1", b"3")
    run(store, failure=msgtx.DeadLetter(grave, 0))
    assert shop.rows() == [1, 2, 3]
    assert [record.value for record in shop.read(grave)] == [b"1"]


@pytest.mark.parametrize("ending", ["raises", "returns"])
def test_a_handler_that_has_caught_a_database_error_commits_nothing_of_it(
    shop: Shop, run: Run, ending: str, caplog: Any
) -> None:
    """PostgreSQL would answer the COMMIT of such a transaction with a rollback, and no error."""
    shop.send(*VALUES)
    calls = itertools.count()

    def handler(session: Session, record: Record) -> None:
        if record.value == b"poison":
            if next(calls) > 3:  # the program was mended
                return
            with contextlib.suppress(sqlalchemy.exc.DBAPIError):
                session.execute(text("select 1 / 0"))
            if ending == "raises":
                raise KeyError("amount")
            return
        session.execute(sqlalchemy.insert(Order).values(number=int(record.value or b"")))

    report = run(handler, failure=msgtx.Skip(0))
    assert (shop.rows(), report.failed) == ([1, 2, 4, 5], int(ending == "raises"))
    assert ("KeyError" if ending == "raises" else "a statement of the SQL transaction has failed") in caplog.text


@pytest.mark.parametrize("what", ["rolls back", "rolls back and goes on", "commits", "closes"])
def test_a_handler_that_ends_its_session_has_failed(shop: Shop, run: Run, what: str, caplog: Any) -> None:
    """Else rows of other records would be gone, or come without their offsets. No record is at fault: it waits."""
    shop.send(*VALUES)
    calls = itertools.count()

    def handler(session: Session, record: Record) -> None:
        if record.value != b"poison":
            store(session, record)
            session.flush()
            return
        if next(calls) > 3:  # the program was mended
            return
        match what:
            case "commits":
                session.commit()
            case "closes":
                session.close()
            case _:
                session.rollback()
        if what == "rolls back and goes on":
            session.add(Order(number=99))
            session.flush()

    report = run(handler, failure=msgtx.Skip(0))
    assert (shop.rows(), report.failed) == ([1, 2, 4, 5], 0)
    expected = "process_into does, behind it" if what == "commits" else "session.begin_nested()"
    assert expected in caplog.text


def test_a_savepoint_is_the_handlers_own(shop: Shop, run: Run) -> None:
    shop.send(*VALUES)

    def handler(session: Session, record: Record) -> None:
        with contextlib.suppress(ValueError), session.begin_nested():
            session.add(Order(number=100 + record.offset))
            session.flush()
            store(session, record)

    report = run(handler)
    assert (shop.rows(), report.aborted) == ([1, 2, 4, 5, 100, 101, 103, 104], 0)


def test_what_a_handler_publishes_comes_with_its_rows(shop: Shop, run: Run) -> None:
    output = shop.make_topic()
    shop.send(*VALUES)

    def handler(session: Session, record: Record) -> None:
        orm.publish(session, output, record.value)
        store(session, record)

    run(handler, failure=msgtx.Skip(1))
    assert [record.value for record in shop.read(output)] == [b"1", b"2", b"4", b"5"]
    assert shop.rows() == [1, 2, 4, 5]


async def of_a_loop(session: Session, record: Record) -> None: ...


def a_generator(session: Session, record: Record) -> Iterator[None]:
    yield


async def a_generator_of_a_loop(session: Session, record: Record) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize("handler", [of_a_loop, a_generator, a_generator_of_a_loop, "text"])
def test_a_handler_that_would_do_nothing_is_refused_before_anything_is_read(shop: Shop, run: Run, handler: Any) -> None:
    shop.send(b"1")
    with refuses(TypeError, name="handler"):
        run(handler)
    for hidden in (of_a_loop, a_generator, a_generator_of_a_loop):
        with refuses(TypeError, name="handler"):
            run(lambda *given, hidden=hidden: hidden(*given), failure=msgtx.Stop())
    assert shop.client.admin.groups.offsets(shop.topic)[TopicPartition(shop.topic, 0)].offset == 0


# ── what is nobody's fault ──


def blames_no_record(caplog: Any) -> bool:
    """Return whether a worker has only warned of the database."""
    return {record.name for record in caplog.records} <= {"msgtx.database"}


def test_a_lost_connection_is_no_records_fault(shop: Shop, run: Run, caplog: Any) -> None:
    shop.send(*(b"%d" % number for number in range(50)))
    killed: list[int] = []

    def handler(session: Session, record: Record) -> None:
        store(session, record)
        session.flush()
        if record.offset % 10 == 7 and record.offset not in killed:
            killed.append(record.offset)
            pid = session.execute(text("select pg_backend_pid()")).scalar_one()
            shop.connection.execute("select pg_terminate_backend(%s)", [pid])
            session.execute(text("select 1"))

    report = run(handler, failure=msgtx.Skip(0))
    assert (shop.rows(), report.failed, len(killed)) == (list(range(50)), 0, 5)
    assert blames_no_record(caplog)


def test_a_session_that_the_server_has_ended_is_no_records_fault(shop: Shop, run: Run, caplog: Any) -> None:
    """By a limit on idle sessions: to psycopg it is no OperationalError."""
    shop.send(b"1", b"2")
    ended: list[int] = []

    def handler(session: Session, record: Record) -> None:
        store(session, record)
        session.flush()
        if not ended:
            ended.append(session.execute(text("select pg_backend_pid()")).scalar_one())
            session.execute(text("set local idle_in_transaction_session_timeout = 20"))
            there = "select from pg_stat_activity where pid = any(%s)"
            wait_until(lambda: not shop.connection.execute(there, [ended]).rowcount, "the session has ended")
            session.execute(text("select 1"))

    report = run(handler, failure=msgtx.Skip(0))
    assert (shop.rows(), report.failed, report.aborted) == ([1, 2], 0, 1)
    assert caplog.messages == []


def test_what_may_pass_is_no_records_fault(shop: Shop, run: Run, caplog: Any) -> None:
    shop.send(b"1", b"2")
    failures = [errors.LockTimeout("of another client, for one")]

    def handler(session: Session, record: Record) -> None:
        store(session, record)
        if failures:
            raise failures.pop()

    report = run(handler, failure=msgtx.Skip(0))
    assert (shop.rows(), report.failed, report.aborted) == ([1, 2], 0, 1)
    assert caplog.messages == []


def test_a_fatal_error_ends_a_worker_and_sets_no_record_aside(shop: Shop, run: Run) -> None:
    shop.send(b"1")

    def handler(session: Session, record: Record) -> None:
        raise errors.ProducerFenced("of another client, for one")

    with pytest.raises(errors.ProducerFenced):
        run(handler, failure=msgtx.Skip(0))
    assert {at.offset for at in shop.client.admin.groups.offsets(shop.topic).values()} == {0}


@pytest.mark.parametrize("options", [{}, {"group_instance_id": "one"}], ids=["dynamic", "static"])
@pytest.mark.parametrize("held", ["row", "group", "partition"])
def test_a_commit_whose_answer_is_lost_counts_once(
    shop: Shop, run: Run, open_connection: Callable[[], Connection], background: Any, held: str, options: dict[str, Any]
) -> None:
    """I10: the connection is lost to the worker only; in the server the COMMIT goes on, and the worker goes back meanwhile.

    `row`: it comes to the offsets later, and is refused; else the worker waits behind it.
    """
    shop.send(b"1")
    shop.connection.execute("drop table if exists seen")
    shop.connection.execute("create table seen (number int)")
    target, holder = unique("target"), open_connection()
    shop.client.topics.create(target)
    drivers: list[Any] = []

    def handler(session: Session, record: Record) -> None:
        session.execute(text("insert into seen values (:number)"), {"number": int(record.value or b"")})
        orm.publish(session, target, record.value)
        if not drivers:
            holder.execute("begin")
            if held == "row":
                holder.execute("insert into orders (number) values (1)")
                session.add(Order(number=1))
            elif held == "group":
                holder.execute("select msgtx.lock_group(%s)", [shop.topic])
            else:
                holder.execute("select msgtx.lock_partition(partition_id) from msgtx.partitions where topic = %s", [target])
        drivers.append(session.connection().connection.driver_connection)

    stop = threading.Event()
    running = background.submit(run, handler, stop=stop, idle_timeout=None, **options)
    wait_until(lambda: len(waiting_backends(shop.connection)) == 1, "the COMMIT waits")
    committing = waiting_backends(shop.connection)
    with socket.socket(fileno=os.dup(drivers[0].fileno())) as lost:
        lost.shutdown(socket.SHUT_RDWR)
    wait_until(
        lambda: len(waiting_backends(shop.connection)) == 2 or lag(shop.client, shop.topic) == 0,
        "the worker waits, too, or is done",
    )
    holder.execute("rollback")
    wait_until(
        lambda: not shop.connection.execute("select from pg_stat_activity where pid = any(%s)", [[*committing]]).rowcount
    )
    wait_until(lambda: lag(shop.client, shop.topic) == 0)
    stop.set()
    running.result(20)
    assert shop.connection.execute("select number from seen").fetchall() == [(1,)]
    assert [record.value for record in shop.read(target)] == [b"1"]
    assert len(drivers) == (2 if held == "row" else 1)


def test_a_pool_that_is_used_up_is_no_records_fault(shop: Shop, run: Run, caplog: Any) -> None:
    shop.send(b"1", b"2")
    engine = shop.engine(pool_size=1, max_overflow=0, pool_timeout=0.1)
    held = engine.connect()
    release = threading.Timer(0.5, held.close)
    release.start()
    run(store, sessionmaker(engine), failure=msgtx.Skip(0), idle_timeout=2.0)
    release.join()
    assert shop.rows() == [1, 2]
    assert blames_no_record(caplog)


@pytest.mark.parametrize(
    "failing",
    [
        "set local statement_timeout = 50; select pg_sleep(5)",
        "create temp table wide (t text) on commit drop; create index on wide (t);"
        " insert into wide select string_agg(md5(n::text), '') from generate_series(1, 2000) n",
        "do $$ begin raise 'the order is closed' using errcode = 'object_not_in_prerequisite_state'; end $$",
    ],
)
def test_what_the_server_refuses_for_its_own_sake_is_waited_for(shop: Shop, run: Run, failing: str) -> None:
    """To psycopg it is an OperationalError, as a deadlock is; it stays until somebody raises the limit."""
    shop.send(b"1", b"2", b"3")
    calls = itertools.count()

    def handler(session: Session, record: Record) -> None:
        if record.value == b"2" and next(calls) < 4:
            session.connection().exec_driver_sql(failing)
        store(session, record)

    report = run(handler, failure=msgtx.Skip(0))
    assert (shop.rows(), report.failed) == ([1, 2, 3], 0)


def test_a_lock_that_was_not_to_be_had_is_tried_again(shop: Shop, run: Run) -> None:
    """Its state is of the class of those that come again, `object_in_use` for one."""
    shop.send(b"1", b"2")
    tries: list[int] = []

    def handler(session: Session, record: Record) -> None:
        tries.append(record.offset)
        if len(tries) == 2:
            session.connection().exec_driver_sql("do $$ begin raise 'locked' using errcode = 'lock_not_available'; end $$")
        store(session, record)

    report = run(handler, failure=msgtx.Stop(), max_poll_records=1)
    assert (shop.rows(), report.aborted, tries) == ([1, 2], 1, [0, 1, 1])


def test_what_the_driver_says_below_the_session_is_no_records_fault(
    shop: Shop, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """A COPY, for one, is the driver's own: no error of SQLAlchemy's."""
    shop.send(b"1", b"2")
    failures = ["deadlock_detected", "serialization_failure", "admin_shutdown"]

    def handler(session: Session, record: Record) -> None:
        store(session, record)
        driver: Any = session.connection().connection.driver_connection
        if failures:
            driver.execute(f"do $$ begin raise 'for now' using errcode = '{failures.pop()}'; end $$")

    report = run(handler, failure=msgtx.Skip(0))
    assert (shop.rows(), report.failed, report.aborted) == ([1, 2], 0, 3)
    assert caplog.messages == []


def test_a_cancelled_future_is_an_error_as_any(shop: Shop, run: Run) -> None:
    shop.send(*VALUES)

    def handler(session: Session, record: Record) -> None:
        if record.value == b"poison":
            raise concurrent.futures.CancelledError
        store(session, record)

    report = run(handler, failure=msgtx.Skip(0))
    assert (shop.rows(), report.failed) == ([1, 2, 4, 5], 1)


def test_a_serialization_failure_is_tried_again(shop: Shop, run: Run) -> None:
    shop.send(*(b"%d" % number for number in range(20)))
    shop.connection.execute("insert into orders (number) values (1000)")
    disturbed: list[int] = []

    def handler(session: Session, record: Record) -> None:
        session.execute(text("select * from orders where number >= 1000")).all()
        if record.offset % 5 == 3 and record.offset not in disturbed:
            disturbed.append(record.offset)
            shop.connection.execute("update orders set number = number + 1 where number >= 1000")
        session.execute(text("update orders set number = number where number >= 1000"))
        store(session, record)

    report = run(
        handler, sessionmaker(shop.engine(isolation_level="REPEATABLE READ")), failure=msgtx.Stop(), max_poll_records=1
    )
    assert shop.rows() == [*range(20), 1004]
    assert report.aborted == len(disturbed) == 4


@pytest.mark.parametrize("batch", [False, True])
def test_a_rebalance_in_the_middle_of_a_batch_commits_nothing_twice(shop: Shop, run: Run, batch: bool) -> None:
    """The member is removed while its handler runs; another time its partition is another member's by the COMMIT."""
    shop.send(*(b"%d" % number for number in range(20)))
    moved: list[int] = []

    def handler(session: Session, given: Any) -> None:
        first = given[0] if batch else given
        (store_all if batch else store)(session, given)
        if first.offset >= 7 * (len(moved) + 1):
            moved.append(first.offset)
            for member in shop.client.admin.groups.members(shop.topic):
                shop.connection.execute("select msgtx.leave_group(%s, %s)", [shop.topic, member.member_id])
            with shop.client.consumer(shop.topic, group=shop.topic, enable_auto_commit=False) as other:
                other.poll(0.1)

    report = run(handler, failure=msgtx.Stop(), batch=batch)
    assert (shop.rows(), len(moved) > 0, lag(shop.client, shop.topic)) == (list(range(20)), True, 0)
    assert report.aborted > 0  # twice in one transaction is once


def test_workers_come_and_go_and_each_record_is_a_row(shop: Shop, background: Any) -> None:
    total = 600
    chance = random.Random(5)
    engine = shop.engine()

    def handler(session: Session, record: Record) -> None:
        store(session, record)
        if chance.random() < 0.02:
            raise ConnectionError("now and then")
        time.sleep(0.001)

    def worker() -> None:
        while lag(shop.client, shop.topic) or not shop.client.admin.groups.offsets(shop.topic):
            stop = threading.Event()
            threading.Timer(chance.uniform(0.2, 1.0), stop.set).start()
            shop.client.process_into(
                sessionmaker(engine), handler, shop.topic, group=shop.topic, stop=stop, transaction_ms=20
            )

    with shop.client.producer() as producer:
        for number in range(total):
            producer.send(shop.topic, b"%d" % number, partition=number % 3)
    for each in [background.submit(worker) for _ in range(3)]:
        each.result(120)
    assert shop.rows() == list(range(total))


# ── its end ──

WORKER = """
import sys, time
import sqlalchemy
from sqlalchemy.orm import Session, sessionmaker
import msgtx

topic, pause, name = sys.argv[1], float(sys.argv[2]), sys.argv[3] or None
with msgtx.connect() as client:
    engine = sqlalchemy.create_engine(sqlalchemy.make_url(client.secret_url).set(drivername="postgresql+psycopg"))

    def handler(session, record):
        session.execute(sqlalchemy.text("insert into orders (number) values (:number)"), {"number": int(record.value)})
        print(record.offset, flush=True)
        time.sleep(pause)

    report = client.process_into(sessionmaker(engine), handler, topic, group=topic, group_instance_id=name)
    print("ended", report.records_in, flush=True)
"""


@contextlib.contextmanager
def worker(url: str, folder: Path, topic: str, *, pause: float, name: str = "") -> Iterator["subprocess.Popen[bytes]"]:
    program = folder / "worker.py"
    program.write_text(WORKER)
    command = [sys.executable, str(program), topic, str(pause), name]
    environment = {**os.environ, "MSGTX_DATABASE_URL": url}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, bufsize=0) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_worker_that_is_killed_again_and_again_loses_and_doubles_nothing(shop: Shop, tmp_path: Path) -> None:
    """It comes back under its own name at once, and the fence of the one that was killed holds."""
    total = 250
    shop.send(*(b"%d" % number for number in range(total)))
    chance = random.Random(7)
    killed = 0
    while (before := len(shop.rows())) < total:
        with worker(shop.url, tmp_path, shop.topic, pause=0.01, name="one") as process:
            wait_until(lambda: len(shop.rows()) > before, "it works")
            time.sleep(chance.uniform(0.0, 0.5))
            process.send_signal(signal.SIGKILL)
            killed += 1
    assert shop.rows() == list(range(total))
    assert killed >= 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_worker_and_loses_nothing(shop: Shop, tmp_path: Path, number: signal.Signals) -> None:
    """SIGTERM: after the transaction that is under way. Ctrl-C rolls it back."""
    shop.send(*(b"%d" % at for at in range(100)))
    with worker(shop.url, tmp_path, shop.topic, pause=0.3) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"0\n"
        process.send_signal(number)
        rest = process.stdout.read().split()
        code = process.wait(30)
        if number == signal.SIGTERM:
            assert (code, rest) == (0, [b"ended", b"1"])
            assert shop.rows() == [0]
        else:
            assert code != 0
            assert shop.rows() == []
    assert shop.client.admin.groups.members(shop.topic) == [], "it has left"
    with shop.client.consumer(shop.topic, group=shop.topic, auto_offset_reset="earliest") as successor:
        assert successor.position(TopicPartition(shop.topic, 0)) == len(shop.rows())


def test_the_end_of_a_client_waits_for_its_workers(shop: Shop, background: Any) -> None:
    shop.send(b"1", b"2", b"3")
    begun, go_on = threading.Event(), threading.Event()

    def handler(session: Session, record: Record) -> None:
        store(session, record)
        begun.set()
        go_on.wait(20)

    client = msgtx.connect(shop.url)
    running = background.submit(client.process_into, sessionmaker(shop.engine()), handler, shop.topic, group=shop.topic)
    assert begun.wait(20)
    closing = background.submit(client.close)
    time.sleep(0.2)
    assert not closing.done()
    go_on.set()
    closing.result(20)
    assert running.result(20).records_in == 1
    assert shop.rows() == [1]


def test_an_event_ends_a_worker_that_pauses(shop: Shop, run: Run, background: Any) -> None:
    shop.send(b"poison")
    stop = threading.Event()
    running = background.submit(run, store, stop=stop, idle_timeout=None)
    time.sleep(1.0)
    began = time.monotonic()
    stop.set()
    assert running.result(20).aborted >= 2
    assert time.monotonic() - began < 5.0


def test_a_client_that_is_closed_by_its_own_handler_does_not_wait_for_itself(shop: Shop) -> None:
    shop.send(b"1")
    client = msgtx.connect(shop.url)
    began = time.monotonic()
    report = client.process_into(
        sessionmaker(shop.engine()),
        lambda session, record: client.close(),
        shop.topic,
        group=shop.topic,
        failure=msgtx.Stop(),
    )
    assert time.monotonic() - began < 10.0
    assert (report.transactions, report.aborted) == (0, 1), "its connections were gone: the record comes again"


# ── settings ──


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"failure": "ignore"}, "failure"),
        ({"enable_auto_commit": False}, "enable_auto_commit"),
        ({"max_poll_recrds": 1}, "max_poll_recrds"),
        ({"retries": 1}, "retries"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(run: Run, options: dict[str, Any], name: str) -> None:
    with refuses(errors.UsageError, name=name):
        run(store, **options)


def test_what_is_not_there_is_said_before_anything_is_read(shop: Shop) -> None:
    with refuses(errors.UnknownTopicOrPartition, topic="nowhere"):
        shop.client.process_into(sessionmaker(shop.app), store, "nowhere", group=shop.topic)
    with refuses(errors.UnknownTopicOrPartition, topic="grave"):
        shop.client.process_into(
            sessionmaker(shop.app), store, shop.topic, group=shop.topic, failure=msgtx.DeadLetter("grave")
        )
    with refuses(errors.ConfigError, name="topics"):
        shop.client.process_into(sessionmaker(shop.app), store, group=shop.topic)
    with Session(shop.app) as session, refuses(TypeError, name="session_factory"):
        shop.client.process_into(session, store, shop.topic, group=shop.topic)  # type: ignore[arg-type]


def test_a_factory_of_something_else_is_refused_and_nothing_is_committed(
    shop: Shop, run: Run, make_database: Callable[..., str]
) -> None:
    from sqlalchemy.ext.asyncio import AsyncSession

    shop.send(b"1")
    elsewhere = shop.engine(make_database(schema=False))
    for factory, complaint in (
        (AsyncSession, "makes Sessions or Connections of SQLAlchemy or .* not sqlalchemy.*AsyncSession .*aio's takes async"),
        (lambda: contextlib.nullcontext("text"), "expected SQLAlchemy's Session"),
        (sessionmaker(elsewhere), "there is no schema msgtx|msgtx db init"),
    ):
        with pytest.raises((TypeError, errors.ConfigError), match=complaint) as caught:
            run(store, factory)
        assert f"{shop.topic}-0 offset 0" in caught.value.__notes__[0]
    assert shop.client.admin.groups.offsets(shop.topic)[TopicPartition(shop.topic, 0)].offset == 0


def test_a_deleted_topic_ends_its_worker(shop: Shop, run: Run) -> None:
    shop.send(*VALUES)

    def handler(session: Session, record: Record) -> None:
        if shop.topic in shop.client.topics.list():
            shop.client.topics.delete(shop.topic)

    with pytest.raises(errors.MsgtxError):
        run(handler, idle_timeout=20.0, failure=msgtx.Stop())


def test_several_topics_are_one_worker(shop: Shop) -> None:
    second = shop.make_topic()
    shop.send(b"1")
    with shop.client.producer() as producer:
        producer.send(second, b"2")
    reports: list[ProcessReport] = []
    shop.client.process_into(
        sessionmaker(shop.app), store, shop.topic, second, group=shop.topic, idle_timeout=0.2, on_commit=reports.append
    )
    assert shop.rows() == [1, 2]
    assert reports[-1].records_in == 2
    wait_until(lambda: shop.client.admin.groups.members(shop.topic) == [])


def test_what_nobody_runs_is_a_wrong_type() -> None:
    with refuses(errors.WrongType, name="handler"):
        Into._require_done(each for each in ())


def test_work_that_ends_as_the_look_at_it_ends_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ends(concurrent.futures.Future[None]):
        def result(self, timeout: float | None = None) -> None:
            if timeout is not None:
                self.set_result(None)
                raise TimeoutError
            return super().result()

    def run(coroutine: Any, _: object) -> Ends:
        coroutine.close()
        return Ends()

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", run)
    into = object.__new__(IntoAsync)
    into.loop = asyncio.new_event_loop()
    into._transact([], None)
    into.loop.close()
