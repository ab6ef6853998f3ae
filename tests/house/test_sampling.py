"""`make test`, `make test-all` and `make test-spark` together run every test."""

import ast
import json
import re
import subprocess
import sys
from typing import Final

import pytest

from tests.__main__ import SPARK, chosen
from tests.sampling import HERE, SHARES

ROOT: Final = HERE.parent
SEED: Final = 7
COLLECT: Final = """
import json, sys
import pytest

class Told:
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items):
        self.all = [item.nodeid for item in items]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session):
        self.taken = [item.nodeid for item in session.items]

    def pytest_deselected(self, items):
        self.left = [item.nodeid for item in items]

told = Told()
code = pytest.main(["--collect-only", "-qq", "--assert=plain", "-p", "no:cacheprovider", *sys.argv[2:]], plugins=[told])
open(sys.argv[1], "w").write(json.dumps([told.all, told.taken, told.left]))
sys.exit(code)
"""


def written() -> set[str]:
    """Return every test function in a file of this folder, whatever the file's name."""
    found = set()
    for path in HERE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
                found.add(f"{path.relative_to(ROOT)}::{node.name}")
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found.add(f"{path.relative_to(ROOT)}::{node.name}")
    return found


def of_spark(name: str) -> bool:
    return any(name.startswith(f"{path}/") for path in SPARK)


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str], list[str]]:
    """The tests that a run without a path collects, that a sample takes, and that it leaves out."""
    told = tmp_path_factory.mktemp("sampling") / "told.json"
    command = [sys.executable, "-c", COLLECT, str(told), *chosen([f"--sample={SEED}"])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
    everything, taken, left = json.loads(told.read_text())
    return everything, taken, left


def test_every_test_that_is_written_is_run_with_sparks_or_without(collected: tuple[list[str], ...]) -> None:
    everything, _, _ = collected
    functions = {identifier.partition("[")[0] for identifier in everything}
    again = {name for name in functions if name.startswith("tests/store/test_small_steps.py")}  # written in other modules
    assert functions - again == {name for name in written() if not of_spark(name)}
    assert any(of_spark(name) for name in written())


def test_a_sample_takes_all_but_a_part_of_the_long_modules(collected: tuple[list[str], ...]) -> None:
    everything, taken, left = collected
    assert sorted([*taken, *left]) == sorted(everything)
    assert {identifier.partition("::")[0] for identifier in left} <= {f"tests/{name}" for name in SHARES}
    assert len(taken) > 0.6 * len(everything)


def test_the_long_modules_are_there() -> None:
    assert [name for name in SHARES if not (HERE / name).is_file()] == []
    assert all(0 < share < 1 for share in SHARES.values())


def test_the_targets_run_a_sample_and_all_and_spark() -> None:
    recipes = dict(
        re.findall(r"^(test[a-z-]*):.*\n\t@\$\(BIN\)/python -m tests(?: (.*))?$", (ROOT / "Makefile").read_text(), re.M)
    )
    assert recipes == {"test": '--sample "$(TEST_SEED)"', "test-all": "", "test-spark": " ".join(SPARK)}
    ci = (ROOT / ".ci" / "run").read_text()
    assert [target for target in ("lint", *recipes) if f"make {target} ||" not in ci] == []
