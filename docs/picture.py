"""The picture of the demo in README.md, made of what it printed: `msgtx demo | python docs/picture.py > docs/demo.svg`."""

import re
import sys
import textwrap
from collections.abc import Iterator
from html import escape
from typing import Final

BEGIN: Final = "Checked with SQL"
END: Final = "Exactly once"
COLUMNS: Final = 74  # of the table
LINE: Final = 18  # pixels, as the next two
CHARACTER: Final = 8.4
EDGE: Final = 16


def chosen(text: str) -> Iterator[str]:
    """Yield what it says about the crash, and the table of checks with the sentence below it."""
    crash = re.search(r"^Transaction .*?took over\.", text, re.DOTALL | re.MULTILINE)
    checks = re.search(rf"^ *{BEGIN}.*?^{END}[^\n]*", text, re.DOTALL | re.MULTILINE)
    assert crash is not None
    assert checks is not None
    yield from textwrap.wrap(" ".join(crash[0].split()), COLUMNS)
    yield from (line.rstrip() for line in checks[0].splitlines())


def drawn(lines: list[str]) -> Iterator[str]:
    """Yield the picture: a terminal with these lines."""
    width = 2 * EDGE + CHARACTER * max(map(len, lines))
    height = 2 * EDGE + LINE * len(lines)
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}">'
    yield "<style>text { font: 14px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace; fill: #d8dee9; }</style>"
    yield '<rect width="100%" height="100%" rx="8" fill="#20242c"/>'
    for row, line in enumerate(lines):
        text = line.lstrip()
        if not text:
            continue
        left, top = EDGE + CHARACTER * (len(line) - len(text)), EDGE + LINE * row + 14
        colour = ' style="fill: #a3be8c"' if text.startswith(END) else ""
        place = f'x="{left:.1f}" y="{top}" textLength="{CHARACTER * len(text):.1f}" lengthAdjust="spacingAndGlyphs"'
        yield f'<text xml:space="preserve" {place}{colour}>{escape(text)}</text>'
    yield "</svg>"


sys.stdout.write("\n".join(drawn(list(chosen(sys.stdin.read())))) + "\n")
