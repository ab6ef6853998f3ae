"""The source archive: a wheel built from it equals one built from a clone; only a clone has the tests."""

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import msgtx

ROOT = Path(msgtx.__file__).parents[1]


def build(kind: str, tree: Path, folder: Path, *, settings: Mapping[str, str] | None = None) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(folder)]
    done = subprocess.run(command, cwd=tree, env=os.environ | (settings or {}), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.iterdir()
    return made


def held(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_a_wheel_from_the_source_archive_holds_what_one_from_a_clone_holds(tmp_path: Path) -> None:
    with tarfile.open(build("sdist", ROOT, tmp_path / "archive")) as archive:
        names = archive.getnames()
        archive.extractall(tmp_path / "tree", filter="data")
    (tree,) = (tmp_path / "tree").iterdir()
    assert {name.split("/")[1] for name in names} >= {"msgtx", "pyspark_msgtx", "README.md", "LICENSE", "pyproject.toml"}
    assert [name for name in names if name.split("/")[1] in {"tests", "Makefile"}] == []
    ours = held(build("wheel", ROOT, tmp_path / "ours"))
    assert held(build("wheel", tree, tmp_path / "theirs")) == ours
    assert "msgtx/sql/append/append.sql" in ours
