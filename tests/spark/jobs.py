"""Commands of jobs inside this process, with the session of the run."""

import json
from dataclasses import dataclass
from typing import Any

import click
import pytest

from msgtx.cli.terminal.invocation import Invocation


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The JSON lines on stdout."""
        return [json.loads(line) for line in self.out.splitlines() if line]


@dataclass(frozen=True)
class Jobs:
    """The commands of `msgtx spark` on one database. Errors are raised."""

    url: str
    captured: pytest.CaptureFixture[bytes]

    def run(self, command: click.Command, *arguments: str, format: str = "jsonl") -> Done:
        """Run a command to its end."""
        self.captured.readouterr()
        invocation = Invocation(url=self.url, format=format)
        with command.make_context(command.name, list(arguments), obj=invocation) as context:
            code = command.invoke(context)
        out, err = self.captured.readouterr()
        return Done(code or 0, out.decode(), err.decode())
