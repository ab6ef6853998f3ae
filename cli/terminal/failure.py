"""Failures as one line and an exit code.

0 done · 1 the operation failed · 2 wrong usage · 3 the database cannot be reached · 4 fenced or aborted ·
130 interrupted.
"""

from dataclasses import dataclass
from typing import Final

import click

from msgtx import errors

FAILED: Final = 1
WRONG_USAGE: Final = 2


class CommandFailed(click.ClickException):
    """The operation failed, for a reason that the library does not know."""

    exit_code = FAILED


@dataclass(frozen=True, slots=True)
class Failure:
    """The text to print, and the exit code."""

    message: str
    exit_code: int


def failure_of(error: Exception) -> Failure:
    """Return the one line and the exit code for an error."""
    error = _translated(error)
    return Failure(" ".join(_message(error).split("\n")), _exit_code(error))


def _translated(error: Exception) -> Exception:
    """Return the cause of an error of Spark's. Spark is installed then, so it may be imported."""
    if type(error).__module__.partition(".")[0] not in {"pyspark", "py4j"}:
        return error
    from msgtx.spark_jobs.runtime.failure import translate

    return translate(error)


def _message(error: Exception) -> str:
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{error.format_message().rstrip('.')} (see `{error.ctx.command_path} --help`)"
    if isinstance(error, click.Abort):
        return "nothing was changed; answer y, or use --yes"
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, errors.MsgtxError):
        # The second line of an error's docstring is the advice; a message that already says it needs no repetition.
        return "; ".join(part for part in (str(error) or _told(error, 0), _advice(error)) if part)
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object!r} is no valid UTF-8"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"unexpected {type(error).__name__}: {error} (--debug shows where)"


def _exit_code(error: Exception) -> int:
    if isinstance(error, errors.MsgtxError | click.ClickException):
        return error.exit_code
    return WRONG_USAGE if isinstance(error, UnicodeEncodeError) else FAILED


def _advice(error: errors.MsgtxError) -> str:
    if error.advises or any(mark in str(error) for mark in (";", "`msgtx")):
        return ""
    advice = _told(error, 2).split(";")[0].rstrip(".")
    return advice[:1].lower() + advice[1:]


def _told(error: errors.MsgtxError, line: int) -> str:
    lines = [text.strip() for text in (type(error).__doc__ or "").splitlines()]
    return lines[line] if line < len(lines) else ""
