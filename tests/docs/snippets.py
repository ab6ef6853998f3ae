"""The blocks of code in README.md and on the pages of docs.

| language | what becomes of it |
|---|---|
| `python` | runs on its own in a database of its own, twice (`test_snippets.py`); mypy reads it (`make lint`) |
| `python title="…"` | a file of the tutorial, or of the page about tests; `Spark…` runs in `tests/spark` |
| `sql`, `sh` | the same as python; `sh` is run by bash |
| `console` | is not run; what it says of `msgtx` is compared with the command line (`test_references.py`) |
| `py`, `js` | a part of something: only its syntax is looked at |
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgtx

ROOT: Final = Path(msgtx.__file__).parent.parent
FENCE: Final = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
PAGES: Final = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name not in {"decisions", "internals"}),
]


@dataclass(frozen=True, slots=True)
class Snippet:
    """A block. `line`: of its page, counted from 1."""

    page: str
    line: int
    language: str
    title: str | None
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


def snippets(*languages: str, page: str | None = None) -> list[Snippet]:
    """Return the blocks of these languages, in order."""
    found: list[Snippet] = []
    for path in PAGES:
        name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        for block in FENCE.finditer(text):
            line = text.count("\n", 0, block.start()) + 1
            found.append(Snippet(name, line, block[1], block[2], block[3]))
    return [each for each in found if each.language in languages and page in {None, each.page}]


def write(folder: Path) -> None:
    """Write what mypy is to read: each block as a module, and the tutorial's files."""
    for each in snippets("python"):
        if each.title is None:
            module = re.sub(r"\W", "_", f"{each.page.removesuffix('.md')}_{each.line}")
            path = folder / "alone" / f"{module}.py"
        elif each.page == TUTORIAL:
            path = folder / "tutorial" / each.title
        else:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(each.text, encoding="utf-8")


TUTORIAL: Final = "docs/tutorial.md"
TESTING: Final = "docs/how-to/testing.md"
