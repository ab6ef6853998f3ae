"""Spark's errors as one sentence: the failure in a task or in the JVM, without the traces around it."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any, Final

from pyspark.errors import AnalysisException, IllegalArgumentException, ParseException

from msgtx import errors
from msgtx.database.translation import OWN, raised
from msgtx.errors import ConfigError, DatabaseUnavailable, InvalidRequest, MsgtxError

MOST_CAUSES: Final = 30  # a chain of Java's exceptions may have a ring
_OF_MSGTX: Final = re.compile(r"^\W*msgtx\.errors\.(\w+)(?:: (.*))?$", re.MULTILINE)
_CAUSE: Final = re.compile(r"^(?:Caused by: |: |.*?\): )?(?:[a-z]\w*\.)+(\w+(?:Exception|Error)): (.+)$", re.MULTILINE)
_PYTHON: Final = re.compile(r"^(\w+(?:\.\w+)*(?:Error|Exception|Exit|Interrupt)): (.+)$", re.MULTILINE)
# An unreadable row: the messages of Spark's readers in FAILFAST mode, and ours of raise_error.
_MALFORMED: Final = re.compile(
    r"\[(?:MALFORMED_CSV_RECORD|MALFORMED_RECORD_IN_PARSING[.\w]*|USER_RAISED_EXCEPTION|FAILED_READ_FILE[.\w]*|"
    r"INCONSISTENT_BEHAVIOR_CROSS_VERSION[.\w]*|CAST_INVALID_INPUT|CAST_OVERFLOW)\] (.+)"
)
_SECRET: Final = re.compile(r"(://[^\s:/@]*:)[^\s@]+@|(password=)[^\s&;,]+")
# Wrappers of a cause: they say only that a task, a stage or a query failed.
_AROUND: Final = {"SparkException", "PythonException", "Py4JJavaError", "StreamingQueryException", "ExecutionException"}
_ADVICE: Final = (
    (
        re.compile(r"No module named '(msgtx|psycopg|pyarrow|sqlalchemy)[\w.]*'"),
        "the Python of Spark's workers has no {0}: install msgtx[spark] there, or set PYSPARK_PYTHON to one that has it",
    ),
    (
        re.compile(r'Cannot run program "([^"]*python[^"]*)"'),
        "Spark's workers have no Python at {0}: set PYSPARK_PYTHON to theirs",
    ),
    (
        re.compile(r"Python in worker has different version:? (\S+?),? than that in driver:? (\S+?),"),
        "the Python of Spark's workers is {0}, this one is {1}: set PYSPARK_PYTHON to one of the same minor version",
    ),
    (
        re.compile(r"ClassNotFoundException: (org\.postgresql\.Driver)"),
        "Spark's workers have no JDBC driver for PostgreSQL ({0}): set MSGTX_JDBC_JAR to its jar",
    ),
    (
        re.compile(r"most recent failure: .* UnknownReason"),
        "a task has failed with an error of the JDBC driver, which Spark's server has for one session only, so it cannot say"
        " which: start the server with --jars postgresql.jar",
    ),
)
_LOST: Final = re.compile(
    r"Connection to \S+ refused|connection attempt failed|terminating connection|An I/O error occurred while sending|"
    r"the database system is|This connection has been closed|remaining connection slots|too many clients"
)


def translate(error: Exception) -> Exception:
    """Return the error of msgtx inside an error of Spark or Py4J; the error itself if it is none of theirs.

    A failure for another reason is a `SparkFailed`.
    """
    if isinstance(error, MsgtxError) or type(error).__module__.partition(".")[0] not in {"pyspark", "py4j"}:
        return error
    if (own := named(error)) is not None:
        return own
    text = _text(error)
    if malformed := list(_MALFORMED.finditer(text)):
        return InvalidRequest(_told(malformed[-1][1]))
    for pattern, advice in _ADVICE:
        if found := pattern.search(text):
            return ConfigError(advice.format(*found.groups()))
    if told := _by_sqlstate(error):
        return told
    if _LOST.search(text) and "postgresql" in text:
        return DatabaseUnavailable(_root(text))
    if type(error).__name__ in {"Py4JNetworkError", "Py4JError"} and "Java side" in text:
        from msgtx.spark_jobs.session import told_by_jvm  # a client of Spark Connect has no Java

        lines = [line for line in told_by_jvm().splitlines() if "OutOfMemory" in line or "fatal error" in line]
        return SparkFailed(f"Spark's Java ended{': ' + lines[-1].strip() if lines else ''}; see --debug")
    if isinstance(error, AnalysisException | ParseException | IllegalArgumentException):
        return ConfigError(_told(_first(text)))
    return SparkFailed(_root(text))


def named(error: Exception) -> MsgtxError | None:
    """Return the error of msgtx that a task has raised, if an error of Spark's names one."""
    if found := list(_OF_MSGTX.finditer(_text(error))):
        kind = getattr(errors, found[-1][1], None)
        if isinstance(kind, type) and issubclass(kind, MsgtxError):
            return kind(_told(found[-1][2] or ""))
    return None


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise the causes of Spark's errors in the block."""
    try:
        yield
    except Exception as error:
        told = translate(error)
        if told is error:
            raise
        raise told from error


class SparkFailed(MsgtxError):
    """A job of Spark's failed, for a reason that msgtx does not know.

    The message is the innermost cause; `--debug` shows all of them.
    """


def _text(error: Exception) -> str:
    """Return all that an error says, its Java's trace included. Its `str` would ask Java, which may have ended."""
    told = [getattr(error, "_desc", None), getattr(error, "_stackTrace", None)]
    return "\n".join(str(each) for each in told if each) or str(error)


def _by_sqlstate(error: Exception) -> Exception | None:
    """Return our own error for a SQLSTATE of ours among the Java exceptions of the driver."""
    for java in _causes(error):
        if java.getClass().getName() != "org.postgresql.util.PSQLException":
            continue
        state = str(java.getSQLState() or "")
        if state.startswith(OWN):
            server = java.getServerErrorMessage()
            return raised(state, _told(str(server.getMessage())), server.getColumn(), server.getDetail())
        if state[:2] in {"08", "53", "57"}:
            return DatabaseUnavailable(_told(str(java.getMessage())))
    return None


def _causes(error: Exception) -> Iterator[Any]:
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    for _ in range(MOST_CAUSES):
        if java is None or not hasattr(java, "getCause"):
            return
        yield java
        java = java.getCause()


def _root(text: str) -> str:
    """Pick the innermost cause: a Python worker's exception, else the last of Java's."""
    python = [found for found in _PYTHON.finditer(text) if "." not in found[1]]
    if python:
        return _told(f"{python[-1][1]}: {python[-1][2]}")
    java = [found for found in _CAUSE.finditer(text) if found[1] not in _AROUND]
    return _told(java[-1][2] if java else _first(text))


def _first(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "no reason given"


def _told(text: str) -> str:
    """Return a sentence without SQLSTATEs of Spark's own and without passwords."""
    plain = re.sub(r" ?SQLSTATE: \w{5}$", "", text.strip()).removeprefix("ERROR: ")
    return _SECRET.sub(lambda found: f"{found[1]}***@" if found[1] else f"{found[2]}***", plain)
