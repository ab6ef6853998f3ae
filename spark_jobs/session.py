"""Spark sessions that can read and write msgtx: Java, the JDBC driver, and settings that fit."""

import os
import sys
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from msgtx.errors import ConfigError

SYSTEM_JAR: Final = Path("/usr/share/java/postgresql.jar")  # Debian: libpostgresql-jdbc-java


def jdbc_jar() -> Path:
    """Return PostgreSQL's JDBC driver. Raise `ConfigError` if there is none."""
    given = os.environ.get("MSGTX_JDBC_JAR")
    found = Path(given) if given else SYSTEM_JAR
    if not found.is_file():
        raise ConfigError(f"there is no JDBC driver at {found}: set MSGTX_JDBC_JAR")
    return found


def session(name: str = "msgtx", *, master: str = "local[*]") -> SparkSession:
    """Return a Spark session that has the JDBC driver, the running one if there is one."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.Builder()
        .appName(name)
        .master(master)
        .config("spark.jars", str(jdbc_jar()))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    return builder.getOrCreate()
