"""Which tests reach what: recorded once per file of tests, and looked up for each mutant.

A test reaches the lines of Python that it runs, and the functions and views of SQL that its statements name, and what
those call, by their texts; but only what was called while its file ran, by PostgreSQL's counts. What runs in a
process of its own is not seen: such tests are few and slow, and are left out, but those of the daemon.
"""

import bisect
import functools
import hashlib
import json
import math
import re
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any, Final

import psycopg._queries
import pytest

from msgtx.database.wire import Statements
from tests.interrupts import interrupted_files
from tests.mutants_all.mutant import Mutant
from tests.mutants_all.of_python import lines_of, sources_of

# Tests of one process, in the order in which they are tried; others start servers, Spark or programs, or take minutes.
FOLDERS: Final = ("rules", "store", "sessions", "database", "client", "admin", "orm", "aio")
OF_THE_TEXTS: Final = ("tests/house/test_sql.py", "tests/house/test_privileges.py")  # of every function, as it is written
PROCESSES: Final = {"msgtx/coordinator/": "tests/system/test_daemon.py"}  # what runs in a process of its own, and its tests
DEFINES: Final = re.compile(r"\s*(create|alter|drop|grant|revoke|comment)\b", re.IGNORECASE)  # calls nothing
NAMED: Final = re.compile(r"\bmsgtx\.(\w+)")
EVERY: Final = "*"  # what a test reaches that looks at the functions' own rows
OWN_WEIGHT: Final = 1_000  # of a test that has caught a mutant of the function itself, against one of its room
OWN_FIRST: Final = 5  # of such tests, at most, run before all others
FAR: Final = 100  # calls, which no chain has
WORD: Final = re.compile(r"[a-z]{3,}")
NO_SUBJECT: Final = frozenset({"test", "msgtx", "sql", "and", "not", "the", "that", "its", "are", "null", "from", "where"})
STEM: Final = 4  # letters of a word: lock, locks and locked are one
SLOWEST_SECONDS: Final = 20.0  # of one test: a slower one is of no use here
FILE_SECONDS: Final = 0.1  # for the database of one more file of tests
STAGES: Final = (0.6, 3.0, 12.0)  # seconds after which a stage of a run ends: the tests that have caught most come first


TraceFunction = Callable[[FrameType, str, Any], Any]


@dataclass(frozen=True, slots=True)
class Reach:
    """What one test reaches, and how long it takes. `called`: what its file has called."""

    seconds: float
    sql: frozenset[str]
    python: Mapping[str, int]  # of a `path:function`, its lines: as bits, from the first one; all, if it was another then
    called: frozenset[str]


class Recorder:
    """A plugin of pytest: it notes each test's statements, with its fixtures', and, on request, what it runs.

    Noting lines makes most tests twice as slow.
    """

    def __init__(self, package: Path, *, python: bool) -> None:
        self._python = python
        self._package = f"{package}/"
        self._sql: set[str] = set()
        self._ran: defaultdict[str, set[int]] = defaultdict(set)
        self._failed: set[str] = set()
        self.found: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> "Recorder":
        note = self._note
        for kind in (psycopg._queries.PostgresQuery, psycopg._queries.PostgresClientQuery):

            def noted(query: Any, text: Any, arguments: Any, convert: Any = kind.convert) -> Any:
                note(text)
                return convert(query, text, arguments)

            kind.convert = noted  # type: ignore[method-assign]

        def ran(statements: Statements, text: str, arguments: Sequence[object], run: Any = Statements.run) -> Any:
            note(text)
            return run(statements, text, arguments)

        Statements.run = ran  # type: ignore[method-assign]
        if self._python:
            threading.settrace(self._called)
            sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def _note(self, text: object) -> None:
        if isinstance(text, bytes | str):
            text = text.decode() if isinstance(text, bytes) else text
            if DEFINES.match(text) is None:
                self._sql.update(NAMED.findall(text))
            if "pg_proc" in text:
                self._sql.add(EVERY)

    def _called(self, frame: FrameType, _event: str, _: object) -> TraceFunction | None:
        return self._line if frame.f_code.co_filename.startswith(self._package) else None

    def _line(self, frame: FrameType, event: str, _: object) -> TraceFunction:
        if event == "line":
            self._ran[frame.f_code.co_filename].add(frame.f_lineno)
        return self._line

    def _python_of(self, ran: Mapping[str, Iterable[int] | None]) -> dict[str, str]:
        """Return the functions that have run, and their lines, from the lines of each file; None: all of them."""
        found: defaultdict[str, int] = defaultdict(int)
        for path, lines in ran.items():
            places = lines_of(Path(path).read_text(encoding="utf-8"))
            for name, place in (places[line] for line in (places if lines is None else lines) if line in places):
                found[f"msgtx/{path.removeprefix(self._package)}:{name}"] |= 1 << place
        return {name: f"{lines:x}" for name, lines in found.items()}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._sql.clear()
        self._ran.clear()
        interrupted_files.clear()
        began = time.monotonic()
        answer = yield
        seconds = time.monotonic() - began
        ran = {path: list(lines) for path, lines in list(self._ran.items())} | dict.fromkeys(interrupted_files, None)
        if item.nodeid not in self._failed:  # a test that fails on the unchanged tree shows nothing
            self.found[item.nodeid] = {"seconds": seconds, "sql": sorted(self._sql), "python": self._python_of(ran)}
        return answer

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)


class Map:
    """The tests and what they reach, in a file. A file of tests is recorded again when it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def stale(self, root: Path, *, python: bool, below: Sequence[str] = ()) -> list[str]:
        """Return the files of tests that are new or have changed, or whose Python is not noted; forget those that are gone.

        `below`: only those whose names begin with one of these.
        """
        there = {str(path.relative_to(root)): path for name in FOLDERS for path in (root / "tests" / name).glob("test_*.py")}
        there |= {name: root / name for name in (*OF_THE_TEXTS, *PROCESSES.values()) if (root / name).exists()}
        self._files = {name: noted for name, noted in self._files.items() if name in there}
        hashes = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in there.items()}
        wanted = [name for name in there if name.startswith(tuple(below) or ("",))]
        order = {name: ([*FOLDERS, "house", "system"].index(name.split("/")[1]), name) for name in wanted}
        known = {name for name, noted in self._files.items() if noted["hash"] == hashes[name] and noted["python"] >= python}
        return sorted(set(wanted) - known, key=lambda name: order[name])

    def note(self, root: Path, file: str, tests: Mapping[str, Any], *, python: bool, called: Sequence[str] = ()) -> None:
        """Keep what the tests of a file reach, and which functions of SQL it has called."""
        digest = hashlib.sha256((root / file).read_bytes()).hexdigest()
        paths = {name.partition(":")[0] for reach in tests.values() for name in reach["python"]}
        self._files[file] = {
            "hash": digest,
            "python": python,
            "called": sorted(called),
            "sources": sources_in(root, paths),
            "tests": dict(tests),
        }
        self._path.parent.mkdir(exist_ok=True)
        self._path.write_text(json.dumps(self._files))

    def tests(self, root: Path, below: Sequence[str] = ()) -> dict[str, Reach]:
        """Return all tests, by their names; `below`: only those whose names begin with one of these.

        A function that is new in a module since a file of tests was noted is reached by all of them.
        """
        paths = {name.partition(":")[0] for noted in self._files.values() for name in noted.get("sources", {})}
        today = sources_in(root, (path for path in paths if (root / path).exists()))
        found = {}
        for noted in self._files.values():
            before = noted.get("sources", {})
            modules = {name.partition(":")[0] for name in before}
            new = {name: -1 for name in today.keys() - before.keys() if name.partition(":")[0] in modules}
            same = {name for name, source in before.items() if today.get(name) == source}
            for test, reach in noted["tests"].items():
                if test.startswith(tuple(below) or ("",)):
                    ran = {name: int(lines, 16) if name in same else -1 for name, lines in reach["python"].items()}
                    found[test] = Reach(reach["seconds"], frozenset(reach["sql"]), new | ran, frozenset(noted["called"]))
        return found


def sources_in(root: Path, paths: Iterable[str]) -> dict[str, str]:
    """Return the functions in these files, as `path:function`, with hashes of their lines."""
    texts = {path: (root / path).read_text(encoding="utf-8") for path in paths}
    return {f"{path}:{name}": source for path, text in texts.items() for name, source in sources_of(text).items()}


def distances(target: str, calls: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """Return the SQL functions that lead to this one, with the number of calls between."""
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


def chosen(
    near: Mapping[str, int], tests: Mapping[str, Reach], *, seconds: float, killers: Mapping[str, int], subject: str = ""
) -> tuple[dict[str, float], bool]:
    """Return the tests to run, each with the time that it takes, and whether these are all.

    They are what fits into `seconds` of those that have caught most mutants of the same function, each for its time, then of
    those about its subject, of those that have caught others of its room, and of the closest and quickest. `near`: how far
    each test is from what was changed. Among equals, files get the same time, each for its quickest tests: tests of one file
    look at the same promise. `subject`: the name of what was changed, and its text; a test is about it whose own name has
    words of it that are in few other names.
    """
    words = words_of(subject)
    shared = {test: words & words_of(test.rpartition("/")[2]) for test in near}
    common = Counter(chain.from_iterable(shared.values()))
    about = {test: round(sum(math.log(len(near) / common[word]) for word in found)) for test, found in shared.items()}
    scores = {test: killers.get(test, 0) / (tests[test].seconds + FILE_SECONDS) for test in near}
    own_ones = (test for test in near if killers.get(test, 0) >= OWN_WEIGHT)
    first = frozenset(sorted(own_ones, key=lambda test: -scores[test])[:OWN_FIRST])
    # What names few functions looks closely at them.
    costs = {test: tests[test].seconds * (1 + len(tests[test].sql)) for test in near}
    spent: dict[tuple[int, str], float] = defaultdict(float)
    order: dict[str, tuple[float, int, int, float, int, float]] = {}
    for test in sorted(near, key=costs.__getitem__):
        file = test.partition("::")[0]
        turn = near[test], file
        spent[turn] += costs[test]
        own = scores[test] if test in first else 0.0
        order[test] = (-own, near[test] // FAR, -about[test], -scores[test], near[test], spent[turn])
    stages: list[list[str]] = [[] for _ in (*STAGES, seconds)]
    total, complete = 0.0, True
    begun: set[str] = set()
    for test in sorted(near, key=order.__getitem__):
        file = test.partition("::")[0]
        took = tests[test].seconds + FILE_SECONDS * (file not in begun)
        if took > SLOWEST_SECONDS or total + took > seconds:
            complete = False
            continue
        total += took
        begun.add(file)
        stages[bisect.bisect_left(STAGES, total)].append(test)
    # Within a file tests keep their order: some count what earlier ones have left.
    places = {test: at for at, test in enumerate(tests)}
    found: list[str] = []
    for stage in stages:
        files = list(dict.fromkeys(test.partition("::")[0] for test in stage))
        found += sorted(stage, key=lambda test: (files.index(test.partition("::")[0]), places[test]))
    return {test: tests[test].seconds for test in found}, complete


@functools.cache
def words_of(text: str) -> frozenset[str]:
    """Return the beginnings of the words in a name or a text."""
    return frozenset(word[:STEM] for word in WORD.findall(text.lower()) if word not in NO_SUBJECT)


def near_sql(
    function: str, tests: Mapping[str, Reach], calls: Mapping[str, Iterable[str]], *, header: bool, pieces: str = ""
) -> dict[str, int]:
    """Return the tests that reach a function or view of SQL, and by how many calls.

    PostgreSQL counts neither views nor inlined functions: of these no file has called any. `header`: the functions' rows
    show what was changed. `pieces`: what was changed; where the functions that it names were not called, it was not reached,
    or only by others, and such tests are further away.
    """
    named = set(NAMED.findall(pieces)) & calls.keys()
    far = distances(function, calls)
    near = {
        test: min(far[name] for name in reach.sql & far.keys()) for test, reach in tests.items() if reach.sql & far.keys()
    }
    seen = {test: by for test, by in near.items() if function in tests[test].called}
    every = [
        test
        for test, reach in tests.items()
        if (header and EVERY in reach.sql)
        or (test.startswith(OF_THE_TEXTS) and (test.endswith(f"[{function}]") or not test.endswith("]")))
    ]
    found = {test: by + FAR * len(named - tests[test].called) for test, by in (seen or near).items()}
    return found | dict.fromkeys(every, 0)


def near_python(mutant: Mutant, tests: Mapping[str, Reach]) -> dict[str, int]:
    """Return the tests that run a line that was changed, or if there are none, its function; and those of the process."""
    function = f"{mutant.path}:{mutant.within}"
    lines = sum(1 << lines_of(mutant.text)[line][1] for line in mutant.lines)
    ran = {test: reach.python[function] for test, reach in tests.items() if function in reach.python}
    closest = [test for test, its in ran.items() if its & lines]
    files = tuple(file for folder, file in PROCESSES.items() if mutant.path.startswith(folder))
    return {test: 1 for test in tests if test.startswith(files)} | dict.fromkeys(closest or ran, 0)


def calls_of(files: Mapping[str, str]) -> dict[str, set[str]]:
    """Return which functions and views each one names, without comments; what writes to a table names its triggers."""
    code = {name: re.sub(r"--.*", "", text) for name, text in files.items()}
    found = {name: set(NAMED.findall(text)) & code.keys() - {name} for name, text in code.items()}
    for name, text in code.items():
        if (trigger := re.search(r"create constraint trigger \w+ .*? on msgtx\.(\w+)", text, re.DOTALL)) is not None:
            for writer, other in code.items():
                if f"insert into msgtx.{trigger[1]}" in other:
                    found[writer].add(name)
    return found


def names_of(tests: Sequence[str]) -> str:
    """Return the bare names of tests, to be read."""
    return ", ".join(dict.fromkeys(test.rpartition("::")[2] for test in tests))
