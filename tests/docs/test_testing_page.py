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
    assert "2 passed" in run_pytest(project, f"--msgtx-url={server.superuser_url}", "-k", "not whatever")


@pytest.mark.long
def test_its_worker_survives_every_boundary(project: Path, server: Server) -> None:
    assert "1 passed" in run_pytest(project, f"--msgtx-url={server.superuser_url}", "-k", "whatever")
