"""`python -m tests.long --minutes N`: histories with faults, hostile logins, odd records, changing topics, a storm, models.

Most of the time is for histories. Each part prints its seeds, what it checked and what it found, as it goes; the last
line sums up. The exit code is that of `tests/verdicts.py`: the gravest of all parts.
"""

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Final

from tests.verdicts import Verdict

Part = tuple[str, ...]
SHARES: Final[dict[Part, float]] = {  # of the time beyond the least
    ("tests.histories",): 0.46,
    ("tests.hostile",): 0.04,
    ("tests.onlookers",): 0.04,
    ("tests.topology",): 0.06,
    ("tests.histories", "--storm"): 0.06,
    ("tests.model", "--faults", "connections"): 0.2,
    ("tests.model", "--faults", "server"): 0.14,
}
LEAST_MINUTES: Final = 0.15  # of each part: with less it would hardly begin
CHECKED: Final = re.compile(r"(?:together |, )(\d+)(?: operations checked in .* anomalies)?$")
WORDS: Final = {  # the gravest first
    Verdict.ANOMALY: "ANOMALIES",
    Verdict.ENDED_BADLY: "ENDED BADLY",
    Verdict.NOT_BEGUN: "NOT BEGUN",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.long", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    began = time.monotonic()
    checked, codes = 0, {}
    for part, minutes in minutes_of(parser.parse_args().minutes).items():
        name = " ".join(part)
        _say(f"── {name}, {minutes:.1f} minutes ──")
        with subprocess.Popen(
            [sys.executable, "-m", *part, "--minutes", f"{minutes:.3f}"], stdout=subprocess.PIPE, text=True
        ) as running:
            assert running.stdout is not None
            for line in running.stdout:
                _say(line.rstrip("\n"))
                if (found := CHECKED.search(line.strip())) is not None:
                    checked += int(found[1])
        codes[name] = running.returncode
    _say(f"{checked:,} operations checked in {(time.monotonic() - began) / 60:.1f} minutes; {summary(codes)}")
    return gravest(codes)


def minutes_of(minutes: float) -> dict[Part, float]:
    """Divide the time: each part gets the least, and its share of the rest."""
    least = min(LEAST_MINUTES, minutes / len(SHARES))
    rest = minutes - least * len(SHARES)
    return {part: least + share * rest for part, share in SHARES.items()}


def gravest(codes: Mapping[str, int]) -> Verdict:
    """Return the verdict over all parts, by their exit codes."""
    verdicts = {Verdict.of(code) for code in codes.values()}
    return next((verdict for verdict in WORDS if verdict in verdicts), Verdict.CLEAN)


def summary(codes: Mapping[str, int]) -> str:
    """Say which parts found anomalies, and which could not look for any."""
    told = []
    for verdict, word in WORDS.items():
        if names := [f"{name} (exit code {code})" for name, code in codes.items() if Verdict.of(code) is verdict]:
            told.append(f"{word}: {', '.join(names)}")
    return "; ".join(told) or "no anomaly"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
