"""The planted bugs fit the current tree, and name tests that exist."""

import ast
import difflib
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.house.sources import for_each
from tests.mutants.__main__ import judge
from tests.mutants.table import ROOT, Mutant, TableError, all_mutants, read_table
from tests.mutants.workshop import Ran

MUTANTS: Final = all_mutants()


@cache
def names_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}


@for_each(MUTANTS.values())
def test_a_mutant_is_a_small_change_of_what_is_shipped_today(mutant: Mutant) -> None:
    assert {edit.file.split("/")[0] for edit in mutant.edits} <= {"msgtx", "cli", "migrations", "spark_jobs"}
    for path, text in mutant.mutated(ROOT).items():
        changed = [
            line
            for line in difflib.ndiff(path.read_text(encoding="utf-8").splitlines(), text.splitlines())
            if line[0] in "+-"
        ]
        assert 1 <= len(changed) <= 20


@for_each(MUTANTS.values())
def test_the_tests_that_a_mutant_names_are_there(mutant: Mutant) -> None:
    for test in mutant.tests:
        file, *names = test.partition("[")[0].split("::")
        assert (ROOT / file).exists(), file
        assert set(names) <= (names_of(ROOT / file) if names else set()), test


@pytest.mark.parametrize(
    ("ends", "trouble", "verdict"),
    [
        (("failed", "failed"), "", "caught"),
        (("failed", "passed"), "", "survived"),
        (("passed", "passed"), "", "survived"),
        (("failed", "broken"), "", "broken"),
        (("failed",), "", "survived"),
        ((), "an error while the tests were collected", "broken"),
    ],
)
def test_a_mutant_is_caught_when_all_the_tests_that_it_names_have_failed(
    ends: tuple[str, ...], trouble: str, verdict: str
) -> None:
    named = ("tests/store/test_x.py::test_a", "tests/store/test_x.py::test_b")
    mutant = Mutant("m", tests=list(named))
    found = {f"{test}[case]": {"outcome": end, "why": "so"} for test, end in zip(named, ends, strict=False)}
    assert judge(mutant, Ran(found, trouble))[0] == verdict


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("    No number of what it breaks.\n    - a\n    + b\n    tests/store/test_x.py::test_a", "needs a sentence"),
        ("    No tests (I1).\n    - a\n    + b", "needs a sentence"),
        ("    Nothing to plant (I1).\n    tests/store/test_x.py::test_a", "needs a sentence"),
        ("    Twice (I1).\n    - a\n    tests/store\n  m\n", "stands there twice"),
    ],
)
def test_a_mutant_that_lacks_a_part_is_refused(text: str, refusal: str) -> None:
    with pytest.raises(TableError, match=refusal):
        read_table(f"msgtx/types.py\n  m\n{text}\n")


@pytest.mark.parametrize(
    ("lines", "becomes"),
    [
        ("    - b\n    + c", "a\n  c\nd\n"),
        ("    - b", "a\nd\n"),
        ("    - a\n    -   b\n    + e", "e\nd\n"),
        ("    - a\n    + e\n    - b\n    -  d\n    + f", None),
        ("    - a\n    + b\n    - b\n    + a", "b\n  a\nd\n"),
        ("    - \n    + c", None),
    ],
)
def test_old_text_occurs_once_and_is_replaced_or_its_lines_go(lines: str, becomes: str | None, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("a\n  b\nd\n", encoding="utf-8")
    mutant = read_table(f"x.py\n  m\n    Says (I1).\n{lines}\n    tests/x\n")["m"]
    if becomes is None:
        with pytest.raises(TableError):
            mutant.mutated(tmp_path)
    else:
        assert mutant.mutated(tmp_path) == {tmp_path / "x.py": becomes}
