"""The program: signals, failures and exit codes around the commands."""

import contextlib
import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from msgtx.cli.terminal import interruption


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `msgtx` with these arguments (default: the command line's), and exit."""
    interruption.listen()
    _replace_closed_streams()
    code = run(sys.argv[1:] if arguments is None else arguments)
    interruption.ignore()
    with contextlib.suppress(OSError):
        _let_go_of_output()
    gc.freeze()  # else the interpreter searches every module for garbage before it ends
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run a command. Returns the exit code; an error is one line on stderr."""
    try:
        code = _invoke(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        return 0  # the reader of our output has seen enough
    except KeyboardInterrupt:
        interruption.heard()
        return interruption.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the end of the program, and users see no traceback
        return _report(error, arguments)
    return code


def _invoke(arguments: Sequence[str]) -> int:
    # Everything is imported late, and in one piece: a signal during the start is an ordinary end, too.
    with interruption.deferred():
        import click
        from click.shell_completion import shell_complete

        from msgtx.cli.commands import command

    if (instruction := os.environ.get("_MSGTX_COMPLETE")) is not None:
        return shell_complete(command, {}, "msgtx", "_MSGTX_COMPLETE", instruction)
    try:
        with command.make_context("msgtx", list(arguments)) as context:
            result = command.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except getattr(click.exceptions, "NoArgsIsHelpError", ()) as asked:  # click 8.2 and later; earlier ones print it
        click.echo(asked.ctx.get_help(), err=True)
        return int(asked.exit_code)
    return result if isinstance(result, int) else 0


def _report(error: Exception, arguments: Sequence[str]) -> int:
    from msgtx.cli.terminal.failure import failure_of

    if "--debug" in arguments or os.environ.get("MSGTX_DEBUG") in {"1", "true", "yes", "on"}:
        sys.excepthook(type(error), error, error.__traceback__)
    failure = failure_of(error)
    with contextlib.suppress(OSError):
        os.write(2, f"msgtx: {failure.message}\n".encode(errors="backslashreplace"))
    return failure.exit_code


def _replace_closed_streams() -> None:
    """Open the files that the caller closed (`>&-`), before a connection gets their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - open to the end


def _let_go_of_output() -> None:
    """Discard output for a reader that has ended: Python would complain about it at its exit."""
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
