"""Mutants in bulk, from end to end: a tiny function and its tests in a copy of the tree, and the outcome of each mutant."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.databases import wait_until
from tests.mutants.workshop import Workshop, open_workshop
from tests.mutants_all.hunting import Worker, hunt
from tests.mutants_all.mutant import Edit, Mutant, together
from tests.mutants_all.of_python import mutants_of_python
from tests.mutants_all.of_sql import mutants_of_sql
from tests.mutants_all.relevance import Map

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
    return number < 10
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
    made = Worker(workshop)
    yield made
    made.close()


def outcomes(worker: Worker, mutants: list[Mutant]) -> dict[tuple[str, str], str]:
    found = {}
    for mutant in mutants:
        (result,) = hunt([mutant], worker, TIMES, complete=True)
        found[mutant.edit.rule, mutant.edit.replacement] = result.outcome
    return found


def test_what_a_test_reaches_is_noted(workshop: Workshop, worker: Worker, tmp_path: Path) -> None:
    answer = worker.ask(path="", text="", record=FILE, seconds=60, python=True)
    noted = Map(tmp_path / "map.json")
    noted.note(workshop.tree, FILE, answer["tests"], python=True, called=answer["called"])
    tests = noted.tests(workshop.tree)
    assert {test.rpartition("::")[2] for test in tests} == {"test_tiny[1-True]", "test_tiny[10-False]", "test_another"}
    reach = tests[f"{FILE}::test_tiny[10-False]"]
    assert "tiny" in reach.sql & reach.called
    assert reach.python["msgtx/rules/tiny.py:tiny"] == 0b100, "the one line of code"
    assert "tiny" not in tests[f"{FILE}::test_another"].sql


def test_mutants_of_sql_are_caught_or_survive_or_are_stillborn(worker: Worker) -> None:
    mutants = mutants_of_sql("msgtx/sql/append/tiny.sql", SQL)
    moved = [mutant for mutant in mutants if mutant.edit.replacement in {"<=", "11"}]
    assert outcomes(worker, moved) == {("swapped", "<="): "caught", ("constant", "11"): "caught"}
    (like,) = [mutant for mutant in mutants if mutant.edit.rule == "constant"]
    senseless = Mutant(like.id, like.path, like.within, like.edit, SQL.replace("number <", "nummer <"))
    grammar = Mutant(like.id, like.path, like.within, like.edit, SQL.replace("end if", "end"))
    harmless = Mutant(like.id, like.path, like.within, like.edit, SQL.replace("< 10", "<  9"))
    assert [next(iter(outcomes(worker, [each]).values())) for each in (senseless, grammar)] == ["stillborn"] * 2
    (result,) = hunt([harmless], worker, {f"{FILE}::test_another": 1}, complete=True)
    assert result.outcome == "survived"


def edited(text: str, **changes: tuple[str, str]) -> list[Mutant]:
    """Return mutants of a text, each with its name as its id."""
    return [
        Mutant(name, "msgtx/sql/append/tiny.sql", "tiny", Edit("", at := text.index(old), at + len(old), new), text)
        for name, (old, new) in changes.items()
    ]


def test_of_mutants_that_are_planted_together_each_has_its_own_outcome(worker: Worker) -> None:
    mutants = edited(
        SQL,
        harmless=("return true", "return 1 = 1"),
        moved=("number < 10", "number < 11"),
        senseless=("false", "nummer > 0"),
    )
    results = {result.id: result for result in hunt(mutants, worker, TIMES, complete=True)}
    assert {name: result.outcome for name, result in results.items()} == {
        "harmless": "survived", "moved": "caught", "senseless": "stillborn",
    }  # fmt: skip
    assert results["moved"].by == f"{FILE}::test_tiny[10-False]"


def test_what_only_two_mutants_together_break_catches_neither(worker: Worker) -> None:
    mutants = edited(
        SQL.replace("number < 10", "number < 10 or (1 = 2 and 3 = 4)"), one=("1 = 2", "1 = 1"), other=("3 = 4", "3 = 3")
    )
    tests = dict.fromkeys(reversed(TIMES), 1.0)
    assert worker.ask(path=mutants[0].path, text=together(mutants), tests=TIMES, seconds=60)["outcome"] == "caught"
    assert {result.id: result.outcome for result in hunt(mutants, worker, tests, complete=True)} == {
        "one": "survived", "other": "survived",
    }  # fmt: skip


def test_mutants_of_python_are_planted_in_what_everybody_has_imported(worker: Worker) -> None:
    found = outcomes(worker, mutants_of_python("msgtx/rules/tiny.py", PYTHON))
    assert found == {("swapped", " <= "): "caught", ("constant", "11"): "caught"}


def test_after_all_mutants_the_tree_is_as_it_was(workshop: Workshop, worker: Worker) -> None:
    assert worker.ask(path="", text="", tests=TIMES, seconds=60)["outcome"] == "survived"
    assert (workshop.tree / "msgtx" / "sql" / "append" / "tiny.sql").read_text(encoding="utf-8") == SQL
    assert (workshop.tree / "msgtx" / "rules" / "tiny.py").read_text(encoding="utf-8") == PYTHON


def test_a_server_of_a_test_that_is_killed_ends_with_the_run(workshop: Workshop, worker: Worker) -> None:
    name = f"{KILLED_FILE}::test_killed"
    answer = worker.ask(path="", text="", tests={name: 60.0}, seconds=60)
    assert (answer["outcome"], answer["why"]) == ("caught", "the run ended without a word")
    assert list(workshop.scratch.iterdir()) == []
    (pid,) = (workshop.tree / "pid").read_text(encoding="utf-8").split()
    wait_until(lambda: not Path("/proc", pid).exists(), "the server has ended")
