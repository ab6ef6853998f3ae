"""I9: what must last is flushed by its own COMMIT, also in a session that has synchronous_commit off."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from msgtx.database.calls import query
from msgtx.store.shares.answers import acknowledge_records
from msgtx.store.transactions.seal import seal
from tests.databases import Clock, Connection, Sessions, backend, wait_for_lock
from tests.store.durable import CASES, Stage
from tests.store.sharing import ShareGroup
from tests.store.steps import append_one, batch, new_partition

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("bare")]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=f"{function}-{case.__name__.strip('<>')}")
        for function, cases in CASES.items()
        for case in cases
    ],
)
def test_what_promises_to_last_is_flushed_where_the_session_does_not_flush(
    case: Callable[[Stage], None], connection: Connection, session: Connection, clock: Clock
) -> None:
    query(session, "set synchronous_commit = off")
    with session.transaction():
        case(Stage(connection, session, clock))
        assert query(session, "show synchronous_commit") == [("on",)]
        assert query(session, "select pg_current_xact_id_if_assigned() is not null") == [(True,)], "there is what to flush"


def test_an_append_that_need_not_last_flushes_nothing(connection: Connection, open_connection: Sessions) -> None:
    """Those with acks=0 or acks=1, and those in a transaction, which its decision flushes."""
    partition, session = new_partition(connection), open_connection()
    query(session, "set synchronous_commit = off")
    with session.transaction():
        append_one(session, batch(partition, b"a"), flushed=False)
        assert query(session, "show synchronous_commit") == [("off",)]
    query(session, "set synchronous_commit = on")
    with session.transaction():
        append_one(session, batch(partition, b"b"), flushed=False)
        assert query(session, "show synchronous_commit") == [("off",)]


def test_a_seal_for_a_session_flushes_nothing(connection: Connection, session: Connection, clock: Clock) -> None:
    """The COMMIT of its session comes later in the WAL, and flushes."""
    stage = Stage(connection, session, clock)
    writer = stage.sent()
    for _ in ("seal", "the same again"):
        with session.transaction():
            assert seal(session, writer.name, "session", tails=writer.tails).sealed is not None
            assert query(session, "show synchronous_commit") == [("off",)]


def test_an_answer_that_overtakes_its_first_try_makes_that_last(connection: Connection, open_connection: Sessions) -> None:
    """It finds nothing to do behind the lock, and the first try may have been made in a call that did not flush."""
    group = ShareGroup(connection, new_partition(connection))
    append_one(connection, batch(group.partition, b"a"))
    group.acquire("a")
    answers, first, second = group.answers("a", {0: "accept"}), open_connection(), open_connection()
    query(second, "set synchronous_commit = off")
    with ThreadPoolExecutor(1) as threads, second.transaction():
        with first.transaction():
            assert acknowledge_records(first, answers, call_number=9) == []
            again = threads.submit(acknowledge_records, second, answers, call_number=9)
            wait_for_lock(connection, backend(second))
        assert again.result(20) == []
        assert query(second, "show synchronous_commit") == [("on",)]
        assert query(second, "select pg_current_xact_id_if_assigned() is not null") == [(True,)], "there is what to flush"
