"""Seals: a transaction whose decision is somebody else's (internals: transactions, groups; P23, P24, P32, P37, P42, P43)."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from msgtx import errors
from msgtx.coordinator.sweep import sweep
from msgtx.database.calls import query
from msgtx.database.pool import Engine
from msgtx.store.fetch.wakeups import woken_since
from msgtx.store.groups.groups import NO_OFFSETS, OffsetColumns, commit_offsets
from msgtx.store.operator.installation import change_incarnation
from msgtx.store.transactions.decide import Decided, decide
from msgtx.store.transactions.producers import init_producer_id
from msgtx.store.transactions.seal import (
    Kind,
    Sealed,
    Sealing,
    complete_prepared,
    decide_sealed,
    seal,
    undecided_prepared,
)
from msgtx.store.transactions.transactions import end_transaction, mark, transaction_outcome
from msgtx.types import GroupMetadata, OffsetAndMetadata, Outcome, TransactionId
from tests.databases import Clock, Connection, Sessions, backend, wait_until
from tests.refusals import refuses
from tests.store.conftest import Blocked
from tests.store.steps import (
    Writer,
    append_one,
    committed_at,
    count,
    ends,
    expire_transaction,
    expire_transactions,
    look,
    new_partition,
    new_topic,
    offsets_of,
    plain,
    unique,
    values,
)

pytestmark = pytest.mark.slow

Level = psycopg.IsolationLevel
LEVELS = (Level.READ_COMMITTED, Level.REPEATABLE_READ, Level.SERIALIZABLE)
KINDS: tuple[Kind, ...] = ("session", "external")


def sealing(
    writer: Writer,
    kind: Kind = "session",
    *,
    offsets: OffsetColumns = NO_OFFSETS,
    name: TransactionId | None = None,
    tails: Mapping[int, int] | None = None,
    timeout_ms: int | None = None,
) -> Sealing:
    tails = writer.tails if tails is None else tails
    return seal(writer.connection, name or writer.name, kind, tails=tails, offsets=offsets, timeout_ms=timeout_ms)


def sealed(writer: Writer, kind: Kind = "session", **options: Any) -> Sealed:
    answer = sealing(writer, kind, **options)
    assert answer.error is None, answer.error
    assert answer.sealed is not None
    return answer.sealed


def decide_in(user: Connection, what: Sealed) -> None:
    decide_sealed(user, what)


def commit_in(user: Connection, what: Sealed, *, level: Level = Level.READ_COMMITTED) -> None:
    user.isolation_level = level
    with user.transaction():
        decide_in(user, what)


def outcome(connection: Connection, name: TransactionId) -> tuple[Outcome, str | None]:
    found = transaction_outcome(connection, name)
    return found.outcome, found.decided_by


# ── a session decides ──


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_sealed_is_committed_with_the_users_rows(connection: Connection, session: Connection, level: Level) -> None:
    """I6, at every isolation, also in a session whose snapshot is older than the transaction (P23)."""
    partitions, writer = new_topic(connection, 2), Writer(connection)
    session.isolation_level = level
    with session.transaction():
        session.execute("select 1 from msgtx.partitions limit 1")
        for partition in partitions:
            plain(connection, partition, b"before")
            writer.send(partition, b"a", b"b")
        what = sealed(writer)
        assert (list(what.partitions), what.first_offsets, what.last_offsets) == (partitions, [1, 1], [2, 2])
        decide_in(session, what)
        assert [values(connection, partition) for partition in partitions] == [[b"before"]] * 2
    assert [values(connection, partition) for partition in partitions] == [[b"before", b"a", b"b"]] * 2
    assert outcome(connection, writer.name) == (Outcome.COMMITTED, "client")
    mark(connection, everything=True)
    assert [ends(connection, partition) for partition in partitions] == [(0, 3, 3)] * 2
    writer.next()
    writer.send_and_commit(partitions[0], b"next")


@pytest.mark.parametrize("level", LEVELS)
def test_a_rolled_back_session_leaves_the_transaction_undecided(
    connection: Connection, open_connection: Sessions, level: Level
) -> None:
    partition, writer, user = new_partition(connection), Writer(connection), open_connection()
    writer.send(partition, b"x")
    what = sealed(writer)
    user.isolation_level = level
    with user.transaction(force_rollback=True):
        decide_in(user, what)
    assert outcome(connection, writer.name) == (Outcome.OPEN, None)
    assert end_transaction(connection, writer.name, "resolve") is Outcome.ABORTED
    assert values(connection, partition) == []


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("ended_by", ["timeout", "resolve", "client", "fence"])
def test_a_session_cannot_commit_what_was_aborted_meanwhile(
    connection: Connection, open_connection: Sessions, clock: Clock, level: Level, ended_by: str
) -> None:
    """I4, I7: the conflict of keys ends the user's SQL transaction, rows and all."""
    partition, writer, user = new_partition(connection), Writer(connection), open_connection()
    writer.send(partition, b"x")
    what = sealed(writer)
    user.isolation_level = level
    with pytest.raises(errors.TransactionAborted, match=str(writer.name)), user.transaction():  # noqa: PT012 - the block raises at its end
        user.execute("select 1 from msgtx.partitions limit 1")
        match ended_by:
            case "timeout":
                clock("61 seconds")
                assert expire_transaction(connection, writer.name)
                clock(None)  # back before the deadline: only the decision stands in the way
            case "resolve":
                assert end_transaction(connection, writer.name, "resolve") is Outcome.ABORTED
            case "client":
                assert writer.decide("ABORT").error is None
            case "fence":
                init_producer_id(connection, writer.transactional_id, timeout_ms=60_000)
        decide_in(user, what)
    assert outcome(connection, writer.name) == (Outcome.ABORTED, ended_by)
    assert values(connection, partition) == []


def test_a_session_cannot_decide_twice(connection: Connection, open_connection: Sessions) -> None:
    partition, writer, user = new_partition(connection), Writer(connection), open_connection()
    writer.send(partition, b"x")
    what = sealed(writer)
    commit_in(user, what)
    with pytest.raises(errors.TransactionAborted, match="decided"):
        commit_in(user, what)
    assert values(connection, partition) == [b"x"]


@pytest.mark.parametrize("level", LEVELS)
def test_past_its_deadline_nothing_is_committed_in_a_session(
    connection: Connection, open_connection: Sessions, clock: Clock, level: Level
) -> None:
    """Its ABORT might have been purged: then no conflict of keys would tell."""
    partition, writer, user = new_partition(connection), Writer(connection), open_connection()
    writer.send(partition, b"x", timeout_ms=5_000)
    what = sealed(writer)
    ((opened_at,),) = query(
        connection, "select opened_at from msgtx.transaction where producer_id = %s", writer.id.producer_id
    )
    assert what.deadline is not None
    assert (what.deadline - opened_at).total_seconds() == 5
    clock("4 seconds")
    user.isolation_level = level
    with user.transaction(force_rollback=True):
        decide_in(user, what)
    clock("6 seconds")
    with refuses(errors.TransactionAborted, reason="timeout"):
        commit_in(user, what, level=level)
    assert outcome(connection, writer.name) == (Outcome.OPEN, None)


def test_what_is_prepared_for_an_outside_party_is_not_decided_in_a_session(
    connection: Connection, open_connection: Sessions
) -> None:
    """It has no deadline: its ABORT may have been purged."""
    partition, writer, user = new_partition(connection), Writer(connection), open_connection()
    writer.send(partition, b"x")
    what = sealed(writer, "external")
    assert what.deadline is None
    with refuses(errors.InvalidRequest, reason="prepared"):
        commit_in(user, what)
    assert outcome(connection, writer.name) == (Outcome.OPEN, None)
    complete_prepared(connection, writer.name, "ABORT")


@pytest.mark.parametrize(
    "change",
    [
        {"signature": b""},
        {"signature": b"\0" * 32},
        {"first_offsets": [0]},
        {"last_offsets": [9]},
        {"partitions": []},
        {"deadline": None},
        {"transaction_id": "other"},
    ],
    ids=lambda change: next(iter(change)),
)
@pytest.mark.parametrize("level", LEVELS)
def test_a_seal_that_is_not_the_databases_own_decides_nothing(
    connection: Connection, open_connection: Sessions, level: Level, change: dict[str, Any]
) -> None:
    partition, writer, other, user = new_partition(connection), Writer(connection), Writer(connection), open_connection()
    other.send(partition, b"of another")
    writer.send(partition, b"x")
    what = sealed(writer)
    forged = replace(what, **({"transaction_id": other.name} if change == {"transaction_id": "other"} else change))
    with pytest.raises(errors.IncarnationChanged):
        commit_in(user, forged, level=level)
    assert outcome(connection, writer.name) == (Outcome.OPEN, None)
    assert outcome(connection, other.name) == (Outcome.OPEN, None)
    commit_in(user, what, level=level)
    other.abort()
    assert values(connection, partition) == [b"x"]


def test_a_seal_of_another_incarnation_decides_nothing(make_database: Callable[..., str]) -> None:
    with Engine(make_database(), pool_size=2) as engine, engine.connection() as connection, engine.connection() as user:
        partition, writer = new_partition(connection), Writer(connection)
        writer.send(partition, b"x")
        what = sealed(writer)
        change_incarnation(connection)
        with pytest.raises(errors.IncarnationChanged), user.transaction():
            decide_in(user, what)
        assert outcome(connection, writer.name)[0] is not Outcome.COMMITTED


def test_a_decision_in_a_session_limits_how_long_it_may_stand_idle(connection: Connection, session: Connection) -> None:
    """P32. Local, and what is shorter stays; so is how long a statement behind it waits for a lock."""
    names = ("idle_in_transaction_session_timeout", "lock_timeout")
    setting = f"select {', '.join(map('current_setting({!r})'.format, (*names, 'synchronous_commit')))}"
    for given, during in (("0", "5s"), ("1h", "5s"), ("1d", "5s"), ("5s", "5s"), ("1500ms", "1500ms")):
        writer = Writer(connection)
        writer.send(new_partition(connection), b"x")
        for name in names:
            session.execute(f"set {name} = '{given}'")
        session.execute("set synchronous_commit = off")
        before = query(session, setting)
        with session.transaction():
            decide_in(session, sealed(writer))
            assert query(session, setting) == [(during, during, "on")]
        assert query(session, setting) == before


def test_a_session_that_stands_idle_after_its_decision_is_ended(connection: Connection, open_connection: Sessions) -> None:
    partition, writer, user = new_partition(connection), Writer(connection), open_connection()
    writer.send(partition, b"x")
    what = sealed(writer)
    user.execute("set idle_in_transaction_session_timeout = '50ms'")
    user.execute("begin")
    decide_in(user, what)
    wait_until(
        lambda: query(connection, "select from pg_stat_activity where pid = %s", backend(user)) == [], "the session is ended"
    )
    assert end_transaction(connection, writer.name, "resolve") is Outcome.ABORTED
    assert values(connection, partition) == []


def test_sweeps_pass_by_a_decision_that_is_being_committed_and_init_waits(
    connection: Connection, open_connection: Sessions, clock: Clock, blocked: Blocked
) -> None:
    """P32, I7, I12."""
    partition, writer, user = new_partition(connection), Writer(connection), open_connection()
    writer.send(partition, b"x")
    what = sealed(writer)
    with user.transaction():
        decide_in(user, what)
        clock("2 minutes")
        expire_transactions(connection)
        assert not expire_transaction(connection, writer.name)
        assert outcome(connection, writer.name) == (Outcome.OPEN, None)
        assert isinstance(append_one(connection, writer.row(partition, b"late")).error, errors.InvalidTransactionState)
        init = blocked(init_producer_id, writer.transactional_id, timeout_ms=60_000)
    assert init.result().epoch == 1
    assert outcome(connection, writer.name) == (Outcome.COMMITTED, "client")
    assert values(connection, partition) == [b"x"]


def test_two_decisions_of_one_session_are_one(connection: Connection, open_connection: Sessions) -> None:
    partition, user = new_partition(connection), open_connection()
    writers = [Writer(connection) for _ in range(2)]
    for writer in writers:
        writer.send(partition, b"%d" % writer.id.producer_id)
    with user.transaction():
        for writer in writers:
            decide_in(user, sealed(writer))
        assert values(connection, partition) == []
    assert len(values(connection, partition)) == 2


# ── sealing ──


@pytest.mark.parametrize("kind", KINDS)
def test_a_seal_repeated_answers_the_same(connection: Connection, kind: Kind) -> None:
    partition, writer, group = new_partition(connection), Writer(connection), unique("group")
    writer.send(partition, b"x")
    offsets = offsets_of((group, partition, 5))
    first = sealing(writer, kind, offsets=offsets)
    before = count(connection, "group_offset"), count(connection, "transaction_seal")
    assert sealing(writer, kind, offsets=offsets).sealed == first.sealed
    assert (count(connection, "group_offset"), count(connection, "transaction_seal")) == before
    other = KINDS[1 - KINDS.index(kind)]
    assert isinstance(sealing(writer, other).error, errors.InvalidTransactionState)
    assert end_transaction(connection, writer.name, "resolve") is (Outcome.ABORTED if kind == "session" else Outcome.OPEN)


@pytest.mark.parametrize("kind", KINDS)
def test_after_the_seal_nothing_is_appended(connection: Connection, writer: Writer, kind: Kind) -> None:
    """I8. What was stored before is still known for a retry."""
    partition, other = new_topic(connection, 2)
    row = writer.row(partition, b"x")
    writer.send(partition, b"x")
    sealed(writer, kind)
    for late in (writer.row(partition, b"late"), writer.row(other, b"late")):
        assert isinstance(append_one(connection, late).error, errors.InvalidTransactionState)
    assert isinstance(writer.whole(writer.row(partition, b"late"))[0].error, errors.InvalidTransactionState)
    again = append_one(connection, row)
    assert (again.error, again.duplicate, again.base_offset) == (None, True, 0)
    writer.next()
    assert isinstance(append_one(connection, writer.row(partition, b"next")).error, errors.ConcurrentTransactions)
    assert isinstance(sealing(writer, kind, tails={}).error, errors.ConcurrentTransactions)
    assert ends(connection, partition) == (0, 0, 1)


def nothing(writer: Writer) -> None: ...


def fenced(writer: Writer) -> None:
    init_producer_id(writer.connection, writer.transactional_id, timeout_ms=60_000)


def ended_by_hand(writer: Writer) -> None:
    end_transaction(writer.connection, writer.name, "admin")


def committed(writer: Writer) -> None:
    assert writer.decide("COMMIT").error is None


def by_a_stranger(writer: Writer) -> OffsetColumns:
    (partition,) = writer.tails
    return offsets_of((GroupMetadata(unique("group"), "no-such-member", 1), partition, 1))


# Each refusal: the step before it, the unusual arguments of the seal, its error, and the outcome afterwards.
REFUSED: tuple[tuple[Callable[[Writer], None], Callable[[Writer], dict[str, Any]], type[Exception], Outcome], ...] = (
    (nothing, lambda w: {"name": w.name._replace(transaction_number=7)}, errors.TransactionsLost, Outcome.OPEN),
    (nothing, lambda w: {"name": w.name._replace(producer_epoch=3)}, errors.InvalidProducerIdMapping, Outcome.OPEN),
    (nothing, lambda w: {"tails": {p: at + 1 for p, at in w.tails.items()}}, errors.TransactionAborted, Outcome.ABORTED),
    (nothing, lambda w: {"offsets": by_a_stranger(w)}, errors.UnknownMember, Outcome.OPEN),
    (fenced, lambda w: {}, errors.ProducerFenced, Outcome.ABORTED),
    (fenced, lambda w: {"name": w.name._replace(transaction_number=1)}, errors.ProducerFenced, Outcome.ABORTED),
    (ended_by_hand, lambda w: {}, errors.TransactionAborted, Outcome.ABORTED),
    (committed, lambda w: {}, errors.InvalidTransactionState, Outcome.COMMITTED),
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("before", "given", "error", "after"), REFUSED)
def test_a_refused_seal_seals_nothing(
    connection: Connection,
    partition: int,
    writer: Writer,
    kind: Kind,
    before: Callable[[Writer], None],
    given: Callable[[Writer], dict[str, Any]],
    error: type[Exception],
    after: Outcome,
) -> None:
    writer.send(partition, b"x", b"y")
    before(writer)
    answer = sealing(writer, kind, **given(writer))
    assert type(answer.error) is error
    assert answer.sealed is None
    assert outcome(connection, writer.name)[0] is after
    assert count(connection, "transaction_seal", "producer_id = %s", writer.id.producer_id) == 0
    if isinstance(answer.error, errors.TransactionAborted):
        assert answer.last_sequences == {partition: 1}
    if after is Outcome.OPEN:
        sealed(writer, kind)
        end_transaction(connection, writer.name, "resolve")
        assert undecided_prepared(connection, writer.id.producer_id) == (writer.name if kind == "external" else None)


def test_a_seal_without_what_was_sent_is_an_abort_and_tells_what_is_stored(connection: Connection, writer: Writer) -> None:
    partition, earlier, untouched = new_topic(connection, 3)
    writer.send_and_commit(earlier, b"before")
    writer.send(partition, b"a")
    answer = seal(connection, writer.name, "external", tails={partition: 7, earlier: 1, untouched: 0})
    assert isinstance(answer.error, errors.TransactionAborted)
    assert str(answer.error) == f"transaction {writer.name} was aborted (reason: tail)"
    assert (answer.sealed, answer.last_sequences) == (None, {partition: 0, earlier: 0, untouched: -1})


def test_a_refused_seal_says_why(connection: Connection, partition: int, writer: Writer) -> None:
    writer.send(partition, b"a")
    nowhere = offsets_of(("group", 2**31 - 1, 0))
    unknown = seal(connection, writer.name, "external", tails=writer.tails, offsets=nowhere).error
    assert str(unknown) == "group group: partition 2147483647 does not exist (any more)"
    old = writer.name
    writer.init()
    fenced = seal(connection, old, "external", tails={}).error
    assert str(fenced).startswith(f"transaction {old} was aborted when a newer producer took over")


def test_readers_are_woken_by_a_seal_that_becomes_an_abort(connection: Connection, open_connection: Sessions) -> None:
    listener, partition, writer = open_connection(), new_partition(connection), Writer(connection)
    writer.send(partition, b"a")
    plain(connection, partition, b"behind")
    snapshot, _ = woken_since(listener, None)
    seal(connection, writer.name, "external", tails={partition: 7})
    assert woken_since(listener, snapshot)[1] == str(partition)


def test_a_seal_names_the_offsets_of_each_of_its_groups(connection: Connection, partition: int, writer: Writer) -> None:
    """P43: they are what goes with an abort."""
    groups = [unique("group") for _ in range(2)]
    seal(connection, writer.name, "external", tails={}, offsets=offsets_of(*((each, partition, 0) for each in groups)))
    named = connection.execute(
        "select o.group_id, o.partition_id, o.commit_sequence from msgtx.transaction_seal s"
        " cross join unnest(s.group_ids, s.group_partitions, s.commit_sequences) o(group_id, partition_id, commit_sequence)"
        " where s.producer_id = %s order by o.commit_sequence",
        [writer.id.producer_id],
    ).fetchall()
    stored = connection.execute(
        "select o.group_id, o.partition_id, o.commit_sequence from msgtx.group_offset o where o.producer_id = %s"
        " order by o.commit_sequence",
        [writer.id.producer_id],
    ).fetchall()
    assert named == stored
    assert len(named) == 2


def test_a_seal_names_its_own_offset_where_another_producer_commits_one_meanwhile(connection: Connection) -> None:
    """P43: offsets of several producers may come to one group at once; the trigger stands for the other one."""
    partition, writer, other, group = new_partition(connection), Writer(connection), Writer(connection), unique("group")
    connection.execute(
        f"create function msgtx.meanwhile() returns trigger language plpgsql as $$ begin"
        f" insert into msgtx.group_offset (group_id, partition_id, commit_sequence, committed_offset, producer_id,"
        f" producer_epoch, transaction_number, committed_at) values (new.group_id, new.partition_id,"
        f" nextval('msgtx.commit_sequence'), 7, {other.id.producer_id}, 0, 0, msgtx.clock()); return null; end $$"
    )
    connection.execute(
        "create trigger meanwhile after insert on msgtx.group_offset for each row"
        f" when (new.producer_id = {writer.id.producer_id}) execute function msgtx.meanwhile()"
    )
    try:
        seal(connection, writer.name, "external", tails={}, offsets=offsets_of((group, partition, 3)))
    finally:
        connection.execute("drop function msgtx.meanwhile() cascade")
    sealed = connection.execute(
        "select o.committed_offset from msgtx.transaction_seal s cross join unnest(s.commit_sequences) c"
        " join msgtx.group_offset o on o.commit_sequence = c where s.producer_id = %s",
        [writer.id.producer_id],
    ).fetchall()
    assert sealed == [(3,)]


@pytest.mark.parametrize("kind", ["another", None])
def test_what_is_no_kind_of_a_seal_is_refused(connection: Connection, partition: int, writer: Writer, kind: Any) -> None:
    writer.send(partition, b"a")
    with refuses(errors.InvalidRequest, name="kind"):
        seal(connection, writer.name, kind, tails=writer.tails)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seal_past_the_timeout_is_an_abort(connection: Connection, clock: Clock, kind: Kind) -> None:
    partition, writer = new_partition(connection), Writer(connection, timeout_ms=1_000)
    writer.send(partition, b"x")
    clock("2 seconds")
    answer = sealing(writer, kind)
    assert isinstance(answer.error, errors.TransactionAborted)
    assert answer.last_sequences == {partition: 0}
    assert outcome(connection, writer.name) == (Outcome.ABORTED, "timeout")


def test_offsets_alone_are_sealed_and_have_a_clock(connection: Connection, clock: Clock) -> None:
    """P35, P42."""
    partition, writer, group = new_partition(connection), Writer(connection), unique("group")
    what = sealed(writer, offsets=offsets_of((group, partition, 5)), timeout_ms=3_000)
    assert (what.partitions, what.first_offsets, what.last_offsets) == ([], [], [])
    assert committed_at(connection, group, partition) == (None, True)
    assert writer.state == "Prepared"
    clock("4 seconds")
    assert expire_transactions(connection) >= 1
    assert committed_at(connection, group, partition) == (None, False)
    writer.next()
    what = sealed(writer, offsets=offsets_of((group, partition, 6)))
    commit_in(connection, what)
    assert committed_at(connection, group, partition) == (6, False)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_the_timeout_of_a_seal_is_within_the_installations(connection: Connection, timeout_ms: int) -> None:
    partition, writer = new_partition(connection), Writer(connection)
    with pytest.raises(errors.InvalidTransactionTimeout):
        sealing(writer, offsets=offsets_of((unique("group"), partition, 5)), timeout_ms=timeout_ms)
    assert outcome(connection, writer.name) == (Outcome.UNKNOWN, None)


# ── an outside party decides ──


@pytest.mark.parametrize("result", ["COMMIT", "ABORT"])
@pytest.mark.parametrize("fenced", [False, True])
def test_an_outside_party_decides_by_the_name_alone(connection: Connection, clock: Clock, result: str, fenced: bool) -> None:
    """Also of an older epoch, and however late; the same again is a success, the opposite is refused (I4)."""
    partition, writer, group = new_partition(connection), Writer(connection), unique("group")
    writer.send(partition, b"x")
    name = writer.name
    sealed(writer, "external", offsets=offsets_of((group, partition, 5)))
    if fenced:
        init_producer_id(connection, writer.transactional_id, timeout_ms=60_000, keep_prepared=True)
        init_producer_id(connection, writer.transactional_id, timeout_ms=60_000, keep_prepared=True)
    clock("30 days")
    sweep_all(connection)
    assert undecided_prepared(connection, writer.id.producer_id) == name
    assert committed_at(connection, group, partition) == (None, True)
    for _ in range(2):
        complete_prepared(connection, name, result)  # type: ignore[arg-type]
        sweep_all(connection)
    assert undecided_prepared(connection, writer.id.producer_id) is None
    with refuses(errors.InvalidTransactionState, reason="decided"):
        complete_prepared(connection, name, "ABORT" if result == "COMMIT" else "COMMIT")
    assert values(connection, partition) == ([b"x"] if result == "COMMIT" else [])
    assert committed_at(connection, group, partition) == (5 if result == "COMMIT" else None, False)


def sweep_all(connection: Connection) -> None:
    expire_transactions(connection)
    mark(connection, everything=True)
    query(connection, "select * from msgtx.remove_decided_seals()")
    query(connection, "select * from msgtx.remove_superseded_offsets()")
    query(connection, "select * from msgtx.purge_transactions()")


def test_what_is_not_prepared_or_not_known_is_not_completed(connection: Connection) -> None:
    partition, opened, session = new_partition(connection), Writer(connection), Writer(connection)
    opened.send(partition, b"x")
    session.send(partition, b"y")
    sealed(session)
    for name in (opened.name, session.name, TransactionId(10**15, 0, 0), opened.name._replace(transaction_number=1)):
        for result in ("COMMIT", "ABORT"):
            with refuses(errors.InvalidTransactionState, reason="unknown"):
                complete_prepared(connection, name, result)  # type: ignore[arg-type]
    assert outcome(connection, opened.name) == outcome(connection, session.name) == (Outcome.OPEN, None)
    opened.abort()
    session.abort()


@pytest.mark.parametrize("result", ["COMMIT", "ABORT"])
def test_decide_ends_what_is_prepared_also_without_its_tails(connection: Connection, result: str) -> None:
    partition, writer, group = new_partition(connection), Writer(connection), unique("group")
    writer.send(partition, b"x")
    sealed(writer, "external", offsets=offsets_of((group, partition, 5)))
    for _ in range(2):  # with offsets again, as the producer that sealed it has them: they are there already
        answer: Decided = decide(
            connection,
            writer.name,
            result,
            tails={},
            offsets=offsets_of((group, partition, 5)),  # type: ignore[arg-type]
        )
        assert (answer.error, answer.outcome) == (None, result)
    assert count(connection, "group_offset", "producer_id = %s", writer.id.producer_id) == 1
    assert committed_at(connection, group, partition) == (5 if result == "COMMIT" else None, False)


def test_decide_does_not_commit_what_a_session_decides(connection: Connection, partition: int, writer: Writer) -> None:
    writer.send(partition, b"x")
    sealed(writer)
    assert isinstance(writer.decide("COMMIT").error, errors.InvalidTransactionState)
    assert outcome(connection, writer.name) == (Outcome.OPEN, None)
    answer = writer.decide("ABORT")
    assert (answer.error, answer.outcome, answer.last_sequences) == (None, "ABORT", {partition: 0})


def test_init_aborts_what_is_prepared_unless_it_is_to_keep_it(connection: Connection, partition: int) -> None:
    """KIP-939. What is merely open, or sealed for a session, is aborted all the same (I7)."""
    for kind, keep, expected in (
        ("external", False, Outcome.ABORTED),
        ("external", True, Outcome.OPEN),
        ("session", True, Outcome.ABORTED),
        (None, True, Outcome.ABORTED),
    ):
        writer = Writer(connection)
        writer.send(partition, b"x")
        if kind is not None:
            sealed(writer, kind)  # type: ignore[arg-type]
        before = writer.name
        now = init_producer_id(connection, writer.transactional_id, timeout_ms=60_000, keep_prepared=keep)
        assert now.epoch == 1
        assert outcome(connection, before)[0] is expected
        if expected is Outcome.OPEN:
            writer.id, writer.sequences = now, {}
            assert isinstance(append_one(connection, writer.row(partition, b"y")).error, errors.ConcurrentTransactions)
            complete_prepared(connection, before, "COMMIT")
            writer.send_and_commit(partition, b"y")
    assert values(connection, partition) == [b"x", b"y"]


# ── waiting and notifying ──


@pytest.mark.parametrize("kind", KINDS)
def test_readers_wait_for_what_is_sealed_and_are_woken_by_its_decision(
    connection: Connection, open_connection: Sessions, kind: Kind
) -> None:
    partitions, writer, listener = new_topic(connection, 2), Writer(connection), open_connection()
    for partition in partitions:
        writer.send(partition, b"x")
        plain(connection, partition, b"behind")
    what = sealed(writer, kind)
    assert [ends(connection, partition) for partition in partitions] == [(0, 0, 2)] * 2
    assert writer.state == "Prepared"
    snapshot, _ = woken_since(listener, None)
    if kind == "session":
        commit_in(open_connection(), what)
    else:
        complete_prepared(connection, writer.name, "COMMIT")
    assert woken_since(listener, snapshot)[1] == ",".join(map(str, partitions))
    assert [values(connection, partition) for partition in partitions] == [[b"x", b"behind"]] * 2


def test_a_readers_answer_names_what_holds_it_back(connection: Connection, clock: Clock) -> None:
    """A session's is aborted past its deadline, also without a sweep; an outside party's never (I12)."""
    clock("61 seconds")
    expire_transactions(connection)  # what others have left
    clock(None)
    for kind in KINDS:
        partition, writer = new_partition(connection), Writer(connection)
        writer.send(partition, b"x")
        sealed(writer, kind)
        clock("61 seconds")
        answer = look(connection, partition)
        assert answer.position == 0
        assert expire_transaction(connection, writer.name) is (kind == "session")
        assert expire_transactions(connection) == 0
        assert outcome(connection, writer.name)[0] is (Outcome.ABORTED if kind == "session" else Outcome.OPEN)
        clock(None)
    complete_prepared(connection, writer.name, "ABORT")


def test_history_keeps_what_is_prepared_and_what_lies_behind_it(connection: Connection, clock: Clock) -> None:
    """P37: the floor stays before it, so decisions behind it are not purged."""
    partition, writer, other = new_partition(connection), Writer(connection), Writer(connection)
    writer.send(partition, b"prepared")
    for _ in range(3):
        other.send_and_commit(partition, b"behind")
    sealed(writer, "external")
    clock("40 days")
    sweep_all(connection)
    assert undecided_prepared(connection, writer.id.producer_id) == writer.name
    assert count(connection, "transaction_decision", "producer_id = %s", other.id.producer_id) == 3
    complete_prepared(connection, writer.name, "COMMIT")
    assert values(connection, partition) == [b"prepared", *[b"behind"] * 3]
    sweep_all(connection)
    clock("80 days")
    sweep_all(connection)
    assert values(connection, partition) == [b"prepared", *[b"behind"] * 3]


# ── removing decided seals ──


@pytest.mark.parametrize("result", ["COMMIT", "ABORT"])
@pytest.mark.parametrize("kind", KINDS)
def test_seals_go_when_they_are_decided_and_nothing_that_counts_changes(
    connection: Connection, engine: Engine, kind: Kind, result: str
) -> None:
    """P43. Offsets that waited for an ABORT go, those of a COMMIT stay; what is undecided is left alone."""
    partition, other, writer, group = *new_topic(connection, 2), Writer(connection), unique("group")
    commit_offsets(connection, {GroupMetadata(group): {partition: OffsetAndMetadata(2), other: OffsetAndMetadata(2)}})
    writer.send(partition, b"x")
    what = sealed(writer, kind, offsets=offsets_of((group, partition, 5), (group, other, 6)))
    assert committed_at(connection, group, partition) == (2, True)
    for _ in range(2):
        sweep(engine)
        assert count(connection, "transaction_seal", "producer_id = %s", writer.id.producer_id) == 1
        assert committed_at(connection, group, partition) == (2, True), "what is pending supersedes nothing"
    if result == "ABORT":
        assert writer.decide("ABORT").error is None
    elif kind == "session":
        commit_in(connection, what)
    else:
        complete_prepared(connection, writer.name, "COMMIT")
    expected = (5 if result == "COMMIT" else 2, False)
    assert committed_at(connection, group, partition) == expected
    query(connection, "select * from msgtx.remove_decided_seals()")
    assert count(connection, "transaction_seal", "producer_id = %s", writer.id.producer_id) == 0
    assert committed_at(connection, group, partition) == expected
    left = count(connection, "group_offset", "producer_id = %s", writer.id.producer_id)
    assert left == (2 if result == "COMMIT" else 0)
    assert sweep(engine).seals_removed == 0
    assert committed_at(connection, group, partition) == expected
    assert committed_at(connection, group, other) == (6 if result == "COMMIT" else 2, False)


def test_all_decided_seals_of_one_producer_go_at_once(connection: Connection) -> None:
    """Of each number, and of each epoch."""
    writer, group, partition = Writer(connection), unique("group"), new_partition(connection)
    for number in range(4):
        sealed(writer, "external", offsets=offsets_of((group, partition, number)))
        complete_prepared(connection, writer.name, "COMMIT")
        writer.next()
        if number == 1:
            writer.init()
    assert count(connection, "transaction_seal", "producer_id = %s", writer.id.producer_id) == 4
    query(connection, "select * from msgtx.remove_decided_seals()")
    assert count(connection, "transaction_seal", "producer_id = %s", writer.id.producer_id) == 0


def test_what_is_committed_after_the_seal_counts_over_it(connection: Connection) -> None:
    partition, writer, group = new_partition(connection), Writer(connection), unique("group")
    sealed(writer, "external", offsets=offsets_of((group, partition, 5)))
    commit_offsets(connection, {GroupMetadata(group): {partition: OffsetAndMetadata(9)}})
    complete_prepared(connection, writer.name, "COMMIT")
    assert committed_at(connection, group, partition) == (9, False)
    sweep_all(connection)
    assert committed_at(connection, group, partition) == (9, False)


def test_seals_are_removed_in_bounded_pieces_to_the_end(connection: Connection, engine: Engine) -> None:
    sweep_all(connection)
    for _ in range(5):
        writer = Writer(connection)
        sealed(writer, "external", offsets=offsets_of((unique("group"), new_partition(connection), 1)))
        complete_prepared(connection, writer.name, "ABORT")
    removals: list[int] = []
    after: list[int] | None = None
    while not removals or after is not None:
        ((removed, after),) = query(connection, "select * from msgtx.remove_decided_seals(%s, 3)", after)
        removals.append(removed)
    assert (sum(removals), max(removals) <= 3) == (5, True)
    writer = Writer(connection)
    sealed(writer, "external")
    complete_prepared(connection, writer.name, "ABORT")
    assert sweep(engine, only=["seals"]).seals_removed == 1
