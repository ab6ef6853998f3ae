"""Mutants of SQL: each statement of PL/pgSQL is dropped, each condition dropped or negated."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from tools.mutate.mutant import Edit, Mutant, hash_of, numbered
from tools.mutate.tokens import Token, tokens_of

ALWAYS: Final = frozenset({"where", "on", "having"})  # also with a single condition
TESTED: Final = frozenset({"if", "elsif", "while", "case when", "exit when", "continue when"})
BOUNDARIES: Final = frozenset({
    *("where", "on", "having", "when", "then", "else", "if", "elsif", "while", "loop", "return", "select", "from", "join"),
    *("left", "right", "inner", "cross", "full", "group", "order", "limit", "offset", "for", "foreach", "returning"),
    *("union", "intersect", "except", "window", "as", "end", "into", "using", "set", "values", "with", "do", "begin"),
    *("declare", "exception", "partition", "asc", "desc", "filter", "case", "exit", "continue", "by"),
    *("distinct", "query", "next", "execute", "perform", "update", "insert", "delete", ",", ";", ":=", "=>", "$$"),
})  # fmt: skip
TOLD: Final = frozenset({"debug", "log", "info", "notice", "warning"})  # levels of RAISE that change no outcome


@dataclass
class Region:
    """A chain of `and` and `or` at one depth, while it is read; `kind` is the word before it."""

    kind: str
    operands: list[tuple[int, int]] = field(default_factory=list)  # first and last token
    links: list[str] = field(default_factory=list)
    begin: int = 0
    in_between: bool = False


def mutants_of_sql(path: str, text: str) -> list[Mutant]:
    """Return the mutants of one file of `msgtx/sql`; a trigger has none, but what it calls has."""
    tokens = [token for token in tokens_of(text) if token.kind != "comment"]
    words = [token.text for token in tokens]
    if "trigger" in words[:4]:
        return []
    within = path.rpartition("/")[2].removesuffix(".sql")
    is_view = "view" in words[:4]
    begin = words.index("as") if is_view else body_of(words)
    edits = [*conditions(tokens, begin), *negations(tokens, begin)]
    if not is_view and "plpgsql" in words[:begin]:
        edits += statements(tokens, begin)
    return numbered(path, text, ((within, edit) for edit in edits), {within: hash_of(" ".join(words))})


def body_of(words: list[str]) -> int:
    """Return where the body of a function begins: its `$$`, or the `return` of one expression."""
    depth = 0
    for at, word in enumerate(words):
        depth += {"(": 1, ")": -1}.get(word, 0)
        if depth == 0 and (word.startswith("$") or word in {"return", "begin"}):
            return at
    raise ValueError("a function has a body")


# ── conditions ──


def depths_of(tokens: list[Token]) -> list[int]:
    """Return how deep each token stands in parentheses and in CASE expressions."""
    found: list[int] = []
    cases: list[int] = []
    for token in tokens:
        if token.text == "end" and cases and cases[-1] == token.depth:
            cases.pop()
        found.append(token.depth + len(cases))
        if token.text == "case":
            cases.append(token.depth)
    return found


def conditions(tokens: list[Token], begin: int) -> Iterator[Edit]:
    """Each condition of a chain dropped, each test negated."""
    depths = depths_of(tokens)
    regions: dict[int, Region] = {}

    def close(depth: int, at: int) -> Iterator[Edit]:
        region = regions.pop(depth, None)
        if region is None or at <= region.begin:
            return
        region.operands.append((region.begin, at - 1))
        start, end = tokens[region.operands[0][0]].start, tokens[at - 1].end
        if region.kind in TESTED:
            whole = f"({source(tokens, start, end)}) is not true"
            yield Edit("negated", start, end, whole)
        if len(region.operands) == 1 and region.kind not in ALWAYS:
            return
        for place, (first, last) in enumerate(region.operands):
            near = region.links[max(place - 1, 0) : place + 1]
            neutral = "false" if near and "and" not in near else "true"
            if tokens[first].text != neutral or first != last:
                yield Edit("condition dropped", tokens[first].start, tokens[last].end, neutral)

    for at in range(begin, len(tokens)):
        token, depth = tokens[at], depths[at]
        for deeper in sorted((d for d in regions if d > depth), reverse=True):
            yield from close(deeper, at)
        text = "$$" if token.kind == "dollar" else token.text
        region = regions.get(depth)
        if text == "between" and region is not None:
            region.in_between = True
        elif text in {"and", "or"} and region is not None:
            if region.in_between and text == "and":
                region.in_between = False
            else:
                region.operands.append((region.begin, at - 1))
                region.links.append(text)
                region.begin = at + 1
        elif text in BOUNDARIES and token.kind != "string" and not is_comparison(tokens, at):
            yield from close(depth, at)
            regions[depth] = Region(kind_of(tokens, depths, at), begin=at + 1)
            if text == "case":
                regions[depth + 1] = Region("case", begin=at + 1)
        elif text in {"(", "["}:
            regions.setdefault(depth, Region("", begin=at))
            regions[depth + 1] = Region(text, begin=at + 1)
        else:
            regions.setdefault(depth, Region("", begin=at))
    for depth in list(regions):
        yield from close(depth, len(tokens))


def is_comparison(tokens: list[Token], at: int) -> bool:
    """Return whether a word is one of `is distinct from`."""
    words = [token.text for token in tokens[max(at - 3, 0) : at + 1]]
    return (words[-1] == "distinct" and words[-2] in {"is", "not"}) or (words[-2:] == ["distinct", "from"] and "is" in words)


def kind_of(tokens: list[Token], depths: list[int], at: int) -> str:
    """Return what a boundary begins: its word, and the clause it belongs to."""
    text, before = tokens[at].text, tokens[at - 1].text
    if text == "when":
        return (
            f"{before} when" if before in {"exit", "continue"} else "case when" if depths[at] > tokens[at].depth else "when"
        )
    if (text == "on" and (tokens[at + 1].text == "conflict" or before == "distinct")) or (text == "if" and before == "end"):
        return ""
    return text


def source(tokens: list[Token], start: int, end: int) -> str:
    """Return the text between two places, without comments: a mutant gets a line of its own."""
    pieces = [token for token in tokens if start <= token.start and token.end <= end]
    texts = [token.text for token in pieces[:1]]
    for before, token in pairwise(pieces):
        texts.append((" " if token.start > before.end else "") + token.text)
    return "".join(texts)


def negations(tokens: list[Token], begin: int) -> Iterator[Edit]:
    """Each test for null, for truth or for rows negated, and each negation taken away."""
    words = [token.text for token in tokens] + [""]
    for at in range(begin + 1, len(tokens)):
        text, before, after = words[at], words[at - 1], words[at + 1]
        if tokens[at].kind != "word":
            continue
        if text == "exists" and before != "not":
            yield Edit("negated", tokens[at].start, tokens[at].start, "not ")
        elif text == "not" and before != "is" and after not in {"null", "distinct"}:
            yield Edit("negated", tokens[at].start, tokens[at + 1].start, "")
        elif text == "is" and after == "not":
            yield Edit("negated", tokens[at + 1].start, tokens[at + 2].start, "")
        elif text == "is" and after in {"null", "true", "false", "distinct"}:
            yield Edit("negated", tokens[at + 1].start, tokens[at + 1].start, "not ")


# ── statements ──


def statements(tokens: list[Token], begin: int) -> Iterator[Edit]:
    """Each statement of PL/pgSQL dropped, and the call that a declaration makes."""
    words = [token.text for token in tokens]
    depths = depths_of(tokens)

    def scan(at: int, *ends: str) -> int:
        while words[at] not in ends or depths[at] > depths[begin]:
            at += 1
        return at

    at = begin + 1
    while at < len(tokens) and tokens[at].kind != "dollar":
        word = words[at]
        if word in {"#"}:
            at += 3  # a directive: three words on a line of their own
        elif word == "declare":
            at = scan(at, "begin")
        elif word in {"if", "elsif", "when"}:
            at = scan(at, "then") + 1
        elif word in {"for", "foreach", "while"}:
            at = scan(at, "loop") + 1
        elif word in {"loop", "else", "begin", "exception"}:
            at += 1
        else:
            end = scan(at, ";")
            tells_only = word == "raise" and words[at + 1] in TOLD
            answers = word == "return" and words[at + 1] not in {";", "query", "next"}
            if word not in {"end", "null"} and not tells_only and not answers:
                yield Edit("statement dropped", tokens[at].start, tokens[end - 1].end, "null")
            at = end + 1
    if "declare" in words[begin : begin + 8]:
        at = words.index("declare", begin)
        while words[at] != "begin":
            end = scan(at, ";") if ";" in words[at:] else at
            if "ignored" in words[at:end] and ":=" in words[at:end]:
                assigned = words.index(":=", at)
                yield Edit("statement dropped", tokens[assigned].start, tokens[end - 1].end, "")
            at = end + 1
