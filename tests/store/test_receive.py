"""`msgtx.receive` and `msgtx.acknowledge`: a share group whose members speak SQL (I17)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from msgtx import errors
from msgtx.database.calls import query
from msgtx.store.append.append import append
from msgtx.store.shares.shares import configure_share_group, ensure_dead_letters
from tests.databases import Clock, Connection, Server, Sessions
from tests.refusals import refuses
from tests.roles import open_roles
from tests.store.conftest import Blocked
from tests.store.roster import Roster
from tests.store.sharing import ShareGroup
from tests.store.sharing import fill as fill_with_keys
from tests.store.steps import Writer, batch, named_topic, plain, unique

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Received:
    partition: int
    offset: int
    value: bytes | None
    count: int
    receipt: str


class Receiving:
    """A topic, and a share group that reads it with SQL from the beginning."""

    def __init__(self, connection: Connection, partitions: int = 1, **settings: object) -> None:
        self.connection = connection
        self.topic, self.partitions = named_topic(connection, partitions, retention_ms=-1)
        self.group = unique("workers")
        configure_share_group(connection, self.group, {"auto_offset_reset": "earliest", **settings})

    def fill(self, *values: bytes, at: int = 0) -> None:
        """Append the values as one batch."""
        plain(self.connection, self.partitions[at], *values)

    def receive(self, session: Connection | None = None, most: int = 10, **named: Any) -> list[Received]:
        """Receive, lowest offsets first."""
        arguments = "".join(f", {name} => %s" for name in named)
        rows = query(
            session or self.connection,
            'select partition, "offset", value, delivery_count, receipt'
            f" from msgtx.receive(%s, %s, max_records => %s{arguments}) order by 1, 2",
            self.topic,
            self.group,
            most,
            *named.values(),
        )
        return [Received(*row) for row in rows]

    def counts(self, session: Connection | None = None, most: int = 10) -> list[tuple[bytes | None, int]]:
        """Receive, and return value and delivery count of each."""
        return [(each.value, each.count) for each in self.receive(session, most)]

    def acknowledge(self, *receipts: str, session: Connection | None = None, **named: Any) -> None:
        """Answer for records."""
        kinds = {"delay": "::interval"}
        arguments = "".join(f", {name} => %s{kinds.get(name, '')}" for name in named)
        query(
            session or self.connection,
            f"select msgtx.acknowledge_all(%s{arguments})",
            list(receipts),
            *named.values(),
        )


@pytest.fixture
def work(connection: Connection) -> Receiving:
    return Receiving(connection)


# ── what is returned ──


def test_of_many_partitions_the_few_that_have_records_are_found(connection: Connection) -> None:
    """Each call asks for some that may have records, in another order."""
    work = Receiving(connection, 40)
    for at in (0, 17, 39):
        work.fill(b"a", b"b", at=at)
        assert [(each.partition, each.value) for each in work.receive(most=1)] == [(at, b"a")]
        assert [(each.partition, each.value) for each in work.receive(most=1)] == [(at, b"b")]
    assert work.receive() == []


def test_of_many_partitions_those_that_give_nothing_hide_no_other(connection: Connection, session: Connection) -> None:
    """An open transaction holds most of them back, and another SQL transaction has the lock of one that has records."""
    work = Receiving(connection, 40)
    work.receive()
    for at in range(40):
        work.fill(b"old", at=at)
    while found := work.receive(most=1000):
        work.acknowledge(*[each.receipt for each in found])
    writer = Writer(connection)
    for at in range(38):
        writer.send(work.partitions[at], b"open")
    work.fill(*[b"x"] * 20, at=38)
    work.fill(*[b"x"] * 20, at=39)
    with session.transaction():
        assert len(work.receive(session, most=1)) == 1
        assert [len(work.receive(most=1)) for _ in range(15)] == [1] * 15


def test_a_record_is_received_as_it_was_sent(connection: Connection, work: Receiving) -> None:
    append(
        connection,
        [
            batch(
                work.partitions[0],
                b"a",
                None,
                b"\xff",
                keys=[b"k", b"l", None],
                timestamps=[1_000, 2_000, 3_000],
                headers=[[("h", b"1")], [], [("i", b"2"), ("j", None)]],
            )
        ],
    )
    rows = query(
        connection,
        'select topic, partition, "offset", extract(epoch from "timestamp")::int, key, value, headers::text, delivery_count'
        " from msgtx.receive(%s, %s) order by 3",
        work.topic,
        work.group,
    )
    assert rows == [
        (work.topic, 0, 0, 1, b"k", b"a", '{"h": "1"}', 1),
        (work.topic, 0, 1, 2, b"l", None, None, 1),
        (work.topic, 0, 2, 3, None, b"\xff", '{"i": "2", "j": null}', 1),
    ]


def test_large_records_come_whole(work: Receiving) -> None:
    """A member reads them by a second call, without the locks; SQL gets them at once."""
    work.fill(b"a" * 100_000, b"b" * 100_000)
    assert [len(each.value or b"") for each in work.receive()] == [100_000, 100_000]


def test_a_call_has_limits(work: Receiving) -> None:
    for _ in range(4):
        work.fill(b"a" * 1_000)
    assert len(work.receive(most=3)) == 3
    assert len(work.receive(most=3)) == 1
    work = Receiving(work.connection)
    for _ in range(4):
        work.fill(b"a" * 1_000)
    assert len(work.receive(most=10, max_bytes=1_500)) == 2


def test_all_partitions_are_received_from(connection: Connection) -> None:
    work = Receiving(connection, 3)
    for at in range(3):
        work.fill(b"%d" % at, at=at)
    assert [each.value for each in work.receive()] == [b"0", b"1", b"2"]
    assert work.receive() == []


def test_an_open_transaction_holds_records_back(connection: Connection, work: Receiving) -> None:
    """I5."""
    writer = Writer(connection)
    writer.send_and_abort(work.partitions[0], b"aborted")
    writer.send(work.partitions[0], b"open")
    assert work.receive() == []
    writer.commit()
    assert work.counts() == [(b"open", 1)]


# ── acknowledging ──


def test_what_is_accepted_is_not_delivered_again(connection: Connection, work: Receiving, clock: Clock) -> None:
    """I17. What is not comes again when its lock has expired, and says so."""
    work.fill(b"a", b"b", b"c")
    a, _, c = work.receive()
    work.acknowledge(a.receipt, c.receipt)
    clock("1 minute")
    assert work.counts() == [(b"b", 2)]
    assert work.receive() == []
    in_flight = "select available, acquired from msgtx.share_partitions where group_name = %s"
    assert query(connection, in_flight, work.group) == [(0, 1)]


def test_one_receipt_needs_no_array(connection: Connection, work: Receiving) -> None:
    work.fill(b"a")
    (a,) = work.receive()
    query(connection, "select msgtx.acknowledge(%s, 'release', delay => '1 hour', reason => 'busy')", a.receipt)
    assert work.receive() == []
    assert query(connection, "select state, reason from msgtx.share_spans where group_name = %s", work.group) == [
        ("delayed", "busy")
    ]


def test_a_release_is_delivered_again_at_once_or_later(work: Receiving, clock: Clock) -> None:
    work.fill(b"a", b"b")
    a, b = work.receive()
    work.acknowledge(a.receipt, answer="release")
    work.acknowledge(b.receipt, answer="release", delay="1 minute")
    assert work.counts() == [(b"a", 2)]
    clock("2 minutes")
    assert (b"b", 2) in work.counts()


def test_a_rejected_record_is_a_dead_letter_with_its_reason(connection: Connection, work: Receiving) -> None:
    work.fill(b"a")
    (a,) = work.receive()
    work.acknowledge(a.receipt, answer="reject", reason="no such customer")
    assert work.receive() == []
    letters = query(
        connection,
        "select value, header_values[array_position(header_keys, 'msgtx.dead-letter.reason')] from msgtx.committed_records"
        " where topic = %s",
        f"{work.group}-dead-letters",
    )
    assert letters == [(b"a", b"no such customer")]


def test_a_renewed_lock_begins_anew(work: Receiving, clock: Clock) -> None:
    work.fill(b"a")
    (a,) = work.receive()
    for elapsed in (20, 40, 60):
        clock(f"{elapsed} seconds")
        assert work.receive() == []  # the member lives
        work.acknowledge(a.receipt, answer="renew")
    work.acknowledge(a.receipt)


def test_an_acknowledgement_is_part_of_the_transaction(connection: Connection, work: Receiving, session: Connection) -> None:
    """I10, I17: with the user's rows, or never; also of a savepoint."""
    work.fill(b"a", b"b")
    a, b = work.receive()
    with session.transaction(force_rollback=True):
        work.acknowledge(a.receipt, session=session)
    with session.transaction():
        work.acknowledge(b.receipt, session=session)
        with session.transaction(force_rollback=True):
            work.acknowledge(a.receipt, session=session)
    assert query(connection, "select first_offset from msgtx.share_spans where group_name = %s", work.group) == [(0,)]
    work.acknowledge(a.receipt)


def test_records_that_a_rolled_back_transaction_received_were_never_delivered(work: Receiving, session: Connection) -> None:
    work.fill(b"a")
    with session.transaction(force_rollback=True):
        assert work.counts(session) == [(b"a", 1)]
    assert work.counts() == [(b"a", 1)]


# ── receipts ──


def after_the_lock(work: Receiving, clock: Clock, receipt: str) -> None:
    clock("1 minute")


def after_another_delivery(work: Receiving, clock: Clock, receipt: str) -> None:
    clock("1 minute")
    assert len(work.receive()) == 1


def after_an_answer(work: Receiving, clock: Clock, receipt: str) -> None:
    work.acknowledge(receipt)


@pytest.mark.parametrize("ended", [after_the_lock, after_another_delivery, after_an_answer])
def test_a_receipt_is_of_one_delivery(work: Receiving, clock: Clock, ended: Callable[[Receiving, Clock, str], None]) -> None:
    """I17: though all callers are one member of the group."""
    work.fill(b"a")
    (a,) = work.receive()
    ended(work, clock, a.receipt)
    with refuses(errors.InvalidRecordState, name=a.receipt):
        work.acknowledge(a.receipt)


def test_receipts_of_neighbours_are_one_range_and_of_several_the_one_that_is_over_is_told(
    work: Receiving, session: Connection
) -> None:
    """So a COMMIT writes what 500 receipts say in one step, and nothing is answered for beside them."""
    work.fill(*[b"a"] * 50)
    receipts = [each.receipt for each in work.receive(most=50)]
    over = receipts.pop(20)
    work.acknowledge(over)
    with refuses(errors.InvalidRecordState, name=over):
        work.acknowledge(*receipts, over)
    session.execute("begin")
    work.acknowledge(*reversed(receipts[:40]), session=session)
    staged = "select share_firsts, share_lasts from msgtx.staged_commit where share_firsts <> '{}'"
    ((firsts, lasts),) = query(session, staged)
    assert {*zip(firsts, lasts, strict=True)} == {(0, 19), (21, 40)}
    query(session, "commit")
    work.acknowledge(*receipts[40:])
    for twice in (receipts[40:], receipts[:2]):
        with refuses(errors.InvalidRecordState, name=twice[0]):
            work.acknowledge(*twice)


def test_a_delivery_that_ends_before_the_commit_fails_it(work: Receiving, session: Connection, clock: Clock) -> None:
    """The user's rows are rolled back: the record was delivered to another caller of the same member."""
    work.fill(b"a")
    (a,) = work.receive()
    session.execute("begin")
    work.acknowledge(a.receipt, session=session)
    clock("1 minute")
    assert work.counts() == [(b"a", 2)]
    with refuses(errors.InvalidRecordState, topic=work.topic, partition=0, offset=0, group=work.group):
        query(session, "commit")
    assert work.receive() == []


def test_a_delivery_of_several_is_answered_one_by_one_and_ends_with_another(work: Receiving, clock: Clock) -> None:
    """Also where one caller has a part of what another one had."""
    work.fill(b"a", b"b", b"c")
    a, b, c = work.receive()
    work.acknowledge(b.receipt, answer="release")
    (again,) = work.receive()
    with refuses(errors.InvalidRecordState, name=b.receipt):
        work.acknowledge(b.receipt)
    work.acknowledge(a.receipt, again.receipt, c.receipt)


@pytest.mark.parametrize(
    ("receipts", "named", "name"),
    [
        (["nonsense"], {}, "receipt"),
        (["1.2.3.4.5"], {}, "receipt"),
        ([], {"answer": "done"}, "answer"),
        ([], {"answer": "accept", "delay": "1 s"}, "delay"),
        ([], {"answer": "release", "delay": "-1 s"}, "delay"),
        ([], {"answer": "release", "delay": "25 days"}, "delay"),
        ([], {"answer": "accept", "reason": "none"}, "reason"),
        (["1.2.3.4"] * 10_001, {}, "receipts"),
    ],
    ids=lambda given: str(given)[:30],
)
def test_a_wrong_argument_is_refused(work: Receiving, receipts: list[str], named: dict[str, Any], name: str) -> None:
    with refuses(errors.InvalidRequest, name=name):
        work.acknowledge(*receipts, **named)


def test_a_receipt_of_a_group_that_is_gone_is_over(work: Receiving) -> None:
    with refuses(errors.InvalidRecordState):
        work.acknowledge("999999999.999999999.0.1")
    work.acknowledge()  # of nothing
    query(work.connection, "select msgtx.acknowledge_all(null)")


# ── members beside each other ──


def test_callers_and_members_of_other_kinds_share_the_records(connection: Connection, partition: int) -> None:
    group = ShareGroup(connection, partition)
    group.fill("----")
    work = Receiving.__new__(Receiving)
    work.connection, work.group = connection, group.name
    named = "select t.name from msgtx.topic t join msgtx.partition p using (topic_id) where partition_id = %s"
    ((work.topic,),) = query(connection, named, partition)
    assert group.acquire("a", 1) == {0: 1}
    (first,) = work.receive(most=1)
    assert first.offset == 1
    assert group.acquire("a", 1) == {2: 1}
    group.accept("a", 0, 2)
    work.acknowledge(first.receipt)
    assert [each.offset for each in work.receive()] == [3]


def test_a_key_is_with_one_caller_at_a_time(connection: Connection) -> None:
    """Each call is a member by itself: two callers never have records of one key."""
    work = Receiving(connection, ordering="key")
    fill_with_keys(connection, work.partitions[0], "xyxy")
    (first,) = work.receive(most=1)
    others = work.receive()
    assert (first.offset, [each.offset for each in others]) == (0, [1, 3])
    work.acknowledge(first.receipt)
    assert [each.offset for each in work.receive()] == [2]


def test_a_caller_passes_partitions_that_another_one_receives_from(connection: Connection, session: Connection) -> None:
    work = Receiving(connection, 2)
    work.fill(b"a")
    work.fill(b"b", at=1)
    for each in work.receive():
        work.acknowledge(each.receipt)
    work.fill(b"c")
    work.fill(b"d", at=1)
    with session.transaction():
        one = work.receive(session, most=1)
        other = work.receive()
        assert len({*(each.partition for each in one), *(each.partition for each in other)}) == 2
        assert work.receive() == []


def test_an_idle_group_goes_on_when_somebody_receives_again(work: Receiving, clock: Clock) -> None:
    """The session of its member is over then, and is taken up again or made anew."""
    work.fill(b"a")
    work.receive()
    clock("1 day")
    assert work.counts() == [(b"a", 2)]
    clock("2 days")
    query(work.connection, "select * from msgtx.remove_members()")
    assert work.counts() == [(b"a", 3)]


def test_a_longer_lock_has_a_longer_session(connection: Connection, work: Receiving, clock: Clock) -> None:
    work.fill(b"a")
    work.receive()
    connection.execute(
        "update msgtx.share_group set record_lock_duration_ms = 600000, longest_lock_ms = 600000 where group_id ="
        " (select group_id from msgtx.consumer_group where name = %s)",
        [work.group],
    )
    clock("1 minute")
    (a,) = work.receive()
    clock("9 minutes")
    work.acknowledge(a.receipt)


# ── refusals and rights ──


def test_a_consumer_group_is_refused(connection: Connection, work: Receiving) -> None:
    roster = Roster(connection, 1)
    roster.join("a")
    work.group = roster.name
    with refuses(errors.ConfigError, group=roster.name):
        work.receive()


@pytest.mark.parametrize(
    ("named", "name"),
    [({"most": 0}, "max_records"), ({"max_bytes": 0}, "max_bytes"), ({"most": 10_001}, "max_records")],
    ids=str,
)
def test_a_wrong_limit_is_refused(work: Receiving, named: dict[str, int], name: str) -> None:
    with refuses(errors.InvalidRequest, name=name):
        work.receive(**named)


def test_a_missing_topic_is_refused(work: Receiving) -> None:
    work.topic = "nowhere"
    with refuses(errors.UnknownTopicOrPartition, topic="nowhere"):
        work.receive()


@pytest.fixture
def logins(server: Server, database_url: str, work: Receiving) -> Iterator[dict[str, Connection]]:
    granted = {
        "mine": (f"consume:{work.topic}", f"consume:group:{work.group}"),
        "another group": ("consume:*", "consume:group:another"),
        "no topic": ("produce:*",),
    }
    with open_roles(server, database_url) as roles:
        sessions = {name: roles.connect(roles.make(*rights)) for name, rights in granted.items()}
        yield sessions
        for session in sessions.values():
            session.close()


def test_a_role_receives_what_it_may_consume(work: Receiving, logins: dict[str, Connection]) -> None:
    """And answers for it; a receipt is no right."""
    work.fill(b"a")
    (a,) = work.receive(logins["mine"])
    for name in ("another group", "no topic"):
        with refuses(errors.AuthorizationFailed):
            work.receive(logins[name])
        with refuses(errors.AuthorizationFailed):
            work.acknowledge(a.receipt, session=logins[name])
    work.acknowledge(a.receipt, session=logins["mine"])


def test_the_end_of_a_session_loses_nothing(
    connection: Connection, work: Receiving, open_connection: Sessions, clock: Clock
) -> None:
    work.fill(b"a")
    session = open_connection()
    (a,) = work.receive(session)
    session.execute("begin")
    work.acknowledge(a.receipt, session=session)
    session.close()
    clock("1 minute")
    assert work.counts() == [(b"a", 2)]


def test_a_rejection_locks_partitions_in_front_of_rows_as_other_commits_do(
    connection: Connection, work: Receiving, session: Connection, blocked: Blocked
) -> None:
    """A COMMIT that publishes and rejects, and one that only rejects: neither is a victim of a deadlock."""
    letters = ensure_dead_letters(connection, work.group)
    work.fill(b"a", b"b")
    first, second = work.receive()
    connection.execute("update msgtx.share_group set writes_dead_letters = false")

    def publish_and_reject(own: Connection) -> None:
        with own.transaction():
            own.execute("select msgtx.publish(%s, value => 'x', partition => 0)", [letters])
            work.acknowledge(second.receipt, session=own, answer="reject")

    with session.transaction():
        session.execute(
            "select msgtx.lock_partition(p.partition_id) from msgtx.partition p"
            " join msgtx.topic t on t.topic_id = p.topic_id where t.name = %s and p.partition_index = 0",
            [letters],
        )
        both = blocked(publish_and_reject)
        alone = blocked(lambda own: work.acknowledge(first.receipt, session=own, answer="reject"))
    both.result(30)
    alone.result(30)
