"""What `make docs` adds to the pages: the files at the top of the clone, and references that are made of the code."""

import posixpath
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
# Files outside docs that are pages of the site.
TOP: Final = {
    name: name.lower() for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "STYLE.md")
} | {"README.md": "index.md"}
LINK: Final = re.compile(r"\[([^\]]+)\]\(([^)\s:]+)\)")
MARK: Final = re.compile(r"<!-- generated: ([\w ]+) -->")
SOURCE: Final = re.compile(r"\b(internals|architecture): ([a-z-]+)(#[a-z-]+)?")
SHIM: Final = "https://unpkg.com/iframe-worker/shim"  # the theme asks for it where a page is opened from a disk
BEHIND: Final = ("decisions/", "internals/")  # pages that a search shows behind those for users
BEHIND_BOOST: Final = 0.3
SHARED: Final = {"--url", "-o,", "--help", "-h,"}  # options of every command: told of once


def on_config(config: Any) -> Any:
    """Say on each page which version it is of."""
    config.copyright = f"msgtx {tomllib.loads((ROOT / 'pyproject.toml').read_text(encoding='utf-8'))['project']['version']}"
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the files at the top of the clone as pages."""
    from mkdocs.structure.files import File

    for name, page in TOP.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to where their files are in the site, and put references in their places."""
    here = page.file.src_uri
    if here.startswith(BEHIND):
        page.meta.setdefault("search", {"boost": BEHIND_BOOST})
    markdown = LINK.sub(lambda link: _link(link[1], link[2], here), markdown)
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


def _link(text: str, target: str, here: str) -> str:
    """Return a link of a page as the site needs it; what is not in the site stays as words."""
    path, mark, section = target.partition("#")
    if not path:
        return f"[{text}]({target})"
    # A file at the top of the clone links from there, a page from its place in docs.
    folder = "" if here in TOP.values() else posixpath.join("docs", posixpath.dirname(here))
    found = posixpath.normpath(posixpath.join(folder, path))
    if found in TOP:
        wanted = TOP[found]
    elif found.startswith("docs/") and found.endswith((".md", ".svg")):
        wanted = found.removeprefix("docs/")
    else:
        return text
    return f"[{text}]({posixpath.relpath(wanted, posixpath.dirname(here) or '.')}{mark}{section})"


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
    yield " ".join([context.command_path, *command.collect_usage_pieces(context)])
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
            yield from ("```text", *paragraph.replace("\b", "").strip("\n").split("\n"), "```", "")
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


GENERATED: Final[dict[str, Callable[[], Iterable[str]]]] = {"errors": errors, "command line": command_line, "views": views}
