"""`msgtx process`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.program import Ended

Msgtx = Callable[..., Ended]
JOBS = """
from msgtx import OutputRecord

def upper(record):
    return OutputRecord(record.value.upper(), key=record.key)

def twice(record):
    yield record.value
    yield record.value

def none(record):
    return None

def fails(record):
    if record.value == b"bad":
        raise KeyError("stock code")
    return record.value

def text(record):
    return "text"

class Shop:
    @staticmethod
    def sell(record):
        return record.value
"""


@pytest.fixture(autouse=True)
def _jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def process(msgtx: Msgtx, topic: str, wide: str) -> Callable[..., Ended]:
    """`process` from a topic to a wide one, to the end of the input."""

    def call(function: str, *options: str) -> Ended:
        ids = ("--group", topic, "--transactional-id", topic)
        return msgtx("process", topic, wide, function, *ids, "--idle-timeout", "0.1", *options)

    return call


def test_outputs_and_offsets_are_committed_together(msgtx: Msgtx, process: Msgtx, topic: str, wide: str) -> None:
    assert msgtx("produce", topic, stdin=b"a\nb\nc\n").code == 0
    assert json.loads(process("jobs:upper", "-o", "json").out)["records_out"] == 3
    assert process("jobs:upper", "-o", "jsonl").rows[0]["records_in"] == 0
    assert sorted(msgtx("consume", wide, "--from-beginning", "--no-follow").out.split()) == [b"A", b"B", b"C"]
    assert msgtx("consume", topic, "--group", topic, "--no-follow").out == b""


@pytest.mark.parametrize(("function", "count"), [("jobs:twice", 4), ("jobs:none", 0), ("jobs:Shop.sell", 2)])
def test_a_transform_gives_none_one_or_many(
    msgtx: Msgtx, process: Msgtx, topic: str, wide: str, function: str, count: int
) -> None:
    assert msgtx("produce", topic, stdin=b"a\nb\n").code == 0
    assert process(function, "-o", "jsonl").rows[0]["records_out"] == count


def test_only_the_partitions_that_are_named_are_read(msgtx: Msgtx, topic: str, wide: str) -> None:
    for partition in ("0", "1", "2"):
        assert msgtx("produce", wide, "--partition", partition, stdin=partition.encode()).code == 0
    ids = ("--group", wide, "--transactional-id", wide, "--partition", "0", "--partition", "2")
    assert msgtx("process", wide, topic, "jobs:upper", *ids, "--idle-timeout", "0.1").code == 0
    assert sorted(msgtx("consume", topic, "--from-beginning", "--no-follow").out.split()) == [b"0", b"2"]


@pytest.mark.parametrize(
    ("function", "code", "complaint"),
    [
        ("jobs:fails", 1, "jobs:fails failed on {topic}-0 offset 1: KeyError: 'stock code' (jobs.py:16)"),
        ("jobs:text", 1, "TypeError: a transform returns None, bytes, an OutputRecord or an iterable of them, not str"),
        ("jobs:missing", 2, "module 'jobs' has no function 'missing'"),
        ("jobs", 2, "does not read MODULE:FUNCTION"),
        ("nowhere:f", 2, "there is no module 'nowhere'"),
        ("broken:f", 1, "module broken cannot be imported: ZeroDivisionError: division by zero (broken.py:1)"),
    ],
)
def test_a_transform_that_fails_is_named_and_commits_nothing(
    msgtx: Msgtx, process: Msgtx, topic: str, wide: str, function: str, code: int, complaint: str
) -> None:
    assert msgtx("produce", topic, stdin=b"good\nbad\n").code == 0
    done = process(function)
    assert done.code == code
    assert complaint.format(topic=topic) in done.err
    assert done.err.count("\n") == 1
    assert msgtx("consume", wide, "--from-beginning", "--no-follow", "--isolation", "read_committed").out == b""
    assert msgtx("transactions", "list", "--state", "Ongoing", "-o", "jsonl").rows == []
