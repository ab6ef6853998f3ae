"""Runs that share the tests: together they run each module once."""

import subprocess
import sys
from pathlib import Path

from tests.turns import HERE, LONGEST

SECONDS = 60.0


def run(tests: Path, turns: Path) -> str:
    command = f"{sys.executable} -m pytest -p tests.turns -p no:cacheprovider --turns={turns} {tests}"
    done = subprocess.run(command.split(), cwd=HERE.parent, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def test_a_module_that_another_run_has_taken_is_passed_over(tmp_path: Path) -> None:
    tests, turns = tmp_path / "tests", tmp_path / "turns"
    turns.mkdir()
    for name in ("one", "two"):
        (tests / name).mkdir(parents=True)
        for module in ("__init__", "test_first", "test_last"):
            (tests / name / f"{module}.py").write_text("def test_one(): pass\ndef test_two(): pass\n")
    assert "2 passed" in run(tests / "one" / "test_last.py", turns)
    assert "6 passed" in run(tests, turns)  # from one package to the other, without the last module of the first
    assert "no tests ran" in run(tests, turns)


def test_the_longest_modules_are_there() -> None:
    assert [name for name in LONGEST if not (HERE / name).exists()] == []
