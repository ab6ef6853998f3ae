"""Plant each mutant in a copy of the tree and run the tests that must catch it. Exit code 1: one was not caught."""

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.table import Table

from tests.mutants.pool import shared
from tests.mutants.table import Mutant, TableError, all_mutants
from tests.mutants.workshop import LIMIT_SECONDS, Ran, Workshop, open_workshop

CAUGHT: Final = "caught"
STYLES: Final = {CAUGHT: "green", "survived": "bold red", "broken": "bold yellow", "does not apply": "bold yellow"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a mutant. `why`: the tests that caught it, or those that did not, or what went wrong."""

    mutant: Mutant
    outcome: str
    why: str
    seconds: float = 0.0


def judge(mutant: Mutant, ran: Ran) -> tuple[str, str]:
    """Return outcome and reason: a mutant is caught if every test that it names has failed."""
    if ran.trouble:
        return "broken", ran.trouble
    senseless = [test for named_test in mutant.tests for test in ran.of(named_test, "broken")]
    if senseless:
        return "broken", f"{named(senseless[:1])}: {ran.tests[senseless[0]]['why']}"
    passed = [test for test in mutant.tests if not ran.of(test, "failed")]
    if passed:
        return "survived", f"passed: {named(passed)}"
    return CAUGHT, named([test for named_test in mutant.tests for test in ran.of(named_test, "failed")])


def named(tests: Iterable[str]) -> str:
    """Return the bare names of tests, for a table."""
    return ", ".join(sorted({test.rsplit("::", 1)[-1].split("[", 1)[0] for test in tests}))


def hunt(mutant: Mutant, workshop: Workshop) -> Verdict:
    """Plant a mutant, run its tests, remove it."""
    began = time.monotonic()
    try:
        with workshop.planted(mutant):
            outcome, why = judge(mutant, workshop.run(mutant.tests))
    except TableError as error:
        outcome, why = "does not apply", str(error)
    return Verdict(mutant, outcome, why, time.monotonic() - began)


def healthy(mutants: Sequence[Mutant], workshop: Workshop) -> str:
    """Run all tests that are named on the unchanged tree. Returns what is wrong with them, or ''."""
    tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    ran = workshop.run(tests, limit=LIMIT_SECONDS * max(1, len(mutants) / 20))
    missing = [test for test in tests if not ran.of(test, "passed", "failed", "broken")]
    ill = [f"{test}: {found['why']}" for test, found in ran.tests.items() if found["outcome"] != "passed"]
    return ran.trouble or "\n".join(ill) or (f"not run: {', '.join(missing)}" if missing else "")


def chosen(names: Sequence[str], tiers: Sequence[str]) -> list[Mutant]:
    """Return the mutants that were asked for. Raise `TableError` for an unknown name."""
    mutants = all_mutants()
    if unknown := set(names) - mutants.keys():
        raise TableError(f"there is no mutant {min(unknown)}; there are {', '.join(mutants)}")
    return [
        mutant
        for name, mutant in mutants.items()
        if (not names or name in names) and (not tiers or set(tiers) & set(mutant.tiers))
    ]


def table(verdicts: Sequence[Verdict]) -> Table:
    """Return the verdicts as a table to read."""
    shown = Table("mutant", "tier", "verdict", "by", box=None, pad_edge=False)
    shown.add_column("seconds", justify="right")
    for verdict in sorted(verdicts, key=lambda verdict: verdict.mutant.name):
        style = STYLES[verdict.outcome]
        tiers = " ".join(verdict.mutant.tiers)
        outcome = f"[{style}]{verdict.outcome}[/]"
        shown.add_row(verdict.mutant.name, tiers, outcome, verdict.why.replace("[", r"\["), f"{verdict.seconds:.1f}")
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a mutant in tests/mutants/table.txt (default: all)")
    parser.add_argument("--tier", action="append", default=[], metavar="T1", help="only mutants that this tier must catch")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at once, each job with a server of its own")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        mutants = chosen(options.names, options.tier)
    except TableError as error:
        parser.error(str(error))
    if not mutants:
        parser.error("no mutant was chosen")
    # In a pipe no line is cut off.
    console, progress = Console(width=None if sys.stdout.isatty() else 1_000), Console(stderr=True, soft_wrap=True)
    verdicts: list[Verdict] = []
    with contextlib.ExitStack() as stack:
        workshops = [stack.enter_context(open_workshop()) for _ in range(max(1, min(options.jobs, len(mutants))))]
        progress.print("the tests that are named, on the tree as it is", highlight=False)
        if ill := healthy(mutants, workshops[0]):
            progress.print(f"they do not pass without a mutant, so they catch none:\n{ill}", markup=False, highlight=False)
            return 1
        for verdict in shared(mutants, workshops, hunt, Workshop.stop):
            verdicts.append(verdict)
            at = f"{len(verdicts)}/{len(mutants)}"
            progress.print(f"{at}  {verdict.mutant.name}: {verdict.outcome} ({verdict.seconds:.1f} s)", highlight=False)
    console.print(table(verdicts))
    return 0 if all(verdict.outcome == CAUGHT for verdict in verdicts) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
