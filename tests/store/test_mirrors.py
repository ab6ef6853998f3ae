"""The progress of a mirror in its target: who may move it, and from where."""

import uuid

import pytest

from msgtx.errors import MirrorFenced
from msgtx.store.mirrors import (
    advance_mirror,
    delete_mirror,
    describe_mirrors,
    mirror_places,
    note_mirror,
    take_over_mirror,
)
from msgtx.store.transactions.producers import init_producer_id
from msgtx.types import ProducerId
from tests.databases import Connection
from tests.refusals import refuses
from tests.store.steps import unique


def begun(connection: Connection, name: str, run: uuid.UUID, *, is_new: bool = True) -> tuple[ProducerId, int]:
    """Initialize the producer of a mirror and take it over. Return the producer and the revision."""
    producer = init_producer_id(connection, f"mirror.{name}", timeout_ms=60_000)
    return producer, take_over_mirror(connection, name, run, producer, is_new=is_new, address="")[0].revision


def advance(connection: Connection, name: str, producer: ProducerId, revision: int, *, offset: int) -> int:
    place = ("orders", 0, offset, "7", f"row before {offset}")
    return advance_mirror(connection, name, producer, revision, source="s", places=[place], records=1, lag=(0, 0))


def offsets(connection: Connection, name: str) -> list[int]:
    return [row.next_offset for row in mirror_places(connection, name)]


def test_progress_moves_only_from_where_the_caller_found_it(connection: Connection) -> None:
    name = unique("mirror")
    producer, revision = begun(connection, name, uuid.uuid4())
    moved = advance(connection, name, producer, revision, offset=5)
    with refuses(MirrorFenced, name=name):
        advance(connection, name, producer, revision, offset=9)
    assert offsets(connection, name) == [5]
    advance(connection, name, producer, moved, offset=9)
    assert offsets(connection, name) == [9]


def test_a_run_that_was_replaced_moves_nothing_and_does_not_come_back(connection: Connection) -> None:
    name, first, second = unique("mirror"), uuid.uuid4(), uuid.uuid4()
    old, revision = begun(connection, name, first)
    new, newer = begun(connection, name, second)
    with refuses(MirrorFenced, name=name):
        advance(connection, name, old, revision, offset=5)
    with refuses(MirrorFenced, name=name):
        advance(connection, name, old, newer, offset=5)
    assert not note_mirror(connection, name, first, old, (0, 0))
    with refuses(MirrorFenced, name=name):
        begun(connection, name, first, is_new=False)
    assert offsets(connection, name) == []
    assert note_mirror(connection, name, second, new, (0, 0))


def test_a_run_continues_after_a_failure_and_a_repeated_take_over_is_answered(connection: Connection) -> None:
    name, run = unique("mirror"), uuid.uuid4()
    producer, revision = begun(connection, name, run)
    advance(connection, name, producer, revision, offset=5)
    again, later = begun(connection, name, run, is_new=False)
    rows = take_over_mirror(connection, name, run, again, is_new=False, address="")
    assert [(row.topic, row.partition, row.next_offset) for row in rows] == [("orders", 0, 5)]
    assert rows[0].revision > later > revision


def test_a_take_over_behind_a_newer_producer_is_refused(connection: Connection) -> None:
    name = unique("mirror")
    producer = init_producer_id(connection, f"mirror.{name}", timeout_ms=60_000)
    init_producer_id(connection, f"mirror.{name}", timeout_ms=60_000)
    with refuses(MirrorFenced, name=name):
        take_over_mirror(connection, name, uuid.uuid4(), producer, is_new=True, address="")


def test_a_mirror_is_taken_over_only_with_the_producer_of_its_transactional_id(connection: Connection) -> None:
    name = unique("mirror")
    producer, revision = begun(connection, name, uuid.uuid4())
    for other in (unique("id"), f"mirror.{name}2", None):
        with refuses(MirrorFenced, name=name):
            mine = init_producer_id(connection, other, timeout_ms=60_000)
            take_over_mirror(connection, name, uuid.uuid4(), mine, is_new=True, address="")
    advance(connection, name, producer, revision, offset=5)


def test_the_error_of_a_run_is_shown_until_the_mirror_is_taken_over_or_copies_again(connection: Connection) -> None:
    name, run = unique("mirror"), uuid.uuid4()

    def error() -> str | None:
        return describe_mirrors(connection, name)[0].error

    producer, revision = begun(connection, name, run)
    for text in ("lost", "x" * 10_000, "a\0b\ud800"):
        assert note_mirror(connection, name, run, producer, (0, 0), error=text)
        assert error()
    advance(connection, name, producer, revision, offset=5)
    assert error() is None
    note_mirror(connection, name, run, producer, (0, 0), error="lost")
    begun(connection, name, uuid.uuid4())
    assert error() is None
    assert not note_mirror(connection, name, run, producer, (0, 0), error="of an older run")
    assert error() is None


def test_what_was_reset_is_no_progress_to_continue(connection: Connection) -> None:
    name = unique("mirror")
    producer, revision = begun(connection, name, uuid.uuid4())
    advance(connection, name, producer, revision, offset=5)
    assert delete_mirror(connection, name)
    with pytest.raises(MirrorFenced):
        advance(connection, name, producer, revision + 1, offset=9)
    begun(connection, name, uuid.uuid4())
    assert offsets(connection, name) == []
    assert not delete_mirror(connection, unique("mirror"))
