"""How a part of the long run ends: its exit code says whether it found an anomaly, or could not look for one."""

import enum
import sys
from collections.abc import Sequence

import click


class Verdict(enum.IntEnum):
    """An exit code. Python ends with 1 after an exception, click with 2 after bad arguments: these are others."""

    CLEAN = 0
    ANOMALY = 10  # a promise is broken
    NOT_BEGUN = 11  # the workers did not begin: nothing was checked
    ENDED_BADLY = 12  # a worker ended, or stood still, in a way that it never should; the data that it left is sound

    @classmethod
    def of(cls, code: int) -> "Verdict":
        """Return what an exit code says. A code that no part chose is of one that ended badly."""
        return cls(code) if code in set(cls) else cls.ENDED_BADLY


def conclude(failures: Sequence[str], *, looked: str, again: str) -> None:
    """Print what broke, and how to run it again. End the program if a promise is broken."""
    for failure in failures:
        click.echo(f"  {failure}")
    click.echo(f"anomalies {len(failures)}; {looked}")
    if failures:
        click.echo(f"again: python -m {again}")
        sys.exit(Verdict.ANOMALY)
