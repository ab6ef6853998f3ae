"""Mutants of Python: inside functions, each statement with an effect is dropped, each condition dropped or negated.

Code that only reports (calls of a logger, texts of errors) is left out. A mutant keeps its lines: by name and line, its
function is found in the loaded module.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator

from tools.mutate.mutant import Edit, Mutant, hash_of, numbered

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Places:
    """The places of nodes in a text: `ast` counts columns in bytes."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = [0]
        for line in text.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def _at(self, line: int, column: int) -> int:
        begin = self._lines[line - 1]
        return begin + len(self.text[begin : self._lines[line]].encode()[:column].decode())

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return where a node begins and ends."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

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
        return self.text[slice(*self.span(node))]


def mutants_of_python(path: str, text: str) -> list[Mutant]:
    """Return the mutants of one module."""
    places = Places(text)
    edits: list[tuple[str, Edit]] = []
    texts: defaultdict[str, str] = defaultdict(str)  # a property and its setter have one name
    for name, function in functions_of(ast.parse(text)):
        edits += [(name, edit) for statement in function.body for edit in of_node(places, statement)]
        texts[name] += ast.unparse(function)
    return numbered(path, text, edits, {name: hash_of(source) for name, source in texts.items()})


def functions_of(tree: ast.AST, within: str = "") -> Iterator[tuple[str, Function]]:
    """Yield the functions of a module and the methods of its classes, with their `__qualname__`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield within + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions_of(node, f"{within}{node.name}.")


def of_node(places: Places, node: ast.AST) -> Iterator[Edit]:
    """Yield the edits of a node and of its children."""
    match node:
        case ast.JoinedStr() | ast.Expr(value=ast.Constant()) | ast.Assert():
            return
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))) if name.strip("_").lower() in {
            "logger",
            "log",
            "logging",
            "warnings",
        }:
            return
        case ast.Expr() | ast.Assign() | ast.AugAssign() | ast.Delete() | ast.Break() | ast.Continue() | ast.Raise():
            yield places.edit("statement dropped", node, "pass")
        case ast.AnnAssign(value=ast.expr()) | ast.Return(value=None):
            yield places.edit("statement dropped", node, "pass")
        case ast.If(test=test) | ast.IfExp(test=test):
            yield places.edit("negated", test, f"not ({places.source(test)})")
        case ast.BoolOp(op=link, values=operands):
            neutral = "True" if isinstance(link, ast.And) else "False"
            for operand in operands:
                yield places.edit("condition dropped", operand, neutral)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield places.edit("negated", node, f"bool({places.source(operand)})")
    if isinstance(node, ast.Raise):
        return
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.AnnAssign) and child is node.annotation):
            yield from of_node(places, child)
