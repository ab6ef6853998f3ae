"""I9: what must last is flushed by its own COMMIT, also in a session that has synchronous_commit off."""

from collections.abc import Callable

import pytest

from msgtx.database.calls import query
from tests.databases import Connection
from tests.store.durable import CASES, Stage
from tests.store.steps import append_one, batch, new_partition

pytestmark = pytest.mark.usefixtures("bare")


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=f"{function}-{case.__name__}") for function, cases in CASES.items() for case in cases],
)
def test_what_promises_to_last_is_flushed_where_the_session_does_not_flush(
    case: Callable[[Stage], None],
    connection: Connection,
    open_connection: Callable[[], Connection],
    clock: Callable[[str], None],
) -> None:
    session = open_connection()
    query(session, "set synchronous_commit = off")
    with session.transaction():
        case(Stage(connection, session, clock))
        assert query(session, "show synchronous_commit") == [("on",)]
        assert query(session, "select pg_current_xact_id_if_assigned() is not null") == [(True,)], "there is what to flush"


def test_an_append_that_need_not_last_flushes_nothing(
    connection: Connection, open_connection: Callable[[], Connection]
) -> None:
    """Those with acks=0 or acks=1, and those in a transaction, which its decision flushes."""
    partition, session = new_partition(connection), open_connection()
    query(session, "set synchronous_commit = off")
    with session.transaction():
        append_one(session, batch(partition, b"a"), flushed=False)
        assert query(session, "show synchronous_commit") == [("off",)]
