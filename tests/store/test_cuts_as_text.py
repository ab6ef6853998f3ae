"""`msgtx.cut`, `msgtx.ranges` and `msgtx.position`: fixed ranges for programs that read with SQL (I14, I15)."""

import pytest

from msgtx import errors
from msgtx.database.calls import query
from msgtx.store.groups.groups import commit_offsets
from msgtx.store.operator.installation import require_incarnation
from msgtx.store.topics.retention import delete_records
from msgtx.types import GroupMetadata, OffsetAndMetadata, Snapshot, TopicPartition
from tests.databases import Clock, Connection
from tests.refusals import refuses
from tests.store.steps import Writer, delete_topic_of, named_topic, plain

SELECT = 'select partition, "offset", value from msgtx.committed_records_now where '
Found = list[tuple[int, int, bytes | None]]


def cut(connection: Connection, *topics: str) -> str:
    ((text,),) = query(connection, "select msgtx.cut(%s)", ", ".join(topics))
    return str(text)


def ranges(connection: Connection, of: str, pieces: int = 1, start: str | None = None) -> list[tuple[int, int, int, str]]:
    """Return partition, start, end and predicate of each range."""
    return query(
        connection,
        "select partition, start_offset, end_offset, predicate from msgtx.ranges(%s, %s::int, start => %s)",
        of,
        pieces,
        start,
    )


def records(connection: Connection, of: str, pieces: int = 1, start: str | None = None) -> Found:
    """Return the records of a cut as its predicates select them, range by range."""
    found: Found = []
    for *_, predicate in ranges(connection, of, pieces, start):
        found += sorted(query(connection, SELECT + predicate))
    return found


def test_a_cut_is_the_text_of_a_snapshot(connection: Connection, writer: Writer) -> None:
    """I15: nothing of a transaction that is open somewhere."""
    (name, (one, two)), (other, (three,)) = named_topic(connection, 2), named_topic(connection)
    plain(connection, one, b"a", b"b")
    writer.send(two, b"open")
    writer.send(three, b"open")
    found = Snapshot.parse(cut(connection, name, other))
    assert str(found) == cut(connection, other, name)
    assert found.incarnation == require_incarnation(connection)
    assert dict(found.ends) == {TopicPartition(name, 0): 2, TopicPartition(name, 1): 0, TopicPartition(other, 0): 0}
    assert found.is_of(TopicPartition(name, 1), two)
    assert not found.is_of(TopicPartition(name, 1), one)


def test_a_cut_aborts_what_is_overdue(connection: Connection, clock: Clock, writer: Writer) -> None:
    """I12"""
    name, (one,) = named_topic(connection)
    writer.send(one, b"open")
    plain(connection, one, b"behind")
    assert dict(Snapshot.parse(cut(connection, name)).ends) == {TopicPartition(name, 0): 0}
    clock("1 day")
    assert dict(Snapshot.parse(cut(connection, name)).ends) == {TopicPartition(name, 0): 2}


@pytest.mark.parametrize("pieces", [1, 2, 3, 7, 100])
def test_the_ranges_of_a_cut_hold_each_of_its_records_once(connection: Connection, pieces: int) -> None:
    """Also where a range ends within a row of the log, or an aborted record lies in it."""
    name, (one, two, three) = named_topic(connection, 3, retention_ms=-1)
    for at in range(4):
        plain(connection, one, *[b"%d" % (7 * at + n) for n in range(7)])
    aborted, committed = Writer(connection), Writer(connection)
    aborted.send(two, b"no", b"no")
    aborted.abort()
    committed.send_and_commit(two, b"yes")
    taken = cut(connection, name)
    wanted = [(0, at, b"%d" % at) for at in range(28)] + [(1, 2, b"yes")]
    assert records(connection, taken, pieces) == wanted
    plain(connection, one, b"later")
    plain(connection, three, b"later")
    assert records(connection, taken, pieces) == wanted
    found = ranges(connection, taken, pieces)
    assert all(first < last for _, first, last, _ in found)
    assert len(found) in range(min(pieces, 31), pieces + 2)


def test_ranges_begin_at_an_earlier_cut_or_at_the_log_start(connection: Connection) -> None:
    name, (one, two) = named_topic(connection, 2, retention_ms=-1)
    plain(connection, one, b"a", b"b")
    earlier = cut(connection, name)
    plain(connection, one, b"c")
    plain(connection, two, b"d")
    later = cut(connection, name)
    assert records(connection, later, start=earlier) == [(0, 2, b"c"), (1, 0, b"d")]
    assert records(connection, later, start=later) == []
    delete_records(connection, {one: 1})
    assert records(connection, later) == [(0, 1, b"b"), (0, 2, b"c"), (1, 0, b"d")]


def test_a_range_whose_records_are_gone_is_an_error(connection: Connection) -> None:
    """I14: never fewer records in silence."""
    name, (one,) = named_topic(connection, retention_ms=-1)
    plain(connection, one, b"a", b"b")
    ((*_, predicate),) = ranges(connection, cut(connection, name))
    delete_records(connection, {one: 1})
    with refuses(errors.OffsetOutOfRange, partition_id=one, offset=0, limit=1):
        query(connection, SELECT + predicate)
    delete_topic_of(connection, one)
    with refuses(errors.UnknownTopicOrPartition, partition_id=one):
        query(connection, SELECT + predicate)


def test_a_group_stands_at_its_offsets_or_at_the_log_start(connection: Connection, group: str, writer: Writer) -> None:
    name, (one, two) = named_topic(connection, 2, retention_ms=-1)
    plain(connection, one, b"a", b"b", b"c")
    plain(connection, two, b"d")
    taken = cut(connection, name)

    def position() -> Snapshot:
        ((text,),) = query(connection, "select msgtx.position(%s, %s)", group, taken)
        return Snapshot.parse(text)

    delete_records(connection, {one: 1})
    assert dict(position().ends) == {TopicPartition(name, 0): 1, TopicPartition(name, 1): 0}
    commit_offsets(connection, {GroupMetadata(group): {two: OffsetAndMetadata(1)}})
    assert dict(position().ends) == {TopicPartition(name, 0): 1, TopicPartition(name, 1): 1}
    assert records(connection, taken, start=str(position())) == [(0, 1, b"b"), (0, 2, b"c")]


INCARNATION = "00000000-0000-0000-0000-000000000000"


@pytest.mark.parametrize(
    ("statement", "argument", "kind", "values"),
    [
        ("msgtx.cut(%s)", "nowhere", errors.UnknownTopicOrPartition, {"topic": "nowhere"}),
        ("msgtx.cut(%s)", "", errors.UnknownTopicOrPartition, {"topic": ""}),
        ("msgtx.ranges(%s)", "orders:0=1", errors.InvalidRequest, {"name": "cut"}),
        ("msgtx.ranges(%s)", None, errors.InvalidRequest, {"name": "cut"}),
        ("msgtx.ranges(%s)", f"{INCARNATION} orders:0=1@1", errors.IncarnationChanged, {}),
        ("msgtx.ranges(%s)", "HERE nowhere:0=1", errors.UnknownTopicOrPartition, {"topic": "nowhere", "partition": 0}),
        ("msgtx.ranges('HERE t:0=1@1', start => %s)", "x y", errors.InvalidRequest, {"name": "start"}),
        ("msgtx.ranges('HERE', %s::int)", 0, errors.InvalidRequest, {"name": "pieces", "limit": 10_000}),
        ("msgtx.position('g', %s)", "", errors.InvalidRequest, {"name": "cut"}),
    ],
)
def test_what_is_no_cut_is_refused(
    connection: Connection, statement: str, argument: object, kind: type[Exception], values: dict[str, object]
) -> None:
    """I16"""
    here = require_incarnation(connection)
    given = argument.replace("HERE", here) if isinstance(argument, str) else argument
    with refuses(kind, **values):
        query(connection, f"select * from {statement.replace('HERE', here)}", given)
