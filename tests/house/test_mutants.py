"""The planted bugs fit the current tree, and name tests that exist."""

import ast
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.mutants.__main__ import judge
from tests.mutants.patches import FOLDER, ROOT, Mutant, PatchError, all_patches, apply, read_mutant
from tests.mutants.workshop import Ran

PATCHES: Final = all_patches()
# A folder or a file of tests belongs to one tier; the longest name counts.
TIERS: Final = {
    "tests/rules": "T0",
    "tests/store": "T1",
    "tests/client": "T1",
    "tests/sessions": "T1",
    "tests/database": "T1",
    "tests/cli": "T1",
    "tests/admin": "T1",
    "tests/orm": "T1",
    "tests/aio": "T1",
    "tests/model": "T2",
    "tests/system/test_crash_sweep": "T3",
    "tests/system/test_server_crash": "T3",
    "tests/system/test_literature": "T3",
    "tests/system/test_interleavings": "T4",
    "tests/spark": "T1",
    "tests/house": "T7",
}

each_patch = pytest.mark.parametrize("patch", PATCHES, ids=[patch.stem for patch in PATCHES])


@cache
def names_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def test_there_are_mutants_and_nothing_else_is_called_a_patch() -> None:
    assert len(PATCHES) >= 40
    assert sorted(ROOT.glob("tests/**/*.patch")) == sorted(FOLDER.glob("*.patch"))


@each_patch
def test_a_mutant_applies_to_todays_tree(patch: Path) -> None:
    apply([read_mutant(patch)], ROOT, only_check=True)


@each_patch
def test_a_mutant_is_planted_in_what_is_shipped_and_is_small(patch: Path) -> None:
    mutant = read_mutant(patch)
    assert mutant.files
    for name in mutant.files:
        assert name.startswith(("msgtx/", "cli/", "migrations/", "spark_jobs/"))
        assert (ROOT / name).is_file()
    changed = [
        line
        for line in patch.read_text(encoding="utf-8").splitlines()
        if line[:1] in {"+", "-"} and not line.startswith(("+++ ", "--- a/"))
    ]
    assert 1 <= len(changed) <= 20


@each_patch
def test_the_tests_that_a_mutant_names_are_there(patch: Path) -> None:
    for tier, test in read_mutant(patch).catchers:
        file, *names = test.partition("[")[0].split("::")
        assert (ROOT / file).exists(), file
        assert set(names) <= (names_of(ROOT / file) if names else set()), test
        known = max((folder for folder in TIERS if file.startswith(folder)), key=len, default=None)
        assert known is not None, f"{file} belongs to no tier that this test knows"
        assert tier == TIERS[known], test


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
    mutant = Mutant(Path("m.patch"), "", (), tuple(("T1", test) for test in named), ())
    found = {f"{test}[case]": {"outcome": end, "why": "so"} for test, end in zip(named, ends, strict=False)}
    assert judge(mutant, Ran(found, trouble))[0] == verdict


@pytest.mark.parametrize(
    "header",
    [
        "",
        "No number of what it breaks.\nT1 tests/store/test_x.py::test_a",
        "No tests (I1).",
        "A test without its tier (I1).\ntests/store/test_x.py::test_a",
    ],
)
def test_a_patch_without_its_header_is_refused(header: str, tmp_path: Path) -> None:
    patch = tmp_path / "m.patch"
    patch.write_text(f"{header}\n--- a/msgtx/types.py\n+++ b/msgtx/types.py\n", encoding="utf-8")
    with pytest.raises(PatchError):
        read_mutant(patch)
