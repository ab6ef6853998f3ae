"""The Kafka side: a process of another Python, with confluent-kafka, that runs the functions of a work sheet."""

import json
import subprocess
from pathlib import Path
from typing import Any

DRIVER = Path(__file__).with_name("kafka_driver.py")


class Kafka:
    """A broker, and the process that uses it. `fsync`: topics are flushed with each append."""

    def __init__(self, python: str, scripts: Path, bootstrap: str, *, fsync: bool, seconds: float) -> None:
        self.name = "Kafka + fsync" if fsync else "Kafka"
        options = ["--bootstrap", bootstrap, "--seconds", str(seconds), *(["--flush"] if fsync else [])]
        self._process = subprocess.Popen(
            [python, str(DRIVER), str(scripts), *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def call(self, function: str, *arguments: object) -> tuple[dict[str, float], Any]:
        """Run a function of the work sheet. Returns its figures by variant, and what it returned."""
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
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
