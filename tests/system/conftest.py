"""Fixtures of the scenarios."""

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import msgtx
from msgtx.cli.main import run
from tests.cli.program import Ended
from tests.databases import Connection, connect
from tests.faults import CrashServer, crash_server
from tests.system.scenarios import Ground
from tests.system.zygote import Zygote
from tests.weave import Weaver, weaving


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Ended]:
    """The command line inside this process: `shell(url, "topics", "list")`. Every failure is one line."""

    def call(url: str, *arguments: str, stdin: bytes = b"") -> Ended:
        capfdbinary.readouterr()
        monkeypatch.setenv("MSGTX_DATABASE_URL", url)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = run(arguments)
        sys.stderr.flush()
        out, err = capfdbinary.readouterr()
        ended = Ended(code, out, err.decode())
        assert "Traceback" not in ended.err, ended.err
        if code:
            assert ended.err.startswith("msgtx: "), (arguments, ended)
            assert ended.err.count("\n") == 1, (arguments, ended)
        return ended

    return call


@pytest.fixture
def observer(make_database: Callable[[], str]) -> Iterator[msgtx.Client]:
    """A client on a database for these runs alone: leftovers of others would be swept and verified after each."""
    with msgtx.connect(make_database()) as client:
        yield client


@pytest.fixture
def ground(observer: msgtx.Client, tmp_path: Path) -> Ground:
    """Where programs are crashed."""
    return Ground(observer, tmp_path)


@pytest.fixture(scope="module")
def weaver(database_url: str) -> Iterator[Weaver]:
    """A weaver in the module's database."""
    with weaving(database_url, actors=3) as made:
        yield made


@pytest.fixture(scope="module")
def eye(database_url: str) -> Iterator[Connection]:
    """A connection that prepares stories and reads their results."""
    with connect(database_url) as made:
        yield made


@pytest.fixture(scope="module")
def crashing() -> Iterator[CrashServer]:
    with crash_server() as server:
        yield server


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()
