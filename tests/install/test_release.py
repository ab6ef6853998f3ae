"""What is uploaded: checked, listed with its hashes, signed."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.artifacts import ROOT, build
from tests.databases import scratch
from tools import release

TOOLS = ROOT / ".venv" / "release" / "bin"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source archive and the wheel."""
    folder, parts = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("parts")
    for kind in ("sdist", "wheel"):
        shutil.move(build(kind, ROOT, parts / kind), folder)
    return folder


@pytest.fixture
def dist(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "dist")


def run(*command: str | Path, cwd: Path | None = None, stdin: str = "", home: Path | None = None) -> str:
    """Run a program that must succeed. Return its output."""
    environment = os.environ | ({"GNUPGHOME": str(home)} if home else {})
    done = subprocess.run(
        command,
        cwd=cwd,
        input=stdin,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_an_index_takes_the_metadata(made: Path) -> None:
    assert run(TOOLS / "twine", "check", "--strict", *release.artifacts(made)).count("PASSED") == 2


def without(path: Path, name: str) -> None:
    """Write a wheel again, without one of its files."""
    with zipfile.ZipFile(path) as wheel:
        kept = {each: wheel.read(each) for each in wheel.namelist() if each != name}
    with zipfile.ZipFile(path, "w") as wheel:
        for each, held in kept.items():
            wheel.writestr(each, held)


@pytest.mark.parametrize("name", ["msgtx/py.typed", "msgtx/cli/main.py"])
def test_a_wheel_that_lacks_a_file_is_refused(name: str, dist: Path) -> None:
    wheel = dist / f"{release.NAME}-py3-none-any.whl"
    without(wheel, name)
    assert release.problems(dist) == [f"{wheel.name} lacks {name}"]


def test_further_files_and_other_metadata_are_refused(dist: Path) -> None:
    wheel = dist / f"{release.NAME}-py3-none-any.whl"
    others = [f"{release.NAME}-cp311-cp311-linux_x86_64.whl", "msgtx-9.9.9-py3-none-any.whl"]
    for name in others:
        shutil.copy(wheel, dist / name)
    without(wheel, f"{release.NAME}.dist-info/METADATA")
    assert release.problems(dist) == [
        *(f"{name} is no part of {release.NAME}" for name in others),
        f"{wheel.name} has other metadata than the source archive",
    ]
    (dist / f"{release.NAME}.tar.gz").unlink()
    assert "run `make wheels`" in release.problems(dist)[0]


@pytest.fixture
def gpg_home() -> Iterator[Path]:
    home = scratch("gpg")  # short, for the agent's socket
    home.chmod(0o700)
    yield home
    run("gpgconf", "--kill", "all", home=home)
    shutil.rmtree(home, ignore_errors=True)


def signed(dist: Path, key: str, home: Path | None = None) -> Path:
    run(sys.executable, "-m", "tools.release", dist, "--key", key, cwd=ROOT, home=home)
    run("sha256sum", "--strict", "--check", release.LIST, cwd=dist)
    return dist / release.LIST


def changed(file: Path) -> Path:
    """Write a list beside the signed one, with another hash."""
    other = file.with_name("changed")
    other.write_text(file.read_text().replace("0", "1"))
    return other


def test_a_list_is_signed_with_a_key_of_ssh(dist: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
    file = signed(dist, str(key))
    signers = tmp_path / "allowed_signers"
    signers.write_text(f"ada {key.with_suffix('.pub').read_text()}")
    verify = ["ssh-keygen", "-Y", "verify", "-f", signers, "-I", "ada", "-n", "file", "-s", f"{file}.sig"]
    assert "Good" in run(*verify, stdin=file.read_text())
    with pytest.raises(AssertionError, match=r"(?i)incorrect|could not verify"):
        run(*verify, stdin=changed(file).read_text())
    signed(dist, str(key))  # again: the signature is replaced


def test_a_list_is_signed_with_a_key_of_gpg(dist: Path, gpg_home: Path) -> None:
    run("gpg", "--batch", "--passphrase", "", "--quick-generate-key", "ada@example.org", home=gpg_home)
    file = signed(dist, "ada@example.org", home=gpg_home)
    assert "Good signature" in run("gpg", "--verify", f"{file}.asc", file, home=gpg_home)
    with pytest.raises(AssertionError, match="BAD signature"):
        run("gpg", "--verify", f"{file}.asc", changed(file), home=gpg_home)


def test_a_key_that_is_not_there_signs_nothing(dist: Path, gpg_home: Path) -> None:
    with pytest.raises(AssertionError, match="no key"):
        signed(dist, "nobody@example.org", home=gpg_home)
    assert sorted(path.name for path in dist.iterdir()) == sorted(path.name for path in release.artifacts(dist))
