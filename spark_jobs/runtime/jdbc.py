"""PostgreSQL's JDBC driver: an existing jar, else one fetched once, from Debian's packages or by Ivy.

The network comes into play only when there is no jar. Debian's tools go first: without their lists they say no at once,
and they check signatures. Ivy is part of Spark; it asks Maven's repository.
"""

import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from msgtx.errors import ConfigError
from msgtx.spark_jobs.runtime.java import cache, find_java

DEBIAN_PACKAGE: Final = "libpostgresql-jdbc-java"
DEBIAN_JAR: Final = Path("usr/share/java/postgresql.jar")
SYSTEM_JAR: Final = Path("/") / DEBIAN_JAR
MAVEN_NAME: Final = ("org.postgresql", "postgresql", "42.7.8")
DRIVER: Final = "org.postgresql.Driver"
ASK_S: Final = 20.0  # for what needs no network
FETCH_S: Final = 120.0  # for a file of a megabyte, and Ivy's start
CONNECT_S: Final = 10  # for Debian's tools to reach their server

_log = logging.getLogger(__name__)


def jdbc_jar() -> Path:
    """Return PostgreSQL's JDBC driver, fetched if need be. Raise `ConfigError` if there is none and none can be had."""
    if given := os.environ.get("MSGTX_JDBC_JAR"):
        found = Path(given).expanduser().absolute()
        if not found.is_file():
            raise ConfigError(f"MSGTX_JDBC_JAR={given}: there is no such file")
        return found
    kept = cache_of_jar()
    for jar in (SYSTEM_JAR, kept):
        if jar.is_file():
            _log.info("JDBC driver: %s", jar)
            return jar
    return _fetch(kept)


def cache_of_jar() -> Path:
    """Return where a jar that was fetched is kept."""
    return cache() / "postgresql-jdbc.jar"


def has_driver(jars: Iterable[str]) -> bool:
    """Return whether the driver is among the jars or packages that a user asks Spark for."""
    return any("postgresql" in jar.rpartition("/")[2].lower() for jar in jars)


def _fetch(target: Path) -> Path:
    """Fetch the driver into the cache, whole or not at all."""
    refused = []
    with tempfile.TemporaryDirectory(prefix="jdbc-", dir=target.parent) as folder:
        for source, fetch in ((f"Debian's package {DEBIAN_PACKAGE}", _from_debian), ("Maven's repository", _from_maven)):
            try:
                fetched = fetch(Path(folder))
            except (OSError, subprocess.SubprocessError) as error:
                _log.info("no JDBC driver from %s: %s", source, _reason(error))
                refused.append(f"{source}: {_reason(error)}")
                continue
            fetched.chmod(0o644)
            fetched.rename(target)
            _log.warning("fetched PostgreSQL's JDBC driver from %s into %s", source, target)
            return target
    raise ConfigError(
        f"there is no JDBC driver for PostgreSQL, and none could be fetched ({'; '.join(refused)}): install "
        f"{DEBIAN_PACKAGE} (Debian), or set MSGTX_JDBC_JAR to the jar {':'.join(MAVEN_NAME)}"
    )


def _from_debian(folder: Path) -> Path:
    """Download the package, which needs no rights, and unpack it."""
    for program in ("apt-cache", "apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise FileNotFoundError(f"no {program} here")
    if "Filename:" not in _run(["apt-cache", "show", "--no-all-versions", DEBIAN_PACKAGE], folder, ASK_S):
        raise FileNotFoundError("not in the lists of packages")
    options = ["-o", "Acquire::Retries=0", "-o", f"Acquire::http::Timeout={CONNECT_S}"]
    _run(["apt-get", *options, "download", DEBIAN_PACKAGE], folder, FETCH_S)
    (package,) = folder.glob("*.deb")
    _run(["dpkg-deb", "-x", package, folder / "debian"], folder, ASK_S)
    return (folder / "debian" / DEBIAN_JAR).resolve(strict=True)


def _from_maven(folder: Path) -> Path:
    """Let Spark's Ivy resolve it. Proxies of the system's settings count."""
    import pyspark

    jars = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "jars"
    java = find_java().home / "bin" / "java"
    pattern = folder / "jars" / "[artifact].[ext]"  # of the type jar: neither sources nor documentation
    _run(
        [
            java, "-Djava.net.useSystemProxies=true", "-cp", f"{jars}/*", "org.apache.ivy.Main", "-warn",
            "-cache", folder / "ivy", "-dependency", *MAVEN_NAME, "-notransitive", "-types", "jar", "-retrieve", pattern,
        ],
        folder,
        FETCH_S,
    )  # fmt: skip
    return (folder / "jars" / f"{MAVEN_NAME[1]}.jar").resolve(strict=True)


def _run(command: Sequence[str | Path], folder: Path, seconds: float) -> str:
    """Run a program to its end. Raise `SubprocessError` with its output."""
    done = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
        timeout=seconds, env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    if done.returncode != 0:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout


def _reason(error: OSError | subprocess.SubprocessError) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no answer in {error.timeout:.0f} s"
    if isinstance(error, subprocess.CalledProcessError):
        lines = [line.strip() for line in f"{error.stdout}\n{error.stderr}".splitlines() if line.strip()]
        telling = [line for line in lines if "certification path" in line]
        telling += [line for line in lines if line.startswith("E: ") or "not found" in line]
        return (telling or lines or [f"exit code {error.returncode}"])[0].removeprefix("E: ")
    return str(error)
