"""The Kafka side: a process of another Python, with confluent-kafka, that runs the functions of a work sheet.

A broker on this machine is stopped (SIGSTOP) while others are measured: an idle one takes a third of what they have left.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DRIVER = Path(__file__).with_name("kafka_driver.py")
LISTENING = "0A"  # in /proc/net/tcp
SETTLES_SECONDS = 10.0  # after a rest: its controller has lost sight of it, and loads what it coordinates anew


def listener(bootstrap: str) -> int | None:
    """Return the process of this machine that listens on the port of an address."""
    port = int(bootstrap.rpartition(":")[2])
    sockets = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, here, _, state, *rest = line.split()
            if state == LISTENING and int(here.rpartition(":")[2], 16) == port:
                sockets.add(f"socket:[{rest[5]}]")
    for file in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(file.readlink()) in sockets:
                return int(file.parts[2])
        except OSError:  # closed meanwhile
            continue
    return None


class Kafka:
    """A broker, and the process that uses it. `fsync`: topics are flushed with each append."""

    def __init__(self, python: str, scripts: Path, bootstrap: str, *, fsync: bool, seconds: float) -> None:
        self.name = "Kafka + fsync" if fsync else "Kafka"
        self.python, self.bootstrap = python, bootstrap
        options = ["--bootstrap", bootstrap, "--seconds", str(seconds), *(["--flush"] if fsync else [])]
        self._process = subprocess.Popen(
            [python, str(DRIVER), str(scripts), *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._broker = listener(bootstrap)
        self._rest()

    def _rest(self) -> None:
        if self._broker is not None:
            os.kill(self._broker, signal.SIGSTOP)

    def _rise(self) -> None:
        if self._broker is not None:
            os.kill(self._broker, signal.SIGCONT)

    def call(self, function: str, *arguments: object) -> tuple[dict[str, float], Any]:
        """Run a function of the work sheet. Returns its figures by variant, and what it returned."""
        with self.awake():
            return self._called(function, *arguments)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Let the broker run for the block."""
        self._rise()
        time.sleep(SETTLES_SECONDS)
        try:
            yield
        finally:
            self._rest()

    def _called(self, function: str, *arguments: object) -> tuple[dict[str, float], Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([function, arguments]) + "\n")
        self._process.stdin.flush()
        figures: dict[str, float] = {}
        for line in self._process.stdout:
            answer = json.loads(line)
            if "done" in answer:
                return figures, answer["done"]
            if "failed" in answer:
                raise RuntimeError(f"{self.name}, {function}: {answer['failed']}")
            figures[answer["variant"]] = answer["value"]
        raise RuntimeError(f"the process for {self.name} ended in {function}")

    def figure(self, function: str, *arguments: object) -> float:
        """Run a function that measures one figure, and return that."""
        figures, _ = self.call(function, *arguments)
        (value,) = figures.values()
        return value

    def clean(self) -> None:
        """Delete the topics that were made."""
        self.call("clean")

    def close(self) -> None:
        self._rise()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
