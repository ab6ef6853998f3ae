"""The calls of the library, from the SQL files: arguments, types, and what a row of an answer holds."""

import re
import textwrap
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgtx.database.schema.functions import said

SQL: Final = Path(__file__).parents[2] / "msgtx" / "sql"
SHORT: Final = {"int": "int4", "integer": "int4", "bigint": "int8", "boolean": "bool", "double precision": "float8"}
PYTHON: Final = {
    **dict.fromkeys(("int4", "int8"), "int"),
    "text": "str",
    "bool": "bool",
    "float8": "float",
    "bytea": "bytes",
    "timestamptz": "datetime",
    "uuid": "UUID",
    "name": "str",
    "jsonb": "Any",
    "void": "None",
}
# Null in any answer: there is no refusal, there is nothing left to do. A line `-- null: a, b[]` names what else may be null.
NULL: Final = {"error", "detail", "next_after"}
# Values that take several columns.
WHOLE: Final = {
    ("partition", "TopicPartition"): ("topic", "partition_index"),
    ("transaction_id", "TransactionId"): ("producer_id", "producer_epoch", "transaction_number"),
}
PART: Final = r'(in |out |inout )?("?\w+"?) ([a-z][\w.]*(?: precision)?)(\[\])?(?: default (.*))?'


@dataclass(frozen=True, slots=True)
class Call:
    """A function of the database: types of its arguments and of its answer's columns, by name.

    A function that returns one value has no columns, only the type of it.
    """

    name: str
    header: str
    arguments: dict[str, str]
    columns: dict[str, str]
    value: str

    def said(self, word: str) -> list[str]:
        """Return what a line `-- word: a, b` of the header lists."""
        return said(word, self.header)


def calls() -> list[Call]:
    """Return the functions that a client, or a role in its own SQL, may call: their headers name a right."""
    found = (read(path) for path in sorted(SQL.glob("*/*.sql"), key=lambda path: path.name))
    return [call for call in found if call is not None and call.said("right")]


def read(path: Path) -> Call | None:
    """Return the function that a file creates; None for a view or a trigger."""
    sql = path.read_text(encoding="utf-8")
    header = sql[: re.search(r"^(?!--)", sql, re.MULTILINE).start()]  # type: ignore[union-attr]  # the end matches
    code = re.sub(r"--.*", "", sql)
    found = re.search(r"create function msgtx\.(\w+)\(", code)
    if found is None:
        return None
    inner, after = _within(code[found.end() :])
    parts = [_part(part) for part in _split(inner)]
    columns = {name: kind for mode, name, kind in parts if mode != "in "}
    value = ""
    if answer := re.match(r"\s*returns (table\s*\(|(?:setof )?([\w.]+(?:\[\])?))", after):
        if answer[2] is None:
            columns = {name: kind for _, name, kind in map(_part, _split(_within(after[answer.end() :])[0]))}
        elif answer[2] != "record":
            value = _short(answer[2])
    arguments = {name: kind for mode, name, kind in parts if mode != "out "}
    return Call(path.stem, header, arguments, columns if not value else {}, value)


def _within(text: str) -> tuple[str, str]:
    """Return what stands before the parenthesis that closes, and what stands behind it."""
    depth = 1
    for at, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if not depth:
            return text[:at], text[at + 1 :]
    raise ValueError("a parenthesis is not closed")


def _split(inner: str) -> list[str]:
    return [" ".join(part.split()) for part in re.split(r",(?![^(]*\))", inner) if part.strip()]


def _part(text: str) -> tuple[str, str, str]:
    found = re.fullmatch(PART, text)
    if found is None:
        raise ValueError(f"not an argument or column: {text}")
    return found[1] or "in ", found[2].strip('"'), _short(found[3] + (found[4] or ""))


def _short(kind: str) -> str:
    base = kind.removesuffix("[]")
    return kind.replace(base, SHORT.get(base, base))


def _python(name: str, kind: str, null: Collection[str]) -> str:
    base = kind.removesuffix("[]")
    found = PYTHON.get(base, "Any")
    if kind != base:
        found = f"list[{found}{' | Any' if f'{name}[]' in null else ''}]"
    return f"{found} | Any" if name in null and found != "Any" else found


def _wrapped(arguments: dict[str, str]) -> list[str]:
    """Return arguments as parts of a string that fit into a line each."""
    whole = ", ".join(f"{name}\0{kind}" for name, kind in arguments.items())  # a pair stays in one line
    lines = [line.replace("\0", " ") for line in textwrap.wrap(whole, 110)] or [""]
    return [f"{line} " for line in lines[:-1]] + lines[-1:]


def text() -> str:
    """Return the module of all calls."""
    lines = [
        '"""The functions of the database that may be called, and the rows of their answers; `| Any`: it may be null."""',
        "from datetime import datetime",
        "from typing import Any, Final, NamedTuple",
        "from uuid import UUID",
        "from msgtx.declared.function import Function",
        "from msgtx.types import TopicPartition, TransactionId",
    ]
    for call in calls():
        row = f"{call.name.title().replace('_', '')}Row"
        null = NULL | {*call.said("null")}
        if call.columns:
            lines += [f"class {row}(NamedTuple):"]
            lines += [f"    {name}: {_python(name, kind, null)}" for name, kind in call.columns.items()]
            for (name, kind), parts in WHOLE.items():
                if call.columns.keys() >= set(parts):
                    given = ", ".join(f"self.{part}" for part in parts)
                    lines += ["    @property", f"    def {name}(self) -> {kind}:", f"        return {kind}({given})"]
        else:
            row = f"tuple[{_python('value', call.value, null)}]"
        flushed = ", flushed=False" if call.said("commit") == ["asynchronous"] else ""
        arguments = " ".join(repr(each) for each in _wrapped(call.arguments))
        lines += [f"{call.name.upper()}: Final = Function({call.name!r}, {arguments}, {row}{flushed})"]
    return "\n".join(lines)
