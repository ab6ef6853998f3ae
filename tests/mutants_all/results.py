"""The outcomes of mutants, line by line in a file, and which survivors are explained."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests.mutants_all.mutant import Mutant
from tests.mutants_all.relevance import OWN_WEIGHT

EXPLAINED: Final = Path(__file__).parent / "explained.txt"
LATEST_WEIGHT, LATEST = 1_000_000, 3  # of the tests that were the last to catch a mutant of the function, and how many
LINE: Final = re.compile(r"(?P<id>[0-9a-f]{10}) (?P<name>\S+:\S+) (?P<reason>\S.{9,})")


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended: caught, survived, stillborn, unreached by any test, or open: some tests have not run.

    It is valid for the function as it was.
    """

    id: str
    text_hash: str
    name: str
    outcome: str
    by: str = ""
    why: str = ""
    tests: int = 0
    complete: bool = True  # all tests that reach it were among those that ran
    seconds: float = 0.0


class Results:
    """Results in a file that only grows: an interrupted run loses nothing, and a mutant's newest line counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._found: dict[str, Result] = {}
        self._killers: defaultdict[str, Counter[str]] = defaultdict(Counter)  # the latest last
        for line in lines:
            if line.endswith("}"):
                self._note(Result(**json.loads(line)))

    def _note(self, result: Result) -> None:
        self._found[result.id] = result
        if result.by:
            of_its_function = self._killers[result.name]
            of_its_function[result.by] = of_its_function.pop(result.by, 0) + 1

    def of(self, mutant: Mutant) -> Result | None:
        """Return a mutant's result if its function is unchanged."""
        found = self._found.get(mutant.id)
        return found if found is not None and found.text_hash == mutant.text_hash else None

    def is_open(self, mutant: Mutant) -> bool:
        """Return whether a mutant has survived the first tests, and the others have not run."""
        found = self.of(mutant)
        return found is not None and found.outcome == "open"

    def killers(self, name: str) -> Counter[str]:
        """Return the tests that have caught mutants of a function, or of its room, with their weights.

        The latest ones weigh most: mutants are taken in the order of the text, and the same tests catch neighbours.
        """
        found = Counter[str](dict.fromkeys(list(self._killers.get(name, ()))[-LATEST:], LATEST_WEIGHT))
        for other, by in list(self._killers.items()):
            if other.rpartition("/")[0] == name.rpartition("/")[0]:
                found.update({test: count * (OWN_WEIGHT if other == name else 1) for test, count in by.items()})
        return found

    def add(self, result: Result) -> None:
        """Keep a result."""
        self._note(result)
        self._path.parent.mkdir(exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")


def read_explained(path: Path = EXPLAINED) -> dict[str, str]:
    """Return the reasons why survivors need no test, by id. A line is an id, the name of what it changes, and the reason."""
    found: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        read = LINE.fullmatch(line)
        if read is None or read["id"] in found:
            raise ValueError(f"{path.name}:{number} is no id, name and reason, or is there twice: {line}")
        found[read["id"]] = read["reason"]
    return found


def without_mutant(explained: Iterable[str], mutants: Iterable[Mutant]) -> list[str]:
    """Return explained ids that belong to no mutant of the current text."""
    return sorted(set(explained) - {mutant.id for mutant in mutants})
