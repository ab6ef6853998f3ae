"""The source archive: a wheel built from it equals one built from a clone; only a clone has the tests."""

import zipfile
from pathlib import Path

from tests.compiled import ROOT, build, unpacked_archive


def held(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_a_wheel_from_the_source_archive_holds_what_one_from_a_clone_holds(tmp_path: Path) -> None:
    tree = unpacked_archive(tmp_path)
    names = {entry.name for entry in tree.iterdir()}
    assert names >= {"msgtx", "pyspark_msgtx", "README.md", "LICENSE", "pyproject.toml"}
    assert names & {"tests", "Makefile"} == set()
    ours = held(build("wheel", ROOT, tmp_path / "ours"))
    assert held(build("wheel", tree, tmp_path / "theirs")) == ours
    assert "msgtx/sql/append/append.sql" in ours
