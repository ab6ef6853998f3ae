"""How a page is drawn: Jinja2, with every text as text.

Records, keys, headers and names are written by anybody. Jinja2 escapes what has a meaning in HTML. `finalize` does the rest
for everything that is printed: control characters, zero bytes, and marks that turn the direction of a text become visible.
"""

import base64
import importlib.metadata
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request

from msgtx.console.page import Page
from msgtx.rows import json_text, printable, time_text

VERSION: Final = importlib.metadata.version("msgtx")  # in the addresses of style and script: a browser keeps those
SHOWN: Final = 300  # characters of a value in a table
SHOWN_WHOLE: Final = 65_536  # of one record on its own page; its twin and the command have all
NARROW: Final = "\u202f"  # a space that no line ends at
PLAIN_SPACES: Final = {"\n", "\t", NARROW}
NEIGHBOURS: Final = 0.6  # parts of a hundred of a bar: closer ones cannot be told apart
LETTER: Final = 1.9  # width of a letter of a label in parts of a hundred of the narrowest bar
LABEL_LETTERS: Final = 20
MOST_LEVELS: Final = 8  # lines of labels below a bar; the table has the others, too
STATUS: Final = {
    "CompleteCommit": "committed",
    "CompleteAbort": "aborted",
    "PrepareCommit": "committed",
    "PrepareAbort": "aborted",
    "Ongoing": "open",
    "Stable": "committed",
}


def visible(value: Any) -> Any:
    """Return what is printed: of a text, all letters can be seen."""
    if value is None:
        return ""
    if isinstance(value, Markup):
        return value
    if isinstance(value, str):
        return value if value.isprintable() else "".join(one if one in PLAIN_SPACES else printable(one) for one in value)
    return value


def count(value: float | None) -> str:
    """Return a number with its thousands apart."""
    return "–" if value is None else f"{value:,}".replace(",", NARROW)


def duration_shown(milliseconds: float | None) -> str:
    """Return a length of time, as exact as one reads it."""
    if milliseconds is None:
        return "–"
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if milliseconds >= 2 * length:
            return f"{milliseconds / length:.0f} {unit}"
    return f"{milliseconds / 1_000:.1f} s" if milliseconds >= 1_000 else f"{milliseconds:.0f} ms"


def moment(value: int | str | None, kind: str = "") -> Markup:
    """Return a time in UTC; the script shows it in the reader's zone. `kind`: "minute", without the day."""
    if value is None:
        return Markup("–")
    text = time_text(value) if isinstance(value, int) else value
    if isinstance(text, int):
        return escape(text)
    whole = datetime.fromisoformat(text).astimezone(UTC).isoformat(" ", "milliseconds")[:-6]
    shown = whole[11:16] if kind == "minute" else whole
    return Markup('<time datetime="{}" title="{} UTC" class="{}">{} UTC</time>').format(text, whole, kind, shown)


def content(value: bytes | None, view: str = "auto") -> str:
    """Return the bytes of a key or a value as a reader asks for them."""
    if value is None:
        return "null"
    if view == "hex":
        return hexadecimal(value)
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"{base64.b64encode(value).decode()} (base64)" if view != "text" else value.decode(errors="backslashreplace")
    if view in {"auto", "json"} and json_text(value) is not None:
        return json.dumps(json.loads(text), ensure_ascii=False, indent=2) if view == "json" else text
    return text


def kind_of(value: bytes | None) -> str:
    """Return in a word what a value is."""
    if value is None:
        return "tombstone"
    if json_text(value) is not None:
        return "JSON"
    try:
        value.decode()
    except UnicodeDecodeError:
        return "bytes"
    return "text"


def hexadecimal(value: bytes) -> str:
    """Return bytes in lines of 16."""
    rows = (value[at : at + 16] for at in range(0, min(len(value), SHOWN_WHOLE // 4), 16))
    lines = [
        f"{16 * number:08x}  {row.hex(' '):<47}  {''.join(chr(one) if 32 <= one < 127 else '.' for one in row)}"
        for number, row in enumerate(rows)
    ]
    return "\n".join(lines)


def short(text: str, most: int = SHOWN) -> str:
    """Return the beginning of a text."""
    return text if len(text) <= most else f"{text[:most]}…"


def octets(number: int | None) -> str:
    """Return a number of bytes in the unit that fits."""
    if number is None:
        return "–"
    for unit, length in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= length:
            return f"{number / length:.1f} {unit}".replace(".0 ", " ")
    return f"{number} B"


def marked(text: str) -> Markup:
    """Return a sentence of msgtx's: what stands between backquotes is a command."""
    pieces = str(visible(text)).split("`")
    if len(pieces) % 2 == 0:  # one of them is not ours
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(each) if at % 2 else each for at, each in enumerate(pieces))


@dataclass(slots=True)
class Mark:
    """A place on a bar, in parts of a hundred, where groups are. `level`: the line of its label; None: it has none."""

    at: float
    groups: list[Mapping[str, Any]]
    level: int | None = None

    @property
    def label(self) -> str:
        """The first group, and how many more there are."""
        more = f" and {count(len(self.groups) - 1)} more" if len(self.groups) > 1 else ""
        return f"{short(str(visible(self.groups[0]['group'])), LABEL_LETTERS)}{more}"

    @property
    def anchor(self) -> str:
        """Which end of the label stands at the place."""
        return "start" if self.at < 50 else "end"

    @property
    def side(self) -> tuple[float, float]:
        """From where to where the label goes, on the narrowest screen."""
        width = len(self.label) * LETTER
        return (self.at, self.at + width) if self.at < 50 else (self.at - width, self.at)


def marks(start: int, end: int, groups: Sequence[Mapping[str, Any]]) -> list[Mark]:
    """Return where groups are on the bar of a partition. Neighbours are one mark, and no label covers another one."""
    found: list[Mark] = []
    for group in sorted(groups, key=lambda each: (each["offset"], each["group"])):
        at = round(100 * min(max(group["offset"] - start, 0), end - start) / max(1, end - start), 2)
        if found and at - found[-1].at < NEIGHBOURS:
            found[-1].groups.append(group)
        else:
            found.append(Mark(at, [group]))
    levels: list[list[tuple[float, float]]] = []
    for mark in found:
        first, last = mark.side
        for level, taken in enumerate([*levels, []]):
            if level < MOST_LEVELS and all(last < left or right < first for left, right in taken):
                if level == len(levels):
                    levels.append([])
                levels[level].append((first, last))
                mark.level = level
                break
    return found


def mark_of_state(state: str) -> str:
    """Return the class of a state: its colour and its mark."""
    return STATUS.get(state, state.lower())


ENVIRONMENT: Final = Environment(
    loader=PackageLoader("msgtx.console"),
    autoescape=True,
    finalize=visible,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters.update(
    count=count,
    lasting=duration_shown,
    moment=moment,
    content=content,
    kind=kind_of,
    short=short,
    status=mark_of_state,
    marked=marked,
    octets=octets,
    word=shlex.quote,
)


def page_address(root: str, path: str, query: Mapping[str, Any] | None = None, /, **more: Any) -> str:
    """Return the address of a page. A parameter that is None is left out."""
    asked = {**(query or {}), **more}
    text = urlencode({name: value for name, value in asked.items() if value is not None and value != ""})
    return f"{root}/{path}{'?' if text else ''}{text}"


def page_context(request: Request, page: Page, name: str, **more: Any) -> dict[str, Any]:
    """Return what a template sees: the parts of the page, what belongs to its view, and the way to other pages."""
    root = request.scope.get("root_path", "")
    query = {each: text for each, text in request.query_params.items() if each != "live"}

    def url(path: str, asked: Mapping[str, Any] | None = None, /, **changed: Any) -> str:
        return page_address(root, path, asked, **changed)

    def here(**changed: Any) -> str:
        return page_address(root, name, query, **changed)

    live = page.is_live and request.query_params.get("live") != "off"
    return {
        **page.parts,
        **page.view,
        "page": page,
        "page_name": name,
        "commands": [each.command for each in page.parts.values()],
        "url": url,
        "here": here,
        "query": query,
        "live": live,
        "version": VERSION,
        **more,
    }


def draw(template: str, context: Mapping[str, Any]) -> str:
    """Return a whole page."""
    return ENVIRONMENT.get_template(template).render(context)


def draw_live(template: str, context: Mapping[str, Any]) -> str:
    """Return the part of a page that is updated while one looks."""
    found = ENVIRONMENT.get_template(template)
    return "".join(found.blocks["live"](found.new_context(dict(context))))
