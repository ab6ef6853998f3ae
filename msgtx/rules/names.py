"""Names that users give: of groups, transactional ids, instances, snapshots, applications."""

import difflib
from collections.abc import Iterable
from typing import Final

from msgtx.errors import InvalidRequest

# Names stand in indexes, up to two in one, and a row of an index holds 2,704 bytes. Longer ones are no names but data.
NAME_BYTES: Final = 1_000


def check_name(what: str, name: str) -> None:
    """Raise `InvalidRequest` for what cannot be stored as a name. `what` it is a name of: "a group"."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"the name of {what} is no valid UTF-8: {name[:50]!r}") from None
    if not 0 < size <= NAME_BYTES:
        shown = f": {name[:50]!r}…" if size else ""
        raise InvalidRequest(f"the name of {what} has 1 to {NAME_BYTES} bytes of UTF-8, not {size}{shown}")
    if "\0" in name:
        raise InvalidRequest(f"the name of {what} has no NUL character; this one is {name[:50]!r}")


def require_list(topics: Iterable[str] | None) -> None:
    """Raise `TypeError` for a name in place of a list of names: its letters are no topics."""
    if isinstance(topics, str):
        raise TypeError("topics is a list of names; for one topic write [name]")


def did_you_mean(name: str, known: Iterable[str], *, otherwise: str) -> str:
    """Return a question with the nearest known name, to stand behind an error; without one, what to do `otherwise`."""
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.7)
    return f"did you mean {near[0]!r}?" if near else otherwise
