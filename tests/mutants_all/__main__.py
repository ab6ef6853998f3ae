"""Make mutants of the SQL and the transactional Python and run the tests that reach them. Exit code 1: one survived."""

import argparse
import contextlib
import fnmatch
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from tests.mutants.patches import ROOT
from tests.mutants.pool import shared
from tests.mutants.workshop import Workshop, open_workshop
from tests.mutants_all.mutant import Mutant, together
from tests.mutants_all.of_python import mutants_of_python
from tests.mutants_all.of_sql import HEADER, mutants_of_sql
from tests.mutants_all.relevance import FILE_SECONDS, Map, Reach, calls_of, chosen, names_of, near_python, near_sql
from tests.mutants_all.results import Result, Results, read_explained, without_mutant

KEPT: Final = ROOT / ".mutants"
# Code that stores, decides and reads; not the command line, the database's installation, or code that only reports.
PYTHON: Final = (*("producer/*", "consumer/*", "session/*", "process/*", "protocol", "coordinator/*", "rules/*", "store/*"),)
# The order in which functions of SQL are taken: those that can lose records come first.
FIRST: Final = (
    "append*", "decide*", "seal", "insert_decision", "commit_offsets", "insert_offsets", "check_offsets", "fetch_batches",
    "last_stable_offset", "undecided_*", "consistent_cut", "expire*", "init_producer_id", "fence*", "join_group",
    "assign_partitions", "release_partitions", "heartbeat_group", "remove_*", "require_*",
)  # fmt: skip
# The tests of one mutant take at most this long, by their recorded times; the closest come first. Each mutant is tried alone
# with those that fit into the first seconds: they catch most. The others that survive are of the same few functions.
FIRST_SECONDS, MOST_SECONDS = 4.0, 60.0
TOGETHER: Final = 16  # mutants of a function, at most: more would hide one another
# A test, and a run of several, has this much time and this many times what it took: after that it hangs. It is a test that
# hangs, as a rule, and is named; a whole run that is only slow would be taken for a mutant that is caught.
LEAST_SECONDS, LEAST_OF_A_RUN_SECONDS, TIMES_AS_LONG = 8.0, 40.0, 4.0
PATIENCE_SECONDS: Final = 4  # of a test that waits for what a mutant never does
RECORDING_SECONDS: Final = 1800.0  # for one file of tests, whose every call is noted
STARTING_SECONDS: Final = 120.0


class Worker:
    """A yard in a workshop, and how to ask it."""

    def __init__(self, workshop: Workshop) -> None:
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

    def verdict(self, mutant: Mutant, limits: Mapping[str, float]) -> str:
        """Return how tests end with a mutant: survived if they fail without it, too; a pass is remembered."""
        seconds = LEAST_OF_A_RUN_SECONDS + sum(limits.values())
        outcome = str(self.ask(path=mutant.path, text=mutant.mutated, tests=limits, seconds=seconds)["outcome"])
        if outcome == "caught" and tuple(limits) not in self._healthy:
            if self.ask(path="", text="", tests=limits, seconds=seconds)["outcome"] != "survived":
                return "survived"
            self._healthy.add(tuple(limits))
        return outcome

    def close(self) -> None:
        """End the worker and its current run."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.terminate()
        self._process.wait(STARTING_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()


# ── the choice ──


def sql_files() -> dict[str, Path]:
    """Return the files of the functions and views of the package, by name."""
    return {path.stem: path for path in sorted((ROOT / "msgtx" / "sql").glob("*/*.sql"))}


def sql_texts() -> dict[str, str]:
    """Return the functions and views of the package, by name."""
    return {name: path.read_text(encoding="utf-8") for name, path in sql_files().items()}


def all_mutants() -> list[Mutant]:
    """Return every mutant, the most important first."""
    files = sql_files()
    places = {name: next((at for at, like in enumerate(FIRST) if fnmatch.fnmatch(name, like)), len(FIRST)) for name in files}
    found: list[Mutant] = []
    for name in sorted(files, key=lambda name: (places[name], name)):
        found += mutants_of_sql(str(files[name].relative_to(ROOT)), files[name].read_text(encoding="utf-8"))
    for pattern in PYTHON:
        for path in sorted((ROOT / "msgtx").glob(f"{pattern}.py")):
            found += mutants_of_python(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    return found


def asked_for(
    mutants: Sequence[Mutant], only: Sequence[str], *, sample: int | None, seed: int, rules: Sequence[str] = ()
) -> list[Mutant]:
    """Return those whose name or id is like one of the patterns, and made by one of the rules; of these, a sample.

    A sample comes in the order in which it was drawn: so is whatever a run has time for.
    """
    found = [
        mutant
        for mutant in mutants
        if (not only or any(fnmatch.fnmatch(mutant.name, f"*{like}*") or mutant.id == like for like in only))
        and (not rules or mutant.edit.rule in rules)
    ]
    if sample is None:
        return found
    return random.Random(seed).sample(found, min(sample, len(found)))


def tests_of(
    mutant: Mutant,
    tests: Mapping[str, Reach],
    calls: Mapping[str, set[str]],
    *,
    seconds: float,
    killers: Mapping[str, int],
) -> tuple[dict[str, float], bool]:
    """Return the tests of a mutant, each with its time, and whether these are all that reach it."""
    if mutant.path.endswith(".sql"):
        near = near_sql(mutant.within, tests, calls, header=mutant.edit.rule in HEADER)
    else:
        near = near_python(mutant.path, mutant.within, tests)
    return chosen(near, tests, seconds=seconds, killers=killers)


def groups_of(mutants: Sequence[Mutant]) -> list[list[Mutant]]:
    """Return mutants in groups that have the same tests, and can be planted together: their edits do not overlap."""
    groups: dict[tuple[str, str, bool], list[list[Mutant]]] = {}
    for mutant in mutants:
        of_same = groups.setdefault((mutant.path, mutant.within, mutant.edit.rule in HEADER), [])
        for group in of_same:
            if len(group) < TOGETHER and not any(mutant.overlaps(other) for other in group):
                group.append(mutant)
                break
        else:
            of_same.append([mutant])
    return [group for of_same in groups.values() for group in of_same]


# ── running ──


def hunt(mutants: Sequence[Mutant], worker: Worker, tests: Mapping[str, float], *, complete: bool) -> Iterator[Result]:
    """Plant mutants of one function at once and run its tests, given with the time that each takes.

    What then fails is run with each of them alone: if most survive, all together take little longer than one.
    """
    began = time.monotonic()

    def ended(mutant: Mutant, outcome: str, by: str = "", why: str = "") -> Result:
        seconds = round((time.monotonic() - began) / len(mutants), 1)
        return Result(mutant.id, mutant.file_hash, mutant.name, outcome, by, why, len(tests), complete, seconds)

    alive, left = list(mutants), dict(tests)
    while alive and left:
        limits = {test: LEAST_SECONDS + TIMES_AS_LONG * seconds for test, seconds in left.items()}
        asked = {"path": alive[0].path, "text": together(alive), "tests": limits}
        files = len({test.partition("::")[0] for test in left})
        for _ in range(2):  # without a test that failed, it hung, or the machine did
            whole = sum(left.values()) + files * FILE_SECONDS
            answer = worker.ask(**asked, seconds=LEAST_OF_A_RUN_SECONDS + TIMES_AS_LONG * whole)
            if answer["outcome"] != "caught" or answer.get("by"):
                break
        if answer["outcome"] == "survived":
            break
        failed, survivors = answer.get("by", ""), []
        if failed:
            # A test may fail by itself, on a busy machine, or on the unchanged tree: to catch a mutant, it must fail twice,
            # and pass without the mutant; alone, or behind those of its file, as it may need what these have left.
            ran = list(left)[: list(left).index(failed) + 1]
            of_its_file = [test for test in ran if test.startswith(failed.partition("::")[0])]
            left = {test: seconds for test, seconds in left.items() if test not in ran}
        for mutant in alive:
            outcome = answer["outcome"] if not failed and len(alive) == 1 else "survived"
            for named in ([failed], of_its_file) if failed else ():
                if (outcome := worker.verdict(mutant, {test: limits[test] for test in named})) != "survived":
                    break
            if outcome == "survived":
                survivors.append(mutant)
            else:
                yield ended(mutant, outcome, failed, answer.get("why", ""))
        if left and len(survivors) == len(alive) > 1:  # they do it together only
            for half in (alive[::2], alive[1::2]):
                yield from hunt(half, worker, left, complete=complete)
            return
        alive = survivors
    for mutant in alive:
        yield ended(mutant, "survived" if tests else "unreached")


def record(files: Sequence[str], known: Map, workers: Sequence[Worker], console: Console, *, python: bool) -> None:
    """Note what the tests of some files reach."""

    def one(file: str, worker: Worker) -> tuple[str, dict[str, Any]]:
        return file, worker.ask(path="", text="", record=file, seconds=RECORDING_SECONDS, python=python)

    for number, (file, answer) in enumerate(shared(files, workers, one, Worker.close), 1):
        known.note(ROOT, file, answer.get("tests", {}), python=python, called=answer.get("called", ()))
        console.print(f"noted {number}/{len(files)}  {file}: {len(answer.get('tests', {}))} tests {answer.get('why', '')}")


def tell(result: Result, mutant: Mutant, console: Console, *, number: int, count: int) -> None:
    """Print how a mutant ended, and if it survived, what it is."""
    how = {
        "caught": f"by {names_of([result.by]) or result.why}",
        "stillborn": result.why,
        "survived": f"{result.tests} tests",
    }
    line = f"{number}/{count}  {mutant.id} {mutant.name}:{mutant.line} {mutant.edit.rule}: {result.outcome}"
    console.print(f"{line}  {how.get(result.outcome, '')} ({result.seconds:g} s)", markup=False, highlight=False)


def show(mutant: Mutant, result: Result | None, console: Console) -> None:
    """Print a mutant as a diff."""
    ended = "" if result is None else f", {result.outcome}" + ("" if result.complete else " (not all its tests ran)")
    console.print(
        f"\n{mutant.id} {mutant.name} line {mutant.line}, {mutant.edit.rule}{ended}", markup=False, highlight=False
    )
    console.print(mutant.diff(), markup=False, highlight=False)


def report(mutants: Sequence[Mutant], every: Sequence[Mutant], results: Results, console: Console) -> int:
    """Print survivors without an explanation, needless explanations, and counts. Returns the exit code."""
    explained = read_explained()
    counts: dict[str, Counter[str]] = {}
    left = []
    for mutant in mutants:
        result = results.of(mutant)
        outcome = "not run" if result is None else result.outcome
        if outcome in {"survived", "unreached"}:
            if mutant.id in explained:
                outcome = "explained"
            else:
                left.append((mutant, result))
        elif outcome == "caught" and mutant.id in explained:
            console.print(f"explained, and caught: {mutant.id} {mutant.name}", markup=False, highlight=False)
        counts.setdefault(mutant.name, Counter())[outcome] += 1
    for mutant, result in left:
        show(mutant, result, console)
    for name in without_mutant(explained, every):
        console.print(f"explained, and no mutant of today's text: {name}")
    for name, counted in counts.items():
        told = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counted.items()))
        console.print(f"{name}: {told}", markup=False, highlight=False)
    total = sum(counts.values(), Counter[str]())
    console.print("all: " + ", ".join(f"{number} {outcome}" for outcome, number in sorted(total.items())))
    return 1 if left else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants_all", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="sql/append/*, sender.py:*, or an id")
    parser.add_argument("--rule", action="append", default=[], help="'statement dropped', 'no row lock', …")
    parser.add_argument("--tests", action="append", default=[], metavar="PREFIX", help="only these, as tests/store")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of them, drawn")
    parser.add_argument("--seed", type=int, default=0, help="for --sample")
    parser.add_argument("--minutes", type=float, metavar="M", help="begin no mutant after so long")
    parser.add_argument("--seconds", type=float, default=MOST_SECONDS, help="of tests for one mutant (default: %(default)g)")
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="mutants at once, each job with a server of its own",
    )
    parser.add_argument("--again", action="store_true", help="run also what has survived before")
    parser.add_argument("--list", action="store_true", help="show the mutants, and how they ended, and run nothing")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(soft_wrap=True)
    every = all_mutants()
    mutants = asked_for(every, options.only, sample=options.sample, seed=options.seed, rules=options.rule)
    results = Results(KEPT / "results.jsonl")
    if options.list:
        for mutant in mutants:
            show(mutant, results.of(mutant), console)
        console.print(f"{len(mutants)} mutants")
        return 0
    explained = read_explained()
    again = {"open", *(("survived", "unreached") if options.again else ())}
    todo = [
        mutant
        for mutant in mutants
        if (done := results.of(mutant)) is None or (done.outcome in again and mutant.id not in explained)
    ]
    if todo:
        run(todo, results, console, options)
    return report(mutants, every, results, console)


def run(todo: Sequence[Mutant], results: Results, console: Console, options: argparse.Namespace) -> None:
    """Hunt mutants, and keep each result at once."""
    began = time.monotonic()
    known = Map(KEPT / "map.json")
    python = any(mutant.path.endswith(".py") for mutant in todo)
    with contextlib.ExitStack() as stack:
        workshops = [stack.enter_context(open_workshop()) for _ in range(options.jobs)]
        workers = []
        for workshop in workshops:
            workers.append(Worker(workshop))
            stack.callback(workers[-1].close)
        stale = known.stale(ROOT, python=python, below=options.tests)
        record(stale, known, workers, console, python=python)
        tests, calls = known.tests(options.tests), calls_of(sql_texts())

        def one(mutants: list[Mutant], worker: Worker, *, seconds: float) -> list[tuple[Mutant, Result]]:
            if options.minutes is not None and time.monotonic() - began > options.minutes * 60:
                return []
            killers = results.killers(mutants[0].name)
            named, complete = tests_of(mutants[0], tests, calls, seconds=seconds, killers=killers)
            of_id = {mutant.id: mutant for mutant in mutants}
            found = list(hunt(mutants, worker, named, complete=complete))
            if seconds < options.seconds and not complete:
                found = [replace(each, outcome="open") if each.outcome == "survived" else each for each in found]
            return [(of_id[each.id], each) for each in found]

        settled: set[str] = set()

        def hunted(groups: Sequence[list[Mutant]], seconds: float) -> None:
            for mutant, result in chain.from_iterable(shared(groups, workers, partial(one, seconds=seconds), Worker.close)):
                results.add(result)
                if result.outcome != "open":
                    settled.add(result.id)
                tell(result, mutant, console, number=len(settled), count=len(todo))

        # One function after the other: what survives is known soon. A sample has few mutants of each.
        functions = [todo] if options.sample else [list(of_one) for _, of_one in groupby(todo, lambda mutant: mutant.name)]
        for of_one in functions:
            hunted([[mutant] for mutant in of_one if not results.is_open(mutant)], min(FIRST_SECONDS, options.seconds))
            hunted(groups_of(list(filter(results.is_open, of_one))), options.seconds)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
