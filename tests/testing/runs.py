"""Runs of pytest as users of the kit have them: in a folder of their own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

SECONDS: Final = 300.0


def run_pytest(folder: Path, *options: str, **environment: str) -> str:
    """Run the tests of a folder, with warnings as errors. Returns what pytest printed."""
    given = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "MSGTX"))}
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *options]
    done = subprocess.run(
        command, check=False, cwd=folder, env={**given, **environment}, capture_output=True, text=True, timeout=SECONDS
    )
    return done.stdout + done.stderr
