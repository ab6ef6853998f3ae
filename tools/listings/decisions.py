"""The index of docs/decisions: each page by its subject, one line each."""

import re
from collections import defaultdict
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[2] / "docs" / "decisions"
HEAD: Final = re.compile(
    r"# (?P<number>\d{4})\. (?P<title>.+)\n\n"
    r"Date: \d{4}-\d\d-\d\d\. Subject: (?P<subject>[\w ]+)\. "
    r"Status: (?P<status>holds|superseded by \[\d{4}\]\([\w-]+\.md\))(?:; with (?P<others>[\d, ]+))?\.\n\n"
)
INTRODUCTION: Final = """# Decisions

Each page holds the decisions about one subject: what was chosen, why, what was measured, and what was considered and not
done. Its number is that of its first decision; the numbers of later ones are behind its title. A number is not given out
twice. A new page begins like this, and `make generate` adds it to this list:

    # NNNN. What was decided, as a sentence

    Date: YYYY-MM-DD. Subject: append. Status: holds.

A page that another one replaces has `superseded by` with a link as its status, and shrinks to a sentence.
"""


def index() -> str:
    """Return docs/decisions/README.md. Raise `ValueError` with the name of a page that has another head."""
    rows = defaultdict(list)
    for page in sorted(FOLDER.glob("[0-9]*.md")):
        head = HEAD.match(page.read_text(encoding="utf-8"))
        if not head or head["number"] != page.name[:4]:
            raise ValueError(f"{page.name} does not begin as docs/decisions/README.md says")
        others = f" (and {head['others']})" if head["others"] else ""
        status = "" if head["status"] == "holds" else f", {head['status']}"
        rows[head["subject"]].append(f"- [{head['number']}]({page.name}) {head['title']}{others}{status}\n")
    sections = (
        f"\n## {subject[0].upper()}{subject[1:]}\n\n{''.join(rows[subject])}" for subject in sorted(rows, key=str.lower)
    )
    return INTRODUCTION + "".join(sections)
