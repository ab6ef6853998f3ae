"""Sweeps whose calls look at one thing at most, or remove two rows: that takes more calls, and what is done is the same."""

import re

import pytest

from tests.databases import connect
from tests.store import test_history, test_idle_ids
from tests.store.test_idle_ids import removed  # noqa: F401 - a fixture

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_steps", "bare")]


@pytest.fixture(scope="module")
def small_steps(database_url: str) -> None:
    """Let all functions of SQL do little at once; of two rows one may be bad, and stay."""
    with connect(database_url) as connection:
        texts = connection.execute(
            "select pg_get_functiondef(oid) from pg_proc"
            " where pronamespace = 'msgtx'::regnamespace and prosrc like '%_at_once constant%'"
        ).fetchall()
        assert len(texts) > 10
        for (text,) in texts:
            changed = re.sub(r"(rows_at_once constant int :=) \d+", r"\1 2", text)
            connection.execute(re.sub(r"((?:looks|spans)_at_once constant int :=) \d+", r"\1 1", changed).encode())


for module in (test_history, test_idle_ids):
    for name, function in vars(module).items():
        if name.startswith("test_") and "more_than_one_call" not in name:
            globals()[f"{name}_in_small_steps"] = function
