"""The patches: what each plants, and which tests must catch it."""

import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
ROOT: Final = FOLDER.parent.parent
SENTENCE: Final = re.compile(r"[A-Z].*\((?P<broken>[IP]\d+(?:, [IP]\d+)*)\)\.")
CATCHER: Final = re.compile(r"(?P<tier>T[0-8]) (?P<test>tests/\S+)")
TARGET: Final = re.compile(r"^\+\+\+ b/(\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted bug. `catchers`: tier and test; `files`: the paths that it changes, from the root of the tree."""

    patch: Path
    sentence: str
    broken: tuple[str, ...]
    catchers: tuple[tuple[str, str], ...]
    files: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.patch.stem

    @property
    def tiers(self) -> list[str]:
        return sorted({tier for tier, _ in self.catchers})

    @property
    def tests(self) -> list[str]:
        return [test for _, test in self.catchers]


class PatchError(Exception):
    """A patch lacks a part of its header, or does not apply."""


def read_mutant(patch: Path) -> Mutant:
    """Read a patch and its header. Raise `PatchError`."""
    header, mark, _ = (text := patch.read_text(encoding="utf-8")).partition("\n--- a/")
    first, *rest = header.splitlines() or [""]
    sentence = SENTENCE.fullmatch(first)
    if sentence is None:
        raise PatchError(f"{patch.name} does not begin with one sentence that ends with what it breaks: (I1, P7).")
    catchers = [CATCHER.fullmatch(line) for line in rest if not line.startswith("diff --git ")]
    if not catchers or None in catchers:
        raise PatchError(f"{patch.name}: below the sentence stand the tests that catch it: T1 tests/store/test_….py::test_…")
    if not mark:
        raise PatchError(f"{patch.name} has no difference to plant")
    named = tuple((found["tier"], found["test"]) for found in catchers if found is not None)
    return Mutant(patch, first, tuple(sentence["broken"].split(", ")), named, tuple(TARGET.findall(text)))


def all_patches() -> list[Path]:
    """Return every patch, in the order of their names."""
    return sorted(FOLDER.glob("*.patch"))


def apply(mutants: Iterable[Mutant], tree: Path, *, only_check: bool = False) -> None:
    """Plant mutants in a tree. Raise `PatchError` if one does not apply."""
    command = ["git", "apply", "--whitespace=nowarn", *(["--check"] if only_check else [])]
    # The tree may lie inside another repository: git would then skip files that are not of that one.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.resolve().parent)}
    for mutant in mutants:
        done = subprocess.run(
            [*command, str(mutant.patch)], cwd=tree, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise PatchError(f"{mutant.patch.name} does not apply: {done.stderr.strip().splitlines()[0]}")
