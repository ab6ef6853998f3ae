"""The hunt: mutants are planted, tests run, and what fails is looked at until it is certain which mutant a test catches."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tests.mutants.workshop import Workshop
from tests.mutants_all.mutant import Mutant, together
from tests.mutants_all.relevance import FILE_SECONDS
from tests.mutants_all.results import Result

# A test, and a run of several, has this much time and this many times what it took: after that it hangs. It is a test that
# hangs, as a rule, and is named; a whole run that is only slow would be taken for a mutant that is caught.
LEAST_SECONDS, LEAST_OF_A_RUN_SECONDS, TIMES_AS_LONG = 4.0, 40.0, 4.0
PATIENCE_SECONDS: Final = 3  # of a test that waits for what a mutant never does
STARTING_SECONDS: Final = 120.0


class Worker:
    """A yard in a workshop, and how to ask it."""

    def __init__(self, workshop: Workshop) -> None:
        self.tree = workshop.tree
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutants_all.yard"], cwd=workshop.tree,
            env={**workshop.environment(), "PATIENCE_SECONDS": str(PATIENCE_SECONDS)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
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

    def ask(self, **asked: Any) -> dict[str, Any]:
        """Run `tests`, each with its limit in seconds, with `text` in place of the file `path`; '' plants nothing."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        if not answer:
            raise RuntimeError("the yard has ended: see above")
        found: dict[str, Any] = json.loads(answer)
        return found

    def planted(self, mutants: Sequence[Mutant], limits: Mapping[str, float]) -> dict[str, Any]:
        """Run tests with mutants of one file."""
        seconds = LEAST_OF_A_RUN_SECONDS + sum(limits.values())
        return self.ask(path=mutants[0].path, text=together(mutants), tests=limits, seconds=seconds)

    def are_healthy(self, limits: Mapping[str, float]) -> bool:
        """Return whether tests pass on the unchanged tree, which is remembered."""
        if tuple(limits) not in self._healthy:
            seconds = LEAST_OF_A_RUN_SECONDS + sum(limits.values())
            if self.ask(path="", text="", tests=limits, seconds=seconds)["outcome"] != "survived":
                return False
            self._healthy.add(tuple(limits))
        return True

    def close(self) -> None:
        """End the worker and its current run."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.terminate()
        self._process.wait(STARTING_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()


def hunt(mutants: Sequence[Mutant], worker: Worker, tests: Mapping[str, float], *, complete: bool) -> Iterator[Result]:
    """Plant mutants of one function at once and run its tests, given with the time that each takes.

    What then fails is run with parts of them: if most survive, all together take little longer than one. A test that was
    the only one to run, and has failed quickly, has caught its mutant; any other failure is looked at (`guilty`).
    """
    began = time.monotonic()

    def ended(mutant: Mutant, outcome: str, by: str = "", why: str = "") -> Result:
        seconds = round((time.monotonic() - began) / len(mutants), 1)
        return Result(mutant.id, mutant.text_hash, mutant.name, outcome, by, why, len(tests), complete, seconds)

    alive, left = list(mutants), dict(tests)
    while alive and left:
        limits = {test: LEAST_SECONDS + TIMES_AS_LONG * seconds for test, seconds in left.items()}
        answer = run_of(alive, worker, left, limits)
        if answer["outcome"] == "survived":
            break
        found: dict[str, str] = {}
        failed = answer.get("by", "")
        if failed:
            ran = list(left)[: list(left).index(failed) + 1]
            left = {test: seconds for test, seconds in left.items() if test not in ran}
            if len(alive) == len(ran) == 1 and not answer["slow"]:
                found = certain(alive, worker, {failed: limits[failed]}, answer["outcome"])
            else:
                found = guilty(alive, worker, ran, limits)
        elif len(alive) == 1:
            found = {alive[0].id: answer["outcome"]}
        for mutant in alive:
            if mutant.id in found:
                yield ended(mutant, found[mutant.id], failed, answer.get("why", ""))
        if left and not found and len(alive) > 1:  # they do it together only
            for half in (alive[::2], alive[1::2]):
                yield from hunt(half, worker, left, complete=complete)
            return
        alive = [mutant for mutant in alive if mutant.id not in found]
    for mutant in alive:
        yield ended(mutant, "survived" if tests else "unreached")


def run_of(
    mutants: Sequence[Mutant], worker: Worker, tests: Mapping[str, float], limits: Mapping[str, float]
) -> dict[str, Any]:
    """Run tests with mutants; once more if none has failed by name: then the run hung, or the machine did."""
    files = len({test.partition("::")[0] for test in tests})
    seconds = LEAST_OF_A_RUN_SECONDS + TIMES_AS_LONG * (sum(tests.values()) + files * FILE_SECONDS)
    for _ in range(2):
        answer = worker.ask(path=mutants[0].path, text=together(mutants), tests=limits, seconds=seconds)
        if answer["outcome"] != "caught" or answer.get("by"):
            break
    return answer


def guilty(mutants: Sequence[Mutant], worker: Worker, ran: Sequence[str], limits: Mapping[str, float]) -> dict[str, str]:
    """Return the outcomes of those mutants that the last of some tests catches, by their ids.

    A test may fail by itself, on a busy machine, or on the unchanged tree: to catch a mutant, it must fail twice, and pass
    without the mutant; alone, or behind those of its file, as it may need what these have left.
    """
    file = ran[-1].partition("::")[0]
    of_its_file = [test for test in ran if test.partition("::")[0] == file]
    for named in ([ran[-1]], of_its_file)[: len(of_its_file)]:
        if found := halved(mutants, worker, {test: limits[test] for test in named}):
            return found
    return {}


def halved(mutants: Sequence[Mutant], worker: Worker, limits: Mapping[str, float]) -> dict[str, str]:
    """Return the outcomes of those mutants with which tests fail: they run with all, then with either half."""
    outcome = worker.planted(mutants, limits)["outcome"]
    if outcome == "survived":
        return {}
    if len(mutants) == 1:
        return certain(mutants, worker, limits, outcome)
    middle = len(mutants) // 2
    return halved(mutants[:middle], worker, limits) | halved(mutants[middle:], worker, limits)


def certain(mutants: Sequence[Mutant], worker: Worker, limits: Mapping[str, float], outcome: str) -> dict[str, str]:
    """Return the outcome of a mutant with which tests have failed, unless they fail without it, too."""
    if not worker.are_healthy(limits):
        return {}
    return {mutant.id: outcome for mutant in mutants}
