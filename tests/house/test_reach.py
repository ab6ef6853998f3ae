"""Which tests reach what: on records that are written here, and on one that a real run writes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reach import __main__ as program
from tests.reach.record import ROOT, Record, calls_of, distances, hash_of, sources_of

SEAL = "create function msgtx.seal() … perform msgtx.flush(); -- msgtx.nothing()"
FLUSH = "create function msgtx.flush()"
MODULE = """import os


def first():
    found = 1
    return found


def second():
    return 2
"""
TEST = "tests/store/test_seal.py"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with two functions of SQL, a module, a test file, and a record of it."""
    files = {"msgtx/sql/a/seal.sql": SEAL, "msgtx/sql/a/flush.sql": FLUSH, "msgtx/module.py": MODULE, TEST: "# tests"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    tests = {
        "seals": {"seconds": 2.0, "sql": ["seal"], "python": {"msgtx/module.py:first": f"{0b111:x}"}},
        "begins": {"seconds": 1.0, "sql": [], "python": {"msgtx/module.py:first": f"{0b011:x}"}},
    }
    noted = {
        "file": TEST, "hash": hash_of("# tests"), "called": ["seal", "flush"],
        "sources": {"msgtx/module.py": sources_of(MODULE)}, "tests": {f"{TEST}::{name}": of for name, of in tests.items()},
    }  # fmt: skip
    (tmp_path / "record").mkdir()
    (tmp_path / "record" / "one.json").write_text(json.dumps(noted), encoding="utf-8")
    return tmp_path


def reached(found: dict[str, int]) -> set[str]:
    return {test.rpartition("::")[2] for test in found}


def test_a_test_reaches_what_its_statements_name_and_what_that_calls(tree: Path) -> None:
    record = Record(tree / "record", tree)
    assert record.of_sql("flush") == {f"{TEST}::seals": 1}
    assert record.of_sql("nothing") == {}
    calls = calls_of({
        "publish": "create function msgtx.publish() … insert into msgtx.staged values (1)",
        "at_commit": "create constraint trigger at_commit after insert on msgtx.staged execute function msgtx.store()",
        "store": "create function msgtx.store() …",
    })  # fmt: skip
    assert distances("store", calls) == {"store": 0, "at_commit": 1, "publish": 2}


def test_a_test_reaches_the_lines_that_it_runs_and_all_of_a_function_that_has_changed_since(tree: Path) -> None:
    record = Record(tree / "record", tree)
    assert reached(record.of_lines("msgtx/module.py", [6])) == {"seals"}
    assert reached(record.of_lines("msgtx/module.py", [5])) == {"seals", "begins"}
    assert reached(record.of_lines("msgtx/module.py", [1])) == {"seals", "begins"}, "the module itself"
    assert record.of_lines("msgtx/module.py", [10]) == record.of_functions("msgtx/module.py", ["second"]) == {}
    (tree / "msgtx/module.py").write_text(MODULE.replace("found = 1", "found = 2"), encoding="utf-8")
    assert reached(Record(tree / "record", tree).of_lines("msgtx/module.py", [6])) == {"seals", "begins"}


def test_a_test_file_that_is_new_or_has_changed_is_stale(tree: Path) -> None:
    assert Record(tree / "record", tree).stale == []
    (tree / TEST).write_text("# more tests", encoding="utf-8")
    assert Record(tree / "record", tree).stale == [TEST]
    assert Record(tree / "none", tree).stale == [TEST]


def test_a_change_concerns_the_tests_that_reach_it(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "ROOT", tree)
    commit = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all"]
    for command in (["git", "init", "-q"], ["git", "add", "msgtx", "tests"], commit):
        subprocess.run(command, cwd=tree, check=True)
    record = Record(tree / "record", tree)

    def concerned() -> set[str]:
        return {test.removeprefix(f"{TEST}::") for test in program.concerned("HEAD", record)}

    (tree / ".gitignore").write_text("record\n.gitignore\n", encoding="utf-8")
    assert concerned() == {"tests/house"}
    (tree / "msgtx/module.py").write_text(MODULE.replace("return 2", "return 3"), encoding="utf-8")
    assert concerned() == {"tests/house"}, "no test runs that function"
    (tree / "msgtx/module.py").write_text(MODULE.replace("found = 1", "found = 2"), encoding="utf-8")
    assert concerned() == {"tests/house", "seals", "begins"}
    (tree / "msgtx/module.py").write_text(MODULE, encoding="utf-8")
    (tree / "msgtx/sql/a/flush.sql").write_text(f"{FLUSH} …", encoding="utf-8")
    assert concerned() == {"tests/house", "seals"}
    (tree / TEST).write_text("# more tests", encoding="utf-8")
    assert concerned() == {"tests/house", TEST}, "the whole file"
    (tree / "tests/faults.py").touch()
    (tree / "tests/store/test_faults.py").write_text("from tests import faults\n", encoding="utf-8")
    assert concerned() == {"tests/house", TEST, "tests/store/test_faults.py"}


@pytest.mark.long
def test_a_run_writes_what_its_tests_reach(tmp_path: Path) -> None:
    test = "tests/rules/test_background.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.reach.recorder", test]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"REACH_FOLDER": str(tmp_path)}, check=True, capture_output=True)
    record = Record(tmp_path)
    assert test not in record.stale
    text = (ROOT / "msgtx/background.py").read_text(encoding="utf-8").splitlines()
    line = next(number for number, line in enumerate(text, 1) if "self._over:" in line)
    assert record.of_lines("msgtx/background.py", [line])
    assert program.reaching(f"msgtx/background.py:{line}", record)[0].startswith(f"{test}::")
