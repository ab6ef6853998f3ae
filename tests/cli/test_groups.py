"""`msgtx groups`."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from msgtx import Client, OffsetAndMetadata
from msgtx.store.groups.groups import commit_offsets
from msgtx.store.groups.members import assign_partitions, describe_members, join_group
from msgtx.store.topics.topics import describe_topics
from msgtx.types import GroupMetadata
from tests.cli.program import Ended
from tests.databases import Connection

pytestmark = pytest.mark.slow

Msgtx = Callable[..., Ended]
DAY_MS = 1_767_225_600_000  # 2026-01-01 UTC


@pytest.fixture
def group(client: Client, connection: Connection, wide: str) -> str:
    """A group on three partitions: it has read 2 of the 5 records of partition 0, and is caught up on partition 1."""
    with client.producer() as producer:
        for i in range(5):
            producer.send(wide, b"%d" % i, partition=0, timestamp=DAY_MS + 1_000 * i)
        producer.send(wide, b"x", partition=1, timestamp=DAY_MS)
    ids = describe_topics(connection, [wide])[wide].partition_ids
    name = f"group-of-{wide}"
    offsets = {ids[0]: OffsetAndMetadata(2), ids[1]: OffsetAndMetadata(1)}
    commit_offsets(connection, {GroupMetadata(name): offsets})
    return name


def join(connection: Connection, group: str, topic: str, *, owns: tuple[int, ...]) -> None:
    joined = join_group(
        connection,
        group,
        member_id="m-1",
        group_instance_id="static",
        client_host="there",
        client_process=7,
        session_timeout_ms=10_000,
        strategy="range",
        topics=[topic],
        pattern=None,
    )
    state = describe_members(connection, group)
    assert state is not None
    ids = describe_topics(connection, [topic])[topic].partition_ids
    targets = {ids[index]: joined.member_number for index in owns}
    assert assign_partitions(
        connection, group, generation=state.generation, topics_version=state.topics_version, targets=targets
    )


def offsets(msgtx: Msgtx, group: str) -> dict[int, int | None]:
    (row,) = msgtx("groups", "describe", group, "-o", "jsonl").rows
    return {one["partition"]: one["current_offset"] for one in row["partitions"]}


# ── list and describe ──


def test_groups_are_listed_with_their_states(msgtx: Msgtx, group: str, wide: str, connection: Connection) -> None:
    (row,) = [row for row in msgtx("groups", "list", "-o", "jsonl").rows if row["group"] == group]
    assert row == {"group": group, "state": "Empty", "strategy": None, "members": 0}
    join(connection, group, wide, owns=(0,))
    done = msgtx("groups", "list", "--state", "Stable", "--state", "PreparingRebalance", "-o", "jsonl")
    assert [row for row in done.rows if row["group"] == group] == [
        {"group": group, "state": "Stable", "strategy": "range", "members": 1}
    ]
    assert group not in msgtx("groups", "list", "--state", "Empty").out.decode()
    assert msgtx("groups", "list").out.decode().splitlines()[0].split() == ["group", "state", "strategy", "members"]
    assert msgtx("groups", "list", "--state", "Resting").code == 2


def test_lag_is_that_of_all_groups_at_once(msgtx: Msgtx, group: str, clock: Callable[..., None]) -> None:
    clock(datetime(2026, 1, 1, 0, 1, tzinfo=UTC))
    (row,) = [row for row in msgtx("groups", "lag", "-o", "jsonl").rows if row["group"] == group]
    assert row["lag"] == 3
    assert row["lag_ms"] == 56_000  # of the batch, by its newest record


def test_describe_shows_kafkas_columns_and_the_lag_in_time(
    msgtx: Msgtx, group: str, wide: str, connection: Connection, clock: Callable[..., None]
) -> None:
    join(connection, group, wide, owns=(0, 2))
    (row,) = msgtx("groups", "describe", group, "-o", "jsonl").rows
    assert (row["group"], row["state"], row["members"], row["lag"], row["strategy"]) == (group, "Stable", 1, 3, "range")
    first, second, third = row["partitions"]
    assert first["lag_ms"] == row["lag_ms"] > 0
    assert {**first, "lag_ms": 0} == {
        "group": group, "topic": wide, "partition": 0, "current_offset": 2, "metadata": "", "pending": False,
        "log_end_offset": 5, "lag": 3, "lag_ms": 0, "member_id": "m-1", "group_instance_id": "static",
        "client_host": "there", "client_process": 7,
    }  # fmt: skip
    assert (second["lag"], second["lag_ms"], second["member_id"]) == (0, None, None)
    assert (third["current_offset"], third["lag"], third["member_id"]) == (None, None, "m-1")
    lines = msgtx("groups", "describe", group).out.decode().splitlines()
    (heads,) = [line.split() for line in lines if "current_offset" in line]
    assert heads == [
        "group", "topic", "partition", "current_offset", "log_end_offset", "lag", "lag_ms", "member_id", "client_host",
        "client_process",
    ]  # fmt: skip
    rows = [line.split() for line in lines if line.startswith(group)]
    assert rows[0][:6] == [group, wide, "0", "2", "5", "3"]
    assert rows[1] == [group, wide, "1", "1", "1", "0", "-", "-", "-", "-"]
    assert rows[2] == [group, wide, "2", "-", "0", "-", "-", "m-1", "there", "7"]


def test_members_are_shown_with_what_they_own(msgtx: Msgtx, group: str, wide: str, connection: Connection) -> None:
    assert msgtx("groups", "members", group, "-o", "jsonl").rows == []
    join(connection, group, wide, owns=(0, 2))
    (row,) = msgtx("groups", "members", group, "-o", "jsonl").rows
    assert (row["group"], row["member_id"], row["group_instance_id"], row["client_host"]) == (
        group,
        "m-1",
        "static",
        "there",
    )
    assert row["owned"] == [{"topic": wide, "partition": 0}, {"topic": wide, "partition": 2}]
    assert row["topics"] == [wide]
    assert f"{wide}-0, {wide}-2" in msgtx("groups", "members", group).out.decode()


@pytest.mark.parametrize("verb", ["describe", "members", "delete"])
def test_a_group_that_is_not_there_is_said_in_one_line(msgtx: Msgtx, verb: str) -> None:
    done = msgtx("groups", verb, "nowhere")
    assert done.code == 2
    assert done.err.startswith("msgtx: there is no consumer group 'nowhere'")
    assert done.err.count("\n") == 1


# ── reset ──


def test_a_reset_shows_what_it_would_do_and_asks(msgtx: Msgtx, group: str, wide: str) -> None:
    reset = ("groups", "reset-offsets", group, "--all-topics", "--to-earliest")
    done = msgtx(*reset, "--dry-run", "-o", "jsonl")
    assert (done.code, done.err) == (0, f"would reset 2 offsets of group '{group}'\n")
    assert done.rows == [
        {"group": group, "topic": wide, "partition": 0, "current_offset": 2, "new_offset": 0, "note": ""},
        {"group": group, "topic": wide, "partition": 1, "current_offset": 1, "new_offset": 0, "note": ""},
    ]
    refused = msgtx(*reset, stdin=b"n\n")
    assert refused.code == 1
    assert "new_offset" in refused.out.decode()
    assert offsets(msgtx, group) == {0: 2, 1: 1}
    assert msgtx(*reset, stdin=b"y\n").code == 0
    assert offsets(msgtx, group) == {0: 0, 1: 0}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--to-latest", "--all-topics"), {0: 5, 1: 1}),
        (("--to-current", "--topic", "TOPIC"), {0: 2, 1: 1, 2: 0}),
        (("--to-offset", "3", "--topic", "TOPIC:0"), {0: 3, 1: 1}),
        (("--to-offset", "-3", "--topic", "TOPIC:0"), {0: 0, 1: 1}),
        (("--shift-by", "1", "--topic", "TOPIC:0"), {0: 3, 1: 1}),
        (("--shift-by", "-1", "--topic", "TOPIC:0,1"), {0: 1, 1: 0}),
        (("--by-duration", "PT0S", "--all-topics"), {0: 5, 1: 1}),
        (("--by-duration", "P36500D", "--all-topics"), {0: 0, 1: 0}),
        (("--to-datetime", "2026-01-01T00:00:01", "--all-topics"), {0: 1, 1: 1}),
        (("--to-datetime", "2026-01-01T01:00:01.000+01:00", "--all-topics"), {0: 1, 1: 1}),
        (("--to-datetime", "2026-01-01T00:00:00.001Z", "--all-topics"), {0: 1, 1: 1}),
        (("--to-datetime", "2025-12-31", "--all-topics"), {0: 0, 1: 0}),
    ],
)
def test_each_target_of_kafkas(
    msgtx: Msgtx, group: str, wide: str, arguments: tuple[str, ...], expected: dict[int, int]
) -> None:
    given = [argument.replace("TOPIC", wide) for argument in arguments]
    assert msgtx("groups", "reset-offsets", group, *given, "--yes").code == 0
    assert offsets(msgtx, group) == expected


def test_an_offset_outside_the_log_is_moved_and_the_note_says_so(msgtx: Msgtx, group: str, wide: str) -> None:
    done = msgtx("groups", "reset-offsets", group, "--to-offset", "99", "--topic", f"{wide}:0", "--dry-run", "-o", "jsonl")
    assert [(row["new_offset"], row["note"]) for row in done.rows] == [(5, "99 is above the log end")]


def test_offsets_go_to_a_file_and_come_back(msgtx: Msgtx, group: str, wide: str, tmp_path: Path) -> None:
    done = msgtx("groups", "reset-offsets", group, "--all-topics", "--to-current", "--export")
    assert done.out.decode() == f"{wide},0,2\n{wide},1,1\n"
    assert done.err == ""
    file = tmp_path / "offsets.csv"
    file.write_bytes(done.out)
    assert msgtx("groups", "reset-offsets", group, "--all-topics", "--to-earliest", "--yes").code == 0
    assert offsets(msgtx, group) == {0: 0, 1: 0}
    assert msgtx("groups", "reset-offsets", group, "--from-file", str(file), "--yes").code == 0
    assert offsets(msgtx, group) == {0: 2, 1: 1}
    by_stdin = msgtx("groups", "reset-offsets", group, "--from-file", "-", "--yes", stdin=f'"{wide}", 1, 0\n\n'.encode())
    assert by_stdin.code == 0
    assert offsets(msgtx, group) == {0: 2, 1: 0}
    other = msgtx("groups", "reset-offsets", f"{group}-copy", "--from-file", str(file), "--yes")
    assert other.code == 0
    assert offsets(msgtx, f"{group}-copy") == {0: 2, 1: 1}


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (b"topic,0\n", ":1: 'topic,0' does not read topic,partition,offset"),
        (b"TOPIC,0,1\nTOPIC,0,-1\n", ":2: "),
        (b"TOPIC,0,1\nTOPIC,0,2\n", "-0 is there twice"),
        (b"TOPIC,0,1,2\n", "does not read topic,partition,offset"),
        (b"TOPIC,\xff,1\n", "-: "),
        (b"nowhere,0,1\n", "there is no topic 'nowhere'"),
        (b"TOPIC,3,1\n", "there is no partition"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_by_line(
    msgtx: Msgtx, group: str, wide: str, lines: bytes, words: str
) -> None:
    done = msgtx("groups", "reset-offsets", group, "--from-file", "-", "--yes", stdin=lines.replace(b"TOPIC", wide.encode()))
    done.refuses(words)
    assert offsets(msgtx, group) == {0: 2, 1: 1}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give exactly one of --to-earliest"),
        (("--to-earliest", "--to-latest", "--all-topics"), "give exactly one of --to-earliest"),
        (("--to-offset", "0", "--shift-by", "0", "--all-topics"), "give exactly one of --to-earliest"),
        (("--to-earliest",), "give --topic, --all-topics"),
        (("--to-earliest", "--all-topics", "--topic", "a"), "give --topic, --all-topics"),
        (("--to-earliest", "--topic", "a:x"), "'a:x' is no topic"),
        (("--to-earliest", "--topic", "nowhere"), "there is no topic 'nowhere'"),
        (("--by-duration", "1 hour", "--all-topics"), "'1 hour' is no duration"),
        (("--by-duration", "P", "--all-topics"), "'P' is no duration"),
        (("--by-duration", "P1DT", "--all-topics"), "'P1DT' is no duration"),
        (("--to-datetime", "yesterday", "--all-topics"), "'yesterday' is no time"),
        (("--from-file", "/nowhere/offsets.csv"), "/nowhere/offsets.csv"),
    ],
)
def test_a_wrong_reset_is_said_in_one_line(msgtx: Msgtx, group: str, arguments: tuple[str, ...], words: str) -> None:
    msgtx("groups", "reset-offsets", group, *arguments, "--yes").refuses(words)
    assert offsets(msgtx, group) == {0: 2, 1: 1}


def test_a_reset_of_nothing_asks_nothing(msgtx: Msgtx, group: str) -> None:
    assert msgtx("groups", "reset-offsets", "nowhere", "--all-topics", "--to-earliest").code == 2
    assert msgtx("groups", "reset-offsets", group, "--to-latest", "--all-topics", "--yes").code == 0


def test_a_group_with_members_is_neither_reset_nor_deleted(
    msgtx: Msgtx, group: str, wide: str, connection: Connection, clock: Callable[..., None]
) -> None:
    join(connection, group, wide, owns=(0,))
    for verb in (("reset-offsets", group, "--all-topics", "--to-earliest"), ("delete", group)):
        done = msgtx("groups", *verb)
        assert done.code == 1
        assert done.err.startswith(f"msgtx: group '{group}' is Stable and has 1 member; stop its consumers")
        assert done.out == b""
    exported = msgtx("groups", "reset-offsets", group, "--all-topics", "--to-current", "--export")
    assert exported.out.decode() == f"{wide},0,2\n{wide},1,1\n"
    clock("1 minute")
    assert msgtx("groups", "reset-offsets", group, "--all-topics", "--to-earliest", "--yes").code == 0
    assert offsets(msgtx, group) == {0: 0, 1: 0}


# ── deleting ──


def test_a_group_is_deleted_after_a_question(msgtx: Msgtx, group: str) -> None:
    assert msgtx("groups", "delete", group, "--dry-run").err == f"would delete group '{group}' (2 offsets)\n"
    assert msgtx("groups", "delete", group, stdin=b"n\n").code == 1
    assert offsets(msgtx, group) == {0: 2, 1: 1}
    assert msgtx("groups", "delete", group, "nowhere", "--yes").code == 2
    assert msgtx("groups", "delete", group, stdin=b"y\n").code == 0
    assert msgtx("groups", "describe", group).code == 2


def test_offsets_are_deleted_after_a_question(msgtx: Msgtx, group: str, wide: str, connection: Connection) -> None:
    delete = ("groups", "delete-offsets", group, "--topic", f"{wide}:0,2")
    done = msgtx(*delete, "--dry-run", "-o", "jsonl")
    assert done.err == f"would delete 1 offset of group '{group}'\n"
    assert done.rows == [{"group": group, "topic": wide, "partition": 0, "current_offset": 2}]
    assert msgtx(*delete, stdin=b"n\n").code == 1
    assert offsets(msgtx, group) == {0: 2, 1: 1}
    assert msgtx(*delete, "--yes").code == 0
    assert offsets(msgtx, group) == {1: 1}
    join(connection, group, wide, owns=(1,))
    done = msgtx("groups", "delete-offsets", group, "--topic", wide, "--yes")
    assert done.code == 1
    assert f"member m-1 on there owns {wide}-1" in done.err
    assert msgtx("groups", "delete-offsets", group, "--yes").code == 2
    assert msgtx("groups", "delete-offsets", group, "--topic", f"{wide}:7", "--yes").code == 2
    assert msgtx("groups", "delete-offsets", group, "--topic", "nowhere", "--yes").code == 2


VERBS = {
    "groups": ("list", "describe", "members", "reset-offsets", "delete", "delete-offsets"),
    "shares": ("list", "describe", "configure", "reset-offsets", "delete", "redrive"),
}


@pytest.mark.parametrize(("noun", "verb"), [(noun, verb) for noun, verbs in VERBS.items() for verb in verbs])
def test_every_verb_tells_what_it_does(msgtx: Msgtx, noun: str, verb: str) -> None:
    done = msgtx(noun, verb, "--help")
    assert done.code == 0
    assert verb in msgtx(noun, "--help").out.decode()
    if verb == "reset-offsets" and noun == "groups":
        assert "without an offset it is UTC" in " ".join(done.out.decode().split())
    if verb in {"configure", "reset-offsets", "redrive"} and noun == "shares":
        assert f"msgtx shares {verb} workers" in done.out.decode()
