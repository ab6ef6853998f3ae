"""`python -m tests`: pytest, in one process more than the machine has processors: tests also wait. Arguments are pytest's.

Without a path it runs all but Spark's, Kafka's, Patroni's, a browser's and a release's (`make test-all`); with `--everyday`
those that `make test` runs. Each process has a server of its own and takes a module at a time: its tests keep their order,
and have a database to themselves.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

MOST: Final = 4  # servers at once
SPARK: Final = "tests/spark"  # needs pyspark: `make test-spark`
KAFKA: Final = "tests/kafka"  # needs Kafka's programs: `make test-kafka`
PATRONI: Final = "tests/patroni"  # needs Patroni and etcd: `make test-patroni`
INSTALL: Final = "tests/install"  # needs what `make release` needs: `make test-install`
SITE: Final = "tests/docs/test_site.py"  # needs the built site and Chromium: `make test-site`
COMPAT: Final = "tests/packages"  # needs packages that use confluent-kafka: `make test-compat`
BROWSER: Final = ("tests/console/test_browser.py", "tests/console/test_tour.py")  # need Chromium: `make test-console`
SLOWEST: Final = 10  # that are listed at the end
# A test that hangs ends its process, which says where each thread stood. The longest tests take a minute.
HANGING: Final = ("-ofaulthandler_timeout=600", "-ofaulthandler_exit_on_timeout=true")
ENDING_SECONDS: Final = 60.0  # for pytest to take its fixtures down


def processes() -> list[str]:
    """Return pytest-xdist's arguments: none, where processes would share a server whose settings some tests change."""
    if "MSGTX_TEST_DATABASE_URL" in os.environ:
        return []
    # In the order in which they are collected: the longest first (tests/conftest.py). A process that a test has ended (it
    # hung, or crashed) is not replaced: that test would end the next one, too.
    count = min(MOST, 1 + len(os.sched_getaffinity(0)))
    return ["-n", str(count), "--dist", "loadfile", "--no-loadscope-reorder", "--max-worker-restart=0"]


def chosen(arguments: Sequence[str]) -> list[str]:
    """Return pytest's arguments: without a path, all but those that have a target of their own."""
    if any(Path(argument.partition("::")[0]).exists() for argument in arguments):
        return list(arguments)
    return [
        *arguments,
        f"--durations={SLOWEST}",
        *(f"--ignore={each}" for each in (SPARK, KAFKA, PATRONI, INSTALL, COMPAT, SITE, *BROWSER)),
    ]


def main(arguments: Sequence[str]) -> int:
    command = [sys.executable, "-m", "pytest", *HANGING, *processes(), *chosen(arguments)]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # The processes, and the programs that tests start, keep and read bytecode: a start takes half as long.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Ctrl-C reaches only this process. It signals all others once: after a second signal, one would leave its server behind.
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True) as run:
        try:
            return run.wait()
        except KeyboardInterrupt:
            end(run)
            return 130


def end(run: "subprocess.Popen[bytes]") -> None:
    """End all processes; each takes its fixtures down first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(ENDING_SECONDS)
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
