"""A pytest in a workshop that has collected every test and holds a database to copy: for each request it forks.

A fork costs milliseconds, where a fresh pytest with a fresh database takes seconds. A request is a line of JSON: `path` and
`text` of a mutated file ('' plants nothing), `tests` with the seconds that each may take, and `seconds` for all. So is the
answer: `outcome` is caught, survived or stillborn, `by` the first test that failed, `why` its error.
"""

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final, NoReturn, TextIO

import psycopg
import pytest

import msgtx
import tests.conftest
from msgtx.database.schema import functions
from tests.databases import Connection, Server, connect, use_server
from tests.mutants.workshop import clear, open_workshop
from tests.reach.record import ROOMS

ROOT: Final = Path(msgtx.__file__).parent.parent
LOOK_SECONDS: Final = 0.005
TICK_SECONDS: Final = 0.25
STATEMENT_SECONDS: Final = 3  # shorter than a workshop's: of so many mutants, many wait for a lock
PATIENCE_SECONDS: Final = 3  # of a test that waits for what a mutant never does
INSIDE: Final = "--inside"
ENDING_SECONDS: Final = 15.0  # for a run that is ended to take its fixtures down
# Nothing is captured: a fork is silent.
OPTIONS: Final = ["-qq", "-s", "--tb=no", "--assert=plain", "-pno:cacheprovider", "-pno:faulthandler", "-pno:xdist"]
# Errors of class 42 that are no sign of senseless text: a right that is missing, a name that another run has left.
OF_A_RUN: Final = {psycopg.errors.InsufficientPrivilege.sqlstate, psycopg.errors.DuplicateObject.sqlstate}


class CannotPlantError(Exception):
    """The text is not accepted: the mutant is stillborn."""


@dataclass(frozen=True)
class KeptServer(Server):
    """A server whose role and template stay from run to run."""

    def drop(self) -> None:
        """Keep both."""

    def _template(self) -> str:
        """Return the template's name, the yard has made it; files in memory are copied faster than rows are logged."""
        return f"{self.role}_template strategy file_copy"


def databases(connection: Connection) -> set[str]:
    """Return the names of all databases."""
    return {name for (name,) in connection.execute("select datname from pg_database")}


class OverdueError(BaseException):
    """A test hangs."""


class Witness:
    """A plugin of pytest: it notes the first failure, and whether it only shows that the text is invalid."""

    def __init__(self, limits: Mapping[str, float]) -> None:
        self._limits = limits  # in seconds, of each test
        self._left = 0.0  # of the one that runs
        self.failed = ""
        self.why = ""
        self.senseless = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._left = self._limits[item.nodeid]
        signal.setitimer(signal.ITIMER_REAL, TICK_SECONDS, TICK_SECONDS)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def tick(self, *_: object) -> None:
        """Fail the test that runs when its time is over; the time for which this process was stopped is one tick."""
        self._left -= TICK_SECONDS
        if self._left <= 0:
            raise OverdueError("it hangs")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and call.excinfo is not None and not self.failed:
            error = call.excinfo.value
            self.failed, self.senseless = item.nodeid, is_senseless(error)
            self.why = (f"{type(error).__name__}: {error}".splitlines() or [""])[0][:200]
        return report


def is_senseless(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, is PostgreSQL's about a name, a type or the grammar."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        state = (error.sqlstate or "") if isinstance(error, psycopg.Error) else ""
        if state.startswith("42") and state not in OF_A_RUN:
            return True
        error = error.__cause__ or error.__context__
    return False


class Yard:
    """What a run needs: a server, its template, the tests, and a mutant that is planted. A plugin of pytest."""

    def __init__(self, url: str, hearing: TextIO, speaking: TextIO) -> None:
        self._hearing, self._speaking = hearing, speaking
        self._session: pytest.Session
        self._items: dict[str, pytest.Item] = {}
        self._functions: defaultdict[str, list[FunctionType]] = defaultdict(list)  # by their files
        made = use_server(url)
        self.server = KeptServer(made.superuser_url, made.role, made.password)
        made.drop_database(made.create_database())  # with the template
        with self.server.administrator() as connection:
            connection.execute(f"alter system set statement_timeout = '{STATEMENT_SECONDS}s'")
            connection.execute("select pg_reload_conf()")
            self._kept = databases(connection)
        tests.conftest.use_server = lambda _: self.server  # type: ignore[assignment]
        for module in pkgutil.walk_packages(msgtx.__path__, "msgtx."):
            if not module.name.startswith(("msgtx.cli", "msgtx.migrations", "msgtx.spark_jobs")):
                importlib.import_module(module.name)
        for found in gc.get_objects():  # a fork that looks at every object copies every page
            if type(found) is FunctionType:
                self._functions[found.__code__.co_filename].append(found)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> NoReturn:
        """Answer until nothing more is asked, in place of running all tests. It does not return."""
        if session.testsfailed:
            raise session.Failed("not every test can be collected")
        self._session, self._items = session, {item.nodeid: item for item in session.items}
        report = ROOT.parent / "yard.json"
        print("ready", file=self._speaking, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            for line in self._hearing:
                print(json.dumps(self.run(json.loads(line), report)), file=self._speaking, flush=True)
        os._exit(0)  # it has nothing to take down, its forks had

    @contextlib.contextmanager
    def planted(self, path: str, text: str) -> Iterator[Callable[[], None]]:
        """Keep a mutated file in the tree while the block runs, SQL in the template, too. Yields what the fork is to do."""
        if not path:
            yield lambda: None
            return
        before = (ROOT / path).read_text(encoding="utf-8")
        swaps = code_swaps(path, text) if path.endswith(".py") else {}
        try:
            self._put(path, text)
            yield lambda: swap(self._functions[str(ROOT / path)], swaps)
        finally:
            self._put(path, before)

    def _put(self, path: str, text: str) -> None:
        (ROOT / path).write_text(text, encoding="utf-8")
        if path.endswith(".sql"):
            self._create(text)

    def _create(self, text: str) -> None:
        """Put a function or view in the place of its namesake, and let the template match the current tree."""
        functions.contents.cache_clear()
        functions.files.cache_clear()
        name = f"{self.server.role}_template"
        with connect(self.server.url(name)) as connection, connection.transaction():
            for kind in ("function", "view"):
                text = text.replace(f"create {kind} ", f"create or replace {kind} ", 1)
            try:
                connection.execute(text)  # bodies are checked: bad grammar is refused here
            except psycopg.Error as error:
                raise CannotPlantError(str(error).splitlines()[0]) from error
            connection.execute("update msgtx.installation set functions_hash = %s", [functions.functions_hash()])

    def run(self, asked: dict[str, Any], report: Path) -> dict[str, Any]:
        """Plant, fork, wait, and return how it ended."""
        report.unlink(missing_ok=True)
        try:
            with self.planted(asked["path"], asked["text"]) as in_fork:
                child = os.fork()
                if child == 0:
                    self._run_tests(asked["tests"], in_fork, report)
                ended = wait_for(child, asked["seconds"])
        except CannotPlantError as error:
            return {"outcome": "stillborn", "why": str(error)}
        finally:
            self._sweep()
        if not ended:
            return {"outcome": "caught", "why": f"not within {asked['seconds']:.0f} s"}
        if not report.exists():
            return {"outcome": "caught", "why": "the run ended without a word"}
        answer: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        return answer

    def _sweep(self) -> None:
        """Remove what a run left: servers of its own, databases and roles."""
        clear(Path(os.environ["SCRATCH_FOLDER"]))
        with self.server.administrator() as connection:
            connection.execute("set statement_timeout = 0")  # a database is removed with a checkpoint
            for name in databases(connection) - self._kept:
                connection.execute(f"drop database if exists {name} with (force)")
            roles = connection.execute("select rolname from pg_roles where rolname ~ %s", [f"^{self.server.role}_[0-9]+$"])
            for (name,) in roles.fetchall():
                connection.execute(f"drop role {name}")

    def _run_tests(self, limits: Mapping[str, float], in_fork: Callable[[], None], report: Path) -> None:
        """Run tests in this fork until one fails, write down how they ended, and end."""
        witness = Witness(limits)
        try:
            os.setsid()
            silence = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(silence, stream)
            in_fork()
            gc.freeze()  # what the fork shares with its parent is not looked at, so not copied
            signal.signal(signal.SIGALRM, witness.tick)
            hook = self._session.config.hook
            self._session.config.pluginmanager.register(witness)
            items = [self._items[name] for name in limits if name in self._items]
            for item, following in zip_longest(items, items[1:]):
                hook.pytest_runtest_protocol(item=item, nextitem=following)
                if witness.failed:
                    break
            hook.pytest_sessionfinish(session=self._session, exitstatus=0)
            outcome = "survived" if not witness.failed else "stillborn" if witness.senseless else "caught"
            answer = {"outcome": outcome, "by": witness.failed, "why": witness.why}
        except CannotPlantError as error:
            answer = {"outcome": "stillborn", "why": str(error)}
        except BaseException as error:  # noqa: BLE001 - whatever happens in the fork, its parent gets an answer
            answer = {"outcome": "caught", "why": f"{type(error).__name__}: {error}"}
        report.write_text(json.dumps(answer), encoding="utf-8")
        os._exit(0)


def wait_for(child: int, seconds: float) -> bool:
    """Wait for a fork; end it when its time is over, or this process is to end. Returns whether it ended by itself."""
    waited = 0.0
    try:
        while waited < seconds:
            if os.waitpid(child, os.WNOHANG)[0]:
                return True
            began = time.monotonic()
            time.sleep(LOOK_SECONDS)
            waited += min(time.monotonic() - began, 100 * LOOK_SECONDS)  # not while this process was stopped
    except KeyboardInterrupt:
        end(child)
        raise
    end(child)
    return False


def end(child: int) -> None:
    """Ask a fork to end, as Ctrl-C does, and kill it if it does not."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        os.kill(child, number)
        deadline = time.monotonic() + ENDING_SECONDS
        while time.monotonic() < deadline:
            if os.waitpid(child, os.WNOHANG)[0]:
                return
            time.sleep(LOOK_SECONDS)


# ── Python ──


def code_swaps(path: str, text: str) -> dict[tuple[str, int], CodeType]:
    """Return the functions of the mutated module, by name and line."""
    filename = str(ROOT / path)
    try:
        module = compile(text, filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise CannotPlantError(str(error)) from error
    found: dict[tuple[str, int], CodeType] = {}
    waiting = [module]
    while waiting:
        for code in waiting.pop().co_consts:
            if isinstance(code, CodeType):
                found[code.co_qualname, code.co_firstlineno] = code
                waiting.append(code)
    return found


def swap(functions: Sequence[FunctionType], swaps: Mapping[tuple[str, int], CodeType]) -> None:
    """Give every function of a module its mutated code: every importer has the mutant."""
    for found in functions:
        code = swaps.get((found.__code__.co_qualname, found.__code__.co_firstlineno))
        if code is None:
            continue
        try:
            found.__code__ = code
        except ValueError as error:
            raise CannotPlantError(str(error)) from error


def main() -> None:
    """Answer until nothing more is asked; in a workshop of its own, unless it is started in one."""
    if INSIDE not in sys.argv:
        with open_workshop() as workshop, contextlib.suppress(KeyboardInterrupt):
            environment = {**workshop.environment(), "PATIENCE_SECONDS": str(PATIENCE_SECONDS)}
            subprocess.run(
                [sys.executable, "-m", "tests.mutants.yard", INSIDE], cwd=workshop.tree, env=environment, check=False
            )
        return
    hearing, speaking = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    yard = Yard(os.environ["MSGTX_TEST_DATABASE_URL"], hearing, speaking)
    pytest.main([*OPTIONS, *(f"tests/{room}" for room in ROOMS)], plugins=[yard])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
