"""A consumer's background commits beside commits that are awaited: in order, and none lost at the end."""

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy

import msgtx
from msgtx import OffsetAndMetadata, TopicPartition, errors
from msgtx.consumer import commits as room
from msgtx.consumer.commits import Commits, OffsetsById
from msgtx.types import GroupMetadata
from tests.client.steps import store
from tests.databases import Connection, wait_until
from tests.hooks import Hook
from tests.refusals import refuses

pytestmark = pytest.mark.slow

SECONDS = 30.0
GROUP = GroupMetadata("group")


def at(*offsets: int) -> OffsetsById:
    return {partition: OffsetAndMetadata(offset) for partition, offset in enumerate(offsets)}


class Slow:
    """A database that writes each commit when the test releases it."""

    def __init__(self) -> None:
        self.written: list[dict[int, int]] = []
        self.begun = 0
        self.turn = threading.Semaphore(0)
        self.refused: set[int] = set()
        self.broken: set[int] = set()

    def __call__(self, group: GroupMetadata, offsets: OffsetsById) -> None:
        self.begun += 1
        assert self.turn.acquire(timeout=SECONDS)
        self.written.append({partition: offset.offset for partition, offset in offsets.items()})
        if any(offset.offset in self.refused for offset in offsets.values()):
            raise errors.NotAssigned("refused")
        if any(offset.offset in self.broken for offset in offsets.values()):
            raise ZeroDivisionError


def awaited(commits: Commits, offset: int) -> threading.Thread:
    """Commit in a thread that waits."""
    thread = threading.Thread(target=commits.commit, args=(GROUP, at(offset)))
    thread.start()
    return thread


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def commits(slow: Slow) -> Commits:
    return Commits(slow, timeout=SECONDS)


@pytest.mark.parametrize("begun", [True, False])
def test_a_commit_that_is_waited_for_comes_behind_those_before(slow: Slow, commits: Commits, begun: bool) -> None:
    commits.hand_over(GROUP, at(1))
    if begun:
        wait_until(lambda: slow.begun == 1)
    commits.hand_over(GROUP, at(2))
    waiting = awaited(commits, 3)
    waiting.join(0.2)  # time enough to overtake
    at_once = slow.begun
    for _ in range(3):
        slow.turn.release()
    waiting.join(SECONDS)
    assert at_once <= 1
    assert [each[0] for each in slow.written] in ([1, 2, 3], [2, 3])


@pytest.mark.parametrize("order", [*itertools.product("bw", repeat=4)], ids="".join)
def test_no_order_of_commits_writes_an_older_one_last(order: tuple[str, ...]) -> None:
    """In the background or awaited, in any order; the database is released at different moments."""
    for early in range(3):
        slow = Slow()
        commits = Commits(slow, timeout=SECONDS)
        for offset, kind in enumerate(order):
            if kind == "b":
                commits.hand_over(GROUP, at(offset))
                for _ in range(early):
                    slow.turn.release()
            else:
                waiting = awaited(commits, offset)
                for _ in range(len(order)):
                    slow.turn.release()
                waiting.join(SECONDS)
                assert slow.written[-1] == {0: offset}, "it has returned"
        for _ in range(len(order)):
            slow.turn.release()
        commits.settle()
        offsets = [each[0] for each in slow.written]
        assert offsets == sorted(offsets)
        assert offsets[-1] == len(order) - 1


def test_what_is_superseded_is_not_written_and_nothing_else_is_left_out(slow: Slow, commits: Commits) -> None:
    """A commit of other partitions supersedes nothing."""
    commits.hand_over(GROUP, at(1))
    wait_until(lambda: slow.begun == 1)
    for offsets in (at(2), at(3, 3), {1: OffsetAndMetadata(4)}, {1: OffsetAndMetadata(5)}):
        commits.hand_over(GROUP, offsets)
    for _ in range(3):
        slow.turn.release()
    commits.settle()
    assert slow.written == [{0: 1}, {0: 3}, {1: 5}]


def test_of_each_partition_one_offset_waits_at_most(slow: Slow, commits: Commits) -> None:
    """Record by record of two partitions, while the database is slow: neither memory nor the end takes longer for that."""
    for offset in range(100):
        for partition in range(2):
            commits.hand_over(GROUP, {partition: OffsetAndMetadata(offset)})
        wait_until(lambda: slow.begun == 1)
    for _ in range(200):
        slow.turn.release()
    commits.settle()
    assert slow.written == [{0: 0}, {0: 99}, {1: 99}]


def test_a_refusal_goes_to_the_log_and_holds_up_no_other(
    slow: Slow, commits: Commits, caplog: pytest.LogCaptureFixture
) -> None:
    slow.refused = {1}
    for offset in (1, 2):
        commits.hand_over(GROUP, at(offset))
        wait_until(lambda: slow.begun == offset)  # noqa: B023 - it is called here
        slow.turn.release()
    commits.settle()
    assert slow.written == [{0: 1}, {0: 2}]
    assert "offsets were not committed: refused" in caplog.text


def test_a_bug_that_ends_the_thread_loses_nothing_behind_it(caplog: pytest.LogCaptureFixture) -> None:
    written: list[OffsetsById] = []
    entered, go_on = threading.Event(), threading.Event()

    def write(group: GroupMetadata, offsets: OffsetsById) -> None:
        if not entered.is_set():
            entered.set()
            assert go_on.wait(SECONDS)
            raise ZeroDivisionError
        written.append(offsets)

    commits = Commits(write, timeout=SECONDS)
    commits.hand_over(GROUP, at(1))
    assert entered.wait(SECONDS)
    commits.hand_over(GROUP, at(2))
    go_on.set()
    commits.settle()
    assert written == [at(2)]
    wait_until(lambda: "ZeroDivisionError" in caplog.text)


def test_what_comes_while_a_caller_writes_what_a_bug_has_left_waits_for_its_turn(slow: Slow, commits: Commits) -> None:
    slow.broken = {1}
    commits.hand_over(GROUP, at(1))
    wait_until(lambda: slow.begun == 1)
    commits.hand_over(GROUP, at(2))
    slow.turn.release()
    settling = threading.Thread(target=commits.settle)
    settling.start()
    wait_until(lambda: slow.begun == 2)
    commits.hand_over(GROUP, at(3))
    time.sleep(0.2)  # the thread has gone on by then
    assert slow.begun == 2
    slow.turn.release(2)
    settling.join(SECONDS)
    commits.settle()
    assert slow.written == [{0: 1}, {0: 2}, {0: 3}]


def test_what_no_thread_takes_is_written_by_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the system gives none, or the interpreter is ending."""
    slow = Slow()
    slow.turn.release(3)
    commits = Commits(slow, timeout=5.0)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        commits.hand_over(GROUP, at(1))
        commits.settle()
        commits.hand_over(GROUP, at(2))
    commits.hand_over(GROUP, {1: OffsetAndMetadata(3)})  # there is a thread again
    wait_until(lambda: len(slow.written) == 3)
    assert slow.written == [{0: 1}, {0: 2}, {1: 3}]
    commits.give_up()


def test_what_was_handed_over_is_written_when_the_interpreter_ends() -> None:
    program = """
import time
import msgtx.client
from msgtx.consumer.commits import Commits
from msgtx.types import GroupMetadata

def write(group, offsets):
    time.sleep(0.1)
    print(offsets, flush=True)

commits = Commits(write, timeout=5.0)
commits.hand_over(GroupMetadata("g"), {0: 1})
commits.hand_over(GroupMetadata("g"), {1: 2})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS * 3, check=True)
    assert done.stdout.split("\n")[:2] == ["{0: 1}", "{1: 2}"], done.stderr


def test_waiting_has_an_end(caplog: pytest.LogCaptureFixture) -> None:
    """Commits queued after a call that does not return are given up, with a warning."""
    slow = Slow()
    commits = Commits(slow, timeout=0.05)
    commits.hand_over(GROUP, at(1))
    wait_until(lambda: slow.begun == 1)
    commits.hand_over(GROUP, at(2, 2))
    with refuses(errors.DatabaseUnavailable, reason="late commits"):
        commits.commit(GROUP, at(3))
    commits.give_up()
    slow.turn.release(2)
    wait_until(lambda: not commits._writing)
    assert slow.written == [{0: 1}], "what was given up is not written after that"
    assert "offsets of 2 partitions were not committed: closed" in caplog.text


# ── a consumer ──


def fill(client: msgtx.Client, topic: str, count: int) -> None:
    store(client, topic, *[b"%d" % i for i in range(count)], partition=0)


@pytest.fixture
def consumer(client: msgtx.Client, topic: str, unique: Callable[[str], str]) -> msgtx.Consumer:
    fill(client, topic, 100)
    return client.consumer(
        topic, group=unique("group"), enable_auto_commit=False, auto_offset_reset="earliest", request_timeout_ms=3_000
    )


def held_up(connection: Connection, group: str) -> None:
    """Block commits of a group, as a change of its members does."""
    connection.execute("begin")
    connection.execute("select msgtx.lock_group(%s)", [group])


def read_on(consumer: msgtx.Consumer, count: int) -> None:
    assert len(consumer.poll(SECONDS, max_records=count)) == count


def offset_of(client: msgtx.Client, consumer: msgtx.Consumer, topic: str) -> int | None:
    assert consumer.config.group is not None
    at = client.admin.groups.offsets(consumer.config.group).get(TopicPartition(topic, 0))
    return None if at is None else at.offset


@pytest.mark.parametrize("what", ["commit", "transaction", "session", "rewind", "committed", "close"])
def test_whatever_counts_on_offsets_comes_behind_what_was_handed_over(
    client: msgtx.Client, consumer: msgtx.Consumer, topic: str, connection: Connection, unique: Callable[[str], str],
    app: sqlalchemy.Engine, hook: Hook, what: str,
) -> None:  # fmt: skip
    """I10, and the order of commits: the older offset waits for a lock, but is not written last."""
    tp = TopicPartition(topic, 0)
    assert consumer.config.group is not None
    read_on(consumer, 10)
    held_up(connection, consumer.config.group)
    consumer.commit(wait=False)
    free = threading.Timer(0.3, lambda: connection.execute("commit"))
    free.start()
    began = time.monotonic()
    if what in {"commit", "transaction", "session", "rewind"}:
        read_on(consumer, 10)
    match what:
        case "commit":
            consumer.commit()
        case "transaction":
            with client.producer(transactional_id=unique("id")) as producer, producer.transaction() as transaction:
                transaction.send_offsets(consumer)
                assert hook.seen["after commit_offsets"] == 1, "its commit waits as well, but may be the first to go on"
        case "session":
            with app.begin() as session:
                consumer.commit(session=session)
                assert offset_of(client, consumer, topic) == 10, "the older one is written by now"
        case "rewind":
            consumer.rewind()
            assert consumer.position(tp) == 10
        case "committed":
            assert consumer.committed([tp]) == {tp: OffsetAndMetadata(10)}
        case _:
            consumer.close()
    assert time.monotonic() - began > 0.2, "it did not wait"
    free.join()
    consumer.close()
    assert offset_of(client, consumer, topic) == (20 if what in {"commit", "transaction", "session"} else 10)


def test_close_commits_what_was_handed_over_before_it_leaves(
    client: msgtx.Client, consumer: msgtx.Consumer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    others = set(threading.enumerate())  # of tests before
    for _ in range(50):
        read_on(consumer, 2)
        consumer.commit(wait=False)
    consumer.close()
    assert offset_of(client, consumer, topic) == 100
    assert "not committed" not in caplog.text
    begun = [each for each in threading.enumerate() if each.name.startswith("msgtx-commit") and each not in others]
    wait_until(lambda: not any(each.is_alive() for each in begun), "its thread has ended")


def test_close_does_not_wait_for_ever(
    consumer: msgtx.Consumer, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """It leaves as far as possible, and logs what was not committed."""
    assert consumer.config.group is not None
    read_on(consumer, 10)
    held_up(connection, consumer.config.group)
    consumer.commit(wait=False)
    began = time.monotonic()
    ended = threading.Timer(4.0, lambda: connection.execute("commit"))
    ended.start()
    consumer.close()
    assert time.monotonic() - began < 3 * SECONDS
    assert "are not committed after 3 s" in caplog.text
    ended.join()


@pytest.mark.parametrize("automatic", [True, False])
def test_automatic_commits_come_once_in_their_interval(
    client: msgtx.Client, topic: str, unique: Callable[[str], str], automatic: bool
) -> None:
    fill(client, topic, 40)
    settings: Any = {"enable_auto_commit": automatic, "auto_commit_interval_ms": 60_000, "auto_offset_reset": "earliest"}
    consumer = client.consumer(topic, group=unique("group"), **settings)
    for _ in range(2):
        read_on(consumer, 10)
    consumer._commits.settle()
    assert offset_of(client, consumer, topic) is None
    consumer.committing._next_commit = 0.0  # as if the interval were over
    for _ in range(2):
        read_on(consumer, 10)
    consumer._commits.settle()
    assert offset_of(client, consumer, topic) == (20 if automatic else None)
    consumer.close()


def test_automatic_commits_keep_their_order_and_hold_up_no_poll(
    client: msgtx.Client, topic: str, connection: Connection, unique: Callable[[str], str]
) -> None:
    fill(client, topic, 100)
    group = unique("group")
    consumer = client.consumer(
        topic, group=group, auto_commit_interval_ms=1, auto_offset_reset="earliest", session_timeout_ms=60_000
    )
    read_on(consumer, 10)
    time.sleep(0.01)
    held_up(connection, group)
    began = time.monotonic()
    read_on(consumer, 10)
    time.sleep(0.01)
    read_on(consumer, 10)
    assert time.monotonic() - began < 3, "a poll waited for the commit"
    connection.execute("commit")
    consumer.close()
    assert offset_of(client, consumer, topic) == 30


def test_a_revoked_partition_is_released_behind_its_last_commit(
    client: msgtx.Client, wide: str, unique: Callable[[str], str], connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """I11: an owner may commit until it releases. What `on_revoke` commits is not refused."""
    with client.producer() as producer:
        for partition in range(3):
            producer.send_batch(wide, [b"x"] * 10, partition=partition)
    group = unique("group")
    settings = {"group": group, "enable_auto_commit": False, "auto_offset_reset": "earliest", "heartbeat_interval_ms": 100}
    one = client.consumer(**settings)
    revoked: list[TopicPartition] = []

    def on_revoke(partitions: list[TopicPartition]) -> None:
        revoked.extend(partitions)
        one.commit(wait=False)

    one.subscribe([wide], on_revoke=on_revoke)
    got = 0
    while got < 30:
        got += len(one.poll(SECONDS))
    other = client.consumer(wide, **settings)
    wait_until(lambda: one.poll(0.05) == [] and bool(revoked) and bool(other.poll(0.05) == [] and other.assignment()))
    committed = client.admin.groups.offsets(group)
    assert {tp: committed[tp].offset for tp in revoked} == dict.fromkeys(revoked, 10)
    assert "not committed" not in caplog.text
    other.close()
    one.close()


def writes_elsewhere(*several: Commits) -> threading.Event:
    """Have another thread write for each of them, until the event is set."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait, args=(SECONDS,))
    thread.start()
    for commits in several:
        commits._writer = thread
    return over


def test_the_thread_stays_while_another_one_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "IDLE_SECONDS", 0.02)
    slow = Slow()
    slow.turn.release()
    commits = Commits(slow, timeout=SECONDS)
    over = writes_elsewhere(commits)
    commits.hand_over(GROUP, at(1))
    time.sleep(0.2)
    over.set()
    wait_until(lambda: slow.written == [{0: 1}], "it is written")


def test_all_commits_have_one_time_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    several = [Commits(Slow(), timeout=1.0) for _ in range(3)]
    over = writes_elsewhere(*several)
    monkeypatch.setattr(room, "_pending", several)
    monkeypatch.setattr(room, "COMMITS_EXIT_SECONDS", 0.1)
    began = time.monotonic()
    room.settle_all()
    took = time.monotonic() - began
    over.set()
    assert took < 0.9
