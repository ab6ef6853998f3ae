"""`python -m tools.release FOLDER [--key KEY]` checks what a release consists of, and writes the list of its hashes.

`make release` runs it behind `twine check`. Users compare the list by `sha256sum --check SHA256SUMS`, and its signature
as docs/operations/versions.md says.
"""

import argparse
import hashlib
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
LIST: Final = "SHA256SUMS"
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
NAME: Final = f"{PROJECT['project']['name']}-{PROJECT['project']['version']}"
HELD: Final = {"msgtx/py.typed", "msgtx/sql/append/append.sql", "msgtx/cli/main.py", f"{NAME}.dist-info/licenses/LICENSE"}


def artifacts(folder: Path) -> list[Path]:
    """Return the source archive and the wheels of a folder, by name."""
    return sorted(path for path in folder.iterdir() if path.name.endswith((".tar.gz", ".whl")))


def problems(folder: Path) -> list[str]:
    """Return what is wrong with the artifacts of a folder, a sentence each."""
    paths = artifacts(folder)
    archive, wheel = folder / f"{NAME}.tar.gz", folder / f"{NAME}-py3-none-any.whl"
    if archive not in paths or wheel not in paths:
        return [f"{folder} lacks {archive.name} or {wheel.name}: run `make wheels`"]
    with tarfile.open(archive) as opened:
        member = opened.extractfile(f"{NAME}/PKG-INFO")
        assert member is not None
        metadata = member.read()
    found = [f"{path.name} is no part of {NAME}" for path in paths if path not in (archive, wheel)]
    return found + _of_wheel(wheel, metadata)


def _of_wheel(path: Path, metadata: bytes) -> list[str]:
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        same = f"{NAME}.dist-info/METADATA" in names and wheel.read(f"{NAME}.dist-info/METADATA") == metadata
    found = [f"{path.name} lacks {name}" for name in sorted(HELD - names)]
    if not same:
        found.append(f"{path.name} has other metadata than the source archive")
    return found


def write_list(folder: Path) -> Path:
    """Write the SHA-256 of each artifact as `sha256sum` does. Return the file."""
    hashes = ((hashlib.sha256(path.read_bytes()).hexdigest(), path.name) for path in artifacts(folder))
    file = folder / LIST
    file.write_text("".join(f"{digest}  {name}\n" for digest, name in hashes), encoding="utf-8")
    return file


def sign(file: Path, key: str) -> Path:
    """Sign a file with a private key of ssh-keygen, or with a key of gpg by its name. Return the signature's file."""
    if Path(key).is_file():
        signature = file.with_name(f"{file.name}.sig")
        command = ["ssh-keygen", "-q", "-Y", "sign", "-n", "file", "-f", key, str(file)]
    else:
        signature = file.with_name(f"{file.name}.asc")
        command = [
            "gpg",
            "--batch",
            "--yes",
            "--armor",
            "--local-user",
            key,
            "--detach-sign",
            "--output",
            str(signature),
            str(file),
        ]
    signature.unlink(missing_ok=True)
    if subprocess.run(command, check=False).returncode != 0:
        file.unlink()  # what is not signed is not published
        raise SystemExit(f"no key {key} signed {file.name}")
    return signature


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--key", help="a file of ssh-keygen, else the name of a key of gpg")
    given = parser.parse_args()
    if wrong := problems(given.folder):
        sys.exit("\n".join(wrong))
    file = write_list(given.folder)
    sys.stdout.write(file.read_text(encoding="utf-8"))
    if given.key:
        sys.stdout.write(f"{sign(file, given.key)}\n")


if __name__ == "__main__":
    main()
