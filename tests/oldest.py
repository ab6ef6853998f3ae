"""`python -m tests.oldest` prints, for pip, the oldest versions that pyproject.toml allows; tools of the tests as locked."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
EXTRAS: Final = ("async", "otel", "examples")
TOOLS: Final = ("editables", "hatchling", "hypothesis", "pyarrow", "pytest", "pytest-xdist", "pyyaml")
WITH_OTEL: Final = "opentelemetry-sdk"


def requirements() -> list[str]:
    """Return lines such as `click==8.2`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    extras = project["optional-dependencies"]
    bounds = project["dependencies"] + [each for extra in EXTRAS for each in extras[extra]]
    bounds += [each for each in extras["dev"] if each.startswith(WITH_OTEL)]
    locked = dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", lock, re.MULTILINE))
    return [*(each.replace(">=", "==") for each in bounds), *(f"{tool}=={locked[tool]}" for tool in TOOLS)]


if __name__ == "__main__":
    sys.stdout.write("\n".join([*requirements(), ""]))
