"""The long run (`make test-long`): all of its workers begin, and its verdict says what was found and what could not be."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests import long
from tests.faults import CrashServer, crash_server
from tests.histories import __main__ as program
from tests.histories import crew
from tests.histories.crew import GROUP, LARGE, NotBegunError
from tests.histories.history import read_history
from tests.histories.rounds import Round
from tests.histories.workers import COORDINATOR
from tests.verdicts import Verdict

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def crashing() -> Iterator[CrashServer]:
    with crash_server() as server:
        yield server


@pytest.mark.parametrize("roles", [LARGE, GROUP], ids=["histories", "storm"])
def test_every_worker_of_the_long_run_begins_and_is_seen_to_have_begun(
    crashing: CrashServer, roles: Mapping[str, int]
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="msgtx-begin-"))
    round_ = Round(crashing, folder, seed=1, roles=dict.fromkeys(roles, 1))
    try:
        round_.crew.start()
        told = {operation.process.rpartition("-")[0] for operation in read_history(folder).operations}
        assert round_.crew.failures == []
    finally:
        round_.close()
        shutil.rmtree(folder)
    assert told >= set(roles) - {COORDINATOR}


def test_a_worker_that_does_not_begin_is_named(crashing: CrashServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "BEGIN_SECONDS", 0.0)
    folder = Path(tempfile.mkdtemp(prefix="msgtx-begin-"))
    round_ = Round(crashing, folder, seed=1, roles={"plain": 1})
    try:
        with pytest.raises(NotBegunError, match=r"not at work within 0 s: plain-0\.0"):
            round_.crew.start()
    finally:
        round_.close()
        shutil.rmtree(folder)


def test_a_round_that_could_not_begin_is_told_from_an_anomaly_and_its_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(*_: object, **__: Any) -> None:
        raise NotBegunError("not at work within 90 s: low-0.0")

    monkeypatch.setattr(program, "play", play)
    for name in [name for name in os.environ if name.startswith("MSGTX_")]:
        monkeypatch.setenv(name, os.environ[name])  # the program removes them: other tests have them again
    kept = tmp_path / "new" / "folder"
    ended = CliRunner().invoke(program.main, ["--minutes", "0", "--seed", "3", "--keep", str(kept)])
    assert ended.exit_code == Verdict.NOT_BEGUN
    assert "seed 3: NOT BEGUN, nothing was checked: not at work within 90 s: low-0.0" in ended.output
    assert "ANOMALIES" not in ended.output
    assert kept.is_dir()


CODES = {
    "all clean": ({"a": 0, "b": 0}, Verdict.CLEAN, "no anomaly"),
    "an anomaly": ({"a": 0, "b": 10}, Verdict.ANOMALY, "ANOMALIES: b (exit code 10)"),
    "not begun": ({"a": 11, "b": 0}, Verdict.NOT_BEGUN, "NOT BEGUN: a (exit code 11)"),
    "an exception": ({"a": 1, "b": 0}, Verdict.ENDED_BADLY, "ENDED BADLY: a (exit code 1)"),
    "a signal": ({"a": -9, "b": 0}, Verdict.ENDED_BADLY, "ENDED BADLY: a (exit code -9)"),
    "several": (
        {"a": 11, "b": 10, "c": 12, "d": 10},
        Verdict.ANOMALY,
        "ANOMALIES: b (exit code 10), d (exit code 10); ENDED BADLY: c (exit code 12); NOT BEGUN: a (exit code 11)",
    ),
}


@pytest.mark.parametrize("name", CODES)
def test_the_summary_tells_an_anomaly_from_a_part_that_could_not_look_for_any(name: str) -> None:
    codes, verdict, told = CODES[name]
    assert long.gravest(codes) is verdict
    assert long.summary(codes) == told


@pytest.mark.parametrize("minutes", [0.5, 2.0, 10.0, 60.0])
def test_a_short_run_gives_each_part_time_enough_to_begin(minutes: float) -> None:
    parts = long.minutes_of(minutes)
    assert sum(parts.values()) == pytest.approx(minutes)
    assert min(parts.values()) >= min(long.LEAST_MINUTES, minutes / len(long.SHARES)) - 1e-9
    assert sum(long.SHARES.values()) == pytest.approx(1.0)
