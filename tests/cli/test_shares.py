"""`msgtx shares`, and `msgtx consume --share`."""

import base64
import json
import os
import signal
from collections.abc import Callable

import pytest

from msgtx import Acknowledgement, Client
from tests.cli.program import Ended, Program
from tests.databases import wait_until

pytestmark = pytest.mark.slow

Msgtx = Callable[..., Ended]
SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture
def group(msgtx: Msgtx, client: Client, wide: str) -> str:
    """A share group on three partitions: of the 5 records of partition 0 it has done two, and one is released."""
    name = f"share-of-{wide}"
    assert msgtx("shares", "configure", name, "--auto-offset-reset", "earliest").code == 0
    with client.share_consumer(wide, group=name, acknowledgement_mode="explicit") as consumer:
        consumer.poll(0)  # it begins to read every partition
        with client.producer() as producer:
            for i in range(5):
                producer.send(wide, b"%d" % i, partition=0)
        first, second, third = consumer.poll(10, max_records=3)
        consumer.acknowledge(first)
        consumer.acknowledge(second, Acknowledgement.RELEASE)
        consumer.acknowledge(third)
        consumer.commit()
    return name


def starts(msgtx: Msgtx, group: str) -> dict[int, int]:
    (row,) = msgtx("shares", "describe", group, "-o", "jsonl").rows
    return {one["partition"]: one["start_offset"] for one in row["partitions"]}


def fill_graves(client: Client, topic: str, group: str, count: int) -> None:
    """Have this many records of a topic become dead letters."""
    with client.producer() as producer:
        producer.send_batch(topic, [b"%d" % i for i in range(count)], partition=0)
    with client.share_consumer(topic, group=group, acknowledgement_mode="explicit") as consumer:
        left = count
        while left:
            records = consumer.poll(30, max_records=min(left, 500))
            for record in records:
                consumer.acknowledge(record, Acknowledgement.REJECT)
            consumer.commit()
            left -= len(records)


# ── list, describe, configure ──


def test_share_groups_are_listed_and_no_consumer_groups(msgtx: Msgtx, client: Client, group: str, wide: str) -> None:
    with client.consumer(wide, group=f"other-{wide}") as consumer:
        consumer.poll(0)
    (row,) = [row for row in msgtx("shares", "list", "-o", "jsonl").rows if row["group"] == group]
    assert row == {"group": group, "members": 0, "lag": 3, "lag_ms": row["lag_ms"], "dead_letters": 0}
    assert row["lag_ms"] >= 0
    out = msgtx("shares", "list").out.decode()
    assert out.splitlines()[0].split() == ["group", "members", "lag", "lag_ms", "dead_letters"]
    assert f"other-{wide}" not in out
    with client.share_consumer(wide, group=group) as member:
        member.poll(0)
        assert group not in msgtx("groups", "list").out.decode()


def test_describe_shows_settings_and_partitions(msgtx: Msgtx, group: str, wide: str) -> None:
    (row,) = msgtx("shares", "describe", group, "-o", "jsonl").rows
    assert (row["group"], row["members"], row["lag"], row["dead_letters"]) == (group, 0, 3, 0)
    assert row["settings"]["auto_offset_reset"] == "earliest"
    first, *rest = row["partitions"]
    assert {**first, "lag_ms": 0} == {
        "group": group, "topic": wide, "partition": 0, "start_offset": 1, "next_offset": 3, "available": 1, "acquired": 0,
        "pending": 0, "rejected": 0, "parked": 0, "lag": 3, "lag_ms": 0,
    }  # fmt: skip
    assert [(one["partition"], one["lag"], one["lag_ms"]) for one in rest] == [(1, 0, None), (2, 0, None)]
    lines = msgtx("shares", "describe", group).out.decode().splitlines()
    assert ["max_record_locks", "2000"] in [line.split() for line in lines]
    (heads,) = [line.split() for line in lines if "start_offset" in line]
    assert heads[:5] == ["group", "topic", "partition", "start_offset", "next_offset"]
    assert next(line.split()[:5] for line in lines if line.startswith(f"{group} ")) == [group, wide, "0", "1", "3"]


def test_lag_counts_records_and_not_what_was_aborted(msgtx: Msgtx, client: Client, group: str, wide: str) -> None:
    with client.producer(transactional_id=wide) as producer:
        producer.begin_transaction()
        producer.send(wide, b"never", partition=0)
        producer.flush()
        producer.abort_transaction()
    (row,) = [row for row in msgtx("shares", "list", "-o", "jsonl").rows if row["group"] == group]
    assert row["lag"] == 3


def test_settings_change_and_the_rest_stays(msgtx: Msgtx, group: str) -> None:
    backoff = ("--ordering", "key", "--release-backoff-ms", "5", "--release-backoff-max-ms", "50")
    changed = ("--delivery-count-limit", "3", "--dead-letter-topic", "graves", "--max-record-locks", "7")
    done = msgtx("shares", "configure", group, *changed, "--record-lock-duration-ms", "100ms", *backoff, "-o", "json")
    assert json.loads(done.out)["settings"] == {
        "auto_offset_reset": "earliest",
        "isolation": "read_committed",
        "record_lock_duration_ms": 100,
        "delivery_count_limit": 3,
        "max_record_locks": 7,
        "dead_letter_topic": "graves",
        "ordering": "key",
        "release_backoff_ms": 5,
        "release_backoff_max_ms": 50,
    }
    done = msgtx("shares", "configure", group, "--dead-letter-topic", "", "-o", "json")
    assert json.loads(done.out)["settings"]["dead_letter_topic"] == f"{group}-dead-letters"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("configure", "GROUP"), "say what to change"),
        (("configure", "GROUP", "--isolation", "dirty"), "'dirty' is not one of 'read_committed', 'read_uncommitted'"),
        (("configure", "GROUP", "--auto-offset-reset", "soon"), "auto_offset_reset is latest, earliest or by_duration"),
        (("configure", "GROUP", "--delivery-count-limit", "0"), "0 is not in the range 1<=x<=999999999"),
        (("configure", "GROUP", "--max-record-locks", "-1"), "-1 is not in the range 1<=x<=999999999"),
        (("configure", "GROUP", "--max-record-locks", "x"), "'x' is not a valid integer"),
        (("configure", "GROUP", "--dead-letter-topic", "a b"), "is no name of a topic"),
        (("configure", "GROUP", "--ordering", "any"), "'any' is not one of 'none', 'key'"),
        (("configure", "GROUP", "--release-backoff-ms", "-1"), "--release-backoff-ms is 0 or more"),
        (("configure", "a b", "--max-record-locks", "1"), "use 1 to 236 of"),
        (("configure", "é", "--max-record-locks", "1"), "use 1 to 236 of"),
        (("configure", "", "--max-record-locks", "1"), "the name of a group has 1 to 1000 bytes of UTF-8, not 0"),
        (("describe", "nowhere"), "there is no share group 'nowhere'"),
        (("delete", "nowhere"), "there is no share group 'nowhere'"),
        (("redrive", "nowhere"), "there is no share group 'nowhere'"),
        (("redrive", "nowhere", "--yes"), "there is no share group nowhere"),
        (("redrive", "GROUP", "--max-messages", "-1"), "-1 is not in the range"),
        (("reset-offsets", "nowhere", "--all-topics", "--to-earliest"), "there is no share group 'nowhere'"),
        (("reset-offsets", "GROUP", "--all-topics"), "give exactly one of --to-earliest"),
        (("reset-offsets", "GROUP", "--to-latest"), "give --topic, --all-topics"),
        (("reset-offsets", "GROUP", "--to-latest", "--topic", "nowhere"), "there is no topic 'nowhere'"),
        (("reset-offsets", "GROUP", "--to-latest", "--topic", "TOPIC:7"), "there is no partition TOPIC-7"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    msgtx: Msgtx, group: str, wide: str, arguments: tuple[str, ...], words: str
) -> None:
    """I16."""
    before = msgtx("shares", "describe", group, "-o", "jsonl").rows[0]["settings"]
    done = msgtx("shares", *(each.replace("GROUP", group).replace("TOPIC", wide) for each in arguments))
    done.refuses(words.replace("TOPIC", wide))
    assert msgtx("shares", "describe", group, "-o", "jsonl").rows[0]["settings"] == before


def test_a_consumer_group_is_no_share_group_and_the_other_way_round(
    msgtx: Msgtx, client: Client, group: str, wide: str
) -> None:
    name = f"consumers-of-{wide}"
    with client.consumer(wide, group=name) as consumer:
        consumer.poll(0)
    for verb in (("describe",), ("delete", "--yes"), ("redrive",), ("reset-offsets", "--all-topics", "--to-earliest")):
        msgtx("shares", verb[0], name, *verb[1:]).refuses("is a consumer group")
    msgtx("shares", "configure", name, "--max-record-locks", "1").refuses("is a consumer group")
    msgtx("consume", wide, "--share", name, "--no-follow").refuses("is a consumer group")
    for verb in (("describe",), ("members",), ("delete", "--yes"), ("delete-offsets", "--topic", wide)):
        msgtx("groups", verb[0], group, *verb[1:]).refuses("it is a share group")
    msgtx("groups", "reset-offsets", group, "--topic", wide, "--to-earliest", "--yes").refuses("is a share group")
    msgtx("consume", wide, "--group", group, "--no-follow").refuses("is a share group")


# ── reset-offsets, delete ──


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--to-earliest", "--all-topics"), 0),
        (("--to-latest", "--topic", "TOPIC"), 5),
        (("--to-current", "--topic", "TOPIC:0"), 1),
        (("--to-offset", "99", "--topic", "TOPIC:0"), 5),
        (("--shift-by", "2", "--topic", "TOPIC:0"), 3),
        (("--by-duration", "PT1H", "--topic", "TOPIC:0"), 0),
        (("--to-datetime", "2020-01-01", "--topic", "TOPIC:0"), 0),
    ],
)
def test_a_reset_shows_what_it_does_asks_and_does_it(
    msgtx: Msgtx, group: str, wide: str, arguments: tuple[str, ...], expected: int
) -> None:
    verb = ("shares", "reset-offsets", group, *(each.replace("TOPIC", wide) for each in arguments))
    shown = msgtx(*verb, "--dry-run", "-o", "jsonl")
    assert [row["new_offset"] for row in shown.rows if row["partition"] == 0] == [expected]
    assert shown.err.startswith("would reset ")
    assert shown.err.endswith(f" of share group '{group}'\n")
    assert msgtx(*verb, stdin=b"n\n").code == 1
    assert starts(msgtx, group)[0] == 1
    assert msgtx(*verb, stdin=b"y\n").code == 0
    assert starts(msgtx, group)[0] == expected


def test_offsets_go_to_a_file_and_come_back(msgtx: Msgtx, group: str, wide: str) -> None:
    kept = msgtx("shares", "reset-offsets", group, "--all-topics", "--to-current", "--export")
    assert kept.out.decode() == f"{wide},0,1\n{wide},1,0\n{wide},2,0\n"
    assert msgtx("shares", "reset-offsets", group, "--all-topics", "--to-latest", "--yes").code == 0
    assert msgtx("shares", "reset-offsets", group, "--from-file", "-", "--yes", stdin=kept.out).code == 0
    assert starts(msgtx, group) == {0: 1, 1: 0, 2: 0}


def test_a_group_with_members_is_left_alone(msgtx: Msgtx, client: Client, group: str, wide: str) -> None:
    with client.share_consumer(wide, group=group) as member:
        member.poll(0)
        for verb in (
            ("delete", group, "--yes"),
            ("reset-offsets", group, "--all-topics", "--to-earliest"),
            ("configure", group, "--auto-offset-reset", "latest"),
        ):
            msgtx("shares", *verb).refuses("member", code=1)
    assert starts(msgtx, group)[0] == 1


def test_a_group_is_deleted_after_a_question(msgtx: Msgtx, group: str) -> None:
    assert msgtx("shares", "delete", group, "--dry-run").err == f"would delete share group '{group}' (3 records not done)\n"
    assert msgtx("shares", "delete", group, stdin=b"n\n").code == 1
    assert msgtx("shares", "delete", group, "nowhere", "--yes").code == 2
    assert msgtx("shares", "describe", group).code == 0
    assert msgtx("shares", "delete", group, "--yes").code == 0
    assert msgtx("shares", "describe", group).code == 2


# ── redrive ──


def test_a_redrive_asks_and_reports(msgtx: Msgtx, client: Client, group: str, topic: str) -> None:
    fill_graves(client, topic, group, 5)
    verb = ("shares", "redrive", group)
    assert msgtx("shares", "list", "-o", "jsonl").rows[-1]["dead_letters"] in {0, 5}
    assert msgtx(*verb, "--dry-run").err == f"would send 5 dead letters of share group '{group}' back\n"
    assert (
        msgtx(*verb, "--max-messages", "2", "--dry-run").err == f"would send 2 dead letters of share group '{group}' back\n"
    )
    done = msgtx(*verb, stdin=b"n\n")
    assert (done.code, done.out) == (1, b"")
    done = msgtx(*verb, "--max-messages", "2", "-o", "jsonl", stdin=b"y\n")
    assert (done.code, done.rows) == (0, [{"group": group, "sent": 2, "skipped": 0}])
    assert msgtx(*verb, "--yes", "-o", "jsonl").rows == [{"group": group, "sent": 3, "skipped": 0}]
    assert msgtx(*verb, "--yes", "-o", "jsonl").rows == [{"group": group, "sent": 0, "skipped": 0}]
    assert "skipped" in msgtx(*verb, "--yes").out.decode()


def test_a_redrive_to_a_topic_that_is_gone_says_what_to_do(msgtx: Msgtx, client: Client, group: str, topic: str) -> None:
    fill_graves(client, topic, group, 2)
    assert msgtx("topics", "delete", topic, "--yes").code == 0
    done = msgtx("shares", "redrive", group, "--yes")
    done.refuses(f"came from topic {topic}, which is gone: create it, or skip such letters")
    assert msgtx("shares", "redrive", group, "--yes", "--skip-missing", "-o", "jsonl").rows == [
        {"group": group, "sent": 0, "skipped": 2}
    ]


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_redrive_that_is_interrupted_goes_on_where_it_was(
    program: Program, msgtx: Msgtx, client: Client, group: str, topic: str, number: signal.Signals
) -> None:
    fill_graves(client, topic, group, 20_000)
    before = client.admin.partitions.describe((topic, 0)).log_end_offset

    def sent() -> int:
        return client.admin.partitions.describe((topic, 0)).log_end_offset - before

    with program.start("shares", "redrive", group, "--yes", "-o", "jsonl") as process:
        wait_until(lambda: sent() > 0, "the first step is made")
        process.send_signal(number)
        done = program.ended(process)
    assert "Traceback" not in done.err
    assert done.code == (130 if number == signal.SIGINT else 0)
    assert done.rows == [{"group": group, "sent": sent(), "skipped": 0}]
    assert 0 < sent() < 20_000
    with program.start("shares", "redrive", group, "--yes") as process:
        first = sent()
        wait_until(lambda: sent() > first, "the next step is made")
        process.kill()
    assert msgtx("shares", "redrive", group, "--yes").code == 0
    wait_until(lambda: client.admin.shares.describe(group).dead_letters == 0, "a step that outlived its client has ended")
    assert sent() == 20_000
    cut = client.snapshot([topic])
    values = [record.value for record in client.read(cut)]
    assert sorted(values[before:]) == sorted(values[:before])


# ── consume --share ──


def test_printed_records_are_accepted(msgtx: Msgtx, group: str, wide: str) -> None:
    done = msgtx("consume", wide, "--share", group, "--no-follow", "--max-messages", "2", "-o", "jsonl")
    assert [(row["value"], row["delivery_count"]) for row in done.rows] == [("1", 2), ("3", 1)]
    assert msgtx("consume", wide, "--share", group, "--no-follow").out == b"4\n"
    assert msgtx("consume", wide, "--share", group, "--timeout-ms", "10").out == b""
    assert json.loads(msgtx("consume", wide, "--share", group, "--no-follow", "-o", "json").out) == []
    assert starts(msgtx, group)[0] == 5


def test_bytes_that_are_no_utf8_are_printed_as_they_are(msgtx: Msgtx, client: Client, group: str, wide: str) -> None:
    assert msgtx("shares", "reset-offsets", group, "--all-topics", "--to-latest", "--yes").code == 0
    for _ in range(2):
        with client.producer() as producer:
            producer.send(wide, b"\xff\x00", key=None, headers=[("\u20ac", b"\xfe")], partition=1)
            producer.send(wide, None, key=b"\xfd", partition=1)
    assert msgtx("consume", wide, "--share", group, "--max-messages", "2").out == b"\xff\x00\nnull\n"
    first, second = msgtx("consume", wide, "--share", group, "--no-follow", "-o", "jsonl").rows
    assert base64.b64decode(first["value_base64"]) == b"\xff\x00"
    assert (second["value"], base64.b64decode(second["key_base64"])) == (None, b"\xfd")


def test_what_is_consumed_may_be_produced_again(msgtx: Msgtx, group: str, wide: str, topic: str) -> None:
    taken = msgtx("consume", wide, "--share", group, "--no-follow", "-o", "jsonl")
    assert msgtx("produce", topic, "--json", stdin=taken.out).code == 0
    assert msgtx("consume", topic, "--from-beginning", "--no-follow").out == b"1\n3\n4\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--group", "a"), "--share excludes --group"),
        (("--from-beginning", "--offset", "0"), "--share excludes --from-beginning, --offset"),
        (("--partition", "0"), "--share excludes --partition"),
        (("--isolation", "read_uncommitted"), "--share excludes --isolation"),
    ],
)
def test_options_of_a_consumer_are_refused(
    msgtx: Msgtx, group: str, wide: str, arguments: tuple[str, ...], words: str
) -> None:
    msgtx("consume", wide, "--share", group, *arguments).refuses(words)


def test_wrong_names_are_said_in_one_line(msgtx: Msgtx, group: str, wide: str) -> None:
    for arguments, words in (
        (("nowhere", "--share", group), "there is no topic 'nowhere'"),
        ((wide, "--share", "a b"), "use 1 to 236 of"),
        ((wide, "--share", ""), "group is a text that is not empty"),
    ):
        msgtx("consume", *arguments, "--no-follow").refuses(words)


def test_a_member_whose_reader_has_left_ends_and_takes_nothing_more(
    program: Program, client: Client, group: str, wide: str
) -> None:
    with program.start("consume", wide, "--share", group) as process:
        assert process.stdout.readline() + process.stdout.readline() + process.stdout.readline() == b"1\n3\n4\n"
        process.stdout.close()
        assert (process.wait(10), process.stderr.read()) == (0, b"")
    assert client.admin.shares.describe(group).members == 0


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_consume_accepts_exactly_what_was_printed(
    program: Program, client: Client, topic: str, number: signal.Signals
) -> None:
    group = f"share-{topic}"
    client.admin.shares.configure(group, {"auto_offset_reset": "earliest"})
    with client.producer() as producer:
        producer.send_batch(topic, [b"%d" % i for i in range(50_000)])
    with program.start("consume", topic, "--share", group) as process:
        first = process.stdout.readline()
        process.send_signal(number)
        done = program.ended(process)
    assert "Traceback" not in done.err
    assert done.code == (130 if number == signal.SIGINT else 0)
    printed = (first + done.out).split()
    assert printed == [b"%d" % i for i in range(len(printed))]
    with client.share_consumer(topic, group=group) as consumer:  # at once: it has left
        assert consumer.poll(10, max_records=1)[0].value == b"%d" % len(printed)


def test_what_a_killed_member_has_printed_may_come_again_and_nothing_is_lost(
    program: Program, msgtx: Msgtx, client: Client, topic: str
) -> None:
    group = f"share-{topic}"
    client.admin.shares.configure(group, {"auto_offset_reset": "earliest", "record_lock_duration_ms": 1_000})
    with client.producer() as producer:
        producer.send_batch(topic, [b"%d" % i for i in range(50_000)])
    printed: set[bytes] = set()
    with program.start("consume", topic, "--share", group) as process:
        printed.add(process.stdout.readline().strip())
        os.kill(process.pid, signal.SIGKILL)
        printed |= set(process.stdout.read().split(b"\n")[:-1])
    rest = msgtx("consume", topic, "--share", group, "--timeout-ms", "2000")
    assert printed | set(rest.out.split()) == {b"%d" % i for i in range(50_000)}
