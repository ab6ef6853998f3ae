"""Queues to compare with: a script of another Python, which prints a JSON line for each figure of a part of it.

A broker on this machine is stopped (SIGSTOP) while others are measured, as Kafka's is.
"""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

from tests.benchmarks.kafka import listener

SETTLES_SECONDS = 3.0


class Queues:
    """A queue, and what share groups are to reach of it: the ratio in batches, one record at a time, in transactions."""

    def __init__(
        self,
        name: str,
        python: str,
        script: Path,
        *,
        dsn: str | None = None,
        port: int | None = None,
        batched: float,
        one_by_one: float | None = None,
        forwarded: float | None = None,
    ) -> None:
        self.name = name
        self.batched, self.one_by_one, self.forwarded = batched, one_by_one, forwarded
        self._command = [python, str(script), "pgmq" if port is None else "rabbit"]
        self._environment = {**os.environ, "PEER_DSN": dsn or "", **({} if port is None else {"RABBIT_PORT": str(port)})}
        self._broker = None if port is None else listener(f"127.0.0.1:{port}")
        self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        if self._broker is not None:
            os.kill(self._broker, number)

    def figures(self, part: str) -> dict[str, float]:
        """Run a part (Q1 to Q4). Returns its figures by variant."""
        self._signal(signal.SIGCONT)
        if self._broker is not None:
            time.sleep(SETTLES_SECONDS)
        try:
            done = subprocess.run(
                [*self._command, part], env=self._environment, stdout=subprocess.PIPE, text=True, check=True
            )
        finally:
            self._signal(signal.SIGSTOP)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return {f" {line['variant']}": line["value"] for line in lines}

    def close(self) -> None:
        self._signal(signal.SIGCONT)
