"""`python -m tests.docs`: mypy, strict, over the code of README.md and of docs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs.snippets import ROOT, write


def main() -> int:
    folder = ROOT / "build" / "snippets"
    shutil.rmtree(folder, ignore_errors=True)
    write(folder)
    (folder / "tutorial" / "shop" / "__init__.py").touch()
    codes = []
    for part in ("alone", "tutorial"):
        command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "."]
        environment = {**os.environ, "MYPYPATH": str(ROOT)}
        codes.append(subprocess.run(command, cwd=Path(folder, part), env=environment, check=False).returncode)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
