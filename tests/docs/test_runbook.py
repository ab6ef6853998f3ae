"""The runbook quotes messages as programs write them: each part of a quotation is in the sources."""

import re
from itertools import chain

from tests.docs.snippets import ROOT, snippets

PAGE = "docs/operations/runbook.md"
OF_POSTGRESQL = {"permission denied for schema msgtx"}
# A text that is divided over lines: `"one "` and `f"two"` are one.
DIVIDED = re.compile(r'"\s*\n\s*f?"')


def sources() -> str:
    files = chain.from_iterable((ROOT / room).rglob("*.*") for room in ("msgtx", "cli"))
    texts = [path.read_text(encoding="utf-8") for path in files if path.suffix in {".py", ".sql"}]
    return DIVIDED.sub("", "\n".join(texts))


def quoted() -> list[str]:
    return [line for block in snippets("text", page=PAGE) for line in block.text.splitlines()]


def test_each_quoted_message_is_one_that_a_program_writes() -> None:
    known = sources()
    assert len(quoted()) > 10
    parts = {part.strip() for line in quoted() if line not in OF_POSTGRESQL for part in line.split("…")}
    assert {part for part in parts if re.sub(r"[\s:;,]", "", part) and part not in known} == set()


def test_each_alert_of_the_runbook_is_a_rule() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    rules = (ROOT / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"\bMsgtx\w+", page)) <= set(re.findall(r"alert: (\w+)", rules))
