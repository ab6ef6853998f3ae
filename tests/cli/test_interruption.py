"""SIGINT and SIGTERM at any moment: an exit code, no traceback, and nothing left open."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from msgtx import Client
from tests.cli.program import Ended, Program
from tests.databases import wait_until

pytestmark = pytest.mark.slow

Msgtx = Callable[..., Ended]
SEED = 7
MOMENTS = 3  # random ones, for each verb and signal
LATEST_SECONDS = 1.2  # after the start: the first half of it is imports and the connection
SIGNALS = [signal.SIGINT, signal.SIGTERM]
by_signal = pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)


def assert_ended(done: Ended, codes: set[int]) -> None:
    assert "Traceback" not in done.err
    assert done.code in codes, done.err


def assert_nothing_open(client: Client) -> None:
    client.sweep()
    assert client.admin.transactions.list(states=["Ongoing", "PrepareCommit", "PrepareAbort"]) == []


@pytest.fixture
def filled(client: Client, topic: str) -> str:
    """A topic with enough records that a verb is busy with them for a while."""
    with client.producer() as producer:
        producer.send_batch(topic, [b"%d" % i for i in range(20_000)])
    return topic


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """A folder with a slow transform."""
    (tmp_path / "jobs.py").write_text("import time\ndef slow(record):\n    time.sleep(0.0001)\n    return record.value\n")
    return tmp_path


@by_signal
def test_produce_aborts_what_is_open(program: Program, client: Client, topic: str, number: signal.Signals) -> None:
    with program.start("produce", topic, "--transactional-id", topic) as process:
        process.stdin.write(b"x" * 1_000 + b"\n")
        process.stdin.flush()
        wait_until(lambda: client.admin.transactions.list(states=["Ongoing"]), "the transaction is open")
        process.send_signal(number)
        done = Ended(process.wait(20), process.stdout.read(), process.stderr.read().decode())
    assert_ended(done, {130})
    assert client.admin.transactions.describe(topic).decided_by == "client"
    assert_nothing_open(client)


@by_signal
def test_consume_commits_exactly_what_was_printed(
    program: Program, client: Client, filled: str, number: signal.Signals
) -> None:
    with program.start("consume", filled, "--from-beginning", "--group", filled) as process:
        first = process.stdout.readline()
        process.send_signal(number)
        done = program.ended(process)
    assert_ended(done, {130 if number == signal.SIGINT else 0})
    printed = (first + done.out).split()
    assert printed == [b"%d" % i for i in range(len(printed))]
    with client.consumer(filled, group=filled, enable_auto_commit=False) as consumer:
        committed = consumer.committed()
    assert [at.offset for at in committed.values()] == [len(printed)]


@by_signal
def test_consume_ends_when_it_waits(program: Program, topic: str, number: signal.Signals) -> None:
    with program.start("consume", topic, "--from-beginning") as process, program.start("produce", topic) as writer:
        program.ended(writer, b"one\n")
        assert process.stdout.readline() == b"one\n"
        process.send_signal(number)
        assert_ended(program.ended(process), {130 if number == signal.SIGINT else 0})


@by_signal
def test_consume_ends_when_nobody_reads_its_pipe(program: Program, filled: str, number: signal.Signals) -> None:
    with program.start("consume", filled, "--from-beginning") as process:
        process.stdout.readline()  # 108,890 bytes do not fit into a pipe: it waits in a write now, or soon
        process.send_signal(number)
        assert process.wait(20) in {0, 130}


@by_signal
def test_process_ends_with_a_whole_transaction(
    program: Program, client: Client, filled: str, jobs: Path, number: signal.Signals
) -> None:
    client.topics.create(f"{filled}-out")
    ids = ("--group", filled, "--transactional-id", filled)
    with program.start("process", filled, f"{filled}-out", "jobs:slow", *ids, cwd=jobs) as process:
        with client.consumer(f"{filled}-out", auto_offset_reset="earliest") as consumer:
            assert consumer.poll(60)
        process.send_signal(number)
        done = program.ended(process)
    assert_ended(done, {130, 0})
    assert_nothing_open(client)
    with client.consumer(filled, group=filled, enable_auto_commit=False) as consumer:
        (committed,) = consumer.committed().values()
    ends = client.admin.partitions.describe((f"{filled}-out", 0))
    assert committed.offset > 0
    with client.consumer(f"{filled}-out", auto_offset_reset="earliest") as consumer:
        assert sum(consumer.lag().values()) == committed.offset
    assert ends.last_stable_offset == ends.log_end_offset


@by_signal
def test_a_signal_whose_exception_is_lost_ends_the_next_verb(number: signal.Signals) -> None:
    program = f"""if True:
        import signal
        from msgtx.cli.terminal import interruption
        interruption.listen()
        try:
            signal.raise_signal({int(number)})
        except BaseException:  # as some of Python's own functions in C do
            pass
        with interruption.stopping() as stop:
            print(stop.is_set(), stop.signal)"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["True", str(int(number))]


@pytest.mark.parametrize("verb", ["produce", "transactional", "consume", "process", "list"])
@by_signal
def test_a_signal_at_a_random_moment_leaves_nothing(
    program: Program, client: Client, filled: str, jobs: Path, number: signal.Signals, verb: str
) -> None:
    client.topics.create(f"{filled}-out")
    lines = jobs / "lines"
    lines.write_bytes(b"some words\n" * 3_000_000)
    arguments = {
        "produce": ("produce", f"{filled}-out", str(lines)),
        "transactional": (
            "produce",
            f"{filled}-out",
            str(lines),
            "--transactional-id",
            filled,
            "--transaction-size",
            "5000",
        ),
        "consume": ("consume", filled, "--from-beginning", "--group", filled),
        "process": ("process", filled, f"{filled}-out", "jobs:slow", "--group", filled, "--transactional-id", filled),
        "list": ("topics", "list"),
    }[verb]
    dice = random.Random(f"{SEED} {verb} {number}")
    for _ in range(MOMENTS):
        with program.start(*arguments, cwd=jobs) as process:
            # Before its handlers are installed Python itself handles signals: such moments are not tested.
            wait_until(lambda: _handles(process.pid, number), "the handlers are installed")
            time.sleep(dice.uniform(0, LATEST_SECONDS))
            process.send_signal(number)
            if dice.random() < 0.3:
                process.send_signal(signal.SIGINT)
            assert_ended(program.ended(process), {0, 130})
        assert_nothing_open(client)


def _handles(pid: int, number: signal.Signals) -> bool:
    """Return whether a process handles this signal and SIGALRM, which our handlers install first."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except FileNotFoundError:
        return True
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt:")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) & 1 << number - 1 and int(caught.split()[1], 16) & 1 << signal.SIGALRM - 1)
