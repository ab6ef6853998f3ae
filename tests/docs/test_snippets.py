"""What README.md and the pages of docs tell the reader to type runs as it stands: each block on its own, and twice."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import msgtx
from tests.databases import PATIENCE_SECONDS, connect
from tests.docs.snippets import PAGES, TESTING, TUTORIAL, Snippet, snippets

pytestmark = pytest.mark.slow

TOPICS = ("orders", "invoices")  # that a block of SQL finds


def alone(*languages: str) -> list[Snippet]:
    return [each for each in snippets(*languages) if each.title is None and each.page != TUTORIAL]


def run(snippet: Snippet) -> None:
    """Run a block; one that goes on forever, such as a worker with a record that it cannot handle, fails.

    So does one that closes no client: psycopg warns of its connections later, in another test.
    Its workers wait a fifth of a second for more records, where a reader's wait for a second.
    """
    text = "\n" * snippet.line + snippet.text.replace('idle_timeout="1s"', 'idle_timeout="200ms"')
    code = compile(text, snippet.page, "exec")

    class NotAtItsEnd(KeyboardInterrupt):  # which no worker tries again
        pass

    def give_up(*_: object) -> None:
        raise NotAtItsEnd

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(int(2 * PATIENCE_SECONDS))
    try:
        names: dict[str, object] = {"__name__": "__main__"}
        exec(code, names)  # noqa: S102 - our own pages
        assert not [name for name, made in names.items() if isinstance(made, msgtx.Client) and not made.closed]
    except NotAtItsEnd as late:  # as itself, it would end the run of all tests
        raise AssertionError(f"{snippet.name} is not at its end") from late
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("snippet", alone("python"), ids=lambda snippet: snippet.name)
def test_a_block_of_python_runs_twice(
    snippet: Snippet, make_database: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without names of others, and without a warning that a newcomer would take for data loss."""
    monkeypatch.setenv("MSGTX_DATABASE_URL", make_database())
    for _ in range(2):
        run(snippet)
    said = capfd.readouterr()
    assert "out of range" not in said.out + said.err


def test_messages_and_rows_of_the_readme_agree(make_database: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first block publishes orders with their rows, its second one books each of them once, whichever run it is."""
    url = make_database()
    monkeypatch.setenv("MSGTX_DATABASE_URL", url)
    publish, book = (each for each in alone("python") if each.page == "README.md")
    for block in (publish, book, publish, book, book):
        run(block)
    with msgtx.connect(url) as client, connect(url) as connection:
        messages = list(client.read(client.snapshot(["orders"])))
        (rows,) = connection.execute("select count(*) from shop_order").fetchall()
        (booked,) = connection.execute("select orders, cents from sales where customer = 'ada'").fetchall()
    assert (len(messages), rows) == (2, (2,))
    assert booked == (2, 2500)


def test_the_blocks_run_one_after_the_other_in_one_database(
    make_database: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a reader does who tries them all: what one leaves, another one's worker can handle."""
    monkeypatch.setenv("MSGTX_DATABASE_URL", make_database())
    blocks = alone("python")
    workers = [each for each in blocks if ".process" in each.text]
    for each in [*blocks, *workers]:
        run(each)


@pytest.mark.parametrize("snippet", alone("sql"), ids=lambda snippet: snippet.name)
def test_a_block_of_sql_runs_twice(snippet: Snippet, make_database: Callable[..., str]) -> None:
    url = make_database()
    with msgtx.connect(url) as client:
        for name in TOPICS:
            client.topics.create(name)
        with client.producer() as producer:
            producer.send("orders", b'{"id": 2}', key=b"2")
    with connect(url) as connection:
        for _ in range(2):
            connection.execute(snippet.text)


@pytest.mark.parametrize("snippet", alone("sh"), ids=lambda snippet: snippet.name)
def test_a_block_for_the_shell_runs_twice(snippet: Snippet, make_database: Callable[..., str], tmp_path: Path) -> None:
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "MSGTX_DATABASE_URL": make_database(), "PATH": programs}
    for _ in range(2):
        subprocess.run(["bash", "-euo", "pipefail", "-c", snippet.text], cwd=tmp_path, env=environment, check=True)


@pytest.mark.parametrize("snippet", snippets("py"), ids=lambda snippet: snippet.name)
def test_a_part_is_python(snippet: Snippet) -> None:
    compile(snippet.text, snippet.name, "exec")


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
@pytest.mark.parametrize("snippet", snippets("js"), ids=lambda snippet: snippet.name)
def test_a_part_is_javascript(snippet: Snippet, tmp_path: Path) -> None:
    (tmp_path / "part.mjs").write_text(snippet.text, encoding="utf-8")
    subprocess.run(["node", "--check", "part.mjs"], cwd=tmp_path, check=True)


def test_every_block_says_what_becomes_of_it() -> None:
    """A language that no test knows would be a block that nothing looks at."""
    opened = {
        (path.name, fence)
        for path in PAGES
        for fence in re.findall(r"(?m)^ *```(\w+|[^\n]+)$", path.read_text(encoding="utf-8"))
    }
    known = {"python", "py", "js", "scala", "sql", "sh", "console", "text", "toml", "ini"}
    assert {(page, fence) for page, fence in opened if fence.split()[0] not in known} == set()
    titled = {each.title for each in snippets("python") if each.title is not None and each.page not in {TUTORIAL, TESTING}}
    assert titled == {"Spark", "Spark Connect"}  # tests/spark runs them
