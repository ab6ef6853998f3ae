"""The hunt: a mutant is planted, and the tests that reach it run, the likeliest first, until one fails for certain."""

import contextlib
import functools
import json
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

from tests.reach.record import Record
from tools.mutate.mutant import Mutant

# A test has this much time and this many times what it took: after that it hangs. A run has a little more.
LEAST_SECONDS, TIMES_AS_LONG, RUN_SECONDS = 4.0, 4.0, 40.0
SLOWEST_SECONDS: Final = 20.0  # of one test: a slower one is of no use here
ENDING_SECONDS: Final = 120.0
LATEST: Final = 5  # tests that have caught mutants of the same function come first: the same tests catch neighbours
WORD: Final = re.compile(r"[a-z]{3,}")
NO_SUBJECT: Final = frozenset({"test", "msgtx", "sql", "and", "not", "the", "that", "its", "are", "null", "from", "where"})
STEM: Final = 4  # letters of a word: lock, locks and locked are one


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a mutant ended: caught, survived, stillborn, or unreached by any test. Valid for the function as it was."""

    id: str
    text_hash: str
    name: str
    outcome: str
    by: str = ""
    why: str = ""


class Outcomes:
    """The outcomes in a file that only grows: an interrupted run loses nothing, and a mutant's newest line counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[tuple[str, str], Outcome] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            if line.endswith("}"):
                self._note(Outcome(**json.loads(line)))

    def _note(self, outcome: Outcome) -> None:
        self._found.pop((outcome.name, outcome.id), None)
        self._found[outcome.name, outcome.id] = outcome

    def of(self, mutant: Mutant) -> str:
        """Return how a mutant ended, or '' if it has not run since its function was changed."""
        found = self._found.get((mutant.name, mutant.id))
        return found.outcome if found is not None and found.text_hash == mutant.text_hash else ""

    def catchers(self, name: str) -> list[str]:
        """Return the tests that were the latest to catch mutants of a function, the latest first."""
        caught = [each.by for each in list(self._found.values()) if each.name == name and each.by]
        return list(dict.fromkeys(reversed(caught)))[:LATEST]

    def add(self, outcome: Outcome) -> None:
        """Keep an outcome."""
        self._note(outcome)
        self._path.parent.mkdir(exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")


class Worker:
    """A yard (`tests/mutants/yard.py`), and how to ask it."""

    def __init__(self, *arguments: str, **options: Any) -> None:
        self._process: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, "-m", "tests.mutants.yard", *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options,
            start_new_session=True,  # Ctrl-C is for this process, which ends that one
        )  # fmt: skip
        self._healthy: set[tuple[str, ...]] = set()
        if self._read() != "ready":
            raise RuntimeError("the yard does not start: see above")

    def _read(self) -> str:
        assert self._process.stdout is not None
        # A test of a mutant may write to a descriptor that it has closed, and that is this one then.
        for line in self._process.stdout:
            if "{" in line:
                return line[line.index("{") :]
            if "ready" in line:
                return "ready"
        return ""

    def run(self, tests: Mapping[str, float], mutant: Mutant | None) -> dict[str, Any]:
        """Run tests, given with the time that each takes, until one fails."""
        limits = {test: LEAST_SECONDS + TIMES_AS_LONG * seconds for test, seconds in tests.items()}
        path, text = ("", "") if mutant is None else (mutant.path, mutant.mutated)
        asked = {"path": path, "text": text, "tests": limits, "seconds": RUN_SECONDS + sum(limits.values())}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        if not answer:
            raise RuntimeError("the yard has ended: see above")
        found: dict[str, Any] = json.loads(answer)
        return found

    def are_healthy(self, tests: Mapping[str, float]) -> bool:
        """Return whether tests pass on the unchanged tree, which is remembered."""
        if tuple(tests) not in self._healthy and self.run(tests, None)["outcome"] == "survived":
            self._healthy.add(tuple(tests))
        return tuple(tests) in self._healthy

    def close(self) -> None:
        """End the worker and its current run."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.terminate()
        self._process.wait(ENDING_SECONDS)
        self._process.stdout.close()


def hunt(mutant: Mutant, worker: Worker, tests: Mapping[str, float]) -> Outcome:
    """Run tests with a mutant until one catches it.

    A test may fail by itself, on a busy machine or on the unchanged tree. To catch a mutant it must fail twice and pass
    without it, alone or behind those of its file, which may have left what it counts.
    """

    def ended(outcome: str, by: str = "", why: str = "") -> Outcome:
        return Outcome(mutant.id, mutant.text_hash, mutant.name, outcome, by, why)

    left = dict(tests)
    while left:
        answer = worker.run(left, mutant)
        if not (by := answer.get("by", "")):
            return ended(answer["outcome"], why=answer.get("why", ""))
        names = list(left)[: list(left).index(by) + 1]
        of_its_file = [name for name in names if name.partition("::")[0] == by.partition("::")[0]]
        for again in ([by], of_its_file)[: len(of_its_file)]:
            if worker.run(some := {name: left[name] for name in again}, mutant).get("by") and worker.are_healthy(some):
                return ended(answer["outcome"], by, answer["why"])
        left = {name: seconds for name, seconds in left.items() if name not in names}
    return ended("survived" if tests else "unreached")


def likeliest(mutant: Mutant, record: Record, catchers: Iterable[str], seconds: float) -> dict[str, float]:
    """Return the tests to run that reach a mutant, each with the time that it takes, as many as fit into `seconds`.

    First come those that have caught others of its function, then those whose names share rare words with its text, then the
    closest and quickest.
    """
    if mutant.path.endswith(".sql"):
        near = record.of_sql(mutant.within)
    else:
        near = record.of_lines(mutant.path, mutant.lines) or record.of_functions(mutant.path, [mutant.within])
    words = words_of(f"{mutant.name} {mutant.piece}")
    shared = {test: words & words_of(test.rpartition("/")[2]) for test in near}
    common = Counter(chain.from_iterable(shared.values()))
    about = {test: round(sum(math.log(len(near) / common[word]) for word in found)) for test, found in shared.items()}
    ranks = {test: rank for rank, test in enumerate(catchers)}
    left = seconds
    found: list[str] = []
    for test in sorted(
        near, key=lambda test: (ranks.get(test, LATEST), -about[test], near[test], record.tests[test].seconds)
    ):
        if (took := record.tests[test].seconds) <= min(left, SLOWEST_SECONDS):
            found.append(test)
            left -= took
    # Within a file tests keep their order: some count what earlier ones have left.
    places = {test: at for at, test in enumerate(record.tests)}
    files = list(dict.fromkeys(test.partition("::")[0] for test in found))
    ordered = sorted(found, key=lambda test: (files.index(test.partition("::")[0]), places[test]))
    return {test: record.tests[test].seconds for test in ordered}


@functools.cache
def words_of(text: str) -> frozenset[str]:
    """Return the beginnings of the words in a name or a text."""
    return frozenset(word[:STEM] for word in WORD.findall(text.lower()) if word not in NO_SUBJECT)
