"""The tests on the page about tests pass (docs/how-to/testing.md)."""

from pathlib import Path

import pytest

from tests.databases import Server
from tests.docs.snippets import TESTING, snippets
from tests.testing.runs import run_pytest


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for block in snippets("python", page=TESTING):
        if block.title is not None:
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
    return tmp_path


def test_its_tests_pass(project: Path, server: Server) -> None:
    assert "3 passed" in run_pytest(project, f"--msgtx-url={server.superuser_url}", "-k", "not whatever")


def test_a_swallowed_exception_is_found_by_a_bad_record(project: Path, server: Server) -> None:
    """And by nothing else on the page, as it says."""
    page = project / "test_sales.py"
    text, booked = page.read_text(encoding="utf-8"), "    session.execute(insert, record.json())\n"
    assert text.count(booked) == 1
    swallowing = f"    import contextlib\n    with contextlib.suppress(Exception), session.begin_nested():\n    {booked}"
    page.write_text(text.replace(booked, swallowing), encoding="utf-8")
    told = run_pytest(project, f"--msgtx-url={server.superuser_url}", "-k", "not whatever")
    assert "FAILED test_sales.py::test_an_order_that_cannot_be_booked_is_a_dead_letter" in told
    assert "1 failed, 2 passed" in told


@pytest.mark.long
def test_its_worker_survives_every_boundary(project: Path, server: Server) -> None:
    assert "1 passed" in run_pytest(project, f"--msgtx-url={server.superuser_url}", "-k", "whatever")
