"""`msgtx.listen`: sessions that are notified of commits to a topic, while COMMITs notify nobody else."""

import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from msgtx import errors
from msgtx.database.calls import query
from msgtx.store.append.append import append
from msgtx.store.fetch.wakeups import notify, tell_readers, words_of
from msgtx.store.shares.shares import configure_share_group
from tests.databases import Connection, Server, Sessions
from tests.refusals import refuses
from tests.roles import consumer_and_others
from tests.store.steps import Writer, batch, named_topic, unique

pytestmark = pytest.mark.slow

ALL_ARE_THERE = 5.0  # seconds; a notification that was sent before arrives at once


class Listening:
    """A topic of two partitions, and a session that listens to it for a group."""

    def __init__(self, connection: Connection, listener: Connection) -> None:
        self.connection, self.listener = connection, listener
        self.topic, self.partitions = named_topic(connection, 2)
        self.group = unique("listeners")
        self.channel, self.first = self.listen()
        self.heard()  # what the session's last user was notified of

    def listen(self, listener: Connection | None = None) -> tuple[str, bool]:
        """Return the channel, and whether there may be records."""
        ((channel, has_records),) = query(
            listener or self.listener, "select * from msgtx.listen(%s, %s)", self.topic, self.group
        )
        return channel, has_records

    def has_records(self) -> bool:
        return self.listen()[1]

    def take(self) -> list[bytes]:
        return [value for (value,) in query(self.connection, "select value from msgtx.take(%s, %s)", self.topic, self.group)]

    def publish(self, session: Connection | None = None, at: int = 0) -> None:
        query(session or self.connection, "select msgtx.publish(%s, value => 'a', partition => %s::int)", self.topic, at)

    def heard(self, listener: Connection | None = None) -> list[str]:
        """Return the channels of all notifications that were sent until now, and not returned before."""
        end = unique("end").replace("-", "_")
        listener = listener or self.listener
        listener.execute(f"listen {end}")
        self.connection.execute(f"notify {end}")
        found = []
        for each in listener.notifies(timeout=ALL_ARE_THERE):
            if each.channel == end:
                return found
            found.append(each.channel)
        raise AssertionError("the last notification did not arrive")


@pytest.fixture
def listening(connection: Connection, session: Connection) -> Listening:
    return Listening(connection, session)


def test_the_first_call_begins_to_listen_and_later_ones_look(listening: Listening) -> None:
    """A record that was committed before the first LISTEN is not notified: so the first call says that there may be some."""
    assert listening.first
    assert not listening.has_records()
    listening.publish()
    assert listening.has_records()
    assert listening.take() == [b"a"]
    assert not listening.has_records()


COMMITS: dict[str, Callable[[Listening], object]] = {
    "publish": lambda of: of.publish(),
    "a transaction": lambda of: Writer(of.connection).send_and_commit(of.partitions[0], b"a"),
    "a client that cannot notify": lambda of: append(of.connection, [batch(of.partitions[0], b"a")], wake=True),
    "a client that notifies": lambda of: notify(of.connection, words_of([of.partitions[0], 2**31 - 1])),
    "a client whose queue was full": lambda of: tell_readers(of.connection, [of.partitions[0]]),
}


@pytest.mark.parametrize("commit", COMMITS)
def test_a_commit_notifies_those_that_listen_to_its_topic(
    listening: Listening, open_connection: Sessions, commit: str
) -> None:
    other = open_connection()
    elsewhere = Listening(listening.connection, other)
    COMMITS[commit](listening)
    assert listening.heard() == [listening.channel]
    assert elsewhere.heard() == []


def test_what_is_rolled_back_notifies_nobody(listening: Listening, open_connection: Sessions) -> None:
    session = open_connection()
    with session.transaction(force_rollback=True):
        listening.publish(session)
        session.execute("set constraints all immediate")
    assert listening.heard() == []


def test_nobody_is_notified_when_the_listeners_are_gone(listening: Listening, open_connection: Sessions) -> None:
    """A COMMIT that notifies holds a lock over all databases during its flush."""
    Listening(listening.connection, open_connection())  # to another topic
    onlooker = open_connection()
    onlooker.execute(f"listen {listening.channel}")
    listening.publish()
    assert listening.heard(onlooker) == [listening.channel]
    listening.listener.execute("discard all")
    listening.publish()
    assert listening.heard(onlooker) == []


@pytest.fixture
def committing(listening: Listening, open_connection: Sessions) -> Callable[[int], Connection]:
    """Return a session whose COMMIT has written a record to a partition, and is not over."""

    def begin(at: int) -> Connection:
        session = open_connection()
        session.execute("begin")
        listening.publish(session, at)
        session.execute("set constraints all immediate")
        return session

    return begin


def test_of_commits_at_the_same_time_one_notifies(listening: Listening, committing: Callable[[int], Connection]) -> None:
    """Else each would wait for the flush of the one before."""
    session = committing(0)
    listening.publish(at=1)
    assert listening.heard() == []
    session.execute("commit")
    assert listening.heard() == [listening.channel]


def test_a_call_waits_for_a_commit_that_may_not_notify(
    listening: Listening, committing: Callable[[int], Connection]
) -> None:
    """But not for long: it may hang."""
    listening.has_records()
    session = committing(0)
    began = time.monotonic()
    assert not listening.has_records()
    assert time.monotonic() > began + 0.04
    session.execute("commit")
    assert listening.has_records()


def test_a_call_is_no_commit_that_notifies(listening: Listening, open_connection: Sessions) -> None:
    """While it looks, a COMMIT does not rely on another one."""
    looking = open_connection()
    with looking.transaction():
        # What a look holds for a microsecond.
        looking.execute(
            "select pg_advisory_xact_lock(1836279563, -t.topic_id), pg_advisory_xact_lock(1836279564, t.topic_id)"
            " from msgtx.topic t where t.name = %s",
            [listening.topic],
        )
        listening.publish()
        assert listening.heard() == [listening.channel]


def test_a_lock_that_anybody_may_take_stops_no_commit(listening: Listening, blocked: Callable[..., Future[object]]) -> None:
    """A login without rights waits for the key of all listeners: new ones fail after a while, commits notify as before."""
    waiting = blocked(lambda session: session.execute("select pg_advisory_lock(1836279563, 0)"))
    listening.publish()
    assert listening.heard() == [listening.channel]
    assert listening.has_records()
    listening.listener.execute("discard all")
    waiting.result(30)


def test_a_share_group_is_listened_for(listening: Listening) -> None:
    configure_share_group(listening.connection, listening.group, {"auto_offset_reset": "earliest"})
    for published in (0, 1):
        if published:
            listening.publish()
            assert listening.heard() == [listening.channel]
            assert listening.has_records()
        received = query(listening.connection, "select * from msgtx.receive(%s, %s)", listening.topic, listening.group)
        assert len(received) == published
        assert not listening.has_records()


def test_a_topic_that_does_not_exist_is_refused(connection: Connection) -> None:
    with refuses(errors.UnknownTopicOrPartition, topic="nowhere"):
        query(connection, "select * from msgtx.listen('nowhere', 'group')")


def test_a_role_listens_to_what_it_may_consume(server: Server, database_url: str, listening: Listening) -> None:
    with consumer_and_others(server, database_url, listening.topic, listening.group) as (mine, others):
        for other in others:
            with refuses(errors.AuthorizationFailed):
                listening.listen(other)
        listening.listen(mine)
        listening.publish(others[1])
        assert listening.heard(mine) == [listening.channel]
