"""The documents name only things that exist."""

import re
import tomllib
from pathlib import Path
from typing import Final

import pytest

import msgtx
from msgtx.coordinator.gauges import Gauges
from msgtx.database.pool import Engine
from msgtx.database.schema.migrate import UPGRADE_LOCK
from tests.house.sources import for_each
from tests.house.test_sql import TABLES

ROOT: Final = Path(msgtx.__file__).parent.parent
DOCUMENTS: Final = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
)
# How comments refer to pages of docs/internals (and a section of one), and to sections of ARCHITECTURE.md.
REFERENCE: Final = re.compile(r"\b(internals|architecture): ([a-z]+(?:[#-][a-z]+)*(?:, [a-z]+(?:[#-][a-z]+)*)*)")


def sources(*folders: str) -> list[Path]:
    """Return the files of these folders that hold code; each once, even if a link leads to its folder."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".sql"})
    return sorted(path for path in found if not path.is_symlink() and "__pycache__" not in path.parts)


# The documents that describe the code; the others are for its users.
OF_THE_CODE: Final = [name for name in DOCUMENTS if re.match(r"ARCH|CONTR|docs/(internals|decisions)/", name)]
NOT_OURS: Final = {"before_commit"}  # names of other programs that those documents have
CODE: Final = sources("msgtx", "cli", "spark_jobs", "migrations", "tests", "examples", "pyspark_msgtx")


def anchors(document: Path) -> set[str]:
    """Return the names of a document's sections, as links spell them."""
    headings = re.findall(r"(?m)^#+ (.+)$", document.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def missing(reference: re.Match[str]) -> set[str]:
    """Return the names in a reference that do not exist."""
    kind, names = reference[1], reference[2].split(", ")
    if kind == "architecture":
        return set(names) - anchors(ROOT / "ARCHITECTURE.md")
    return {name for name in names if not is_in_internals(name)}


def is_in_internals(name: str) -> bool:
    page, _, section = name.partition("#")
    document = ROOT / "docs" / "internals" / f"{page}.md"
    return document.exists() and (not section or section in anchors(document))


@for_each(DOCUMENTS)
def test_the_paths_in_a_document_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:msgtx|cli|migrations|tests|spark_jobs|docs)/[\w./-]+)`", text))
    named = {path for path in paths if not re.search(r"[A-Z]{4}", path)}  # in capitals: any name
    assert {path for path in named if not (ROOT / path).exists()} == set()


@for_each(DOCUMENTS)
def test_a_document_has_no_conflict_that_a_merge_has_left(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert re.findall(r"(?m)^(?:<{7}|>{7}) .*", text) == []


@for_each(DOCUMENTS)
def test_a_file_has_the_name_that_a_document_says_is_in_it(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for word, path in re.findall(r"`(\w+)`\s+in\s+`((?:msgtx|cli|spark_jobs|tests)/[\w./-]+\.(?:py|sql|txt))`", text):
        assert re.search(rf"\b{word}\b", (ROOT / path).read_text(encoding="utf-8")), f"{word} is not in {path}"


def test_a_name_in_a_document_of_the_code_is_there() -> None:
    """What has an underscore: a function, an argument, a column, a module. A word of a comment does not count."""
    there = set(NOT_OURS)
    for path in [*CODE, ROOT / "pyproject.toml", ROOT / "tests" / "mutants" / "table.txt"]:
        code = re.sub(r'(?m)#.*$|--.*$|(?s:""".*?""")', "", path.read_text(encoding="utf-8"))
        there |= set(re.findall(r"\w+", f"{path.stem} {code}"))
    named = {
        (document, name)
        for document in OF_THE_CODE
        for name in re.findall(r"`(?:\w+\.)*(\w*_\w+)(?:\(\w*\))?`", (ROOT / document).read_text(encoding="utf-8"))
        if not name.isupper()
    }
    assert {(document, name) for document, name in named if name not in there} == set()


@for_each(DOCUMENTS)
def test_the_links_in_a_document_lead_somewhere(name: str) -> None:
    document = ROOT / name
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        if target.startswith(("http:", "https:")):
            continue
        path, _, section = target.partition("#")
        found = (document.parent / path).resolve() if path else document
        assert found.exists(), target
        assert not section or section in anchors(found), target


def test_a_reference_in_the_code_names_a_page_that_is_there() -> None:
    wrong = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in CODE
        for reference in REFERENCE.finditer(path.read_text(encoding="utf-8"))
        for name in missing(reference)
    }
    assert wrong == set()


def test_no_comment_refers_to_a_chapter_by_its_number() -> None:
    numbered = re.compile(r"\b(?:semantics|architecture) (?:[1-9]\b|and\b)|[(;][ ]?api\b", re.IGNORECASE)
    found = {
        (path.relative_to(ROOT).as_posix(), reference[0])
        for path in [*CODE, *(ROOT / name for name in DOCUMENTS)]
        for reference in numbered.finditer(path.read_text(encoding="utf-8"))
    }
    assert found == set()


@pytest.mark.parametrize("folder", ["decisions", "internals"])
def test_an_index_lists_every_page_of_its_folder(folder: str) -> None:
    index = ROOT / "docs" / folder / "README.md"
    linked = re.findall(r"\]\(([\w-]+\.md)\)", index.read_text(encoding="utf-8"))
    assert sorted(linked) == sorted(path.name for path in index.parent.glob("*.md") if path != index)


def test_a_reference_to_a_decision_names_the_page_that_holds_it() -> None:
    numbers = {path.name[:4] for path in (ROOT / "docs" / "decisions").glob("0*.md")}
    reference = re.compile(r"(?i)\bdecisions?\s+\[?(\d{4}(?:(?:,| and) \d{4})*)|\[(\d{4})\]\(")
    wrong = {
        (path.relative_to(ROOT).as_posix(), number)
        for path in [*CODE, ROOT / "pyproject.toml", *(ROOT / name for name in DOCUMENTS)]
        for found in reference.findall(path.read_text(encoding="utf-8"))
        for number in re.findall(r"\d{4}", " ".join(found))
        if number not in numbers
    }
    assert wrong == set()


def test_the_floors_of_the_architecture_are_those_of_the_import_contract() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    text = text[text.index("| floor |") :]
    text = text[: text.index("\n\n")]
    told = [(int(floor), re.findall(r"`(\w+)`", rooms)) for floor, rooms in re.findall(r"(?m)^\| (\d+) \| ([^|]+) \|", text)]
    assert told == [(len(layers) - place, re.findall(r"\w+", layer)) for place, layer in enumerate(layers)]


def test_the_locks_of_the_architecture_are_those_of_the_code() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    told = set(re.findall(r"(?m)^\| (18362795\d\d) \|", text))
    used = {
        lock
        for path in (ROOT / "msgtx" / "sql").rglob("*.sql")
        for lock in re.findall(r"\b18362795\d\d\b", path.read_text())
    }
    assert told == used | {str(UPGRADE_LOCK[0])}


def test_the_tables_of_the_architecture_are_those_of_the_schema() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    start = text.index("| table | key |")
    cells = re.findall(r"(?m)^\| ((?:`\w+`(?:, )?)+) \|", text[start : text.index("\n\n", start)])
    assert sorted(name for cell in cells for name in re.findall(r"`(\w+)`", cell)) == sorted(TABLES)


def test_a_cited_item_of_the_style_is_there() -> None:
    items = set(re.findall(r"(?m)^(\d+)\. ", (ROOT / "STYLE.md").read_text(encoding="utf-8")))
    files = [*CODE, ROOT / "pyproject.toml"]
    cited = {number for path in files for number in re.findall(r"STYLE (\d+)", path.read_text(encoding="utf-8"))}
    assert cited <= items


def test_the_targets_that_a_document_names_are_in_the_makefile() -> None:
    there = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8")))
    for name in DOCUMENTS:
        targets = set(re.findall(r"(?:`|^    )make ([a-z-]+)", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE))
        assert targets <= there, name


def test_a_release_has_its_lines_in_the_changelog() -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert version is not None
    assert version[1] in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_metrics_of_a_database_that_is_away_say_only_that() -> None:
    engine = Engine("postgresql://nobody@127.0.0.1:1/nowhere")
    families = {family.name: family.samples[0].value for family in Gauges(engine).collect()}
    assert families == {"msgtx_database_up": 0}


def test_each_defect_that_is_cited_has_a_name() -> None:
    named = set(re.findall(r"\| (P\d+) \|", (ROOT / "docs" / "internals" / "testing.md").read_text(encoding="utf-8")))
    cited: dict[str, str] = {}
    for path in [*CODE, *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests" / "mutants").glob("*.patch")]:
        for found in re.findall(r"\bP\d{1,2}\b", path.read_text(encoding="utf-8")):
            cited.setdefault(found, str(path))
    assert {name: path for name, path in cited.items() if name not in named} == {}


def test_the_changelog_of_what_was_never_released_is_one_page() -> None:
    assert len((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()) <= 100


def test_the_figures_of_the_front_page_are_those_of_the_page_that_tells_how_they_were_measured() -> None:
    paragraph = re.search(r"(?ms)^Two cores .+?\n\n", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert paragraph is not None
    told = (ROOT / "docs" / "is-it-for-me.md").read_text(encoding="utf-8")
    figures = re.findall(r"\d[\d.,]*(?: to \d[\d.,]*)?(?: million| ms)?", paragraph[0])
    assert len(figures) == 3
    assert [figure for figure in figures if figure not in told] == []


# The columns of code on a page of the site, in a window of 1280 pixels.
COLUMNS: Final = 78
BLOCK: Final = re.compile(r"(?ms)^( *)```[^`\n]*\n(.*?)^\1```")


@for_each(DOCUMENTS)
def test_a_line_of_code_in_a_document_fits_into_the_sites_column(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    lines = [line.removeprefix(block[1]) for block in BLOCK.finditer(text) for line in block[2].splitlines()]
    assert [line for line in lines if len(line) > COLUMNS] == []


def test_the_site_wraps_lines_of_code_that_are_longer_than_its_column() -> None:
    rules = dict(re.findall(r"(?m)^([^{/]+) \{(.+)\}$", (ROOT / "docs" / "site.css").read_text(encoding="utf-8")))
    assert "white-space: pre-wrap" in rules[".md-typeset pre > code"]
