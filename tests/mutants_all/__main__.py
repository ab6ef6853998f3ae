"""Make mutants of the SQL and the transactional Python and run the tests that reach them. Exit code 1: one survived."""

import argparse
import contextlib
import fnmatch
import math
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from tests.mutants.pool import shared
from tests.mutants.table import ROOT
from tests.mutants.workshop import open_workshop
from tests.mutants_all.hunting import Worker, hunt
from tests.mutants_all.ledger import RULES, Ledger
from tests.mutants_all.mutant import Mutant
from tests.mutants_all.of_python import mutants_of_python
from tests.mutants_all.of_sql import HEADER, mutants_of_sql
from tests.mutants_all.relevance import Map, Reach, calls_of, chosen, names_of, near_python, near_sql
from tests.mutants_all.results import Result, Results, read_explained, without_mutant

KEPT: Final = ROOT / ".mutants"
# Code that stores, decides and reads, in the order in which it is taken: what can lose or double a record comes first. It is
# not the command line, the database's installation, or code that only reports.
PLACES: Final = (
    "sql/append/*", "sql/transactions/*", "sql/groups/*", "sql/fetch/*", "sql/publish/*", "sql/locks/*", "sql/rights/*",
    "producer/*", "consumer/*", "receiving/*", "shares/*", "session/*", "store/*", "rules/*", "coordinator/*", "process/*",
    "protocol*", "sql/*/*",
)  # fmt: skip
REPORTS: Final = ("coordinator/gauges.py", "coordinator/metrics.py", "coordinator/endpoint.py")
# Each mutant is tried alone with the tests that fit into the first seconds, by their recorded times, the closest first: they
# catch most. Those of a function that survive have the same tests: together they are given so many seconds for each of them.
FIRST_SECONDS, SECONDS, MOST_SECONDS = 2.0, 3.0, 60.0
TOGETHER: Final = 4  # mutants of a function, at most: more hide one another
RECORDING_SECONDS: Final = 1800.0  # for one file of tests, whose every call is noted


# ── the choice ──


def sql_texts() -> dict[str, str]:
    """Return the functions and views of the package, by name."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "msgtx" / "sql").glob("*/*.sql"))}


def all_mutants() -> list[Mutant]:
    """Return every mutant, the most important first."""
    found: list[Mutant] = []
    taken = {ROOT / "msgtx" / path for path in REPORTS}
    for place in PLACES:
        for path in sorted((ROOT / "msgtx").glob(place)):
            if path in taken or path.suffix not in {".sql", ".py"}:
                continue
            taken.add(path)
            make = mutants_of_sql if path.suffix == ".sql" else mutants_of_python
            found += make(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    return found


def asked_for(
    mutants: Sequence[Mutant], only: Sequence[str], *, sample: int | None, seed: int, rules: Sequence[str] = ()
) -> list[Mutant]:
    """Return those whose name is like one of the patterns, and made by one of the rules, or whose id is one; or a sample.

    A sample comes in the order in which it was drawn: so is whatever a run has time for.
    """
    found = [
        mutant
        for mutant in mutants
        if mutant.id in only
        or (
            (not only or any(fnmatch.fnmatch(mutant.name, f"*{like}*") for like in only))
            and (not rules or any(fnmatch.fnmatch(mutant.edit.rule, like) for like in rules))
        )
    ]
    if sample is None:
        return found
    return random.Random(seed).sample(found, min(sample, len(found)))


def tests_of(
    mutants: Sequence[Mutant],
    tests: Mapping[str, Reach],
    calls: Mapping[str, set[str]],
    *,
    seconds: float,
    killers: Mapping[str, int],
) -> tuple[dict[str, float], bool]:
    """Return the tests of mutants of one function, each with its time, and whether these are all that reach it."""
    mutant = mutants[0]
    pieces = " ".join(each.text[each.edit.start : each.edit.end] for each in mutants)
    if mutant.path.endswith(".sql"):
        near = near_sql(mutant.within, tests, calls, header=mutant.edit.rule in HEADER, pieces=pieces)
    else:
        near = dict(chain.from_iterable(near_python(each, tests).items() for each in mutants))
    return chosen(near, tests, seconds=seconds, killers=killers, subject=f"{mutant.name} {pieces}")


def groups_of(mutants: Sequence[Mutant], most: int = TOGETHER) -> list[list[Mutant]]:
    """Return mutants in groups that have the same tests, and can be planted together: their edits do not overlap.

    Neighbours come into different groups: one may switch off the branch that the other is in.
    """
    same: dict[tuple[str, str, bool], list[Mutant]] = {}
    for mutant in mutants:
        same.setdefault((mutant.path, mutant.within, mutant.edit.rule in HEADER), []).append(mutant)
    found: list[list[Mutant]] = []
    for of_same in same.values():
        groups: list[list[Mutant]] = [[] for _ in range(math.ceil(len(of_same) / most))]
        for number, mutant in enumerate(of_same):
            for group in [*groups[number % len(groups) :], *groups[: number % len(groups)]]:
                if len(group) < most and not any(mutant.overlaps(other) for other in group):
                    group.append(mutant)
                    break
            else:
                groups.append([mutant])
        found += filter(None, groups)
    return found


# ── running ──


def record(files: Sequence[str], known: Map, workers: Sequence[Worker], console: Console, *, python: bool) -> None:
    """Note what the tests of some files reach."""

    def one(file: str, worker: Worker) -> tuple[str, Path, dict[str, Any]]:
        return file, worker.tree, worker.ask(path="", text="", record=file, seconds=RECORDING_SECONDS, python=python)

    for number, (file, tree, answer) in enumerate(shared(files, workers, one, Worker.close), 1):
        # What has run is the copy: the file itself may have changed meanwhile.
        known.note(tree, file, answer.get("tests", {}), python=python, called=answer.get("called", ()))
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


def show(mutant: Mutant, outcome: str, console: Console) -> None:
    """Print a mutant as a diff."""
    text = f"\n{mutant.id} {mutant.name} line {mutant.line}, {mutant.edit.rule}: {outcome or 'not run'}\n{mutant.diff()}"
    console.print(text, markup=False, highlight=False)


class Known:
    """What is known of mutants: from the ledger, and of what is not in it from the results of this clone."""

    def __init__(self, ledger: Ledger, results: Results, every: Sequence[Mutant]) -> None:
        self.ledger, self.results, self.every = ledger, results, every
        self.explained = read_explained()
        self.keep([mutant for mutant in every if not ledger.outcome(mutant)])

    def outcome(self, mutant: Mutant) -> str:
        """Return how a mutant ended, or ''."""
        result = self.results.of(mutant)
        return self.ledger.outcome(mutant) or ("" if result is None else result.outcome)

    def is_due(self, mutant: Mutant, *, again: bool, anew: bool) -> bool:
        """Return whether a mutant is to be run; `again`: also a survivor that is not explained; `anew`: any."""
        outcome = self.outcome(mutant)
        survived = outcome in {"survived", "unreached"} and mutant.id not in self.explained
        return anew or outcome in {"", "open"} or (again and survived)

    def keep(self, mutants: Sequence[Mutant]) -> None:
        """Take the results of mutants into the ledger."""
        self.ledger.read()
        self.ledger.take(mutants, self.results)
        self.ledger.write(self.every)


def report(mutants: Sequence[Mutant], known: Known, console: Console) -> int:
    """Print survivors without an explanation, needless explanations, and counts. Returns the exit code."""
    counts: dict[str, Counter[str]] = {}
    left = 0
    for mutant in mutants:
        outcome = known.outcome(mutant).replace("open", "") or "not run"
        if outcome in {"survived", "unreached"}:
            if mutant.id in known.explained:
                outcome = "explained"
            else:
                left += 1
                show(mutant, outcome, console)
        elif outcome == "caught" and mutant.id in known.explained:
            console.print(f"explained, and caught: {mutant.id} {mutant.name}", markup=False, highlight=False)
        counts.setdefault(mutant.name, Counter())[outcome] += 1
    for name in without_mutant(known.explained, known.every):
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
    parser.add_argument(
        "--rule", action="append", metavar="PATTERN", help=f"'no row lock', 'swapped', '*' (default: {', '.join(RULES)})"
    )
    parser.add_argument("--tests", action="append", default=[], metavar="PREFIX", help="only these, as tests/store")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of them, drawn")
    parser.add_argument("--seed", type=int, default=0, help="for --sample")
    parser.add_argument("--minutes", type=float, metavar="M", help="begin no function after so long")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="of tests for one that survives the first (default: %(default)g)"
    )
    parser.add_argument(
        "--together",
        type=int,
        default=TOGETHER,
        metavar="N",
        help="of these, planted at once; 1: none hides another (default: %(default)g)",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="functions at once, each with a server of its own")
    parser.add_argument("--again", action="store_true", help="run also what has survived before")
    parser.add_argument("--anew", action="store_true", help="run also what the ledger holds")
    parser.add_argument("--list", action="store_true", help="show the mutants, and how they ended, and run nothing")
    parser.add_argument("--report", action="store_true", help="show what has survived, and counts, and run nothing")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(soft_wrap=True)
    every = all_mutants()
    mutants = asked_for(every, options.only, sample=options.sample, seed=options.seed, rules=options.rule or RULES)
    known = Known(Ledger(), Results(KEPT / "results.jsonl"), every)
    if options.list:
        for mutant in mutants:
            show(mutant, known.outcome(mutant), console)
        console.print(f"{len(mutants)} mutants")
        return 0
    due = [mutant for mutant in mutants if known.is_due(mutant, again=options.again, anew=options.anew)]
    if due and not options.report:
        run(due, known, console, options)
    return report(mutants, known, console)


def run(due: Sequence[Mutant], known: Known, console: Console, options: argparse.Namespace) -> None:
    """Hunt mutants, function by function; keep each result at once."""
    began = time.monotonic()
    reached = Map(KEPT / "reached.json")
    python = any(mutant.path.endswith(".py") for mutant in due)
    lock = threading.Lock()
    settled: set[str] = set()
    with contextlib.ExitStack() as stack:
        workshops = [stack.enter_context(open_workshop()) for _ in range(options.jobs)]
        workers = []
        for workshop in workshops:
            workers.append(Worker(workshop))
            stack.callback(workers[-1].close)
        record(reached.stale(ROOT, python=python, below=options.tests), reached, workers, console, python=python)
        tests, calls = reached.tests(ROOT, options.tests), calls_of(sql_texts())

        def hunted(mutants: Sequence[Mutant], worker: Worker, seconds: float, *, last: bool) -> list[Mutant]:
            """Hunt mutants of one function. Returns those that are to meet more tests; none, if these are the last."""
            killers = known.results.killers(mutants[0].name)
            named, complete = tests_of(mutants, tests, calls, seconds=seconds, killers=killers)
            of_id = {mutant.id: mutant for mutant in mutants}
            survivors = []
            for found in hunt(mutants, worker, named, complete=complete):
                # With none that fits into the first seconds it was not reached yet.
                is_open = found.outcome in {"survived", "unreached"} and not (complete or last)
                result = replace(found, outcome="open") if is_open else found
                with lock:
                    known.results.add(result)
                    survivors += [of_id[result.id]] if is_open else []
                    settled.update(() if is_open else [result.id])
                    tell(result, of_id[result.id], console, number=len(settled), count=len(due))
            return survivors

        def one(mutants: list[Mutant], worker: Worker) -> list[Mutant]:
            if options.minutes is not None and time.monotonic() - began > options.minutes * 60:
                return []
            survivors = []
            for mutant in mutants:
                if known.results.is_open(mutant):  # an interrupted run has left it
                    survivors.append(mutant)
                else:
                    survivors += hunted([mutant], worker, min(FIRST_SECONDS, options.seconds), last=False)
            for group in groups_of(survivors, options.together):
                hunted(group, worker, min(options.seconds * len(group), max(MOST_SECONDS, options.seconds)), last=True)
            return mutants

        functions = [list(of_one) for _, of_one in groupby(due, lambda mutant: mutant.name)]
        for mutants in shared(functions, workers, one, Worker.close):
            known.keep(mutants)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
