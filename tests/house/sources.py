"""The files that the tests of this folder read: one list, so no test overlooks a folder."""

import ast
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final, TypeVar

ROOT: Final = Path(__file__).parents[2]
# In `msgtx` the other three are links, which a search for files does not follow.
FOLDERS: Final = ("msgtx", "cli", "spark_jobs", "migrations")
SQL: Final = ROOT / "msgtx" / "sql"
Case = TypeVar("Case")


def for_each(cases: Collection[Case]) -> Callable[[Callable[[Case], None]], Callable[[], None]]:
    """Make one test of a check that many cases pass, and that names those that do not: each test costs some milliseconds."""

    def decorate(check: Callable[[Case], None]) -> Callable[[], None]:
        def test() -> None:
            failed = []
            for case in cases:
                try:
                    check(case)
                except AssertionError as error:
                    failed.append(f"{case}: {error}")
            assert not failed, "\n".join(failed)

        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        return test

    return decorate


def python_files() -> list[Path]:
    """Return every Python file of the package, once, relative to the top."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return sorted(path.relative_to(ROOT) for path in found)


def text_of(path: Path) -> str:
    """Return what a file of `python_files` holds."""
    return (ROOT / path).read_text(encoding="utf-8")


def nodes_of(path: Path, holding: str = "") -> Iterator[ast.AST]:
    """Yield the nodes of a Python file, without docstrings; none of a file that lacks this text: it need not be parsed."""
    text = text_of(path)
    if holding not in text:
        return iter(())
    tree = ast.parse(text)
    docstrings = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
        and isinstance(node.body[0].value, ast.Constant)
    }
    return (node for node in ast.walk(tree) if node not in docstrings)
