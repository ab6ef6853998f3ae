"""A Python for Spark's workers that starts in a fifth of the time: it imports compiled modules, and before it forks.

Spark puts an archive of PySpark's sources first on the path. Each worker would read its directory some 20 times, and
compile each module that it imports.
"""

import shlex
import sys
from pathlib import Path
from typing import Final

PROGRAM: Final = """\
#!/bin/sh
IFS=:
for each in $PYTHONPATH; do
    case $each in
        */python/lib/*.zip) ;;
        *) kept=$kept:$each ;;
    esac
done
export PYTHONPATH="${{kept#:}}"
if test "$1 $2" = "-m pyspark.daemon"; then
    shift 2
    set -- -c {daemon} "$@"
fi
exec {python} "$@"
"""
# What nearly all workers import after they were forked, and of those that run tasks also the second line.
DAEMON: Final = """\
import sys, pyspark.daemon, msgtx.spark_jobs.sink, msgtx.spark_jobs.source
if sys.argv[1] == "pyspark.worker": import pandas
pyspark.daemon.manager()
"""


def make_program(folder: Path) -> Path:
    """Make a program for `PYSPARK_PYTHON`."""
    program = folder / "python"
    program.write_text(PROGRAM.format(daemon=shlex.quote(DAEMON), python=shlex.quote(sys.executable)), encoding="utf-8")
    program.chmod(0o755)
    return program
