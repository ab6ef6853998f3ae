"""What an upgrade to each version needs: from CHANGELOG.md and the migrations."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SECTION: Final = re.compile(r"^## (.+)\n((?:(?!## ).*\n)*)", re.MULTILINE)
SCHEMA: Final = re.compile(r"\bSchema\s+version\s+(\d+)\.")
NAMES: Final = re.compile(r"^### Names that have changed\n\n((?:(?!#).*\n)*)", re.MULTILINE)


def notes(_: str) -> list[str]:
    """Return a table of all versions, and the names that each one has changed."""
    migrations = sorted(int(path.name[:4]) for path in (ROOT / "migrations" / "versions").glob("[0-9]*.py"))
    return shown((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), migrations)


def shown(changelog: str, migrations: list[int]) -> list[str]:
    """Return the notes for a changelog, newest version first. Raise `ValueError` if one does not say its schema version."""
    rows, names = [], []
    sections: list[tuple[str, str]] = SECTION.findall(changelog)
    schemas = [_schema(*section) for section in sections]
    for (version, text), schema, before in zip(sections, schemas, [*schemas[1:], 0], strict=True):
        made = [f"{number:04}" for number in migrations if before < number <= schema]
        rows.append(f"| {version} | {schema} | {', '.join(made) or 'none'} |")
        if found := NAMES.search(text):
            names += ["", f"### Names that have changed in {version.split()[0]}", "", *found[1].rstrip().splitlines()]
    return ["| version | schema version | migrations of `msgtx db upgrade` |", "|---|---|---|", *rows, *names, ""]


def _schema(version: str, text: str) -> int:
    found = SCHEMA.search(text)
    if found is None:
        raise ValueError(f"CHANGELOG.md does not say the schema version of {version}")
    return int(found[1])
