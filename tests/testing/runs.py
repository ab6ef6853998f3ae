"""Runs of pytest as users of the kit have them: in a folder of their own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

SECONDS: Final = 300.0
ON_CI: Final = ("CI", "BUILD_NUMBER")  # with one of them, pytest repeats errors in its summary at full length


@contextmanager
def begun_pytest(folder: Path, *options: str, **environment: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Begin such a run, in a group of its own, which is killed at the end of the block."""
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *options]
    with subprocess.Popen(command, cwd=folder, env=_given(environment), start_new_session=True) as run:
        try:
            yield run
        finally:
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)


def run_pytest(folder: Path, *options: str, **environment: str) -> str:
    """Run the tests of a folder, with warnings as errors. Returns what pytest printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *options]
    done = subprocess.run(
        command, check=False, cwd=folder, env=_given(environment), capture_output=True, text=True, timeout=SECONDS
    )
    return done.stdout + done.stderr


def _given(environment: Mapping[str, str]) -> dict[str, str]:
    ours = ("PYTEST", "MSGTX")
    inherited = {name: value for name, value in os.environ.items() if name not in ON_CI and not name.startswith(ours)}
    return {**inherited, **environment}
