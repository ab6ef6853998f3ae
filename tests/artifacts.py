"""Builds the source archive and the wheel, as `make wheels` does."""

import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]


def build(kind: str, tree: Path, folder: Path) -> Path:
    """Build a source archive or a wheel from a tree, in a folder that is not there yet. Return its file."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(folder)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.iterdir()
    return made


def unpacked_archive(folder: Path) -> Path:
    """Build the source archive and unpack it in `folder`. Return the tree that it holds."""
    with tarfile.open(build("sdist", ROOT, folder / "archive")) as archive:
        archive.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    return source
