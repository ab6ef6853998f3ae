"""Consumer offsets: which row counts (internals: groups#committing-offsets)."""

import re
from collections.abc import Callable

import pytest

from msgtx import errors
from msgtx.database.calls import call
from msgtx.generated import calls
from msgtx.store.fetch.fetch import Position
from msgtx.store.groups.groups import (
    CommittedOffset,
    OffsetColumns,
    OffsetRows,
    columns_of,
    commit_offsets,
    committed_offsets,
    offset_rows,
)
from msgtx.store.groups.members import release_partitions
from msgtx.types import GroupMetadata, OffsetAndMetadata
from tests.databases import Connection
from tests.store.conftest import Blocked
from tests.store.roster import Roster
from tests.store.sharing import ShareGroup
from tests.store.steps import (
    Writer,
    count,
    decide_by_hand,
    delete_topic_of,
    look,
    new_partition,
    new_topic,
    offsets_of,
    plain,
    seal,
    unique,
)


def at(offset: int, metadata: str = "", *, pending: bool = False) -> CommittedOffset:
    return CommittedOffset(OffsetAndMetadata(offset, metadata), pending)


def commit(connection: Connection, group: str, partition: int, offset: int, metadata: str = "") -> None:
    commit_offsets(connection, {GroupMetadata(group): {partition: OffsetAndMetadata(offset, metadata)}})


def test_the_newest_commit_wins_and_metadata_is_kept(connection: Connection, partition: int, group: str) -> None:
    """P17."""
    commit(connection, group, partition, 5, "five")
    commit(connection, group, partition, 3, "three")
    assert committed_offsets(connection, group, None) == {partition: at(3, "three")}
    assert count(connection, "group_offset", "partition_id = %s", partition) == 2


def test_an_unknown_group_has_no_offsets(connection: Connection) -> None:
    assert committed_offsets(connection, unique("group"), None) == {}
    assert committed_offsets(connection, unique("group"), [new_partition(connection)]) == {}


def test_only_the_partitions_that_are_asked_for_are_answered(connection: Connection, group: str) -> None:
    first, second, third = new_topic(connection, 3)
    commit(connection, group, first, 1)
    commit(connection, group, second, 2)
    assert committed_offsets(connection, group, [second, third]) == {second: at(2)}
    assert committed_offsets(connection, group, []) == {}


def test_groups_do_not_see_each_other(connection: Connection) -> None:
    partition, one, other = new_partition(connection), unique("group"), unique("group")
    commit(connection, one, partition, 1)
    commit(connection, other, partition, 2)
    assert committed_offsets(connection, one, None) == {partition: at(1)}


@pytest.mark.parametrize(
    ("group", "offset", "refusal"),
    [
        (GroupMetadata("g", member_id="m", generation=1), OffsetAndMetadata(1), errors.UnknownMember),
        (GroupMetadata("g"), OffsetAndMetadata(1, "x" * 4_097), errors.OffsetMetadataTooLarge),
        (GroupMetadata("g"), OffsetAndMetadata(-1), errors.InvalidRequest),
        (GroupMetadata(""), OffsetAndMetadata(1), errors.InvalidRequest),
    ],
)
def test_a_commit_that_cannot_be_stores_nothing(
    connection: Connection, group: GroupMetadata, offset: OffsetAndMetadata, refusal: type[errors.MsgtxError]
) -> None:
    """I11, I16: also not the good one beside it."""
    good, bad = new_topic(connection, 2)
    with pytest.raises(refusal):
        commit_offsets(connection, {group: {good: OffsetAndMetadata(1), bad: offset}})
    assert count(connection, "group_offset", "partition_id in (%s, %s)", good, bad) == 0


def test_a_commit_for_a_partition_that_is_gone_is_refused(connection: Connection) -> None:
    with pytest.raises(errors.UnknownTopicOrPartition):
        commit(connection, unique("group"), 2**31 - 1, 1)


def test_an_empty_commit_asks_nothing_of_the_database(connection: Connection) -> None:
    commit_offsets(connection, {GroupMetadata(unique("group")): {}})
    commit_offsets(connection, {})
    assert OffsetColumns().arguments() == ((), (), (), (), (), (), (), ())


def test_a_deleted_topic_takes_its_offsets_along(connection: Connection, partition: int, group: str) -> None:
    commit(connection, group, partition, 1)
    delete_topic_of(connection, partition)
    assert committed_offsets(connection, group, None) == {}


def test_a_sealed_transactions_offset_is_pending_and_the_older_one_counts(connection: Connection) -> None:
    (partition, other), group, writer = new_topic(connection, 2), unique("group"), Writer(connection)
    for each in (partition, other):
        commit(connection, group, each, 1)
    seal(connection, writer.name, "external", offset=(group, partition, 5))
    assert committed_offsets(connection, group, None) == {partition: at(1, pending=True), other: at(1)}
    assert committed_offsets(connection, group, [partition]) == {partition: at(1, pending=True)}


def test_a_pending_offset_alone_is_told_as_such(connection: Connection, partition: int, group: str, writer: Writer) -> None:
    seal(connection, writer.name, "external", offset=(group, partition, 5))
    assert committed_offsets(connection, group, None) == {partition: CommittedOffset(None, pending=True)}


@pytest.mark.parametrize(("outcome", "expected"), [("COMMIT", 5), ("ABORT", 1)])
def test_a_pending_offset_counts_or_not_once_it_is_decided(connection: Connection, outcome: str, expected: int) -> None:
    """P43: the older one is there again after the abort."""
    partition, group, writer = new_partition(connection), unique("group"), Writer(connection)
    commit(connection, group, partition, 1)
    seal(connection, writer.name, "external", offset=(group, partition, 5))
    decide_by_hand(connection, writer.name, outcome)
    assert committed_offsets(connection, group, None) == {partition: at(expected)}


def test_a_plain_commit_after_the_seal_is_the_newest_and_nothing_is_pending(connection: Connection) -> None:
    partition, group, writer = new_partition(connection), unique("group"), Writer(connection)
    seal(connection, writer.name, "external", offset=(group, partition, 5))
    commit(connection, group, partition, 9)
    assert committed_offsets(connection, group, None) == {partition: at(9)}


def test_an_offset_whose_commit_was_purged_from_history_still_counts(connection: Connection) -> None:
    """A row counts unless its transaction is decided ABORT, or sealed and undecided (P29, for offsets)."""
    partition, group, writer = new_partition(connection), unique("group"), Writer(connection)
    writer.commit(offsets_of((group, partition, 7)))
    connection.execute("delete from msgtx.transaction_decision where producer_id = %s", [writer.id.producer_id])
    assert committed_offsets(connection, group, None) == {partition: at(7)}


def test_plain_and_transactional_commits_are_ordered_by_their_time(connection: Connection) -> None:
    partition, group, writer = new_partition(connection), unique("group"), Writer(connection)
    writer.commit(offsets_of((group, partition, 7)))
    commit(connection, group, partition, 8)
    assert committed_offsets(connection, group, None) == {partition: at(8)}
    writer.commit(offsets_of((group, partition, 9)))
    assert committed_offsets(connection, group, None) == {partition: at(9)}


@pytest.mark.parametrize("name", ["Ünï-çødé 🚀", "a'b\"c;--", "x" * 500])
def test_group_names_with_odd_characters_are_ordinary(connection: Connection, partition: int, name: str) -> None:
    commit(connection, name, partition, 1, "Ünï 🚀\n\t'")
    assert committed_offsets(connection, name, [partition]) == {partition: at(1, "Ünï 🚀\n\t'")}


def test_a_nul_in_a_name_is_a_bad_request(connection: Connection, partition: int) -> None:
    """I16: PostgreSQL's text has no NUL; it is refused with a typed error."""
    with pytest.raises(errors.InvalidRequest):
        commit(connection, "a\0b", partition, 1)
    with pytest.raises(errors.InvalidRequest):
        commit(connection, "group", partition, 1, "a\0b")


# ── what was read is still there (P38) ──


def identity_of(connection: Connection, partition: int, position: int) -> str | None:
    """The row before a position, as a reader gets to know it."""
    return Position(position, look(connection, partition, position).token).identity


def read_until(connection: Connection, group: str, partition: int, position: int) -> GroupMetadata:
    return GroupMetadata(group, read_identities={partition: identity_of(connection, partition, position)})


Commit = Callable[[Connection, GroupMetadata, int, int], None]


def plainly(connection: Connection, group: GroupMetadata, partition: int, offset: int) -> None:
    commit_offsets(connection, {group: {partition: OffsetAndMetadata(offset)}})


def with_a_decision(connection: Connection, group: GroupMetadata, partition: int, offset: int) -> None:
    decided = Writer(connection).decide("COMMIT", offsets=offsets_of((group, partition, offset)))
    if decided.error is not None:
        raise decided.error


def in_one_call(connection: Connection, group: GroupMetadata, partition: int, offset: int) -> None:
    writer = Writer(connection)
    (answer,) = writer.whole(writer.row(new_partition(connection), b"value"), offsets=offsets_of((group, partition, offset)))
    if answer.error is not None:
        raise answer.error


@pytest.mark.parametrize("commit_by", [plainly, with_a_decision, in_one_call])
@pytest.mark.parametrize("values", [[], [b"other", b"more"]], ids=["shorter", "overwritten"])
def test_a_position_behind_a_row_that_was_taken_back_is_refused(
    connection: Connection, partition: int, group: str, commit_by: Commit, values: list[bytes]
) -> None:
    """P38: a reader that goes on from it would skip what gets the row's offsets. Nothing is stored."""
    plain(connection, partition, b"kept")
    plain(connection, partition, b"lost", b"lost, too")
    read = read_until(connection, group, partition, 3)
    connection.execute("delete from msgtx.record_batch where partition_id = %s and base_offset = 1", [partition])
    if values:
        plain(connection, partition, *values)
    with pytest.raises(errors.LogTruncated, match="-0: what was read at offset 1 is no longer in the log"):
        commit_by(connection, read, partition, 3)
    assert committed_offsets(connection, group, None) == {}
    commit_by(connection, read_until(connection, group, partition, 1), partition, 1)
    assert committed_offsets(connection, group, None) == {partition: at(1)}


@pytest.mark.parametrize("commit_by", [plainly, with_a_decision, in_one_call])
@pytest.mark.parametrize("log_start", [0, 2, 3])
def test_a_position_behind_rows_that_are_there_or_were_removed_is_stored(
    connection: Connection, partition: int, group: str, commit_by: Commit, log_start: int
) -> None:
    """P38: what retention removes was not taken back; also a row of which only the end is left."""
    plain(connection, partition, b"first")
    plain(connection, partition, b"second", b"third")
    read = read_until(connection, group, partition, 3)
    connection.execute("update msgtx.partition set log_start_offset = %s where partition_id = %s", [log_start, partition])
    if log_start:
        connection.execute(
            "delete from msgtx.record_batch where partition_id = %s and last_offset < %s", [partition, log_start]
        )
    commit_by(connection, read, partition, 3)
    assert committed_offsets(connection, group, None) == {partition: at(3)}


# ── whose offsets (I11, P15) ──

# Who commits for which partition at which generation, and what comes of it. In the group "a" has owned 0 since generation 4,
# "b" owns 1 since 4 and 3 since 6, "s" (instance i, has replaced "old") owns 2 since 5; generation 6.
FENCING = [
    pytest.param("a", 0, 4, None, None, id="since it got it"),
    pytest.param("a", 0, 5, None, None, id="between"),
    pytest.param("a", 0, 6, None, None, id="today"),
    pytest.param("a", 0, 3, None, errors.IllegalGeneration, id="before it got it"),
    pytest.param("a", 0, -1, None, errors.IllegalGeneration, id="no generation"),
    pytest.param("a", 0, 7, None, errors.IllegalGeneration, id="newer than the group"),
    pytest.param("b", 3, 5, None, errors.IllegalGeneration, id="before it was released to it"),
    pytest.param("b", 3, 6, None, None, id="released to it"),
    pytest.param("b", 0, 6, None, errors.NotAssigned, id="another one's"),
    pytest.param("a", 3, 6, None, errors.NotAssigned, id="released by it"),
    pytest.param("a", 3, 4, None, errors.NotAssigned, id="released by it, of then"),
    pytest.param("a", 4, 6, None, errors.NotAssigned, id="nobody's"),
    pytest.param("a", 4, 7, None, errors.IllegalGeneration, id="nobody's, newer than the group"),
    pytest.param("s", 2, 5, "i", None, id="static"),
    pytest.param("s", 2, 6, None, None, id="static, without its instance"),
    pytest.param("s", 2, 4, "i", errors.IllegalGeneration, id="static, before it came back"),
    pytest.param("old", 2, 6, "i", errors.FencedInstance, id="replaced"),
    pytest.param("old", 0, 99, "i", errors.FencedInstance, id="replaced, and wrong in all else"),
    pytest.param("old", 2, 6, None, errors.UnknownMember, id="replaced, without its instance"),
    pytest.param("stranger", 2, 6, "j", errors.UnknownMember, id="an instance that nobody has"),
    pytest.param("stranger", 4, 99, None, errors.UnknownMember, id="a stranger, newer than the group"),
    pytest.param(None, 4, -1, None, errors.UnknownMember, id="no member"),
]


@pytest.fixture
def roster(connection: Connection) -> Roster:
    made = Roster(connection, 5)
    for name, instance in (("a", None), ("b", None), ("old", "i")):
        made.join(name, instance)
    first, second, third, fourth, _ = made.partitions
    assert made.assign({first: "a", second: "b", third: "old", fourth: "a"})
    made.join("s", "i")
    with connection.transaction():  # the target of the release, without another generation
        connection.execute(
            "update msgtx.group_assignment set target = %s where partition_id = %s", [made.numbers["b"], fourth]
        )
    assert made.release("a", fourth) == made.generation == 6
    return made


@pytest.mark.parametrize("commit_by", [plainly, with_a_decision, in_one_call])
@pytest.mark.parametrize(("member", "partition", "generation", "instance", "refusal"), FENCING)
def test_a_member_commits_for_what_it_owns_since_it_got_it(
    connection: Connection,
    roster: Roster,
    commit_by: Commit,
    member: str | None,
    partition: int,
    generation: int,
    instance: str | None,
    refusal: type[errors.MsgtxError] | None,
) -> None:
    """I11: also in a transaction (P15). What is refused stores nothing."""
    at_partition = roster.partitions[partition]
    who = GroupMetadata(roster.name, member, generation, instance)
    if refusal is None:
        commit_by(connection, who, at_partition, 7)
        assert committed_offsets(connection, roster.name, None) == {at_partition: at(7)}
    else:
        with pytest.raises(refusal, match=rf"group {roster.name}\b.*-{partition}\b") as raised:
            commit_by(connection, who, at_partition, 7)
        assert type(raised.value) is refusal
        assert raised.value.requires_abort
        for said in (member, instance if refusal is errors.FencedInstance else None):
            assert said is None or said in str(raised.value)
        if refusal is errors.IllegalGeneration:
            assert re.search(rf"generation {generation}\b", str(raised.value))
            assert ("is at generation 6" if generation > 6 else "since generation") in str(raised.value)
        assert committed_offsets(connection, roster.name, None) == {}


# One offset each that is refused for this reason; the ones further up are answered first.
RANKS: dict[str, Callable[[Roster], tuple[GroupMetadata, int, OffsetAndMetadata]]] = {
    "UnknownTopicOrPartition": lambda group: (group.metadata("a"), 2**31 - 1, OffsetAndMetadata(1)),
    "FencedInstance": lambda group: (group.metadata("old"), group.partitions[0], OffsetAndMetadata(1)),
    "UnknownMember": lambda group: (group.metadata("stranger"), group.partitions[1], OffsetAndMetadata(1)),
    "IllegalGeneration": lambda group: (group.metadata("b", 99), group.partitions[1], OffsetAndMetadata(1)),
    "NotAssigned": lambda group: (group.metadata("b"), group.partitions[4], OffsetAndMetadata(1)),
    "OffsetMetadataTooLarge": lambda group: (group.metadata("b"), group.partitions[3], OffsetAndMetadata(1, "x" * 4097)),
    "LogTruncated": lambda group: (
        GroupMetadata(group.name, "s", 6, "i", {group.partitions[2]: "5:1:0:0:0"}), group.partitions[2], OffsetAndMetadata(6)
    ),
    "InvalidRequest": lambda group: (group.metadata("a"), group.partitions[0], OffsetAndMetadata(-1)),
}  # fmt: skip


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("first", range(len(RANKS)))
def test_of_several_refusals_the_first_of_their_order_is_told(
    connection: Connection, roster: Roster, first: int, turned: bool
) -> None:
    """Wherever it stands among the offsets."""
    rows: OffsetRows = {}
    bad = [RANKS[name](roster) for name in list(RANKS)[first:]]
    for number, (metadata, partition, offset) in enumerate(reversed(bad) if turned else bad):
        (rows[roster.name, number],) = offset_rows(metadata, {partition: offset}).values()
    ((error, _),) = call(connection, calls.COMMIT_OFFSETS, *columns_of(rows).arguments())
    assert error == list(RANKS)[first]


def test_offsets_of_several_groups_are_checked_each_by_its_own(connection: Connection, roster: Roster) -> None:
    other = Roster(connection, 1)
    other.join("a")
    assert other.assign({roster.partitions[0]: "a"})
    at_one = {roster.partitions[0]: OffsetAndMetadata(1)}
    commit_offsets(connection, {roster.metadata("a"): at_one, other.metadata("a"): at_one, GroupMetadata("free"): at_one})
    with pytest.raises(errors.UnknownMember, match=f"group {other.name} has members, which alone commit its offsets"):
        commit_offsets(connection, {roster.metadata("a"): at_one, GroupMetadata(other.name): at_one})


def test_without_a_member_a_commit_is_of_no_generation(connection: Connection, partition: int, group: str) -> None:
    """I11: nobody is fenced by one that a call by hand names while the group has no members."""
    plainly(connection, GroupMetadata(group), partition, 6)
    row = connection.execute(
        "select error from msgtx.commit_offsets(%s, %s, %s, %s, array[null]::text[], array[99])",
        [[group], [partition], [7], [""]],
    ).fetchone()
    assert row == (None,)
    assert committed_offsets(connection, group, None) == {partition: at(7)}


def test_a_share_group_has_no_offsets_and_other_groups_do(connection: Connection, partition: int, group: str) -> None:
    """I16: also a commit of who was a member while the name was another group's: it joins again, and is told there."""
    share = ShareGroup(connection, partition)
    for member, refusal in ((None, errors.ConfigError), ("stranger", errors.UnknownMember)):
        with pytest.raises(refusal, match=f"{share.name} "):
            plainly(connection, GroupMetadata(share.name, member, 1), partition, 7)
    plainly(connection, GroupMetadata(group), partition, 7)
    assert committed_offsets(connection, group, None) == {partition: at(7)}
    assert committed_offsets(connection, share.name, None) == {}


def test_a_client_of_before_says_no_instance_ids(connection: Connection, roster: Roster) -> None:
    """The argument is younger than the function."""
    row = connection.execute(
        "select error from msgtx.commit_offsets(%s, %s, %s, %s, %s, %s)",
        [[roster.name], [roster.partitions[2]], [1], [""], ["s"], [6]],
    ).fetchone()
    assert row == (None,)


@pytest.mark.parametrize("commit_by", [with_a_decision, in_one_call])
def test_a_transaction_of_a_member_that_lost_its_partition_decides_nothing(
    connection: Connection, roster: Roster, commit_by: Commit
) -> None:
    """P15: the refusal is abortable; outputs and offsets are both absent."""
    before = count(connection, "transaction_decision")
    with pytest.raises(errors.NotAssigned):
        commit_by(connection, roster.metadata("a"), roster.partitions[3], 7)
    assert count(connection, "transaction_decision") == before


def test_a_commit_that_waits_for_a_release_is_refused_behind_it(
    connection: Connection, roster: Roster, blocked: Blocked
) -> None:
    """P31, P39: the check sees what was committed while it waited."""
    stale = roster.metadata("a")
    with connection.transaction():
        release_partitions(connection, roster.name, roster.numbers["a"], roster.partitions)
        waiting = blocked(plainly, stale, roster.partitions[0], 7)
    # It had no other target: its own again, but since a newer generation than it knew.
    with pytest.raises(errors.IllegalGeneration):
        waiting.result(30)
    roster.commit("a", roster.partitions[0], 8)
    assert roster.committed(roster.partitions[0]) == 8


def test_a_release_waits_for_a_commit_that_has_been_checked(
    connection: Connection, roster: Roster, blocked: Blocked
) -> None:
    """P31: what the successor reads is the newest commit of the one before."""
    with connection.transaction():
        plainly(connection, roster.metadata("a"), roster.partitions[0], 7)
        waiting = blocked(release_partitions, roster.name, roster.numbers["a"], [roster.partitions[0]])
    assert waiting.result(30) == 7
    assert roster.committed(roster.partitions[0]) == 7


@pytest.mark.parametrize("name", ["''", "null"])
def test_a_group_without_a_name_is_refused_to_calls_by_hand(connection: Connection, partition: int, name: str) -> None:
    row = connection.execute(
        f"select error from msgtx.commit_offsets(array[{name}]::text[], array[%s], array[1::bigint], array[''],"
        " array[null]::text[], array[null]::int[])".encode(),
        [partition],
    ).fetchone()
    assert row == ("InvalidRequest",)
