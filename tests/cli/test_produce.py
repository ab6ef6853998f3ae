"""`msgtx produce` and `msgtx consume`."""

import json
import os
import resource
import shlex
import subprocess
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from msgtx import Client
from tests.cli.program import Ended, Program
from tests.odd_records import REFUSED, Refused

pytestmark = pytest.mark.slow

Msgtx = Callable[..., Ended]
READ = ("--from-beginning", "--no-follow")


def test_lines_are_values_as_they_are(msgtx: Msgtx, topic: str) -> None:
    lines = "grüße\r\n".encode() + b"\xff\xfe\0\n\nlast"
    assert msgtx("produce", topic, stdin=lines).code == 0
    assert msgtx("consume", topic, *READ).out == lines + b"\n"


def test_an_empty_input_is_no_record(msgtx: Msgtx, topic: str) -> None:
    done = msgtx("produce", topic, "--transactional-id", "empty")
    assert (done.code, done.out) == (0, b"")
    assert msgtx("consume", topic, *READ).out == b""
    assert json.loads(msgtx("consume", topic, *READ, "-o", "json").out) == []


@pytest.mark.parametrize(
    ("options", "line", "key", "value"),
    [
        ((), b"text", None, b"text"),
        (("--key-separator", ":"), b"k:text", b"k", b"text"),
        (("--key", "id"), b'{"id": "k"}', b"k", b'{"id": "k"}'),
        (("--json",), b'{"key": "k", "value": "text"}', b"k", b"text"),
    ],
)
def test_a_byte_order_mark_is_not_of_the_first_line(
    msgtx: Msgtx, client: Client, topic: str, tmp_path: Path, options: tuple[str, ...], line: bytes, key: bytes, value: bytes
) -> None:
    files = [tmp_path / name for name in ("two", "one", "none")]
    for file, text in zip(files, (line + b"\n" + line, line, b""), strict=True):
        file.write_bytes(b"\xef\xbb\xbf" + text)
    assert msgtx("produce", topic, *map(str, files), *options).code == 0
    assert [(record.key, record.value) for record in client.read(client.snapshot([topic]))] == [(key, value)] * 3


@pytest.mark.parametrize(("options", "line"), [(("--json",), b'{"value": "a"}'), (("--key", "id"), b'{"id": "a"}')])
def test_blank_lines_between_json_are_left_out(
    msgtx: Msgtx, client: Client, topic: str, options: tuple[str, ...], line: bytes
) -> None:
    text = b"\n".join([b"", line, b" \t\r", b"", line, line, b"", b"  "])
    assert msgtx("produce", topic, *options, stdin=text).code == 0
    assert len(list(client.read(client.snapshot([topic])))) == 3
    done = msgtx("produce", topic, *options, "--transactional-id", topic, stdin=text + b"\n\nrubbish")
    assert done.err.startswith("msgtx: stdin:10: ")
    assert len(list(client.read(client.snapshot([topic])))) == 3


@pytest.mark.parametrize(
    "odd", [odd for odd in REFUSED if odd.name.startswith("time:") and not odd.by_type], ids=lambda odd: odd.name
)
def test_produce_refuses_what_every_door_refuses(msgtx: Msgtx, client: Client, topic: str, odd: Refused) -> None:
    at = odd.rest["timestamp"]
    given = f'"{at.isoformat()}"' if isinstance(at, datetime) else at if abs(at) < 10**1_000 else "1e5000"
    line = b'{"value": "a", "timestamp": %s}' % str(given).encode()
    done = msgtx("produce", topic, "--json", stdin=line)
    assert done.code == 1
    assert odd.words in done.err or given == "1e5000"
    assert msgtx("produce", topic, "--json", stdin=b'{"value": "a"}').code == 0


def test_files_follow_one_another(msgtx: Msgtx, topic: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"{name}1\n{name}2")
    assert msgtx("produce", topic, str(tmp_path / "a"), "-", str(tmp_path / "b"), stdin=b"stdin").code == 0
    assert msgtx("consume", topic, *READ).out == b"a1\na2\nstdin\nb1\nb2\n"


def test_a_copy_has_the_same_bytes(msgtx: Msgtx, client: Client, wide: str) -> None:
    with client.producer() as producer:
        for i in range(300):
            headers = [("a", b"\xff"), ("a", None), ("ü", b"ok")] if i % 3 else ()
            value = None if i % 7 == 0 else bytes(range(i % 256))
            producer.send(wide, value, key=b"%d" % i if i % 2 else b"\xff", timestamp=1_700_000_000_000 + i, headers=headers)
    lines = msgtx("consume", wide, *READ, "-o", "jsonl").out
    client.topics.create(f"{wide}-copy", partitions=3)
    assert msgtx("produce", f"{wide}-copy", "--json", "--keep-partitions", stdin=lines).code == 0

    def contents(topic: str) -> list[str]:
        with client.consumer(topic, auto_offset_reset="earliest") as consumer:
            records = []
            while any(consumer.offset_lag().values()):
                records += consumer.poll(5)
        return sorted(f"{r.partition} {r.key!r} {r.value!r} {r.headers!r} {r.timestamp}" for r in records)

    assert len(contents(wide)) == 300
    assert contents(f"{wide}-copy") == contents(wide)


def test_keys_come_from_a_field_or_stand_before_a_separator(msgtx: Msgtx, topic: str) -> None:
    assert msgtx("produce", topic, "--key", "id", stdin=b'{"id": 7, "x": 1}\n{"id": "\xc3\xbc"}\n').code == 0
    assert msgtx("produce", topic, "--key-separator", "=>", stdin=b"k=>v=>w\n").code == 0
    rows = msgtx("consume", topic, *READ, "-o", "jsonl").rows
    assert [(row["key"], row["value"]) for row in rows] == [("7", {"id": 7, "x": 1}), ("ü", {"id": "ü"}), ("k", "v=>w")]
    assert msgtx("consume", topic, *READ, "--key-separator", "=").out.endswith(b"k=v=>w\n")


def test_lines_whose_field_was_seen_are_not_stored_again(msgtx: Msgtx, topic: str) -> None:
    lines = [b'{"id": %d, "user": "u%d"}' % (n, n % 2) for n in range(5)]
    assert msgtx("produce", topic, "--dedup-key", "id", stdin=b"\n".join(lines[:3])).code == 0
    assert msgtx("produce", topic, "--dedup-key", "id", "--key", "user", stdin=b"\n".join([*lines, lines[4]])).code == 0
    rows = msgtx("consume", topic, *READ, "-o", "jsonl").rows
    assert [row["value"] for row in rows] == [json.loads(line) for line in lines]
    assert [row["key"] for row in rows] == [None, None, None, "u1", "u0"]


@pytest.mark.parametrize("how", [(), ("--json",), ("--key", "value"), ("--key-separator", ":")])
def test_lines_are_delivered_later(msgtx: Msgtx, client: Client, topic: str, how: tuple[str, ...]) -> None:
    before = time.time() * 1000
    assert msgtx("produce", topic, *how, "--delay-ms", "1h", stdin=b'{"value": "1"}\n{"value": "2"}\n').code == 0
    found = [dict(record.headers) for record in client.read(client.snapshot([topic]))]
    assert all(before <= int(headers["msgtx.deliver-at"]) - 3_600_000 <= time.time() * 1000 for headers in found)
    assert len(found) == 2


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [(b'{"x": 1}', "there is no field 'id'"), (b'{"id": ""}', "1 to 256 bytes"), (b'{"id": "a\\u0000"}', "NUL")],
)
def test_a_line_whose_dedup_key_cannot_be_is_named(msgtx: Msgtx, topic: str, bad: bytes, complaint: str) -> None:
    done = msgtx("produce", topic, "--dedup-key", "id", stdin=b"\n".join([b'{"id": 1}', b'{"id": 2}', bad]))
    assert done.code == 1
    assert done.err.startswith("msgtx: stdin:3: ")
    assert complaint in done.err
    assert len(msgtx("consume", topic, *READ, "-o", "jsonl").rows) == 2


BAD_LINES = [
    (("--json",), b'{"value": "a"}', b'{"value": ', "not JSON"),
    (("--key", "id"), b'{"id": 1}', b'{"no": 1}', "there is no field 'id'"),
    (("--key", "id"), b'{"id": 1}', b'{"id": 1.5}', "whole number"),
    (("--key-separator", ":"), b"a:b", b"ab", "separator"),
    ((), b"a", b"x" * 1_100_000, "max_message_bytes"),
    (("--json",), b'{"value": "a"}', b'{"value": "%s"}' % (b"x" * 1_100_000), "max_message_bytes"),
]


@pytest.mark.parametrize(("options", "good", "bad", "complaint"), BAD_LINES)
def test_a_bad_line_is_named_and_nothing_of_its_transaction_is_committed(
    msgtx: Msgtx, topic: str, tmp_path: Path, options: tuple[str, ...], good: bytes, bad: bytes, complaint: str
) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"\n".join([*[good] * 250, bad, *[good] * 50]))
    transactional = ("--transactional-id", f"{topic}-{complaint}")
    done = msgtx("produce", topic, str(file), *options, *transactional)
    assert done.code == 1
    assert done.err.startswith(f"msgtx: {file}:251: ")
    assert complaint in done.err
    assert done.err.count("\n") == 1
    assert msgtx("consume", topic, *READ).out == b""
    assert msgtx("produce", topic, str(file), *options, *transactional, "--transaction-size", "100").code == 1
    assert len(msgtx("consume", topic, *READ, "-o", "jsonl").rows) == 200
    assert msgtx("transactions", "list", "--state", "Ongoing", "-o", "jsonl").rows == []


@pytest.mark.parametrize(("options", "good", "bad", "complaint"), BAD_LINES)
def test_without_transactions_the_lines_before_a_bad_one_are_sent(
    msgtx: Msgtx, topic: str, options: tuple[str, ...], good: bytes, bad: bytes, complaint: str
) -> None:
    done = msgtx("produce", topic, *options, stdin=b"\n".join([good, good, bad, good]))
    assert done.code == 1
    assert done.err.startswith("msgtx: stdin:3: ")
    assert "(2)" in done.err
    assert len(msgtx("consume", topic, *READ, "-o", "jsonl").rows) == 2


def test_a_pause_of_the_input_commits_what_is_there(program: Program, msgtx: Msgtx, topic: str) -> None:
    with (
        program.start("consume", topic, "--from-beginning") as reader,
        program.start("produce", topic, "--transactional-id", "paused", "--transaction-size", "1000") as writer,
    ):
        writer.stdin.write(b"one\n")
        writer.stdin.flush()
        assert reader.stdout.readline() == b"one\n"  # the transaction is not full, and the input has not ended
        assert writer.poll() is None


def test_memory_does_not_grow_with_the_input(program: Program, topic: str) -> None:
    line = b"x" * 999 + b"\n"
    with program.start("produce", topic, "--transactional-id", "big", stdout=subprocess.DEVNULL) as process:

        def write(count: int) -> None:
            for _ in range(count):
                process.stdin.write(line * 1_000)

        def resident() -> int:
            text = Path(f"/proc/{process.pid}/statm").read_text(encoding="ascii")
            return int(text.split()[1]) * resource.getpagesize()

        write(60)
        before = resident()
        write(180)
        assert resident() - before < 64_000_000  # of 180 MB
        process.terminate()
        assert program.ended(process).code == 130


def test_consume_ends_when_it_is_told_to(msgtx: Msgtx, topic: str) -> None:
    assert msgtx("produce", topic, stdin=b"1\n2\n3\n").code == 0
    assert msgtx("consume", topic, "--from-beginning", "--max-messages", "2").out == b"1\n2\n"
    assert msgtx("consume", topic, "--from-beginning", "--timeout-ms", "100").out == b"1\n2\n3\n"
    assert msgtx("consume", topic, "--timeout-ms", "0").out == b""
    assert msgtx("consume", topic, "--offset", "2", "--no-follow").out == b"3\n"
    assert msgtx("consume", topic, "--offset", "earliest", "--partition", "0", "--no-follow").out == b"1\n2\n3\n"


def test_a_group_goes_on_behind_what_was_printed(msgtx: Msgtx, topic: str) -> None:
    assert msgtx("produce", topic, stdin=b"1\n2\n3\n").code == 0
    group = ("--group", topic, "--from-beginning")
    assert msgtx("consume", topic, *group, "--max-messages", "2").out == b"1\n2\n"
    assert msgtx("consume", topic, *group, "--no-follow").out == b"3\n"
    assert msgtx("consume", topic, *group, "--no-follow").out == b""


def test_isolation_decides_what_is_seen(msgtx: Msgtx, client: Client, topic: str) -> None:
    with client.producer(transactional_id="isolated") as producer:
        producer.begin_transaction()
        producer.send(topic, b"aborted")
        producer.flush(30)
        producer.abort_transaction()
    assert msgtx("consume", topic, *READ).out == b""
    assert msgtx("consume", topic, *READ, "--isolation", "read_uncommitted").out == b"aborted\n"


def test_a_reader_that_leaves_ends_consume_quietly(program: Program, msgtx: Msgtx, topic: str) -> None:
    assert msgtx("produce", topic, stdin=b"x" * 1000 + b"\n" + b"y\n" * 100_000).code == 0
    with program.start("consume", topic, "--from-beginning") as process:
        process.stdout.read(10)
        process.stdout.close()
        err = process.stderr.read()
        assert (process.wait(30), err) == (0, b"")


def test_a_full_disk_is_an_error_in_one_line(program: Program, msgtx: Msgtx, topic: str) -> None:
    assert msgtx("produce", topic, stdin=b"1\n").code == 0
    with Path("/dev/full").open("wb") as full, program.start("consume", topic, *READ, stdout=full) as process:
        _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert err.decode() == "msgtx: No space left on device\n"


@pytest.mark.parametrize("option", ["--group", "--share"])
def test_a_member_without_a_stdout_takes_no_records(program: Program, msgtx: Msgtx, topic: str, option: str) -> None:
    arguments = ["consume", topic, option, topic, "--no-follow"]
    if option == "--share":
        assert msgtx("shares", "configure", topic, "--auto-offset-reset", "earliest").code == 0
    else:
        arguments.append("--from-beginning")
    assert msgtx("produce", topic, stdin=b"1\n").code == 0
    environment = {**os.environ, "MSGTX_DATABASE_URL": program.url}
    line = f"{shlex.join(program.command(*arguments))} >&-"
    closed = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, check=False)
    told = "msgtx: stdout is closed: nothing can be printed, so no record was taken\n"
    assert (closed.returncode, closed.stderr) == (1, told)
    (row,) = msgtx(*arguments, "-o", "jsonl").rows
    assert (row["value"], row.get("delivery_count", 1)) == ("1", 1)


def test_many_producers_at_once_lose_nothing(program: Program, msgtx: Msgtx, wide: str) -> None:
    threads = [
        threading.Thread(target=program.run, args=("produce", wide), kwargs={"stdin": b"x\n" * 10_000}) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert msgtx("consume", wide, *READ).out == b"x\n" * 20_000


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (("--dedup-key", "id"), b'{"id": "1"}\n{"id": "2"}\n{"id": ""}\n'),
        (("--json", "--keep-partitions"), b'{"value": "1"}\n{"value": "2"}\n{"value": "3", "partition": 9}\n'),
    ],
)
def test_a_bad_line_says_how_many_records_were_sent_before_it(
    msgtx: Msgtx, topic: str, options: tuple[str, ...], lines: bytes
) -> None:
    done = msgtx("produce", topic, *options, stdin=lines)
    assert (done.code, done.err.split("; ")[-1]) == (1, "the records before it were sent (2)\n")
    assert len(msgtx("consume", topic, "--from-beginning", "--no-follow", "-o", "jsonl").rows) == 2


@pytest.mark.parametrize("lines", [b"", b"1\n"])
def test_a_partition_that_is_not_there_is_refused_whatever_the_input_holds(msgtx: Msgtx, wide: str, lines: bytes) -> None:
    msgtx("produce", wide, "--partition", "99", stdin=lines).refuses("there is no partition")
