"""Processes with a Spark of their own, for tests that need one."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tests.databases import wait_until

PATIENCE_SECONDS: Final = 300.0  # a start takes five seconds, and many times longer on a busy machine


def run_python(program: str, **environment: str | None) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end; None removes a variable from its environment."""
    return subprocess.run(
        [sys.executable, "-c", program], env=surroundings(environment), capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, timeout=PATIENCE_SECONDS,
    )  # fmt: skip


def start_python(program: str, **settings: Any) -> "subprocess.Popen[str]":
    """Start a program, with pipes."""
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=pipe, text=True, **settings)


def surroundings(changes: dict[str, str | None]) -> dict[str, str]:
    """Return this process's environment, changed."""
    changed = {**os.environ, **changes}
    return {name: value for name, value in changed.items() if value is not None}


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_for_end(pid: int) -> None:
    """Wait until a process that is not our child has ended."""
    wait_until(lambda: not is_alive(pid), f"process {pid} ends", seconds=PATIENCE_SECONDS)
