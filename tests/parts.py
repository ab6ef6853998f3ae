"""What a part of the tests is: with `--part N` every test runs, but not with each of its cases.

Of the cases behind a test's first one, a ninth run. A crash sweep tries each ninth boundary in all of its cases. A weave
draws two choices of a schedule instead of trying their alternatives. The model runs a ninth of its histories, with seeds
of the part; a random history of Spark's queries has half of its steps. `.ci/run` takes N of the commit: each commit tries
others, and the same commit the same ones. `make test-all` and `make test-spark` try all.
"""

import math
import zlib
from collections.abc import Sequence
from typing import Final, TypeVar

PARTS: Final = 9  # odd, since sweeps treat odd and even boundaries differently
DRAWN: Final = frozenset({1, 3})  # choices of a schedule that a part draws; of two or three alternatives each
T = TypeVar("T")

_part: int | None = None


def choose(part: int | None) -> None:
    """Take one part from now on; None: all."""
    global _part  # noqa: PLW0603 - as pytest's option, for a whole process
    _part = part


def is_whole() -> bool:
    return _part is None


def has(case: str) -> bool:
    """Whether a case of a test belongs to the part."""
    return _part is None or zlib.crc32(case.encode()) % PARTS == _part % PARTS


def points(whole: range) -> range:
    """Return the boundaries of a sweep, or those of the part: at least one."""
    return whole if _part is None else whole[_part % min(PARTS, len(whole)) :: PARTS]


def histories(seed: int, whole: int) -> tuple[int, int]:
    """Return a seed and a number of random histories: those of the whole, or of the part."""
    return (seed, whole) if _part is None else (seed + _part % PARTS, math.ceil(whole / PARTS))


def alternatives(able: Sequence[T], trace: Sequence[str]) -> Sequence[T]:
    """Return the alternatives of a choice, behind these steps, that are tried."""
    if _part is None or len(trace) not in DRAWN:
        return able
    return [able[zlib.crc32(f"{_part} {trace}".encode()) % len(able)]]
