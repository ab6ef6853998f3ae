"""The words of a SQL file: enough of PostgreSQL's lexical rules to find conditions and statements, and nothing else."""

import re
from dataclasses import dataclass
from typing import Final

PATTERN: Final = re.compile(
    r"""(?P<space>\s+)
    | (?P<comment>--[^\n]*|/\*.*?\*/)
    | (?P<dollar>\$\w*\$)
    | (?P<string>[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")*")
    | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
    | (?P<word>[A-Za-z_\u0080-\uffff][\w$\u0080-\uffff]*)
    | (?P<symbol>:=|=>|::|\.\.|<=|>=|<>|!=|->>|->|\|\||!~\*|!~|~\*|<<|>>|.)""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A word, string, number or symbol, its place, and within how many parentheses. `text` is in lower case."""

    kind: str
    text: str
    start: int
    end: int
    depth: int


def tokens_of(sql: str) -> list[Token]:
    """Return all but spaces and comments. The bodies of functions, between dollars, are read as code."""
    found: list[Token] = []
    depth = 0
    for match in PATTERN.finditer(sql):
        kind, text = match.lastgroup or "", match.group()
        if kind in {"space", "comment"}:
            continue
        if text in {")", "]"}:
            depth -= 1
        found.append(Token(kind, text if kind in {"string", "quoted"} else text.lower(), *match.span(), depth))
        if text in {"(", "["}:
            depth += 1
    return found
