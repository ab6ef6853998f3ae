"""`MODULE:FUNCTION`: the user's code that a command runs."""

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import click

from msgtx.cli.terminal.failure import CommandFailed
from msgtx.cli.terminal.interruption import deferred


def load_function(name: str) -> Callable[..., Any]:
    """Import a function. Raise `UsageError`, which names the missing part."""
    module_name, _, function_name = name.partition(":")
    if not module_name or module_name.startswith(".") or not function_name:  # a path, like ./jobs.py, is no module
        raise click.UsageError(f"{name!r} is not MODULE:FUNCTION")
    if (here := os.getcwd()) not in sys.path:  # noqa: PTH109 - sys.path holds texts
        sys.path.insert(0, here)
    try:
        with deferred():
            found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise click.UsageError(f"there is no module {error.name!r} (looked in {here}, too)") from error
    except Exception as error:
        raise CommandFailed(f"module {module_name} cannot be imported: {where(error)}") from error
    for part in function_name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise click.UsageError(f"module {module_name!r} has no function {function_name!r}")
    function: Callable[..., Any] = found
    return function


def where(error: Exception) -> str:
    """Return the text of an error of the user's code, and its line: the last one that is in no library."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    at = f" ({os.path.basename(own[-1].filename)}:{own[-1].lineno})" if own else ""  # noqa: PTH119
    return f"{type(error).__name__}: {error}{at}"
