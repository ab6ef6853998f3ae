"""The workers of a storm: `msgtx process` as processes of their own, and what each end of one may look like."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

SESSION_TIMEOUT_MS: Final = 1_500
HEARTBEAT_INTERVAL_MS: Final = 200
TRANSACTION_TIMEOUT_MS: Final = 3_000  # what a killed worker leaves open is aborted within the storm
FENCED: Final = 4  # the exit code of who hears of its successor
TRANSFORM: Final = """
import random, time
from msgtx import OutputRecord

def copy(record):
    if random.random() < 0.002:
        time.sleep(0.05)  # a kill comes upon an open transaction
    return OutputRecord(record.value, key=record.key)
"""


@dataclass
class Worker:
    """One process. `expected`: how it may end."""

    number: int
    transactional_id: str
    process: "subprocess.Popen[bytes]"
    errors: Path
    expected: set[int] = field(default_factory=set)
    stopped: bool = False

    @property
    def said(self) -> str:
        """What it wrote to stderr."""
        return self.errors.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        if number in {signal.SIGSTOP, signal.SIGCONT}:
            self.stopped = number is signal.SIGSTOP


@dataclass
class Workshop:
    """Starts workers, and buries them."""

    url: str
    folder: Path
    source: str
    target: str
    group: str
    all: list[Worker] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "storm_job.py").write_text(TRANSFORM)

    def start(self, transactional_id: str) -> Worker:
        number = len(self.all)
        errors = self.folder / f"worker-{number}.stderr"
        environment = {
            **os.environ,
            "MSGTX_DATABASE_URL": self.url,
            "MSGTX_SESSION_TIMEOUT_MS": str(SESSION_TIMEOUT_MS),
            "MSGTX_HEARTBEAT_INTERVAL_MS": str(HEARTBEAT_INTERVAL_MS),
            "MSGTX_TRANSACTION_TIMEOUT_MS": str(TRANSACTION_TIMEOUT_MS),
            "MSGTX_RETRY_BACKOFF_MS": "20",
            "PYTHONPATH": os.pathsep.join(map(str, (self.folder, Path.cwd(), os.environ.get("PYTHONPATH", "")))),
        }
        command = [sys.executable, "-m", "msgtx.cli", "process", self.source, self.target, "storm_job:copy",
                   "--group", self.group, "--transactional-id", transactional_id, "--transaction-ms", "50"]  # fmt: skip
        with errors.open("wb") as file:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file
            )
        self.all.append(Worker(number, transactional_id, process, errors))
        return self.all[-1]

    @property
    def living(self) -> list[Worker]:
        """Who has not ended. Who has must have been expected to."""
        alive = []
        for worker in self.all:
            code = worker.process.poll()
            if code is None:
                alive.append(worker)
            elif code not in worker.expected or "Traceback" in worker.said:
                worker.expected.add(code)
                told = f"worker {worker.number} ({worker.transactional_id}) ended with {code}: {worker.said[-1500:]}"
                if told not in self.failures:
                    self.failures.append(told)
        return alive

    def close(self) -> None:
        """Kill whoever is left."""
        for worker in self.all:
            if worker.process.poll() is None:
                worker.process.kill()
            worker.process.wait()
