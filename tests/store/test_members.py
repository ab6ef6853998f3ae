"""Members of consumer groups: joining, who owns what, handing over, leaving (internals: groups, I11)."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from msgtx import errors
from msgtx.cli.terminal.failure import failure_of
from msgtx.store.fetch.wakeups import woken_since
from msgtx.store.groups.groups import commit_offsets
from msgtx.store.groups.members import (
    Assignment,
    assign_partitions,
    describe_members,
    leave_group,
    member_assignment,
    release_partitions,
)
from msgtx.store.topics.topics import create_topic
from msgtx.types import GroupMetadata, OffsetAndMetadata
from tests.databases import Clock, Connection
from tests.refusals import refuses
from tests.store.roster import Roster, join
from tests.store.sharing import ShareGroup
from tests.store.steps import count, delete_topic_of, new_partition, unique


@pytest.fixture
def group(connection: Connection) -> Roster:
    return Roster(connection)


# ── joining ──


def test_the_first_member_makes_the_group(connection: Connection) -> None:
    name = unique("group")
    assert describe_members(connection, name) is None
    joined = join(connection, name, "a", client_host="host", client_process=7, session_timeout_ms=6_000, topics=["y", "x"])
    state = describe_members(connection, name)
    assert state is not None
    assert (state.group_id, state.generation, state.stale, state.strategy) == (
        *(joined.group_id, joined.generation),
        *(True, "cooperative-sticky"),
    )
    assert joined.generation == 1
    (member,) = state.members
    assert (member.number, member.member_id, member.group_instance_id) == (joined.member_number, "a", None)
    assert (member.client_host, member.client_process, member.session_timeout_ms) == ("host", 7, 6_000)
    assert (member.topics, member.pattern, member.owned, member.target) == (("x", "y"), None, {}, frozenset())
    assert not member.session_over
    assert abs((member.heartbeat_at - member.joined_at).total_seconds()) < 1


def test_each_join_is_a_generation_and_members_stand_in_their_order(group: Roster) -> None:
    assert [group.join(name).generation for name in ("c", "a", "b")] == [1, 2, 3]
    assert group.members == ["c", "a", "b"]
    assert sorted(group.numbers.values()) == [group.numbers[name] for name in ("c", "a", "b")]


def test_groups_do_not_see_each_other(connection: Connection) -> None:
    one, other = Roster(connection), Roster(connection)
    one.join("a")
    other.join("a")
    assert other.assign({one.partitions[0]: "a"})
    assert (one.owners, other.owners) == ({}, {one.partitions[0]: "a"})
    assert (one.state.stale, other.state.stale) == (True, False)
    with pytest.raises(errors.UnknownMember):
        member_assignment(one.connection, one.name, other.numbers["a"])
    assert other.leave("a")
    assert one.members == ["a"]


@pytest.mark.parametrize("instance", [None, "i"])
def test_the_same_join_again_changes_nothing(group: Roster, instance: str | None) -> None:
    """STYLE 11: its answer was lost."""
    joined = group.join("a", instance, topics=["x", "y"])
    before = group.rows()
    assert group.join("a", instance, topics=["y", "x", "y"]) == joined
    assert group.rows() == before


@pytest.mark.parametrize(
    "subscription", [{"topics": ["other"]}, {"topics": ["topic", "other"]}, {"topics": []}, {"pattern": "t.*"}]
)
def test_a_member_that_subscribes_anew_keeps_its_number_and_what_it_owns(group: Roster, subscription: Any) -> None:
    joined = group.join("a")
    assert group.assign({group.partitions[0]: "a"})
    again = group.join("a", **subscription)
    assert (again.member_number, again.generation) == (joined.member_number, joined.generation + 2)
    assert group.owners == {group.partitions[0]: "a"}
    state = group.state
    assert state.stale
    (member,) = state.members
    assert member.topics == tuple(sorted(subscription.get("topics", ["topic"])))
    assert member.pattern == subscription.get("pattern")


def test_another_session_timeout_is_no_other_subscription(group: Roster) -> None:
    joined = group.join("a")
    assert group.assign({group.partitions[0]: "a"})
    again = group.join("a", session_timeout_ms=6_000, client_host="there", client_process=2)
    assert (again.member_number, again.generation, group.state.stale) == (joined.member_number, 2, False)
    (member,) = group.state.members
    assert (member.session_timeout_ms, member.client_host, member.client_process) == (6_000, "there", 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"member_id": ""}, "name of a member has 1 to 1000 bytes"),
        ({"instance": ""}, "name of an instance has 1 to 1000 bytes"),
        ({"session_timeout_ms": 0}, "session timeout of member a is not above 0"),
        ({"session_timeout_ms": -1}, "session timeout of member a is not above 0"),
        ({"topics": None}, "names the topics that it subscribes to"),
        ({"topics": None, "pattern": "x"}, "names the topics that it subscribes to"),
        ({"pattern": "x", "topics_version": None}, "those that match it and their version"),
        ({"pattern": "x" * 1_001}, "at most 1000 bytes"),
        ({"member_id": "x" * 1_001}, "name of a member has 1 to 1000 bytes"),
        ({"client_host": "x" * 1_001}, "at most 1000 bytes"),
        ({"topics": [str(number) for number in range(10_001)]}, "10001 topics, at most 10000"),
        ({"topics": ["x" * 1_001]}, "no name of a topic"),
    ],
)
def test_a_join_that_cannot_be_changes_nothing(connection: Connection, change: dict[str, Any], words: str) -> None:
    """I16."""
    name = unique("group")
    with pytest.raises(errors.InvalidRequest, match=words):
        join(connection, name, **{"member_id": "a", **change})
    assert describe_members(connection, name) is None


def test_a_group_without_a_name_is_refused(connection: Connection) -> None:
    with refuses(errors.InvalidRequest, name="a group"):
        join(connection, "", "a")


@pytest.mark.parametrize(
    ("group", "member_id", "instance", "words"),
    [
        ("", "a", None, "a consumer group has a name"),
        ("x" * 1_001, "a", None, "at most 1000 bytes"),
        ("g", "", None, "a member has an id"),
        ("g", "x" * 1_001, None, "at most 1000 bytes"),
        ("g", "a", "", "group_instance_id of member a is empty"),
        ("g", "a", "x" * 1_001, "at most 1000 bytes"),
    ],
)
def test_the_database_refuses_names_that_a_client_would_not_send(
    connection: Connection, group: str, member_id: str, instance: str | None, words: str
) -> None:
    """A role that may consume can also call it from psql (I16)."""
    row = connection.execute(
        "select error, detail from msgtx.join_group(%s, %s, %s, 'here', 1, 45000, 'range', '{topic}', null, null)",
        [group, member_id, instance],
    ).fetchone()
    assert row is not None
    assert row[0] == "InvalidRequest"
    assert words in row[1]
    assert count(connection, "consumer_group", "name = %s", group) == 0


@pytest.mark.parametrize(
    ("strategy", "topics", "error"),
    [("range", ["topic", None], "InvalidRequest"), (None, ["topic"], "ConfigError: strategy")],
)
def test_the_database_refuses_nulls_that_a_client_would_not_send(
    connection: Connection, strategy: str | None, topics: list[str | None], error: str
) -> None:
    """Every member reads what the others subscribe to, and divides by the strategy (I16)."""
    name = unique("group")
    row = connection.execute(
        "select error from msgtx.join_group(%s, 'a', null, 'here', 1, 45000, %s, %s, null, null)", [name, strategy, topics]
    ).fetchone()
    assert row == (error,)
    assert count(connection, "consumer_group", "name = %s", name) == 0


def test_an_unknown_strategy_is_refused(connection: Connection) -> None:
    name = unique("group")
    with refuses(errors.ConfigError, member_id="a"):
        join(connection, name, "a", strategy="sticky")
    assert describe_members(connection, name) is None


def test_a_join_with_another_strategy_than_the_others_is_refused(group: Roster) -> None:
    group.join("a", strategy="range")
    before = group.rows()
    with refuses(errors.ConfigError, group=group.name, member_id="b"):
        group.join("b", strategy="roundrobin")
    assert group.rows() == before
    group.join("b", strategy="range")
    with refuses(errors.ConfigError, member_id="a"):
        group.join("a", strategy="roundrobin")


def test_who_joins_a_share_group_by_mistake_is_no_member_of_it(connection: Connection) -> None:
    share = ShareGroup(connection, new_partition(connection))
    before = describe_members(connection, share.name)
    with refuses(errors.ConfigError, group=share.name):
        join(connection, share.name, "mistaken")
    assert describe_members(connection, share.name) == before


def test_who_is_alone_chooses_the_strategy(group: Roster) -> None:
    """An empty group takes the joiner's; so does the only member, also a static one that comes back."""
    join(group.connection, unique("other"), "a", strategy="range")
    group.join("a", strategy="range")
    assert group.assign({})
    assert group.join("a", strategy="roundrobin").generation == 3
    assert (group.state.strategy, group.state.stale) == ("roundrobin", True)
    group.leave("a")
    group.join("b", "i", strategy="cooperative-sticky")
    assert group.assign({})
    group.join("c", "i", strategy="range")
    assert (group.state.strategy, group.state.stale, group.members) == ("range", True, ["c"])


@pytest.mark.parametrize("name", ["Ünï-çødé 🚀", "a'b\"c;--", "x" * 500])
def test_names_with_odd_characters_are_ordinary(connection: Connection, name: str) -> None:
    group = unique(name)
    join(connection, group, name, name, topics=[name])
    state = describe_members(connection, group)
    assert state is not None
    assert [(m.member_id, m.group_instance_id, m.topics) for m in state.members] == [(name, name, (name,))]
    assert leave_group(connection, group, name)


# ── static members ──


def test_a_static_member_that_comes_back_takes_over_what_it_had(group: Roster) -> None:
    """Nothing moves, and the one before is fenced from the new generation on."""
    first, second, third, fourth = group.partitions
    group.join("a", "i")
    group.join("b")
    assert group.assign({first: "a", second: "a", third: "b"})
    assert group.assign({first: "a", second: "b", third: "a", fourth: "b"})
    joined = group.join("a2", "i")
    assert joined.member_number > group.numbers["b"]
    assert joined.generation == 5
    assert not group.state.stale
    assert group.members == ["b", "a2"]
    assert group.assignment("a2") == Assignment(
        5, stale=False, owned={first: 5, second: 5}, target=frozenset({first, third})
    )
    assert group.assignment("b").owned == {third: 3, fourth: 4}
    with pytest.raises(errors.UnknownMember):
        group.assignment("a")
    with pytest.raises(errors.FencedInstance):
        group.beat("a")
    with pytest.raises(errors.FencedInstance):
        group.commit("a", first, 1, generation=4)
    group.commit("a2", first, 1)


def test_a_static_member_that_comes_back_with_another_subscription_makes_the_assignment_stale(group: Roster) -> None:
    group.join("a", "i")
    assert group.assign({group.partitions[0]: "a"})
    group.join("a2", "i", topics=["other"])
    assert group.state.stale
    assert group.owners == {group.partitions[0]: "a2"}


def test_a_stale_assignment_stays_stale_when_a_static_member_comes_back(group: Roster) -> None:
    group.join("a", "i")
    group.join("b")
    group.join("a2", "i")
    assert group.state.stale


def test_a_static_member_comes_back_as_itself_also_when_its_session_is_over(group: Roster, clock: Clock) -> None:
    """It was not removed yet: it keeps what it had."""
    group.join("a", "i")
    assert group.assign({group.partitions[0]: "a"})
    clock("1 hour")
    group.join("a2", "i")
    assert group.owners == {group.partitions[0]: "a2"}
    assert not group.state.stale
    assert not group.state.members[0].session_over


@pytest.mark.parametrize(("before", "after"), [(None, "i"), (None, "k"), ("i", None), ("i", "j")])
def test_a_member_keeps_its_instance_id(group: Roster, before: str | None, after: str | None) -> None:
    group.join("other", "k")
    group.join("a", before)
    rows = group.rows()
    with refuses(errors.InvalidRequest, member_id="a"):
        group.join("a", after, topics=["other"])
    assert group.rows() == rows


def test_two_static_members_are_two_members(group: Roster) -> None:
    group.join("a", "i")
    group.join("b", "j")
    assert group.members == ["a", "b"]


# ── joining removes whose session is over ──


@pytest.mark.parametrize(("instance", "dead"), [(None, None), ("i", None), ("i", "j")])
def test_a_join_removes_others_whose_session_is_over(
    group: Roster, clock: Clock, instance: str | None, dead: str | None
) -> None:
    first, second, third, _ = group.partitions
    group.join("dead", dead, session_timeout_ms=10_000)
    group.join("alive")
    assert group.assign({first: "dead", second: "dead", third: "dead"})
    assert group.assign({first: "dead", second: "alive"})
    clock("11 seconds")
    joined = group.join("new", instance)
    assert group.members == ["alive", "new"]
    assert group.owners == {second: "alive"}, "what another one shall own is its own, the rest is free"
    assert group.assignment("alive").owned == {second: joined.generation - 1}
    assert group.state.stale


def test_who_joins_again_is_no_other_though_its_session_is_over(group: Roster, clock: Clock) -> None:
    """It was not removed yet: it keeps what it had."""
    joined = group.join("a")
    assert group.assign({group.partitions[0]: "a"})
    clock("1 hour")
    assert group.join("a") == replace(joined, generation=2)
    assert group.assignment("a").owned == {group.partitions[0]: 2}


def test_a_join_that_is_refused_is_not_taken_into_the_group_of_the_dead(group: Roster, clock: Clock) -> None:
    """The dead have no say in the strategy."""
    group.join("dead", session_timeout_ms=10_000, strategy="range")
    clock("11 seconds")
    group.join("new", strategy="roundrobin")
    assert (group.members, group.state.strategy) == (["new"], "roundrobin")


# ── assigning ──


def test_what_nobody_owns_belongs_to_its_target_at_once(group: Roster) -> None:
    first, second, third, _ = group.partitions
    group.join("a")
    group.join("b")
    assert group.state.stale
    assert group.assign({first: "a", second: "b"})
    assert not group.state.stale
    assert group.assignment("a") == Assignment(3, stale=False, owned={first: 3}, target=frozenset({first}))
    assert group.assign({first: "a", second: "b", third: "b"})
    assert group.assignment("a") == Assignment(4, stale=False, owned={first: 3}, target=frozenset({first}))
    assert group.assignment("b") == Assignment(
        4, stale=False, owned={second: 3, third: 4}, target=frozenset({second, third})
    )


def test_a_partition_stays_with_its_owner_until_that_releases_it(group: Roster) -> None:
    first, second, _, _ = group.partitions
    group.join("a")
    assert group.assign({first: "a", second: "a"})
    group.join("b")
    assert group.assign({first: "a", second: "b"})
    assert (group.owners, group.targets) == ({first: "a", second: "a"}, {first: "a", second: "b"})
    group.commit("a", second, 7)
    with pytest.raises(errors.NotAssigned):
        group.commit("b", second, 8)
    assert group.release("a", second) == 5
    assert group.assignment("b") == Assignment(5, stale=False, owned={second: 5}, target=frozenset({second}))
    assert group.assignment("a") == Assignment(5, stale=False, owned={first: 2}, target=frozenset({first}))
    with pytest.raises(errors.NotAssigned):
        group.commit("a", second, 8, generation=4)
    group.commit("b", second, 9)
    assert group.committed(second) == 9


def test_what_is_not_named_is_nobodys_and_goes_when_it_is_released(group: Roster) -> None:
    first, second, _, _ = group.partitions
    group.join("a")
    assert group.assign({first: "a", second: "a"})
    assert group.assign({first: "a"})
    assert (group.owners, group.targets) == ({first: "a", second: "a"}, {first: "a"})
    group.release("a", second)
    assert group.owners == {first: "a"}
    assert count(group.connection, "group_assignment", "group_id = %s", group.state.group_id) == 1
    assert group.assign({})
    group.release("a", first)
    assert group.owners == {}


def test_nothing_is_given_to_who_is_no_member(group: Roster) -> None:
    first, second, third, _ = group.partitions
    group.join("a")
    group.join("gone")
    assert group.assign({first: "a", third: "gone"})
    group.leave("gone")
    other = Roster(group.connection)
    other.join("stranger")
    group.numbers["stranger"] = other.numbers["stranger"]
    assert group.assign({first: "gone", second: "gone", third: "stranger"})
    assert (group.owners, group.targets) == ({first: "a"}, {})
    assert group.assign(dict.fromkeys((first, second, third), "a"))
    assert group.owners == dict.fromkeys((first, second, third), "a"), "all of it was free"


def test_partitions_that_do_not_exist_have_no_owner(group: Roster) -> None:
    gone = new_partition(group.connection)
    other = Roster(group.connection)
    for each in (group, other):
        each.join("a")
        assert each.assign({group.partitions[0]: "a", gone: "a"})
    delete_topic_of(group.connection, gone)
    assert group.state.stale
    before = other.rows()
    assert group.assign({group.partitions[0]: "a", gone: "a", 2**31 - 1: "a"})
    assert group.owners == {group.partitions[0]: "a"}
    assert not group.state.stale
    assert other.rows() == before, "each group by itself"


def _assign_the_same(group: Roster) -> None:
    assert group.assign(group.targets)


CHANGES: dict[str, Callable[[Roster], object]] = {
    "join": lambda group: group.join("new"),
    "another subscription": lambda group: group.join("a", topics=["other"]),
    "a static member comes back": lambda group: group.join("s2", "i"),
    "release": lambda group: group.release("a", group.partitions[0]),
    "leave": lambda group: group.leave("b"),
    "assign": _assign_the_same,
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_assignment_of_an_older_generation_is_refused(group: Roster, change: str) -> None:
    """Compare and set: who loses the race looks again."""
    group.join("a")
    group.join("b")
    group.join("s", "i")
    assert group.assign(dict(zip(group.partitions, ("a", "b", "s", "a"), strict=True)))
    seen = group.state
    CHANGES[change](group)
    rows = group.rows()
    assert group.generation > seen.generation
    assert not group.assign(dict.fromkeys(group.partitions, "a"), generation=seen.generation)
    assert not group.assign(dict.fromkeys(group.partitions, "a"), generation=group.generation + 1)
    assert group.rows() == rows
    assert group.assign(dict.fromkeys(group.partitions, "a"))


def test_an_unknown_group_is_not_assigned_to(connection: Connection) -> None:
    name = unique("group")
    assert not assign_partitions(connection, name, generation=0, topics_version=0, targets={})
    assert describe_members(connection, name) is None


def test_new_and_deleted_topics_make_every_assignment_stale(group: Roster) -> None:
    """An assignment that was made of older topics is written, and stale at once."""
    group.join("a")
    seen = group.state
    assert group.assign({})
    assert not group.assignment("a").stale
    topic = unique("later")
    create_topic(group.connection, topic, 1, {})
    assert (group.state.stale, group.assignment("a").stale, group.beat("a").stale) == (True, True, True)
    assert group.state.topics_version == seen.topics_version + 1
    assert assign_partitions(
        group.connection, group.name, generation=group.generation, topics_version=seen.topics_version, targets={}
    )
    assert group.state.stale
    assert group.assign({})
    assert (group.state.stale, group.assignment("a").stale, group.beat("a").stale) == (False, False, False)


def test_a_topic_that_could_not_be_created_is_no_change(group: Roster) -> None:
    group.join("a")
    topic = unique("once")
    create_topic(group.connection, topic, 1, {})
    assert group.assign({})
    with pytest.raises(errors.TopicExists):
        create_topic(group.connection, topic, 1, {})
    assert not group.state.stale


def test_the_key_of_the_table_is_that_a_partition_has_one_owner(group: Roster) -> None:
    group.join("a")
    group.join("b")
    assert group.assign({group.partitions[0]: "a"})
    with pytest.raises(psycopg.errors.UniqueViolation):
        group.connection.execute(
            "insert into msgtx.group_assignment (group_id, partition_id, owner, owner_since) values (%s, %s, %s, 3)",
            [group.state.group_id, group.partitions[0], group.numbers["b"]],
        )


# ── releasing ──


def test_a_member_releases_only_what_is_its_own(group: Roster) -> None:
    first, second, third, fourth = group.partitions
    group.join("a")
    group.join("b")
    assert group.assign({first: "a", second: "b"})
    assert group.assign({first: "b", second: "a", third: "a"})
    before = group.rows()
    assert group.release("a", second, fourth) == group.generation == 4
    assert group.rows() == before
    assert group.release("a", *group.partitions) == 5
    assert group.owners == {first: "b", second: "b", third: "a"}
    assert group.assignment("a").owned == {third: 5}, "what it shall own is given back to it, since then"


def test_a_release_that_is_repeated_releases_nothing_more(group: Roster) -> None:
    """STYLE 11; a member that shall own it again gets it back, since a new generation."""
    first, _, _, _ = group.partitions
    group.join("a")
    group.join("b")
    assert group.assign({first: "a"})
    assert group.assign({first: "b"})
    generation = group.release("a", first)
    assert group.release("a", first) == generation
    assert group.assign({first: "a"})
    assert group.release("b", first) == generation + 2
    assert group.release("a", first) == generation + 3
    assert group.assignment("a").owned == {first: generation + 3}


def test_a_release_of_who_is_no_member_or_of_no_group_is_harmless(group: Roster) -> None:
    group.join("a")
    assert group.assign({group.partitions[0]: "a"})
    group.leave("a")
    assert group.release("a", group.partitions[0]) == group.generation == 3
    with refuses(errors.GroupNotFound, group="nowhere"):
        release_partitions(group.connection, "nowhere", 1, group.partitions)


# ── leaving ──


def test_who_leaves_leaves_its_partitions_to_those_that_shall_own_them(group: Roster) -> None:
    first, second, third, _ = group.partitions
    for name in ("a", "b", "c"):
        group.join(name)
    assert group.assign({first: "a", second: "a", third: "b"})
    assert group.assign({first: "b", second: "a", third: "a"})
    assert group.leave("a")
    assert group.members == ["b", "c"]
    assert group.assignment("b") == Assignment(6, stale=True, owned={first: 6, third: 4}, target=frozenset({first}))
    assert group.targets == {first: "b"}, "what it should have owned is nobody's"
    assert count(group.connection, "group_assignment", "group_id = %s", group.state.group_id) == 2
    with refuses(errors.UnknownMember, group=group.name):
        group.assignment("a")


def test_leaving_twice_or_from_nowhere_changes_nothing(group: Roster) -> None:
    group.join("a")
    assert group.leave("a")
    before = group.rows()
    assert not group.leave("a")
    assert not group.leave("stranger")
    assert group.rows() == before
    assert not leave_group(group.connection, unique("group"), "a")


def test_a_group_keeps_its_generation_when_its_last_member_goes(group: Roster) -> None:
    """P16: an old member stays fenced, also once the group has begun anew."""
    first = group.partitions[0]
    group.join("a")
    assert group.assign({first: "a"})
    group.leave("a")
    state = group.state
    assert (state.generation, state.members, state.strategy) == (3, [], "cooperative-sticky")
    with pytest.raises(errors.UnknownMember):
        group.commit("a", first, 1, generation=2)
    old = group.numbers["a"]
    joined = group.join("a")
    assert (joined.member_number > old, joined.generation) == (True, 4)
    assert group.assign({first: "a"})
    with pytest.raises(errors.IllegalGeneration):
        group.commit("a", first, 1, generation=2)
    group.commit("a", first, 1)


def test_an_empty_group_is_described_without_members(connection: Connection) -> None:
    name = unique("group")
    commit_offsets(connection, {GroupMetadata(name): {new_partition(connection): OffsetAndMetadata(1)}})
    state = describe_members(connection, name)
    assert state is not None
    assert (state.generation, state.strategy, state.members) == (0, None, [])


# ── telling ──

SILENT: dict[str, Callable[[Roster], object]] = {
    "the same join again": lambda group: group.join("b"),
    "heartbeat": lambda group: group.beat("a"),
    "a release of nothing": lambda group: group.release("b", group.partitions[0]),
    "a leave of nobody": lambda group: group.leave("nobody"),
    "an assignment too late": lambda group: group.assign({}, generation=0),
    "looking": lambda group: group.assignment("a"),
}


@pytest.mark.parametrize("what", [*CHANGES, *SILENT])
def test_members_are_told_of_every_change_and_of_nothing_else(group: Roster, what: str) -> None:
    group.join("a")
    group.join("b")
    group.join("s", "i")
    assert group.assign({group.partitions[0]: "a"})
    before = group.generation
    snapshot, _ = woken_since(group.connection, None)
    (CHANGES | SILENT)[what](group)
    _, told = woken_since(group.connection, snapshot)
    assert told == (f"g{group.state.group_id}" if what in CHANGES else None)
    assert group.generation == before + (what in CHANGES)


# ── everything together ──


def commits(group: Roster, member_id: str, partition: int, generation: int) -> str:
    try:
        group.commit(member_id, partition, 1, generation=generation)
    except errors.AbortableError as error:
        return type(error).__name__
    return "committed"


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_only_one_member_commits_for_a_partition(connection: Connection, clock: Clock, seed: int) -> None:
    """I11, P15, P31: every member commits with what it learned last; only the owner's commits are taken."""
    random_ = random.Random(seed)
    group = Roster(connection, 3)
    told: dict[str, Assignment] = {}
    ids = (f"{name}{life}" for life in range(100) for name in "abc")
    happened: set[str] = set()
    group.join(next(ids))
    for _ in range(60):
        members = group.members
        who = random_.choice(members) if members else None
        match random_.choice(["join", "leave", "assign", "assign", "release", "release", "learn", "learn", "reap"]):
            case "join":
                name = next(ids)
                group.join(name, random_.choice([None, None, "i", "j"]))
            case "leave" if who and len(members) > 1:
                group.leave(who)
            case "assign" if who:
                group.assign({p: random_.choice(members) for p in group.partitions if random_.random() < 0.9})
            case "release" if who:
                owned = group.assignment(who).owned
                group.release(who, *[p for p in owned if group.targets.get(p) != who])
            case "learn" if who:
                told[who] = group.assignment(who)
            case "reap" if who and len(members) > 1:
                clock("1 hour")
                group.beat(who)  # all others are dead
                clock(None)
                group.beat(who)
        state = group.state
        owned = [partition for member in state.members for partition in member.owned]
        assert len(owned) == len(set(owned)), "a partition has two owners"
        for name, known in told.items():
            for partition in group.partitions:
                owns = group.owners.get(partition) == name and group.assignment(name).owned[partition] <= known.generation
                answer = commits(group, name, partition, known.generation)
                happened.add(answer)
                assert (answer == "committed") == owns, (name, partition, answer)
    assert happened >= {"committed", "UnknownMember", "NotAssigned", "IllegalGeneration"}


# ── what others have to read ──


@pytest.mark.parametrize("timeout_ms", [99, 1_800_001, 2**31 - 1])
def test_a_session_lasts_no_longer_and_no_shorter_than_the_installation_allows(
    connection: Connection, timeout_ms: int
) -> None:
    """A member that says nothing keeps its partitions for as long."""
    name = unique("group")
    with refuses(errors.InvalidSessionTimeout, group=name):
        join(connection, name, "a", session_timeout_ms=timeout_ms)
    assert describe_members(connection, name) is None
    for allowed in (100, 1_800_000):
        join(connection, name, "a", session_timeout_ms=allowed)


def test_a_group_has_no_more_members_than_the_installation_allows(connection: Connection, group: Roster) -> None:
    with connection.transaction(force_rollback=True):
        connection.execute("update msgtx.setting set value = 2 where name = 'group_max_members'")
        group.join("a")
        group.join("b", "static")
        before = group.rows()
        with refuses(errors.GroupMaxSizeReached, group=group.name) as raised:
            group.join("c")
        assert failure_of(raised.value).exit_code == 1  # other arguments would not help
        assert group.rows() == before
        group.join("a", topics=["another"])
        group.join("b again", "static")
        assert group.members == ["a", "b again"]


def test_a_pattern_is_kept_as_it_is_and_read_by_its_own_member_alone(group: Roster) -> None:
    """One that cannot be read harms no other."""
    group.join("a", topics=["x"], pattern="(")
    (member,) = group.state.members
    assert (member.topics, member.pattern) == (("x",), "(")
