"""What every target needs: settings, rounds in alternating order, claims about ratios, table and JSON lines."""

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tests.benchmarks.kafka import Kafka
from tests.benchmarks.peers import Queues

Step = Callable[[], float | Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Settings:
    """Where to measure and how long. Without a Kafka, or other queues, their baselines are left out."""

    url: str | None
    kafka: Kafka | None
    kafka_fsync: Kafka | None
    rounds: int
    seconds: float
    queues: Sequence[Queues] = ()
    records: int = 10_000_000  # of r14-size
    connector: Path | None = None  # a folder with the jars of Spark's Kafka connector

    @property
    def brokers(self) -> list[Kafka]:
        return [broker for broker in (self.kafka, self.kafka_fsync) if broker is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A value and its limit: on the ratio to `base` of the same round, or on the value itself without a base."""

    target: str
    what: str
    unit: str
    value: str  # names of series
    base: str | None = None
    at_least: float | None = None
    at_most: float | None = None


class Rounds:
    """Series of values by name, one value per round."""

    def __init__(self) -> None:
        self.series: dict[str, list[float]] = {}

    def run(self, steps: Mapping[str, Step], *, rounds: int) -> None:
        """Run all steps, `rounds` times. A step returns its value, or several with names that follow its own."""
        for index in range(rounds):
            for name in list(steps) if index % 2 == 0 else list(steps)[::-1]:
                began = time.perf_counter()
                found = steps[name]()
                values = {name: found} if isinstance(found, float | int) else {name + part: v for part, v in found.items()}
                for full_name, value in values.items():
                    self.add(full_name, value)
                    took = time.perf_counter() - began
                    progress(f"round {index + 1}/{rounds}  {full_name}: {number(value)}  ({took:.1f} s)")

    def add(self, name: str, value: float) -> None:
        self.series.setdefault(name, []).append(value)

    def judge(self, claims: Sequence[Claim]) -> list[dict[str, object]]:
        """Return each claim with its figures, ready for JSON. Claims without figures are left out."""
        there = self.series.keys() | {None}
        return [self._judged(claim) for claim in claims if claim.value in there and claim.base in there]

    def _judged(self, claim: Claim) -> dict[str, object]:
        values = self.series[claim.value]
        bases = self.series.get(claim.base or "", [])
        ratios = [value / base for value, base in zip(values, bases, strict=False) if base]
        judged = statistics.median(ratios) if ratios else None if claim.base else statistics.median(values)
        met = None
        if judged is not None and (claim.at_least is not None or claim.at_most is not None):
            met = judged >= (claim.at_least or 0) and judged <= (claim.at_most or float("inf"))
        return {
            "target": claim.target,
            "what": claim.what,
            "unit": claim.unit,
            "value": statistics.median(values),
            "values": values,
            "baseline": claim.base if bases else None,
            "baseline_value": statistics.median(bases) if bases else None,
            "baseline_values": bases,
            "ratio": statistics.median(ratios) if ratios else None,
            "ratios": ratios,
            "at_least": claim.at_least,
            "at_most": claim.at_most,
            "met": met,
        }


def progress(text: str) -> None:
    sys.stderr.write(f"  {text}\n")


def number(value: object) -> str:
    if not isinstance(value, float | int):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def print_table(lines: Sequence[Mapping[str, object]]) -> None:
    """Print claims as a table."""
    rows = [("", "what", "measured", "", "baseline", "", "ratio", "spread", "wanted", "")]
    for line in lines:
        ratios = line["ratios"] or [0.0]
        wanted = [
            f"{sign} {number(line[key])}" for sign, key in (("≥", "at_least"), ("≤", "at_most")) if line[key] is not None
        ]
        rows.append(
            (
                str(line["target"]),
                str(line["what"]),
                number(line["value"]),
                str(line["unit"]),
                str(line["baseline"] or ""),
                number(line["baseline_value"]) if line["baseline"] else "",
                number(line["ratio"]) if line["ratio"] is not None else "",
                f"{number(min(ratios))}–{number(max(ratios))}" if line["ratios"] else "",
                " ".join(wanted),
                {True: "met", False: "MISSED", None: ""}[line["met"]],
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    right = {2, 5, 6, 8}
    for row in rows:
        cells = [
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def print_json(lines: Sequence[Mapping[str, object]], file: TextIO = sys.stdout) -> None:
    for line in lines:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")
