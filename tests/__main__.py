"""`python -m tests`: the tests, in as many runs of pytest as there are processors. Arguments are pytest's.

Without a path it leaves out what tests Spark at length: `make test-spark` runs that.
Each run has a server of its own, and the modules that it comes to first (`tests.turns`). The first writes as it goes, the
others when they have ended; the exit code is the first that is not 0.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final

MOST: Final = 4  # servers at once
# They start Spark again and again, kill its processes or build a cluster: minutes, where the others take seconds.
SPARK_AT_LENGTH: Final = (
    "spark/test_audit", "spark/test_cluster", "spark/test_demo", "spark/test_expire", "spark/test_export",
    "spark/test_import", "spark/test_pipeline", "spark/test_read", "spark/test_readme", "spark/test_report",
    "spark/test_session", "spark/test_source", "spark/test_streaming", "system/test_crash_sweep_of_batches",
)  # fmt: skip
ENDING_SECONDS: Final = 60.0  # for pytest to take its fixtures down


def runs_wanted() -> int:
    """Return how many runs: one, where they would have to share a server whose settings some tests change."""
    return 1 if "MSGTX_TEST_DATABASE_URL" in os.environ else min(MOST, len(os.sched_getaffinity(0)))


def everyday(arguments: Sequence[str]) -> list[str]:
    """Return pytest's arguments: without a path, those of the everyday run."""
    if any(Path(argument.partition("::")[0]).exists() for argument in arguments):
        return list(arguments)
    return [*arguments, *(f"--ignore=tests/{name}.py" for name in SPARK_AT_LENGTH)]


def main(arguments: Sequence[str]) -> int:
    arguments = everyday(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="msgtx-turns-"))
        written = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(runs_wanted() - 1)]
        runs = [start(arguments, Path(folder), output) for output in (None, *written)]
        try:
            codes = [run.wait() for run in runs]
        except KeyboardInterrupt:
            end(runs)
            codes = [130]
        for output in written:
            show(output)
    return next(filter(None, codes), 0)


def start(arguments: Sequence[str], folder: Path, output: IO[bytes] | None) -> "subprocess.Popen[bytes]":
    """Start a run. Ctrl-C does not reach it, only us: told twice, it would leave its server behind."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.turns", f"--turns={folder}", *arguments]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, start_new_session=True)


def end(runs: "Sequence[subprocess.Popen[bytes]]") -> None:
    """Have the runs take their fixtures down."""
    for run in runs:
        run.send_signal(signal.SIGTERM)
    for run in runs:
        try:
            run.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            run.kill()


def show(output: IO[bytes]) -> None:
    output.seek(0)
    sys.stdout.buffer.write(output.read())
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
