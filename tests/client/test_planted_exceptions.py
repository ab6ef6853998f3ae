"""Each background thread × each class of exception, raised before each line of its loop.

Who waits is told or served within a bound, a member goes on or asks, the object can be closed, and no thread is left.
"""

import asyncio
import contextlib
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

import msgtx
from msgtx import Record, aio, background, errors
from msgtx.consumer import membership
from msgtx.consumer.commits import Commits, OffsetsById
from msgtx.coordinator import completion, notifier
from msgtx.coordinator.completion import Completion
from msgtx.coordinator.endpoint import Endpoint, plain
from msgtx.database.pool import Engine
from msgtx.process import shares
from msgtx.receiving import wakeup
from msgtx.receiving.wakeup import Listener, Waiter
from msgtx.shares import member as share_member
from msgtx.shares.answering import Answering
from msgtx.shares.waiting import Waiting
from msgtx.types import GroupMetadata, OffsetAndMetadata
from tests.client.steps import store
from tests.databases import PATIENCE_SECONDS, Connection, wait_until
from tests.planted import EXCEPTIONS, Line, Planted

pytestmark = pytest.mark.slow

Unique = Callable[[str], str]
Refuse = Callable[..., contextlib.AbstractContextManager[None]]
# A line that a loop does not come to by itself is left out after so many rounds, or so many seconds.
REACHED_ROUNDS: Final = 10
REACHED_SECONDS: Final = 0.3
QUICK: Final[Any] = {"heartbeat_interval_ms": 5, "session_timeout_ms": 60_000, "retry_backoff_ms": 1}
each_exception = pytest.mark.parametrize("error", EXCEPTIONS.values(), ids=EXCEPTIONS)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pauses are short; and no thread of the test is left."""
    monkeypatch.setattr(background, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(background, "LONGEST_PAUSE_SECONDS", 0.005)
    before = {*threading.enumerate()}
    yield
    # The client of the module keeps its own.
    ours = ("msgtx-heartbeat", "msgtx-share-heartbeat", "msgtx-commit", "msgtx-renewing", "msgtx-sender", "msgtx-dedup")
    wait_until(lambda: not [each for each in {*threading.enumerate()} - before if each.name.startswith(ours)], "no thread")


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Have the system give no thread of this name within a block."""
    start = threading.Thread.start

    @contextlib.contextmanager
    def refused(name: str) -> Iterator[None]:
        def start_unless_refused(thread: threading.Thread) -> None:
            if thread.name.startswith(name):
                raise RuntimeError("can't start new thread")
            start(thread)

        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start_unless_refused)
            yield

    return refused


def each_line(planted: Planted, error: BaseException, *, stir: Callable[[], object] = int) -> Iterator[Line]:
    """Plant an exception before each line that the loop comes to, one after the other; yield those before which it came.

    `stir`: gives the loop something to do. Raise `AssertionError` if it came before hardly any.
    """
    wait_until(lambda: (stir(), time.sleep(0.01), len(planted.seen) > 4)[-1], "the loop runs")
    reached = 0
    done: set[Line] = set()
    while left := [line for line in planted.seen if line not in done]:
        done.add(left[0])
        planted.plant(left[0], error)
        deadline = time.monotonic() + REACHED_SECONDS
        while not planted.raised.wait(0.002) and planted.rounds < REACHED_ROUNDS and time.monotonic() < deadline:
            stir()
        if planted.raised.is_set():
            reached += 1
            yield left[0]
        else:
            planted.remove()
    assert reached > 4


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, planted: Planted) -> list[None]:
    """Count the calls of a function, which a followed thread makes in each round."""
    calls: list[None] = []
    real = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        calls.append(None)
        planted.go_on()
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, call)
    return calls


def go_on(calls: list[None], line: Line) -> None:
    """Wait until a loop has done its work twice from here."""
    wanted = len(calls) + 2
    wait_until(lambda: len(calls) >= wanted, f"it goes on after {line}")


# ── heartbeats ──


@each_exception
def test_a_member_lives_on(
    client: msgtx.Client, topic: str, monkeypatch: pytest.MonkeyPatch, unique: Unique, error: BaseException
) -> None:
    within = {"_live", "_limited", "_live_on", "_beat_in_thread", "_said", "_changed", "sleep"}
    planted = Planted("msgtx-heartbeat", ["consumer/membership.py", "receiving/wakeup.py"], within)
    beats = counted(monkeypatch, membership, "heartbeat", planted)
    with planted.following(), client.consumer(topic, group=unique("group"), **QUICK) as consumer:
        for line in each_line(planted, error):
            go_on(beats, line)
        assert consumer.poll(0) == []
        assert len(consumer.assignment()) == 1


@each_exception
def test_a_member_of_a_share_group_lives_on(
    client: msgtx.Client, topic: str, monkeypatch: pytest.MonkeyPatch, unique: Unique, error: BaseException
) -> None:
    planted = Planted("msgtx-share-heartbeat", ["shares/member.py"], {"_live", "_limited", "_beat"})
    beats = counted(monkeypatch, share_member, "heartbeat", planted)
    with planted.following(), client.share_consumer(topic, group=unique("group"), **QUICK) as consumer:
        consumer.poll(0)
        number = consumer._member.number
        for line in each_line(planted, error):
            go_on(beats, line)
        assert consumer.poll(0) == []
        assert consumer._member.number == number


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@each_exception
def test_a_heartbeat_that_died_within_its_supervisor_is_started_with_the_next_look(
    client: msgtx.Client, topic: str, unique: Unique, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing supervises the supervisor but those who need the thread."""
    planted = Planted("msgtx-heartbeat", ["background.py"], {"_run", "_raised", "_told"})

    def broken(*_: Any) -> None:
        planted.go_on()
        raise ZeroDivisionError

    monkeypatch.setattr(membership.Membership, "_live_on", broken)
    with planted.following(), client.consumer(topic, group=unique("group"), **QUICK) as consumer:
        heart = consumer.subscription.membership._heart  # type: ignore[union-attr]

        def look() -> bool:
            consumer.rewind()
            consumer.poll(0)
            return heart.lives

        for _ in each_line(planted, error, stir=look):
            wait_until(look, "it is started again")
            time.sleep(0.02)
            wait_until(look, "it is started again")


# ── two members ──


@pytest.mark.parametrize("how", ["thread", "calls"])
def test_what_others_took_over_is_not_handed_out_by_who_was_given_up(
    client: msgtx.Client, topic: str, unique: Unique, monkeypatch: pytest.MonkeyPatch, refuse: Refuse, how: str
) -> None:
    """Its heartbeats end for good, while it holds records that it has not handed out."""
    group = unique("group")
    settings: Any = {"group": group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    store(client, topic, *[b"%d" % number for number in range(100)], partition=0)
    live_on = membership.Membership._live_on
    silent: list[membership.Membership] = []

    def falls_silent(self: membership.Membership, member: Any) -> None:
        if self in silent:
            raise MemoryError if how == "calls" else SystemExit
        live_on(self, member)

    monkeypatch.setattr(membership.Membership, "_live_on", falls_silent)
    lost: list[Any] = []
    one = client.consumer(**settings, heartbeat_interval_ms=50, session_timeout_ms=600)
    one.subscribe([topic], on_lost=lost.append)
    handed = {record.offset for record in one.poll(PATIENCE_SECONDS, max_records=10)}
    member = one.subscription.membership
    assert member is not None
    silent.append(member)
    with client.consumer(topic, **settings) as other:
        taken = {record.offset for record in wait_until(lambda: other.poll(0.1))}
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            taken |= {record.offset for record in other.poll(0.01)}
            handed_late = {record.offset for record in one.poll(0.01)}
            assert not handed_late & taken
        assert taken == {*range(100)}, "nothing was committed"
        assert (len(handed), len(lost)) == (10, 1)
        silent.clear()
        wait_until(lambda: (one.poll(0.01), member._member is not None)[1], "it is a member again")  # type: ignore[attr-defined]
    one.close()


# ── commits ──


@each_exception
def test_commits_are_written_or_told_of_and_the_next_ones_are_written(error: BaseException) -> None:
    written: list[int] = []

    def write(_: GroupMetadata, offsets: OffsetsById) -> None:
        written.append(offsets[0].offset)

    offsets = iter(range(1_000_000))
    within = {"_write_in_turn", "_write_taken", "_take", "_leave_turn", "_writing"}
    with Planted("msgtx-commit", ["consumer/commits.py"], within).following() as planted:
        commits = Commits(write, timeout=PATIENCE_SECONDS)

        def hand_over() -> int:
            offset = next(offsets)
            commits.hand_over(GroupMetadata("group"), {0: OffsetAndMetadata(offset)})
            return offset

        for _ in each_line(planted, error, stir=hand_over):
            commits.settle()
            offset = hand_over()
            commits.settle()
            assert written[-1] == offset
        commits.give_up()
    assert written == sorted(written)


# ── wake-ups ──


@each_exception
def test_a_listener_hears_again(
    engine: Engine, connection: Connection, killer: Callable[[], int], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    for name in ("LOOK_FOR_COMMITS_SECONDS", "RECONNECT_SECONDS", "REFUSED_SECONDS"):
        monkeypatch.setattr(wakeup, name, 0.01)
    within = {"_run", "_listen", "_take", "_wake", "_wake_all", "_pause"}
    with Planted("msgtx-listener", ["receiving/wakeup.py"], within).following() as planted:
        listener = Listener(engine)
        waiter = Waiter(listener)
        waiter.watch([17])

        def notify() -> None:
            connection.execute("select pg_notify('msgtx', '17')")

        for line in each_line(planted, error, stir=notify):
            wait_until(lambda: listener.confirmed, f"it listens again after {line}")
            waiter.clear()
            wait_until(lambda: (notify(), waiter.sleep(0.1))[1], f"it hears after {line}")  # type: ignore[func-returns-value]
        listener.close()
        assert not listener._thread.lives


# ── markers and notifications ──


@each_exception
def test_markers_are_written_and_readers_told(
    engine: Engine, connection: Connection, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setattr(completion, "MARK_SECONDS", 0.01)
    monkeypatch.setattr(completion, "TOPIC_CHANGES_SECONDS", 0.05)
    monkeypatch.setattr(notifier, "SPEAK_SECONDS", 0.01)
    within = {"_run", "_wait", "_mark", "_ask_for_topics", "tend", "_open", "_say", "_hear", "_next_due", "close"}
    files = ["coordinator/completion.py", "coordinator/notifier.py"]
    planted = Planted("msgtx-completion", files, within)
    marks = counted(monkeypatch, completion, "mark_in_turn", planted)
    connection.execute("listen msgtx")
    with planted.following():
        made = Completion(engine, lambda _: None)

        def commit() -> None:
            made.decided()
            made.notifier.tell([17])

        def is_told() -> bool:
            commit()
            return any(each.payload == "17" for each in connection.notifies(timeout=0.1, stop_after=1))

        for line in each_line(planted, error, stir=commit):
            wait_until(is_told, f"readers are told after {line}")
            wanted = len(marks) + 1
            wait_until(lambda: (commit(), time.sleep(0.01), len(marks) >= wanted)[2], f"marks after {line}")  # type: ignore[func-returns-value]  # noqa: B023
        made.close()
        assert not made._thread.lives
    connection.execute("unlisten msgtx")


# ── workers of share groups ──


@each_exception
def test_locks_are_renewed_as_long_as_it_takes(
    client: msgtx.Client, topic: str, output: str, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    client.admin.shares.configure(topic, {"auto_offset_reset": "earliest", "record_lock_duration_ms": 1_000})
    store(client, topic, b"a")
    planted = Planted("msgtx-renewing", ["process/shares.py"], {"_live"})
    renewals = counted(monkeypatch, Answering, "renew", planted)
    deliveries: list[int] = []

    def handle(record: Any) -> None:
        deliveries.append(record.delivery_count)
        for line in each_line(planted, error):
            go_on(renewals, line)

    monkeypatch.setattr(shares, "LOOK_AT_WORK_SECONDS", 0.005)
    often = property(lambda _: 0.03, lambda *_: None)  # more often than it has to be
    monkeypatch.setattr(Waiting, "lock_seconds", often, raising=False)
    with planted.following():
        report = client.process(
            topic, to=output, transform=handle, group=topic, transactional_id=output, share_members=1, idle_timeout=0.1
        )
    assert (deliveries, report.transactions, report.aborted) == ([1], 1, 0)


# ── producers ──


def settled(futures: list[Any], line: Line | None) -> list[bool]:
    """Return which of these were stored; all of them have an outcome, and the error is ours."""
    outcomes: list[bool] = []
    for future in futures:
        try:
            future.result(PATIENCE_SECONDS)
            outcomes.append(True)
        except TimeoutError as late:
            raise AssertionError(f"no outcome after an exception before {line}") from late
        except errors.MsgtxError:
            outcomes.append(False)
    return outcomes


@pytest.mark.parametrize("kind", ["sender", "deduplicator"])
@each_exception
def test_every_record_has_an_outcome_and_the_producer_can_be_closed(
    client: msgtx.Client, topic: str, read: Callable[..., list[Record]], error: BaseException, kind: str
) -> None:
    """I1: what was acknowledged is stored once, and nothing is stored twice."""
    files, within = {
        "sender": (
            ["producer/sender.py", "producer/batches.py"],
            {"_run", "_wait_for_work", "_drain", "_take", "_chosen", "_next", "number", "_hand_over", "_settle", "_expire",
             "stored", "finish", "_settled", "_deadline", "_acknowledge", "_requeue_in_flight", "close_lingering",
             "_look_into_refusals", "take_ready", "_give_up", "_fail_all"},
        ),
        "deduplicator": (
            ["producer/keyed.py"],
            {"_run", "_take", "_call", "_settle", "_refuse", "_again", "_expire", "_pause", "_fail_all", "_fail"},
        ),
    }[kind]  # fmt: skip
    if isinstance(error, errors.MsgtxError):  # they come of calls of the database, not of what notes the answers
        within -= {"_settle", "stored", "finish", "number", "_refuse", "_fail", "_fail_all"}
    planted = Planted(f"msgtx-{kind}", files, within)
    acknowledged: list[bytes] = []
    numbers = iter(range(1_000_000))

    def use(line: Line | None) -> bool:
        """Send, flush and close with a producer of its own. Returns whether the exception came."""
        producer = client.producer(linger_ms=0, retry_backoff_ms=1, delivery_timeout_ms=20_000)
        if line is not None:
            planted.plant(line, error)
        sent: dict[bytes, Any] = {}
        for _ in range(3):
            value = b"%d" % next(numbers)
            with contextlib.suppress(errors.MsgtxError):
                sent[value] = producer.send(topic, value, **{"dedup_key": value.decode()} if kind == "deduplicator" else {})
        outcomes = settled([*sent.values()], line)
        acknowledged.extend(value for value, stored in zip(sent, outcomes, strict=True) if stored)
        began = time.monotonic()
        with contextlib.suppress(errors.MsgtxError):
            producer.flush(PATIENCE_SECONDS)
        producer.close(PATIENCE_SECONDS)
        assert time.monotonic() - began < PATIENCE_SECONDS, line
        came = planted.raised.is_set()
        planted.remove()
        planted.raised.clear()
        return came

    with planted.following():
        use(None)
        assert len(acknowledged) == 3
        done: set[Line] = set()
        came = 0
        while left := [line for line in planted.seen if line not in done]:
            done.add(left[0])
            came += use(left[0])
        assert came > 10
    stored = [record.value for record in read(topic)]
    assert len(stored) == len({*stored})
    assert {*acknowledged} <= {*stored}


# ── metrics ──


@each_exception
def test_metrics_are_answered_again(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = Endpoint("127.0.0.1", 0, {"/": lambda: plain(__import__("http").HTTPStatus.OK, "well")})
    raised = threading.Event()

    def fails_once() -> None:
        if not raised.is_set():
            raised.set()
            raise type(error)(*error.args)

    monkeypatch.setattr(endpoint._server, "service_actions", fails_once)

    def is_answered() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}/", timeout=1) as answer:
                return bool(answer.read() == b"well\n")
        except OSError:
            return False

    wait_until(lambda: is_answered() and raised.is_set(), "it answers again")
    endpoint.close()
    assert not endpoint._thread.lives


# ── asyncio ──


@each_exception
def test_what_a_poll_raises_in_its_thread_is_raised_where_it_is_awaited(
    database_url: str, topic: str, client: msgtx.Client, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(client, topic, b"a")

    async def main() -> None:
        async with await aio.connect(database_url) as other:
            consumer = other.consumer(topic, auto_offset_reset="earliest")
            async with consumer:
                with monkeypatch.context() as patched:

                    def fails(*_: float) -> bool:
                        raise error

                    patched.setattr(consumer.sync, "_await_records", fails)
                    with pytest.raises(type(error)):
                        await consumer.poll(1.0)
                (record,) = await consumer.poll(PATIENCE_SECONDS)
                assert record.value == b"a"

    asyncio.run(main())


# ── no thread to be had ──


@pytest.mark.parametrize("name", ["msgtx-heartbeat", "msgtx-commit", "msgtx-listener", "msgtx-completion", "msgtx-resolver"])
def test_while_no_thread_is_to_be_had_a_consumer_is_refused_or_served_and_then_goes_on(
    database_url: str, client: msgtx.Client, topic: str, unique: Unique, refuse: Refuse, name: str
) -> None:
    store(client, topic, b"a")
    url = database_url.replace("127.0.0.1", "localhost")
    group = unique("group")
    settings: Any = {"group": group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    with refuse(name):
        try:
            other = msgtx.connect(url)
        except errors.MsgtxError:
            other = None
        if other is not None:
            made = other.consumer(**settings, request_timeout_ms=200, **QUICK)
            with contextlib.suppress(errors.MsgtxError):
                made.subscribe([topic])
                made.poll(0.1)
                made.commit(wait=False)
    other = other or msgtx.connect(url)
    with other, other.consumer(topic, **{**settings, "group": unique("group")}) as consumer:
        (record,) = wait_until(lambda: consumer.poll(0.5))
        assert record.value == b"a"
        consumer.commit(wait=False)
        consumer._commits.settle()
        wait_until(lambda: other.runtime.listener.confirmed, "it listens")
        made = other.consumer(**settings, **QUICK) if name == "msgtx-resolver" else made
        if not made.subscription.membership:
            made.subscribe([topic])
        wait_until(lambda: made.poll(0.1) or made.position(msgtx.TopicPartition(topic, 0)) == 1, "it reads")


@pytest.mark.parametrize("name", ["msgtx-sender", "msgtx-deduplicator"])
def test_while_no_thread_is_to_be_had_a_send_is_refused_and_the_next_one_is_stored(
    client: msgtx.Client, topic: str, refuse: Refuse, name: str
) -> None:
    key: Any = {"dedup_key": "k"} if name == "msgtx-deduplicator" else {}
    with client.producer(linger_ms=0) as producer:
        with refuse(name), pytest.raises(errors.ThreadNotStarted):
            producer.send(topic, b"a", **key)
        assert producer.send(topic, b"b", **key).result(PATIENCE_SECONDS).offset == 0


def test_while_no_thread_is_to_be_had_a_share_worker_acquires_nothing(
    client: msgtx.Client, topic: str, output: str, refuse: Refuse, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing would renew the locks of what it works on."""
    client.admin.shares.configure(topic, {"auto_offset_reset": "earliest"})
    store(client, topic, b"a")
    given: Any = {"to": output, "transform": lambda _: None, "group": topic, "transactional_id": output, "share_members": 1}
    with refuse("msgtx-renewing"):
        assert client.process(topic, idle_timeout=0.3, **given).records_in == 0
    assert "gives none" in caplog.text
    assert client.process(topic, idle_timeout=0.3, **given).records_in == 1
