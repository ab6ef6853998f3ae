"""T4, interleavings of `msgtx.take`: SQL transactions that take for a group, beside each other and beside a member."""

from collections.abc import Callable

import pytest

from msgtx import errors
from msgtx.database.calls import query
from tests.databases import Connection
from tests.store.roster import join
from tests.store.steps import committed_at, named_topic, plain, unique
from tests.store.test_compaction import compact, compacted_topic
from tests.weave import Call, Played, Story, Weaver

pytestmark = pytest.mark.slow


class Taking:
    """A topic of one partition with six records, and a group that has taken two of them, or does not exist yet."""

    def __init__(self, eye: Connection, *, is_new: bool) -> None:
        self.eye = eye
        self.topic, (self.partition,) = named_topic(eye, retention_ms=-1)
        self.group = unique("takers")
        plain(eye, self.partition, *[b"%d" % i for i in range(6)])
        self.begin = 0 if is_new else 2
        if not is_new:
            assert self.take(eye) == [0, 1]

    def begin_late(self, connection: Connection) -> None:
        query(connection, "select from msgtx.take(%s, %s, auto_offset_reset => 'latest')", self.topic, self.group)

    def take(self, connection: Connection) -> list[int]:
        rows = query(connection, 'select "offset" from msgtx.take(%s, %s, max_records => 2)', self.topic, self.group)
        return [offset for (offset,) in rows]

    @property
    def at(self) -> int:
        """Where the group goes on."""
        return committed_at(self.eye, self.group, self.partition)[0] or 0


@pytest.mark.parametrize("is_new", [False, True], ids=["group", "new group"])
def test_sql_transactions_beside_each_other_take_each_record_once(weaver: Weaver, eye: Connection, is_new: bool) -> None:
    """I10: in order, and one that gets nothing does not wait."""

    def begin() -> Story:
        taking = Taking(eye, is_new=is_new)

        def judge(played: Played) -> None:
            taken = sorted(offset for name in ("a.take", "b.take") for offset in played.answers[name])
            assert taken == list(range(taking.begin, taking.begin + len(taken)))
            assert len(taken) in {2, 4}
            assert taking.at == taking.begin + len(taken)

        return Story({name: [Call("take", taking.take, gate=1)] for name in ("a", "b")}, judge)

    weaver.explore(begin, at_least=10)


@pytest.mark.parametrize("is_new", [False, True], ids=["group", "new group"])
def test_a_member_goes_on_where_a_sql_transaction_has_ended_or_that_one_is_refused(
    weaver: Weaver, eye: Connection, is_new: bool
) -> None:
    """I11: never do both handle a record."""

    def begin() -> Story:
        taking = Taking(eye, is_new=is_new)
        joining: Callable[[Connection], object] = lambda connection: join(connection, taking.group, "member")  # noqa: E731
        where: Callable[[Connection], object] = lambda _: taking.at  # noqa: E731

        def judge(played: Played) -> None:
            taken, at = played.answers["sql.take"], played.answers["member.where"]
            if isinstance(taken, errors.GroupNotEmpty):
                taken = []
            assert taken in ([], [taking.begin, taking.begin + 1])
            assert at == taking.begin + len(taken)

        return Story(
            {
                "sql": [Call("take", taking.take, gate=1)],
                "member": [Call("join", joining, gate=1), Call("where", where)],
            },
            judge,
        )

    weaver.explore(begin, at_least=5)


def test_a_group_begins_once(weaver: Weaver, eye: Connection) -> None:
    """I10: records behind the first beginning are not passed by a second one."""

    def begin() -> Story:
        taking = Taking(eye, is_new=True)
        query(eye, "insert into msgtx.consumer_group (name) values (%s)", taking.group)

        def judge(_: Played) -> None:
            begun = "select committed_offset from msgtx.group_offset where partition_id = %s"
            assert len(query(eye, begun, taking.partition)) == 1

        return Story({name: [Call("take", taking.begin_late, gate=1)] for name in ("a", "b")}, judge)

    weaver.explore(begin, at_least=10)


def test_a_compaction_in_the_middle_of_a_take_hides_no_record(weaver: Weaver, eye: Connection) -> None:
    """I10: `take` chooses rows of the log in one statement, and reads their records in the next one."""
    refusals = []

    def begin() -> Story:
        taking = Taking(eye, is_new=True)
        taking.partition = compacted_topic(eye, "a0 b1", "a2 c3", "d4")
        ((taking.topic,),) = query(
            eye,
            "select t.name from msgtx.topic t join msgtx.partition p on p.topic_id = t.topic_id where p.partition_id = %s",
            taking.partition,
        )

        def judge(played: Played) -> None:
            taken = played.answers["sql.take"]
            if isinstance(taken, errors.LockTimeout):
                refusals.append(taken)
                taken = []
            while rest := taking.take(eye):
                taken += rest
            assert taken == sorted(set(taken))
            assert set(taken) >= {1, 2, 3, 4}
            assert taking.at == 5

        return Story(
            {"sql": [Call("take", taking.take, gate=1, may_time_out=True)], "sweep": [Call("compact", compact)]},
            judge,
        )

    weaver.explore(begin, at_least=3, in_parts=False)
    assert refusals
