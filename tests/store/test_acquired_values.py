"""What an acquisition leaves out of its answer: who does not read it would hold locks (internals: shares#acquiring)."""

import itertools
import operator
from typing import Any, Final

import pytest

from msgtx.database.calls import call
from msgtx.database.wire import Int4Array, Int8Array
from msgtx.declared.function import Function
from msgtx.generated import calls
from msgtx.store.shares.answers import NO_ANSWERS
from msgtx.store.shares.shares import INLINE_BYTES, Acquiring, acquire_records, acquire_records_together
from tests.databases import Connection, Sessions, backend, wait_until
from tests.store.sharing import ANYTHING, ShareGroup
from tests.store.steps import new_partition, new_topic, plain
from tests.store.test_compaction import compact, compacted_topic

LARGE: Final = 8 << 20  # more than a socket's buffers hold
INLINE: Final = 16_384
pytestmark = pytest.mark.usefixtures("bare")


def has_read(connection: Connection, isolation: str) -> ShareGroup:
    """Return a group that has read what there is."""
    group = ShareGroup(connection, new_partition(connection), isolation=isolation)
    plain(connection, group.partition, b"before")
    group.acquire("a")
    group.answer("a", {0: "accept"})
    return group


@pytest.fixture(params=["read_committed", "read_uncommitted"], ids=["usual", "general"])
def group(connection: Connection, request: pytest.FixtureRequest) -> ShareGroup:
    return has_read(connection, request.param)


def ask_without_reading(session: Connection, call: str) -> None:
    session.pgconn.send_query(call.encode())
    session.pgconn.flush()


def is_stuck(observer: Connection, session: Connection) -> bool:
    """Tell whether a session waits for its client to read."""
    waiting = observer.execute(
        "select wait_event from pg_stat_activity where pid = %s and state = 'active'", [backend(session)]
    ).fetchone()
    return waiting == ("ClientWrite",)


def is_idle(observer: Connection, session: Connection) -> bool:
    found = observer.execute("select state from pg_stat_activity where pid = %s", [backend(session)]).fetchone()
    return found == ("idle",)


@pytest.mark.parametrize(
    ("isolation", "together"), [("read_committed", False), ("read_uncommitted", False), ("read_committed", True)]
)
def test_a_member_that_does_not_read_its_answer_holds_no_lock(
    connection: Connection, open_connection: Sessions, isolation: str, together: bool
) -> None:
    """Nor while it reads the rest: the process is stopped, or the network gone."""
    group = has_read(connection, isolation)
    plain(connection, group.partition, *[bytes(LARGE // 20)] * 20)
    plain(connection, group.partition, b"small")
    number, call_number = group.join("a"), group.call()
    stopped, place = open_connection(), f"'{{{group.partition}}}'"
    backend(stopped)
    numbers, mosts, nothing = f"'{{{number}}}', '{{{call_number}}}'", "'{20}'", "'{-1}', '{-1}'"
    if together:
        numbers = f"'{{{number}, {group.join('c')}}}', '{{{call_number}, 1}}'"
        mosts, nothing = "'{20, 0}'", "'{-1, -1}', '{-1, -1}'"
    limits = f"{ANYTHING}, {nothing}, inline_bytes => {INLINE_BYTES}"
    asked = f"acquire_records('{group.name}', {numbers}, {place}, {mosts}, {limits})"
    ask_without_reading(stopped, f"select f.* from msgtx.{asked} f")
    wait_until(lambda: is_idle(connection, stopped))
    while stopped.pgconn.get_result():
        pass
    ask_without_reading(stopped, f"select f.* from msgtx.read_records({place}, '{{1}}', '{{20}}') f")
    wait_until(lambda: is_stuck(connection, stopped))
    connection.execute("set lock_timeout = '5s'")
    assert group.acquire("b") == {21: 1}
    assert group.answer("b", {21: "accept"}) == []
    while stopped.pgconn.get_result():
        pass


def rows_of(connection: Connection, asked: Acquiring) -> list[tuple[Any, ...]]:
    """Acquire. Returns the rows of the answer as they come, from the offsets on."""
    numbers = Int8Array([asked.member_number]), Int8Array([asked.call_number])
    columns = Int4Array(asked.partition_ids), Int4Array([asked.max_records]), asked.max_bytes
    nothing = Int8Array([-1]), Int8Array([-1]), *NO_ANSWERS.arguments()[2:], False, INLINE
    return [
        row[8:]
        for row in call(connection, calls.ACQUIRE_RECORDS, asked.group, *numbers, *columns, *nothing)
        if row[2] is not None
    ]


def inline(connection: Connection, asked: Acquiring) -> list[bool]:
    """Acquire. Returns, for each row of the answer, whether it has the values."""
    return [row[2] is not None for row in rows_of(connection, asked)]


def test_what_is_small_is_in_the_answer(connection: Connection, group: ShareGroup) -> None:
    """One round trip for a worker that polls one record."""
    for size in (100, 10_000, 3_000, 4_000, 100):
        plain(connection, group.partition, bytes(size))
    assert inline(connection, group.asking("a"))[:4] == [True, True, True, False]


def test_what_is_small_is_in_the_answer_to_several_members(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """One round trip for all of them."""
    group = has_read(connection, "read_committed")
    plain(connection, group.partition, b"1", b"2", b"3")
    plain(connection, group.partition, b"4", b"5", b"6")
    asked = [group.asking("a", 1), group.asking("b", 4)]
    called: list[Function[Any]] = []

    def noted(over: Connection, function: Function[Any], *arguments: object) -> Any:
        called.append(function)
        return call(over, function, *arguments)

    monkeypatch.setattr("msgtx.store.shares.shares.call", noted)
    found = [each.values for answer in acquire_records_together(connection, asked) if answer for each in answer.records]
    assert found == [[b"1"], [b"2", b"3"], [b"4", b"5"]]
    assert called == [calls.ACQUIRE_RECORDS]


def test_a_large_record_is_not_small_since_others_of_its_row_are(connection: Connection, group: ShareGroup) -> None:
    plain(connection, group.partition, bytes(3 * INLINE), *[b"s"] * 99)
    assert inline(connection, group.asking("a", 1)) == [False]
    assert inline(connection, group.asking("b", 1)) == [True]
    found = acquire_records_together(connection, [group.asking("c", 1)])
    assert group.spans[-1][2:] == ("acquired", 1)
    assert found == [None] or found[0] is not None


def test_what_is_small_is_small_over_all_partitions(connection: Connection) -> None:
    partitions = new_topic(connection, 12)
    group = ShareGroup(connection, partitions[0])
    for partition in partitions:
        plain(connection, partition, bytes(INLINE // 2), *[b"s"] * 499)
        acquire_records(connection, group.asking("a")._replace(partition_ids=[partition]))
    group.expire_locks("a")
    found = inline(connection, group.asking("b", 12)._replace(partition_ids=partitions))
    assert len(found) == 12
    assert sum(found) <= 2


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_what_is_new_is_small_over_all_partitions(connection: Connection, isolation: str) -> None:
    partitions = new_topic(connection, 8)
    group = ShareGroup(connection, partitions[0], isolation=isolation)
    for partition in partitions:
        plain(connection, partition, b"before")
        acquire_records(connection, group.asking("a")._replace(partition_ids=[partition]))
    for partition in partitions:
        plain(connection, partition, bytes(INLINE // 4), *[b"s"] * 9)
    found = inline(connection, group.asking("b")._replace(partition_ids=partitions))
    assert found == [True] * 3 + [False] * 5


def test_a_repeated_call_has_what_it_left_out(connection: Connection, group: ShareGroup) -> None:
    plain(connection, group.partition, *[bytes(INLINE)] * 3)
    asked = group.asking("a", 2)
    found = acquire_records(connection, asked)
    assert [len(each.values or ()) for each in found.records] == [2]
    assert acquire_records(connection, asked._replace(is_again=True)).records == found.records


Sent = tuple[bytes | None, bytes, int | None, list[tuple[str, bytes]] | None]
# Which columns rows have, each in its own order: keys, timestamps, headers.
SHAPES: Final = ("keys timestamps headers", "", "headers", "keys", "timestamps", "keys headers", "timestamps headers")


def send_row(connection: Connection, partition: int, shape: str, *, count: int, size: int = 0) -> dict[int, Sent]:
    """Append records that tell where they are. Returns them by offset."""
    tags = [f"{partition}.{shape}.{at}" for at in range(count)]
    rows: list[Sent] = [
        (
            tag.encode() if "keys" in shape else None,
            f"v{tag}".encode() + bytes(size),
            1_000 + 10 * partition + at if "timestamps" in shape else None,
            [(f"h{tag}.{number}", b"%d" % number) for number in range((2 * at + 1) % 3)] if "headers" in shape else None,
        )
        for at, tag in enumerate(tags)
    ]
    keys, values, timestamps, headers = map(list, zip(*rows, strict=True))
    base = plain(
        connection,
        partition,
        *values,
        keys=keys if "keys" in shape else None,
        timestamps=timestamps if "timestamps" in shape else None,
        headers=headers if "headers" in shape else None,
    )
    return dict(zip(range(base, base + count), rows, strict=True))


def as_columns(records: list[Sent]) -> tuple[Any, ...]:
    """Return records of one row as the columns of an answer; what none of them has is None."""
    keys, values, timestamps, headers = map(list, zip(*records, strict=True))
    counts = [None if pairs is None else len(pairs) for pairs in headers]
    found = [pair for pairs in headers for pair in pairs or ()]
    has_headers = counts[0] is not None
    return (
        None if keys[0] is None else keys,
        values,
        None if timestamps[0] is None else timestamps,
        counts if has_headers else None,
        [name for name, _ in found] if has_headers else None,
        [content for _, content in found] if has_headers else None,
    )


@pytest.mark.parametrize("size", [1, INLINE], ids=["in the answer", "read behind it"])
@pytest.mark.parametrize("how", ["usual", "general", "together", "compacted", "compacted, general"])
def test_a_record_comes_as_it_was_sent(connection: Connection, how: str, size: int) -> None:
    """Whichever part of its row comes with it. Rows of other partitions, which hold the same offsets, are others."""
    is_compacted = "compacted" in how
    places = [compacted_topic(connection) if is_compacted else new_partition(connection) for _ in range(3)]
    group = ShareGroup(connection, places[1], isolation="read_uncommitted" if "general" in how else "read_committed")
    for place in places:
        plain(connection, place, b"before", keys=[b"first"])
    assert group.acquire("a") == {0: 1}
    sent: dict[int, Sent] = {}
    for shape in SHAPES:
        if not is_compacted or "keys" in shape:
            sent |= send_row(connection, places[1], shape, count=5, size=size)
            for place in (places[0], places[2]):
                for count in (2, 3):
                    send_row(connection, place, SHAPES[0], count=count)
    if is_compacted:
        dead = [offset for offset in sent if offset % 4 == 2 or offset % 5 == 0]
        newer: list[Sent] = [(sent[offset][0], b"newer", None, None) for offset in dead]
        base = plain(connection, places[1], *[b"newer"] * len(dead), keys=[key for key, *_ in newer])
        compact(connection)
        sent = {offset: record for offset, record in sent.items() if offset not in dead} | dict(enumerate(newer, base))
    columns = operator.attrgetter("keys", "values", "timestamps", "header_counts", "header_keys", "header_values")
    found: list[int] = []
    for most in itertools.islice(itertools.cycle((2, 1, 4)), len(sent)):
        if how == "together":
            asked = [group.asking("a", most), group.asking("b", 1)]
            answers = [each for each in acquire_records_together(connection, asked) if each is not None]
        else:
            answers = [acquire_records(connection, group.asking("ab"[most % 2], most))]
        for each in (records for answer in answers for records in answer.records):
            first, last = each.range[1:]
            offsets = each.offsets if is_compacted and each.offsets is not None else list(range(first, last + 1))
            assert each.offsets in (None, offsets)
            found += offsets
            assert columns(each) == as_columns([sent[offset] for offset in offsets])
    assert found == list(sent)


def nulls(connection: Connection, asked: Acquiring) -> list[list[bool]]:
    """Acquire. Returns, for each row of the answer, which of its columns are null, from the offsets on."""
    return [[column is None for column in row] for row in rows_of(connection, asked)]


@pytest.mark.parametrize("shape", ["", SHAPES[0]])
def test_a_record_that_is_left_out_is_so_with_all_that_belongs_to_it(
    connection: Connection, group: ShareGroup, shape: str
) -> None:
    """Nor has it what belongs to the record in front of it."""
    send_row(connection, group.partition, SHAPES[0], count=2)
    send_row(connection, group.partition, shape, count=1, size=2 * INLINE)
    assert nulls(connection, group.asking("a")) == [[True] + [False] * 6, [True] * 7]


@pytest.mark.parametrize(("superseded", "left"), [([b"a"], [bytes(INLINE)]), ([b"a", b"b"], [])])
def test_what_compaction_removes_before_it_is_read_is_not_delivered(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, superseded: list[bytes], left: list[bytes]
) -> None:
    group = ShareGroup(connection, compacted_topic(connection))
    plain(connection, group.partition, bytes(INLINE), bytes(INLINE), keys=[b"a", b"b"])
    plain(connection, group.partition, *[b"newer"] * len(superseded), keys=superseded)
    plain(connection, group.partition, b"last", keys=[b"z"])

    def compacted_meanwhile(over: Connection, function: Function[Any], *arguments: object) -> Any:
        if function is calls.READ_RECORDS:
            compact(connection)
        return call(over, function, *arguments)

    monkeypatch.setattr("msgtx.store.shares.shares.call", compacted_meanwhile)
    found = acquire_records(connection, group.asking("a", 2)).records
    (each,) = found
    assert each.values is not None
    assert list(each.values) == left
    assert each.offsets == ([1] if left else None)
