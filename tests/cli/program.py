"""The program as a process of its own, which alone shows signals, pipes and exit codes."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

PATIENCE_SECONDS = 60.0  # a program that has not ended by then hangs


@dataclass(frozen=True)
class Ended:
    """How a program ended, and what it wrote."""

    code: int
    out: bytes
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The JSON lines on stdout."""
        return [json.loads(line) for line in self.out.split(b"\n") if line]

    def refuses(self, words: str, *, code: int = 2) -> None:
        """Assert that it ended with this code, and said why in one line."""
        assert (self.code, self.err.count("\n")) == (code, 1), self.err
        assert words in self.err


@dataclass(frozen=True)
class Program:
    """`msgtx` on one database."""

    url: str

    def command(self, *arguments: str) -> list[str]:
        """Return the command line."""
        return [sys.executable, "-m", "msgtx.cli", *arguments]

    def run(self, *arguments: str, stdin: bytes = b"") -> Ended:
        """Run it to its end."""
        with self.start(*arguments) as process:
            return self.ended(process, stdin)

    def ended(self, process: "subprocess.Popen[bytes]", stdin: bytes | None = None) -> Ended:
        """Wait for the end of a process."""
        out, err = process.communicate(stdin, PATIENCE_SECONDS)
        return Ended(process.returncode, out, err.decode())

    @contextlib.contextmanager
    def start(self, *arguments: str, **settings: Any) -> Iterator["subprocess.Popen[bytes]"]:
        """Start it, with pipes; it does not outlive the block."""
        environment = {**os.environ, "MSGTX_DATABASE_URL": self.url, **settings.pop("environment", {})}
        # Unbuffered, so after a line is read, the others are left to `ended`.
        pipes = {"bufsize": 0, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings}
        with subprocess.Popen(self.command(*arguments), env=environment, **pipes) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()
