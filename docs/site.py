"""What `make docs` adds: files at the top of the clone, the front page, and references that are made of the code."""

import posixpath
import re
import shutil
import subprocess
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
# Files outside docs that are pages of the site, and the README, of which the front page has parts.
PAGES: Final = {
    name: name.lower() for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "STYLE.md")
}
FRONT: Final = "index.md"
TOP: Final = {**PAGES, "README.md": FRONT}
LINK: Final = re.compile(r"\[([^\]]+)\]\(([^)\s:]+)\)")
MARK: Final = re.compile(r"<!-- generated: ([\w ]+) -->")
SOURCE: Final = re.compile(r"\b(internals|architecture): ([a-z-]+)(#[a-z-]+)?")
SHIM: Final = "https://unpkg.com/iframe-worker/shim"  # the theme asks for it where a page is opened from a disk
# Pages that a search shows behind those for users, even if their titles have the word: a title counts a thousand times.
BEHIND: Final = ("decisions/", "internals/", *(page for page in PAGES.values() if page != "security.md"))
BEHIND_BOOST: Final = 0.0001
# What people look for, and the page that a search shows first. A page may have several of these words.
SOUGHT: Final = {
    "Kafka": "porting.md",
    "asyncio": "how-to/asyncio.md",
    "backup": "operations/backup.md",
    "Celery": "how-to/share-groups.md",
    "dead letter": "how-to/dead-letters.md",
    "delay": "recipes/delayed-jobs.md",
    "Django": "how-to/django.md",
    "exactly once": "why-exactly-once.md",
    "failover": "operations/high-availability.md",
    "lag": "operations/monitoring.md",
    "outbox": "how-to/publish-with-your-rows.md",
    "queue": "how-to/share-groups.md",
    "replay": "how-to/find-a-record.md",
    "retention": "operations/production.md",
    "retry": "how-to/worker.md",
    "rights": "how-to/rights.md",
    "Spark": "how-to/spark.md",
    "test": "how-to/testing.md",
    "worker": "how-to/worker.md",
}
SHARED: Final = {"--url", "-o,", "--help", "-h,"}  # options of every command: told of once


def on_config(config: Any) -> Any:
    """Say on each page which version it is of, and where the source is, if that is known."""
    config.copyright = f"msgtx {_project()['version']}"
    if found := source():
        config.copyright += f' · <a href="{found}">source</a>'
        config.nav.append({"Source": found})
    return config


def source() -> str | None:
    """Return the address of the source: the project's, else the one that this clone was made from."""
    named = _project().get("urls", {}).get("Source")
    if named is None:
        git = shutil.which("git")
        asked = git and subprocess.run(  # noqa: S603 - a fixed command
            [git, "remote", "get-url", "origin"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        named = asked.stdout.strip() if asked else ""
    return _address(named)


def _address(remote: str) -> str | None:
    """Return a remote of git as an address for a browser, without the name and password in it."""
    found = re.fullmatch(r"(?:https?://(?:[^/@]*@)?|ssh://git@|git@)([\w.-]+(?::\d+)?)[:/]([\w./~-]+?)(?:\.git)?/?", remote)
    return f"https://{found[1]}/{found[2]}" if found else None


def _project() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def on_files(files: Any, config: Any) -> Any:
    """Add the files at the top of the clone as pages."""
    from mkdocs.structure.files import File

    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to where their files are in the site, and put references in their places."""
    here = page.file.src_uri
    if here.startswith(BEHIND):
        page.meta.setdefault("search", {"boost": BEHIND_BOOST})
    if words := [word for word, sought in SOUGHT.items() if sought == here]:
        page.meta["tags"] = words
    if here == FRONT:
        page.meta["hide"] = ["navigation", "toc"]
    # A file at the top of the clone links from there, a page from its place in docs.
    folder = "" if here in PAGES.values() else posixpath.join("docs", posixpath.dirname(here))
    markdown = _linked(markdown, folder, here)
    return MARK.sub(lambda mark: "\n".join(GENERATED[mark[1]]()), markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Take the theme's one script from elsewhere from the site itself: a page asks no other host for anything."""
    return output.replace(SHIM, "../" * page.file.dest_uri.count("/") + "iframe-worker.js")


def on_post_template(output_content: str, **_: Any) -> str:
    """As `on_post_page`, for the page of an address that is not there."""
    return output_content.replace(SHIM, "iframe-worker.js")


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Make links of the sources that docstrings name."""
    start = posixpath.relpath(".", posixpath.dirname(page.file.src_uri) or ".")

    def linked(source: re.Match[str]) -> str:
        kind, name, section = source[1], source[2], source[3] or ""
        target = f"architecture.html#{name}" if kind == "architecture" else f"internals/{name}.html{section}"
        return f'<a href="{start}/{target}">{source[0]}</a>'

    return SOURCE.sub(linked, html) if page.file.src_uri == "reference/python.md" else html


def _linked(markdown: str, folder: str, here: str) -> str:
    """Return a text of a file in a folder with the links that it needs as a part of the page `here`."""
    return LINK.sub(lambda link: _link(link[1], link[2], folder, here), markdown)


def _link(text: str, target: str, folder: str, here: str) -> str:
    """Return a link of a page as the site needs it; what is not in the site stays as words."""
    path, mark, section = target.partition("#")
    if not path:
        return f"[{text}]({target})"
    found = posixpath.normpath(posixpath.join(folder, path))
    if found in TOP:
        wanted = TOP[found]
    elif found.startswith("docs/") and found.endswith((".md", ".svg", ".png")):
        wanted = found.removeprefix("docs/")
    else:
        return text
    return f"[{text}]({posixpath.relpath(wanted, posixpath.dirname(here) or '.')}{mark}{section})"


# ── the front page: parts of the README, and figures of the page that says how they were measured ──


def readme(heading: str, *, kind: str) -> str:
    """Return what the README has below a heading: its `text`, or the first block of `code`."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"(?ms)^#+ {re.escape(heading)}\n\n(.*?)(?=^## |\Z)", text)
    assert found is not None, heading
    if kind == "code":
        block = re.search(r"(?ms)^```\w+\n.*?^```$", found[1])
        assert block is not None, heading
        return block[0]
    return _linked(found[1], "", FRONT)


def promise() -> Iterator[str]:
    """Yield the first two paragraphs: what msgtx is."""
    for paragraph in readme("msgtx", kind="text").split("\n\n")[:2]:
        yield from (paragraph, "")


def publish() -> Iterator[str]:
    """Yield the program that commits a row and its message."""
    yield readme("Publish with your own rows", kind="code")


def commands() -> Iterator[str]:
    """Yield the commands that show it."""
    yield readme("Try it", kind="code")


def further() -> Iterator[str]:
    """Yield the way to the other pages."""
    yield readme("Go on", kind="text")


def figures() -> Iterator[str]:
    """Yield what msgtx does beside others, out of the tables of docs/is-it-for-me.md."""
    columns = ("Kafka, as shipped", "an outbox with a relay", "pgmq")
    yield from ("| msgtx ÷ the other | " + " | ".join(columns) + " |", "|---|---|---|---|")
    for name, cells in BESIDE.items():
        yield f"| {name} | " + " | ".join(_figure(*cell) if cell else "–" for cell in cells) + " |"


# Of each cell: the row of a table, and the head of its column.
Cell = tuple[str, str] | None
BESIDE: Final[dict[str, tuple[Cell, Cell, Cell]]] = {
    "its message and your row in one commit": (
        ("message and your row in one commit", "Kafka"),
        ("message and your row in one commit", "outbox and relay"),
        ("message and your row in one commit", "pgmq"),
    ),
    "its offset and your row in one commit": (
        ("offset and your row in one commit", "Kafka"),
        ("offset and your row in one commit", "outbox and relay"),
        ("offset and your row in one commit", "pgmq"),
    ),
    "transactions of one message": (
        ("transactions of one record, 1 producer", "Kafka, as shipped"),
        ("business transactions, one session", "with a relay to a topic for other readers"),
        ("one message per commit, one session", ""),
    ),
    "sending in bulk (Kafka: records of 100 B, 1 KB)": (
        ("`send` without a transaction, 100 B, 1 KB", "Kafka, as shipped"),
        None,
        ("500 messages per call, waiting for each call", ""),
    ),
    "reading in bulk (Kafka: records of 100 B, 1 KB)": (
        ("consume with `poll`, 100 B, 1 KB", "Kafka, as shipped"),
        None,
        ("reading 500 at a time and committing the offset (with pgmq: deleting them)", ""),
    ),
    "time to delivery, p50 (less is better)": (
        ("Kafka as shipped, 500 messages a second", "p50"),
        ("time from commit to delivery, p50 (less is better for msgtx)", "with a relay to a topic for other readers"),
        ("time from send to delivery at 50 messages a second, p50, p99 (less is better for msgtx)", ""),
    ),
}


def _figure(row: str, column: str) -> str:
    """Return a cell of a table in docs/is-it-for-me.md. An unknown row or column ends the build."""
    text = (ROOT / "docs" / "is-it-for-me.md").read_text(encoding="utf-8")
    for table in re.findall(r"(?m)(?:^\|.*\n)+", text):
        head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
        found = [cells[head.index(column)] for cells in rows if cells[0] == row and column in head[1:]]
        if found:
            return _linked(found[0], "docs", FRONT)
    raise LookupError(f"{row}: {column}")


# ── references that are made of the code ──


def errors() -> Iterator[str]:
    """Yield a table of all errors, by family."""
    from msgtx import errors

    families = (errors.RetriableError, errors.AbortableError, errors.FatalError, errors.UsageError)
    yield "| error | family | Kafka's number | exit code | a worker | what happened | what to do |"
    yield "|---|---|---|---|---|---|---|"
    for name, error in errors.BY_NAME.items():
        if error in {*families, errors.MsgtxError}:
            continue
        family = next((each.__name__ for each in families if issubclass(error, each)), "–")
        happened, _, todo = (error.__doc__ or "").partition("\n")
        about = f"{error.code or '–'} | {error.exit_code} | {error.fault.name}"
        yield f"| `{name}` | {family} | {about} | {_cell(happened)} | {_cell(todo)} |"


def command_line() -> Iterator[str]:
    """Yield each command with its usage, its help and its options."""
    import click

    from msgtx.cli.commands import command

    yield from _command(command, click.Context(command, info_name="msgtx", show_default=True), 3)


def _command(command: Any, context: Any, level: int) -> Iterator[str]:
    import click

    yield from (f"{'#' * min(level, 4)} {context.command_path}", "", "```text")
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield from textwrap.wrap(usage, 78, subsequent_indent="  ", break_on_hyphens=False)
    yield from ("```", "", *_help(command.help or ""), "")
    options = [
        record
        for option in command.get_params(context)
        if isinstance(option, click.Option) and (record := option.get_help_record(context)) is not None
    ]
    shown = [record for record in options if level == 3 or record[0].split()[0] not in SHARED]
    if shown:
        yield from ("| option | |", "|---|---|")
        yield from (f"| `{name}` | {_cell(text)} |" for name, text in shown)
        yield ""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _command(found, click.Context(found, info_name=name, parent=context), level + 1)


def _help(text: str) -> Iterator[str]:
    """Yield a command's help as Markdown; what click leaves as it is stays so."""
    for paragraph in text.split("\n\n"):
        if paragraph.lstrip().startswith("\b"):
            yield from ("```text", *textwrap.dedent(paragraph.replace("\b", "").strip("\n")).split("\n"), "```", "")
        else:
            yield from (_cell(paragraph), "")


def views() -> Iterator[str]:
    """Yield each view that is mapped, with its columns."""
    from sqlalchemy.dialects import postgresql

    from msgtx import orm

    mapped = [each for name in orm.__all__ if isinstance(each := getattr(orm, name), type)]
    for each in mapped:
        yield from (f"### {each.__tablename__}", "", f"`orm.{each.__name__}`. {_cell(each.__doc__ or '')}", "")
        yield from ("| column | type |", "|---|---|")
        for column in each.__table__.columns:
            yield f"| `{column.name}` | {column.type.compile(postgresql.dialect()).lower()} |"
        yield ""


def _cell(text: str) -> str:
    """Return a text on one line, as a cell of a table takes it."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


GENERATED: Final[dict[str, Callable[[], Iterable[str]]]] = {
    "errors": errors,
    "command line": command_line,
    "views": views,
    "promise": promise,
    "publish": publish,
    "commands": commands,
    "figures": figures,
    "further": further,
}
