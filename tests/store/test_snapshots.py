"""Saved snapshots by hand: what is refused is not kept, and each refusal says what it is."""

from datetime import UTC

import pytest

from msgtx.store.fetch.snapshots import SavedText, save_snapshot, saved_snapshots
from msgtx.store.operator.installation import describe_installation
from tests.databases import Clock, Connection
from tests.store.steps import count, unique

LONGEST = 16_777_216


@pytest.fixture
def incarnation(connection: Connection) -> str:
    return str(describe_installation(connection).incarnation)


def refusal(connection: Connection, name: str | None, snapshot: str, *, replace: bool = False) -> tuple[object, ...]:
    """Return what the function answers: error, detail, time."""
    row = connection.execute("select * from msgtx.save_snapshot(%s, %s, %s)", [name, snapshot, replace]).fetchone()
    assert row is not None
    return row


def test_what_is_refused_is_not_kept(connection: Connection, incarnation: str) -> None:
    name = unique("cut")
    for asked, snapshot, error, detail in (
        (
            None,
            incarnation,
            "InvalidRequest: name",
            "the name NULL is not allowed for a snapshot: use 1 to 249 of a-z A-Z 0-9 . _ -",
        ),
        (name, "other t:0:1", "IncarnationChanged", f"the snapshot is of incarnation other, the database has {incarnation}"),
        (
            *(name, incarnation.ljust(LONGEST + 1), "InvalidRequest: size"),
            f"snapshot {name} has {LONGEST + 1} characters; at most {LONGEST} are stored",
        ),
    ):
        assert refusal(connection, asked, snapshot) == (error, detail, None)
    assert count(connection, "named_snapshot", "name = %s", name) == 0
    assert save_snapshot(connection, name, incarnation.ljust(LONGEST), replace=False)


def test_a_name_is_taken_by_what_it_holds_and_not_by_what_others_hold(
    connection: Connection, incarnation: str, clock: Clock
) -> None:
    other, name = unique("cut"), unique("cut")
    first, second = f"{incarnation} first", f"{incarnation} second"
    save_snapshot(connection, other, second, replace=False)
    saved = save_snapshot(connection, name, first, replace=False)
    clock("1 hour")
    assert save_snapshot(connection, name, first, replace=True) == saved, "the same one again changes nothing"
    error, detail, taken_at = refusal(connection, name, second)
    assert (error, taken_at) == ("SnapshotExists", None)
    assert f"there is a snapshot {name}, of {saved.astimezone(UTC):%Y-%m-%dT%H:%M}" in str(detail)
    assert saved_snapshots(connection, name) == [SavedText(name, first, saved, connection.info.user)]
