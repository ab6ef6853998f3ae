"""Fixtures of the tests of the command line."""

import io
import sys
from collections.abc import Callable

import pytest

from msgtx.cli.main import run
from tests.cli.program import Ended, Program
from tests.store.steps import unique


@pytest.fixture
def program(database_url: str) -> Program:
    """The program as processes of its own."""
    return Program(database_url)


@pytest.fixture
def msgtx(
    database_url: str, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., Ended]:
    """The program inside this process: `msgtx("topics", "list")`, quicker than starting it."""

    def call(*arguments: str, stdin: bytes = b"") -> Ended:
        capfdbinary.readouterr()
        monkeypatch.setenv("MSGTX_DATABASE_URL", database_url)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = run(arguments)
        sys.stderr.flush()
        out, err = capfdbinary.readouterr()
        return Ended(code, out, err.decode())

    return call


@pytest.fixture
def topic(msgtx: Callable[..., Ended]) -> str:
    """A topic of one partition."""
    name = unique("cli")
    assert msgtx("topics", "create", name).code == 0
    return name


@pytest.fixture
def wide(msgtx: Callable[..., Ended]) -> str:
    """A topic of three partitions."""
    name = unique("cli-wide")
    assert msgtx("topics", "create", name, "--partitions", "3").code == 0
    return name
