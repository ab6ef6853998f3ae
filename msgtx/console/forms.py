"""The forms of changes: which inputs each has, and how they become the arguments of its preview."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from msgtx.console.page import Query
from msgtx.errors import InvalidRequest
from msgtx.scopes import Scopes, read_duration, read_moment, read_scope
from msgtx.types import PreparedTransaction, ShiftBy, TransactionId

if TYPE_CHECKING:
    from msgtx.rules.reset import Target

MOST_LETTERS: Final = 10_000  # of one redrive in a browser: some seconds. The command line has no limit
TARGETS: Final = {
    "earliest": "the log start",
    "latest": "the stable end",
    "current": "the present offset, moved into the log",
    "offset": "an offset",
    "shift": "so many offsets forward; negative: back",
    "duration": "the first record that is at most this old, like 36h",
    "datetime": "the first record at or after a time, like 2026-01-31T12:00:00+01:00",
}


@dataclass(frozen=True, slots=True)
class FormField:
    """An input. `is_fixed`: the page names it, in the address of the form; `options`: of a list, by their values."""

    name: str
    label: str
    note: str = ""
    default: str = ""
    is_fixed: bool = False
    is_flag: bool = False
    is_needed: bool = False
    options: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a change. `page`, `name`: where it comes from, and the parameter of its address."""

    page: str
    inputs: tuple[FormField, ...]
    read: Callable[[Query], dict[str, Any]]
    name: str = "name"
    noun: str = ""  # the entry of the menu

    def fixed(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return what the page has named."""
        return {each.name: given.get(each.name, "") for each in self.inputs if each.is_fixed}

    def subject(self, given: Mapping[str, str]) -> str:
        """Return the object to be changed, as its page names it."""
        text = next(given.get(each.name, "") for each in self.inputs if each.is_fixed)
        return text.partition("@")[0] if self.page == "transaction" and "token" in given else text


def _fixed(name: str, label: str) -> FormField:
    return FormField(name, label, is_fixed=True)


def _target(query: Query) -> "Target":
    kind, value = query.choice("target", list(TARGETS)), query.text("value").strip()
    if kind == "duration":
        return read_duration(value)
    if kind == "datetime":
        return read_moment(value)
    if kind in {"offset", "shift"}:
        if not re.fullmatch(r"-?[0-9]{1,18}", value):
            raise InvalidRequest(f"the value is a whole number, not {value!r}", name="value")
        return ShiftBy(int(value)) if kind == "shift" else int(value)
    return "earliest" if kind == "earliest" else "latest" if kind == "latest" else "current"


def _scopes(query: Query) -> Scopes | None:
    return [read_scope(each) for each in query.text("topics").split()] or None


def _reset(query: Query) -> dict[str, Any]:
    return {"group": query.needed("group"), "target": _target(query), "scopes": _scopes(query)}


def _delete_offsets(query: Query) -> dict[str, Any]:
    if (scopes := _scopes(query)) is None:
        raise InvalidRequest("name the topics whose offsets are to be deleted", name="topics")
    return {"group": query.needed("group"), "scopes": scopes}


def _redrive(query: Query) -> dict[str, Any]:
    most = query.whole("max_records", MOST_LETTERS, most=MOST_LETTERS)
    return {"group": query.needed("group"), "max_records": most, "skip_missing": query.text("skip_missing") == "yes"}


def _delete_records(query: Query) -> dict[str, Any]:
    for name in ("partition", "before"):
        query.needed(name)
    partition = query.whole("partition", 0, most=2**31 - 1)
    before = -1 if query.text("before") == "-1" else query.whole("before", 0)
    return {"topic": query.needed("topic"), "partition": partition, "before": before}


def _named(name: str) -> Callable[[Query], dict[str, Any]]:
    return lambda query: {name: query.needed(name)}


_TOPICS: Final = FormField("topics", "Topics", "like orders or orders:0,2, with spaces between", is_needed=True)
_RESET: Final = (
    _fixed("group", "Group"),
    FormField("topics", "Topics", "like orders or orders:0,2, with spaces between; empty: all where it has an offset"),
    FormField("target", "To", options=TARGETS),
    FormField("value", "Value", "for the last four: the offset, number, duration or time"),
)

FORMS: Final[Mapping[str, Form]] = {
    "transactions abort": Form(
        "transaction",
        (_fixed("transaction_id", "Transaction"),),
        lambda query: {"transaction_id": TransactionId.parse(query.needed("transaction_id"))},
        name="id",
        noun="transactions",
    ),
    "transactions complete": Form(
        "transaction",
        (
            _fixed("token", "Token"),
            FormField("decision", "The other system has decided", options={"abort": "abort", "commit": "commit"}),
        ),
        lambda query: {
            "token": PreparedTransaction.parse(query.needed("token")),
            "commit": query.choice("decision", ["abort", "commit"]) == "commit",
        },
        name="id",
        noun="transactions",
    ),
    "transactions fence": Form(
        "transaction",
        (_fixed("transactional_id", "Transactional id"),),
        _named("transactional_id"),
        name="id",
        noun="transactions",
    ),
    "groups reset-offsets": Form("group", _RESET, _reset, noun="groups"),
    "groups delete-offsets": Form(
        "group",
        (_fixed("group", "Group"), _TOPICS),
        _delete_offsets,
        noun="groups",
    ),
    "groups delete": Form("group", (_fixed("group", "Group"),), _named("group"), noun="groups"),
    "shares redrive": Form(
        "share",
        (
            _fixed("group", "Share group"),
            FormField(
                "max_records", "At most", f"dead letters, up to {MOST_LETTERS:,}; the command sends any number", "1000"
            ),
            FormField("skip_missing", "Pass over letters whose topic is gone", is_flag=True),
        ),
        _redrive,
        noun="shares",
    ),
    "shares reset-offsets": Form("share", _RESET, _reset, noun="shares"),
    "shares delete": Form("share", (_fixed("group", "Share group"),), _named("group"), noun="shares"),
    "topics delete-records": Form(
        "topic",
        (
            _fixed("topic", "Topic"),
            FormField("partition", "Partition", is_needed=True),
            FormField("before", "Below offset", "the first offset that stays; -1: all that is there now", is_needed=True),
        ),
        _delete_records,
        noun="topics",
    ),
    "offsets delete-snapshot": Form("cut", (_fixed("name", "Cut"),), _named("name"), noun="cuts"),
    "mirror reset": Form("mirror", (_fixed("name", "Mirror"),), _named("name"), noun="mirrors"),
    "topics delete": Form("topic", (_fixed("topic", "Topic"),), _named("topic"), noun="topics"),
}
