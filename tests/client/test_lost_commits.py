"""After a failover that lost commits: consumers, members of share groups and workers are told (decision 0180)."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session, sessionmaker

import msgtx
from msgtx import TopicPartition, errors
from msgtx.consumer.losses import CommitLosses
from msgtx.consumer.losses import _Last as CommitLast
from msgtx.shares import losses as share_losses
from msgtx.shares.losses import _Last
from tests.client.steps import SECONDS, store
from tests.databases import wait_until
from tests.refusals import refuses
from tests.replication import Pair, replicated
from tests.store.steps import unique

pytestmark = pytest.mark.slow
T0 = TopicPartition("t", 0)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with replicated() as found:
        yield found


@pytest.fixture
def client(pair: Pair) -> Iterator[msgtx.Client]:
    """One that finds whichever server takes writes. Topic t has three records."""
    made = pair.primary.create_database()
    with msgtx.connect(made) as first:
        first.topics.create("t", partitions=1)
        first.admin.shares.configure("s", {"auto_offset_reset": "earliest"})
        first.admin.shares.configure("workers", {"auto_offset_reset": "earliest", "record_lock_duration_ms": 1_000})
        store(first, "t", b"1", b"2", b"3")
    pair.catch_up()
    with msgtx.connect(pair.on_either(made)) as found:
        yield found


def answered(call: Callable[[], list[Any]]) -> list[Any]:
    """Return nothing where no primary answers."""
    with contextlib.suppress(errors.DatabaseUnavailable, sqlalchemy.exc.OperationalError):
        return call()
    return []


def next_value(reader: msgtx.Consumer | msgtx.ShareConsumer) -> bytes | None:
    (record,) = wait_until(lambda: reader.poll(1.0), "a record comes")
    assert isinstance(record, msgtx.Record)
    return record.value


# No heartbeat comes but those of the test.
QUIET: Final[dict[str, Any]] = {"session_timeout_ms": 1_800_000, "heartbeat_interval_ms": 300_000}


def beat(reader: msgtx.ShareConsumer) -> None:
    """Send a heartbeat as the background thread does."""
    member = reader._member
    joined = member._joined
    assert joined is not None
    member._calls.asked(lambda connection: member._beat(connection, joined, member._id))


def test_a_share_consumer_is_told_once_that_its_answers_are_lost(pair: Pair, client: msgtx.Client) -> None:
    """I17: the record comes again, and nothing else says so. A member whose answers are there goes on."""
    members = [client.share_consumer("t", group="s", max_poll_records=1) for _ in range(2)]
    kept, lost = members
    for number, member in enumerate(members):
        assert next_value(member) == b"%d" % (number + 1)
    kept.commit()
    pair.catch_up()
    pair.fall_behind()
    lost.commit()
    pair.fail_over()
    with refuses(errors.CommitsLost, group="s"):
        next_value(lost)
    lost.close()
    assert {next_value(kept), next_value(kept)} == {b"2", b"3"}
    kept.close()


def test_a_share_consumer_is_told_if_a_heartbeat_comes_first(pair: Pair, client: msgtx.Client) -> None:
    """I17: the new primary lacks the member, too, so it joins again; what its old number has answered is looked for."""
    with client.share_consumer("t", group="s", max_poll_records=1, **QUIET) as member:
        pair.catch_up()
        pair.fall_behind()
        assert next_value(member) == b"1"
        member.commit()
        pair.fail_over()
        wait_until(lambda: answered(client.topics.list), "the client has found the new primary")
        beat(member)
        assert member._member.number is None
        with refuses(errors.CommitsLost, group="s"):
            next_value(member)
        assert next_value(member) == b"1"


@pytest.mark.parametrize("again", [True, False], ids=["rewind", "go on"])
def test_a_consumer_is_told_once_that_its_commit_is_lost(pair: Pair, client: msgtx.Client, again: bool) -> None:
    """Else the records behind it come again whenever another process takes over, and nothing says so."""
    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "max_poll_records": 1}
    with client.consumer("t", group="g", **settings) as reader:
        assert next_value(reader) == b"1"
        reader.commit()
        pair.catch_up()
        pair.fall_behind()
        assert next_value(reader) == b"2"
        reader.commit()
        pair.fail_over()
        wait_until(lambda: answered(client.topics.list), "the client has found the new primary")
        with refuses(errors.CommitsLost, group="g", partition=0, offset=2):
            next_value(reader)
        if again:
            reader.rewind()
        else:
            reader.commit()
        assert next_value(reader) == (b"2" if again else b"3")
        assert reader.committed()[T0] == msgtx.OffsetAndMetadata(1 if again else 2)


@pytest.fixture
def table(client: msgtx.Client) -> Iterator[sqlalchemy.Engine]:
    """An application's engine, which opens lost connections anew in silence, and its table."""
    url = client.secret_url
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url), pool_pre_ping=True)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("create table done (value bytea)"))
    yield engine
    engine.dispose()


@pytest.mark.parametrize("share_members", [None, 1])
def test_a_worker_makes_the_rows_again_that_were_lost_with_their_offsets(
    pair: Pair, client: msgtx.Client, table: sqlalchemy.Engine, share_members: int | None
) -> None:
    """I10: its position is past records whose rows the new primary lacks, though it has the records."""
    gate, reached, stop = threading.Event(), threading.Event(), threading.Event()

    def insert(session: Session, record: msgtx.Record) -> None:
        if record.value == b"2":
            reached.set()
            assert gate.wait(SECONDS)
        session.execute(sqlalchemy.text("insert into done values (:value)"), {"value": record.value})

    def rows() -> list[bytes]:
        with table.connect() as connection:
            return [*connection.execute(sqlalchemy.text("select value from done order by value")).scalars()]

    settings = {} if share_members is None else {"share_members": share_members}
    with ThreadPoolExecutor(1) as threads:
        working: Future[object] = threads.submit(
            client.process_into,
            sessionmaker(table),
            insert,
            "t",
            group="workers" if settings else "g",
            stop=stop,
            **settings,
        )
        try:
            assert reached.wait(SECONDS)
            pair.catch_up()
            pair.fall_behind()
            gate.set()
            wait_until(lambda: rows() == [b"1", b"2", b"3"], "all rows are there")
            pair.fail_over()
            wait_until(lambda: answered(rows) == [b"1", b"2", b"3"], "they are there again")
        finally:
            gate.set()
            stop.set()
        working.result(SECONDS)
    assert rows() == [b"1", b"2", b"3"]


@pytest.mark.parametrize("share_members", [None, 1])
def test_a_worker_of_transactions_is_told_that_one_is_lost(
    pair: Pair, client: msgtx.Client, share_members: int | None
) -> None:
    """I9, I10: the producer's error ends the worker, and the next one makes the outputs again."""
    client.topics.create("out", partitions=1)
    settings = {} if share_members is None else {"share_members": share_members}
    reached, gate, stop = threading.Event(), threading.Event(), threading.Event()

    def values() -> list[bytes]:
        return sorted(record.value or b"" for record in client.read(client.snapshot(["out"])))

    def copy(record: msgtx.Record) -> bytes | None:
        if record.value == b"1":
            reached.set()
            assert gate.wait(SECONDS)
        return record.value

    def work() -> object:
        return client.process(
            "t", to="out", transform=copy, group="workers" if settings else "g", transactional_id="w", stop=stop, **settings
        )

    with ThreadPoolExecutor(1) as threads:
        try:
            working = threads.submit(work)
            assert reached.wait(SECONDS)
            pair.catch_up()
            pair.fall_behind()
            gate.set()
            wait_until(lambda: values() == [b"1", b"2", b"3"], "all outputs are there")
            pair.fail_over()
            with pytest.raises(errors.TransactionsLost):  # without another record
                working.result(SECONDS)
            store(client, "t", b"4")
            working = threads.submit(work)
            wait_until(lambda: values() == [b"1", b"2", b"3", b"4"], "they are there again")
        finally:
            gate.set()
            stop.set()
        working.result(SECONDS)


# ── without a second server ──


def test_members_in_a_shared_call_look_by_themselves(database_url: str) -> None:
    """One has lost answers, the other has not: a call for both would hide it, as later answers raise the last number."""
    with msgtx.connect(database_url) as client:
        client.topics.create("t", partitions=1)
        client.admin.shares.configure("s", {"auto_offset_reset": "earliest"})
        with client.share_consumer("t", group="s") as lost, client.share_consumer("t", group="s") as kept:
            for member in (lost, kept):
                assert member.poll(0) == []
            store(client, "t", b"0")
            assert len(lost.poll(SECONDS)) == 1
            lost.commit()
            for value in (b"1", b"2"):
                store(client, "t", value)
            polls = client.runtime.share_polls.of("s")
            places = [*lost._acquisitions.places]
            numbers = [member._member.number for member in (lost, kept)]
            for number, call in zip(numbers, (9, 0), strict=True):
                assert number is not None
                polls.losses._last[number] = _Last(call, (1, 1), number)
            asked = [
                member._acquisitions._next(number, places, 1)[0]
                for member, number in zip((lost, kept), numbers, strict=True)
            ]
            assert polls._together(asked, lambda: None) == [None, None]
            with refuses(errors.CommitsLost, group="s"):
                lost.poll(0)
            assert len(lost.poll(SECONDS)) == 2


@pytest.mark.parametrize("share_members", [None, 1])
def test_an_idle_worker_of_transactions_is_told_what_has_ended_its_producer(
    database_url: str, share_members: int | None
) -> None:
    """I10: no record comes with which it would hear of it."""
    name = f"idle-{share_members}"
    committed, stop = threading.Event(), threading.Event()
    settings: dict[str, Any] = {"stop": stop, "on_commit": lambda _: committed.set()}
    with msgtx.connect(database_url) as client, ThreadPoolExecutor(1) as threads:
        for topic in (name, f"{name}-out"):
            client.topics.create(topic, partitions=1)
        if share_members is not None:
            settings["share_members"] = share_members
            client.admin.shares.configure(name, {"auto_offset_reset": "earliest"})
        store(client, name, b"1")
        working = threads.submit(
            client.process,
            name,
            to=f"{name}-out",
            transform=lambda record: record.value,
            group=name,
            transactional_id=name,
            **settings,
        )
        try:
            assert committed.wait(SECONDS)
            (producer,) = [each for each in client.runtime._open if isinstance(each, msgtx.Producer) and not each.closed]
            producer._state.fail(errors.TransactionsLost("a failover has lost it"))
            with pytest.raises(errors.TransactionsLost):
                working.result(SECONDS)
        finally:
            stop.set()


def test_a_share_consumer_that_is_closed_after_a_loss_sends_its_last_answers(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I17: what was lost are earlier answers."""
    with msgtx.connect(database_url) as client:
        client.topics.create("closed", partitions=1)
        client.admin.shares.configure("closed", {"auto_offset_reset": "earliest"})
        store(client, "closed", b"1", b"2", b"3")
        settings: dict[str, Any] = {"group": "closed", "max_poll_records": 1, "acknowledgement_mode": "explicit"}
        with client.share_consumer("closed", **settings) as member:
            member.acknowledge(*member.poll(SECONDS))
            member.commit()
            member.acknowledge(*member.poll(SECONDS))
            losses, number = client.runtime.share_polls.of("closed").losses, member._member.number
            assert number is not None
            losses._last[number] = _Last(9, (1, 1), number)
        assert "lost answers" in caplog.text
        with client.share_consumer("closed", **settings) as other:
            assert next_value(other) == b"3"


@pytest.mark.parametrize("in_time", [True, False], ids=["lost", "removed"])
@pytest.mark.parametrize("call", ["poll", "commit"])
def test_answers_of_a_member_that_was_removed_are_not_lost(database_url: str, in_time: bool, call: str) -> None:
    """A new primary without the member has lost it if its session cannot be over, else it proves nothing."""
    with msgtx.connect(database_url) as client, psycopg.connect(database_url, autocommit=True) as database:
        name = f"{call}-{in_time}"
        client.topics.create(name, partitions=1)
        client.admin.shares.configure(name, {"auto_offset_reset": "earliest"})
        store(client, name, b"1", b"2")
        with client.share_consumer(name, group=name, max_poll_records=1, **QUIET) as member:
            assert next_value(member) == b"1"
            member.commit()
            if call == "commit":
                assert next_value(member) == b"2"
            losses, number = client.runtime.share_polls.of(name).losses, member._member.number
            assert number is not None
            losses._last[number] = losses._last[number]._replace(server=(1, 1))
            for table in ("group_member", "share_call"):
                database.execute(f"delete from msgtx.{table} where member_number = {number}")
            if in_time:
                beat(member)
            else:
                member._member._heard_until = 0.0
            if call == "commit":
                with pytest.raises(errors.InvalidRecordState):
                    member.commit()
            if in_time:
                with refuses(errors.CommitsLost, group=name):
                    member.poll(0)
            assert next_value(member) == b"2"
            assert not losses._last


def move(losses: CommitLosses) -> None:
    """Have all commits so far been acknowledged by another primary."""

    def elsewhere(last: CommitLast | None) -> CommitLast | None:
        return last and last._replace(server=(1, 1), before=elsewhere(last.before))

    losses._last = {each: moved for each, last in losses._last.items() if (moved := elsewhere(last))}
    losses._looked = (1, 1)


def test_what_was_not_committed_is_not_lost(database_url: str) -> None:
    """A session that was rolled back, and a commit that the group still has."""
    with msgtx.connect(database_url) as client, contextlib.closing(psycopg.connect(database_url)) as session:
        client.topics.create("u", partitions=2)
        with client.consumer(group="g", enable_auto_commit=False) as reader:
            reader.assign([TopicPartition("u", 0), TopicPartition("u", 1)])
            reader.commit({TopicPartition("u", 0): 0})
            reader.commit({TopicPartition("u", 1): 0}, session=session)
            session.rollback()
            losses = reader._calls.losses
            assert len(losses._last) == 2
            move(losses)
            assert losses.are_due
            assert reader.poll(0) == []
            assert not losses.are_due


class Two(NamedTuple):
    """Two consumers of both partitions of a topic, without members. `reader` has committed 1 there, then `other` 0."""

    reader: msgtx.Consumer
    other: msgtx.Consumer
    both: list[TopicPartition]

    def commits(self, offset: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(self.both, offset)

    @property
    def stored(self) -> list[int]:
        return [at.offset for at in self.other.committed().values() if at is not None]


@pytest.fixture
def two(database_url: str) -> Iterator[Two]:
    topic, group = unique("t"), unique("g")
    with msgtx.connect(database_url, pool_size=1) as client:
        client.topics.create(topic, partitions=2)
        both = [TopicPartition(topic, each) for each in range(2)]
        with client.producer() as producer:
            for each in both * 2:
                producer.send(topic, b"", partition=each.partition)
        settings = {"group": group, "enable_auto_commit": False}
        with client.consumer(**settings) as reader, client.consumer(**settings) as other:
            found = Two(reader, other, both)
            for consumer, offset in ((reader, 1), (other, 0)):
                consumer.assign(both)
                consumer.commit(found.commits(offset))
            yield found


@pytest.mark.parametrize("sessions", [1, 2])
def test_a_session_that_was_rolled_back_hides_no_lost_commit(database_url: str, two: Two, sessions: int) -> None:
    """Positions of partitions ride of which its batch had no records: nobody would read them again."""
    for _ in range(sessions):
        with contextlib.closing(psycopg.connect(database_url)) as session:
            for _ in range(2):
                two.reader.commit(two.commits(2), session=session)
            session.rollback()
        two.reader.seek_to_end()
    move(two.reader._calls.losses)
    with refuses(errors.CommitsLost, partition=0, offset=1):
        two.reader.poll(0)
    assert two.reader.poll(0) == []


def test_a_savepoint_that_was_rolled_back_hides_no_lost_commit(database_url: str, two: Two) -> None:
    """The session was not decided yet when the savepoint took its place."""
    engine = sqlalchemy.create_engine(database_url.replace("postgresql:", "postgresql+psycopg:", 1))
    with Session(engine) as session:
        two.reader.commit(two.commits(2), session=session)
        with session.begin_nested() as savepoint:
            two.reader.commit(two.commits(2), session=session)
            savepoint.rollback()
        session.commit()
    engine.dispose()
    two.reader.seek_to_end()
    two.other.commit(two.commits(1))
    move(two.reader._calls.losses)
    with refuses(errors.CommitsLost, partition=0, offset=2):
        two.reader.poll(0)


def test_a_commit_that_is_first_in_a_new_primary_hears_of_the_loss(two: Two) -> None:
    """Once, and it writes nothing: later offsets would hide the loss."""
    move(two.reader._calls.losses)
    with refuses(errors.CommitsLost, partition=0, offset=1):
        two.reader.commit(two.commits(2))
    assert two.stored == [0, 0]
    two.reader.commit(two.commits(2))
    assert two.stored == [2, 2]
    assert two.reader.poll(0) == []


@pytest.mark.parametrize("is_written", [True, False])
def test_a_commit_in_the_background_leaves_the_loss_to_the_next_poll(two: Two, is_written: bool) -> None:
    """Also if the poll comes first: `rewind` would find what is written after it."""
    move(two.reader._calls.losses)
    commits, ids = two.reader._commits, [each.partition_id for each in two.reader._fetcher.assigned.values()]
    commits._queue.append((two.reader.group_metadata(), dict.fromkeys(ids, msgtx.OffsetAndMetadata(2))))
    if is_written:
        commits.settle()
    with refuses(errors.CommitsLost, partition=0, offset=1):
        two.reader.poll(0)
    two.reader.rewind()
    assert two.stored == [0, 0]
    assert len(two.reader.poll(0)) > 0


def test_members_that_have_not_answered_for_long_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer keeps its member, whenever that first answered."""
    monkeypatch.setattr(share_losses, "MOST_MEMBERS", 2)
    losses, connection = share_losses.AnswerLosses(), SimpleNamespace(server=(1, 1))
    for number in (1, 2, 1, 3):
        answers = SimpleNamespace(answers=["accept"])
        losses.acknowledged(connection, SimpleNamespace(member_number=number, call_number=1, answers=answers), [])  # type: ignore[arg-type]
    assert [*losses._last] == [1, 3]
