"""Every error and its sentences, as the code writes them: one page to read them on, and a diff where one changes."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgtx.errors import BY_NAME

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = ("msgtx", "cli", "spark_jobs")
# What an error's message, an answer's detail, or a refusal (reason and sentence) is set to, in a function of SQL.
SAID: Final = re.compile(r"\b(?:message = |detail := |refused := )((?:'(?:[^']|'')*'|[^';])*);")
LITERAL: Final = re.compile(r"'((?:[^']|'')*)'")


def page() -> str:
    """Return each class, what follows from it and what it says, then what each function of SQL says."""
    python: dict[str, set[str]] = defaultdict(set)
    for name, sentence in _in_python():
        python[name].add(sentence)
    lines = []
    for name, kind in BY_NAME.items():
        family = ", ".join(base.__name__ for base in kind.__bases__)
        code = f"Kafka's {kind.code}, " if kind.code else ""
        lines.append(f"{name}({family}): {code}exit code {kind.exit_code}, {kind.fault.name}")
        lines += [f"    {sentence}" for sentence in sorted(python[name])]
    for path in sorted(ROOT.glob("msgtx/sql/*/*.sql"), key=lambda path: path.name):
        code = re.sub(r"'\s*\n\s*'", "", path.read_text(encoding="utf-8"))  # the parts of a long literal
        said = {sentence for each in SAID.findall(code) for sentence in LITERAL.findall(each) if " " in sentence.strip()}
        if said:
            lines += [f"msgtx.{path.stem}", *(f"    {sentence}" for sentence in sorted(said))]
    return "\n".join(lines) + "\n"


def _in_python() -> Iterator[tuple[str, str]]:
    for path in (path for folder in FOLDERS for path in ROOT.glob(f"{folder}/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Name | ast.Attribute):
                name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                of_click = ast.unparse(node.func).startswith("click.")
                if name in BY_NAME and not of_click and isinstance(node.args[0], ast.JoinedStr | ast.Constant):
                    yield name, _text(node.args[0])


def _text(sentence: ast.JoinedStr | ast.Constant) -> str:
    """Return a sentence with its values as they stand in the code."""
    if isinstance(sentence, ast.Constant):
        return str(sentence.value)
    return "".join(
        f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else str(getattr(part, "value", ""))
        for part in sentence.values
    )
