"""A workshop: a copy of the tree and a server of its own, where mutants are planted and tests run."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
import sqlalchemy

from msgtx.database import embedded
from tests.databases import scratch
from tests.mutants.table import ROOT, Mutant
from tests.mutants.witness import REPORT

LIMIT_SECONDS: Final = 300.0  # for the tests of one mutant, which take seconds; a longer hang does not count as caught
PATIENCE_SECONDS: Final = 8.0  # shorter than in other runs: some mutants never do what a test waits for
STATEMENT_SECONDS: Final = 10
ENDING_SECONDS: Final = 60.0  # for pytest to take its fixtures down


@dataclass(frozen=True, slots=True)
class Ran:
    """How tests ended, by their full names: passed, failed or broken. `trouble`: why there is nothing to judge."""

    tests: Mapping[str, Mapping[str, str]]
    trouble: str = ""

    def of(self, named: str, *outcomes: str) -> list[str]:
        """Return the tests below this name that ended with one of these outcomes."""
        return [
            test
            for test, found in self.tests.items()
            if found["outcome"] in outcomes and (test == named or test.startswith((f"{named}[", f"{named}::", f"{named}/")))
        ]


def copy_tree(target: Path) -> None:
    """Copy files that git tracks, and new ones that are not ignored; links stay links."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        source = ROOT / name
        if source.is_symlink() or source.exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name, follow_symlinks=False)


class Workshop:
    """Use it with `open_workshop`."""

    def __init__(self, folder: Path) -> None:
        self.tree = folder / "tree"
        self.home = folder / "home"
        self.scratch = folder / "scratch"  # of the tests: a server in it whose test was killed goes with the workshop
        self._report = folder / "report.json"
        self._url = ""
        self._running: subprocess.Popen[str] | None = None
        self._stopped = False

    def open(self) -> None:
        """Copy the tree and start the server."""
        self.tree.mkdir()
        self.scratch.mkdir()
        copy_tree(self.tree)
        embedded.start(self.home)
        self._url = embedded.superuser_url(self.home)
        address = sqlalchemy.make_url(self._url).set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("alter system set fsync = off")  # the disk is not under test here
            # A call that would wait forever for a lock that a mutant takes gets an error instead, and the test fails.
            connection.execute(f"alter system set statement_timeout = '{STATEMENT_SECONDS}s'")
            connection.execute("select pg_reload_conf()")

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        """Keep a mutant in the tree while the block runs. Raise `TableError` if its old text is not there, or not once."""
        mutated = mutant.mutated(self.tree)
        before = {path: path.read_bytes() for path in mutated}
        try:
            for path, text in mutated.items():
                path.write_text(text, encoding="utf-8")
            yield
        finally:
            for path, content in before.items():
                path.write_bytes(content)

    def run(self, tests: Sequence[str], limit: float = LIMIT_SECONDS) -> Ran:
        """Run tests of the copy on the copy, for at most `limit` seconds."""
        self._report.unlink(missing_ok=True)
        options = ["-q", "--tb=short", "-p", "no:cacheprovider", "-p", "tests.mutants.witness"]
        if self._stopped:
            return Ran({}, "interrupted")
        self._running = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=self.tree, env=self.environment(), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            text, _ = self._running.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            self.stop()
            self._running.communicate()
            return Ran({}, f"the tests did not end within {limit:g} s")
        if not self._report.exists():
            return Ran({}, _last_lines(text))
        found = json.loads(self._report.read_text(encoding="utf-8"))
        assert Path(found["package"]) == self.tree.resolve() / "msgtx", found["package"]
        return Ran(found["tests"], "" if found["tests"] else _last_lines(text))

    def environment(self) -> dict[str, str]:
        """Return the environment of a process that runs tests of the copy on the copy's server."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MSGTX_", "PYTEST_"))}
        if "MSGTX_POSTGRES" in os.environ:
            kept["MSGTX_POSTGRES"] = os.environ["MSGTX_POSTGRES"]
        return {
            **kept,
            "PYTHONPATH": str(self.tree),
            # A file that changes twice within a second, at the same length, would be taken for the one compiled before.
            "PYTHONDONTWRITEBYTECODE": "1",
            "MSGTX_TEST_DATABASE_URL": self._url,
            "PATIENCE_SECONDS": str(PATIENCE_SECONDS),
            "SCRATCH_FOLDER": str(self.scratch),
            REPORT: str(self._report),
        }

    def stop(self) -> None:
        """End the tests that run, as Ctrl-C does; start no more."""
        running = self._running
        if running is not None and running.poll() is None:
            running.send_signal(signal.SIGTERM)
            try:
                running.wait(ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                running.kill()

    def close(self) -> None:
        """End what runs, and the server."""
        self._stopped = True
        self.stop()
        clear(self.scratch)
        embedded.stop(self.home)


def clear(scratch: Path) -> None:
    """Empty a folder for scratch, and end the servers that tests have left in it: a test that was killed ends none."""
    for file in scratch.glob("*/home/data/postmaster.pid"):
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int(file.read_text(encoding="utf-8").splitlines()[0]), signal.SIGQUIT)
    for folder in scratch.iterdir():
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def open_workshop() -> Iterator[Workshop]:
    """Make a workshop in a temporary folder, and remove it at the end."""
    folder = scratch("msgtx-mutants-")
    workshop = Workshop(folder)
    try:
        workshop.open()
        yield workshop
    finally:
        workshop.close()
        shutil.rmtree(folder)


def _last_lines(text: str, most: int = 8) -> str:
    return " / ".join(line.strip() for line in text.strip().splitlines()[-most:] if line.strip())
