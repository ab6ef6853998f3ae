"""The ledger: how the mutants of the rules that count ended, in git, so that a run continues in any clone.

It has a line for each function: its name, a hash of its text without comments, and of each mutant that has been run the
first digits of its id. They are followed by nothing if the mutant was caught, by `-` if it is stillborn, by `?` if it
survived. A function whose text is another one has no outcomes.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.mutants_all.mutant import Mutant
from tests.mutants_all.results import Results

LEDGER: Final = Path(__file__).parent / "ledger.txt"
# Without one of these a function does less, or does it at another time: that a test must notice. The other rules move a
# bound or an attribute.
RULES: Final = ("statement dropped", "condition dropped", "negated")
DIGITS: Final = 5  # of an id, as a function has 200 mutants at most
MARKS: Final = {"caught": "", "stillborn": "-", "survived": "?", "unreached": "?"}
OUTCOMES: Final = {"": "caught", "-": "stillborn", "?": "survived"}
LINE: Final = re.compile(r"(?P<name>\S+:\S+) (?P<hash>[0-9a-f]{10})(?P<mutants>(?: [0-9a-f]{5}[-?]?)+)")
TITLE: Final = "# How mutants ended (ledger.py): a function, a hash of its text, ids; `-`: stillborn, `?`: survived.\n"


@dataclass
class Entry:
    """A function: the hash of its text, and the marks of its mutants by the digits of their ids."""

    text_hash: str
    marks: dict[str, str] = field(default_factory=dict)


class Ledger:
    """The outcomes in a file, which `write` writes anew."""

    def __init__(self, path: Path = LEDGER) -> None:
        self._path = path
        self._entries: dict[str, Entry] = {}
        self.read()

    def read(self) -> None:
        """Read the file again: another run may have written it."""
        self._entries.clear()
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        for number, line in enumerate(lines, 1):
            if line.startswith("#"):
                continue
            read = LINE.fullmatch(line)
            if read is None or read["name"] in self._entries:
                raise ValueError(f"{self._path.name}:{number} is no function, hash and ids, or is there twice: {line}")
            marks = {word[:DIGITS]: word[DIGITS:] for word in read["mutants"].split()}
            self._entries[read["name"]] = Entry(read["hash"], marks)

    @property
    def names(self) -> list[str]:
        """The functions."""
        return list(self._entries)

    def outcome(self, mutant: Mutant) -> str:
        """Return how a mutant of a function with this text ended, or ''."""
        entry = self._entries.get(mutant.name)
        if entry is None or entry.text_hash != mutant.text_hash or mutant.edit.rule not in RULES:
            return ""
        mark = entry.marks.get(mutant.id[:DIGITS])
        return "" if mark is None else OUTCOMES[mark]

    def take(self, mutants: Iterable[Mutant], results: Results) -> None:
        """Note the outcomes of mutants of the rules that count, as far as they have one."""
        for mutant in mutants:
            result = results.of(mutant)
            if result is None or result.outcome not in MARKS or mutant.edit.rule not in RULES:
                continue
            entry = self._entries.get(mutant.name)
            if entry is None or entry.text_hash != mutant.text_hash:
                entry = self._entries[mutant.name] = Entry(mutant.text_hash)
            entry.marks[mutant.id[:DIGITS]] = MARKS[result.outcome]

    def write(self, every: Iterable[Mutant]) -> None:
        """Write the file, in order; `every`: all mutants of today, as what is no more is left out."""
        there: dict[str, set[str]] = {}
        for mutant in every:
            there.setdefault(mutant.name, set()).add(mutant.id[:DIGITS])
        lines = [TITLE]
        for name in sorted(self._entries.keys() & there.keys()):
            entry = self._entries[name]
            if words := [digits + mark for digits, mark in sorted(entry.marks.items()) if digits in there[name]]:
                lines.append(f"{name} {entry.text_hash} {' '.join(words)}\n")
        self._path.write_text("".join(lines), encoding="utf-8")
