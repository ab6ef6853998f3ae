"""A page: its data, as the command line prints them, and the part of them that its address asks for."""

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgtx import errors
from msgtx.rows import json_of

ROWS: Final = 50  # of a table on one page
LARGEST_TABLE: Final = 500  # that a reader may ask for
_LONGEST: Final = 1_000  # characters of a parameter
Row = Mapping[str, Any]
_STATUS: Final[Mapping[type[errors.MsgtxError], int]] = {
    errors.AuthorizationFailed: 403,
    errors.UnknownTopicOrPartition: 404,
    errors.GroupNotFound: 404,
    errors.SnapshotNotFound: 404,
    errors.MirrorNotFound: 404,
    errors.TransactionalIdNotFound: 404,
    errors.TransactionNotFound: 404,
    errors.GroupNotEmpty: 409,
    errors.GroupSubscribedToTopic: 409,
    errors.InvalidTransactionState: 409,
    errors.UsageError: 400,
    errors.RetriableError: 503,
}


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page. `rows`: as `-o json` of `command` prints them; `failure`: why there are none."""

    rows: Any
    command: str
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """What a template draws. `view`: what it needs beside the parts, such as the order of a table.

    `changes`: verbs of `msgtx.changes` that it offers, with the inputs that it fixes.
    """

    title: str
    template: str
    parts: Mapping[str, Section]
    view: Mapping[str, Any] = field(default_factory=dict)
    noun: str = ""  # the entry of the menu that it belongs to
    is_live: bool = True
    changes: Sequence[tuple[str, Mapping[str, str]]] = ()

    def json(self) -> dict[str, Any]:
        """Return the twin: each part by its name; one that failed is null, and says why in `failures`."""
        found = {name: None if part.failure else json_of(part.rows) for name, part in self.parts.items()}
        failures = {name: part.failure for name, part in self.parts.items() if part.failure}
        return {**found, "failures": failures} if failures else found


def part(command: str, ask: Callable[[], Any]) -> Section:
    """Return a part; one that the role may not see, or that takes too long, leaves the others there."""
    try:
        return Section(ask(), command)
    except (errors.AuthorizationFailed, errors.LockTimeout) as error:
        return Section([], command, str(error))


class Deadline:
    """The end of a search after some seconds."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def is_set(self) -> bool:
        """Return whether time is over."""
        return time.monotonic() >= self._at


class Query:
    """The parameters of an address. What does not fit is refused with a sentence."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self.parameters = dict(parameters)

    def text(self, name: str, default: str = "") -> str:
        """Return a text. Raise `InvalidRequest` if it is too long."""
        found = self.parameters.get(name, default)
        if len(found) > _LONGEST:
            raise errors.InvalidRequest(f"{name} has more than {_LONGEST} characters", name=name)
        return found

    def needed(self, name: str) -> str:
        """Return a text that has to be there."""
        if not (found := self.text(name)):
            raise errors.InvalidRequest(f"the address lacks {name}=…", name=name)
        return found

    def whole(self, name: str, default: int, *, least: int = 0, most: int = 2**63 - 1) -> int:
        """Return a whole number within bounds."""
        given = self.text(name)
        if not given:
            return default
        if not re.fullmatch(r"[0-9]{1,19}", given) or not least <= int(given) <= most:
            raise errors.InvalidRequest(f"{name} is a whole number from {least} to {most}, not {given!r}", name=name)
        return int(given)

    def choice(self, name: str, known: Sequence[str], *, default: str | None = None) -> str:
        """Return one of these; by default the first one."""
        given = self.text(name) or default or known[0]
        if given not in known:
            raise errors.InvalidRequest(f"{name} is one of {', '.join(known)}, not {given!r}", name=name)
        return given


@dataclass(frozen=True, slots=True)
class Arranged:
    """Rows that are filtered, sorted and cut into pages as an address asks."""

    rows: Sequence[Row]
    total: int
    page: int
    pages: int
    sort: str
    descending: bool
    filter: str


@dataclass(frozen=True, slots=True)
class Following:
    """Rows that the database has filtered, sorted and cut: a page names the row behind which the next one begins."""

    rows: Sequence[Row]
    after: int | None
    is_first: bool
    sort: str
    descending: bool
    filter: str


def arranged(
    rows: Iterable[Row],
    query: Query,
    *,
    columns: Sequence[str],
    sort: str,
    filter_on: Sequence[str] = (),
    most: int = LARGEST_TABLE,
    prefix: str = "",
) -> Arranged:
    """Filter by a text in some columns, sort by one, cut out a page. `sort`: `column`, or `-column` for descending.

    `prefix`: of the parameters of a second table on a page.
    """
    wanted = query.text(f"{prefix}filter")
    found = [row for row in rows if not wanted or any(wanted.lower() in str(row[name] or "").lower() for name in filter_on)]
    order = query.choice(f"{prefix}sort", [sort, *(f"{sign}{name}" for name in columns for sign in ("", "-"))])
    column = order.removeprefix("-")
    found.sort(key=lambda row: _rank(row[column]), reverse=order.startswith("-"))
    size = query.whole(f"{prefix}rows", min(ROWS, most), least=1, most=most)
    pages = max(1, math.ceil(len(found) / size))
    page = min(query.whole(f"{prefix}page", 1, least=1), pages)
    return Arranged(found[(page - 1) * size : page * size], len(found), page, pages, column, order.startswith("-"), wanted)


def _rank(value: Any) -> tuple[int, float, str]:
    """Return a key by which numbers come in their order, then texts; nothing comes first."""
    if value is None:
        return (0, 0.0, "")
    if isinstance(value, bool | int | float):
        return (1, float(value), "")
    return (2, 0.0, str(value))


def status_of(error: errors.MsgtxError) -> int:
    """Return the status of an answer that shows an error."""
    return next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
