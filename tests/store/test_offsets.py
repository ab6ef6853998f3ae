"""Consumer offsets: which row counts (semantics 7)."""

from collections.abc import Callable

import pytest

from msgtx import errors
from msgtx.store.fetch import Position
from msgtx.store.groups import CommittedOffset, OffsetColumns, commit_offsets, committed_offsets
from msgtx.store.topics import delete_topic
from msgtx.types import GroupMetadata, OffsetAndMetadata, TransactionId
from tests.databases import Connection
from tests.store.steps import Writer, count, look, new_partition, new_topic, offsets_of, plain, seal, unique


def at(offset: int, metadata: str = "", *, pending: bool = False) -> CommittedOffset:
    return CommittedOffset(OffsetAndMetadata(offset, metadata), pending)


def commit(connection: Connection, group: str, partition: int, offset: int, metadata: str = "") -> None:
    commit_offsets(connection, {GroupMetadata(group): {partition: OffsetAndMetadata(offset, metadata)}})


def seal_with_offset(connection: Connection, name: TransactionId, group: str, partition: int, offset: int) -> None:
    """Seal a transaction that holds an offset, as its second phase is not there yet: by hand."""
    seal(connection, name, "external", offset=(group, partition, offset))


def decide_by_hand(connection: Connection, name: TransactionId, outcome: str) -> None:
    connection.execute(
        "insert into msgtx.transaction_decision (producer_id, producer_epoch, transaction_number, outcome, decided_at,"
        " decided_by, partitions, first_offsets, last_offsets)"
        " values (%s, %s, %s, %s, msgtx.clock(), 'admin', '{}', '{}', '{}')",
        [*name, outcome],
    )


def test_the_newest_commit_wins_and_metadata_is_kept(connection: Connection) -> None:
    """P17."""
    partition, group = new_partition(connection), unique("group")
    commit(connection, group, partition, 5, "five")
    commit(connection, group, partition, 3, "three")
    assert committed_offsets(connection, group, None) == {partition: at(3, "three")}
    assert count(connection, "group_offset", "partition_id = %s", partition) == 2


def test_an_unknown_group_has_no_offsets(connection: Connection) -> None:
    assert committed_offsets(connection, unique("group"), None) == {}
    assert committed_offsets(connection, unique("group"), [new_partition(connection)]) == {}


def test_only_the_partitions_that_are_asked_for_are_answered(connection: Connection) -> None:
    first, second, third = new_topic(connection, 3)
    group = unique("group")
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


def test_a_deleted_topic_takes_its_offsets_along(connection: Connection) -> None:
    partition, group = new_partition(connection), unique("group")
    commit(connection, group, partition, 1)
    (name,) = connection.execute(
        "select t.name from msgtx.topic t join msgtx.partition p using (topic_id) where p.partition_id = %s",
        [partition],
    ).fetchone()
    delete_topic(connection, name)
    assert committed_offsets(connection, group, None) == {}


def test_a_sealed_transactions_offset_is_pending_and_the_older_one_counts(connection: Connection) -> None:
    partition, group, writer = new_partition(connection), unique("group"), Writer(connection)
    commit(connection, group, partition, 1)
    seal_with_offset(connection, writer.name, group, partition, 5)
    assert committed_offsets(connection, group, None) == {partition: at(1, pending=True)}
    assert committed_offsets(connection, group, [partition]) == {partition: at(1, pending=True)}


def test_a_pending_offset_alone_is_told_as_such(connection: Connection) -> None:
    partition, group, writer = new_partition(connection), unique("group"), Writer(connection)
    seal_with_offset(connection, writer.name, group, partition, 5)
    assert committed_offsets(connection, group, None) == {partition: CommittedOffset(None, pending=True)}


@pytest.mark.parametrize(("outcome", "expected"), [("COMMIT", 5), ("ABORT", 1)])
def test_a_pending_offset_counts_or_not_once_it_is_decided(connection: Connection, outcome: str, expected: int) -> None:
    """P43: the older one is there again after the abort."""
    partition, group, writer = new_partition(connection), unique("group"), Writer(connection)
    commit(connection, group, partition, 1)
    seal_with_offset(connection, writer.name, group, partition, 5)
    decide_by_hand(connection, writer.name, outcome)
    assert committed_offsets(connection, group, None) == {partition: at(expected)}


def test_a_plain_commit_after_the_seal_is_the_newest_and_nothing_is_pending(connection: Connection) -> None:
    partition, group, writer = new_partition(connection), unique("group"), Writer(connection)
    seal_with_offset(connection, writer.name, group, partition, 5)
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
def test_group_names_with_odd_characters_are_ordinary(connection: Connection, name: str) -> None:
    partition = new_partition(connection)
    commit(connection, name, partition, 1, "Ünï 🚀\n\t'")
    assert committed_offsets(connection, name, [partition]) == {partition: at(1, "Ünï 🚀\n\t'")}


def test_a_nul_in_a_name_is_a_bad_request(connection: Connection) -> None:
    """I16: PostgreSQL's text has no NUL; it is refused with a typed error."""
    partition = new_partition(connection)
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
    connection: Connection, commit_by: Commit, values: list[bytes]
) -> None:
    """P38: whoever goes on from it would skip what gets the row's offsets. Nothing is stored."""
    partition, group = new_partition(connection), unique("group")
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
    connection: Connection, commit_by: Commit, log_start: int
) -> None:
    """P38: what retention removes was not taken back; also a row of which only the end is left."""
    partition, group = new_partition(connection), unique("group")
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
