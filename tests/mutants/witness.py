"""A plugin of pytest, loaded from the copy of the tree: it records how each test ended, and what was really imported.

A test is *broken* rather than failed if it could not begin (the schema does not install, a fixture fails), or if its
error shows that the planted text is invalid: bad SQL, an unknown name. That does not catch a mutant.
"""

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

import psycopg
import pytest

import msgtx

REPORT: Final = "MUTANTS_REPORT"  # the file to write
SENSELESS: Final = (ImportError, NameError, SyntaxError)
_outcomes: dict[str, dict[str, str]] = {}


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to test any tree but the one that holds this file."""
    package = Path(msgtx.__file__).parent
    if package.parent != config.rootpath:
        raise pytest.UsageError(f"the tests are in {config.rootpath}, and msgtx is imported from {package}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note how a phase of a test ended; a test that has failed stays failed."""
    report = yield
    if call.when == "teardown" or _outcomes.get(item.nodeid, {}).get("outcome") in {"failed", "broken"}:
        return report
    error = call.excinfo.value if call.excinfo is not None and report.failed else None
    outcome = "passed" if error is None else "broken" if call.when == "setup" or _is_senseless(error) else "failed"
    why = "" if error is None else f"{type(error).__name__}: {error}".splitlines()[0]
    _outcomes[item.nodeid] = {"outcome": outcome, "why": why}
    return report


def _is_senseless(error: BaseException | None) -> bool:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        bad_sql = isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith("42")
        if bad_sql or isinstance(error, SENSELESS):
            return True
        error = error.__cause__ or error.__context__
    return False


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the report."""
    found = {"package": str(Path(msgtx.__file__).parent), "collected": session.testscollected, "tests": _outcomes}
    Path(os.environ[REPORT]).write_text(json.dumps(found), encoding="utf-8")
