"""What a mutant is."""

import difflib
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edit:
    """A piece of a text, what replaces it, and by which rule."""

    rule: str
    start: int
    end: int
    replacement: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """An edit of a file. `within`: the function that it changes; `id` outlives changes elsewhere in the file."""

    id: str
    path: str
    within: str
    edit: Edit
    text: str  # of the unchanged file
    text_hash: str = ""  # of the unchanged function: a result is valid as long as it is the same

    @property
    def mutated(self) -> str:
        """The text of the file with the edit."""
        return together([self])

    def overlaps(self, other: "Mutant") -> bool:
        """Return whether two mutants of a file change the same piece of it, or pieces next to each other."""
        return self.edit.start <= other.edit.end and other.edit.start <= self.edit.end

    @property
    def name(self) -> str:
        """The name shown, and matched by `--only`."""
        return f"{self.path.removeprefix('msgtx/')}:{self.within}"

    @property
    def line(self) -> int:
        """The line on which it begins."""
        return self.text.count("\n", 0, self.edit.start) + 1

    @property
    def lines(self) -> range:
        """The lines that it changes."""
        return range(self.line, self.line + self.text.count("\n", self.edit.start, self.edit.end) + 1)

    def diff(self) -> str:
        """Return the lines that differ."""
        lines = difflib.unified_diff(self.text.splitlines(), self.mutated.splitlines(), lineterm="", n=1)
        return "\n".join(list(lines)[2:])


def together(mutants: Iterable[Mutant]) -> str:
    """Return the text of a file with the edits of several mutants, none of which overlap."""
    edited = ""
    for mutant in sorted(mutants, key=lambda mutant: mutant.edit.start, reverse=True):
        text = edited or mutant.text
        edited = text[: mutant.edit.start] + mutant.edit.replacement + text[mutant.edit.end :]
    return edited


def hash_of(text: str) -> str:
    """Return what tells a text of a function, without its comments, from its other texts."""
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def numbered(path: str, text: str, edits: Iterable[tuple[str, Edit]], hashes: Mapping[str, str]) -> list[Mutant]:
    """Return mutants of pairs of a function and an edit; equal edits of equal pieces are numbered by their place.

    `hashes`: of the texts of the functions.
    """
    seen: Counter[str] = Counter()
    known: set[str] = set()
    found = []
    for within, edit in sorted(edits, key=lambda pair: (pair[1].start, pair[1].end, pair[1].rule, pair[1].replacement)):
        piece = text[edit.start : edit.end]
        result = text[: edit.start] + edit.replacement + text[edit.end :]
        if edit.replacement == piece or result in known:
            continue
        known.add(result)
        key = "\0".join((path, within, edit.rule, " ".join(piece.split()), edit.replacement))
        seen[key] += 1
        digest = hashlib.sha256(f"{key}\0{seen[key]}".encode()).hexdigest()[:10]
        found.append(Mutant(digest, path, within, edit, text, hashes[within]))
    return found
