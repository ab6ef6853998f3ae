"""Wheels that are made of the packages of this environment: pip installs them elsewhere, without the network.

A package has its real metadata, so pip decides as it does with an index. `only_metadata`: for what is too large to install
again; pip can still resolve it.
"""

import re
import sys
import zipfile
from importlib import metadata
from pathlib import Path


def repack(name: str, folder: Path, *, only_metadata: bool = False) -> None:
    """Write the wheel of an installed package into a folder."""
    found = metadata.distribution(name)
    tags = re.findall(r"^Tag: (\S+)-(\S+)-(\S+)$", found.read_text("WHEEL") or "", re.MULTILINE)
    pythons, abis, platforms = (".".join(sorted(set(part))) for part in zip(*tags, strict=True))
    stem = f"{re.sub('[-_.]+', '_', found.name)}-{found.version}"
    held = {}
    for file in found.files or ():
        inner = file.parts[0].endswith(".dist-info")
        if ".." in file.parts or file.suffix == ".pyc" or (only_metadata and not inner):
            continue
        path = Path(str(file.locate()))
        if (inner and file.name in {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}) or not path.is_file():
            continue
        held[f"{stem}.dist-info/{'/'.join(file.parts[1:])}" if inner else file.as_posix()] = path
    record = f"{stem}.dist-info/RECORD"
    with zipfile.ZipFile(folder / f"{stem}-{pythons}-{abis}-{platforms}.whl", "w") as wheel:
        for where, path in held.items():
            wheel.write(path, where)
        wheel.writestr(record, "".join(f"{where},,\n" for where in [*held, record]))


def installed() -> dict[str, str]:
    """Return the version of each package of this environment but msgtx, by its normal name."""
    found = {re.sub(r"[-_.]+", "-", each.name).lower(): each.version for each in metadata.distributions()}
    return {name: version for name, version in found.items() if name != "msgtx"}


def pip(*arguments: str | Path) -> list[str]:
    """Return a command of pip, which asks nothing but these folders."""
    quiet = ["--isolated", "--disable-pip-version-check", "--no-input", "--quiet"]
    return [sys.executable, "-m", "pip", *quiet, *map(str, arguments)]
