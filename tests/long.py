"""`python -m tests.long --minutes N`: histories with a nemesis, a hostile login, a storm, the model with faults.

Most of the time is for histories. Each part prints its seeds, what it checked and what it found, as it goes; the last
line sums up. Exit code 1 if any part found an anomaly.
"""

import argparse
import re
import subprocess
import sys
import time
from typing import Final

SHARES: Final = {  # of the time
    ("tests.histories",): 0.56,
    ("tests.hostile",): 0.04,
    ("tests.histories", "--storm"): 0.06,
    ("tests.model", "--faults", "connections"): 0.2,
    ("tests.model", "--faults", "server"): 0.14,
}
CHECKED: Final = re.compile(r"(?:together |, )(\d+)(?: operations checked in .* anomalies)?$")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.long", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    minutes = parser.parse_args().minutes
    began = time.monotonic()
    checked, failed = 0, []
    for part, share in SHARES.items():
        name = " ".join(part)
        _say(f"── {name}, {minutes * share:.1f} minutes ──")
        with subprocess.Popen(
            [sys.executable, "-m", *part, "--minutes", f"{minutes * share:.3f}"], stdout=subprocess.PIPE, text=True
        ) as running:
            assert running.stdout is not None
            for line in running.stdout:
                _say(line.rstrip("\n"))
                if (found := CHECKED.search(line.strip())) is not None:
                    checked += int(found[1])
        if running.returncode != 0:
            failed.append(name)
    _say(f"{checked:,} operations checked in {(time.monotonic() - began) / 60:.1f} minutes; {_verdict(failed)}")
    return 1 if failed else 0


def _verdict(failed: list[str]) -> str:
    return "no anomaly" if not failed else f"ANOMALIES (or a part that ended badly): {', '.join(failed)}"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
