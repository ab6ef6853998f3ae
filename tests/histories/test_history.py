"""T5 and T6, everyday: a short history with a nemesis is clean; when the faults stop, nothing stays open (I8, I12)."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import msgtx
from tests.databases import Connection, connect, wait_until
from tests.faults import CrashServer, crash_server
from tests.histories.history import Result, read_history
from tests.histories.nemesis import SHORT
from tests.histories.rounds import Round
from tests.histories.workers import LEDGERS, PARTITIONS

pytestmark = pytest.mark.long

SEED: Final = 20_261_121
SECONDS: Final = 11.0
MORE_SECONDS: Final = 3.0  # of disturbance at a time, if the machine was too slow for everything to happen
MOST_MORE: Final = 10
CHECKED: Final = 10_000  # operations at least
MOST_SWEEPS: Final = 2  # until nothing is open, once everything open is overdue
ALL_OVERDUE: Final = """
    select coalesce(bool_and(opened_at + timeout_ms * interval '1 ms' < msgtx.clock()), true)
    from msgtx.transactions where state = 'Ongoing'
"""


@pytest.fixture(scope="module")
def crashing() -> Iterator[CrashServer]:
    with crash_server() as server:
        yield server


@pytest.fixture
def round_(crashing: CrashServer) -> Iterator[Round]:
    folder = Path(tempfile.mkdtemp(prefix="msgtx-history-"))
    round_ = Round(crashing, folder, seed=SEED, pace=0.05, blow_seconds=0.6, block_seconds=1.0)
    yield round_
    round_.close()
    shutil.rmtree(folder)


@contextlib.contextmanager
def idle_in_transaction(url: str) -> Iterator[tuple[Connection, Connection]]:
    """Open two of a user's sessions and leave them idle in transaction: one holds a snapshot, the other row locks."""
    with contextlib.closing(connect(url)) as reading, contextlib.closing(connect(url)) as writing:
        for session in (reading, writing):
            session.autocommit = False
        reading.execute("set transaction isolation level repeatable read")
        reading.execute("select count(*) from msgtx.record_batch")
        writing.execute("create table business as select 1 as number")
        writing.execute("select number from business for update")
        writing.execute("select 1 from msgtx.transaction for update")
        yield reading, writing


def leave_open(url: str) -> msgtx.Client:
    """Open a transaction on every partition that no process will end; its client ends with its process."""
    client = msgtx.connect(url)
    producer = client.producer(transactional_id="forgotten", linger_ms=0)
    producer.init_transactions()
    producer.begin_transaction(timeout_ms=300)
    for topic, partition in PARTITIONS:
        producer.send(topic, b"forgotten", partition=partition).result(30)
    return client


def test_a_history_with_a_nemesis_is_clean_and_nothing_stays_open_when_the_faults_stop(round_: Round) -> None:
    """Seeds plan what happens, not when: a failure may need several runs to recur. The long run has many."""
    round_.disturb(SECONDS)
    for _ in range(MOST_MORE):
        if not missing(round_):
            break
        round_.nemesis.disturb(MORE_SECONDS)
    round_.crew.end()  # all that run, daemons too, are killed without successors

    with contextlib.closing(leave_open(round_.url)) as client, idle_in_transaction(round_.url):
        with connect(round_.url) as observer:
            wait_until(lambda: observer.execute(ALL_OVERDUE).fetchone()[0], "everything open is overdue")
        reports = [client.sweep() for _ in range(MOST_SWEEPS)]
        assert reports[0].transactions_aborted >= 1
        assert client.admin.transactions.list(states=["Ongoing", "Prepared"]) == []
        for partition in PARTITIONS:
            ends = client.admin.partitions.describe(partition)
            assert ends.last_stable_offset == ends.log_end_offset, partition

    round_.crew.start()
    round_.drain()
    report = round_.judge(ignored={"forgotten"})
    assert not report.failures, report.failures
    assert not report.anomalies, "\n".join(map(str, report.anomalies))
    assert not missing(round_)
    assert report.checked > CHECKED, report.operations


def missing(round_: Round) -> list[str]:
    """Return the kinds of faults that did not happen: a history without faults would show nothing."""
    counts = round_.nemesis.counts
    history = read_history(round_.folder)
    found = [f"no {kind}" for kind in dict.fromkeys(SHORT) if not counts[kind]]
    if history.counts().total() <= CHECKED:
        found.append(f"no more than {CHECKED} operations: {history.counts()}")
    if not any(each.result is Result.INFO for each in history.kind("send", "commit", "abort", "poll")):
        found.append("no call without an answer, as a kill leaves them")
    refused = {each.answer.get("error") for each in history.kind("commit", "abort") if each.result is Result.FAIL}
    if not refused & {"ProducerFenced", "InvalidProducerEpoch"}:
        found.append(f"no zombie that heard of its successor: {refused}")
    if not any(each.arguments["topic"] in LEDGERS for each in history.kind("send")):
        found.append("no copy")
    owners: dict[tuple[str, int], set[str]] = {}
    for commit in history.kind("commit"):
        for topic, index, _ in commit.arguments["offsets"] if commit.ok else ():
            owners.setdefault((topic, index), set()).add(commit.process.partition(".")[0])
    if not any(len(workers) > 1 for workers in owners.values()):
        found.append("no partition that two members copied")
    return found
