"""`expire`: the sweeps as a scheduled job, once or again and again.

It does the work of `msgtx sweep`, where jobs are scheduled as Spark applications. The work is the database's: no
executor is used, and a session is there only because a cluster waits for one.
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from msgtx import errors
from msgtx.client import connect
from msgtx.pauses import pause
from msgtx.settings import StopSignal
from msgtx.types import SweepReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST_SECONDS: Final = 0.01  # between the begins of two rounds: less would be a loop that never rests

log = logging.getLogger("msgtx.expire")


@dataclass(frozen=True, slots=True)
class ExpireReport:
    """The counts of all rounds together. `failed`: rounds that met a passing condition, and were left to the next one."""

    rounds: int
    failed: int
    swept: SweepReport
    seconds: float = field(default=0.0, compare=False)


def run(
    spark: "SparkSession | None" = None,
    *,
    url: str | None = None,
    only: Iterable[str] = (),
    dry_run: bool = False,
    every: float | None = None,
    stop: StopSignal | None = None,
    on_round: Callable[[SweepReport], None] | None = None,
    on_failure: Callable[[errors.RetriableError], None] | None = None,
) -> ExpireReport:
    """Do one round of sweeps, or one every `every` seconds until `stop` is set; a round that takes longer delays the next.

    `spark` is not used: a session may be there or not. `url` as in `msgtx.connect`; `only` and `dry_run` as in
    `Client.sweep`. Raise `ConfigError` for an unknown sweep, `InvalidRequest` for less than a hundredth of a second; with
    `every` only errors that no later round can fix.
    """
    if every is not None and not every >= LEAST_SECONDS:
        raise errors.InvalidRequest(f"rounds begin at least every {LEAST_SECONDS:g} s, not every {every:g}")
    began = time.monotonic()
    names = [*only]
    rounds = failed = 0
    total = SweepReport()
    with connect(url) as client:
        while stop is None or not stop.is_set():
            due = time.monotonic() + (every or 0.0)
            try:
                swept = client.sweep(only=names, dry_run=dry_run, stop=stop)
            except errors.RetriableError as error:
                if every is None:
                    raise
                failed += 1
                log.warning("this round could not be done, the next one tries again: %s", error)
                if on_failure is not None:
                    on_failure(error)
            else:
                rounds += 1
                total = _sum(total, swept)
                if on_round is not None:
                    on_round(swept)
            if every is None:
                break
            pause(due - time.monotonic(), stop)
    return ExpireReport(rounds, failed, total, time.monotonic() - began)


def _sum(one: SweepReport, other: SweepReport) -> SweepReport:
    names = [each.name for each in dataclasses.fields(SweepReport)]
    return SweepReport(**{name: getattr(one, name) + getattr(other, name) for name in names})


if __name__ == "__main__":
    from msgtx.spark_jobs.runtime.launch import launch

    launch("expire")
