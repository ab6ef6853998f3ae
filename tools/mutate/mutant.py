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
    """An edit of a file. `within`: the function that it changes; `id`: unique in it, whatever changes around the piece."""

    id: str
    path: str
    within: str
    edit: Edit
    text: str  # of the unchanged file
    text_hash: str  # of the unchanged function, without comments: an outcome is valid as long as it is the same

    @property
    def name(self) -> str:
        """The file and the function."""
        return f"{self.path.removeprefix('msgtx/')}:{self.within}"

    @property
    def piece(self) -> str:
        """What is replaced."""
        return self.text[self.edit.start : self.edit.end]

    @property
    def mutated(self) -> str:
        """The text of the file with the edit."""
        return self.text[: self.edit.start] + self.edit.replacement + self.text[self.edit.end :]

    @property
    def lines(self) -> range:
        """The numbers of the lines that it changes."""
        first = self.text.count("\n", 0, self.edit.start) + 1
        return range(first, first + self.piece.count("\n") + 1)

    def diff(self) -> str:
        """Return the lines that differ."""
        lines = difflib.unified_diff(self.text.splitlines(), self.mutated.splitlines(), lineterm="", n=1)
        return "\n".join(list(lines)[2:])


def hash_of(text: str) -> str:
    """Return what tells a text from others."""
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def numbered(path: str, text: str, edits: Iterable[tuple[str, Edit]], hashes: Mapping[str, str]) -> list[Mutant]:
    """Return mutants of pairs of a function and an edit; equal edits of equal pieces are numbered by their place.

    `hashes`: of the texts of the functions.
    """
    seen: Counter[tuple[str, str]] = Counter()
    known: set[tuple[int, int, str]] = set()
    found = []
    for within, edit in sorted(edits, key=lambda pair: (pair[1].start, pair[1].end, pair[1].rule)):
        piece, place = text[edit.start : edit.end], (edit.start, edit.end, edit.replacement)
        if edit.replacement == piece or place in known:
            continue
        known.add(place)
        key = "\0".join((edit.rule, " ".join(piece.split()), edit.replacement))
        seen[within, key] += 1
        found.append(Mutant(hash_of(f"{key}\0{seen[within, key]}"), path, within, edit, text, hashes[within]))
    return found
