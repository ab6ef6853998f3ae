"""The files that the tests of this folder read: one list, so no test overlooks a folder."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
# In `msgtx` the other three are links, which a search for files does not follow.
FOLDERS: Final = ("msgtx", "cli", "spark_jobs", "migrations")
SQL: Final = ROOT / "msgtx" / "sql"


def python_files() -> list[Path]:
    """Return every Python file of the package, once, relative to the top."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return sorted(path.relative_to(ROOT) for path in found)


def text_of(path: Path) -> str:
    """Return what a file of `python_files` holds."""
    return (ROOT / path).read_text(encoding="utf-8")


def nodes_of(path: Path) -> Iterator[ast.AST]:
    """Yield the nodes of a Python file, without docstrings."""
    tree = ast.parse(text_of(path))
    docstrings = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
        and isinstance(node.body[0].value, ast.Constant)
    }
    return (node for node in ast.walk(tree) if node not in docstrings)
