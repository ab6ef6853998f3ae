"""The name of a boundary: a statement, shortened to its verb and its object. No word, type or list is cut in the middle."""

import re
from collections.abc import Iterator
from typing import Final

NAME_LENGTH: Final = 60  # then a list ends with the item, and a statement with the word, that fits
LOOKED_AT: Final = 10_000  # letters of a statement

_NAME: Final = r'(?:"[^"]*"|[^\s("])+'
# Patterns, no statements.
_INSERT: Final = re.compile(rf"(insert +into {_NAME}(?: as {_NAME})?) ?(\([^()]*(?:\)|$))?", re.IGNORECASE)
_UPDATE: Final = re.compile(rf"(update (?:only )?{_NAME}(?: (?:as )?(?!set\b){_NAME})? set )(.*)", re.IGNORECASE)  # noqa: S608
# A call with which the statement ends; a type or a name may follow it.
_CALL: Final = re.compile(rf"((?:select|call)(?: \* from)? {_NAME}) ?\(", re.IGNORECASE)
_REST_OF_CALL: Final = re.compile(r"(?:::[\w.\[\]]+)?(?: (?:as )?\w+)?", re.IGNORECASE)
_UP_TO: Final = (
    re.compile(rf"create (?:\w+ )*?table (?:if not exists )?{_NAME}(?= ?\()", re.IGNORECASE),
    re.compile(rf"merge into (?:only )?{_NAME}", re.IGNORECASE),
)
_AFTER_SET: Final = re.compile(r"(?:where|from|returning)\b", re.IGNORECASE)
_HANGING: Final = re.compile(
    r"(?:[\s,=(]|\b(?:and|or|where|set|as|from|into|values|on|using|by|in|not|returning)$)+$", re.IGNORECASE
)


def shortened(statement: str) -> str:
    """Return what names a statement on one line without values. How one begins, whole words of it, names it, too.

    INSERT: its table and columns. UPDATE: its table, and the columns of SET. A call of a function or procedure: its name.
    """
    statement = statement[:LOOKED_AT]
    if found := _INSERT.match(statement):
        table, columns = found[1], found[2]
        return (
            _listed(f"{table} (", columns.strip("() ").split(","), ")" if columns.endswith(")") else "")
            if columns
            else table
        )
    if found := _UPDATE.match(statement):
        return _listed(found[1], list(_columns(found[2])), "")
    if (found := _CALL.match(statement)) and _REST_OF_CALL.fullmatch(statement, _closed(statement, found.end())):
        return found[1]
    for each in _UP_TO:
        if found := each.match(statement):
            return found[0]
    if len(statement) <= NAME_LENGTH:
        return statement
    depths = [*_depths(statement[: NAME_LENGTH + 1])]
    spaces = [at for at, letter in enumerate(statement[: NAME_LENGTH + 1]) if letter == " "] or [NAME_LENGTH]
    shallow = [at for at in spaces if depths[at] == 0 and at > NAME_LENGTH // 3]
    return f"{_HANGING.sub('', statement[: (shallow or spaces)[-1]])} …"


def _listed(head: str, items: list[str], end: str) -> str:
    """Return a list with the items that fit, at least one."""
    told = head
    for number, item in enumerate(items):
        more = f"{told}{', ' if number else ''}{item.strip()}"
        if number and len(more) > NAME_LENGTH:
            return f"{told}, …{end}"
        told = more
    return f"{told}{end}"


def _columns(assignments: str) -> Iterator[str]:
    """Yield the left sides of `a = 1, (b, c) = (2, 3) where …`."""
    begins = 0
    named = False  # this assignment's left side was yielded
    for at, (letter, depth) in enumerate(zip(assignments, _depths(assignments), strict=True)):
        if depth:
            continue
        if _AFTER_SET.match(assignments, at) and assignments[at - 1 : at] == " " and named:
            return
        if letter == "=" and not named:
            yield assignments[begins:at]
            named = True
        elif letter == "," and named:
            begins, named = at + 1, False
    if not named and assignments[begins:].strip():
        yield assignments[begins:]


def _depths(text: str) -> Iterator[int]:
    """Yield for each letter in how many brackets it stands; a bracket stands outside of itself."""
    depth = 0
    for letter in text:
        depth -= letter in ")]" and depth > 0
        yield depth
        depth += letter in "(["


def _closed(text: str, at: int) -> int:
    """Return where the brackets end that are open at `at`; the end, if they do not."""
    depth = 1
    for place in range(at, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place + 1
    return len(text)
