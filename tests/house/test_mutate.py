"""The program that makes mutants in bulk, on small texts whose mutants are known."""

from pathlib import Path
from typing import Any, cast

import pytest

from tests.reach.record import Reach, Record
from tools.mutate import __main__ as program
from tools.mutate.hunt import Outcome, Outcomes, Worker, hunt, likeliest
from tools.mutate.mutant import Mutant
from tools.mutate.of_python import mutants_of_python
from tools.mutate.of_sql import mutants_of_sql
from tools.mutate.tokens import tokens_of

SQL = """-- count_rows(partition) counts; it's a comment with 'quotes' and a < b.
create function msgtx.count_rows(in_id int, out rows int) language plpgsql stable security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s' set jit = off as $$
declare
    ignored boolean := msgtx.require(in_id);
begin
    if in_id < 0 then  -- refused < here
        return;
    end if;
    select count(*) into rows from msgtx.record_batch r
    where r.partition_id = in_id and r.last_offset between 1 and 5 and (r.a is null or exists (select from msgtx.b));
    raise warning 'told: %', in_id;
    rows := case when rows > 7 and in_id <> 1 then greatest(rows, 3) else rows end;
end $$;
"""
PYTHON = '''"""A module."""


def first(items, *, most: int = 5):
    """Return some."""
    found = []
    found.append("é" if len(items) > 3 else "x")
    if items and not most:
        raise ValueError(f"{most + 1} of {items}")
    logger.info("told")
    return [item for item in items if item != 2]


class Box:
    def close(self) -> None:
        self.closed = True
        return
'''


def edits(mutants: list[Mutant]) -> set[tuple[str, str, str]]:
    """Rule, what is replaced, and by what."""
    return {(m.edit.rule, " ".join(m.piece.split()), " ".join(m.edit.replacement.split())) for m in mutants}


def test_comments_strings_and_bodies_are_told_apart() -> None:
    read = [
        (token.kind, token.text) for token in tokens_of("a -- 'b\n 'it''s; $$' E'\\'' \"Q\"\"\" $$ <= :=x::INT /* c */ 7")
    ]
    assert read == [
        ("word", "a"), ("string", "'it''s; $$'"), ("string", "E'\\''"), ("quoted", '"Q"""'), ("dollar", "$$"),
        ("symbol", "<="), ("symbol", ":="), ("word", "x"), ("symbol", "::"), ("word", "int"), ("number", "7"),
    ]  # fmt: skip


def test_the_mutants_of_a_function_of_sql() -> None:
    assert edits(mutants_of_sql("msgtx/sql/count_rows.sql", SQL)) == {
        ("statement dropped", ":= msgtx.require(in_id)", ""),
        ("negated", "in_id < 0", "(in_id < 0) is not true"),
        ("statement dropped", "return", "null"),
        ("statement dropped", " ".join(SQL[SQL.index("select count") : SQL.index(";\n    raise")].split()), "null"),
        ("condition dropped", "r.partition_id = in_id", "true"),
        ("condition dropped", "r.last_offset between 1 and 5", "true"),
        ("condition dropped", "(r.a is null or exists (select from msgtx.b))", "true"),
        ("condition dropped", "r.a is null", "false"),
        ("negated", "", "not"),
        ("condition dropped", "exists (select from msgtx.b)", "false"),
        ("statement dropped", "rows := case when rows > 7 and in_id <> 1 then greatest(rows, 3) else rows end", "null"),
        ("negated", "rows > 7 and in_id <> 1", "(rows > 7 and in_id <> 1) is not true"),
        ("condition dropped", "rows > 7", "true"),
        ("condition dropped", "in_id <> 1", "true"),
    }


@pytest.mark.parametrize(
    ("code", "edit"),
    [
        ("delete from t where a = 1", ("condition dropped", "a = 1", "true")),
        ("exit when a is distinct from b", ("negated", "a is distinct from b", "(a is distinct from b) is not true")),
        ("x := a not in (1)", ("negated", "not", "")),
        ("x := a is not null", ("negated", "not", "")),
    ],
)
def test_a_condition_has_its_mutant(code: str, edit: tuple[str, str, str]) -> None:
    text = f"create function msgtx.f() returns void language plpgsql as $$\nbegin\n    {code};\nend $$;\n"
    assert edit in edits(mutants_of_sql("msgtx/sql/f.sql", text))


def test_the_mutants_of_a_function_of_python() -> None:
    assert edits(mutants_of_python("msgtx/module.py", PYTHON)) == {
        ("statement dropped", "found = []", "pass"),
        ("statement dropped", 'found.append("é" if len(items) > 3 else "x")', "pass"),
        ("negated", "len(items) > 3", "not (len(items) > 3)"),
        ("negated", "items and not most", "not (items and not most)"),
        ("condition dropped", "items", "True"),
        ("condition dropped", "not most", "True"),
        ("negated", "not most", "bool(most)"),
        ("statement dropped", 'raise ValueError(f"{most + 1} of {items}")', "pass"),
        ("statement dropped", "self.closed = True", "pass"),
        ("statement dropped", "return", "pass"),
    }


def test_an_id_outlives_what_changes_around_its_mutant_and_a_hash_what_changes_elsewhere() -> None:
    before = {mutant.id: mutant for mutant in mutants_of_sql("msgtx/sql/count_rows.sql", SQL)}
    moved = SQL.replace("begin\n", "begin\n    -- more\n    perform msgtx.other();\n")
    after = {mutant.id for mutant in mutants_of_sql("msgtx/sql/other/count_rows.sql", moved)}
    assert before.keys() <= after
    assert len(after) == len(before) + 1
    changed = mutants_of_python("msgtx/module.py", PYTHON.replace("Return some.", "Return all."))
    same = {mutant.text_hash for mutant in changed} & {each.text_hash for each in mutants_of_python("m.py", PYTHON)}
    assert {mutant.within for mutant in changed if mutant.text_hash in same} == {"Box.close"}


@pytest.mark.long
def test_todays_mutants_have_ids_of_their_own_and_python_ones_keep_their_lines() -> None:
    every = program.all_mutants()
    assert len({(mutant.name, mutant.id) for mutant in every}) == len(every) > 10_000
    assert all(m.mutated.count("\n") == m.text.count("\n") for m in every if m.path.endswith(".py"))
    assert every[0].name == "sql/append/append.sql:append", "what can lose records comes first"
    files = {str(path.relative_to(program.ROOT)) for path in (program.ROOT / "msgtx" / "sql").glob("*/*.sql")}
    assert len(files - {mutant.path for mutant in every}) < len(files) / 10, "few functions have nothing to change"
    explained = program.read_explained(program.EXPLAINED.read_text(encoding="utf-8"))
    assert len(explained) > 300
    assert {name for name, _ in explained} <= {mutant.name for mutant in every}


def test_an_outcome_holds_for_the_function_as_it_was_and_a_torn_line_is_none(tmp_path: Path) -> None:
    first, second, *_ = mutants_of_sql("msgtx/sql/count_rows.sql", SQL)
    kept = Outcomes(tmp_path / "build" / "mutants.jsonl")
    for outcome, by in (("survived", ""), ("caught", "t.py::a"), ("caught", "t.py::b")):
        kept.add(Outcome(first.id, first.text_hash, first.name, outcome, by))
    with (tmp_path / "build" / "mutants.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"id": "torn')
    again = Outcomes(tmp_path / "build" / "mutants.jsonl")
    assert (again.of(first), again.of(second), again.catchers(first.name)) == ("caught", "", ["t.py::b"])
    commented = mutants_of_sql("msgtx/sql/count_rows.sql", f"-- More words.\n{SQL}")[0]
    changed = mutants_of_sql("msgtx/sql/count_rows.sql", SQL.replace("rows end;", "0 end;"))[0]
    assert [again.of(each) for each in (commented, changed)] == ["caught", ""]


def test_the_likeliest_tests_come_first_as_many_as_there_is_time_for() -> None:
    names = ["a.py::test_far", "a.py::test_near", "b.py::test_about_rows", "c.py::test_caught", "d.py::test_slow"]
    near = dict(zip(names, (2, 1, 1, 2, 0), strict=True))
    record = cast("Any", Record.__new__(Record))
    record.tests = {name: Reach(30.0 if "slow" in name else 1.0, frozenset(), {}, frozenset()) for name in names}
    record.of_sql = lambda _: near
    mutant = mutants_of_sql("msgtx/sql/count_rows.sql", SQL)[-1]
    found = likeliest(mutant, record, ["c.py::test_caught"], 3.5)
    assert list(found) == ["c.py::test_caught", "b.py::test_about_rows", "a.py::test_near"]
    in_order = ["b.py::test_about_rows", "a.py::test_far", "a.py::test_near", "c.py::test_caught"]
    assert list(likeliest(mutant, record, [], 100)) == in_order, "a file keeps its order"


class FakeWorker:
    """`fails`: the tests that fail with the mutant, and how often; `ill`: without it, too."""

    def __init__(self, fails: dict[str, int], ill: tuple[str, ...] = ()) -> None:
        self.fails, self.ill = fails, ill

    def run(self, tests: dict[str, float], mutant: Mutant | None) -> dict[str, str]:
        for test in tests:
            if self.fails.get(test, 0) > 0:
                self.fails[test] -= 1
                return {"outcome": "caught", "by": test, "why": "so"}
        return {"outcome": "survived"}

    def are_healthy(self, tests: dict[str, float]) -> bool:
        return not set(tests) & set(self.ill)


@pytest.mark.parametrize(
    ("worker", "outcome", "by"),
    [
        (FakeWorker({}), "survived", ""),
        (FakeWorker({"a::x": 9}), "caught", "a::x"),
        (FakeWorker({"a::x": 1}), "survived", ""),
        (FakeWorker({"a::x": 9}, ill=("a::x",)), "survived", ""),
        (FakeWorker({"a::x": 1, "a::y": 9}), "caught", "a::y"),
    ],
)
def test_a_test_catches_a_mutant_if_it_fails_twice_and_passes_without(worker: FakeWorker, outcome: str, by: str) -> None:
    mutant = mutants_of_sql("msgtx/sql/count_rows.sql", SQL)[0]
    found = hunt(mutant, cast("Worker", worker), {"a::x": 1.0, "a::y": 1.0})
    assert (found.outcome, found.by) == (outcome, by)
    assert hunt(mutant, cast("Worker", worker), {}).outcome == "unreached"


def test_an_explanation_has_a_name_an_id_and_a_reason() -> None:
    read = program.read_explained
    assert read("# why\nsql/seal.sql:seal 0123456789 the same row either way\n") == {
        ("sql/seal.sql:seal", "0123456789"): "the same row either way"
    }
    with pytest.raises(ValueError, match=r"explained.txt:1"):
        read("0123456789 the same row either way\n")
