"""T4, interleavings of users' sessions: their COMMIT beside sweeps, successors, appends, readers and rebalances.

As in `test_interleavings`. A session's COMMIT is played by the calls that the library makes just before it, in one
SQL transaction with a row of the user's. Time is a call, too: the clock is a number that no snapshot keeps.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from msgtx import GroupMetadata, Isolation, OffsetAndMetadata, errors
from msgtx.database.calls import query
from msgtx.store.append.append import append
from msgtx.store.fetch.fetch import Position, fetch
from msgtx.store.fetch.holders import stable_offsets
from msgtx.store.groups.groups import committed_offsets, offset_columns
from msgtx.store.groups.members import release_partitions
from msgtx.store.transactions.producers import fence_producer, init_producer_id
from msgtx.store.transactions.seal import Sealing, commit_in_session, decide_sealed, seal, take_seat
from msgtx.store.transactions.transactions import end_transaction
from tests.databases import Connection, connect
from tests.store.steps import batch, expire_transaction
from tests.system.test_interleavings import TIMEOUT_MS, Stage
from tests.system.test_interleavings_of_groups import Handover
from tests.weave import Call, Played, Story, Weaver, weaving

pytestmark = pytest.mark.slow

Run = Callable[[Connection], Any]
OFFSETS: Final = 'select "offset" from msgtx.committed_records where partition_id = %s order by 1'
LEVELS: Final = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
KEPT: Final = LEVELS[1:]  # levels that keep a snapshot
SCHEMA: Final = """
create table business (story int);
create sequence time;
create or replace function msgtx.clock() returns timestamptz language sql volatile
    return timestamptz '2030-01-01 00:00 UTC' + (select last_value from public.time) * interval '1 ms';
"""


@pytest.fixture(scope="module")
def weaver(database_url: str) -> Iterator[Weaver]:
    with connect(database_url) as connection:
        connection.execute(SCHEMA)
    with weaving(database_url, actors=3) as made:
        yield made


@pytest.fixture(scope="module")
def beside(database_url: str) -> Iterator[Connection]:
    """The connection that the library opens beside a session that keeps its snapshot."""
    with connect(database_url) as made:
        yield made


def pass_time(connection: Connection, milliseconds: int = 2 * TIMEOUT_MS) -> None:
    """Let time pass, for all sessions at once."""
    connection.execute("select setval('time', (select last_value from time) + %s)", [milliseconds])


class Session(Stage):
    """A transaction over two partitions for a user's session to decide, and the row that the session writes."""

    def __init__(self, eye: Connection, *, appended: bool = True, sealed: bool = True) -> None:
        super().__init__(eye, partitions=2)
        self.sealing: Sealing | None = None
        if appended:
            append(eye, self.batches("value"), flushed=False)
        if sealed:
            self.seal(eye)

    def seal(self, connection: Connection, seat: int | None = None) -> None:
        self.sealing = seal(connection, self.name(), "session", tails=dict.fromkeys(self.partitions, 0), seat=seat)

    def begin(self, connection: Connection, isolation: str) -> None:
        """Begin the user's SQL transaction with its row, and with its snapshot if it keeps one."""
        connection.execute(f"set transaction isolation level {isolation}")
        connection.execute("insert into business values (%s)", [self.run])

    def decide_sealed(self, connection: Connection) -> None:
        assert self.sealing is not None
        if self.sealing.error is not None:
            raise self.sealing.error
        assert self.sealing.sealed is not None
        decide_sealed(connection, self.sealing.sealed)

    def commit(self, isolation: str = LEVELS[0]) -> Run:
        def run(connection: Connection) -> None:
            self.begin(connection, isolation)
            self.decide_sealed(connection)

        return run

    @property
    def has_row(self) -> bool:
        return self.eye.execute("select from business where story = %s", [self.run]).fetchone() is not None

    def at_once(self) -> tuple[bool, list[int]]:
        """What one statement sees: the row, and the partitions on which the records are (I6)."""
        row = self.eye.execute(
            "select exists (select from business where story = %s), coalesce(array_agg(r.partition_id order by 1), '{}')"
            " from msgtx.committed_records_now r where r.partition_id = any(%s) and r.value = 'value'",
            [self.run, self.partitions],
        ).fetchone()
        assert row is not None
        return row

    def look(self, played: Played) -> None:
        """One statement sees all of it or nothing, at any moment."""
        assert self.at_once() in ((False, []), (True, self.partitions))

    def judge(self, played: Played, call_name: str = "user.commit") -> bool:
        """Row, records and decision agree, and the session got that answer. Returns whether it is committed."""
        answer = played.answers[call_name]
        committed = not isinstance(answer, Exception)
        assert committed or isinstance(answer, errors.TransactionAborted | errors.ProducerFenced), answer
        pass_time(self.eye)
        expire_transaction(self.eye, self.name())
        assert self.decisions()[self.producer.epoch, 0] == ("COMMIT" if committed else "ABORT")
        assert self.has_row == committed
        assert [rows.count("value") for rows in self.committed()] == [committed] * 2
        assert self.now() == self.committed()
        self.nothing_open()
        return committed


ENDS: Final[dict[str, Callable[[Stage], Run]]] = {
    "init": lambda stage: stage.init,
    "fence": lambda stage: lambda connection: fence_producer(connection, f"id-{stage.run}"),
    "resolve": lambda stage: lambda connection: end_transaction(connection, stage.name(), "resolve"),
    "abort": lambda stage: stage.decide("ABORT", last=0),
}


@pytest.mark.parametrize("isolation", LEVELS)
@pytest.mark.parametrize("end", ENDS)
def test_a_session_and_whoever_ends_its_transaction_agree(end: str, isolation: str, weaver: Weaver, eye: Connection) -> None:
    """I4, I6: the first one decides. The second one learns of it, and a session that loses has neither row nor records."""

    def begin() -> Story:
        stage = Session(eye)
        ending = Call("end", ENDS[end](stage), gate=1)
        return Story(
            {"user": [Call("commit", stage.commit(isolation), gate=1)], "other": [ending]},
            lambda played: stage.judge(played) and None,
            stage.look,
        )

    weaver.explore(begin, at_least=24 if end in {"init", "fence"} else 14)


@pytest.mark.parametrize("isolation", [LEVELS[0], LEVELS[-1]])
def test_a_sweep_passes_a_session_that_commits_and_ends_one_that_is_late(
    isolation: str, weaver: Weaver, eye: Connection
) -> None:
    """I12, P32: a deadline that passes at any moment; the sweep waits for no session."""

    def begin() -> Story:
        stage = Session(eye)

        def expire(connection: Connection) -> bool:
            return expire_transaction(connection, stage.name())

        def look(played: Played) -> None:
            stage.look(played)
            assert not played.trace[-1].startswith("sweep:lock")

        return Story(
            {
                "user": [Call("commit", stage.commit(isolation), gate=1)],
                "time": [Call("passes", pass_time)],
                "sweep": [Call("expire", expire, gate=1)],
            },
            lambda played: stage.judge(played) and None,
            look,
        )

    weaver.explore(begin, at_least=400)


@pytest.mark.parametrize("isolation", [LEVELS[0], LEVELS[-1]])
@pytest.mark.parametrize("commits", [True, False])
def test_a_session_that_is_seated_is_not_taken_for_one_that_is_gone(
    isolation: str, commits: bool, weaver: Weaver, eye: Connection, beside: Connection
) -> None:
    """I6, I12: its COMMIT leaves the decision first and the seat afterwards; a rollback only the seat."""

    def begin() -> Story:
        stage = Session(eye, sealed=False)

        def end(connection: Connection) -> None:
            stage.begin(connection, isolation)
            stage.seal(beside, take_seat(connection))
            stage.decide_sealed(connection)
            if not commits:
                raise errors.TransactionAborted("the user has raised")

        def expire(connection: Connection) -> bool:
            return expire_transaction(connection, stage.name())

        def judge(played: Played) -> None:
            assert stage.judge(played) == commits
            assert not (commits and played.answers["sweep.expire"])

        return Story(
            {"user": [Call("commit", end, gate=1)], "sweep": [Call("expire", expire, gate=1), Call("again", expire)]},
            judge,
            stage.look,
            {"user": beside},
        )

    weaver.explore(begin, at_least=120)


def test_a_late_append_does_not_get_past_a_seal(weaver: Weaver, eye: Connection) -> None:
    """I8: it is stored before the seal, which then lacks it, or not at all; it never waits for the session."""

    def begin() -> Story:
        stage = Session(eye, sealed=False)

        def look(played: Played) -> None:
            stage.look(played)
            assert "owner.seal" not in played.answers or played.trace[-1] != "delayed:lock"

        def judge(played: Played) -> None:
            answers = played.answers["delayed.append"]
            stored = [answer.error is None for answer in answers]
            assert stage.judge(played, "owner.commit") == (not any(stored))
            assert len(set(stored)) == 1
            for answer in answers:
                refused = errors.InvalidTransactionState | errors.TransactionAborted
                assert answer.error is None or isinstance(answer.error, refused)
            assert not any("late" in rows for rows in stage.committed())

        return Story(
            {
                "owner": [Call("seal", stage.seal, gate=1), Call("commit", stage.commit(), gate=1)],
                "delayed": [Call("append", stage.append("late", sequence=1))],
            },
            judge,
            look,
        )

    weaver.explore(begin, at_least=60)


def test_a_reader_sees_the_row_and_all_records_at_one_instant_and_never_skips(weaver: Weaver, eye: Connection) -> None:
    """I6: one statement sees both or neither; I5: a log reader never sees undecided records, nor passes them."""

    def begin() -> Story:
        stage = Session(eye)
        other = init_producer_id(eye, f"other-{stage.run}", timeout_ms=TIMEOUT_MS)
        position = dict.fromkeys(stage.partitions, Position(0))
        polled: dict[int, list[str]] = {partition: [] for partition in stage.partitions}

        def look(played: Played) -> None:
            stage.look(played)
            answers = fetch(eye, position, isolation=Isolation.READ_COMMITTED, max_bytes=10**6)
            for partition, answer in answers.items():
                polled[partition] += [v.decode() for b in answer.batches for v in b.values if v is not None]
                position[partition] = Position(answer.position, answer.token)
            assert list(polled.values()) == stage.committed()
            assert stage.has_row or list(polled.values()) == [[], []]

        def judge(played: Played) -> None:
            assert stage.judge(played)
            assert stage.committed() == [["value", "whole"]] * 2

        return Story(
            {
                "user": [Call("commit", stage.commit(), gate=1)],
                "short": [Call("whole", stage.whole("whole", producer=other))],
            },
            judge,
            look,
        )

    weaver.explore(begin, at_least=35)


def test_sessions_that_publish_to_the_same_partitions_do_not_deadlock(weaver: Weaver, eye: Connection) -> None:
    """They wait for each other, and for appends: partitions are locked in order, offsets assigned under the lock (P1)."""

    def begin() -> Story:
        stage = Stage(eye, partitions=2)

        def session(value: bytes) -> Run:
            def run(connection: Connection) -> None:
                connection.execute("insert into business values (%s)", [stage.run])
                assert commit_in_session(connection, [batch(partition, value) for partition in stage.partitions])
                query(connection, "set constraints all immediate")  # as the COMMIT does, where an actor cannot be paused

            return run

        def judge(played: Played) -> None:
            assert [sorted(rows) for rows in stage.committed()] == [["one", "other", "plain"]] * 2
            assert [query(stage.eye, OFFSETS, partition) for partition in stage.partitions] == [[(0,), (1,), (2,)]] * 2
            stage.nothing_open()

        return Story(
            {
                "one": [Call("commit", session(b"one"))],  # from the second gate on: the first is at a lock on its own pid
                "other": [Call("commit", session(b"other"))],
                "plain": [Call("append", stage.append("plain", number=None), gate=3)],
            },
            judge,
        )

    weaver.explore(begin, at_least=600)


@pytest.mark.parametrize("isolation", KEPT)
def test_a_session_with_an_old_snapshot_publishes_beside_appends(
    isolation: str, weaver: Weaver, eye: Connection, beside: Connection
) -> None:
    """P23, P24: what it publishes is written on a connection that sees the end of the log, and decided in its COMMIT."""

    def begin() -> Story:
        session = Session(eye, appended=False, sealed=False)
        other = init_producer_id(eye, f"other-{session.run}", timeout_ms=TIMEOUT_MS)

        def commit(connection: Connection) -> None:
            session.begin(connection, isolation)
            connection.execute("select weave.gate()")  # its snapshot was taken before this
            append(beside, session.batches("value"), flushed=False)
            session.seal(beside)
            session.decide_sealed(connection)

        def judge(played: Played) -> None:
            assert session.judge(played)
            assert [sorted(rows) for rows in session.committed()] == [["value", "whole"]] * 2

        return Story(
            {
                "user": [Call("commit", commit, gate=1)],
                "other": [Call("whole", session.whole("whole", producer=other))],
            },
            judge,
            session.look,
            {"user": beside},
        )

    weaver.explore(begin, at_least=40)


@pytest.mark.parametrize("isolation", KEPT)
def test_a_session_with_an_old_snapshot_commits_no_offsets_of_an_old_generation(
    isolation: str, weaver: Weaver, eye: Connection, beside: Connection
) -> None:
    """P39, I11: the group is read after the rebalance; a successor does not begin before the sealed offsets are decided."""

    def begin() -> Story:
        group = Handover(eye)
        session = Session(eye, appended=False, sealed=False)
        offsets = offset_columns({GroupMetadata(group.name, "a", group.told): {group.first: OffsetAndMetadata(7)}})
        told: list[int | None] = []

        def commit(connection: Connection) -> None:
            session.begin(connection, isolation)
            connection.execute("select weave.gate()")
            session.sealing = seal(beside, session.name(), "session", tails={}, offsets=offsets)
            session.decide_sealed(connection)

        def rebalance(connection: Connection) -> int:
            return release_partitions(connection, group.name, group.numbers["a"], [group.first])

        def begins() -> int | None:
            """Where the successor begins. None: it is not the owner yet, or waits for a pending offset."""
            found = committed_offsets(eye, group.name, [group.first]).get(group.first)
            if group.owners[group.first] != "b" or (found is not None and found.pending):
                return None
            return 0 if found is None or found.at is None else found.at.offset

        def look(played: Played) -> None:
            told.append(begins())
            assert len(set(told) - {None}) <= 1, "I11: its predecessor committed after it began"

        def judge(played: Played) -> None:
            answer = played.answers["user.commit"]
            committed = not isinstance(answer, Exception)
            assert committed or isinstance(answer, errors.NotAssigned | errors.IllegalGeneration), answer
            sealed_from = next(step for step, name in enumerate(played.trace) if name == "user:gate") + 1
            assert not committed or "group:end" not in played.trace[:sealed_from], "P39"
            assert session.has_row == committed
            assert begins() == (7 if committed else 0)
            group.sound()

        return Story(
            {
                "user": [Call("commit", commit, gate=1)],
                "group": [Call("rebalance", rebalance, gate=1)],
            },
            judge,
            look,
            {"user": beside},
        )

    weaver.explore(begin, at_least=28)


class WaitingOffset(Session):
    """A transaction that holds a group's offset for a user's session to decide."""

    def __init__(self, eye: Connection) -> None:
        super().__init__(eye, sealed=False)
        self.group = f"waiting-{self.run}"
        self.sealing = seal(
            eye,
            self.name(),
            "session",
            tails=dict.fromkeys(self.partitions, 0),
            offsets=offset_columns({GroupMetadata(self.group): {self.partitions[0]: OffsetAndMetadata(1)}}),
        )

    def begin_reading(self, connection: Connection) -> tuple[int | None, bool]:
        """Look up where a starting consumer begins, as it does: an offset, and whether it waits."""
        found, _ = stable_offsets(connection, self.group, self.partitions[:1])
        at = found.get(self.partitions[0])
        return (None, False) if at is None else (None if at.at is None else at.at.offset, at.pending)


@pytest.mark.parametrize("end", ["commit", "commit when it is overdue", "abort"])
def test_a_consumer_that_starts_beside_a_seal_reads_nothing_that_is_committed_later(
    end: str, weaver: Weaver, eye: Connection
) -> None:
    """I10, I12: it waits, or the outcome is final; it aborts an overdue transaction if the lock is free."""

    def begin() -> Story:
        stage = WaitingOffset(eye)
        run = ENDS["abort"](stage) if end == "abort" else stage.commit()
        look = Call("look", stage.begin_reading, gate=1)
        later = [Call("time", pass_time)] if "overdue" in end else []

        def judge(played: Played) -> None:
            offset, waits = played.answers["reader.look"]
            committed = end != "abort" and stage.judge(played)
            assert not waits or offset is None
            assert waits or offset == (1 if committed else None)
            assert stage.begin_reading(eye) == (1 if committed else None, False)

        return Story({"user": [Call("commit", run, gate=1)], "reader": [*later, look]}, judge, stage.look)

    weaver.explore(begin)
