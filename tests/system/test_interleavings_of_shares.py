"""T4, interleavings of share groups: acquiring, answering, deciding, leaving, sweeps and dead letters, in every order.

As in `test_interleavings`: each call is one SQL transaction, paused before each lock, and before COMMIT.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from msgtx import errors
from msgtx.database.calls import query
from msgtx.store.append.append import append, append_and_decide
from msgtx.store.groups.members import leave_group
from msgtx.store.shares.shares import Acquiring, acquire_records, ensure_dead_letters, join_share_group
from msgtx.store.topics.topics import create_topic, describe_topics
from msgtx.store.transactions.decide import decide
from msgtx.store.transactions.transactions import end_transaction
from msgtx.types import Outcome
from tests.databases import Connection
from tests.store.sharing import ShareGroup
from tests.store.steps import Writer, batch, new_partition, unique
from tests.weave import Call, Played, Story, Weaver

pytestmark = pytest.mark.slow

Run = Callable[[Connection], Any]


class Work(ShareGroup):
    """A share group whose member "a" has the first two of three records; "b" is another member."""

    def __init__(self, eye: Connection, **settings: object) -> None:
        partition = new_partition(eye)
        append(eye, [batch(partition, b"0", b"1", b"2")])
        super().__init__(eye, partition, **settings)
        self.join("b")
        assert self.acquire("a", 2, call=1) == {0: 1, 1: 1}
        self.writer = Writer(eye)

    def over(self, connection: Connection) -> "Work":
        """Return the same group over another connection."""
        made = copy.copy(self)
        made.connection = connection
        return made

    def acquiring(self, member: str, call: int = 50) -> Run:
        return lambda connection: self.over(connection).acquire(member, call=call)

    def answering(self, member: str, answers: dict[int, str]) -> Run:
        return lambda connection: [name for name, _ in self.over(connection).answer(member, answers)]

    def answering_in(self, member: str, answers: dict[int, str]) -> Run:
        return lambda connection: self.over(connection).answer_in(self.writer.name, member, answers, call=60)

    def deciding(self, outcome: Any) -> Run:
        return lambda connection: decide(connection, self.writer.name, outcome, tails={}, wake=False).error

    def leaving(self, member: str) -> Run:
        return lambda connection: leave_group(connection, self.name, member)

    @property
    def pending(self) -> int:
        """How many share partitions wait to be settled."""
        row = self.connection.execute(
            "select count(*) from msgtx.share_pending where group_id = %s", [self.group_id]
        ).fetchone()
        return row[0] if row else 0

    def rest(self) -> dict[int, int]:
        """What is delivered when all of it is over, by offset."""
        settling(self.connection)
        self.expire_locks(*self.numbers)
        return self.acquire("c", call=90) | self.acquire("c", call=91)


def settling(connection: Connection) -> int:
    return int(query(connection, "select settled from msgtx.settle_shares()")[0][0])


def took(played: Played, name: str) -> dict[int, int]:
    """What an acquisition has returned."""
    answer = played.answers[name]
    assert isinstance(answer, dict), answer
    return answer


def test_a_record_is_one_members(weaver: Weaver, eye: Connection) -> None:
    """An acquisition passes a partition that another one holds, or takes what that one has left."""

    def begin() -> Story:
        work = Work(eye)
        work.expire_locks("a")

        def judge(played: Played) -> None:
            one, other = took(played, "b.acquire"), took(played, "c.acquire")
            assert not one.keys() & other.keys()
            assert one.keys() | other.keys() in ({0, 1, 2}, set())  # each may have met the other's lock
            assert work.rest().keys() == {0, 1, 2}

        work.join("c")
        return Story(
            {
                "b": [Call("acquire", work.acquiring("b"), gate=1)],
                "c": [Call("acquire", work.acquiring("c"), gate=1)],
            },
            judge,
        )

    weaver.explore(begin, at_least=12)


@pytest.mark.parametrize("answer", ["accept", "release", "reject"])
def test_an_answer_beside_the_end_of_the_members_session_holds_or_is_refused(
    answer: str, weaver: Weaver, eye: Connection
) -> None:
    def begin() -> Story:
        work = Work(eye)
        ensure_dead_letters(eye, work.name)

        def judge(played: Played) -> None:
            answered, taken = played.answers["a.answer"], took(played, "b.acquire")
            if isinstance(answered, errors.UnknownMember) or answered:
                assert work.letters == []
                assert {0, 1} <= taken.keys() | work.rest().keys(), "what was not accepted is delivered again"
            else:
                assert len(work.letters) == (answer == "reject")
                again = taken.keys() | work.rest().keys()
                assert (0 in again) == (answer == "release"), "what was answered was delivered again"
                assert 1 in again

        return Story(
            {
                "a": [Call("answer", work.answering("a", {0: answer}), gate=1)],
                "end": [Call("leave", work.leaving("a"))],
                "b": [Call("acquire", work.acquiring("b"))],
            },
            judge,
        )

    weaver.explore(begin, at_least=130)


@pytest.mark.parametrize("outcome", ["COMMIT", "ABORT"])
def test_what_is_pending_is_decided_once_for_everybody(outcome: str, weaver: Weaver, eye: Connection) -> None:
    def begin() -> Story:
        work = Work(eye)

        def judge(played: Played) -> None:
            assert played.answers["a.answer"] is None
            assert played.answers["a.decide"] is None
            taken = took(played, "b.acquire")
            if outcome == "COMMIT":
                assert 0 not in taken
            rest = work.rest()
            assert work.pending == 0
            assert (0 in rest) == (outcome == "ABORT")
            assert {1, 2} <= rest.keys()

        return Story(
            {
                "a": [
                    Call("answer", work.answering_in("a", {0: "accept"})),
                    Call("decide", work.deciding(outcome)),
                ],
                "b": [Call("acquire", work.acquiring("b"))],
                "sweep": [Call("settle", settling)],
            },
            judge,
        )

    weaver.explore(begin, at_least=500)


def test_an_answer_that_comes_late_changes_nothing_that_was_decided(weaver: Weaver, eye: Connection) -> None:
    """I8: it is refused, or it is pending before the abort; it never hangs."""

    def begin() -> Story:
        work = Work(eye)

        def judge(played: Played) -> None:
            late = played.answers["a.answer"]
            assert late is None or isinstance(late, errors.TransactionAborted), late
            if played.answers["admin.end"] is Outcome.UNKNOWN:  # it came before the transaction was there
                assert end_transaction(eye, work.writer.name, "admin") is Outcome.ABORTED
            else:
                assert played.answers["admin.end"] is Outcome.ABORTED
            assert {0, 1, 2} <= work.rest().keys() | took(played, "b.acquire").keys()
            assert work.pending == 0

        return Story(
            {
                "a": [Call("answer", work.answering_in("a", {0: "accept", 1: "accept"}), gate=1)],
                "admin": [Call("end", lambda connection: end_transaction(connection, work.writer.name, "admin"))],
                "b": [Call("acquire", work.acquiring("b"))],
            },
            judge,
        )

    weaver.explore(begin, at_least=20)


def test_two_transactions_have_a_record_one_after_the_other(weaver: Weaver, eye: Connection) -> None:
    """Whoever comes second is refused, unless the first was aborted and the record delivered again."""

    def begin() -> Story:
        work = Work(eye)
        other = Writer(eye)

        def judge(played: Played) -> None:
            answers = [played.answers["first.answer"], played.answers["second.answer"]]
            assert sum(answer is None for answer in answers) == 1
            assert sum(isinstance(answer, errors.TransactionConflict) for answer in answers) == 1

        return Story(
            {
                "first": [Call("answer", work.answering_in("a", {0: "accept", 1: "accept"}), gate=1)],
                "second": [
                    Call(
                        "answer",
                        lambda connection: work.over(connection).answer_in(other.name, "a", {1: "accept"}, call=61),
                        gate=1,
                    )
                ],
            },
            judge,
        )

    weaver.explore(begin, at_least=50)


def test_dead_letters_are_written_once_and_hold_nobody_up(weaver: Weaver, eye: Connection) -> None:
    """A whole transaction that rejects, an acquisition that gives up, and a producer that writes to the same topics."""

    def begin() -> Story:
        work = Work(eye, delivery_count_limit=1)
        ensure_dead_letters(eye, work.name)
        # Record 1 is given up by whoever looks next; record 0 is rejected.
        assert work.answer("a", {1: "release"}) == []
        target = query(eye, "select msgtx.dead_letter_partition(%s, %s::int)", work.name, work.partition)[0][0]
        own = [batch(partition, b"own") for partition in sorted((work.partition, target))]
        rows = [work.writer.row(work.partition, b"out")]
        answers = work.answers("a", {0: "reject"})

        def judge(played: Played) -> None:
            assert [each.error for each in played.answers["worker.whole"]] == [None]
            assert [each.error for each in played.answers["producer.append"]] == [None, None]
            took(played, "b.acquire")
            work.connection.execute("delete from msgtx.record_batch where partition_id = %s and values[1] = 'own'", [target])
            work.rest()
            assert sorted(letter[:2] for letter in work.letters)[:2] == [(b"0", 0), (b"1", 1)]
            assert len({letter[1] for letter in work.letters}) == len(work.letters)

        return Story(
            {
                "worker": [
                    Call(
                        "whole",
                        lambda connection: append_and_decide(connection, work.writer.name, rows, answers=answers),
                        gate=5,
                    )
                ],
                "producer": [Call("append", lambda connection: append(connection, own))],
                "b": [Call("acquire", work.acquiring("b"))],
            },
            judge,
        )

    weaver.explore(begin, at_least=20)


def test_a_group_begins_once_whoever_is_first(weaver: Weaver, eye: Connection) -> None:
    """A member that joins for a topic, beside one that looks at it without having joined for it, and one that joins, too."""

    def begin() -> Story:
        topic, group = unique("topic"), unique("share")
        create_topic(eye, topic, 2, {})
        ids = list(describe_topics(eye, [topic])[topic].partition_ids)
        append(eye, [batch(each, b"before") for each in ids])
        who: dict[str, Any] = {"client_host": None, "client_process": None, "session_timeout_ms": 1_000_000}
        early = join_share_group(eye, group, member_id="early", topics=(), **who)

        def joining(member: str) -> Run:
            return lambda connection: join_share_group(connection, group, member_id=member, topics=[topic], **who).number

        def looking(connection: Connection) -> int:
            asked = Acquiring(group, early.number, 1, ids, 10, 1 << 20)
            return len(acquire_records(connection, asked).records)

        def judge(played: Played) -> None:
            found = played.answers["early.look"]
            assert isinstance(played.answers["one.join"], int)
            assert isinstance(played.answers["other.join"], int)
            assert found == 0 or isinstance(found, errors.LockTimeout), found
            append(eye, [batch(each, b"after") for each in ids])
            again = acquire_records(eye, Acquiring(group, played.answers["one.join"], 2, ids, 10, 1 << 20)).records
            assert [each.range[1:] for each in again] == [(1, 1), (1, 1)]

        return Story(
            {
                "one": [Call("join", joining("one"))],
                "other": [Call("join", joining("other"))],
                "early": [Call("look", looking, may_time_out=True)],
            },
            judge,
        )

    weaver.explore(begin, at_least=20)


def test_a_sweep_buries_what_a_poll_does_not(weaver: Weaver, eye: Connection) -> None:
    """A last delivery that has ended, a poll, a sweep and another sweep: one dead letter."""

    def begin() -> Story:
        work = Work(eye, delivery_count_limit=1)
        ensure_dead_letters(eye, work.name)
        assert work.answer("a", {0: "release", 1: "accept"}) == []

        def burying(connection: Connection) -> int:
            return int(query(connection, "select buried from msgtx.bury_dead_shares()")[0][0])

        def judge(played: Played) -> None:
            took(played, "b.acquire")
            burying(eye)
            assert [letter[:2] for letter in work.letters] == [(b"0", 0)]

        return Story(
            {
                "b": [Call("acquire", work.acquiring("b"))],
                "sweep": [Call("bury", burying)],
                "other": [Call("bury", burying)],
            },
            judge,
        )

    weaver.explore(begin, at_least=10)
