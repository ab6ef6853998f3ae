"""Make mutants of the SQL and the transactional Python and run the tests that reach them. Exit code 1: one survived."""

import argparse
import contextlib
import fnmatch
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from rich.console import Console

from tests.mutants.pool import shared
from tests.reach.record import ROOT, Record
from tools.mutate.hunt import Outcomes, Worker, hunt, likeliest
from tools.mutate.mutant import Mutant
from tools.mutate.of_python import mutants_of_python
from tools.mutate.of_sql import mutants_of_sql

OUTCOMES: Final = ROOT / "build" / "mutants.jsonl"
EXPLAINED: Final = Path(__file__).with_name("explained.txt")
LINE: Final = re.compile(r"(?P<name>\S+:\S+) (?P<id>[0-9a-f]{10}) (?P<reason>\S.{9,})")
# Code that stores, decides and reads, in the order in which it is taken: what can lose or double a record comes first. It is
# not the command line, the database's installation, or code that only reports.
PLACES: Final = (
    "sql/append/*", "sql/transactions/*", "sql/groups/*", "sql/fetch/*", "sql/publish/*", "sql/locks/*", "sql/rights/*",
    "producer/*", "consumer/*", "receiving/*", "shares/*", "session/*", "store/*", "store/*/*", "rules/*", "coordinator/*",
    "process/*", "protocol*", "sql/*/*",
)  # fmt: skip
REPORTS: Final = ("coordinator/gauges.py", "coordinator/metrics.py", "coordinator/endpoint.py")
SECONDS: Final = 5.0  # of tests for one mutant


def all_mutants() -> list[Mutant]:
    """Return every mutant, the most important first."""
    package = ROOT / "msgtx"
    paths = dict.fromkeys(path for place in PLACES for path in sorted(package.glob(place)))
    found: list[Mutant] = []
    for path in paths:
        if path.suffix in {".sql", ".py"} and path not in {package / name for name in REPORTS}:
            make = mutants_of_sql if path.suffix == ".sql" else mutants_of_python
            found += make(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    return found


def read_explained(text: str) -> dict[tuple[str, str], str]:
    """Return the reasons why survivors need no test, by the name of the function and the mutant's id."""
    found: dict[tuple[str, str], str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#"):
            continue
        read = LINE.fullmatch(line)
        if read is None or (read["name"], read["id"]) in found:
            raise ValueError(f"explained.txt:{number} is no name, id and reason, or is there twice: {line}")
        found[read["name"], read["id"]] = read["reason"]
    return found


def report(mutants: Sequence[Mutant], outcomes: Outcomes, console: Console) -> int:
    """Print survivors without an explanation, needless explanations, and counts. Returns the exit code."""
    explained = read_explained(EXPLAINED.read_text(encoding="utf-8"))
    counts: dict[str, Counter[str]] = {}
    for mutant in mutants:
        key, outcome = (mutant.name, mutant.id), outcomes.of(mutant) or "not run"
        if outcome in {"survived", "unreached"} and key in explained:
            outcome = "explained"
        elif outcome in {"survived", "unreached"}:
            show(mutant, outcome, console)
        elif outcome == "caught" and key in explained:
            console.print(f"explained, and caught: {' '.join(key)}", markup=False, highlight=False)
        counts.setdefault(mutant.name, Counter())[outcome] += 1
    for key in sorted(explained.keys() - {(mutant.name, mutant.id) for mutant in all_mutants()}):
        console.print(f"explained, and no mutant of today's text: {' '.join(key)}", markup=False, highlight=False)
    total = sum(counts.values(), Counter[str]())
    for name, counted in {**counts, "all": total}.items():
        told = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counted.items()))
        console.print(f"{name}: {told}", markup=False, highlight=False)
    return 1 if total["survived"] + total["unreached"] else 0


def show(mutant: Mutant, outcome: str, console: Console) -> None:
    """Print a mutant as a diff."""
    text = f"\n{mutant.name} {mutant.id} line {mutant.lines.start}, {mutant.edit.rule}: {outcome}\n{mutant.diff()}"
    console.print(text, markup=False, highlight=False)


def run(due: Sequence[Mutant], outcomes: Outcomes, console: Console, options: argparse.Namespace) -> None:
    """Hunt mutants, function by function; keep each outcome at once."""
    began = time.monotonic()
    record, lock = Record(), threading.Lock()
    if not record.tests:
        raise SystemExit("which tests reach what is not recorded yet: python -m tests.reach --record")

    def one(mutants: list[Mutant], worker: Worker) -> None:
        for mutant in mutants:
            if time.monotonic() - began > options.minutes * 60:
                return
            found = hunt(mutant, worker, likeliest(mutant, record, outcomes.catchers(mutant.name), options.seconds))
            with lock:
                outcomes.add(found)
                text = f"{mutant.name} {mutant.id} {mutant.edit.rule}: {found.outcome} {found.by or found.why}"
                console.print(text, markup=False, highlight=False)

    with contextlib.ExitStack() as stack:
        workers = [Worker() for _ in range(options.jobs)]
        for worker in workers:
            stack.callback(worker.close)
        for _ in shared(
            [list(of_one) for _, of_one in groupby(due, lambda mutant: mutant.name)], workers, one, Worker.close
        ):
            pass


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutate", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="sql/append/*, sender.py:*, or an id")
    parser.add_argument("--minutes", type=float, default=float("inf"), metavar="M", help="begin no mutant after so long")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="of tests for each that is not caught (default: %(default)g)"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="functions at once, each with a server of its own")
    parser.add_argument("--again", action="store_true", help="run also what has survived before")
    parser.add_argument("--report", action="store_true", help="show what has survived, and counts, and run nothing")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console, outcomes = Console(soft_wrap=True), Outcomes(OUTCOMES)
    mutants = [
        mutant
        for mutant in all_mutants()
        if not options.only
        or mutant.id in options.only
        or any(fnmatch.fnmatch(mutant.name, f"*{like}*") for like in options.only)
    ]
    undone = {"", "survived", "unreached"} if options.again else {""}
    due = [mutant for mutant in mutants if outcomes.of(mutant) in undone]
    if due and not options.report:
        run(due, outcomes, console, options)
    return report(mutants, outcomes, console)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
