"""Run histories for some minutes: `python -m tests.model --minutes 10 --seed 1 --faults server`."""

import argparse
import logging
import sys

from tests.faults import crash_server
from tests.model.rounds import MACHINES, places, run_rounds
from tests.verdicts import Verdict


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="one round at least; 0 repeats that of --seed")
    parser.add_argument("--seed", type=int, help="of the first round; the next ones count up from it")
    parser.add_argument("--faults", choices=[*MACHINES], default="connections", help="what is lost")
    chosen = parser.parse_args()
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # it warns of each connection that is lost
    with crash_server() as server:
        crashing = server if chosen.faults == "server" else None
        with places(server.server.create_database, crashing) as where:
            failed = run_rounds(where, minutes=chosen.minutes, first=chosen.seed, report=_say)
    return Verdict.ANOMALY if failed else Verdict.CLEAN


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
