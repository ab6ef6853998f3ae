"""Mutants of Python: inside functions, each statement with an effect is dropped, each condition negated or moved.

Code that only reports (calls of a logger, texts of errors) and annotations are left out. A mutant keeps its lines: by name
and line, its function is found in the loaded module.
"""

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tests.mutants_all.mutant import Edit, Mutant, hash_of, numbered

TURNED: Final[dict[type[ast.AST], tuple[str, str]]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.Add: ("+", "-"), ast.Sub: ("-", "+"),
}  # fmt: skip
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Places:
    """The places of nodes in a text: `ast` counts columns in bytes."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = [0]
        for line in text.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def at(self, line: int, column: int) -> int:
        """Return the place of a line, from 1, and a column in bytes."""
        begin = self._lines[line - 1]
        return begin + len(self.text[begin : self._lines[line]].encode()[:column].decode())

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return where a node begins and ends."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def edit(self, rule: str, node: ast.expr | ast.stmt, replacement: str) -> Edit:
        """Return the edit that replaces a node by a text with as many lines."""
        start, end = self.span(node)
        lost = self.text.count("\n", start, end) - replacement.count("\n")
        if lost > 0 and isinstance(node, ast.stmt):
            replacement += "\n" * lost
        elif lost > 0:
            replacement = f"({replacement}" + "\n" * lost + ")"
        return Edit(rule, start, end, replacement)

    def source(self, node: ast.expr | ast.stmt) -> str:
        """Return the text of a node."""
        start, end = self.span(node)
        return self.text[start:end]


def mutants_of_python(path: str, text: str) -> list[Mutant]:
    """Return the mutants of one module."""
    places = Places(text)
    edits: list[tuple[str, Edit]] = []
    texts: defaultdict[str, str] = defaultdict(str)  # a property and its setter have one name
    for name, function in functions_of(ast.parse(text)):
        edits += [(name, edit) for edit in of_function(places, function)]
        texts[name] += ast.unparse(function)
    return numbered(path, text, edits, {name: hash_of(source) for name, source in texts.items()})


def functions_of(tree: ast.AST, within: str = "") -> Iterator[tuple[str, Function]]:
    """Yield the functions of a module and the methods of its classes, with their `__qualname__`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield within + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions_of(node, f"{within}{node.name}.")


@functools.cache
def lines_of(text: str) -> dict[int, tuple[str, int]]:
    """Return, for each line of a module that is in a function, the function's name and how far from its first line it is."""
    return {line: (name, line - lines.start) for name, lines in spans_of(text) for line in lines}


def sources_of(text: str) -> dict[str, str]:
    """Return the functions of a module, each with a hash of its lines as they are: with its comments."""
    lines = text.splitlines()
    found: defaultdict[str, str] = defaultdict(str)  # a property and its setter have one name
    for name, span in spans_of(text):
        found[name] += "\n".join(lines[span.start - 1 : span.stop - 1])
    return {name: hash_of(source) for name, source in found.items()}


def spans_of(text: str) -> Iterator[tuple[str, range]]:
    """Yield the functions of a module, with the numbers of their lines."""
    for name, function in functions_of(ast.parse(text)):
        assert function.end_lineno is not None
        first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
        yield name, range(first, function.end_lineno + 1)


def of_function(places: Places, function: Function) -> Iterator[Edit]:
    """Yield the edits of a function: of its body, not of its signature."""
    for statement in function.body:
        yield from of_node(places, statement)


def of_node(places: Places, node: ast.AST) -> Iterator[Edit]:
    """Yield the edits of a node and of its children."""
    if tells_only(node):
        return
    match node:
        case ast.Expr(value=ast.Constant()) | ast.Assert():
            return
        case ast.Expr() | ast.Assign() | ast.AugAssign() | ast.Delete() | ast.Break() | ast.Continue() | ast.Raise():
            yield places.edit("statement dropped", node, "pass")
        case ast.AnnAssign(value=ast.expr()):
            yield places.edit("statement dropped", node, "pass")
        case ast.Return(value=None):
            yield places.edit("statement dropped", node, "pass")
        case ast.If(test=test) | ast.IfExp(test=test):
            yield from of_test(places, test)
        case ast.While(test=test) if not isinstance(test, ast.Constant):
            yield places.edit("never", test, "False")
        case ast.comprehension(ifs=[*conditions]):
            for condition in conditions:
                yield places.edit("always", condition, "True")
        case ast.With(items=[ast.withitem(context_expr=held, optional_vars=None)]) if "lock" in places.source(held).lower():
            yield places.edit("without the lock", held, "__import__('contextlib').nullcontext()")
        case ast.BoolOp(op=link, values=operands):
            neutral = "True" if isinstance(link, ast.And) else "False"
            for operand in operands:
                yield places.edit("condition dropped", operand, neutral)
        case ast.Compare(left=left, ops=[operator], comparators=[right]) | ast.BinOp(left=left, op=operator, right=right):
            if type(operator) in TURNED:
                word, other = TURNED[type(operator)]
                between = places.span(left)[1], places.span(right)[0]  # with the parentheses around either side
                yield Edit("swapped", *between, places.text[slice(*between)].replace(word, other, 1))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield places.edit("negated", node, f"bool({places.source(operand)})")
        case ast.Constant(value=bool() as value):
            yield places.edit("swapped", node, str(not value))
        case ast.Constant(value=int() as value):
            yield places.edit("constant", node, str(value + 1))
    for child in ast.iter_child_nodes(node):
        if isinstance(node, ast.Raise) or (isinstance(node, ast.AnnAssign) and child is node.annotation):
            continue
        yield from of_node(places, child)


def of_test(places: Places, test: ast.expr) -> Iterator[Edit]:
    """Yield a test negated, always true, always false."""
    yield places.edit("negated", test, f"not ({places.source(test)})")
    yield places.edit("always", test, "True")
    yield places.edit("never", test, "False")


def tells_only(node: ast.AST) -> bool:
    """Return whether a node is a text, or the call of a logger."""
    if isinstance(node, ast.JoinedStr):
        return True
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name.strip("_").lower() in {"logger", "log", "logging", "warnings"}
    return False
