"""Mutants in bulk, from end to end: a tiny function and its tests in a copy of the tree, and the outcome of each mutant."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.databases import wait_until
from tests.mutants.workshop import Workshop, open_workshop
from tests.mutants.yard import INSIDE
from tools.mutate.hunt import Worker, hunt
from tools.mutate.mutant import Edit, Mutant
from tools.mutate.of_python import mutants_of_python

pytestmark = pytest.mark.long

FILE, KILLED_FILE = "tests/store/test_tiny.py", "tests/store/test_killed.py"
SQL = """-- tiny(number) → whether it is small.
create function msgtx.tiny(number int) returns boolean language plpgsql as $$
begin
    if number < 10 then
        return true;
    end if;
    return false;
end $$;
"""
PYTHON = '''"""A tiny module."""


def tiny(number: int) -> bool:
    """Return whether a number is small."""
    return not number >= 10
'''
TESTS = """
import pytest
from msgtx.rules.tiny import tiny

@pytest.mark.parametrize(("number", "small"), [(1, True), (10, False)])
def test_tiny(connection, number, small):
    assert connection.execute("select msgtx.tiny(%s)", [number]).fetchone() == (small,)
    assert tiny(number) is small

def test_another(connection):
    connection.execute("grant execute on function msgtx.tiny to current_user")
"""
KILLED = """
import os, pathlib, signal
from tests.faults import crash_server

def test_killed():
    with crash_server() as server:
        pathlib.Path("pid").write_text((server.home / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(os.getpid(), signal.SIGKILL)
"""

TIMES = {f"{FILE}::{test}": 1.0 for test in ("test_tiny[1-True]", "test_tiny[10-False]", "test_another")}


@pytest.fixture(scope="module")
def workshop() -> Iterator[Workshop]:
    with open_workshop() as made:
        (made.tree / "msgtx" / "sql" / "append" / "tiny.sql").write_text(SQL, encoding="utf-8")
        (made.tree / "msgtx" / "rules" / "tiny.py").write_text(PYTHON, encoding="utf-8")
        (made.tree / FILE).write_text(TESTS, encoding="utf-8")
        (made.tree / KILLED_FILE).write_text(KILLED, encoding="utf-8")
        yield made


@pytest.fixture(scope="module")
def worker(workshop: Workshop) -> Iterator[Worker]:
    made = Worker(INSIDE, cwd=workshop.tree, env=workshop.environment())
    yield made
    made.close()


@pytest.mark.parametrize(
    ("old", "new", "outcome"),
    [
        ("number < 10", "number < 11", "caught"),
        ("return true", "return 1 = 1", "survived"),
        ("number <", "nummer <", "stillborn"),
        ("end if", "end", "stillborn"),
    ],
)
def test_a_mutant_of_sql_is_caught_or_survives_or_is_stillborn(worker: Worker, old: str, new: str, outcome: str) -> None:
    edit = Edit("", at := SQL.index(old), at + len(old), new)
    assert hunt(Mutant("m", "msgtx/sql/append/tiny.sql", "tiny", edit, SQL, ""), worker, TIMES).outcome == outcome


def test_mutants_of_python_are_planted_in_what_everybody_has_imported(worker: Worker) -> None:
    (mutant,) = mutants_of_python("msgtx/rules/tiny.py", PYTHON)
    found = hunt(mutant, worker, TIMES)
    assert (mutant.edit.rule, found.outcome, found.by) == ("negated", "caught", f"{FILE}::test_tiny[1-True]")


def test_after_all_mutants_the_tree_is_as_it_was(workshop: Workshop, worker: Worker) -> None:
    assert worker.run(TIMES, None)["outcome"] == "survived"
    assert (workshop.tree / "msgtx" / "sql" / "append" / "tiny.sql").read_text(encoding="utf-8") == SQL
    assert (workshop.tree / "msgtx" / "rules" / "tiny.py").read_text(encoding="utf-8") == PYTHON


def test_a_server_of_a_test_that_is_killed_ends_with_the_run(workshop: Workshop, worker: Worker) -> None:
    name = f"{KILLED_FILE}::test_killed"
    answer = worker.run({name: 10.0}, None)
    assert (answer["outcome"], answer["why"]) == ("caught", "the run ended without a word")
    assert list(workshop.scratch.iterdir()) == []
    (pid,) = (workshop.tree / "pid").read_text(encoding="utf-8").split()
    wait_until(lambda: not Path("/proc", pid).exists(), "the server has ended")
