"""`python -m tests.compiled MODULE ARGUMENTS…`: `python -m MODULE ARGUMENTS…`, with msgtx as a wheel holds it, compiled.

The wheel is built from the source archive, in a folder of its own, which this removes: a module that was compiled in the
clone would go on hiding its source. The tests, and what else stands at the top of the clone, are reached by links.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
WHEEL: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
MODULES: Final[list[str]] = WHEEL["hooks"]["mypyc"]["include"]
COMPILED: Final = {"HATCH_BUILD_HOOK_ENABLE_MYPYC": "1"}


def build(kind: str, tree: Path, folder: Path, *, settings: Mapping[str, str] | None = None) -> Path:
    """Build a source archive or a wheel from a tree, in a folder that is not there yet. Returns its file."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(folder)]
    done = subprocess.run(command, cwd=tree, env=os.environ | (settings or {}), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.iterdir()
    return made


def unpacked_archive(folder: Path) -> Path:
    """Build the source archive and unpack it in `folder`. Returns the tree that it holds."""
    with tarfile.open(build("sdist", ROOT, folder / "archive")) as archive:
        archive.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    return source


def unpack(folder: Path) -> Path:
    """Build the compiled wheel. Returns a folder that holds it, and the rest of the clone."""
    source = unpacked_archive(folder)
    tree = folder / "tree"
    shutil.unpack_archive(build("wheel", source, folder / "wheel", settings=COMPILED), tree, "zip")
    missing = [source for source in MODULES if not any((tree / source).parent.glob(f"{Path(source).stem}.*.so"))]
    if missing:
        raise RuntimeError(f"not compiled: {', '.join(missing)}")
    for entry in ROOT.iterdir():
        if not (tree / entry.name).exists():
            (tree / entry.name).symlink_to(entry)
    return tree


def main(arguments: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="msgtx-compiled-") as folder:
        tree = unpack(Path(folder))
        command = [sys.executable, "-m", *arguments]
        return subprocess.run(command, cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
