"""The program that makes mutants in bulk, on small texts whose mutants are known."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from msgtx.receiving.sole_use import SoleUse
from tests.interrupts import Interrupt
from tests.mutants_all import __main__ as program
from tests.mutants_all import results
from tests.mutants_all.ledger import LEDGER, RULES, TITLE, Ledger
from tests.mutants_all.mutant import Mutant, together
from tests.mutants_all.of_python import mutants_of_python
from tests.mutants_all.of_sql import mutants_of_sql
from tests.mutants_all.relevance import Map, Reach, Recorder, calls_of, chosen, distances, near_python, near_sql
from tests.mutants_all.results import Result, Results, read_explained, without_mutant
from tests.mutants_all.tokens import tokens_of

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
    with self._lock:
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
    return {
        (m.edit.rule, " ".join(m.text[m.edit.start : m.edit.end].split()), " ".join(m.edit.replacement.split()))
        for m in mutants
    }


def test_comments_strings_and_bodies_are_told_apart() -> None:
    read = [
        (token.kind, token.text) for token in tokens_of("a -- 'b\n 'it''s; $$' E'\\'' \"Q\"\"\" $$ <= :=x::INT /* c */ 7")
    ]
    assert read == [
        ("word", "a"), ("string", "'it''s; $$'"), ("string", "E'\\''"), ("quoted", '"Q"""'), ("dollar", "$$"),
        ("symbol", "<="), ("symbol", ":="), ("word", "x"), ("symbol", "::"), ("word", "int"), ("number", "7"),
    ]  # fmt: skip


def test_the_mutants_of_a_function_of_sql() -> None:
    chain = "(r.a is null or exists (select from msgtx.b))"
    assert edits(mutants_of_sql("msgtx/sql/count_rows.sql", SQL)) == {
        ("volatility", "stable", "volatile"),
        ("no definer", "security definer", ""),
        ("no setting", "set search_path = pg_catalog, pg_temp", ""),
        ("no setting", "set lock_timeout = '10s'", ""),
        ("statement dropped", ":= msgtx.require(in_id)", ""),
        ("negated", "in_id < 0", "(in_id < 0) is not true"),
        ("always", "in_id < 0", "true"),
        ("never", "in_id < 0", "false"),
        ("swapped", "<", "<="),
        ("constant", "0", "1"),
        ("statement dropped", "return", "null"),
        ("statement dropped", " ".join(SQL[SQL.index("select count") : SQL.index(";\n    raise")].split()), "null"),
        ("condition dropped", "r.partition_id = in_id", "true"),
        ("swapped", "=", "<>"),
        ("condition dropped", "r.last_offset between 1 and 5", "true"),
        ("constant", "1", "2"),
        ("constant", "5", "6"),
        ("condition dropped", chain, "true"),
        ("condition dropped", "r.a is null", "false"),
        ("negated", "", "not"),
        ("condition dropped", "exists (select from msgtx.b)", "false"),
        ("statement dropped", "rows := case when rows > 7 and in_id <> 1 then greatest(rows, 3) else rows end", "null"),
        ("negated", "rows > 7 and in_id <> 1", "(rows > 7 and in_id <> 1) is not true"),
        ("always", "rows > 7 and in_id <> 1", "true"),
        ("never", "rows > 7 and in_id <> 1", "false"),
        ("condition dropped", "rows > 7", "true"),
        ("condition dropped", "in_id <> 1", "true"),
        ("swapped", ">", ">="),
        ("swapped", "<>", "="),
        ("swapped", "greatest", "least"),
        ("constant", "7", "8"),
        ("constant", "3", "4"),
    }


@pytest.mark.parametrize(
    ("code", "edit"),
    [
        ("delete from t where a = 1", ("condition dropped", "a = 1", "true")),
        ("insert into t values (1) on conflict (a) do nothing", ("no conflict", "on conflict (a) do nothing", "")),
        ("select a from t for no key update of t skip locked", ("no row lock", "for no key update of t skip locked", "")),
        ("select a from t for update skip locked", ("waits", "skip locked", "")),
        ("select a from t order by b desc limit 1", ("no limit", "limit 1", "")),
        ("select a from t order by b desc limit 1", ("no order", "order by b desc", "")),
        ("select a from t limit most", ("no limit", "limit most", "")),
        ("update t set a = 1, b = 2 where c", ("assignment dropped", "a = 1,", "")),
        ("update t set a = 1, b = 2 where c", ("assignment dropped", ", b = 2", "")),
        ("exit when a is distinct from b", ("negated", "a is distinct from b", "(a is distinct from b) is not true")),
        ("x := a not in (1)", ("negated", "not", "")),
    ],
)
def test_a_clause_has_its_mutant(code: str, edit: tuple[str, str, str]) -> None:
    text = f"create function msgtx.f() returns void language plpgsql as $$\nbegin\n    {code};\nend $$;\n"
    assert edit in edits(mutants_of_sql("msgtx/sql/f.sql", text))


def test_what_can_have_one_row_only_keeps_its_limit_and_what_plans_keeps_its_settings() -> None:
    text = "create function msgtx.f() returns int language sql set jit = off\nreturn (select a from t limit 1);\n"
    assert {rule for rule, _, _ in edits(mutants_of_sql("msgtx/sql/f.sql", text))} <= {"constant", "statement dropped"}


def test_the_mutants_of_a_function_of_python() -> None:
    assert edits(mutants_of_python("msgtx/module.py", PYTHON)) == {
        ("statement dropped", "found = []", "pass"),
        ("without the lock", "self._lock", "__import__('contextlib').nullcontext()"),
        ("statement dropped", 'found.append("é" if len(items) > 3 else "x")', "pass"),
        ("negated", "len(items) > 3", "not (len(items) > 3)"),
        ("always", "len(items) > 3", "True"),
        ("never", "len(items) > 3", "False"),
        ("swapped", ">", ">="),
        ("constant", "3", "4"),
        ("negated", "items and not most", "not (items and not most)"),
        ("always", "items and not most", "True"),
        ("never", "items and not most", "False"),
        ("condition dropped", "items", "True"),
        ("condition dropped", "not most", "True"),
        ("negated", "not most", "bool(most)"),
        ("statement dropped", 'raise ValueError(f"{most + 1} of {items}")', "pass"),
        ("always", "item != 2", "True"),
        ("swapped", "!=", "=="),
        ("constant", "2", "3"),
        ("statement dropped", "self.closed = True", "pass"),
        ("swapped", "True", "False"),
        ("statement dropped", "return", "pass"),
    }


def test_every_mutant_has_an_id_of_its_own_that_outlives_what_changes_around_it() -> None:
    before = {mutant.id: mutant.edit.rule for mutant in mutants_of_sql("msgtx/sql/count_rows.sql", SQL)}
    moved = SQL.replace("begin\n", "begin\n    -- more\n    perform msgtx.other();\n")
    after = {mutant.id: mutant.edit.rule for mutant in mutants_of_sql("msgtx/sql/count_rows.sql", moved)}
    assert len(after) == len(before) + 1
    assert before.items() <= after.items()


def test_the_mutants_of_today_have_ids_of_their_own_and_python_ones_keep_their_lines() -> None:
    every = program.all_mutants()
    assert len({mutant.id for mutant in every}) == len(every) > 10_000
    for mutant in every:
        if mutant.path.endswith(".py"):
            assert mutant.mutated.count("\n") == mutant.text.count("\n"), mutant.name
    assert every[0].name == "sql/append/append.sql:append", "what can lose records comes first"
    files = {str(path.relative_to(program.ROOT)) for path in (program.ROOT / "msgtx" / "sql").glob("*/*.sql")}
    without = files - {mutant.path for mutant in every}
    assert {path.split("/")[2] for path in files} == {m.path.split("/")[2] for m in every if m.path.endswith(".sql")}
    assert len(without) < len(files) / 10, "all rooms are taken, and few functions have nothing to change"


def test_a_sample_is_drawn_by_its_seed() -> None:
    every = mutants_of_sql("msgtx/sql/count_rows.sql", SQL)
    drawn = program.asked_for(every, ["sql/count*"], sample=5, seed=1)
    assert (len(drawn), drawn) == (5, program.asked_for(every, [], sample=5, seed=1))
    assert drawn != program.asked_for(every, [], sample=5, seed=2)
    assert program.asked_for(every, ["seal"], sample=None, seed=0) == []
    negated = program.asked_for(every, [], sample=None, seed=0, rules=["negated"])
    assert negated == [mutant for mutant in every if mutant.edit.rule == "negated"] != []
    assert program.asked_for(every, [], sample=None, seed=0, rules=["*"]) == every
    assert program.asked_for(every, [every[0].id], sample=None, seed=0, rules=["negated"]) == [every[0]], (
        "its rule is another"
    )


def test_mutants_are_planted_together_if_they_have_the_same_tests_and_no_place_in_common() -> None:
    every = mutants_of_sql("msgtx/sql/count_rows.sql", SQL)
    groups = program.groups_of(every)
    assert sorted(mutant.id for group in groups for mutant in group) == sorted(mutant.id for mutant in every)
    for group in groups:
        assert len(group) <= program.TOGETHER
        assert len({mutant.edit.rule in program.HEADER for mutant in group}) == 1
        text = together(group)
        for mutant in group:
            assert mutant.edit.replacement in text
        assert len(text) - len(SQL) == sum(len(mutant.mutated) - len(SQL) for mutant in group)
    assert len(groups) < len(every) / 3


# ── which tests ──


def test_a_test_reaches_what_its_statements_name_and_what_that_calls() -> None:
    calls = calls_of({
        "seal": "create function msgtx.seal() … perform msgtx.flush(); -- msgtx.nothing()",
        "flush": "create function msgtx.flush()",
        "publish": "create function msgtx.publish() … insert into msgtx.staged values (1)",
        "at_commit": "create constraint trigger at_commit after insert on msgtx.staged execute function msgtx.store()",
        "store": "create function msgtx.store() … perform msgtx.flush();",
        "nothing": "create function msgtx.nothing()",
    })  # fmt: skip
    assert distances("flush", calls) == {"flush": 0, "seal": 1, "store": 1, "at_commit": 2, "publish": 3}
    tests = {"a.py::far": reach("publish"), "a.py::near": reach("seal"), "b.py::other": reach("nothing")}
    (mutant, *_) = mutants_of_sql("msgtx/sql/flush.sql", SQL)
    found = program.tests_of([mutant], tests, calls, seconds=10, killers={})
    assert found == ({"a.py::far": 1.0, "a.py::near": 1.0}, True)
    assert list(program.tests_of([mutant], tests, calls, seconds=1.5, killers={})[0]) == ["a.py::near"], (
        "it is the closer test"
    )


def reach(*sql: str, python: str = "", lines: int = 0, seconds: float = 1.0, called: tuple[str, ...] = ()) -> Reach:
    return Reach(seconds, frozenset(sql), {python: lines} if python else {}, frozenset(called))


def test_what_a_file_has_not_called_none_of_its_tests_reaches() -> None:
    """Most tests that could reach a check run as the owner, who skips it: they are not close to it."""
    calls = {"append": {"require"}, "require": set()}
    tests = {"a.py::owner": reach("append", called=("append",)), "b.py::role": reach("append", called=("append", "require"))}
    assert near_sql("require", tests, calls, header=False) == {"b.py::role": 1}
    assert near_sql("append", tests, calls, header=False) == {"a.py::owner": 0, "b.py::role": 0}
    no_counts = {test: reach("append") for test in tests}
    assert near_sql("require", no_counts, calls, header=False) == dict.fromkeys(tests, 1), "a view, or an inlined function"


def test_tests_that_have_called_what_a_changed_piece_names_are_the_closest() -> None:
    calls: dict[str, set[str]] = {"append": {"require", "lock"}, "require": set(), "lock": set()}
    tests = {"a.py::owner": reach("append", called=("append", "lock"))}
    tests |= {"b.py::role": reach("append", called=("append", "require", "lock"))}
    near = near_sql("append", tests, calls, header=False, pieces="ignored := msgtx.require(1) and msgtx.lock(1)")
    assert near == {"a.py::owner": 100, "b.py::role": 0}


def test_a_test_of_the_functions_rows_or_texts_reaches_every_one() -> None:
    texts = "tests/house/test_sql.py::test_"
    tests = {"a": reach("*"), "b": reach("seal", called=("seal",)), "c": reach("other")}
    tests |= {f"{texts}{name}": reach() for name in ("all", "each[seal]", "each[other]")}
    found = {"b": 0, f"{texts}all": 0, f"{texts}each[seal]": 0}
    assert near_sql("seal", tests, {}, header=False) == found
    assert near_sql("seal", tests, {}, header=True) == found | {"a": 0}, "what is asked of the rows does not see a body"


def test_a_test_reaches_the_lines_of_python_that_it_runs() -> None:
    function = "msgtx/module.py:first"
    tests = {
        "a.py::returns": reach(python=function, lines=0b100111100),
        "a.py::raises": reach(python=function, lines=0b1111100),
        "a.py::not": reach(python="msgtx/module.py:Box.close", lines=0b110),
    }
    mutants = mutants_of_python("msgtx/module.py", PYTHON)
    (raising,) = [mutant for mutant in mutants if mutant.text[mutant.edit.start :].startswith("raise")]
    (_, testing, *_) = [mutant for mutant in mutants if mutant.edit.rule == "negated"]
    assert (list(raising.lines), list(testing.lines)) == ([10], [9])
    assert program.tests_of([raising], tests, {}, seconds=10, killers={})[0].keys() == {"a.py::raises"}
    assert program.tests_of([testing], tests, {}, seconds=10, killers={})[0].keys() == {"a.py::returns", "a.py::raises"}
    both = program.tests_of([raising, mutants[-1]], tests, {}, seconds=10, killers={})[0]
    assert both.keys() == {"a.py::raises", "a.py::not"}
    del tests["a.py::raises"]
    assert near_python(raising, tests) == {"a.py::returns": 0}, (
        "no test runs the line: those of the function are the closest"
    )


def test_a_test_reaches_every_line_of_a_file_that_it_interrupts() -> None:
    recorder = Recorder(program.ROOT / "msgtx", python=True)
    test = recorder.pytest_runtest_protocol(cast("Any", SimpleNamespace(nodeid="test")))
    next(test)
    with Interrupt(1, ["receiving/sole_use.py"]):
        SoleUse("a consumer")
    with contextlib.suppress(StopIteration):
        test.send(None)
    functions = recorder.found["test"]["python"]
    assert {name.rpartition(":")[2] for name in functions} == {f"SoleUse.{name}" for name in ("__init__", "call", "close")}


def test_what_runs_in_a_process_of_its_own_has_the_tests_of_the_process() -> None:
    tests = {"tests/system/test_daemon.py::test": reach(), "a.py::it": reach(python="msgtx/coordinator/x.py:Box.close")}
    mutant = mutants_of_python("msgtx/coordinator/x.py", PYTHON)[-1]
    assert near_python(mutant, tests) == {"tests/system/test_daemon.py::test": 1, "a.py::it": 0}


def test_the_closest_and_quickest_tests_are_run_in_their_order_and_what_is_too_slow_is_left_out() -> None:
    tests = {
        name: reach(seconds=seconds) for name, seconds in {"a::1": 3, "a::2": 1, "b::3": 1, "b::4": 90, "c::5": 1}.items()
    }
    near = {"a::1": 0, "a::2": 0, "b::3": 1, "b::4": 0}
    assert order(near, tests, 5) == (["a::2", "a::1"], False), "the quickest first"
    assert order({"a::2": 0}, tests, 4) == (["a::2"], True)
    assert order({"a::1": 0, "a::2": 0, "c::5": 0}, tests, 2.5) == (["a::2", "c::5"], False), "files take turns"
    assert order({"a::1": 0, "a::2": 0}, tests | {"a::1": reach(seconds=1.5)}, 4) == (["a::1", "a::2"], True), (
        "in their order"
    )


def test_tests_whose_names_have_rare_words_of_what_was_changed_run_first() -> None:
    names = ("aio/test_all.py::test_all", "store/test_batches.py::test_all", "store/test_decide.py::test_timeout_of_all")
    tests = {f"tests/{name}": reach() for name in (*names, *(f"store/test_decide.py::test_all[{n}]" for n in range(9)))}
    near = dict.fromkeys(tests, 0)

    def first(subject: str) -> str:
        return next(iter(chosen(near, tests, seconds=1.1, killers={}, subject=subject)[0])).removeprefix("tests/")

    assert first("sql/append/append.sql:append timeout_ms > 0 or is_decided") == "store/test_decide.py::test_timeout_of_all"
    assert first("producer/batcher.py:Batcher.add_batch") == "store/test_batches.py::test_all"
    assert first("sql/fetch/fetch.sql:fetch") == "aio/test_all.py::test_all"


def order(near: dict[str, int], tests: dict[str, Reach], seconds: float) -> tuple[list[str], bool]:
    found, complete = chosen(near, tests, seconds=seconds, killers={})
    return list(found), complete


def test_what_has_caught_mutants_of_the_same_function_or_room_runs_first(tmp_path: Path) -> None:
    mutant = mutants_of_sql("msgtx/sql/append/count_rows.sql", SQL)[0]
    kept = Results(tmp_path / "results.jsonl")
    here, room, elsewhere = (mutant.name, "sql/append/other.sql:other", "sql/fetch/other.sql:other")
    for name, by in ((here, "b::far"), (here, "b::far"), (here, "a::slow"), (room, "c::room"), (elsewhere, "a::near")):
        kept.add(Result(mutant.id, "of a former text", name, "caught", by=by))
    killers = Results(tmp_path / "results.jsonl").killers(mutant.name)
    assert killers == {"b::far": 1_002_000, "a::slow": 1_001_000, "c::room": 1}
    tests = {"a::near": reach(), "a::slow": reach(seconds=2), "b::far": reach(seconds=2), "c::room": reach(seconds=3)}
    found, _ = chosen({"a::near": 0, "a::slow": 1, "b::far": 2, "c::room": 3}, tests, seconds=10, killers=killers)
    assert list(found) == ["b::far", "a::near", "a::slow", "c::room"], "the first within their stage"


def test_the_tests_that_were_the_last_to_catch_a_mutant_of_a_function_weigh_most(tmp_path: Path) -> None:
    kept = Results(tmp_path / "results.jsonl")
    for by in ("a::1", "a::1", "a::1", "a::2", "a::3", "a::4"):
        kept.add(Result(by, "", "sql/seal.sql:seal", "caught", by=by))
    weights = kept.killers("sql/seal.sql:seal")
    assert sorted(weights, key=lambda test: -weights[test]) == ["a::2", "a::3", "a::4", "a::1"]


def test_what_a_file_of_tests_reaches_is_noted_until_it_changes(tmp_path: Path) -> None:
    for folder in ("rules", "store"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
    file = tmp_path / "tests" / "store" / "test_seal.py"
    file.write_text("one", encoding="utf-8")
    (tmp_path / "module.py").write_text(PYTHON, encoding="utf-8")
    noted = Map(tmp_path / "kept" / "map.json")
    assert noted.stale(tmp_path, python=False) == ["tests/store/test_seal.py"]
    noted.note(
        tmp_path,
        "tests/store/test_seal.py",
        {"t": {"seconds": 1.5, "sql": ["seal"], "python": {"module.py:first": "3", "module.py:Box.close": "3"}}},
        python=False,
        called=["seal"],
    )
    again = Map(tmp_path / "kept" / "map.json")
    assert again.stale(tmp_path, python=False) == []
    found = Reach(1.5, frozenset({"seal"}), {"module.py:first": 3, "module.py:Box.close": 3}, frozenset({"seal"}))
    assert again.tests(tmp_path) == {"t": found}
    assert again.stale(tmp_path, python=True) == ["tests/store/test_seal.py"]
    assert (again.stale(tmp_path, python=True, below=["tests/rules"]), again.tests(tmp_path, ["tests/rules"])) == ([], {})
    later = PYTHON.replace("found = []", "found = list()") + "\n\ndef new():\n    return\n"
    (tmp_path / "module.py").write_text(later, encoding="utf-8")
    assert again.tests(tmp_path)["t"].python == {"module.py:first": -1, "module.py:Box.close": 3, "module.py:new": -1}
    file.write_text("two", encoding="utf-8")
    assert again.stale(tmp_path, python=False) == ["tests/store/test_seal.py"]


# ── what is kept ──


def test_a_result_holds_for_the_function_as_it_was_and_a_torn_line_is_none(tmp_path: Path) -> None:
    first, second, *_ = mutants_of_sql("msgtx/sql/count_rows.sql", SQL)
    kept = Results(tmp_path / "results.jsonl")
    for outcome in ("survived", "caught"):
        kept.add(Result(first.id, first.text_hash, first.name, outcome))
    with (tmp_path / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"id": "torn')
    again = Results(tmp_path / "results.jsonl")
    found = again.of(first)
    assert found is not None
    assert found.outcome == "caught"
    assert again.of(second) is None
    explained = mutants_of_sql("msgtx/sql/count_rows.sql", f"-- More words.\n{SQL}\n")[0]
    assert (explained.id, again.of(explained)) == (first.id, found), "a comment changes nothing"
    changed = mutants_of_sql("msgtx/sql/count_rows.sql", SQL.replace("rows end;", "0 end;"))[0]
    assert (changed.id, again.of(changed)) == (first.id, None)


def test_a_result_outlives_changes_of_other_functions_of_its_module() -> None:
    before = {mutant.id: mutant.text_hash for mutant in mutants_of_python("msgtx/module.py", PYTHON)}
    changed = PYTHON.replace("Return some.", "Return all.")
    after = {mutant.id: mutant.text_hash for mutant in mutants_of_python("msgtx/module.py", changed)}
    assert before.keys() == after.keys()
    (other,) = {
        mutant.within for mutant in mutants_of_python("msgtx/module.py", PYTHON) if before[mutant.id] == after[mutant.id]
    }
    assert other == "Box.close"


def test_the_ledger_keeps_outcomes_in_order_for_functions_as_they_are(tmp_path: Path) -> None:
    every = mutants_of_sql("msgtx/sql/count_rows.sql", SQL)
    counted = [mutant for mutant in every if mutant.edit.rule in RULES]
    first, second, third, fourth, *_ = counted
    (moved, *_) = [mutant for mutant in every if mutant.edit.rule == "swapped"]
    results = Results(tmp_path / "results.jsonl")
    for mutant, outcome in (
        (third, "survived"),
        (first, "caught"),
        (second, "stillborn"),
        (fourth, "open"),
        (moved, "caught"),
    ):
        results.add(Result(mutant.id, mutant.text_hash, mutant.name, outcome))
    path = tmp_path / "ledger.txt"
    ledger = Ledger(path)
    ledger.take(every, results)
    ledger.write(every)
    words = sorted([first.id[:5], f"{second.id[:5]}-", f"{third.id[:5]}?"])
    text = f"{TITLE}sql/count_rows.sql:count_rows {first.text_hash} {' '.join(words)}\n"
    assert path.read_text(encoding="utf-8") == text
    again = Ledger(path)
    assert [again.outcome(mutant) for mutant in counted[:4]] == ["caught", "stillborn", "survived", ""]
    assert again.outcome(moved) == ""
    again.write(every)
    assert path.read_text(encoding="utf-8") == text
    changed = mutants_of_sql("msgtx/sql/count_rows.sql", SQL.replace("rows end;", "0 end;"))
    assert [again.outcome(mutant) for mutant in changed] == [""] * len(changed)
    again.write([mutant for mutant in every if mutant.id != second.id])
    assert second.id[:5] not in path.read_text(encoding="utf-8"), "it is no mutant of today's text"
    path.write_text(text + "sql/seal.sql:seal 0123\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"ledger.txt:3"):
        Ledger(path)


def test_what_the_ledger_holds_is_run_again_on_request_only(tmp_path: Path) -> None:
    caught, survived, unknown, *_ = mutants_of_sql("msgtx/sql/count_rows.sql", SQL)[-3:]
    results = Results(tmp_path / "results.jsonl")
    for mutant, outcome in ((caught, "caught"), (survived, "survived")):
        results.add(Result(mutant.id, mutant.text_hash, mutant.name, outcome))
    known = program.Known(Ledger(tmp_path / "ledger.txt"), results, [caught, survived, unknown])
    assert [known.outcome(mutant) for mutant in known.every] == ["caught", "survived", ""]

    def due(*, again: bool = False, anew: bool = False) -> list[Mutant]:
        return [mutant for mutant in known.every if known.is_due(mutant, again=again, anew=anew)]

    assert (due(), due(again=True), due(anew=True)) == ([unknown], [survived, unknown], [caught, survived, unknown])
    known.explained[survived.id] = "the same row either way"
    assert due(again=True) == [unknown]


def test_todays_ledger_is_small_and_names_functions_of_today_in_order() -> None:
    ledger = Ledger()
    every = program.all_mutants()
    assert set(ledger.names) <= {mutant.name for mutant in every}, (
        "run tests.mutants_all --report: it leaves out what is gone"
    )
    assert ledger.names == sorted(ledger.names)
    assert LEDGER.stat().st_size < 150_000
    digits: dict[str, list[str]] = {}
    for mutant in every:
        if mutant.edit.rule in RULES:
            digits.setdefault(mutant.name, []).append(mutant.id[:5])
    assert [name for name, found in digits.items() if len(set(found)) != len(found)] == [], "five digits tell them apart"


def test_an_explanation_has_an_id_a_name_and_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "explained.txt"
    path.write_text("# why\n\n0123456789 sql/seal.sql:seal the same row either way\n", encoding="utf-8")
    assert read_explained(path) == {"0123456789": "the same row either way"}
    assert without_mutant({"0123456789", "abcdefabcd"}, []) == ["0123456789", "abcdefabcd"]
    path.write_text("0123456789 the same row either way\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"explained.txt:1"):
        read_explained(path)


def test_what_survives_today_is_explained_and_nothing_else() -> None:
    """Caught by a test, or explained: what is neither is run, and then one of both."""
    ledger, explained, every = Ledger(), read_explained(results.EXPLAINED), program.all_mutants()
    survivors = {f"{mutant.id} {mutant.name}" for mutant in every if ledger.outcome(mutant) == "survived"}
    assert {survivor for survivor in survivors if survivor.split()[0] not in explained} == set()
    assert without_mutant(explained, every) == []
