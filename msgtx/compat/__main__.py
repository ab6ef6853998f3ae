"""`python -m msgtx.compat`: run a program with msgtx in the place of confluent_kafka."""

import runpy
import sys
from pathlib import Path
from typing import Final, NoReturn

import click

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
    """Run what the arguments name, as Python would. The exit code is the program's."""
    match arguments:
        case [] | ["-h" | "--help", *_]:
            click.echo(HELP)
        case ["--path"]:
            from msgtx.compat import substitute

            click.echo(substitute.FOLDER)
        case ["-m"]:
            _refuse("-m needs the name of a module")
        case ["-m", module, *rest]:
            _put()
            sys.argv = [module, *rest]
            sys.path[0] = str(Path.cwd())
            _run_module(module)
        case [option, *_] if option.startswith("-"):
            _refuse(f"unknown option {option}: see --help")
        case [script, *rest]:
            if not Path(script).exists():
                _refuse(f"can't open file {script!r}: no such file")
            _put()
            sys.argv = [script, *rest]
            sys.path[0] = str(Path(script).resolve().parent)
            runpy.run_path(script, run_name="__main__")


def _put() -> None:
    try:
        from msgtx.compat import substitute

        substitute.put()
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        _refuse("confluent-kafka is not installed: pip install 'msgtx[kafka]'", code=1)
    substitute.inherit()


def _run_module(module: str) -> None:
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except ImportError as error:
        # What runpy itself says; an import that fails inside the program has a traceback.
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None and _is_own(error):
            _refuse(str(error), code=1)
        raise


def _is_own(error: ImportError) -> bool:
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_globals.get("__name__") == "runpy"


def _refuse(text: str, *, code: int = 2) -> NoReturn:
    click.echo(f"msgtx.compat: {text}", err=True)
    raise SystemExit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
