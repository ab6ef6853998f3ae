"""The table of mutants, and how one of them is planted."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent.parent
TABLE: Final = Path(__file__).with_name("table.txt")
SENTENCE: Final = re.compile(r"[A-Z].* \([IP]\d+(, [IP]\d+)*\)\.")
# A folder or a file of tests belongs to one tier; the longest name counts.
TIERS: Final = {
    "tests/": "T1",
    "tests/rules": "T0",
    "tests/model": "T2",
    "tests/system/test_crash_sweep": "T3",
    "tests/system/test_server_crash": "T3",
    "tests/system/test_literature": "T3",
    "tests/system/test_interleavings": "T4",
    "tests/house": "T7",
}


class TableError(Exception):
    """A mutant lacks a part, or its old text does not occur exactly once."""


@dataclass(slots=True)
class Edit:
    """A piece of a file, and what replaces it, as lines. `new`: empty if the lines that hold `old` go."""

    file: str
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)

    def place(self, text: str) -> tuple[int, int, str]:
        """Return where it begins and ends in the text of the file, and what comes there. Raise `TableError`."""
        old = "\n".join(self.old)
        start = text.find(old)
        if start < 0 or text.find(old, start + 1) >= 0:
            raise TableError(f"{self.file} has {'no' if start < 0 else 'more than one'} {old!r}")
        end = start + len(old)
        if self.new:
            return start, end, "\n".join(self.new)
        return text.rfind("\n", 0, start) + 1, text.index("\n", end) + 1, ""


@dataclass(slots=True)
class Mutant:
    """A planted bug. `sentence`: what it does, and what it breaks; `tests`: they must catch it."""

    name: str
    sentence: str = ""
    edits: list[Edit] = field(default_factory=list)
    tests: list[str] = field(default_factory=list)

    @property
    def tiers(self) -> list[str]:
        """The tiers of its tests."""
        return sorted({TIERS[max(filter(test.startswith, TIERS), key=len)] for test in self.tests})

    def mutated(self, tree: Path) -> dict[Path, str]:
        """Return the files of a tree that it changes, with their new texts. Raise `TableError`."""
        texts = {edit.file: (tree / edit.file).read_text(encoding="utf-8") for edit in self.edits}
        places = [(edit.file, *edit.place(texts[edit.file])) for edit in self.edits]
        for file, start, end, new in sorted(places, reverse=True):
            texts[file] = texts[file][:start] + new + texts[file][end:]
        return {tree / file: text for file, text in texts.items()}


def read_table(text: str) -> dict[str, Mutant]:
    """Return the mutants of a table by their names. Raise `TableError`."""
    found: dict[str, Mutant] = {}
    file, mutant = "", Mutant("")
    for line in text.splitlines():
        sign, rest = line[4:5], line[6:]
        if line[:1] not in {"", "#", " "}:
            file = line
        elif line.startswith("  ") and line[2] != " ":
            mutant = Mutant(line.strip())
            if mutant.name in found:
                raise TableError(f"{mutant.name} stands there twice")
            found[mutant.name] = mutant
            at = file
        elif sign == "-":
            if not mutant.edits or mutant.edits[-1].new or mutant.edits[-1].file != at:
                mutant.edits.append(Edit(at))
            mutant.edits[-1].old.append(rest)
        elif sign == "+" and mutant.edits:
            mutant.edits[-1].new.append(rest)
        elif line.startswith("    in "):
            at = line[7:]
        elif line.startswith("    tests/"):
            mutant.tests.append(line[4:])
        elif sign:
            mutant.sentence += line[4:]
    for mutant in found.values():
        if not (SENTENCE.fullmatch(mutant.sentence) and mutant.edits and mutant.tests):
            raise TableError(f"{mutant.name} needs a sentence that ends with what it breaks: (I1, P7)., an edit, and tests")
    return found


def all_mutants() -> dict[str, Mutant]:
    """Return the planted bugs by their names."""
    return read_table(TABLE.read_text(encoding="utf-8"))
