"""`python tests/install/compiled.py`: fail unless the installed msgtx is compiled. It needs nothing but msgtx."""

import importlib
import sys
import tomllib
from pathlib import Path

import msgtx

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
MODULES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["mypyc"]["include"]

if __name__ == "__main__":
    files = [importlib.import_module(module.removesuffix(".py").replace("/", ".")).__file__ for module in MODULES]
    if not all(file and file.endswith(".so") for file in files):
        sys.exit(f"not compiled: {files}")
    assert msgtx.__version__ == PROJECT["project"]["version"]
