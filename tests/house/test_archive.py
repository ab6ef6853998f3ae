"""The source archive is a clone without its history: the same wheel comes of it, and the tests run in it."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.artifacts import ROOT, build, unpacked_archive


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree that the archive holds, after `make` has laid it out as a clone is."""
    tree = unpacked_archive(tmp_path_factory.mktemp("archive"))
    for path in tree.rglob("*"):  # as in a clone of another day, by a user with other habits
        path.chmod(path.stat().st_mode & 0o700)
        os.utime(path, (1_700_000_000, 1_700_000_000))
    subprocess.run(["make", "links"], cwd=tree, check=True)
    return tree


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sdist", "wheel"])
def test_the_archive_and_the_wheel_are_the_same_to_the_byte_wherever_they_are_built(
    kind: str, source: Path, tmp_path: Path
) -> None:
    ours = build(kind, ROOT, tmp_path / "ours")
    theirs = build(kind, source, tmp_path / "theirs")
    assert (ours.name, digest(ours)) == (theirs.name, digest(theirs))


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="it compares with what git knows")
def test_the_archive_holds_what_a_clone_holds(source: Path) -> None:
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    known = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    clone = {name for name in known if (ROOT / name).is_symlink() or (ROOT / name).is_file()}
    archive = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_symlink() or path.is_file()}
    assert {name for name in archive if "__pycache__" not in name} - {"PKG-INFO"} == clone


@pytest.mark.long
def test_the_tests_run_in_the_archive(source: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/rules", "tests/store/test_topics.py"]
    environment = os.environ | {"PYTHONPATH": str(source)}
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
    assert " passed" in done.stdout
