"""A plugin of pytest: it writes what the tests of each file reach into the folder that `REACH_FOLDER` names."""

import contextlib
import json
import os
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

import psycopg._queries
import pytest
import sqlalchemy

from msgtx.database.wire import Statements
from tests.databases import Server
from tests.interrupts import interrupted_files
from tests.reach.record import NAMED, ROOT, hash_of, sources_of, spans_of

DEFINES: Final = re.compile(r"\s*(create|alter|drop|grant|revoke|comment)\b", re.IGNORECASE)  # calls nothing
PRODUCT: Final = tuple(f"{ROOT / name}/" for name in ("msgtx", "cli", "migrations"))
CALLED: Final = "select funcname from pg_stat_user_functions where schemaname = 'msgtx'"
END_ALL: Final = (  # a session reports its calls when it ends
    "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
    " where datname = current_database() and pid <> pg_backend_pid()"
)
Trace = Callable[[FrameType, str, Any], Any]


class Recorder:
    """Follows the lines that run and the statements that are sent. Tests take twice as long."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sql: set[str] = set()
        self._ran: defaultdict[str, set[int]] = defaultdict(set)
        self._failed: set[str] = set()
        self._databases: list[tuple[Server, str]] = []
        self._tests: dict[str, Any] = {}  # of the current file
        for kind in (psycopg._queries.PostgresQuery, psycopg._queries.PostgresClientQuery):

            def noted(query: Any, text: Any, arguments: Any, convert: Any = kind.convert) -> Any:
                self._note(text)
                return convert(query, text, arguments)

            kind.convert = noted  # type: ignore[method-assign]

        def ran(statements: Statements, text: str, arguments: Sequence[object], run: Any = Statements.run) -> Any:
            self._note(text)
            return run(statements, text, arguments)

        def made(server: Server, *, schema: bool = True, create: Any = Server.create_database) -> str:
            url: str = create(server, schema=schema)
            with server.administrator() as connection:
                connection.execute(f"alter database {sqlalchemy.make_url(url).database} set track_functions = 'all'")
            self._databases.append((server, url))
            return url

        Statements.run = ran  # type: ignore[method-assign]
        Server.create_database = made  # type: ignore[method-assign]

    def _note(self, text: object) -> None:
        if isinstance(text, bytes | str):
            text = text.decode() if isinstance(text, bytes) else text
            if DEFINES.match(text) is None:
                self._sql.update(NAMED.findall(text))

    def _entered(self, frame: FrameType, _event: str, _: object) -> Trace | None:
        return self._line if frame.f_code.co_filename.startswith(PRODUCT) else None

    def _line(self, frame: FrameType, event: str, _: object) -> Trace:
        if event == "line":
            self._ran[frame.f_code.co_filename].add(frame.f_lineno)
        return self._line

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
        self._sql.clear()
        self._ran.clear()
        interrupted_files.clear()
        threading.settrace(self._entered)
        sys.settrace(self._entered)
        began = time.monotonic()
        answer = yield
        seconds = time.monotonic() - began
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        if item.nodeid not in self._failed:  # a test that fails shows nothing
            self._tests[item.nodeid] = {"seconds": round(seconds, 3), "sql": sorted(self._sql), "python": self._python()}
        if nextitem is None or nextitem.path != item.path:
            self._write(item.path)
        return answer

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)

    def _python(self) -> dict[str, str]:
        """Return the functions that have run, each with its lines as bits, from its first one."""
        found: defaultdict[str, int] = defaultdict(int)
        for file in {*self._ran, *interrupted_files}:  # another follower of lines sees nothing of what is run there
            path = Path(file).resolve()
            ran = self._ran.get(file) if file not in interrupted_files else None
            for name, span in spans_of(path.read_text(encoding="utf-8")):
                lines = sum(1 << line - span.start for line in span if ran is None or line in ran)
                if lines:
                    found[f"{path.relative_to(ROOT)}:{name}"] |= lines
        return {name: f"{lines:x}" for name, lines in found.items()}

    def _write(self, file: Path) -> None:
        """Write what the tests of a file reach, and which functions of SQL were called in their databases."""
        called: set[str] = set()
        for server, url in self._databases:
            with contextlib.suppress(psycopg.Error), server.administrator(sqlalchemy.make_url(url).database) as connection:
                connection.execute(END_ALL)
                called.update(name for (name,) in connection.execute(CALLED).fetchall())
        paths = {name.partition(":")[0] for test in self._tests.values() for name in test["python"]}
        noted = {
            "file": (name := str(file.relative_to(ROOT))),
            "hash": hash_of(file.read_text(encoding="utf-8")),
            "called": sorted(called),
            "sources": {path: sources_of((ROOT / path).read_text(encoding="utf-8")) for path in sorted(paths)},
            "tests": self._tests,
        }
        (self._folder / f"{name.replace('/', '.')}.json").write_text(json.dumps(noted), encoding="utf-8")
        self._databases, self._tests = [], {}


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Recorder(Path(os.environ["REACH_FOLDER"])))
