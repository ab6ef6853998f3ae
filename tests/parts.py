"""Which points an exhaustive test tries: all, or with `--part N` one part of them, which N chooses.

A crash sweep tries each fifth boundary, and a test of random histories each fifth seed. A weave draws two choices of a
schedule instead of trying their alternatives. `.ci/run` takes N of the commit: each commit tries others, and the same commit
the same ones. `make test-all` tries all.
"""

import zlib
from collections.abc import Sequence
from typing import Final, TypeVar

PARTS: Final = 5  # of a sweep; odd, since sweeps treat odd and even boundaries differently
DRAWN: Final = frozenset({1, 3})  # choices of a schedule that a part draws; of two or three alternatives each

T = TypeVar("T")

_part: int | None = None


def choose(part: int | None) -> None:
    """Take one part from now on; None: all."""
    global _part  # noqa: PLW0603 - as pytest's option, for a whole process
    _part = part


def is_whole() -> bool:
    return _part is None


def points(whole: range) -> range:
    """Return the boundaries of a sweep, or the seeds of a test, or those of the part."""
    return whole if _part is None else whole[_part % PARTS :: PARTS]


def alternatives(able: Sequence[T], trace: Sequence[str]) -> Sequence[T]:
    """Return the alternatives of a choice, behind these steps, that are tried."""
    if _part is None or len(trace) not in DRAWN:
        return able
    return [able[zlib.crc32(f"{_part} {trace}".encode()) % len(able)]]
