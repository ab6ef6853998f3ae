"""Rounds of histories: each has a seed of its own, by which it can be repeated."""

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import HealthCheck, Phase, errors, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.faults import CrashServer
from tests.model.history import History
from tests.model.machine import CrashMachine, Machine
from tests.model.place import HISTORIES, Place

HISTORIES_PER_ROUND: Final = 50
LEAST_HISTORIES: Final = 10  # of a round in a short run
ROUND_MINUTES: Final = 2.0  # a round of crashes takes this long; a run that is shorter has smaller rounds
STEPS: Final = 50
MACHINES: Final[dict[str, type[History]]] = {"connections": Machine, "server": CrashMachine}


@dataclass
class Places:
    """The place of the next history; a fresh database now and then."""

    make_database: Callable[[], str]
    server: CrashServer | None = None
    place: Place | None = None
    operations: int = 0
    raised: Exception | None = None  # by the last history that failed

    def find(self) -> Place:
        if self.place is not None and self.place.histories >= HISTORIES:
            self.close()
        if self.place is None:
            self.place = Place(self.make_database(), self.server)
        return self.place

    def close(self) -> None:
        if self.place is not None:
            self.operations += self.place.operations
            self.place.close()
            self.place = None

    @property
    def counted(self) -> int:
        """Operations that were checked."""
        return self.operations + (0 if self.place is None else self.place.operations)


@contextmanager
def places(make_database: Callable[[], str], server: CrashServer | None = None) -> Iterator[Places]:
    """Histories that lose connections; with a server of their own, crashes of the server."""
    made = Places(make_database, server)
    try:
        yield made
    finally:
        made.close()


def run_round(where: Places, *, number: int | None = None, histories: int = HISTORIES_PER_ROUND, **options: Any) -> None:
    """Run one round of histories. Raise the first failure, made as small as may be."""

    class Here(MACHINES["server" if where.server else "connections"]):  # type: ignore[misc]  # one of two
        find_place = staticmethod(where.find)

        def teardown(self) -> None:
            error = sys.exc_info()[1]
            if isinstance(error, Exception) and not isinstance(error, errors.HypothesisException):
                where.raised = error  # what Hypothesis says instead, if the same steps lead elsewhere, does not name it
            super().teardown()

    chosen = settings(
        max_examples=histories,
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        **{"phases": [Phase.generate, Phase.shrink], **options},
    )
    run_state_machine_as_test(Here if number is None else seed(number)(Here), settings=chosen)


def histories_in(minutes: float) -> int:
    """Return how many histories a round has. 0 minutes repeat a round, of whatever run: it has all of them."""
    if not 0 < minutes < ROUND_MINUTES:
        return HISTORIES_PER_ROUND
    return max(LEAST_HISTORIES, int(HISTORIES_PER_ROUND * minutes / ROUND_MINUTES))


def _failure(where: Places, number: int, histories: int) -> Exception | None:
    """Return the failure of a round, made as small as may be.

    `FlakyStrategyDefinition`: it could not go on, as the same steps led elsewhere, and nothing had failed.
    """
    where.raised = None
    try:
        run_round(where, number=number, histories=histories, database=None)
    except errors.FlakyStrategyDefinition as early:
        return where.raised or early
    except Exception as error:  # noqa: BLE001 - it is reported
        return error
    return None


def run_rounds(where: Places, *, minutes: float, first: int | None, report: Callable[[str], object]) -> int:
    """Run rounds with seeds one above the other until time is over. Returns how many failed."""
    first = random.SystemRandom().randrange(1 << 32) if first is None else first
    kind = "server" if where.server else "connections"
    began, failed, number = time.monotonic(), 0, first
    while number == first or time.monotonic() - began < minutes * 60:
        before, at = where.counted, time.monotonic()
        error = _failure(where, number, histories_in(minutes))
        if isinstance(error, errors.FlakyStrategyDefinition):
            report(f"seed {number}: it ended early, as the same steps led elsewhere (what a crash takes back is chance)")
        elif error is not None:
            failed += 1
            report(f"ANOMALY: {error}\n" + "\n".join(getattr(error, "__notes__", ())))
            report(f"to repeat it: python -m tests.model --faults {kind} --minutes 0 --seed {number}")
        done, seconds = where.counted - before, time.monotonic() - at
        report(f"seed {number}: {done} operations checked in {seconds:.1f} s ({done / seconds:.0f}/s)")
        number += 1
    seconds = time.monotonic() - began
    report(
        f"{kind}: seeds {first} to {number - 1}, {where.counted} operations checked in {seconds:.0f} s"
        f" ({where.counted / seconds:.0f}/s), {failed} anomalies"
    )
    return failed


def minutes_wanted() -> float:
    """Return how long the long profile runs."""
    return float(os.environ.get("MINUTES", "10"))
