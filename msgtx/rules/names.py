"""Names that users give: unknown ones with the known ones that may have been meant, and those of producers."""

import difflib
from collections.abc import Iterable
from typing import Final

ID_DIGITS: Final = 19  # of the largest producer id, a bigint


def did_you_mean(name: str, known: Iterable[str], *, otherwise: str) -> str:
    """Return a question with the nearest known name, to stand behind an error; without one, what to do `otherwise`."""
    near = similar_names(name, known, most=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def similar_names(name: str, known: Iterable[str], *, most: int = 5) -> list[str]:
    """Return the known names that are most like this one, the nearest first."""
    return difflib.get_close_matches(name, sorted(known), n=most, cutoff=0.7)


def producer_named(text: str) -> int | str:
    """Return the producer that a text names: a producer id if it is digits, at most as many as an id has.

    All else is a transactional id.
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= ID_DIGITS else text
