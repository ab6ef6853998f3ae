"""The source archives of the packages, which hold their tests: `python -m tests.packages.sources` fetches them, once.

Versions and hashes are those of requirements-compat.lock. confluent-kafka's own archive has neither its tests nor its
examples: those run from a checkout of its repository that `CONFLUENT` names.
"""

import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from tests.house.sources import ROOT

PYTHON: Final = Path(sys.prefix) / "compat" / "bin" / "python"
FOLDER: Final = PYTHON.parents[1] / "sources"
LINKS: Final = PYTHON.parents[1] / "links"  # msgtx without the rest of this folder, whose `tests` would hide theirs
LOCK: Final = ROOT / "requirements-compat.lock"
MISSING: Final = f"missing: {PYTHON}, the environment of the packages (make test-compat makes it)"
PACKAGES: Final = ("adc-streaming", "kombu", "opentelemetry-instrumentation-confluent-kafka", "sentry-arroyo")
CONFLUENT: Final = "CONFLUENT"  # the variable with the folder of a checkout of confluent-kafka-python


def unpack(package: str, into: Path) -> Path:
    """Unpack the sources of a package. Return their folder: outside of ours, whose settings pytest would find."""
    (archive,) = FOLDER.glob(package.replace("-", "_") + "-*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(into, filter="data")
    return into / archive.name.removesuffix(".tar.gz")


def confluent() -> Path | None:
    """Return the checkout of confluent-kafka-python, if there is one."""
    given = os.environ.get(CONFLUENT)
    return Path(given).resolve() if given else None


def fetch() -> None:
    """Fetch the archives; link msgtx and the packages that it needs into the environment."""
    FOLDER.mkdir(exist_ok=True)
    LINKS.mkdir(exist_ok=True)
    for name in ("msgtx", "pyspark_msgtx"):
        link = LINKS / name
        link.unlink(missing_ok=True)
        link.symlink_to(ROOT / name)
    (site,) = PYTHON.parents[1].glob("lib/python3*/site-packages")
    (ours,) = Path(sys.prefix).glob("lib/python3*/site-packages")
    (site / "msgtx.pth").write_text(f"{ours}\n")
    pinned = re.findall(r"^\S+==\S+ \\\n(?:    --hash=\S+(?: \\)?\n)+", LOCK.read_text(), re.MULTILINE)
    with tempfile.TemporaryDirectory() as scratch:
        wanted = Path(scratch) / "wanted.txt"
        wanted.write_text("".join(each for each in pinned if each.partition("==")[0] in PACKAGES))
        command = [PYTHON, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"]
        command += ["--no-binary", ":all:", "--no-build-isolation", "--require-hashes", "--dest", FOLDER, "-r", wanted]
        subprocess.run([str(each) for each in command], check=True)


if __name__ == "__main__":
    fetch()
