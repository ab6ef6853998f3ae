"""`make generate` writes each copy of what `msgtx/declared` and the headers of `msgtx/sql` say; `make lint` compares.

A generated file says so in its first line, is committed, and is never edited. In other files, lines between two comments
are generated: `make generate: MODULE.FUNCTION ARGUMENT` names a function of this package, and `end` ends them.
"""

import argparse
import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
# Each file, and the function that returns its text, without the first line. It is imported at its turn, and these files come
# last: one may show what another has become.
OUTPUTS: Final = {
    "msgtx/generated/calls.py": "generate.calls.text",
    "docs/decisions/README.md": "listings.decisions.index",
    "docs/internals/licences.md": "listings.licences.page",
    "tests/sentences.txt": "listings.sentences.page",
    "tests/house/surface.txt": "listings.surface.text",
}
COMMENTS: Final = {".py": "#", ".sql": "--", ".txt": "#", ".md": "<!--"}
BEGIN: Final = r"( *)(?:--|#|<!--) make generate: (\w+\.\w+) ?(\w*)(?: -->)?\n"
PART: Final = re.compile(rf"^({BEGIN})(?:.*\n)*?(\2(?:--|#|<!--) end(?: -->)?\n)", re.MULTILINE)


def files() -> list[str]:
    """Return the files that are generated, whole or in part: also in a source archive, which is no repository."""
    command = ["git", "grep", "-l", "--no-index", "--exclude-standard", "-E", "^ *(--|#|<!--) make generate: "]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return [*found.splitlines(), *OUTPUTS]


def part(mark: re.Match[str]) -> str:
    begin, indent, function, argument, end = mark.groups()
    return begin + "".join(f"{indent}{line}\n" for line in made(f"generate.{function}", argument)) + end


def made(function: str, *arguments: str) -> Any:
    module, name = function.rsplit(".", 1)
    return getattr(importlib.import_module(f"tools.{module}"), name)(*arguments)


def written(path: str) -> str:
    """Return the whole text of a file."""
    if path in OUTPUTS:
        sign = COMMENTS[Path(path).suffix]
        text = f"{sign} Written by `make generate`: do not edit.{' -->' if sign == '<!--' else ''}\n{made(OUTPUTS[path])}"
    else:
        text = PART.sub(part, (ROOT / path).read_text(encoding="utf-8"))
    if not path.endswith(".py"):
        return text
    for command in (["check", "--fix-only", "--quiet"], ["format", "--quiet"]):
        ruff = [str(Path(sys.executable).with_name("ruff")), *command, "--stdin-filename", path, "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.generate", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; fail if a file differs from what would be written"
    )
    only_check = parser.parse_args().check
    stale = []
    for path in files():
        text, file = written(path), ROOT / path
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            stale.append(path)
            if not only_check:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
    if only_check and stale:
        sys.exit(f"not what `make generate` writes: {', '.join(stale)}")


if __name__ == "__main__":
    main()
