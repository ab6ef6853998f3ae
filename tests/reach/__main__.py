"""Name the tests that reach a line (FILE:LINE) or a whole file, or run those that a change concerns.

A function or view of SQL is its file, `msgtx/sql/ROOM/NAME.sql`. `--changed` compares the tree with a commit, by default the
last one that it shares with `main`. It runs the tests that reach a function that has changed, the test files that are new or
have changed or that import a changed module of `tests`, and `tests/house`. Exit code 2: nothing is recorded.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.__main__ import main as run
from tests.reach.record import FOLDER, ROOT, Record, sources_of

RECORD: Final = "python -m tests.reach --record"


def say(*lines: str) -> None:
    """Print lines at once."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def git(*arguments: str) -> str:
    """Return what git says of this tree; '' if it refuses."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout


def reaching(place: str, record: Record) -> list[str]:
    """Return the tests that reach `FILE:LINE` or `FILE`, the closest first."""
    path, _, line = place.partition(":")
    if not (ROOT / path).is_file():
        raise SystemExit(f"there is no {path}")
    if path.endswith(".sql"):
        near = record.of_sql(Path(path).stem)
    elif line:
        near = record.of_lines(path, [int(line)])
    else:
        near = record.of_functions(path)
    return sorted(near, key=lambda test: (near[test], record.tests[test].seconds))


def concerned(base: str, record: Record) -> list[str]:
    """Return the tests, and whole test files, that a change since a commit concerns."""
    changed = git("diff", "--name-only", base).splitlines() + git("ls-files", "--others", "--exclude-standard").splitlines()
    found = {"tests/house": 0}
    for path in changed:
        text = (ROOT / path).read_text(encoding="utf-8") if path.endswith((".py", ".sql")) and (ROOT / path).exists() else ""
        if path.endswith(".sql"):
            found |= record.of_sql(Path(path).stem)
        elif re.fullmatch(r"tests/.*/test_\w+\.py", path):
            found |= {path: 0} if text else {}
        elif path.startswith("tests/") and path.endswith(".py"):
            module = re.compile(rf"^\s*(from|import) tests\b.*\b{Path(path).stem}\b", re.MULTILINE)
            tests = (ROOT / "tests").rglob("test_*.py")
            found |= {str(test.relative_to(ROOT)): 0 for test in tests if module.search(test.read_text(encoding="utf-8"))}
        elif path.endswith(".py"):
            before, after = sources_of(git("show", f"{base}:{path}")), sources_of(text)
            found |= record.of_functions(
                path, [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
            )
    return [test for test in found if test == test.partition("::")[0] or test.partition("::")[0] not in found]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.reach", description=__doc__)
    parser.add_argument("places", nargs="*", metavar="FILE[:LINE]")
    parser.add_argument("--record", action="store_true", help="record what is new or has changed")
    parser.add_argument("--changed", nargs="?", const="", metavar="COMMIT", help="run what a change concerns")
    options = parser.parse_args(arguments)
    FOLDER.mkdir(parents=True, exist_ok=True)
    record = Record()
    if options.record:
        os.environ["REACH_FOLDER"] = str(FOLDER)
        return run(["-q", "-p", "tests.reach.recorder", *record.stale]) if record.stale else 0
    if not record.tests:
        say(f"nothing is recorded yet: {RECORD} (takes twice as long as these tests)")
        return 2
    if record.stale:
        say(f"# {len(record.stale)} test files are new or have changed since they were recorded: {RECORD}")
    if options.changed is None:
        for place in options.places:
            say(*reaching(place, record))
        return 0
    tests = concerned(options.changed or git("merge-base", "HEAD", "main").strip(), record)
    say(f"# {len(tests)} tests and files of tests; programs in processes of their own are not followed: make test-all")
    chosen = FOLDER / "chosen.txt"
    chosen.write_text("\n".join(tests), encoding="utf-8")
    return run([f"@{chosen}"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
