"""T4, interleavings of membership: commits, joins, handovers and heartbeats beside each other, in every order.

As in `test_interleavings`: each call is one SQL transaction, paused before each lock, before a heartbeat is written, and
before COMMIT.
"""

from collections.abc import Callable
from typing import Any

import pytest

from msgtx import OffsetAndMetadata, errors
from msgtx.database.calls import query
from msgtx.store.groups.groups import commit_offsets, offset_columns
from msgtx.store.groups.members import (
    assign_partitions,
    heartbeat,
    leave_group,
    member_assignment,
    release_partitions,
)
from msgtx.store.transactions.decide import decide
from msgtx.store.transactions.producers import init_producer_id
from msgtx.store.transactions.seal import commit_in_session
from msgtx.types import GroupMetadata, TransactionId
from tests.databases import Connection
from tests.store.roster import Roster, join
from tests.weave import Call, Played, Story, Weaver

pytestmark = pytest.mark.slow

Run = Callable[[Connection], Any]
# A decision's first gate is at its producer, which no other actor uses, a session's at the lock on its own pid.
FIRST_GATE = {"plain": 1, "transaction": 2, "session": 2}
KINDS = tuple(FIRST_GATE)


class Handover(Roster):
    """A group of "a" and "b"; "a" owns the first of two partitions, which "b" is to own."""

    def __init__(self, eye: Connection) -> None:
        super().__init__(eye, partitions=2)
        self.first, self.second = self.partitions
        self.join("a")
        self.join("b")
        assert self.assign({self.first: "a"})
        assert self.assign({self.first: "b"})
        self.told = self.generation

    def committing(self, member_id: str, partition: int, offset: int, *, kind: str = "plain") -> Run:
        """Commit with the assignment that the member had when the story began."""
        offsets = {GroupMetadata(self.name, member_id, self.told): {partition: OffsetAndMetadata(offset)}}
        if kind == "plain":
            return lambda connection: commit_offsets(connection, offsets)
        if kind == "session":

            def in_session(connection: Connection) -> None:
                assert commit_in_session(connection, [], offset_columns(offsets))
                query(connection, "set constraints all immediate")  # as the COMMIT does, where an actor cannot be paused

            return in_session
        producer = init_producer_id(self.connection, f"{self.name}-{member_id}-{partition}", timeout_ms=60_000)

        def commit(connection: Connection) -> None:
            name = TransactionId(*producer, 0)
            decided = decide(connection, name, "COMMIT", tails={}, offsets=offset_columns(offsets), wake=False)
            if decided.error is not None:
                raise decided.error

        return commit

    def committing_as_told_now(self, member_id: str, partition: int, offset: int) -> Run:
        """Read the assignment first, and commit if the member owns the partition."""

        def commit(connection: Connection) -> bool:
            told = member_assignment(connection, self.name, self.numbers[member_id])
            who = GroupMetadata(self.name, member_id, told.generation)
            if partition not in told.owned:
                return False
            commit_offsets(connection, {who: {partition: OffsetAndMetadata(offset)}})
            return True

        return commit

    def releasing(self, member_id: str, *partitions: int) -> Run:
        return lambda connection: release_partitions(connection, self.name, self.numbers[member_id], partitions)

    def beating(self, member_id: str, number: int) -> Run:
        who: dict[str, Any] = {"member_number": self.numbers[member_id], "member_id": member_id, "group_instance_id": None}
        return lambda connection: heartbeat(connection, self.name, **who, number=number)

    def ends_session(self, member_id: str) -> None:
        """Let a member's newest heartbeat be an hour old."""
        self.connection.execute(
            "update msgtx.group_heartbeat set heartbeat_at = heartbeat_at - interval '1 hour' where member_number = %s",
            [self.numbers[member_id]],
        )

    def commits(self, partition: int) -> list[str]:
        """The members that committed for a partition, in the order that counts."""
        rows = self.connection.execute(
            "select member_id from msgtx.group_offset where partition_id = %s order by commit_sequence", [partition]
        ).fetchall()
        return [member_id for (member_id,) in rows]

    def sound(self) -> None:
        """Owners are members; no partition has two owners."""
        state = self.state
        owned = [partition for member in state.members for partition in member.owned]
        assert len(owned) == len(set(owned))
        (rows,) = self.connection.execute(
            "select count(*) from msgtx.group_assignment where group_id = %s", [state.group_id]
        ).fetchone() or (None,)
        assert rows == len(owned), "an owner is not a member"


@pytest.mark.parametrize("kind", KINDS)
def test_an_offset_commit_beside_an_assignment_is_of_before_it_or_after_it(
    kind: str, weaver: Weaver, eye: Connection
) -> None:
    """A member continues to commit what it owns, and commits a new partition only once it has learned of it."""

    def begin() -> Story:
        group = Handover(eye)
        owned, given = group.committing("a", group.first, 7, kind=kind), group.committing("a", group.second, 8, kind=kind)
        state = group.state
        targets = {group.first: group.numbers["b"], group.second: group.numbers["a"]}

        def assign(connection: Connection) -> bool:
            version = state.topics_version
            return assign_partitions(connection, group.name, generation=group.told, topics_version=version, targets=targets)

        def judge(played: Played) -> None:
            assert played.answers["leader.assign"] is True
            assert played.answers["member.owned"] is None
            assert isinstance(played.answers["member.given"], errors.NotAssigned | errors.IllegalGeneration)
            assert (group.commits(group.first), group.commits(group.second)) == (["a"], [])
            assert group.owners == {group.first: "a", group.second: "a"}
            group.sound()

        return Story(
            {
                "member": [Call("owned", owned, gate=FIRST_GATE[kind]), Call("given", given, gate=FIRST_GATE[kind])],
                "leader": [Call("assign", assign, gate=1)],
            },
            judge,
        )

    weaver.explore(begin, at_least=50)


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_release_the_old_owner_commits_nothing(kind: str, weaver: Weaver, eye: Connection) -> None:
    """P31: a commit on its way takes effect before the release, or not at all; never after the successor's."""

    def begin() -> Story:
        group = Handover(eye)
        delayed = group.committing("a", group.first, 7, kind=kind)
        at_release: list[int] = []

        def look(played: Played) -> None:
            if "owner.release" in played.answers:
                at_release.append(group.commits(group.first).count("a"))
                assert at_release[-1] == at_release[0], "I11: it committed what it no longer owns"

        def judge(played: Played) -> None:
            assert group.owners == {group.first: "b"}
            late, taken = played.answers["delayed.commit"], played.answers["successor.commit"]
            assert late is None or isinstance(late, errors.NotAssigned)
            expected = [*(["a"] if late is None else []), *(["b"] if taken is True else [])]
            assert group.commits(group.first) == expected
            group.sound()

        return Story(
            {
                "owner": [Call("release", group.releasing("a", group.first), gate=1)],
                "delayed": [Call("commit", delayed, gate=FIRST_GATE[kind])],
                "successor": [Call("commit", group.committing_as_told_now("b", group.first, 9), gate=1)],
            },
            judge,
            look,
        )

    weaver.explore(begin, at_least=400)


@pytest.mark.parametrize("kind", KINDS)
def test_after_it_was_removed_a_member_commits_nothing(kind: str, weaver: Weaver, eye: Connection) -> None:
    def begin() -> Story:
        group = Handover(eye)
        delayed = group.committing("a", group.first, 7, kind=kind)
        group.ends_session("a")

        def look(played: Played) -> None:
            if group.members == ["b"]:
                assert group.owners == {group.first: "b"}

        def judge(played: Played) -> None:
            late, taken = played.answers["dead.commit"], played.answers["survivor.commit"]
            removed = group.members == ["b"]
            assert late is None or isinstance(late, errors.UnknownMember)
            assert removed or late is None, "a member that is not removed commits"
            assert taken is removed, "a heartbeat that finds the lock taken leaves the removal to a later one"
            assert group.commits(group.first) == [*(["a"] if late is None else []), *(["b"] if taken else [])]
            group.sound()

        return Story(
            {
                "dead": [Call("commit", delayed, gate=FIRST_GATE[kind])],
                "survivor": [
                    Call("heartbeat", group.beating("b", 1), gate=1),
                    Call("commit", group.committing_as_told_now("b", group.first, 9), gate=1),
                ],
            },
            judge,
            look,
        )

    weaver.explore(begin, at_least=100)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(("c", None), ("d", None), id="two members"),
        pytest.param(("c", None), ("c", None), id="one and its retry"),
        pytest.param(("c", "i"), ("c", "i"), id="a static one and its retry"),
        pytest.param(("c", "i"), ("d", "i"), id="two of one instance"),
    ],
)
@pytest.mark.parametrize("new", [True, False], ids=["new group", "old group"])
def test_two_joins_at_once_come_one_after_the_other(
    new: bool, one: tuple[str, str | None], other: tuple[str, str | None], weaver: Weaver, eye: Connection
) -> None:
    def begin() -> Story:
        group = Handover(eye)
        if new:
            group.name += " anew"
        before = [] if new else ["a", "b"]

        def joining(member_id: str, instance: str | None) -> Run:
            return lambda connection: join(connection, group.name, member_id, instance)

        def judge(played: Played) -> None:
            joined = [played.answers["one.join"], played.answers["other.join"]]
            generations = sorted(answer.generation for answer in joined)
            numbers = {answer.member_number for answer in joined}
            if one[0] == other[0]:
                assert (len(numbers), generations[0]) == (1, generations[1])
                assert group.members == [*before, one[0]]
            elif one[1] is None:
                assert (len(numbers), generations[0]) == (2, generations[1] - 1)
                assert sorted(group.members) == [*before, one[0], other[0]]
            else:
                assert (len(numbers), generations[0]) == (2, generations[1] - 1)
                assert [member.number for member in group.state.members][len(before) :] == [max(numbers)]
            assert group.generation == generations[1]
            group.sound()

        return Story({"one": [Call("join", joining(*one), gate=1)], "other": [Call("join", joining(*other), gate=1)]}, judge)

    weaver.explore(begin, at_least=24)


@pytest.mark.parametrize("leaving", ["a", "b"])
def test_a_release_beside_a_leave_leaves_no_partition_behind(leaving: str, weaver: Weaver, eye: Connection) -> None:
    """The owner leaves while its release is on its way, or the member that is to own it does."""

    def begin() -> Story:
        group = Handover(eye)

        def judge(played: Played) -> None:
            assert played.answers["leaving.leave"] is True
            assert isinstance(played.answers["owner.release"], int)
            assert group.members == [{"a": "b", "b": "a"}[leaving]]
            assert group.owners == ({group.first: "b"} if leaving == "a" else {})
            assert group.state.stale
            group.sound()

        return Story(
            {
                "owner": [Call("release", group.releasing("a", group.first), gate=1)],
                "leaving": [Call("leave", lambda connection: leave_group(connection, group.name, leaving), gate=1)],
            },
            judge,
            lambda played: group.sound(),
        )

    weaver.explore(begin, at_least=14)


def test_a_heartbeat_beside_the_one_that_removes_its_member_is_heard_or_the_next_one_is_told(
    weaver: Weaver, eye: Connection
) -> None:
    """One committed before the last look keeps its member; a later one may be answered, but only once."""

    def begin() -> Story:
        group = Handover(eye)
        group.ends_session("a")

        def judge(played: Played) -> None:
            trace = played.trace
            removed = group.members == ["b"]
            heard_before = trace.index("dead:start") < trace.index("survivor:commit")
            assert not (heard_before and removed and not isinstance(played.answers["dead.first"], Exception)), (
                "it was seen, and its member still removed"
            )
            assert played.answers["survivor.heartbeat"].generation == group.generation
            order = list(played.answers)
            for call in ("dead.first", "dead.second"):
                answer = played.answers[call]
                assert not isinstance(answer, Exception) or isinstance(answer, errors.UnknownMember)
                assert removed or not isinstance(answer, Exception)
            if removed and order.index("survivor.heartbeat") < order.index("dead.first"):
                assert isinstance(played.answers["dead.second"], errors.UnknownMember)
            assert group.owners == {group.first: "b" if removed else "a"}
            group.sound()

        return Story(
            {
                "dead": [
                    Call("first", group.beating("a", 1), gate=1),
                    Call("second", group.beating("a", 2), gate=1),
                ],
                "survivor": [Call("heartbeat", group.beating("b", 1), gate=1)],
            },
            judge,
        )

    weaver.explore(begin, at_least=190)


def test_two_heartbeats_remove_a_member_once(weaver: Weaver, eye: Connection) -> None:
    """A heartbeat that finds the lock taken continues."""

    def begin() -> Story:
        group = Handover(eye)
        group.join("c")
        group.ends_session("a")
        before = group.generation

        def judge(played: Played) -> None:
            assert not any(isinstance(answer, Exception) for answer in played.answers.values())
            assert (group.members, group.generation) == (["b", "c"], before + 1)
            assert group.owners == {group.first: "b"}
            group.sound()

        return Story(
            {
                "one": [Call("heartbeat", group.beating("b", 1), gate=1)],
                "other": [Call("heartbeat", group.beating("c", 1), gate=1)],
            },
            judge,
        )

    weaver.explore(begin, at_least=70)
