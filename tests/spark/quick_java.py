"""A Java for the tests that starts Spark in half of the time: it compiles quickly, and maps classes from an archive.

Java 17 takes an archive only where no folder of the class path holds files: Spark's settings for the tests are therefore
flags of a program `java`, not a configuration folder.
"""

import contextlib
import fcntl
import hashlib
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

import pyspark

from msgtx.spark_jobs.runtime.java import find_java
from tests.spark.programs import PATIENCE_SECONDS

# Queries of tests run for a moment. To optimise their code, and to collect garbage in parallel, took half of the time.
FLAGS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# A Java that cannot use the archive starts without it, and says nothing on standard output.
USE: Final = "-Xshare:auto -XX:SharedArchiveFile={archive} -Xlog:disable -Xlog:all=error:stderr"
PROGRAM: Final = """\
#!/bin/sh
exec {java} {flags} "$@"
"""
TRAINING: Final = Path(__file__).with_name("training.py")
SPARK: Final = Path(pyspark.__file__).parent


def make_home(folder: Path) -> Path:
    """Make a folder for `JAVA_HOME`."""
    java = find_java().home / "bin" / "java"
    archive = _archive(java)
    flags = FLAGS if archive is None else f"{FLAGS} {USE.format(archive=shlex.quote(str(archive)))}"
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(java=shlex.quote(str(java)), flags=flags), encoding="utf-8")
    program.chmod(0o755)
    return folder


def _archive(java: Path) -> Path | None:
    """Return the archive of classes, which the first process makes in the virtual environment; None if it cannot."""
    made_of = [TRAINING.read_text(encoding="utf-8"), FLAGS, *map(_version, (java, *sorted((SPARK / "jars").iterdir())))]
    archive = Path(sys.prefix, f"spark-{hashlib.sha256(repr(made_of).encode()).hexdigest()[:12]}.jsa")
    with contextlib.suppress(OSError), archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _train(java, archive)
    return archive if archive.exists() else None


def _version(file: Path) -> tuple[str, int, int]:
    found = file.stat()
    return str(file.resolve()), found.st_size, found.st_mtime_ns


def _train(java: Path, archive: Path) -> None:
    """Run a program on Spark that loads most classes; at its end Java writes the archive."""
    partial = archive.with_suffix(".partial")
    needed = {"JAVA_HOME": str(java.parents[1]), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    flags = f"{FLAGS} -XX:ArchiveClassesAtExit={partial}"
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            [SPARK / "bin" / "spark-submit", "--driver-java-options", flags, TRAINING], env={**os.environ, **needed},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            check=False, timeout=PATIENCE_SECONDS,
        )  # fmt: skip
        if done.returncode == 0:
            partial.rename(archive)
