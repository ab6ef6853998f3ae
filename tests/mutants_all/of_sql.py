"""Mutants of SQL: of conditions and values in every body, of statements of PL/pgSQL, of a function's attributes.

Clauses that only say how to plan (`set enable_seqscan = off`, `set jit = off`, `set plan_cache_mode`) change no answer, and
are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from tests.mutants_all.mutant import Edit, Mutant, hash_of, numbered
from tests.mutants_all.tokens import Token, tokens_of

SWAPS: Final = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "=": "<>", "<>": "=", "least": "greatest", "greatest": "least",
    "min": "max", "max": "min", "bool_and": "bool_or", "bool_or": "bool_and", "desc": "asc", "asc": "desc", "all": "any",
}  # fmt: skip
HEADER: Final = frozenset({"volatility", "no definer", "no setting"})  # rules that change a function's attributes
VOLATILITY: Final = {"volatile": "stable", "stable": "volatile", "immutable": "volatile"}
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
ENDS_OF_A_CLAUSE: Final = frozenset({
    "limit", "offset", "for", "union", "intersect", "except", "returning", "loop", "rows", ";", ",", "$$", "order",
})  # fmt: skip


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
    edits = list(conditions(tokens, begin)) + list(values(tokens, begin)) + list(clauses(tokens, begin))
    if not is_view:
        edits += header(tokens[:begin])
        if "plpgsql" in words[:begin]:
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


def header(tokens: list[Token]) -> Iterator[Edit]:
    """A function's attributes changed."""
    for at, token in enumerate(tokens):
        if token.depth or token.kind != "word":
            continue
        if token.text in VOLATILITY:
            yield Edit("volatility", token.start, token.end, VOLATILITY[token.text])
        elif token.text == "security":
            yield Edit("no definer", token.start, tokens[at + 1].end, "")
        elif token.text == "set" and tokens[at + 1].text in {"lock_timeout", "search_path"}:
            last = at + 3
            while last + 2 < len(tokens) and tokens[last + 1].text == ",":
                last += 2
            yield Edit("no setting", token.start, tokens[last].end, "")


# ── conditions ──


def depths_of(tokens: list[Token]) -> list[int]:
    """Return how deep each token stands in parentheses and in CASE expressions."""
    found, cases = [], []
    for token in tokens:
        if token.text == "end" and cases and cases[-1] == token.depth:
            cases.pop()
        found.append(token.depth + len(cases))
        if token.text == "case":
            cases.append(token.depth)
    return found


def conditions(tokens: list[Token], begin: int) -> Iterator[Edit]:
    """Each condition of a chain dropped; each test negated, always true, always false."""
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
            yield Edit("always", start, end, "true")
            yield Edit("never", start, end, "false")
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


# ── values ──


def values(tokens: list[Token], begin: int) -> Iterator[Edit]:
    """Comparisons moved by one or turned round, constants moved by one, tests for null and for rows negated."""
    words = [token.text for token in tokens] + [""] * 3
    # A function with a single `return` is called for its effect.
    returns_one = words.count("return") == 1
    for at in range(begin + 1, len(tokens)):
        token, text, before, after = tokens[at], words[at], words[at - 1], words[at + 1]
        if token.kind == "number" and text.isdigit():
            yield Edit("constant", token.start, token.end, str(int(text) + 1))
        if token.kind not in {"word", "symbol"}:
            continue
        is_call = text not in {"least", "greatest", "min", "max", "bool_and", "bool_or"} or after == "("
        if text in SWAPS and is_call and not (text == "all" and before in {"union", "except", "intersect"}):
            yield Edit("swapped", token.start, token.end, SWAPS[text])
        elif text in {"+", "-"} and (tokens[at - 1].kind in {"number", "word", "quoted"} or before in {")", "]"}):
            if before not in {"return", "then", "else", "when", "and", "or", "select", "by"}:
                yield Edit("swapped", token.start, token.end, "-" if text == "+" else "+")
        elif text == "exists" and before != "not":
            yield Edit("negated", token.start, token.start, "not ")
        elif text == "not" and before != "is" and after not in {"null", "distinct"}:
            yield Edit("negated", token.start, tokens[at + 1].start, "")
        elif text == "is" and after == "not":
            yield Edit("negated", tokens[at + 1].start, tokens[at + 2].start, "")
        elif text == "is" and after in {"null", "true", "false", "distinct"}:
            yield Edit("negated", tokens[at + 1].start, tokens[at + 1].start, "not ")
        elif text in {"true", "false"} and before not in {"is", "not", "select", "on"}:
            if not (returns_one and before == "return" and after == ";"):
                yield Edit("swapped", token.start, token.end, "false" if text == "true" else "true")
        elif text == "distinct" and after not in {"from", "on"}:
            yield Edit("no distinct", token.start, tokens[at + 1].start, "")


# ── clauses ──


def clauses(tokens: list[Token], begin: int) -> Iterator[Edit]:
    """An order, a limit, a row lock, a conflict clause or an assignment dropped."""
    words = [token.text for token in tokens] + [""] * 3
    depths = depths_of(tokens)

    def until(at: int, ends: frozenset[str]) -> int:
        """Return the last token of a clause that begins here."""
        last = at
        while last + 1 < len(tokens) and depths[last + 1] >= depths[at]:
            following = tokens[last + 1]
            if depths[last + 1] == depths[at] and (following.text in ends or following.kind == "dollar"):
                break
            last += 1
        return last

    ordered: set[int] = set()  # depths at which an order was read, and no limit yet
    for at in range(begin + 1, len(tokens)):
        token, text, after = tokens[at], words[at], words[at + 1]
        ordered = {depth for depth in ordered if depth <= depths[at]}
        if text == "order" and after == "by":
            ordered.add(depths[at])
            yield Edit("no order", token.start, tokens[until(at + 1, ENDS_OF_A_CLAUSE - {","})].end, "")
        elif text == "limit":
            # `limit 1` without an order is only a hint to the planner.
            if after != "1" or depths[at] in ordered:
                yield Edit("no limit", token.start, tokens[until(at, ENDS_OF_A_CLAUSE)].end, "")
            ordered.discard(depths[at])
        elif text == "for" and after in {"update", "share", "no", "key"}:
            last = until(at, frozenset({";", "loop", "into"}))
            yield Edit("no row lock", token.start, tokens[last].end, "")
        elif text == "skip" and after == "locked":
            yield Edit("waits", token.start, tokens[at + 1].end, "")
        elif text == "on" and after == "conflict":
            yield Edit("no conflict", token.start, tokens[until(at, frozenset({";", "returning"}))].end, "")
        elif text == "set" and words[at + 2] == "=":
            yield from assignments(tokens, depths, at, until(at, frozenset({"from", "where", "returning", ";"})))


def assignments(tokens: list[Token], depths: list[int], at: int, last: int) -> Iterator[Edit]:
    """Each assignment of an UPDATE dropped; a single one becomes an assignment of the column to itself."""
    commas = [place for place in range(at, last) if depths[place] == depths[at] and tokens[place].text == ","]
    begins = [at + 1, *(comma + 1 for comma in commas)]
    ends = [*(comma - 1 for comma in commas), last]
    for place, (first, final) in enumerate(zip(begins, ends, strict=True)):
        if not commas:
            continue
        start, end = tokens[first].start, tokens[final].end
        if place:
            start = tokens[first - 1].start
        else:
            end = tokens[begins[1]].start
        yield Edit("assignment dropped", start, end, "")


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
