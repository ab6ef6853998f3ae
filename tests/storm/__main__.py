"""`python -m tests.storm --minutes N --seed S`: one storm of so many minutes on a server of its own."""

import os
import sys
import tempfile
import time
from pathlib import Path

import click

from tests.faults import crash_server
from tests.storm.storm import play


@click.command()
@click.option("--minutes", type=float, default=1.0, show_default=True)
@click.option("--seed", type=int, default=None, help="Plans what happens, not when. Default: the time.")
@click.option("--blow-seconds", type=float, default=0.8, show_default=True, help="The mean pause between two blows.")
def main(*, minutes: float, seed: int | None, blow_seconds: float) -> None:
    """Disturb workers of a group for some time; exit 1 if an output is missing, doubled or out of order."""
    for name in [name for name in os.environ if name.startswith("MSGTX_") and name != "MSGTX_POSTGRES"]:
        del os.environ[name]
    chosen = int(time.time()) if seed is None else seed
    with tempfile.TemporaryDirectory(prefix="msgtx-storm-") as folder, crash_server() as server:
        os.environ["MSGTX_CONFIG"] = str(Path(folder) / "msgtx.toml")
        report = play(server.server.create_database(), seed=chosen, seconds=60 * minutes, blow_seconds=blow_seconds)
    for failure in report.failures:
        click.echo(f"  {failure}")
    blows = ", ".join(f"{name} {count}" for name, count in sorted(report.blows.items()))
    click.echo(f"seed {chosen}: {blows}; {report.lives} workers, {report.generations} generations of the group")
    click.echo(f"zombies that were fenced: {report.fenced}; workers that heard of lost partitions: {report.lost}")
    click.echo(f"all outputs {report.settled_seconds:.1f} s after the last blow")
    click.echo(f"repeated {report.repeated}, missing {report.missing}, out of order {report.disordered}; "
               f"inputs, together {report.sent}")  # fmt: skip
    if not report.clean:
        click.echo(f"again (not the same timing): python -m tests.storm --minutes {minutes:g} --seed {chosen}")
        sys.exit(1)


if __name__ == "__main__":
    main()
