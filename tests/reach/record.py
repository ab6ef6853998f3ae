"""The record in `build/reach`, and what it says of a line of Python, a function of SQL or a whole file."""

import ast
import functools
import hashlib
import json
import re
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "build" / "reach"
# Tests of one process; others start servers, Spark or programs.
ROOMS: Final = ("rules", "store", "sessions", "database", "client", "admin", "orm", "aio", "cli", "house")
NAMED: Final = re.compile(r"\bmsgtx\.(\w+)")
TRIGGER: Final = re.compile(r"create constraint trigger \w+ .*? on msgtx\.(\w+)", re.DOTALL)
Functions = ast.FunctionDef | ast.AsyncFunctionDef


def hash_of(text: str) -> str:
    """Return what tells a text from others."""
    return hashlib.sha256(text.encode()).hexdigest()[:10]


@functools.cache
def spans_of(text: str) -> list[tuple[str, range]]:
    """Return the functions of a module and the methods of its classes, with the numbers of their lines."""

    def within(node: ast.AST, prefix: str) -> Iterator[tuple[str, range]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Functions):
                first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
                yield prefix + child.name, range(first, (child.end_lineno or first) + 1)
            elif isinstance(child, ast.ClassDef):
                yield from within(child, f"{prefix}{child.name}.")

    return list(within(ast.parse(text), ""))


def sources_of(text: str) -> dict[str, str]:
    """Return the functions of a module, each with a hash of its lines; '' is what stands outside of functions."""
    lines = text.splitlines()
    found: defaultdict[str, str] = defaultdict(str)  # a property and its setter have one name
    outside = dict(enumerate(lines, 1))
    for name, span in spans_of(text):
        found[name] += "\n".join(outside.pop(line) for line in span)
    found[""] = "\n".join(outside.values())
    return {name: hash_of(source) for name, source in found.items()}


@dataclass(frozen=True, slots=True)
class Reach:
    """What one test reaches, and how long it takes. `called`: the functions of SQL that its file has called."""

    seconds: float
    sql: frozenset[str]
    python: Mapping[str, int]  # of a `path:function`, its lines as bits; -1: all, as its text was another one
    called: frozenset[str]


class Record:
    """What was recorded. `stale`: the files of tests that are new or have changed since."""

    def __init__(self, folder: Path = FOLDER, root: Path = ROOT) -> None:
        self.root = root
        self.tests: dict[str, Reach] = {}
        noted = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
        known = {each["file"]: each["hash"] for each in noted}
        there = [path for room in ROOMS for path in sorted((root / "tests" / room).glob("test_*.py"))]
        self.stale = [
            name
            for path in there
            if known.get(name := str(path.relative_to(root))) != hash_of(path.read_text(encoding="utf-8"))
        ]
        paths = {path for each in noted for path in each["sources"] if (root / path).exists()}
        today = {path: sources_of((root / path).read_text(encoding="utf-8")) for path in paths}
        for each in noted:
            same = {
                f"{path}:{name}"
                for path, names in each["sources"].items()
                for name, source in names.items()
                if today.get(path, {}).get(name) == source
            }
            for test, reach in each["tests"].items():
                python = {name: int(lines, 16) if name in same else -1 for name, lines in reach["python"].items()}
                self.tests[test] = Reach(reach["seconds"], frozenset(reach["sql"]), python, frozenset(each["called"]))
        self._calls = calls_of(
            {path.stem: path.read_text(encoding="utf-8") for path in (root / "msgtx/sql").glob("*/*.sql")}
        )

    def of_sql(self, function: str) -> dict[str, int]:
        """Return the tests that reach a function or view of SQL, and by how many calls.

        PostgreSQL counts the calls of functions, but not of views and inlined functions: of these no file has called any.
        """
        far = distances(function, self._calls)
        near = {
            test: min(far[name] for name in reach.sql & far.keys())
            for test, reach in self.tests.items()
            if reach.sql & far.keys()
        }
        seen = {test: by for test, by in near.items() if function in self.tests[test].called}
        return seen or near

    def of_lines(self, path: str, lines: Collection[int]) -> dict[str, int]:
        """Return the tests that run one of these lines of a module. Outside of functions: that run any of its lines."""
        wanted: defaultdict[str, int] = defaultdict(int)
        for name, span in spans_of((self.root / path).read_text(encoding="utf-8")):
            wanted[f"{path}:{name}"] |= sum(1 << line - span.start for line in lines if line in span)
        if not any(wanted.values()):
            return self.of_functions(path)
        return {
            test: 0
            for test, reach in self.tests.items()
            if any(bits & reach.python.get(name, 0) for name, bits in wanted.items() if bits)
        }

    def of_functions(self, path: str, names: Iterable[str] = ("",)) -> dict[str, int]:
        """Return the tests that run one of these functions of a module; '': any."""
        wanted = tuple(f"{path}:{name}" for name in names)
        every = any(name.endswith(":") for name in wanted)
        return {
            test: 0
            for test, reach in self.tests.items()
            if any(name.startswith(f"{path}:") if every else name in wanted for name in reach.python)
        }


def calls_of(files: Mapping[str, str]) -> dict[str, set[str]]:
    """Return which functions and views each one names, without comments; what writes to a table names its triggers."""
    code = {name: re.sub(r"--.*", "", text) for name, text in files.items()}
    found = {name: set(NAMED.findall(text)) & code.keys() - {name} for name, text in code.items()}
    for name, text in code.items():
        if (trigger := TRIGGER.search(text)) is not None:
            for writer, other in code.items():
                if f"insert into msgtx.{trigger[1]}" in other:
                    found[writer].add(name)
    return found


def distances(target: str, calls: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """Return the functions that lead to this one, with the number of calls between."""
    callers: dict[str, set[str]] = defaultdict(set)
    for caller, called in calls.items():
        for name in called:
            callers[name].add(caller)
    found = {target: 0}
    waiting = deque([target])
    while waiting:
        name = waiting.popleft()
        for caller in sorted(callers[name] - found.keys()):
            found[caller] = found[name] + 1
            waiting.append(caller)
    return found
