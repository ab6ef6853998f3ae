"""`make test` touches every room; `make test-all` and the targets for Spark, Kafka and Patroni together run every test."""

import ast
import json
import re
import subprocess
import sys
from typing import Final

import pytest

from tests.__main__ import BROWSER, COMPAT, INSTALL, KAFKA, PATRONI, SITE, SPARK, chosen
from tests.house.sources import ROOT

pytestmark = pytest.mark.long

HERE: Final = ROOT / "tests"
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

told = Told()
code = pytest.main(["--collect-only", "-qq", "--assert=plain", "-p", "no:cacheprovider", *sys.argv[2:]], plugins=[told])
open(sys.argv[1], "w").write(json.dumps([told.all, told.taken]))
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


def has_a_target(name: str) -> bool:
    """Whether a test is run by a target of its own."""
    return name.startswith((f"{SPARK}/", f"{KAFKA}/", f"{PATRONI}/", f"{INSTALL}/", f"{COMPAT}/", SITE, *BROWSER))


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    """The tests that a run without a path collects, and those that `make test` takes."""
    told = tmp_path_factory.mktemp("everyday") / "told.json"
    command = [sys.executable, "-c", COLLECT, str(told), *chosen(["--everyday"])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
    everything, taken = json.loads(told.read_text())
    return everything, taken


def test_every_test_that_is_written_is_run_by_a_target(collected: tuple[list[str], ...]) -> None:
    everything, _ = collected
    functions = {identifier.partition("[")[0] for identifier in everything}
    again = {name for name in functions if name.startswith("tests/store/test_small_steps.py")}  # written in other modules
    assert functions - again == {name for name in written() if not has_a_target(name)}
    assert any(has_a_target(name) for name in written())


def test_the_everyday_tests_touch_every_room(collected: tuple[list[str], ...]) -> None:
    everything, taken = collected
    assert {rooms_of(name) for name in taken} == {rooms_of(name) for name in everything}
    texts = [(ROOT / file).read_text(encoding="utf-8") for file in {name.partition("::")[0] for name in taken}]
    named = {name for text in texts for name in re.findall(r"^ *(?:from|import) msgtx\.(\w+)", text, re.MULTILINE)}
    rooms = {path.parent.name for path in (ROOT / "msgtx").glob("*/__init__.py")}
    assert sorted(rooms - named - {"migrations", "spark_jobs"}) == []


def rooms_of(name: str) -> str:
    return name.partition("::")[0].split("/")[1]


def test_the_targets_run_what_is_for_every_day_and_all_and_spark() -> None:
    makefile, ci = (ROOT / "Makefile").read_text(), (ROOT / ".ci" / "run").read_text()
    recipes = dict(re.findall(r"^(test[a-z-]*):.*\n\t@\$\(BIN\)/python -m tests(?: (.*))?$", makefile, re.M))
    assert recipes == {
        "test": "--everyday",
        "test-all": '$(if $(PART),--part "$(PART)")',
        "test-spark": SPARK + ' $(if $(PART),--part "$(PART)")',
        "test-kafka": KAFKA,
        "test-patroni": PATRONI,
        "test-install": INSTALL,
        "test-compat": COMPAT,
        "test-site": SITE,
        "test-console": " ".join(BROWSER) + ' $(if $(PART),--part "$(PART)")',
    }
    ours = ("lint", "test-all", "test-spark", "test-kafka", "test-patroni", "test-console", "test-install", "test-site")
    assert [target for target in ours if not re.search(rf"\bmake {target}\b", ci)] == []
    assert "make test\n" not in ci, "it is a part of test-all"
