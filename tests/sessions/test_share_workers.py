"""`client.process_into(…, share_members=1)`: workers divide records, and each has its rows once (I17, I10)."""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

import msgtx
from msgtx import Acknowledgement, ProcessReport, Record, errors, workers
from msgtx.process import shares
from tests.refusals import refuses
from tests.sessions.conftest import LEVELS, Order, Shop

pytestmark = pytest.mark.slow

Run = Callable[..., ProcessReport]


@pytest.fixture
def run(shop: Shop) -> Run:
    """Work on the topic to its end, as a share group of its name that gives up after two deliveries."""
    shop.client.admin.shares.configure(shop.topic, {"auto_offset_reset": "earliest", "delivery_count_limit": 2})

    def call(
        handler: Callable[[Any, Any], object],
        level: str = "READ COMMITTED",
        session_class: type[Session] = Session,
        **options: Any,
    ) -> ProcessReport:
        factory = sessionmaker(shop.engine(isolation_level=level), class_=session_class)
        return shop.client.process_into(
            factory, handler, shop.topic, **{"group": shop.topic, "share_members": 1, "idle_timeout": 0.3, **options}
        )

    return call


def store(session: Session, record: Record) -> None:
    session.add(Order(number=int(record.value or b"")))


def store_all(session: Session, records: list[Record]) -> None:
    session.add_all([Order(number=int(record.value or b"")) for record in records])


def numbers(*given: int) -> list[bytes]:
    return [b"%d" % number for number in given]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("batch", "handler"), [(False, store), (True, store_all)])
def test_rows_and_answers_are_one_commit(shop: Shop, run: Run, batch: bool, handler: Any, level: str) -> None:
    shop.send(*numbers(*range(20)))
    report = run(handler, level, batch=batch)
    assert shop.rows() == list(range(20))
    assert (report.records_in, report.aborted, report.failed) == (20, 0, 0)
    assert shop.client.admin.shares.describe(shop.topic).lag == 0
    assert run(handler, batch=batch).records_in == 0


@pytest.mark.parametrize("failure", [Acknowledgement.RELEASE, Acknowledgement.REJECT])
@pytest.mark.parametrize(("batch", "handler"), [(False, store), (True, store_all)])
def test_a_record_that_fails_holds_up_no_other(
    shop: Shop, run: Run, batch: bool, handler: Any, failure: Acknowledgement
) -> None:
    """It is delivered again up to the group's limit, or a dead letter at once; its reason says what was raised."""
    shop.send(*numbers(1, 2), b"poison", *numbers(4, 5), b"venom", b"6")
    report = run(handler, batch=batch, failure=failure)
    assert shop.rows() == [1, 2, 4, 5, 6]
    assert (report.records_in - report.failed, report.failed) == (5, 2)
    found = shop.client.admin.shares.describe(shop.topic)
    assert (found.lag, found.dead_letters) == (0, 2)
    letters = list(shop.client.read(shop.client.snapshot([f"{shop.topic}-dead-letters"])))
    assert sorted(letter.value or b"" for letter in letters) == [b"poison", b"venom"]
    headers = [dict(letter.headers) for letter in letters]
    deliveries = b"1" if failure is Acknowledgement.REJECT else b"2"
    assert {each["msgtx.dead-letter.deliveries"] for each in headers} == {deliveries}
    reasons = [each["msgtx.dead-letter.reason"] or b"" for each in headers]
    begins = b"ValueError: " if failure is Acknowledgement.REJECT else b"delivery limit: ValueError: "
    assert all(reason.startswith(begins) for reason in reasons)


def test_the_last_delivery_is_said_to_make_a_dead_letter(shop: Shop, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """Its group permits two."""
    shop.send(b"poison")
    with caplog.at_level("DEBUG", "msgtx.process"):
        run(store, failure=Acknowledgement.RELEASE)
    lines = [line for line in caplog.messages if line.startswith(f"{shop.topic}-0 offset 0: ValueError")]
    assert lines[0].endswith("; delivered again")
    ending = f"; delivered 2 times, the last permitted; becomes a dead letter in {shop.topic}-dead-letters"
    assert lines[-1].endswith(f"{ending} (msgtx find {shop.topic} --offset 0:0)")


def test_a_record_that_fails_stops_the_worker_and_stays(shop: Shop, run: Run) -> None:
    shop.send(b"poison", b"2")
    with pytest.raises(ValueError, match="poison") as caught:
        run(store, failure=msgtx.Stop())
    assert [note.partition(";")[0] for note in caught.value.__notes__] == [f"failed on {shop.topic}-0 offset 0"]
    assert shop.rows() == []
    found = shop.client.admin.shares.describe(shop.topic)
    assert (found.lag, found.members) == (2, 0)


@pytest.mark.parametrize("ends", [Session.commit, Session.rollback], ids=["commit", "rollback"])
def test_a_handler_that_ends_its_session_has_done_nothing(shop: Shop, run: Run, ends: Callable[[Session], None]) -> None:
    def handler(session: Session, record: Record) -> None:
        store(session, record)
        ends(session)

    shop.send(b"1")
    with pytest.raises(errors.IllegalState):
        run(handler, failure=msgtx.Stop())
    assert shop.rows() == []
    assert shop.client.admin.shares.describe(shop.topic).lag == 1


def test_workers_of_one_call_divide_a_partition(shop: Shop, run: Run) -> None:
    threads: set[int] = set()
    told: list[int] = []
    barrier = threading.Barrier(3, timeout=30)

    def handler(session: Session, record: Record) -> None:
        if threading.get_ident() not in threads:
            threads.add(threading.get_ident())
            barrier.wait()  # all three have a record now
        store(session, record)

    shop.send(*numbers(*range(30)))
    report = run(handler, share_members=3, on_commit=lambda report: told.append(report.records_in), idle_timeout=1.0)
    assert shop.rows() == list(range(30))
    assert len(threads) == 3
    assert report.records_in == max(told) == 30
    assert told == sorted(told)


def test_when_one_worker_raises_the_others_end(shop: Shop, run: Run) -> None:
    shop.send(*numbers(*range(10)), b"poison")
    with pytest.raises(ValueError, match="poison"):
        run(store, share_members=3, failure=msgtx.Stop(), idle_timeout=None)
    assert len(shop.rows()) == len(set(shop.rows()))


def test_a_client_that_is_closed_by_its_own_handler_does_not_wait_for_itself(shop: Shop) -> None:
    """The handler of several workers runs in a thread of theirs, not in the one that has called `process_into`."""
    shop.client.admin.shares.configure(shop.topic, {"auto_offset_reset": "earliest"})
    shop.send(b"1")
    other = msgtx.connect(shop.url)
    began = time.monotonic()
    with contextlib.suppress(errors.MsgtxError, RuntimeError):
        other.process_into(
            sessionmaker(shop.engine()),
            lambda session, record: other.close(),
            shop.topic,
            group=shop.topic,
            share_members=2,
            failure=msgtx.Stop(),
        )
    assert time.monotonic() - began < 10.0


def test_a_lost_connection_is_no_fault_of_the_records(shop: Shop, run: Run) -> None:
    """They are not delivered again for it: the same ones are tried again."""
    lost: list[int] = []

    def handler(session: Session, record: Record) -> None:
        store(session, record)
        if len(lost) < 3:
            lost.append(record.delivery_count)  # type: ignore[attr-defined]
            session.flush()
            session.execute(text("select pg_terminate_backend(pg_backend_pid())"))

    shop.send(*numbers(1, 2, 3))
    report = run(handler)
    assert shop.rows() == [1, 2, 3]
    assert (report.aborted, lost) == (3, [1, 1, 1])
    assert shop.client.admin.shares.describe(shop.topic).lag == 0


def test_who_hangs_for_longer_than_locks_are_renewed_has_written_nothing(
    shop: Shop, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "RENEWED_SECONDS", 0.0)
    shop.client.admin.shares.configure(shop.topic, {"record_lock_duration_ms": "300ms", "delivery_count_limit": 5})
    deliveries: list[int] = []

    def handler(session: Session, record: Record) -> None:
        deliveries.append(record.delivery_count)  # type: ignore[attr-defined]
        store(session, record)
        if deliveries == [1]:
            time.sleep(0.8)

    shop.send(b"1")
    report = run(handler, idle_timeout=1.0)
    assert (shop.rows(), deliveries) == ([1], [1, 2])
    assert (report.aborted, report.records_in) == (1, 1)


def test_locks_are_renewed_for_a_handler_that_takes_long(shop: Shop, run: Run) -> None:
    shop.client.admin.shares.configure(shop.topic, {"record_lock_duration_ms": "1s", "delivery_count_limit": 5})
    deliveries: list[int] = []

    def handler(session: Session, record: Record) -> None:
        deliveries.append(record.delivery_count)  # type: ignore[attr-defined]
        store(session, record)
        if record.value == b"1":
            time.sleep(1.5)

    shop.send(*numbers(1, 2, 3))
    report = run(handler, idle_timeout=2.0, share_members=2)  # the other one would get it
    assert (shop.rows(), deliveries) == ([1, 2, 3], [1, 1, 1])
    assert (report.records_in, report.aborted) == (3, 0)


def test_a_record_that_is_tried_again_is_not_overtaken_by_its_key(shop: Shop, run: Run) -> None:
    shop.client.admin.shares.configure(shop.topic, {"ordering": "key", "delivery_count_limit": 5})
    done: list[int] = []
    failures: list[int] = []

    def handler(session: Session, record: Record) -> None:
        number = int(record.value or b"")
        if number == 2 and len(failures) < 2:
            failures.append(number)
            raise ValueError("not yet")
        session.info.setdefault("done", []).append(number)
        store(session, record)

    class Noting(Session):
        def commit(self) -> None:
            super().commit()
            done.extend(self.info.pop("done", []))

    shop.send(*numbers(1, 2, 3, 4), key=b"key")
    shop.send(*numbers(5, 6), key=b"other")
    run(handler, session_class=Noting, idle_timeout=1.0)
    assert shop.rows() == [1, 2, 3, 4, 5, 6]
    assert [number for number in done if number < 5] == [1, 2, 3, 4]
    assert len(failures) == 2


@pytest.mark.parametrize("members", [1, 2])
def test_a_new_group_begins_where_its_worker_says(shop: Shop, run: Run, members: int) -> None:
    """One that is there begins where it was configured to."""
    shop.send(*numbers(1, 2))
    new, old = f"{shop.topic}-new", f"{shop.topic}-old"
    shop.client.admin.shares.configure(old, {"auto_offset_reset": "latest", "delivery_count_limit": 7})
    for group in (old, new):
        run(store, group=group, share_members=members, auto_offset_reset="earliest")
    assert shop.rows() == [1, 2]
    settings = shop.client.admin.shares.describe(old).settings
    assert (settings["auto_offset_reset"], settings["delivery_count_limit"]) == ("latest", 7)


def test_two_workers_make_a_new_group_at_once(shop: Shop, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one has found no group, and a moment later it has a member: it begins where the first one said."""

    def not_yet(*_: object) -> None:
        raise errors.GroupNotFound("not yet", group=group)

    group = f"{shop.topic}-new"
    shop.client.admin.shares.configure(group, {"auto_offset_reset": "earliest"})
    monkeypatch.setattr(workers, "describe_now", not_yet)
    with shop.client.share_consumer(shop.topic, group=group) as first:
        first.poll(0)
        run(store, group=group, auto_offset_reset="latest")
    assert shop.client.admin.shares.describe(group).settings["auto_offset_reset"] == "earliest"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"failure": msgtx.Skip()}, "failure"),
        ({"failure": msgtx.DeadLetter("graves")}, "failure"),
        ({"failure": msgtx.Retry(3)}, "failure"),
        ({"auto_offset_reset": "none"}, "auto_offset_reset"),
        ({"share_members": 0}, "share_members"),
        ({"share_members": None, "failure": Acknowledgement.RELEASE}, "failure"),
        ({"isolation": "read_committed"}, "isolation"),
    ],
)
def test_what_the_group_decides_is_no_setting_of_a_worker(run: Run, options: dict[str, Any], name: str) -> None:
    """I16."""
    with refuses(errors.UsageError, name=name):
        run(store, **options)
