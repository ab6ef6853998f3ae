"""`python -m msgtx.compat`: run a program with msgtx in the place of confluent_kafka."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Final, NoReturn

import click

from msgtx.compat import substitute

HELP: Final = """\
Usage: python -m msgtx.compat SCRIPT [ARGUMENT]...
       python -m msgtx.compat -m MODULE [ARGUMENT]...
       python -m msgtx.compat --path

Run a Python program, unchanged, with msgtx in the place of confluent_kafka.
The database is MSGTX_DATABASE_URL; settings of brokers are ignored.

  SCRIPT     as of `python SCRIPT`
  -m MODULE  as of `python -m MODULE`, for example `-m pytest tests`
  --path     print a folder: in front of PYTHONPATH it does the same for
             any Python program

Python processes that the program starts use msgtx, too."""


def main(arguments: list[str]) -> None:
    """Become the Python process that the arguments describe. Raise `SystemExit` if they are wrong."""
    match arguments:
        case [] | ["-h" | "--help", *_]:
            click.echo(HELP)
            return
        case ["--path"]:
            click.echo(substitute.FOLDER)
            return
        case ["-m"]:
            _refuse("-m needs the name of a module")
        case [option, *_] if option.startswith("-") and option != "-m":
            _refuse(f"unknown option {option}: see --help")
        case [script, *_] if script != "-m" and not Path(script).exists():
            _refuse(f"can't open file {script!r}: no such file")
    if importlib.util.find_spec(substitute.ORIGINAL) is None:
        _refuse("confluent-kafka is not installed: pip install 'msgtx[kafka]'", code=1)
    substitute.inherit()
    # A new interpreter, with the options of this one: the program finds all as Python itself leaves it.
    options = sys.orig_argv[1 : sys.orig_argv.index("-m")]
    os.execv(sys.executable, [sys.executable, *options, *arguments])  # noqa: S606 - a shell has no part in it


def _refuse(text: str, *, code: int = 2) -> NoReturn:
    click.echo(f"msgtx.compat: {text}", err=True)
    raise SystemExit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
