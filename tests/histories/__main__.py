"""`python -m tests.histories --minutes N --seed S`: histories with a nemesis, in rounds, until the time is over."""

import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

import click

from tests.faults import crash_server
from tests.histories.anomalies import summary
from tests.histories.crew import GROUP, LARGE, WIDE, NotBegunError
from tests.histories.nemesis import LONG
from tests.histories.rounds import Report, play
from tests.histories.storm import DECK, Storm
from tests.verdicts import Verdict

BLOCK_SECONDS: Final = 9.0  # COMMITs stay unanswered: longer than a call of a `bounded` worker may take
DISTURBED: Final = 0.6  # of a short run; in the rest the workers begin, finish and are judged
LEAST_SECONDS: Final = 8.0  # of a round, disturbed: with less there are few faults
WIDENS: Final = 5  # every fifth seed has a topic of many partitions, all of which are read at the end
PURGES: Final = 3  # with every third seed, transactions and ids are forgotten after seconds


@click.command()
@click.option("--minutes", type=float, default=1.0, show_default=True)
@click.option("--seed", type=int, default=None, help="Of the first round; the others count on from it. Default: the time.")
@click.option("--round-seconds", type=float, default=45.0, show_default=True, help="Disturbed, of one round.")
@click.option("--pace", type=float, default=0.02, show_default=True, help="The mean pause of a worker, in seconds.")
@click.option("--blow-seconds", type=float, default=0.6, show_default=True, help="Between two blows of the nemesis.")
@click.option("--storm", is_flag=True, help="Workers of one group that come and go; the server is left alone.")
@click.option("--keep", type=click.Path(path_type=Path), default=None, help="Keep the histories of all rounds here.")
def main(
    *, minutes: float, seed: int | None, round_seconds: float, pace: float, blow_seconds: float, storm: bool,
    keep: Path | None,
) -> None:  # fmt: skip
    """Play rounds with rising seeds until the time is over or a round is not clean (exit codes: tests/verdicts.py)."""
    for name in [name for name in os.environ if name.startswith("MSGTX_") and name != "MSGTX_POSTGRES"]:
        del os.environ[name]
    first = int(time.time()) if seed is None else seed
    deadline = time.monotonic() + minutes * 60
    if minutes > 0:
        round_seconds = min(round_seconds, max(LEAST_SECONDS, minutes * 60 * DISTURBED))
    folder = keep or Path(tempfile.mkdtemp(prefix="msgtx-histories-"))
    total: Counter[str] = Counter()
    blows: Counter[str] = Counter()
    results: Counter[str] = Counter()
    number, verdict = first, Verdict.CLEAN
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "msgtx.toml").touch()
    os.environ["MSGTX_CONFIG"] = str(folder / "msgtx.toml")
    with crash_server() as server:
        while verdict is Verdict.CLEAN and (number == first or time.monotonic() + round_seconds < deadline):
            try:
                report = play(server, folder / f"seed-{number}", seed=number, seconds=round_seconds, pace=pace,
                              blow_seconds=blow_seconds, purging=number % PURGES == 0,
                              **(_storm() if storm else _history(number)))  # fmt: skip
            except NotBegunError as error:
                click.echo(f"seed {number}: NOT BEGUN, nothing was checked: {error}")
                number, verdict = number + 1, Verdict.NOT_BEGUN
                break
            total += report.operations
            blows += report.blows
            results += report.results
            verdict = report.verdict
            _tell(report, total)
            if verdict is Verdict.CLEAN and keep is None:
                shutil.rmtree(folder / f"seed-{number}")
            number += 1
    click.echo(f"rounds: {number - first}, seeds {first} to {number - 1}")
    click.echo("blows: " + _counts(blows))
    click.echo("answers: " + _counts(results))
    click.echo("checked operations: " + _counts(total) + f"; together {sum(total.values())}")
    click.echo("(each record sent, each record polled, and each other call of a client counts as one)")
    if verdict is not Verdict.CLEAN:
        scenario = "--storm " if storm else ""
        again = f"{scenario}--seed {number - 1} --round-seconds {round_seconds:g} --pace {pace:g}"
        again += f" --blow-seconds {blow_seconds:g}"
        click.echo(f"the history is in {folder / f'seed-{number - 1}'}; the same plan again (not the same timing):")
        click.echo(f"  python -m tests.histories --minutes 0 {again} --keep FOLDER")
        sys.exit(verdict)
    if keep is None:
        shutil.rmtree(folder)


def _history(number: int) -> dict[str, object]:
    return {"roles": LARGE if number % WIDENS else WIDE, "block_seconds": BLOCK_SECONDS, "kinds": LONG}


def _storm() -> dict[str, object]:
    return {"roles": GROUP, "kinds": DECK, "nemesis": Storm}


def _tell(report: Report, total: Counter[str]) -> None:
    seconds = ", ".join(f"{name} {spent:.0f} s" for name, spent in report.seconds.items())
    done = f"{report.checked} operations ({sum(total.values())} so far), {report.blows.total()} blows, {report.lives} lives"
    click.echo(f"seed {report.seed}: {done}; {seconds}; {report.verdict.name.replace('_', ' ')}")
    for line in (*report.failures, *summary(report.anomalies)):
        click.echo(f"  {line}")


def _counts(counted: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counted.items()))


if __name__ == "__main__":
    main()
